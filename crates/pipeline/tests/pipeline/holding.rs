//! What ends a worker's hold on a range, and what doesn't end the work of others: a pause, and a database that refuses one service's statements.

// Tests may.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cairn_core::Height;
use cairn_pipeline::derive::DeriveOptions;
use cairn_store::derived::{
    ClaimRequest, Coordinator, DerivedMaintenance, ErrorLog, LeaseEnd, LeaseStatus, MAX_ATTEMPTS, NewError,
    RebuildRequest, ReorgApplier, Severity, WorkerLease,
};
use cairn_store::memory::CommitHook;
use cairn_store::{RawReader, StoreError};
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

/// Refuses one verb while it is told to, in a way that a retry won't mend.
struct Refusing(&'static str, AtomicBool);

impl CommitHook for Refusing {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        if verb == self.0 && self.1.load(SeqCst) {
            return Err(StoreError::Database("column \"x\" is of another type (SQLSTATE 42804)".into()));
        }
        Ok(())
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_database_that_refuses_a_chunk_is_an_error_of_that_range() {
    let world = Derived::new(tiny(1), 20).await;
    let refusing = Arc::new(Refusing("commit_chunk", AtomicBool::new(true)));
    world.app.set_hook(Some(refusing.clone()));
    let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
    let is_counted = async || world.leases().await.iter().any(|lease| lease.attempt >= 2);
    world.until("two bad ends", is_counted).await;
    assert!(working.is_running(), "one range's error ended all work: {:?}", working.status().halted);
    let logged = world.logged().await;
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert_eq!((logged[0].error.severity, logged[0].error.height.get()), (Severity::Fatal, 0));
    assert!(logged[0].error.message.contains("42804"), "{}", logged[0].error.message);
    // It is dead in the end, and an operator frees it.
    world.until("a dead lease", async || world.leases().await[0].attempt >= MAX_ATTEMPTS).await;
    assert!(working.is_running());
    refusing.1.store(false, SeqCst);
    let lease = world.leases().await.remove(0);
    world.app.retry_lease(lease.id).await.unwrap();
    world.until_next("mark_worker", 21).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_database_that_refuses_all_ranges_charges_one_of_them() {
    let world = Derived::new(tiny(1), 39).await;
    let refusing = Arc::new(Refusing("commit_chunk", AtomicBool::new(true)));
    world.app.set_hook(Some(refusing.clone()));
    let options = DeriveOptions { range_heights: 10, workers_per_service: 2, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(()))], options);
    let dead = async || world.leases().await.into_iter().find(|lease| lease.is_dead());
    world.until("a dead lease", async || dead().await.is_some()).await;
    let charged = dead().await.expect("one").id;
    // It goes on for hours.
    for _ in 0..8 {
        pass_ms(1_800_000).await;
        for lease in world.leases().await.iter().filter(|lease| lease.id != charged) {
            assert_eq!(lease.attempt, 0, "{lease:?}");
        }
    }
    assert!(world.leases().await.len() > 1, "no other range was tried");
    assert_eq!(world.logged().await.len(), 1, "{:#?}", world.logged().await);
    assert!(working.is_running());
    // When it is over, the others go on without an operator; and the next refusal counts again.
    refusing.1.store(false, SeqCst);
    let others = async || {
        let done = |lease: &&WorkerLease| lease.status == LeaseStatus::Completed && lease.id != charged;
        world.leases().await.iter().filter(done).count() == 3
    };
    world.until("the other ranges", others).await;
    refusing.1.store(true, SeqCst);
    world.append(MAIN, 40, 49).await;
    let is_counted =
        async || world.leases().await.iter().any(|lease| lease.id != charged && lease.attempt > 0);
    world.until("a bad end", is_counted).await;
    refusing.1.store(false, SeqCst);
    world.app.retry_lease(charged).await.unwrap();
    world.until_next("mark_worker", 50).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_range_that_is_gone_is_no_longer_the_one_that_is_charged() {
    let world = Derived::new(tiny(1), 39).await;
    let refusing = Arc::new(Refusing("commit_chunk", AtomicBool::new(true)));
    world.app.set_hook(Some(refusing.clone()));
    let options = DeriveOptions { range_heights: 10, workers_per_service: 2, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(()))], options);
    let dead = async || world.leases().await.into_iter().find(|lease| lease.is_dead());
    world.until("a dead lease", async || dead().await.is_some()).await;
    let charged = dead().await.expect("one").id;
    // The worker begins anew, in ranges of other numbers, and nothing of it was committed meanwhile.
    let anew = RebuildRequest { anew: vec!["mark_worker".into()], ..RebuildRequest::default() };
    world.app.begin_rebuild(&anew).await.unwrap();
    while world.app.reset_step("mark_worker", 1_000).await.unwrap() {}
    assert!(world.leases().await.iter().all(|lease| lease.id != charged));
    world.until("another dead lease", async || dead().await.is_some()).await;
    let again = dead().await.expect("one").id;
    pass_ms(1_800_000).await;
    for lease in world.leases().await.iter().filter(|lease| lease.id != again) {
        assert_eq!(lease.attempt, 0, "{lease:?}");
    }
    refusing.1.store(false, SeqCst);
    world.app.retry_lease(again).await.unwrap();
    world.until_next("mark_worker", 40).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_is_no_bad_end_of_the_range_in_hand() {
    let world = Derived::new(tiny(1), 20).await;
    let working =
        world.start(vec![marks(|_, _| Ok(()))], DeriveOptions { range_heights: 32, ..world.options() });
    world.until_next("mark_worker", 21).await;
    let held = world.leases().await.remove(0);
    assert_eq!(held.status, LeaseStatus::Active);
    // It waits for the head, and helps with the range that another left meanwhile.
    let left = world.app.claim(&request()).await.unwrap().expect("the range above");
    let refusing = Arc::new(Refusing("claim", AtomicBool::new(true)));
    world.app.set_hook(Some(refusing.clone()));
    world.app.end(&left, LeaseEnd::Released).await.unwrap();
    let says = |words: &str| working.status().services["mark_worker"].last_error.contains(words);
    world.until("a claim that fails", async || says("42804")).await;
    pass_ms(60_000).await;
    let now = world.leases().await.remove(0);
    assert_eq!((now.status, now.attempt, now.fence), (LeaseStatus::Active, 0, held.fence));
    assert!(world.logged().await.is_empty(), "{:#?}", world.logged().await);
    world.append(MAIN, 21, 25).await;
    world.until_next("mark_worker", 26).await;
    working.stop().await.unwrap();
}

/// A claim beside the workers.
fn request() -> ClaimRequest {
    ClaimRequest {
        service: "mark_worker".into(),
        version: 1,
        owner: "somebody".into(),
        ttl_ms: 1_000,
        range_heights: 1_000,
        first: Height(0),
        limit_exclusive: Height(41),
        stop_exclusive: None,
        in_order: false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_range_that_is_dead_without_a_word_is_put_into_the_error_log() {
    let world = Derived::new(tiny(1), 20).await;
    let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
    world.until_next("mark_worker", 21).await;
    working.stop().await.unwrap();
    world.append(MAIN, 21, 40).await;
    // Processes that died over it reported nothing.
    for _ in 0..MAX_ATTEMPTS {
        let lease = world.app.claim(&request()).await.unwrap().expect("the range");
        let end = LeaseEnd::Bad { message: "it died".into(), retry_in_ms: 0 };
        world.app.end(&lease, end).await.unwrap();
    }
    assert!(world.leases().await.iter().any(|lease| lease.is_dead()));
    let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
    pass_ms(400_000).await;
    let logged = world.logged().await;
    assert_eq!(logged.len(), 1, "{logged:#?}");
    let error = &logged[0].error;
    assert_eq!(
        (error.service.as_str(), error.severity, error.height),
        ("mark_worker", Severity::Fatal, Height(21))
    );
    assert!(error.message.contains("wait for an operator: it died"), "{}", error.message);
    // What is said there of an event says nothing of the range, whose entry is there by itself, once.
    let dead = logged[0].clone();
    let event =
        NewError { severity: Severity::Warn, message: "31 bytes of data".into(), ..dead.error.clone() };
    world.errors.forget_blocks(&[dead.error.block_id]).await.unwrap();
    world.errors.record(&[event]).await.unwrap();
    pass_ms(400_000).await;
    let logged: Vec<_> = world.logged().await.into_iter().map(|logged| logged.error).collect();
    assert_eq!(logged.len(), 2, "{logged:#?}");
    assert_eq!((logged[0].severity, &logged[1]), (Severity::Warn, &dead.error));
    working.stop().await.unwrap();
}

/// Lets nobody commit a chunk for now.
struct Away(AtomicBool);

impl CommitHook for Away {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        if verb == "commit_chunk" && self.0.load(SeqCst) {
            return Err(StoreError::Busy("it is away".into()));
        }
        Ok(())
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn deaths_are_charged_to_a_range_that_has_work_and_not_to_one_that_waits() {
    const DEATHS: u32 = 25;
    let world = Derived::new(tiny(1), 9).await;
    let processors = || vec![marks(|_, _| Ok(())), counts(|_| Ok(()))];
    let working = world.start(processors(), world.options());
    world.until_next("count_worker", 10).await;
    working.stop().await.unwrap();
    world.append(MAIN, 10, 20).await;
    let of = async |service: &str| {
        let mut leases = world.leases().await.into_iter().filter(|lease| lease.service == service);
        leases.next().expect("one")
    };
    // Nobody gets over block 10 alive, and there is nothing yet for the folder.
    world.app.set_hook(Some(Arc::new(Away(AtomicBool::new(true)))));
    for died in 1..=DEATHS {
        let working = world.start(processors(), world.options());
        let are_held = async || {
            let (guilty, waiting) = (of("mark_worker").await, of("count_worker").await);
            let is_held = |lease: &WorkerLease| lease.status == LeaseStatus::Active;
            is_held(&waiting) && (is_held(&guilty) || guilty.is_dead())
        };
        world.until("both ranges are held", are_held).await;
        working.kill().await;
        // As the next process does at its start.
        world.app.release_all().await.unwrap();
        let (guilty, waiting) = (of("mark_worker").await, of("count_worker").await);
        assert_eq!((guilty.attempt, guilty.is_dead()), (died.min(MAX_ATTEMPTS), died >= MAX_ATTEMPTS));
        assert_eq!((waiting.attempt, waiting.done_to), (0, Height(10)), "after {died} deaths");
    }
    // Only the guilty one is to be freed.
    world.app.set_hook(None);
    world.app.retry_lease(of("mark_worker").await.id).await.unwrap();
    let working = world.start(processors(), world.options());
    world.until_next("count_worker", 21).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_range_that_is_taken_up_beside_one_that_waits_has_work_to_do() {
    let world = Derived::new(tiny(1), 14).await;
    let head = world.raw.snapshot().await.unwrap().head().clone();
    world.app.adopt(head.info.uuid, head.newest_reorg).await.unwrap();
    world.app.register("mark_worker", Height(0)).await.unwrap();
    // Somebody had the first range, and it isn't due before the worker waits at the tip.
    let request = ClaimRequest { range_heights: 10, limit_exclusive: Height(15), ..request() };
    let left = world.app.claim(&request).await.unwrap().expect("the first range");
    let end = LeaseEnd::Transient { message: "a node was away".into(), retry_in_ms: 20_000 };
    world.app.end(&left, end).await.unwrap();
    let away = Arc::new(Away(AtomicBool::new(false)));
    world.app.set_hook(Some(away.clone()));
    let options = DeriveOptions { range_heights: 10, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(()))], options);
    let is_at_the_tip = async || world.leases().await.iter().any(|lease| lease.done_to == Height(15));
    world.until("the worker at the tip", is_at_the_tip).await;
    away.0.store(true, SeqCst);
    let left = async || world.app.lease(left.id).await.unwrap().expect("the first range");
    assert_eq!((left().await.done_to, left().await.owner.as_str()), (Height(0), "somebody"));
    world.until("the worker took it", async || left().await.owner != "somebody").await;
    assert!(!left().await.claimed_to_wait, "whoever dies over it would not be charged");
    away.0.store(false, SeqCst);
    world.until_next("mark_worker", 15).await;
    working.stop().await.unwrap();
}
