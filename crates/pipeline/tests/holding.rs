//! What ends a worker's hold on a range: a pause.

// Tests may.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cairn_pipeline::derive::DeriveOptions;
use cairn_store::derived::{Coordinator, LeaseStatus};
use futures::FutureExt;

use support::derive::{Derived, counts, marks};
use support::{MAIN, pass_ms, tiny};

#[tokio::test(start_paused = true)]
async fn a_paused_worker_gives_back_the_range_that_it_holds_at_the_tip() {
    let world = Derived::new(tiny(1), 20).await;
    let working = world.start(vec![marks(|_, _| Ok(())), counts(|_| Ok(()))], world.options());
    world.until_next("count_worker", 21).await;
    world.app.set_paused("mark_worker", true).await.unwrap();
    for last in 21..30 {
        world.append(MAIN, last, last).await;
        pass_ms(10_000).await;
    }
    assert_eq!(world.next("mark_worker").await, 21, "it goes on");
    let held = |leases: Vec<cairn_store::derived::WorkerLease>| {
        leases.into_iter().filter(|lease| lease.service == "mark_worker").collect::<Vec<_>>()
    };
    let leases = held(world.leases().await);
    let lease = leases.first().expect("one");
    assert_eq!((leases.len(), lease.status, lease.attempt), (1, LeaseStatus::Failed, 0));
    world.app.set_paused("mark_worker", false).await.unwrap();
    world.until_next("count_worker", 30).await;
    assert_eq!(world.marked().await, (0..30).collect::<Vec<_>>());
    assert_eq!(held(world.leases().await).len(), 1, "it goes on in the range that it had");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_far_behind_stops_after_the_chunk_under_way() {
    let world = Derived::new(tiny(1), 60).await;
    let app = world.app.clone();
    let paused = Arc::new(AtomicBool::new(false));
    let pausing = paused.clone();
    // Each chunk is one block; the pause comes while one of them is worked on.
    let marks = marks(move |block, _| {
        if block.facts.height.get() == 10 && !pausing.swap(true, SeqCst) {
            app.set_paused("mark_worker", true).now_or_never().expect("it waits for nothing").unwrap();
        }
        Ok(())
    });
    let working = world.start(vec![marks], DeriveOptions { chunk_heights: 1, ..world.options() });
    world.until("the pause", async || paused.load(SeqCst)).await;
    pass_ms(60_000).await;
    assert_eq!(world.next("mark_worker").await, 11);
    world.app.set_paused("mark_worker", false).await.unwrap();
    world.until_next("mark_worker", 61).await;
    working.stop().await.unwrap();
}
