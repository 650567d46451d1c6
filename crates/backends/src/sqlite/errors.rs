//! The error log: `indexing_errors` in the raw store's file, written through the ingester's connection, one short transaction a batch.

use async_trait::async_trait;
use cairn_core::BlockId;
use cairn_store::Result;
use cairn_store::derived::{
    ErrorFilter, ErrorLog, LoggedError, MAX_MESSAGE_BYTES, MAX_RAW_DATA_BYTES, NewError, Recorded, Severity,
    rules, within,
};
use rusqlite::{Connection, Row, params};

use super::SqliteStore;
use super::error::db;
use super::head::{get_height, get_id, get_u64, sql};

fn insert(conn: &Connection, error: &NewError, now_ms: i64) -> Result<usize> {
    conn.prepare_cached(
        "INSERT INTO indexing_errors (worker_name, block_height, block_id, transaction_id, error_hash, severity, \
         error_message, raw_data, raw_ref, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) \
         ON CONFLICT (worker_name, block_height, transaction_id, error_hash, block_id) \
         DO UPDATE SET resolved = 0, resolved_at = NULL WHERE resolved <> 0",
    )
    .and_then(|mut statement| {
        statement.execute(params![
            error.service,
            sql(error.height),
            error.block_id.0,
            error.transaction_id,
            error.error_hash(),
            error.severity.as_str(),
            rules::shortened(&error.message, MAX_MESSAGE_BYTES),
            &error.raw_data[..error.raw_data.len().min(MAX_RAW_DATA_BYTES)],
            error.raw_ref,
            now_ms,
        ])
    })
    .map_err(db)
}

/// Whether an error has an open entry.
fn is_open(conn: &Connection, error: &NewError) -> Result<bool> {
    conn.prepare_cached(
        "SELECT 1 FROM indexing_errors WHERE worker_name = ?1 AND block_height = ?2 AND transaction_id = ?3 \
         AND error_hash = ?4 AND block_id = ?5 AND resolved = 0",
    )
    .and_then(|mut statement| {
        let key = params![
            error.service,
            sql(error.height),
            error.transaction_id,
            error.error_hash(),
            error.block_id.0
        ];
        statement.exists(key)
    })
    .map_err(db)
}

/// How many open entries a service has, counted up to `most`.
fn count_open(conn: &Connection, service: &str, most: u64) -> Result<u64> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM indexing_errors WHERE resolved = 0 AND worker_name = ?1 LIMIT ?2)",
    )
    .and_then(|mut statement| statement.query_row(params![service, most], |row| get_u64(row, 0)))
    .map_err(db)
}

fn logged(row: &Row<'_>) -> rusqlite::Result<LoggedError> {
    let severity: String = row.get(6)?;
    let severity = Severity::parse(&severity)
        .ok_or_else(|| rusqlite::Error::InvalidColumnType(6, severity, rusqlite::types::Type::Text))?;
    Ok(LoggedError {
        id: get_u64(row, 0)?,
        error: NewError {
            service: row.get(1)?,
            height: get_height(row, 2)?,
            block_id: get_id(row, 3)?,
            transaction_id: row.get(4)?,
            severity,
            message: row.get(7)?,
            raw_data: row.get(8)?,
            raw_ref: row.get(9)?,
        },
        error_hash: row.get(5)?,
        resolved: row.get(10)?,
        created_at_ms: get_u64(row, 11)?,
    })
}

impl SqliteStore {
    async fn read_errors<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let max_ms = self.shared.options.snapshot_max_ms;
        let (_, answer) = self.shared.pool.begin(max_ms, |conn| read(conn).map_err(db)).await?;
        Ok(answer)
    }
}

#[async_trait]
impl ErrorLog for SqliteStore {
    async fn record(&self, errors: &[NewError]) -> Result<u64> {
        if errors.is_empty() {
            return Ok(0);
        }
        let errors = errors.to_vec();
        self.write(move |shared| {
            let now_ms = i64::try_from(shared.now_ms()).unwrap_or(i64::MAX);
            shared.commit("record", |tx, _| {
                errors.iter().map(|error| insert(tx, error, now_ms).map(|new| new as u64)).sum()
            })
        })
        .await
    }

