//! A consistent view: one REPEATABLE READ transaction on a connection of the readers' pool.
//!
//! Where it stands (forks, checkpoints) is read first. It ends by itself when it gets too old; statements that run then run to
//! their end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::answers;
use cairn_store::derived::{
    DerivedCheckpoint, DerivedReader, DerivedSnapshot, ForkState, Key, LeaseFilter, MAX_ATTEMPTS,
    Quarantined, Rebuild, Row, Scan, ScanPage, Standing, TableClass, UndoRows, Value, WorkerLease,
};
use cairn_store::{Result, StoreError};
use futures::pin_mut;
use tokio::task::AbortHandle;

use super::lease::{
    CHECKPOINT_COLUMNS, CHECKPOINT_WIDTH, LEASE_COLUMNS, checkpoint_of, column, forks_of, lease_at,
    leases_of, not_adopted, of_table,
};
use super::rebuilds::rebuild_of;
use super::scan::Walk;
use super::tables::{Arrays, PgTable, runs};
use super::{PgDerived, int, int_of, quarantined, rebuilds, table_of};
use crate::postgres::error::{corrupt, db};
use crate::postgres::pipeline::pipeline;
use crate::postgres::{Isolation, PgConn, PgPool};

/// Every list has its index, and each statement one plan: the one along it. Left to itself the planner may walk a whole table for a
/// page that it believes to be near.
pub(super) const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET enable_sort = off; \
     SET enable_bitmapscan = off; SET enable_seqscan = off; SET enable_hashjoin = off; \
     SET enable_mergejoin = off; SET enable_hashagg = off";

/// How many rows `events` asks for at a time.
const EVENT_ROWS: i64 = 4_096;

/// How many idle connections may turn out to be dead before reading gives up.
const MAX_DEAD: usize = 64;

#[async_trait]
impl DerivedReader for PgDerived {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        Ok(Arc::new(self.open_snapshot().await?))
    }

    async fn standing(&self, max_leases: usize) -> Result<Standing> {
        // A service that is being cleared has no checkpoint, and leases all the same.
        let sql = format!(
            "SELECT {}, {} FROM app.indexing_checkpoints c FULL JOIN (
                 SELECT * FROM app.worker_leases WHERE status <> 'COMPLETED' ORDER BY worker_type, from_height, id LIMIT $1
             ) l ON l.worker_type = c.service_name",
            of_table("c", CHECKPOINT_COLUMNS),
            of_table("l", LEASE_COLUMNS)
        );
        let limit = int_of(max_leases.saturating_add(1) as u64);
        let rows = self.shared.read.ask_quickly(&sql, &[&limit]).await?;
        let mut checkpoints: Vec<DerivedCheckpoint> = Vec::new();
        let mut open = Vec::new();
        for row in &rows {
            let service = column::<Option<&str>>(row, 0)?;
            if let Some(service) = service
                && checkpoints.iter().all(|known| known.service != service)
            {
                checkpoints.push(checkpoint_of(row)?);
            }
            if column::<Option<i64>>(row, CHECKPOINT_WIDTH)?.is_some() {
                open.push(lease_at(row, CHECKPOINT_WIDTH)?);
            }
        }
        Ok(Standing::new(checkpoints, open, max_leases))
    }
}

impl PgDerived {
    /// How the server runs a scan, with the pages that it touched: for operators and benchmarks.
    pub async fn explain(&self, scan: &Scan) -> Result<String> {
        let snapshot = self.open_snapshot().await?;
        let table = snapshot.table(scan.table)?;
        Walk::new(table, scan, snapshot.hidden_from(table))?.explain(&snapshot).await
    }

