//! What an access node's refusal means.

use cairn_core::Height;
use tonic::{Code, Status};

use crate::SourceError;

/// A refusal, by what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It doesn't have that yet.
    NotYet,
    /// It has the state that was asked for, and in it no such account.
    NoAccount,
    /// It never will: its chain begins at this height (F02). Not the same as "not yet".
    BelowRoot {
        /// What it says is its root.
        root_height: u64,
        /// Whether that is its spork's; else it is the node's own, which began later.
        is_sporks: bool,
    },
    /// The answer is larger than is taken: ask for less at a time (F03).
    TooLarge(String),
    /// The node is too old for the call.
    Unimplemented,
    /// It failed inside: worth another try. Of a bulk call, which may fail over one transaction's message, over its events or over the count of results:
    /// ask for one at a time.
    Internal(String),
    /// It took longer than we, or it, wait. Of a bulk call: the block may be too large for that, whenever it is asked for.
    TimedOut(String),
    /// Asked too often.
    RateLimited(String),
    /// Worth another try.
    Transient(String),
    /// It ran a script, which failed, or took more than a script may: it would again.
    ScriptFailed(String),
    /// It doesn't take the question. Of state that says nothing of what was asked: a node passes on with INVALID_ARGUMENT whatever went wrong where a script was to
    /// be run, such as that the state of the block isn't there any more.
    BadRequest(String),
    /// It doesn't let us, or has lost it.
    Permanent(String),
}

/// Reads a status.
pub(super) fn classify(status: &Status) -> Refusal {
    let message = status.message();
    let too_large =
        message.contains("message larger than max") || message.contains("message length too large");
    match status.code() {
        // Nothing else names a root: of a script that failed, the words are whatever its author wants.
        Code::NotFound | Code::OutOfRange if let Some(below_root) = below_root(message) => below_root,
        Code::ResourceExhausted if is_of_script(message) => {
            Refusal::ScriptFailed(format!("{:?}: {message}", status.code()))
        }
        Code::InvalidArgument if is_scripts_failure(message) => {
            Refusal::ScriptFailed(format!("{:?}: {message}", status.code()))
        }
        Code::ResourceExhausted | Code::OutOfRange if too_large => Refusal::TooLarge(message.into()),
        Code::ResourceExhausted => Refusal::RateLimited(message.into()),
        Code::NotFound if is_of_account(message) => Refusal::NoAccount,
        // Of state, OUT_OF_RANGE says that the node's index isn't that far, or has lost it (flow-go `ConvertIndexError`).
        Code::NotFound | Code::OutOfRange => Refusal::NotYet,
        Code::Unimplemented => Refusal::Unimplemented,
        Code::DeadlineExceeded => Refusal::TimedOut(format!("{:?}: {message}", status.code())),
        Code::Internal => Refusal::Internal(format!("{:?}: {message}", status.code())),
        Code::InvalidArgument => Refusal::BadRequest(format!("{:?}: {message}", status.code())),
        Code::PermissionDenied | Code::Unauthenticated | Code::DataLoss => {
            Refusal::Permanent(format!("{:?}: {message}", status.code()))
        }
        code => Refusal::Transient(format!("{code:?}: {message}")),
    }
}

/// "… is less than the spork root block height R. …", or "… the node's root block height R. …".
fn below_root(message: &str) -> Option<Refusal> {
    let (whose, after) = message.split_once("less than the ")?.1.split_once("root block height ")?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    // One that no chain has is no root.
    let root_height = Height::believable(after[..digits].parse().ok()?).ok()?.get();
    Some(Refusal::BelowRoot { root_height, is_sporks: whose.trim_end() == "spork" })
}

/// Whether it is an account that isn't there, and not its block or the state that the block left: flow-go's "account not found", "account with address
/// … not found" and "… does not exist", and the emulator's "could not find account with address …".
fn is_of_account(message: &str) -> bool {
    let is_named = message.split("account with address ").skip(1).any(|after| {
        let said = after.split_once(' ').map_or("", |(_, said)| said);
        said.starts_with("not found") || said.starts_with("does not exist")
    });
    is_named
        || message.contains("account not found")
        || message.contains("could not find account with address ")
}

