//! Applying the raw store's reorg log.
//!
//! Event rows go from the top down, by whole blocks. A row of state goes at once to what it was at the common block, with all its undo rows: one
//! that every block changed is written once. So every step is bounded by what it touches, and until a row is restored
//! its undo rows are there for readers.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockRef, Height};
use cairn_store::derived::answers;
use cairn_store::derived::rules;
use cairn_store::derived::{ApplyProgress, ForkState, Key, ReorgApplier, Row, TableClass};
use cairn_store::{ReorgEntry, ReorgMark, Result, StoreError};
use futures::FutureExt;

use super::answers::decode;
use super::commit::write_arrays;
use super::fault::Fault;
use super::lease::{CHECKPOINT_COLUMNS, FORKS, checkpoint_of, column, forks_of, mark_of, not_adopted};
use super::tables::{Arrays, PgTable, runs};
use super::tx::{Gate, Tx};
use super::{PgDerived, Shared, int, int_of, quarantined, rebuilds};
use crate::postgres::error::corrupt;

type Faulty<T> = std::result::Result<T, Fault>;

#[async_trait]
impl ReorgApplier for PgDerived {
    async fn adopt(&self, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<ForkState> {
        self.shared.rerun(|| adopt(&self.shared, raw_uuid, newest).boxed()).await
    }

    async fn forks(&self) -> Result<Option<ForkState>> {
        let conn = self.shared.write.get().await?;
        let row = conn.query_opt(FORKS, &[]).await?;
        Ok(row.as_ref().map(forks_of).transpose()?.map(|(forks, _)| forks))
    }

    async fn begin_apply(&self, entry: &ReorgEntry) -> Result<()> {
        self.shared.rerun(|| begin(&self.shared, entry).boxed()).await
    }

    async fn apply_step(&self, entry_id: u64, max_rows: usize) -> Result<ApplyProgress> {
        if max_rows == 0 {
            return Err(StoreError::Invalid(
                "apply_step: max_rows is 0; nothing would ever be undone".into(),
            ));
        }
        self.shared.rerun(|| step(&self.shared, entry_id, max_rows).boxed()).await
    }

    async fn finish_apply(&self, entry_id: u64) -> Result<ForkState> {
        self.shared.rerun(|| finish(&self.shared, entry_id).boxed()).await
    }
}

/// Where the store stands, locked.
async fn lock_forks(tx: &Tx<'_>) -> Faulty<Option<(ForkState, u64)>> {
    let row = tx.query_opt(&format!("{FORKS} FOR UPDATE"), &[]).await?;
    Ok(row.as_ref().map(forks_of).transpose()?)
}

async fn adopt(shared: &Shared, raw_uuid: [u8; 16], newest: ReorgMark) -> Faulty<ForkState> {
    const INSERT: &str = "INSERT INTO app.reorg_state
             (raw_uuid, base_id, applied_id, applied_digest, begun_id, begun_digest) VALUES ($1, $2, $2, $3, $2, $3)";
    let tx = shared.begin(Gate::Exclusive).await?;
    let Some((forks, _)) = lock_forks(&tx).await? else {
        tx.execute(INSERT, &[&raw_uuid.as_slice(), &int_of(newest.id), &newest.digest.as_slice()]).await?;
        tx.commit("adopt").await?;
        return Ok(ForkState { raw_uuid, applied: newest, begun: newest });
    };
    rules::demand_raw(&forks, raw_uuid, newest)?;
    Ok(forks)
}

async fn begin(shared: &Shared, entry: &ReorgEntry) -> Faulty<()> {
    const LOWEST: &str = "SELECT worker_type, min(from_height) FROM app.worker_leases WHERE kind = 'index' GROUP BY worker_type";
    const LOCK: &str = "SELECT id FROM app.worker_leases WHERE to_height > $1 ORDER BY id FOR UPDATE";
    const DELETE: &str = "DELETE FROM app.worker_leases WHERE from_height >= $1";
    // As `rules::fate` says.
    const REOPEN: &str = "UPDATE app.worker_leases SET status = 'FAILED', fence = nextval('app.fences'), next_try_at = $2,
             updated_at = $2, last_id = CASE WHEN done_to > $1 THEN $3 ELSE last_id END, done_to = least(done_to, $1)
         WHERE to_height > $1";
    const BEGUN: &str = "UPDATE app.reorg_state SET begun_id = $1, begun_digest = $2";
    const INSERT: &str = "INSERT INTO app.reorgs_applied (id, digest, first_orphan, common_id, begun_at)
         VALUES ($1, $2, $3, $4, $5)";
    let tx = shared.begin(Gate::Exclusive).await?;
    let (forks, _) = lock_forks(&tx).await?.ok_or_else(not_adopted)?;
    if rules::demand_next(&forks, entry)? {
        return Ok(());
    }
    let above = int(entry.first_orphan());
    tx.execute(BEGUN, &[&int_of(entry.id), &entry.digest.as_slice()]).await?;
    let common_id = entry.common.id.as_bytes().as_slice();
    tx.execute(INSERT, &[&int_of(entry.id), &entry.digest.as_slice(), &above, &common_id, &tx.now()]).await?;
    let mut lowest: BTreeMap<String, Height> = BTreeMap::new();
    for row in tx.query(LOWEST, &[]).await? {
        lowest.insert(column::<&str>(&row, 0)?.to_owned(), Height(column::<i64>(&row, 1)?.max(0) as u64));
    }
    tx.query(LOCK, &[&above]).await?;
    tx.execute(DELETE, &[&above]).await?;
    tx.execute(REOPEN, &[&above, &tx.now(), &common_id]).await?;
    clamp(&tx, &lowest, entry.common).await?;
    quarantined::forget_from(&tx, entry.first_orphan()).await?;
    rebuilds::clamp(&tx, entry.common).await?;
    tx.commit("begin_apply").await
}

async fn clamp(tx: &Tx<'_>, lowest: &BTreeMap<String, Height>, common: BlockRef) -> Faulty<()> {
    let sql =
        format!("SELECT {CHECKPOINT_COLUMNS} FROM app.indexing_checkpoints ORDER BY service_name FOR UPDATE");
    for row in tx.query(&sql, &[]).await? {
        let checkpoint = checkpoint_of(&row)?;
        let begins = lowest.get(&checkpoint.service).copied();
        if let Some(clamped) = rules::clamp(&checkpoint, begins, common, tx.now_ms) {
            tx.write_checkpoint(&clamped).await?;
        }
    }
    Ok(())
}

/// Demands that this entry is being applied; the height after its common block.
async fn demand_begun(tx: &Tx<'_>, entry_id: u64) -> Faulty<(ForkState, Height)> {
    let (forks, _) = lock_forks(tx).await?.ok_or_else(not_adopted)?;
    if forks.applied.id + 1 != entry_id {
        return Err(StoreError::Applied { applied: forks.applied.id, asked: entry_id }.into());
    }
    if forks.is_settled() {
        return Err(StoreError::Invalid(format!(
            "reorg {entry_id} has not been begun; begin to apply it first"
        ))
        .into());
    }
    let sql = "SELECT id, first_orphan FROM app.reorgs_applied WHERE id = $1";
    let row = tx.query_opt(sql, &[&int_of(entry_id)]).await?;
    let mark = row.as_ref().map(mark_of).transpose()?;
    let mark =
        mark.ok_or_else(|| corrupt("app.reorgs_applied", format!("reorg {entry_id} is begun and missing")))?;
    Ok((forks, mark.first_orphan))
}

/// Tables whose rows a reorg deletes by height.
fn deleted_by_height(table: &PgTable) -> Option<&str> {
    match table.table.def().class {
        TableClass::Events { .. } | TableClass::Answers => table.height.as_deref(),
        TableClass::State | TableClass::Content => None,
    }
}

async fn step(shared: &Shared, entry_id: u64, max_rows: usize) -> Faulty<ApplyProgress> {
    let tx = shared.begin(Gate::Exclusive).await?;
    let (_, above) = demand_begun(&tx, entry_id).await?;
    demand_whole_catalog(&tx).await?;
    demand_undo(&tx, above).await?;
    by_index(&tx).await?;
    let mut left = max_rows as u64;
    left = left.saturating_sub(restore(&tx, above, left).await?);
    // Answers that are above once all undo rows are gone have replaced none.
    for table in shared.tables.iter() {
        if left == 0 {
            break;
        }
        let Some(height) = deleted_by_height(table) else { continue };
        let deleted =
            tx.execute(&delete_from_top(&table.name, height), &[&int(above), &int_of(left)]).await?;
        left = left.saturating_sub(deleted);
    }
    let is_clean = left > 0 || first_left(&tx, above).await?.is_none();
    tx.commit("apply_step").await?;
    Ok(if is_clean { ApplyProgress::Done } else { ApplyProgress::More })
}

/// Rows are found by index, whatever the statistics say.
pub(super) async fn by_index(tx: &Tx<'_>) -> Result<()> {
    tx.conn
        .batch(
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
             SET LOCAL plan_cache_mode = force_custom_plan",
        )
        .await
}

/// Deletes rows at or above height `$1`, about `$2` from the top: whole blocks, so a few more where a block is cut.
pub(super) fn delete_from_top(table: &str, height: &str) -> String {
    format!(
        "DELETE FROM {table} WHERE {height} >= $1 AND {height} >= coalesce(
             (SELECT {height} FROM {table} WHERE {height} >= $1 ORDER BY {height} DESC OFFSET $2 LIMIT 1), $1)"
    )
}

