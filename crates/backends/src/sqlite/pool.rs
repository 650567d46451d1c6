//! Read connections, and the read transactions of snapshots.
//!
//! A bounded number of connections is open; who finds none waits for a bounded time and is then told
//! [`StoreError::Busy`]. A read transaction that grows too old is ended: by whoever waits for a connection, by maintenance, and by a sweeper that runs
//! while any is open. An old one keeps the write-ahead log from being emptied, also by another process, so processes that only read end theirs too.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::blocking;
use super::codec::Unpacker;
use super::index::demand_time;
use super::schema::FileKind;

/// A connection with what reading from it needs.
pub(super) struct ReadConnection {
    pub(super) conn: Connection,
    pub(super) unpacker: Unpacker,
}

/// Which file is read, and how.
pub(super) struct PoolOptions {
    pub(super) file: &'static FileKind,
    pub(super) dir: PathBuf,
    pub(super) max_readers: usize,
    pub(super) reader_wait_ms: u64,
    pub(super) busy_timeout_ms: u64,
    /// Of all connections together.
    pub(super) cache_bytes: u64,
}

pub(super) struct Pool {
    options: PoolOptions,
    idle: Mutex<Vec<ReadConnection>>,
    permits: Arc<Semaphore>,
    /// The transactions that are open, to find those that are too old.
    open: Mutex<Vec<Weak<ReadTx>>>,
    /// Whether a sweeper runs.
    is_swept: AtomicBool,
}

/// How often a sweeper looks for transactions that are too old.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn execute(conn: &Connection, statement: &str) -> rusqlite::Result<usize> {
    conn.prepare_cached(statement)?.execute([])
}

impl Pool {
    pub(super) fn new(options: PoolOptions) -> Self {
        let permits = Arc::new(Semaphore::new(options.max_readers.max(1)));
        Pool {
            options,
            idle: Mutex::default(),
            permits,
            open: Mutex::default(),
            is_swept: AtomicBool::new(false),
        }
    }

    /// A read transaction and what `first` reads in it, which fixes what the transaction sees. It ends after `max_ms`, if given.
    pub(super) async fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        max_ms: Option<u64>,
        first: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<(Arc<ReadTx>, T)> {
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait_for_permit().await?,
        };
        let pool = self.clone();
        let begun = blocking(move || {
            let idle = lock(&pool.idle).pop();
            let connection = idle.map_or_else(|| pool.connect(), Ok)?;
            execute(&connection.conn, "BEGIN").map_err(|e| pool.options.file.error(e))?;
            let deadline = max_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
            let open = Mutex::new(Some((connection, permit)));
            let transaction = Arc::new(ReadTx { open, pool: pool.clone(), deadline });
            let seen = transaction.read(|connection, _| first(&connection.conn))?;
            let mut list = lock(&pool.open);
            list.retain(|transaction| transaction.strong_count() > 0);
            list.push(Arc::downgrade(&transaction));
            Ok((transaction, seen))
        })
        .await;
        if begun.is_ok() && max_ms.is_some() {
            self.sweep();
        }
        begun
    }

    /// Sees to it that transactions end when their time has come, though nobody asks them anything: until none is open.
    fn sweep(self: &Arc<Self>) {
        if self.is_swept.swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                let Some(pool) = pool.upgrade() else { return };
                pool.end_expired();
                if !lock(&pool.open).is_empty() {
                    continue;
                }
                pool.is_swept.store(false, Ordering::Release);
                // One that was opened just before that found a sweeper.
                if lock(&pool.open).is_empty() || pool.is_swept.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }

    /// Waits for a connection. Transactions that grow too old meanwhile are ended: those who wait may hold them themselves, to
    /// exchange them for newer ones.
    async fn wait_for_permit(&self) -> Result<OwnedSemaphorePermit> {
        /// How often the open transactions are looked at.
        const LOOK_EVERY: Duration = Duration::from_millis(20);
        let free = self.permits.clone().acquire_owned();
        tokio::pin!(free);
        let freed = async {
            loop {
                self.end_expired();
                if let Ok(permit) = tokio::time::timeout(LOOK_EVERY, &mut free).await {
                    return permit.ok();
                }
            }
        };
        let wait_ms = self.options.reader_wait_ms;
        let permit = tokio::time::timeout(Duration::from_millis(wait_ms), freed).await;
        permit.ok().flatten().ok_or_else(|| {
            StoreError::Busy(format!(
                "all {} read connections are in use, and none came free within {wait_ms} ms",
                self.options.max_readers
            ))
        })
    }

    fn connect(&self) -> Result<ReadConnection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let options = &self.options;
        let conn = Connection::open_with_flags(options.dir.join(options.file.name), flags)
            .map_err(|e| options.file.error(e))?;
        let cache_bytes = options.cache_bytes / options.max_readers.max(1) as u64;
        options.file.configure_reader(&conn, options.busy_timeout_ms, cache_bytes)?;
        Ok(ReadConnection { conn, unpacker: Unpacker::new()? })
    }

    /// Ends the transactions whose time has come and that nobody reads from at this moment.
    pub(super) fn end_expired(&self) {
        let open = std::mem::take(&mut *lock(&self.open));
        let (expired, mut alive): (Vec<_>, Vec<_>) = open
            .into_iter()
            .filter_map(|transaction| transaction.upgrade())
            .partition(|transaction| demand_time(transaction.deadline).is_err());
        for transaction in expired {
            if !transaction.try_end() {
                alive.push(transaction);
            }
        }
        lock(&self.open).extend(alive.iter().map(Arc::downgrade));
    }

    /// Checks that a reader can be opened: the file is there, is a store, has a schema that we know, and what `demand` says.
    pub(super) fn probe(&self, demand: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
        let connection = self.connect()?;
        self.options.file.demand_current(&connection.conn)?;
        demand(&connection.conn)?;
        lock(&self.idle).push(connection);
        Ok(())
    }
}

/// One read transaction. Its connection goes back to the pool when it is dropped or has expired.
pub(super) struct ReadTx {
    open: Mutex<Option<(ReadConnection, OwnedSemaphorePermit)>>,
    pool: Arc<Pool>,
    deadline: Option<Instant>,
}

impl ReadTx {
    /// Runs `read` on a thread that may block. The transaction lives at least as long as it runs, even where the caller went away.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&ReadConnection, Option<Instant>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let transaction = self.clone();
        blocking(move || transaction.read(read)).await
    }

    fn read<T>(&self, read: impl FnOnce(&ReadConnection, Option<Instant>) -> Result<T>) -> Result<T> {
        let open = lock(&self.open);
        demand_time(self.deadline)?;
        match &*open {
            Some((connection, _)) => read(connection, self.deadline),
            None => Err(StoreError::Busy("the snapshot was ended; open another one".into())),
        }
    }

    fn try_end(&self) -> bool {
        match self.open.try_lock() {
            Ok(mut open) => self.give_back(&mut open),
            Err(TryLockError::Poisoned(open)) => self.give_back(&mut open.into_inner()),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }

    fn give_back(&self, open: &mut Option<(ReadConnection, OwnedSemaphorePermit)>) {
        let Some((connection, permit)) = open.take() else { return };
        // A connection that can't end its transaction is closed instead, which ends it too.
        if execute(&connection.conn, "ROLLBACK").is_ok() {
            lock(&self.pool.idle).push(connection);
        }
        drop(permit);
    }
}

impl Drop for ReadTx {
    fn drop(&mut self) {
        let mut open = std::mem::take(&mut *lock(&self.open));
        self.give_back(&mut open);
    }
}
