//! Reading: one read transaction, bounded by the checkpoints in it.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::answers;
use cairn_store::derived::{
    DerivedCheckpoint, DerivedSnapshot, ForkState, Key, LeaseFilter, Quarantined, Rebuild, Row, Scan,
    ScanPage, TableClass, UndoRows, Value, WorkerLease,
};
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::time::Instant;

use super::super::index::demand_time;
use super::super::pool::ReadTx;
use super::tables::{TableSql, Tables};
use super::{checkpoints, db, forks, leases, quarantined, rebuilds, rows, scan, sql};

/// What a read transaction begins with.
pub(super) struct View {
    forks: ForkState,
    /// The first height that the reorg under way takes away.
    applying: Option<Height>,
    checkpoints: Vec<DerivedCheckpoint>,
    rebuilds: Vec<Rebuild>,
}

pub(super) fn read_view(conn: &Connection) -> Result<View> {
    let forks = forks::read(conn)?;
    let applying = forks::applying(conn, &forks)?;
    let (checkpoints, rebuilds) = (checkpoints::all(conn)?, rebuilds::all(conn)?);
    Ok(View { forks: forks.state, applying, checkpoints, rebuilds })
}

pub(super) struct SqliteDerivedSnapshot {
    transaction: Arc<ReadTx>,
    tables: Arc<Tables>,
    view: View,
}

/// How a snapshot sees one table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The end of the checkpoint of the service that writes it; `None` where that isn't registered.
    pub(super) next: Option<Height>,
    /// The first height that the reorg under way takes away.
    applying: Option<Height>,
}

impl Bounds {
    /// Those of a settled store whose services all stand here.
    #[cfg(test)]
    pub(super) fn all(next: Height) -> Bounds {
        Bounds { next: Some(next), applying: None }
    }

    /// The row as it may be seen.
    pub(super) fn visible(&self, conn: &Connection, table: &TableSql, row: Row) -> Result<Option<Row>> {
        let height = table.table.height_column().and_then(|at| row.0[at].as_height());
        let Some(height) = height else { return Ok(Some(row)) };
        let is_seen = match table.table.def().class {
            TableClass::Content => true,
            TableClass::Answers => match self.applying {
                Some(first_orphan) if height >= first_orphan => {
                    let before = undo_row(conn, table, &table.table.key_of(&row), first_orphan)?;
                    return answers::below(&table.table, before.flatten(), first_orphan);
                }
                _ => true,
            },
            TableClass::Events { .. } => self.next.is_some_and(|next| height < next),
            TableClass::State => match self.next {
                None => false,
                Some(next) if height >= next => return before(conn, table, &row, next),
                Some(_) => true,
            },
        };
        Ok(is_seen.then_some(row))
    }
}

/// The row of state as it was before the block at `next`.
fn before(conn: &Connection, table: &TableSql, row: &Row, next: Height) -> Result<Option<Row>> {
    let key = table.table.key_of(row);
    undo_row(conn, table, &key, next)?.ok_or_else(|| {
        let key: Vec<String> = key.0.iter().map(ToString::to_string).collect();
        StoreError::Corrupt {
            place: format!("table {}, key {}", table.table.name(), key.join(",")),
            what: format!("the row was changed at or above height {next}, and no undo row says what it was"),
        }
    })
}

/// What the lowest undo row of a key at or above a height says; `None` where there is none.
fn undo_row(conn: &Connection, table: &TableSql, key: &Key, from: Height) -> Result<Option<Option<Row>>> {
    let encoded = key.encode();
    let found: Option<Option<Vec<u8>>> = conn
        .prepare_cached(
            "SELECT before_row FROM state_undo INDEXED BY state_undo_row \
             WHERE table_name = ?1 AND row_key = ?2 AND height >= ?3 ORDER BY height LIMIT 1",
        )
        .and_then(|mut statement| {
            let bounds = params![table.table.name(), encoded.as_ref(), sql(from)];
            statement.query_row(bounds, |row| row.get(0)).optional()
        })
        .map_err(db)?;
    found.map(|before| before.map(|bytes| forks::decode_row(table, &bytes)).transpose()).transpose()
}

/// Demands that values can stand in these columns.
pub(super) fn check_values(table: &TableSql, columns: &[usize], values: &[Value]) -> Result<()> {
    let wrong = |what: String| Err(StoreError::Invalid(format!("scan of {}: {what}", table.table.name())));
    if values.len() > columns.len() {
        return wrong(format!("{} values for {} columns", values.len(), columns.len()));
    }
    for (value, &at) in values.iter().zip(columns) {
        let column = &table.table.def().columns[at];
        if !value.is_of(column.ty) {
            return wrong(format!("{value} can't stand in column {}", column.name));
        }
    }
    Ok(())
}

impl SqliteDerivedSnapshot {
    pub(super) fn new(transaction: Arc<ReadTx>, tables: Arc<Tables>, view: View) -> Self {
        SqliteDerivedSnapshot { transaction, tables, view }
    }

    fn bounds(&self, table: &TableSql) -> Bounds {
        Bounds {
            next: self.checkpoint(table.table.def().service).map(|checkpoint| checkpoint.next),
            applying: self.view.applying,
        }
    }

    /// Reads from one table on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        table: &str,
        read: impl FnOnce(&Connection, &TableSql, Bounds, Option<Instant>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let name = self.tables.get(table)?.table.clone();
        let bounds = self.bounds(self.tables.get(table)?);
        let tables = self.tables.clone();
        self.transaction
            .run(move |from, deadline| read(&from.conn, tables.get(name.name())?, bounds, deadline))
            .await
    }
}

