//! The rules of the protocol as pure functions: what a commit, a reorg or a repair makes of a lease and a checkpoint.
//!
//! A backend reads the rows under its locks, asks here, and writes what it is told. One that says a rule in SQL instead is held to the
//! same answers by the conformance suite.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{BlockId, BlockRef, Fence, Height, HeightRange};

use super::fork::{DerivedCheckpoint, FoldedAt, ForkMark, ForkState};
use super::lease::{ClaimRequest, LeaseKind, LeaseStatus, MAX_ATTEMPTS, MAX_ERROR_BYTES, WorkerLease};
use super::row::{Key, Row};
use super::table::{Catalog, Table, TableClass, TableDef};
use super::writer::{ChunkCommit, CorrectedRow, SeamAlarm, StateRow};
use crate::{ReorgEntry, ReorgMark, Result, StoreError};

/// Rows of one table, each key once.
#[derive(Debug)]
pub struct CheckedRows {
    /// The table.
    pub table: Arc<Table>,
    /// Its rows in the order of their keys.
    pub rows: BTreeMap<Key, Row>,
}

/// Answers of one table: of each key one for each block that was asked at.
#[derive(Debug)]
pub struct CheckedAnswers {
    /// The table.
    pub table: Arc<Table>,
    /// Its rows by key and height.
    pub rows: BTreeMap<Key, BTreeMap<Height, Row>>,
}

/// State of one table, each key once.
#[derive(Debug)]
pub struct CheckedStates {
    /// The table.
    pub table: Arc<Table>,
    /// Its rows in the order of their keys.
    pub rows: BTreeMap<Key, StateRow>,
}

/// A correction of a folder's state.
#[derive(Debug)]
pub struct CheckedCorrection {
    /// The folder's service.
    pub service: String,
    /// The folder's checkpoint that it was computed from.
    pub stands: Option<DerivedCheckpoint>,
    /// Tables of state with their rows in the order of their keys.
    pub tables: Vec<(Arc<Table>, BTreeMap<Key, CorrectedRow>)>,
}

/// The rows of a commit whose shape is right, in the order in which they are written.
#[derive(Debug)]
pub struct CheckedChunk {
    /// Events and content, by the catalog's order.
    pub rows: Vec<CheckedRows>,
    /// Answers, by the catalog's order.
    pub answers: Vec<CheckedAnswers>,
    /// State, by the catalog's order.
    pub states: Vec<CheckedStates>,
    /// Tables of events whose rows of the chunk go first.
    pub replaces: Vec<Arc<Table>>,
    /// Corrections of state, by service.
    pub corrections: Vec<CheckedCorrection>,
    /// What step 3 compares with: the chunk's end, or the height above the highest block that a node was asked at.
    pub reaches: Height,
}

