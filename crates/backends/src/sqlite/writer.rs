//! The ingester's verbs.

use async_trait::async_trait;
use cairn_core::{BlockRef, Fence, Height, HeightRange, RawBlock};
use cairn_store::runs::BuiltRun;
use cairn_store::{
    AppendBatch, HeadRow, OrphanRef, PendingPurge, PurgeProgress, RawWriter, ReorgEntry, ReorgMark, Result,
    Rollback, StoreError, StoreInfo, check_batch,
};
use rusqlite::{Connection, OptionalExtension, params};

use super::blocks::{self, EncodedBlock};
use super::codec::{Packer, Unpacker};
use super::error::{corrupt, db};
use super::head::{self, Head, get_id, sql};
use super::snapshot::read_reorgs;
use super::{SqliteStore, index};

/// Consecutive blocks with their index runs, ready to be written.
pub(super) struct EncodedBatch {
    pub(super) blocks: Vec<EncodedBlock>,
    runs: Vec<BuiltRun>,
}

impl EncodedBatch {
    /// Checks, compresses and builds the index: all that needs no database. Each block's uncompressed bytes are let go when it is done.
    pub(super) fn new(batch: Vec<RawBlock>, compression_level: i32) -> Result<Self> {
        check_batch(&batch)?;
        let mut packer = Packer::new(compression_level)?;
        let blocks: Vec<EncodedBlock> =
            batch.into_iter().map(|block| EncodedBlock::new(block, &mut packer)).collect::<Result<_>>()?;
        let runs = index::build_runs(&blocks)?;
        Ok(EncodedBatch { blocks, runs })
    }

    pub(super) fn first(&self) -> &EncodedBlock {
        // `check_batch` refuses an empty one.
        &self.blocks[0]
    }

    pub(super) fn last(&self) -> BlockRef {
        self.blocks[self.blocks.len() - 1].block_ref()
    }

    /// The batch's own block at a height.
    pub(super) fn at(&self, height: Height) -> Option<BlockRef> {
        let at = height.get().checked_sub(self.first().facts.height.get())?;
        self.blocks.get(usize::try_from(at).ok()?).map(EncodedBlock::block_ref)
    }

    /// Writes the blocks that are not among `stored` (ascending), and their index entries.
    pub(super) fn write(&self, conn: &Connection, stored: &[Height]) -> Result<()> {
        if stored.is_empty() {
            blocks::insert_all(conn, self.blocks.iter())?;
            return self.runs.iter().try_for_each(|run| index::insert_run(conn, run, 0));
        }
        let new = self.blocks.iter().filter(|block| stored.binary_search(&block.facts.height).is_err());
        blocks::insert_all(conn, new)?;
        index::insert_new_runs(conn, &self.blocks, stored)
    }
}

#[async_trait]
impl RawWriter for SqliteStore {
    async fn init(&self, info: StoreInfo) -> Result<HeadRow> {
        self.write(move |shared| {
            shared.commit("init", |tx, _| {
                let mut head = match head::find(tx)? {
                    None => {
                        let row = HeadRow::new(StoreInfo { chain_config: Default::default(), ..info });
                        let head = Head { row, last_fence: 0, discard: None };
                        head.write(tx)?;
                        head
                    }
                    Some(head) if head.row.info.chain_id != info.chain_id => {
                        return Err(StoreError::WrongChain {
                            stored: head.row.info.chain_id,
                            offered: info.chain_id,
                        });
                    }
                    Some(head) => head,
                };
                if !info.chain_config.is_empty() {
                    tx.execute(
                        "INSERT INTO chain_config VALUES (1, ?1) ON CONFLICT DO UPDATE SET data = ?1",
                        [info.chain_config.as_ref()],
                    )
                    .map_err(db)?;
                    head.row.info.chain_config = info.chain_config;
                }
                Ok(head.row)
            })
        })
        .await
    }

