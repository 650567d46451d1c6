//! Derived work over stores in memory, with processors whose work a test says.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{BlockRef, Height, HeightRange, Parts, StoredBlock};
use cairn_pipeline::derive::processor::{
    AskError, Asked, Changes, Enricher, FaultLabels, FoldBlock, FoldState, Folder, Lookup, Malformed, Mapper,
    Output, ProcessError, Processor, ServiceInfo,
};
use cairn_pipeline::derive::status::{DeriveBoard, DeriveStatus};
use cairn_pipeline::derive::{Compute, DeriveError, DeriveOptions, Deriver};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain};
use cairn_store::derived::memory::{MemoryDerived, MemoryErrorLog};
use cairn_store::derived::{
    ASKED_AT_HEIGHT, BLOCK_HEIGHT, Catalog, Change, ColumnType, DerivedReader, ErrorFilter, ErrorLog,
    IndexDef, Key, LAST_HEIGHT, LeaseFilter, LoggedError, Merge, Row, Scan, Severity, TableClass, TableDef,
    Value, WorkerLease, column,
};
use cairn_store::memory::MemoryStore;
use cairn_store::{AppendBatch, PurgeProgress, RawReader, RawWriter, Rollback};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{MAIN, TestClock, info, pass_ms};

/// One row a block.
pub static MARKS: TableDef = TableDef {
    name: "marks",
    service: "mark_worker",
    class: TableClass::Events { partition_heights: 16 },
    columns: &[column(BLOCK_HEIGHT, ColumnType::Int), column("block_id", ColumnType::Bytes)],
    key: &[BLOCK_HEIGHT],
    indexes: &[],
};

/// The same of another worker.
pub static TAILS: TableDef = TableDef { name: "tails", service: "tail_worker", ..MARKS };

