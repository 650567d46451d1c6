//! The ingester's verbs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use cairn_core::{BlockRef, Fence, Height, HeightRange};
use cairn_store::{
    AppendBatch, HeadRow, OffloadOptions, OrphanRef, PendingPurge, PurgeProgress, RawWriter, ReorgEntry,
    ReorgMark, Result, Rollback, StoreError, StoreInfo, offload,
};

use super::head::{self, Head, get_height, get_id, sql};
use super::rows::EncodedBatch;
use super::tx::Tx;
use super::{PgRawStore, Shared, blocking, moves, read, runs, snapshot, stale};
use crate::postgres::error::{corrupt, db};
use crate::postgres::{CopyBuf, PgConn, payloads};

/// How often a batch is uploaded again where the collector took an object of it away meanwhile.
pub(super) const MAX_OFFLOADS: u32 = 4;

#[async_trait]
impl RawWriter for PgRawStore {
    async fn init(&self, info: StoreInfo) -> Result<HeadRow> {
        let info = Arc::new(info);
        let head = self
            .shared
            .commit("init", |tx| {
                let info = info.clone();
                Box::pin(async move { init(tx, &info).await })
            })
            .await?;
        if let Some(payloads) = &self.shared.payloads {
            // Objects of two stores in one place would be collected by each other.
            payloads.store.claim(&owner(&head.info.uuid)).await?;
        }
        self.shared.partitions.begin_indexes(&self.shared.pool).await?;
        Ok(head)
    }

    async fn acquire(&self) -> Result<HeadRow> {
        let head = self
            .shared
            .commit("acquire", |tx| {
                Box::pin(async move {
                    let mut head = head::lock(tx).await?;
                    head.row.fence = head.next_fence();
                    head.write(tx).await?;
                    Ok(head.row)
                })
            })
            .await?;
        self.shared.fence.store(head.fence.0, Ordering::Release);
        Ok(head)
    }

    async fn append(&self, fence: Fence, batch: AppendBatch) -> Result<HeadRow> {
        let shared = &self.shared;
        shared.demand_writable()?;
        // A look before the work: who was fenced off learns it from the transaction, this only saves time.
        let conn = shared.pool.get().await?;
        let head = head::read(&conn).await?;
        drop(conn);
        head.demand_fence(fence)?;
        let AppendBatch { blocks, finalized, safe } = batch;
        let encoding = shared.clone();
        let encoded = blocking(move || EncodedBatch::new(blocks, &encoding)).await?;
        // What doesn't join is refused below, and must not make a partition for a height far away.
        if head.row.tip.is_none_or(|tip| encoded.first().facts.height <= tip.height.next()) {
            shared.partitions.ensure(&shared.pool, encoded.heights()).await?;
        }
        shared.store_scripts(&encoded).await?;
        let mut batch = Arc::new(encoded);
        for tries in 1.. {
            batch = shared.upload(batch).await?;
            let appended = shared
                .commit_clean("append", |tx| {
                    let (shared, batch) = (shared.clone(), batch.clone());
                    Box::pin(async move { append(&shared, tx, fence, &batch, finalized, safe).await })
                })
                .await;
            match appended {
                Err(error) if is_object_lost(&error) && tries < MAX_OFFLOADS => {}
                appended => return appended,
            }
        }
        Err(object_lost())
    }

    async fn finalize(
        &self,
        fence: Fence,
        finalized: Option<BlockRef>,
        safe: Option<BlockRef>,
    ) -> Result<HeadRow> {
        self.shared
            .commit("finalize", |tx| {
                Box::pin(async move {
                    let mut head = head::lock(tx).await?;
                    head.demand_fence(fence)?;
                    let visible = head.row.range();
                    let finalized = newer(head.row.finalized, finalized);
                    demand_finality(finalized, held(tx.conn(), visible, finalized).await?)?;
                    head.row.safe = held_mark(safe, held(tx.conn(), visible, safe).await?).or(head.row.safe);
                    head.row.finalized = finalized;
                    head.write(tx).await?;
                    Ok(head.row)
                })
            })
            .await
    }

