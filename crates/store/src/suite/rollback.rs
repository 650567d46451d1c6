//! `rollback` and `purge_step`: the reorg log, logical truncation, and forks that come and go.

use std::sync::Arc;

use cairn_core::{Height, HeightRange, Parts, RawBlock};

use super::blocks::{as_stored, block, chain, fork, tx_id};
use super::check::{
    Failure, holds, is_below_finality, is_invalid, is_purge_pending, is_too_deep, refused, same,
};
use super::subject::{START_MS, Subject, info, rollback};
use super::{Case, CaseResult, StoreFactory};
use crate::{
    LogQuery, OrphanRef, PendingPurge, PurgeProgress, ReorgEntry, ReorgMark, Rollback, StoreError, TxPlace,
};

pub(super) fn cases() -> Vec<Case> {
    case_list!("rollback":
        an_entry_tells_what_was_taken_away,
        the_head_is_lowered_at_once_and_every_read_with_it,
        ids_are_gapless_and_digests_chain,
        the_depth_limit_is_exact,
        e20_nothing_goes_below_finality,
        a_common_block_that_is_not_stored_is_refused,
        a_lost_answer_returns_the_newest_entry,
        nothing_is_appended_while_a_purge_is_pending,
        a_purge_goes_in_bounded_steps,
        a_rollback_reaches_down_to_the_anchor,
        r05_a_block_of_the_same_height_replaces_the_tip,
        r06_back_and_forth_leaves_what_a_clean_run_leaves,
        r07_reading_by_number_never_gives_the_orphan,
        a_transaction_that_moved_is_found_at_its_new_place,
        a_shorter_chain_may_win,
        many_reorgs_of_every_depth_leave_no_trace,
    )
}

