//! The app store on SQLite: derived tables, leases, checkpoints, and what was applied of the reorg log.
//!
//! One file, `app.sqlite`, in the data directory, with a write-ahead log beside it; one process writes and holds `app.lock`; any
//! number may read. Tables are made from the catalog and described in the file; a definition that changed is refused.
//!
//! **Atomicity.** Every verb is one transaction. **The gate** is the single writer: each verb begins with `BEGIN IMMEDIATE` on the
//! one connection that writes, so that it holds the gate exclusively whether it has to or not.
//!
//! **Durability.** A commit survives the death of the process when it is answered, but reaches the disk later, with the next
//! checkpoint of the write-ahead log (`synchronous=NORMAL`). When the machine dies, the newest transactions may be lost: always a whole
//! suffix of them, so that what is left is a state in which the store was (rows, leases, checkpoints and fences together). What is lost
//! can be made again: the raw store, whose commits are on the disk before they are answered, is never behind this one. A fence that
//! was given in the lost suffix may be given again, and nobody can hold the first one: all holders are in the process that had
//! `app.lock` on that machine, and died with it. So no commit waits for the disk, and there is nothing to be gained by grouping them.
//!
//! **Order.** Verbs that write wait for one mutex, in no promised order. Commits are checked, sorted and deduplicated before it is
//! taken. Readers never wait for writers: a snapshot is a read transaction, two seconds old at most.
//!
//! **Back-pressure.** Reads wait for one of a few connections and are then told to come again; see [`SqliteDerivedOptions`].
//!
//! **Shutdown.** Dropping the last handle closes the file. A verb that runs when its caller goes away runs to its end.

mod checkpoints;
mod commit;
mod forks;
mod leases;
mod maintain;
mod options;
mod quarantined;
mod rebuilds;
mod rows;
mod scan;
mod snapshot;
mod tables;
mod values;

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cairn_core::{Clock, Height};
use cairn_store::derived::{Catalog, DerivedReader, DerivedSnapshot};
use cairn_store::memory::CommitHook;
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

pub use options::SqliteDerivedOptions;

use super::pool::{Pool, PoolOptions};
use super::schema::APP;
use super::{blocking, lock_dir};
use snapshot::SqliteDerivedSnapshot;
use tables::Tables;

/// The name of the file in the data directory that the writer of the app store locks.
pub const APP_LOCK_NAME: &str = "app.lock";

/// An app store in a directory. Clones are handles on the same open store.
#[derive(Clone)]
pub struct SqliteDerived {
    shared: Arc<Shared>,
}

struct Shared {
    options: SqliteDerivedOptions,
    clock: Arc<dyn Clock>,
    catalog: Catalog,
    tables: Arc<Tables>,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
    pool: Arc<Pool>,
    /// `None` where the store was opened for reading only.
    writer: Option<Mutex<Connection>>,
    /// Unlocked when it is closed, which has to come last.
    _lock: Option<File>,
}

/// What SQLite's errors in the app store's file mean.
fn db(error: rusqlite::Error) -> StoreError {
    APP.error(error)
}

/// A number that SQLite keeps with a sign: a time, a count or an id. Beyond 2^63 the highest one, which sorts right.
fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A height, likewise.
fn sql(height: Height) -> i64 {
    number(height.get())
}

impl std::fmt::Debug for SqliteDerived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteDerived").field("dir", &self.shared.options.dir).finish_non_exhaustive()
    }
}

impl SqliteDerived {
    /// Opens the app store in `options.dir`, with the tables of `catalog`. Leases expire by `clock`.
    ///
    /// For writing, it makes what is missing, tables and indexes that the catalog has and the file has not included, and holds
    /// `app.lock` until the last handle is dropped: [`StoreError::Locked`] where another process has it. For reading only, all has to
    /// be there. A table that the file has and the catalog defines otherwise, or not at all, is [`StoreError::Database`]: nothing is changed.
    pub async fn open(
        options: SqliteDerivedOptions,
        catalog: Catalog,
        clock: Arc<dyn Clock>,
    ) -> Result<SqliteDerived> {
        blocking(move || Self::open_blocking(options, catalog, clock)).await
    }

