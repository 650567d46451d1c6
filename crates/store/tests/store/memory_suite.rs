//! The in-memory reference passes the conformance suite.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Clock, Height};
use cairn_store::Result;
use cairn_store::memory::MemoryStore;
use cairn_store::suite::{StoreFactory, StorePlace, TestStore, run_all};

struct MemoryFactory;

#[async_trait]
impl StoreFactory for MemoryFactory {
    async fn place(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn StorePlace>> {
        Ok(Arc::new(MemoryPlace(MemoryStore::new(clock))))
    }
}

/// Another handle on the same state stands for another opening.
struct MemoryPlace(MemoryStore);

#[async_trait]
impl StorePlace for MemoryPlace {
    async fn open(&self) -> Result<Arc<dyn TestStore>> {
        Ok(Arc::new(self.0.clone()))
    }

    async fn lose_block(&self, height: Height) -> Result<()> {
        self.0.lose_block(height)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_store_conforms() {
    let report = run_all(Arc::new(MemoryFactory), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}