impl CheckedChunk {
    /// Checks a commit before anything is locked: [`StoreError::Invalid`] for one that makes no sense, and
    /// [`StoreError::Corrupt`] for two event rows of one key with different fields. Rows that come twice are one (P01); of answers with one key
    /// and height the last counts, of content the first.
    pub fn new(catalog: &Catalog, lease: &WorkerLease, commit: &ChunkCommit) -> Result<CheckedChunk> {
        let invalid = |what: String| {
            Err(StoreError::Invalid(format!("commit of {} by {}: {what}", commit.chunk, lease.service)))
        };
        if commit.chunk.is_empty() {
            return invalid("the chunk is empty".into());
        }
        if commit.last_id.is_some() && commit.parent_id.is_none() {
            return invalid("a chunk with a block names the block below it".into());
        }
        if commit.folded_at.is_none() && !commit.states.is_empty() {
            return invalid("state without the mark of the app snapshot that it was folded from".into());
        }
        if commit.folded_at.is_some() && lease.kind != LeaseKind::Index {
            return invalid("folders can't make a range again: reset them".into());
        }
        if let Some(height) = commit.quarantined.iter().find(|height| !commit.chunk.contains(**height)) {
            return invalid(format!("height {height}, which is to be quarantined, lies outside of it"));
        }
        let table = |name: &str| {
            let table = catalog.table(name)?;
            if table.def().service == lease.service {
                return Ok(table.clone());
            }
            Err(StoreError::Invalid(format!(
                "table {name} is written by {}, not by {}",
                table.def().service,
                lease.service
            )))
        };
        let mut rows: BTreeMap<usize, CheckedRows> = BTreeMap::new();
        let mut answers: BTreeMap<usize, CheckedAnswers> = BTreeMap::new();
        let mut reaches = commit.chunk.end();
        for part in &commit.rows {
            let table = table(part.table)?;
            let place = place(catalog, &table);
            for row in &part.rows {
                let Some(height) = check_row(&table, row, commit.chunk)? else {
                    let empty = || CheckedRows { table: table.clone(), rows: BTreeMap::new() };
                    add_row(rows.entry(place).or_insert_with(empty), row)?;
                    continue;
                };
                reaches = reaches.max(height.next());
                let empty = || CheckedAnswers { table: table.clone(), rows: BTreeMap::new() };
                let checked = answers.entry(place).or_insert_with(empty);
                checked.rows.entry(table.key_of(row)).or_default().insert(height, row.clone());
            }
        }
        let mut states: BTreeMap<usize, CheckedStates> = BTreeMap::new();
        for part in &commit.states {
            let table = table(part.table)?;
            let place = place(catalog, &table);
            let checked =
                states.entry(place).or_insert_with(|| CheckedStates { table, rows: BTreeMap::new() });
            for state in &part.rows {
                let key = check_state(&checked.table, state, commit)?;
                if checked.rows.insert(key, state.clone()).is_some() {
                    return invalid(format!("two states of one key in table {}", part.table));
                }
            }
        }
        let replaces = commit.replaces.iter().map(|name| table(name)).collect::<Result<Vec<_>>>()?;
        if let Some(table) = replaces.iter().find(|table| !is_events(table)) {
            return invalid(format!("only event rows are replaced, and {} has none", table.name()));
        }
        Ok(CheckedChunk {
            rows: rows.into_values().collect(),
            answers: answers.into_values().collect(),
            states: states.into_values().collect(),
            replaces,
            corrections: check_corrections(catalog, lease, commit)?,
            reaches,
        })
    }
}

fn place(catalog: &Catalog, table: &Table) -> usize {
    catalog.tables().iter().position(|other| other.name() == table.name()).unwrap_or(usize::MAX)
}

fn is_events(table: &Table) -> bool {
    matches!(table.def().class, TableClass::Events { .. })
}

/// Checks a row that is no state; the height at which a node was asked for it.
fn check_row(table: &Table, row: &Row, chunk: HeightRange) -> Result<Option<Height>> {
    table.check(row)?;
    let height = table.height_column().and_then(|at| row.0[at].as_height());
    let wrong = |what: &str| Err(StoreError::Invalid(format!("table {}: {what}", table.name())));
    match table.def().class {
        TableClass::State => wrong("state is committed as state"),
        TableClass::Content => Ok(None),
        TableClass::Events { .. } if height.is_some_and(|height| chunk.contains(height)) => Ok(None),
        TableClass::Events { .. } => wrong(&format!("a row outside of the chunk {chunk}")),
        TableClass::Answers if height.is_some() => Ok(height),
        TableClass::Answers => wrong("a row that doesn't say at which height it was asked"),
    }
}

fn add_row(checked: &mut CheckedRows, row: &Row) -> Result<()> {
    let key = checked.table.key_of(row);
    match (checked.table.def().class, checked.rows.get(&key)) {
        (TableClass::Content, Some(_)) => {}
        (TableClass::Events { .. }, Some(other)) if other != row => {
            return Err(other_fields(&checked.table, &key));
        }
        _ => drop(checked.rows.insert(key, row.clone())),
    }
    Ok(())
}

