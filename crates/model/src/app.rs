//! The app store: leases, checkpoints, event rows, state with its undo rows, and the transactions that change them.
//!
//! Each method that changes something is one transaction. **The gate** is one lock: shared for claims, reclaims, reaping
//! and commits, exclusive for appliers and the committer. That a method runs as one step of the model is the gate; the
//! rules [`Rule::CommitInGate`], [`Rule::CommitterInGate`] and [`Rule::ClaimInGate`] tear one in two.
//!
//! A **lease** covers `[from, to)` of one service. Work in it commits in chunks: `done_to` says how far, `last_id` is the
//! last block below `done_to`, `first_parent` the last block below `from`. A **fence** is a number that each acquisition
//! gets anew.

use crate::raw::{Entry, Raw};
use crate::rules::{Off, Rule};
use crate::words::{GENESIS, Height, Id, MAX_TOP, NONE};

/// Services of the model: the mapper and the folder that reads its rows.
pub const SERVICES: usize = 2;
/// The mapper's place.
pub const MAPPER: u8 = 0;
/// The folder's place.
pub const FOLDER: u8 = 1;
/// The most leases that a service has.
pub const MAX_LEASES: usize = 3;
/// A fence that was just given; a state of the model keeps only whose fence is whose (`Model::forget_old_fences`).
pub const NEW_FENCE: u8 = 100;
/// A fence that was just given and is nobody's: [`NEW_FENCE`] is for the worker whose step it is.
const OTHER_FENCE: u8 = NEW_FENCE + 1;

/// Where a lease stands. Expiry, attempts and back-off are left out: a lease can be found expired at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// There is no such lease.
    #[default]
    Absent,
    /// Somebody holds it, or died holding it.
    Active,
    /// To be reclaimed.
    Failed,
    /// Done.
    Completed,
}

/// One lease. Its `from` and `to` follow from its place ([`App::from`], [`App::to`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Where it stands.
    pub status: Status,
    /// The newest fence.
    pub fence: u8,
    /// The end of what was committed.
    pub done_to: Height,
    /// The last block below `done_to`; [`NONE`] before the first commit.
    pub last_id: Id,
    /// The last block below `from`; [`NONE`] before the first commit.
    pub first_parent: Id,
}

/// The end of an unbroken run of complete work: the last height in it, and the last block at or below that height.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checkpoint {
    /// Last height included.
    pub height: Height,
    /// Id of the last block at or below it.
    pub id: Id,
}

/// A folder's row for one key. Heights of one parity touch one key, so there are two keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateRow {
    /// The height that touched it last.
    pub height: Height,
    /// What was folded, in order: one digit to the base 4 a block. A row twice, out of order or of the wrong fork shows.
    pub fold: u16,
}

impl StateRow {
    /// The row after the block `(height, id)`.
    pub fn then(self, height: Height, id: Id) -> StateRow {
        StateRow { height, fold: self.fold * 4 + u16::from(id) }
    }
}

/// What a worker has computed and sends as one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit {
    /// Whose lease.
    pub service: u8,
    /// Which lease.
    pub lease: u8,
    /// The fence that the worker holds.
    pub fence: u8,
    /// Newest reorg id of the raw snapshot (R).
    pub reorg: u8,
    /// `applied` in the app snapshot; a folder's only.
    pub applied: u8,
    /// First height of the chunk.
    pub from: Height,
    /// End of the chunk, exclusive.
    pub to: Height,
    /// The last block below `from`, by the raw snapshot.
    pub parent: Id,
    /// The chunk's block ids by the raw snapshot.
    pub ids: [Id; 2],
    /// The rows to write: a mapper's own, or those that a folder read from the app snapshot and folds.
    pub rows: [Id; 2],
    /// The state rows that a folder read from the app snapshot.
    pub base: [StateRow; 2],
}

impl Commit {
    fn last_id(&self) -> Id {
        self.ids.iter().rev().copied().find(|id| *id != NONE).unwrap_or(self.parent)
    }
}

