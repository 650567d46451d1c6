//! A node that answers what the archive can't.

use async_trait::async_trait;
use serde_json::value::RawValue;

use crate::error::RpcError;

/// Where requests are sent that the archive can't answer, when an upstream is configured.
///
/// An upstream has its own head and its own idea of the fork; its answers are passed on as they are.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Asks the upstream. `params` is the caller's text, unchanged; `None` where there was none. An error of the upstream is
    /// passed on with its code. A failure on the way to it is [`RpcError::upstream`]. It bounds its own time, how many requests wait
    /// for it, and the bytes of an answer: a request that waits here takes no turn of the archive's.
    async fn forward(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError>;
}
