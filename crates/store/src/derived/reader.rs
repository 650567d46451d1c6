//! Reading derived tables: snapshots, point reads, and index scans.

use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};

use super::fork::{DerivedCheckpoint, ForkState};
use super::lease::{LeaseFilter, LeaseStatus, WorkerLease};
use super::rebuild::Rebuild;
use super::row::{Key, Row};
use super::value::Value;
use crate::{Dump, Result};

/// The most rows that one scan examines.
pub const MAX_SCAN_ROWS: usize = 10_000;

/// One walk along one index.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// The table's name.
    pub table: &'static str,
    /// The index's name; `None` walks the key.
    pub index: Option<&'static str>,
    /// What the first columns of the index equal.
    pub prefix: Vec<Value>,
    /// Where to begin: the lower end by the index's order, over the columns after the prefix or the first few of them. A bound of `n` columns is
    /// compared with the first `n` columns only: `Excluded([5])` leaves out every row with a 5 there.
    pub lower: Bound<Vec<Value>>,
    /// Where to end: the upper end, likewise.
    pub upper: Bound<Vec<Value>>,
    /// From the upper end down.
    pub descending: bool,
    /// Only rows in which these columns have these values; for what no index covers. Rows that don't fit count as examined.
    pub filters: Vec<(&'static str, Value)>,
    /// How many rows to return, at most; at least 1.
    pub limit: usize,
    /// How many rows to examine, at most; capped at [`MAX_SCAN_ROWS`].
    pub examine: usize,
}

impl Scan {
    /// All rows by the key, ascending.
    pub fn new(table: &'static str, limit: usize) -> Scan {
        Scan {
            table,
            index: None,
            prefix: Vec::new(),
            lower: Bound::Unbounded,
            upper: Bound::Unbounded,
            descending: false,
            filters: Vec::new(),
            limit,
            examine: MAX_SCAN_ROWS,
        }
    }
}

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScanPage {
    /// The rows in order.
    pub rows: Vec<Row>,
    /// Where the scan stopped because of a limit, as the values of the index's columns after the prefix, all of them: the place of the last row examined. An
    /// exclusive bound at it goes on. `None`: there is nothing more. (`Some` where nothing follows is allowed.)
    pub more: Option<Vec<Value>>,
}

/// Undo rows of several keys: see [`DerivedSnapshot::undo_rows`].
pub type UndoRows = Vec<Vec<(Height, Option<Row>)>>;

/// A block that a service could not process: see [`super::ChunkCommit::quarantined`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuarantinedBlock {
    /// Where.
    pub height: Height,
    /// The service.
    pub service: String,
}

/// Some of the quarantined blocks, and how many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quarantined {
    /// The lowest, by height and service.
    pub lowest: Vec<QuarantinedBlock>,
    /// How many there are, those that aren't named included.
    pub total: u64,
}

/// Opens snapshots.
#[async_trait]
pub trait DerivedReader: Send + Sync {
    /// A consistent view of the app store as it is now; hold it for one request only. A backend may end it after two seconds, and then
    /// answers [`crate::StoreError::Busy`]. Before [`super::ReorgApplier::adopt`] it is [`crate::StoreError::Invalid`].
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>>;

    /// Where work stands, for whoever looks often. The two parts may be of different moments.
    async fn standing(&self, max_leases: usize) -> Result<Standing> {
        let snapshot = self.snapshot().await?;
        let mut open = Vec::new();
        for status in [LeaseStatus::Active, LeaseStatus::Failed] {
            let filter = LeaseFilter {
                status: Some(status),
                limit: max_leases.saturating_add(1),
                ..LeaseFilter::default()
            };
            open.extend(snapshot.leases(&filter).await?);
        }
        Ok(Standing::new(snapshot.checkpoints().to_vec(), open, max_leases))
    }
}

/// Where the work of all services stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Every service's checkpoint.
    pub checkpoints: Vec<DerivedCheckpoint>,
    /// Leases that aren't completed; some of them where there are more than were asked for.
    pub open: Vec<WorkerLease>,
    /// Whether these are all.
    pub is_whole: bool,
}

impl Standing {
    /// From what was read with this limit.
    pub fn new(checkpoints: Vec<DerivedCheckpoint>, mut open: Vec<WorkerLease>, max_leases: usize) -> Self {
        let is_whole = open.len() <= max_leases;
        open.truncate(max_leases);
        Standing { checkpoints, open, is_whole }
    }
}