fn check_state(table: &Table, state: &StateRow, commit: &ChunkCommit) -> Result<Key> {
    let wrong = |what: &str| Err(StoreError::Invalid(format!("table {}: {what}", table.name())));
    if table.def().class != TableClass::State {
        return wrong("only state is committed as state");
    }
    table.check(&state.row)?;
    let key = table.key_of(&state.row);
    let last_height = table.height_column().and_then(|at| state.row.0[at].as_height());
    let Some(last_height) = last_height.filter(|height| commit.chunk.contains(*height)) else {
        return wrong(&format!("last_height lies outside of the chunk {}", commit.chunk));
    };
    let mut above: Option<Height> = None;
    for (height, before) in &state.undo {
        if !commit.chunk.contains(*height) || above.is_some_and(|below| below >= *height) {
            return wrong("undo rows ascend inside of the chunk");
        }
        above = Some(*height);
        if let Some(before) = before {
            table.check(before)?;
            if table.key_of(before) != key {
                return wrong("an undo row of another key");
            }
        }
    }
    if last_height > commit.finalized && above != Some(last_height) {
        return wrong("a row that was changed above finality has an undo row of its last change");
    }
    Ok(key)
}

/// Corrections by service, each table's rows in the order of their keys.
fn check_corrections(
    catalog: &Catalog,
    lease: &WorkerLease,
    commit: &ChunkCommit,
) -> Result<Vec<CheckedCorrection>> {
    let wrong = |what: String| {
        Err(StoreError::Invalid(format!("correction by {} of {}: {what}", lease.service, commit.chunk)))
    };
    if !commit.corrections.is_empty() && !lease.corrects_state {
        return wrong(format!("lease {} corrects no state", lease.id));
    }
    let mut checked: BTreeMap<&str, CheckedCorrection> = BTreeMap::new();
    for correction in &commit.corrections {
        let service = &correction.service;
        let mut tables: BTreeMap<usize, (Arc<Table>, BTreeMap<Key, CorrectedRow>)> = BTreeMap::new();
        for (name, rows) in &correction.tables {
            let table = catalog.table(name)?;
            if table.def().class != TableClass::State || table.def().service != *service {
                return wrong(format!("table {name} is no state of {service}"));
            }
            let of_table = tables.entry(place(catalog, table)).or_insert((table.clone(), BTreeMap::new()));
            for row in rows {
                let all = row.undo.iter().filter_map(|(_, before)| before.as_ref()).chain(&row.row);
                for of_key in all {
                    table.check(of_key)?;
                    if table.key_of(of_key) != row.key {
                        return wrong(format!("a row of another key in table {name}"));
                    }
                }
                if !row.undo.is_sorted_by(|one, next| one.0 < next.0) {
                    return wrong(format!("undo rows of table {name} that don't ascend"));
                }
                if of_table.1.insert(row.key.clone(), row.clone()).is_some() {
                    return wrong(format!("two rows of one key in table {name}"));
                }
            }
        }
        if correction.stands.is_none() && !tables.is_empty() {
            return wrong(format!("{service} has no state"));
        }
        let tables = tables.into_values().collect();
        let stands = correction.stands.clone();
        let of_service = CheckedCorrection { service: service.clone(), stands, tables };
        if checked.insert(service, of_service).is_some() {
            return wrong(format!("two of {service}"));
        }
    }
    Ok(checked.into_values().collect())
}

/// The folder's checkpoint after a correction; `None`: it has none, and has nothing to correct. Where it isn't what the correction was computed from, the
/// folder went on, began anew, or was corrected meanwhile: [`StoreError::LeaseMoved`].
pub fn correct_checkpoint(
    correction: &CheckedCorrection,
    current: Option<&DerivedCheckpoint>,
    commit: &ChunkCommit,
) -> Result<Option<DerivedCheckpoint>> {
    let place =
        |checkpoint: &DerivedCheckpoint| (checkpoint.next, checkpoint.last_id, checkpoint.corrections);
    if current.map(place) != correction.stands.as_ref().map(place) {
        return Err(StoreError::LeaseMoved {
            what: format!("the state of {}, which is to be corrected,", correction.service),
            expected: commit.chunk.start(),
        });
    }
    Ok(current.map(|current| DerivedCheckpoint { corrections: current.corrections + 1, ..current.clone() }))
}

