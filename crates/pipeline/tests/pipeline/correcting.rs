//! State whose events are derived again: corrected in the commits that replace them, it is what a clean replay of the new events makes.
//!
//! Each seed derives a chain with wrong events at some heights, and asks for them again while blocks come, forks come and processes die.
//! A fork after the corrections tells whether what undoes state was corrected too.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use cairn_core::{Height, HeightRange, Parts, StoredBlock};
use cairn_pipeline::derive::processor::{
    Changes, FoldBlock, Folder, Mapper, Output, ProcessError, Processor, ServiceInfo,
};
use cairn_pipeline::derive::{Compute, DeriveOptions, Deriver};
use cairn_source::evm::synthetic::SyntheticChain;
use cairn_store::derived::memory::{MemoryDerived, MemoryErrorLog};
use cairn_store::derived::{
    BLOCK_HEIGHT, Catalog, Change, ColumnType, DerivedMaintenance, DerivedReader, DerivedSnapshot,
    LAST_HEIGHT, LeaseFilter, LeaseKind, LeaseStatus, Merge, RangeAgain, RebuildRequest, Row, Scan, Sum,
    TableClass, TableDef, U256, Value, column,
};
use cairn_store::memory::{CommitHook, MemoryStore};
use cairn_store::suite::blocks::Numbers;
use cairn_store::{AppendBatch, PurgeProgress, RawReader, RawWriter, Rollback, StoreError};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::support::{MAIN, TestClock, fork, info, pass_ms, tiny};

/// Somebody gives somebody something of a token.
static GIFTS: TableDef = TableDef {
    name: "gifts",
    service: "gift_worker",
    class: TableClass::Events { partition_heights: 16 },
    columns: &[
        column(BLOCK_HEIGHT, ColumnType::Int),
        column("number", ColumnType::Int),
        column("token", ColumnType::Int),
        column("giver", ColumnType::Int),
        column("taker", ColumnType::Int),
        column("amount", ColumnType::Int),
    ],
    key: &[BLOCK_HEIGHT, "number"],
    indexes: &[],
};

