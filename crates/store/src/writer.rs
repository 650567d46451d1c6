//! The ingester's verbs. Each is one transaction, and each demands the head's fence.
//!
//! A verb that fails changes nothing. Every verb but `init` answers [`crate::StoreError::Invalid`] on a store that was not
//! initialised. Then the fence is checked, before anything else: one that is not the one in force, older or newer, is
//! [`crate::StoreError::Fenced`]. Then what was asked for by itself ([`crate::check_batch`]), then a pending purge, then the rows.
//! Fences of the head and of raw leases come from one counter per store; the first one is 1.

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
    /// unchanged (an answer that was lost), its marks included, if all its blocks are stored with the same facts,
    /// transactions and bytes (log terms are derived, and not compared); else it is
    /// [`crate::StoreError::Conflict`]. Where the finalised block, the stored one or the batch's newer one, lies between the first
    /// height and the new tip its id must be that of the block there, else [`crate::StoreError::BelowFinality`] (`finalized` in it
    /// is the mark, `asked` the block).
    ///
    /// A first block at a stored height with another id than stored is [`crate::StoreError::Conflict`]; any other that doesn't
    /// follow the tip is [`crate::StoreError::DoesNotLink`]. Heights that a raw lease has already filled may be appended if the
    /// bytes are the same, else [`crate::StoreError::Conflict`]; the lease stays until [`crate::RawFiller::advance`] passes it.
    /// `safe` is taken as [`RawWriter::finalize`] takes it.
    async fn append(&self, fence: Fence, batch: AppendBatch) -> Result<HeadRow>;

    /// Moves the finalised and safe marks. `finalized` not above the stored one is ignored; at or below the tip it must be the
    /// stored block's id, else [`crate::StoreError::BelowFinality`]; below the first stored height, and above the tip, it is taken
    /// as it comes. A `safe` that is not a stored block at or below the tip is ignored, and the old one stays; so it does with `None`.
    /// Allowed before the first block and while a purge is pending.
    async fn finalize(
        &self,
        fence: Fence,
        finalized: Option<BlockRef>,
        safe: Option<BlockRef>,
    ) -> Result<HeadRow>;

    /// Appends an entry to the reorg log and lowers the head to `common`, durably, in one transaction. The rows above it
    /// stay until purged, and no read can see them. [`crate::StoreError::TooDeep`] and
    /// [`crate::StoreError::BelowFinality`] change nothing. If the tip already is `common` by the newest entry (an answer
    /// that was lost), that entry is returned, whether its purge is done or not.
    ///
    /// Checked in this order: the lost answer; [`crate::StoreError::PurgePending`]; a common block that is not below the tip
    /// ([`crate::StoreError::Invalid`]); finality (`common` at the finalised height is allowed); depth (tip less `common`; equal to the
    /// limit is allowed); a common block that is not stored as such ([`crate::StoreError::Invalid`]). A `safe` mark above `common`
    /// is lowered to it.
    ///
    /// What was filled above the tip stands on the fork that goes: raw leases that reach above `common` are deleted, whatever their
    /// state, and filled rows above the tip are dropped; they are no orphans, since nobody saw them. Leases that
    /// end at or below the height after `common` stay.
    async fn rollback(&self, fence: Fence, rollback: Rollback) -> Result<ReorgEntry>;

    /// Moves at most `max_blocks` (0 is [`crate::StoreError::Invalid`]) of the pending purge's blocks into the orphan tables
    /// and their index entries away, keyed by block, so that a transaction that also stands elsewhere is still found. The step
    /// that moves the last one clears the pending purge and answers `Done`.
    async fn purge_step(&self, fence: Fence, max_blocks: u64) -> Result<PurgeProgress>;

    /// Deletes orphans of entries whose first orphan lies more than `keep_heights` below the tip; the log's entries stay.
    /// Oldest entries first, lowest first. Bounded: at most `max_blocks` at a call. Returns how many blocks were deleted.
    async fn prune_orphans(&self, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64>;
}

/// Bounded background work on one's own store.
#[async_trait]
pub trait RawMaintenance: Send + Sync {
    /// Does one step that handles at most about `max_bytes`. Safe to stop after any step and to run beside every verb;
    /// never changes what a reader sees.
    async fn maintain(&self, max_bytes: u64) -> Result<Maintained>;
}
