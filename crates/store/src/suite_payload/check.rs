//! What cases have in common.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_core::SystemClock;

use super::TestRegistry;
use crate::suite::{CaseResult, Failure};
use crate::{
    CollectOptions, Collected, MemoryPayloads, OffloadOptions, PayloadContent, PayloadHash, PayloadRef,
    PayloadState, PayloadStore, Result, collect_orphans, offload,
};

/// A grace time that nothing outlives here.
pub(super) const HOUR_MS: u64 = 3_600_000;

/// A grace time that [`pause`] outlives.
pub(super) const SHORT_MS: u64 = 1;

#[track_caller]
pub(super) fn holds(condition: bool, what: impl Into<String>) -> CaseResult {
    if condition { Ok(()) } else { Err(Failure::new(what)) }
}

#[track_caller]
pub(super) fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> CaseResult {
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: found {found:?}, expected {expected:?}")))
}

/// Longer than [`SHORT_MS`] by any clock.
pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_millis(SHORT_MS + 4)).await;
}

const OWNER: &str = "the database";

/// A body that depends on `seed`.
pub(super) fn body(seed: u64) -> Bytes {
    Bytes::from(format!("payload {seed} {}", "x".repeat((seed % 50) as usize)))
}

pub(super) fn content(seed: u64) -> PayloadContent {
    let body = body(seed);
    PayloadContent { hash: PayloadHash::of(&body), size_bytes: body.len() as u64 }
}

pub(super) fn memory_payloads() -> MemoryPayloads {
    MemoryPayloads::new(Arc::new(SystemClock))
}

/// Reserves the object of one body.
pub(super) async fn reserve(registry: &dyn TestRegistry, seed: u64) -> CaseResult<PayloadRef> {
    let reserved = registry.reserve(&[content(seed)]).await?;
    match reserved.as_slice() {
        [one] => Ok(one.object),
        other => Err(Failure::new(format!("reserved {} objects for one content", other.len()))),
    }
}

/// Makes `object` live and refers to it from `place`.
pub(super) async fn commit(registry: &dyn TestRegistry, place: u64, object: PayloadRef) -> CaseResult {
    let mut tx = registry.begin().await?;
    let lost = tx.make_live(&[object]).await?;
    same("lost objects", lost, vec![])?;
    tx.refer(place, object).await?;
    Ok(tx.commit().await?)
}

/// Deletes the row at `place`.
pub(super) async fn forget(registry: &dyn TestRegistry, place: u64) -> CaseResult {
    let mut tx = registry.begin().await?;
    tx.forget(place).await?;
    Ok(tx.commit().await?)
}

/// A row that is live and that nothing refers to.
pub(super) async fn unneeded(registry: &dyn TestRegistry, seed: u64) -> CaseResult<PayloadRef> {
    let object = reserve(registry, seed).await?;
    commit(registry, seed, object).await?;
    forget(registry, seed).await?;
    Ok(object)
}

pub(super) async fn state_of(
    registry: &dyn TestRegistry,
    object: PayloadRef,
) -> CaseResult<Option<PayloadState>> {
    Ok(registry.rows().await?.into_iter().find(|row| row.object == object).map(|row| row.state))
}

/// Marks everything dead that nothing refers to.
pub(super) async fn mark_all_dead(registry: &dyn TestRegistry) -> CaseResult<u64> {
    pause().await;
    let (mut after, mut dead) = (None, 0);
    loop {
        let step = registry.mark_dead(SHORT_MS, after, 100).await?;
        dead += step.dead;
        match step.next {
            Some(next) => after = Some(next),
            None => return Ok(dead),
        }
    }
}

/// Moves everything to deleting that is dead.
pub(super) async fn begin_delete_all(registry: &dyn TestRegistry) -> CaseResult<Vec<PayloadRef>> {
    pause().await;
    let mut all = Vec::new();
    loop {
        let rows = registry.begin_delete(SHORT_MS, 100).await?;
        if rows.is_empty() {
            return Ok(all);
        }
        let deleting = rows.into_iter().filter(|row| row.state == PayloadState::Deleting);
        all.extend(deleting.map(|row| row.object));
    }
}

/// The writer's whole protocol for one batch: bodies by place. Answers how often it had to begin again.
pub(super) async fn write(
    store: &dyn PayloadStore,
    registry: &dyn TestRegistry,
    batch: &[(u64, Bytes)],
) -> Result<u32> {
    let bodies: Vec<Bytes> = batch.iter().map(|(_, body)| body.clone()).collect();
    for again in 0.. {
        let objects = offload(store, registry, &bodies, OffloadOptions::default()).await?;
        let mut tx = registry.begin().await?;
        if !tx.make_live(&objects).await?.is_empty() {
            continue;
        }
        for ((place, _), object) in batch.iter().zip(objects) {
            tx.refer(*place, object).await?;
        }
        tx.commit().await?;
        return Ok(again);
    }
    Ok(u32::MAX)
}

/// One run of the collector with a short grace time.
pub(super) async fn collect(store: &dyn PayloadStore, registry: &dyn TestRegistry) -> Result<Collected> {
    pause().await;
    let options = CollectOptions {
        grace_ms: SHORT_MS,
        longest_lease_ms: 0,
        page: 3,
        max_deletes: 2,
        ..CollectOptions::default()
    };
    collect_orphans(store, registry, OWNER, &SystemClock, options).await
}

/// Everything that is referred to is live, and its object is there with its content.
pub(super) async fn consistent(store: &dyn PayloadStore, registry: &dyn TestRegistry) -> CaseResult {
    for (place, object) in registry.references().await? {
        let state = state_of(registry, object).await?;
        same(&format!("the state of {object} at place {place}"), state, Some(PayloadState::Live))?;
        if let Err(error) = store.get(object, None).await {
            return Err(Failure::new(format!("place {place}: {error}")));
        }
    }
    Ok(())
}