    async fn acquire(&self) -> Result<HeadRow> {
        self.write(|shared| {
            shared.commit("acquire", |tx, _| {
                let mut head = head::read(tx)?;
                head.row.fence = head.next_fence();
                head.write(tx)?;
                Ok(head.row)
            })
        })
        .await
    }

    async fn append(&self, fence: Fence, batch: AppendBatch) -> Result<HeadRow> {
        self.write(move |shared| {
            // A look before the work: who was fenced off learns it from the transaction, this only saves time.
            shared.with_writer(|writer| head::read(&writer.conn)?.demand_fence(fence))?;
            let encoded = EncodedBatch::new(batch.blocks, shared.options.compression_level)?;
            shared.commit_clean("append", |tx, unpacker| {
                append(tx, unpacker, fence, &encoded, batch.finalized, batch.safe)
            })
        })
        .await
    }

    async fn finalize(
        &self,
        fence: Fence,
        finalized: Option<BlockRef>,
        safe: Option<BlockRef>,
    ) -> Result<HeadRow> {
        self.write(move |shared| {
            shared.commit("finalize", |tx, _| {
                let mut head = head::read(tx)?;
                head.demand_fence(fence)?;
                let visible = head.row.range();
                let held =
                    |height| if visible.contains(height) { blocks::row_ref(tx, height) } else { Ok(None) };
                let finalized = newer(head.row.finalized, finalized);
                demand_finality(finalized, held)?;
                head.row.safe = held_mark(safe, held)?.or(head.row.safe);
                head.row.finalized = finalized;
                head.write(tx)?;
                Ok(head.row)
            })
        })
        .await
    }

    async fn rollback(&self, fence: Fence, rollback: Rollback) -> Result<ReorgEntry> {
        self.write(move |shared| {
            let entry = shared.commit_clean("rollback", |tx, _| roll_back(tx, fence, rollback))?;
            shared.finish_discard()?;
            Ok(entry)
        })
        .await
    }

    async fn purge_step(&self, fence: Fence, max_blocks: u64) -> Result<PurgeProgress> {
        self.write(move |shared| shared.commit("purge_step", |tx, _| purge(tx, fence, max_blocks))).await
    }

