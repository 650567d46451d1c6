//! What goes to the error log, and when.
//!
//! What can't be understood of a chunk is recorded before the chunk's commit: a crash in between loses nothing, and the same errors again are no more.
//! What ends a range is recorded before the lease is given back.
//!
//! Strangers choose how many events can't be understood, so a block may not fill the log: of those that are alike the first [`MAX_ROWS_ALIKE`] have a row each, of all
//! the first [`MAX_ROWS_A_BLOCK`], and the rest are a number in one more row. They are taken in the processor's order, so the same block leaves the same rows whenever it is read; metrics
//! count them all. A service that has too many open entries gets no more warnings; fatal ones, which name blocks and ranges without rows, are always recorded.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cairn_core::{BlockFacts, BlockRef, Height};
use cairn_store::StoreError;
use cairn_store::derived::{ErrorFilter, MAX_RAW_DATA_BYTES, NewError, Recorded, Severity, WorkerLease};
use tokio::time::Instant;

use super::context::Context;
use super::error::DeriveError;
use super::processor::{FaultLabels, Malformed, ProcessError, ServiceInfo};

/// Rows that one block may leave of a service, of events with the same reason, contract and topic.
const MAX_ROWS_ALIKE: usize = 16;
/// Rows that one block may leave of a service, those that stand for further ones left out.
const MAX_ROWS_A_BLOCK: usize = 128;

/// Open errors of one service at one height that are looked through. Blocks leave fewer; were there more, the entry of a dead range would be recorded, which it is once.
const MAX_OPEN_READ: usize = 1_000;

/// How often it is told at most that the error log has no room.
const DROPPED_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Something for the error log, and what metrics count it under.
pub(super) struct Report {
    pub error: NewError,
    /// How many events of which kind it stands for.
    counts: BTreeMap<FaultLabels, u64>,
}

/// What a processor could not understand of a block, in its order, as the error log has it.
pub(super) fn of_block_events(
    service: &ServiceInfo,
    block: &BlockFacts,
    events: Vec<Malformed>,
) -> Vec<Report> {
    let mut reports = Vec::new();
    let mut alike: BTreeMap<FaultLabels, Alike> = BTreeMap::new();
    // Those for which there is no room, of whatever kind.
    let mut others = Rest::default();
    for event in events {
        let kind = alike.entry(event.labels.clone()).or_default();
        if kind.rows == MAX_ROWS_ALIKE {
            kind.rest.add(&event);
        } else if reports.len() == MAX_ROWS_A_BLOCK {
            others.add(&event);
        } else {
            kind.rows += 1;
            reports.push(of_event(service, block, event));
        }
    }
    for (FaultLabels { reason, contract, topic }, kind) in alike {
        let of = match (contract.as_str(), topic.as_str()) {
            ("", "") => String::new(),
            _ => format!(", contract {contract}, event {topic}"),
        };
        let message =
            |more| format!("and {more} more like the first {MAX_ROWS_ALIKE} of this block: {reason}{of}");
        reports.extend(kind.rest.report(service, block, message));
    }
    let message = |more: u64| {
        format!(
            "and {more} more events of this block that can't be understood, of several contracts or kinds"
        )
    };
    reports.extend(others.report(service, block, message));
    reports
}

/// What a block has of one kind.
#[derive(Default)]
struct Alike {
    rows: usize,
    rest: Rest,
}

/// Events that have no row of their own.
#[derive(Default)]
struct Rest {
    counts: BTreeMap<FaultLabels, u64>,
    worst: Option<Severity>,
}

impl Rest {
    fn add(&mut self, event: &Malformed) {
        *self.counts.entry(event.labels.clone()).or_default() += 1;
        self.worst = self.worst.max(Some(event.severity));
    }

    /// The row that stands for them; `None`: there are none.
    fn report(
        self,
        service: &ServiceInfo,
        block: &BlockFacts,
        message: impl FnOnce(u64) -> String,
    ) -> Option<Report> {
        let severity = self.worst?;
        let error = NewError {
            service: service.name.into(),
            height: block.height,
            block_id: block.id,
            transaction_id: String::new(),
            severity,
            message: message(self.counts.values().sum()),
            raw_data: Vec::new(),
            raw_ref: Some(format!("raw:{}", block.height)),
        };
        Some(Report { error, counts: self.counts })
    }
}

fn of_event(service: &ServiceInfo, block: &BlockFacts, what: Malformed) -> Report {
    // Where the whole payload stands: the raw store's transaction, and the event in it.
    let raw_ref = (what.raw_data.len() >= MAX_RAW_DATA_BYTES).then(|| {
        let event = what.event_index.map(|index| format!("/{index}")).unwrap_or_default();
        format!("raw:{}/{}{event}", block.height, what.transaction_id)
    });
    let error = NewError {
        service: service.name.into(),
        height: block.height,
        block_id: block.id,
        transaction_id: what.transaction_id,
        severity: what.severity,
        message: what.message,
        raw_data: what.raw_data,
        raw_ref,
    };
    Report { error, counts: BTreeMap::from([(what.labels, 1)]) }
}

/// A block that a service can't process.
pub(super) fn of_block(service: &ServiceInfo, error: &ProcessError) -> Report {
    let counts = BTreeMap::from([(FaultLabels::only("block"), 1)]);
    Report { error: fatal(service, error.block, error.to_string()), counts }
}