/// A key for people.
pub(super) fn key_text(key: &Key) -> String {
    key.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// An event row that is there already with other fields: nothing on one fork can make it, so something is damaged.
pub fn other_fields(table: &Table, key: &Key) -> StoreError {
    StoreError::Corrupt {
        place: format!("table {}, key {}", table.name(), key_text(key)),
        what: "the row is there already, with other fields".into(),
    }
}

/// State of which some rows are newer than a commit's, by its chunk: a folder goes forward only, so something is damaged.
pub fn newer_state(table: &Table, rows: usize, chunk: HeightRange) -> StoreError {
    StoreError::Corrupt {
        place: format!("table {}", table.name()),
        what: format!(
            "{rows} rows are newer than what chunk {chunk} makes of them: the height guard refused it"
        ),
    }
}

/// Demands that a lease is ACTIVE under this fence. `current` is `None` where it is gone, since a reorg took its heights.
pub fn demand_holder<'a>(
    current: Option<&'a WorkerLease>,
    held: &WorkerLease,
    newest: Fence,
) -> Result<&'a WorkerLease> {
    let what = || format!("lease {} of {} on {}", held.id, held.service, held.range);
    match current {
        None => Err(StoreError::Fenced { what: what(), held: held.fence, current: newest }),
        Some(lease) if lease.fence != held.fence || lease.status != LeaseStatus::Active => {
            Err(StoreError::Fenced { what: what(), held: held.fence, current: lease.fence })
        }
        Some(lease) => Ok(lease),
    }
}

/// Step 2 of a commit: the lease after it. The holder has been checked.
pub fn advance_lease(current: &WorkerLease, commit: &ChunkCommit, now_ms: u64) -> Result<WorkerLease> {
    let chunk = commit.chunk;
    let moved = |stands: String| StoreError::LeaseMoved {
        what: format!("lease {} of {}, which stands {stands},", current.id, current.service),
        expected: chunk.start(),
    };
    if chunk.start() != current.done_to {
        return Err(moved(format!("at height {}", current.done_to)));
    }
    if chunk.end() > current.range.end() {
        return Err(StoreError::Invalid(format!(
            "chunk {chunk} goes beyond lease {} on {}",
            current.id, current.range
        )));
    }
    if let (Some(last), Some(parent)) = (current.last_id, commit.parent_id)
        && last != parent
    {
        return Err(moved(format!("on block {last}, not on {parent}")));
    }
    let mut lease = current.clone();
    if lease.last_id.is_none() {
        lease.first_parent = commit.parent_id;
    }
    lease.last_id = commit.last_id.or(current.last_id).or(commit.parent_id);
    lease.done_to = chunk.end();
    lease.attempt = 0;
    lease.last_error.clear();
    lease.expires_at_ms = now_ms.saturating_add(commit.ttl_ms);
    if lease.done_to == lease.range.end() {
        lease.status = LeaseStatus::Completed;
    }
    Ok(lease)
}

/// The checkpoint after a commit, where it moves; `before` is the lease as it was. A folder's that can't move is
/// [`StoreError::LeaseMoved`], and so is a range that is made again above the checkpoint.
pub fn advance_checkpoint(
    checkpoint: &DerivedCheckpoint,
    before: &WorkerLease,
    commit: &ChunkCommit,
    now_ms: u64,
) -> Result<Option<DerivedCheckpoint>> {
    let elsewhere = || StoreError::LeaseMoved {
        what: format!("the checkpoint of {}, which ends at height {},", checkpoint.service, checkpoint.next),
        expected: commit.chunk.start(),
    };
    if before.kind == LeaseKind::Reindex {
        // After a reorg there may be nothing yet to make again.
        return if commit.chunk.end() <= checkpoint.next { Ok(None) } else { Err(elsewhere()) };
    }
    let parent = commit.parent_id.or(before.last_id);
    let is_on_fork = checkpoint.last_id.is_none() || checkpoint.last_id == parent;
    let is_corrected = commit.folded_at.is_some_and(|read| read.corrections != checkpoint.corrections);
    if checkpoint.next == commit.chunk.start() && is_on_fork && !is_corrected {
        return Ok(Some(DerivedCheckpoint {
            next: commit.chunk.end(),
            last_id: commit.last_id.or(checkpoint.last_id).or(parent),
            updated_at_ms: now_ms,
            ..checkpoint.clone()
        }));
    }
    if commit.folded_at.is_none() {
        return Ok(None);
    }
    if is_corrected {
        return Err(StoreError::LeaseMoved {
            what: format!("the state of {}, which was corrected meanwhile,", checkpoint.service),
            expected: commit.chunk.start(),
        });
    }
    Err(elsewhere())
}

