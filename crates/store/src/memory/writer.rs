//! The ingester's verbs on the memory store.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockRef, Fence, Height, HeightRange, RawBlock};

use super::MemoryStore;
use super::state::State;
use crate::{
    AppendBatch, HeadRow, OrphanRef, PendingPurge, PurgeProgress, RawWriter, ReorgEntry, ReorgMark, Result,
    Rollback, StoreError, StoreInfo, check_batch,
};

#[async_trait]
impl RawWriter for MemoryStore {
    async fn init(&self, info: StoreInfo) -> Result<HeadRow> {
        self.commit("init", |state| {
            let head = match &mut state.head {
                None => state.head.insert(HeadRow::new(info)),
                Some(head) if head.info.chain_id != info.chain_id => {
                    return Err(StoreError::WrongChain {
                        stored: head.info.chain_id,
                        offered: info.chain_id,
                    });
                }
                Some(head) => {
                    if !info.chain_config.is_empty() {
                        head.info.chain_config = info.chain_config;
                    }
                    head
                }
            };
            Ok(head.clone())
        })
    }

    async fn acquire(&self) -> Result<HeadRow> {
        self.commit("acquire", |state| {
            state.head()?;
            let fence = state.next_fence();
            let head = state.head_mut()?;
            head.fence = fence;
            Ok(head.clone())
        })
    }

    async fn append(&self, fence: Fence, batch: AppendBatch) -> Result<HeadRow> {
        self.commit("append", |state| append(state, fence, batch))
    }

    async fn finalize(
        &self,
        fence: Fence,
        finalized: Option<BlockRef>,
        safe: Option<BlockRef>,
    ) -> Result<HeadRow> {
        self.commit("finalize", |state| {
            let head = state.demand_head(fence)?;
            let (visible, finalized) = (head.range(), newer(head.finalized, finalized));
            let held = |height| if visible.contains(height) { state.row_ref(height) } else { None };
            demand_finality(finalized, held)?;
            let safe = safe.filter(|safe| held(safe.height) == Some(*safe));
            let head = state.head_mut()?;
            head.finalized = finalized;
            head.safe = safe.or(head.safe);
            Ok(head.clone())
        })
    }

    async fn rollback(&self, fence: Fence, rollback: Rollback) -> Result<ReorgEntry> {
        self.commit("rollback", |state| roll_back(state, fence, rollback))
    }

    async fn purge_step(&self, fence: Fence, max_blocks: u64) -> Result<PurgeProgress> {
        self.commit("purge_step", |state| {
            let Some(purge) = state.demand_head(fence)?.pending_purge else { return Ok(PurgeProgress::Done) };
            if max_blocks == 0 {
                return Err(StoreError::Invalid(
                    "purge_step: max_blocks is 0; nothing would ever be moved".into(),
                ));
            }
            let rows = state.blocks.range(purge.orphans.start()..purge.orphans.end());
            let waiting: Vec<Height> = rows.map(|(height, _)| *height).collect();
            for height in waiting.iter().rev().take(usize::try_from(max_blocks).unwrap_or(usize::MAX)) {
                if let Some(block) = state.take_block(*height) {
                    Arc::make_mut(&mut state.orphans).insert((purge.reorg_id, block.facts.id), block);
                }
            }
            let left = (waiting.len() as u64).saturating_sub(max_blocks);
            if left > 0 {
                return Ok(PurgeProgress::Left(left));
            }
            state.head_mut()?.pending_purge = None;
            Ok(PurgeProgress::Done)
        })
    }

