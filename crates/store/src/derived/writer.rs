//! The verbs of the derived side. Each is one transaction.
//!
//! **The gate** is one lock of the app store: shared for commits, claims, reclaims and reaping; exclusive for whoever applies a reorg
//! and for the committer. On PostgreSQL it is a transaction-level advisory lock, taken by the first statement of a READ COMMITTED
//! transaction; a store with a single writer has it by nature.
//!
//! A verb that fails changes nothing. A commit whose answer was lost is settled by reading the lease: `done_to` at or above the
//! chunk's end under one's own fence means that it happened.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, Height, HeightRange};

use super::fork::{DerivedCheckpoint, FoldedAt, ForkState, ReadMark};
use super::lease::{ClaimRequest, LeaseEnd, LeaseGap, WorkerLease};
use super::rebuild::{Rebuild, RebuildRequest};
use super::row::{Key, Row};
use crate::{ReorgEntry, ReorgMark, Result};

/// Rows of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRows {
    /// The table's name.
    pub table: &'static str,
    /// Whole rows. In a table of events a row that is there already, with the same fields, is left as it is (a chunk done
    /// twice); with other fields it is [`crate::StoreError::Corrupt`] and nothing is written. Content that
    /// is there stays. Of answers several of one key may come, asked at several heights; each takes its place among those that are there by the height, and the
    /// highest is the one that is read ([`super::answers`]).
    pub rows: Vec<Row>,
}

/// What a folder did to one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRow {
    /// The row as it is after the chunk; its `last_height` is that of the last block that changed it.
    pub row: Row,
    /// What it was before each block above finality that changed it: `(height, row before; None where there was none)`, ascending.
    pub undo: Vec<(Height, Option<Row>)>,
}

/// State of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRows {
    /// The table's name.
    pub table: &'static str,
    /// One entry a key, no key twice.
    pub rows: Vec<StateRow>,
}

/// A row of state as it is where other events were folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorrectedRow {
    /// Its key.
    pub key: Key,
    /// The row at the folder's checkpoint; `None`: no event makes it any more.
    pub row: Option<Row>,
    /// All its undo rows, ascending, as in [`StateRow::undo`].
    pub undo: Vec<(Height, Option<Row>)>,
}

/// What replaced rows change in the state of a folder that has folded them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    /// The folder's service.
    pub service: String,
    /// The folder's checkpoint in the snapshot that the correction was computed from; `None`: it had none.
    pub stands: Option<DerivedCheckpoint>,
    /// The rows that change, by table; each key once.
    pub tables: Vec<(&'static str, Vec<CorrectedRow>)>,
}

/// A chunk of work, ready to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkCommit {
    /// The heights; begins at the lease's `done_to`, ends in its range.
    pub chunk: HeightRange,
    /// The last block below the chunk, which is the parent of its first block; given for a chunk of only skipped heights too.
    /// `None` only where such a chunk has nothing below it.
    pub parent_id: Option<BlockId>,
    /// The chunk's last block; `None` where it has only skipped heights.
    pub last_id: Option<BlockId>,
    /// What was seen of the reorg log when the chunk was read.
    pub read: ReadMark,
    /// For folders: the app snapshot that rows were read from, and the demand that the service's checkpoint ends where the chunk begins.
    pub folded_at: Option<FoldedAt>,
    /// Event rows, answers and content.
    pub rows: Vec<TableRows>,
    /// State.
    pub states: Vec<StateRows>,
    /// For reindexing: event rows of the chunk in these tables are deleted first.
    pub replaces: Vec<&'static str>,
    /// For reindexing: what the replaced rows change in the state of folders, at most one a folder.
    pub corrections: Vec<Correction>,
    /// Heights of the chunk that are left without rows, or with those of before, since their block could not be processed: holes that are named
    /// ([`super::DerivedSnapshot::quarantined`]) until the heights are made again or a reorg takes them.
    pub quarantined: Vec<Height>,
    /// Undo rows below this height may go: nothing below it is ever undone.
    pub finalized: Height,
    /// The lease is renewed for so long, in milliseconds.
    pub ttl_ms: u64,
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The lease after it.
    pub lease: WorkerLease,
    /// The service's checkpoint after it.
    pub checkpoint: DerivedCheckpoint,
}

