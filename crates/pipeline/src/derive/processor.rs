//! What a processor is: a pure function from a decoded block, or from derived rows, to rows.
//!
//! A processor has a name, a version and its upstreams; no I/O and no clock, enrichers' questions excepted. The pipeline does
//! the rest: fetch, order, batch, commit, retry, measure.
//!
//! * A [`Mapper`] makes event rows from one block. Ranges run in parallel and in any order.
//! * A [`Folder`] makes state from event rows, strictly in chain order.
//! * An [`Enricher`] asks a node about things that event rows name. It never gates anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockFacts, BlockRef, Parts, StoredBlock};
use cairn_store::derived::{Change, Key, Row, Severity, TableDef, Value};

pub use super::state::{FoldState, Found, Lookup};

/// What every processor says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Its name: the `worker_type` of its leases and the `service_name` of its checkpoint.
    pub name: &'static str,
    /// Raised whenever the same block would make other rows. An older binary can't claim a newer one's leases.
    pub version: u32,
    /// Services whose checkpoints it never passes.
    pub upstreams: &'static [&'static str],
    /// The tables that it alone writes.
    pub tables: &'static [&'static TableDef],
}

/// What metrics count a fault under (E24): words of a small set, and whose event it was. Strangers choose the latter, so only so many different ones
/// are counted each by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultLabels {
    /// What is wrong, in a word without numbers.
    pub reason: &'static str,
    /// The contract that logged; empty where it is about none.
    pub contract: String,
    /// The event: its first topic, or its name; empty where it is about none.
    pub topic: String,
}

impl FaultLabels {
    /// Of a fault that is about no contract.
    pub fn only(reason: &'static str) -> FaultLabels {
        FaultLabels { reason, contract: String::new(), topic: String::new() }
    }
}

/// Something that could not be understood. It is kept in the error log, once; a policy says whether its range may complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The transaction's id as `0x` and hex; empty where it is not in one.
    pub transaction_id: String,
    /// How bad it is, for people. Whether the range may complete over it is the policy's to say, whatever it is.
    pub severity: Severity,
    /// What is wrong; names contract, topic and field. The same words for the same fault: it tells errors apart.
    pub message: String,
    /// The payload, at most [`cairn_store::derived::MAX_RAW_DATA_BYTES`] of it.
    pub raw_data: Vec<u8>,
    /// Which event of the transaction it is, so that the whole payload is found where it was cut.
    pub event_index: Option<u32>,
    /// What metrics count it under.
    pub labels: FaultLabels,
}

impl Malformed {
    fn size_bytes(&self) -> usize {
        std::mem::size_of::<Malformed>()
            + self.transaction_id.len()
            + self.message.len()
            + self.raw_data.len()
            + self.labels.contract.len()
            + self.labels.topic.len()
    }
}

/// The memory that what is made of one block may take, in bytes: the last line of defence behind the mappers' own limits. A block that would make more
/// can't be processed. It is a constant, so that a block gives the same rows wherever it is mapped.
pub const MAX_BLOCK_OUTPUT_BYTES: usize = 256 << 20;

/// What a mapper made of a block.
#[derive(Debug)]
pub struct Output {
    rows: BTreeMap<&'static str, Vec<Row>>,
    malformed: Vec<Malformed>,
    bytes: usize,
    max_bytes: usize,
    /// The table and the column of the first number that doesn't fit.
    unfit: Option<(&'static str, &'static str)>,
}

impl Default for Output {
    fn default() -> Self {
        Output::with_limit(MAX_BLOCK_OUTPUT_BYTES)
    }
}

impl Output {
    /// One that takes so many bytes.
    pub(super) fn with_limit(max_bytes: usize) -> Output {
        Output { rows: BTreeMap::new(), malformed: Vec::new(), bytes: 0, max_bytes, unfit: None }
    }

    /// Adds a row.
    pub fn row(&mut self, table: &'static TableDef, row: Row) {
        if let Some(at) = row.0.iter().position(|value| *value == Value::DOES_NOT_FIT) {
            let column = table.columns.get(at).map_or("", |column| column.name);
            self.unfit.get_or_insert((table.name, column));
        }
        if self.takes(row.size_bytes()) {
            self.rows.entry(table.name).or_default().push(row);
        }
    }

    /// Adds something that could not be understood.
    pub fn malformed(&mut self, what: Malformed) {
        if self.takes(what.size_bytes()) {
            self.malformed.push(what);
        }
    }

