//! The ingester's verbs. Each is one transaction, and each demands the head's fence.

use async_trait::async_trait;
use cairn_core::{BlockRef, Fence, RawBlock};

use crate::{HeadRow, ReorgEntry, Result, StoreInfo};

/// Blocks for the tip, with the marks that move in the same transaction.
#[derive(Debug, Clone, Default)]
pub struct AppendBatch {
    /// At least one block; heights without a gap, each linked to the one before.
    pub blocks: Vec<RawBlock>,
    /// The finalised block as the source says now; ignored where it is not above the stored one.
    pub finalized: Option<BlockRef>,
    /// The safe block as the source says now.
    pub safe: Option<BlockRef>,
}

/// A decision to lower the head.
#[derive(Debug, Clone, Copy)]
pub struct Rollback {
    /// The last block that both forks share: stored, and below the tip.
    pub common: BlockRef,
    /// `MAX_REORG_DEPTH`, in blocks.
    pub max_depth: u64,
    /// The clock's time, in milliseconds since 1970.
    pub decided_at_ms: u64,
}

/// How far a purge has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeProgress {
    /// Nothing is pending.
    Done,
    /// This many blocks are left to be moved.
    Left(u64),
}

/// What one step of maintenance did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maintained {
    /// There is nothing to do now.
    Nothing,
    /// Something was done and there may be more: call again when there is time.
    More,
}

/// Writing at the tip. One ingester at a time: whoever called [`RawWriter::acquire`] last.
#[async_trait]
pub trait RawWriter: Send + Sync {
    /// Makes the store on first use, or checks that it is the same chain's: [`crate::StoreError::WrongChain`].
    /// A stored chain configuration is replaced by a given one that is not empty. The stored uuid is kept.
    async fn init(&self, info: StoreInfo) -> Result<HeadRow>;

    /// Becomes the ingester: raises the head's fence and returns the new head row. Every earlier fence is dead from now on.
    async fn acquire(&self) -> Result<HeadRow>;

    /// Appends at the tip. Demands the fence, no pending purge, and that the first block's parent is the tip; the first
    /// batch of an empty store is its anchor and needs no parent. A batch whose last block already is the tip succeeds
    /// unchanged (an answer that was lost). Where the finalised block lies at or below the new tip its id must be that of
    /// the block there, else [`crate::StoreError::BelowFinality`].
    async fn append(&self, fence: Fence, batch: AppendBatch) -> Result<HeadRow>;

    /// Moves the finalised and safe marks. `finalized` not above the stored one is ignored; at or below the tip it must be the
    /// stored block's id, else [`crate::StoreError::BelowFinality`]. A `safe` that is not the stored block is ignored.
    async fn finalize(
        &self,
        fence: Fence,
        finalized: Option<BlockRef>,
        safe: Option<BlockRef>,
    ) -> Result<HeadRow>;

    /// Appends an entry to the reorg log and lowers the head to `common`, durably, in one transaction. The rows above it
    /// stay until purged, and no read can see them. [`crate::StoreError::TooDeep`] and
    /// [`crate::StoreError::BelowFinality`] change nothing. If the tip already is `common` by the newest entry (an answer
    /// that was lost), that entry is returned.
    async fn rollback(&self, fence: Fence, rollback: Rollback) -> Result<ReorgEntry>;

    /// Moves at most `max_blocks` of the pending purge's blocks into the orphan tables and their index entries away.
    async fn purge_step(&self, fence: Fence, max_blocks: u64) -> Result<PurgeProgress>;

    /// Deletes orphans of entries whose first orphan lies more than `keep_heights` below the tip; the log's entries stay.
    /// Bounded: at most `max_blocks` at a call. Returns how many blocks were deleted.
    async fn prune_orphans(&self, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64>;
}

/// Bounded background work on one's own store.
#[async_trait]
pub trait RawMaintenance: Send + Sync {
    /// Does one step that handles at most about `max_bytes`. Safe to stop after any step and to run beside every verb;
    /// never changes what a reader sees.
    async fn maintain(&self, max_bytes: u64) -> Result<Maintained>;
}