async fn an_entry_tells_what_was_taken_away(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(5, 15, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let decided_at_ms = START_MS + 77;
    let request = Rollback { decided_at_ms, ..rollback(blocks[9].block_ref()) };
    let entry = subject.store.rollback(subject.fence, request).await?;
    let orphans = blocks[10..]
        .iter()
        .map(|block| OrphanRef { block: block.block_ref(), timestamp_ms: block.facts.timestamp_ms })
        .collect();
    let expected = ReorgEntry::chain(1, &[0; 32], info().uuid, blocks[9].block_ref(), orphans, decided_at_ms);
    same("the entry", &entry, &expected)?;
    let snapshot = subject.snapshot().await?;
    same("the log", snapshot.reorgs(0, 10).await?, vec![entry.clone()])?;
    let head = snapshot.head();
    same("the tip", head.tip, Some(blocks[9].block_ref()))?;
    same("the first height", head.first, Some(Height(5)))?;
    same("the newest reorg", head.newest_reorg, ReorgMark { id: 1, digest: entry.digest })?;
    let waiting = HeightRange::new(Height(15), Height(20));
    same("the pending purge", head.pending_purge, Some(PendingPurge { reorg_id: 1, orphans: waiting }))?;
    subject.purge(100).await?;
    let after = subject.head().await?;
    same("the pending purge, done", after.pending_purge, None)?;
    same("the newest reorg stays", after.newest_reorg, head.newest_reorg)?;
    let subject = subject.restart().await?;
    same("the log after a restart", subject.snapshot().await?.reorgs(0, 10).await?, vec![entry])
}

async fn the_head_is_lowered_at_once_and_every_read_with_it(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 30, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    subject.settle().await?;
    subject.roll_back(&blocks[19]).await?;
    let hidden = async |when: &str| -> CaseResult {
        subject.shows(&blocks[..20]).await?;
        let snapshot = subject.snapshot().await?;
        let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
        let above = HeightRange::new(Height(20), Height(30));
        same(when, snapshot.blocks(above, Parts::all(), u64::MAX).await?.blocks, vec![])?;
        same(when, snapshot.index_fingerprints(above).await?, vec![])?;
        same(when, snapshot.log_candidates(above, &LogQuery::default(), 99).await?, vec![])?;
        for orphan in &blocks[20..] {
            let height = orphan.facts.height;
            same(when, snapshot.block(height, Parts::all()).await?, None)?;
            same(when, snapshot.linked_ref(height).await?, None)?;
            same(when, snapshot.find_block(orphan.facts.id).await?, None)?;
            for tx in &orphan.transactions {
                same(when, snapshot.find_tx(tx.id).await?, None)?;
            }
            for term in &orphan.log_terms {
                let query = LogQuery { groups: vec![vec![*term]] };
                let found = snapshot.log_candidates(all, &query, usize::MAX).await?;
                holds(found.iter().all(|at| at.get() < 20), format!("{when}: a term leads to {found:?}"))?;
            }
            let missing = snapshot.blocks_at(&[Height(19), height], Parts::empty(), u64::MAX).await;
            refused(
                when,
                missing,
                |error| matches!(error, StoreError::Missing { missing } if missing.start() == height),
            )?;
        }
        Ok(())
    };
    hidden("before the purge").await?;
    subject.dumps_as(&blocks[..20]).await?;
    subject.store.purge_step(subject.fence, 4).await?;
    hidden("during the purge").await?;
    subject.dumps_as(&blocks[..20]).await?;
    subject.settle().await?;
    hidden("during the purge, after maintenance").await?;
    subject.purge(3).await?;
    hidden("after the purge").await?;
    subject.settle().await?;
    hidden("after the purge and maintenance").await?;
    subject.dumps_as(&blocks[..20]).await
}

async fn ids_are_gapless_and_digests_chain(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut on = chain(0, 12, 0);
    let mut subject = Subject::with(&factory, &on).await?;
    let mut entries = Vec::new();
    for salt in 1..=9 {
        let to = fork(&on, 11 - salt % 4 - 1, 2 + salt % 4, salt);
        entries.push(subject.switch(&on, &to).await?);
        on = to;
        if salt == 4 {
            subject = subject.restart().await?;
        }
        // A refused rollback leaves no gap behind.
        refused(
            "a rollback to the tip",
            subject
                .store
                .rollback(
                    subject.fence,
                    Rollback { common: on[0].block_ref(), max_depth: 1, decided_at_ms: 0 },
                )
                .await,
            is_too_deep,
        )?;
    }
    let snapshot = subject.snapshot().await?;
    let log = snapshot.reorgs(0, usize::MAX).await?;
    same("the log", &log, &entries)?;
    let mut previous = [0; 32];
    for (id, entry) in (1..).zip(&log) {
        same("the id", entry.id, id)?;
        same("the store", entry.store_uuid, info().uuid)?;
        holds(entry.follows(&previous), format!("entry {id} doesn't follow the one before"))?;
        previous = entry.digest;
    }
    same("the head's mark", snapshot.head().newest_reorg, ReorgMark { id: 9, digest: previous })?;
    for (after, limit) in [(0, 3), (3, 3), (7, 10), (9, 10), (100, 1), (0, 0)] {
        let expected: Vec<_> = entries.iter().filter(|entry| entry.id > after).take(limit).cloned().collect();
        same("a page of the log", snapshot.reorgs(after, limit).await?, expected)?;
    }
    subject.shows(&on).await
}

async fn the_depth_limit_is_exact(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let to = |common: usize, max_depth: u64| {
        let common = blocks[common].block_ref();
        subject.store.rollback(subject.fence, Rollback { common, max_depth, decided_at_ms: START_MS })
    };
    let before = subject.freeze().await?;
    for (common, limit) in [(13, 5), (0, 18), (18, 0)] {
        let error = refused("one block too deep", to(common, limit).await, is_too_deep)?;
        let StoreError::TooDeep { depth, limit: named, tip, common: at } = error else { continue };
        same("the depth and limit", (depth, named), (19 - common as u64, limit))?;
        same("the blocks", (tip, at), (blocks[19].block_ref(), blocks[common].block_ref()))?;
    }
    subject.is_still(&before).await?;
    same("what the limit allows", to(14, 5).await?.orphans.len(), 5)?;
    subject.purge(2).await?;
    subject.shows(&blocks[..15]).await
}

async fn e20_nothing_goes_below_finality(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    subject.finalize(&blocks[12]).await?;
    let before = subject.freeze().await?;
    for common in [11, 5, 0] {
        let error = refused("a rollback", subject.roll_back(&blocks[common]).await, is_below_finality)?;
        let StoreError::BelowFinality { finalized, asked } = error else { continue };
        same("what it names", (finalized, asked), (blocks[12].block_ref(), blocks[common].block_ref()))?;
    }
    // Finality is judged before depth: it is the worse of the two.
    let request = Rollback { max_depth: 1, ..rollback(blocks[3].block_ref()) };
    refused("too deep as well", subject.store.rollback(subject.fence, request).await, is_below_finality)?;
    subject.is_still(&before).await?;
    subject.roll_back(&blocks[12]).await?;
    subject.purge(100).await?;
    subject.shows(&blocks[..13]).await?;
    refused("a second one", subject.roll_back(&blocks[11]).await, is_below_finality)?;
    same("the mark", subject.head().await?.finalized, Some(blocks[12].block_ref()))
}

async fn a_common_block_that_is_not_stored_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(10, 20, 0);
    let other = fork(&blocks, 15, 20, 1);
    let subject = Subject::new(&factory).await?;
    refused("on an empty store", subject.roll_back(&blocks[0]).await, is_invalid)?;
    subject.append(&blocks).await?;
    let before = subject.freeze().await?;
    refused("the tip itself", subject.roll_back(&blocks[19]).await, is_invalid)?;
    refused("another block at the tip's height", subject.roll_back(&other[19]).await, is_invalid)?;
    refused("a block above the tip", subject.roll_back(&other[22]).await, is_invalid)?;
    refused("another fork's block", subject.roll_back(&other[12]).await, is_invalid)?;
    let below = block(Height(9), blocks[0].facts.parent_id, 0);
    refused("a block below the anchor", subject.roll_back(&below).await, is_invalid)?;
    subject.is_still(&before).await
}

