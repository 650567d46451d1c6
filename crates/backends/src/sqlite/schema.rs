//! The schema's versions, and how connections are set up.
//!
//! `PRAGMA user_version` counts the migrations that were applied. Each is one file of SQL and runs in one transaction with the count; a
//! file with a higher count than we know is refused (law 8).

use std::path::Path;
use std::time::Duration;

use cairn_store::{Result, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};

use super::error::{FILE_NAME, db_in};

/// A kind of file: what it is called, how it is marked, and how it came to be.
#[derive(Debug)]
pub(super) struct FileKind {
    /// Its name in the data directory.
    pub(super) name: &'static str,
    /// Marks a file as ours (`PRAGMA application_id`).
    application_id: i32,
    /// Files of SQL, in order; never changed once released.
    migrations: &'static [&'static str],
    /// `PRAGMA synchronous` of the writer.
    synchronous: &'static str,
    /// How many compiled statements a connection keeps.
    statements: usize,
    page_bytes: u32,
    /// When a commit copies the write-ahead log into the file.
    checkpoint_bytes: u32,
}

/// The raw store; "cair". Every commit reaches the disk before it is answered.
pub(super) static RAW: FileKind = FileKind {
    name: FILE_NAME,
    application_id: 0x6361_6972,
    migrations: &[
        include_str!("0001.sql"),
        include_str!("0002.sql"),
        include_str!("0003.sql"),
        include_str!("0004.sql"),
        include_str!("0005.sql"),
    ],
    synchronous: "FULL",
    statements: 96,
    // A page of an index run and its row fill one page of the file.
    page_bytes: 8_192,
    checkpoint_bytes: 32 << 20,
};

/// The app store; "capp". Its tables of derived rows are made from the catalog, beside the migrations; see there why it need not
/// be on the disk before it is answered.
pub(super) static APP: FileKind = FileKind {
    name: "app.sqlite",
    application_id: 0x6361_7070,
    migrations: &[
        include_str!("derived/0001.sql"),
        include_str!("derived/0002.sql"),
        include_str!("derived/0003.sql"),
        include_str!("derived/0004.sql"),
        include_str!("derived/0005.sql"),
    ],
    synchronous: "NORMAL",
    statements: 384,
    // Keys of hashes and addresses come in no order: nearly each one changes another page, and all of that page is written.
    page_bytes: 4_096,
    checkpoint_bytes: 128 << 20,
};

impl FileKind {
    /// What an error of SQLite in this file means.
    pub(super) fn error(&self, error: rusqlite::Error) -> StoreError {
        db_in(self.name, error)
    }

    fn version(&self, conn: &Connection) -> Result<u32> {
        conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(|e| self.error(e))
    }

    fn refuse_newer(&self, found: u32) -> Result<()> {
        let known = self.migrations.len() as u32;
        if found > known { Err(StoreError::UnknownSchema { found, known }) } else { Ok(()) }
    }

    /// Refuses files of other programs, before anything in them is changed.
    fn demand_ours(&self, conn: &Connection) -> Result<()> {
        let read = || -> rusqlite::Result<(i32, i64)> {
            let id = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
            Ok((id, conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?))
        };
        let (id, tables) = read().map_err(|e| self.error(e))?;
        if id == self.application_id || (id == 0 && tables == 0) {
            return Ok(());
        }
        Err(StoreError::Database(format!(
            "{} was made by another program (application id {id:#x}); use another data directory",
            self.name
        )))
    }

    /// Sets up the writer's connection and brings an older schema up to date.
    pub(super) fn open_writer(
        &self,
        conn: &mut Connection,
        busy_timeout_ms: u64,
        cache_bytes: u64,
    ) -> Result<()> {
        let db = |error| self.error(error);
        conn.busy_timeout(Duration::from_millis(busy_timeout_ms)).map_err(db)?;
        self.demand_ours(conn)?;
        self.refuse_newer(self.version(conn)?)?;
        conn.pragma_update(None, "page_size", self.page_bytes).map_err(db)?;
        let mode: String =
            conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(db)?;
        if !mode.eq_ignore_ascii_case("wal") {
            return Err(StoreError::Database(format!(
                "{} can't use a write-ahead log here (journal mode {mode}); put the data directory on a local file system",
                self.name
            )));
        }
        conn.pragma_update(None, "synchronous", self.synchronous).map_err(db)?;
        conn.pragma_update(None, "wal_autocheckpoint", self.checkpoint_bytes / self.page_bytes)
            .map_err(db)?;
        conn.pragma_update(None, "journal_size_limit", self.wal_bytes() as i64).map_err(db)?;
        self.configure(conn, cache_bytes)?;
        self.migrate(conn)
    }

    /// Sets up a reader's connection.
    pub(super) fn configure_reader(
        &self,
        conn: &Connection,
        busy_timeout_ms: u64,
        cache_bytes: u64,
    ) -> Result<()> {
        conn.busy_timeout(Duration::from_millis(busy_timeout_ms)).map_err(|e| self.error(e))?;
        conn.pragma_update(None, "query_only", true).map_err(|e| self.error(e))?;
        self.configure(conn, cache_bytes)
    }