/// How many there are.
pub static COUNTS: TableDef = TableDef {
    name: "counts",
    service: "count_worker",
    class: TableClass::State,
    columns: &[
        column("name", ColumnType::Text),
        column("blocks", ColumnType::Int).merged(Merge::Sum),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["name"],
    indexes: &[],
};

/// Blocks by the last bits of their ids: how many, and which was the last. The row [`ALL_SLOTS`] counts the others.
pub static SLOTS: TableDef = TableDef {
    name: "slots",
    service: "link_worker",
    class: TableClass::State,
    columns: &[
        column("slot", ColumnType::Int),
        column("blocks", ColumnType::Int).merged(Merge::Sum),
        column("last_id", ColumnType::Bytes).nullable().merged(Merge::Last),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["slot"],
    indexes: &[],
};

/// Each block with the one before it in its slot, how many then were a slot's last, and whether its parent has a mark.
pub static LINKS: TableDef = TableDef {
    name: "links",
    service: "link_worker",
    class: TableClass::State,
    columns: &[
        column("block_id", ColumnType::Bytes),
        column("slot", ColumnType::Int).merged(Merge::First),
        column("is_last", ColumnType::Bool).merged(Merge::Last),
        column("before", ColumnType::Bytes).nullable().merged(Merge::First),
        column("last_ones", ColumnType::Int).merged(Merge::Last),
        column("has_parent", ColumnType::Bool).merged(Merge::Last),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["block_id"],
    indexes: &[IndexDef { name: "by_slot", columns: &["slot", "is_last"] }],
};

/// What a node said of each.
pub static NAMES: TableDef = TableDef {
    name: "names",
    service: "name_worker",
    class: TableClass::Answers,
    columns: &[
        column("block_id", ColumnType::Bytes),
        column("name", ColumnType::Text).nullable(),
        column(ASKED_AT_HEIGHT, ColumnType::Int),
    ],
    key: &["block_id"],
    indexes: &[],
};

/// What the newest answer of a parity of heights said.
pub static PARITIES: TableDef = TableDef {
    name: "parities",
    columns: &[
        column("parity", ColumnType::Int),
        column("name", ColumnType::Text),
        column(ASKED_AT_HEIGHT, ColumnType::Int),
    ],
    key: &["parity"],
    ..NAMES
};

pub fn catalog() -> Catalog {
    Catalog::new([&MARKS, &TAILS, &COUNTS, &SLOTS, &LINKS, &NAMES, &PARITIES]).unwrap()
}

type MapFn = dyn Fn(&StoredBlock, &mut Output) -> Result<(), ProcessError> + Send + Sync;

/// A mapper of `MARKS`, which does something else first.
pub struct MarkWorker {
    pub parts: Parts,
    pub first: Box<MapFn>,
}

static MARK_WORKER: ServiceInfo =
    ServiceInfo { name: "mark_worker", version: 1, upstreams: &[], tables: &[&MARKS] };

impl Mapper for MarkWorker {
    fn service(&self) -> &'static ServiceInfo {
        &MARK_WORKER
    }

    fn parts(&self) -> Parts {
        self.parts
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        (self.first)(block, out)?;
        out.row(&MARKS, mark(block.facts.block_ref()));
        Ok(())
    }
}

pub fn mark(block: BlockRef) -> Row {
    Row(vec![Value::height(block.height), Value::bytes(block.id.as_bytes())])
}

/// `MarkWorker` with this before each block.
pub fn marks(
    first: impl Fn(&StoredBlock, &mut Output) -> Result<(), ProcessError> + Send + Sync + 'static,
) -> Processor {
    Processor::Mapper(Arc::new(MarkWorker { parts: Parts::empty(), first: Box::new(first) }))
}

/// An event that can't be understood.
pub fn odd(message: &str) -> Malformed {
    Malformed {
        transaction_id: "0x01".into(),
        severity: Severity::Warn,
        message: message.into(),
        raw_data: vec![1],
        event_index: Some(3),
        labels: FaultLabels { reason: "odd", contract: "0x0c".into(), topic: "0xdd".into() },
    }
}

type FoldFn = dyn Fn(Height) -> Result<(), ProcessError> + Send + Sync;

/// A folder of `MARKS` into `COUNTS`, which does something else first.
pub struct CountWorker {
    pub first: Box<FoldFn>,
}

static COUNT_WORKER: ServiceInfo =
    ServiceInfo { name: "count_worker", version: 1, upstreams: &["mark_worker"], tables: &[&COUNTS] };

static READS: &[&TableDef] = &[&MARKS];

impl Folder for CountWorker {
    fn service(&self) -> &'static ServiceInfo {
        &COUNT_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        (self.first)(block.facts.height)?;
        for _ in block.rows[0] {
            changes.change(&COUNTS, Change(vec![Some(Value::text("all")), Some(Value::Int(1)), None]));
        }
        Ok(())
    }
}

pub fn counts(first: impl Fn(Height) -> Result<(), ProcessError> + Send + Sync + 'static) -> Processor {
    Processor::Folder(Arc::new(CountWorker { first: Box::new(first) }))
}

/// A folder of `MARKS` into `SLOTS` and `LINKS`: what a block does depends on what the blocks before it left.
pub struct LinkWorker;

static LINK_WORKER: ServiceInfo =
    ServiceInfo { name: "link_worker", version: 1, upstreams: &["mark_worker"], tables: &[&SLOTS, &LINKS] };

/// The row of `SLOTS` that counts the others.
pub const ALL_SLOTS: i64 = -1;

pub fn slot(id: &[u8]) -> i64 {
    i64::from(id[id.len() - 1] % 4)
}

impl Folder for LinkWorker {
    fn service(&self) -> &'static ServiceInfo {
        &LINK_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let slot = slot(block.facts.id.as_bytes());
        changes.change(&SLOTS, Change(vec![Some(Value::Int(slot)), Some(Value::Int(1)), None, None]));
        Ok(())
    }

    fn settled(&self, _table: &'static str, before: Option<&Row>, _after: &Row, changes: &mut Changes) {
        if before.is_none() {
            changes
                .change(&SLOTS, Change(vec![Some(Value::Int(ALL_SLOTS)), Some(Value::Int(1)), None, None]));
        }
    }

    fn looks_at_state(&self) -> bool {
        true
    }

    fn fold_with_state(&self, block: &FoldBlock<'_>, state: &mut FoldState<'_>) -> Result<(), ProcessError> {
        let id = Value::bytes(block.facts.id.as_bytes());
        let slot = Value::Int(slot(block.facts.id.as_bytes()));
        let row = state.row(&SLOTS, Key(vec![slot.clone()]));
        let before = row.map_or(Value::Null, |row| row.0[2].clone());
        if !before.is_null() {
            let change = vec![Some(before.clone()), None, Some(Value::Bool(false)), None, None, None, None];
            state.change(&LINKS, &Change(change));
        }
        let new = vec![Some(id.clone()), Some(slot.clone()), Some(Value::Bool(true))];
        let rest = |ones: i64, has_parent| vec![Some(Value::Int(ones)), Some(Value::Bool(has_parent)), None];
        let prefix = vec![slot.clone(), Value::Bool(true)];
        let mut found = state.find(&Lookup { table: LINKS.name, index: Some("by_slot"), prefix, limit: 3 });
        assert!(found.is_whole);
        // A row that it makes itself is found too.
        state.change(&LINKS, &Change([new, vec![Some(before)], rest(0, false)].concat()));
        let again = state.find(&Lookup {
            table: LINKS.name,
            index: Some("by_slot"),
            prefix: vec![slot.clone(), Value::Bool(true)],
            limit: 3,
        });
        found.rows.extend(again.rows);
        let parent = block.facts.height.get().checked_sub(1);
        let parent = parent.map(|parent| {
            state.find(&Lookup {
                table: MARKS.name,
                index: None,
                prefix: vec![Value::uint(parent)],
                limit: 2,
            })
        });
        let next = state.find(&Lookup {
            table: MARKS.name,
            index: None,
            prefix: vec![Value::height(block.facts.height.next())],
            limit: 2,
        });
        if !next.rows.is_empty() {
            return Err(ProcessError {
                block: block.facts.block_ref(),
                message: "it sees what comes after it".into(),
            });
        }
        state.change(
            &LINKS,
            &Change(
                [
                    vec![Some(id.clone()), None, None, None],
                    rest(found.rows.len() as i64, parent.is_some_and(|parent| parent.rows.len() == 1)),
                ]
                .concat(),
            ),
        );
        state.change(&SLOTS, &Change(vec![Some(slot), Some(Value::Int(0)), Some(id), None]));
        Ok(())
    }
}