/// Who has how much.
static BALANCES: TableDef = TableDef {
    name: "balances",
    service: "balance_worker",
    class: TableClass::State,
    columns: &[
        column("token", ColumnType::Int),
        column("holder", ColumnType::Int),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("is_held", ColumnType::Bool).merged(Merge::Last),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("first_amount", ColumnType::Int).merged(Merge::First),
        column("last_amount", ColumnType::Int).merged(Merge::Last),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["token", "holder"],
    indexes: &[],
};

/// What is counted of a token.
static TOKENS: TableDef = TableDef {
    name: "tokens",
    service: "balance_worker",
    class: TableClass::State,
    columns: &[
        column("token", ColumnType::Int),
        column("gifts", ColumnType::Int).merged(Merge::Sum),
        column("holders", ColumnType::Int).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["token"],
    indexes: &[],
};

/// A row that doesn't say who changed it first.
static GIVERS: TableDef = TableDef {
    name: "givers",
    service: "balance_worker",
    class: TableClass::State,
    columns: &[
        column("giver", ColumnType::Int),
        column("gifts", ColumnType::Int).merged(Merge::Sum),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["giver"],
    indexes: &[],
};

static GIFT_WORKER: ServiceInfo =
    ServiceInfo { name: "gift_worker", version: 1, upstreams: &[], tables: &[&GIFTS] };
static BALANCE_WORKER: ServiceInfo = ServiceInfo {
    name: "balance_worker",
    version: 1,
    upstreams: &["gift_worker"],
    tables: &[&BALANCES, &TOKENS, &GIVERS],
};
static READS: &[&TableDef] = &[&GIFTS];

/// Derives gifts from the ids of blocks; others, at the heights that are wrong, while it errs.
struct GiftWorker {
    wrong: BTreeSet<u64>,
    errs: AtomicBool,
    /// How many parties there are: of few, each is in many blocks.
    parties: u64,
}

impl Mapper for GiftWorker {
    fn service(&self) -> &'static ServiceInfo {
        &GIFT_WORKER
    }

    fn parts(&self) -> Parts {
        Parts::empty()
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let height = block.facts.height;
        let errs = self.errs.load(Relaxed) && self.wrong.contains(&height.get());
        let mut numbers = Numbers::new(block.facts.id.index_key());
        let count = numbers.below(4);
        // Some of the same, some others, more or less of them.
        let (skipped, more) = if errs { (numbers.below(2), numbers.below(3)) } else { (0, 0) };
        for number in 0..count + more {
            let [token, giver, taker] = [2, self.parties, self.parties].map(|of| numbers.below(of) as i64);
            let amount = numbers.below(5) as i64 + i64::from(errs && numbers.one_in(2));
            if number < skipped {
                continue;
            }
            let fields = [number as i64, token, giver, taker, amount].map(Value::Int);
            out.row(&GIFTS, Row([vec![Value::height(height)], fields.to_vec()].concat()));
        }
        Ok(())
    }
}

/// Its rows may not tell what other events would have made of them.
struct BalanceWorker {
    tells: bool,
}

fn sum(amount: i64) -> Value {
    let of = Value::sum(U256::from(amount.unsigned_abs()));
    match of.as_sum() {
        Some(of) if amount < 0 => Value::Sum(Box::new(-*of)),
        _ => of,
    }
}

impl Folder for BalanceWorker {
    fn service(&self) -> &'static ServiceInfo {
        &BALANCE_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let height = Value::height(block.facts.height);
        for row in block.rows[0] {
            let [token, giver, taker] = [2, 3, 4].map(|at: usize| row.0[at].clone());
            let amount = row.0[5].as_int().unwrap();
            for (holder, by) in [(giver.clone(), -amount), (taker, amount)] {
                let mut change = vec![Some(token.clone()), Some(holder), Some(sum(by))];
                change.extend([Some(Value::Bool(false)), Some(height.clone())]);
                change.extend([Some(Value::Int(by)), Some(Value::Int(by)), None]);
                changes.change(&BALANCES, Change(change));
            }
            let one = || Some(Value::Int(1));
            changes.change(
                &TOKENS,
                Change(vec![Some(token), one(), Some(Value::Int(0)), Some(height.clone()), None]),
            );
            changes.change(&GIVERS, Change(vec![Some(giver), one(), None]));
        }
        Ok(())
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
        if table != BALANCES.name {
            return;
        }
        let (token, holder) = (after.0[0].clone(), after.0[1].clone());
        let is_above = |row: &Row| row.0[2].as_sum().is_some_and(|sum| *sum > Sum::ZERO);
        if is_held(after) {
            let held = Some(Value::Bool(true));
            let change = vec![Some(token.clone()), Some(holder), None, held, None, None, None, None];
            changes.change(&BALANCES, Change(change));
        }
        let holders = i64::from(is_above(after)) - i64::from(before.is_some_and(is_above));
        if holders != 0 {
            changes.change(&TOKENS, Change(vec![Some(token), None, Some(Value::Int(holders)), None, None]));
        }
    }

    fn is_correctable(&self) -> bool {
        true
    }

    fn put_right(&self, table: &'static str, row: &mut Row) -> bool {
        if table == BALANCES.name {
            row.0[3] = Value::Bool(is_held(row));
        }
        self.tells
    }
}

fn is_held(row: &Row) -> bool {
    row.0[2].as_sum().is_some_and(|sum| !sum.is_zero())
}

/// Counts how often folders begin anew.
#[derive(Default)]
struct Anew(AtomicU64);

impl CommitHook for Anew {
    fn before(&self, verb: &'static str) -> Result<(), StoreError> {
        self.0.fetch_add(u64::from(verb == "begin_rebuild"), Relaxed);
        Ok(())
    }

    fn after(&self, _: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

struct World {
    chain: Arc<SyntheticChain>,
    raw: MemoryStore,
    app: MemoryDerived,
    errors: MemoryErrorLog,
    gifts: Arc<GiftWorker>,
    options: DeriveOptions,
    tells: bool,
}

fn catalog() -> Catalog {
    Catalog::new([&GIFTS, &BALANCES, &TOKENS, &GIVERS]).unwrap()
}

struct Working(JoinHandle<()>, CancellationToken);

impl World {
    async fn new(chain: Arc<SyntheticChain>, gifts: GiftWorker, options: DeriveOptions) -> World {
        let clock = Arc::new(TestClock::now());
        let raw = MemoryStore::new(clock.clone());
        raw.init(info(&chain)).await.unwrap();
        raw.acquire().await.unwrap();
        let app = MemoryDerived::new(catalog(), clock.clone());
        let errors = MemoryErrorLog::new(clock);
        World { chain, raw, app, errors, gifts: Arc::new(gifts), options, tells: true }
    }

    fn start(&self) -> Working {
        let processors = vec![
            Processor::Mapper(self.gifts.clone()),
            Processor::Folder(Arc::new(BalanceWorker { tells: self.tells })),
        ];
        let (app, errors) = (Arc::new(self.app.clone()), Arc::new(self.errors.clone()));
        let raw = Arc::new(self.raw.clone());
        let deriver = Deriver::new(raw, app, errors, catalog(), processors, self.options.clone()).unwrap();
        let stop = CancellationToken::new();
        let run = deriver.run(stop.clone());
        Working(tokio::spawn(async move { run.await.unwrap() }), stop)
    }

    async fn fence(&self) -> cairn_core::Fence {
        self.raw.snapshot().await.unwrap().head().fence
    }

    async fn append(&self, fork: cairn_source::evm::synthetic::ForkId, first: u64, last: u64) {
        let heights = HeightRange::inclusive(Height(first), Height(last));
        let blocks: Vec<_> = heights.iter().map(|height| (*self.chain.block(fork, height)).clone()).collect();
        if !blocks.is_empty() {
            let batch = AppendBatch { blocks, ..AppendBatch::default() };
            self.raw.append(self.fence().await, batch).await.unwrap();
        }
    }

    async fn tip(&self) -> u64 {
        self.raw.head().await.unwrap().tip.unwrap().height.get()
    }

    /// Forks `depth` blocks below the tip, never below finality, and grows by `more` above that.
    async fn reorg(
        &self,
        from: cairn_source::evm::synthetic::ForkId,
        depth: u64,
        more: u64,
        salt: u64,
    ) -> cairn_source::evm::synthetic::ForkId {
        let head = self.raw.head().await.unwrap();
        let tip = head.tip.unwrap().height.get();
        let lowest = head.finalized.map_or(0, |block| block.height.get());
        let common = tip.saturating_sub(depth).max(lowest);
        if common == tip {
            return from;
        }
        let stored = self.chain.block_ref(from, Height(common));
        let to = fork(&self.chain, common, salt);
        let common = stored;
        let rollback = Rollback { common, max_depth: 1_000, decided_at_ms: 1 };
        self.raw.rollback(self.fence().await, rollback).await.unwrap();
        while self.raw.purge_step(self.fence().await, 100).await.unwrap() != PurgeProgress::Done {}
        self.append(to, common.height.get() + 1, tip + more).await;
        to
    }

    async fn finalize(&self, from: cairn_source::evm::synthetic::ForkId, height: u64) {
        let block = self.chain.block_ref(from, Height(height));
        self.raw.finalize(self.fence().await, Some(block), None).await.unwrap();
    }

    async fn snapshot(&self) -> Option<Arc<dyn DerivedSnapshot>> {
        self.app.snapshot().await.ok()
    }

    /// Whether everything is derived, and nothing is to be derived again.
    async fn is_done(&self) -> bool {
        let Some(snapshot) = self.snapshot().await else { return false };
        let head = self.raw.head().await.unwrap();
        let end = head.tip.unwrap().height.next();
        let filter = LeaseFilter { limit: 10_000, ..LeaseFilter::default() };
        let leases = snapshot.leases(&filter).await.unwrap();
        let again = |status| status != LeaseStatus::Completed;
        snapshot.forks().applied.id == head.newest_reorg.id
            && snapshot.forks().is_settled()
            && ["gift_worker", "balance_worker"]
                .iter()
                .all(|name| snapshot.checkpoint(name).is_some_and(|own| own.next == end))
            && !leases.iter().any(|lease| lease.kind == LeaseKind::Reindex && again(lease.status))
    }

    async fn until_done(&self) {
        let deadline = Instant::now() + Duration::from_secs(36_000);
        while !self.is_done().await {
            assert!(Instant::now() < deadline, "it is never done");
            pass_ms(50).await;
        }
    }

    async fn again(&self, range: HeightRange) {
        let again = RangeAgain {
            service: GIFT_WORKER.name.into(),
            version: 1,
            range,
            range_heights: self.options.range_heights,
            is_behind: false,
            corrects_state: true,
        };
        let request = RebuildRequest { again: vec![again], anew: Vec::new() };
        self.app.begin_rebuild(&request).await.unwrap();
    }

    async fn all(&self) -> Vec<(&'static str, Vec<Row>)> {
        let snapshot = self.app.snapshot().await.unwrap();
        let mut all = Vec::new();
        for table in [&GIFTS, &BALANCES, &TOKENS, &GIVERS] {
            all.push((table.name, snapshot.scan(&Scan::new(table.name, 10_000)).await.unwrap().rows));
        }
        all
    }
}

/// What a clean replay of the same chain makes.
async fn clean(world: &World, blocks: Vec<cairn_core::RawBlock>) -> Vec<(&'static str, Vec<Row>)> {
    let gifts =
        GiftWorker { wrong: BTreeSet::new(), errs: AtomicBool::new(false), parties: world.gifts.parties };
    let clean =
        World::new(world.chain.clone(), gifts, DeriveOptions { poll_ms: 20, ..world.options.clone() });
    let clean = clean.await;
    clean.raw.append(clean.fence().await, AppendBatch { blocks, ..AppendBatch::default() }).await.unwrap();
    let working = clean.start();
    clean.until_done().await;
    working.1.cancel();
    working.0.await.unwrap();
    clean.all().await
}

/// Plays a seed; whether a folder began anew, and whether state was corrected without that.
async fn play(seed: u64, unlike: bool, tells: bool) -> (u64, u64) {
    let mut numbers = Numbers::new(seed);
    let chain = tiny(seed % 7);
    let last = 30 + numbers.below(40);
    let from = numbers.below(last);
    let to = from + 1 + numbers.below((last - from).min(12));
    let wrong = (from..to).filter(|_| numbers.one_in(2)).collect();
    let parties = if unlike { 40 } else { 2 + numbers.below(6) };
    let gifts = GiftWorker { wrong, errs: AtomicBool::new(true), parties };
    let options = DeriveOptions {
        compute: Compute::Inline,
        poll_ms: 20 + numbers.below(100),
        workers_per_service: 1 + numbers.below(2) as usize,
        range_heights: 3 + numbers.below(20),
        chunk_heights: 1 + numbers.below(9),
        seed,
        lease_ttl_ms: 5_000,
        ..DeriveOptions::new("test")
    };
    let world = World { tells, ..World::new(chain, gifts, options).await };
    world.append(MAIN, 0, last).await;
    let mut working = world.start();
    // In one of four it is asked for while the folder is still far below.
    if numbers.one_in(4) {
        pass_ms(numbers.below(300)).await;
    } else {
        world.until_done().await;
    }
    let mut current = MAIN;
    if !numbers.one_in(3) {
        world.finalize(current, numbers.below(last)).await;
    }
    world.gifts.errs.store(false, Relaxed);
    let deadline = Instant::now() + Duration::from_secs(3_600);
    let done = loop {
        let done = match world.snapshot().await {
            Some(snapshot) => snapshot.checkpoint("gift_worker").map_or(0, |own| own.next.get()),
            None => 0,
        };
        if done >= to {
            break done;
        }
        assert!(Instant::now() < deadline, "nothing is derived");
        pass_ms(20).await;
    };
    assert!(done >= to);
    let anew = Arc::new(Anew::default());
    world.app.set_hook(Some(anew.clone()));
    // What was derived after the mapper was mended is right already, and is derived again all the same.
    world.again(HeightRange::new(Height(from), Height(to))).await;
    let mut salt = seed;
    for _ in 0..numbers.below(6) {
        pass_ms(numbers.below(150)).await;
        match numbers.below(4) {
            0 => {
                let tip = world.tip().await;
                world.append(current, tip + 1, tip + 1 + numbers.below(3)).await;
            }
            1 => {
                salt += 1_000;
                if current == MAIN {
                    current = world.reorg(current, numbers.below(20), 1 + numbers.below(3), salt).await;
                }
            }
            2 => {
                working.0.abort();
                let _killed = working.0.await;
                working = world.start();
            }
            _ => {
                let finalized = world.raw.head().await.unwrap().finalized;
                let least = finalized.map_or(0, |block| block.height.get());
                let tip = world.tip().await;
                if finalized.is_some() && least < tip {
                    world.finalize(current, least + numbers.below(tip - least)).await;
                }
            }
        }
    }
    world.until_done().await;
    let corrections = corrections_of(&world).await;
    compare(&world, seed, "after corrections").await;
    // What undoes state was corrected too.
    if current == MAIN {
        world.reorg(current, 1 + numbers.below(40), 1, salt + 77).await;
        world.until_done().await;
        compare(&world, seed, "after a fork").await;
    }
    working.1.cancel();
    working.0.await.unwrap();
    // One was the request itself.
    let begun_anew = anew.0.load(Relaxed) > 1;
    (u64::from(begun_anew), u64::from(!begun_anew && corrections > 0))
}

async fn corrections_of(world: &World) -> u64 {
    let snapshot = world.app.snapshot().await.unwrap();
    snapshot.checkpoint("balance_worker").map_or(0, |own| own.corrections)
}

async fn compare(world: &World, seed: u64, when: &str) {
    let snapshot = world.raw.snapshot().await.unwrap();
    let range = snapshot.head().range();
    let stored = snapshot.blocks(range, Parts::all(), u64::MAX).await.unwrap().blocks;
    let blocks = stored
        .into_iter()
        .map(|block| cairn_core::RawBlock {
            facts: block.facts,
            transactions: block.transactions,
            header: block.header,
            body: block.body,
            receipts: block.receipts,
            extras: block.extras,
            traces: block.traces,
            log_terms: Vec::new(),
        })
        .collect();
    let (found, expected) = (world.all().await, clean(world, blocks).await);
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        let first = found.iter().zip(expected).find(|(found, expected)| found != expected);
        assert!(
            found == expected,
            "seed {seed} {when}, {name}: {first:?}, {} and {}",
            found.len(),
            expected.len()
        );
    }
}

/// Plays seeds on several threads; in how many a folder began anew, and in how many others state was corrected.
fn play_all(seeds: std::ops::Range<u64>, unlike: bool, tells: bool) -> (u64, u64) {
    let total = Mutex::new((0, 0));
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_time()
                        .start_paused(true)
                        .build();
                    let (anew, corrections) = runtime.unwrap().block_on(play(seed, unlike, tells));
                    let mut total = total.lock().unwrap();
                    *total = (total.0 + anew, total.1 + corrections);
                }
            });
        }
    });
    total.into_inner().unwrap()
}