/// Records what could not be understood and counts the events that are new. Returns how many those were.
pub(super) async fn record(
    context: &Context,
    service: &'static str,
    reports: Vec<Report>,
) -> Result<u64, StoreError> {
    // Those that stand for one event, by what it is counted under; of the others each has to say for itself whether it is new.
    let mut groups: BTreeMap<FaultLabels, Vec<NewError>> = BTreeMap::new();
    let mut rests = Vec::new();
    for Report { error, counts } in reports {
        match counts.first_key_value() {
            Some((labels, 1)) if counts.len() == 1 => {
                groups.entry(context.faults.bounded(labels.clone())).or_default().push(error);
            }
            _ => rests.push((error, counts)),
        }
    }
    let mut all = 0;
    let max_open = context.options.max_open_errors;
    for (labels, errors) in groups {
        let Recorded { new, dropped } = context.errors.record_within(&errors, max_open).await?;
        context.dropped.add(service, dropped, max_open);
        count(service, labels, new + dropped);
        all += new + dropped;
    }
    for (error, counts) in rests {
        let Recorded { new, dropped } = context.errors.record_within(&[error], max_open).await?;
        context.dropped.add(service, dropped, max_open);
        if new + dropped == 0 {
            continue;
        }
        for (labels, events) in counts {
            count(service, context.faults.bounded(labels), events);
            all += events;
        }
    }
    Ok(all)
}

/// Warnings that the error log had no room for, and when that was told last, by service.
#[derive(Default)]
pub(super) struct Dropped {
    told: Mutex<BTreeMap<&'static str, (Instant, u64)>>,
}

impl Dropped {
    /// Counts them, and tells of them at most once in [`DROPPED_TOLD_EVERY`].
    fn add(&self, service: &'static str, dropped: u64, max_open: u64) {
        if dropped == 0 {
            return;
        }
        metrics::counter!("cairn_errors_dropped_total", "service" => service).increment(dropped);
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = !told.contains_key(service);
        let (last, untold) = told.entry(service).or_insert((now, 0));
        *untold += dropped;
        if is_first || now - *last >= DROPPED_TOLD_EVERY {
            tracing::warn!(
                service,
                dropped = *untold,
                max_open,
                "the error log has as many open entries of this worker as derive.errors_max_per_worker allows: further warnings are counted and not recorded"
            );
            (*last, *untold) = (now, 0);
        }
    }
}

fn count(service: &'static str, labels: FaultLabels, events: u64) {
    let FaultLabels { reason, contract, topic } = labels;
    metrics::counter!(
        "cairn_malformed_events_total",
        "service" => service, "reason" => reason, "contract" => contract, "topic" => topic
    )
    .increment(events);
}

fn fatal(service: &ServiceInfo, block: BlockRef, message: String) -> NewError {
    NewError {
        service: service.name.into(),
        height: block.height,
        block_id: block.id,
        transaction_id: String::new(),
        severity: Severity::Fatal,
        message,
        raw_data: Vec::new(),
        raw_ref: Some(format!("raw:{}", block.height)),
    }
}

/// The stored block at a height. `None` also where it can't be read: it may be what ended the range.
async fn block_at(context: &Context, height: Height) -> Result<Option<BlockRef>, StoreError> {
    match context.raw.snapshot().await?.linked_ref(height).await {
        Ok(linked) => Ok(linked.map(|linked| linked.block)),
        Err(StoreError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Records what ends a range for good or for now, at its block or at the one that the range stands at.
pub(super) async fn of_end(
    context: &Context,
    service: &ServiceInfo,
    lease: &WorkerLease,
    error: &DeriveError,
) -> Result<(), DeriveError> {
    let block = match error {
        // The event itself is there already.
        DeriveError::Malformed { .. } => return Ok(()),
        DeriveError::Process(error) => Some(error.block),
        _ => block_at(context, lease.done_to).await?,
    };
    // Chains skip heights: then it is the lease that says what went wrong.
    if let Some(block) = block {
        context.errors.record(&[fatal(service, block, error.to_string())]).await?;
    }
    Ok(())
}

/// Records a range that waits for an operator, unless the log says already that a range can't get on at the height that it stands at. One that ended every process that worked on it has
/// left no other word; and what is open there of single events says nothing of the range.
pub(super) async fn of_dead(context: &Context, lease: &WorkerLease) -> Result<(), StoreError> {
    let open = ErrorFilter {
        service: Some(lease.service.clone()),
        height: Some(lease.done_to),
        limit: MAX_OPEN_READ,
        ..ErrorFilter::default()
    };
    if context.errors.list(&open).await?.iter().any(|known| known.error.severity == Severity::Fatal) {
        return Ok(());
    }
    let block = block_at(context, lease.done_to).await?;
    let WorkerLease { service, range, attempt, last_error, .. } = lease;
    let error = NewError {
        service: service.clone(),
        height: lease.done_to,
        block_id: block.map(|block| block.id).unwrap_or_default(),
        transaction_id: String::new(),
        severity: Severity::Fatal,
        message: format!("heights {range} failed {attempt} times and wait for an operator: {last_error}"),
        raw_data: Vec::new(),
        raw_ref: None,
    };
    context.errors.record(&[error]).await.map(drop)
}
