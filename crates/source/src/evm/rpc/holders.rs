//! Which endpoints have a block on their chain.

use std::sync::Arc;
use std::time::Duration;

use cairn_core::BlockRef;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::endpoint::Patience;
use super::memory::CallMemory;
use super::pool::Pool;

/// How long all of them together are waited for.
const ASK_WITHIN: Duration = Duration::from_secs(10);

impl Pool {
    /// The names of the endpoints whose block at this height is `block`. All are asked at once, until there are `enough`. One that pauses, fails, or doesn't
    /// answer in time is not among them.
    pub async fn holders(&self, block: BlockRef, enough: usize, memory: &Arc<CallMemory>) -> Vec<String> {
        let patience = Patience { attempts: 2, max_wait: Duration::ZERO };
        let mut asking: FuturesUnordered<_> = self
            .order(Some(block.height))
            .into_iter()
            .map(|endpoint| async move {
                let asked = async {
                    endpoint.ensure_chain(self.chain, patience, memory).await?;
                    self.header(&endpoint, block.height, patience, memory).await
                };
                (asked.await, endpoint)
            })
            .collect();
        let deadline = Instant::now() + ASK_WITHIN;
        let mut holders = Vec::new();
        while holders.len() < enough
            && let Ok(Some((answer, endpoint))) = tokio::time::timeout_at(deadline, asking.next()).await
        {
            match answer {
                Ok(Some(theirs)) if theirs.block == block => holders.push(endpoint.name.to_string()),
                Ok(theirs) => {
                    tracing::debug!(endpoint = %endpoint.name, %block, ?theirs, "it has another block, or none");
                }
                Err(error) => tracing::debug!(endpoint = %endpoint.name, %block, %error, "it doesn't say"),
            }
        }
        holders
    }
}