/// Whether a limit that was reached is a script's own, and not the caller's (flow-go `convertScriptExecutionError`).
fn is_of_script(message: &str) -> bool {
    ["script execution computation limit exceeded", "script execution memory limit exceeded"]
        .iter()
        .any(|limit| message.starts_with(limit))
}

/// Codes of the virtual machine for a script that the node stopped since it took too long, or since the question was taken back: a busy node says that of any.
const STOPPED: [&str; 2] = ["[Error Code: 1113]", "[Error Code: 1114]"];

/// Whether the script itself failed: the virtual machine gives such an error a code ("[Error Code: 1101] cadence runtime error: …", flow-go `fvm/errors/codes.go`), and one
/// of its own "[Failure Code: 2002] …". What went wrong before the script ran has neither: "failed to create storage snapshot: state not found in ledger for
/// commit …: execution state is pruned", "state commitment not found", "data unavailable for block height". A contract that puts such words into what it panics with
/// makes a node look troubled by itself alone.
fn is_scripts_failure(message: &str) -> bool {
    let has_code = message.split("[Error Code: ").skip(1).any(|after| {
        after
            .split_once(']')
            .is_some_and(|(code, _)| !code.is_empty() && code.bytes().all(|b| b.is_ascii_digit()))
    });
    has_code
        && !message.contains("[Failure Code: ")
        && !STOPPED.iter().any(|stopped| message.contains(stopped))
}

