//! What can go wrong with a node's answers and a block's bytes, and what to do about it.

use cairn_core::ErrorKind;

/// An error of the codec. Absence is `None`, never an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// Bytes or JSON that can't be what they should be.
    #[error("{place} is malformed: {message}")]
    Malformed {
        /// Height, part, index and field.
        place: String,
        /// What is wrong with it.
        message: String,
    },
    /// Well-formed parts that don't belong together: another block's, or another fork's (law 6).
    #[error("block {height} contradicts itself in {what}: {message}")]
    Inconsistent {
        /// The height.
        height: u64,
        /// The part or field.
        what: &'static str,
        /// Both values.
        message: String,
    },
    /// A part that the node doesn't have yet, or left out: never an empty block.
    #[error("block {height} is not whole: {message}")]
    Incomplete {
        /// The height.
        height: u64,
        /// What is missing.
        message: String,
    },
}

impl FlowError {
    pub(crate) fn malformed(place: impl Into<String>, message: impl std::fmt::Display) -> Self {
        FlowError::Malformed { place: place.into(), message: message.to_string() }
    }

    /// What the caller should do: ask again, or ask another node.
    pub fn kind(&self) -> ErrorKind {
        match self {
            FlowError::Malformed { .. } | FlowError::Inconsistent { .. } => ErrorKind::Retry,
            FlowError::Incomplete { .. } => ErrorKind::Wait,
        }
    }
}