    async fn open_snapshot(&self) -> Result<PgSnapshot> {
        // Where it stands, the first orphan of the reorg under way, and what is seldom there and asked for only then.
        const STANDS: &str =
            "SELECT raw_uuid, base_id, applied_id, applied_digest, begun_id, begun_digest,
                 CASE WHEN begun_id > applied_id THEN (SELECT first_orphan FROM app.reorgs_applied WHERE id = begun_id) END,
                 EXISTS (SELECT FROM app.rebuilds),
                 EXISTS (SELECT FROM app.worker_leases WHERE kind = 'reindex' AND status <> 'COMPLETED')
             FROM app.reorg_state";
        let conn = begin(&self.shared.read).await?;
        let checkpoints =
            format!("SELECT {CHECKPOINT_COLUMNS} FROM app.indexing_checkpoints ORDER BY service_name");
        let statements = [conn.prepare(STANDS).await?, conn.prepare(&checkpoints).await?];
        let client = conn.client()?;
        let (stands, checkpoints) = conn
            .answer(pipeline!(client.query_opt(&statements[0], &[]), client.query(&statements[1], &[]),))
            .await?
            .map_err(db)?;
        let stands = stands.ok_or_else(not_adopted)?;
        let (forks, _) = forks_of(&stands)?;
        let first_orphan: Option<i64> = column(&stands, 6)?;
        let rebuilds = match column(&stands, 7)? {
            true => conn.query(rebuilds::ALL, &[]).await?,
            false => Vec::new(),
        };
        let is_reindexed = column(&stands, 8)?;
        let max_ms = self.shared.options.snapshot_max_ms;
        let conn = Arc::new(Mutex::new(Some(Arc::new(conn))));
        let timer = max_ms.map(|ms| {
            let conn = Arc::downgrade(&conn);
            let ending = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                if let Some(conn) = conn.upgrade() {
                    conn.lock().unwrap_or_else(PoisonError::into_inner).take();
                }
            });
            ending.abort_handle()
        });
        Ok(PgSnapshot {
            tables: self.shared.tables.clone(),
            statement_bytes: self.shared.options.statement_bytes,
            conn,
            timer,
            max_ms: max_ms.unwrap_or(0),
            checkpoints: checkpoints.iter().map(checkpoint_of).collect::<Result<_>>()?,
            rebuilds: rebuilds.iter().map(rebuild_of).collect::<Result<_>>()?,
            forks,
            first_orphan: first_orphan.map(|height| Height(height.max(0) as u64)),
            is_reindexed,
        })
    }
}

/// A transaction on a connection that lives: idle ones may have died unnoticed.
async fn begin(pool: &PgPool) -> Result<PgConn> {
    for _ in 0..MAX_DEAD {
        let mut conn = pool.get().await?;
        match conn.begin(Isolation::Snapshot).await {
            Err(StoreError::Busy(_)) if conn.is_closed() => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(conn),
        }
    }
    Err(StoreError::Busy("every connection to PostgreSQL is dead".into()))
}

pub(super) struct PgSnapshot {
    tables: Arc<Vec<PgTable>>,
    statement_bytes: usize,
    /// `None` when it got too old.
    conn: Arc<Mutex<Option<Arc<PgConn>>>>,
    timer: Option<AbortHandle>,
    max_ms: u64,
    forks: ForkState,
    checkpoints: Vec<DerivedCheckpoint>,
    rebuilds: Vec<Rebuild>,
    /// Of the entry that is being applied.
    first_orphan: Option<Height>,
    /// Whether rows of any service are being rebuilt.
    is_reindexed: bool,
}

impl Drop for PgSnapshot {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

impl PgSnapshot {
    pub(super) fn conn(&self) -> Result<Arc<PgConn>> {
        let conn = self.conn.lock().unwrap_or_else(PoisonError::into_inner).clone();
        conn.ok_or_else(|| {
            StoreError::Busy(format!("the snapshot was ended after {} ms: open another one", self.max_ms))
        })
    }

    pub(super) fn table(&self, name: &str) -> Result<&PgTable> {
        table_of(&self.tables, name)
    }

    /// Rows of this table at or above this height are not to be seen; `None`: all are. State and answers are to be read through the undo table there.
    pub(super) fn hidden_from(&self, table: &PgTable) -> Option<Height> {
        let next =
            || self.checkpoint(table.table.def().service).map_or(Height::ZERO, |checkpoint| checkpoint.next);
        match table.table.def().class {
            TableClass::Events { .. } | TableClass::State => Some(next()),
            TableClass::Answers => self.first_orphan,
            TableClass::Content => None,
        }
    }