#[async_trait]
impl DerivedSnapshot for SqliteDerivedSnapshot {
    fn forks(&self) -> &ForkState {
        &self.view.forks
    }

    fn checkpoints(&self) -> &[DerivedCheckpoint] {
        &self.view.checkpoints
    }

    fn rebuilds(&self) -> &[Rebuild] {
        &self.view.rebuilds
    }

    async fn rows(&self, table: &'static str, keys: &[Key]) -> Result<Vec<Option<Row>>> {
        let sql = self.tables.get(table)?;
        for key in keys {
            if key.0.len() != sql.table.key_columns().len() {
                return Err(StoreError::Invalid(format!(
                    "table {table}: a key has {} values, not {}",
                    sql.table.key_columns().len(),
                    key.0.len()
                )));
            }
            check_values(sql, sql.table.key_columns(), &key.0)?;
        }
        let keys = keys.to_vec();
        self.read(table, move |conn, table, bounds, deadline| {
            let mut found = Vec::with_capacity(keys.len());
            for (n, key) in keys.iter().enumerate() {
                if n.is_multiple_of(scan::LOOK_EVERY) {
                    demand_time(deadline)?;
                }
                let row = rows::find(conn, table, key)?;
                found.push(row.map(|row| bounds.visible(conn, table, row)).transpose()?.flatten());
            }
            Ok(found)
        })
        .await
    }

    async fn undo_rows(
        &self,
        table: &'static str,
        keys: &[Key],
        from: Height,
        max_rows: usize,
    ) -> Result<Option<UndoRows>> {
        let keys: Vec<_> = keys.iter().map(Key::encode).collect();
        self.read(table, move |conn, table, _, deadline| {
            let (mut found, mut left) = (Vec::with_capacity(keys.len()), max_rows);
            for (n, key) in keys.iter().enumerate() {
                if n.is_multiple_of(scan::LOOK_EVERY) {
                    demand_time(deadline)?;
                }
                let Some(undo) = forks::undo_from(conn, table, key, from, left)? else { return Ok(None) };
                left -= undo.len();
                found.push(undo);
            }
            Ok(Some(found))
        })
        .await
    }

    async fn scan(&self, scan: &Scan) -> Result<ScanPage> {
        let table = self.tables.get(scan.table)?;
        if table.table.is_ordered_by_state(scan.index)? && !self.view.forks.is_settled() {
            return Err(StoreError::NotYet {
                what: format!("{} by {}", scan.table, scan.index.unwrap_or("key")),
            });
        }
        let walk = scan::Walk::new(table, scan, self.bounds(table))?;
        self.read(scan.table, move |conn, table, bounds, deadline| walk.run(conn, table, bounds, deadline))
            .await
    }

    async fn events(
        &self,
        table: &'static str,
        from: Height,
        to_exclusive: Height,
        max_bytes: usize,
    ) -> Result<(Vec<Row>, Height)> {
        let sql = self.tables.get(table)?;
        if !sql.is_events() {
            return Err(StoreError::Invalid(format!("table {table} has no events")));
        }
        let end = self.bounds(sql).next.map_or(from, |next| to_exclusive.min(next)).max(from);
        if from == end {
            return Ok((Vec::new(), end));
        }
        self.read(table, move |conn, table, _, deadline| {
            scan::events(conn, table, from, end, max_bytes, deadline)
        })
        .await
    }

    async fn made_again_from(&self, service: &str, from: Height) -> Result<Option<Height>> {
        let service = service.to_owned();
        self.transaction.run(move |snapshot, _| leases::made_again_from(&snapshot.conn, &service, from)).await
    }

    async fn quarantined(
        &self,
        services: &[&str],
        heights: HeightRange,
        limit: usize,
    ) -> Result<Quarantined> {
        let known = |service: &&str| {
            let next = self.checkpoint(service)?.next;
            Some(((*service).to_owned(), heights.end().min(next)))
        };
        let mut ends: Vec<(String, Height)> = services.iter().filter_map(known).collect();
        ends.sort_unstable();
        ends.dedup();
        self.transaction
            .run(move |from, _| {
                let mut found = Quarantined::default();
                for (service, end) in &ends {
                    let (lowest, total) = quarantined::of(&from.conn, service, heights.start(), *end, limit)?;
                    found.lowest.extend(lowest);
                    found.total += total;
                }
                found.lowest.sort_unstable();
                found.lowest.truncate(limit);
                Ok(found)
            })
            .await
    }

    async fn newest_asked(&self, table: &'static str) -> Result<Option<Height>> {
        let sql = self.tables.get(table)?;
        if sql.table.def().class != TableClass::Answers {
            return Err(StoreError::Invalid(format!("table {table} has no answers")));
        }
        self.read(table, move |conn, table, _, _| rows::newest(conn, table)).await
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<WorkerLease>> {
        let filter = filter.clone();
        self.transaction.run(move |from, _| leases::list(&from.conn, &filter)).await
    }

    async fn sizes(&self) -> Result<Vec<(String, u64, u64)>> {
        let tables = self.tables.clone();
        self.transaction
            .run(move |from, deadline| {
                tables
                    .all()
                    .iter()
                    .map(|table| {
                        demand_time(deadline)?;
                        scan::size(&from.conn, table)
                    })
                    .collect()
            })
            .await
    }
}
