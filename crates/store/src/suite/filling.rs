//! `fill` and `advance` where everything joins.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{Height, Parts, RawBlock};

use super::blocks::{anchor_parent, block, chain, chain_after, fork};
use super::check::{is_below_finality, is_conflict, is_invalid, is_unlinked, refused, same};
use super::leases::{STOP, TTL_MS, backfill, bad_end, claim, claim_of, heights, part};
use super::subject::{START_MS, Subject};
use super::{Case, CaseResult, StoreFactory};
use crate::{LogQuery, RawLeaseState, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("filling":
        a_fill_moves_the_lease_with_the_rows,
        nothing_that_is_filled_is_visible_until_the_head_moves,
        i03_ranges_that_finish_out_of_order_keep_a_contiguous_watermark,
        i02_the_watermark_waits_for_the_range_that_failed,
        the_head_follows_a_lease_that_is_not_complete,
        a_lost_fill_is_settled_by_filling_again,
        fills_outside_their_place_are_refused,
        a_fill_that_does_not_link_to_the_lease_is_refused,
        the_finalised_block_must_be_the_finalised_one,
        appends_may_pass_over_a_lease,
        appends_that_contradict_a_fill_are_a_conflict,
        i09_the_seam_between_backfill_and_tip_is_written_once,
        backfill_and_append_make_the_same_store,
    )
}

async fn a_fill_moves_the_lease_with_the_rows(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let mut lease = claim(&subject, "a").await?;
    for (from, to) in [(5, 6), (6, 9), (9, 10)] {
        subject.clock.advance_ms(10);
        let filled = subject.store.fill(&lease, part(&blocks, from, to), TTL_MS + from).await?;
        let mut expected = lease.clone();
        expected.done_to = Height(to);
        expected.last_id = Some(blocks[to as usize - 1].facts.id);
        expected.first_parent = Some(blocks[4].facts.id);
        expected.state = if to == 10 { RawLeaseState::Completed } else { RawLeaseState::Active };
        expected.expires_at_ms = filled.expires_at_ms;
        same("the lease", &filled, &expected)?;
        same("the lease, read", &subject.first_lease().await?, &filled)?;
        if to < 10 {
            let now_ms = START_MS + if from == 5 { 10 } else { 20 };
            same("when it expires", filled.expires_at_ms, now_ms + TTL_MS + from)?;
        }
        lease = filled;
    }
    Ok(())
}

async fn nothing_that_is_filled_is_visible_until_the_head_moves(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let first = claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    subject.store.fill(&second, part(&blocks, 10, 20), TTL_MS).await?;
    subject.store.fill(&first, part(&blocks, 5, 8), TTL_MS).await?;
    subject.settle().await?;
    subject.shows(&blocks[..5]).await?;
    let snapshot = subject.snapshot().await?;
    for block in &blocks[5..20] {
        let height = block.facts.height;
        same("a filled block", snapshot.block(height, Parts::all()).await?, None)?;
        same("its id", snapshot.find_block(block.facts.id).await?, None)?;
        for tx in &block.transactions {
            same("its transaction", snapshot.find_tx(tx.id).await?, None)?;
        }
        let query = LogQuery { groups: vec![block.log_terms.clone()] };
        let found = snapshot.log_candidates(heights(5, 200), &query, 9).await?;
        same("its logs", found, vec![])?;
        let at = [height];
        let missing = snapshot.blocks_at(&at, Parts::all(), 1).await;
        refused("its height", missing, |error| matches!(error, StoreError::Missing { .. }))?;
    }
    same("its index", snapshot.index_fingerprints(heights(5, 200)).await?, vec![])?;
    drop(snapshot);
    let head = subject.store.advance(subject.fence).await?;
    same("the tip", head.tip, Some(blocks[7].block_ref()))?;
    same("the head row that is read", subject.head().await?, head)?;
    subject.shows(&blocks[..8]).await
}

