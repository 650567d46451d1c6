//! The derived half of a run: real workers, committers and appliers of several processes over one app store in memory.

pub mod app;
pub mod observer;
pub mod plan;
pub mod processors;

use std::pin::Pin;
use std::sync::Arc;

use cairn_core::{BlockRef, Clock, Height};
use cairn_pipeline::derive::{Compute, DeriveError, DeriveOptions, Deriver, MalformedPolicy};
use cairn_store::derived::memory::{MemoryDerived, MemoryErrorLog};
use cairn_store::derived::{
    Coordinator, DerivedMaintenance, DerivedReader, DerivedSnapshot, ErrorFilter, ErrorLog, LeaseFilter,
    LeaseKind, LeaseStatus, LoggedError, RebuildRequest,
};
use cairn_store::{HeadRow, RawReader};
use tokio_util::sync::CancellationToken;

use app::{AppFaults, FaultyApp, Life};
use plan::DerivedPlan;
use processors::{Bugs, SERVICES};

/// The app store, what strikes it, and how processes are started.
pub struct DerivedSide {
    /// The plan.
    pub plan: DerivedPlan,
    /// The app store.
    pub app: MemoryDerived,
    /// The error log.
    pub errors: MemoryErrorLog,
    /// Its faults.
    pub faults: Arc<AppFaults>,
    bugs: Arc<Bugs>,
    raw: Arc<dyn RawReader>,
    seed: u64,
    reindexed: bool,
    rebuilt: bool,
}

/// How a worker process ended.
pub enum Ended {
    /// A fault killed it.
    Died,
    /// It ended by itself.
    Returned(Result<(), DeriveError>),
}

/// A worker process.
pub type WorkerProcess = Pin<Box<dyn Future<Output = Ended>>>;

impl DerivedSide {
    /// Nothing is running yet.
    pub fn new(plan: DerivedPlan, raw: Arc<dyn RawReader>, clock: Arc<dyn Clock>, seed: u64) -> Self {
        DerivedSide {
            app: MemoryDerived::new(processors::catalog(), clock.clone()),
            errors: MemoryErrorLog::new(clock),
            faults: AppFaults::new(plan.faults.clone()),
            bugs: Bugs::new(plan.bugs.iter().copied(), plan.incurable.clone()),
            plan,
            raw,
            seed,
            reindexed: false,
            rebuilt: false,
        }
    }

    /// Starts a process.
    pub fn start(&self, nth: u64, shutdown: &CancellationToken) -> WorkerProcess {
        let plan = &self.plan;
        let life = Arc::new(Life::default());
        let app = FaultyApp::new(self.app.clone(), self.faults.clone(), life.clone());
        let options = DeriveOptions {
            range_heights: plan.range_heights,
            workers_per_service: plan.workers,
            lease_ttl_ms: plan.ttl_ms,
            lease_margin_ms: plan.ttl_ms / 10,
            chunk_heights: plan.chunk_heights,
            chunk_bytes: plan.chunk_bytes,
            recent_bytes: plan.recent_bytes,
            poll_ms: 1_500,
            failed_pause_cap_ms: 8_000,
            detect_ms: 9_000,
            apply_rows: plan.apply_rows,
            compute: Compute::Inline,
            malformed: if self.bugs.are_there() { MalformedPolicy::Halt } else { MalformedPolicy::Continue },
            seed: self.seed ^ nth,
            ..DeriveOptions::new(format!("worker-{nth}"))
        };
        let processors = processors::processors(&self.bugs, self.seed ^ nth, plan.ask_fails_percent);
        let deriver = Deriver::new(
            self.raw.clone(),
            Arc::new(app),
            Arc::new(self.errors.clone()),
            processors::catalog(),
            processors,
            options,
        );
        let shutdown = shutdown.clone();
        Box::pin(async move {
            let deriver = match deriver {
                Ok(deriver) => deriver,
                Err(error) => return Ended::Returned(Err(error)),
            };
            tokio::select! {
                biased;
                () = life.death() => Ended::Died,
                ended = deriver.run(shutdown) => Ended::Returned(ended),
            }
        })
    }