/// The app store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct App {
    /// The newest entry that was applied to its end.
    pub applied: u8,
    /// The newest entry that was begun.
    pub begun: u8,
    /// Leases by service and place.
    pub leases: [[Lease; MAX_LEASES]; SERVICES],
    /// Checkpoints by service.
    pub checkpoints: [Checkpoint; SERVICES],
    /// The mapper's event rows: how many rows of each block a height has, two bits an id ([`App::count`]).
    pub rows: [u8; MAX_TOP + 1],
    /// The folder's state rows, by key.
    pub state: [StateRow; 2],
    /// The undo table: the row that a height replaced.
    pub undo: [Option<StateRow>; MAX_TOP + 1],
}

impl App {
    /// An app store that knows nothing yet.
    pub fn new() -> App {
        App {
            applied: 0,
            begun: 0,
            leases: Default::default(),
            checkpoints: [Checkpoint { height: 0, id: GENESIS }; SERVICES],
            rows: [0; MAX_TOP + 1],
            state: Default::default(),
            undo: Default::default(),
        }
    }

    /// First height of a lease.
    pub fn from(lease: usize, range: u8) -> Height {
        1 + lease as u8 * range
    }

    /// End of a lease, exclusive.
    pub fn to(lease: usize, range: u8, top: Height) -> Height {
        (Self::from(lease, range) + range).min(top + 1)
    }

    /// The lease's place among its service's, if it is there.
    pub fn lease(&self, service: u8, lease: u8) -> &Lease {
        &self.leases[service as usize][lease as usize]
    }

    /// How many rows of the block `(height, id)` there are; 3 stands for more.
    pub fn count(&self, height: Height, id: Id) -> u8 {
        self.rows[height as usize] >> ((id - 1) * 2) & 3
    }

    /// Which row a reader finds at a height: one of them, if there are several.
    pub fn row(&self, height: Height) -> Id {
        (1..=3).find(|id| self.count(height, *id) > 0).unwrap_or(NONE)
    }

    /// The state of `key` as a reader sees it whose bound is `checkpoint`: a row above it is read through the undo table.
    pub fn read_state(&self, key: usize, checkpoint: Height, off: Off) -> StateRow {
        let row = self.state[key];
        if row.height <= checkpoint || !off.on(Rule::ReadThroughUndo) {
            return row;
        }
        (checkpoint + 1..=MAX_TOP as u8)
            .filter(|h| *h as usize % 2 == key)
            .find_map(|h| self.undo[h as usize])
            .unwrap_or(row)
    }

    /// The next range of a service: the place after its last lease.
    pub fn next_lease(&self, service: u8) -> usize {
        let leases = &self.leases[service as usize];
        (0..MAX_LEASES).rev().find(|k| leases[*k].status != Status::Absent).map_or(0, |k| k + 1)
    }

    /// Inserts a lease under a new fence; refuses where one is there.
    pub fn claim(&mut self, service: u8, lease: u8, range: u8) -> bool {
        let row = &mut self.leases[service as usize][lease as usize];
        if row.status != Status::Absent {
            return false;
        }
        let from = Self::from(lease as usize, range);
        *row = Lease {
            status: Status::Active,
            fence: NEW_FENCE,
            done_to: from,
            last_id: NONE,
            first_parent: NONE,
        };
        true
    }

    /// Takes a FAILED lease over under a new fence.
    pub fn reclaim(&mut self, service: u8, lease: u8, off: Off) -> bool {
        let row = &mut self.leases[service as usize][lease as usize];
        if row.status != Status::Failed {
            return false;
        }
        row.status = Status::Active;
        if off.on(Rule::ReclaimFence) {
            row.fence = NEW_FENCE;
        }
        true
    }

