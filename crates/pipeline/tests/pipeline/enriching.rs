//! What an enricher does when a node doesn't answer, and what a worker does when its lease can't be renewed.

// Tests may.

use crate::support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cairn_core::{BlockRef, Height, HeightRange};
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, ProcessError, Processor, ServiceInfo};
use cairn_pipeline::derive::{DeriveOptions, MalformedPolicy};
use cairn_store::derived::{Coordinator, Key, LeaseKind, LeaseStatus, Row, TableDef, Value};
use cairn_store::memory::CommitHook;
use cairn_store::{AppendBatch, RawReader, RawWriter, StoreError};
use tokio::time::{Duration, Instant};

use support::derive::{Derived, MARKS, NAMES, PARITIES, marks, names};
use support::{MAIN, busy, fork, pass_ms, tiny};

fn away() -> AskError {
    AskError::transient("execution aborted (timeout = 5s)")
}

fn key_of(world: &Derived, height: u64) -> Key {
    Key(vec![Value::bytes(world.chain.block_ref(MAIN, Height(height)).id.as_bytes())])
}

/// Names by height.
async fn named(world: &Derived) -> BTreeMap<i64, String> {
    let rows = world.rows(NAMES.name).await;
    rows.iter().map(|row| (row.0[2].as_int().unwrap(), row.0[1].to_string())).collect()
}

