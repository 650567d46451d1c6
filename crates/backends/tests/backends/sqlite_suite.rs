//! The whole conformance suite on SQLite. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being incomplete.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{Clock, Height};
use cairn_store::suite::{self, StoreFactory, StorePlace, TestStore};
use cairn_store::{Result, StoreError};
use rusqlite::Connection;

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

    async fn lose_block(&self, height: Height) -> Result<()> {
        let lose = || {
            let conn = Connection::open(self.dir.path().join("raw.sqlite"))?;
            conn.busy_timeout(Duration::from_secs(10))?;
            conn.execute("DELETE FROM blocks WHERE height = ?1", [height.get() as i64])
        };
        lose().map(drop).map_err(|error: rusqlite::Error| StoreError::Database(error.to_string()))
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
