//! Whether the archive is alive, fresh, and why not (field case X01: healthy but frozen).
//!
//! The ingester reports what it sees; a report is worked out when somebody asks. "The chain itself stands still" is told apart from "we
//! stand still": in the first the source answers, its head doesn't move, and we are at it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_core::{BlockRef, Clock, Height, Parts};
use cairn_store::{RawReader, StoreError};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Says how things are.
pub trait Readiness: Send + Sync {
    /// Now.
    fn report(&self) -> ReadinessReport;
}

/// What is wrong, or that nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyState {
    /// Fresh.
    Ready,
    /// No block is stored yet.
    NoBlockYet,
    /// The tip is too far below the source's head.
    LaggingBlocks,
    /// The tip hasn't moved for too long though there are new blocks, or though the source is not heard.
    Stale,
    /// The tip's own time is too long ago.
    LaggingSeconds,
    /// Ingest stopped and wants a person.
    Halted,
    /// Checks refuse a block again and again.
    BlockRefused,
    /// The source refuses what it is asked.
    SourceRefused,
    /// The endpoints that have to agree on a fork don't.
    HeadQuorum,
    /// Derived work stopped and wants a person; blocks are stored and served as ever.
    DerivedHalted,
    /// The source is heard, and its own head hasn't moved for too long.
    ChainStalled,
    /// The source is heard, and its head is below the stored tip: it is being synchronised, or was put back.
    SourceBehind,
    /// The app database can't be reached, or holds no tables yet.
    AppAway,
    /// The two databases are not of one archive, or one of them is an older copy.
    PairUnfit,
    /// A range of derived work failed too often and waits for an operator.
    DeadRange,
    /// A worker's tables stand still though there are blocks above them.
    TablesFrozen,
    /// A worker's tables are too far below the stored tip.
    TablesLagging,
}

/// A report, as `/readyz` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadinessReport {
    /// Whether to send requests here.
    pub ready: bool,
    /// In a word.
    pub state: ReadyState,
    /// In a sentence.
    pub reason: String,
    /// The stored tip.
    pub tip: Option<Height>,
    /// The source's head.
    pub source_head: Option<Height>,
    /// How many blocks the tip is behind the source's head, or behind the last height that is to be stored.
    pub lag_blocks: Option<u64>,
    /// How old the tip's own time is.
    pub tip_age_ms: Option<u64>,
    /// When the tip last moved.
    pub idle_ms: Option<u64>,
    /// When the source last answered.
    pub source_silent_ms: Option<u64>,
    /// Jobs beside the workers that fail now, with their last error. They are retried, and don't make the archive unready.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failing_jobs: BTreeMap<&'static str, String>,
}

/// When the archive counts as not ready. `None` in any field: not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadinessLimits {
    /// Blocks that the tip may be behind the source's head.
    pub max_lag_blocks: Option<u64>,
    /// How long the tip may stand still.
    pub max_idle_ms: Option<u64>,
    /// How old the tip's own time may be.
    pub max_tip_age_ms: Option<u64>,
}

impl Default for ReadinessLimits {
    fn default() -> Self {
        ReadinessLimits { max_lag_blocks: Some(10), max_idle_ms: Some(120_000), max_tip_age_ms: None }
    }
}

/// Why nothing is stored now. Ingest tries again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What the archive is at once while it lasts; `None`: ready until the tip has stood still for too long.
    pub state: Option<ReadyState>,
    /// Who said what, and what to do.
    pub reason: String,
}

/// What was seen of the archive and its source; all times are the clock's, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observed {
    /// The stored tip.
    pub tip: Option<BlockRef>,
    /// The tip's own time.
    pub tip_timestamp_ms: Option<u64>,
    /// When the tip last moved, or when watching began.
    pub tip_moved_at_ms: u64,
    /// The source's head.
    pub source_head: Option<Height>,
    /// The last height that is to be stored; `None`: there is none.
    pub stop: Option<Height>,
    /// When the source's head last moved.
    pub source_head_moved_at_ms: u64,
    /// When the source last answered; `None`: never, or there is no source here.
    pub source_answered_at_ms: Option<u64>,
    /// Why ingest stopped and wants a person.
    pub halted: Option<String>,
    /// What ingest waits for.
    pub waiting: Option<Waiting>,
    /// Why derived work stopped and wants a person.
    pub derived_halted: Option<String>,
    /// What is wrong with the derived tables, as they are in the database.
    pub tables: Option<(ReadyState, String)>,
    /// Jobs beside the workers that fail now, with their last error.
    pub failing_jobs: BTreeMap<&'static str, String>,
}

/// What the ingester has seen, shared with whoever asks.
#[derive(Debug)]
pub struct HealthState {
    limits: ReadinessLimits,
    clock: Arc<dyn Clock>,
    seen: Mutex<Observed>,
}

