//! What can go wrong when a source is asked.

use cairn_core::{ChainId, ErrorKind, Height};

/// A source's failure. "Not there yet" is no failure: see [`crate::ChainSource`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum SourceError {
    /// The question was too wide for the node: every next one must be strictly narrower.
    #[error("{endpoint} refused the request as too large: {message}")]
    TooWide {
        /// Who.
        endpoint: String,
        /// Its words.
        message: String,
    },
    /// Asked too often.
    #[error("{endpoint} limits the rate{}: {message}", retry_after_ms.map(|ms| format!(" (retry after {ms} ms)")).unwrap_or_default())]
    RateLimited {
        /// Who.
        endpoint: String,
        /// Its words.
        message: String,
        /// What its `Retry-After` says.
        retry_after_ms: Option<u64>,
    },
    /// Network, time-out, 5xx, a node that is starting: worth another try.
    #[error("{endpoint} failed for now: {message}")]
    Transient {
        /// Who.
        endpoint: String,
        /// What happened.
        message: String,
    },
    /// The node will never answer this: unknown method, wrong key, malformed answer every time.
    #[error("{endpoint} can't answer: {message}")]
    Permanent {
        /// Who.
        endpoint: String,
        /// What happened.
        message: String,
    },
    /// An answer that contradicts itself or the header (law 6). Another try, or another endpoint, may do better.
    #[error("block {height} from {endpoint} failed check `{check}`: {message}")]
    Inconsistent {
        /// Who.
        endpoint: String,
        /// Where.
        height: Height,
        /// Which check, by its configured name.
        check: String,
        /// The values that disagree.
        message: String,
    },
    /// Endpoints of different chains, or of another one than the store's.
    #[error(
        "{endpoint} serves chain {found}, expected chain {expected}; remove it from --rpc or use another data directory"
    )]
    WrongChain {
        /// Who.
        endpoint: String,
        /// What it serves.
        found: ChainId,
        /// What it should serve.
        expected: ChainId,
    },
    /// A file or a configuration that can't be used.
    #[error("{0}")]
    Invalid(String),
}

impl SourceError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SourceError::TooWide { .. }
            | SourceError::RateLimited { .. }
            | SourceError::Transient { .. }
            | SourceError::Inconsistent { .. } => ErrorKind::Retry,
            SourceError::Permanent { .. } | SourceError::Invalid(_) => ErrorKind::GiveUp,
            SourceError::WrongChain { .. } => ErrorKind::Halt,
        }
    }
}
