//! Event lists beside transactions, for debugging alone (`DENORMALIZE_EVENTS`): written after the fact and in bounded steps, in a table of their own, so that
//! appending never waits for them; cut to a safe size. Nothing reads them but people. The table is made when it is asked for, and may be dropped.

use cairn_store::Result;

use super::PgRawStore;
use super::head::{self, sql};

/// Heights that one step covers.
const STEP_HEIGHTS: i64 = 500;
/// Heights below the tip whose lists are held against the chain at each step: no reorg is deeper by default.
const CHECK_HEIGHTS: i64 = 1_000;
/// Characters of a transaction's list, at most.
const MAX_CHARS: i32 = 4_096;
/// Its events, at most.
const MAX_EVENTS: i64 = 32;
/// Bytes of one event, at most.
const MAX_EVENT_BYTES: i32 = 256;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw.transaction_events_debug (
    block_height BIGINT NOT NULL,
    transaction_index BIGINT NOT NULL,
    block_id BYTEA NOT NULL,
    id BYTEA NOT NULL,
    -- Each event's bytes as hex, in order, with a space between; cut.
    events TEXT NOT NULL,
    PRIMARY KEY (block_height, transaction_index))";
const FORGET: &str = "DELETE FROM raw.transaction_events_debug d WHERE d.block_height > $1 \
     AND NOT EXISTS (SELECT FROM raw.blocks b WHERE b.height = d.block_height AND b.id = d.block_id)";
const ADD: &str = "INSERT INTO raw.transaction_events_debug (block_height, transaction_index, block_id, id, events) \
     SELECT t.block_height, t.transaction_index, b.id, t.id, left(e.events, $3) \
     FROM raw.blocks b JOIN raw.transactions t ON t.block_height = b.height CROSS JOIN LATERAL ( \
       SELECT string_agg(encode(substr(coalesce(x.payload, x.payload_hash, ''), 1, $4), 'hex'), ' ' ORDER BY x.event_index) AS events \
       FROM (SELECT payload, payload_hash, event_index FROM raw.events x WHERE x.block_height = t.block_height \
               AND x.transaction_id = t.id AND x.transaction_index = t.transaction_index \
             ORDER BY x.event_index LIMIT $5) x) e \
     WHERE b.height >= $1 AND b.height < $2 AND t.block_height >= $1 AND t.block_height < $2 AND t.event_count > 0 \
       AND e.events IS NOT NULL ON CONFLICT (block_height, transaction_index) DO NOTHING";

impl PgRawStore {
    /// Writes the lists of the next stretch of heights that has none yet. Returns whether there may be more to do. Lists of blocks that left the chain go.
    pub async fn denormalize_events(&self) -> Result<bool> {
        self.shared.demand_writable()?;
        let conn = self.shared.pool.get().await?;
        conn.batch(TABLE).await?;
        drop(conn);
        self.shared
            .commit("denormalize_events", |tx| {
                Box::pin(async move {
                    let head = head::read(tx.conn()).await?.row;
                    let range = head.range();
                    if range.is_empty() {
                        return Ok(false);
                    }
                    tx.execute(FORGET, &[&(sql(range.end()) - CHECK_HEIGHTS)]).await?;
                    let newest = tx
                        .query_one(
                            "SELECT coalesce(max(block_height) + 1, 0) FROM raw.transaction_events_debug",
                            &[],
                        )
                        .await?;
                    let newest: i64 = newest.try_get(0).map_err(crate::postgres::error::db)?;
                    let (mut from, end) = (newest.max(sql(range.start())), sql(range.end()));
                    // Stretches without an event leave nothing that says where they were: go on until one has some.
                    while from < end {
                        let to = from.saturating_add(STEP_HEIGHTS).min(end);
                        let params: [crate::postgres::pool::Param<'_>; 5] =
                            [&from, &to, &MAX_CHARS, &MAX_EVENT_BYTES, &MAX_EVENTS];
                        if tx.execute(ADD, &params).await? > 0 {
                            return Ok(to < end);
                        }
                        from = to;
                    }
                    Ok(false)
                })
            })
            .await
    }
}
