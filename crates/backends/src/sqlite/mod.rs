//! The raw store on SQLite: the default, which needs no server.
//!
//! One file, `raw.sqlite`, in the data directory, with a write-ahead log beside it; one process writes and holds `cairn.lock`; any
//! number may read. Block parts are packed with zstd into tables of their own by height; lookups and log terms are
//! [index runs](cairn_store::runs), so that every write is sequential.
//!
//! **Atomicity.** Every verb of a writer is one transaction, durable before it is answered (`synchronous=FULL`). Two take
//! more: maintenance works in steps, and the rows of fills that were given up are deleted in bounded steps after the
//! transaction that gave them up; a verb that could meet such rows finishes that first.
//!
//! **Order.** Verbs that write wait for one mutex, in no promised order. Compression and the building of index runs happen before it
//! is taken. Readers never wait for writers: a snapshot is a read transaction.
//!
//! **Back-pressure.** Reads wait for one of a few connections and are then told to come again; see [`SqliteOptions`].
//! A write holds the packed copy of its batch; the caller bounds the batch.
//!
//! **Shutdown.** Dropping the last handle closes the file. A verb that runs when its caller goes away runs to its end.

mod backup;
mod blocks;
mod codec;
mod derived;
mod dump;
mod error;
mod errors;
mod filler;
mod head;
mod index;
mod maintain;
mod options;
mod pool;
mod repair;
mod schema;
mod snapshot;
mod writer;

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cairn_core::{Clock, HeightRange};
use cairn_store::memory::CommitHook;
use cairn_store::{RawReader, RawSnapshot, Result, StoreError};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

pub use backup::copy_database;
pub use derived::{APP_LOCK_NAME, SqliteDerived, SqliteDerivedOptions};
pub use options::SqliteOptions;
pub use repair::Damage;

use codec::Unpacker;
use error::{FILE_NAME, db};
use pool::{Pool, PoolOptions};
use schema::RAW;
use snapshot::SqliteSnapshot;

use crate::index_runs::Counted;

/// The name of the file in the data directory that a writer locks.
pub const LOCK_NAME: &str = "cairn.lock";

/// A raw store in a directory. Clones are handles on the same open store.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

struct Shared {
    options: SqliteOptions,
    clock: Arc<dyn Clock>,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
    pool: Arc<Pool>,
    /// `None` where the store was opened for reading only.
    writer: Option<Mutex<Writer>>,
    /// One maintenance step at a time.
    maintaining: tokio::sync::Mutex<()>,
    counted: Arc<Counted>,
    /// Unlocked when it is closed, which has to come last.
    _lock: Option<File>,
}

struct Writer {
    conn: Connection,
    unpacker: Unpacker,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("dir", &self.shared.options.dir).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the store in `options.dir`. Leases expire by `clock`.
    ///
    /// For writing, it makes what is missing, brings an older schema up to date and holds the directory's lock until the last
    /// handle is dropped: [`StoreError::Locked`] where another process has it. For reading only, the store has to be there.
    pub async fn open(options: SqliteOptions, clock: Arc<dyn Clock>) -> Result<SqliteStore> {
        blocking(move || Self::open_blocking(options, clock)).await
    }

    fn open_blocking(options: SqliteOptions, clock: Arc<dyn Clock>) -> Result<SqliteStore> {
        let path = options.dir.join(FILE_NAME);
        if options.read_only && !path.is_file() {
            return Err(StoreError::Invalid(format!("there is no store in {}", options.dir.display())));
        }
        let (lock, writer) = if options.read_only {
            (None, None)
        } else {
            let lock = lock_dir(&options.dir, LOCK_NAME)?;
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let mut conn = Connection::open_with_flags(&path, flags).map_err(db)?;
            RAW.open_writer(&mut conn, options.busy_timeout_ms, options.cache_bytes / 2)?;
            if let Some(head) = head::find(&conn)? {
                head::demand_checkpoint(&conn, &head)?;
            }
            (Some(lock), Some(Mutex::new(Writer { conn, unpacker: Unpacker::new()? })))
        };
        let pool = Arc::new(Pool::new(PoolOptions {
            file: &RAW,
            dir: options.dir.clone(),
            max_readers: options.max_readers,
            reader_wait_ms: options.reader_wait_ms,
            busy_timeout_ms: options.busy_timeout_ms,
            cache_bytes: options.cache_bytes / 2,
        }));
        pool.probe(|_| Ok(()))?;
        let shared = Shared {
            options,
            clock,
            hook: Mutex::new(None),
            pool,
            writer,
            maintaining: tokio::sync::Mutex::default(),
            counted: Arc::default(),
            _lock: lock,
        };
        Ok(SqliteStore { shared: Arc::new(shared) })
    }