async fn i03_ranges_that_finish_out_of_order_keep_a_contiguous_watermark(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(claim(&subject, "w").await?);
    }
    // Which lease is done next, and where the watermark stands then (exclusive).
    for (n, watermark) in [(2, 5), (4, 5), (0, 10), (3, 10), (1, 50)] {
        let (from, to) = (leases[n].range.start().get(), leases[n].range.end().get());
        subject.store.fill(&leases[n], part(&blocks, from, to), TTL_MS).await?;
        let head = subject.store.advance(subject.fence).await?;
        same("the watermark", head.tip, Some(blocks[watermark - 1].block_ref()))?;
        subject.shows(&blocks[..watermark]).await?;
        // The two numbers are told apart: leases show what lies beyond the watermark.
        let beyond = subject.leases().await?;
        same(
            "the first lease",
            beyond.first().map(|lease| lease.range.start()),
            match watermark {
                50 => None,
                at => Some(Height(at as u64)),
            },
        )?;
        same("an advance without work", subject.store.advance(subject.fence).await?, head)?;
    }
    subject.dumps_as(&blocks[..50]).await
}

async fn i02_the_watermark_waits_for_the_range_that_failed(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let first = claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    let third = claim(&subject, "c").await?;
    subject.store.fill(&first, part(&blocks, 5, 10), TTL_MS).await?;
    subject.store.fill(&third, part(&blocks, 20, 30), TTL_MS).await?;
    subject.store.release(&second, bad_end()).await?;
    for _ in 0..3 {
        let head = subject.store.advance(subject.fence).await?;
        same("the watermark", head.tip, Some(blocks[9].block_ref()))?;
        let again = claim(&subject, "b").await?;
        same("the failed range comes first", again.range, second.range)?;
        subject.store.release(&again, bad_end()).await?;
    }
    let again = claim(&subject, "b").await?;
    same("its attempts", again.attempt, 4)?;
    subject.store.fill(&again, part(&blocks, 10, 20), TTL_MS).await?;
    same("the watermark", subject.store.advance(subject.fence).await?.tip, Some(blocks[29].block_ref()))?;
    subject.shows(&blocks[..30]).await
}

async fn the_head_follows_a_lease_that_is_not_complete(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let mut lease = claim_of(&subject, "a", 50).await?;
    for upto in [6, 7, 20, 49] {
        let from = lease.done_to.get();
        lease = subject.store.fill(&lease, part(&blocks, from, upto), TTL_MS).await?;
        let head = subject.store.advance(subject.fence).await?;
        same("the tip", head.tip, Some(blocks[upto as usize - 1].block_ref()))?;
        same("the lease stays", subject.leases().await?, vec![lease.clone()])?;
    }
    lease = subject.store.fill(&lease, part(&blocks, 49, 50), TTL_MS).await?;
    same("its state", lease.state, RawLeaseState::Completed)?;
    subject.store.advance(subject.fence).await?;
    same("the lease is gone", subject.leases().await?, vec![])?;
    same("the next range", claim_of(&subject, "b", 50).await?.range, heights(50, 95))?;
    subject.shows(&blocks[..50]).await
}

async fn a_lost_fill_is_settled_by_filling_again(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let filled = subject.store.fill(&lease, part(&blocks, 5, 8), TTL_MS).await?;
    let before = subject.freeze().await?;
    subject.clock.advance_ms(500);
    // Under the lease as it was before the lost answer, and in smaller pieces.
    same("the same again", subject.store.fill(&lease, part(&blocks, 5, 8), TTL_MS).await?, filled.clone())?;
    same("a part of it", subject.store.fill(&lease, part(&blocks, 6, 7), TTL_MS).await?, filled.clone())?;
    subject.is_still(&before).await?;
    let mut other = part(&blocks, 5, 8);
    other[1].receipts = Bytes::from_static(b"other");
    refused("other bytes", subject.store.fill(&lease, other, TTL_MS).await, is_conflict)?;
    let other = fork(&blocks, 5, 2, 1);
    let answer = subject.store.fill(&lease, part(&other, 6, 8), TTL_MS).await;
    let error = refused("other blocks", answer, is_conflict)?;
    if let StoreError::Conflict { height, stored, offered } = error {
        same("what it names", (height, stored, offered), (Height(6), blocks[6].facts.id, other[6].facts.id))?;
    }
    subject.is_still(&before).await?;
    // The last fill too: it has completed the lease.
    let done = subject.store.fill(&lease, part(&blocks, 8, 10), TTL_MS).await?;
    same("the last one again", subject.store.fill(&lease, part(&blocks, 8, 10), TTL_MS).await?, done)?;
    subject.store.advance(subject.fence).await?;
    subject.shows(&blocks[..10]).await
}

