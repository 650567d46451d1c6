//! One process's way to the app store, with what may go wrong on it.
//!
//! A decorator rather than a hook: several processes share one store, and only one of them dies. A message may also be **late**: the
//! caller hears a time-out, and the verb arrives long afterwards, when its lease may have been another's for long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::memory::MemoryDerived;
use cairn_store::derived::{
    ApplyProgress, ChunkCommit, ClaimRequest, Committed, Coordinator, DerivedCheckpoint, DerivedMaintenance,
    DerivedReader, DerivedSnapshot, DerivedWriter, ForkState, Key, LeaseEnd, LeaseGap, Rebuild,
    RebuildRequest, ReorgApplier, Repairs, TakenBack, WorkerLease,
};
use cairn_store::{ReorgEntry, ReorgMark, Result, StoreError};
use tokio::sync::Notify;

/// What becomes of one verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppFault {
    /// The process dies before it.
    CrashBefore,
    /// The process dies right after it.
    CrashAfter,
    /// It is done, but the answer says "busy".
    LostAnswer,
    /// It is not done; the answer says "busy".
    Busy,
    /// The answer says "busy" at once; it is done so many milliseconds later, whoever is there then.
    Late(u64),
    /// It is done after so many milliseconds, and the caller waits.
    Slow(u64),
}

/// Counts the verbs of all processes and strikes at the planned ones.
#[derive(Debug)]
pub struct AppFaults {
    verbs: AtomicU64,
    planned: Vec<(u64, AppFault)>,
    /// The store is away while this is set.
    away: AtomicBool,
}

impl AppFaults {
    /// Strikes at `planned` (the nth verb from 0, ascending).
    pub fn new(planned: Vec<(u64, AppFault)>) -> Arc<Self> {
        Arc::new(AppFaults { verbs: AtomicU64::new(0), planned, away: AtomicBool::new(false) })
    }

    /// How many verbs were tried.
    pub fn verbs(&self) -> u64 {
        self.verbs.load(Ordering::SeqCst)
    }

    /// Whether the store can be reached at all.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }
}

/// Whether a process is alive.
#[derive(Debug, Default)]
pub struct Life {
    dead: AtomicBool,
    died: Notify,
    why: Mutex<Option<&'static str>>,
}

impl Life {
    /// Waits until it dies.
    pub async fn death(&self) {
        loop {
            let died = self.died.notified();
            if self.dead.load(Ordering::SeqCst) {
                return;
            }
            died.await;
        }
    }

    fn die(&self, verb: &'static str) -> StoreError {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(verb);
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_waiters();
        busy("the process died")
    }
}

fn busy(why: &str) -> StoreError {
    StoreError::Busy(format!("simulated: {why}"))
}

/// The app store as one process reaches it.
#[derive(Clone)]
pub struct FaultyApp {
    inner: MemoryDerived,
    faults: Arc<AppFaults>,
    life: Arc<Life>,
}

impl FaultyApp {
    /// The way of the process with this life.
    pub fn new(inner: MemoryDerived, faults: Arc<AppFaults>, life: Arc<Life>) -> Self {
        FaultyApp { inner, faults, life }
    }

    fn reach(&self) -> Result<()> {
        if self.life.dead.load(Ordering::SeqCst) {
            return Err(busy("the process is dead"));
        }
        if self.faults.away.load(Ordering::SeqCst) {
            return Err(busy("the app store is away"));
        }
        Ok(())
    }

    async fn verb<T, F>(&self, name: &'static str, run: impl FnOnce(MemoryDerived) -> F + Send) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.reach()?;
        let nth = self.faults.verbs.fetch_add(1, Ordering::SeqCst);
        let fault = self.faults.planned.iter().find(|(at, _)| *at == nth).map(|(_, fault)| *fault);
        let work = run(self.inner.clone());
        match fault {
            None => work.await,
            Some(AppFault::Busy) => Err(busy("not done")),
            Some(AppFault::CrashBefore) => Err(self.life.die(name)),
            Some(AppFault::CrashAfter) => {
                let _ = work.await;
                Err(self.life.die(name))
            }
            Some(AppFault::LostAnswer) => {
                let _ = work.await;
                Err(busy("done, but the answer was lost"))
            }
            Some(AppFault::Slow(ms)) => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                self.reach()?;
                work.await
            }
            Some(AppFault::Late(ms)) => {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    work.await
                });
                Err(busy("no answer in time"))
            }
        }
    }
}

#[async_trait]
impl DerivedReader for FaultyApp {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        self.reach()?;
        self.inner.snapshot().await
    }
}

#[async_trait]
impl DerivedWriter for FaultyApp {
    async fn commit_chunk(&self, lease: &WorkerLease, commit: ChunkCommit) -> Result<Committed> {
        let lease = lease.clone();
        self.verb("commit_chunk", move |app| async move { app.commit_chunk(&lease, commit).await }).await
    }
}

