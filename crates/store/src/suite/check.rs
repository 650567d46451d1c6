//! What cases say when something is not as it should be.

use std::fmt::{self, Debug};
use std::panic::Location;

use crate::{Result, StoreError};

/// Why a case failed, and where in the suite it was noticed.
#[derive(Debug, Clone)]
pub struct Failure {
    message: String,
    at: &'static Location<'static>,
}

/// How a case ended.
pub type CaseResult<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure noticed by the caller.
    #[track_caller]
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), at: Location::caller() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.message, self.at.file(), self.at.line())
    }
}

impl From<StoreError> for Failure {
    #[track_caller]
    fn from(error: StoreError) -> Self {
        Failure::new(format!("unexpected error: {error}"))
    }
}

/// Demands that something holds.
#[track_caller]
pub(crate) fn holds(condition: bool, what: impl Into<String>) -> CaseResult {
    if condition { Ok(()) } else { Err(Failure::new(what)) }
}

/// Demands that two values are equal.
#[track_caller]
pub(crate) fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> CaseResult {
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: found {}, expected {}", shortened(&found), shortened(&expected))))
}

/// Demands a certain error.
#[track_caller]
pub(crate) fn refused<T: Debug>(
    what: &str,
    answer: Result<T>,
    expected: impl Fn(&StoreError) -> bool,
) -> CaseResult<StoreError> {
    match answer {
        Err(error) if expected(&error) => Ok(error),
        Err(error) => Err(Failure::new(format!("{what}: refused for another reason: {error}"))),
        Ok(answer) => {
            Err(Failure::new(format!("{what}: should have been refused, answered {}", shortened(&answer))))
        }
    }
}

pub(crate) fn is_fenced(error: &StoreError) -> bool {
    matches!(error, StoreError::Fenced { .. })
}

pub(crate) fn is_invalid(error: &StoreError) -> bool {
    matches!(error, StoreError::Invalid(_))
}

pub(crate) fn is_conflict(error: &StoreError) -> bool {
    matches!(error, StoreError::Conflict { .. })
}

pub(crate) fn is_unlinked(error: &StoreError) -> bool {
    matches!(error, StoreError::DoesNotLink { .. })
}

pub(crate) fn is_below_finality(error: &StoreError) -> bool {
    matches!(error, StoreError::BelowFinality { .. })
}

pub(crate) fn is_purge_pending(error: &StoreError) -> bool {
    matches!(error, StoreError::PurgePending { .. })
}

pub(crate) fn is_too_deep(error: &StoreError) -> bool {
    matches!(error, StoreError::TooDeep { .. })
}

/// Values hold whole blocks: a message shows what fits a screen.
fn shortened(value: &impl Debug) -> String {
    let mut text = format!("{value:?}");
    if let Some((end, _)) = text.char_indices().nth(1_500) {
        text.truncate(end);
        text.push('…');
    }
    text
}
