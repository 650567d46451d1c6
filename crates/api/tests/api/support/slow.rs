//! A store that takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cairn_store::{RawReader, RawSnapshot};

/// Counts how many snapshots are being opened at once, and makes them slow.
pub struct SlowReader {
    inner: Arc<dyn RawReader>,
    delay: Duration,
    now: AtomicUsize,
    pub most: AtomicUsize,
}

impl SlowReader {
    pub fn new(inner: Arc<dyn RawReader>, delay: Duration) -> Arc<SlowReader> {
        Arc::new(SlowReader { inner, delay, now: AtomicUsize::new(0), most: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl RawReader for SlowReader {
    async fn snapshot(&self) -> cairn_store::Result<Arc<dyn RawSnapshot>> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(self.delay).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.inner.snapshot().await
    }
}