    /// State as it was at the checkpoint, and answers as they were below the reorg under way, for rows as they are: through the undo table where they
    /// are above it.
    pub(super) async fn as_seen(
        &self,
        conn: &PgConn,
        table: &PgTable,
        rows: Vec<Row>,
    ) -> Result<Vec<Option<Row>>> {
        const UNDO: &str = "SELECT k.n, u.previous FROM unnest($2::bytea[]) WITH ORDINALITY AS k(key, n)
             CROSS JOIN LATERAL (SELECT previous FROM app.state_undo u WHERE u.table_name = $1 AND u.key = k.key AND u.height >= $3
                                 ORDER BY u.table_name, u.key, u.height LIMIT 1) u";
        let class = table.table.def().class;
        let hidden_from = match (class, self.hidden_from(table)) {
            (TableClass::State, hidden_from) => hidden_from.unwrap_or(Height::ZERO),
            (TableClass::Answers, Some(hidden_from)) => hidden_from,
            _ => return Ok(rows.into_iter().map(Some).collect()),
        };
        let is_above = |row: &Row| {
            let at = table.table.height_column();
            at.and_then(|at| row.0[at].as_height()).is_none_or(|height| height >= hidden_from)
        };
        let above: Vec<usize> = (0..rows.len()).filter(|&at| is_above(&rows[at])).collect();
        let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
        if above.is_empty() {
            return Ok(rows);
        }
        let keys: Vec<bytes::Bytes> = above
            .iter()
            .filter_map(|&at| rows[at].as_ref())
            .map(|row| table.table.key_of(row).encode())
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_ref()).collect();
        let found = conn.query(UNDO, &[&table.table.name(), &keys, &int(hidden_from)]).await?;
        if class == TableClass::State && found.len() != above.len() {
            return Err(corrupt(
                format!("table {}", table.table.name()),
                format!(
                    "{} rows are above the checkpoint of {}, height {hidden_from}, and only {} have an undo row",
                    above.len(),
                    table.table.def().service,
                    found.len()
                ),
            ));
        }
        // An answer without an undo row was the first one.
        above.iter().for_each(|&at| rows[at] = None);
        for row in &found {
            let place: i64 = column(row, 0)?;
            let previous: Option<&[u8]> = column(row, 1)?;
            let at = usize::try_from(place - 1).ok().and_then(|place| above.get(place).copied());
            let at = at.ok_or_else(|| corrupt("app.state_undo", "an answer to nothing that was asked"))?;
            let previous = previous.map(Row::decode).transpose()?;
            rows[at] = match class {
                TableClass::Answers => answers::below(&table.table, previous, hidden_from)?,
                _ => previous,
            };
        }
        Ok(rows)
    }
}

#[async_trait]
impl DerivedSnapshot for PgSnapshot {
    fn forks(&self) -> &ForkState {
        &self.forks
    }

    fn checkpoints(&self) -> &[DerivedCheckpoint] {
        &self.checkpoints
    }

    fn rebuilds(&self) -> &[Rebuild] {
        &self.rebuilds
    }

    async fn rows(&self, table: &'static str, keys: &[Key]) -> Result<Vec<Option<Row>>> {
        let table = self.table(table)?;
        let key_columns = table.table.key_columns();
        for key in keys {
            let is_right = key.0.len() == key_columns.len()
                && key
                    .0
                    .iter()
                    .zip(key_columns)
                    .all(|(value, &at)| value.is_of(table.table.def().columns[at].ty));
            if !is_right {
                return Err(StoreError::Invalid(format!(
                    "table {}: {key:?} is no key of it",
                    table.table.name()
                )));
            }
        }
        let mut answer: Vec<Option<Row>> = vec![None; keys.len()];
        let hidden_from = self.hidden_from(table);
        if hidden_from == Some(Height::ZERO) {
            return Ok(answer);
        }
        let conn = self.conn()?;
        let size = |key: &Key| key.0.iter().map(cairn_store::derived::Value::size_bytes).sum();
        let mut done = 0;
        for run in runs(keys, self.statement_bytes, size) {
            let arrays = Arrays::of_keys(key_columns.len(), run);
            let found = conn.query(&table.by_keys, &arrays.params()).await?;
            let mut places = Vec::with_capacity(found.len());
            let mut rows = Vec::with_capacity(found.len());
            for row in &found {
                let place: i64 = column(row, 0)?;
                places.push(done + usize::try_from(place - 1).unwrap_or(0));
                rows.push(table.read(row, 1)?);
            }
            let rows = self.as_seen(&conn, table, rows).await?;
            for (place, row) in places.into_iter().zip(rows) {
                answer[place] = row.filter(|row| !is_hidden(table, row, hidden_from));
            }
            done += run.len();
        }
        Ok(answer)
    }

