//! The errors that a JSON-RPC caller sees: code, message, data.
//!
//! The codes are those that nodes and providers use and that clients already parse. What each means here:
//!
//! | code | meaning |
//! | --- | --- |
//! | -32700 | the request is not JSON |
//! | -32600 | not a JSON-RPC 2.0 request; an empty batch, or one with too many items; a body that is too large |
//! | -32601 | no such method here |
//! | -32602 | a parameter is malformed, a range is reversed, beyond the head, or wider than the configured block range |
//! | -32603 | the server failed |
//! | -32000 | the thing that was named doesn't exist (block hash, traced transaction), or this server can't know it |
//! | -32002 | the time limit passed, or the database is busy; the request may be tried again |
//! | -32003 | the response would be too large |
//! | -32005 | too many results (the data names a range that works), filters or subscriptions, or overload (it names the seconds to wait) |
//! | -32010 | the upstream gave no answer: it can't be reached, took too long, or sent something else |
//! | -39001 | `safe` or `finalized` was asked for and is not known (yet) |
//! | 4444 | the archive doesn't go back that far |

use cairn_core::Height;
use cairn_evm::{EvmError, ParamError};
use cairn_store::StoreError;
use serde::Serialize;
use serde_json::{Value, json};

/// The request is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// Not a JSON-RPC 2.0 request.
pub const INVALID_REQUEST: i32 = -32600;
/// No such method here.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// A parameter is malformed or out of range.
pub const INVALID_PARAMS: i32 = -32602;
/// The server failed.
pub const INTERNAL: i32 = -32603;
/// What was named doesn't exist, or can't be known here.
pub const SERVER_ERROR: i32 = -32000;
/// The time limit passed, or the database is busy.
pub const TIMEOUT: i32 = -32002;
/// The response would be too large.
pub const RESPONSE_TOO_LARGE: i32 = -32003;
/// Too many results, requests or subscriptions.
pub const LIMIT_EXCEEDED: i32 = -32005;
/// The upstream gave no answer.
pub const UPSTREAM_FAILED: i32 = -32010;
/// `safe` or `finalized` is not known.
pub const UNKNOWN_BLOCK: i32 = -39001;
/// The archive doesn't go back that far.
pub const PRUNED: i32 = 4444;

/// The member of `data` that says when to try again.
const RETRY_AFTER: &str = "retryAfterSeconds";

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Serialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// One of this module's codes, or an upstream's.
    pub code: i32,
    /// For people; clients parse some of them.
    pub message: String,
    /// For programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        RpcError { code, message: message.into(), data: None }
    }

    /// -32602.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        RpcError::new(INVALID_PARAMS, message)
    }

    /// -32600.
    pub fn invalid_request(message: impl Into<String>) -> Self {
        RpcError::new(INVALID_REQUEST, message)
    }

    /// -32000.
    pub fn server(message: impl Into<String>) -> Self {
        RpcError::new(SERVER_ERROR, message)
    }

    /// -32603. The message is shown: it must not hold what a stranger shouldn't see.
    pub fn internal(message: impl Into<String>) -> Self {
        RpcError::new(INTERNAL, message)
    }

    /// -32601 for a method that nobody knows.
    pub fn method_not_found(method: &str) -> Self {
        let shown: String = method.chars().take(100).collect();
        RpcError::new(METHOD_NOT_FOUND, format!("the method {shown} does not exist/is not available"))
    }

    /// 4444: `first_missing` was asked for, the archive begins at `first`.
    pub fn pruned(first_missing: Height, first: Height) -> Self {
        RpcError {
            code: PRUNED,
            message: format!(
                "block {first_missing} is not in this archive: it begins at block {first} (0x{:x}); ask for blocks from there",
                first.get()
            ),
            data: Some(json!({
                "firstMissing": format!("0x{:x}", first_missing.get()),
                "begins": format!("0x{:x}", first.get()),
            })),
        }
    }

    /// -32000: there is no block at all yet.
    pub fn empty_archive() -> Self {
        RpcError::server(
            "no block is stored yet: the archive is empty; try again when the first block has been ingested",
        )
    }

    /// -32003 for a response over the limit.
    pub fn response_too_large(limit_bytes: usize) -> Self {
        RpcError::new(
            RESPONSE_TOO_LARGE,
            format!("the response would be larger than {limit_bytes} bytes; narrow the request"),
        )
    }

    /// -32010 for an upstream, named without what is secret in its URL.
    pub fn upstream(name: &str, what: impl std::fmt::Display) -> Self {
        RpcError::new(
            UPSTREAM_FAILED,
            format!("the upstream node {name} {what}; try again, or ask another node (`serve.upstream`)"),
        )
    }

    /// -32005 while too much is going on: `what`, and how long it lasts.
    pub fn overloaded(what: &str, wait: std::time::Duration) -> Self {
        let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).clamp(1, 60);
        RpcError {
            code: LIMIT_EXCEEDED,
            message: format!("{what}; try again in {seconds} s"),
            data: Some(json!({ RETRY_AFTER: seconds })),
        }
    }

    /// After how many seconds the request may be tried again, where it was refused by [`RpcError::overloaded`].
    pub fn retry_after_s(&self) -> Option<u64> {
        let data = self.data.as_ref().filter(|_| self.code == LIMIT_EXCEEDED)?;
        data.get(RETRY_AFTER)?.as_u64()
    }

    /// -32002 for a request over the time limit.
    pub fn timeout(limit_ms: u64) -> Self {
        RpcError::new(TIMEOUT, format!("the request took longer than {limit_ms} ms; narrow it or try again"))
    }
}

impl From<ParamError> for RpcError {
    fn from(error: ParamError) -> Self {
        RpcError::invalid_params(error.to_string())
    }
}

impl From<StoreError> for RpcError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing { missing } => RpcError {
                code: PRUNED,
                message: format!(
                    "heights {missing} are not stored; the first missing one is {}",
                    missing.start()
                ),
                data: Some(json!({ "firstMissing": format!("0x{:x}", missing.start().get()) })),
            },
            StoreError::Busy(_) => {
                tracing::warn!(%error, "a read could not be served now");
                RpcError::new(TIMEOUT, "the database is busy; try again")
            }
            StoreError::Corrupt { .. } => {
                tracing::error!(%error, "a read met damaged data");
                RpcError::internal(error.to_string())
            }
            other => {
                tracing::error!(error = %other, "a read failed");
                RpcError::internal("the database failed; the server's log says why")
            }
        }
    }
}

impl From<EvmError> for RpcError {
    fn from(error: EvmError) -> Self {
        if let EvmError::ReceiptMissing { .. } | EvmError::BytesUnknown { .. } = error {
            return RpcError::server(error.to_string());
        }
        tracing::error!(%error, "a stored block could not be read");
        RpcError::internal(format!("a stored block could not be read: {error}. Run `cairn verify`"))
    }
}

impl From<serde_json::Error> for RpcError {
    fn from(error: serde_json::Error) -> Self {
        tracing::error!(%error, "an answer could not be serialised");
        RpcError::internal(format!("the answer could not be serialised: {error}"))
    }
}
