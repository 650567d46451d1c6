//! Heights that no lease covers: only damage makes such, and the committer says so.

// Tests may.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use cairn_core::Height;
use cairn_pipeline::derive::DeriveOptions;

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
    working.stop().await.unwrap();
}