    async fn prune_orphans(&self, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64> {
        self.commit("prune_orphans", |state| {
            let Some(tip) = state.demand_head(fence)?.tip else { return Ok(0) };
            let old =
                state.reorgs.iter().filter(|entry| tip.height.since(entry.first_orphan()) > keep_heights);
            let doomed: Vec<_> = old
                .flat_map(|entry| entry.orphans.iter().map(|orphan| (entry.id, orphan.block.id)))
                .filter(|key| state.orphans.contains_key(key))
                .take(usize::try_from(max_blocks).unwrap_or(usize::MAX))
                .collect();
            let orphans = Arc::make_mut(&mut state.orphans);
            for key in &doomed {
                orphans.remove(key);
            }
            Ok(doomed.len() as u64)
        })
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
    held: impl Fn(Height) -> Option<BlockRef>,
) -> Result<()> {
    let Some(finalized) = finalized else { return Ok(()) };
    match held(finalized.height) {
        Some(asked) if asked != finalized => Err(StoreError::BelowFinality { finalized, asked }),
        _ => Ok(()),
    }
}

fn append(state: &mut State, fence: Fence, batch: AppendBatch) -> Result<HeadRow> {
    let head = state.demand_head(fence)?;
    check_batch(&batch.blocks)?;
    let (first, last) = (&batch.blocks[0], batch.blocks[batch.blocks.len() - 1].block_ref());
    if let Some(purge) = head.pending_purge {
        return Err(StoreError::PurgePending { reorg_id: purge.reorg_id, common: common_of(purge.orphans) });
    }
    let first_height = head.first.unwrap_or(first.facts.height);
    if let Some(tip) = head.tip {
        if tip == last && first.facts.height >= first_height {
            state.demand_no_conflict(&batch.blocks)?;
            return Ok(head.clone());
        }
        demand_joins(state, head, tip, first)?;
    }
    state.demand_no_conflict(&batch.blocks)?;
    let visible = HeightRange::inclusive(first_height, last.height);
    let held = |height: Height| {
        let offered = height.get().checked_sub(first.facts.height.get());
        let offered = offered.and_then(|at| batch.blocks.get(usize::try_from(at).ok()?));
        let row = || if visible.contains(height) { state.row_ref(height) } else { None };
        offered.map(RawBlock::block_ref).or_else(row)
    };
    let finalized = newer(head.finalized, batch.finalized);
    demand_finality(finalized, held)?;
    let safe = batch.safe.filter(|safe| held(safe.height) == Some(*safe)).or(head.safe);

    for block in batch.blocks {
        state.put_block(Arc::new(block));
    }
    let head = state.head_mut()?;
    head.first = Some(first_height);
    head.tip = Some(last);
    head.finalized = finalized;
    head.safe = safe;
    Ok(head.clone())
}

/// The last common height of a purge.
pub(super) fn common_of(orphans: HeightRange) -> Height {
    orphans.start().saturating_sub(1)
}

fn demand_joins(state: &State, head: &HeadRow, tip: BlockRef, first: &RawBlock) -> Result<()> {
    let offered = first.block_ref();
    let below = if head.range().contains(offered.height) { state.row_ref(offered.height) } else { None };
    if let Some(stored) = below.filter(|stored| *stored != offered) {
        return Err(StoreError::Conflict { height: offered.height, stored: stored.id, offered: offered.id });
    }
    if offered.height.prev() == Some(tip.height) && first.facts.parent_id == tip.id {
        return Ok(());
    }
    Err(StoreError::DoesNotLink { first: offered, parent_id: first.facts.parent_id, expected: tip })
}

fn roll_back(state: &mut State, fence: Fence, rollback: Rollback) -> Result<ReorgEntry> {
    let head = state.demand_head(fence)?;
    let common = rollback.common;
    let Some(tip) = head.tip else {
        return Err(StoreError::Invalid("rollback: the store holds no block".into()));
    };
    if let Some(newest) = state.reorgs.last().filter(|newest| newest.common == common && tip == common) {
        return Ok(newest.clone());
    }
    if let Some(purge) = head.pending_purge {
        return Err(StoreError::PurgePending { reorg_id: purge.reorg_id, common: common_of(purge.orphans) });
    }
    if common.height >= tip.height {
        return Err(StoreError::Invalid(format!(
            "rollback: common block {common} is not below the tip {tip}"
        )));
    }
    if let Some(finalized) = head.finalized.filter(|finalized| common.height < finalized.height) {
        return Err(StoreError::BelowFinality { finalized, asked: common });
    }
    let depth = tip.height.since(common.height);
    if depth > rollback.max_depth {
        return Err(StoreError::TooDeep { depth, limit: rollback.max_depth, tip, common });
    }
    if !head.range().contains(common.height) || state.row_ref(common.height) != Some(common) {
        return Err(StoreError::Invalid(format!("rollback: common block {common} is not stored")));
    }
    let taken = HeightRange::inclusive(common.height.next(), tip.height);
    let rows = state.blocks.range(taken.start()..taken.end());
    let orphans = rows
        .map(|(_, row)| OrphanRef { block: row.block_ref(), timestamp_ms: row.facts.timestamp_ms })
        .collect();
    let entry = ReorgEntry::chain(
        head.newest_reorg.id + 1,
        &head.newest_reorg.digest,
        head.info.uuid,
        common,
        orphans,
        rollback.decided_at_ms,
    );

    let filled: Vec<Height> = state.blocks.range(taken.end()..).map(|(height, _)| *height).collect();
    for height in filled {
        state.take_block(height);
    }
    Arc::make_mut(&mut state.leases).retain(|_, row| row.lease.range.end() <= common.height.next());
    Arc::make_mut(&mut state.reorgs).push(entry.clone());
    let head = state.head_mut()?;
    head.tip = Some(common);
    head.safe = head.safe.map(|safe| if safe.height > common.height { common } else { safe });
    head.newest_reorg = ReorgMark { id: entry.id, digest: entry.digest };
    head.pending_purge = Some(PendingPurge { reorg_id: entry.id, orphans: taken });
    Ok(entry)
}