    /// Finds a lease expired, rightly or not: the holder may be dead, slow, or behind a network that is. Whatever it still sends has an old fence from here on.
    pub fn reap(&mut self, service: u8, lease: u8, off: Off) -> bool {
        let row = &mut self.leases[service as usize][lease as usize];
        let active = row.status == Status::Active;
        if active {
            row.status = Status::Failed;
            if off.on(Rule::ReapFence) {
                row.fence = OTHER_FENCE;
            }
        }
        active
    }

    /// Whether a commit passes: steps 2 and 3, and what a folder's commit demands besides.
    pub fn admits(&self, commit: &Commit, raw: &Raw, off: Off) -> bool {
        let lease = self.lease(commit.service, commit.lease);
        // Step 2. An update of a lease that is gone changes no row.
        if lease.status == Status::Absent
            || (off.on(Rule::CommitActive) && lease.status != Status::Active)
            || (off.on(Rule::CommitFence) && lease.fence != commit.fence)
            || (off.on(Rule::CommitDoneTo) && lease.done_to != commit.from)
            || (off.on(Rule::CommitLastId) && lease.last_id != NONE && lease.last_id != commit.parent)
        {
            return false;
        }
        // Step 3. Entries up to `begun` are known to the app store, newer ones to the raw snapshot; the log never changes, so one place serves both here.
        let mut lower = commit.reorg;
        if commit.service == FOLDER && off.on(Rule::FolderLowerBound) {
            lower = lower.min(commit.applied);
        }
        if commit.service == MAPPER && off.on(Rule::LowerBoundApplied) {
            lower = lower.min(self.applied);
        }
        let upper = if off.on(Rule::UpperBoundBegun) { commit.reorg.max(self.begun) } else { commit.reorg };
        for id in lower + 1..=upper {
            let entry = raw.entry(id);
            let first = if off.on(Rule::BoundIsCommonBlock) { entry.common + 1 } else { entry.first_orphan };
            if first < commit.to {
                return false;
            }
        }
        let checkpoint = self.checkpoints[commit.service as usize];
        commit.service != FOLDER || !off.on(Rule::FolderContiguous) || checkpoint.height + 1 == commit.from
    }

    /// Writes a commit that passed: the lease of step 2, and step 4.
    pub fn write(&mut self, commit: &Commit, to: Height, off: Off) {
        let blocks = (commit.from..commit.to).zip(commit.rows).filter(|(_, id)| *id != NONE);
        for (height, id) in blocks {
            if commit.service == MAPPER {
                let shift = (id - 1) * 2;
                let count = (self.rows[height as usize] >> shift & 3).saturating_add(1).min(3);
                self.rows[height as usize] = self.rows[height as usize] & !(3 << shift) | count << shift;
            }
        }
        if commit.service == FOLDER {
            self.fold(commit);
        }
        let checkpoint = &mut self.checkpoints[commit.service as usize];
        let linked = checkpoint.id == commit.parent || !off.on(Rule::CheckpointIds);
        let follows = checkpoint.height + 1 == commit.from && linked;
        if follows || (!off.on(Rule::CheckpointContiguous) && checkpoint.height + 1 < commit.to) {
            *checkpoint = Checkpoint { height: commit.to - 1, id: commit.last_id() };
        }
        let lease = &mut self.leases[commit.service as usize][commit.lease as usize];
        if lease.status == Status::Absent {
            return; // Only a commit outside the gate can find its lease gone here.
        }
        lease.done_to = commit.to;
        if off.on(Rule::SkippedRecordsParent) || commit.ids != [NONE; 2] {
            if lease.first_parent == NONE {
                lease.first_parent = commit.parent;
            }
            lease.last_id = commit.last_id();
        }
        if lease.done_to == to {
            lease.status = Status::Completed;
        }
    }

    /// A folder's rows: the state that it computed from its snapshot, and for each height the row that was replaced.
    fn fold(&mut self, commit: &Commit) {
        let mut state = commit.base;
        for (height, id) in (commit.from..commit.to).zip(commit.rows).filter(|(_, id)| *id != NONE) {
            let key = height as usize % 2;
            self.undo[height as usize] = Some(state[key]);
            state[key] = state[key].then(height, id);
            self.state[key] = state[key];
        }
    }

