//! What can go wrong in a store, and what to do about it.

use cairn_core::{BlockId, BlockRef, ChainId, ErrorKind, Fence, Height, HeightRange};

/// A store's refusal or failure. Absence is `None`, never an error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Somebody acquired the head, or the lease, after this caller did.
    #[error(
        "fence {held} is no longer in force: {what} was taken over under fence {current}; stop this process or restart it"
    )]
    Fenced {
        /// What the fence guards.
        what: String,
        /// The caller's.
        held: Fence,
        /// The one in force.
        current: Fence,
    },
    /// The first block's parent is not where the batch has to join.
    #[error("block {first} does not link: its parent is {parent_id}, expected {expected}")]
    DoesNotLink {
        /// The block that doesn't link.
        first: BlockRef,
        /// The parent that it names.
        parent_id: BlockId,
        /// The block that it has to follow.
        expected: BlockRef,
    },
    /// Rows above a rollback's common block have not been moved away yet.
    #[error(
        "reorg {reorg_id} is still being purged above height {common}: finish the purge before appending"
    )]
    PurgePending {
        /// The reorg log's entry.
        reorg_id: u64,
        /// The last common height.
        common: Height,
    },
    /// Other bytes are already stored under this key.
    #[error("height {height} already holds block {stored}; refusing to overwrite it with {offered}")]
    Conflict {
        /// Where.
        height: Height,
        /// What is there.
        stored: BlockId,
        /// What was offered.
        offered: BlockId,
    },
    /// A rollback would undo more blocks than allowed.
    #[error(
        "a reorg of {depth} blocks from tip {tip} back to {common} is deeper than MAX_REORG_DEPTH {limit}; nothing was \
         changed. Check that the node is on the right chain; raise the limit only if you are sure"
    )]
    TooDeep {
        /// How many blocks would go.
        depth: u64,
        /// The limit.
        limit: u64,
        /// The stored tip.
        tip: BlockRef,
        /// The last common block.
        common: BlockRef,
    },
    /// A rollback would undo finalised blocks, or a finalised mark would move back or sideways.
    #[error(
        "refusing to go below finality: finalised is {finalized}, asked for {asked}. Nothing was changed. Check that the \
         node is synchronised and on the right chain; a finalised block is never undone by a machine"
    )]
    BelowFinality {
        /// The head row's finalised block.
        finalized: BlockRef,
        /// What was asked for.
        asked: BlockRef,
    },
    /// The store belongs to another chain.
    #[error(
        "this store holds chain {stored}, the source serves chain {offered}; use another data directory or another node"
    )]
    WrongChain {
        /// The store's.
        stored: ChainId,
        /// The source's.
        offered: ChainId,
    },
    /// A schema that this binary doesn't know.
    #[error(
        "the store's schema is version {found}; this program knows versions up to {known}. Use a newer cairn, or another data directory"
    )]
    UnknownSchema {
        /// The store's version.
        found: u32,
        /// The newest known version.
        known: u32,
    },
    /// Another process holds the store for writing.
    #[error(
        "{what} is held by another process; stop it, or use another data directory (reading works meanwhile: `cairn serve`)"
    )]
    Locked {
        /// The path of the lock.
        what: String,
    },
    /// A request that makes no sense, or a block whose parts contradict each other.
    #[error("invalid request to the store: {0}")]
    Invalid(String),
    /// Heights that this store doesn't hold (law 2).
    #[error("heights {missing} are not stored")]
    Missing {
        /// The first unbroken run of missing heights.
        missing: HeightRange,
    },
    /// What is stored contradicts itself.
    #[error(
        "the store is damaged at {place}: {what}. Run `cairn verify`, restore that range, or rebuild the store"
    )]
    Corrupt {
        /// Height, table or key.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The database is busy, away or out of space for now.
    #[error("the database could not do it now: {0}")]
    Busy(String),
    /// The database failed in a way that a retry won't mend.
    #[error("the database failed: {0}")]
    Database(String),
}

impl StoreError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            StoreError::Fenced { .. } => ErrorKind::Fenced,
            StoreError::PurgePending { .. } => ErrorKind::Wait,
            StoreError::Busy(_) => ErrorKind::Retry,
            StoreError::DoesNotLink { .. } | StoreError::Invalid(_) | StoreError::Missing { .. } => {
                ErrorKind::GiveUp
            }
            StoreError::Conflict { .. }
            | StoreError::TooDeep { .. }
            | StoreError::BelowFinality { .. }
            | StoreError::WrongChain { .. }
            | StoreError::UnknownSchema { .. }
            | StoreError::Locked { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Database(_) => ErrorKind::Halt,
        }
    }
}