    /// Counts what is to be added. Over the limit nothing is kept any more: see [`Output::is_too_large`].
    fn takes(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        !self.is_too_large()
    }

    /// Whether more was added than it takes: then it isn't whole.
    pub(super) fn is_too_large(&self) -> bool {
        self.bytes > self.max_bytes
    }

    /// The table and the column of the first number that doesn't fit into one.
    pub(super) fn unfit(&self) -> Option<(&'static str, &'static str)> {
        self.unfit
    }

    /// The memory that it takes, in bytes, about.
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }

    /// The rows by table, and what could not be understood.
    pub fn into_parts(self) -> (BTreeMap<&'static str, Vec<Row>>, Vec<Malformed>) {
        (self.rows, self.malformed)
    }
}

/// A block can't be processed at all. It is tried again; then a mapper's range goes on without its rows or fails, as the policy says, and a folder's
/// fails. A panic counts as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block {block} can't be processed: {message}")]
pub struct ProcessError {
    /// The block.
    pub block: BlockRef,
    /// What is wrong.
    pub message: String,
}

/// Event rows from blocks.
pub trait Mapper: Send + Sync {
    /// Its name, version, upstreams and tables.
    fn service(&self) -> &'static ServiceInfo;

    /// The parts of a block that it needs.
    fn parts(&self) -> Parts;

    /// Makes the rows of one block. Rows of one block come in any order, and no key twice.
    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError>;
}

/// Changes of one block to tables of state, in order.
#[derive(Debug, Default)]
pub struct Changes {
    changes: Vec<(&'static str, Change)>,
    malformed: Vec<Malformed>,
}

impl Changes {
    /// Adds a change; several to one row are laid over each other in this order.
    pub fn change(&mut self, table: &'static TableDef, change: Change) {
        self.changes.push((table.name, change));
    }

    /// Adds something that contradicts what came before, or can't be understood: see [`Malformed`].
    pub fn malformed(&mut self, what: Malformed) {
        self.malformed.push(what);
    }

    /// The changes in order.
    pub fn into_inner(self) -> Vec<(&'static str, Change)> {
        self.changes
    }

    /// The changes in order, and what could not be understood.
    pub fn into_parts(self) -> (Vec<(&'static str, Change)>, Vec<Malformed>) {
        (self.changes, self.malformed)
    }
}

/// One block as a folder sees it.
#[derive(Debug)]
pub struct FoldBlock<'a> {
    /// The block's facts.
    pub facts: &'a BlockFacts,
    /// The block itself, where the folder asked for parts.
    pub stored: Option<&'a StoredBlock>,
    /// The block's rows in each table that the folder reads, in the order of [`Folder::reads`], by key.
    pub rows: &'a [&'a [Row]],
}

/// State from event rows.
pub trait Folder: Send + Sync {
    /// Its name, version, upstreams and tables. Its upstreams write what it reads.
    fn service(&self) -> &'static ServiceInfo;

    /// The tables of events that it reads.
    fn reads(&self) -> &'static [&'static TableDef];

    /// The parts of a block that it needs beside them; empty: facts are enough.
    fn parts(&self) -> Parts {
        Parts::empty()
    }

    /// What a block changes whatever the state is. It sorts rows by their place in the chain itself where order matters.
    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError>;

    /// Called once for each row that [`Folder::fold`] changed, after all the block's changes, in the order of table and key: what follows
    /// from the row's old and new state, such as a count of holders. Changes made here don't call it again; later blocks see them.
    fn settled(&self, _table: &'static str, _before: Option<&Row>, _after: &Row, _changes: &mut Changes) {}

    /// Whether [`Folder::fold_with_state`] is called at all.
    fn looks_at_state(&self) -> bool {
        false
    }

    /// What a block changes that depends on rows by other keys than those it names: it looks at the state that all blocks before it and the two steps
    /// above left. It is called several times over a chunk, and must do the same over the same state.
    fn fold_with_state(
        &self,
        _block: &FoldBlock<'_>,
        _state: &mut FoldState<'_>,
    ) -> Result<(), ProcessError> {
        Ok(())
    }

    /// Whether state can be corrected where rows that it was folded from are derived again ([`super::correct`]); else the folder begins anew. It promises:
    ///
    /// * [`Folder::fold`] needs no parts of a block, and [`Folder::fold_with_state`] is not called.
    /// * Each change of `fold` sets all columns that the last writer sets, and those that the first writer sets. A table with the latter has a
    ///   column `first_height`, which is the block's height.
    /// * [`Folder::settled`] changes its own row as [`Folder::put_right`] does. Of other rows it changes sums alone, by what follows from the new row
    ///   less what follows from the old one, and `fold` changes these rows in the same block.
    fn is_correctable(&self) -> bool {
        false
    }

    /// Puts right what [`Folder::settled`] makes of a row's own columns, after its sums were corrected. `false`: the row doesn't say it.
    fn put_right(&self, _table: &'static str, _row: &mut Row) -> bool {
        false
    }

    /// What a row of state belongs to, from its key: what becomes of a group follows from events and from rows of that group alone, so that it can be folded
    /// without the others when state is held against its events ([`super::replay`]). [`Folder::settled`] of a row changes rows of its own group, and
    /// [`Folder::fold_with_state`] doesn't fail where the rows of another group are never there, even after it changed them. Nothing: all rows are
    /// one group.
    fn group<'a>(&self, _table: &'static str, _key: &'a Key) -> &'a [Value] {
        &[]
    }
}