type AskFn = dyn Fn(&Key, BlockRef) -> (u64, Result<Option<String>, AskError>) + Send + Sync;

/// An enricher that asks about each row of `MARKS`: how long the answer takes, and what it is.
pub struct NameWorker {
    pub ask: Box<AskFn>,
    /// What the node calls final.
    pub finalized: Option<BlockRef>,
}

static NAME_WORKER: ServiceInfo =
    ServiceInfo { name: "name_worker", version: 1, upstreams: &["mark_worker"], tables: &[&NAMES] };

#[async_trait]
impl Enricher for NameWorker {
    fn service(&self) -> &'static ServiceInfo {
        &NAME_WORKER
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

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        Ok(self.finalized)
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let (takes_ms, answer) = (self.ask)(key, at);
        pass_ms(takes_ms).await;
        let name = answer?.map_or(Value::Null, Value::text);
        Ok(Asked::Rows(vec![(NAMES.name, Row(vec![key.0[0].clone(), name, Value::height(at.height)]))]))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        let name = Value::text(format!("given up: {message}"));
        vec![(NAMES.name, Row(vec![key.0[0].clone(), name, Value::height(at.height)]))]
    }
}

pub fn names(
    ask: impl Fn(&Key, BlockRef) -> (u64, Result<Option<String>, AskError>) + Send + Sync + 'static,
) -> Processor {
    names_of(None, ask)
}

/// The same of a node that calls this block final.
pub fn names_of(
    finalized: Option<BlockRef>,
    ask: impl Fn(&Key, BlockRef) -> (u64, Result<Option<String>, AskError>) + Send + Sync + 'static,
) -> Processor {
    Processor::Enricher(Arc::new(NameWorker { ask: Box::new(ask), finalized }))
}

/// A raw store of a synthetic chain, an app store, and the error log.
pub struct Derived {
    pub chain: Arc<SyntheticChain>,
    pub raw: MemoryStore,
    pub app: MemoryDerived,
    pub errors: MemoryErrorLog,
}

impl Derived {
    /// The raw store holds the main chain up to `last`.
    pub async fn new(chain: Arc<SyntheticChain>, last: u64) -> Derived {
        let clock = Arc::new(TestClock(Instant::now()));
        let raw = MemoryStore::new(clock.clone());
        raw.init(info(&chain)).await.unwrap();
        raw.acquire().await.unwrap();
        let app = MemoryDerived::new(catalog(), clock.clone());
        let derived = Derived { chain, raw, app, errors: MemoryErrorLog::new(clock) };
        derived.append(MAIN, 0, last).await;
        derived
    }

    async fn fence(&self) -> cairn_core::Fence {
        self.raw.snapshot().await.unwrap().head().fence
    }