    async fn record_within(&self, errors: &[NewError], max_open: u64) -> Result<Recorded> {
        let Some(service) = errors.first().map(|first| first.service.clone()) else {
            return Ok(Recorded::default());
        };
        let errors = errors.to_vec();
        self.write(move |shared| {
            let now_ms = i64::try_from(shared.now_ms()).unwrap_or(i64::MAX);
            shared.commit("record", |tx, _| {
                let room = max_open - count_open(tx, &service, max_open)?;
                let open = errors.iter().map(|error| is_open(tx, error)).collect::<Result<Vec<bool>>>()?;
                let (kept, dropped) = within(&errors, room, |at| open[at]);
                let new = kept.iter().map(|error| insert(tx, error, now_ms).map(|new| new as u64));
                Ok(Recorded { new: new.sum::<Result<u64>>()?, dropped })
            })
        })
        .await
    }

    async fn list(&self, filter: &ErrorFilter) -> Result<Vec<LoggedError>> {
        let filter = filter.clone();
        self.read_errors(move |conn| {
            let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
            let after = i64::try_from(filter.after_id).unwrap_or(i64::MAX);
            let mut statement = conn.prepare_cached(
                "SELECT id, worker_name, block_height, block_id, transaction_id, error_hash, severity, error_message, \
                 raw_data, raw_ref, resolved, created_at FROM indexing_errors \
                 WHERE id > ?1 AND (?2 IS NULL OR worker_name = ?2) AND (?3 OR resolved = 0) \
                 AND (?4 IS NULL OR block_height = ?4) ORDER BY id LIMIT ?5",
            )?;
            let bounds = params![after, filter.service, filter.resolved, filter.height.map(sql), limit];
            statement.query_map(bounds, logged)?.collect()
        })
        .await
    }

    async fn count_unresolved(&self) -> Result<u64> {
        self.read_errors(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT count(*) FROM indexing_errors WHERE resolved = 0")?;
            statement.query_row([], |row| get_u64(row, 0))
        })
        .await
    }

    async fn resolve(&self, ids: &[u64]) -> Result<u64> {
        let ids: Vec<i64> = ids.iter().filter_map(|id| i64::try_from(*id).ok()).collect();
        self.write(move |shared| {
            let now_ms = i64::try_from(shared.now_ms()).unwrap_or(i64::MAX);
            shared.commit("resolve", |tx, _| {
                let mut statement = tx
                    .prepare_cached(
                        "UPDATE indexing_errors SET resolved = 1, resolved_at = ?2 WHERE id = ?1 AND resolved = 0",
                    )
                    .map_err(db)?;
                ids.iter()
                    .map(|id| statement.execute([id, &now_ms]).map(|open| open as u64).map_err(db))
                    .sum()
            })
        })
        .await
    }

    async fn prune_closed(&self, age_ms: u64, limit: usize) -> Result<u64> {
        self.write(move |shared| {
            let before_ms = i64::try_from(shared.now_ms().saturating_sub(age_ms)).unwrap_or(i64::MAX);
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            shared.commit("prune_closed", |tx, _| {
                tx.prepare_cached(
                    "DELETE FROM indexing_errors WHERE id IN \
                     (SELECT id FROM indexing_errors WHERE resolved = 1 AND resolved_at < ?1 LIMIT ?2)",
                )
                .and_then(|mut statement| statement.execute([before_ms, limit]))
                .map(|gone| gone as u64)
                .map_err(db)
            })
        })
        .await
    }

    async fn forget_blocks(&self, blocks: &[BlockId]) -> Result<u64> {
        let blocks = blocks.to_vec();
        self.write(move |shared| {
            shared.commit("forget_blocks", |tx, _| {
                let mut statement =
                    tx.prepare_cached("DELETE FROM indexing_errors WHERE block_id = ?1").map_err(db)?;
                blocks.iter().map(|id| statement.execute([id.0]).map(|gone| gone as u64).map_err(db)).sum()
            })
        })
        .await
    }
}
