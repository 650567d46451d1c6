//! What can go wrong with a block's bytes or JSON, and what to do about it.

use cairn_core::{ErrorKind, Height, TxId};

use crate::profile::Checks;

/// A block that contradicts itself or its header (law 6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block {height} failed check `{check}`: {message}")]
pub struct CheckFailure {
    /// Which check: exactly one bit.
    pub check: Checks,
    /// The block's height.
    pub height: Height,
    /// The field and both values.
    pub message: String,
}

impl CheckFailure {
    pub(crate) fn new(check: Checks, height: u64, message: impl Into<String>) -> Self {
        CheckFailure { check, height: Height(height), message: message.into() }
    }

    /// Everything else held, and only the header's bloom is not that of the logs. After a bounded number of tries the block may be
    /// taken with [`Checks::BLOOM`] among its unverified bits; it is never a reason to skip a block.
    pub fn is_bloom_only(&self) -> bool {
        self.check == Checks::BLOOM
    }

    /// What the caller should do: ask again, or ask another node.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Retry
    }
}

/// An error of the codec. Absence is `None`, never an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvmError {
    /// Bytes or JSON that can't be what they should be.
    #[error("{place} is malformed: {message}")]
    Malformed {
        /// Height, part, index and field.
        place: String,
        /// What is wrong with it.
        message: String,
    },
    /// Well-formed parts that don't belong together.
    #[error(transparent)]
    Inconsistent(#[from] CheckFailure),
    /// The question needs a part that was not read from the store, or is not kept there.
    #[error("block {height}: its {part} is needed for this answer, and was not read or is not stored")]
    PartMissing {
        /// The block.
        height: Height,
        /// The part, by its name.
        part: &'static str,
    },
    /// The consensus bytes of a transaction of unknown type were never known; its JSON is.
    #[error(
        "block {height}: the consensus bytes of transaction {index} are not known: its type is not known to this version, and \
         the node that gave it did not give its raw bytes; its JSON is stored"
    )]
    BytesUnknown {
        /// The block.
        height: Height,
        /// The transaction's index.
        index: u32,
    },
    /// The node has no receipt of a transaction, so that what it did is not known.
    #[error(
        "block {height}: transaction {index}{} has no receipt, so its outcome and its logs are not known; ask for the other receipts one by \
         one, and for logs of ranges without this block", .id.map(|id| format!(" ({id})")).unwrap_or_default()
    )]
    ReceiptMissing {
        /// The block.
        height: Height,
        /// The transaction's index.
        index: usize,
        /// Its hash, where it was read.
        id: Option<TxId>,
    },
    /// An index at or beyond a block's count.
    #[error("block {height} has {count} {what}s, there is none at index {index}")]
    NoSuchItem {
        /// The block.
        height: Height,
        /// Of what.
        what: &'static str,
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A relaxation that doesn't exist.
    #[error("unknown check `{name}`; the checks that can be relaxed are {known}")]
    UnknownCheck {
        /// What was given.
        name: String,
        /// What could have been given.
        known: String,
    },
}

impl EvmError {
    pub(crate) fn malformed(place: impl Into<String>, message: impl ToString) -> Self {
        EvmError::Malformed { place: place.into(), message: message.to_string() }
    }

    /// What the caller should do. A malformed or inconsistent answer of a node may be better next time; of a store's own bytes
    /// it means damage, which the store's caller has to say.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EvmError::Malformed { .. } | EvmError::Inconsistent(_) => ErrorKind::Retry,
            EvmError::PartMissing { .. }
            | EvmError::BytesUnknown { .. }
            | EvmError::ReceiptMissing { .. }
            | EvmError::NoSuchItem { .. }
            | EvmError::UnknownCheck { .. } => ErrorKind::GiveUp,
        }
    }
}