/// Committing work.
#[async_trait]
pub trait DerivedWriter: Send + Sync {
    /// Commits a chunk, in one transaction and in this order:
    ///
    /// 1. take the gate, shared;
    /// 2. demand that the lease is ACTIVE under this fence ([`crate::StoreError::Fenced`]), that `done_to` is the chunk's start, and that `last_id` is `parent_id`; a
    ///    lease without `last_id` records it as `first_parent` instead. Anything else is [`crate::StoreError::LeaseMoved`]. A chunk of only skipped heights
    ///    keeps `last_id`, or takes `parent_id` for it; without a `parent_id` it leaves both unset. `done_to` moves to the chunk's end, `last_id` to `last_id`,
    ///    `attempt` to 0; at the range's end the lease is COMPLETED;
    /// 3. refuse with [`crate::StoreError::ForkBelow`] where any entry of the reorg log with an id above `min(R, applied)` (for folders
    ///    also `folded_at`) and up to `max(R, begun)` has its first orphan below the chunk's end, or at or below a height at which an answer in
    ///    it was asked. Entries up to `begun` are taken from this store, newer
    ///    ones from the [`ReadMark`];
    /// 4. write the rows in key order (state that is newer than what comes, by its `last_height`, is damage: [`crate::StoreError::Corrupt`]), and for answers at or above `finalized` what they replace in the undo table; forget quarantined heights of the chunk and remember those of the commit; and move the checkpoint to the chunk's end too where it ends at the chunk's start with
    ///    `parent_id` as its id (or has no id yet).
    ///
    /// A folder's commit also demands that the checkpoint ends at the chunk's start with that id, and has the corrections of
    /// [`ChunkCommit::folded_at`]: [`crate::StoreError::LeaseMoved`] otherwise.
    /// A [`Correction`] demands that the folder's checkpoint is what it was computed from: [`crate::StoreError::LeaseMoved`] otherwise. Its rows
    /// replace those of their keys, undo rows included, and the folder's checkpoint counts one correction more. Undo rows below `finalized` are left out.
    /// A lease of kind `Reindex` never moves the checkpoint, and its chunks end at or below it: [`crate::StoreError::LeaseMoved`] otherwise,
    /// since after a reorg there may be nothing yet to make again. A service that was never registered, or is being reset, commits nothing:
    /// [`crate::StoreError::LeaseMoved`]. The shape is checked before: [`super::rules::CheckedChunk`].
    async fn commit_chunk(&self, lease: &WorkerLease, commit: ChunkCommit) -> Result<Committed>;
}

/// Leases and checkpoints.
#[async_trait]
pub trait Coordinator: Send + Sync {
    /// Makes a service known: a checkpoint that ends at `first`, where it has none. Returns it. [`crate::StoreError::NotYet`] while what it made before is being
    /// deleted ([`DerivedMaintenance::begin_rebuild`]): the last step of that makes it known.
    async fn register(&self, service: &str, first: Height) -> Result<DerivedCheckpoint>;

    /// Claims work (gate: shared). Reclaims first: the lowest lease of any kind that is FAILED, not dead, due, of no newer version; or ACTIVE and expired (which
    /// is reaped first, and counted as [`Coordinator::reap`] does). Else inserts the next range of kind `Index`: it begins where the last one ends, or at `first`, ends
    /// at the next multiple of `range_heights` and not above `stop_exclusive`, and begins below `limit_exclusive`. `None`: nothing to do, or
    /// the service is paused. The new lease has a new fence. A service that is not registered is
    /// [`crate::StoreError::Invalid`]. Of two leases that begin at one height the one with the lower number goes first; expired means that
    /// `expires_at_ms` is not above the clock. The lease remembers whether there was nothing to do for it, by `limit_exclusive`.
    async fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>>;

    /// Lengthens a lease (gate: shared); [`crate::StoreError::Fenced`] where it is another's.
    async fn renew(&self, lease: &WorkerLease, ttl_ms: u64) -> Result<WorkerLease>;

