//! Deleting, the write-ahead log, and the dump.

use async_trait::async_trait;
use cairn_core::Height;
use cairn_store::derived::{
    DerivedDump, DerivedDumpBuilder, DerivedMaintenance, Key, Rebuild, RebuildRequest, TableClass, TakenBack,
    rules,
};
use cairn_store::{Dump, Result};
use rusqlite::params;

use super::super::schema::APP;
use super::tables::TableSql;
use super::{SqliteDerived, Write, blocking, checkpoints, db, forks, leases, number, quarantined, rows};

impl Write<'_> {
    /// Deletes rows, then undo rows, then quarantined heights, then leases; whether any is left.
    pub(super) fn reset(&self, service: &str, max_rows: usize) -> Result<bool> {
        let mut left = max_rows;
        let tables = self.tables.all().iter().filter(|table| table.table.def().service == service);
        for table in tables {
            left = left.saturating_sub(rows::delete_some(self.tx, table, left)?);
            if left == 0 {
                return Ok(true);
            }
            if has_undo(table) {
                left = left.saturating_sub(self.forget_undo(table, left)?);
                if left == 0 {
                    return Ok(true);
                }
            }
        }
        left = left.saturating_sub(quarantined::forget_some(self.tx, service, left)?);
        if left == 0 {
            return Ok(true);
        }
        let deleted = self
            .tx
            .prepare_cached(
                "DELETE FROM worker_leases WHERE id IN (SELECT id FROM worker_leases WHERE worker_type = ?1 LIMIT ?2)",
            )
            .and_then(|mut statement| statement.execute(params![service, number(left as u64)]))
            .map_err(db)?;
        Ok(deleted == left)
    }

    fn take_back(&self, service: &str, from: Height, max_rows: usize) -> Result<Option<TakenBack>> {
        let checkpoint = leases::registered(self.tx, service)?;
        let defs = self.tables.all().iter().map(|table| table.table.def());
        rules::demand_take_back(defs, &checkpoint, from, max_rows)?;
        let Some(lease) = leases::lowest_from(self.tx, service, from)? else { return Ok(None) };
        let below = leases::highest_below(self.tx, service, lease.range.start())?;
        let below = below.map(|below| below.range.end());
        let heights = rules::heights_taken_back(&checkpoint, below, &lease);
        let (mut left, mut gone) = (max_rows, 0);
        let events = |table: &&TableSql| {
            let def = table.table.def();
            def.service == service && matches!(def.class, TableClass::Events { .. })
        };
        for table in self.tables.all().iter().filter(events) {
            if left == 0 {
                break;
            }
            let deleted = rows::delete_from_top(self.tx, table, heights, left)?;
            gone += deleted;
            left = left.saturating_sub(deleted);
        }
        let is_whole = left > 0;
        if is_whole {
            quarantined::forget(self.tx, service, heights)?;
            leases::delete(self.tx, lease.id)?;
        } else {
            leases::give_back(self.tx, rules::taken_back(lease), self.now_ms)?;
        }
        Ok(Some(TakenBack { heights, rows: gone as u64, is_whole }))
    }

    /// Deletes undo rows of a table of which no row is left.
    fn forget_undo(&self, table: &TableSql, max_rows: usize) -> Result<usize> {
        let name = table.table.name();
        let deleted = self
            .tx
            .prepare_cached(
                "DELETE FROM state_undo WHERE (height, table_name, row_key) IN \
                 (SELECT height, table_name, row_key FROM state_undo WHERE table_name = ?1 LIMIT ?2)",
            )
            .and_then(|mut statement| statement.execute(params![name, number(max_rows as u64)]))
            .map_err(db)?;
        if deleted < max_rows {
            self.tx
                .execute("UPDATE table_definitions SET undo_floor = 0 WHERE table_name = ?1", [name])
                .map_err(db)?;
        }
        Ok(deleted)
    }

    fn delete_rows(&self, table: &str, keys: &[Key]) -> Result<u64> {
        let table = self.tables.get(table)?;
        let mut undo = self
            .tx
            .prepare_cached("DELETE FROM state_undo WHERE table_name = ?1 AND row_key = ?2")
            .map_err(db)?;
        let mut deleted = 0;
        for key in keys {
            if has_undo(table) {
                undo.execute(params![table.table.name(), key.encode().as_ref()]).map_err(db)?;
            }
            deleted += rows::delete(self.tx, table, key)?;
        }
        Ok(deleted)
    }
}

/// Whether a table may have undo rows.
fn has_undo(table: &TableSql) -> bool {
    matches!(table.table.def().class, TableClass::State | TableClass::Answers)
}

#[async_trait]
impl DerivedMaintenance for SqliteDerived {
    /// Keeps the write-ahead log short; there are no partitions.
    async fn maintain(&self, _tip: Height) -> Result<()> {
        let shared = self.shared.clone();
        blocking(move || {
            let options = &shared.options;
            let Some(wait_ms) = APP.wal_wait_ms(&options.dir, options.snapshot_max_ms) else { return Ok(()) };
            shared.pool.end_expired();
            shared.with_writer(|conn| APP.shorten_wal(conn, wait_ms, options.busy_timeout_ms))
        })
        .await
    }

    /// None is ever put off.
    async fn build_indexes(&self, _final_to: Height) -> Result<bool> {
        Ok(false)
    }

    async fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>> {
        let request = request.clone();
        self.write("begin_rebuild", move |write| write.begin_rebuild(&request)).await
    }

    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        let service = service.to_owned();
        self.write("reset_step", move |write| write.reset_step(&service, max_rows)).await
    }

    async fn take_back_step(
        &self,
        service: &str,
        from: Height,
        max_rows: usize,
    ) -> Result<Option<TakenBack>> {
        let service = service.to_owned();
        self.write("take_back_step", move |write| write.take_back(&service, from, max_rows)).await
    }

    /// While a reorg is being applied nothing above its common block goes.
    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64> {
        self.write("prune_undo", move |write| {
            let applying = match forks::find(write.tx)? {
                Some(forks) => forks::applying(write.tx, &forks)?,
                None => None,
            };
            let below = applying.map_or(finalized, |first_orphan| finalized.min(first_orphan));
            forks::prune_undo(write.tx, below, max_rows)
        })
        .await
    }

    async fn delete_rows(&self, table: &'static str, keys: &[Key]) -> Result<u64> {
        let keys = keys.to_vec();
        self.write("delete_rows", move |write| write.delete_rows(table, &keys)).await
    }
}

#[async_trait]
impl DerivedDump for SqliteDerived {
    async fn dump(&self) -> Result<Dump> {
        // For people and tests: this read transaction lasts as long as it takes.
        let (transaction, checkpoints) = self.shared.pool.begin(None, checkpoints::all).await?;
        let tables = self.shared.tables.clone();
        transaction
            .run(move |from, _| {
                let mut dump = DerivedDumpBuilder::new();
                checkpoints.iter().for_each(|checkpoint| dump.checkpoint(checkpoint));
                for block in quarantined::all(&from.conn)? {
                    dump.quarantined(&block.service, block.height);
                }
                for table in tables.all().iter().filter(|table| DerivedDumpBuilder::is_dumped(&table.table)) {
                    let mut statement = from.conn.prepare(&table.select).map_err(db)?;
                    let mut rows = statement.raw_query();
                    while let Some(row) = rows.next().map_err(db)? {
                        dump.row(&table.table, &table.read(row).map_err(db)?);
                    }
                }
                Ok(dump.finish())
            })
            .await
    }
}
