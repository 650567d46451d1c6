//! Why ingestion stopped.

use cairn_core::{BlockRef, ErrorKind, Height};
use cairn_source::SourceError;
use cairn_store::StoreError;

/// A failure of ingestion. [`IngestError::kind`] says whether it is tried again or ends the ingester.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IngestError {
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source's chain and the stored one part below what may be undone, and it keeps saying so.
    #[error(
        "the node's chain leaves the stored one below finality: at height {at} it has {theirs}, stored is {ours}, finalised is \
         {finalized}. Nothing was changed, reading goes on. Check that the node is synchronised and on the right chain"
    )]
    BelowFinality {
        /// Where they differ.
        at: Height,
        /// The node's block.
        theirs: BlockRef,
        /// The stored one.
        ours: BlockRef,
        /// The head row's finalised block.
        finalized: BlockRef,
    },
    /// The source's chain and the stored one part deeper than allowed, and it keeps saying so.
    #[error(
        "the node's chain leaves the stored one more than MAX_REORG_DEPTH = {limit} blocks below tip {tip}: at height {at} it has \
         {theirs}. Nothing was changed, reading goes on. Check the node; raise --max-reorg-depth only if you are sure"
    )]
    TooDeep {
        /// The lowest height that was compared.
        at: Height,
        /// The node's block there.
        theirs: BlockRef,
        /// The stored tip.
        tip: BlockRef,
        /// The limit, in blocks.
        limit: u64,
    },
    /// The node's chain does not share even the first block of an archive that begins in the middle.
    #[error(
        "the node's chain does not contain the archive's first block {anchor}; use a node of the same chain, or another data directory"
    )]
    AnchorGone {
        /// The first stored block.
        anchor: BlockRef,
    },
    /// A range that was filled ahead doesn't link to the tip, after it was fetched again.
    #[error(
        "filled ranges do not join at height {at} after {attempts} attempts: {message}. Check that all nodes serve the same chain"
    )]
    Seam {
        /// The height of the seam.
        at: Height,
        /// How often it was fetched.
        attempts: u32,
        /// The values that disagree.
        message: String,
    },
    /// What was asked for can't be done with this store.
    #[error("{0}")]
    Invalid(String),
}

impl IngestError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            IngestError::Source(error) => error.kind(),
            IngestError::Store(error) => error.kind(),
            IngestError::BelowFinality { .. }
            | IngestError::TooDeep { .. }
            | IngestError::AnchorGone { .. }
            | IngestError::Seam { .. } => ErrorKind::Halt,
            IngestError::Invalid(_) => ErrorKind::GiveUp,
        }
    }

    /// Which failure it is, in a word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            IngestError::Source(_) => "source",
            IngestError::Store(error) => store_code(error),
            IngestError::BelowFinality { .. } => "below-finality",
            IngestError::TooDeep { .. } => "too-deep",
            IngestError::AnchorGone { .. } => "anchor-gone",
            IngestError::Seam { .. } => "seam",
            IngestError::Invalid(_) => "invalid",
        }
    }

    /// The height that it is about, where it names one.
    pub fn height(&self) -> Option<Height> {
        match self {
            IngestError::BelowFinality { at, .. }
            | IngestError::TooDeep { at, .. }
            | IngestError::Seam { at, .. } => Some(*at),
            IngestError::AnchorGone { anchor } => Some(anchor.height),
            IngestError::Source(_) | IngestError::Store(_) | IngestError::Invalid(_) => None,
        }
    }
}

/// Which failure of a store it is, in a word for programs.
pub(crate) fn store_code(error: &StoreError) -> &'static str {
    match error {
        StoreError::Fenced { .. } => "fenced",
        StoreError::TooDeep { .. } => "too-deep",
        StoreError::BelowFinality { .. } => "below-finality",
        StoreError::WrongChain { .. } => "wrong-chain",
        StoreError::UnknownSchema { .. } => "unknown-schema",
        StoreError::Locked { .. } => "locked",
        StoreError::Corrupt { .. } => "corrupt",
        StoreError::OtherRaw { .. } => "other-raw",
        _ => "store",
    }
}
