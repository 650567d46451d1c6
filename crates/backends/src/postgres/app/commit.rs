//! Committing a chunk.
//!
//! Everything that needs no lock is done before the transaction: the shape is checked, rows are sorted by key, each key comes once
//! (P01), and event rows are encoded for COPY.
//!
//! **COPY without ON CONFLICT.** A chunk that begins at its lease's `done_to` meets no event rows of its heights: rows come in the same transaction
//! that moves `done_to` past them, nothing lowers `done_to` but a reorg, and until the reorg's rows are gone step 3 refuses the
//! heights. A range that is made again deletes its rows first. Where rows are there all the same (somebody put them there by hand, or a reset was not
//! finished), the server refuses the COPY and the transaction is run again with `ON CONFLICT DO NOTHING`; then those rows are read and
//! compared.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::rules::{self, CheckedChunk, CheckedCorrection};
use cairn_store::derived::{
    ChunkCommit, Committed, CorrectedRow, DerivedCheckpoint, DerivedWriter, ForkState, Key, Row, StateRow,
    TableClass, Value, WorkerLease,
};
use cairn_store::{Result, StoreError};
use futures::FutureExt;

use super::answers;
use super::fault::Fault;
use super::lease::{
    CHECKPOINT_COLUMNS, CHECKPOINT_WIDTH, FORKS, LEASE_COLUMNS, LEASE_WIDTH, checkpoint_at, forks_at,
    forks_of, lease_of, mark_of, not_adopted, of_table,
};
use super::partitions;
use super::quarantined;
use super::tables::{Arrays, PgTable, runs};
use super::tx::{Gate, Tx};
use super::value::copy_field;
use super::{PgDerived, Shared, int, int_of};
use crate::postgres::CopyBuf;
use crate::postgres::error::corrupt;

/// Undo rows below finality that a commit deletes beside its own work: more than it adds.
const MIN_PRUNED: usize = 1_000;

const COPY_UNDO: &str = "COPY app.state_undo (table_name, key, height, previous) FROM STDIN (FORMAT binary)";

/// A chunk, ready to be written.
struct Prepared<'a> {
    lease: &'a WorkerLease,
    commit: &'a ChunkCommit,
    reaches: Height,
    replaces: Vec<&'a PgTable>,
    rows: Vec<PreparedRows<'a>>,
    answers: Vec<PreparedAnswers<'a>>,
    states: Vec<PreparedStates<'a>>,
    /// By service, whose checkpoints are locked in this order.
    corrections: Vec<CheckedCorrection>,
    /// COPY data of the undo rows.
    undo: Vec<Bytes>,
    undo_rows: usize,
}

struct PreparedRows<'a> {
    table: &'a PgTable,
    rows: Vec<(Key, Row)>,
    /// COPY data; for tables of events only.
    copy: Vec<Bytes>,
}

struct PreparedAnswers<'a> {
    table: &'a PgTable,
    rows: Vec<(Key, BTreeMap<Height, Row>)>,
}

struct PreparedStates<'a> {
    table: &'a PgTable,
    rows: Vec<StateRow>,
}

#[async_trait]
impl DerivedWriter for PgDerived {
    async fn commit_chunk(&self, lease: &WorkerLease, commit: ChunkCommit) -> Result<Committed> {
        let shared = &*self.shared;
        let prepared = prepare(shared, lease, &commit)?;
        ensure_partitions(shared, &prepared, shared.options.lookahead_partitions).await?;
        let (mut careful, mut made) = (false, false);
        loop {
            let run = |careful| write(shared, &prepared, careful).boxed();
            match shared.rerun(|| run(careful)).await? {
                Written::Done(committed) => return Ok(*committed),
                Written::Conflict if careful => {
                    return Err(corrupt(
                        format!("chunk {} of {}", commit.chunk, lease.service),
                        "undo rows of heights that were never committed are there already",
                    ));
                }
                Written::Conflict => careful = true,
                Written::NoPartition if made => {
                    return Err(StoreError::Busy("partitions go as quickly as they are made".into()));
                }
                Written::NoPartition => {
                    made = true;
                    shared.known().clear();
                    ensure_partitions(shared, &prepared, 0).await?;
                }
            }
        }
    }
}

async fn ensure_partitions(shared: &Shared, prepared: &Prepared<'_>, ahead: u64) -> Result<()> {
    for rows in &prepared.rows {
        partitions::ensure(shared, rows.table, prepared.commit.chunk, ahead).await?;
    }
    Ok(())
}