    /// Ends a lease that is not complete: FAILED, under a new fence. [`crate::StoreError::Fenced`] where it is another's.
    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) -> Result<()>;

    /// A lease by number.
    async fn lease(&self, id: u64) -> Result<Option<WorkerLease>>;

    /// Marks up to `limit` expired ACTIVE leases FAILED, each under a new fence, reclaimable at once; adds an attempt where
    /// `done_to` has not moved since the claim and the lease was not claimed to wait. Returns those that it marked.
    async fn reap(&self, limit: usize) -> Result<Vec<WorkerLease>>;

    /// Moves each checkpoint along the unbroken chain of `done_to` of leases of kind `Index` (gate: exclusive): into a lease that begins at
    /// or before the checkpoint's end and reaches beyond it, where the ids agree: at a lease's start the checkpoint's id has to be
    /// its `first_parent` (a checkpoint without an id takes any; an unset one stops there; a different one is an alarm). Inside a
    /// lease the checkpoint got there by that lease itself. Then forgets rebuilds that are over. Returns those that moved, the alarms, and the services that are whole again.
    async fn repair_checkpoints(&self) -> Result<Repairs>;

    /// Gaps between leases of kind `Index` of one service, at most `limit`.
    async fn lease_gaps(&self, limit: usize) -> Result<Vec<LeaseGap>>;

    /// Dead leases, at most `limit`.
    async fn dead_leases(&self, limit: usize) -> Result<Vec<WorkerLease>>;

    /// An operator frees a dead or failed lease: attempt 0, due now. `None`: there is no such lease, or it isn't FAILED.
    async fn retry_lease(&self, id: u64) -> Result<Option<WorkerLease>>;

    /// An operator takes an ACTIVE lease from its holder: FAILED under a new fence, due now. `None`: no such lease, or not ACTIVE.
    async fn release_lease(&self, id: u64) -> Result<Option<WorkerLease>>;

    /// At start, by a process that holds the data directory alone: takes every ACTIVE lease from the process that held it, which is gone. As where one has expired, that is a bad end
    /// where nothing of it was done and something was to be done, so that a range that ends every process is dead in the end; whoever ends in order has given it back before.
    async fn release_all(&self) -> Result<u64>;

    /// At start, by a process that is going to derive, for as long as it holds what this returns. Where no other process derives, it takes every ACTIVE lease as [`Coordinator::release_all`] does. A store that one
    /// process writes to at a time has no others.
    async fn enter(&self) -> Result<Entered> {
        Ok(Entered { released: self.release_all().await?, presence: Arc::new(()) })
    }

    /// Pauses or resumes a service: nothing of it is claimed. No lease is taken away: whoever holds one looks before each chunk, and gives it back.
    async fn set_paused(&self, service: &str, paused: bool) -> Result<()>;

    /// Asks for a range to be made again: leases of kind `Reindex`, FAILED and due, cut at multiples of `range_heights`. Overlap with one that is not
    /// COMPLETED is [`crate::StoreError::Invalid`]; completed ones in the way are deleted. The range has to end at or below the checkpoint.
    async fn request_reindex(
        &self,
        service: &str,
        version: u32,
        range: HeightRange,
        range_heights: u64,
    ) -> Result<u64>;
}

/// A process derives.
#[derive(Clone)]
pub struct Entered {
    /// How many leases it took from processes that are gone.
    pub released: u64,
    /// Others see that it derives until this is dropped, or the process ends.
    pub presence: Arc<dyn Any + Send + Sync>,
}

/// How the checkpoints were repaired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Those that moved, as they are now.
    pub moved: Vec<DerivedCheckpoint>,
    /// Seams where the ids differ: service, height, what is wrong.
    pub alarms: Vec<SeamAlarm>,
    /// Services whose rebuild is over, by name.
    pub rebuilt: Vec<String>,
}

/// Two leases that lie side by side on different forks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeamAlarm {
    /// The service.
    pub service: String,
    /// The height at which the upper lease begins.
    pub at: Height,
    /// The last block of the lower one.
    pub last_id: BlockId,
    /// The parent that the upper one names.
    pub first_parent: BlockId,
}

/// What one step took back of what a service did above its checkpoint: [`DerivedMaintenance::take_back_step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBack {
    /// The heights whose rows go: those of the lease, and those below it that no lease covers.
    pub heights: HeightRange,
    /// How many event rows went in this step.
    pub rows: u64,
    /// Whether the lease is gone too: none of its rows is left.
    pub is_whole: bool,
}

/// How far an entry has been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyProgress {
    /// There are rows left above the common block.
    More,
    /// None is left: [`ReorgApplier::finish_apply`] may follow.
    Done,
}

