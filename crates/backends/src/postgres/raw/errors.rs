//! The error log, `raw.indexing_errors`: what could not be indexed, once each. It locks nothing that raw ingestion waits for.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::BlockId;
use cairn_store::Result;
use cairn_store::derived::{
    ErrorFilter, ErrorLog, LoggedError, MAX_MESSAGE_BYTES, MAX_RAW_DATA_BYTES, NewError, Recorded, Severity,
    within,
};
use tokio_postgres::Row;

use super::PgRawStore;
use super::head::{get_height, get_id, get_u64, sql};
use super::tx::Tx;
use crate::postgres::copy::{PgTimestamp, without_nul};
use crate::postgres::error::{corrupt, db};

/// The longest age that is told from no age, a thousand years.
const MAX_AGE_MS: u64 = 1_000 * 366 * 86_400_000;

/// The rows of some errors, column by column.
#[derive(Default)]
struct Columns {
    /// Each one's place among those that were given, from 1.
    places: Vec<i64>,
    services: Vec<String>,
    heights: Vec<i64>,
    block_ids: Vec<Vec<u8>>,
    transaction_ids: Vec<String>,
    hashes: Vec<String>,
    severities: Vec<&'static str>,
    messages: Vec<String>,
    raw_data: Vec<Vec<u8>>,
    raw_refs: Vec<Option<String>>,
}

impl Columns {
    /// In key order, so that two that record the same errors don't wait for each other in a circle (P02); each once, since PostgreSQL refuses a
    /// statement that would update a row twice.
    fn of(errors: &[NewError]) -> Self {
        let mut sorted = BTreeMap::new();
        for (place, error) in (1..).zip(errors) {
            let service = without_nul(&error.service).into_owned();
            let transaction_id = without_nul(&error.transaction_id).into_owned();
            let key = (service, error.height, transaction_id, error.error_hash(), error.block_id);
            sorted.entry(key).or_insert((place, error));
        }
        let mut columns = Columns::default();
        for ((service, height, transaction_id, hash, block_id), (place, error)) in sorted {
            columns.places.push(place);
            columns.services.push(service);
            columns.heights.push(sql(height));
            columns.block_ids.push(block_id.0.to_vec());
            columns.transaction_ids.push(transaction_id);
            columns.hashes.push(hash);
            columns.severities.push(error.severity.as_str());
            columns.messages.push(cut(&without_nul(&error.message)).to_owned());
            let kept = error.raw_data.len().min(MAX_RAW_DATA_BYTES);
            columns.raw_data.push(error.raw_data[..kept].to_vec());
            columns.raw_refs.push(error.raw_ref.as_deref().map(|raw_ref| without_nul(raw_ref).into_owned()));
        }
        columns
    }
}

/// At most so many bytes of a text, cut between characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_MESSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes rows, in one statement.
async fn insert(tx: &Tx, rows: &Columns, now: Option<PgTimestamp>) -> Result<u64> {
    // Written in the order of their keys, numbered in the order in which they came.
    let numbers = tx
        .query(
            "SELECT nextval(pg_get_serial_sequence('raw.indexing_errors', 'id')) \
             FROM generate_series(1, $1::bigint) ORDER BY 1",
            &[&rows.places.iter().copied().max().unwrap_or(0)],
        )
        .await?;
    let numbers: Vec<i64> = numbers.iter().map(|row| row.try_get(0).map_err(db)).collect::<Result<_>>()?;
    tx.execute(
        "INSERT INTO raw.indexing_errors (id, worker_name, block_height, block_id, transaction_id, error_hash, \
         severity, error_message, raw_data, raw_ref, created_at) OVERRIDING SYSTEM VALUE \
         SELECT ($11::bigint[])[e.place], e.worker_name, e.block_height, e.block_id, e.transaction_id, e.error_hash, \
         e.severity, e.error_message, e.raw_data, e.raw_ref, coalesce($12::timestamptz, clock_timestamp()) \
         FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bytea[], $5::text[], $6::text[], $7::text[], \
         $8::text[], $9::bytea[], $10::text[]) AS e (place, worker_name, block_height, block_id, transaction_id, \
         error_hash, severity, error_message, raw_data, raw_ref) \
         ON CONFLICT (worker_name, block_height, transaction_id, error_hash, block_id) \
         DO UPDATE SET resolved = FALSE, resolved_at = NULL WHERE indexing_errors.resolved",
        &[
            &rows.places,
            &rows.services,
            &rows.heights,
            &rows.block_ids,
            &rows.transaction_ids,
            &rows.hashes,
            &rows.severities,
            &rows.messages,
            &rows.raw_data,
            &rows.raw_refs,
            &numbers,
            &now,
        ],
    )
    .await
}