impl HealthState {
    /// Nothing seen yet.
    pub fn new(limits: ReadinessLimits, clock: Arc<dyn Clock>) -> Self {
        let now_ms = clock.now_ms();
        let seen =
            Observed { tip_moved_at_ms: now_ms, source_head_moved_at_ms: now_ms, ..Observed::default() };
        HealthState { limits, clock, seen: Mutex::new(seen) }
    }

    /// The same, of an archive that ends at this height: there it is whole, and no new block is waited for.
    pub fn up_to(self, stop: Option<Height>) -> Self {
        self.seen().stop = stop;
        self
    }

    fn seen(&self) -> MutexGuard<'_, Observed> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been seen so far.
    pub fn observed(&self) -> Observed {
        self.seen().clone()
    }

    /// The stored tip is this one, with its own time in milliseconds since 1970. Any change counts as movement: a lower tip after a rollback,
    /// another block at the same height.
    pub fn tip(&self, block: BlockRef, timestamp_ms: u64) {
        let now_ms = self.clock.now_ms();
        let mut seen = self.seen();
        if seen.tip != Some(block) {
            seen.tip = Some(block);
            seen.tip_timestamp_ms = Some(timestamp_ms);
            seen.tip_moved_at_ms = now_ms;
        }
    }

    /// The source answered and its head is this one.
    pub fn source_head(&self, height: Height) {
        let now_ms = self.clock.now_ms();
        let mut seen = self.seen();
        if seen.source_head != Some(height) {
            seen.source_head = Some(height);
            seen.source_head_moved_at_ms = now_ms;
        }
        seen.source_answered_at_ms = Some(now_ms);
    }

    /// Ingest stopped and wants a person.
    pub fn halted(&self, message: impl Into<String>) {
        self.seen().halted = Some(message.into());
    }

    /// Derived work stopped and wants a person.
    pub fn derived_halted(&self, message: impl Into<String>) {
        self.seen().derived_halted = Some(message.into());
    }

    /// Jobs beside the workers fail with these errors; those that are absent went well.
    pub fn failing_jobs(&self, jobs: BTreeMap<&'static str, String>) {
        self.seen().failing_jobs = jobs;
    }

    /// What is wrong with the derived tables now, or nothing.
    pub fn tables(&self, trouble: Option<(ReadyState, String)>) {
        self.seen().tables = trouble;
    }

    /// Ingest waits for this, or for nothing.
    pub fn waits_for(&self, waiting: Option<Waiting>) {
        self.seen().waiting = waiting;
    }
}

impl Readiness for HealthState {
    fn report(&self) -> ReadinessReport {
        judge(&self.limits, self.clock.now_ms(), &self.observed())
    }
}

/// Works out a report from what was seen.
pub fn judge(limits: &ReadinessLimits, now_ms: u64, seen: &Observed) -> ReadinessReport {
    let since = |then_ms: u64| now_ms.saturating_sub(then_ms);
    let (tip, source_head) = (seen.tip.map(|tip| tip.height), seen.source_head);
    let goal = source_head.map(|head| seen.stop.map_or(head, |stop| stop.min(head)));
    let lag_blocks = tip.zip(goal).map(|(tip, goal)| goal.since(tip));
    let is_whole = tip.zip(seen.stop).is_some_and(|(tip, stop)| tip >= stop);
    let idle_ms = since(seen.tip_moved_at_ms);
    let tip_age_ms = seen.tip_timestamp_ms.map(since);
    let source_silent_ms = seen.source_answered_at_ms.map(since);
    // The value and its limit, where there are both and the value is above.
    let over =
        |value: Option<u64>, limit: Option<u64>| value.zip(limit).filter(|(value, limit)| value > limit);
    let is_idle = over(Some(idle_ms), limits.max_idle_ms).is_some();
    let source_is_heard = source_silent_ms.is_some() && over(source_silent_ms, limits.max_idle_ms).is_none();
    let seconds = |ms: u64| ms / 1000;
    let behind = tip.zip(source_head).filter(|(tip, head)| head < tip);
    let waits_for =
        seen.waiting.as_ref().map_or_else(String::new, |waiting| format!("; waiting: {}", waiting.reason));
    let (state, reason) = if let Some(message) = &seen.halted {
        (ReadyState::Halted, format!("ingest halted: {message}"))
    } else if let Some((state, reason)) =
        seen.waiting.as_ref().and_then(|waiting| Some((waiting.state?, &waiting.reason)))
    {
        (state, reason.clone())
    } else if tip.is_none() {
        (ReadyState::NoBlockYet, format!("no block is stored yet{waits_for}"))
    } else if let Some((lag, max)) = over(lag_blocks, limits.max_lag_blocks) {
        let reason = format!("{lag} blocks behind the source's head; {max} are allowed{waits_for}");
        (ReadyState::LaggingBlocks, reason)
    } else if let Some((tip, head)) = behind.filter(|_| !is_whole && is_idle && source_is_heard) {
        let reason = format!(
            "the source's head is {head}, below the newest block {tip} of this archive: is the node still synchronising, or was it put back?"
        );
        (ReadyState::SourceBehind, reason)
    } else if !is_whole && is_idle && source_is_heard && lag_blocks == Some(0) {
        let s = seconds(since(seen.source_head_moved_at_ms));
        let reason =
            format!("the source answers, but its own head has not moved for {s} s; this archive is at it");
        (ReadyState::ChainStalled, reason)
    } else if !is_whole && is_idle {
        let s = seconds(idle_ms);
        let source = match source_silent_ms {
            None => "the source has not been heard".to_owned(),
            Some(ms) if source_is_heard => format!("the source answered {} s ago", seconds(ms)),
            Some(ms) => format!("the source has been silent for {} s", seconds(ms)),
        };
        (ReadyState::Stale, format!("no new block for {s} s; {source}{waits_for}"))
    } else if let Some((age_ms, _)) = over(tip_age_ms, limits.max_tip_age_ms).filter(|_| !is_whole) {
        let s = seconds(age_ms);
        (ReadyState::LaggingSeconds, format!("the newest block is {s} s old"))
    } else if let Some(message) = &seen.derived_halted {
        (ReadyState::DerivedHalted, format!("derived work halted: {message}"))
    } else if let Some((state, reason)) = &seen.tables {
        (*state, reason.clone())
    } else if is_whole {
        (ReadyState::Ready, "the last height that is to be stored is there".to_owned())
    } else {
        (ReadyState::Ready, "fresh".to_owned())
    };
    ReadinessReport {
        ready: state == ReadyState::Ready,
        state,
        reason,
        tip,
        source_head,
        lag_blocks,
        tip_age_ms,
        idle_ms: tip.map(|_| idle_ms),
        source_silent_ms,
        failing_jobs: seen.failing_jobs.clone(),
    }
}

