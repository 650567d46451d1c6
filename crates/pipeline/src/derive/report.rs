//! What goes to the error log, and when.
//!
//! What can't be understood of a chunk is recorded before the chunk's commit: a crash in between loses nothing, and the same errors again are no more.
//! What ends a range is recorded before the lease is given back.

use std::collections::BTreeMap;

use cairn_core::{BlockFacts, BlockRef};
use cairn_store::StoreError;
use cairn_store::derived::{MAX_RAW_DATA_BYTES, NewError, Severity, WorkerLease};

use super::context::Context;
use super::error::DeriveError;
use super::processor::{FaultLabels, Malformed, ProcessError, ServiceInfo};

/// Something for the error log, and what metrics count it under.
pub(super) struct Report {
    pub error: NewError,
    pub labels: FaultLabels,
}

/// What a processor could not understand of a block, as the error log has it.
pub(super) fn of_event(service: &ServiceInfo, block: &BlockFacts, what: Malformed) -> Report {
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
    Report { error, labels: what.labels }
}

/// A block that a service can't process.
pub(super) fn of_block(service: &ServiceInfo, error: &ProcessError) -> Report {
    Report { error: fatal(service, error.block, error.to_string()), labels: FaultLabels::only("block") }
}

/// Records what could not be understood and counts what is new. Returns how much that was.
pub(super) async fn record(
    context: &Context,
    service: &'static str,
    reports: Vec<Report>,
) -> Result<u64, StoreError> {
    let mut groups: BTreeMap<FaultLabels, Vec<NewError>> = BTreeMap::new();
    for report in reports {
        groups.entry(context.faults.bounded(report.labels)).or_default().push(report.error);
    }
    let mut all = 0;
    for (labels, errors) in groups {
        let new = context.errors.record(&errors).await?;
        let FaultLabels { reason, contract, topic } = labels;
        metrics::counter!(
            "cairn_malformed_events_total",
            "service" => service, "reason" => reason, "contract" => contract, "topic" => topic
        )
        .increment(new);
        all += new;
    }
    Ok(all)
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
        _ => context.raw.snapshot().await?.linked_ref(lease.done_to).await?.map(|linked| linked.block),
    };
    // Chains skip heights: then it is the lease that says what went wrong.
    if let Some(block) = block {
        context.errors.record(&[fatal(service, block, error.to_string())]).await?;
    }
    Ok(())
}
