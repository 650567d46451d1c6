//! Repair: lookups against rows, both ways, and rows that are gone written again. Beside the append path, which needs no conflict handling.
//!
//! Each change is a short transaction under the head's lock, without its fence: it may run in another process than the ingester, changes nothing that a
//! reader may not see already, and works on canonical heights; above them it only takes lookups away that no row stands behind. What takes long, looking, takes no lock. The caller bounds the range.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange, Parts, RawBlock, StoredBlock};
use cairn_store::{PayloadError, RawReplacer, Replacement, Result, StoreError, is_to_replace};

use super::head::{self, sql};
use super::rows::EncodedBatch;
use super::tx::Tx;
use super::writer::{MAX_OFFLOADS, is_object_lost, make_live};
use super::{PgRawStore, Shared, blocking, debug, moves, read, repair_lookups};

/// The most heights that one call repairs.
const MAX_HEIGHTS: u64 = 100_000;

/// How long object storage may take while the head is held.
const MAX_FETCH: Duration = Duration::from_secs(3);

/// What a repair of lookups did and found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Repaired {
    /// Lookups that were missing or said something else than the rows.
    pub lookups_written: u64,
    /// Lookups whose rows are not there.
    pub lookups_removed: u64,
    /// Heights whose rows are incomplete: they have to be fetched again, see [`PgRawStore::repair_block`].
    pub damaged: Vec<Height>,
    /// Heights of blocks that are kept whole, have receipts and say that they have no logs: a query for all logs passes over them by that word, and only who
    /// can read the receipts knows whether it is true. Of blocks in rows the rows say it.
    pub silent: Vec<Height>,
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
        self.shared.demand_writable()?;
        repair_lookups::run(&self.shared, range).await
    }

    /// Removes lookups above the head that no row stands behind: what is left of damage, and in the way of the blocks that come. Says how many.
    pub async fn repair_lookups_above_head(&self) -> Result<u64> {
        self.shared.demand_writable()?;
        repair_lookups::run_above_head(&self.shared).await
    }

    /// Writes the rows of a canonical block again, which was fetched and verified: its id has to be the stored one, or fit between its stored
    /// neighbours where its row is gone. Its lookups, and its lists for debugging, become what the block says. Its index of log terms stays.
    pub async fn repair_block(&self, block: RawBlock) -> Result<()> {
        self.write_again("repair_block", block, None).await
    }

    /// Writes a block's rows again; with `read` only where that is what stands there.
    async fn write_again(
        &self,
        verb: &'static str,
        block: RawBlock,
        read: Option<StoredBlock>,
    ) -> Result<()> {
        let shared = &self.shared;
        shared.demand_writable()?;
        let read = Arc::new(read);
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
                .commit(verb, |tx| {
                    let (shared, batch, read) = (shared.clone(), batch.clone(), read.clone());
                    Box::pin(async move { write_again(&shared, tx, &batch, (*read).as_ref()).await })
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

#[async_trait]
impl RawReplacer for PgRawStore {
    /// What stands there may be in object storage, and is asked of it under the head's lock: one block, seldom.
    async fn replace_block(&self, replacement: Replacement) -> Result<()> {
        replacement.check()?;
        let Replacement { block, read } = replacement;
        self.write_again("replace_block", block, Some(read)).await
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

async fn write_again(
    shared: &Shared,
    tx: &Tx,
    batch: &Arc<EncodedBatch>,
    read: Option<&StoredBlock>,
) -> Result<()> {
    let head = head::lock(tx).await?;
    // Appends wait for the head meanwhile: where an index is being built on the block's partition, rather again later.
    tx.conn().batch("SET LOCAL lock_timeout = '500ms'").await?;
    let facts = &batch.first().facts;
    let (block, range) = (batch.first().block_ref(), HeightRange::one(facts.height));
    if !head.row.range().contains(block.height) {
        return Err(StoreError::Invalid(format!(
            "{}: block {block} is outside the chain {}",
            if read.is_some() { "replace" } else { "repair" },
            head.row.range()
        )));
    }
    if let Some(read) = read {
        let rows = read::read_one(tx.conn(), block.height, Parts::all()).await?;
        // Objects of what stands there are asked for while the head is held: whoever appends doesn't wait for storage that hangs.
        let putting = rows.put_together_knowing(shared, batch);
        let stored = match tokio::time::timeout(MAX_FETCH, putting).await {
            Ok(stored) => stored?.pop(),
            Err(_) => {
                return Err(StoreError::Busy(format!(
                    "object storage didn't give the parts of block {block} within {} ms",
                    MAX_FETCH.as_millis()
                )));
            }
        };
        if !is_to_replace(batch.first(), read, stored.as_ref())? {
            return Ok(());
        }
    }
    let conflict = |stored| StoreError::Conflict { height: block.height, stored, offered: block.id };
    let stored = read::row_ref(tx.conn(), block.height).await?.or(head.row.named_at(block.height));
    if let Some(stored) = stored.filter(|stored| *stored != block) {
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
    batch.write_rows(tx).await?;
    debug::list_again(tx, range).await
}