    pub async fn append(&self, fork: ForkId, first: u64, last: u64) {
        let heights = HeightRange::inclusive(Height(first), Height(last));
        let blocks = heights.iter().map(|height| (*self.chain.block(fork, height)).clone()).collect();
        let batch = AppendBatch { blocks, finalized: None, safe: None };
        self.raw.append(self.fence().await, batch).await.unwrap();
    }

    /// Goes back to `common` of the main chain, and up to `last` of `fork`.
    pub async fn reorg(&self, common: u64, fork: ForkId, last: u64) {
        self.reorg_of(MAIN, common, fork, last).await;
    }

    /// Goes back to `common` of the fork that is stored, and up to `last` of `fork`.
    pub async fn reorg_of(&self, stored: ForkId, common: u64, fork: ForkId, last: u64) {
        let common = self.chain.block_ref(stored, Height(common));
        let rollback = Rollback { common, max_depth: 1_000, decided_at_ms: 1 };
        self.raw.rollback(self.fence().await, rollback).await.unwrap();
        while self.raw.purge_step(self.fence().await, 100).await.unwrap() != PurgeProgress::Done {}
        self.append(fork, common.height.get() + 1, last).await;
    }

    pub fn options(&self) -> DeriveOptions {
        DeriveOptions {
            compute: Compute::Inline,
            poll_ms: 100,
            workers_per_service: 1,
            ..DeriveOptions::new("test")
        }
    }

    pub fn start(&self, processors: Vec<Processor>, options: DeriveOptions) -> Working {
        self.start_over(Arc::new(self.raw.clone()), processors, options)
    }

    /// Over another way to the raw store.
    pub fn start_over(
        &self,
        raw: Arc<dyn RawReader>,
        processors: Vec<Processor>,
        options: DeriveOptions,
    ) -> Working {
        let (app, errors) = (Arc::new(self.app.clone()), Arc::new(self.errors.clone()));
        let deriver = Deriver::new(raw, app, errors, catalog(), processors, options).unwrap();
        let (board, shutdown) = (deriver.board(), CancellationToken::new());
        Working { board, task: tokio::spawn(deriver.run(shutdown.clone())), shutdown }
    }

    /// The rows of a table.
    pub async fn rows(&self, table: &'static str) -> Vec<Row> {
        self.app.snapshot().await.unwrap().scan(&Scan::new(table, 10_000)).await.unwrap().rows
    }

    /// The heights that have a row in `MARKS`.
    pub async fn marked(&self) -> Vec<u64> {
        let rows = self.rows(MARKS.name).await;
        rows.iter().map(|row| row.0[0].as_height().unwrap().get()).collect()
    }

    /// How far a service has come.
    pub async fn next(&self, service: &str) -> u64 {
        match self.app.snapshot().await {
            Ok(snapshot) => snapshot.checkpoint(service).map_or(0, |checkpoint| checkpoint.next.get()),
            Err(_) => 0,
        }
    }

    pub async fn until_next(&self, service: &str, next: u64) {
        self.until(&format!("{service} at {next}"), async || self.next(service).await == next).await;
    }

    /// Waits in simulated time.
    pub async fn until(&self, what: &str, arrived: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(7_200);
        while !arrived().await {
            assert!(Instant::now() < deadline, "waited for {what}: {:#?}", self.leases().await);
            pass_ms(50).await;
        }
    }

    pub async fn leases(&self) -> Vec<WorkerLease> {
        let filter = LeaseFilter { limit: 10_000, ..LeaseFilter::default() };
        // Before the raw store is adopted there is nothing.
        let Ok(snapshot) = self.app.snapshot().await else { return Vec::new() };
        snapshot.leases(&filter).await.unwrap()
    }

    /// The error log, closed ones too.
    pub async fn logged(&self) -> Vec<LoggedError> {
        let filter = ErrorFilter { resolved: true, limit: 10_000, ..ErrorFilter::default() };
        self.errors.list(&filter).await.unwrap()
    }
}

/// A deriver at work.
pub struct Working {
    pub board: DeriveBoard,
    pub shutdown: CancellationToken,
    task: JoinHandle<Result<(), DeriveError>>,
}

impl Working {
    pub fn status(&self) -> DeriveStatus {
        self.board.subscribe().borrow().clone()
    }

    /// Asks it to stop; says how it ended.
    pub async fn stop(self) -> Result<(), DeriveError> {
        self.shutdown.cancel();
        self.task.await.expect("no panic ends it")
    }

    /// Kills the process: it gives nothing back.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()), "it had ended by itself");
    }

    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}