    /// Sets or removes a hook that is told of every commit and may break it: `before` an error makes the transaction roll back,
    /// `after` it is an answer that was lost. For tests and simulations. A verb of several transactions calls it for each.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Runs a verb on a thread that may block.
    async fn write<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        blocking(move || run(&shared)).await
    }
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// One transaction, between the hook's two calls. An error from `run` leaves everything as it was.
    fn commit<T>(
        &self,
        verb: &'static str,
        run: impl FnOnce(&Transaction<'_>, &Unpacker) -> Result<T>,
    ) -> Result<T> {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = self.with_writer(|writer| {
            let tx = writer.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(db)?;
            let answer = run(&tx, &writer.unpacker)?;
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

    /// A transaction that meets no rows of a fill that was given up: they have no index entries any more, and are going to be
    /// deleted. A verb that ran on when its caller went away may leave some at any moment.
    fn commit_clean<T>(
        &self,
        verb: &'static str,
        mut run: impl FnMut(&Transaction<'_>, &Unpacker) -> Result<T>,
    ) -> Result<T> {
        loop {
            self.finish_discard()?;
            let answer = self.commit(verb, |tx, unpacker| {
                if head::read(tx)?.discard.is_some() { Ok(None) } else { run(tx, unpacker).map(Some) }
            })?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }

    fn with_writer<T>(&self, run: impl FnOnce(&mut Writer) -> Result<T>) -> Result<T> {
        let Some(writer) = &self.writer else {
            return Err(StoreError::Invalid(format!(
                "the store in {} was opened for reading only",
                self.options.dir.display()
            )));
        };
        // A panic in a transaction has rolled it back while it unwound.
        run(&mut writer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Deletes what is left of fills that were given up, a bounded number of blocks at a time, from the top. Their index runs went
    /// in the transaction that gave them up.
    fn finish_discard(&self) -> Result<()> {
        /// How many blocks go in one transaction.
        const STEP_BLOCKS: u64 = 128;
        while self
            .with_writer(|writer| Ok(head::find(&writer.conn)?.and_then(|head| head.discard)))?
            .is_some()
        {
            self.commit("discard", |tx, _| {
                let mut head = head::read(tx)?;
                let Some(range) = head.discard else { return Ok(()) };
                // Fewer rows than that are left: this is the last step.
                let from = blocks::nth_from_top(tx, range, STEP_BLOCKS)?.unwrap_or(range.start());
                blocks::delete(tx, HeightRange::new(from, range.end()))?;
                head.discard = Some(HeightRange::new(range.start(), from)).filter(|left| !left.is_empty());
                head.write(tx)
            })?;
        }
        Ok(())
    }
}

fn lock_dir(dir: &Path, name: &str) -> Result<File> {
    let path = dir.join(name);
    let failed =
        |error: std::io::Error| StoreError::Database(format!("can't open {}: {error}", path.display()));
    std::fs::create_dir_all(dir).map_err(failed)?;
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {
            // For messages alone, so that a full disk is no reason to go without the lock.
            if let Err(error) = sign(&file) {
                tracing::debug!(%error, "{} doesn't say who holds it", path.display());
            }
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            // Nobody may have signed it, or the system may let nobody read what is locked.
            let holder = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            Err(StoreError::Locked { what: path.display().to_string(), holder })
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Writes down which process holds a lock.
fn sign(mut file: &File) -> std::io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(StoreError::Database(format!("the verb did not end: {error}"))),
    }
}

#[async_trait]
impl RawReader for SqliteStore {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        let options = &self.shared.options;
        let (transaction, head) = self.shared.pool.begin(options.snapshot_max_ms, head::read).await?;
        Ok(Arc::new(SqliteSnapshot::new(
            transaction,
            head.row,
            options.dir.clone(),
            self.shared.counted.clone(),
        )))
    }
}