    /// What each of an applier's transactions demands.
    pub fn may_apply(&self, id: u8, demand: Rule, off: Off) -> bool {
        self.applied == id - 1 || !off.on(demand)
    }

    /// The first transaction of an entry: stores `begun`, and takes leases and checkpoints back to the common block. Running it twice changes nothing but fences.
    pub fn begin(&mut self, id: u8, entry: Entry, range: u8, top: Height, off: Off) {
        self.begun = id;
        let above = entry.common + 1;
        for service in 0..SERVICES {
            for place in 0..MAX_LEASES {
                let lease = &mut self.leases[service][place];
                if lease.status == Status::Absent {
                    continue;
                }
                if Self::from(place, range) >= above {
                    if off.on(Rule::DeleteLeases) {
                        *lease = Lease::default();
                    }
                    continue;
                }
                let reaches = if off.on(Rule::ReopenOnlyAbove) { above } else { entry.common };
                if Self::to(place, range, top) <= reaches {
                    continue;
                }
                if off.on(Rule::Refence) {
                    lease.fence = OTHER_FENCE;
                }
                if off.on(Rule::Reopen) || lease.status == Status::Active {
                    lease.status = Status::Failed;
                }
                if lease.done_to > above && off.on(Rule::LowerDoneTo) {
                    lease.done_to = above;
                    if off.on(Rule::LowerLastId) {
                        lease.last_id = entry.common_id;
                    }
                }
            }
            let checkpoint = &mut self.checkpoints[service];
            if checkpoint.height > entry.common && off.on(Rule::Clamp) {
                *checkpoint = Checkpoint { height: entry.common, id: entry.common_id };
            }
        }
    }

    /// One bounded step of deleting event rows above the common block, from the top. Returns whether more are left.
    pub fn delete_step(&mut self, entry: Entry) -> bool {
        let above = entry.common as usize + 1;
        if let Some(height) = (above..=MAX_TOP).rev().find(|h| self.rows[*h] != 0) {
            self.rows[height] = 0;
        }
        self.rows[above..].iter().any(|rows| *rows != 0)
    }

    /// The newest undo row above the common block.
    pub fn newest_undo(&self, entry: Entry) -> Option<(Height, StateRow)> {
        (entry.common + 1..=MAX_TOP as u8).rev().find_map(|h| self.undo[h as usize].map(|row| (h, row)))
    }

    /// One bounded step of restoring state, the newest first; the undo row goes in the same transaction. Returns whether more are left.
    pub fn restore_step(&mut self, entry: Entry) -> bool {
        if let Some((height, row)) = self.newest_undo(entry) {
            self.state[height as usize % 2] = row;
            self.undo[height as usize] = None;
        }
        self.newest_undo(entry).is_some()
    }

    /// Where the committer would put a service's checkpoint: along the unbroken chain of `done_to`, over the border of two leases only where the ids fit.
    pub fn repaired(&self, service: u8, range: u8, top: Height, off: Off) -> Checkpoint {
        let mut at = self.checkpoints[service as usize];
        for (place, lease) in self.leases[service as usize].iter().enumerate() {
            let (from, to) = (Self::from(place, range), Self::to(place, range, top));
            let next = at.height + 1;
            if lease.status == Status::Absent || next < from || next >= to || lease.done_to <= next {
                continue;
            }
            let unknown = lease.last_id == NONE || lease.first_parent == NONE;
            if next == from && (unknown || lease.first_parent != at.id) && off.on(Rule::CrossByFirstParent) {
                break;
            }
            at = Checkpoint { height: lease.done_to - 1, id: lease.last_id };
        }
        at
    }
}

impl Default for App {
    fn default() -> Self {
        App::new()
    }
}