impl PgRawStore {
    /// The clock's time, where it isn't the server's.
    fn now(&self) -> Option<PgTimestamp> {
        self.shared.clock.as_ref().map(|clock| PgTimestamp(clock.now_ms()))
    }
}

#[async_trait]
impl ErrorLog for PgRawStore {
    async fn record(&self, errors: &[NewError]) -> Result<u64> {
        if errors.is_empty() {
            return Ok(0);
        }
        let columns = Arc::new(Columns::of(errors));
        let now = self.now();
        self.shared
            .commit("record_errors", |tx| {
                let columns = columns.clone();
                Box::pin(async move { insert(tx, &columns, now).await })
            })
            .await
    }

    async fn record_within(&self, errors: &[NewError], max_open: u64) -> Result<Recorded> {
        let Some(service) = errors.first().map(|first| without_nul(&first.service).into_owned()) else {
            return Ok(Recorded::default());
        };
        let errors = Arc::new((errors.to_vec(), Columns::of(errors), service));
        let now = self.now();
        self.shared
            .commit("record_errors", |tx| {
                let errors = errors.clone();
                Box::pin(async move {
                    let (errors, columns, service) = &*errors;
                    // Those that record of one service count one after the other.
                    tx.execute(
                        "SELECT pg_advisory_xact_lock(hashtextextended('cairn.raw.errors ' || $1, 0))",
                        &[service],
                    )
                    .await?;
                    let most = i64::try_from(max_open).unwrap_or(i64::MAX);
                    let open = tx
                        .query(
                            "SELECT count(*) FROM (SELECT FROM raw.indexing_errors \
                             WHERE NOT resolved AND worker_name = $1 LIMIT $2) AS open",
                            &[service, &most],
                        )
                        .await?;
                    let open = open.first().map_or(Ok(0), |row| get_u64(row, 0))?;
                    let known = tx
                        .query(
                            "SELECT e.place FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bytea[]) \
                             AS e (place, block_height, transaction_id, error_hash, block_id) \
                             JOIN raw.indexing_errors AS known ON known.worker_name = $6 \
                             AND known.block_height = e.block_height AND known.transaction_id = e.transaction_id \
                             AND known.error_hash = e.error_hash AND known.block_id = e.block_id AND NOT known.resolved",
                            &[
                                &columns.places,
                                &columns.heights,
                                &columns.transaction_ids,
                                &columns.hashes,
                                &columns.block_ids,
                                service,
                            ],
                        )
                        .await?;
                    let places: HashSet<u64> =
                        known.iter().map(|row| get_u64(row, 0)).collect::<Result<_>>()?;
                    let (kept, dropped) =
                        within(errors, max_open - open, |at| places.contains(&(at as u64 + 1)));
                    let new = match kept.is_empty() {
                        true => 0,
                        false => insert(tx, &Columns::of(&kept), now).await?,
                    };
                    Ok(Recorded { new, dropped })
                })
            })
            .await
    }

    async fn list(&self, filter: &ErrorFilter) -> Result<Vec<LoggedError>> {
        let conn = self.shared.pool.get().await?;
        let rows = conn
            .query(
                "SELECT id, worker_name, block_height, block_id, transaction_id, severity, error_message, raw_data, raw_ref, \
                 error_hash, resolved, created_at FROM raw.indexing_errors \
                 WHERE id > $1 AND ($2 OR NOT resolved) AND ($3::text IS NULL OR worker_name = $3) \
                 AND ($4::bigint IS NULL OR block_height = $4) ORDER BY id LIMIT $5",
                &[
                    &i64::try_from(filter.after_id).unwrap_or(i64::MAX),
                    &filter.resolved,
                    &filter.service,
                    &filter.height.map(sql),
                    &i64::try_from(filter.limit).unwrap_or(i64::MAX),
                ],
            )
            .await?;
        rows.iter().map(logged).collect()
    }

    async fn count_unresolved(&self) -> Result<u64> {
        let conn = self.shared.pool.get().await?;
        let row = conn.query_one("SELECT count(*) FROM raw.indexing_errors WHERE NOT resolved", &[]).await?;
        get_u64(&row, 0)
    }