/// A table that this program doesn't know may have been made since it started: its rows would stay.
pub(super) async fn demand_whole_catalog(tx: &Tx<'_>) -> Faulty<()> {
    let row = tx.query_opt("SELECT count(*) FROM app.table_definitions", &[]).await?;
    let tables: i64 = row.map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
    if tables == tx.shared.tables.len() as i64 {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "the app store has {tables} tables and this program knows {}: a newer program is running beside it. Stop this one; the newer applies the reorg",
        tx.shared.tables.len()
    ))
    .into())
}

/// Takes the undo rows of keys that the topmost `$2` of them name: of as many keys as have about `$2` together.
const TAKE_UNDO: &str = "WITH keys AS MATERIALIZED (
         SELECT DISTINCT table_name, key FROM (
             SELECT table_name, key FROM app.state_undo WHERE height >= $1 ORDER BY height DESC LIMIT $2) top),
     chosen AS MATERIALIZED (
         SELECT DISTINCT table_name, key FROM (
             SELECT k.table_name, k.key FROM keys k CROSS JOIN LATERAL (
                 SELECT 1 FROM app.state_undo u
                 WHERE u.table_name = k.table_name AND u.key = k.key AND u.height >= $1) each_one
             LIMIT $2) some_keys)
     DELETE FROM app.state_undo u USING chosen c
     WHERE u.table_name = c.table_name AND u.key = c.key AND u.height >= $1
     RETURNING u.table_name, u.key, u.height, u.previous";