/// How often the log names an outage of the store that lasts.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Watches the store's head from outside, as a process that only serves does: tells `health` of every change, and wakes whoever watches
/// `new_head` (subscriptions). Looks every `poll_ms`, and whenever `hint` changes; ends when `cancel` is cancelled. A store that can't be read is a tip that doesn't
/// move: it shows in the report, and the next look tries again. The log names such an outage at once, each minute, and when it is over.
pub async fn watch_store(
    reader: Arc<dyn RawReader>,
    health: Arc<HealthState>,
    new_head: watch::Sender<u64>,
    poll_ms: u64,
    mut hint: watch::Receiver<()>,
    cancel: CancellationToken,
) {
    let mut last: Option<BlockRef> = None;
    // When the log last named the outage that lasts.
    let mut told: Option<Instant> = None;
    loop {
        let looked = look(&*reader, last).await;
        if looked.is_ok() && told.take().is_some() {
            tracing::info!("the store's head can be read again");
        }
        match looked {
            Ok(Some((tip, timestamp_ms))) => {
                health.tip(tip, timestamp_ms);
                new_head.send_modify(|count| *count += 1);
                last = Some(tip);
            }
            Ok(None) => {}
            // A store that nobody has ingested into is refused like this, and is nothing to be warned of.
            Err(StoreError::Invalid(_)) if last.is_none() => {
                tracing::debug!("the store was not initialised yet; whoever ingests does that");
            }
            Err(error) => {
                if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
                    told = Some(Instant::now());
                    tracing::warn!(%error, "the store's head can't be read; looking again until it can");
                }
            }
        }
        let hinted = async {
            // Nobody hints any more: only the poll is left.
            if hint.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(poll_ms.max(1))) => {}
            () = hinted => {}
        }
    }
}

/// The tip and its time, where it isn't `last`.
async fn look(
    reader: &dyn RawReader,
    last: Option<BlockRef>,
) -> cairn_store::Result<Option<(BlockRef, u64)>> {
    let head = reader.head().await?;
    if head.tip.is_none() || head.tip == last {
        return Ok(None);
    }
    let snapshot = reader.snapshot().await?;
    let Some(tip) = snapshot.head().tip else { return Ok(None) };
    let block = snapshot.block(tip.height, Parts::empty()).await?;
    Ok(block.map(|block| (tip, block.facts.timestamp_ms)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use cairn_core::SystemClock;
    use cairn_store::RawSnapshot;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// A store that is away.
    struct Away;

    #[async_trait]
    impl RawReader for Away {
        async fn snapshot(&self) -> cairn_store::Result<Arc<dyn RawSnapshot>> {
            Err(StoreError::Busy("away".into()))
        }
    }

    /// Counts the lines of the log.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicU64>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("cairn_api::health")
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_store_is_one_line_a_minute() {
        let lines = Lines::default();
        let _logging = tracing::subscriber::set_default(lines.clone());
        let health = Arc::new(HealthState::new(ReadinessLimits::default(), Arc::new(SystemClock)));
        let (new_head, _) = watch::channel(0);
        let (_hinting, hint) = watch::channel(());
        let watching = watch_store(Arc::new(Away), health, new_head, 250, hint, CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_secs(150), watching).await.is_err(), "it goes on");
        assert_eq!(lines.0.load(Ordering::Relaxed), 3);
    }
}