async fn a_lost_answer_returns_the_newest_entry(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let entry = subject.roll_back(&blocks[14]).await?;
    let before = subject.freeze().await?;
    same("asked again at once", subject.roll_back(&blocks[14]).await?, entry.clone())?;
    subject.is_still(&before).await?;
    subject.store.purge_step(subject.fence, 2).await?;
    same("during the purge", subject.roll_back(&blocks[14]).await?, entry.clone())?;
    let subject = subject.restart().await?;
    same("after a restart", subject.roll_back(&blocks[14]).await?, entry.clone())?;
    subject.purge(100).await?;
    let before = subject.freeze().await?;
    same("after the purge", subject.roll_back(&blocks[14]).await?, entry.clone())?;
    subject.is_still(&before).await?;
    // Once the chain has grown again, the same request is a new reorg.
    let other = fork(&blocks, 14, 3, 1);
    subject.append(&other[15..]).await?;
    let second = subject.roll_back(&blocks[14]).await?;
    same("the second entry", (second.id, second.orphans.len()), (2, 3))?;
    holds(second.follows(&entry.digest), "the second entry doesn't follow the first")?;
    subject.purge(1).await?;
    subject.shows(&blocks[..15]).await
}

async fn nothing_is_appended_while_a_purge_is_pending(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let other = fork(&blocks, 14, 9, 1);
    let subject = Subject::with(&factory, &blocks).await?;
    subject.roll_back(&blocks[14]).await?;
    for left in [Some(5_u64), Some(3), Some(1), None] {
        if let Some(left) = left {
            let before = subject.freeze().await?;
            let error = refused("append", subject.append(&other[15..]).await, is_purge_pending)?;
            if let StoreError::PurgePending { reorg_id, common } = error {
                same("what it names", (reorg_id, common), (1, Height(14)))?;
            }
            refused("another rollback", subject.roll_back(&blocks[10]).await, is_purge_pending)?;
            refused("advance", subject.store.advance(subject.fence).await, is_purge_pending)?;
            subject.is_still(&before).await?;
            let progress = subject.store.purge_step(subject.fence, 2).await?;
            let expected = left.checked_sub(2).filter(|left| *left > 0);
            same("progress", progress, expected.map_or(PurgeProgress::Done, PurgeProgress::Left))?;
        } else {
            subject.append(&other[15..]).await?;
        }
    }
    subject.shows(&other).await?;
    subject.dumps_as(&other).await
}