    /// What people do meanwhile: free dead leases, ask for a range to be made again, cut the line to the store.
    pub async fn operate(&mut self, now_ms: u64) -> Result<(), String> {
        let text = |error: cairn_store::StoreError| error.to_string();
        self.faults.set_away(self.plan.away_ms.is_some_and(|(from, to)| (from..to).contains(&now_ms)));
        for lease in self.app.dead_leases(100).await.map_err(text)? {
            self.app.retry_lease(lease.id).await.map_err(text)?;
        }
        let due = self.plan.reindex_at_ms.is_some_and(|at| now_ms >= at);
        if due && !self.reindexed {
            let Ok(snapshot) = self.app.snapshot().await else { return Ok(()) };
            let next = snapshot.checkpoint("tx_worker").map_or(Height::ZERO, |checkpoint| checkpoint.next);
            let lowest = LeaseFilter { limit: 1, ..LeaseFilter::default() };
            let lowest = snapshot.leases(&lowest).await.map_err(text)?;
            let first = lowest.first().map_or(next, |lease| lease.range.start());
            if next > first + 2 {
                let range = cairn_core::HeightRange::new(first + 1, next);
                self.app.request_reindex("tx_worker", 1, range, 5).await.map_err(text)?;
                self.reindexed = true;
            }
        }
        if let Some((at_ms, steps)) = self.plan.rebuild
            && now_ms >= at_ms
            && !self.rebuilt
        {
            let Ok(snapshot) = self.app.snapshot().await else { return Ok(()) };
            if snapshot.checkpoint("sender_worker").is_some() {
                let anew = vec!["sender_worker".to_owned()];
                let request = RebuildRequest { anew, ..RebuildRequest::default() };
                self.app.begin_rebuild(&request).await.map_err(text)?;
                for _ in 0..steps {
                    self.app.reset_step("sender_worker", 5).await.map_err(text)?;
                }
                self.rebuilt = true;
            }
        }
        Ok(())
    }

    /// Whether everything is derived up to the raw head.
    pub async fn arrived(&self, head: &HeadRow) -> bool {
        let Ok(snapshot) = self.app.snapshot().await else { return false };
        let Some(tip) = head.tip else { return false };
        snapshot.forks().is_settled()
            && snapshot.forks().applied.id == head.newest_reorg.id
            && SERVICES.iter().all(|service| {
                snapshot.checkpoint(service).and_then(|checkpoint| checkpoint.last()) == Some(tip)
            })
            && leases_rest(&*snapshot, tip).await
            && self.log_rests(head).await
    }

    /// Nobody records anything more by now; what was recorded of dead forks is forgotten when the committer comes round.
    async fn log_rests(&self, head: &HeadRow) -> bool {
        let Ok(raw) = self.raw.snapshot().await else { return false };
        let Ok(logged) = self.errors.list(&every_error()).await else { return false };
        for LoggedError { error, .. } in &logged {
            match raw.linked_ref(error.height).await {
                Ok(Some(there)) if there.block.id == error.block_id => {}
                _ => return false,
            }
        }
        raw.head().tip == head.tip
    }

    /// How it stands, for messages.
    pub async fn state(&self) -> String {
        match self.app.snapshot().await {
            Ok(snapshot) => format!(
                "{:?}\n{:?}\n{:#?}",
                snapshot.forks(),
                snapshot.checkpoints(),
                snapshot.leases(&LeaseFilter { limit: 1_000, ..LeaseFilter::default() }).await
            ),
            Err(error) => error.to_string(),
        }
    }

    /// The error log.
    pub fn errors(&self) -> &dyn ErrorLog {
        &self.errors
    }

    /// Whether blocks fail now and then.
    pub fn has_bugs(&self) -> bool {
        self.bugs.are_there()
    }
}

/// All of the error log.
pub fn every_error() -> ErrorFilter {
    ErrorFilter { resolved: true, limit: 100_000, ..ErrorFilter::default() }
}

/// Ranges that are made again, or that a reorg opened again, may still be under way when all checkpoints stand at the tip.
async fn leases_rest(snapshot: &dyn DerivedSnapshot, tip: BlockRef) -> bool {
    let filter = LeaseFilter { limit: 100_000, ..LeaseFilter::default() };
    snapshot.leases(&filter).await.is_ok_and(|leases| {
        leases.iter().all(|lease| {
            // A range that is made again waits as FAILED where a reorg left it above the tip.
            let waits = lease.kind == LeaseKind::Reindex && lease.range.end() > tip.height.next();
            (lease.status != LeaseStatus::Failed || waits)
                && lease.done_to == lease.range.end().min(tip.height.next()).max(lease.range.start())
        })
    })
}
