//! `init` and `acquire`: whose store it is, and who writes it.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{ChainId, Fence, Height, HeightRange, Parts};

use super::blocks::chain;
use super::check::{holds, is_fenced, is_invalid, refused, same};
use super::subject::{Subject, batch, info, rollback};
use super::{Case, CaseResult, StoreFactory};
use crate::{HeadRow, LogQuery, StoreError, StoreInfo};

pub(super) fn cases() -> Vec<Case> {
    case_list!("initialising":
        a_store_that_was_not_initialised_refuses_every_verb,
        a_new_store_is_empty,
        the_uuid_is_kept_and_a_given_configuration_replaces_the_stored_one,
        another_chain_is_refused,
        every_acquisition_raises_the_fence,
    )
}

async fn a_store_that_was_not_initialised_refuses_every_verb(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let subject = Subject::bare(&factory).await?;
    let store = &subject.store;
    let blocks = chain(0, 2, 0);
    refused("snapshot", store.snapshot().await.map(|_| ()), is_invalid)?;
    refused("dump", store.dump().await, is_invalid)?;
    refused("acquire", store.acquire().await, is_invalid)?;
    refused("append", store.append(Fence(0), batch(&blocks)).await, is_invalid)?;
    refused("finalize", store.finalize(Fence(0), None, None).await, is_invalid)?;
    refused("rollback", store.rollback(Fence(0), rollback(blocks[0].block_ref())).await, is_invalid)?;
    refused("purge_step", store.purge_step(Fence(0), 1).await, is_invalid)?;
    refused("prune_orphans", store.prune_orphans(Fence(0), 1, 1).await, is_invalid)?;
    refused("claim_range", store.claim_range("w", 1, 10, Height(10)).await, is_invalid)?;
    refused("advance", store.advance(Fence(0)).await, is_invalid)?;
    let head = store.init(info()).await?;
    same("the head row after init", head, HeadRow::new(info()))
}

async fn a_new_store_is_empty(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let subject = Subject::new(&factory).await?;
    subject.shows(&[]).await?;
    let snapshot = subject.snapshot().await?;
    let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
    same("block 0", snapshot.block(Height::ZERO, Parts::all()).await?, None)?;
    same("blocks", snapshot.blocks(all, Parts::all(), u64::MAX).await?.blocks.len(), 0)?;
    same("candidates", snapshot.log_candidates(all, &LogQuery::default(), 10).await?, vec![])?;
    same("reorgs", snapshot.reorgs(0, 10).await?, vec![])?;
    same("leases", snapshot.raw_leases().await?, vec![])?;
    same("stored finality", snapshot.head().stored_finalized(), None)?;
    snapshot.sizes().await?;
    subject.settle().await?;
    let missing = snapshot.blocks_at(&[Height::ZERO], Parts::empty(), 1).await;
    refused(
        "a block that is not there",
        missing,
        |error| matches!(error, StoreError::Missing { missing } if *missing == HeightRange::one(Height::ZERO)),
    )?;
    subject.dumps_as(&[]).await
}

async fn the_uuid_is_kept_and_a_given_configuration_replaces_the_stored_one(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let blocks = chain(0, 3, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let with_config = |config: &'static [u8]| StoreInfo {
        uuid: [9; 16],
        chain_config: Bytes::from_static(config),
        ..info()
    };
    for (given, kept) in
        [(&b""[..], &b""[..]), (b"{\"a\":1}", b"{\"a\":1}"), (b"", b"{\"a\":1}"), (b"{}", b"{}")]
    {
        let head = subject.store.init(with_config(given)).await?;
        same("the uuid", head.info.uuid, info().uuid)?;
        same("the chain configuration", &head.info.chain_config[..], kept)?;
        same("the head row that is read", subject.head().await?, head)?;
    }
    // Init takes nothing over: the fence still holds.
    same("the fence", subject.head().await?.fence, subject.fence)?;
    let subject = subject.restart().await?;
    same("the uuid after a restart", subject.head().await?.info.uuid, info().uuid)?;
    same("the configuration after a restart", &subject.head().await?.info.chain_config[..], b"{}")?;
    subject.shows(&blocks).await
}

async fn another_chain_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let subject = Subject::with(&factory, &chain(0, 2, 0)).await?;
    let before = subject.head().await?;
    let other = StoreInfo { chain_id: ChainId(1), chain_config: Bytes::from_static(b"{}"), ..info() };
    refused("init for another chain", subject.store.init(other).await, |error| {
        matches!(error, StoreError::WrongChain { stored: ChainId(1337), offered: ChainId(1) })
    })?;
    same("the head row", subject.head().await?, before)
}

async fn every_acquisition_raises_the_fence(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory).await?;
    let first = subject.fence;
    holds(first >= Fence(1), "the first fence is 0, which nobody may hold")?;
    subject.acquire().await?;
    let subject = subject.restart().await?;
    for dead in [Fence(0), first, Fence(subject.fence.0 - 1), Fence(subject.fence.0 + 1)] {
        let answer = subject.store.append(dead, batch(&chain(0, 1, 0))).await;
        let error = refused("append under another fence", answer, is_fenced)?;
        let StoreError::Fenced { held, current, .. } = error else { continue };
        same("the fences that it names", (held, current), (dead, subject.fence))?;
    }
    subject.shows(&[]).await
}
