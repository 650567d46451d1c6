//! EVM transactions inside transactions: found by hash, and their lookups held against the blocks, both ways.
//!
//! What a block's EVM transactions are is inside its events' bytes, so no statement can say it: blocks are read and cut outside of any transaction, and
//! what they say is compared and written in one that demands that the same blocks are still there.

use std::sync::Arc;

use cairn_core::{BlockLayout, Height, HeightRange, Parts, StoredBlock, TxId};
use cairn_store::{BlocksRead, MAX_EVM_PLACES, RawReader, Result, StoreError, TxPlace};
use tokio_postgres::Row;

use super::head::{self, get_height, get_u32, sql};
use super::repair::{Repaired, demand_bounded};
use super::tx::Tx;
use super::{PgRawStore, blocking};
use crate::postgres::error::db;
use crate::postgres::{Isolation, PgConn};

/// Blocks of so many bytes are compared in one transaction, at most; more only where one block is larger.
const READ_BYTES: u64 = 16 << 20;
/// Heights that one transaction compares, at most.
const STEP_HEIGHTS: u64 = 500;

/// The heights at which these blocks are still the canonical ones.
const SAME: &str = "SELECT b.height FROM unnest($1::bigint[], $2::bytea[]) AS w (height, id) \
     JOIN raw.blocks b ON b.height = w.height AND b.id = w.id WHERE w.height >= $3 AND w.height < $4 ORDER BY 1";

/// The places of an EVM hash. A lookup whose transaction is gone is passed over and told: repair removes it.
pub(super) async fn find(conn: &PgConn, evm_hash: [u8; 32], range: HeightRange) -> Result<Vec<TxPlace>> {
    let limit = i64::try_from(MAX_EVM_PLACES).unwrap_or(i64::MAX);
    let rows = conn
        .query(
            "SELECT l.height, t.transaction_index FROM ( \
               SELECT height, evm_index, tx_id FROM raw.evm_lookup WHERE evm_hash = $1 AND height >= $2 AND height < $3 \
               ORDER BY evm_hash, height, evm_index LIMIT $4) l \
             LEFT JOIN raw.transactions t ON t.block_height = l.height AND t.id = l.tx_id \
               AND t.block_height >= $2 AND t.block_height < $3 \
             ORDER BY l.height, l.evm_index, t.transaction_index",
            &[&&evm_hash[..], &sql(range.start()), &sql(range.end()), &limit],
        )
        .await?;
    let mut places = Vec::with_capacity(rows.len());
    for row in &rows {
        let height = get_height(row, 0)?;
        if row.try_get::<_, Option<i64>>(1).map_err(db)?.is_none() {
            tracing::warn!(%height, evm_hash = %TxId(evm_hash), "a lookup of an EVM transaction names a transaction that is not there; cairn repair removes it");
            continue;
        }
        places.push(TxPlace { height, index: get_u32(row, 1)? });
    }
    places.dedup();
    Ok(places)
}

/// What blocks say of their EVM transactions, in columns.
#[derive(Default)]
struct Expected {
    /// The blocks.
    block_heights: Vec<i64>,
    block_ids: Vec<Vec<u8>>,
    /// Their EVM transactions, in the order of the lookup's key.
    heights: Vec<i64>,
    indexes: Vec<i64>,
    hashes: Vec<Vec<u8>>,
    tx_ids: Vec<Vec<u8>>,
}

impl Expected {
    fn of(layout: &dyn BlockLayout, blocks: Vec<StoredBlock>) -> Expected {
        let mut expected = Expected::default();
        let mut found = Vec::new();
        for stored in blocks {
            let (height, id) = (stored.facts.height, stored.facts.id);
            let block = stored.without_terms();
            expected.block_heights.push(sql(height));
            expected.block_ids.push(id.0.to_vec());
            // One that can't be cut is kept whole, without lookups.
            for lookup in layout.slices(&block).map(|slices| slices.evm_lookups).unwrap_or_default() {
                let tx = block.transactions.get(lookup.tx_index as usize).map(|tx| tx.id).unwrap_or_default();
                found.push((lookup.evm_hash, sql(height), i64::from(lookup.evm_index), tx));
            }
        }
        found.sort_unstable();
        for (hash, height, index, tx) in found {
            expected.hashes.push(hash.to_vec());
            expected.heights.push(height);
            expected.indexes.push(index);
            expected.tx_ids.push(tx.0.to_vec());
        }
        expected
    }
}

