//! A node that answers what a server without state can't.

use async_trait::async_trait;
use serde_json::value::RawValue;

use crate::error::RpcError;

/// Where state methods are sent when an upstream is configured.
///
/// An upstream has its own head and its own idea of the fork; its answers are passed on as they are.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Asks the upstream. `params` is the caller's text, unchanged; `None` where there was none. An error of the upstream is
    /// passed on with its code; one on the way to it gets -32603.
    async fn forward(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError>;
}