impl Refusal {
    /// As a source's failure; `None` where it means "not there".
    pub fn into_error(self, endpoint: &str) -> Option<SourceError> {
        let endpoint = endpoint.to_owned();
        Some(match self {
            Refusal::NotYet | Refusal::NoAccount => return None,
            Refusal::BelowRoot { root_height, .. } => SourceError::Permanent {
                endpoint,
                message: format!(
                    "its chain begins at height {root_height}; heights below are another spork's: add a node of that one"
                ),
            },
            Refusal::TooLarge(message) => SourceError::TooWide { endpoint, message },
            Refusal::RateLimited(message) => {
                SourceError::RateLimited { endpoint, message, retry_after_ms: None }
            }
            Refusal::Transient(message) | Refusal::Internal(message) | Refusal::TimedOut(message) => {
                SourceError::Transient { endpoint, message }
            }
            Refusal::Unimplemented => {
                SourceError::Permanent { endpoint, message: "it is too old for this call".into() }
            }
            Refusal::Permanent(message) => SourceError::Refused { endpoint, message },
            Refusal::BadRequest(message) | Refusal::ScriptFailed(message) => {
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
        for (text, root_height, is_sporks) in [
            (
                "block height 5 is less than the spork root block height 137390146. Try to use a historic node",
                137_390_146,
                true,
            ),
            (
                "block height 5 is less than the node's root block height 130290700. Try to use a different Access node",
                130_290_700,
                false,
            ),
        ] {
            assert_eq!(classify(&Status::not_found(text)), Refusal::BelowRoot { root_height, is_sporks });
            let absurd = text.replace(&root_height.to_string(), "18446744073709551615");
            assert_eq!(classify(&Status::not_found(absurd)), Refusal::NotYet);
            // A script may say so too, when it panics.
            let panicked = Status::invalid_argument(format!(
                "failed to execute script: [Error Code: 1101] cadence runtime error: panic: {text}"
            ));
            assert!(matches!(classify(&panicked), Refusal::ScriptFailed(_)));
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
        for words in [
            "transaction failed but error message is empty for tx ID: 5",
            "number of transaction results returned by execution node is more than the number of transactions in the block",
        ] {
            assert!(matches!(classify(&Status::internal(words)), Refusal::Internal(_)), "{words}");
        }
        assert!(matches!(classify(&Status::unavailable("x")), Refusal::Transient(_)));
        assert!(matches!(classify(&Status::deadline_exceeded("x")), Refusal::TimedOut(_)));
        assert!(matches!(classify(&Status::invalid_argument("x")), Refusal::BadRequest(_)));
    }

    #[test]
    fn a_scripts_own_limits_are_its_failure_and_no_limit_of_the_rate() {
        for limit in ["computation", "memory"] {
            let status = Status::resource_exhausted(format!(
                "script execution {limit} limit exceeded: [Error Code: 1110] computation exceeds limit (100000)"
            ));
            assert!(matches!(classify(&status), Refusal::ScriptFailed(_)), "{status}");
        }
        // What a node says of a rate, whatever it names.
        let status = Status::resource_exhausted(
            "/flow.access.AccessAPI/ExecuteScriptAtBlockID is rejected by grpc_ratelimit middleware, please retry later.",
        );
        assert!(matches!(classify(&status), Refusal::RateLimited(_)), "{status}");
    }

    #[test]
    fn an_account_that_is_not_there_is_told_from_state_that_is_not() {
        for words in [
            "account not found",
            "account with address 0000000000000009 not found: key not found",
            "account with address 0000000000000009 does not exist",
            "could not find account with address 0000000000000009",
            "failed to get account from the execution node: 1 error occurred:\n\t* rpc error: code = NotFound desc = account not found\n\n",
        ] {
            assert_eq!(classify(&Status::not_found(words)), Refusal::NoAccount, "{words}");
            assert_eq!(classify(&Status::out_of_range(words)), Refusal::NotYet, "{words}");
        }
        for words in [
            "not found: key not found",
            "data not found: key not found",
            "block 0909 has not been executed by node or was pruned",
            "failed to get account from the execution node: 1 error occurred:\n\t* rpc error: code = NotFound desc = block 0909 not found\n\n",
        ] {
            assert_eq!(classify(&Status::not_found(words)), Refusal::NotYet, "{words}");
        }
        let below = Status::not_found(
            "account with address 09 not found: block height 5 is less than the spork root block height 7. Try to use a historic node",
        );
        assert_eq!(classify(&below), Refusal::BelowRoot { root_height: 7, is_sporks: true });
    }

    #[test]
    fn a_script_that_failed_is_told_from_a_node_that_could_not_run_it() {
        let passed_on = "failed to execute the script on the execution node execution-002.previewnet1.nodes.onflow.org:3569: \
             rpc error: code = InvalidArgument desc = failed to execute script: ";
        for words in [
            "[Error Code: 1101] failed to execute script at block (89c6): [Error Code: 1101] error caused by: 1 error occurred:\n\t* \
             [Error Code: 1101] cadence runtime error: Execution failed:\nerror: unexpectedly found nil while forcing an Optional value",
            "[Error Code: 1110] computation exceeds limit (100000)",
            "[Error Code: 1111] memory usage exceeds limit (20000000000)",
            "[Error Code: 1052] transaction arguments are invalid: (argument is not json decodable)",
        ] {
            for words in [format!("failed to execute script: {words}"), format!("{passed_on}{words}")] {
                let refusal = classify(&Status::invalid_argument(&words));
                assert!(matches!(refusal, Refusal::ScriptFailed(_)), "{words}: {refusal:?}");
            }
        }
        for words in [
            "failed to create storage snapshot: state not found in ledger for commit e3ee960a (block faa53f49): execution state is pruned",
            "failed to execute script at block (89c6): state commitment not found (e3ee960a)",
            "data unavailable for block height: the requested height (39290353) is beyond the highest indexed height(57976549)",
            "[Failure Code: 2002] ledger returns unsuccessful: trie with the given rootHash not found",
            "[Error Code: 1101] cadence runtime error: [Failure Code: 2002] ledger returns unsuccessful",
            "[Error Code: 1113] script timed out and did not finish executing within the maximum execution time allowed",
            "[Error Code: ] and none",
            "script and/or arguments are too large",
        ] {
            for words in [format!("failed to execute script: {words}"), format!("{passed_on}{words}")] {
                let refusal = classify(&Status::invalid_argument(&words));
                assert!(matches!(refusal, Refusal::BadRequest(_)), "{words}: {refusal:?}");
            }
        }
    }

    #[test]
    fn a_script_failed_only_where_the_question_was_at_fault() {
        for status in [Status::permission_denied("x"), Status::unauthenticated("x"), Status::data_loss("x")] {
            assert!(matches!(classify(&status), Refusal::Permanent(_)), "{status}");
        }
    }
}
