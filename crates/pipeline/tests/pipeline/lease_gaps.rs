//! Heights that no lease covers: only damage makes such, and the committer says so.

// Tests may.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cairn_core::{Height, HeightRange};
use cairn_pipeline::derive::processor::ProcessError;
use cairn_pipeline::derive::{DeriveOptions, MalformedPolicy};
use cairn_store::derived::{DerivedMaintenance, LeaseGap};

use support::derive::{Derived, marks};
use support::gauges::Gauges;
use support::{pass_ms, tiny};

#[tokio::test(start_paused = true)]
async fn the_committer_says_how_many_gaps_there_are_between_leases() {
    let gauges = Arc::new(Gauges::default());
    let _set = metrics::set_default_local_recorder(&*gauges);
    let world = Derived::new(tiny(1), 20).await;
    let options = DeriveOptions { range_heights: 5, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(()))], options);
    world.until_next("mark_worker", 21).await;
    let said = || (working.status().lease_gaps, gauges.get("cairn_lease_gaps"));
    pass_ms(61_000).await;
    assert_eq!(said(), (0, Some(0.0)));
    let leases = world.leases().await;
    for (from, gaps) in [(5, 1), (15, 2)] {
        let lost = leases.iter().find(|lease| lease.range.start() == Height(from)).unwrap();
        world.app.lose_lease(lost.id).unwrap();
        pass_ms(61_000).await;
        assert_eq!(said(), (gaps, Some(gaps as f64)), "after the one from {from} on was lost");
    }
    // The checkpoint is above them: nothing waits.
    assert_eq!(working.status().open_gaps, []);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gap_at_which_a_checkpoint_stands_still_is_named_until_what_lies_above_it_is_taken_back() {
    let world = Derived::new(tiny(1), 20).await;
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = is_broken.clone();
    let processor = marks(move |block, _| {
        if broken.load(SeqCst) && block.facts.height == Height(7) {
            let block = block.facts.block_ref();
            return Err(ProcessError { block, message: "not yet".into() });
        }
        Ok(())
    });
    let options = DeriveOptions { range_heights: 5, malformed: MalformedPolicy::Halt, ..world.options() };
    let working = world.start(vec![processor], options);
    let all_but_one = async || {
        let leases = world.leases().await;
        leases.len() == 5 && leases.iter().filter(|lease| lease.done_to.get() % 5 != 0).count() == 2
    };
    world.until("the others are done", all_but_one).await;
    let lost = world.leases().await.into_iter().find(|lease| lease.range.start() == Height(5)).unwrap();
    world.app.lose_lease(lost.id).unwrap();
    is_broken.store(false, SeqCst);
    pass_ms(61_000).await;
    let missing = HeightRange::new(Height(5), Height(10));
    assert_eq!(working.status().open_gaps, [LeaseGap { service: "mark_worker".into(), missing }]);
    assert_eq!(world.next("mark_worker").await, 7);

    while world.app.take_back_step("mark_worker", missing.end(), 3).await.unwrap().is_some() {}
    world.until_next("mark_worker", 21).await;
    assert_eq!(world.marked().await, (0..=20).collect::<Vec<_>>());
    pass_ms(61_000).await;
    assert_eq!((working.status().lease_gaps, working.status().open_gaps), (0, Vec::new()));
    working.stop().await.unwrap();
}