async fn fills_outside_their_place_are_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    claim(&subject, "a").await?;
    let lease = claim(&subject, "b").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 10, 13), TTL_MS).await?;
    let before = subject.freeze().await?;
    let wrong = [
        ("nothing", vec![]),
        ("a gap", part(&blocks, 14, 16)),
        ("an overlap", part(&blocks, 12, 15)),
        ("beyond the end", part(&blocks, 13, 21)),
        ("above the end", part(&blocks, 20, 21)),
        ("below the start", part(&blocks, 8, 10)),
        ("across the start", part(&blocks, 9, 12)),
        ("a gap inside", [part(&blocks, 13, 14), part(&blocks, 15, 16)].concat()),
    ];
    for (what, blocks) in wrong {
        refused(what, subject.store.fill(&lease, blocks, TTL_MS).await, is_invalid)?;
    }
    let mut miscounted = part(&blocks, 13, 15);
    miscounted[1].facts.tx_count += 1;
    refused("a wrong count", subject.store.fill(&lease, miscounted, TTL_MS).await, is_invalid)?;
    subject.is_still(&before).await
}

async fn a_fill_that_does_not_link_to_the_lease_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 5, 7), TTL_MS).await?;
    let before = subject.freeze().await?;
    let foreign = chain_after(anchor_parent(Height(7)), Height(7), 2, 1);
    let error =
        refused("another fork", subject.store.fill(&lease, foreign.clone(), TTL_MS).await, is_unlinked)?;
    if let StoreError::DoesNotLink { first, expected, .. } = error {
        same("what it names", (first, expected), (foreign[0].block_ref(), blocks[6].block_ref()))?;
    }
    let mixed = vec![blocks[7].clone(), block(Height(8), foreign[0].facts.id, 1)];
    refused("a break inside", subject.store.fill(&lease, mixed, TTL_MS).await, is_unlinked)?;
    subject.is_still(&before).await?;
    subject.store.fill(&lease, part(&blocks, 7, 10), TTL_MS).await?;
    Ok(())
}

async fn the_finalised_block_must_be_the_finalised_one(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim_of(&subject, "a", 200).await?;
    same("the range ends above finality", lease.range, heights(5, 95))?;
    let lease = subject.store.fill(&lease, part(&blocks, 5, 90), TTL_MS).await?;
    let other = fork(&blocks, 89, 10, 1);
    let before = subject.freeze().await?;
    let answer = subject.store.fill(&lease, part(&other, 90, 95), TTL_MS).await;
    let error = refused("another block at the mark", answer, is_below_finality)?;
    if let StoreError::BelowFinality { finalized, asked } = error {
        same("what it names", (finalized, asked), (blocks[94].block_ref(), other[94].block_ref()))?;
    }
    subject.is_still(&before).await?;
    subject.store.fill(&lease, part(&blocks, 90, 95), TTL_MS).await?;
    let head = subject.store.advance(subject.fence).await?;
    same("finality, stored", head.stored_finalized(), Some(Height(94)))?;
    subject.shows(&blocks[..95]).await
}

