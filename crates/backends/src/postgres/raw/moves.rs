//! Rows that leave the chain: moved to the orphans, or deleted. Driven by indexes and bounded by the caller.

use cairn_core::HeightRange;
use cairn_store::Result;

use super::Shared;
use super::head::sql;
use super::tx::Tx;
use super::{head, read};

/// A plan that walks a whole table is never right here, however little the server knows of its tables yet.
pub(super) const BY_INDEX: &str =
    "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

/// Copies the rows of `range` into the orphan tables.
pub(super) async fn copy_to_orphans(tx: &Tx, reorg_id: u64, range: HeightRange) -> Result<()> {
    tx.batch(BY_INDEX).await?;
    let reorg_id = reorg_id as i64;
    let (from, to) = (sql(range.start()), sql(range.end()));
    tx.execute(
        "INSERT INTO raw.orphan_blocks (reorg_id, height, timestamp_ms, tx_count, event_count, unverified, body_bytes, \
         receipts_bytes, extras_bytes, traces_bytes, id, parent_id, header, body, receipts, layout, extras, traces, \
         body_payload_ref, receipts_payload_ref, extras_payload_ref, traces_payload_ref) \
         SELECT $1, height, timestamp_ms, tx_count, event_count, unverified, body_bytes, receipts_bytes, extras_bytes, \
         traces_bytes, id, parent_id, header, body, receipts, layout, extras, traces, \
         body_payload_ref, receipts_payload_ref, extras_payload_ref, traces_payload_ref FROM raw.blocks \
         WHERE height >= $2 AND height < $3 ORDER BY height",
        &[&reorg_id, &from, &to],
    )
    .await?;
    tx.execute(
        "INSERT INTO raw.orphan_transactions (reorg_id, block_id, block_height, transaction_index, event_count, status, \
         id, sender, body, result, payload_hash, payload_ref, script_hash, arguments, proposer, payer, authorizers, error, \
         computation, result_payload_ref) \
         SELECT $1, b.id, t.block_height, t.transaction_index, t.event_count, t.status, t.id, t.sender, t.body, \
         t.result, t.payload_hash, t.payload_ref, t.script_hash, t.arguments, t.proposer, t.payer, t.authorizers, t.error, \
         t.computation, t.result_payload_ref FROM raw.blocks b JOIN raw.transactions t ON t.block_height = b.height \
         WHERE b.height >= $2 AND b.height < $3 AND t.block_height >= $2 AND t.block_height < $3",
        &[&reorg_id, &from, &to],
    )
    .await?;
    tx.execute(
        "INSERT INTO raw.orphan_collections (reorg_id, block_height, collection_index, transaction_count, id, payload, \
         payload_hash, payload_ref, of_block) \
         SELECT $1, c.block_height, c.collection_index, c.transaction_count, c.id, c.payload, c.payload_hash, \
         c.payload_ref, b.id FROM raw.blocks b JOIN raw.collections c ON c.block_height = b.height \
         WHERE b.height >= $2 AND b.height < $3 AND c.block_height >= $2 AND c.block_height < $3",
        &[&reorg_id, &from, &to],
    )
    .await?;
    tx.execute(
        "INSERT INTO raw.orphan_execution_results (reorg_id, block_height, id, block_id, payload, payload_hash, payload_ref) \
         SELECT $1, block_height, id, block_id, payload, payload_hash, payload_ref FROM raw.execution_results \
         WHERE block_height >= $2 AND block_height < $3",
        &[&reorg_id, &from, &to],
    )
    .await?;
    tx.execute(
        "INSERT INTO raw.orphan_events (reorg_id, block_id, block_height, event_index, transaction_index, \
         transaction_id, payload, payload_hash, payload_ref) \
         SELECT $1, b.id, e.block_height, e.event_index, e.transaction_index, e.transaction_id, e.payload, \
         e.payload_hash, e.payload_ref FROM raw.blocks b JOIN raw.events e ON e.block_height = b.height \
         WHERE b.height >= $2 AND b.height < $3 AND e.block_height >= $2 AND e.block_height < $3",
        &[&reorg_id, &from, &to],
    )
    .await
    .map(drop)
}

/// Deletes the rows of `range` and their lookups, those by key and block, so that a transaction that also stands elsewhere is still found. Not
/// their index entries.
pub(super) async fn delete(tx: &Tx, range: HeightRange) -> Result<()> {
    tx.batch(BY_INDEX).await?;
    let (from, to) = (sql(range.start()), sql(range.end()));
    let statements = [
        "DELETE FROM raw.tx_lookup l USING raw.blocks b, raw.transactions t \
         WHERE b.height >= $1 AND b.height < $2 AND t.block_height >= $1 AND t.block_height < $2 \
         AND t.block_height = b.height AND l.id = t.id AND l.block_height = t.block_height \
         AND l.tx_index = t.transaction_index AND l.block_id = b.id",
        "DELETE FROM raw.block_lookup l USING raw.blocks b \
         WHERE b.height >= $1 AND b.height < $2 AND l.id = b.id AND l.height = b.height",
        "DELETE FROM raw.evm_lookup WHERE height >= $1 AND height < $2",
        "DELETE FROM raw.events WHERE block_height >= $1 AND block_height < $2",
        "DELETE FROM raw.transactions WHERE block_height >= $1 AND block_height < $2",
        "DELETE FROM raw.collections WHERE block_height >= $1 AND block_height < $2",
        "DELETE FROM raw.execution_results WHERE block_height >= $1 AND block_height < $2",
        "DELETE FROM raw.blocks WHERE height >= $1 AND height < $2",
    ];
    for statement in statements {
        tx.execute(statement, &[&from, &to]).await?;
    }
    Ok(())
}

impl Shared {
    /// Deletes what is left of fills that were given up, a bounded number of blocks at a time, from the top. Their index runs went
    /// in the transaction that gave them up.
    pub(super) async fn finish_discard(&self) -> Result<()> {
        /// How many blocks go in one transaction.
        const STEP_BLOCKS: i64 = 128;
        loop {
            let conn = self.pool.get().await?;
            let discard = head::find(&conn).await?.and_then(|head| head.discard);
            drop(conn);
            if discard.is_none() {
                return Ok(());
            }
            self.commit("discard", |tx| {
                Box::pin(async move {
                    let mut head = head::lock(tx).await?;
                    let Some(range) = head.discard else { return Ok(()) };
                    // Fewer rows than that are left: this is the last step.
                    let from =
                        read::nth_from_top(tx.conn(), range, STEP_BLOCKS).await?.unwrap_or(range.start());
                    delete(tx, HeightRange::new(from, range.end())).await?;
                    head.discard =
                        Some(HeightRange::new(range.start(), from)).filter(|left| !left.is_empty());
                    head.write(tx).await
                })
            })
            .await?;
        }
    }

    /// A transaction that meets no rows of a fill that was given up. `work` answers `None` where it finds, under the head's lock, that some have
    /// come meanwhile.
    pub(super) async fn commit_clean<T>(
        &self,
        verb: &'static str,
        work: impl for<'a> Fn(&'a Tx) -> super::tx::Work<'a, Option<T>>,
    ) -> Result<T> {
        loop {
            self.finish_discard().await?;
            if let Some(answer) = self.commit(verb, &work).await? {
                return Ok(answer);
            }
        }
    }
}
