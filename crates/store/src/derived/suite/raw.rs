//! The raw store as the derived side sees it: a chain of ids that grows, skips heights and forks.

use std::collections::BTreeMap;

use cairn_core::{BlockId, BlockRef, Height, HeightRange};

use crate::derived::fork::{ForkMark, ForkState, ReadMark};
use crate::{OrphanRef, ReorgEntry, ReorgMark};

/// The parent of the first block of every chain here.
pub(super) const NO_BLOCK: BlockId = BlockId([0; 32]);

/// The chain of one raw store and its reorg log.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    pub(super) uuid: [u8; 16],
    blocks: BTreeMap<Height, BlockId>,
    /// The height after the last one known, skipped ones included.
    pub(super) next: Height,
    pub(super) reorgs: Vec<ReorgEntry>,
    /// Nothing at or below this height is ever undone.
    pub(super) finalized: Height,
}

/// The id of the block at a height of the fork with this salt.
pub(super) fn id(height: u64, salt: u8) -> BlockId {
    let mut bytes = [salt; 32];
    bytes[..8].copy_from_slice(&height.to_be_bytes());
    bytes[8] = 1;
    BlockId(bytes)
}

impl Raw {
    pub(super) fn new() -> Raw {
        let (blocks, reorgs) = (BTreeMap::new(), Vec::new());
        Raw { uuid: [7; 16], blocks, next: Height(0), reorgs, finalized: Height(0) }
    }

    /// A chain of heights 0 up to, not including, `end`.
    pub(super) fn with(end: u64, salt: u8) -> Raw {
        let mut raw = Raw::new();
        raw.grow(end, salt);
        raw
    }

    /// Grows to, not including, `end`.
    pub(super) fn grow(&mut self, end: u64, salt: u8) {
        for height in self.next.get()..end {
            self.blocks.insert(Height(height), id(height, salt));
        }
        self.next = self.next.max(Height(end));
    }

    /// Skips heights up to, not including, `end`.
    pub(super) fn skip(&mut self, end: u64) {
        self.next = self.next.max(Height(end));
    }

    /// Goes back to the block at `common`.
    pub(super) fn fork(&mut self, common: u64) -> ReorgEntry {
        let common = self.block(common).expect("a case forks at a block that there is");
        let taken = self.blocks.split_off(&common.height.next());
        let orphans = taken
            .into_iter()
            .map(|(height, id)| OrphanRef { block: BlockRef { height, id }, timestamp_ms: 12 })
            .collect();
        let newest = self.newest();
        let entry = ReorgEntry::chain(newest.id + 1, &newest.digest, self.uuid, common, orphans, 34);
        self.next = common.height.next();
        self.reorgs.push(entry.clone());
        entry
    }

    pub(super) fn newest(&self) -> ReorgMark {
        let none = ReorgMark { id: 0, digest: [0; 32] };
        self.reorgs.last().map_or(none, |entry| ReorgMark { id: entry.id, digest: entry.digest })
    }

    pub(super) fn block(&self, height: u64) -> Option<BlockRef> {
        let height = Height(height);
        self.blocks.get(&height).map(|id| BlockRef { height, id: *id })
    }

    /// The last block below a height.
    pub(super) fn below(&self, height: Height) -> BlockId {
        self.blocks.range(..height).next_back().map_or(NO_BLOCK, |(_, id)| *id)
    }

    pub(super) fn blocks(&self, range: HeightRange) -> Vec<BlockRef> {
        let blocks = self.blocks.range(range.start()..range.end());
        blocks.map(|(height, id)| BlockRef { height: *height, id: *id }).collect()
    }

    /// What a worker sees of the reorg log, that knows from the app store how far it has come.
    pub(super) fn read(&self, forks: &ForkState) -> ReadMark {
        let known_to = forks.begun.id;
        let newer = self.reorgs.iter().filter(|entry| entry.id > known_to);
        ReadMark {
            reorg_id: self.newest().id,
            known_to,
            newer: newer.map(|entry| ForkMark { id: entry.id, first_orphan: entry.first_orphan() }).collect(),
        }
    }
}
