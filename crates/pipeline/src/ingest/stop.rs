//! A source whose answers aren't waited for any more once the ingester is asked to stop.
//!
//! A node may take minutes for an answer, or never give one; a stop takes seconds (field case X02). What was asked is dropped and
//! fails as something that may be tried again, which nobody does after a stop.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_source::{ChainSource, Heads, Result, SourceError};
use tokio_util::sync::CancellationToken;

/// The decorator.
pub(super) struct UntilStopped {
    inner: Arc<dyn ChainSource>,
    stop: CancellationToken,
}

impl UntilStopped {
    pub(super) fn new(inner: Arc<dyn ChainSource>, stop: CancellationToken) -> Self {
        UntilStopped { inner, stop }
    }

    async fn unless_stopped<T>(&self, answer: impl Future<Output = Result<T>> + Send) -> Result<T> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.stop.cancelled() => {
                Err(SourceError::Transient { endpoint: "the source".into(), message: "was not waited for: asked to stop".into() })
            }
        }
    }
}

#[async_trait]
impl ChainSource for UntilStopped {
    async fn chain_id(&self) -> Result<ChainId> {
        self.unless_stopped(self.inner.chain_id()).await
    }

    async fn heads(&self) -> Result<Heads> {
        self.unless_stopped(self.inner.heads()).await
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.unless_stopped(self.inner.linked_ref(height)).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        self.unless_stopped(self.inner.blocks(range)).await
    }

    async fn answers(&self, height: Height) -> Result<Vec<RawBlock>> {
        self.unless_stopped(self.inner.answers(height)).await
    }

    async fn holders(&self, block: BlockRef, enough: usize) -> Result<Vec<String>> {
        self.unless_stopped(self.inner.holders(block, enough)).await
    }

    fn preferred_heights(&self) -> u64 {
        self.inner.preferred_heights()
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        self.inner.wait_for_head(at_most_ms).await;
    }

    fn distrust(&self, height: Height) {
        self.inner.distrust(height);
    }

    fn boundary_setting(&self, height: Height, below: BlockRef) -> Option<String> {
        self.inner.boundary_setting(height, below)
    }

    fn bound_by(&self) -> String {
        self.inner.bound_by()
    }
}
