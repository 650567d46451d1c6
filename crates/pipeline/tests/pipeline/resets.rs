//! A worker whose reset is not over waits, and nothing else does; a reset that somebody left is finished by whoever derives.

use crate::support;

use std::time::Duration;

use cairn_pipeline::derive::DeriveOptions;
use cairn_pipeline::derive::processor::Processor;
use cairn_store::derived::{Coordinator, DerivedMaintenance, DerivedReader, Rebuild, RebuildRequest, Value};

use support::derive::{COUNTS, Derived, counts, marks};
use support::{pass_ms, tiny};

fn processors() -> Vec<Processor> {
    vec![marks(|_, _| Ok(())), counts(|_| Ok(()))]
}

/// A world of which everything up to height 29 is derived, whose folder's reset was begun and left after one row.
async fn left() -> Derived {
    let derived = Derived::new(tiny(1), 29).await;
    // Many leases: each is a step of its own.
    let options = DeriveOptions { range_heights: 2, ..derived.options() };
    let working = derived.start(processors(), options);
    derived.until_next("count_worker", 30).await;
    working.stop().await.unwrap();
    let request = RebuildRequest { anew: vec!["count_worker".into()], ..RebuildRequest::default() };
    derived.app.begin_rebuild(&request).await.unwrap();
    assert!(derived.app.reset_step("count_worker", 1).await.unwrap());
    derived
}

async fn rebuild(derived: &Derived) -> Option<Rebuild> {
    let snapshot = derived.app.snapshot().await.unwrap();
    snapshot.rebuilds().iter().find(|rebuild| rebuild.service == "count_worker").cloned()
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_reset_waits_the_others_work_and_the_reset_is_finished() {
    let derived = left().await;
    derived.append(support::MAIN, 30, 39).await;
    let working = derived.start(processors(), derived.options());
    derived.until_next("mark_worker", 40).await;
    assert!(
        rebuild(&derived).await.is_some_and(|rebuild| rebuild.is_clearing),
        "nobody has looked twice yet"
    );
    assert!(working.is_running() && working.status().halted.is_none());
    derived.until_next("count_worker", 40).await;
    let rows = derived.rows(COUNTS.name).await;
    assert_eq!((rows.len(), &rows[0].0[1]), (1, &Value::Int(40)));
    derived.until("the rebuild is over", async || rebuild(&derived).await.is_none()).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_somebody_works_on_is_left_to_them() {
    let derived = left().await;
    let working = derived.start(processors(), derived.options());
    for _ in 0..10 {
        // A step now and then, more often than is looked.
        pass_ms(2_000).await;
        assert!(derived.app.reset_step("count_worker", 1).await.unwrap());
    }
    let steps = rebuild(&derived).await.map(|rebuild| rebuild.steps);
    assert_eq!(steps, Some(11), "somebody else took steps");
    // They died: it is finished.
    derived.until_next("count_worker", 30).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_at_work_finishes_a_reset_that_was_begun_beside_it() {
    let derived = Derived::new(tiny(1), 29).await;
    let working = derived.start(processors(), derived.options());
    derived.until_next("count_worker", 30).await;
    let request = RebuildRequest { anew: vec!["count_worker".into()], ..RebuildRequest::default() };
    derived.app.begin_rebuild(&request).await.unwrap();
    derived.append(support::MAIN, 30, 34).await;
    derived.until_next("count_worker", 35).await;
    assert_eq!(derived.rows(COUNTS.name).await[0].0[1], Value::Int(35));
    // Nothing of it is left to be claimed by whoever held it before.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(derived.app.dead_leases(10).await.unwrap().is_empty());
    assert_eq!(derived.next("count_worker").await, 35);
    working.stop().await.unwrap();
}
