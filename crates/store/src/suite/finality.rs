//! `finalize`, and the marks that come with `append`: finality only grows, and contradicts nothing.

use std::sync::Arc;

use cairn_core::{BlockRef, Height};

use super::blocks::{chain, fork};
use super::check::{Failure, is_below_finality, is_purge_pending, refused, same};
use super::subject::Subject;
use super::{Case, CaseResult, StoreFactory};
use crate::{AppendBatch, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("finality":
        the_finalised_mark_only_grows,
        a_mark_that_contradicts_a_stored_block_is_refused,
        a_mark_above_the_tip_binds_the_blocks_to_come,
        marks_come_with_an_append_under_the_same_rules,
        a_mark_below_the_first_height_is_taken_as_it_comes,
        the_safe_mark_follows_stored_blocks_and_may_move_back,
        marks_are_kept_before_the_first_block_and_during_a_purge,
    )
}

async fn the_finalised_mark_only_grows(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    same("finality at first", subject.head().await?.finalized, None)?;
    for (offered, kept) in [(3, 3), (8, 8), (5, 8), (0, 8), (8, 8), (19, 19), (18, 19)] {
        let head = subject.finalize(&blocks[offered]).await?;
        same("the finalised mark", head.finalized, Some(blocks[kept].block_ref()))?;
        same("the head row that is read", subject.head().await?, head)?;
    }
    let head = subject.store.finalize(subject.fence, None, None).await?;
    same("the mark after nothing was said", head.finalized, Some(blocks[19].block_ref()))?;
    // Another block at or below the mark is ignored as well: it is not above it.
    let other = fork(&blocks, 9, 10, 1);
    for block in [&other[19], &other[12]] {
        same(
            "a mark that is not above",
            subject.finalize(block).await?.finalized,
            Some(blocks[19].block_ref()),
        )?;
    }
    let subject = subject.restart().await?;
    same("the mark after a restart", subject.head().await?.finalized, Some(blocks[19].block_ref()))?;
    subject.dumps_as(&blocks).await
}

async fn a_mark_that_contradicts_a_stored_block_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let other = fork(&blocks, 9, 10, 1);
    let subject = Subject::with(&factory, &blocks).await?;
    subject.finalize(&blocks[4]).await?;
    let before = subject.freeze().await?;
    for at in [10, 15, 19] {
        let error = refused("a contradiction", subject.finalize(&other[at]).await, is_below_finality)?;
        let StoreError::BelowFinality { finalized, asked } = error else { continue };
        same("what it names", (finalized, asked), (other[at].block_ref(), blocks[at].block_ref()))?;
    }
    subject.is_still(&before).await
}

async fn a_mark_above_the_tip_binds_the_blocks_to_come(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let other = fork(&blocks, 9, 10, 1);
    let subject = Subject::with(&factory, &blocks[..8]).await?;
    let head = subject.finalize(&blocks[12]).await?;
    same("the mark", head.finalized, Some(blocks[12].block_ref()))?;
    same("finality as far as it is stored", head.stored_finalized(), Some(Height(7)))?;
    // Below finality nothing is undone, even where the stored chain is shorter.
    refused("a rollback", subject.roll_back(&blocks[5]).await, is_below_finality)?;
    // A fork that forks off below the mark is found out when it reaches the mark.
    subject.append(&other[8..11]).await?;
    let before = subject.freeze().await?;
    let error = refused("another block", subject.append(&other[11..15]).await, is_below_finality)?;
    if let StoreError::BelowFinality { finalized, asked } = error {
        same("what it names", (finalized, asked), (blocks[12].block_ref(), other[12].block_ref()))?;
    }
    refused("another block alone", subject.append(&other[11..13]).await, is_below_finality)?;
    subject.is_still(&before).await?;
    subject.append(&other[11..12]).await?;

    let subject = Subject::with(&factory, &blocks[..8]).await?;
    subject.finalize(&blocks[12]).await?;
    subject.append(&blocks[8..12]).await?;
    let head = subject.append(&blocks[12..]).await?;
    same("finality, stored", head.stored_finalized(), Some(Height(12)))?;
    subject.shows(&blocks).await
}