fn prepare<'a>(shared: &'a Shared, lease: &'a WorkerLease, commit: &'a ChunkCommit) -> Result<Prepared<'a>> {
    let checked = CheckedChunk::new(&shared.catalog, lease, commit)?;
    let mut rows = Vec::with_capacity(checked.rows.len());
    for part in checked.rows.into_iter().filter(|part| !part.rows.is_empty()) {
        let table = shared.table(part.table.name())?;
        let is_events = matches!(part.table.def().class, TableClass::Events { .. });
        let copy = if is_events { encode(part.rows.values()) } else { Vec::new() };
        rows.push(PreparedRows { table, rows: part.rows.into_iter().collect(), copy });
    }
    let mut answers = Vec::with_capacity(checked.answers.len());
    for part in checked.answers {
        let table = shared.table(part.table.name())?;
        answers.push(PreparedAnswers { table, rows: part.rows.into_iter().collect() });
    }
    let mut states = Vec::with_capacity(checked.states.len());
    let mut undo = CopyBuf::new();
    for part in checked.states.into_iter().filter(|part| !part.rows.is_empty()) {
        let table = shared.table(part.table.name())?;
        for (key, state) in &part.rows {
            copy_undo(&mut undo, table.table.name(), &key.encode(), &state.undo, commit.finalized);
        }
        states.push(PreparedStates { table, rows: part.rows.into_values().collect() });
    }
    for (table, rows) in checked.corrections.iter().flat_map(|correction| &correction.tables) {
        for (key, corrected) in rows {
            copy_undo(&mut undo, table.name(), &key.encode(), &corrected.undo, commit.finalized);
        }
    }
    Ok(Prepared {
        lease,
        commit,
        reaches: checked.reaches,
        replaces: commit.replaces.iter().map(|name| shared.table(name)).collect::<Result<Vec<_>>>()?,
        rows,
        answers,
        states,
        corrections: checked.corrections,
        undo_rows: undo.rows() as usize,
        undo: if undo.is_empty() { Vec::new() } else { undo.finish() },
    })
}

/// Undo rows of a key. Below finality nothing is undone.
fn copy_undo(buf: &mut CopyBuf, table: &str, key: &[u8], undo: &[(Height, Option<Row>)], finalized: Height) {
    for (height, before) in undo.iter().filter(|(height, _)| *height >= finalized) {
        buf.row(4).text(table).bytea(key).i64(int(*height));
        buf.bytea_opt(before.as_ref().map(Row::encode).as_deref());
    }
}

fn encode<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Bytes> {
    let mut buf = CopyBuf::new();
    for row in rows {
        buf.row(row.0.len() as i16);
        row.0.iter().for_each(|value| copy_field(&mut buf, value));
    }
    buf.finish()
}

/// What became of a transaction.
enum Written {
    Done(Box<Committed>),
    /// Event rows are there already.
    Conflict,
    NoPartition,
}

async fn write(
    shared: &Shared,
    prepared: &Prepared<'_>,
    careful: bool,
) -> std::result::Result<Written, Fault> {
    let tx = shared.begin(Gate::Shared).await?;
    let committed = match guard(&tx, prepared).await {
        Ok(committed) => committed,
        Err(fault) => {
            tx.undo().await;
            return Err(fault);
        }
    };
    match write_rows(&tx, prepared, careful).await {
        Ok(()) => {}
        Err(fault) if fault.is_conflict() => return Ok(Written::Conflict),
        Err(fault) if fault.is_without_partition() => return Ok(Written::NoPartition),
        Err(fault) => return Err(fault),
    }
    tx.commit("commit_chunk").await?;
    Ok(Written::Done(Box::new(committed)))
}

/// Steps 2 and 3, and the checkpoint of step 4.
async fn guard(tx: &Tx<'_>, prepared: &Prepared<'_>) -> std::result::Result<Committed, Fault> {
    const KNOWN: &str = "SELECT id, first_orphan FROM app.reorgs_applied WHERE id > $1 ORDER BY id";
    let (lease, commit) = (prepared.lease, prepared.commit);
    let (current, checkpoint, (forks, base_id)) = lock(tx, lease).await?;
    let known_from = int_of(rules::lowest_known(commit));
    let newest = if current.is_none() { tx.newest_fence().await? } else { lease.fence };
    let before = rules::demand_holder(current.as_ref(), lease, newest)?;
    let after = rules::advance_lease(before, commit, tx.now_ms)?;
    // Seldom there is one: a reorg since the chunk was read, or one that the raw store has had and that wasn't applied yet.
    let known_from = known_from.min(int_of(forks.applied.id));
    let known = match int_of(forks.begun.id) > known_from {
        true => tx.query(KNOWN, &[&known_from]).await?,
        false => Vec::new(),
    };
    let known = known.iter().map(mark_of).collect::<Result<Vec<_>>>()?;
    rules::demand_fork(&forks, base_id, &known, commit, prepared.reaches)?;
    let Some(checkpoint) = checkpoint else {
        return Err(StoreError::LeaseMoved {
            what: format!("service {} has no checkpoint, since it is being reset: it", lease.service),
            expected: commit.chunk.start(),
        }
        .into());
    };
    let moved = rules::advance_checkpoint(&checkpoint, before, commit, tx.now_ms)?;
    for correction in &prepared.corrections {
        let folder = tx.checkpoint(&correction.service, true).await?;
        if let Some(corrected) = rules::correct_checkpoint(correction, folder.as_ref(), commit)? {
            tx.count_correction(&corrected).await?;
        }
    }
    tx.write(&after, moved.as_ref()).await?;
    Ok(Committed { lease: after, checkpoint: moved.unwrap_or(checkpoint) })
}