    fn configure(&self, conn: &Connection, cache_bytes: u64) -> Result<()> {
        let set_up = || -> rusqlite::Result<()> {
            // Negative: KiB instead of pages.
            conn.pragma_update(None, "cache_size", -((cache_bytes >> 10).max(256) as i64))?;
            conn.pragma_update(None, "foreign_keys", false)?;
            conn.pragma_update(None, "temp_store", "MEMORY")?;
            conn.pragma_update(None, "trusted_schema", false)?;
            conn.pragma_update(None, "cell_size_check", true)?;
            conn.set_prepared_statement_cache_capacity(self.statements);
            // Without it SQLite compiles a statement anew whenever a bound value might change its plan, which costs more than to run it.
            conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            Ok(())
        };
        set_up().map_err(|e| self.error(e))
    }

    fn migrate(&self, conn: &mut Connection) -> Result<()> {
        let found = self.version(conn)?;
        for (applied, migration) in self.migrations.iter().enumerate().skip(found as usize) {
            let mut apply = || -> rusqlite::Result<()> {
                let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
                tx.execute_batch(migration)?;
                tx.pragma_update(None, "application_id", self.application_id)?;
                tx.pragma_update(None, "user_version", applied as u32 + 1)?;
                tx.commit()
            };
            apply().map_err(|e| self.error(e))?;
        }
        Ok(())
    }

    /// For readers, which can't migrate.
    pub(super) fn demand_current(&self, conn: &Connection) -> Result<()> {
        self.demand_ours(conn)?;
        let found = self.version(conn)?;
        self.refuse_newer(found)?;
        if (found as usize) < self.migrations.len() {
            return Err(StoreError::Invalid(format!(
                "{} has schema version {found}, this program writes {}; open it for writing once to bring it up to date",
                self.name,
                self.migrations.len()
            )));
        }
        Ok(())
    }

    /// The write-ahead log beside the file.
    pub(super) fn wal_name(&self) -> String {
        format!("{}-wal", self.name)
    }

    /// The write-ahead log is cut to this size when it starts anew. Above four times as much it is emptied even where readers have to
    /// be waited for.
    fn wal_bytes(&self) -> u64 {
        2 * u64::from(self.checkpoint_bytes)
    }

    /// How long to wait for readers in order to empty the write-ahead log; `None` while it is short. Commits alone can't empty it
    /// while there is always some reader. Normally it costs nobody anything to try again later; when it must be, it waits until the
    /// oldest reader has gone.
    pub(super) fn wal_wait_ms(&self, dir: &Path, snapshot_max_ms: Option<u64>) -> Option<u64> {
        let wal_bytes = std::fs::metadata(dir.join(self.wal_name())).ok()?.len();
        if wal_bytes <= self.wal_bytes() {
            None
        } else if wal_bytes <= 4 * self.wal_bytes() {
            Some(50)
        } else {
            Some(snapshot_max_ms.unwrap_or_default().saturating_add(500))
        }
    }

    /// Copies the write-ahead log into the file and empties it, or gives up after `wait_ms`.
    pub(super) fn shorten_wal(&self, conn: &Connection, wait_ms: u64, busy_timeout_ms: u64) -> Result<()> {
        conn.busy_timeout(Duration::from_millis(wait_ms)).map_err(|e| self.error(e))?;
        let busy = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0));
        conn.busy_timeout(Duration::from_millis(busy_timeout_ms)).map_err(|e| self.error(e))?;
        match busy.map_err(|e| self.error(e)) {
            Ok(0) => Ok(()),
            Ok(_) | Err(StoreError::Busy(_)) => {
                tracing::debug!(file = self.name, "readers keep the write-ahead log from being emptied");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_migration_is_applied_once_and_whole() {
        let mut conn = Connection::open_in_memory().expect("memory");
        let first = "CREATE TABLE a (x INTEGER)";
        let file = |migrations: Vec<&'static str>| FileKind { migrations: migrations.leak(), ..RAW };
        file(vec![first]).migrate(&mut conn).expect("applies");
        file(vec![first]).migrate(&mut conn).expect("is up to date");
        let second = "CREATE TABLE b (x INTEGER); INSERT INTO b VALUES (1)";
        file(vec![first, second]).migrate(&mut conn).expect("goes on");
        assert_eq!(RAW.version(&conn).expect("reads"), 2);
        let broken = "CREATE TABLE c (x INTEGER); CREATE TABLE a (x INTEGER)";
        assert!(file(vec![first, second, broken]).migrate(&mut conn).is_err());
        assert_eq!(RAW.version(&conn).expect("reads"), 2);
        let tables: i64 =
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).expect("reads");
        assert_eq!(tables, 2);
    }

    #[test]
    fn golden_schema() {
        let mut conn = Connection::open_in_memory().expect("memory");
        RAW.migrate(&mut conn).expect("applies");
        let mut names: Vec<String> = conn
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .expect("reads");
        names.retain(|name| !name.starts_with("sqlite_"));
        assert_eq!(
            names,
            [
                "blocks",
                "bodies",
                "chain_config",
                "checkpoints",
                "extras",
                "head",
                "indexing_errors",
                "orphans",
                "part_sizes",
                "raw_leases",
                "receipts",
                "reorg_orphans",
                "reorgs",
                "run_pages",
                "runs",
                "traces",
                "transactions"
            ]
        );
    }
}
