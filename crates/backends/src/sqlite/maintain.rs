//! Maintenance: merging index runs, deleting what they replaced, and keeping the write-ahead log short.
//!
//! A merge makes a run that nobody sees (`Building`) in steps: each reads the inputs in a read transaction, outside of any lock, and adds
//! pages in one short transaction. The last one swaps it in, if all its inputs are still there; else it is thrown away. Nothing
//! is kept in memory between steps, so a merge goes on after a restart where it stood. Runs that were replaced are dead and
//! their pages are deleted in steps too.

use async_trait::async_trait;
use cairn_core::HeightRange;
use cairn_store::runs::{
    Entry, MergePlan, MergeStep, Page, PageSource, RunInfo, RunKind, merge_step, next_merge,
};
use cairn_store::{Maintained, RawMaintenance, Result, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

use super::error::{corrupt, db};
use super::head;
use super::index::{self, RUN_COLUMNS, RunPages, RunState, live_runs, run_info};
use super::schema::RAW;
use super::{Shared, SqliteStore};

/// A page with its row and its index entry, about.
const PAGE_ROW_BYTES: u64 = 8_192;

/// A merge that goes on.
struct Merge {
    result: RunInfo,
    inputs: Vec<u64>,
    /// The last entry that was written.
    after: Option<Entry>,
}

#[async_trait]
impl RawMaintenance for SqliteStore {
    async fn maintain(&self, max_bytes: u64) -> Result<Maintained> {
        let _one_at_a_time = self.shared.maintaining.lock().await;
        self.write(|shared| shared.shorten_wal()).await?;
        if self.write(move |shared| shared.bury(max_bytes)).await? {
            return Ok(Maintained::More);
        }
        let Some(merge) = self.write(|shared| shared.merge_to_do()).await? else {
            return Ok(Maintained::Nothing);
        };
        let (result_id, begun_after) = (merge.result.id, merge.after);
        let (transaction, _) =
            match self.shared.pool.begin(self.shared.options.snapshot_max_ms, head::read).await {
                Err(StoreError::Busy(_)) => return Ok(Maintained::More),
                begun => begun?,
            };
        let step = transaction
            .run(move |from, _| {
                let Some(inputs) = live_inputs(&from.conn, &merge)? else { return Ok(None) };
                // A step is bounded by bytes; its view needs no deadline beside.
                let pages: Vec<RunPages<'_>> =
                    inputs.iter().map(|input| RunPages::new(&from.conn, input.id, None)).collect();
                let sources: Vec<(HeightRange, &dyn PageSource)> = inputs
                    .iter()
                    .zip(&pages)
                    .map(|(input, pages)| (input.heights, pages as &dyn PageSource))
                    .collect();
                let result = &merge.result;
                merge_step(result.kind, result.heights.start(), &sources, merge.after, max_bytes).map(Some)
            })
            .await?;
        drop(transaction);
        self.write(move |shared| {
            shared.commit("maintain", |tx, _| write_step(tx, result_id, begun_after, step.as_ref()))
        })
        .await?;
        Ok(Maintained::More)
    }
}

impl Shared {
    /// Empties the write-ahead log where it has grown long.
    fn shorten_wal(&self) -> Result<()> {
        let options = &self.options;
        let Some(wait_ms) = RAW.wal_wait_ms(&options.dir, options.snapshot_max_ms) else { return Ok(()) };
        self.pool.end_expired();
        self.with_writer(|writer| RAW.shorten_wal(&writer.conn, wait_ms, options.busy_timeout_ms))
    }

    /// Deletes pages of a dead run. Returns whether there was one.
    fn bury(&self, max_bytes: u64) -> Result<bool> {
        let find = |conn: &Connection| {
            conn.prepare_cached("SELECT id FROM runs WHERE state = ?1 LIMIT 1")
                .and_then(|mut statement| {
                    statement.query_row([RunState::Dead as i64], |row| row.get::<_, i64>(0)).optional()
                })
                .map_err(db)
        };
        if self.with_writer(|writer| find(&writer.conn))?.is_none() {
            return Ok(false);
        }
        self.commit("maintain", |tx, _| {
            let mut left = (max_bytes / PAGE_ROW_BYTES).max(1) as usize;
            while left > 0
                && let Some(dead) = find(tx)?
            {
                let deleted = tx
                    .prepare_cached(
                        "DELETE FROM run_pages WHERE number IN (SELECT number FROM run_pages WHERE run_id = ?1 LIMIT ?2)",
                    )
                    .and_then(|mut statement| statement.execute([dead, left as i64]))
                    .map_err(db)?;
                if deleted < left {
                    tx.prepare_cached("DELETE FROM runs WHERE id = ?1")
                        .and_then(|mut statement| statement.execute([dead]))
                        .map_err(db)?;
                }
                left -= deleted.max(1);
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// The merge to go on with, or a new one.
    fn merge_to_do(&self) -> Result<Option<Merge>> {
        let going_on = self.with_writer(|writer| building(&writer.conn, None))?;
        if going_on.is_some() {
            return Ok(going_on);
        }
        // A look before the transaction. It plans once more: a purge may have cut runs in between, and a merge that claims
        // heights which were taken away would stand in the way of the blocks that come there.
        if self.with_writer(|writer| plan(&writer.conn))?.is_none() {
            return Ok(None);
        }
        self.commit("maintain", |tx, _| {
            let Some(plan) = plan(tx)? else { return Ok(None) };
            let ids = plan.inputs.iter().flat_map(|input| input.id.to_be_bytes()).collect();
            let kind = plan.inputs[0].kind;
            index::insert_run_row(tx, kind, RunState::Building, plan.level, plan.heights, Some(ids))?;
            building(tx, None)
        })
    }
}

/// The next merge among all kinds of runs, as they are in this view.
fn plan(conn: &Connection) -> Result<Option<MergePlan>> {
    let Some(head) = head::find(conn)? else { return Ok(None) };
    let (tip, finalized) = (head.row.tip.map(|tip| tip.height), head.row.finalized);
    for kind in RunKind::ALL {
        let runs = live_runs(conn, kind)?;
        let plan = next_merge(&runs, tip, finalized.map(|finalized| finalized.height));
        if plan.is_some() {
            return Ok(plan);
        }
    }
    Ok(None)
}

/// The run that is being made, and how far it has come.
fn building(conn: &Connection, id: Option<u64>) -> Result<Option<Merge>> {
    let found = conn
        .prepare_cached(&format!(
            "SELECT {RUN_COLUMNS}, inputs FROM runs WHERE state = ?1 AND (?2 IS NULL OR id = ?2) ORDER BY id LIMIT 1"
        ))
        .and_then(|mut statement| {
            let bounds = params![RunState::Building as i64, id.map(|id| id as i64)];
            statement.query_row(bounds, |row| Ok((run_info(row)?, row.get::<_, Vec<u8>>(7)?))).optional()
        })
        .map_err(db)?;
    let Some((result, inputs)) = found else { return Ok(None) };
    let (inputs, rest) = inputs.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(corrupt(format!("index run {}", result.id), "the list of its inputs is cut off"));
    }
    let inputs = inputs.iter().map(|id| u64::from_be_bytes(*id)).collect();
    let last = RunPages::new(conn, result.id, None).last()?;
    let after = last.map(|page| Page::open(result.kind, page)).transpose()?.map(|page| page.last);
    Ok(Some(Merge { result, inputs, after }))
}

/// Adds a step's pages, which follow `after`; with the last ones, swaps the result in. Where a reorg has cut an input meanwhile, the
/// result is dead already. Where another step went on from `after` first (it ran on when its caller went away), this one has
/// nothing to add.
fn write_step(tx: &Connection, result_id: u64, after: Option<Entry>, step: Option<&MergeStep>) -> Result<()> {
    let Some(merge) = building(tx, Some(result_id))?.filter(|merge| merge.after == after) else {
        return Ok(());
    };
    let (Some(step), Some(inputs)) = (step, live_inputs(tx, &merge)?) else {
        return index::set_state(tx, result_id, RunState::Dead);
    };
    index::insert_pages(tx, result_id, &step.pages, step.entries)?;
    if !step.finished {
        return Ok(());
    }
    let (expected, made) =
        (inputs.iter().map(|input| input.entries).sum::<u64>(), merge.result.entries + step.entries);
    let is_cut = inputs.iter().map(|input| index::is_cut(tx, input.id)).collect::<Result<Vec<_>>>()?;
    if made > expected || (made < expected && !is_cut.contains(&true)) {
        return Err(corrupt(
            format!("index runs over {} ({:?})", merge.result.heights, merge.result.kind),
            format!("they say that they hold {expected} entries, {made} were found"),
        ));
    }
    for input in inputs {
        index::set_state(tx, input.id, RunState::Dead)?;
    }
    tx.prepare_cached("UPDATE runs SET state = ?2, inputs = NULL WHERE id = ?1")
        .and_then(|mut statement| statement.execute([result_id as i64, RunState::Live as i64]))
        .map_err(db)?;
    Ok(())
}

/// The inputs of a merge, if all of them still are part of the index.
fn live_inputs(tx: &Connection, merge: &Merge) -> Result<Option<Vec<RunInfo>>> {
    let heights = merge.result.heights;
    let mut runs = live_runs(tx, merge.result.kind)?;
    runs.retain(|run| !run.heights.intersect(heights).is_empty());
    let is_same = runs.iter().map(|run| run.id).eq(merge.inputs.iter().copied());
    Ok(is_same.then_some(runs))
}
