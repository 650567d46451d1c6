//! Lookups held against rows, both ways.
//!
//! Above the head, where fills write, lookups are held against rows one way: those without a row go, since they would be in the way of the blocks that come.
//!
//! Looking takes as long as it takes, in a snapshot, and locks nothing: appends go on beside it (law 1). What differs is looked at again and mended in short
//! transactions under the head's lock, by key, so that a reorg in between changes nothing but how little is left to do.

use cairn_core::{Height, HeightRange};
use cairn_store::Result;
use tokio_postgres::Row;

use super::head::{self, get_height, sql};
use super::repair::Repaired;
use super::{Shared, read};
use crate::postgres::error::db;
use crate::postgres::{Isolation, PgConn};

/// Heights whose lookups are written in one transaction, at most.
const HEIGHTS_AT_ONCE: usize = 200;
/// Heights above the head that are looked at in one go.
const ABOVE_STEP_HEIGHTS: u64 = 1_000;
/// Lookups that are removed in one transaction, at most.
const KEYS_AT_ONCE: usize = 2_000;
/// Lookups of one table that one look names, at most; the rest is found by the next look.
const MAX_KEYS: i64 = 100_000;

/// A table of lookups: what of it has no row, and its removal.
struct Lookups {
    /// Keys (id, height, index) that have no row, `LIMIT $3`.
    without_row: &'static str,
    /// Removes those of them, as arrays, that still have none.
    remove: &'static str,
}

static LOOKUPS: [Lookups; 3] = [
    Lookups {
        without_row: "SELECT l.id, l.height, 0::bigint FROM raw.block_lookup l WHERE l.height >= $1 AND l.height < $2 \
             AND NOT EXISTS (SELECT FROM raw.blocks b WHERE b.height = l.height AND b.id = l.id \
               AND b.height >= $1 AND b.height < $2) ORDER BY 1, 2, 3 LIMIT $3",
        remove: "DELETE FROM raw.block_lookup l USING unnest($3::bytea[], $4::bigint[], $5::bigint[]) AS w (id, height, place) \
             WHERE l.id = w.id AND l.height = w.height AND l.height >= $1 AND l.height < $2 \
             AND NOT EXISTS (SELECT FROM raw.blocks b WHERE b.height = l.height AND b.id = l.id)",
    },
    Lookups {
        without_row: "SELECT l.id, l.block_height, l.tx_index::bigint FROM raw.tx_lookup l \
             WHERE l.block_height >= $1 AND l.block_height < $2 AND NOT EXISTS ( \
               SELECT FROM raw.transactions t WHERE t.block_height = l.block_height AND t.id = l.id \
                 AND t.transaction_index = l.tx_index AND t.block_height >= $1 AND t.block_height < $2) \
             ORDER BY 1, 2, 3 LIMIT $3",
        remove: "DELETE FROM raw.tx_lookup l USING unnest($3::bytea[], $4::bigint[], $5::bigint[]) AS w (id, height, place) \
             WHERE l.id = w.id AND l.block_height = w.height AND l.tx_index = w.place \
             AND l.block_height >= $1 AND l.block_height < $2 AND NOT EXISTS ( \
               SELECT FROM raw.transactions t WHERE t.block_height = l.block_height AND t.id = l.id \
                 AND t.transaction_index = l.tx_index)",
    },
    Lookups {
        without_row: "SELECT l.evm_hash, l.height, l.evm_index::bigint FROM raw.evm_lookup l \
             WHERE l.height >= $1 AND l.height < $2 AND NOT EXISTS ( \
               SELECT FROM raw.transactions t WHERE t.block_height = l.height AND t.id = l.tx_id \
                 AND t.block_height >= $1 AND t.block_height < $2) ORDER BY 1, 2, 3 LIMIT $3",
        remove: "DELETE FROM raw.evm_lookup l USING unnest($3::bytea[], $4::bigint[], $5::bigint[]) AS w (id, height, place) \
             WHERE l.evm_hash = w.id AND l.height = w.height AND l.evm_index = w.place \
             AND l.height >= $1 AND l.height < $2 AND NOT EXISTS ( \
               SELECT FROM raw.transactions t WHERE t.block_height = l.height AND t.id = l.tx_id)",
    },
];

