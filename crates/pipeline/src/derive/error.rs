//! Why derived work failed.

use cairn_core::{ErrorKind, Height};
use cairn_store::StoreError;

use super::processor::ProcessError;
use crate::error::store_code;

/// A failure of derived work. None of them reaches raw ingestion (law 1).
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeriveError {
    /// A store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A processor can't make sense of a block.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The policy halts a range over an event that can't be decoded.
    #[error(
        "height {height}: {message}; fix the decoder and `cairn leases retry`, or set the policy to \"continue\""
    )]
    Malformed {
        /// Where.
        height: u64,
        /// What.
        message: String,
    },
    /// A node could not be asked, for now.
    #[error("the node could not be asked: {0}")]
    Node(String),
    /// A chunk has more than is held at once: it is tried with fewer heights.
    #[error("{0}")]
    TooMuch(String),
    /// The processors and the tables don't fit together.
    #[error("{0}")]
    Invalid(String),
    /// A processor panicked over more than one block.
    #[error("a processor panicked: {0}")]
    Processor(String),
    /// A task of the deriver panicked.
    #[error("a task of the deriver panicked: {0}")]
    Panicked(String),
}

impl DeriveError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            DeriveError::Store(error) => error.kind(),
            DeriveError::Node(_) => ErrorKind::Retry,
            DeriveError::Process(_)
            | DeriveError::Processor(_)
            | DeriveError::TooMuch(_)
            | DeriveError::Malformed { .. } => ErrorKind::GiveUp,
            DeriveError::Invalid(_) | DeriveError::Panicked(_) => ErrorKind::Halt,
        }
    }

    /// Whether it is about what one range reads or writes, though a retry won't mend it: other ranges and services go on.
    pub(super) fn is_of_one_range(&self) -> bool {
        matches!(self, DeriveError::Store(StoreError::Corrupt { .. } | StoreError::Database(_)))
    }

    /// Which failure it is, in a word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            DeriveError::Store(error) => store_code(error),
            DeriveError::Process(_) => "process",
            DeriveError::Malformed { .. } => "malformed",
            DeriveError::Node(_) => "node",
            DeriveError::TooMuch(_) => "too-much",
            DeriveError::Invalid(_) => "invalid",
            DeriveError::Processor(_) | DeriveError::Panicked(_) => "panicked",
        }
    }

    /// The height whose block is to blame, where it is known.
    pub fn height(&self) -> Option<Height> {
        match self {
            DeriveError::Process(error) => Some(error.block.height),
            DeriveError::Malformed { height, .. } => Some(Height(*height)),
            _ => None,
        }
    }
}
