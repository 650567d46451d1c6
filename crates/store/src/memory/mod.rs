//! The in-memory reference: it defines what the storage traits mean, and every other backend is compared with it.
//!
//! One mutex guards the state. A verb checks everything first and changes rows only when nothing can fail any more, so that
//! an error leaves the store as it was. Snapshots share the state's maps and never wait longer than for the verb that
//! runs. Nothing is durable: "reopening" is another handle ([`Clone`]) on the same state.

mod filler;
mod replacer;
mod snapshot;
mod state;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use cairn_core::{Clock, Height, HeightRange, Parts};

use crate::{
    Dump, DumpBuilder, Maintained, RawDump, RawMaintenance, RawReader, RawSnapshot, Result, StoreError,
};

use snapshot::MemorySnapshot;
use state::State;

/// Is told of every commit, by the verb's name (`"append"`, `"purge_step"`, …), and may break it: simulation and crash tests use it.
pub trait CommitHook: Send + Sync {
    /// Called before the verb. An error is handed to the caller and nothing is changed: a crash before the commit.
    fn before(&self, _verb: &'static str) -> Result<()> {
        Ok(())
    }

    /// Called after the verb changed the store. An error is handed to the caller in place of the answer: a crash after the
    /// commit, or an answer that was lost.
    fn after(&self, _verb: &'static str) -> Result<()> {
        Ok(())
    }
}

/// A raw store in memory. Clones are handles on the same data.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<Arc<State>>,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
    maintenance: Mutex<Option<StoreError>>,
}

impl MemoryStore {
    /// An empty store whose leases expire by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        MemoryStore {
            shared: Arc::new(Shared {
                clock,
                state: Mutex::default(),
                hook: Mutex::new(None),
                maintenance: Mutex::new(None),
            }),
        }
    }

    /// Sets or removes the hook, for every handle on this store.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = hook;
    }

    /// Lets background work fail with this error, or go well again: for tests of what goes on without it.
    pub fn set_maintenance(&self, error: Option<StoreError>) {
        *self.shared.maintenance.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = error;
    }

    /// Removes the row of a block and leaves its index entries, as damage does to a database: for tests of what notices it.
    pub fn lose_block(&self, height: Height) -> Result<()> {
        Arc::make_mut(&mut Arc::make_mut(&mut *self.state()?).blocks).remove(&height);
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
        let hook = self.shared.hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
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

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

#[async_trait]
impl RawReader for MemoryStore {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        Ok(Arc::new(MemorySnapshot::new(self.state()?.clone())?))
    }
}

#[async_trait]
impl RawMaintenance for MemoryStore {
    async fn maintain(&self, _max_bytes: u64) -> Result<Maintained> {
        let error = self.shared.maintenance.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        error.map_or(Ok(Maintained::Nothing), Err)
    }
}

#[async_trait]
impl RawDump for MemoryStore {
    async fn dump(&self) -> Result<Dump> {
        let state = self.state()?.clone();
        let mut dump = DumpBuilder::new(state.head()?);
        for block in state.blocks.values() {
            dump.block(&state::stored(block, Parts::all()));
        }
        for (kind, key, height, index) in
            state.index_entries(HeightRange::new(Height::ZERO, Height(u64::MAX)))
        {
            dump.index_entry(kind, key, height, index);
        }
        Ok(dump.finish())
    }
}
