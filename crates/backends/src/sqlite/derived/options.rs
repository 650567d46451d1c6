//! How an app store is opened.

use std::path::PathBuf;

/// How an app store is opened. Sizes are bytes, times milliseconds.
#[derive(Debug, Clone)]
pub struct SqliteDerivedOptions {
    /// The data directory. Made where it is missing, unless `read_only`.
    pub dir: PathBuf,
    /// Reads only: works beside a writer, takes no lock, changes nothing.
    pub read_only: bool,
    /// The page caches of all connections together; half for the writer, half shared among the readers.
    pub cache_bytes: u64,
    /// The most read transactions at a time.
    pub max_readers: usize,
    /// How long a snapshot waits for a read connection before it is [`cairn_store::StoreError::Busy`].
    pub reader_wait_ms: u64,
    /// How old a snapshot may get; `None` for tools that run alone.
    pub snapshot_max_ms: Option<u64>,
    /// How long a statement waits for another process's lock.
    pub busy_timeout_ms: u64,
}

impl SqliteDerivedOptions {
    /// The defaults, for a data directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        SqliteDerivedOptions {
            dir: dir.into(),
            read_only: false,
            cache_bytes: 128 << 20,
            max_readers: 8,
            reader_wait_ms: 5_000,
            snapshot_max_ms: Some(2_000),
            busy_timeout_ms: 5_000,
        }
    }

    /// The same, for reading only.
    pub fn read_only(dir: impl Into<PathBuf>) -> Self {
        SqliteDerivedOptions { read_only: true, ..SqliteDerivedOptions::new(dir) }
    }
}