/// Applying the raw store's reorg log, in order (law 7). Any number of processes may try at once.
///
/// Every verb holds the gate exclusively, locks the row that says what was applied, and demands that it is the entry before:
/// [`crate::StoreError::Applied`] where somebody else was quicker.
#[async_trait]
pub trait ReorgApplier: Send + Sync {
    /// Begins to follow a raw store at its newest entry, where nothing was followed before; else checks that it is the same
    /// store: [`crate::StoreError::OtherRaw`]. Returns where it stands.
    async fn adopt(&self, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<ForkState>;

    /// Where it stands; `None` before [`ReorgApplier::adopt`].
    async fn forks(&self) -> Result<Option<ForkState>>;

    /// Stores `begun` = the entry, with its digest and first orphan; the digest has to follow that of the entry before, else [`crate::StoreError::OtherRaw`].
    /// Deletes leases that begin above the common block; every other one whose `to` lies above the height after it gets a new fence
    /// and is FAILED and due, COMPLETED ones included (a dead one stays dead), attempts unchanged; only where its `done_to` is above that
    /// height do `done_to` and `last_id` become it and the common block's id. Clamps checkpoints to the common block, whose id becomes theirs; one of
    /// a service all of whose leases begin above it goes back to where the lowest began, without an id. Forgets quarantined heights above the
    /// common block, and lowers where rebuilds end. See [`super::rules`].
    /// Begun already: changes nothing.
    async fn begin_apply(&self, entry: &ReorgEntry) -> Result<()>;

    /// Deletes event rows and answers above the common block and restores state and replaced answers from the undo table, whose rows go in the same
    /// transaction; at most about `max_rows` at a call. An answer that has undo rows goes with them, and not before.
    async fn apply_step(&self, entry_id: u64, max_rows: usize) -> Result<ApplyProgress>;

    /// Moves `applied` to the entry; [`crate::StoreError::Invalid`] while rows are left.
    async fn finish_apply(&self, entry_id: u64) -> Result<ForkState>;
}

/// Deleting, for repairs and for a service that begins anew.
#[async_trait]
pub trait DerivedMaintenance: Send + Sync {
    /// Makes partitions for these heights and a lookahead; bounded. A backend without partitions does nothing.
    async fn maintain(&self, tip: Height) -> Result<()>;

    /// Builds indexes that were put off; `final_to` is the height below which nothing is undone. Whether there was something to build.
    /// Of any number of processes one builds, and the others do nothing. Commits and reorgs go on meanwhile. It may take hours, and may be dropped: what is half done is done again. An
    /// index that fails keeps none of the others from being built, and no rows are at stake: whatever the error is, derived work goes on. A backend that puts none off does nothing.
    async fn build_indexes(&self, final_to: Height) -> Result<bool>;

    /// Begins everything of a request, or nothing, in one transaction (gate: exclusive). Ranges again: what [`Coordinator::request_reindex`] does. Services
    /// anew: their checkpoints go, and what they were is kept as a [`Rebuild`]; one whose rows are being deleted already goes on so. A service that is not registered is
    /// [`crate::StoreError::Invalid`], but for one that only asks about what the request makes again ([`super::RangeAgain::is_behind`]). Returns the rebuilds in the order of the request. [`DerivedMaintenance::reset_step`] goes on.
    async fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>>;

    /// Deletes what a service made before its rebuild was begun (gate: exclusive): its rows, undo rows, quarantined heights and leases, in bounded steps, the leases last. The step that leaves
    /// nothing registers it where it begins, in the same transaction, and answers `false`, as does every call for a service of which nothing is to be deleted: it changes
    /// nothing. Anybody may take the steps, at once too, and go on where others ended.
    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool>;

    /// Takes back what a service did above its checkpoint, so that it is done anew (gate: exclusive): of its leases of kind `Index` the lowest that begins at or above `from`, with the event rows and
    /// quarantined heights of its heights, and of those between it and the lease below, which may have been some lost lease's. About `max_rows` rows go at a call, from the top; a lease of which
    /// some are left is nobody's meanwhile ([`super::rules::taken_back`]), and goes with the last of them. Answers and content stay, as where a range of them is asked about again. `None`: no lease
    /// begins there.
    ///
    /// From the lowest up: what is taken back is claimed again only when the last one above it is gone, and what is broken off leaves heights that [`Coordinator::lease_gaps`] names.
    /// A height that is derived already is [`crate::StoreError::Invalid`], and so is a service that folds, which did nothing above its checkpoint.
    async fn take_back_step(&self, service: &str, from: Height, max_rows: usize)
    -> Result<Option<TakenBack>>;

    /// Deletes undo rows below `finalized`, at most `max_rows`; returns how many.
    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64>;

    /// Rows by key that ought not to be: deletes them (for repair).
    async fn delete_rows(&self, table: &'static str, keys: &[Key]) -> Result<u64>;
}