/// How many seeds are played: more at night.
fn seeds(few: u64) -> u64 {
    std::env::var("CAIRN_CORRECTING_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}

#[test]
fn corrected_state_is_that_of_a_clean_replay() {
    let count = seeds(200);
    let (anew, corrected) = play_all(0..count, false, true);
    println!("of {count} seeds {corrected} corrected state, and {anew} began anew");
    assert!(
        corrected > count / 2 && anew == 0,
        "of {count} seeds {corrected} corrected state, {anew} began anew"
    );
}

/// Rows that few events make: more of them go, and who wrote them before or after is looked for.
#[test]
fn rows_that_few_events_make_are_corrected_too() {
    let count = seeds(100);
    let (anew, corrected) = play_all(10_000..10_000 + count, true, true);
    println!("of {count} seeds {corrected} corrected state, and {anew} began anew");
    assert!(
        corrected > count / 2 && anew == 0,
        "of {count} seeds {corrected} corrected state, {anew} began anew"
    );
}

/// Where rows don't tell what they would be, the folder begins anew, and its state is right all the same.
#[test]
fn a_folder_whose_rows_do_not_tell_begins_anew() {
    let count = seeds(60);
    let (anew, corrected) = play_all(20_000..20_000 + count, false, false);
    println!("of {count} seeds {corrected} corrected state, and {anew} began anew");
    assert!(anew > count / 2, "of {count} seeds {corrected} corrected state, {anew} began anew");
}
