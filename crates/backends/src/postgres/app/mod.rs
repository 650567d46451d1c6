//! The app store on PostgreSQL: derived tables, leases, checkpoints and reorgs, in schema `app`.
//!
//! **Atomicity.** Every verb is one READ COMMITTED transaction whose first statement takes the gate: an advisory lock of the
//! transaction, shared or exclusive, held to its end. A transaction that the server breaks off (a deadlock, a
//! serialisation failure) is run again whole, some times, and is then [`StoreError::Busy`]. A commit whose answer was lost is never run
//! again here: its caller reads the lease.
//!
//! **Order of locks.** The gate, the row of what was applied, leases by number, checkpoints by name, tables as the catalog has
//! them, keys ascending. Partitions are made in transactions of their own, before the gate is taken; indexes that were put off, beside the writers, by one
//! session at a time (`indexes.rs`), which holds no other lock while it waits for them.
//!
//! **Time** is the server's; with a clock of one's own, for tests, it is that.
//!
//! **Back-pressure.** Writers and readers have a bounded pool each ([`PgDerivedOptions`]): N processes hold at most N × (8 + 8)
//! connections with the defaults. No transaction is open while anything but the database is awaited. A statement carries about
//! `statement_bytes`; reads stop at their limits.
//!
//! **Snapshots** are REPEATABLE READ transactions that end after two seconds, used or not.
//!
//! **Shutdown.** Dropping the last handle closes idle connections. A verb whose caller goes away is rolled back, unless its COMMIT
//! was sent.

mod answers;
mod apply;
mod commit;
mod coordinate;
mod dump;
mod fault;
mod indexes;
mod lease;
mod maintain;
mod options;
mod partitions;
mod presence;
mod quarantined;
mod rebuild;
mod rebuilds;
mod scan;
mod schema;
mod snapshot;
mod tables;
mod tx;
mod value;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_core::{Clock, Height, HeightRange};
use cairn_store::derived::Catalog;
use cairn_store::memory::CommitHook;
use cairn_store::{Result, StoreError};

pub use options::PgDerivedOptions;
pub use rebuild::{Behind, Dropped};

use super::{PgPool, StatementHook};
use partitions::Known;
use tables::PgTable;

/// An app store in a PostgreSQL database. Clones are handles on the same open store.
#[derive(Clone)]
pub struct PgDerived {
    shared: Arc<Shared>,
}

struct Shared {
    options: PgDerivedOptions,
    write: PgPool,
    read: PgPool,
    catalog: Catalog,
    /// In the catalog's order.
    tables: Arc<Vec<PgTable>>,
    clock: Option<Arc<dyn Clock>>,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
    statement_hook: Mutex<Option<Arc<dyn StatementHook>>>,
    known: Mutex<Known>,
}

impl std::fmt::Debug for PgDerived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgDerived").field("database", &self.shared.write.database()).finish_non_exhaustive()
    }
}

impl PgDerived {
    /// Opens the store: brings the schema up to date and adds the catalog's tables and indexes that are missing. Without `clock`
    /// leases expire by the server's clock.
    ///
    /// [`StoreError::Invalid`], naming the table, where one was made from another definition or isn't in the catalog.
    pub async fn open(
        mut options: PgDerivedOptions,
        catalog: Catalog,
        clock: Option<Arc<dyn Clock>>,
    ) -> Result<PgDerived> {
        // Whoever writes goes by what it reads; who only reads may do so from a server that follows another one.
        for pg in [&mut options.write, &mut options.read] {
            pg.is_primary |= !options.read_only;
        }
        options.read.settings = snapshot::SETTINGS.into();
        let write = PgPool::new(options.write.clone())?;
        let shared = Shared {
            read: write.beside(options.read.clone())?,
            write,
            tables: Arc::new(PgTable::of_catalog(&catalog)),
            options,
            catalog,
            clock,
            hook: Mutex::default(),
            statement_hook: Mutex::default(),
            known: Mutex::default(),
        };
        schema::open(&shared).await?;
        Ok(PgDerived { shared: Arc::new(shared) })
    }

    /// Sets or removes a hook that is told of every commit and may break it: `before` an error makes the transaction roll back,
    /// `after` it is an answer that was lost. For tests and simulations.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Sets or removes a hook that is told of every statement of a writing transaction. For tests.
    pub fn set_statement_hook(&self, hook: Option<Arc<dyn StatementHook>>) {
        *self.shared.statement_hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// Makes the partitions of every event table for these heights, and some ahead. Race-safe between processes.
    pub async fn ensure_partitions(&self, heights: HeightRange) -> Result<()> {
        for table in self.shared.tables.iter() {
            partitions::ensure_ahead(&self.shared, table, heights, self.shared.options.lookahead_partitions)
                .await?;
        }
        Ok(())
    }
}

impl Shared {
    fn hook(&self) -> Option<Arc<dyn CommitHook>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn statement_hook(&self) -> Option<Arc<dyn StatementHook>> {
        self.statement_hook.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self, name: &str) -> Result<&PgTable> {
        table_of(&self.tables, name)
    }
}

fn table_of<'a>(tables: &'a [PgTable], name: &str) -> Result<&'a PgTable> {
    tables
        .iter()
        .find(|table| table.table.name() == name)
        .ok_or_else(|| StoreError::Invalid(format!("the catalog has no table {name}")))
}

/// A height as a parameter; heights above 2^63 don't exist, and the highest number stands for them.
fn int(height: Height) -> i64 {
    i64::try_from(height.get()).unwrap_or(i64::MAX)
}

/// A number as a parameter, likewise.
fn int_of(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