/// The newest entry of the reorg log that everything of a commit was read after.
pub fn lowest_known(commit: &ChunkCommit) -> u64 {
    commit.folded_at.map_or(u64::MAX, |FoldedAt { applied, .. }| applied).min(commit.read.reorg_id)
}

/// Step 3 of a commit. `known` are the entries that this store has begun, ascending, from the one after `base_id`, at which it began to follow.
/// `reaches` is [`CheckedChunk::reaches`].
pub fn demand_fork(
    forks: &ForkState,
    base_id: u64,
    known: &[ForkMark],
    commit: &ChunkCommit,
    reaches: Height,
) -> Result<()> {
    let read = &commit.read;
    let lower = lowest_known(commit).min(forks.applied.id);
    let refuse = |mark: &ForkMark| StoreError::ForkBelow {
        chunk_end: reaches,
        reorg_id: mark.id,
        first_orphan: mark.first_orphan,
    };
    if lower < base_id {
        // What happened before this store began to follow is unknown here.
        return Err(refuse(&ForkMark { id: base_id, first_orphan: Height::ZERO }));
    }
    let newer = read.newer.iter().filter(|mark| mark.id > forks.begun.id && mark.id <= read.reorg_id);
    let mut expected = forks.begun.id;
    for mark in newer.clone() {
        expected += 1;
        if mark.id != expected {
            break;
        }
    }
    if expected < read.reorg_id {
        return Err(StoreError::Invalid(format!(
            "the chunk was read at reorg {}, and nothing is said of reorg {}",
            read.reorg_id,
            forks.begun.id + 1
        )));
    }
    let begun = known.iter().filter(|mark| mark.id > lower && mark.id <= forks.begun.id);
    match begun.chain(newer).find(|mark| mark.first_orphan < reaches) {
        Some(mark) => Err(refuse(mark)),
        None => Ok(()),
    }
}

/// What a reorg makes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseFate {
    /// It ends at or below the height after the common block.
    Keep,
    /// It begins above the common block.
    Delete,
    /// FAILED and due under a new fence, and it stands here.
    Reopen {
        /// Its `done_to`.
        done_to: Height,
        /// Its `last_id`.
        last_id: Option<BlockId>,
    },
}

/// What a reorg makes of a lease of any kind and status.
pub fn fate(lease: &WorkerLease, common: BlockRef) -> LeaseFate {
    let above = common.height.next();
    if lease.range.start() >= above {
        return LeaseFate::Delete;
    }
    if lease.range.end() <= above {
        return LeaseFate::Keep;
    }
    if lease.done_to > above {
        LeaseFate::Reopen { done_to: above, last_id: Some(common.id) }
    } else {
        LeaseFate::Reopen { done_to: lease.done_to, last_id: lease.last_id }
    }
}

/// What [`super::Coordinator::register`] answers while a service's rows of before are being deleted.
pub fn still_clearing(service: &str) -> StoreError {
    StoreError::NotYet { what: format!("service {service}, whose former rows are still being deleted,") }
}

/// The checkpoint after a reorg, where it is clamped. `lowest` is where the service's lowest lease of kind `Index` began before the
/// reorg deleted any: a checkpoint never goes below it, and there it has no id, since nothing of the service is left.
pub fn clamp(
    checkpoint: &DerivedCheckpoint,
    lowest: Option<Height>,
    common: BlockRef,
    now_ms: u64,
) -> Option<DerivedCheckpoint> {
    let above = common.height.next();
    // Without a lease nothing was done: the checkpoint stands at its start.
    let lowest = lowest?;
    if checkpoint.next <= above || checkpoint.next <= lowest {
        return None;
    }
    let (next, last_id) = if lowest > common.height { (lowest, None) } else { (above, Some(common.id)) };
    Some(DerivedCheckpoint { next, last_id, updated_at_ms: now_ms, ..checkpoint.clone() })
}

