//! The raw store on PostgreSQL.
//!
//! Schema `raw`. Blocks, transactions and events are tables partitioned by height; a chain's [`BlockLayout`](cairn_core::BlockLayout) says how a
//! block's bytes are cut into rows, and what can't be cut stays whole with the block. Lookups by id are narrow tables that are written
//! in the same transaction; log terms are [index runs](cairn_store::runs).
//!
//! **Atomicity.** Every verb of a writer is one transaction. Two take more: maintenance works in steps, and the rows of fills that were given
//! up are deleted in bounded steps after the transaction that gave them up; a verb that could meet such rows finishes that first.
//! A verb that loses against another writer (a deadlock, the same key written first) is run again whole.
//!
//! **Order.** Verbs on the head lock the head row first, so they come one after the other, from however many processes. A fill locks its
//! lease alone: it runs beside everything else, and whoever takes its lease away waits for it or makes it [`StoreError::Fenced`]. Locks are taken in
//! one order: head, lease, runs, objects, then rows by table and key. Nobody waits for anything but the database while a transaction is open.
//!
//! **Back-pressure.** Reads and writes wait for a connection of the store's own pool and are then told to come again ([`StoreError::Busy`]).
//! Whoever reads beside an ingester does so through [`PgRawStore::readers`], and whoever keeps the error log or repairs through [`PgRawStore::beside`], from a
//! pool of their own: they can't hold its connections (law 1, P08).
//! A write holds the encoded copy of its batch; the caller bounds the batch.
//!
//! **Shutdown.** A verb whose caller goes away is rolled back, or was committed: asking again settles it, as after any lost answer.

mod assemble;
mod debug;
mod dump;
mod errors;
mod evm_lookup;
mod filler;
mod head;
mod lanes;
mod maintain;
mod moves;
mod options;
mod pack;
mod read;
mod readers;
mod rebuild;
mod repair;
mod repair_index;
mod repair_lookups;
mod rows;
mod runs;
mod schema;
mod scripts;
mod snapshot;
mod stale;
mod tx;
mod view;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cairn_core::Clock;
use cairn_store::memory::CommitHook;
use cairn_store::{HeadRow, PayloadStore, RawReader, RawSnapshot, Result, StoreError};

use super::server::demand_server;
use super::{Partitions, PgConn, PgPayloadRegistry, PgPool, StatementHook, migrate};
use crate::index_runs::Counted;

pub use evm_lookup::LookupFault;
pub use options::{PartitionSizes, PgRawOptions};
pub use readers::PgRawReaders;
pub use repair::Repaired;

use snapshot::PgSnapshot;
use view::View;

/// A raw store in a PostgreSQL database. Clones are handles on the same open store.
#[derive(Clone)]
pub struct PgRawStore {
    shared: Arc<Shared>,
}

/// What is told of commits, and of statements.
type Hooks = (Option<Arc<dyn CommitHook>>, Option<Arc<dyn StatementHook>>);

pub(super) struct Shared {
    pool: PgPool,
    options: PgRawOptions,
    /// `None`: the database's clock.
    clock: Option<Arc<dyn Clock>>,
    partitions: Partitions,
    lanes: Arc<lanes::Lanes>,
    payloads: Option<Payloads>,
    scripts: scripts::KnownScripts,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
    statement_hook: Mutex<Option<Arc<dyn StatementHook>>>,
    /// One maintenance step at a time.
    maintaining: tokio::sync::Mutex<()>,
    /// The fence of the ingester that acquired the store here; 0: none did.
    fence: Arc<AtomicU64>,
    /// Whether it was said what becomes of indexes.
    told: AtomicBool,
    /// How far event lists for debugging have come.
    listed: Mutex<Option<debug::Listed>>,
    counted: Arc<Counted>,
}

/// Where large payloads go.
#[derive(Clone)]
pub(super) struct Payloads {
    store: Arc<dyn PayloadStore>,
    registry: PgPayloadRegistry,
}

impl std::fmt::Debug for PgRawStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgRawStore").field("pg", &self.shared.options.pg).finish_non_exhaustive()
    }
}

impl PgRawStore {
    /// Opens the store and brings its schema up to date; with `read_only` only checks it. Leases expire by `clock`; by the database's own where
    /// it is `None`, as they must where several processes share the store.
    pub async fn open(options: PgRawOptions, clock: Option<Arc<dyn Clock>>) -> Result<PgRawStore> {
        Self::open_with(options, clock, None).await
    }

    /// The same, with large payloads in object storage, whose objects are registered in the same database. `init` claims the object storage.
    pub async fn open_with_payloads(
        options: PgRawOptions,
        clock: Option<Arc<dyn Clock>>,
        store: Arc<dyn PayloadStore>,
    ) -> Result<PgRawStore> {
        Self::open_with(options, clock, Some(store)).await
    }

    async fn open_with(
        mut options: PgRawOptions,
        clock: Option<Arc<dyn Clock>>,
        payloads: Option<Arc<dyn PayloadStore>>,
    ) -> Result<PgRawStore> {
        // Whoever writes goes by what it reads; who only reads may do so from a server that follows another one.
        options.pg.is_primary |= !options.read_only;
        let pool = PgPool::new(options.pg.clone())?;
        let mut conn = pool.get().await?;
        demand_server(&pool, &conn).await?;
        if options.read_only {
            migrate::demand_current(&conn, schema::SCHEMA, schema::MIGRATIONS).await?;
        } else {
            migrate::migrate(&mut conn, schema::SCHEMA, schema::MIGRATIONS).await?;
        }
        head::demand_checkpoint(&conn).await?;
        drop(conn);
        let partitions =
            Partitions::new(options.partitions.tables(), options.lookahead_partitions, options.backfill);
        let payloads =
            payloads.map(|store| Payloads { store, registry: PgPayloadRegistry::new(pool.clone()) });
        let shared = Shared {
            pool,
            options,
            clock,
            partitions,
            lanes: Arc::default(),
            payloads,
            scripts: scripts::KnownScripts::default(),
            hook: Mutex::new(None),
            statement_hook: Mutex::new(None),
            maintaining: tokio::sync::Mutex::default(),
            fence: Arc::default(),
            told: AtomicBool::new(false),
            listed: Mutex::default(),
            counted: Arc::default(),
        };
        Ok(PgRawStore { shared: Arc::new(shared) })
    }

