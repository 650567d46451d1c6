//! What can go wrong in a store, and what to do about it.

use cairn_core::{BlockId, BlockRef, ChainId, ErrorKind, Fence, Height, HeightRange};

/// A store's refusal or failure. Absence is `None`, never an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    /// A block is not what was read of it any more: somebody else replaced it, or a reorg took it away.
    #[error("block {block} is not stored as it was read any more: read it again")]
    Replaced {
        /// The block.
        block: BlockRef,
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
    /// A schema that is older than this binary needs, or not there at all, and that this caller may not bring up to date.
    #[error(
        "schema {schema} is version {found}, this program needs {known}: run `cairn migrate` or start the writer first"
    )]
    OldSchema {
        /// Its name.
        schema: &'static str,
        /// The store's version; 0 where there is none.
        found: u32,
        /// The version that is needed.
        known: u32,
    },
    /// Another process holds the store for writing.
    #[error(
        "{what} is held by another process{}; stop it, or use another data directory (reading works meanwhile: `cairn serve`)",
        .holder.map(|id| format!(" ({id})")).unwrap_or_default()
    )]
    Locked {
        /// The path of the lock.
        what: String,
        /// The process that holds it, by its own number, where that is known.
        holder: Option<u32>,
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
    /// A chunk was read on a fork that is not, or no longer, the one that the derived side stands on.
    #[error(
        "heights up to {chunk_end} were read across reorg {reorg_id}, which begins at height {first_orphan}: read them again"
    )]
    ForkBelow {
        /// The height after the chunk's last.
        chunk_end: Height,
        /// The entry of the reorg log.
        reorg_id: u64,
        /// The first height that it took away.
        first_orphan: Height,
    },
    /// A lease or checkpoint doesn't stand where the caller's work begins.
    #[error("{what} does not stand at height {expected}: read it again")]
    LeaseMoved {
        /// Which lease or checkpoint, and where it stands.
        what: String,
        /// Where it was expected.
        expected: Height,
    },
    /// An entry of the reorg log can't be applied now, since the one before it isn't the newest that was.
    #[error("reorg {asked} can't be applied after {applied}: somebody else applies it, or it is done")]
    Applied {
        /// The newest applied entry.
        applied: u64,
        /// The entry that was asked for.
        asked: u64,
    },
    /// The app store followed another raw store, or the raw store's reorg log is not the one that it followed.
    #[error(
        "the app store follows another raw store: {what}. Give it the raw store that it was made with, or begin anew with an empty app store; nothing was changed"
    )]
    OtherRaw {
        /// What doesn't match.
        what: String,
    },
    /// Something that waits for other work: for a reorg that is being applied, or for heights that others make.
    #[error("{what} waits for a reorg to be applied or for other work to be done: try again in a moment")]
    NotYet {
        /// What waits.
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
    /// A height within the head's range has no block, though every height there must have one (law 3).
    pub fn hole(height: Height) -> StoreError {
        StoreError::Corrupt {
            place: format!("height {height}"),
            what: "its block is not there, though the head row says so".into(),
        }
    }

    /// Nobody has begun an archive here.
    pub fn not_begun() -> StoreError {
        StoreError::Invalid(
            "no archive was begun here: `cairn run` or `cairn import` stores its first block".into(),
        )
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            StoreError::Fenced { .. } | StoreError::LeaseMoved { .. } => ErrorKind::Fenced,
            StoreError::PurgePending { .. }
            | StoreError::ForkBelow { .. }
            | StoreError::Applied { .. }
            | StoreError::OldSchema { .. }
            | StoreError::NotYet { .. } => ErrorKind::Wait,
            StoreError::Busy(_) | StoreError::Replaced { .. } => ErrorKind::Retry,
            StoreError::DoesNotLink { .. } | StoreError::Invalid(_) | StoreError::Missing { .. } => {
                ErrorKind::GiveUp
            }
            StoreError::Conflict { .. }
            | StoreError::TooDeep { .. }
            | StoreError::BelowFinality { .. }
            | StoreError::WrongChain { .. }
            | StoreError::UnknownSchema { .. }
            | StoreError::OtherRaw { .. }
            | StoreError::Locked { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Database(_) => ErrorKind::Halt,
        }
    }
}
