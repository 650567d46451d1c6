//! Blocks that a service could not process: few rows, or none.

use cairn_core::{Height, HeightRange};
use cairn_store::Result;
use cairn_store::derived::QuarantinedBlock;
use rusqlite::{Connection, params};

use super::{db, number, sql};

/// Remembers heights of a service; those that are there already stay.
pub(super) fn remember(conn: &Connection, service: &str, heights: &[Height]) -> Result<()> {
    for height in heights {
        conn.prepare_cached(
            "INSERT OR IGNORE INTO quarantined_blocks (service_name, height) VALUES (?1, ?2)",
        )
        .and_then(|mut statement| statement.execute(params![service, sql(*height)]))
        .map_err(db)?;
    }
    Ok(())
}

/// Forgets those of a service in a range that was made again.
pub(super) fn forget(conn: &Connection, service: &str, range: HeightRange) -> Result<()> {
    conn.prepare_cached(
        "DELETE FROM quarantined_blocks WHERE service_name = ?1 AND height >= ?2 AND height < ?3",
    )
    .and_then(|mut statement| statement.execute(params![service, sql(range.start()), sql(range.end())]))
    .map_err(db)?;
    Ok(())
}

/// Forgets those above the common block of a reorg.
pub(super) fn forget_above(conn: &Connection, common: Height) -> Result<()> {
    conn.prepare_cached("DELETE FROM quarantined_blocks WHERE height > ?1")
        .and_then(|mut statement| statement.execute([sql(common)]))
        .map_err(db)?;
    Ok(())
}

/// Forgets at most `limit` of a service; how many.
pub(super) fn forget_some(conn: &Connection, service: &str, limit: usize) -> Result<usize> {
    conn.prepare_cached(
        "DELETE FROM quarantined_blocks WHERE (service_name, height) IN \
         (SELECT service_name, height FROM quarantined_blocks WHERE service_name = ?1 LIMIT ?2)",
    )
    .and_then(|mut statement| statement.execute(params![service, number(limit as u64)]))
    .map_err(db)
}

/// The lowest `limit` of a service in `[from, to)`, and how many there are.
pub(super) fn of(
    conn: &Connection,
    service: &str,
    from: Height,
    to: Height,
    limit: usize,
) -> Result<(Vec<QuarantinedBlock>, u64)> {
    let lowest = conn
        .prepare_cached(
            "SELECT height FROM quarantined_blocks WHERE service_name = ?1 AND height >= ?2 AND height < ?3 \
             ORDER BY height LIMIT ?4",
        )
        .and_then(|mut statement| {
            let bounds = params![service, sql(from), sql(to), number(limit as u64)];
            let heights = statement.query_map(bounds, |row| row.get::<_, i64>(0))?;
            heights.map(|height| Ok(block(service, height?))).collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(db)?;
    if lowest.len() < limit {
        let total = lowest.len() as u64;
        return Ok((lowest, total));
    }
    let total: i64 = conn
        .prepare_cached(
            "SELECT count(*) FROM quarantined_blocks WHERE service_name = ?1 AND height >= ?2 AND height < ?3",
        )
        .and_then(|mut statement| {
            statement.query_row(params![service, sql(from), sql(to)], |row| row.get(0))
        })
        .map_err(db)?;
    Ok((lowest, total.unsigned_abs()))
}

/// Every one.
pub(super) fn all(conn: &Connection) -> Result<Vec<QuarantinedBlock>> {
    conn.prepare_cached("SELECT service_name, height FROM quarantined_blocks")
        .and_then(|mut statement| {
            let blocks = statement.query_map([], |row| Ok(block(&row.get::<_, String>(0)?, row.get(1)?)))?;
            blocks.collect()
        })
        .map_err(db)
}

fn block(service: &str, height: i64) -> QuarantinedBlock {
    QuarantinedBlock { height: Height(height.unsigned_abs()), service: service.to_owned() }
}
