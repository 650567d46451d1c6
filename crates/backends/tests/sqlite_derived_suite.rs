//! The whole conformance suite of the derived store on SQLite. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being
//! incomplete.
#![cfg(feature = "sqlite")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
use cairn_core::Clock;
use cairn_store::derived::suite::{self, DerivedFactory, DerivedPlace, TestDerived};
use cairn_store::derived::{Catalog, ErrorLog};
use cairn_store::{Result, StoreError};
use rusqlite::Connection;

struct Places;

struct Place {
    dir: tempfile::TempDir,
    catalog: Catalog,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl DerivedFactory for Places {
    async fn place(&self, catalog: Catalog, clock: Arc<dyn Clock>) -> Result<Arc<dyn DerivedPlace>> {
        let dir =
            tempfile::tempdir_in(fast_dir()).map_err(|error| StoreError::Database(error.to_string()))?;
        Ok(Arc::new(Place { dir, catalog, clock }))
    }

    fn expired_leases(&self) -> u64 {
        20_000
    }
}

#[async_trait]
impl DerivedPlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestDerived>> {
        let options =
            SqliteDerivedOptions { snapshot_max_ms: None, ..SqliteDerivedOptions::new(self.dir.path()) };
        Ok(Arc::new(SqliteDerived::open(options, self.catalog.clone(), self.clock.clone()).await?))
    }

    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>> {
        let options = SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::new(self.dir.path()) };
        Ok(Arc::new(SqliteStore::open(options, self.clock.clone()).await?))
    }

    async fn lose_lease(&self, id: u64) -> Result<()> {
        let lose = || {
            let conn = Connection::open(self.dir.path().join("app.sqlite"))?;
            conn.busy_timeout(Duration::from_secs(10))?;
            conn.execute("DELETE FROM worker_leases WHERE id = ?1", [id as i64])
        };
        lose().map(drop).map_err(|error: rusqlite::Error| StoreError::Database(error.to_string()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_passes_the_whole_derived_suite() {
    let report = suite::run_all(Arc::new(Places), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}

/// Where files are written to memory if there is such a place: thousands of commits, and none of them has to outlive the machine.
fn fast_dir() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
