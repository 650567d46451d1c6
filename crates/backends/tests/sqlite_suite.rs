//! The whole conformance suite on SQLite. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being incomplete.
#![cfg(feature = "sqlite")]

use std::sync::Arc;

use async_trait::async_trait;
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::Clock;
use cairn_store::suite::{self, StoreFactory, StorePlace, TestStore};
use cairn_store::{Result, StoreError};

struct Places;

struct Place {
    dir: tempfile::TempDir,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl StoreFactory for Places {
    async fn place(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn StorePlace>> {
        let dir =
            tempfile::tempdir_in(fast_dir()).map_err(|error| StoreError::Database(error.to_string()))?;
        Ok(Arc::new(Place { dir, clock }))
    }
}

#[async_trait]
impl StorePlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestStore>> {
        let options = SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::new(self.dir.path()) };
        Ok(Arc::new(SqliteStore::open(options, self.clock.clone()).await?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_passes_the_whole_suite() {
    let report = suite::run_all(Arc::new(Places), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}

/// Where files are written to memory if there is such a place: thousands of commits, and none of them has to outlive the machine.
fn fast_dir() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