    async fn prune_orphans(&self, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64> {
        self.write(move |shared| {
            shared.commit("prune_orphans", |tx, _| {
                let head = head::read(tx)?;
                head.demand_fence(fence)?;
                let Some(tip) = head.row.tip else { return Ok(0) };
                // Its first orphan stands one above the common block.
                let Some(below) = tip.height.get().checked_sub(keep_heights) else { return Ok(0) };
                let deleted = tx
                    .prepare_cached(
                        "DELETE FROM orphans WHERE number IN (SELECT o.number FROM orphans o CROSS JOIN reorgs r \
                         WHERE r.id = o.reorg_id AND r.common_height + 1 < ?1 ORDER BY o.reorg_id, o.height LIMIT ?2)",
                    )
                    .and_then(|mut statement| {
                        let limit = i64::try_from(max_blocks).unwrap_or(i64::MAX);
                        statement.execute([sql(Height(below)), limit])
                    });
                deleted.map(|blocks| blocks as u64).map_err(db)
            })
        })
        .await
    }
}

/// The finalised mark after `offered` came: it only grows.
fn newer(stored: Option<BlockRef>, offered: Option<BlockRef>) -> Option<BlockRef> {
    match (stored, offered) {
        (Some(stored), Some(offered)) if offered.height <= stored.height => Some(stored),
        (stored, offered) => offered.or(stored),
    }
}

/// Where the finalised block's height is held, its id has to be the finalised one.
pub(super) fn demand_finality(
    finalized: Option<BlockRef>,
    held: impl Fn(Height) -> Result<Option<BlockRef>>,
) -> Result<()> {
    let Some(finalized) = finalized else { return Ok(()) };
    match held(finalized.height)? {
        Some(asked) if asked != finalized => Err(StoreError::BelowFinality { finalized, asked }),
        _ => Ok(()),
    }
}

/// A mark, if it is a block that is held.
fn held_mark(
    mark: Option<BlockRef>,
    held: impl Fn(Height) -> Result<Option<BlockRef>>,
) -> Result<Option<BlockRef>> {
    match mark {
        Some(mark) => Ok(held(mark.height)?.filter(|row| *row == mark)),
        None => Ok(None),
    }
}

fn append(
    tx: &Connection,
    unpacker: &Unpacker,
    fence: Fence,
    batch: &EncodedBatch,
    finalized: Option<BlockRef>,
    safe: Option<BlockRef>,
) -> Result<HeadRow> {
    let mut head = head::read(tx)?;
    head.demand_fence(fence)?;
    head.demand_no_purge()?;
    let (first, last) = (&batch.first().facts, batch.last());
    let first_height = head.row.first.unwrap_or(first.height);
    if let Some(tip) = head.row.tip {
        if tip == last && first.height >= first_height {
            blocks::demand_no_conflict(tx, unpacker, &batch.blocks)?;
            return Ok(head.row);
        }
        demand_joins(tx, &head, tip, batch.first())?;
    }
    let stored = blocks::demand_no_conflict(tx, unpacker, &batch.blocks)?;
    let visible = HeightRange::inclusive(first_height, last.height);
    let held = |height: Height| match batch.at(height) {
        Some(own) => Ok(Some(own)),
        None if visible.contains(height) => blocks::row_ref(tx, height),
        None => Ok(None),
    };
    let finalized = newer(head.row.finalized, finalized);
    demand_finality(finalized, held)?;
    let safe = held_mark(safe, held)?;

    batch.write(tx, &stored)?;
    head.row.first = Some(first_height);
    head.row.tip = Some(last);
    head.row.finalized = finalized;
    head.row.safe = safe.or(head.row.safe);
    head.write(tx)?;
    Ok(head.row)
}

fn demand_joins(tx: &Connection, head: &Head, tip: BlockRef, first: &EncodedBlock) -> Result<()> {
    let offered = first.block_ref();
    let below =
        if head.row.range().contains(offered.height) { blocks::row_ref(tx, offered.height)? } else { None };
    if let Some(stored) = below.filter(|stored| *stored != offered) {
        return Err(StoreError::Conflict { height: offered.height, stored: stored.id, offered: offered.id });
    }
    if offered.height.prev() == Some(tip.height) && first.facts.parent_id == tip.id {
        return Ok(());
    }
    Err(StoreError::DoesNotLink { first: offered, parent_id: first.facts.parent_id, expected: tip })
}

fn roll_back(tx: &Connection, fence: Fence, rollback: Rollback) -> Result<ReorgEntry> {
    let mut head = head::read(tx)?;
    head.demand_fence(fence)?;
    let common = rollback.common;
    let Some(tip) = head.row.tip else {
        return Err(StoreError::Invalid("rollback: the store holds no block".into()));
    };
    if tip == common
        && let Some(newest) = read_reorgs(tx, head.row.newest_reorg.id.saturating_sub(1), 1)?.pop()
        && newest.common == common
    {
        return Ok(newest);
    }
    head.demand_no_purge()?;
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
    if !head.row.range().contains(common.height) || blocks::row_ref(tx, common.height)? != Some(common) {
        return Err(StoreError::Invalid(format!("rollback: common block {common} is not stored")));
    }
    let taken = HeightRange::inclusive(common.height.next(), tip.height);
    let orphans = orphans_of(tx, taken)?;
    let entry = ReorgEntry::chain(
        head.row.newest_reorg.id + 1,
        &head.row.newest_reorg.digest,
        head.row.info.uuid,
        common,
        orphans,
        rollback.decided_at_ms,
    );
    insert_entry(tx, &entry).map_err(db)?;
    drop_fills(tx, &mut head, common, tip)?;
    head.row.tip = Some(common);
    head.row.safe = head.row.safe.map(|safe| if safe.height > common.height { common } else { safe });
    head.row.newest_reorg = ReorgMark { id: entry.id, digest: entry.digest };
    head.row.pending_purge = Some(PendingPurge { reorg_id: entry.id, orphans: taken });
    head.write(tx)?;
    Ok(entry)
}

/// What was filled above the tip stands on the fork that goes: its leases and index entries go at once, its rows afterwards.
fn drop_fills(tx: &Connection, head: &mut Head, common: BlockRef, tip: BlockRef) -> Result<()> {
    tx.prepare_cached("DELETE FROM raw_leases WHERE to_height > ?1")
        .and_then(|mut statement| statement.execute([sql(common.height.next())]))
        .map_err(db)?;
    if let Some(last) = blocks::last_height(tx)?.filter(|last| *last > tip.height) {
        let filled = HeightRange::inclusive(tip.height.next(), last);
        index::cut(tx, filled)?;
        head.discard = Some(filled);
    }
    Ok(())
}

fn orphans_of(tx: &Connection, taken: HeightRange) -> Result<Vec<OrphanRef>> {
    let mut statement =
        tx.prepare_cached("SELECT id, timestamp_ms FROM blocks WHERE height = ?1").map_err(db)?;
    let orphan = |height: Height| {
        let found = statement
            .query_row([sql(height)], |row| Ok((get_id(row, 0)?, row.get::<_, i64>(1)? as u64)))
            .optional()
            .map_err(db)?;
        let (id, timestamp_ms) = found.ok_or_else(|| {
            corrupt(format!("height {height}"), "its block is not there, though the head row says so")
        })?;
        Ok(OrphanRef { block: BlockRef { height, id }, timestamp_ms })
    };
    taken.iter().map(orphan).collect()
}

fn insert_entry(tx: &Connection, entry: &ReorgEntry) -> rusqlite::Result<()> {
    tx.prepare_cached("INSERT INTO reorgs VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(params![
        entry.id as i64,
        entry.digest,
        entry.store_uuid,
        sql(entry.common.height),
        entry.common.id.0,
        entry.decided_at_ms as i64,
    ])?;
    let mut insert = tx.prepare_cached("INSERT INTO reorg_orphans VALUES (?1, ?2, ?3, ?4)")?;
    for orphan in &entry.orphans {
        let block = orphan.block;
        insert.execute(params![
            entry.id as i64,
            sql(block.height),
            block.id.0,
            orphan.timestamp_ms as i64
        ])?;
    }
    Ok(())
}

/// From the top, so that what is left is always a range that begins above the common block. The first step takes all of the index
/// entries away: nobody can see them, and their runs are small.
fn purge(tx: &Connection, fence: Fence, max_blocks: u64) -> Result<PurgeProgress> {
    let mut head = head::read(tx)?;
    head.demand_fence(fence)?;
    let Some(purge) = head.row.pending_purge else { return Ok(PurgeProgress::Done) };
    if max_blocks == 0 {
        return Err(StoreError::Invalid("purge_step: max_blocks is 0; nothing would ever be moved".into()));
    }
    index::cut(tx, purge.orphans)?;
    let waiting = blocks::stored_heights(tx, purge.orphans)?;
    let kept = waiting.len().saturating_sub(usize::try_from(max_blocks).unwrap_or(usize::MAX));
    if let (Some(first), Some(last)) = (waiting.get(kept), waiting.last()) {
        let moved = HeightRange::inclusive(*first, *last);
        blocks::copy_to_orphans(tx, purge.reorg_id, moved)?;
        blocks::delete(tx, moved)?;
    }
    if kept > 0 {
        return Ok(PurgeProgress::Left(kept as u64));
    }
    head.row.pending_purge = None;
    head.write(tx)?;
    Ok(PurgeProgress::Done)
}