async fn a_purge_goes_in_bounded_steps(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 20, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    same("nothing is pending", subject.store.purge_step(subject.fence, 5).await?, PurgeProgress::Done)?;
    subject.roll_back(&blocks[9]).await?;
    let before = subject.freeze().await?;
    refused("a step of nothing", subject.store.purge_step(subject.fence, 0).await, is_invalid)?;
    subject.is_still(&before).await?;
    let pending = subject.head().await?.pending_purge;
    for left in (1..10).rev() {
        let progress = subject.store.purge_step(subject.fence, 1).await?;
        same("a step of one block", progress, PurgeProgress::Left(left))?;
        same("the pending purge", subject.head().await?.pending_purge, pending)?;
        subject.shows(&blocks[..10]).await?;
    }
    same("the last step", subject.store.purge_step(subject.fence, 1).await?, PurgeProgress::Done)?;
    same("the pending purge, done", subject.head().await?.pending_purge, None)?;
    same("a step too many", subject.store.purge_step(subject.fence, 1).await?, PurgeProgress::Done)?;
    subject.dumps_as(&blocks[..10]).await?;
    // Exactly as many as there are, and more than there are.
    for (common, step) in [(6, 3), (2, u64::MAX)] {
        subject.roll_back(&blocks[common]).await?;
        same("one step", subject.store.purge_step(subject.fence, step).await?, PurgeProgress::Done)?;
        subject.dumps_as(&blocks[..=common]).await?;
    }
    Ok(())
}

async fn a_rollback_reaches_down_to_the_anchor(factory: Arc<dyn StoreFactory>) -> CaseResult {
    for first in [0, 500] {
        let blocks = chain(first, 8, 0);
        let other = fork(&blocks, first, 10, 1);
        let subject = Subject::with(&factory, &blocks).await?;
        subject.switch(&blocks, &other).await?;
        same("the first height", subject.head().await?.first, Some(Height(first)))?;
        subject.shows(&other).await?;
        subject.dumps_as(&other).await?;
    }
    Ok(())
}

async fn r05_a_block_of_the_same_height_replaces_the_tip(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let a = chain(0, 51, 0);
    let b = fork(&a, 49, 1, 1);
    let subject = Subject::with(&factory, &a).await?;
    same("the heights", a[50].facts.height, b[50].facts.height)?;
    subject.switch(&a, &b).await?;
    subject.shows(&b).await?;
    subject.dumps_as(&b).await
}

async fn r06_back_and_forth_leaves_what_a_clean_run_leaves(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let a = chain(0, 13, 0);
    let b = fork(&a, 9, 2, 1);
    let subject = Subject::with(&factory, &a[..12]).await?;
    subject.switch(&a[..12], &b).await?;
    subject.shows(&b).await?;
    subject.switch(&b, &a).await?;
    subject.shows(&a).await?;
    subject.dumps_as(&a).await?;
    subject.settle().await?;
    subject.dumps_as(&a).await?;
    // And again, so that each fork was an orphan twice.
    subject.switch(&a, &b).await?;
    let subject = subject.restart().await?;
    subject.switch(&b, &a).await?;
    subject.shows(&a).await?;
    subject.dumps_as(&a).await?;
    same("the reorgs", subject.head().await?.newest_reorg.id, 4)
}

