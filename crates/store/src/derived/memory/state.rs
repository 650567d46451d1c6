//! What the memory store holds: plain ordered maps, each behind an [`Arc`] that snapshots share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{Fence, Height};

use crate::derived::fork::{DerivedCheckpoint, ForkMark, ForkState};
use crate::derived::lease::{LeaseKind, LeaseStatus, WorkerLease};
use crate::derived::reader::QuarantinedBlock;
use crate::derived::rebuild::Rebuild;
use crate::derived::row::{Key, Row};
use crate::derived::table::{Catalog, Table};
use crate::derived::value::Value;
use crate::{Result, StoreError};

/// What is known of the raw store's reorg log.
#[derive(Debug, Clone)]
pub(super) struct Forks {
    pub(super) state: ForkState,
    /// The entry at which this store began to follow.
    pub(super) base_id: u64,
    /// Every entry begun since, ascending.
    pub(super) marks: Arc<Vec<ForkMark>>,
}

impl Forks {
    /// The first height that the entry under way takes away.
    pub(super) fn applying(&self) -> Option<Height> {
        if self.state.is_settled() { None } else { self.marks.last().map(|mark| mark.first_orphan) }
    }
}

/// One table's rows, indexes and undo rows.
#[derive(Debug, Clone, Default)]
pub(super) struct TableData {
    pub(super) rows: BTreeMap<Key, Arc<Row>>,
    /// By the number of the index: the values of its columns, which name the key.
    pub(super) indexes: Vec<BTreeSet<Vec<Value>>>,
    /// The row as it was before the block at this height changed it.
    pub(super) undo: BTreeMap<Key, BTreeMap<Height, Option<Arc<Row>>>>,
    pub(super) undo_by_height: BTreeSet<(Height, Key)>,
    /// Below this height finality left no undo rows.
    pub(super) undo_floor: Height,
}

impl TableData {
    pub(super) fn put(&mut self, table: &Table, key: Key, row: Arc<Row>) {
        self.take(table, &key);
        for (index, entries) in table.def().indexes.iter().zip(&mut self.indexes) {
            entries.insert(entry(table, index.name, &row));
        }
        self.rows.insert(key, row);
    }

    pub(super) fn take(&mut self, table: &Table, key: &Key) -> bool {
        let Some(row) = self.rows.remove(key) else { return false };
        for (index, entries) in table.def().indexes.iter().zip(&mut self.indexes) {
            entries.remove(&entry(table, index.name, &row));
        }
        true
    }

    pub(super) fn put_undo(&mut self, key: &Key, height: Height, before: Option<Arc<Row>>) {
        self.undo.entry(key.clone()).or_default().insert(height, before);
        self.undo_by_height.insert((height, key.clone()));
    }

    /// The row as it was before the block at `height`; `None` where no block from there on changed it above finality.
    pub(super) fn before(&self, key: &Key, height: Height) -> Option<&Option<Arc<Row>>> {
        self.undo.get(key)?.range(height..).next().map(|(_, before)| before)
    }

    /// Takes away undo rows of one key in a range of heights; how many.
    pub(super) fn take_undo(&mut self, key: &Key, heights: impl std::ops::RangeBounds<Height>) -> usize {
        let Some(rows) = self.undo.get_mut(key) else { return 0 };
        let doomed: Vec<Height> = rows.range(heights).map(|(height, _)| *height).collect();
        for height in &doomed {
            rows.remove(height);
            self.undo_by_height.remove(&(*height, key.clone()));
        }
        if rows.is_empty() {
            self.undo.remove(key);
        }
        doomed.len()
    }
}

/// A row's values in an index.
fn entry(table: &Table, index: &str, row: &Row) -> Vec<Value> {
    let columns = table.index_columns(Some(index)).unwrap_or_default();
    columns.iter().map(|&at| row.0[at].clone()).collect()
}

/// All rows.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) catalog: Catalog,
    /// In the catalog's order.
    pub(super) tables: Vec<Arc<TableData>>,
    /// By number.
    pub(super) leases: Arc<BTreeMap<u64, WorkerLease>>,
    /// The numbers of each service's leases.
    lease_ids: Arc<BTreeMap<String, BTreeSet<u64>>>,
    /// By service.
    pub(super) checkpoints: Arc<BTreeMap<String, DerivedCheckpoint>>,
    /// By service.
    pub(super) rebuilds: Arc<BTreeMap<String, Rebuild>>,
    /// Blocks that a service could not process.
    pub(super) quarantined: Arc<BTreeSet<QuarantinedBlock>>,
    /// `None` before `adopt`.
    pub(super) forks: Option<Forks>,
    last_fence: u64,
    last_lease: u64,
}

