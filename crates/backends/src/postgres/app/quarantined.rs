//! Blocks that a service could not process: few rows, or none.

use cairn_core::{Height, HeightRange};
use cairn_store::Result;
use cairn_store::derived::{ChunkCommit, LeaseKind, Quarantined, QuarantinedBlock, WorkerLease};
use tokio_postgres::Row as PgRow;

use super::fault::Fault;
use super::lease::column;
use super::tx::Tx;
use super::{int, int_of};
use crate::postgres::PgConn;

type Faulty<T> = std::result::Result<T, Fault>;

/// Every one; see [`block_of`].
pub(super) const ALL: &str = "SELECT height, service_name FROM app.quarantined_blocks";

/// What a commit says of its chunk's heights. A chunk that is done for the first time has none before it: they are forgotten where `done_to` is
/// lowered.
pub(super) async fn write(tx: &Tx<'_>, lease: &WorkerLease, commit: &ChunkCommit) -> Faulty<()> {
    const REMEMBER: &str = "INSERT INTO app.quarantined_blocks (service_name, height)
         SELECT $1, height FROM unnest($2::bigint[]) height ON CONFLICT DO NOTHING";
    if lease.kind == LeaseKind::Reindex {
        forget(tx, &lease.service, commit.chunk).await?;
    }
    if !commit.quarantined.is_empty() {
        let heights: Vec<i64> = commit.quarantined.iter().map(|height| int(*height)).collect();
        tx.execute(REMEMBER, &[&lease.service, &heights]).await?;
    }
    Ok(())
}

/// Forgets those of a service in a range.
pub(super) async fn forget(tx: &Tx<'_>, service: &str, range: HeightRange) -> Faulty<u64> {
    const FORGET: &str =
        "DELETE FROM app.quarantined_blocks WHERE service_name = $1 AND height >= $2 AND height < $3";
    tx.execute(FORGET, &[&service, &int(range.start()), &int(range.end())]).await
}

/// Forgets those above the common block of a reorg.
pub(super) async fn forget_from(tx: &Tx<'_>, first_orphan: Height) -> Faulty<u64> {
    tx.execute("DELETE FROM app.quarantined_blocks WHERE height >= $1", &[&int(first_orphan)]).await
}

/// Forgets at most `limit` of a service; how many.
pub(super) async fn forget_some(tx: &Tx<'_>, service: &str, limit: u64) -> Faulty<u64> {
    let sql = "DELETE FROM app.quarantined_blocks WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM app.quarantined_blocks WHERE service_name = $1 LIMIT $2))";
    tx.execute(sql, &[&service, &int_of(limit)]).await
}

/// The lowest `limit` of these services in a range, up to their checkpoints, and how many there are.
pub(super) async fn of(
    conn: &PgConn,
    services: &[&str],
    heights: HeightRange,
    limit: usize,
) -> Result<Quarantined> {
    const LOWEST: &str = "SELECT q.height, q.service_name FROM app.quarantined_blocks q
         JOIN app.indexing_checkpoints c ON c.service_name = q.service_name
         WHERE q.service_name = ANY ($1) AND q.height >= $2 AND q.height < $3 AND q.height <= c.last_height
         ORDER BY q.height, q.service_name LIMIT $4";
    const TOTAL: &str = "SELECT count(*) FROM app.quarantined_blocks q
         JOIN app.indexing_checkpoints c ON c.service_name = q.service_name
         WHERE q.service_name = ANY ($1) AND q.height >= $2 AND q.height < $3 AND q.height <= c.last_height";
    let (from, to) = (int(heights.start()), int(heights.end()));
    let rows = conn.query(LOWEST, &[&services, &from, &to, &int_of(limit as u64)]).await?;
    let lowest = rows.iter().map(block_of).collect::<Result<Vec<_>>>()?;
    let total = if lowest.len() < limit {
        lowest.len() as u64
    } else {
        let row = conn.query_one(TOTAL, &[&services, &from, &to]).await?;
        column::<i64>(&row, 0)?.unsigned_abs()
    };
    Ok(Quarantined { lowest, total })
}

/// A row of [`ALL`].
pub(super) fn block_of(row: &PgRow) -> Result<QuarantinedBlock> {
    let height: i64 = column(row, 0)?;
    Ok(QuarantinedBlock { height: Height(height.unsigned_abs()), service: column(row, 1)? })
}