async fn r07_reading_by_number_never_gives_the_orphan(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let trunk = chain(0, 6, 0);
    let forks: Vec<Vec<RawBlock>> = (1..4).map(|salt| fork(&trunk, 5, 3, salt)).collect();
    let subject = Subject::with(&factory, &forks[0]).await?;
    for n in 1..10 {
        let (from, to) = (&forks[(n - 1) % 3], &forks[n % 3]);
        subject.roll_back(&trunk[5]).await?;
        for height in 6..9 {
            same(
                "by number, before the purge",
                subject.snapshot().await?.linked_ref(Height(height)).await?,
                None,
            )?;
        }
        subject.purge(1).await?;
        subject.append(&to[6..]).await?;
        let snapshot = subject.snapshot().await?;
        for (old, new) in from[6..].iter().zip(&to[6..]) {
            let height = new.facts.height;
            let expected = as_stored(new, Parts::all());
            same("by number", snapshot.block(height, Parts::all()).await?, Some(expected.clone()))?;
            same("among others", snapshot.blocks_at(&[height], Parts::all(), 1).await?, vec![expected])?;
            same("the orphan by id", snapshot.find_block(old.facts.id).await?, None)?;
        }
    }
    Ok(())
}

async fn a_transaction_that_moved_is_found_at_its_new_place(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut a = chain(0, 12, 0);
    let mut b = fork(&a, 7, 4, 1);
    let moved = crate::suite::blocks::block(Height(40), a[0].facts.id, 0);
    let moved = cairn_core::TxFacts {
        id: tx_id(&[815]),
        sender: moved.header.slice(..20),
        status: cairn_core::TxStatus::Ok,
    };
    let put = |block: &mut RawBlock, index: usize| {
        block.transactions.insert(index, moved.clone());
        block.facts.tx_count += 1;
    };
    put(&mut a[9], 0);
    let at_b = b[10].transactions.len();
    put(&mut b[10], at_b);
    let subject = Subject::with(&factory, &a).await?;
    let place = async || subject.snapshot().await?.find_tx(moved.id).await;
    same("on the first fork", place().await?, Some(TxPlace { height: Height(9), index: 0 }))?;
    subject.roll_back(&a[7]).await?;
    same("between the forks", place().await?, None)?;
    subject.purge(1).await?;
    subject.append(&b[8..]).await?;
    let at_b = TxPlace { height: Height(10), index: at_b as u32 };
    same("on the second fork", place().await?, Some(at_b))?;
    subject.settle().await?;
    same("on the second fork, later", place().await?, Some(at_b))?;
    subject.dumps_as(&b).await?;
    subject.switch(&b, &a).await?;
    same("back again", place().await?, Some(TxPlace { height: Height(9), index: 0 }))?;
    subject.dumps_as(&a).await
}

async fn a_shorter_chain_may_win(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let long = chain(0, 30, 0);
    let short = fork(&long, 9, 1, 1);
    let subject = Subject::with(&factory, &long).await?;
    let entry = subject.switch(&long, &short).await?;
    same("the orphans", entry.orphans.len(), 20)?;
    subject.shows(&short).await?;
    subject.dumps_as(&short).await?;
    // Nothing of the long chain comes back when the short one passes its old tip.
    let grown = fork(&short, 10, 30, 1);
    subject.append(&grown[11..]).await?;
    subject.shows(&grown).await?;
    subject.dumps_as(&grown).await
}

async fn many_reorgs_of_every_depth_leave_no_trace(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut on = chain(0, 24, 0);
    let subject = Subject::with(&factory, &on).await?;
    for salt in 1..=22 {
        let common = on.len() as u64 - 1 - salt;
        let to = fork(&on, common, salt + salt % 2, salt);
        let entry = subject.switch(&on, &to).await?;
        same("the depth", entry.orphans.len() as u64, salt)?;
        on = to;
        if salt % 5 == 0 {
            subject.settle().await?;
        }
        subject.dumps_as(&on).await?;
    }
    if subject.head().await?.newest_reorg.id != 22 {
        return Err(Failure::new("the log does not hold 22 entries"));
    }
    subject.shows(&on).await
}
