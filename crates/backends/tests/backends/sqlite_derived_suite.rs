//! The whole conformance suite of the derived store on SQLite. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being
//! incomplete.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
use cairn_core::{Clock, Height};
use cairn_store::derived::suite::{
    self, BROKEN, Breaker, Breaking, Countdown, DerivedFactory, DerivedPlace, TestDerived,
};
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

impl Place {
    async fn open_store(&self) -> Result<SqliteDerived> {
        let options =
            SqliteDerivedOptions { snapshot_max_ms: None, ..SqliteDerivedOptions::new(self.dir.path()) };
        SqliteDerived::open(options, self.catalog.clone(), self.clock.clone()).await
    }

    async fn open_raw(&self) -> Result<SqliteStore> {
        let options = SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::new(self.dir.path()) };
        SqliteStore::open(options, self.clock.clone()).await
    }
}

#[async_trait]
impl DerivedPlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestDerived>> {
        Ok(Arc::new(self.open_store().await?))
    }

    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>> {
        Ok(Arc::new(self.open_raw().await?))
    }

    async fn lose_lease(&self, id: u64) -> Result<()> {
        let lose = || {
            let conn = Connection::open(self.dir.path().join("app.sqlite"))?;
            conn.busy_timeout(Duration::from_secs(10))?;
            conn.execute("DELETE FROM worker_leases WHERE id = ?1", [id as i64])
        };
        lose().map(drop).map_err(|error: rusqlite::Error| StoreError::Database(error.to_string()))
    }

    async fn set_last_height(&self, table: &'static str, height: Height) -> Result<()> {
        let set = || {
            let conn = Connection::open(self.dir.path().join("app.sqlite"))?;
            conn.busy_timeout(Duration::from_secs(10))?;
            conn.execute(&format!("UPDATE {table} SET last_height = ?1"), [height.get() as i64])
        };
        set().map(drop).map_err(|error: rusqlite::Error| StoreError::Database(error.to_string()))
    }

    async fn open_breaking(&self) -> Result<Breaking> {
        let (store, raw) = (self.open_store().await?, self.open_raw().await?);
        let at_commit = Arc::new(Countdown::default());
        store.set_hook(Some(at_commit.clone()));
        raw.set_hook(Some(at_commit.clone()));
        let files = ["app.sqlite", "raw.sqlite"].map(|name| triggers(&self.dir.path().join(name)));
        let [app, raw_file] = files;
        let at_rows = Mutex::new([app.map_err(broken)?, raw_file.map_err(broken)?]);
        Ok(Breaking {
            store: Arc::new(store),
            log: Arc::new(raw),
            breaker: Arc::new(Breaks { at_commit, at_rows }),
        })
    }
}

/// Breaks off transactions at their commit, which is point 0, and before each row that they write: finer than between their statements.
struct Breaks {
    at_commit: Arc<Countdown>,
    /// Other connections to both files.
    at_rows: Mutex<[Connection; 2]>,
}

#[async_trait]
impl Breaker for Breaks {
    async fn break_at(&self, point: Option<u64>) -> Result<()> {
        self.at_commit.set(point.filter(|point| *point == 0));
        let rows = point.and_then(|point| point.checked_sub(1)).and_then(|rows| i64::try_from(rows).ok());
        for conn in self.at_rows.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            conn.execute("UPDATE breaks SET rows_left = ?1", [rows]).map_err(broken)?;
        }
        Ok(())
    }
}

fn broken(error: rusqlite::Error) -> StoreError {
    StoreError::Database(error.to_string())
}

/// Lets every write of a row count down, and fail at the end. What is counted is rolled back with the rest.
fn triggers(file: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open(file)?;
    conn.busy_timeout(Duration::from_secs(10))?;
    conn.pragma_update(None, "synchronous", "OFF")?;
    let tables: Vec<String> = conn
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'breaks'")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS breaks (rows_left INTEGER); \
         INSERT INTO breaks SELECT NULL WHERE NOT EXISTS (SELECT 1 FROM breaks)",
    )?;
    for table in tables {
        for verb in ["INSERT", "UPDATE", "DELETE"] {
            conn.execute_batch(&format!(
                "CREATE TRIGGER IF NOT EXISTS \"breaks_{verb}_{table}\" BEFORE {verb} ON \"{table}\" BEGIN \
                 UPDATE breaks SET rows_left = rows_left - 1; \
                 SELECT RAISE(ABORT, '{BROKEN}') FROM breaks WHERE rows_left < 0; END"
            ))?;
        }
    }
    Ok(conn)
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
