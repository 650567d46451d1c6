//! Checkpoints of services.

use cairn_core::{BlockId, Height};
use cairn_store::Result;
use cairn_store::derived::DerivedCheckpoint;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{db, number, sql};

const SELECT: &str =
    "SELECT service_name, last_height, last_id, updated_at, paused, corrections FROM indexing_checkpoints";

fn read(row: &Row<'_>) -> rusqlite::Result<DerivedCheckpoint> {
    let last_height: i64 = row.get(1)?;
    let next = last_height.checked_add(1).and_then(|next| u64::try_from(next).ok());
    Ok(DerivedCheckpoint {
        service: row.get(0)?,
        next: next.map(Height).ok_or(rusqlite::Error::IntegralValueOutOfRange(1, last_height))?,
        last_id: row.get::<_, Option<[u8; 32]>>(2)?.map(BlockId),
        updated_at_ms: row.get::<_, i64>(3)?.unsigned_abs(),
        paused: row.get(4)?,
        corrections: row.get::<_, i64>(5)?.unsigned_abs(),
    })
}

pub(super) fn find(conn: &Connection, service: &str) -> Result<Option<DerivedCheckpoint>> {
    conn.prepare_cached(&format!("{SELECT} WHERE service_name = ?1"))
        .and_then(|mut statement| statement.query_row([service], read).optional())
        .map_err(db)
}

/// All of them, by name.
pub(super) fn all(conn: &Connection) -> Result<Vec<DerivedCheckpoint>> {
    conn.prepare_cached(&format!("{SELECT} ORDER BY service_name"))
        .and_then(|mut statement| statement.query_map([], read)?.collect())
        .map_err(db)
}

pub(super) fn write(conn: &Connection, checkpoint: &DerivedCheckpoint) -> Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO indexing_checkpoints VALUES (?1, ?2, ?3, ?4, ?5, ?6)")
        .and_then(|mut statement| {
            statement.execute(params![
                checkpoint.service,
                // -1 before height 0.
                sql(checkpoint.next) - 1,
                checkpoint.last_id.map(|id| id.0),
                number(checkpoint.updated_at_ms),
                checkpoint.paused,
                number(checkpoint.corrections),
            ])
        })
        .map_err(db)?;
    Ok(())
}

/// Whether there was one.
pub(super) fn delete(conn: &Connection, service: &str) -> Result<bool> {
    conn.prepare_cached("DELETE FROM indexing_checkpoints WHERE service_name = ?1")
        .and_then(|mut statement| statement.execute([service]))
        .map(|deleted| deleted > 0)
        .map_err(db)
}