/// What a node said, or that it could not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Rows to store.
    Rows(Vec<(&'static str, Row)>),
    /// There is nothing to know: don't ask again.
    Nothing,
    /// The node says that there is no such thing, though rows at or below that block name it. A node that lacks the state of a block may say so, so it is asked about
    /// again before these rows, which say it, are stored.
    Absent(Vec<(&'static str, Row)>),
}

/// Why a node could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskFailure {
    /// It never will be: the thing is given up.
    Final,
    /// It may work later: the node is away, or fails. Where it fails over this alone again and again, the thing is given up.
    Transient,
    /// It was asked too often, or is overloaded as a whole. That says nothing about the thing, and counts against none.
    Busy {
        /// How long it wants to be left alone, where it says so.
        retry_after_ms: Option<u64>,
    },
}

/// A node could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AskError {
    /// Whether it may work later.
    pub failure: AskFailure,
    /// What went wrong.
    pub message: String,
}

impl AskError {
    /// It may work later.
    pub fn transient(message: impl Into<String>) -> AskError {
        AskError { failure: AskFailure::Transient, message: message.into() }
    }

    /// It never will.
    pub fn last(message: impl Into<String>) -> AskError {
        AskError { failure: AskFailure::Final, message: message.into() }
    }

    /// It was asked too often.
    pub fn busy(retry_after_ms: Option<u64>, message: impl Into<String>) -> AskError {
        AskError { failure: AskFailure::Busy { retry_after_ms }, message: message.into() }
    }
}

/// Answers of a node about things that event rows name.
#[async_trait]
pub trait Enricher: Send + Sync {
    /// Its name, version, upstreams and tables (answers or content). Its upstreams write what it reads.
    fn service(&self) -> &'static ServiceInfo;

    /// The tables of events that name what it asks about.
    fn reads(&self) -> &'static [&'static TableDef];

    /// The things that a row of `reads()[table]` names: keys of [`Enricher::known_in`].
    fn wanted(&self, table: usize, row: &Row, wanted: &mut Vec<Key>);

    /// The table whose rows say that a thing is known already.
    fn known_in(&self) -> &'static TableDef;

    /// Whether it asks what a thing was before the first block of the archive that names it: at that block's parent, each thing once, and about none that the
    /// chain's very first block names.
    fn asks_before(&self) -> bool {
        false
    }

    /// After how many heights a thing that is known is asked about again, where a block names it again. `None`: never.
    fn asks_again_after(&self) -> Option<u64> {
        None
    }

    /// The newest block that the node calls final; `None` where it doesn't say. An archive that is not that far yet asks there, since few nodes have the state
    /// of the blocks where it is.
    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        Ok(None)
    }

    /// Asks about one thing as it is at a block. Bounded in time and size by the implementation.
    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError>;

    /// The rows that say that a thing could not be learnt, after the last try.
    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)>;
}

/// A processor of any kind.
#[derive(Clone)]
pub enum Processor {
    /// See [`Mapper`].
    Mapper(Arc<dyn Mapper>),
    /// See [`Folder`].
    Folder(Arc<dyn Folder>),
    /// See [`Enricher`].
    Enricher(Arc<dyn Enricher>),
}

impl Processor {
    /// What it says of itself.
    pub fn service(&self) -> &'static ServiceInfo {
        match self {
            Processor::Mapper(mapper) => mapper.service(),
            Processor::Folder(folder) => folder.service(),
            Processor::Enricher(enricher) => enricher.service(),
        }
    }
}

impl std::fmt::Debug for Processor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Processor").field(&self.service().name).finish()
    }
}