/// The lease, its service's checkpoint, and where the store stands. Both rows are locked, in the order that all writers keep.
async fn lock(
    tx: &Tx<'_>,
    lease: &WorkerLease,
) -> std::result::Result<(Option<WorkerLease>, Option<DerivedCheckpoint>, (ForkState, u64)), Fault> {
    // Under the gate nobody moves the third table.
    let sql = format!(
        "SELECT {}, {}, raw_uuid, base_id, applied_id, applied_digest, begun_id, begun_digest
         FROM app.worker_leases l JOIN app.indexing_checkpoints c ON c.service_name = l.worker_type, app.reorg_state
         WHERE l.id = $1 FOR UPDATE OF l, c",
        of_table("l", LEASE_COLUMNS),
        of_table("c", CHECKPOINT_COLUMNS)
    );
    if let Some(row) = tx.query_opt(&sql, &[&int_of(lease.id)]).await? {
        let forks = forks_at(&row, LEASE_WIDTH + CHECKPOINT_WIDTH)?;
        return Ok((Some(lease_of(&row)?), Some(checkpoint_at(&row, LEASE_WIDTH)?), forks));
    }
    // One of the three isn't there: which one tells what is wrong.
    let current = tx.lock_lease(lease.id).await?;
    let checkpoint = tx.checkpoint(&lease.service, true).await?;
    let forks = tx.query_opt(FORKS, &[]).await?.ok_or_else(not_adopted)?;
    Ok((current, checkpoint, forks_of(&forks)?))
}

/// The rows of step 4, tables as the catalog has them.
async fn write_rows(tx: &Tx<'_>, prepared: &Prepared<'_>, careful: bool) -> std::result::Result<(), Fault> {
    for table in &prepared.replaces {
        delete_heights(tx, table, prepared.commit.chunk).await?;
    }
    for part in &prepared.rows {
        match part.table.table.def().class {
            TableClass::Events { .. } if !careful => {
                tx.copy_in(&part.table.copy, &part.copy).await?;
            }
            TableClass::Events { .. } => insert_and_compare(tx, part).await?,
            _ => {
                write_arrays(tx, &part.table.insert, &part.rows, |(_, row)| row).await?;
            }
        }
    }
    let mut undo_rows = prepared.undo_rows;
    for part in &prepared.answers {
        undo_rows += answers::write(tx, part.table, &part.rows, prepared.commit.finalized).await?;
    }
    for part in &prepared.states {
        let written = write_arrays(tx, &part.table.upsert, &part.rows, |state| &state.row).await?;
        let newer = part.rows.len().saturating_sub(written as usize);
        if newer > 0 {
            return Err(rules::newer_state(&part.table.table, newer, prepared.commit.chunk).into());
        }
    }
    for correction in &prepared.corrections {
        raise_floor(tx, &correction.service, prepared.commit.finalized).await?;
        for (table, rows) in &correction.tables {
            write_corrected(tx, tx.shared.table(table.name())?, rows).await?;
        }
    }
    quarantined::write(tx, prepared.lease, prepared.commit).await?;
    if !prepared.undo.is_empty() {
        tx.copy_in(COPY_UNDO, &prepared.undo).await?;
    }
    if !prepared.states.is_empty() || !prepared.answers.is_empty() {
        const PRUNE: &str =
            "DELETE FROM app.state_undo WHERE ctid = ANY (ARRAY(SELECT ctid FROM app.state_undo
             WHERE height < $1 AND table_name = ANY ($3) ORDER BY height LIMIT $2 FOR UPDATE SKIP LOCKED))";
        let finalized = int(prepared.commit.finalized);
        raise_floor(tx, &prepared.lease.service, prepared.commit.finalized).await?;
        let limit = int_of((undo_rows * 2).max(MIN_PRUNED) as u64);
        let answers = prepared.answers.iter().map(|part| part.table.table.name());
        let tables: Vec<&str> =
            answers.chain(prepared.states.iter().map(|part| part.table.table.name())).collect();
        tx.execute(PRUNE, &[&finalized, &limit, &tables]).await?;
    }
    Ok(())
}