/// The heights with rows whose lookup is missing or says something else.
const UNWRITTEN: &str = "SELECT b.height FROM raw.blocks b WHERE b.height >= $1 AND b.height < $2 AND NOT EXISTS ( \
       SELECT FROM raw.block_lookup l WHERE l.id = b.id AND l.height = b.height AND l.timestamp_ms = b.timestamp_ms) \
     UNION SELECT b.height FROM raw.blocks b JOIN raw.transactions t ON t.block_height = b.height \
     WHERE b.height >= $1 AND b.height < $2 AND t.block_height >= $1 AND t.block_height < $2 AND NOT EXISTS ( \
       SELECT FROM raw.tx_lookup l WHERE l.id = t.id AND l.block_height = t.block_height \
         AND l.tx_index = t.transaction_index AND l.block_id = b.id AND l.timestamp_ms = b.timestamp_ms) ORDER BY 1";

/// Writes the lookups of some heights, in key order (P02). One that says the same is left alone.
const WRITE: [&str; 2] = [
    "INSERT INTO raw.block_lookup (height, timestamp_ms, id) \
     SELECT b.height, b.timestamp_ms, b.id FROM raw.blocks b \
     WHERE b.height = ANY($3) AND b.height >= $1 AND b.height < $2 AND NOT EXISTS ( \
       SELECT FROM raw.block_lookup l WHERE l.id = b.id AND l.height = b.height AND l.timestamp_ms = b.timestamp_ms) \
     ORDER BY b.id ON CONFLICT (id) DO UPDATE SET height = EXCLUDED.height, timestamp_ms = EXCLUDED.timestamp_ms",
    "INSERT INTO raw.tx_lookup (block_height, tx_index, timestamp_ms, id, block_id) \
     SELECT t.block_height, t.transaction_index, b.timestamp_ms, t.id, b.id \
     FROM raw.blocks b JOIN raw.transactions t ON t.block_height = b.height \
     WHERE b.height = ANY($3) AND t.block_height = ANY($3) AND b.height >= $1 AND b.height < $2 \
       AND t.block_height >= $1 AND t.block_height < $2 AND NOT EXISTS ( \
       SELECT FROM raw.tx_lookup l WHERE l.id = t.id AND l.block_height = t.block_height \
         AND l.tx_index = t.transaction_index AND l.block_id = b.id AND l.timestamp_ms = b.timestamp_ms) \
     ORDER BY t.id, t.block_height, t.transaction_index ON CONFLICT (id, block_height, tx_index) \
     DO UPDATE SET timestamp_ms = EXCLUDED.timestamp_ms, block_id = EXCLUDED.block_id",
];

/// The heights without a block, or whose rows don't fit its counts. Each table's rows of the range are counted in one walk.
const DAMAGED: &str = "SELECT h.height FROM generate_series($1::bigint, $2::bigint - 1) AS h (height) \
     LEFT JOIN raw.blocks b ON b.height = h.height AND b.height >= $1 AND b.height < $2 \
     LEFT JOIN (SELECT block_height, count(*) AS rows, sum(event_count) AS event_count FROM raw.transactions \
       WHERE block_height >= $1 AND block_height < $2 GROUP BY block_height) t ON t.block_height = h.height \
     LEFT JOIN (SELECT block_height, count(*) AS rows FROM raw.events \
       WHERE block_height >= $1 AND block_height < $2 GROUP BY block_height) e ON e.block_height = h.height \
     WHERE b.height IS NULL OR b.tx_count <> coalesce(t.rows, 0) \
       OR (b.layout IS NOT NULL AND (b.event_count <> coalesce(e.rows, 0) OR coalesce(t.event_count, 0) <> coalesce(e.rows, 0))) \
     ORDER BY 1";

/// The heights whose count of events no row can contradict.
const SILENT: &str = "SELECT height FROM raw.blocks WHERE height >= $1 AND height < $2 AND event_count = 0 AND layout IS NULL \
     AND receipts_bytes > 0 ORDER BY 1";

/// What one look found.
struct Found {
    without_row: WithoutRow,
    unwritten: Vec<i64>,
    damaged: Vec<Height>,
    silent: Vec<Height>,
}

/// Lookups without a row.
#[derive(Default)]
struct WithoutRow {
    /// By table of [`LOOKUPS`].
    keys: [Vec<(Vec<u8>, i64, i64)>; 3],
    /// Whether there may be more.
    is_cut: bool,
}

/// Looks, and mends what differs; again where a look had to end early.
pub(super) async fn run(shared: &Shared, range: HeightRange) -> Result<Repaired> {
    let mut repaired = Repaired::default();
    loop {
        let found = look(shared, range).await?;
        let removed = remove_all(shared, range, &found.without_row).await?;
        repaired.lookups_removed += removed;
        for heights in found.unwritten.chunks(HEIGHTS_AT_ONCE) {
            repaired.lookups_written += write(shared, range, heights).await?;
        }
        // A look that led to no removal is not worth another one.
        if !found.without_row.is_cut || removed == 0 {
            repaired.damaged = found.damaged;
            repaired.silent = found.silent;
            return Ok(repaired);
        }
    }
}