    /// The versions of the schema that this program makes, for `cairn migrate`.
    pub fn migrations() -> &'static [super::Migration] {
        schema::MIGRATIONS
    }

    /// The store's connections.
    pub fn pool(&self) -> &PgPool {
        &self.shared.pool
    }

    /// The registry of large payloads in this database.
    pub fn payload_registry(&self) -> PgPayloadRegistry {
        PgPayloadRegistry::new(self.shared.pool.clone())
    }

    /// The name under which this store claims its place in object storage; `None` before [`cairn_store::RawWriter::init`].
    pub async fn payload_owner(&self) -> Result<Option<String>> {
        let conn = self.shared.pool.get().await?;
        Ok(head::find(&conn).await?.map(|head| writer::owner(&head.row.info.uuid)))
    }

    /// How many partitions of each table lie above the one that the next block goes into.
    pub async fn partitions_ahead(&self) -> Result<Vec<(&'static str, u64)>> {
        let conn = self.shared.pool.get().await?;
        let next = head::find(&conn).await?.and_then(|head| head.row.tip).map(|tip| tip.height.next());
        self.shared.partitions.ahead(&conn, next.unwrap_or_default()).await
    }

    /// One round of the partition manager: partitions ahead of the tip and, where this store, or one [beside](PgRawStore::beside) it, holds the ingester's
    /// fence, one index that a partition still lacks. Returns whether something was made: there may be more. Safe beside every verb, from any number of
    /// processes; to be called now and then.
    pub async fn maintain_partitions(&self) -> Result<bool> {
        let shared = &self.shared;
        shared.demand_writable()?;
        let conn = shared.pool.get().await?;
        let head = head::find(&conn).await?.map(|head| head.row);
        drop(conn);
        let tip = head.as_ref().and_then(|head| head.tip);
        let made = shared.partitions.maintain(&shared.pool, tip.map(|tip| tip.height.next())).await?;
        // Whoever else has the store open may have been told something else about indexes.
        let Some(head) =
            head.filter(|head| head.fence.0 != 0 && head.fence.0 == shared.fence.load(Ordering::Acquire))
        else {
            return Ok(made);
        };
        if !shared.told.swap(true, Ordering::AcqRel) {
            for sentence in shared.partitions.describe_indexes(&shared.pool).await? {
                tracing::info!("{sentence}");
            }
        }
        let final_tip =
            head.tip.zip(head.finalized).map(|(tip, finalized)| tip.height.min(finalized.height).next());
        Ok(shared.partitions.build_one_index(&shared.pool, final_tip.unwrap_or_default()).await? || made)
    }

    /// Sets or removes a hook that is told of every commit and may break it: `before` an error makes the transaction roll back,
    /// `after` it is an answer that was lost. For tests and simulations. A verb of several transactions calls it for each.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Sets or removes a hook that is told of every statement of a writing transaction. For tests.
    pub fn set_statement_hook(&self, hook: Option<Arc<dyn StatementHook>>) {
        *self.shared.statement_hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }
}

impl Shared {
    /// The same store on other connections. What is known of partitions is shared.
    fn beside(&self, options: PgRawOptions, pool: PgPool) -> Shared {
        let registry = PgPayloadRegistry::new(pool.clone());
        Shared {
            payloads: self
                .payloads
                .as_ref()
                .map(|payloads| Payloads { store: payloads.store.clone(), registry }),
            pool,
            options,
            clock: self.clock.clone(),
            partitions: self.partitions.clone(),
            lanes: Arc::default(),
            scripts: scripts::KnownScripts::default(),
            hook: Mutex::new(None),
            statement_hook: Mutex::new(None),
            maintaining: tokio::sync::Mutex::default(),
            fence: self.fence.clone(),
            told: AtomicBool::new(false),
            listed: Mutex::default(),
            counted: self.counted.clone(),
        }
    }

    /// A snapshot on a connection of `pool`.
    async fn snapshot(self: Arc<Self>, pool: &PgPool) -> Result<Arc<dyn RawSnapshot>> {
        let view = View::begin(pool, self.options.snapshot_max_ms).await?;
        let head = head::read(&*view.conn().await?).await?;
        Ok(Arc::new(PgSnapshot::new(self, view, head.row)))
    }

    fn demand_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(StoreError::Invalid(format!(
                "the store in database {} was opened for reading only",
                self.pool.database()
            )));
        }
        Ok(())
    }

    fn hooks(&self) -> Hooks {
        (
            self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            self.statement_hook.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        )
    }

    /// The store's time, in milliseconds since 1970.
    async fn now_ms(&self, conn: &PgConn) -> Result<u64> {
        if let Some(clock) = &self.clock {
            return Ok(clock.now_ms());
        }
        let row =
            conn.query_one("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
        head::get_u64(&row, 0)
    }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(StoreError::Database(format!("the work did not end: {error}"))),
    }
}

#[async_trait]
impl RawReader for PgRawStore {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        self.shared.clone().snapshot(&self.shared.pool).await
    }

    async fn head(&self) -> Result<HeadRow> {
        head::ask(&self.shared.pool).await
    }
}