    async fn undo_rows(
        &self,
        table: &'static str,
        keys: &[Key],
        from: Height,
        max_rows: usize,
    ) -> Result<Option<UndoRows>> {
        const UNDO: &str =
            "SELECT k.n, u.height, u.previous FROM unnest($2::bytea[]) WITH ORDINALITY AS k(key, n)
             JOIN app.state_undo u ON u.table_name = $1 AND u.key = k.key AND u.height >= $3 ORDER BY k.n, u.height LIMIT $4";
        let table = self.table(table)?;
        let mut undo: UndoRows = vec![Vec::new(); keys.len()];
        let (conn, mut left, mut done) = (self.conn()?, max_rows, 0);
        for run in runs(keys, self.statement_bytes, |key| key.0.iter().map(Value::size_bytes).sum()) {
            let encoded: Vec<bytes::Bytes> = run.iter().map(Key::encode).collect();
            let encoded: Vec<&[u8]> = encoded.iter().map(|key| key.as_ref()).collect();
            let limit = int_of((left as u64).saturating_add(1));
            let found = conn.query(UNDO, &[&table.table.name(), &encoded, &int(from), &limit]).await?;
            left = match left.checked_sub(found.len()) {
                Some(left) => left,
                None => return Ok(None),
            };
            for row in &found {
                let (place, height): (i64, i64) = (column(row, 0)?, column(row, 1)?);
                let previous: Option<&[u8]> = column(row, 2)?;
                let previous = previous.map(|bytes| super::answers::decode(table, bytes)).transpose()?;
                let of_key = usize::try_from(place - 1).ok().and_then(|place| undo.get_mut(done + place));
                let of_key =
                    of_key.ok_or_else(|| corrupt("app.state_undo", "an answer to nothing that was asked"))?;
                of_key.push((Height(height.max(0) as u64), previous));
            }
            done += run.len();
        }
        Ok(Some(undo))
    }

    async fn scan(&self, scan: &Scan) -> Result<ScanPage> {
        let table = self.table(scan.table)?;
        if table.table.is_ordered_by_state(scan.index)? && !self.forks.is_settled() {
            let what = format!("table {} along index {}", scan.table, scan.index.unwrap_or("(key)"));
            return Err(StoreError::NotYet { what });
        }
        Walk::new(table, scan, self.hidden_from(table))?.run(self).await
    }