async fn marks_come_with_an_append_under_the_same_rules(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 30, 0);
    let other = fork(&blocks, 3, 26, 1);
    let subject = Subject::with(&factory, &blocks[..10]).await?;
    let append = |from: usize, to: usize, finalized: Option<BlockRef>| {
        let batch = AppendBatch { blocks: blocks[from..to].to_vec(), finalized, safe: finalized };
        subject.store.append(subject.fence, batch)
    };
    // Below the batch, inside it, its last block, above it; then one that is not above the stored one.
    for (from, to, mark) in [(10, 12, 6), (12, 15, 13), (15, 17, 16), (17, 19, 22)] {
        let head = append(from, to, Some(blocks[mark].block_ref())).await?;
        same("the mark", head.finalized, Some(blocks[mark].block_ref()))?;
    }
    let head = append(19, 24, Some(other[20].block_ref())).await?;
    same("the mark", head.finalized, Some(blocks[22].block_ref()))?;
    let head = append(24, 25, None).await?;
    same("the mark", head.finalized, Some(blocks[22].block_ref()))?;
    let before = subject.freeze().await?;
    for mark in [23, 24, 25, 26] {
        let answer = append(25, 27, Some(other[mark].block_ref())).await;
        refused("a mark of another fork", answer, is_below_finality)?;
    }
    subject.is_still(&before).await?;
    append(25, 27, Some(blocks[26].block_ref())).await?;
    subject.append(&blocks[27..]).await?;
    subject.shows(&blocks).await?;
    subject.dumps_as(&blocks).await
}

async fn a_mark_below_the_first_height_is_taken_as_it_comes(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(100, 10, 0);
    let subject = Subject::new(&factory).await?;
    let below = chain(90, 5, 3);
    let finalized = Some(below[2].block_ref());
    let batch = AppendBatch { blocks: blocks[..5].to_vec(), finalized, safe: finalized };
    let head = subject.store.append(subject.fence, batch).await?;
    same("the finalised mark", head.finalized, finalized)?;
    same("the safe mark, which is not stored", head.safe, None)?;
    let head = subject.finalize(&below[4]).await?;
    same("the finalised mark", head.finalized, Some(below[4].block_ref()))?;
    subject.append(&blocks[5..]).await?;
    // And it bounds rollbacks no further than the first block does.
    subject.roll_back(&blocks[0]).await?;
    subject.purge(2).await?;
    subject.shows(&blocks[..1]).await
}

async fn the_safe_mark_follows_stored_blocks_and_may_move_back(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let other = fork(&blocks, 9, 12, 1);
    let subject = Subject::with(&factory, &blocks[..15]).await?;
    let safe_after = async |offered: Option<BlockRef>| -> CaseResult<Option<BlockRef>> {
        Ok(subject.store.finalize(subject.fence, None, offered).await?.safe)
    };
    let mark = |at: usize| Some(blocks[at].block_ref());
    same("a stored block", safe_after(mark(7)).await?, mark(7))?;
    same("it moves back", safe_after(mark(3)).await?, mark(3))?;
    same("the tip", safe_after(mark(14)).await?, mark(14))?;
    same("nothing said", safe_after(None).await?, mark(14))?;
    same("above the tip", safe_after(mark(16)).await?, mark(14))?;
    same("another fork's", safe_after(Some(other[12].block_ref())).await?, mark(14))?;
    let batch = AppendBatch { blocks: blocks[15..].to_vec(), finalized: mark(2), safe: mark(18) };
    let head = subject.store.append(subject.fence, batch).await?;
    same("a block of the batch", head.safe, mark(18))?;
    same("finality is another mark", head.finalized, mark(2))?;
    // Never above the tip: a rollback lowers it to the common block, or leaves one that lies below.
    subject.roll_back(&blocks[12]).await?;
    same("lowered", subject.head().await?.safe, mark(12))?;
    subject.purge(9).await?;
    same("moved back", safe_after(mark(10)).await?, mark(10))?;
    subject.roll_back(&blocks[11]).await?;
    same("left", subject.head().await?.safe, mark(10))
}

async fn marks_are_kept_before_the_first_block_and_during_a_purge(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let subject = Subject::new(&factory).await?;
    let mark = |at: usize| Some(blocks[at].block_ref());
    let head = subject.store.finalize(subject.fence, mark(5), mark(5)).await?;
    same("the marks of an empty store", (head.finalized, head.safe), (mark(5), None))?;
    let other = fork(&blocks, 2, 12, 1);
    refused("an anchor batch of another fork", subject.append(&other[..9]).await, is_below_finality)?;
    subject.append(&blocks[..15]).await?;
    subject.roll_back(&blocks[10]).await?;
    let head = subject.store.finalize(subject.fence, mark(9), mark(10)).await?;
    same("the marks during a purge", (head.finalized, head.safe), (mark(9), mark(10)))?;
    // Blocks that wait for the purge are no longer stored blocks: a mark at their heights is one above the tip.
    let head = subject.store.finalize(subject.fence, Some(other[12].block_ref()), mark(12)).await?;
    same("marks above the tip", (head.finalized, head.safe), (Some(other[12].block_ref()), mark(10)))?;
    refused("an append during a purge", subject.append(&blocks[11..]).await, is_purge_pending)?;
    subject.purge(2).await?;
    match subject.append(&blocks[11..]).await {
        Err(StoreError::BelowFinality { .. }) => Ok(()),
        other => Err(Failure::new(format!("blocks that contradict the mark: {other:?}"))),
    }
}
