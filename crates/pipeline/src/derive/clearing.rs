//! Rebuilds that somebody began and left: what such a service made before is deleted to the end, so that it begins anew.
//!
//! Whoever asks for a rebuild takes its steps by itself, and may be killed between two of them. Any number of processes may look after that; a step is one transaction of the store,
//! and taking one more changes nothing. One that is being worked on is left alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_store::StoreError;

use super::context::Context;
use super::error::DeriveError;

/// Rows deleted in one transaction.
const STEP_ROWS: usize = 20_000;

/// Looks, at each round, for rebuilds of which no step was taken since the last, and finishes their clearing.
pub(super) async fn run(context: Arc<Context>) -> Result<(), DeriveError> {
    let pause = Duration::from_millis(context.options.clear_ms.max(1));
    let mut seen = BTreeMap::new();
    while !context.stop.is_cancelled() {
        let looked = round(&context, &mut seen).await;
        context.beside("clear", looked);
        tokio::select! {
            biased;
            () = context.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    Ok(())
}

/// `seen` is how many steps there were at the last round, by service.
async fn round(context: &Context, seen: &mut BTreeMap<String, u64>) -> Result<(), StoreError> {
    let snapshot = context.app.snapshot().await?;
    let now: BTreeMap<String, u64> = snapshot
        .rebuilds()
        .iter()
        .filter(|rebuild| rebuild.is_clearing)
        .map(|rebuild| (rebuild.service.clone(), rebuild.steps))
        .collect();
    drop(snapshot);
    let before = std::mem::replace(seen, now.clone());
    let mut failed = None;
    for (service, steps) in now {
        if before.get(&service) != Some(&steps) {
            continue;
        }
        tracing::warn!(
            service,
            "a reset of this worker was begun and not finished; this process finishes it"
        );
        match clear(context, &service).await {
            Ok(()) => {
                seen.remove(&service);
                context.wake.tick();
            }
            // The others are not in its way.
            Err(error) => {
                tracing::warn!(service, %error, "a reset could not be finished; it is tried again");
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn clear(context: &Context, service: &str) -> Result<(), StoreError> {
    while !context.stop.is_cancelled() && context.app.reset_step(service, STEP_ROWS).await? {}
    Ok(())
}
