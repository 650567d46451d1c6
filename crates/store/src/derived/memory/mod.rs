//! The in-memory reference of the app store: it defines what the derived traits mean, and every other backend is compared with it.
//!
//! One mutex guards the state, which makes it the gate as well. A verb checks everything first and changes rows only when nothing can
//! fail any more, so that an error leaves the store as it was. Snapshots share the state's maps; a verb copies a map only where a snapshot
//! still holds it. Nothing is durable: "reopening" is another handle ([`Clone`]) on the same state.

mod apply;
mod coordinate;
mod error_log;
mod maintain;
mod snapshot;
mod state;
mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cairn_core::{Clock, Height};

use super::dump::DerivedDumpBuilder;
use super::reader::{DerivedDump, DerivedReader, DerivedSnapshot};
use super::row::Row;
use super::table::Catalog;
use super::value::Value;
use crate::memory::CommitHook;
use crate::{Dump, Result, StoreError};

pub use error_log::MemoryErrorLog;

use snapshot::MemorySnapshot;
use state::State;

/// An app store in memory. Clones are handles on the same data.
#[derive(Clone)]
pub struct MemoryDerived {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<Arc<State>>,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
}

impl MemoryDerived {
    /// An empty store of these tables, whose leases expire by `clock`.
    pub fn new(catalog: Catalog, clock: Arc<dyn Clock>) -> Self {
        let state = Mutex::new(Arc::new(State::new(catalog)));
        MemoryDerived { shared: Arc::new(Shared { clock, state, hook: Mutex::new(None) }) }
    }

    /// Sets or removes the hook, for every handle on this store. It is told of every verb that writes, by the trait's name for it.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// How many rows are kept that undo state or answers. For tests.
    pub fn undo_rows(&self) -> Result<usize> {
        Ok(self.state()?.tables.iter().map(|table| table.undo_by_height.len()).sum())
    }

    /// Deletes a lease without any rule, as damage does to a database: for tests of what notices it.
    pub fn lose_lease(&self, id: u64) -> Result<()> {
        Arc::make_mut(&mut *self.state()?).take_lease(id);
        Ok(())
    }

    /// Sets the `last_height` of every row of a table of state without any rule, as damage does to a database: for tests of what notices it.
    pub fn set_last_height(&self, table: &str, height: Height) -> Result<()> {
        let mut guard = self.state()?;
        let state = Arc::make_mut(&mut *guard);
        let place = state.place(table)?;
        let table = state.catalog.tables()[place].clone();
        let Some(at) = table.height_column() else {
            return Err(StoreError::Invalid(format!("table {} has no heights", table.name())));
        };
        let data = state.table_mut(place);
        let rows: Vec<_> = data.rows.iter().map(|(key, row)| (key.clone(), Row::clone(row))).collect();
        for (key, mut row) in rows {
            row.0[at] = Value::height(height);
            data.put(&table, key, Arc::new(row));
        }
        Ok(())
    }

    fn now_ms(&self) -> u64 {
        self.shared.clock.now_ms()
    }

    fn state(&self) -> Result<MutexGuard<'_, Arc<State>>> {
        self.shared.state.lock().map_err(|_| {
            StoreError::Database(
                "a verb panicked and may have left rows half written; make a new store".into(),
            )
        })
    }

    /// Runs a verb between the hook's two calls. The verb checks first and changes last.
    fn commit<T>(&self, verb: &'static str, run: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let hook = self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = &hook {
            hook.before(verb)?;
        }
        let answer = run(Arc::make_mut(&mut *self.state()?))?;
        if let Some(hook) = &hook {
            hook.after(verb)?;
        }
        Ok(answer)
    }
}

impl std::fmt::Debug for MemoryDerived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryDerived").finish_non_exhaustive()
    }
}

#[async_trait]
impl DerivedReader for MemoryDerived {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        Ok(Arc::new(MemorySnapshot::new(self.state()?.clone())?))
    }
}

#[async_trait]
impl DerivedDump for MemoryDerived {
    async fn dump(&self) -> Result<Dump> {
        let state = self.state()?.clone();
        let mut dump = DerivedDumpBuilder::new();
        for (table, data) in state.catalog.tables().iter().zip(&state.tables) {
            data.rows.values().for_each(|row| dump.row(table, row));
        }
        state.checkpoints.values().for_each(|checkpoint| dump.checkpoint(checkpoint));
        state.quarantined.iter().for_each(|block| dump.quarantined(&block.service, block.height));
        Ok(dump.finish())
    }
}