impl PgRawStore {
    /// Makes the lookups of EVM transactions of the canonical heights in `range` what their blocks say, and names the heights whose blocks can't be
    /// read. Does nothing where transactions hold none.
    pub async fn repair_evm_lookups(&self, range: HeightRange) -> Result<Repaired> {
        demand_bounded(range)?;
        let mut repaired = Repaired::default();
        let mut walk = Walk::new(self, range);
        while let Some(step) = walk.next(self).await? {
            let expected = match step {
                Step::Blocks(expected) => expected,
                Step::Unreadable(height) => {
                    repaired.damaged.push(height);
                    continue;
                }
            };
            let (removed, written) = self
                .shared
                .commit("repair_evm_lookups", |tx| {
                    let expected = expected.clone();
                    Box::pin(async move { mend(tx, &expected).await })
                })
                .await?;
            repaired.lookups_removed += removed;
            repaired.lookups_written += written;
        }
        Ok(repaired)
    }

    /// Names the canonical heights in `range` whose lookups of EVM transactions are not what their blocks say, at most about `limit` of them; changes nothing.
    /// Blocks that can't be read are passed over: what is wrong with them is an audit's to say.
    pub async fn audit_evm_lookups(&self, range: HeightRange, limit: usize) -> Result<Vec<LookupFault>> {
        demand_bounded(range)?;
        let mut faults = Vec::new();
        let mut walk = Walk::new(self, range);
        while faults.len() < limit {
            match walk.next(self).await? {
                Some(Step::Blocks(expected)) => faults.extend(compare(self, &expected).await?),
                Some(Step::Unreadable(_)) => {}
                None => break,
            }
        }
        Ok(faults)
    }
}

/// A height whose lookups are not what its block says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupFault {
    /// Where.
    pub height: Height,
    /// Lookups that the block has and the table has not.
    pub missing: u64,
    /// Lookups that the table has and the block has not.
    pub strange: u64,
}

/// Goes over blocks in steps of bounded size.
struct Walk {
    layout: Arc<dyn BlockLayout>,
    range: HeightRange,
    at: Height,
    reach: u64,
}

enum Step {
    /// What the next blocks say.
    Blocks(Arc<Expected>),
    /// The block at this height can't be read.
    Unreadable(Height),
}

impl Walk {
    fn new(store: &PgRawStore, range: HeightRange) -> Walk {
        let layout = store.shared.options.layout.clone();
        Walk { layout, range, at: range.start(), reach: STEP_HEIGHTS }
    }

    /// The next step; `None` at the end, and where transactions hold none.
    async fn next(&mut self, store: &PgRawStore) -> Result<Option<Step>> {
        let parts = Parts::all() - Parts::TRACES;
        while self.at < self.range.end() && self.layout.has_evm_lookups() {
            let snapshot = store.snapshot().await?;
            let stored = HeightRange::new(self.at, self.range.end()).intersect(snapshot.head().range());
            let Some(step) = stored.chunks(self.reach).next() else { break };
            let BlocksRead { blocks, next } = match snapshot.blocks(step, parts, READ_BYTES).await {
                Ok(read) => read,
                // One of them can't be read: reach less far, until it stands alone.
                Err(StoreError::Corrupt { .. }) if step.len() > 1 => {
                    self.reach = step.len() / 2;
                    continue;
                }
                Err(StoreError::Corrupt { .. }) => {
                    self.at = step.end();
                    return Ok(Some(Step::Unreadable(step.start())));
                }
                Err(error) => return Err(error),
            };
            drop(snapshot);
            if blocks.is_empty() {
                break;
            }
            self.at = next;
            self.reach = (self.reach * 2).min(STEP_HEIGHTS);
            let layout = self.layout.clone();
            let expected = blocking(move || Ok(Expected::of(&*layout, blocks))).await?;
            return Ok(Some(Step::Blocks(Arc::new(expected))));
        }
        Ok(None)
    }
}

