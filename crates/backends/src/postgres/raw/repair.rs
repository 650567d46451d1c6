//! Repair: lookups against rows, both ways, and rows that are gone written again. Beside the append path, which needs no conflict handling.
//!
//! Each call is one transaction under the head's lock, without its fence: it may run in another process than the ingester, changes nothing that a
//! reader may not see already, and works on canonical heights alone. The caller bounds the range.

use std::sync::Arc;

use cairn_core::{Height, HeightRange, RawBlock};
use cairn_store::{PayloadError, Result, StoreError};
use tokio_postgres::Row;

use super::head::{self, get_height, sql};
use super::rows::EncodedBatch;
use super::tx::Tx;
use super::writer::{MAX_OFFLOADS, is_object_lost, make_live};
use super::{PgRawStore, Shared, blocking, moves, read};

/// The most heights that one call repairs.
const MAX_HEIGHTS: u64 = 100_000;

/// What a repair of lookups did and found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Repaired {
    /// Lookups that were missing or said something else than the rows.
    pub lookups_written: u64,
    /// Lookups whose rows are not there.
    pub lookups_removed: u64,
    /// Heights whose rows are incomplete: they have to be fetched again, see [`PgRawStore::repair_block`].
    pub damaged: Vec<Height>,
}

pub(super) fn demand_bounded(range: HeightRange) -> Result<()> {
    if range.len() <= MAX_HEIGHTS {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "repair: {} heights at once, at most {MAX_HEIGHTS}; ask for them one part after the other",
        range.len()
    )))
}

impl PgRawStore {
    /// Makes the lookups of the canonical heights in `range` what the rows say, and names the heights whose rows don't fit their block's counts. Of
    /// EVM transactions inside transactions it removes lookups whose transactions are gone; see [`PgRawStore::repair_evm_lookups`].
    pub async fn repair_lookups(&self, range: HeightRange) -> Result<Repaired> {
        demand_bounded(range)?;
        self.shared
            .commit("repair_lookups", |tx| Box::pin(async move { repair_lookups(tx, range).await }))
            .await
    }

    /// Writes the rows of a canonical block again, which was fetched and verified: its id has to be the stored one, or fit between its stored
    /// neighbours where its row is gone. Its index of log terms stays.
    pub async fn repair_block(&self, block: RawBlock) -> Result<()> {
        let shared = &self.shared;
        shared.demand_writable()?;
        let height = block.facts.height;
        let encoding = shared.clone();
        let encoded = blocking(move || EncodedBatch::new(vec![block], &encoding)).await?;
        let conn = shared.pool.get().await?;
        let visible = head::read(&conn).await?.row.range();
        drop(conn);
        if visible.contains(height) {
            shared.partitions.ensure(&shared.pool, HeightRange::one(height)).await?;
        }
        shared.restore_scripts(&encoded).await?;
        let mut batch = Arc::new(encoded);
        for tries in 1.. {
            batch = shared.upload(batch).await?;
            shared.restore_objects(&batch).await?;
            let repaired = shared
                .commit("repair_block", |tx| {
                    let batch = batch.clone();
                    Box::pin(async move { repair_block(tx, &batch).await })
                })
                .await;
            match repaired {
                Err(error) if is_object_lost(&error) && tries < MAX_OFFLOADS => {}
                repaired => return repaired,
            }
        }
        Err(StoreError::Busy("the block's payloads were collected again and again".into()))
    }
}

impl Shared {
    /// Puts objects again that are lost or damaged although their rows say that they are live: an upload passes over those.
    async fn restore_objects(&self, batch: &EncodedBatch) -> Result<()> {
        let Some(payloads) = &self.payloads else { return Ok(()) };
        for (object, body) in batch.objects().iter().zip(batch.large()) {
            match payloads.store.put(*object, body.clone()).await {
                Err(PayloadError::Damaged { .. }) => {
                    payloads.store.delete(*object).await?;
                    payloads.store.put(*object, body.clone()).await?;
                }
                put => {
                    put?;
                }
            }
        }
        Ok(())
    }
}