    async fn rollback(&self, fence: Fence, rollback: Rollback) -> Result<ReorgEntry> {
        let entry = self
            .shared
            .commit_clean("rollback", |tx| Box::pin(async move { roll_back(tx, fence, rollback).await }))
            .await?;
        self.shared.finish_discard().await?;
        Ok(entry)
    }

    async fn purge_step(&self, fence: Fence, max_blocks: u64) -> Result<PurgeProgress> {
        self.shared
            .commit("purge_step", |tx| Box::pin(async move { purge(tx, fence, max_blocks).await }))
            .await
    }

    async fn prune_orphans(&self, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64> {
        self.shared
            .commit("prune_orphans", |tx| {
                Box::pin(async move { prune(tx, fence, keep_heights, max_blocks).await })
            })
            .await
    }
}

impl Shared {
    /// Uploads what of a batch doesn't go into rows; the transaction that writes the rows makes the objects live.
    pub(super) async fn upload(&self, batch: Arc<EncodedBatch>) -> Result<Arc<EncodedBatch>> {
        let Some(payloads) = self.payloads.as_ref().filter(|_| !batch.large().is_empty()) else {
            return Ok(batch);
        };
        let options = OffloadOptions::default();
        let objects = offload(&*payloads.store, &payloads.registry, batch.large(), options).await?;
        let mut batch = Arc::try_unwrap(batch)
            .map_err(|_| StoreError::Database("a batch is still being written".into()))?;
        batch.set_objects(objects);
        Ok(Arc::new(batch))
    }
}

/// What tells a lost object from other reasons to try again.
const OBJECT_LOST: &str = "an uploaded payload was collected before its rows were written";

fn object_lost() -> StoreError {
    StoreError::Busy(OBJECT_LOST.into())
}

/// Whether the collector took an object of a batch away between its upload and its commit: both are then done again.
pub(super) fn is_object_lost(error: &StoreError) -> bool {
    matches!(error, StoreError::Busy(what) if what == OBJECT_LOST)
}

/// The first statement about a batch's objects: locks and revives them.
pub(super) async fn make_live(tx: &Tx, batch: &EncodedBatch) -> Result<()> {
    if batch.objects().is_empty() || payloads::make_live(tx.conn(), batch.objects()).await?.is_empty() {
        return Ok(());
    }
    Err(object_lost())
}

/// A store's name among those that might share object storage: its uuid as hex digits.
/// The name by which object storage knows a store.
pub(super) fn owner(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn init(tx: &Tx, info: &StoreInfo) -> Result<HeadRow> {
    if head::find_locked(tx).await?.is_none() {
        // Where two come at once, the second one waits for the first and finds its row.
        tx.execute(
            "INSERT INTO raw.head (uuid, chain_id, chain_config, reorg_id, reorg_digest, fence, last_fence) \
             VALUES ($1, $2, '', 0, $3, 0, 0) ON CONFLICT DO NOTHING",
            &[&&info.uuid[..], &(info.chain_id.0 as i64), &&[0_u8; 32][..]],
        )
        .await?;
    }
    let mut head = head::lock(tx).await?;
    if head.row.info.chain_id != info.chain_id {
        return Err(StoreError::WrongChain { stored: head.row.info.chain_id, offered: info.chain_id });
    }
    if !info.chain_config.is_empty() {
        tx.execute("UPDATE raw.head SET chain_config = $1", &[&&info.chain_config[..]]).await?;
        head.row.info.chain_config = info.chain_config.clone();
    }
    Ok(head.row)
}

/// The finalised mark after `offered` came: it only grows.
fn newer(stored: Option<BlockRef>, offered: Option<BlockRef>) -> Option<BlockRef> {
    match (stored, offered) {
        (Some(stored), Some(offered)) if offered.height <= stored.height => Some(stored),
        (stored, offered) => offered.or(stored),
    }
}

/// The block that is held at the height of a mark, if that is visible.
async fn held(conn: &PgConn, visible: HeightRange, mark: Option<BlockRef>) -> Result<Option<BlockRef>> {
    match mark {
        Some(mark) if visible.contains(mark.height) => read::row_ref(conn, mark.height).await,
        _ => Ok(None),
    }
}

/// Where the finalised block's height is held, its id has to be the finalised one.
pub(super) fn demand_finality(finalized: Option<BlockRef>, held: Option<BlockRef>) -> Result<()> {
    match (finalized, held) {
        (Some(finalized), Some(asked)) if asked != finalized => {
            Err(StoreError::BelowFinality { finalized, asked })
        }
        _ => Ok(()),
    }
}

/// A mark, if it is the block that is held.
fn held_mark(mark: Option<BlockRef>, held: Option<BlockRef>) -> Option<BlockRef> {
    mark.filter(|mark| held == Some(*mark))
}

async fn append(
    shared: &Shared,
    tx: &Tx,
    fence: Fence,
    batch: &Arc<EncodedBatch>,
    finalized: Option<BlockRef>,
    safe: Option<BlockRef>,
) -> Result<Option<HeadRow>> {
    let mut head = head::lock(tx).await?;
    head.demand_fence(fence)?;
    head.demand_no_purge()?;
    if head.discard.is_some() {
        return Ok(None);
    }
    let (first, last) = (&batch.first().facts, batch.last());
    let first_height = head.row.first.unwrap_or(first.height);
    if let Some(tip) = head.row.tip {
        if tip == last && first.height >= first_height {
            read::demand_no_conflict(shared, tx.conn(), batch).await?;
            return Ok(Some(head.row));
        }
        demand_joins(tx, &head, tip, batch).await?;
    }
    let stored = read::demand_no_conflict(shared, tx.conn(), batch).await?;
    let visible = HeightRange::inclusive(first_height, last.height);
    let held = async |mark: Option<BlockRef>| match mark.and_then(|mark| batch.at(mark.height)) {
        Some(own) => Ok(Some(own)),
        None => held(tx.conn(), visible, mark).await,
    };
    let finalized = newer(head.row.finalized, finalized);
    demand_finality(finalized, held(finalized).await?)?;
    let safe = held_mark(safe, held(safe).await?);

    make_live(tx, batch).await?;
    stale::make_way(tx, batch).await?;
    batch.write(tx, &stored).await?;
    head.row.first = Some(first_height);
    head.row.tip = Some(last);
    head.row.finalized = finalized;
    head.row.safe = safe.or(head.row.safe);
    head.write(tx).await?;
    Ok(Some(head.row))
}

async fn demand_joins(tx: &Tx, head: &Head, tip: BlockRef, batch: &EncodedBatch) -> Result<()> {
    let (first, offered) = (&batch.first().facts, batch.first().block_ref());
    let below = held(tx.conn(), head.row.range(), Some(offered)).await?;
    if let Some(stored) = below.filter(|stored| *stored != offered) {
        return Err(StoreError::Conflict { height: offered.height, stored: stored.id, offered: offered.id });
    }
    if offered.height.prev() == Some(tip.height) && first.parent_id == tip.id {
        return Ok(());
    }
    Err(StoreError::DoesNotLink { first: offered, parent_id: first.parent_id, expected: tip })
}

async fn roll_back(tx: &Tx, fence: Fence, rollback: Rollback) -> Result<Option<ReorgEntry>> {
    let mut head = head::lock(tx).await?;
    head.demand_fence(fence)?;
    let common = rollback.common;
    let Some(tip) = head.row.tip else {
        return Err(StoreError::Invalid("rollback: the store holds no block".into()));
    };
    if tip == common {
        let before = head.row.newest_reorg.id.saturating_sub(1);
        let newest = snapshot::read_reorgs(tx.conn(), before, 1).await?.pop();
        if let Some(newest) = newest.filter(|newest| newest.common == common) {
            return Ok(Some(newest));
        }
    }
    head.demand_no_purge()?;
    if head.discard.is_some() {
        return Ok(None);
    }
    if common.height >= tip.height {
        return Err(StoreError::Invalid(format!(
            "rollback: common block {common} is not below the tip {tip}"
        )));
    }
    if let Some(finalized) = head.row.finalized.filter(|finalized| common.height < finalized.height) {
        return Err(StoreError::BelowFinality { finalized, asked: common });
    }
    let depth = tip.height.since(common.height);
    if depth > rollback.max_depth {
        return Err(StoreError::TooDeep { depth, limit: rollback.max_depth, tip, common });
    }
    if held(tx.conn(), head.row.range(), Some(common)).await? != Some(common) {
        return Err(StoreError::Invalid(format!("rollback: common block {common} is not stored")));
    }
    let taken = HeightRange::inclusive(common.height.next(), tip.height);
    let orphans = orphans_of(tx, taken).await?;
    let entry = ReorgEntry::chain(
        head.row.newest_reorg.id + 1,
        &head.row.newest_reorg.digest,
        head.row.info.uuid,
        common,
        orphans,
        rollback.decided_at_ms,
    );
    insert_entry(tx, &entry).await?;
    drop_fills(tx, &mut head, common, tip).await?;
    head.row.tip = Some(common);
    head.row.safe = head.row.safe.map(|safe| if safe.height > common.height { common } else { safe });
    head.row.newest_reorg = ReorgMark { id: entry.id, digest: entry.digest };
    head.row.pending_purge = Some(PendingPurge { reorg_id: entry.id, orphans: taken });
    head.write(tx).await?;
    Ok(Some(entry))
}

/// What was filled above the tip stands on the fork that goes: its leases and index entries go at once, its rows afterwards. Waits for fills that
/// are being committed; those that come later find no lease.
async fn drop_fills(tx: &Tx, head: &mut Head, common: BlockRef, tip: BlockRef) -> Result<()> {
    tx.execute("DELETE FROM raw.leases WHERE to_height > $1", &[&sql(common.height.next())]).await?;
    if let Some(last) = read::last_height(tx.conn()).await?.filter(|last| *last > tip.height) {
        let filled = HeightRange::inclusive(tip.height.next(), last);
        runs::cut(tx, filled).await?;
        head.discard = Some(filled);
    }
    Ok(())
}

async fn orphans_of(tx: &Tx, taken: HeightRange) -> Result<Vec<OrphanRef>> {
    let rows = tx
        .query(
            "SELECT height, id, timestamp_ms FROM raw.blocks WHERE height >= $1 AND height < $2 ORDER BY height",
            &[&sql(taken.start()), &sql(taken.end())],
        )
        .await?;
    let orphan = |row: &tokio_postgres::Row| {
        let block = BlockRef { height: get_height(row, 0)?, id: get_id(row, 1)? };
        Ok(OrphanRef { block, timestamp_ms: row.try_get::<_, i64>(2).map_err(db)? as u64 })
    };
    let orphans = rows.iter().map(orphan).collect::<Result<Vec<_>>>()?;
    let missing = taken.iter().zip(&orphans).find(|(height, orphan)| orphan.block.height != *height);
    if orphans.len() as u64 == taken.len() && missing.is_none() {
        return Ok(orphans);
    }
    let height = missing.map_or(taken.start() + orphans.len() as u64, |(height, _)| height);
    Err(corrupt(format!("height {height}"), "its block is not there, though the head row says so"))
}

async fn insert_entry(tx: &Tx, entry: &ReorgEntry) -> Result<()> {
    tx.execute(
        "INSERT INTO raw.reorgs (id, digest, store_uuid, common_height, common_id, decided_at_ms) \
         VALUES ($1, $2, $3, $4, $5, $6)",
        &[
            &(entry.id as i64),
            &&entry.digest[..],
            &&entry.store_uuid[..],
            &sql(entry.common.height),
            &&entry.common.id.0[..],
            &(entry.decided_at_ms as i64),
        ],
    )
    .await?;
    let mut rows = CopyBuf::new();
    for orphan in &entry.orphans {
        rows.row(4)
            .i64(entry.id as i64)
            .i64(sql(orphan.block.height))
            .bytea(&orphan.block.id.0)
            .i64(orphan.timestamp_ms as i64);
    }
    tx.copy_in("COPY raw.reorg_orphans (reorg_id, height, id, timestamp_ms) FROM STDIN (FORMAT binary)", rows)
        .await
}

/// From the top, so that what is left is always a range that begins above the common block. The first step takes all of the index
/// entries away: nobody can see them, and their runs are small.
async fn purge(tx: &Tx, fence: Fence, max_blocks: u64) -> Result<PurgeProgress> {
    let mut head = head::lock(tx).await?;
    head.demand_fence(fence)?;
    let Some(purge) = head.row.pending_purge else { return Ok(PurgeProgress::Done) };
    if max_blocks == 0 {
        return Err(StoreError::Invalid("purge_step: max_blocks is 0; nothing would ever be moved".into()));
    }
    runs::cut(tx, purge.orphans).await?;
    let waiting = read::stored_heights(tx.conn(), purge.orphans).await?;
    let kept = waiting.len().saturating_sub(usize::try_from(max_blocks).unwrap_or(usize::MAX));
    if let (Some(first), Some(last)) = (waiting.get(kept), waiting.last()) {
        let moved = HeightRange::inclusive(*first, *last);
        moves::copy_to_orphans(tx, purge.reorg_id, moved).await?;
        moves::delete(tx, moved).await?;
    }
    if kept > 0 {
        return Ok(PurgeProgress::Left(kept as u64));
    }
    head.row.pending_purge = None;
    head.write(tx).await?;
    Ok(PurgeProgress::Done)
}

async fn prune(tx: &Tx, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64> {
    let head = head::lock(tx).await?;
    head.demand_fence(fence)?;
    let Some(tip) = head.row.tip else { return Ok(0) };
    // Its first orphan stands one above the common block.
    let Some(below) = tip.height.get().checked_sub(keep_heights) else { return Ok(0) };
    let limit = i64::try_from(max_blocks).unwrap_or(i64::MAX);
    let gone = tx
        .query(
            "SELECT o.reorg_id, o.id FROM raw.orphan_blocks o JOIN raw.reorgs r ON r.id = o.reorg_id \
             WHERE r.common_height + 1 < $1 ORDER BY o.reorg_id, o.height LIMIT $2",
            &[&sql(Height(below)), &limit],
        )
        .await?;
    let (mut reorgs, mut ids) = (Vec::with_capacity(gone.len()), Vec::with_capacity(gone.len()));
    for row in &gone {
        reorgs.push(row.try_get::<_, i64>(0).map_err(db)?);
        ids.push(row.try_get::<_, &[u8]>(1).map_err(db)?);
    }
    for (table, block_id) in [
        ("orphan_events", "block_id"),
        ("orphan_transactions", "block_id"),
        ("orphan_collections", "of_block"),
        ("orphan_execution_results", "block_id"),
        ("orphan_blocks", "id"),
    ] {
        let delete = format!(
            "DELETE FROM raw.{table} o USING unnest($1::bigint[], $2::bytea[]) AS g (reorg_id, id) \
             WHERE o.reorg_id = g.reorg_id AND o.{block_id} = g.id"
        );
        tx.execute(&delete, &[&reorgs, &ids]).await?;
    }
    Ok(gone.len() as u64)
}