/// What differs, in one read transaction; a block that a reorg took away meanwhile is left alone.
async fn compare(store: &PgRawStore, expected: &Expected) -> Result<Vec<LookupFault>> {
    let conn = store.shared.pool.begin(Isolation::Snapshot).await?;
    let range = head::read(&conn).await?.row.range();
    let rows = conn
        .query(SAME, &[&expected.block_heights, &expected.block_ids, &sql(range.start()), &sql(range.end())])
        .await?;
    let same: Vec<i64> = rows.iter().map(|row| get_height(row, 0).map(sql)).collect::<Result<_>>()?;
    let (Some(first), Some(last)) = (same.first(), same.last()) else { return Ok(Vec::new()) };
    let rows = conn
        .query(
            "WITH w AS (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[]) \
               AS w (height, evm_index, evm_hash, tx_id) WHERE height = ANY($5)), \
             differs AS ( \
               SELECT w.height, true AS is_missing FROM w WHERE NOT EXISTS ( \
                 SELECT FROM raw.evm_lookup l WHERE l.evm_hash = w.evm_hash AND l.height = w.height \
                   AND l.evm_index = w.evm_index AND l.tx_id = w.tx_id) \
               UNION ALL \
               SELECT l.height, false FROM raw.evm_lookup l \
               WHERE l.height >= $6 AND l.height <= $7 AND l.height = ANY($5) AND NOT EXISTS ( \
                 SELECT FROM w WHERE w.height = l.height AND w.evm_index = l.evm_index AND w.evm_hash = l.evm_hash \
                   AND w.tx_id = l.tx_id)) \
             SELECT height, count(*) FILTER (WHERE is_missing), count(*) FILTER (WHERE NOT is_missing) \
             FROM differs GROUP BY height ORDER BY height",
            &[
                &expected.heights,
                &expected.indexes,
                &expected.hashes,
                &expected.tx_ids,
                &same,
                first,
                last,
            ],
        )
        .await?;
    let count = |row: &Row, at| row.try_get::<_, i64>(at).map(i64::unsigned_abs).map_err(db);
    rows.iter()
        .map(|row| {
            Ok(LookupFault { height: get_height(row, 0)?, missing: count(row, 1)?, strange: count(row, 2)? })
        })
        .collect()
}

/// Removes and writes; a block that a reorg took away meanwhile is left alone.
async fn mend(tx: &Tx, expected: &Expected) -> Result<(u64, u64)> {
    let head = head::lock(tx).await?;
    let range = head.row.range();
    let same = tx
        .query(SAME, &[&expected.block_heights, &expected.block_ids, &sql(range.start()), &sql(range.end())])
        .await?;
    let same: Vec<i64> = same.iter().map(|row| get_height(row, 0).map(sql)).collect::<Result<Vec<i64>>>()?;
    let (Some(first), Some(last)) = (same.first(), same.last()) else { return Ok((0, 0)) };
    let removed = tx
        .execute(
            "DELETE FROM raw.evm_lookup l WHERE l.height >= $1 AND l.height <= $2 AND l.height = ANY($3) AND NOT EXISTS ( \
               SELECT FROM unnest($4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[]) AS w (height, evm_index, evm_hash, tx_id) \
               WHERE w.height = l.height AND w.evm_index = l.evm_index AND w.evm_hash = l.evm_hash AND w.tx_id = l.tx_id)",
            &[first, last, &same, &expected.heights, &expected.indexes, &expected.hashes, &expected.tx_ids],
        )
        .await?;
    // In key order (P02).
    let written = tx
        .execute(
            "INSERT INTO raw.evm_lookup (height, evm_index, evm_hash, tx_id) \
             SELECT w.height, w.evm_index, w.evm_hash, w.tx_id \
             FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[]) AS w (height, evm_index, evm_hash, tx_id) \
             WHERE w.height = ANY($5) ORDER BY w.evm_hash, w.height, w.evm_index \
             ON CONFLICT (evm_hash, height, evm_index) DO NOTHING",
            &[&expected.heights, &expected.indexes, &expected.hashes, &expected.tx_ids, &same],
        )
        .await?;
    Ok((removed, written))
}