async fn repair_block(tx: &Tx, batch: &Arc<EncodedBatch>) -> Result<()> {
    let head = head::lock(tx).await?;
    let facts = &batch.first().facts;
    let (block, range) = (batch.first().block_ref(), HeightRange::one(facts.height));
    if !head.row.range().contains(block.height) {
        return Err(StoreError::Invalid(format!(
            "repair: block {block} is outside the chain {}",
            head.row.range()
        )));
    }
    let conflict = |stored| StoreError::Conflict { height: block.height, stored, offered: block.id };
    if let Some(stored) = read::row_ref(tx.conn(), block.height).await?.filter(|stored| *stored != block) {
        return Err(conflict(stored.id));
    }
    if let Some(below) = block.height.prev()
        && let Some(below) =
            read::row_ref(tx.conn(), below).await?.filter(|below| below.id != facts.parent_id)
    {
        return Err(StoreError::DoesNotLink { first: block, parent_id: facts.parent_id, expected: below });
    }
    if let Some(above) = read::read_facts(tx.conn(), block.height.next()).await?
        && head.row.range().contains(above.height)
        && above.parent_id != block.id
    {
        return Err(conflict(above.parent_id));
    }
    make_live(tx, batch).await?;
    moves::delete(tx, range).await?;
    // Lookups of rows that were gone before.
    tx.execute(
        "DELETE FROM raw.tx_lookup WHERE block_height >= $1 AND block_height < $2",
        &[&sql(range.start()), &sql(range.end())],
    )
    .await?;
    tx.execute(
        "DELETE FROM raw.block_lookup WHERE id = $1 OR (height >= $2 AND height < $3)",
        &[&&block.id.0[..], &sql(range.start()), &sql(range.end())],
    )
    .await?;
    batch.write_rows(tx).await
}

async fn repair_lookups(tx: &Tx, range: HeightRange) -> Result<Repaired> {
    let head = head::lock(tx).await?;
    let range = range.intersect(head.row.range());
    let (from, to) = (sql(range.start()), sql(range.end()));
    // In key order (P02). A lookup that says the same is left alone.
    let written = [
        "INSERT INTO raw.block_lookup (height, timestamp_ms, id) \
         SELECT b.height, b.timestamp_ms, b.id FROM raw.blocks b WHERE b.height >= $1 AND b.height < $2 AND NOT EXISTS ( \
           SELECT FROM raw.block_lookup l WHERE l.id = b.id AND l.height = b.height AND l.timestamp_ms = b.timestamp_ms) \
         ORDER BY b.id ON CONFLICT (id) DO UPDATE SET height = EXCLUDED.height, timestamp_ms = EXCLUDED.timestamp_ms",
        "INSERT INTO raw.tx_lookup (block_height, tx_index, timestamp_ms, id, block_id) \
         SELECT t.block_height, t.transaction_index, b.timestamp_ms, t.id, b.id \
         FROM raw.blocks b JOIN raw.transactions t ON t.block_height = b.height \
         WHERE b.height >= $1 AND b.height < $2 AND t.block_height >= $1 AND t.block_height < $2 AND NOT EXISTS ( \
           SELECT FROM raw.tx_lookup l WHERE l.id = t.id AND l.block_height = t.block_height \
             AND l.tx_index = t.transaction_index AND l.block_id = b.id AND l.timestamp_ms = b.timestamp_ms) \
         ORDER BY t.id, t.block_height, t.transaction_index ON CONFLICT (id, block_height, tx_index) \
         DO UPDATE SET timestamp_ms = EXCLUDED.timestamp_ms, block_id = EXCLUDED.block_id",
    ];
    let removed = [
        "DELETE FROM raw.block_lookup l WHERE l.height >= $1 AND l.height < $2 AND NOT EXISTS ( \
           SELECT FROM raw.blocks b WHERE b.height = l.height AND b.id = l.id)",
        "DELETE FROM raw.tx_lookup l WHERE l.block_height >= $1 AND l.block_height < $2 AND NOT EXISTS ( \
           SELECT FROM raw.transactions t WHERE t.block_height = l.block_height AND t.id = l.id \
             AND t.transaction_index = l.tx_index)",
        "DELETE FROM raw.evm_lookup l WHERE l.height >= $1 AND l.height < $2 AND NOT EXISTS ( \
           SELECT FROM raw.transactions t WHERE t.block_height = l.height AND t.id = l.tx_id)",
    ];
    let mut repaired = Repaired::default();
    for statement in removed {
        repaired.lookups_removed += tx.execute(statement, &[&from, &to]).await?;
    }
    for statement in written {
        repaired.lookups_written += tx.execute(statement, &[&from, &to]).await?;
    }
    let damaged = tx
        .query(
            "SELECT h.height FROM generate_series($1::bigint, $2::bigint - 1) AS h (height) \
             LEFT JOIN raw.blocks b ON b.height = h.height AND b.height >= $1 AND b.height < $2 \
             WHERE b.height IS NULL \
               OR b.tx_count <> (SELECT count(*) FROM raw.transactions t WHERE t.block_height = b.height) \
               OR (b.layout IS NOT NULL AND (SELECT coalesce(sum(t.event_count), 0) FROM raw.transactions t \
                     WHERE t.block_height = b.height) <> (SELECT count(*) FROM raw.events e WHERE e.block_height = b.height)) \
             ORDER BY 1",
            &[&from, &to],
        )
        .await?;
    repaired.damaged = damaged.iter().map(|row: &Row| get_height(row, 0)).collect::<Result<_>>()?;
    Ok(repaired)
}
