//! Small processors for the simulation: every kind, every merge rule, and a row that every block changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cairn_core::{BlockRef, Height, Parts, StoredBlock};
use cairn_pipeline::derive::processor::{
    AskError, Asked, Changes, Enricher, FaultLabels, FoldBlock, FoldState, Folder, Malformed, Mapper, Output,
    ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::{
    ASKED_AT_HEIGHT, BLOCK_HEIGHT, Catalog, Change, ColumnType, IndexDef, Key, LAST_HEIGHT, Merge, Row,
    Severity, TableClass, TableDef, U256, Value, column,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// One row a transaction.
pub static TXS: TableDef = TableDef {
    name: "txs",
    service: "tx_worker",
    class: TableClass::Events { partition_heights: 16 },
    columns: &[
        column(BLOCK_HEIGHT, ColumnType::Int),
        column("tx_index", ColumnType::Int),
        column("tx_id", ColumnType::Bytes),
        column("sender", ColumnType::Bytes),
    ],
    key: &[BLOCK_HEIGHT, "tx_index"],
    indexes: &[IndexDef { name: "by_sender", columns: &["sender"] }],
};

/// One row a block.
pub static MARKS: TableDef = TableDef {
    name: "marks",
    service: "mark_worker",
    class: TableClass::Events { partition_heights: 16 },
    columns: &[column(BLOCK_HEIGHT, ColumnType::Int), column("block_id", ColumnType::Bytes)],
    key: &[BLOCK_HEIGHT],
    indexes: &[],
};

/// One row a sender. `before` sent the transaction before its last one: what other rows left, in chain order ([`Folder::fold_with_state`]).
pub static SENDERS: TableDef = TableDef {
    name: "senders",
    service: "sender_worker",
    class: TableClass::State,
    columns: &[
        column("sender", ColumnType::Bytes),
        column("txs", ColumnType::Int).merged(Merge::Sum),
        column("weight", ColumnType::Sum).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_id", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("before", ColumnType::Bytes).nullable().merged(Merge::Last),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["sender"],
    indexes: &[IndexDef { name: "by_txs", columns: &["txs"] }],
};

/// One row for all: every block changes it, directly, through [`Folder::settled`] and with the state before it.
pub static TOTALS: TableDef = TableDef {
    name: "totals",
    service: "sender_worker",
    class: TableClass::State,
    columns: &[
        column("name", ColumnType::Text),
        column("blocks", ColumnType::Int).merged(Merge::Sum),
        column("senders", ColumnType::Int).merged(Merge::Sum),
        column("last_sender", ColumnType::Bytes).nullable().merged(Merge::Last),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["name"],
    indexes: &[],
};

/// What a node was asked: about each sender once for each place in a block that it sent from. A null name: it couldn't say.
pub static ASKS: TableDef = TableDef {
    name: "asks",
    service: "name_worker",
    class: TableClass::Answers,
    columns: &[
        column("sender", ColumnType::Bytes),
        column("place", ColumnType::Int),
        column("name", ColumnType::Text).nullable(),
        column(ASKED_AT_HEIGHT, ColumnType::Int),
    ],
    key: &["sender", "place"],
    indexes: &[],
};

/// What a node said of each sender when it was asked last: newer answers take the place of older ones.
pub static NAMES: TableDef = TableDef {
    name: "names",
    service: "name_worker",
    class: TableClass::Answers,
    columns: &[
        column("sender", ColumnType::Bytes),
        column("name", ColumnType::Text),
        column(ASKED_AT_HEIGHT, ColumnType::Int),
    ],
    key: &["sender"],
    indexes: &[],
};

static READS: &[&TableDef] = &[&TXS];

/// Every table.
pub fn catalog() -> Catalog {
    Catalog::new([&TXS, &MARKS, &SENDERS, &TOTALS, &ASKS, &NAMES]).expect("the simulation's tables are right")
}

/// Every service, upstreams first.
pub const SERVICES: [&str; 4] = ["tx_worker", "mark_worker", "sender_worker", "name_worker"];

/// Blocks that can't be processed for a while, in any process.
#[derive(Debug, Default)]
pub struct Bugs {
    left: Mutex<BTreeMap<Height, u32>>,
    /// Those that no time mends, by mapper.
    incurable: BTreeSet<(&'static str, Height)>,
}

impl Bugs {
    /// Each height fails so many times; the incurable ones always, for their mapper.
    pub fn new(
        fails: impl IntoIterator<Item = (Height, u32)>,
        incurable: BTreeSet<(&'static str, Height)>,
    ) -> Arc<Bugs> {
        Arc::new(Bugs { left: Mutex::new(fails.into_iter().collect()), incurable })
    }

    /// A block that this mapper never can process: at every other height it panics.
    fn demand_curable(&self, mapper: &'static str, block: BlockRef) -> Result<(), ProcessError> {
        if !self.incurable.contains(&(mapper, block.height)) {
            return Ok(());
        }
        if block.height.get() % 2 == 1 {
            std::panic::resume_unwind(Box::new("incurable"));
        }
        Err(ProcessError { block, message: "incurable".into() })
    }

    /// Every other time it panics.
    fn bite(&self, block: BlockRef) -> Result<(), ProcessError> {
        let fails = {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(fails) = left.get_mut(&block.height).filter(|fails| **fails > 0) else { return Ok(()) };
            *fails -= 1;
            *fails
        };
        if fails % 2 == 1 {
            // A panic, without a word of it on standard error each time.
            std::panic::resume_unwind(Box::new("simulated bug"));
        }
        Err(ProcessError { block, message: "simulated bug".into() })
    }

    /// Whether there is one, now or before.
    pub fn are_there(&self) -> bool {
        !self.left.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

struct TxWorker {
    bugs: Arc<Bugs>,
}

static TX_WORKER: ServiceInfo =
    ServiceInfo { name: "tx_worker", version: 1, upstreams: &[], tables: &[&TXS] };

/// Whether the block has something that can't be understood.
pub fn is_odd(block: BlockRef) -> bool {
    block.id.0[31].is_multiple_of(5)
}

/// The row of a transaction.
pub fn tx_row(height: Height, index: usize, id: &[u8], sender: &[u8]) -> Row {
    Row(vec![Value::height(height), Value::uint(index as u64), Value::bytes(id), Value::bytes(sender)])
}

impl Mapper for TxWorker {
    fn service(&self) -> &'static ServiceInfo {
        &TX_WORKER
    }

    fn parts(&self) -> Parts {
        Parts::TRANSACTIONS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        self.bugs.demand_curable(TX_WORKER.name, block.facts.block_ref())?;
        self.bugs.bite(block.facts.block_ref())?;
        for (index, tx) in block.transactions.iter().enumerate() {
            out.row(&TXS, tx_row(block.facts.height, index, tx.id.as_bytes(), &tx.sender));
        }
        // Where there are bugs, ranges halt over whatever can't be understood: no height may be left without its rows.
        if is_odd(block.facts.block_ref()) && !self.bugs.are_there() {
            out.malformed(Malformed {
                transaction_id: String::new(),
                severity: Severity::Warn,
                message: "an odd block".into(),
                raw_data: vec![1],
                event_index: None,
                labels: FaultLabels::only("odd"),
            });
        }
        Ok(())
    }
}

struct MarkWorker {
    bugs: Arc<Bugs>,
}

static MARK_WORKER: ServiceInfo =
    ServiceInfo { name: "mark_worker", version: 1, upstreams: &["tx_worker"], tables: &[&MARKS] };

/// The row of a block.
pub fn mark_row(block: BlockRef) -> Row {
    Row(vec![Value::height(block.height), Value::bytes(block.id.as_bytes())])
}

impl Mapper for MarkWorker {
    fn service(&self) -> &'static ServiceInfo {
        &MARK_WORKER
    }

    fn parts(&self) -> Parts {
        Parts::empty()
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        self.bugs.demand_curable(MARK_WORKER.name, block.facts.block_ref())?;
        out.row(&MARKS, mark_row(block.facts.block_ref()));
        Ok(())
    }
}

struct SenderWorker;

static SENDER_WORKER: ServiceInfo = ServiceInfo {
    name: "sender_worker",
    version: 1,
    upstreams: &["tx_worker"],
    tables: &[&SENDERS, &TOTALS],
};

impl Folder for SenderWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SENDER_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        for row in block.rows[0] {
            changes.change(
                &SENDERS,
                Change(vec![
                    Some(row.0[3].clone()),
                    Some(Value::Int(1)),
                    Some(Value::sum(U256::MAX)),
                    Some(Value::height(block.facts.height)),
                    Some(row.0[2].clone()),
                    None,
                    None,
                ]),
            );
        }
        changes.change(&TOTALS, totals(1, 0));
        Ok(())
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, _after: &Row, changes: &mut Changes) {
        if table == SENDERS.name && before.is_none() {
            changes.change(&TOTALS, totals(0, 1));
        }
    }

    fn looks_at_state(&self) -> bool {
        true
    }

    fn fold_with_state(&self, block: &FoldBlock<'_>, state: &mut FoldState<'_>) -> Result<(), ProcessError> {
        for row in block.rows[0] {
            let totals = state.row(&TOTALS, Key(vec![Value::text("all")]));
            let before = totals.map_or(Value::Null, |row| row.0[3].clone());
            let sender = row.0[3].clone();
            state.change(&SENDERS, &sent_after(sender.clone(), before));
            state.change(&TOTALS, &last_sender(sender));
        }
        Ok(())
    }
}

fn totals(blocks: i64, senders: i64) -> Change {
    Change(vec![Some(Value::text("all")), Some(Value::Int(blocks)), Some(Value::Int(senders)), None, None])
}

/// Who sent before.
pub fn sent_after(sender: Value, before: Value) -> Change {
    Change(vec![Some(sender), None, None, None, None, Some(before), None])
}

/// Who sent last of all.
pub fn last_sender(sender: Value) -> Change {
    Change(vec![Some(Value::text("all")), None, None, Some(sender), None])
}

struct NameWorker {
    rng: Mutex<SmallRng>,
    fails_percent: u32,
}

static NAME_WORKER: ServiceInfo =
    ServiceInfo { name: "name_worker", version: 1, upstreams: &["tx_worker"], tables: &[&ASKS, &NAMES] };

#[async_trait]
impl Enricher for NameWorker {
    fn service(&self) -> &'static ServiceInfo {
        &NAME_WORKER
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        wanted.push(question(row));
    }

    fn known_in(&self) -> &'static TableDef {
        &ASKS
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let draw = |to: u32| self.rng.lock().unwrap_or_else(PoisonError::into_inner).random_range(0..to);
        tokio::time::sleep(std::time::Duration::from_millis(u64::from(draw(200)))).await;
        if draw(100) < self.fails_percent {
            let message = "simulated node trouble";
            return Err(match draw(4) {
                0 => AskError::last(message),
                1 => AskError::busy((draw(2) > 0).then_some(500), message),
                _ => AskError::transient(message),
            });
        }
        let (sender, name) = (key.0[0].clone(), name(at));
        let asked = asked(key, name.clone(), at.height);
        Ok(Asked::Rows(vec![asked, (NAMES.name, Row(vec![sender, name, Value::height(at.height)]))]))
    }

    fn given_up(&self, key: &Key, at: BlockRef, _message: &str) -> Vec<(&'static str, Row)> {
        vec![asked(key, Value::Null, at.height)]
    }
}

/// What is asked because of a transaction: see [`ASKS`].
pub fn question(tx: &Row) -> Key {
    Key(vec![tx.0[3].clone(), Value::Int(tx.0[1].as_int().unwrap_or_default() % 3)])
}

/// What a node calls every sender at a block.
pub fn name(at: BlockRef) -> Value {
    Value::text(format!("as of {at}"))
}

fn asked(key: &Key, name: Value, at: Height) -> (&'static str, Row) {
    (ASKS.name, Row(vec![key.0[0].clone(), key.0[1].clone(), name, Value::height(at)]))
}

/// The processors of one process.
pub fn processors(bugs: &Arc<Bugs>, seed: u64, fails_percent: u32) -> Vec<Processor> {
    let rng = Mutex::new(SmallRng::seed_from_u64(seed ^ 0x4a3e));
    vec![
        Processor::Mapper(Arc::new(TxWorker { bugs: bugs.clone() })),
        Processor::Mapper(Arc::new(MarkWorker { bugs: bugs.clone() })),
        Processor::Folder(Arc::new(SenderWorker)),
        Processor::Enricher(Arc::new(NameWorker { rng, fails_percent })),
    ]
}
