//! The schema's versions, and how connections are set up.
//!
//! `PRAGMA user_version` counts the migrations that were applied. Each is one file of SQL and runs in one transaction with the count; a
//! file with a higher count than we know is refused (law 8).

use std::time::Duration;

use cairn_store::{Result, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};

use super::error::{FILE_NAME, db};
use super::options::SqliteOptions;

/// In order; never changed once released.
const MIGRATIONS: &[&str] = &[include_str!("0001.sql")];

/// Marks a file as ours: "cair".
const APPLICATION_ID: i32 = 0x6361_6972;

/// With it a page of an index run and its row fill one page of the file.
const PAGE_BYTES: u32 = 8_192;

/// When a commit copies the write-ahead log into the file: 32 MiB.
const CHECKPOINT_PAGES: u32 = 4_096;

/// The write-ahead log is cut to this size when it starts anew.
pub(super) const WAL_BYTES: u64 = 64 << 20;

fn version(conn: &Connection) -> Result<u32> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(db)
}

fn refuse_newer(found: u32) -> Result<()> {
    let known = MIGRATIONS.len() as u32;
    if found > known { Err(StoreError::UnknownSchema { found, known }) } else { Ok(()) }
}

/// Refuses files of other programs, before anything in them is changed.
fn demand_ours(conn: &Connection) -> Result<()> {
    let id: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(db)?;
    let tables: i64 =
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(db)?;
    if id == APPLICATION_ID || (id == 0 && tables == 0) {
        return Ok(());
    }
    Err(StoreError::Database(format!(
        "{FILE_NAME} was made by another program (application id {id:#x}); use another data directory"
    )))
}

/// Sets up the writer's connection and brings an older schema up to date.
pub(super) fn open_writer(conn: &mut Connection, options: &SqliteOptions) -> Result<()> {
    conn.busy_timeout(Duration::from_millis(options.busy_timeout_ms)).map_err(db)?;
    demand_ours(conn)?;
    refuse_newer(version(conn)?)?;
    conn.pragma_update(None, "page_size", PAGE_BYTES).map_err(db)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(db)?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(StoreError::Database(format!(
            "{FILE_NAME} can't use a write-ahead log here (journal mode {mode}); put the data directory on a local file system"
        )));
    }
    // Every commit reaches the disk before it is answered.
    conn.pragma_update(None, "synchronous", "FULL").map_err(db)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(db)?;
    conn.pragma_update(None, "journal_size_limit", WAL_BYTES as i64).map_err(db)?;
    configure(conn, options.cache_bytes / 2)?;
    migrate(conn, MIGRATIONS)
}

/// Sets up a reader's connection.
pub(super) fn configure_reader(conn: &Connection, options: &SqliteOptions) -> Result<()> {
    conn.busy_timeout(Duration::from_millis(options.busy_timeout_ms)).map_err(db)?;
    conn.pragma_update(None, "query_only", true).map_err(db)?;
    configure(conn, options.cache_bytes / 2 / options.max_readers.max(1) as u64)
}

fn configure(conn: &Connection, cache_bytes: u64) -> Result<()> {
    // Negative: KiB instead of pages.
    conn.pragma_update(None, "cache_size", -((cache_bytes >> 10).max(256) as i64)).map_err(db)?;
    conn.pragma_update(None, "foreign_keys", false).map_err(db)?;
    conn.pragma_update(None, "temp_store", "MEMORY").map_err(db)?;
    conn.pragma_update(None, "trusted_schema", false).map_err(db)?;
    conn.pragma_update(None, "cell_size_check", true).map_err(db)?;
    conn.set_prepared_statement_cache_capacity(96);
    // Without it SQLite compiles a statement anew whenever a bound value might change its plan, which costs more than to run it.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(db)?;
    Ok(())
}

fn migrate(conn: &mut Connection, migrations: &[&str]) -> Result<()> {
    let found = version(conn)?;
    for (applied, migration) in migrations.iter().enumerate().skip(found as usize) {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(db)?;
        tx.execute_batch(migration).map_err(db)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(db)?;
        tx.pragma_update(None, "user_version", applied as u32 + 1).map_err(db)?;
        tx.commit().map_err(db)?;
    }
    Ok(())
}

/// For readers, which can't migrate.
pub(super) fn demand_current(conn: &Connection) -> Result<()> {
    demand_ours(conn)?;
    let found = version(conn)?;
    refuse_newer(found)?;
    if (found as usize) < MIGRATIONS.len() {
        return Err(StoreError::Invalid(format!(
            "{FILE_NAME} has schema version {found}, this program writes {}; open it for writing once to bring it up to date",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_migration_is_applied_once_and_whole() {
        let mut conn = Connection::open_in_memory().expect("memory");
        let first = "CREATE TABLE a (x INTEGER)";
        migrate(&mut conn, &[first]).expect("applies");
        migrate(&mut conn, &[first]).expect("is up to date");
        let second = "CREATE TABLE b (x INTEGER); INSERT INTO b VALUES (1)";
        migrate(&mut conn, &[first, second]).expect("goes on");
        assert_eq!(version(&conn).expect("reads"), 2);
        let broken = "CREATE TABLE c (x INTEGER); CREATE TABLE a (x INTEGER)";
        assert!(migrate(&mut conn, &[first, second, broken]).is_err());
        assert_eq!(version(&conn).expect("reads"), 2);
        let tables: i64 =
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).expect("reads");
        assert_eq!(tables, 2);
    }

    #[test]
    fn golden_schema() {
        let mut conn = Connection::open_in_memory().expect("memory");
        migrate(&mut conn, MIGRATIONS).expect("applies");
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
