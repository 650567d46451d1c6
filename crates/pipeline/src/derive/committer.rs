//! The committer: repairs checkpoints (5 s), reaps expired leases (30 s), and looks for gaps, dead leases, errors of dead forks and
//! whatever stands on none of the raw store's blocks (60 s).
//!
//! Any number of processes may run one; each job is one transaction, and doing it twice changes nothing. A job that fails is done again at its next time, whatever it failed with; only
//! an app store that stands on no block of the raw store ends derived work.

use std::sync::Arc;
use std::time::Duration;

use cairn_store::StoreError;
use cairn_store::derived::{LeaseGap, rules};
use tokio::time::{Instant, sleep_until};

use super::context::Context;
use super::error::DeriveError;
use super::{orphans, report, standing, worker};

/// At most so many gaps and dead leases are named.
const NAMED: usize = 100;
/// Statements of one reaping; what is left waits for the next.
const REAP_STATEMENTS: usize = 64;

pub(super) async fn run(context: Arc<Context>) -> Result<(), DeriveError> {
    let options = &context.options;
    let [repair, reap, detect] =
        [options.repair_ms, options.reap_ms, options.detect_ms].map(|ms| Duration::from_millis(ms.max(1)));
    let now = Instant::now();
    let (mut next_repair, mut next_reap, mut next_detect) = (now + repair, now + reap, now + detect);
    let mut lacked = false;
    loop {
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return Ok(()),
            () = sleep_until(next_repair) => {
                context.beside("repair", repair_checkpoints(&context).await);
                next_repair = Instant::now() + repair;
            }
            () = sleep_until(next_reap) => {
                context.beside("reap", reap_expired(&context).await);
                next_reap = Instant::now() + reap;
            }
            () = sleep_until(next_detect) => {
                context.beside("detect", look(&context).await);
                context.beside("forget", orphans::forget_errors(&context).await);
                stand(&context, &mut lacked).await?;
                next_detect = Instant::now() + detect;
            }
        }
    }
}

/// Ends where the raw store isn't any more what was derived from. `lacked` is whether it lacked reorgs at the last look: a server that no longer takes writes may answer once while
/// another takes its place.
async fn stand(context: &Context, lacked: &mut bool) -> Result<(), DeriveError> {
    let looked = match standing::lost_reorg(context).await {
        Ok(Some(error)) if *lacked => Err(error),
        Ok(lost) => {
            *lacked = lost.is_some();
            standing::demand(context, None).await
        }
        Err(error) => Err(error),
    };
    match looked {
        Err(error) if worker::ends_all(&error) => Err(error),
        // A raw row that can't be read stops the ranges that need it, and not all work.
        looked => {
            context.beside("stand", looked);
            Ok(())
        }
    }
}

pub(super) async fn repair_checkpoints(context: &Context) -> Result<(), StoreError> {
    let repairs = context.app.repair_checkpoints().await?;
    for checkpoint in &repairs.moved {
        tracing::debug!(service = checkpoint.service, next = %checkpoint.next, "checkpoint moved");
        context.board.moved(checkpoint);
    }
    for alarm in &repairs.alarms {
        metrics::counter!("cairn_seam_alarms_total").increment(1);
        tracing::error!(
            service = alarm.service,
            at = %alarm.at,
            last_id = %alarm.last_id,
            first_parent = %alarm.first_parent,
            "CRITICAL: two ranges lie side by side on different forks; the checkpoint stops there. `cairn leases reset --worker {} --from {}` takes the upper one back, and all above it, to be derived anew",
            alarm.service,
            alarm.at
        );
    }
    context.board.seams(repairs.alarms);
    for service in &repairs.rebuilt {
        tracing::info!(service, "a worker that began anew is where it was before: it is shown again");
    }
    if !repairs.moved.is_empty() {
        context.wake.tick();
    }
    Ok(())
}

pub(super) async fn reap_expired(context: &Context) -> Result<(), StoreError> {
    let batch = context.options.reap_batch.max(1);
    for _ in 0..REAP_STATEMENTS {
        let reaped = context.app.reap(batch).await?;
        for lease in &reaped {
            metrics::counter!("cairn_leases_reaped_total").increment(1);
            tracing::warn!(
                service = lease.service,
                range = %lease.range,
                owner = lease.owner,
                attempt = lease.attempt,
                "a lease had expired; it can be reclaimed"
            );
        }
        if !reaped.is_empty() {
            context.wake.tick();
        }
        if reaped.len() < batch {
            break;
        }
    }
    Ok(())
}

async fn look(context: &Context) -> Result<(), StoreError> {
    let gaps = context.app.lease_gaps(NAMED).await?;
    let snapshot = context.app.snapshot().await?;
    let mut open = Vec::new();
    for gap in &gaps {
        let LeaseGap { service, missing } = gap;
        if snapshot.checkpoint(service).is_some_and(|checkpoint| checkpoint.next >= missing.end()) {
            tracing::warn!(
                service,
                %missing,
                "no lease covers these heights: it is lost, and the checkpoint above them says that they are derived. Where that is doubted, `cairn reindex --worker {service}` makes them again"
            );
            continue;
        }
        tracing::error!(
            service,
            %missing,
            "CRITICAL: no lease covers these heights, and the checkpoint stops there. `cairn leases reset --worker {service} --from {}` takes back what lies above them, and both are derived anew",
            missing.end()
        );
        open.push(gap.clone());
    }
    drop(snapshot);
    let dead = context.app.dead_leases(NAMED).await?;
    let (taken_back, failed): (Vec<_>, Vec<_>) = dead.iter().partition(|lease| rules::is_taken_back(lease));
    for lease in taken_back {
        tracing::error!(
            lease = lease.id,
            service = lease.service,
            range = %lease.range,
            "CRITICAL: a range blocks its checkpoint: {}",
            lease.last_error
        );
    }
    for lease in failed {
        tracing::error!(
            lease = lease.id,
            service = lease.service,
            range = %lease.range,
            done_to = %lease.done_to,
            attempt = lease.attempt,
            error = lease.last_error,
            "CRITICAL: a range failed too often and blocks its checkpoint. Mend the cause, then `cairn leases retry {}`",
            lease.id
        );
        if let Err(error) = report::of_dead(context, lease).await {
            tracing::warn!(lease = lease.id, %error, "the error log could not be written");
        }
    }
    metrics::gauge!("cairn_lease_gaps").set(gaps.len() as f64);
    metrics::gauge!("cairn_dead_leases").set(dead.len() as f64);
    context.board.update(|status| {
        status.lease_gaps = gaps.len() as u64;
        status.open_gaps = open;
        status.dead_leases = dead.len() as u64;
    });
    Ok(())
}
