//! Copies of the files while a process writes to them.
//!
//! `VACUUM INTO` reads one snapshot, so that a copy is the file as it was at one moment, whole and compact. The writer goes on; its write-ahead
//! log grows meanwhile.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OpenFlags};

use super::error::db_in;

/// How long the moment is waited for at which the snapshot can begin.
const BUSY: Duration = Duration::from_secs(30);

/// Copies the database `name` of one directory into another one, where there must be none; the bytes of the copy. `None`: there is no such file.
///
/// The copy gets its name when it is whole and on the disk. Blocks; a large file takes as long as reading and writing it.
pub fn copy_database(from: &Path, to: &Path, name: &'static str) -> Result<Option<u64>> {
    let (source, copy) = (from.join(name), to.join(name));
    if !source.is_file() {
        return Ok(None);
    }
    if copy.exists() {
        return Err(StoreError::Invalid(format!("{} is there already", copy.display())));
    }
    let partial = to.join(format!("{name}.partial"));
    let io = |error: std::io::Error| StoreError::Busy(format!("{}: {error}", partial.display()));
    // What an earlier try left.
    if partial.exists() {
        std::fs::remove_file(&partial).map_err(io)?;
    }
    let place = partial.to_str().ok_or_else(|| {
        StoreError::Invalid(format!("{} is no UTF-8, which SQLite needs", partial.display()))
    })?;
    let db = |error| db_in(name, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&source, flags).map_err(db)?;
    conn.busy_timeout(BUSY).map_err(db)?;
    conn.execute("VACUUM INTO ?1", [place]).map_err(db)?;
    drop(conn);
    // As the stores have it: readers beside a writer.
    let conn = Connection::open(&partial).map_err(db)?;
    conn.pragma_update(None, "journal_mode", "wal").map_err(db)?;
    drop(conn);
    let file = File::open(&partial).map_err(io)?;
    file.sync_all().map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    std::fs::rename(&partial, &copy).map_err(io)?;
    File::open(to).and_then(|dir| dir.sync_all()).map_err(io)?;
    Ok(Some(bytes))
}
