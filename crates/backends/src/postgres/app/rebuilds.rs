//! Services that make everything anew: few rows, or none.

use cairn_core::{BlockRef, Height, HeightRange};
use cairn_store::Result;
use cairn_store::derived::{RangeAgain, Rebuild, RebuildRequest};
use tokio_postgres::Row as PgRow;

use super::coordinate::{insert_reindex, unknown_service};
use super::fault::Fault;
use super::lease::{column, id_bytes, last_height};
use super::tx::{Gate, Tx};
use super::{Shared, int, int_of};
use crate::postgres::copy::PgTimestamp;
use crate::postgres::error::corrupt;

type Faulty<T> = std::result::Result<T, Fault>;

const COLUMNS: &str = "service_name, first_height, until_height, is_clearing, steps, paused, begun_at";

/// Every one, by service; see [`rebuild_of`].
pub(super) const ALL: &str =
    "SELECT service_name, first_height, until_height, is_clearing, steps, paused, begun_at
     FROM app.rebuilds ORDER BY service_name";

/// A row of [`ALL`].
pub(super) fn rebuild_of(row: &PgRow) -> Result<Rebuild> {
    let unsigned = |at: usize| -> Result<u64> {
        let n: i64 = column(row, at)?;
        u64::try_from(n).map_err(|_| corrupt("a rebuild", format!("{n} is below zero")))
    };
    Ok(Rebuild {
        service: column::<&str>(row, 0)?.to_owned(),
        first: Height(unsigned(1)?),
        until: Height(unsigned(2)?),
        is_clearing: column(row, 3)?,
        steps: unsigned(4)?,
        paused: column(row, 5)?,
        begun_at_ms: column::<PgTimestamp>(row, 6)?.0,
    })
}

pub(super) async fn find(tx: &Tx<'_>, service: &str) -> Faulty<Option<Rebuild>> {
    let sql = format!("SELECT {COLUMNS} FROM app.rebuilds WHERE service_name = $1");
    Ok(tx.query_opt(&sql, &[&service]).await?.as_ref().map(rebuild_of).transpose()?)
}

async fn write(tx: &Tx<'_>, rebuild: &Rebuild) -> Faulty<()> {
    let sql = format!(
        "INSERT INTO app.rebuilds ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (service_name) DO UPDATE SET first_height = $2, until_height = $3, is_clearing = $4, steps = $5,
             paused = $6, begun_at = $7"
    );
    tx.execute(
        &sql,
        &[
            &rebuild.service,
            &int(rebuild.first),
            &int(rebuild.until),
            &rebuild.is_clearing,
            &int_of(rebuild.steps),
            &rebuild.paused,
            &PgTimestamp(rebuild.begun_at_ms),
        ],
    )
    .await?;
    Ok(())
}

/// Lowers where they end, for a reorg down to this block.
pub(super) async fn clamp(tx: &Tx<'_>, common: BlockRef) -> Faulty<()> {
    for row in tx.query(ALL, &[]).await? {
        let rebuild = rebuild_of(&row)?;
        if let Some(until) = rebuild.clamped(common) {
            write(tx, &Rebuild { until, ..rebuild }).await?;
        }
    }
    Ok(())
}

/// Forgets those that are over; their services.
pub(super) async fn forget_done(tx: &Tx<'_>) -> Faulty<Vec<String>> {
    let mut done = Vec::new();
    for row in tx.query(ALL, &[]).await? {
        let rebuild = rebuild_of(&row)?;
        if !rebuild.goes_on(tx.checkpoint(&rebuild.service, false).await?.as_ref()) {
            tx.execute("DELETE FROM app.rebuilds WHERE service_name = $1", &[&rebuild.service]).await?;
            done.push(rebuild.service);
        }
    }
    Ok(done)
}

/// All of a request, in one transaction.
pub(super) async fn begin(shared: &Shared, request: &RebuildRequest) -> Faulty<Vec<Rebuild>> {
    let tx = shared.begin(Gate::Exclusive).await?;
    for again in &request.again {
        let range = if again.is_behind { stop_behind(&tx, again).await? } else { Some(again.range) };
        if let Some(range) = range {
            insert_reindex(&tx, again, range).await?;
        }
    }
    let mut rebuilds = Vec::with_capacity(request.anew.len());
    for service in &request.anew {
        rebuilds.push(anew(&tx, service).await?);
    }
    tx.commit("begin_rebuild").await?;
    Ok(rebuilds)
}

/// Takes what is under way from a service that asks about rows that are made again; what of the range it asks about again, if anything.
async fn stop_behind(tx: &Tx<'_>, again: &RangeAgain) -> Faulty<Option<HeightRange>> {
    const RELEASE: &str =
        "UPDATE app.worker_leases SET status = 'FAILED', fence = nextval('app.fences'), next_try_at = $2,
         updated_at = $2 WHERE worker_type = $1 AND kind = 'index' AND status = 'ACTIVE'";
    let Some(checkpoint) = tx.checkpoint(&again.service, true).await? else { return Ok(None) };
    tx.execute(RELEASE, &[&again.service, &tx.now()]).await?;
    let done = again.done(&checkpoint, lowest(tx, &again.service).await?);
    Ok(Some(done).filter(|range| !range.is_empty()))
}

pub(super) async fn anew(tx: &Tx<'_>, service: &str) -> Faulty<Rebuild> {
    let before = find(tx, service).await?;
    if let Some(before) = before.as_ref().filter(|before| before.is_clearing) {
        return Ok(before.clone());
    }
    let checkpoint = tx.checkpoint(service, true).await?.ok_or_else(|| unknown_service(service))?;
    let lowest = lowest(tx, service).await?;
    let rebuild = Rebuild::of(&checkpoint, lowest, before.as_ref(), tx.now_ms);
    tx.execute("DELETE FROM app.indexing_checkpoints WHERE service_name = $1", &[&service]).await?;
    write(tx, &rebuild).await?;
    Ok(rebuild)
}

/// Where a service's lowest lease of kind `Index` begins.
pub(super) async fn lowest(tx: &Tx<'_>, service: &str) -> Faulty<Option<Height>> {
    const LOWEST: &str =
        "SELECT min(from_height) FROM app.worker_leases WHERE worker_type = $1 AND kind = 'index'";
    let row = tx.query_opt(LOWEST, &[&service]).await?;
    let lowest = row.map(|row| column::<Option<i64>>(&row, 0)).transpose()?.flatten();
    Ok(lowest.map(|height| Height(height.max(0) as u64)))
}

/// What a step of deleting leaves: where nothing is left, the service begins anew.
pub(super) async fn stepped(tx: &Tx<'_>, rebuild: Rebuild, is_left: bool) -> Faulty<()> {
    const INSERT: &str =
        "INSERT INTO app.indexing_checkpoints (service_name, last_height, last_id, updated_at, paused, corrections)
         VALUES ($1, $2, $3, $4, $5, $6)";
    if !is_left {
        let start = rebuild.start(tx.now_ms);
        let (height, last_id, corrections) =
            (last_height(&start), id_bytes(&start.last_id), int_of(start.corrections));
        let params: [crate::postgres::pool::Param<'_>; 6] =
            [&start.service, &height, &last_id, &tx.now(), &start.paused, &corrections];
        tx.execute(INSERT, &params).await?;
    }
    write(tx, &Rebuild { is_clearing: is_left, steps: rebuild.steps + 1, ..rebuild }).await
}