/// Restores rows of state and answers, each at once to what it was at the common block, and deletes their undo rows, about `max_rows` of them;
/// how many there were: fewer than `max_rows` only where none is left.
async fn restore(tx: &Tx<'_>, above: Height, max_rows: u64) -> Faulty<u64> {
    let taken = tx.query(TAKE_UNDO, &[&int(above), &int_of(max_rows)]).await?;
    // By table and key: the lowest height, and what the row was before it.
    let mut wanted: BTreeMap<String, BTreeMap<Bytes, (i64, Option<Bytes>)>> = BTreeMap::new();
    for row in &taken {
        let height: i64 = column(row, 2)?;
        let key = Bytes::copy_from_slice(column(row, 1)?);
        let name: &str = column(row, 0)?;
        if !wanted.contains_key(name) {
            wanted.insert(name.to_owned(), BTreeMap::new());
        }
        let Some(rows) = wanted.get_mut(name) else { continue };
        if rows.get(&key).is_none_or(|(lower, _)| height < *lower) {
            let previous: Option<&[u8]> = column(row, 3)?;
            rows.insert(key, (height, previous.map(Bytes::copy_from_slice)));
        }
    }
    for (name, rows) in wanted {
        restore_table(tx, tx.shared.table(&name)?, rows, above).await?;
    }
    Ok(taken.len() as u64)
}

async fn restore_table(
    tx: &Tx<'_>,
    table: &PgTable,
    wanted: BTreeMap<Bytes, (i64, Option<Bytes>)>,
    above: Height,
) -> Faulty<()> {
    let mut rows: Vec<Row> = Vec::new();
    let mut gone: Vec<Key> = Vec::new();
    for (key, (_, previous)) in wanted {
        let mut previous = previous.map(|previous| decode(table, &previous)).transpose()?;
        if table.table.def().class == TableClass::Answers {
            previous = answers::below(&table.table, previous, above)?;
        }
        match previous {
            Some(row) => rows.push(row),
            None => gone.push(Key::decode(&key)?),
        }
    }
    write_arrays(tx, &table.restore, &rows, |row| row).await?;
    delete_keys(tx, table, &gone).await?;
    Ok(())
}