impl State {
    pub(super) fn new(catalog: Catalog) -> State {
        let empty = |table: &Arc<Table>| {
            let indexes = vec![BTreeSet::new(); table.def().indexes.len()];
            Arc::new(TableData { indexes, ..TableData::default() })
        };
        State {
            tables: catalog.tables().iter().map(empty).collect(),
            catalog,
            leases: Arc::default(),
            lease_ids: Arc::default(),
            checkpoints: Arc::default(),
            rebuilds: Arc::default(),
            quarantined: Arc::default(),
            forks: None,
            last_fence: 0,
            last_lease: 0,
        }
    }

    pub(super) fn forks(&self) -> Result<&Forks> {
        self.forks
            .as_ref()
            .ok_or_else(|| StoreError::Invalid("the app store follows no raw store yet; adopt one".into()))
    }

    pub(super) fn place(&self, table: &str) -> Result<usize> {
        self.catalog.table(table)?;
        let place = self.catalog.tables().iter().position(|other| other.name() == table);
        place.ok_or_else(|| StoreError::Invalid(format!("the catalog has no table {table}")))
    }

    /// A table's rows, to be changed; copied only where a snapshot still looks at them.
    pub(super) fn table_mut(&mut self, place: usize) -> &mut TableData {
        Arc::make_mut(&mut self.tables[place])
    }

    /// The places of the tables that a service writes.
    pub(super) fn places_of(&self, service: &str) -> Vec<usize> {
        let tables = self.catalog.tables().iter().enumerate();
        tables.filter(|(_, table)| table.def().service == service).map(|(place, _)| place).collect()
    }

    pub(super) fn newest_fence(&self) -> Fence {
        Fence(self.last_fence)
    }

    pub(super) fn next_fence(&mut self) -> Fence {
        self.last_fence += 1;
        Fence(self.last_fence)
    }

    pub(super) fn next_lease(&mut self) -> u64 {
        self.last_lease += 1;
        self.last_lease
    }

    pub(super) fn put_lease(&mut self, lease: WorkerLease) {
        if !self.leases.contains_key(&lease.id) {
            let ids = Arc::make_mut(&mut self.lease_ids);
            ids.entry(lease.service.clone()).or_default().insert(lease.id);
        }
        Arc::make_mut(&mut self.leases).insert(lease.id, lease);
    }

    pub(super) fn take_lease(&mut self, id: u64) {
        let Some(lease) = Arc::make_mut(&mut self.leases).remove(&id) else { return };
        if let Some(ids) = Arc::make_mut(&mut self.lease_ids).get_mut(&lease.service) {
            ids.remove(&id);
        }
    }

    pub(super) fn put_checkpoint(&mut self, checkpoint: DerivedCheckpoint) {
        Arc::make_mut(&mut self.checkpoints).insert(checkpoint.service.clone(), checkpoint);
    }

    pub(super) fn put_rebuild(&mut self, rebuild: Rebuild) {
        Arc::make_mut(&mut self.rebuilds).insert(rebuild.service.clone(), rebuild);
    }

    /// Forgets the quarantined blocks of which `keep` says no.
    pub(super) fn keep_quarantined(&mut self, keep: impl Fn(&QuarantinedBlock) -> bool) {
        if self.quarantined.iter().any(|block| !keep(block)) {
            Arc::make_mut(&mut self.quarantined).retain(keep);
        }
    }

    pub(super) fn checkpoint(&self, service: &str) -> Result<&DerivedCheckpoint> {
        self.checkpoints.get(service).ok_or_else(|| {
            StoreError::Invalid(format!("service {service} is not registered; register it first"))
        })
    }

    /// A service's leases by number.
    pub(super) fn leases_of(&self, service: &str) -> impl Iterator<Item = &WorkerLease> {
        let ids = self.lease_ids.get(service).into_iter().flatten();
        ids.filter_map(|id| self.leases.get(id))
    }

    /// A service's leases of kind `Index`, by height.
    pub(super) fn index_leases(&self, service: &str) -> Vec<&WorkerLease> {
        let mut leases: Vec<_> =
            self.leases_of(service).filter(|lease| lease.kind == LeaseKind::Index).collect();
        leases.sort_by_key(|lease| lease.range.start());
        leases
    }

    /// Takes a lease from its holder: FAILED, under a new fence, due at `next_try_at_ms`.
    pub(super) fn give_back(&mut self, mut lease: WorkerLease, next_try_at_ms: u64) -> WorkerLease {
        lease.status = LeaseStatus::Failed;
        lease.fence = self.next_fence();
        lease.next_try_at_ms = next_try_at_ms;
        self.put_lease(lease.clone());
        lease
    }
}
