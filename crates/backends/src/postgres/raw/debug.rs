//! Event lists beside transactions, for debugging alone (`DENORMALIZE_EVENTS`): written after the fact and in bounded steps, in a table of their own, so that
//! appending never waits for them; cut to a safe size. Nothing reads them but people. The table is made when it is asked for, and may be dropped.

use std::sync::PoisonError;

use cairn_core::HeightRange;
use cairn_store::Result;

use super::PgRawStore;
use super::head::{self, sql};
use super::tx::Tx;
use crate::postgres::error::db;

/// Heights whose lists one statement writes.
const STEP_HEIGHTS: i64 = 500;
/// Such statements in one transaction, at most.
const STEPS: usize = 2;
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
    -- Each event's first bytes as hex, or `sha256:` and the hash of one that lies in object storage; in order, with a space between; cut.
    events TEXT NOT NULL,
    PRIMARY KEY (block_height, transaction_index))";
const FORGET: &str = "DELETE FROM raw.transaction_events_debug d WHERE d.block_height > $1 \
     AND NOT EXISTS (SELECT FROM raw.blocks b WHERE b.height = d.block_height AND b.id = d.block_id)";
const ADD: &str = "INSERT INTO raw.transaction_events_debug (block_height, transaction_index, block_id, id, events) \
     SELECT t.block_height, t.transaction_index, b.id, t.id, left(e.events, $3) \
     FROM raw.blocks b JOIN raw.transactions t ON t.block_height = b.height CROSS JOIN LATERAL ( \
       SELECT string_agg(CASE WHEN x.payload IS NULL THEN 'sha256:' || coalesce(encode(x.payload_hash, 'hex'), '') \
       ELSE encode(substr(x.payload, 1, $4), 'hex') END, ' ' ORDER BY x.event_index) AS events \
       FROM (SELECT payload, payload_hash, event_index FROM raw.events x WHERE x.block_height = t.block_height \
               AND x.transaction_id = t.id AND x.transaction_index = t.transaction_index \
             ORDER BY x.event_index LIMIT $5) x) e \
     WHERE b.height >= $1 AND b.height < $2 AND t.block_height >= $1 AND t.block_height < $2 AND t.event_count > 0 \
       AND e.events IS NOT NULL ON CONFLICT (block_height, transaction_index) DO NOTHING";

const LOWEST: &str = "SELECT coalesce(min(common_height), 0) FROM raw.reorgs WHERE id > $1";
const THERE: &str = "SELECT to_regclass('raw.transaction_events_debug') IS NOT NULL";
const DROP: &str = "DELETE FROM raw.transaction_events_debug WHERE block_height >= $1 AND block_height < $2";
const NEXT: &str = "SELECT coalesce(max(block_height) + 1, 0) FROM raw.transaction_events_debug";

/// How far the lists have come. Heights without an event leave nothing in the table that says so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    /// The height after the last one.
    next: i64,
    /// The newest reorg of that time: since another one, blocks below may have others in their place.
    reorg_id: u64,
}

impl PgRawStore {
    /// Writes the lists of the next stretch of heights that has none yet. Returns whether there may be more to do. Lists of blocks that left the chain go:
    /// no reorg is deeper than `max_reorg_depth` blocks.
    pub async fn denormalize_events(&self, max_reorg_depth: u64) -> Result<bool> {
        self.shared.demand_writable()?;
        let listed = || self.shared.listed.lock().unwrap_or_else(PoisonError::into_inner);
        // Where this fails nothing is known, not even whether somebody dropped the table.
        let before = listed().take();
        if before.is_none() {
            self.shared.pool.get().await?.batch(TABLE).await?;
        }
        let depth = i64::try_from(max_reorg_depth).unwrap_or(i64::MAX);
        let (now, is_more) =
            self.shared.commit("denormalize_events", |tx| Box::pin(step(tx, before, depth))).await?;
        *listed() = Some(now);
        Ok(is_more)
    }
}

async fn step(tx: &Tx, before: Option<Listed>, depth: i64) -> Result<(Listed, bool)> {
    let head = head::read(tx.conn()).await?.row;
    let (start, end, reorg_id) = (sql(head.range().start()), sql(head.range().end()), head.newest_reorg.id);
    let next = match before {
        Some(before) if before.reorg_id == reorg_id => before.next,
        before => {
            let common: i64 = match before {
                Some(before) => {
                    let after = i64::try_from(before.reorg_id).unwrap_or(i64::MAX);
                    tx.query_one(LOWEST, &[&after]).await?.try_get(0).map_err(db)?
                }
                // The tip was at the highest list or above it when a reorg took blocks.
                None => next(tx).await?.saturating_sub(1).saturating_sub(depth),
            };
            tx.execute(FORGET, &[&common]).await?;
            next(tx).await?
        }
    };
    let mut next = next.max(start);
    for _ in 0..STEPS {
        if next >= end {
            break;
        }
        let to = next.saturating_add(STEP_HEIGHTS).min(end);
        tx.execute(ADD, &[&next, &to, &MAX_CHARS, &MAX_EVENT_BYTES, &MAX_EVENTS]).await?;
        next = to;
    }
    Ok((Listed { next, reorg_id }, next < end))
}

/// Writes the lists of heights again whose blocks were replaced, where there are any; those above the highest list have none yet.
pub(super) async fn list_again(tx: &Tx, range: HeightRange) -> Result<()> {
    let there = tx.query_one(THERE, &[]).await?;
    if !there.try_get::<_, bool>(0).map_err(db)? || next(tx).await? <= sql(range.start()) {
        return Ok(());
    }
    let (from, to) = (sql(range.start()), sql(range.end()));
    tx.execute(DROP, &[&from, &to]).await?;
    tx.execute(ADD, &[&from, &to, &MAX_CHARS, &MAX_EVENT_BYTES, &MAX_EVENTS]).await?;
    Ok(())
}

/// The height after the highest one that has a list.
async fn next(tx: &Tx) -> Result<i64> {
    tx.query_one(NEXT, &[]).await?.try_get(0).map_err(db)
}
