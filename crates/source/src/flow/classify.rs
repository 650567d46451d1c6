//! What an access node's refusal means.

use tonic::{Code, Status};

use crate::SourceError;

/// A refusal, by what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It doesn't have that yet.
    NotYet,
    /// It never will: its chain begins at this height (F02). Not the same as "not yet".
    BelowRoot {
        /// What it says is its root.
        root_height: u64,
    },
    /// The answer is larger than is taken: ask for less at a time (F03).
    TooLarge(String),
    /// The node is too old for the call.
    Unimplemented,
    /// A bulk call that fails over one transaction's message: ask for one at a time.
    BrokenBulk(String),
    /// Asked too often.
    RateLimited(String),
    /// Worth another try.
    Transient(String),
    /// It will never answer this question, whoever asks: of a script, that it failed (flow-go answers that with INVALID_ARGUMENT).
    BadRequest(String),
    /// It will never answer this: it doesn't let us, or has lost it.
    Permanent(String),
}

/// Reads a status.
pub(super) fn classify(status: &Status) -> Refusal {
    let message = status.message();
    let too_large =
        message.contains("message larger than max") || message.contains("message length too large");
    if let Some(root_height) = root_named(message) {
        return Refusal::BelowRoot { root_height };
    }
    match status.code() {
        Code::ResourceExhausted | Code::OutOfRange if too_large => Refusal::TooLarge(message.into()),
        Code::ResourceExhausted => Refusal::RateLimited(message.into()),
        Code::NotFound | Code::OutOfRange => Refusal::NotYet,
        Code::Unimplemented => Refusal::Unimplemented,
        Code::Internal if message.contains("error message is empty") => Refusal::BrokenBulk(message.into()),
        Code::InvalidArgument => Refusal::BadRequest(format!("{:?}: {message}", status.code())),
        Code::PermissionDenied | Code::Unauthenticated | Code::DataLoss => {
            Refusal::Permanent(format!("{:?}: {message}", status.code()))
        }
        code => Refusal::Transient(format!("{code:?}: {message}")),
    }
}

/// "… is less than the spork root block height R. …", or "… the node's root block height R. …".
fn root_named(message: &str) -> Option<u64> {
    let after = message.split_once("less than the ")?.1.split_once("root block height ")?.1;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    after[..digits].parse().ok()
}

impl Refusal {
    /// As a source's failure; `None` where it means "not there".
    pub fn into_error(self, endpoint: &str) -> Option<SourceError> {
        let endpoint = endpoint.to_owned();
        Some(match self {
            Refusal::NotYet => return None,
            Refusal::BelowRoot { root_height } => SourceError::Permanent {
                endpoint,
                message: format!(
                    "its chain begins at height {root_height}; heights below are another spork's: add a node of that one"
                ),
            },
            Refusal::TooLarge(message) => SourceError::TooWide { endpoint, message },
            Refusal::RateLimited(message) => {
                SourceError::RateLimited { endpoint, message, retry_after_ms: None }
            }
            Refusal::Transient(message) | Refusal::BrokenBulk(message) => {
                SourceError::Transient { endpoint, message }
            }
            Refusal::Unimplemented => {
                SourceError::Permanent { endpoint, message: "it is too old for this call".into() }
            }
            Refusal::Permanent(message) | Refusal::BadRequest(message) => {
                SourceError::Permanent { endpoint, message }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f02_below_the_root_and_above_the_tip_are_told_apart() {
        for (text, root_height) in [
            (
                "block height 5 is less than the spork root block height 137390146. Try to use a historic node",
                137_390_146,
            ),
            (
                "block height 5 is less than the node's root block height 130290700. Try to use a different Access node",
                130_290_700,
            ),
        ] {
            assert_eq!(classify(&Status::not_found(text)), Refusal::BelowRoot { root_height });
        }
        assert_eq!(classify(&Status::not_found("not found: key not found")), Refusal::NotYet);
        assert_eq!(classify(&Status::out_of_range("start height above sealed")), Refusal::NotYet);
    }

    #[test]
    fn f03_too_large_and_too_often_are_told_apart() {
        let large = [
            Status::resource_exhausted("grpc: received message larger than max (17000000 vs. 4194304)"),
            Status::out_of_range(
                "Error, decoded message length too large: found 9 bytes, the limit is: 4 bytes",
            ),
        ];
        for status in large {
            assert!(matches!(classify(&status), Refusal::TooLarge(_)), "{status}");
        }
        assert!(matches!(
            classify(&Status::resource_exhausted("rate limit exceeded")),
            Refusal::RateLimited(_)
        ));
        let broken = Status::internal("transaction failed but error message is empty for tx ID: 5");
        assert!(matches!(classify(&broken), Refusal::BrokenBulk(_)));
        assert!(matches!(classify(&Status::unavailable("x")), Refusal::Transient(_)));
        assert!(matches!(classify(&Status::invalid_argument("x")), Refusal::BadRequest(_)));
    }

    #[test]
    fn a_script_failed_only_where_the_question_was_at_fault() {
        for status in [Status::permission_denied("x"), Status::unauthenticated("x"), Status::data_loss("x")] {
            assert!(matches!(classify(&status), Refusal::Permanent(_)), "{status}");
        }
    }
}
