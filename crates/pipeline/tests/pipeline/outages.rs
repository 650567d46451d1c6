//! An app store that was away, or refused everything, holds nothing up once it is back; and what is damaged in the raw store stops nobody who doesn't need it.

// Tests may.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cairn_core::Height;
use cairn_pipeline::derive::DeriveOptions;
use cairn_pipeline::derive::processor::Processor;
use cairn_store::StoreError;
use cairn_store::derived::{ErrorLog, NewError, Severity};
use cairn_store::memory::CommitHook;
use tokio::time::Instant;

use support::derive::{Derived, counts, marks};
use support::{MAIN, fork, pass_ms, tiny};

/// The longest time from the database's return to what it held up.
const SOON_MS: u64 = 20_000;

/// The way to an app store that may be away.
struct Way {
    away: AtomicBool,
    /// How a verb fails then.
    failure: fn() -> StoreError,
    /// The next claim is done, and its answer lost.
    loses_claim: AtomicBool,
}

impl Way {
    fn new(failure: fn() -> StoreError) -> Arc<Way> {
        Arc::new(Way { away: AtomicBool::new(false), failure, loses_claim: AtomicBool::new(false) })
    }

    fn away() -> Arc<Way> {
        Way::new(|| StoreError::Busy("the server is away".into()))
    }
}

impl CommitHook for Way {
    fn before(&self, _verb: &'static str) -> cairn_store::Result<()> {
        if self.away.load(SeqCst) { Err((self.failure)()) } else { Ok(()) }
    }

    fn after(&self, verb: &'static str) -> Result<(), StoreError> {
        if verb == "claim" && self.loses_claim.swap(false, SeqCst) {
            return Err(StoreError::Busy("the connection broke off".into()));
        }
        Ok(())
    }
}

fn processors() -> Vec<Processor> {
    vec![marks(|_, _| Ok(())), counts(|_| Ok(()))]
}

/// Leases outlast what a test waits for, so that nothing is freed by their end.
fn options(world: &Derived) -> DeriveOptions {
    DeriveOptions { lease_ttl_ms: 300_000, lease_margin_ms: 10_000, ..world.options() }
}

async fn soon(world: &Derived, next: u64) {
    let began = Instant::now();
    for service in ["mark_worker", "count_worker"] {
        world.until_next(service, next).await;
    }
    assert!(began.elapsed().as_millis() <= u128::from(SOON_MS), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn l11_an_outage_of_the_app_store_holds_nothing_up_once_it_is_over() {
    for away_ms in [3_000, 25_000, 120_000, 295_000, 400_000] {
        let world = Derived::new(tiny(1), 20).await;
        let way = Way::away();
        world.app.set_hook(Some(way.clone()));
        let working = world.start(processors(), options(&world));
        soon(&world, 21).await;
        way.away.store(true, SeqCst);
        world.append(MAIN, 21, 30).await;
        pass_ms(away_ms).await;
        world.append(MAIN, 31, 40).await;
        way.away.store(false, SeqCst);
        soon(&world, 41).await;
        assert!(world.leases().await.iter().all(|lease| lease.attempt == 0), "an outage is charged");
        working.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn l11_a_claim_whose_answer_was_lost_is_given_back() {
    let world = Derived::new(tiny(1), 20).await;
    let way = Way::away();
    way.loses_claim.store(true, SeqCst);
    world.app.set_hook(Some(way.clone()));
    let working = world.start(processors(), options(&world));
    soon(&world, 21).await;
    assert!(!way.loses_claim.load(SeqCst));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p27_a_database_that_refused_everything_for_a_while_ends_no_job_for_good() {
    let world = Derived::new(tiny(1), 20).await;
    let way = Way::new(|| StoreError::Database("could not read blocks (SQLSTATE XX000)".into()));
    // From the start on: not even the first verb is taken.
    way.away.store(true, SeqCst);
    world.app.set_hook(Some(way.clone()));
    let working = world.start(processors(), options(&world));
    pass_ms(60_000).await;
    assert!(working.is_running(), "{:?}", working.status().halted);
    way.away.store(false, SeqCst);
    soon(&world, 21).await;
    // And while it works.
    way.away.store(true, SeqCst);
    world.append(MAIN, 21, 30).await;
    let side = fork(&world.chain, 25, 1);
    world.reorg(25, side, 31).await;
    pass_ms(90_000).await;
    assert!(working.is_running(), "{:?}", working.status().halted);
    let failing = working.status().failing_jobs;
    assert!(failing.get("apply").is_some_and(|error| error.contains("XX000")), "{failing:?}");
    way.away.store(false, SeqCst);
    soon(&world, 32).await;
    pass_ms(120_000).await;
    assert_eq!(working.status().failing_jobs, [].into());
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i30_a_lost_raw_row_stops_only_who_needs_it() {
    let world = Derived::new(tiny(1), 40).await;
    let working = world.start(processors(), options(&world));
    soon(&world, 41).await;
    let side = fork(&world.chain, 35, 1);
    world.reorg(35, side, 42).await;
    soon(&world, 43).await;
    // One row below all that a reorg took, and one where it took something.
    world.raw.lose_block(Height(20)).unwrap();
    world.raw.lose_block(Height(38)).unwrap();
    let late = |height: u64| {
        let block = world.chain.block_ref(MAIN, Height(height));
        NewError {
            service: "mark_worker".into(),
            height: block.height,
            block_id: block.id,
            transaction_id: String::new(),
            severity: Severity::Warn,
            message: "of a block that a reorg took".into(),
            raw_data: Vec::new(),
            raw_ref: None,
        }
    };
    world.errors.record(&[late(37), late(38), late(39)]).await.unwrap();
    pass_ms(130_000).await;
    assert!(working.is_running(), "{:?}", working.status().halted);
    let left: Vec<u64> = world.logged().await.iter().map(|logged| logged.error.height.get()).collect();
    assert_eq!(left, [38], "which block stands at 38 can't be told, and the others are forgotten");
    world.append(side, 43, 50).await;
    soon(&world, 51).await;
    working.stop().await.unwrap();
}
