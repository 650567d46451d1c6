//! Services that make everything anew: few rows, or none.

use cairn_core::{BlockRef, Height, HeightRange};
use cairn_store::derived::{RangeAgain, Rebuild, RebuildRequest};
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{Write, checkpoints, db, leases, number, sql};

const SELECT: &str =
    "SELECT service_name, first_height, until_height, is_clearing, steps, paused, begun_at FROM rebuilds";

fn read(row: &Row<'_>) -> rusqlite::Result<Rebuild> {
    let unsigned = |at: usize| {
        let n: i64 = row.get(at)?;
        u64::try_from(n).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, n))
    };
    Ok(Rebuild {
        service: row.get(0)?,
        first: Height(unsigned(1)?),
        until: Height(unsigned(2)?),
        is_clearing: row.get(3)?,
        steps: unsigned(4)?,
        paused: row.get(5)?,
        begun_at_ms: unsigned(6)?,
    })
}

/// All of them, by service.
pub(super) fn all(conn: &Connection) -> Result<Vec<Rebuild>> {
    conn.prepare_cached(&format!("{SELECT} ORDER BY service_name"))
        .and_then(|mut statement| statement.query_map([], read)?.collect())
        .map_err(db)
}

pub(super) fn find(conn: &Connection, service: &str) -> Result<Option<Rebuild>> {
    conn.prepare_cached(&format!("{SELECT} WHERE service_name = ?1"))
        .and_then(|mut statement| statement.query_row([service], read).optional())
        .map_err(db)
}

/// One whose service's former rows are still being deleted.
pub(super) fn clearing(conn: &Connection, service: &str) -> Result<Option<Rebuild>> {
    Ok(find(conn, service)?.filter(|rebuild| rebuild.is_clearing))
}

pub(super) fn write(conn: &Connection, rebuild: &Rebuild) -> Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO rebuilds VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")
        .and_then(|mut statement| {
            statement.execute(params![
                rebuild.service,
                sql(rebuild.first),
                sql(rebuild.until),
                rebuild.is_clearing,
                number(rebuild.steps),
                rebuild.paused,
                number(rebuild.begun_at_ms),
            ])
        })
        .map_err(db)?;
    Ok(())
}

/// Lowers where they end, for a reorg down to this block.
pub(super) fn clamp(conn: &Connection, common: BlockRef) -> Result<()> {
    for rebuild in all(conn)? {
        if let Some(until) = rebuild.clamped(common) {
            write(conn, &Rebuild { until, ..rebuild })?;
        }
    }
    Ok(())
}

/// Forgets those that are over; their services.
pub(super) fn forget_done(conn: &Connection) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for rebuild in all(conn)? {
        if !rebuild.goes_on(checkpoints::find(conn, &rebuild.service)?.as_ref()) {
            conn.execute("DELETE FROM rebuilds WHERE service_name = ?1", [&rebuild.service]).map_err(db)?;
            done.push(rebuild.service);
        }
    }
    Ok(done)
}

impl Write<'_> {
    pub(super) fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>> {
        for again in &request.again {
            let range = if again.is_behind { self.stop_behind(again)? } else { Some(again.range) };
            if let Some(range) = range {
                self.request_reindex(again, range)?;
            }
        }
        request.anew.iter().map(|service| self.anew(service)).collect()
    }

    /// Takes what is under way from a service that asks about rows that are made again; what of the range it asks about again, if anything.
    fn stop_behind(&self, again: &RangeAgain) -> Result<Option<HeightRange>> {
        let Some(checkpoint) = checkpoints::find(self.tx, &again.service)? else { return Ok(None) };
        leases::release_index(self.tx, &again.service, self.now_ms)?;
        let done = again.done(&checkpoint, leases::lowest(self.tx, &again.service)?);
        Ok(Some(done).filter(|range| !range.is_empty()))
    }

    fn anew(&self, service: &str) -> Result<Rebuild> {
        let before = find(self.tx, service)?;
        if let Some(before) = before.as_ref().filter(|before| before.is_clearing) {
            return Ok(before.clone());
        }
        let checkpoint = leases::registered(self.tx, service)?;
        let lowest = leases::lowest(self.tx, service)?;
        let rebuild = Rebuild::of(&checkpoint, lowest, before.as_ref(), self.now_ms);
        checkpoints::delete(self.tx, service)?;
        write(self.tx, &rebuild)?;
        Ok(rebuild)
    }

    /// One step of deleting; whether anything is left.
    pub(super) fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        if max_rows == 0 {
            return Err(StoreError::Invalid(
                "reset_step: max_rows is 0; nothing would ever be deleted".into(),
            ));
        }
        let Some(rebuild) = clearing(self.tx, service)? else { return Ok(false) };
        let is_left = self.reset(service, max_rows)?;
        if !is_left {
            checkpoints::write(self.tx, &rebuild.start(self.now_ms))?;
        }
        write(self.tx, &Rebuild { is_clearing: is_left, steps: rebuild.steps + 1, ..rebuild })?;
        Ok(is_left)
    }
}
