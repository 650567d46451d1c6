//! What a caller should do about an error.

use std::fmt;

/// Every error of cairn says by its kind what its caller should do next. Absence is never an error: it is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// It may work if tried again as it is, after a pause: the network, a busy database, a rate limit.
    Retry,
    /// The thing is not there yet and is expected to come: wait for it; not a failure.
    Wait,
    /// This request can't be answered as it was asked: change it or give it up.
    GiveUp,
    /// The caller no longer owns what it writes to (law 5): stop this work; somebody else does it now.
    Fenced,
    /// Going on could destroy or falsify something (law 8): stop and tell a person.
    Halt,
}

impl ErrorKind {
    /// Whether the same call may be made again.
    pub fn is_retryable(self) -> bool {
        matches!(self, ErrorKind::Retry | ErrorKind::Wait)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Retry => "retry",
            ErrorKind::Wait => "wait",
            ErrorKind::GiveUp => "give up",
            ErrorKind::Fenced => "fenced",
            ErrorKind::Halt => "halt",
        })
    }
}
