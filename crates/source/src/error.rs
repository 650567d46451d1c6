//! What can go wrong when a source is asked.

use cairn_core::{ChainId, ErrorKind, Height, ImpossibleHeight};
use cairn_evm::ChainProfile;

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
    /// The node refuses: wrong key, the plan's limit, a missing method, pruned history. Its operator may mend that at any time, so it is asked again.
    #[error("{endpoint} refuses: {message}")]
    Refused {
        /// Who.
        endpoint: String,
        /// Its words.
        message: String,
    },
    /// The node will never answer this: state that no node keeps, a call that is too old for it.
    #[error("{endpoint} can't answer: {message}")]
    Permanent {
        /// Who.
        endpoint: String,
        /// What happened.
        message: String,
    },
    /// An answer that contradicts itself or the header (law 6). Another try, or another endpoint, may do better.
    #[error("block {height} from {endpoint} failed check `{check}`: {message}{}", remedy_of(check).map(|remedy| format!(". {remedy}")).unwrap_or_default())]
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
    /// The node says what can't be so of any chain. Another try, or another endpoint, may do better.
    #[error("{endpoint} is not believed: the node says {error}")]
    Absurd {
        /// Who.
        endpoint: String,
        /// What it says.
        error: ImpossibleHeight,
    },
    /// Endpoints of different chains, or of another one than the store's.
    #[error(
        "{endpoint} serves chain {found}, expected chain {expected}; remove the node, set chain.network (--network) on Flow, or use another data directory"
    )]
    WrongChain {
        /// Who.
        endpoint: String,
        /// What it serves.
        found: ChainId,
        /// What it should serve.
        expected: ChainId,
    },
    /// A configuration that can't be used.
    #[error("{0}")]
    Invalid(String),
    /// A file that can't be read, or that contradicts itself. Reading it again gives the same.
    #[error("{0}")]
    File(String),
    /// Another failure, with the height of the block that was asked for.
    #[error("block {height}: {error}")]
    At {
        /// The block's height.
        height: Height,
        /// The failure.
        error: Box<SourceError>,
    },
}

/// What to do about a check that a chain can't meet; `None` where the check can't be relaxed.
fn remedy_of(check: &str) -> Option<String> {
    ChainProfile::parse_relaxations(check).ok()?;
    Some(format!("If this chain can't meet the check, `--relax {check}` stores its blocks without it"))
}

impl SourceError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SourceError::TooWide { .. }
            | SourceError::RateLimited { .. }
            | SourceError::Transient { .. }
            | SourceError::Refused { .. }
            | SourceError::Inconsistent { .. }
            | SourceError::Absurd { .. } => ErrorKind::Retry,
            SourceError::Permanent { .. } | SourceError::Invalid(_) => ErrorKind::GiveUp,
            SourceError::WrongChain { .. } | SourceError::File(_) => ErrorKind::Halt,
            SourceError::At { error, .. } => error.kind(),
        }
    }

    /// The same, with the height of the block that was asked for. A failure that names one keeps its own.
    /// What is wrong whatever the height is stays as it is.
    pub fn at(self, height: Height) -> SourceError {
        match self {
            SourceError::WrongChain { .. } | SourceError::Invalid(_) => self,
            _ if self.height().is_some() => self,
            _ => SourceError::At { height, error: Box::new(self) },
        }
    }

    /// The height of the block that could not be had.
    pub fn height(&self) -> Option<Height> {
        match self {
            SourceError::Inconsistent { height, .. } | SourceError::At { height, .. } => Some(*height),
            _ => None,
        }
    }

    /// The failure itself, without the height around it.
    pub fn cause(&self) -> &SourceError {
        match self {
            SourceError::At { error, .. } => error.cause(),
            _ => self,
        }
    }

    /// Whether a node refuses, rather than fails or contradicts itself.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self.cause(),
            SourceError::Refused { .. } | SourceError::Permanent { .. } | SourceError::Invalid(_)
        )
    }

    /// The check that refused the block, by its configured name.
    pub fn check(&self) -> Option<&str> {
        match self.cause() {
            SourceError::Inconsistent { check, .. } => Some(check),
            _ => None,
        }
    }

    /// What the operator can do about a block that a check refused.
    pub fn remedy(&self) -> Option<String> {
        self.check().and_then(remedy_of)
    }
}