/// Removes lookups above the head that have no row; says how many. Fills are walked in steps, and what lies above all of them is one step more, which is
/// empty but for damage.
pub(super) async fn run_above_head(shared: &Shared) -> Result<u64> {
    let conn = shared.pool.begin(Isolation::Snapshot).await?;
    let Some(tip) = head::read(&conn).await?.row.tip else { return Ok(0) };
    let filled_to = read::last_height(&conn).await?.map_or(tip.height, |last| last.max(tip.height)).next();
    drop(conn);
    let filled = HeightRange::new(tip.height.next(), filled_to);
    let beyond = HeightRange::new(filled_to, Height(u64::MAX));
    let mut removed = 0;
    for step in filled.chunks(ABOVE_STEP_HEIGHTS).chain([beyond]) {
        loop {
            let conn = shared.pool.begin(Isolation::Snapshot).await?;
            let found = without_row(&conn, sql(step.start()), sql(step.end())).await?;
            drop(conn);
            let now = remove_all(shared, step, &found).await?;
            removed += now;
            if !found.is_cut || now == 0 {
                break;
            }
        }
    }
    Ok(removed)
}

/// Bounded by the connection's own timeout of a statement.
async fn look(shared: &Shared, range: HeightRange) -> Result<Found> {
    let conn = shared.pool.begin(Isolation::Snapshot).await?;
    let range = range.intersect(head::read(&conn).await?.row.range());
    let (from, to) = (sql(range.start()), sql(range.end()));
    Ok(Found {
        without_row: without_row(&conn, from, to).await?,
        unwritten: heights(&conn, UNWRITTEN, from, to).await?.into_iter().map(sql).collect(),
        damaged: heights(&conn, DAMAGED, from, to).await?,
        silent: heights(&conn, SILENT, from, to).await?,
    })
}

async fn without_row(conn: &PgConn, from: i64, to: i64) -> Result<WithoutRow> {
    let mut found = WithoutRow::default();
    for (lookups, keys) in LOOKUPS.iter().zip(&mut found.keys) {
        for row in conn.query(lookups.without_row, &[&from, &to, &MAX_KEYS]).await? {
            keys.push((
                row.try_get(0).map_err(db)?,
                row.try_get(1).map_err(db)?,
                row.try_get(2).map_err(db)?,
            ));
        }
        found.is_cut |= keys.len() as i64 == MAX_KEYS;
    }
    Ok(found)
}

async fn heights(conn: &PgConn, text: &str, from: i64, to: i64) -> Result<Vec<Height>> {
    let rows = conn.query(text, &[&from, &to]).await?;
    rows.iter().map(|row: &Row| get_height(row, 0)).collect()
}

async fn remove_all(shared: &Shared, range: HeightRange, found: &WithoutRow) -> Result<u64> {
    let mut removed = 0;
    for (lookups, keys) in LOOKUPS.iter().zip(&found.keys) {
        for keys in keys.chunks(KEYS_AT_ONCE) {
            removed += remove(shared, range, lookups, keys).await?;
        }
    }
    Ok(removed)
}

/// Also above the head, should it have moved: that a lookup has no row is all that counts.
async fn remove(
    shared: &Shared,
    range: HeightRange,
    lookups: &'static Lookups,
    keys: &[(Vec<u8>, i64, i64)],
) -> Result<u64> {
    let ids: Vec<Vec<u8>> = keys.iter().map(|(id, ..)| id.clone()).collect();
    let heights: Vec<i64> = keys.iter().map(|(_, height, _)| *height).collect();
    let places: Vec<i64> = keys.iter().map(|(.., place)| *place).collect();
    shared
        .commit("repair_lookups", |tx| {
            let (ids, heights, places) = (ids.clone(), heights.clone(), places.clone());
            Box::pin(async move {
                head::lock(tx).await?;
                let (from, to) = (sql(range.start()), sql(range.end()));
                tx.execute(lookups.remove, &[&from, &to, &ids, &heights, &places]).await
            })
        })
        .await
}

async fn write(shared: &Shared, range: HeightRange, heights: &[i64]) -> Result<u64> {
    shared
        .commit("repair_lookups", |tx| {
            let heights = heights.to_vec();
            Box::pin(async move {
                let range = range.intersect(head::lock(tx).await?.row.range());
                let (from, to) = (sql(range.start()), sql(range.end()));
                let mut written = 0;
                for statement in WRITE {
                    written += tx.execute(statement, &[&from, &to, &heights]).await?;
                }
                Ok(written)
            })
        })
        .await
}