async fn appends_may_pass_over_a_lease(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let first = claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    subject.store.fill(&second, part(&blocks, 10, 15), TTL_MS).await?;
    let first = subject.store.fill(&first, part(&blocks, 5, 7), TTL_MS).await?;
    // Into the first lease, over its filled part and beyond it.
    subject.append(&part(&blocks, 5, 6)).await?;
    subject.append(&part(&blocks, 6, 8)).await?;
    subject.shows(&blocks[..8]).await?;
    // Its holder doesn't notice: the same bytes are a no-op.
    let first = subject.store.fill(&first, part(&blocks, 7, 9), TTL_MS).await?;
    same("where it stands", first.done_to, Height(9))?;
    same("the head follows", subject.store.advance(subject.fence).await?.tip, Some(blocks[8].block_ref()))?;
    // Over the rest of the first and into the second.
    subject.append(&part(&blocks, 9, 13)).await?;
    subject.shows(&blocks[..13]).await?;
    let head = subject.store.advance(subject.fence).await?;
    same("the head follows the second", head.tip, Some(blocks[14].block_ref()))?;
    let ranges: Vec<_> = subject.leases().await?.iter().map(|lease| lease.range).collect();
    same("the first is gone", ranges, vec![heights(10, 20)])?;
    // Over everything that is left of the second, and on.
    subject.append(&part(&blocks, 15, 25)).await?;
    subject.store.advance(subject.fence).await?;
    same("the second is gone", subject.leases().await?, vec![])?;
    same("the next range", claim(&subject, "c").await?.range, heights(25, 30))?;
    subject.shows(&blocks[..25]).await?;
    subject.dumps_as(&blocks[..25]).await
}

async fn appends_that_contradict_a_fill_are_a_conflict(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    subject.store.fill(&second, part(&blocks, 10, 15), TTL_MS).await?;
    let before = subject.freeze().await?;
    let other = fork(&blocks, 8, 6, 1);
    refused("another fork", subject.append(&part(&other, 5, 12)).await, is_conflict)?;
    let mut changed = part(&blocks, 5, 12);
    changed[6].body = Bytes::from_static(b"other");
    refused("other bytes", subject.append(&changed).await, is_conflict)?;
    subject.is_still(&before).await?;
    // And a filler that comes after the appends.
    subject.append(&part(&other, 5, 10)).await?;
    let first = subject.first_lease().await?;
    let before = subject.freeze().await?;
    refused("a fill", subject.store.fill(&first, part(&blocks, 5, 10), TTL_MS).await, is_conflict)?;
    subject.is_still(&before).await
}

async fn i09_the_seam_between_backfill_and_tip_is_written_once(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    while let Some(lease) = subject.store.claim_range("w", TTL_MS, 32, STOP).await? {
        let (from, to) = (lease.range.start().get(), lease.range.end().get());
        subject.store.fill(&lease, part(&blocks, from, to), TTL_MS).await?;
    }
    subject.store.advance(subject.fence).await?;
    subject.append(&part(&blocks, 95, 100)).await?;
    subject.shows(&blocks).await?;
    let seam: Vec<&RawBlock> = blocks[94..96].iter().collect();
    for block in seam {
        let query = LogQuery { groups: vec![block.log_terms.clone()] };
        let range = heights(block.facts.height.get(), block.facts.height.get() + 1);
        let found = subject.snapshot().await?.log_candidates(range, &query, 9).await?;
        let expected = if block.log_terms.is_empty() { vec![] } else { vec![block.facts.height] };
        same("the seam's logs", found, expected)?;
    }
    subject.dumps_as(&blocks).await
}

async fn backfill_and_append_make_the_same_store(factory: Arc<dyn StoreFactory>) -> CaseResult {
    for (range_heights, chunk) in [(16, 16), (64, 5), (9, 1)] {
        let (subject, blocks) = backfill(&factory).await?;
        let mut leases = Vec::new();
        while let Some(lease) = subject.store.claim_range("w", TTL_MS, range_heights, STOP).await? {
            leases.push(lease);
        }
        for lease in leases.iter().rev() {
            let (mut at, end) = (lease.range.start().get(), lease.range.end().get());
            while at < end {
                let to = end.min(at + chunk);
                subject.store.fill(lease, part(&blocks, at, to), TTL_MS).await?;
                at = to;
            }
            subject.store.advance(subject.fence).await?;
        }
        subject.settle().await?;
        subject.shows(&blocks[..95]).await?;
        subject.dumps_as(&blocks[..95]).await?;
    }
    let appended = Subject::with(&factory, &chain(0, 95, 0)).await?;
    appended.dumps_as(&chain(0, 95, 0)).await
}