/// Whether a checkpoint goes on into a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Crossing {
    /// To here.
    To {
        /// The height after the last complete one.
        next: Height,
        /// The last complete block.
        last_id: Option<BlockId>,
    },
    /// The lease doesn't reach beyond it, or doesn't say on which block it stands.
    Stays,
    /// The lease stands on another fork.
    Alarm(SeamAlarm),
}

/// Whether a checkpoint goes on into a lease of kind `Index` of its service that begins at or before its end.
pub fn cross(checkpoint: &DerivedCheckpoint, lease: &WorkerLease) -> Crossing {
    if lease.range.start() > checkpoint.next || lease.done_to <= checkpoint.next {
        return Crossing::Stays;
    }
    if lease.range.start() == checkpoint.next {
        match (lease.first_parent, checkpoint.last_id) {
            (None, _) => return Crossing::Stays,
            (Some(first_parent), Some(last_id)) if first_parent != last_id => {
                return Crossing::Alarm(SeamAlarm {
                    service: checkpoint.service.clone(),
                    at: checkpoint.next,
                    last_id,
                    first_parent,
                });
            }
            _ => {}
        }
    }
    Crossing::To { next: lease.done_to, last_id: lease.last_id.or(checkpoint.last_id) }
}

/// The heights of a new lease of kind `Index`; `above` is where the service's last one ends.
pub fn next_range(above: Option<Height>, request: &ClaimRequest) -> Result<Option<HeightRange>> {
    if request.range_heights == 0 {
        return Err(StoreError::Invalid("claim: range_heights is 0; no range would hold a height".into()));
    }
    let start = above.unwrap_or(request.first);
    if start >= request.limit_exclusive {
        return Ok(None);
    }
    let end = next_multiple(start, request.range_heights);
    let range = HeightRange::new(start, request.stop_exclusive.map_or(end, |stop| end.min(stop)));
    Ok(Some(range).filter(|range| !range.is_empty()))
}

/// The next multiple of `heights` above `start`.
pub fn next_multiple(start: Height, heights: u64) -> Height {
    Height((start.get() / heights + 1).saturating_mul(heights))
}

/// `attempt` after a bad end: counted only where `done_to` has not moved since the claim.
pub fn attempt_after_bad_end(lease: &WorkerLease) -> u32 {
    let has_moved = lease.done_to > lease.claimed_done_to;
    if has_moved { lease.attempt } else { lease.attempt.saturating_add(1) }
}

/// Whether there is nothing to do for a lease when it is claimed, up to where its service may work. What is made again lies below the checkpoint, wherever the service stops now.
pub fn is_to_wait(lease: &WorkerLease, request: &ClaimRequest) -> bool {
    lease.kind == LeaseKind::Index && lease.done_to >= request.limit_exclusive
}

/// A lease whose holder is gone, as it is found: what is left to its finder is to take it. One that was claimed to wait isn't charged: were it what ends the process, once there
/// is something to do, the next claim finds that there is.
pub fn left_behind(mut lease: WorkerLease, how: &str) -> WorkerLease {
    if !lease.claimed_to_wait {
        lease.attempt = attempt_after_bad_end(&lease);
    }
    lease.last_error = shortened(&format!("{} {how}", lease.owner), MAX_ERROR_BYTES);
    lease
}

/// What [`super::DerivedMaintenance::take_back_step`] demands before it looks for a lease; `defs` are the store's tables.
pub fn demand_take_back<'a>(
    defs: impl IntoIterator<Item = &'a TableDef>,
    checkpoint: &DerivedCheckpoint,
    from: Height,
    max_rows: usize,
) -> Result<()> {
    let service = &checkpoint.service;
    let invalid = |what: String| Err(StoreError::Invalid(what));
    if max_rows == 0 {
        return invalid("take_back_step: max_rows is 0; nothing would ever be deleted".into());
    }
    if defs.into_iter().any(|def| def.service == service && def.class == TableClass::State) {
        return invalid(format!("{service} folds, and has nothing above its checkpoint; let it begin anew"));
    }
    if from < checkpoint.next {
        return invalid(format!(
            "{service} has derived everything below height {}: heights from there on can be taken back, those below be made again by a reindex",
            checkpoint.next
        ));
    }
    Ok(())
}

