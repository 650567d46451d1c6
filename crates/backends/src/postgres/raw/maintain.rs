//! Maintenance: merging index runs, and deleting what they replaced. Partitions have their own round: [`PgRawStore::maintain_partitions`].
//!
//! A merge makes a run that nobody sees (`Building`) in steps: each reads the inputs in a snapshot, and adds pages in one short
//! transaction. The last one swaps it in, if all its inputs are still there; else it is thrown away. Nothing is kept in memory between
//! steps, so a merge goes on after a restart where it stood, in whichever process. Runs that were replaced are dead and
//! their pages are deleted in steps too. Whatever changes runs holds their lock, so that a purge and a merge never pass each other unseen.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::HeightRange;
use cairn_store::runs::{Entry, MergePlan, MergeStep, Page, PageSource, RunInfo, merge_step, next_merge};
use cairn_store::{Maintained, RawMaintenance, Result};
use tokio::runtime::Handle;

use super::head;
use super::runs::{self, RUN_COLUMNS, RunPages, RunState, last_page, live_runs, run_info};
use super::tx::Tx;
use super::view::View;
use super::{PgRawStore, Shared, blocking};
use crate::postgres::PgConn;
use crate::postgres::error::{corrupt, db};

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
impl RawMaintenance for PgRawStore {
    async fn maintain(&self, max_bytes: u64) -> Result<Maintained> {
        let shared = &self.shared;
        shared.demand_writable()?;
        let _one_at_a_time = shared.maintaining.lock().await;
        if shared.bury(max_bytes).await? {
            return Ok(Maintained::More);
        }
        let Some(merge) = shared.merge_to_do().await? else { return Ok(Maintained::Nothing) };
        let (result_id, begun_after) = (merge.result.id, merge.after);
        let step = shared.read_step(merge, max_bytes).await?.map(Arc::new);
        shared
            .commit("maintain", |tx| {
                let step = step.clone();
                Box::pin(async move { write_step(tx, result_id, begun_after, step.as_deref()).await })
            })
            .await?;
        Ok(Maintained::More)
    }
}

impl Shared {
    /// Deletes pages of a dead run. Returns whether there was one.
    async fn bury(&self, max_bytes: u64) -> Result<bool> {
        let conn = self.pool.get().await?;
        let dead = find_dead(&conn).await?;
        drop(conn);
        if dead.is_none() {
            return Ok(false);
        }
        self.commit("maintain", |tx| {
            Box::pin(async move {
                runs::lock(tx).await?;
                let mut left = i64::try_from(max_bytes / PAGE_ROW_BYTES).unwrap_or(i64::MAX).max(1);
                while left > 0
                    && let Some(dead) = find_dead(tx.conn()).await?
                {
                    let deleted = tx
                        .execute(
                            "DELETE FROM raw.run_pages WHERE run_id = $1 AND place IN \
                             (SELECT place FROM raw.run_pages WHERE run_id = $1 ORDER BY place LIMIT $2)",
                            &[&dead, &left],
                        )
                        .await? as i64;
                    if deleted < left {
                        tx.execute("DELETE FROM raw.runs WHERE id = $1", &[&dead]).await?;
                    }
                    left -= deleted.max(1);
                }
                Ok(())
            })
        })
        .await?;
        Ok(true)
    }

    /// The merge to go on with, or a new one.
    async fn merge_to_do(&self) -> Result<Option<Merge>> {
        let conn = self.pool.get().await?;
        if let Some(going_on) = building(&conn, None).await? {
            return Ok(Some(going_on));
        }
        // A look before the transaction. It plans once more: a purge may have cut runs in between, and a merge that claims
        // heights which were taken away would stand in the way of the blocks that come there.
        if plan(&conn).await?.is_none() {
            return Ok(None);
        }
        drop(conn);
        self.commit("maintain", |tx| {
            Box::pin(async move {
                runs::lock(tx).await?;
                if let Some(going_on) = building(tx.conn(), None).await? {
                    return Ok(Some(going_on));
                }
                let Some(plan) = plan(tx.conn()).await? else { return Ok(None) };
                let ids = plan.inputs.iter().map(|input| input.id as i64).collect();
                runs::insert_run_row(tx, RunState::Building, plan.level, plan.heights, Some(ids)).await?;
                building(tx.conn(), None).await
            })
        })
        .await
    }