/// Deletes rows by key, in statements of bounded size.
pub(super) async fn delete_keys(tx: &Tx<'_>, table: &PgTable, keys: &[Key]) -> Faulty<u64> {
    let width = table.table.key_columns().len();
    let size = |key: &Key| key.0.iter().map(cairn_store::derived::Value::size_bytes).sum();
    let mut deleted = 0;
    for run in runs(keys, tx.shared.options.statement_bytes, size) {
        let arrays = Arrays::of_keys(width, run);
        deleted += tx.execute(&table.delete_keys, &arrays.params()).await?;
    }
    Ok(deleted)
}

async fn finish(shared: &Shared, entry_id: u64) -> Faulty<ForkState> {
    const APPLIED: &str = "UPDATE app.reorg_state SET applied_id = begun_id, applied_digest = begun_digest";
    const FINISHED: &str = "UPDATE app.reorgs_applied SET finished = true WHERE id = $1";
    let tx = shared.begin(Gate::Exclusive).await?;
    let (forks, above) = demand_begun(&tx, entry_id).await?;
    demand_whole_catalog(&tx).await?;
    demand_undo(&tx, above).await?;
    by_index(&tx).await?;
    if let Some(name) = first_left(&tx, above).await? {
        return Err(StoreError::Invalid(format!(
            "reorg {entry_id} can't be finished: {name} has rows at height {above} or above"
        ))
        .into());
    }
    tx.execute(APPLIED, &[]).await?;
    tx.execute(FINISHED, &[&int_of(entry_id)]).await?;
    tx.commit("finish_apply").await?;
    Ok(ForkState { applied: forks.begun, ..forks })
}

/// The first table that has something left to undo.
async fn first_left(tx: &Tx<'_>, above: Height) -> Faulty<Option<String>> {
    let tables = tx.shared.tables.iter();
    let by_height = tables.filter_map(|table| Some((table.name.as_str(), deleted_by_height(table)?)));
    for (name, height) in by_height.chain([("app.state_undo", "height")]) {
        let sql = format!("SELECT 1 FROM {name} WHERE {height} >= $1 LIMIT 1");
        if tx.query_opt(&sql, &[&int(above)]).await?.is_some() {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// Demands that every change of state from this height on can be undone, and every answer that may have taken another's place. Commits see to it above
/// finality; only a reorg that reaches below it, which no raw store makes, costs more than one look.
async fn demand_undo(tx: &Tx<'_>, above: Height) -> Faulty<()> {
    const DEEP: &str = "SELECT service_name FROM app.indexing_checkpoints WHERE undo_floor > $1";
    const LOST: &str = "SELECT k.n FROM unnest($2::bytea[]) WITH ORDINALITY AS k(key, n) WHERE NOT EXISTS (
             SELECT 1 FROM app.state_undo u WHERE u.table_name = $1 AND u.key = k.key AND u.height >= $3) LIMIT 1";
    let mut deep: Vec<String> = Vec::new();
    for row in tx.query(DEEP, &[&int(above)]).await? {
        deep.push(column::<&str>(&row, 0)?.to_owned());
    }
    for table in tx.shared.tables.iter() {
        let (class, Some(height)) = (table.table.def().class, &table.height) else { continue };
        if !deep.iter().any(|service| service == table.table.def().service) {
            continue;
        }
        if class == TableClass::Answers {
            let above_it = format!("SELECT 1 FROM {} WHERE {height} >= $1 LIMIT 1", table.name);
            if tx.query_opt(&above_it, &[&int(above)]).await?.is_some() {
                return Err(answers::lost_undo(&table.table, above).into());
            }
        }
        if class != TableClass::State {
            continue;
        }
        let changed = tx.query(&format!("{} WHERE {height} >= $1", table.all), &[&int(above)]).await?;
        let changed = changed.iter().map(|row| table.read(row, 0)).collect::<Result<Vec<_>>>()?;
        let keys: Vec<Key> = changed.iter().map(|row| table.table.key_of(row)).collect();
        let encoded: Vec<Bytes> = keys.iter().map(Key::encode).collect();
        let encoded: Vec<&[u8]> = encoded.iter().map(|key| key.as_ref()).collect();
        if let Some(row) = tx.query_opt(LOST, &[&table.table.name(), &encoded, &int(above)]).await? {
            let place: i64 = column(&row, 0)?;
            let key = usize::try_from(place - 1).ok().and_then(|at| keys.get(at));
            return Err(corrupt(
                format!("table {}, key {key:?}", table.table.name()),
                format!("the row was changed at or above height {above}, and no undo row says what it was"),
            )
            .into());
        }
    }
    Ok(())
}