/// Contracts that make a node fail are given up, the rest of the chain is asked about.
async fn given_up(hostile: &[u64], chunk_heights: u64) {
    let world = Derived::new(tiny(1), 20).await;
    let keys: Vec<Key> = hostile.iter().map(|height| key_of(&world, *height)).collect();
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let enricher = names(move |key, _| {
        if keys.contains(key) {
            *count.lock().unwrap() += 1;
            return (10, Err(away()));
        }
        (1, Ok(Some("a name".into())))
    });
    let options = DeriveOptions { chunk_heights, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], options);
    world.until_next("name_worker", 21).await;
    let named = named(&world).await;
    assert_eq!(named.len(), 21);
    for (height, name) in named {
        let is_hostile = hostile.contains(&(height as u64));
        assert_eq!(name.contains("given up: execution aborted"), is_hostile, "{height}: {name}");
    }
    // Bounded: ten times each while they are alone, more while something else is waited for.
    assert!(*asked.lock().unwrap() <= 25 * hostile.len(), "{asked:?}");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_hostile_contract_does_not_stop_the_others() {
    given_up(&[7], 500).await;
    // Alone in its chunk: the node is asked about what it answered before.
    given_up(&[7], 1).await;
    given_up(&[7, 8, 20], 500).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_over_an_answer_is_given_up() {
    let world = Derived::new(tiny(1), 20).await;
    let hostile = key_of(&world, 7);
    let enricher = names(move |key, _| {
        assert!(*key != hostile, "an answer of another shape");
        (1, Ok(Some("a name".into())))
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    let named = named(&world).await;
    assert!(named[&7].contains("an answer of another shape"), "{named:?}");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_away_is_waited_for_and_nothing_is_given_up() {
    let world = Derived::new(tiny(1), 20).await;
    let is_away = Arc::new(AtomicBool::new(false));
    let looks = is_away.clone();
    let enricher = names(move |_, at| {
        // Whole, for blocks that it doesn't have yet, though it answers about older ones.
        if at.height >= Height(15) && looks.load(SeqCst) {
            return (10, Err(away()));
        }
        (1, Ok(Some("a name".into())))
    });
    is_away.store(true, SeqCst);
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 15).await;
    pass_ms(600_000).await;
    assert_eq!(world.next("name_worker").await, 15);
    assert!(world.leases().await.iter().all(|lease| lease.attempt == 0));
    is_away.store(false, SeqCst);
    world.until_next("name_worker", 21).await;
    let named = named(&world).await;
    assert!(named.values().all(|name| name.contains("a name")), "{named:?}");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn e12_a_node_that_limits_the_rate_is_left_alone_and_nothing_is_given_up_over_it() {
    const RETRY_AFTER_MS: u64 = 5_000;
    let world = Derived::new(tiny(1), 20).await;
    let limited = key_of(&world, 7);
    let asked: Arc<Mutex<BTreeMap<u64, Vec<Instant>>>> = Arc::default();
    let notes = asked.clone();
    let enricher = names(move |key, at| {
        let mut notes = notes.lock().unwrap();
        let asked = notes.entry(at.height.get()).or_default();
        asked.push(Instant::now());
        // More often than a thing is tried that a node fails over, and while it answers about others at the same moment.
        if *key == limited && asked.len() <= 30 {
            return (10, Err(AskError::busy(Some(RETRY_AFTER_MS), "HTTP 429")));
        }
        (1, Ok(Some("a name".into())))
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    // What lies below the one that has to wait doesn't wait.
    world.until_next("name_worker", 7).await;
    world.until_next("name_worker", 21).await;
    let named = named(&world).await;
    assert_eq!(named.len(), 21);
    assert!(named.values().all(|name| name.contains("a name") && !name.contains("given up")), "{named:?}");
    let asked = asked.lock().unwrap().clone();
    for (height, times) in asked.iter() {
        // Answers of the same chunk are kept.
        assert_eq!(times.len(), if *height == 7 { 31 } else { 1 }, "{height}");
    }
    let pauses = asked[&7].windows(2).map(|pair| pair[1] - pair[0]);
    assert!(pauses.min().unwrap() >= Duration::from_millis(RETRY_AFTER_MS));
    assert!(world.leases().await.iter().all(|lease| lease.attempt == 0));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn e12_without_a_word_for_how_long_the_pauses_grow() {
    let world = Derived::new(tiny(1), 20).await;
    let limited = key_of(&world, 7);
    let asked: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let notes = asked.clone();
    let enricher = names(move |key, _| {
        if *key != limited {
            return (1, Ok(Some("a name".into())));
        }
        let mut notes = notes.lock().unwrap();
        notes.push(Instant::now());
        (1, if notes.len() <= 10 { Err(AskError::busy(None, "HTTP 429")) } else { Ok(Some("a name".into())) })
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    let asked = asked.lock().unwrap().clone();
    let pauses: Vec<u64> = asked.windows(2).map(|pair| (pair[1] - pair[0]).as_millis() as u64).collect();
    let least = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000, 60_000];
    assert_eq!(pauses.len(), least.len());
    assert!(pauses.iter().zip(least).all(|(pause, least)| *pause >= least), "{pauses:?}");
    working.stop().await.unwrap();
}

/// Counts commits of chunks.
#[derive(Default)]
struct Commits(AtomicUsize);

impl CommitHook for Commits {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        self.0.fetch_add(usize::from(verb == "commit_chunk"), SeqCst);
        Ok(())
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_names_more_than_one_commit_takes_is_cut_and_each_thing_asked_once() {
    for (chunk_asks, chunk_answer_bytes, at_least) in
        [(usize::MAX, usize::MAX, 1), (5, usize::MAX, 3), (256, 1, 6)]
    {
        let world = Derived::new(tiny(1), 20).await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = asked.clone();
        let enricher = names(move |_, at| {
            notes.lock().unwrap().push(at.height.get());
            (1, Ok(Some("a name".into())))
        });
        let options = DeriveOptions { asks_in_flight: 1, chunk_asks, chunk_answer_bytes, ..world.options() };
        let working = world.start(vec![marks(|_, _| Ok(()))], options.clone());
        world.until_next("mark_worker", 21).await;
        working.stop().await.unwrap();
        let commits = Arc::new(Commits::default());
        world.app.set_hook(Some(commits.clone()));
        let working = world.start(vec![marks(|_, _| Ok(())), enricher], options);
        world.until_next("name_worker", 21).await;
        assert_eq!(named(&world).await.len(), 21);
        assert_eq!(*asked.lock().unwrap(), (0..=20).collect::<Vec<_>>());
        assert!(commits.0.load(SeqCst) >= at_least, "{:?}", commits.0);
        if at_least == 1 {
            assert_eq!(commits.0.load(SeqCst), 1);
        }
        working.stop().await.unwrap();
    }
}

/// Lets the store answer nothing from a moment on, and notes what is asked of it.
struct Blocked {
    from: Instant,
    until: Instant,
    seen: Mutex<Vec<(Instant, &'static str)>>,
}

impl CommitHook for Blocked {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        let now = Instant::now();
        self.seen.lock().unwrap().push((now, verb));
        if now >= self.from && now < self.until { Err(busy()) } else { Ok(()) }
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn l05_a_worker_that_cannot_renew_its_lease_writes_nothing_after_its_own_deadline() {
    const TTL_MS: u64 = 60_000;
    const MARGIN_MS: u64 = 10_000;
    let world = Derived::new(tiny(1), 3).await;
    // The first question takes longer than the store is away.
    let takes_ms = Arc::new(Mutex::new(vec![3 * TTL_MS]));
    let enricher =
        names(move |_, _| (takes_ms.lock().unwrap().pop().unwrap_or(1), Ok(Some("a name".into()))));
    let options = DeriveOptions {
        lease_ttl_ms: TTL_MS,
        lease_margin_ms: MARGIN_MS,
        chunk_heights: 100,
        reap_ms: 1_000_000,
        ..world.options()
    };
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], options);
    world.until_next("mark_worker", 4).await;
    let holds = async || world.leases().await.iter().any(|lease| lease.service == "name_worker");
    world.until("the enricher at work", holds).await;
    let lease = world.leases().await.into_iter().find(|lease| lease.service == "name_worker").unwrap();
    let from = Instant::now() + Duration::from_millis(TTL_MS / 2);
    let until = from + Duration::from_millis(2 * TTL_MS);
    let blocked = Arc::new(Blocked { from, until, seen: Mutex::default() });
    world.app.set_hook(Some(blocked.clone()));
    pass_ms(4 * TTL_MS).await;
    let seen = blocked.seen.lock().unwrap().clone();
    // It renews at each third of its time. `mark_worker`, idle, holds a lease of its own and renews that too: the last good one of either counts.
    let last_good = seen.iter().filter(|(at, verb)| *verb == "renew" && *at < from).map(|(at, _)| *at).max();
    let deadline = last_good.unwrap() + Duration::from_millis(TTL_MS - MARGIN_MS);
    // It may try to give the lease back: its fence ends that lease alone.
    let late: Vec<_> = seen
        .iter()
        .filter(|(at, verb)| ["renew", "commit_chunk"].contains(verb) && *at > deadline && *at < until)
        .collect();
    assert_eq!(late, Vec::<&(Instant, &str)>::new());
    // It did try, up to then.
    assert!(seen.iter().any(|(at, verb)| *verb == "renew" && *at > from && *at <= deadline), "{seen:?}");
    // The work was not lost with it: a new fence did it.
    world.until_next("name_worker", 4).await;
    let now = world.app.lease(lease.id).await.unwrap().unwrap();
    assert!(now.fence > lease.fence);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn l04_a_job_longer_than_its_lease_is_done_once_where_it_is_renewed() {
    const TTL_MS: u64 = 2_000;
    let world = Derived::new(tiny(1), 3).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    // The first question takes five times as long as the lease.
    let enricher = names(move |_, at| {
        let mut asked = notes.lock().unwrap();
        asked.push(at.height.get());
        (if asked.len() == 1 { 5 * TTL_MS } else { 1 }, Ok(Some("a name".into())))
    });
    let options =
        DeriveOptions { lease_ttl_ms: TTL_MS, lease_margin_ms: TTL_MS / 4, reap_ms: 500, ..world.options() };
    // Two processes: what the first lets go, the second takes.
    let first = world.start(vec![marks(|_, _| Ok(())), enricher.clone()], options.clone());
    world.until_next("mark_worker", 4).await;
    let leases = async || {
        let all = world.leases().await.into_iter();
        all.filter(|lease| lease.service == "name_worker").collect::<Vec<_>>()
    };
    world.until("the enricher at work", async || !leases().await.is_empty()).await;
    let begun = leases().await;
    let second = world.start(vec![marks(|_, _| Ok(())), enricher], options);
    world.until_next("name_worker", 4).await;
    let mut heights = asked.lock().unwrap().clone();
    heights.sort_unstable();
    assert_eq!(heights, [0, 1, 2, 3]);
    let ended = leases().await;
    assert_eq!(ended.len(), 1);
    assert_eq!(
        (ended[0].id, ended[0].fence, ended[0].attempt),
        (begun[0].id, begun[0].fence, begun[0].attempt)
    );
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

async fn until_made_again(world: &Derived) {
    let is_done = |lease: &cairn_store::derived::WorkerLease| {
        lease.kind != LeaseKind::Reindex || lease.status == LeaseStatus::Completed
    };
    world.until("what is made again", async || world.leases().await.iter().all(is_done)).await;
}

#[tokio::test(start_paused = true)]
async fn what_rows_of_a_range_name_is_asked_again() {
    let world = Derived::new(tiny(1), 20).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (notes, round) = (asked.clone(), Arc::new(AtomicBool::new(false)));
    let second = round.clone();
    let hostile = key_of(&world, 7);
    let enricher = names(move |key, at| {
        notes.lock().unwrap().push(at.height.get());
        match second.load(SeqCst) {
            false => (1, Ok(Some("first".into()))),
            // The node has no answer any more: what is known stays.
            true if *key == hostile => (1, Err(AskError::last("no such state"))),
            true => (1, Ok(Some("second".into()))),
        }
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    asked.lock().unwrap().clear();
    round.store(true, SeqCst);
    let heights = HeightRange::new(Height(5), Height(10));
    world.app.request_reindex("name_worker", 1, heights, 100).await.unwrap();
    until_made_again(&world).await;
    let mut heights = asked.lock().unwrap().clone();
    heights.sort_unstable();
    assert_eq!(heights, [5, 6, 7, 8, 9]);
    for (height, name) in named(&world).await {
        let is_second = (5..10).contains(&height) && height != 7;
        assert!(name.contains(if is_second { "second" } else { "first" }), "{height}: {name}");
    }
    assert_eq!(world.next("name_worker").await, 21);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn asking_again_waits_for_rows_that_are_made_again() {
    let world = Derived::new(tiny(1), 20).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    let enricher = names(move |_, at| {
        notes.lock().unwrap().push(at.height.get());
        (1, Ok(Some("a name".into())))
    });
    // The mapper is broken at height 8, for whoever makes rows again.
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = is_broken.clone();
    let mapper = marks(move |block, _| {
        if block.facts.height == Height(8) && breaks.load(SeqCst) {
            return Err(ProcessError { block: block.facts.block_ref(), message: "not now".into() });
        }
        Ok(())
    });
    let options = DeriveOptions {
        malformed: MalformedPolicy::Halt,
        chunk_heights: 1,
        failed_pause_ms: 1_000,
        ..world.options()
    };
    let working = world.start(vec![mapper, enricher], options);
    world.until_next("name_worker", 21).await;
    asked.lock().unwrap().clear();
    is_broken.store(true, SeqCst);
    let heights = HeightRange::new(Height(5), Height(12));
    for service in ["mark_worker", "name_worker"] {
        world.app.request_reindex(service, 1, heights, 100).await.unwrap();
    }
    pass_ms(20_000).await;
    assert_eq!(*asked.lock().unwrap(), [5, 6, 7]);
    // Whoever waits is not in the way of what is new.
    world.append(MAIN, 21, 22).await;
    world.until_next("name_worker", 23).await;
    is_broken.store(false, SeqCst);
    for lease in world.leases().await.iter().filter(|lease| lease.status == LeaseStatus::Failed) {
        world.app.retry_lease(lease.id).await.unwrap();
    }
    until_made_again(&world).await;
    assert_eq!(*asked.lock().unwrap(), [5, 6, 7, 21, 22, 8, 9, 10, 11]);
    working.stop().await.unwrap();
}

/// Lets no reorg be applied for a while.
struct NotApplied(AtomicBool);

impl CommitHook for NotApplied {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        if verb == "begin_apply" && self.0.load(SeqCst) { Err(busy()) } else { Ok(()) }
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn asking_again_waits_for_a_reorg_so_that_no_answer_comes_to_lie_below_the_one_that_it_replaces() {
    let chain = tiny(1);
    let side = fork(&chain, 16, 1);
    let world = Derived::new(chain.clone(), 19).await;
    let fence = world.raw.snapshot().await.unwrap().head().fence;
    let blocks = vec![(*chain.block(MAIN, Height(20))).clone()];
    let finalized = Some(chain.block_ref(MAIN, Height(10)));
    world.raw.append(fence, AppendBatch { blocks, finalized, safe: None }).await.unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    let enricher = names(move |_, at| {
        notes.lock().unwrap().push(at.height.get());
        (1, Ok(Some("a name".into())))
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    let waits = Arc::new(NotApplied(AtomicBool::new(true)));
    world.app.set_hook(Some(waits.clone()));
    world.reorg(16, side, 17).await;
    asked.lock().unwrap().clear();
    let heights = HeightRange::new(Height(5), Height(8));
    world.app.request_reindex("name_worker", 1, heights, 100).await.unwrap();
    pass_ms(5_000).await;
    assert_eq!(*asked.lock().unwrap(), Vec::<u64>::new());
    waits.0.store(false, SeqCst);
    until_made_again(&world).await;
    world.until_next("name_worker", 18).await;
    let mut asked = asked.lock().unwrap().clone();
    asked.sort_unstable();
    assert_eq!(asked, [10, 10, 10, 17]);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn asking_for_the_first_time_waits_for_rows_that_are_made_again() {
    let world = Derived::new(tiny(1), 20).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    let enricher = names(move |_, at| {
        notes.lock().unwrap().push(at.height.get());
        (1, Ok(Some("a name".into())))
    });
    // The mapper is broken at height 8, for whoever makes rows again.
    let is_broken = Arc::new(AtomicBool::new(false));
    let mapper = || {
        let breaks = is_broken.clone();
        marks(move |block, _| {
            if block.facts.height == Height(8) && breaks.load(SeqCst) {
                return Err(ProcessError { block: block.facts.block_ref(), message: "not now".into() });
            }
            Ok(())
        })
    };
    let options = || DeriveOptions {
        malformed: MalformedPolicy::Halt,
        chunk_heights: 1,
        failed_pause_ms: 1_000,
        ..world.options()
    };
    let working = world.start(vec![mapper()], options());
    world.until_next("mark_worker", 21).await;
    working.stop().await.unwrap();
    is_broken.store(true, SeqCst);
    let heights = HeightRange::new(Height(5), Height(12));
    world.app.request_reindex("mark_worker", 1, heights, 100).await.unwrap();
    let working = world.start(vec![mapper(), enricher], options());
    pass_ms(20_000).await;
    // Rows from height 8 on are old, and nobody comes back to them.
    assert!(asked.lock().unwrap().iter().all(|height| *height < 8), "{asked:?}");
    world.until_next("name_worker", 8).await;
    is_broken.store(false, SeqCst);
    for lease in world.leases().await.iter().filter(|lease| lease.status == LeaseStatus::Failed) {
        world.app.retry_lease(lease.id).await.unwrap();
    }
    world.until_next("name_worker", 21).await;
    assert_eq!(*asked.lock().unwrap(), (0..=20).collect::<Vec<u64>>());
    working.stop().await.unwrap();
}

/// Asks about each block; what it is told is also told of all blocks of even, or of odd height, of which the newest answer counts.
struct GroupWorker;

static GROUP_WORKER: ServiceInfo =
    ServiceInfo { name: "name_worker", version: 1, upstreams: &["mark_worker"], tables: &[&NAMES] };

static READS: &[&TableDef] = &[&MARKS];

#[async_trait]
impl Enricher for GroupWorker {
    fn service(&self) -> &'static ServiceInfo {
        &GROUP_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        wanted.push(Key(vec![row.0[1].clone()]));
    }

    fn known_in(&self) -> &'static TableDef {
        &NAMES
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let row = |key| (NAMES.name, Row(vec![key, Value::text(at.to_string()), Value::height(at.height)]));
        Ok(Asked::Rows(vec![row(key.0[0].clone()), row(Value::bytes(&[at.height.get() as u8 % 2]))]))
    }

    fn given_up(&self, _key: &Key, _at: BlockRef, _message: &str) -> Vec<(&'static str, Row)> {
        Vec::new()
    }
}

fn groups() -> Vec<Processor> {
    vec![marks(|_, _| Ok(())), Processor::Enricher(Arc::new(GroupWorker))]
}

#[tokio::test(start_paused = true)]
async fn what_a_newer_answer_replaced_is_there_again_after_a_reorg_as_in_a_clean_run() {
    let chain = tiny(1);
    let side = fork(&chain, 16, 1);
    for chunk_heights in [1, 3, 500] {
        let world = Derived::new(chain.clone(), 20).await;
        let options = DeriveOptions { chunk_heights, ..world.options() };
        let working = world.start(groups(), options);
        world.until_next("name_worker", 21).await;
        let newest = world.rows(NAMES.name).await;
        assert_eq!(newest.iter().filter(|row| row.0[0].as_bytes().unwrap().len() == 1).count(), 2);
        // The new fork names one of the two groups only.
        world.reorg(16, side, 17).await;
        world.until("the reorg", async || world.next("name_worker").await == 18).await;

        let clean = Derived::new(chain.clone(), 16).await;
        clean.append(side, 17, 17).await;
        let clean_working = clean.start(groups(), clean.options());
        clean.until_next("name_worker", 18).await;
        assert_eq!(world.rows(NAMES.name).await, clean.rows(NAMES.name).await, "{chunk_heights}");
        working.stop().await.unwrap();
        clean_working.stop().await.unwrap();
    }
}

/// Asks about each block; the node has no answer about those of odd height, nor about the last one.
struct ParityWorker;

static PARITY_WORKER: ServiceInfo = ServiceInfo { tables: &[&NAMES, &PARITIES], ..GROUP_WORKER };

impl ParityWorker {
    fn rows(key: &Key, at: BlockRef, name: &'static str) -> Vec<(&'static str, Row)> {
        let row = |key| Row(vec![key, Value::text(name), Value::height(at.height)]);
        let parity = Value::uint(at.height.get() % 2);
        vec![(NAMES.name, row(key.0[0].clone())), (PARITIES.name, row(parity))]
    }
}

#[async_trait]
impl Enricher for ParityWorker {
    fn service(&self) -> &'static ServiceInfo {
        &PARITY_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        wanted.push(Key(vec![row.0[1].clone()]));
    }

    fn known_in(&self) -> &'static TableDef {
        &NAMES
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        if at.height.get() % 2 == 1 || at.height == Height(20) {
            return Err(AskError::last("no such state"));
        }
        Ok(Asked::Rows(ParityWorker::rows(key, at, "ok")))
    }

    fn given_up(&self, key: &Key, at: BlockRef, _message: &str) -> Vec<(&'static str, Row)> {
        ParityWorker::rows(key, at, "failed")
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_leaves_a_row_alone_that_another_answer_made() {
    for chunk_heights in [1, 3, 500] {
        let world = Derived::new(tiny(1), 20).await;
        let options = DeriveOptions { chunk_heights, ..world.options() };
        let processors = vec![marks(|_, _| Ok(())), Processor::Enricher(Arc::new(ParityWorker))];
        let working = world.start(processors, options);
        world.until_next("name_worker", 21).await;
        let failed = named(&world).await.values().filter(|name| name.contains("failed")).count();
        assert_eq!(failed, 11);
        let parities = world.rows(PARITIES.name).await;
        let said: Vec<&Value> = parities.iter().map(|row| &row.0[1]).collect();
        assert_eq!(said, [&Value::text("ok"), &Value::text("failed")], "{chunk_heights}");
        working.stop().await.unwrap();
    }
}

/// An enricher of which all blocks name one thing, or each its own, and that asks again, or what was before.
struct Otherwise {
    inner: Arc<dyn Enricher>,
    one_thing: bool,
    asks_again_after: Option<u64>,
    asks_before: bool,
}

impl Otherwise {
    fn of(inner: Processor, one_thing: bool, asks_again_after: Option<u64>, asks_before: bool) -> Processor {
        let Processor::Enricher(inner) = inner else { panic!("is an enricher") };
        Processor::Enricher(Arc::new(Otherwise { inner, one_thing, asks_again_after, asks_before }))
    }
}

#[async_trait]
impl Enricher for Otherwise {
    fn service(&self) -> &'static ServiceInfo {
        self.inner.service()
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        self.inner.reads()
    }

    fn wanted(&self, table: usize, row: &Row, wanted: &mut Vec<Key>) {
        match self.one_thing {
            true => wanted.push(Key(vec![Value::bytes(&[7; 32])])),
            false => self.inner.wanted(table, row, wanted),
        }
    }

    fn known_in(&self) -> &'static TableDef {
        self.inner.known_in()
    }

    fn asks_again_after(&self) -> Option<u64> {
        self.asks_again_after
    }

    fn asks_before(&self) -> bool {
        self.asks_before
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        self.inner.ask(key, at).await
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        self.inner.given_up(key, at, message)
    }
}

#[tokio::test(start_paused = true)]
async fn f19_a_thing_that_is_named_again_is_asked_about_again_after_a_while() {
    for (again_after, expected) in [(None, vec![0]), (Some(6), vec![0, 6, 12, 18])] {
        let world = Derived::new(tiny(1), 20).await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let enricher = names(move |_, at| {
            noted.lock().unwrap().push(at.height.get());
            (1, Ok(Some(format!("at {}", at.height))))
        });
        let enricher = Otherwise::of(enricher, true, again_after, false);
        let options = DeriveOptions { chunk_heights: 1, ..world.options() };
        let working = world.start(vec![marks(|_, _| Ok(())), enricher], options);
        world.until_next("name_worker", 21).await;
        working.stop().await.unwrap();
        assert_eq!(*asked.lock().unwrap(), expected);
        // What is shown is of the block that it says.
        let named = named(&world).await;
        let last = *expected.last().unwrap() as i64;
        assert_eq!(named.keys().copied().collect::<Vec<_>>(), [last]);
        assert!(named[&last].contains(&format!("at {last}")), "{named:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f19_what_was_before_is_asked_at_the_parent_of_the_block_that_names_the_thing_first() {
    let world = Derived::new(tiny(1), 20).await;
    let asked = Arc::new(Mutex::new(BTreeMap::new()));
    let noted = asked.clone();
    let enricher = names(move |key, at| {
        noted.lock().unwrap().entry(key.clone()).or_insert_with(Vec::new).push(at);
        (1, Ok(Some("a name".into())))
    });
    let enricher = Otherwise::of(enricher, false, None, true);
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    // A range that is made again asks at the same blocks.
    world.app.request_reindex("name_worker", 1, HeightRange::new(Height(5), Height(9)), 5).await.unwrap();
    pass_ms(600_000).await;
    working.stop().await.unwrap();
    let asked = asked.lock().unwrap();
    // Nothing was before the chain's first block.
    assert_eq!(asked.get(&key_of(&world, 0)), None);
    for height in 1..=20 {
        let parent = world.chain.block_ref(MAIN, Height(height - 1));
        let of = &asked[&key_of(&world, height)];
        assert!(of.iter().all(|at| *at == parent), "{height}: {of:?}");
        assert_eq!(of.len(), if (5..9).contains(&height) { 2 } else { 1 }, "{height}: {of:?}");
    }
}
