//! Why ingestion stopped.

use cairn_core::{BlockId, BlockRef, ErrorKind, Height};
use cairn_source::SourceError;
use cairn_store::StoreError;

use crate::status::{BLOCK_REFUSED, HEAD_QUORUM, SOURCE, SOURCE_REFUSED, STORE_REFUSED};

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
    /// A node shows another fork, and too few others have it.
    #[error(
        "a node replaced block {} by {block}, and chain.head_quorum = {quorum} nodes have to have it. Those that do: {}. Nothing is rolled back",
        block.height,
        if holders.is_empty() { "none".to_owned() } else { holders.join(", ") }
    )]
    HeadQuorum {
        /// The first block of the other fork.
        block: BlockRef,
        /// The nodes that have it.
        holders: Vec<String>,
        /// How many are needed.
        quorum: usize,
    },
    /// The first block that another stretch of nodes serves names another parent than the last block of the stretch before.
    #[error(
        "block {root} is the first of its spork and names parent {parent_id}, but the block below it is {below}. Check that both nodes are of the same \
         chain. To let it follow all the same, set {setting} and start again"
    )]
    Unlinked {
        /// The first block above the boundary.
        root: BlockRef,
        /// The parent that it names.
        parent_id: BlockId,
        /// The stored block below.
        below: BlockRef,
        /// What lets it follow.
        setting: String,
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
            // What a node refuses today it may give tomorrow: only what the data say ends ingestion.
            IngestError::Source(error) if error.is_refusal() => ErrorKind::Retry,
            IngestError::Source(error) => error.kind(),
            IngestError::Store(error) => error.kind(),
            IngestError::BelowFinality { .. }
            | IngestError::TooDeep { .. }
            | IngestError::AnchorGone { .. }
            | IngestError::Unlinked { .. }
            | IngestError::Seam { .. } => ErrorKind::Halt,
            IngestError::HeadQuorum { .. } => ErrorKind::Wait,
            IngestError::Invalid(_) => ErrorKind::GiveUp,
        }
    }

    /// Whether a database refused in a way of which nobody knows whether it passes: it is tried again, and ends ingestion after so many tries in a row that fail.
    pub(crate) fn is_store_refusal(&self) -> bool {
        matches!(self, IngestError::Store(StoreError::Database(_)))
    }

    /// Which failure it is, in a word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            IngestError::Source(error) => source_code(error),
            IngestError::Store(error) => store_code(error),
            IngestError::BelowFinality { .. } => "below-finality",
            IngestError::TooDeep { .. } => "too-deep",
            IngestError::AnchorGone { .. } => "anchor-gone",
            IngestError::Unlinked { .. } => "unlinked",
            IngestError::Seam { .. } => "seam",
            IngestError::HeadQuorum { .. } => HEAD_QUORUM,
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
            IngestError::HeadQuorum { block, .. } => Some(block.height),
            IngestError::Unlinked { root, .. } => Some(root.height),
            IngestError::Source(error) => error.height(),
            IngestError::Store(_) | IngestError::Invalid(_) => None,
        }
    }

    /// The check that refused a block, by its configured name.
    pub fn check(&self) -> Option<&str> {
        match self {
            IngestError::Source(error) => error.check(),
            _ => None,
        }
    }

    /// What an operator can do beside waiting, where the message doesn't say it.
    pub fn remedy(&self) -> Option<String> {
        match self {
            IngestError::Source(error) => source_remedy(error),
            IngestError::HeadQuorum { .. } => {
                Some("Compare the nodes, and remove the one that is wrong from chain.rpc".into())
            }
            IngestError::Store(StoreError::Database(_)) => Some(
                "Mend what the database says; ingestion goes on by itself, or halts where it lasts".into(),
            ),
            _ => None,
        }
    }
}

/// What an operator can do about a node.
fn source_remedy(error: &SourceError) -> Option<String> {
    let of_node = match error.cause() {
        SourceError::Inconsistent { .. } | SourceError::Absurd { .. } => "Add another node",
        SourceError::Refused { .. } | SourceError::Permanent { .. } => {
            "Check the node's URL, key and plan, or add another node"
        }
        _ => return error.remedy(),
    };
    Some(error.remedy().unwrap_or_else(|| of_node.into()))
}

/// Which failure of a source it is, in a word for programs.
fn source_code(error: &SourceError) -> &'static str {
    match error.cause() {
        SourceError::Inconsistent { .. } => BLOCK_REFUSED,
        SourceError::WrongChain { .. } => "wrong-chain",
        cause if cause.is_refusal() => SOURCE_REFUSED,
        _ => SOURCE,
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
        StoreError::Database(_) => STORE_REFUSED,
        _ => "store",
    }
}