#[async_trait]
impl Coordinator for FaultyApp {
    async fn register(&self, service: &str, first: Height) -> Result<DerivedCheckpoint> {
        let service = service.to_owned();
        self.verb("register", move |app| async move { app.register(&service, first).await }).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        let request = request.clone();
        self.verb("claim", move |app| async move { app.claim(&request).await }).await
    }

    async fn renew(&self, lease: &WorkerLease, ttl_ms: u64) -> Result<WorkerLease> {
        let lease = lease.clone();
        self.verb("renew", move |app| async move { app.renew(&lease, ttl_ms).await }).await
    }

    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) -> Result<()> {
        let lease = lease.clone();
        self.verb("end", move |app| async move { app.end(&lease, end).await }).await
    }

    async fn lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.reach()?;
        self.inner.lease(id).await
    }

    async fn reap(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        self.verb("reap", move |app| async move { app.reap(limit).await }).await
    }

    async fn repair_checkpoints(&self) -> Result<Repairs> {
        self.verb("repair_checkpoints", move |app| async move { app.repair_checkpoints().await }).await
    }

    async fn lease_gaps(&self, limit: usize) -> Result<Vec<LeaseGap>> {
        self.reach()?;
        self.inner.lease_gaps(limit).await
    }

    async fn dead_leases(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        self.reach()?;
        self.inner.dead_leases(limit).await
    }

    async fn retry_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.verb("retry_lease", move |app| async move { app.retry_lease(id).await }).await
    }

    async fn release_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.verb("release_lease", move |app| async move { app.release_lease(id).await }).await
    }

    async fn release_all(&self) -> Result<u64> {
        self.verb("release_all", move |app| async move { app.release_all().await }).await
    }

    async fn set_paused(&self, service: &str, paused: bool) -> Result<()> {
        let service = service.to_owned();
        self.verb("set_paused", move |app| async move { app.set_paused(&service, paused).await }).await
    }

    async fn request_reindex(
        &self,
        service: &str,
        version: u32,
        range: HeightRange,
        range_heights: u64,
    ) -> Result<u64> {
        let service = service.to_owned();
        self.verb("request_reindex", move |app| async move {
            app.request_reindex(&service, version, range, range_heights).await
        })
        .await
    }
}

#[async_trait]
impl ReorgApplier for FaultyApp {
    async fn adopt(&self, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<ForkState> {
        self.verb("adopt", move |app| async move { app.adopt(raw_uuid, newest).await }).await
    }

    async fn forks(&self) -> Result<Option<ForkState>> {
        self.reach()?;
        self.inner.forks().await
    }

    async fn begin_apply(&self, entry: &ReorgEntry) -> Result<()> {
        let entry = entry.clone();
        self.verb("begin_apply", move |app| async move { app.begin_apply(&entry).await }).await
    }

    async fn apply_step(&self, entry_id: u64, max_rows: usize) -> Result<ApplyProgress> {
        self.verb("apply_step", move |app| async move { app.apply_step(entry_id, max_rows).await }).await
    }

    async fn finish_apply(&self, entry_id: u64) -> Result<ForkState> {
        self.verb("finish_apply", move |app| async move { app.finish_apply(entry_id).await }).await
    }
}

#[async_trait]
impl DerivedMaintenance for FaultyApp {
    async fn maintain(&self, tip: Height) -> Result<()> {
        self.verb("maintain", move |app| async move { app.maintain(tip).await }).await
    }

    /// Changes nothing that could be lost, so nothing strikes at it, and it doesn't count among the verbs.
    async fn build_indexes(&self, final_to: Height) -> Result<bool> {
        self.reach()?;
        self.inner.build_indexes(final_to).await
    }

    async fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>> {
        let request = request.clone();
        self.verb("begin_rebuild", move |app| async move { app.begin_rebuild(&request).await }).await
    }

    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        let service = service.to_owned();
        self.verb("reset_step", move |app| async move { app.reset_step(&service, max_rows).await }).await
    }

    async fn take_back_step(
        &self,
        service: &str,
        from: Height,
        max_rows: usize,
    ) -> Result<Option<TakenBack>> {
        let service = service.to_owned();
        self.verb(
            "take_back_step",
            move |app| async move { app.take_back_step(&service, from, max_rows).await },
        )
        .await
    }

    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64> {
        self.verb("prune_undo", move |app| async move { app.prune_undo(finalized, max_rows).await }).await
    }

    async fn delete_rows(&self, table: &'static str, keys: &[Key]) -> Result<u64> {
        let keys = keys.to_vec();
        self.verb("delete_rows", move |app| async move { app.delete_rows(table, &keys).await }).await
    }
}
