//! How the app store is opened.

use crate::postgres::PgOptions;

/// How the app store is opened. Sizes are bytes, times milliseconds.
///
/// **Pool arithmetic.** N processes hold at most N × (`write.max_open_conns` + `read.max_open_conns`) connections to the app database, with the
/// defaults N × (8 + 8). Together with the raw store's pools, where it is the same server, that has to stay below `max_connections`
/// less `superuser_reserved_connections`.
#[derive(Debug, Clone)]
pub struct PgDerivedOptions {
    /// The pool of commits, leases and reorgs. Nothing that serves readers takes a connection of it (P08).
    pub write: PgOptions,
    /// The pool of snapshots.
    pub read: PgOptions,
    /// Reads only: demands schema and tables as they have to be, and changes nothing.
    pub read_only: bool,
    /// How old a snapshot may get; `None` for tools that run alone.
    pub snapshot_max_ms: Option<u64>,
    /// How many partitions are made ahead of the one that is written.
    pub lookahead_partitions: u64,
    /// Backfill mode: partitions are made with their primary key only; [`cairn_store::derived::DerivedMaintenance::build_indexes`] builds the other
    /// indexes on each partition that is full and final. Without it, on every partition that lacks them, and attaches them to the table.
    pub defer_indexes: bool,
    /// The most bytes that one statement carries, about; one row may be more.
    pub statement_bytes: usize,
    /// How often a transaction that the server broke off (a deadlock, a serialisation failure) is run again before it is
    /// [`cairn_store::StoreError::Busy`].
    pub max_retries: u32,
    /// Whether `btree_gist` may be installed, by which the schema forbids leases that overlap. Where not, or where the server has
    /// no such extension, a trigger does it.
    pub use_extensions: bool,
}

impl PgDerivedOptions {
    /// The defaults, for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        PgDerivedOptions {
            write: PgOptions { application_name: "cairn app write".into(), ..PgOptions::new(url.clone()) },
            read: PgOptions {
                application_name: "cairn app read".into(),
                statement_timeout_ms: 10_000,
                ..PgOptions::new(url)
            },
            read_only: false,
            snapshot_max_ms: Some(2_000),
            lookahead_partitions: 2,
            defer_indexes: false,
            statement_bytes: 4 << 20,
            max_retries: 10,
            use_extensions: true,
        }
    }
}
