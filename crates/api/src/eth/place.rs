//! How far somebody has been told of the chain, and the way from there to a newer head.
//!
//! A place is `(reorg id, tip)`; everything else is read from the store. Reorgs are replayed from the log, lowest id first, and then the
//! way goes up to the new tip. So nothing is lost to a burst of reorgs, however long ago the place was taken.

use cairn_core::{BlockRef, Height, HeightRange};
use cairn_store::{HeadRow, RawSnapshot, ReorgEntry};

use crate::error::RpcError;

/// Entries of the reorg log that are read at once.
const REORGS_PER_READ: usize = 16;

/// A place in a store's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    uuid: [u8; 16],
    reorg_id: u64,
    /// The newest block that was told of; `None` before the first.
    pub tip: Option<BlockRef>,
}

impl Place {
    /// At the head.
    pub(crate) fn at(head: &HeadRow) -> Place {
        Place { uuid: head.info.uuid, reorg_id: head.newest_reorg.id, tip: head.tip }
    }

    /// Demands that `head` is of the same store, and no older.
    pub(crate) fn demand_before(&self, head: &HeadRow) -> Result<(), RpcError> {
        if self.uuid != head.info.uuid {
            return Err(RpcError::server("the store was replaced; subscribe, or install the filter, again"));
        }
        if head.newest_reorg.id < self.reorg_id {
            return Err(RpcError::server(
                "the store's reorg log went back; subscribe, or install the filter, again",
            ));
        }
        Ok(())
    }

    /// Whether every reorg up to `head` has been replayed.
    pub(crate) fn is_on_fork_of(&self, head: &HeadRow) -> bool {
        self.reorg_id >= head.newest_reorg.id
    }

    /// The next entries of the reorg log, for [`Place::step_down`].
    pub(crate) async fn reorgs(&self, snapshot: &dyn RawSnapshot) -> Result<Vec<ReorgEntry>, RpcError> {
        Ok(snapshot.reorgs(self.reorg_id, REORGS_PER_READ).await?)
    }

    /// Goes below the next block that one of `entries` took away, newest first; says which entry and which block. `None`: all of them are
    /// replayed. What stood above the place was never told of and is passed over.
    pub(crate) fn step_down(&mut self, entries: &[ReorgEntry]) -> Result<Option<(u64, BlockRef)>, RpcError> {
        let replayed = self.reorg_id;
        for entry in entries.iter().filter(|entry| entry.id > replayed) {
            let Some(tip) = self.tip.filter(|tip| tip.height > entry.common.height) else {
                self.reorg_id = entry.id;
                continue;
            };
            let orphan = |height: Height| {
                entry.orphans.iter().map(|orphan| orphan.block).find(|block| block.height == height)
            };
            if orphan(tip.height) != Some(tip) {
                return Err(RpcError::server(format!(
                    "reorg {} takes away another block at height {} than {tip}, which was announced; subscribe, or install the filter, again",
                    entry.id, tip.height
                )));
            }
            // The parent is either the next orphan or the common block.
            self.tip = match tip.height.prev() {
                Some(height) if height == entry.common.height => Some(entry.common),
                parent => parent.and_then(orphan),
            };
            return Ok(Some((entry.id, tip)));
        }
        Ok(None)
    }

    /// Demands that the tip is a block of the snapshot's chain.
    pub(crate) async fn demand_canonical(&self, snapshot: &dyn RawSnapshot) -> Result<(), RpcError> {
        let Some(tip) = self.tip else { return Ok(()) };
        let here = snapshot.linked_ref(tip.height).await?;
        if here.map(|here| here.block) == Some(tip) {
            return Ok(());
        }
        Err(RpcError::server(format!(
            "block {tip} left the chain without a reorg; subscribe, or install the filter, again"
        )))
    }

    /// The heights from the place up to the tip of `head`.
    pub(crate) fn above(&self, head: &HeadRow) -> HeightRange {
        let stored = head.range();
        let from = self.tip.map_or(stored.start(), |tip| tip.height.next());
        HeightRange::new(from, stored.end())
    }
}

#[cfg(test)]
mod tests {
    use cairn_core::BlockId;
    use cairn_store::OrphanRef;

    use super::*;

    fn block(height: u64, fork: u8) -> BlockRef {
        BlockRef { height: Height(height), id: BlockId([fork; 32]) }
    }

    fn entry(id: u64, common: BlockRef, orphans: &[BlockRef]) -> ReorgEntry {
        let orphans = orphans.iter().map(|block| OrphanRef { block: *block, timestamp_ms: 0 }).collect();
        ReorgEntry { id, digest: [0; 32], store_uuid: [0; 16], common, orphans, decided_at_ms: 0 }
    }

    #[test]
    fn announced_blocks_are_taken_away_newest_first_over_several_reorgs() {
        let entries = [
            entry(1, block(6, 1), &[block(7, 1), block(8, 1), block(9, 1)]),
            entry(2, block(9, 2), &[block(10, 2)]),
            entry(3, block(5, 1), &[block(6, 1), block(7, 2), block(8, 2), block(9, 2)]),
        ];
        let mut place = Place { uuid: [0; 16], reorg_id: 0, tip: Some(block(8, 1)) };
        let mut gone = Vec::new();
        while let Some(step) = place.step_down(&entries).expect("links") {
            gone.push(step);
        }
        // Block 9 was never told of, nor was any of the second fork.
        assert_eq!(gone, [(1, block(8, 1)), (1, block(7, 1)), (3, block(6, 1))]);
        assert_eq!((place.reorg_id, place.tip), (3, Some(block(5, 1))));
        let mut foreign = Place { uuid: [0; 16], reorg_id: 0, tip: Some(block(8, 7)) };
        assert!(foreign.step_down(&entries).is_err());
    }
}