/// A lease of which some rows are deleted already: nothing of it counts, and nobody gets it until the rest is gone, and it with them.
pub fn taken_back(mut lease: WorkerLease) -> WorkerLease {
    let start = lease.range.start();
    (lease.done_to, lease.claimed_done_to) = (start, start);
    (lease.last_id, lease.first_parent) = (None, None);
    lease.attempt = MAX_ATTEMPTS;
    lease.last_error = format!(
        "{TAKEN_BACK}; `cairn leases reset --worker {} --from {start}` goes on with it",
        lease.service
    );
    lease
}

const TAKEN_BACK: &str = "it is being taken back";

/// Whether a lease is one of [`taken_back`].
pub fn is_taken_back(lease: &WorkerLease) -> bool {
    lease.is_dead() && lease.last_error.starts_with(TAKEN_BACK)
}

/// Refuses to free a lease of which some rows are gone: whoever took it up would leave the others.
pub fn demand_whole(lease: &WorkerLease) -> Result<()> {
    match is_taken_back(lease) {
        false => Ok(()),
        true => Err(StoreError::Invalid(format!("lease {} can't be freed: {}", lease.id, lease.last_error))),
    }
}

/// The heights whose rows go with a lease that is taken back: down to where the lease below it ends, or to the checkpoint.
pub fn heights_taken_back(
    checkpoint: &DerivedCheckpoint,
    below: Option<Height>,
    lease: &WorkerLease,
) -> HeightRange {
    let from = below.unwrap_or(checkpoint.next).max(checkpoint.next).min(lease.range.start());
    HeightRange::new(from, lease.range.end())
}

/// How a lease was found that ran out.
pub const RAN_OUT: &str = "neither committed nor renewed it in time";
/// How a lease was found whose process is gone.
pub const ENDED_WITH_IT: &str = "ended without giving it back";

/// Text cut to at most so many bytes, between two characters, with NUL bytes replaced by U+FFFD (before it is cut).
pub fn shortened(text: &str, max_bytes: usize) -> String {
    let text = text.replace('\0', "\u{fffd}");
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// What `adopt` demands where a raw store is followed already: [`StoreError::OtherRaw`] where it is another one, or its reorg log is
/// shorter than, or differs from, what was begun.
pub fn demand_raw(forks: &ForkState, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<()> {
    let other = |what: String| Err(StoreError::OtherRaw { what });
    if forks.raw_uuid != raw_uuid {
        return other(format!(
            "it follows store {}, this is store {}",
            hex::encode(forks.raw_uuid),
            hex::encode(raw_uuid)
        ));
    }
    if newest.id < forks.begun.id {
        return other(format!("it took reorg {}, this store's newest is {}", forks.begun.id, newest.id));
    }
    if newest.id == forks.begun.id && newest.digest != forks.begun.digest {
        return other(format!("reorg {} has another digest", newest.id));
    }
    Ok(())
}

/// What `begin_apply` demands: that the entry is the next one, and follows what was applied. Whether it has been begun already.
pub fn demand_next(forks: &ForkState, entry: &ReorgEntry) -> Result<bool> {
    let other = |what: &str| Err(StoreError::OtherRaw { what: format!("reorg {} {what}", entry.id) });
    if entry.store_uuid != forks.raw_uuid {
        return other("is of another store");
    }
    if entry.id != forks.applied.id + 1 {
        return Err(StoreError::Applied { applied: forks.applied.id, asked: entry.id });
    }
    if !entry.follows(&forks.applied.digest) {
        return other("has a digest that doesn't follow the one before it");
    }
    if forks.is_settled() {
        return Ok(false);
    }
    if forks.begun.digest == entry.digest { Ok(true) } else { other("was begun with another digest") }
}
