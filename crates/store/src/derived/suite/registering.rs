//! `adopt`, `register`, pauses: what has to be there before any work.

use std::sync::Arc;

use cairn_core::Height;

use super::raw::Raw;
use super::subject::{START_MS, Subject};
use super::tables::MAPPER;
use super::{Case, CaseResult, DerivedFactory};
use crate::ReorgMark;
use crate::StoreError;
use crate::derived::fork::{DerivedCheckpoint, ForkState};
use crate::derived::lease::ClaimRequest;
use crate::suite::check::{is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("registering":
        nothing_is_read_before_a_raw_store_is_adopted,
        a_new_store_begins_at_the_newest_reorg,
        adopting_again_changes_nothing,
        another_raw_store_is_refused,
        a_service_is_registered_once,
        a_service_that_is_not_registered_does_nothing,
        a_paused_service_claims_nothing,
        a_store_that_was_only_opened_reopens_empty,
    )
}

async fn nothing_is_read_before_a_raw_store_is_adopted(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::bare(&factory, Raw::with(5, 1)).await?;
    same("what it follows", subject.store.forks().await?, None)?;
    let snapshot = subject.store.snapshot().await.map(|_| "a snapshot");
    refused("a snapshot of a store that follows nothing", snapshot, is_invalid)?;
    subject.store.adopt(subject.raw.uuid, subject.raw.newest()).await?;
    same("the checkpoints", subject.snapshot().await?.checkpoints(), &[])
}

async fn a_new_store_begins_at_the_newest_reorg(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut raw = Raw::with(9, 1);
    raw.fork(6);
    raw.fork(4);
    let subject = Subject::bare(&factory, raw).await?;
    let newest = subject.raw.newest();
    let expected = ForkState { raw_uuid: subject.raw.uuid, applied: newest, begun: newest };
    same("where it begins", subject.store.adopt(subject.raw.uuid, newest).await?, expected)?;
    same("where it stands", subject.store.forks().await?, Some(expected))?;
    same("where its snapshot stands", subject.snapshot().await?.forks(), &expected)
}

async fn adopting_again_changes_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(9, 1)).await?;
    let first = subject.forks().await?;
    subject.raw.fork(4);
    let newest = subject.raw.newest();
    same("adopted again", subject.store.adopt(subject.raw.uuid, newest).await?, first)?;
    subject.reopen().await?;
    same("after a restart", subject.store.adopt(subject.raw.uuid, newest).await?, first)
}

async fn another_raw_store_is_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(9, 1)).await?;
    let entry = subject.raw.fork(4);
    subject.apply(&entry, 100).await?;
    let before = subject.freeze().await?;
    let is_other = |error: &StoreError| matches!(error, StoreError::OtherRaw { .. });
    let newest = subject.raw.newest();
    refused("another uuid", subject.store.adopt([8; 16], newest).await, is_other)?;
    let shorter = ReorgMark { id: 0, digest: [0; 32] };
    refused("a shorter log", subject.store.adopt(subject.raw.uuid, shorter).await, is_other)?;
    let changed = ReorgMark { digest: [9; 32], ..newest };
    refused("another digest", subject.store.adopt(subject.raw.uuid, changed).await, is_other)?;
    subject.is_still(&before).await
}

async fn a_service_is_registered_once(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let expected = DerivedCheckpoint {
        service: "late".into(),
        next: Height(70),
        last_id: None,
        updated_at_ms: START_MS,
        paused: false,
        corrections: 0,
    };
    same("registered", subject.store.register("late", Height(70)).await?, expected.clone())?;
    subject.clock.advance_ms(5);
    same("registered again", subject.store.register("late", Height(3)).await?, expected.clone())?;
    same("as it is read", subject.checkpoint("late").await?, expected)?;
    let names: Vec<String> =
        subject.snapshot().await?.checkpoints().iter().map(|one| one.service.clone()).collect();
    same("the services by name", names, ["asker", "folder", "late", "mapper"].map(String::from).to_vec())
}

async fn a_service_that_is_not_registered_does_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let before = subject.freeze().await?;
    refused("a claim", subject.store.claim(&subject.request("nobody")).await, is_invalid)?;
    refused("a pause", subject.store.set_paused("nobody", true).await, is_invalid)?;
    let range = cairn_core::HeightRange::new(Height(0), Height(1));
    let reindexed = subject.store.request_reindex("nobody", 1, range, 10).await;
    refused("a reindex", reindexed, is_invalid)?;
    same("its checkpoint", subject.snapshot().await?.checkpoint("nobody"), None)?;
    subject.is_still(&before).await
}

async fn a_paused_service_claims_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.store.set_paused(MAPPER, true).await?;
    same("whether it is paused", subject.checkpoint(MAPPER).await?.paused, true)?;
    subject.reopen().await?;
    same("a claim of a paused service", subject.store.claim(&subject.request(MAPPER)).await?, None)?;
    // What is held is worked off.
    let committed = subject.commit(&lease, 5).await?;
    same("whether it is paused still", committed.checkpoint.paused, true)?;
    Subject::ends(&committed.checkpoint, 5, subject.raw.block(4).map(|block| block.id))?;
    subject.clock.advance_ms(1_000_000);
    same("an expired lease of a paused service", subject.store.claim(&subject.request(MAPPER)).await?, None)?;
    same("the lease, not reaped", subject.lease(lease.id).await?.fence, lease.fence)?;
    subject.store.register("other", Height(0)).await?;
    let other = ClaimRequest { service: "other".into(), ..subject.request(MAPPER) };
    subject.claim_as(&other).await?;
    subject.store.set_paused(MAPPER, false).await?;
    same("the lease after the pause", subject.claim(MAPPER).await?.id, lease.id)
}

async fn a_store_that_was_only_opened_reopens_empty(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::bare(&factory, Raw::new()).await?;
    subject.reopen().await?;
    same("what it follows", subject.store.forks().await?, None)?;
    same("its dump", subject.store.dump().await?.lines, Vec::new())
}
