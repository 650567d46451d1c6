//! Applying the raw store's reorg log to the derived side, entry by entry. Any number of processes may try at once; the store
//! lets one transaction in at a time, and whoever was slower reads again.

use std::sync::Arc;
use std::time::Duration;

use cairn_core::ErrorKind;
use cairn_store::derived::rules::demand_raw;
use cairn_store::derived::{ApplyProgress, ForkState};
use cairn_store::{ReorgEntry, StoreError};
use tokio::time::Instant;

use super::context::Context;
use super::error::DeriveError;
use super::worker::ends_all;
use super::{ahead, standing};
use crate::backoff::Backoff;

/// How many entries are read at once.
const ENTRIES_PER_READ: usize = 32;

/// Adopts the raw store, or checks that it is the one that was followed before. Waits for it to be there.
pub(super) async fn adopt(context: &Context) -> Result<Option<ForkState>, DeriveError> {
    let mut backoff = Backoff::new(100, 5_000, context.options.seed);
    while !context.stop.is_cancelled() {
        match try_adopt(context).await {
            Ok(state) => {
                context.beside("adopt", Ok::<_, DeriveError>(()));
                return Ok(Some(state));
            }
            Err(error) if ends_all(&error) => return Err(error),
            Err(error) => {
                context.beside("adopt", Err::<(), _>(error));
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => {}
                    () = tokio::time::sleep(backoff.next_pause()) => {}
                }
            }
        }
    }
    Ok(None)
}

/// First what the app store says, then the raw store: a raw store that is looked at later is at least as far.
async fn try_adopt(context: &Context) -> Result<ForkState, DeriveError> {
    let Some(state) = context.app.forks().await? else {
        let head = context.raw.snapshot().await?.head().clone();
        return match context.app.adopt(head.info.uuid, head.newest_reorg).await {
            Ok(state) => Ok(state),
            // Another process adopted it meanwhile, and may have applied what came since: look again.
            Err(StoreError::OtherRaw { .. }) if context.app.forks().await?.is_some() => {
                Err(super::read::not_yet("the raw store, which another process adopts"))
            }
            Err(error) => Err(error.into()),
        };
    };
    let snapshot = context.raw.snapshot().await?;
    let head = snapshot.head();
    demand_raw(&state, head.info.uuid, head.newest_reorg)?;
    let applied = state.applied;
    if applied.id > 0 {
        let entry = snapshot.reorgs(applied.id - 1, 1).await?.into_iter().next();
        if entry.is_none_or(|entry| entry.id != applied.id || entry.digest != applied.digest) {
            return Err(other(format!("reorg {} has another digest", applied.id)));
        }
    }
    Ok(state)
}

fn other(what: String) -> DeriveError {
    StoreError::OtherRaw { what }.into()
}

/// For so long what was applied is taken for applied: a failover of the database may take the newest commits back.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// Applies entries as they come until told to stop.
pub(super) async fn run(context: Arc<Context>) -> Result<(), DeriveError> {
    let mut listener = context.wake.listen();
    let mut backoff = Backoff::new(50, 2_000, context.options.seed ^ 0xa991);
    let poll = Duration::from_millis(context.options.poll_ms);
    let mut known = None;
    while !context.stop.is_cancelled() {
        match apply_new(&context, &mut known).await {
            Ok(0) => {
                context.beside("apply", Ok::<_, DeriveError>(()));
                backoff.reset();
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => {}
                    () = listener.wait(poll) => {}
                }
            }
            Ok(_) => {
                context.beside("apply", Ok::<_, DeriveError>(()));
                context.wake.tick();
            }
            Err(error) if ends_all(&error) => return Err(error),
            Err(error) => {
                // Another's step, or a reorg that is not wholly in the raw store yet, is nothing to tell of.
                match error.kind() {
                    ErrorKind::Wait => tracing::debug!(%error, "a reorg waits to be applied"),
                    _ => drop(context.beside("apply", Err::<(), _>(error))),
                }
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => {}
                    () = tokio::time::sleep(backoff.next_pause()) => {}
                }
            }
        }
    }
    Ok(())
}

/// Applies what is there; returns how many entries. `known` is the newest one that was applied, and when that was seen.
async fn apply_new(context: &Context, known: &mut Option<(u64, Instant)>) -> Result<u64, DeriveError> {
    let newest = context.wake.head().map_or(0, |head| head.newest_reorg.id);
    if known.is_some_and(|(known, seen)| newest <= known && seen.elapsed() < KNOWN_FOR) {
        return Ok(0);
    }
    let Some(state) = context.app.forks().await? else { return Ok(0) };
    *known = Some((state.applied.id, Instant::now()));
    if newest <= state.applied.id {
        return Ok(0);
    }
    let snapshot = context.raw.snapshot().await?;
    if snapshot.head().info.uuid != state.raw_uuid {
        return Err(other("its uuid is another".into()));
    }
    let entries = snapshot.reorgs(state.applied.id, ENTRIES_PER_READ).await?;
    drop(snapshot);
    let mut applied = 0;
    for entry in entries {
        match apply(context, &entry).await {
            Ok(()) => applied += 1,
            // Another process was quicker.
            Err(DeriveError::Store(StoreError::Applied { .. })) => return Ok(applied + 1),
            Err(error) => return Err(error),
        }
    }
    Ok(applied)
}

async fn apply(context: &Context, entry: &ReorgEntry) -> Result<(), DeriveError> {
    let app = &context.app;
    standing::demand_taken(context, entry).await?;
    tracing::info!(reorg = entry.id, common = %entry.common, orphans = entry.orphans.len(), "applying a reorg");
    context.board.update(|status| status.applying = true);
    app.begin_apply(entry).await?;
    ahead::begin_anew(context, entry).await?;
    while app.apply_step(entry.id, context.options.apply_rows).await? == ApplyProgress::More {
        // The gate is free between steps: commits far below the reorg go on.
        tokio::task::yield_now().await;
    }
    context.board.took_above(entry.common.height);
    // Before the end: whoever dies in between does it again. Until the end no chunk with these heights is committed, so none that may come back is forgotten.
    let orphans: Vec<_> = entry.orphans.iter().map(|orphan| orphan.block.id).collect();
    context.errors.forget_blocks(&orphans).await?;
    app.finish_apply(entry.id).await?;
    context.board.update(|status| {
        status.applying = false;
        status.reorgs_applied += 1;
    });
    metrics::counter!("cairn_reorgs_applied_total").increment(1);
    Ok(())
}
