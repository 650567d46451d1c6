//! What keeps a process from being ready: its ingester, its derived work, and the tables as they stand in the database, whoever makes them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_api::health::{HealthState, ReadyState, Waiting};
use cairn_api::rest::{self, WorkerUse};
use cairn_core::Height;
use cairn_pipeline::derive::status::DeriveStatus;
use cairn_pipeline::status::{BLOCK_REFUSED, HEAD_QUORUM, Halt, IngestState, IngestStatus, SOURCE_REFUSED};
use cairn_store::derived::{DerivedReader, DerivedSnapshot, LeaseFilter};
use cairn_store::{HeadRow, RawReader, StoreError};
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::derive;

/// How often a process that doesn't ingest looks at the tables.
const TABLES_EVERY: Duration = Duration::from_secs(10);
/// How often the store's head is looked at for health and subscriptions, in milliseconds.
const WATCH_STORE_MS: u64 = 250;
/// The same in the process that ingests, which is told of each new tip.
const WATCH_OWN_STORE_MS: u64 = 5_000;
/// How many dead ranges are looked at.
const DEAD_RANGES: usize = 20;

/// The derived tables, looked at from outside.
pub struct Tables {
    raw: Arc<dyn RawReader>,
    app: Arc<dyn DerivedReader>,
    /// The workers that others rest on; those that ask nodes are waited for by nobody.
    required: Vec<&'static str>,
    max_lag_heights: u64,
    max_age: Duration,
    /// Where each worker stood, and since when.
    stood: HashMap<String, (Height, Instant)>,
}

impl Tables {
    /// Those of a configuration.
    pub fn of(config: &Config, raw: Arc<dyn RawReader>, app: Arc<dyn DerivedReader>) -> Tables {
        let uses = derive::uses(config).into_iter();
        Tables {
            raw,
            app,
            required: uses.filter(|(_, is)| *is == WorkerUse::Required).map(|(name, _)| name).collect(),
            max_lag_heights: config.health.max_table_lag_heights,
            max_age: Duration::from_secs(config.health.max_age_s),
            stood: HashMap::new(),
        }
    }