/// A consistent view. No row above the checkpoint of the service that writes its table can be seen in it:
///
/// * events (`block_height`) above it are left out.
/// * answers and content are shown whatever the checkpoint: `asked_at_height` is when, not what. Only while a reorg is being applied, an answer
///   that was asked above its common block is read through the undo table: the one that was asked at the highest block below, if there is one.
/// * state is that of the checkpoint: a row whose `last_height` is above it is read through the undo table, and where the undo
///   table says that it did not exist it is left out.
#[async_trait]
pub trait DerivedSnapshot: Send + Sync {
    /// Where it stands in the reorg log.
    fn forks(&self) -> &ForkState;

    /// Every service's checkpoint, by name.
    fn checkpoints(&self) -> &[DerivedCheckpoint];

    /// The checkpoint of one service; `None` for one that was never registered.
    fn checkpoint(&self, service: &str) -> Option<&DerivedCheckpoint> {
        self.checkpoints().iter().find(|checkpoint| checkpoint.service == service)
    }

    /// Every rebuild, by service; one that is over may still be here.
    fn rebuilds(&self) -> &[Rebuild];

    /// The rebuild of a service that has made less than there was before: what it makes must not be shown as if it were whole.
    fn being_rebuilt(&self, service: &str) -> Option<&Rebuild> {
        let rebuild = self.rebuilds().iter().find(|rebuild| rebuild.service == service)?;
        rebuild.goes_on(self.checkpoint(service)).then_some(rebuild)
    }

    /// The rows with these keys, in the same order; `None` where there is none.
    async fn rows(&self, table: &'static str, keys: &[Key]) -> Result<Vec<Option<Row>>>;

    /// The undo rows from a height on of these keys of a table of state, in the same order, each key's ascending: `(height, row before; None where there was none)`.
    /// `None`: they are more than `max_rows`.
    async fn undo_rows(
        &self,
        table: &'static str,
        keys: &[Key],
        from: Height,
        max_rows: usize,
    ) -> Result<Option<UndoRows>>;

    /// Rows along an index. On a table of state or answers, by an index that is ordered by more than the key, it is [`crate::StoreError::NotYet`] while a reorg
    /// is being applied.
    async fn scan(&self, scan: &Scan) -> Result<ScanPage>;

    /// Every event row of `[from, to)`, in chain order as far as the key says it, for folders; stops after the block that makes it
    /// pass `max_bytes` and says at which height to go on: the one after that block, or the end of what could be read, which is `to` or the
    /// checkpoint of the table's service, and never below `from`.
    async fn events(
        &self,
        table: &'static str,
        from: Height,
        to_exclusive: Height,
        max_bytes: usize,
    ) -> Result<(Vec<Row>, Height)>;

    /// The lowest height at or above `from` whose event rows of this service are being made again: where a lease of kind
    /// [`Reindex`](super::lease::LeaseKind::Reindex) that reaches above `from` and isn't completed stands. `None`: no such lease. A folder goes no
    /// further than that, since what it folds from the old rows would stay.
    async fn made_again_from(&self, service: &str, from: Height) -> Result<Option<Height>>;

    /// The blocks of these heights that these services could not process, up to the checkpoint of each: the lowest `limit` of them by height and service, and how
    /// many there are. What these services made is not whole there.
    async fn quarantined(&self, services: &[&str], heights: HeightRange, limit: usize)
    -> Result<Quarantined>;

    /// The highest block at which an answer in this table was asked, a reorg that is being applied or not; `None`: there is no answer. It may lie above
    /// everything that is stored, since a node may be asked there.
    async fn newest_asked(&self, table: &'static str) -> Result<Option<Height>>;

    /// Leases, by number.
    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<WorkerLease>>;

    /// `(table, rows, bytes)` for people; may be estimates.
    async fn sizes(&self) -> Result<Vec<(String, u64, u64)>>;
}

/// A store that can be dumped.
#[async_trait]
pub trait DerivedDump: Send + Sync {
    /// Every row of every table, above the checkpoint too, every checkpoint and every quarantined height; made with [`super::DerivedDumpBuilder`].
    /// Leaves out leases, undo rows, clocks, and tables of answers and of content (law 7). The same rows make the same dump in every backend.
    async fn dump(&self) -> Result<Dump>;
}
