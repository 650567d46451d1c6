//! Lookups that no row stands behind, in the way of a batch.
//!
//! A batch's rows come by COPY, which takes no `ON CONFLICT`. Where a row was lost, what undid its block left its lookup there, and the key stands in the way when
//! the same transaction comes at the same place again. Then the verb is run once more, and takes such lookups of the batch's heights away before it writes: all of
//! them, since what one damage left is seldom one row. A lookup that a row stands behind is never touched: two rows claim its key, and that stays an error.
//!
//! Under the head's lock. What a fill beside it commits is seen whole, row and lookup, or not at all.

use std::sync::atomic::{AtomicU64, Ordering};

use cairn_store::Result;

use super::head::sql;
use super::moves::BY_INDEX;
use super::rows::EncodedBatch;
use super::tx::Tx;

/// The keys of the lookup tables, by which PostgreSQL says which one refused a row.
const KEYS: [&str; 3] = ["block_lookup_pkey", "tx_lookup_pkey", "evm_lookup_pkey"];

/// Lookups of heights `$1` to `$2` without a row; the first also of blocks `$3`, wherever they say that these are.
const REMOVE_BLOCKS: &str = "DELETE FROM raw.block_lookup l WHERE (l.id = ANY($3) OR (l.height >= $1 AND l.height < $2)) \
     AND NOT EXISTS (SELECT FROM raw.blocks b WHERE b.height = l.height AND b.id = l.id)";
const REMOVE: [&str; 2] = [
    "DELETE FROM raw.tx_lookup l WHERE l.block_height >= $1 AND l.block_height < $2 AND NOT EXISTS ( \
       SELECT FROM raw.transactions t WHERE t.block_height = l.block_height AND t.id = l.id \
         AND t.transaction_index = l.tx_index AND t.block_height >= $1 AND t.block_height < $2)",
    "DELETE FROM raw.evm_lookup l WHERE l.height >= $1 AND l.height < $2 AND NOT EXISTS ( \
       SELECT FROM raw.transactions t WHERE t.block_height = l.height AND t.id = l.tx_id \
         AND t.block_height >= $1 AND t.block_height < $2)",
];

/// Whether this constraint is a lookup's key.
pub(super) fn is_lookup_key(constraint: &str) -> bool {
    KEYS.contains(&constraint)
}

/// How many lookups without a row a transaction took away.
#[derive(Debug, Default)]
pub(super) struct Removed(AtomicU64);

impl Removed {
    /// Says so, once that is committed.
    pub(super) fn tell(&self, verb: &'static str) {
        let lookups = self.0.load(Ordering::Relaxed);
        if lookups > 0 {
            tracing::warn!(
                verb,
                lookups,
                "lookups that no row stands behind were in the way of blocks, and were removed: rows were lost or deleted beneath cairn"
            );
        }
    }
}

/// Takes away what is in the batch's way, where a lookup's key refused it before.
pub(super) async fn make_way(tx: &Tx, batch: &EncodedBatch) -> Result<()> {
    if !tx.was_refused_by_lookup() {
        return Ok(());
    }
    tx.batch(BY_INDEX).await?;
    let heights = batch.heights();
    let (from, to) = (sql(heights.start()), sql(heights.end()));
    let ids: Vec<&[u8]> = batch.blocks.iter().map(|encoded| &encoded.block.facts.id.0[..]).collect();
    let mut removed = tx.execute(REMOVE_BLOCKS, &[&from, &to, &ids]).await?;
    for statement in REMOVE {
        removed += tx.execute(statement, &[&from, &to]).await?;
    }
    tx.stale_lookups().0.store(removed, Ordering::Relaxed);
    Ok(())
}
