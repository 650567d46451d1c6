//! The head row: the one row per raw store that says what exists.

use bytes::Bytes;
use cairn_core::{BlockRef, ChainId, Fence, Height, HeightRange};

/// The name of the checkpoint that the ingester moves.
pub const RAW_INGESTER: &str = "raw_ingester";

/// What a store is told when it is made, and keeps for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreInfo {
    /// Which store this is: random, given by whoever creates it (law: no ambient randomness below the binary).
    pub uuid: [u8; 16],
    /// The chain that it holds.
    pub chain_id: ChainId,
    /// The chain's configuration in its codec's own form (EVM: a geth-style genesis without `alloc`, JSON); empty where unknown.
    pub chain_config: Bytes,
}

/// The newest entry of the reorg log; id 0 and a zero digest before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReorgMark {
    /// Gapless, from 1.
    pub id: u64,
    /// The chain of digests up to and with this entry.
    pub digest: [u8; 32],
}

/// A rollback whose rows have not all been moved away yet. While it is there nothing is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingPurge {
    /// The reorg log's entry.
    pub reorg_id: u64,
    /// The heights whose rows are to be moved, as they stood at the rollback. Rows at these heights are orphans.
    pub orphans: HeightRange,
}

/// What exists. Every read is bounded by the head row of its snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadRow {
    /// The store's identity.
    pub info: StoreInfo,
    /// The first stored height: 0, or the anchor of an archive that begins in the middle. `None` before the first block.
    pub first: Option<Height>,
    /// The checkpoint: the last height of the unbroken run that begins at `first`, and its id.
    pub tip: Option<BlockRef>,
    /// The node's `safe` block as last seen; a hint for readers, never above the tip, may move back.
    pub safe: Option<BlockRef>,
    /// The finalised block. Only grows. The store takes one above the tip too; the ingester gives none, but a block of its own as long as the source's lies there.
    pub finalized: Option<BlockRef>,
    /// The newest reorg.
    pub newest_reorg: ReorgMark,
    /// A purge that has to be finished first.
    pub pending_purge: Option<PendingPurge>,
    /// The fence of the writer in force; 0 before the first.
    pub fence: Fence,
}

impl HeadRow {
    /// A new store's head row.
    pub fn new(info: StoreInfo) -> Self {
        HeadRow {
            info,
            first: None,
            tip: None,
            safe: None,
            finalized: None,
            newest_reorg: ReorgMark::default(),
            pending_purge: None,
            fence: Fence(0),
        }
    }

    /// The heights that a reader may see: from the first stored one to the tip.
    pub fn range(&self) -> HeightRange {
        match (self.first, self.tip) {
            (Some(first), Some(tip)) => HeightRange::inclusive(first, tip.height),
            _ => HeightRange::new(Height::ZERO, Height::ZERO),
        }
    }

    /// The block that this row itself names at a height, whose own row may be lost.
    pub fn named_at(&self, height: Height) -> Option<BlockRef> {
        [self.tip, self.finalized].into_iter().flatten().find(|named| named.height == height)
    }

    /// The finalised height as far as it is stored: finality, or the tip where finality lies above it.
    pub fn stored_finalized(&self) -> Option<Height> {
        match (self.finalized, self.tip) {
            (Some(finalized), Some(tip)) => Some(finalized.height.min(tip.height)),
            _ => None,
        }
    }
}

/// How far a service has come: the end of an unbroken run (law 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Which service.
    pub service_name: String,
    /// The last complete block.
    pub last: BlockRef,
}
