//! The error log in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use cairn_core::{BlockId, Clock, Height};

use crate::Result;
use crate::derived::errors::{
    ErrorFilter, ErrorLog, LoggedError, MAX_MESSAGE_BYTES, MAX_RAW_DATA_BYTES, NewError, Recorded, within,
};
use crate::derived::rules::shortened;
use crate::memory::CommitHook;

/// An error log in memory. Clones are handles on the same data.
#[derive(Clone)]
pub struct MemoryErrorLog {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    log: Mutex<Log>,
    hook: Mutex<Option<Arc<dyn CommitHook>>>,
}

/// Service, height, block, transaction, hash.
type Identity = (String, Height, BlockId, String, String);

#[derive(Default)]
struct Log {
    by_id: BTreeMap<u64, LoggedError>,
    known: BTreeMap<Identity, u64>,
    /// When closed ones were closed.
    closed_at_ms: BTreeMap<u64, u64>,
    last_id: u64,
}

impl Log {
    fn record(&mut self, errors: &[NewError], now_ms: u64) -> u64 {
        let mut new = 0;
        for error in errors {
            let error_hash = error.error_hash();
            if let Some(id) = self.known.get(&identity(error, error_hash.clone())) {
                if let Some(logged) = self.by_id.get_mut(id).filter(|logged| logged.resolved) {
                    logged.resolved = false;
                    self.closed_at_ms.remove(id);
                    new += 1;
                }
                continue;
            }
            new += 1;
            self.last_id += 1;
            self.known.insert(identity(error, error_hash.clone()), self.last_id);
            let mut error = error.clone();
            error.message = shortened(&error.message, MAX_MESSAGE_BYTES);
            error.raw_data.truncate(MAX_RAW_DATA_BYTES);
            let id = self.last_id;
            let logged = LoggedError { id, error, error_hash, resolved: false, created_at_ms: now_ms };
            self.by_id.insert(id, logged);
        }
        new
    }

    fn delete(&mut self, doomed: &[u64]) -> u64 {
        for id in doomed {
            self.closed_at_ms.remove(id);
            if let Some(logged) = self.by_id.remove(id) {
                self.known.remove(&identity(&logged.error, logged.error_hash));
            }
        }
        doomed.len() as u64
    }
}

fn identity(error: &NewError, error_hash: String) -> Identity {
    (error.service.clone(), error.height, error.block_id, error.transaction_id.clone(), error_hash)
}

impl MemoryErrorLog {
    /// An empty log that takes its times from `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { clock, log: Mutex::default(), hook: Mutex::new(None) };
        MemoryErrorLog { shared: Arc::new(shared) }
    }

    /// Sets or removes the hook, for every handle on this log.
    pub fn set_hook(&self, hook: Option<Arc<dyn CommitHook>>) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    /// The log; no code between its locking and unlocking can panic half way.
    fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit<T>(&self, verb: &'static str, run: impl FnOnce(&mut Log) -> T) -> Result<T> {
        let hook = self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = &hook {
            hook.before(verb)?;
        }
        let answer = run(&mut self.log());
        if let Some(hook) = &hook {
            hook.after(verb)?;
        }
        Ok(answer)
    }
}

impl std::fmt::Debug for MemoryErrorLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryErrorLog").finish_non_exhaustive()
    }
}

#[async_trait]
impl ErrorLog for MemoryErrorLog {
    async fn record(&self, errors: &[NewError]) -> Result<u64> {
        let now_ms = self.shared.clock.now_ms();
        self.commit("record", |log| log.record(errors, now_ms))
    }

    async fn record_within(&self, errors: &[NewError], max_open: u64) -> Result<Recorded> {
        let now_ms = self.shared.clock.now_ms();
        let Some(first) = errors.first() else { return Ok(Recorded::default()) };
        self.commit("record", |log| {
            let of_service =
                |logged: &&LoggedError| !logged.resolved && logged.error.service == first.service;
            let room = max_open.saturating_sub(log.by_id.values().filter(of_service).count() as u64);
            let (kept, dropped) = within(errors, room, |at| {
                let id = log.known.get(&identity(&errors[at], errors[at].error_hash()));
                id.and_then(|id| log.by_id.get(id)).is_some_and(|logged| !logged.resolved)
            });
            Recorded { new: log.record(&kept, now_ms), dropped }
        })
    }

    async fn list(&self, filter: &ErrorFilter) -> Result<Vec<LoggedError>> {
        let log = self.log();
        let above = log.by_id.range((Bound::Excluded(filter.after_id), Bound::Unbounded));
        Ok(above
            .map(|(_, logged)| logged)
            .filter(|logged| filter.resolved || !logged.resolved)
            .filter(|logged| filter.service.as_ref().is_none_or(|service| logged.error.service == *service))
            .filter(|logged| filter.height.is_none_or(|height| logged.error.height == height))
            .take(filter.limit)
            .cloned()
            .collect())
    }

    async fn count_unresolved(&self) -> Result<u64> {
        Ok(self.log().by_id.values().filter(|logged| !logged.resolved).count() as u64)
    }

    async fn resolve(&self, ids: &[u64]) -> Result<u64> {
        let now_ms = self.shared.clock.now_ms();
        self.commit("resolve", |log| {
            let mut closed = 0;
            for id in ids {
                if let Some(logged) = log.by_id.get_mut(id).filter(|logged| !logged.resolved) {
                    logged.resolved = true;
                    log.closed_at_ms.insert(*id, now_ms);
                    closed += 1;
                }
            }
            closed
        })
    }

    async fn prune_closed(&self, age_ms: u64, limit: usize) -> Result<u64> {
        let now_ms = self.shared.clock.now_ms();
        self.commit("prune_closed", |log| {
            let is_old = |closed_ms: u64| closed_ms.saturating_add(age_ms) < now_ms;
            let closed = log.closed_at_ms.iter().filter(|(_, closed_ms)| is_old(**closed_ms));
            let doomed: Vec<u64> = closed.map(|(id, _)| *id).take(limit).collect();
            log.delete(&doomed)
        })
    }

    async fn forget_blocks(&self, blocks: &[BlockId]) -> Result<u64> {
        self.commit("forget_blocks", |log| {
            let doomed: Vec<u64> = log
                .by_id
                .values()
                .filter(|logged| blocks.contains(&logged.error.block_id))
                .map(|logged| logged.id)
                .collect();
            log.delete(&doomed)
        })
    }
}