    async fn events(
        &self,
        table: &'static str,
        from: Height,
        to_exclusive: Height,
        max_bytes: usize,
    ) -> Result<(Vec<Row>, Height)> {
        let table = self.table(table)?;
        let (TableClass::Events { .. }, Some(height)) = (table.table.def().class, &table.height) else {
            return Err(StoreError::Invalid(format!("table {} has no events", table.table.name())));
        };
        let end = self.hidden_from(table).map_or(to_exclusive, |hidden| to_exclusive.min(hidden)).max(from);
        if end == from {
            return Ok((Vec::new(), end));
        }
        let conn = self.conn()?;
        let key = table.table.key_columns();
        let (list, order) = (table.columns.join(", "), table.quoted_columns(key));
        let places: Vec<String> = (0..key.len())
            .map(|n| {
                format!("${}::{}", n + 4, super::value::param_type(table.table.def().columns[key[n]].ty))
            })
            .collect();
        let first = format!(
            "SELECT {list} FROM {} WHERE {height} >= $1 AND {height} < $2 ORDER BY {order} LIMIT $3",
            table.name
        );
        let further = format!(
            "SELECT {list} FROM {} WHERE {height} >= $1 AND {height} < $2 AND ({order}) > ({}) ORDER BY {order} LIMIT $3",
            table.name,
            places.join(", ")
        );
        let mut rows: Vec<Row> = Vec::new();
        let mut bytes = 0usize;
        // The last block that is taken, once the limit is passed.
        let mut last: Option<Height> = None;
        let mut start = from;
        loop {
            let after: Option<Key> = rows.last().map(|row| table.table.key_of(row));
            let mut fields = Vec::new();
            if let Some(after) = &after {
                fields.extend(after.0.iter().map(super::value::Field));
            }
            let (low, high) = (int(start), int(end));
            let mut params: Vec<crate::postgres::pool::Param<'_>> = vec![&low, &high, &EVENT_ROWS];
            params.extend(fields.iter().map(|field| field as crate::postgres::pool::Param<'_>));
            let stream = conn.query_stream(if after.is_some() { &further } else { &first }, &params).await?;
            pin_mut!(stream);
            let mut count = 0;
            while let Some(row) = conn.next_row(&mut stream).await? {
                count += 1;
                let row = table.read(&row, 0)?;
                let at =
                    row.0[0].as_height().ok_or_else(|| corrupt(&table.name, "an event below height 0"))?;
                if let Some(last) = last
                    && at > last
                {
                    return Ok((rows, last.next()));
                }
                start = at;
                bytes += row.size_bytes();
                if bytes > max_bytes {
                    last = last.or(Some(at));
                }
                rows.push(row);
            }
            if count < EVENT_ROWS {
                return Ok((rows, end));
            }
        }
    }

    async fn made_again_from(&self, service: &str, from: Height) -> Result<Option<Height>> {
        if !self.is_reindexed {
            return Ok(None);
        }
        let row = self
            .conn()?
            .query_one(
                "SELECT min(done_to) FROM app.worker_leases
                 WHERE worker_type = $1 AND kind = 'reindex' AND status <> 'COMPLETED' AND to_height > $2",
                &[&service, &int_of(from.get())],
            )
            .await?;
        let lowest: Option<i64> = row.try_get(0).map_err(db)?;
        Ok(lowest.map(|lowest| Height(lowest as u64).max(from)))
    }

    async fn quarantined(
        &self,
        services: &[&str],
        heights: HeightRange,
        limit: usize,
    ) -> Result<Quarantined> {
        quarantined::of(&*self.conn()?, services, heights, limit).await
    }

    async fn newest_asked(&self, table: &'static str) -> Result<Option<Height>> {
        let table = self.table(table)?;
        let (TableClass::Answers, Some(height)) = (table.table.def().class, &table.height) else {
            return Err(StoreError::Invalid(format!("table {} has no answers", table.table.name())));
        };
        let sql = format!("SELECT {height} FROM {} ORDER BY {height} DESC LIMIT 1", table.name);
        let newest = self.conn()?.query_opt(&sql, &[]).await?;
        let newest = newest.map(|row| column::<i64>(&row, 0)).transpose()?;
        Ok(newest.map(|height| Height(height.max(0) as u64)))
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<WorkerLease>> {
        let sql = format!(
            "SELECT {LEASE_COLUMNS} FROM app.worker_leases
             WHERE ($1::text IS NULL OR worker_type = $1) AND ($2::text IS NULL OR status = $2)
               AND (NOT $3 OR (status = 'FAILED' AND attempt >= $4)) AND id > $5
             ORDER BY id LIMIT $6"
        );
        let status = filter.status.map(|status| status.as_str());
        let conn = self.conn()?;
        let rows = conn
            .query(
                &sql,
                &[
                    &filter.service,
                    &status,
                    &filter.dead,
                    &i64::from(MAX_ATTEMPTS),
                    &int_of(filter.after_id),
                    &int_of(filter.limit as u64),
                ],
            )
            .await?;
        leases_of(&rows)
    }

    async fn sizes(&self) -> Result<Vec<(String, u64, u64)>> {
        // A partitioned table counts the rows of its partitions once more; only those of the partitions are taken.
        const SIZES: &str = "SELECT c.relname, coalesce(sum(greatest(p.reltuples, 0)) FILTER (WHERE p.relkind = 'r'), 0)::bigint,
                 coalesce(sum(pg_total_relation_size(p.oid)), 0)::bigint
             FROM pg_class c
             CROSS JOIN LATERAL (SELECT c.oid AS relid UNION SELECT relid FROM pg_partition_tree(c.oid)) t
             JOIN pg_class p ON p.oid = t.relid
             WHERE c.relnamespace = 'app'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname = ANY ($1)
             GROUP BY c.relname ORDER BY c.relname";
        let conn = self.conn()?;
        let names: Vec<&str> = self.tables.iter().map(|table| table.table.name()).collect();
        let rows = conn.query(SIZES, &[&names]).await?;
        let size = |row| {
            let name: &str = column(row, 0)?;
            let (rows, bytes): (i64, i64) = (column(row, 1)?, column(row, 2)?);
            Ok((name.to_owned(), rows.max(0) as u64, bytes.max(0) as u64))
        };
        rows.iter().map(size).collect()
    }
}

/// Whether a row that is no state lies where nothing is to be seen.
fn is_hidden(table: &PgTable, row: &Row, hidden_from: Option<Height>) -> bool {
    let (Some(hidden_from), Some(at)) = (hidden_from, table.table.height_column()) else { return false };
    row.0[at].as_height().is_none_or(|height| height >= hidden_from)
}