/// Before an undo row goes, the height below which they do is known: see [`cairn_store::derived::ReorgApplier`].
async fn raise_floor(tx: &Tx<'_>, service: &str, finalized: Height) -> std::result::Result<(), Fault> {
    const FLOOR: &str =
        "UPDATE app.indexing_checkpoints SET undo_floor = $2 WHERE service_name = $1 AND undo_floor < $2";
    tx.execute(FLOOR, &[&service, &int(finalized)]).await.map(drop)
}

/// Puts rows of state in the place of those of their keys. Their undo rows go; the new ones follow.
async fn write_corrected(
    tx: &Tx<'_>,
    table: &PgTable,
    rows: &BTreeMap<Key, CorrectedRow>,
) -> std::result::Result<(), Fault> {
    const DELETE_UNDO: &str = "DELETE FROM app.state_undo WHERE table_name = $1 AND key = ANY ($2)";
    let bytes = tx.shared.options.statement_bytes;
    let size = |key: &&Key| key.0.iter().map(Value::size_bytes).sum();
    let keys: Vec<&Key> = rows.keys().collect();
    for run in runs(&keys, bytes, size) {
        let encoded: Vec<Bytes> = run.iter().map(|key| key.encode()).collect();
        let encoded: Vec<&[u8]> = encoded.iter().map(|key| key.as_ref()).collect();
        tx.execute(DELETE_UNDO, &[&table.table.name(), &encoded]).await?;
    }
    let gone: Vec<&Key> = rows.values().filter(|of_key| of_key.row.is_none()).map(|row| &row.key).collect();
    for run in runs(&gone, bytes, size) {
        let arrays = Arrays::of_keys(table.table.key_columns().len(), run.iter().copied());
        tx.execute(&table.delete_keys, &arrays.params()).await?;
    }
    let there: Vec<&Row> = rows.values().filter_map(|of_key| of_key.row.as_ref()).collect();
    write_arrays(tx, &table.restore, &there, |row| *row).await.map(drop)
}

/// Deletes the event rows of these heights.
pub(super) async fn delete_heights(
    tx: &Tx<'_>,
    table: &PgTable,
    heights: HeightRange,
) -> std::result::Result<u64, Fault> {
    let Some(height) = &table.height else { return Ok(0) };
    let sql = format!("DELETE FROM {} WHERE {height} >= $1 AND {height} < $2", table.name);
    tx.execute(&sql, &[&int(heights.start()), &int(heights.end())]).await
}

/// Writes rows as arrays, in statements of bounded size; the number of rows touched.
pub(super) async fn write_arrays<T>(
    tx: &Tx<'_>,
    sql: &str,
    rows: &[T],
    row: impl Fn(&T) -> &Row,
) -> std::result::Result<u64, Fault> {
    let mut touched = 0;
    for run in runs(rows, tx.shared.options.statement_bytes, |item| row(item).size_bytes()) {
        let width = run.first().map_or(0, |item| row(item).0.len());
        let arrays = Arrays::of_rows(width, run.iter().map(&row));
        touched += tx.execute(sql, &arrays.params()).await?;
    }
    Ok(touched)
}

/// Inserts the event rows that are missing and compares the others with what is there.
async fn insert_and_compare(tx: &Tx<'_>, part: &PreparedRows<'_>) -> std::result::Result<(), Fault> {
    let inserted = write_arrays(tx, &part.table.insert, &part.rows, |(_, row)| row).await?;
    if inserted == part.rows.len() as u64 {
        return Ok(());
    }
    let width = part.table.table.key_columns().len();
    let size = |(_, row): &(Key, Row)| row.size_bytes();
    for run in runs(&part.rows, tx.shared.options.statement_bytes, size) {
        let keys = Arrays::of_keys(width, run.iter().map(|(key, _)| key));
        for found in tx.query(&part.table.by_keys, &keys.params()).await? {
            let place: i64 = found.try_get(0)?;
            let stored = part.table.read(&found, 1)?;
            let offered = usize::try_from(place - 1).ok().and_then(|place| run.get(place));
            if let Some((key, row)) = offered
                && *row != stored
            {
                return Err(rules::other_fields(&part.table.table, key).into());
            }
        }
    }
    Ok(())
}