    /// Reads a merge on; `None` where an input is gone. A step is bounded by bytes; its view needs no deadline beside.
    async fn read_step(&self, merge: Merge, max_bytes: u64) -> Result<Option<MergeStep>> {
        let view = View::begin(&self.pool, None).await?;
        let Some(inputs) = live_inputs(&*view.conn().await?, &merge).await? else { return Ok(None) };
        let runtime = Handle::current();
        blocking(move || {
            let pages: Vec<RunPages> =
                inputs.iter().map(|input| RunPages::new(view.clone(), runtime.clone(), input.id)).collect();
            let sources: Vec<(HeightRange, &dyn PageSource)> = inputs
                .iter()
                .zip(&pages)
                .map(|(input, pages)| (input.heights, pages as &dyn PageSource))
                .collect();
            let result = &merge.result;
            merge_step(result.kind, result.heights.start(), &sources, merge.after, max_bytes).map(Some)
        })
        .await
    }
}

async fn find_dead(conn: &PgConn) -> Result<Option<i64>> {
    let dead = RunState::Dead as i16;
    let row = conn.query_opt("SELECT id FROM raw.runs WHERE state = $1 LIMIT 1", &[&dead]).await?;
    row.map(|row| row.try_get(0).map_err(db)).transpose()
}

/// The next merge, as the runs are in this view.
async fn plan(conn: &PgConn) -> Result<Option<MergePlan>> {
    let Some(head) = head::find(conn).await? else { return Ok(None) };
    let (tip, finalized) = (head.row.tip.map(|tip| tip.height), head.row.finalized);
    let runs = live_runs(conn).await?;
    Ok(next_merge(&runs, tip, finalized.map(|finalized| finalized.height)))
}

/// The run that is being made, and how far it has come.
async fn building(conn: &PgConn, id: Option<u64>) -> Result<Option<Merge>> {
    let found = conn
        .query_opt(
            &format!(
                "SELECT {RUN_COLUMNS}, inputs FROM raw.runs \
                 WHERE state = $1 AND ($2::bigint IS NULL OR id = $2) ORDER BY id LIMIT 1"
            ),
            &[&(RunState::Building as i16), &id.map(|id| id as i64)],
        )
        .await?;
    let Some(row) = found else { return Ok(None) };
    let result = run_info(&row)?;
    let inputs: Vec<i64> = row.try_get::<_, Option<Vec<i64>>>(7).map_err(db)?.unwrap_or_default();
    let last = last_page(conn, result.id).await?;
    let after = last.map(|page| Page::open(result.kind, page)).transpose()?.map(|page| page.last);
    Ok(Some(Merge { result, inputs: inputs.into_iter().map(|id| id as u64).collect(), after }))
}

/// Adds a step's pages, which follow `after`; with the last ones, swaps the result in. Where a reorg has cut an input meanwhile, the
/// result is dead already. Where another step went on from `after` first (another process's), this one has nothing to add.
async fn write_step(tx: &Tx, result_id: u64, after: Option<Entry>, step: Option<&MergeStep>) -> Result<()> {
    runs::lock(tx).await?;
    let Some(merge) = building(tx.conn(), Some(result_id)).await?.filter(|merge| merge.after == after) else {
        return Ok(());
    };
    let (Some(step), Some(inputs)) = (step, live_inputs(tx.conn(), &merge).await?) else {
        return runs::set_state(tx, result_id, RunState::Dead).await;
    };
    runs::insert_pages(tx, result_id, &step.pages, step.entries).await?;
    if !step.finished {
        return Ok(());
    }
    let (expected, made) =
        (inputs.iter().map(|input| input.entries).sum::<u64>(), merge.result.entries + step.entries);
    let ids: Vec<i64> = inputs.iter().map(|input| input.id as i64).collect();
    let cut = tx
        .query_one("SELECT coalesce(bool_or(is_cut), FALSE) FROM raw.runs WHERE id = ANY($1)", &[&ids])
        .await?;
    let is_cut: bool = cut.try_get(0).map_err(db)?;
    if made > expected || (made < expected && !is_cut) {
        return Err(corrupt(
            format!("index runs over {} ({:?})", merge.result.heights, merge.result.kind),
            format!("they say that they hold {expected} entries, {made} were found"),
        ));
    }
    for input in inputs {
        runs::set_state(tx, input.id, RunState::Dead).await?;
    }
    tx.execute(
        "UPDATE raw.runs SET state = $2, inputs = NULL WHERE id = $1",
        &[&(result_id as i64), &(RunState::Live as i16)],
    )
    .await
    .map(drop)
}

/// The inputs of a merge, if all of them still are part of the index.
async fn live_inputs(conn: &PgConn, merge: &Merge) -> Result<Option<Vec<RunInfo>>> {
    let heights = merge.result.heights;
    let mut runs = live_runs(conn).await?;
    runs.retain(|run| !run.heights.intersect(heights).is_empty());
    let is_same = runs.iter().map(|run| run.id).eq(merge.inputs.iter().copied());
    Ok(is_same.then_some(runs))
}