    async fn resolve(&self, ids: &[u64]) -> Result<u64> {
        let ids: Arc<Vec<i64>> = Arc::new(ids.iter().filter_map(|id| i64::try_from(*id).ok()).collect());
        let now = self.now();
        self.shared
            .commit("resolve_errors", |tx| {
                let ids = ids.clone();
                Box::pin(async move {
                    tx.execute(
                        "UPDATE raw.indexing_errors SET resolved = TRUE, \
                         resolved_at = coalesce($2::timestamptz, clock_timestamp()) \
                         WHERE NOT resolved AND id IN \
                         (SELECT id FROM raw.indexing_errors WHERE id = ANY($1) ORDER BY id FOR UPDATE)",
                        &[&*ids, &now],
                    )
                    .await
                })
            })
            .await
    }

    async fn prune_closed(&self, age_ms: u64, limit: usize) -> Result<u64> {
        let now = self.now();
        // PostgreSQL's times end long before the largest number.
        let age_ms = age_ms.min(MAX_AGE_MS) as i64;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.shared
            .commit("prune_closed", |tx| {
                Box::pin(async move {
                    tx.execute(
                        "DELETE FROM raw.indexing_errors WHERE id IN \
                         (SELECT id FROM raw.indexing_errors WHERE resolved AND resolved_at < \
                         coalesce($1::timestamptz, clock_timestamp()) - $2::bigint * interval '1 millisecond' \
                         ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)",
                        &[&now, &age_ms, &limit],
                    )
                    .await
                })
            })
            .await
    }

    async fn forget_blocks(&self, blocks: &[BlockId]) -> Result<u64> {
        let ids: Arc<Vec<Vec<u8>>> = Arc::new(blocks.iter().map(|id| id.0.to_vec()).collect());
        self.shared
            .commit("forget_errors", |tx| {
                let ids = ids.clone();
                Box::pin(async move {
                    tx.execute(
                        "DELETE FROM raw.indexing_errors WHERE id IN \
                         (SELECT id FROM raw.indexing_errors WHERE block_id = ANY($1) ORDER BY id FOR UPDATE)",
                        &[&*ids],
                    )
                    .await
                })
            })
            .await
    }
}

fn logged(row: &Row) -> Result<LoggedError> {
    let severity: &str = row.try_get(5).map_err(db)?;
    let severity = Severity::parse(severity)
        .ok_or_else(|| corrupt("raw.indexing_errors, column severity", format!("{severity} is unknown")))?;
    let created_at: PgTimestamp = row.try_get(11).map_err(db)?;
    Ok(LoggedError {
        id: get_u64(row, 0)?,
        error: NewError {
            service: row.try_get(1).map_err(db)?,
            height: get_height(row, 2)?,
            block_id: get_id(row, 3)?,
            transaction_id: row.try_get(4).map_err(db)?,
            severity,
            message: row.try_get(6).map_err(db)?,
            raw_data: row.try_get(7).map_err(db)?,
            raw_ref: row.try_get(8).map_err(db)?,
        },
        error_hash: row.try_get(9).map_err(db)?,
        resolved: row.try_get(10).map_err(db)?,
        created_at_ms: created_at.0,
    })
}

#[cfg(test)]
mod tests {
    use cairn_core::Height;

    use super::*;

    #[test]
    fn errors_are_recorded_in_one_order_and_cut() {
        let error = |service: &str, height: u64, message: String| NewError {
            service: service.into(),
            height: Height(height),
            block_id: BlockId([1; 32]),
            transaction_id: String::new(),
            severity: Severity::Warn,
            message,
            raw_data: vec![7; MAX_RAW_DATA_BYTES + 1],
            raw_ref: None,
        };
        let long = format!("{}\u{20ac}", "x".repeat(MAX_MESSAGE_BYTES - 1));
        let columns =
            Columns::of(&[error("b", 1, long), error("a", 9, "nul \0".into()), error("a", 2, String::new())]);
        assert_eq!(columns.services, ["a", "a", "b"]);
        assert_eq!(columns.heights, [2, 9, 1]);
        assert_eq!(columns.messages[1], "nul \u{fffd}");
        assert_eq!(columns.messages[2].len(), MAX_MESSAGE_BYTES - 1);
        assert_eq!(columns.raw_data[0].len(), MAX_RAW_DATA_BYTES);
    }
}