    /// Tells `health` of them until told to stop.
    pub async fn watch(mut self, health: Arc<HealthState>, stop: CancellationToken) {
        loop {
            match self.look().await {
                Ok(trouble) => health.tables(trouble),
                // A raw store that can't be read is a tip that stands still, which is looked at elsewhere.
                Err(error) => tracing::debug!(%error, "the derived tables could not be looked at"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(TABLES_EVERY) => {}
            }
        }
    }

    async fn look(&mut self) -> Result<Option<(ReadyState, String)>, StoreError> {
        // The app store first: what it has made is then of blocks that the raw store has too.
        let app = match self.app.snapshot().await {
            Ok(app) => app,
            Err(StoreError::Invalid(_) | StoreError::OldSchema { .. }) => {
                let reason = "the app database holds no derived tables yet: start a process that derives";
                return Ok(Some((ReadyState::AppAway, reason.into())));
            }
            Err(error) => {
                return Ok(Some((ReadyState::AppAway, format!("the app database can't be read: {error}"))));
            }
        };
        let head = self.raw.head().await?;
        if let Some(reason) = unfit(&head, &*app) {
            return Ok(Some((ReadyState::PairUnfit, reason)));
        }
        let filter = LeaseFilter { dead: true, limit: DEAD_RANGES, ..LeaseFilter::default() };
        let dead = app.leases(&filter).await?;
        if let Some(lease) = dead.iter().find(|lease| self.required.contains(&lease.service.as_str())) {
            let reason = format!(
                "range {} of {} failed too often: mend what `cairn leases list --dead` says, then `cairn leases retry {}`",
                lease.range, lease.service, lease.id
            );
            return Ok(Some((ReadyState::DeadRange, reason)));
        }
        Ok(self.behind(&head, &*app))
    }

    /// The worker that is furthest behind, where it stands still or is too far behind. One that is paused is an operator's wish.
    fn behind(&mut self, head: &HeadRow, app: &dyn DerivedSnapshot) -> Option<(ReadyState, String)> {
        let tip = head.tip?.height;
        let now = Instant::now();
        let mut last: Option<(&str, Height, Duration)> = None;
        for own in app.checkpoints() {
            let stood = self.stood.entry(own.service.clone()).or_insert((own.next, now));
            if stood.0 != own.next {
                *stood = (own.next, now);
            }
            let is_waited_for = self.required.contains(&own.service.as_str()) && !own.paused;
            if own.next > tip {
                // It has nothing to do; the clock begins with the next block.
                stood.1 = now;
            } else if is_waited_for && last.is_none_or(|(_, next, _)| own.next < next) {
                last = Some((&own.service, own.next, now - stood.1));
            }
        }
        let (name, next, stands) = last?;
        let lag = tip.next().since(next);
        if stands >= self.max_age {
            let reason = format!(
                "{name} has stood {lag} blocks below the newest block {tip} for {} s: does a process with --role work run?",
                stands.as_secs()
            );
            return Some((ReadyState::TablesFrozen, reason));
        }
        (lag > self.max_lag_heights).then(|| {
            let reason = format!(
                "{name} is {lag} blocks below the newest block {tip}; {} are allowed",
                self.max_lag_heights
            );
            (ReadyState::TablesLagging, reason)
        })
    }
}

/// Why the app store can't be of this raw store as it is now; `None`: nothing says so.
pub fn unfit(head: &HeadRow, app: &dyn DerivedSnapshot) -> Option<String> {
    let forks = app.forks();
    if forks.raw_uuid != head.info.uuid {
        return Some(
            "the app database was made from another raw database: give each its own pair, or begin with an empty app database"
                .into(),
        );
    }
    if forks.applied.id > head.newest_reorg.id {
        return Some(format!(
            "the app database has applied reorg {}, and the raw database knows {} of them: the raw one is an older copy; restore both from one backup",
            forks.applied.id, head.newest_reorg.id
        ));
    }
    if forks.applied.id != head.newest_reorg.id {
        return None;
    }
    let end = head.tip.map_or(Height::ZERO, |tip| tip.height.next());
    let above = app.checkpoints().iter().find(|own| own.next > end && own.last_id.is_some())?;
    Some(format!(
        "{} has derived up to block {}, and the raw database ends at {}: the raw one is an older copy; restore both from one backup",
        above.service,
        above.next.saturating_sub(1),
        end.saturating_sub(1)
    ))
}

/// What ingestion waits for, for `/readyz`.
fn waiting(status: &IngestStatus) -> Option<Waiting> {
    match (&status.obstacle, &status.state) {
        (Some(obstacle), _) => {
            let state = match obstacle.code {
                BLOCK_REFUSED => Some(ReadyState::BlockRefused),
                SOURCE_REFUSED => Some(ReadyState::SourceRefused),
                HEAD_QUORUM => Some(ReadyState::HeadQuorum),
                _ => None,
            };
            Some(Waiting { state: state.filter(|_| obstacle.is_lasting()), reason: obstacle.to_string() })
        }
        (None, IngestState::Waiting(reason)) => Some(Waiting { state: None, reason: reason.clone() }),
        (None, _) => None,
    }
}

/// Reports failing jobs and a halt of derived work to health. A halt lasts until a restart.
async fn watch_deriver(health: &HealthState, mut status: Receiver<DeriveStatus>) {
    loop {
        let (halted, failing_jobs) = {
            let now = status.borrow_and_update();
            (now.halted.clone(), now.failing_jobs.clone())
        };
        metrics::gauge!("cairn_derived_halted").set(if halted.is_some() { 1.0 } else { 0.0 });
        if let Some(halt) = halted {
            health.derived_halted(halt.to_string());
        }
        health.failing_jobs(failing_jobs);
        if status.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn watch_ingester(health: &HealthState, mut status: Receiver<IngestStatus>, tip_moved: Sender<()>) {
    let (mut answered_at_ms, mut tip) = (0, None);
    loop {
        let now = status.borrow_and_update().clone();
        if let Some(head) = now.source_head.filter(|_| now.source_answered_at_ms != answered_at_ms) {
            answered_at_ms = now.source_answered_at_ms;
            health.source_head(head);
        }
        if std::mem::replace(&mut tip, now.tip) != now.tip {
            tip_moved.send_replace(());
        }
        if let IngestState::Halted(message) = &now.state {
            health.halted(message.clone());
        }
        health.waits_for(waiting(&now));
        if status.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Feeds health from the store and, where it is in this process, from the ingester.
pub async fn watch_all(
    reader: Arc<dyn RawReader>,
    health: Arc<HealthState>,
    wake: Sender<u64>,
    status: Option<Receiver<IngestStatus>>,
    derived: Option<Receiver<DeriveStatus>>,
    stop: CancellationToken,
) {
    // An ingester says by itself that the tip moved, and nobody else moves it while it runs.
    let poll_ms = if status.is_some() { WATCH_OWN_STORE_MS } else { WATCH_STORE_MS };
    let (tip_moved, hint) = tokio::sync::watch::channel(());
    let store = cairn_api::health::watch_store(reader, health.clone(), wake, poll_ms, hint, stop);
    let ingester = async {
        match status {
            Some(status) => watch_ingester(&health, status, tip_moved).await,
            None => std::future::pending().await,
        }
    };
    let deriver = async {
        match derived {
            Some(derived) => watch_deriver(&health, derived).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = store => {}
        () = ingester => {}
        () = deriver => {}
    }
}

/// What of this process has stopped, for `/v1/status`.
pub fn halts_of(
    status: Option<Receiver<IngestStatus>>,
    derived: Option<Receiver<DeriveStatus>>,
) -> rest::Halts {
    Arc::new(move || {
        let ingestion = status.as_ref().and_then(|status| status.borrow().halt.clone());
        let (mut ranges, mut halted) = (Vec::new(), None);
        if let Some(derived) = &derived {
            let derived = derived.borrow();
            halted = derived.halted.clone();
            let range = |service: &str, height, code: &str| rest::Halt {
                part: rest::HaltedPart::Range,
                service: Some(service.to_owned()),
                height: Some(height),
                code: code.to_owned(),
            };
            ranges.extend(derived.seams.iter().map(|seam| range(&seam.service, seam.at, "range-seam")));
            let gaps = derived.open_gaps.iter();
            ranges.extend(gaps.map(|gap| range(&gap.service, gap.missing.start(), "range-lost")));
        }
        let of = |part, halt: Halt| rest::Halt {
            part,
            service: halt.service.map(str::to_owned),
            height: halt.height,
            code: halt.code.to_owned(),
        };
        let ingestion = ingestion.map(|halt| of(rest::HaltedPart::Ingestion, halt));
        let halted = halted.map(|halt| of(rest::HaltedPart::Derived, halt));
        ingestion.into_iter().chain(halted).chain(ranges).collect()
    })
}

/// What ingestion of this process can't get past, for `/v1/status`.
pub fn obstacle_of(status: Option<Receiver<IngestStatus>>) -> rest::ObstacleNow {
    Arc::new(move || {
        let obstacle = status.as_ref()?.borrow().obstacle.clone()?;
        Some(rest::Obstacle {
            code: obstacle.code.to_owned(),
            height: obstacle.height,
            check: obstacle.check,
            message: obstacle.message,
            remedy: obstacle.remedy,
            since_ms: obstacle.since_ms,
            tries: obstacle.tries,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cairn_api::health::{Readiness, ReadinessLimits};
    use cairn_core::{BlockId, BlockRef, ChainId, SystemClock};
    use cairn_store::derived::memory::MemoryDerived;
    use cairn_store::derived::{Catalog, ClaimRequest, Coordinator, LeaseEnd, MAX_ATTEMPTS, ReorgApplier};
    use cairn_store::{RawSnapshot, ReorgMark, StoreInfo};

    use super::*;

    #[tokio::test]
    async fn a_failing_job_shows_in_readiness_until_it_goes_well() {
        let health = HealthState::new(ReadinessLimits::default(), Arc::new(SystemClock));
        let (sender, status) = tokio::sync::watch::channel(DeriveStatus::default());
        let shows = |jobs: BTreeMap<&'static str, String>| {
            let health = &health;
            async move {
                while health.report().failing_jobs != jobs {
                    tokio::task::yield_now().await;
                }
            }
        };
        let told = async {
            for jobs in [BTreeMap::from([("reap", "no connection".to_owned())]), BTreeMap::new()] {
                sender.send_modify(|status| status.failing_jobs.clone_from(&jobs));
                shows(jobs).await;
            }
        };
        tokio::select! {
            () = told => {}
            () = watch_deriver(&health, status) => unreachable!("it watches for ever"),
        }
    }

    const UUID: [u8; 16] = [7; 16];

    /// A raw store of which only the head row is read.
    struct HeadAt(u64);

    #[async_trait::async_trait]
    impl RawReader for HeadAt {
        async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>, StoreError> {
            Err(StoreError::Busy("only the head is read".into()))
        }

        async fn head(&self) -> Result<HeadRow, StoreError> {
            let info = StoreInfo { uuid: UUID, chain_id: ChainId(1), chain_config: Default::default() };
            let tip = BlockRef { height: Height(self.0), id: BlockId([1; 32]) };
            Ok(HeadRow { first: Some(Height(0)), tip: Some(tip), ..HeadRow::new(info) })
        }
    }

    /// Tables that nobody derives, of an archive with this tip.
    async fn tables_of(config: &Config, tip: u64, services: &[&str]) -> (MemoryDerived, Tables) {
        let app = MemoryDerived::new(Catalog::new([]).expect("works"), Arc::new(SystemClock));
        app.adopt(UUID, ReorgMark::default()).await.expect("adopts");
        for service in services {
            app.register(service, Height(0)).await.expect("registers");
        }
        (app.clone(), Tables::of(config, Arc::new(HeadAt(tip)), Arc::new(app)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_stands_still_below_the_tip_is_not_ready_after_the_limit() {
        let config = Config::default();
        let (app, mut tables) = tables_of(&config, 50, &["stats_worker"]).await;
        assert_eq!(tables.look().await.expect("looks"), None, "50 blocks are allowed");
        tokio::time::advance(Duration::from_secs(config.health.max_age_s)).await;
        let (state, reason) = tables.look().await.expect("looks").expect("it stands still");
        assert_eq!(state, ReadyState::TablesFrozen);
        assert!(reason.contains("stats_worker") && reason.contains("--role work"), "{reason}");
        app.set_paused("stats_worker", true).await.expect("pauses");
        assert_eq!(tables.look().await.expect("looks"), None, "a pause is an operator's wish");
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_at_the_tip_is_ready_however_long_no_block_comes() {
        let config = Config::default();
        let (app, mut tables) = tables_of(&config, 0, &[]).await;
        app.register("stats_worker", Height(1)).await.expect("registers");
        for _ in 0..3 {
            assert_eq!(tables.look().await.expect("looks"), None);
            tokio::time::advance(Duration::from_secs(config.health.max_age_s)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_nobody_waits_for_keeps_nothing_from_being_ready() {
        let mut config = Config::default();
        config.derive.disabled = vec!["stats_worker".into()];
        let (_, mut tables) = tables_of(&config, 50_000, &["stats_worker"]).await;
        tokio::time::advance(Duration::from_secs(10 * config.health.max_age_s)).await;
        assert_eq!(tables.look().await.expect("looks"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_too_far_below_the_tip_is_not_ready() {
        let config = Config::default();
        let tip = config.health.max_table_lag_heights;
        let (_, mut tables) = tables_of(&config, tip, &["stats_worker"]).await;
        let (state, reason) = tables.look().await.expect("looks").expect("it lags");
        assert_eq!(state, ReadyState::TablesLagging);
        assert!(reason.contains(&format!("{} are allowed", tip)), "{reason}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_range_of_a_required_worker_is_not_ready_until_it_is_retried() {
        let config = Config::default();
        let (app, mut tables) = tables_of(&config, 50, &["stats_worker"]).await;
        let request = ClaimRequest {
            service: "stats_worker".into(),
            version: 1,
            owner: "test".into(),
            ttl_ms: 60_000,
            range_heights: 1_000,
            first: Height(0),
            limit_exclusive: Height(51),
            stop_exclusive: None,
            in_order: true,
        };
        for attempt in 0..MAX_ATTEMPTS {
            assert_eq!(tables.look().await.expect("looks"), None, "after {attempt} attempts");
            let lease = app.claim(&request).await.expect("claims").expect("a lease");
            let bad = LeaseEnd::Bad { message: "a bad block".into(), retry_in_ms: 0 };
            app.end(&lease, bad).await.expect("ends");
        }
        let (state, reason) = tables.look().await.expect("looks").expect("it is dead");
        assert_eq!(state, ReadyState::DeadRange);
        assert!(reason.contains("`cairn leases retry "), "{reason}");
        let dead = app.dead_leases(10).await.expect("reads");
        app.retry_lease(dead[0].id).await.expect("retries");
        assert_eq!(tables.look().await.expect("looks"), None);
    }
}