    fn open_blocking(
        options: SqliteDerivedOptions,
        catalog: Catalog,
        clock: Arc<dyn Clock>,
    ) -> Result<SqliteDerived> {
        let path = options.dir.join(APP.name);
        let tables = Arc::new(Tables::new(&catalog)?);
        if options.read_only && !path.is_file() {
            return Err(StoreError::Invalid(format!("there is no app store in {}", options.dir.display())));
        }
        let (lock, writer) = if options.read_only {
            (None, None)
        } else {
            let lock = lock_dir(&options.dir, APP_LOCK_NAME)?;
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let mut conn = Connection::open_with_flags(&path, flags).map_err(db)?;
            APP.open_writer(&mut conn, options.busy_timeout_ms, options.cache_bytes / 2)?;
            tables.bring_up(&mut conn)?;
            (Some(lock), Some(Mutex::new(conn)))
        };
        let pool = Arc::new(Pool::new(PoolOptions {
            file: &APP,
            dir: options.dir.clone(),
            max_readers: options.max_readers,
            reader_wait_ms: options.reader_wait_ms,
            busy_timeout_ms: options.busy_timeout_ms,
            cache_bytes: options.cache_bytes / 2,
        }));
        pool.probe(|conn| tables.demand_same(conn))?;
        let shared =
            Shared { options, clock, catalog, tables, hook: Mutex::new(None), pool, writer, _lock: lock };
        Ok(SqliteDerived { shared: Arc::new(shared) })
    }

    /// The tables that it was opened with.
    pub fn catalog(&self) -> &Catalog {
        &self.shared.catalog
    }

    /// Sets or removes a hook that is told of every commit and may break it: `before` an error makes the transaction roll back,
    /// `after` it is an answer that was lost. For tests and simulations.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Runs a verb as one transaction, on a thread that may block.
    async fn write<T: Send + 'static>(
        &self,
        verb: &'static str,
        run: impl FnOnce(&Write<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        blocking(move || shared.commit(verb, run)).await
    }

    /// One read of its own.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (_, answer) = self.shared.pool.begin(self.shared.options.snapshot_max_ms, read).await?;
        Ok(answer)
    }
}

/// A transaction that writes, with what verbs need beside it.
struct Write<'a> {
    tx: &'a Transaction<'a>,
    tables: &'a Tables,
    now_ms: u64,
}

impl Shared {
    /// One transaction, between the hook's two calls. An error from `run` leaves everything as it was.
    fn commit<T>(&self, verb: &'static str, run: impl FnOnce(&Write<'_>) -> Result<T>) -> Result<T> {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = self.with_writer(|conn| {
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(db)?;
            // Under the lock, so that what is written later has the later time.
            let answer = run(&Write { tx: &tx, tables: &self.tables, now_ms: self.clock.now_ms() })?;
            if let Some(hook) = &hook {
                hook.before(verb)?;
            }
            tx.commit().map_err(db)?;
            Ok(answer)
        })?;
        if let Some(hook) = &hook {
            hook.after(verb)?;
        }
        Ok(answer)
    }

    fn with_writer<T>(&self, run: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let Some(writer) = &self.writer else {
            return Err(StoreError::Invalid(format!(
                "the app store in {} was opened for reading only",
                self.options.dir.display()
            )));
        };
        // A panic in a transaction has rolled it back while it unwound.
        run(&mut writer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl DerivedReader for SqliteDerived {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        let max_ms = self.shared.options.snapshot_max_ms;
        let (transaction, view) = self.shared.pool.begin(max_ms, snapshot::read_view).await?;
        Ok(Arc::new(SqliteDerivedSnapshot::new(transaction, self.shared.tables.clone(), view)))
    }
}
