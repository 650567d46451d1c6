//! `claim_range` and `release`: who fills what, and who no longer does.

use std::sync::Arc;

use cairn_core::{BlockRef, Fence, Height, HeightRange, RawBlock};

use super::blocks::{chain, fork};
use super::check::{Failure, holds, is_fenced, is_invalid, refused, same};
use super::subject::{START_MS, Subject};
use super::{Case, CaseResult, StoreFactory};
use crate::derived::{MAX_ATTEMPTS, MAX_ERROR_BYTES};
use crate::{RangeEnd, RawLease, RawLeaseState, StoreError};

/// How long claims last here.
pub(super) const TTL_MS: u64 = 60_000;

/// Where claims stop here: above the block that the source calls final.
pub(super) const STOP: Height = Height(95);

pub(super) fn cases() -> Vec<Case> {
    case_list!("leases":
        ranges_are_cut_at_multiples_and_end_at_the_stop,
        ranges_stop_where_they_are_told_to,
        there_is_nothing_to_claim_before_the_anchor,
        a_new_range_height_goes_on_where_the_last_range_ends,
        an_expired_lease_is_claimed_before_new_ranges,
        the_lowest_lease_is_claimed_first,
        l01_a_zombie_filler_changes_nothing,
        an_expired_lease_that_nobody_claimed_still_belongs_to_its_holder,
        attempts_count_bad_ends_without_movement,
        what_a_range_ended_over_is_kept_until_it_moves,
        a_lease_is_renewed_while_its_blocks_are_on_their_way,
        a_renewal_is_no_movement,
        a_range_that_ends_every_process_waits_for_an_operator,
        a_range_that_failed_too_often_waits_for_an_operator,
        an_operator_takes_a_range_from_its_holder,
        a_lease_that_was_given_back_goes_on_where_it_stood,
        a_completed_lease_is_neither_claimed_nor_given_back,
        fences_grow_over_the_head_and_all_leases,
        concurrent_claims_never_overlap,
        nothing_is_claimed_while_a_purge_is_pending,
    )
}

/// Blocks 0 to 99, of which 0 to 4 are stored and 94 is final.
pub(super) async fn backfill(factory: &Arc<dyn StoreFactory>) -> CaseResult<(Subject, Vec<RawBlock>)> {
    let blocks = chain(0, 100, 0);
    let subject = Subject::with(factory, &blocks[..5]).await?;
    subject.finalize(&blocks[94]).await?;
    Ok((subject, blocks))
}

pub(super) async fn claim(subject: &Subject, owner: &str) -> CaseResult<RawLease> {
    claim_of(subject, owner, 10).await
}

pub(super) async fn claim_of(subject: &Subject, owner: &str, range_heights: u64) -> CaseResult<RawLease> {
    let lease = subject.store.claim_range(owner, TTL_MS, range_heights, STOP).await?;
    lease.ok_or_else(|| Failure::new("nothing to claim"))
}

/// An end over something odd.
pub(super) fn bad_end() -> RangeEnd {
    RangeEnd::Bad("it is odd".into())
}

/// The blocks of heights `[from, to)` of a chain that begins at 0.
pub(super) fn part(blocks: &[RawBlock], from: u64, to: u64) -> Vec<RawBlock> {
    blocks[from as usize..to as usize].to_vec()
}

pub(super) fn heights(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

async fn ranges_are_cut_at_multiples_and_end_at_the_stop(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, _) = backfill(&factory).await?;
    let first = claim(&subject, "worker 1").await?;
    let expected = RawLease {
        range: heights(5, 10),
        state: RawLeaseState::Active,
        owner: "worker 1".into(),
        fence: first.fence,
        expires_at_ms: START_MS + TTL_MS,
        attempt: 0,
        done_to: Height(5),
        last_id: None,
        first_parent: None,
        last_error: String::new(),
    };
    same("the first lease", &first, &expected)?;
    for n in 1..9 {
        same("the next range", claim(&subject, "w").await?.range, heights(10 * n, 10 * n + 10))?;
    }
    same("the last range", claim(&subject, "w").await?.range, heights(90, 95))?;
    same("no more", subject.store.claim_range("w", TTL_MS, 10, STOP).await?, None)?;
    let leases = subject.leases().await?;
    same("the first lease, read", leases.first(), Some(&first))?;
    let ranges: Vec<_> = leases.iter().map(|lease| lease.range).collect();
    holds(ranges.windows(2).all(|pair| pair[0].end() == pair[1].start()), "the ranges are not contiguous")?;
    refused("ranges of nothing", subject.store.claim_range("w", TTL_MS, 0, STOP).await, is_invalid)?;
    // Finality grows: so does the work.
    let until = async |stop: u64| -> CaseResult<Option<HeightRange>> {
        Ok(subject.store.claim_range("w", TTL_MS, 10, Height(stop)).await?.map(|lease| lease.range))
    };
    same("above the old stop", until(98).await?, Some(heights(95, 98)))?;
    same("to the multiple", until(101).await?, Some(heights(98, 100)))?;
    same("one height", until(101).await?, Some(heights(100, 101)))?;
    same("no more", until(101).await?, None)?;
    same("no stop", until(u64::MAX).await?, Some(heights(101, 110)))
}

async fn ranges_stop_where_they_are_told_to(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, _) = backfill(&factory).await?;
    let claim_until = async |stop: u64| -> CaseResult<Option<HeightRange>> {
        let lease = subject.store.claim_range("w", TTL_MS, 10, Height(stop)).await?;
        Ok(lease.map(|lease| lease.range))
    };
    same("a stop at the tip", claim_until(5).await?, None)?;
    same("a stop below the tip", claim_until(2).await?, None)?;
    same("a stop inside the range", claim_until(8).await?, Some(heights(5, 8)))?;
    same("the same stop again", claim_until(8).await?, None)?;
    same("a later stop", claim_until(25).await?, Some(heights(8, 10)))?;
    same("and on", claim_until(25).await?, Some(heights(10, 20)))?;
    same("and on to the stop", claim_until(25).await?, Some(heights(20, 25)))?;
    // Leases that ended badly: one that begins at or above the stop is left alone, one that begins below it is claimed whole.
    subject.clock.advance_ms(TTL_MS);
    same("expired, below", claim_until(9).await?, Some(heights(5, 8)))?;
    same("expired, across", claim_until(9).await?, Some(heights(8, 10)))?;
    same("expired, at the stop", claim_until(10).await?, None)?;
    same("expired, claimed at last", claim_until(11).await?, Some(heights(10, 20)))
}

async fn there_is_nothing_to_claim_before_the_anchor(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 30, 0);
    let subject = Subject::new(&factory).await?;
    let claim = || subject.store.claim_range("w", TTL_MS, 10, STOP);
    same("an empty store", claim().await?, None)?;
    subject.finalize(&blocks[20]).await?;
    same("an empty store with finality", claim().await?, None)?;
    same("an empty store's advance", subject.store.advance(subject.fence).await?, subject.head().await?)?;
    subject.append(&blocks[..1]).await?;
    same("above the anchor", claim().await?.map(|lease| lease.range), Some(heights(1, 10)))
}

async fn a_new_range_height_goes_on_where_the_last_range_ends(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, _) = backfill(&factory).await?;
    for (range_heights, from, to) in
        [(7, 5, 7), (7, 7, 14), (4, 14, 16), (50, 16, 50), (3, 50, 51), (1_000, 51, 95)]
    {
        let lease = claim_of(&subject, "w", range_heights).await?;
        same("the range", lease.range, heights(from, to))?;
    }
    Ok(())
}

async fn an_expired_lease_is_claimed_before_new_ranges(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let first = claim(&subject, "a").await?;
    subject.store.fill(&first, part(&blocks, 5, 7), TTL_MS).await?;
    subject.clock.advance_ms(TTL_MS - 1);
    let second = claim(&subject, "b").await?;
    same("before it expires", second.range, heights(10, 20))?;
    subject.clock.advance_ms(1);
    let again = claim(&subject, "c").await?;
    same("when it has expired", again.range, heights(5, 10))?;
    let expected = RawLease {
        owner: "c".into(),
        fence: again.fence,
        expires_at_ms: START_MS + 2 * TTL_MS,
        done_to: Height(7),
        last_id: Some(blocks[6].facts.id),
        first_parent: Some(blocks[4].facts.id),
        ..first.clone()
    };
    same("the lease", &again, &expected)?;
    holds(again.fence > second.fence && second.fence > first.fence, "fences don't grow")?;
    same("after it", claim(&subject, "d").await?.range, heights(20, 30))
}

async fn the_lowest_lease_is_claimed_first(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, _) = backfill(&factory).await?;
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(claim(&subject, "a").await?);
    }
    // Two are given back, the other three expire.
    subject.store.release(&leases[3], RangeEnd::Released).await?;
    subject.store.release(&leases[1], bad_end()).await?;
    same("given back", claim(&subject, "b").await?.range, heights(10, 20))?;
    subject.clock.advance_ms(TTL_MS);
    for from in [5, 10, 20, 30, 40] {
        let to = from / 10 * 10 + 10;
        same("expired or given back", claim(&subject, "c").await?.range, heights(from, to))?;
    }
    same("a new one", claim(&subject, "c").await?.range, heights(50, 60))
}

async fn l01_a_zombie_filler_changes_nothing(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let zombie = claim(&subject, "a").await?;
    let zombie = subject.store.fill(&zombie, part(&blocks, 5, 7), TTL_MS).await?;
    subject.clock.advance_ms(TTL_MS);
    let lease = claim(&subject, "b").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 7, 8), TTL_MS).await?;
    let before = subject.freeze().await?;
    let answer = subject.store.fill(&zombie, part(&blocks, 7, 10), TTL_MS).await;
    let error = refused("the zombie's fill", answer, is_fenced)?;
    if let StoreError::Fenced { held, current, .. } = error {
        same("the fences that it names", (held, current), (zombie.fence, lease.fence))?;
    }
    refused("what it did before", subject.store.fill(&zombie, part(&blocks, 5, 7), TTL_MS).await, is_fenced)?;
    refused("the zombie's release", subject.store.release(&zombie, bad_end()).await, is_fenced)?;
    refused("nonsense under a dead fence", subject.store.fill(&zombie, vec![], TTL_MS).await, is_fenced)?;
    let forged = RawLease { fence: Fence(lease.fence.0 + 1), ..lease.clone() };
    refused(
        "a fence of the future",
        subject.store.fill(&forged, part(&blocks, 8, 9), TTL_MS).await,
        is_fenced,
    )?;
    let moved = RawLease { range: heights(5, 9), ..lease.clone() };
    refused("another range", subject.store.fill(&moved, part(&blocks, 8, 9), TTL_MS).await, is_fenced)?;
    let unknown = RawLease { range: heights(50, 60), ..lease.clone() };
    refused(
        "an unknown range",
        subject.store.fill(&unknown, part(&blocks, 50, 51), TTL_MS).await,
        is_fenced,
    )?;
    subject.is_still(&before).await?;
    // A lease that the head has passed is gone.
    subject.store.fill(&lease, part(&blocks, 8, 10), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    let before = subject.freeze().await?;
    refused(
        "a lease that is gone",
        subject.store.fill(&lease, part(&blocks, 8, 10), TTL_MS).await,
        is_fenced,
    )?;
    refused("its release", subject.store.release(&lease, RangeEnd::Released).await, is_fenced)?;
    subject.is_still(&before).await?;
    subject.shows(&blocks[..10]).await
}

async fn an_expired_lease_that_nobody_claimed_still_belongs_to_its_holder(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    subject.clock.advance_ms(10 * TTL_MS);
    let lease = subject.store.fill(&lease, part(&blocks, 5, 6), 1_000).await?;
    same("renewed from now", lease.expires_at_ms, START_MS + 10 * TTL_MS + 1_000)?;
    same("another range for others", claim(&subject, "b").await?.range, heights(10, 20))?;
    subject.store.fill(&lease, part(&blocks, 6, 10), TTL_MS).await?;
    same("the head", subject.store.advance(subject.fence).await?.tip, Some(blocks[9].block_ref()))
}

async fn attempts_count_bad_ends_without_movement(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let attempt = async || -> CaseResult<u32> { Ok(subject.first_lease().await?.attempt) };
    let lease = claim(&subject, "a").await?;
    subject.store.release(&lease, bad_end()).await?;
    same("released badly", attempt().await?, 1)?;
    let lease = claim(&subject, "a").await?;
    same("not counted again at the claim", lease.attempt, 1)?;
    subject.clock.advance_ms(TTL_MS);
    same("released badly and not yet noticed", attempt().await?, 1)?;
    let lease_2 = claim(&subject, "b").await?;
    same("expired", (lease_2.range, lease_2.attempt), (lease.range, 2))?;
    subject.store.release(&lease_2, RangeEnd::Released).await?;
    same("released well", attempt().await?, 2)?;
    let lease = claim(&subject, "a").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 5, 6), TTL_MS).await?;
    same("moved", lease.attempt, 0)?;
    subject.store.release(&lease, bad_end()).await?;
    same("a bad end after movement", attempt().await?, 0)?;
    let lease = claim(&subject, "a").await?;
    // The same blocks again are no movement.
    subject.store.fill(&lease, part(&blocks, 5, 6), TTL_MS).await?;
    subject.store.release(&lease, bad_end()).await?;
    same("a bad end without movement since the claim", attempt().await?, 1)?;
    let lease = claim(&subject, "a").await?;
    subject.store.fill(&lease, part(&blocks, 6, 7), TTL_MS).await?;
    subject.clock.advance_ms(TTL_MS);
    same("expired after movement", claim(&subject, "b").await?.attempt, 0)
}

async fn what_a_range_ended_over_is_kept_until_it_moves(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let kept = async |what: &str, attempt: u32, error: &str| -> CaseResult {
        let lease = subject.first_lease().await?;
        same(what, (lease.attempt, lease.last_error.as_str()), (attempt, error))
    };
    let lease = claim(&subject, "a").await?;
    kept("at first", 0, "").await?;
    subject.store.release(&lease, RangeEnd::Transient("the node is away".into())).await?;
    kept("what may pass is no attempt", 0, "the node is away").await?;
    let lease = claim(&subject, "a").await?;
    kept("it is tried again", 0, "the node is away").await?;
    subject.store.release(&lease, RangeEnd::Bad("block 5 is\0odd".into())).await?;
    kept("a bad end", 1, "block 5 is\u{fffd}odd").await?;
    let lease = claim(&subject, "a").await?;
    subject.store.release(&lease, RangeEnd::Released).await?;
    kept("given back in order", 1, "block 5 is\u{fffd}odd").await?;
    claim(&subject, "somebody").await?;
    subject.clock.advance_ms(TTL_MS);
    let lease = claim(&subject, "b").await?;
    kept("expired", 2, "somebody neither filled nor renewed it in time").await?;
    subject.store.release(&lease, RangeEnd::Bad("ä".repeat(MAX_ERROR_BYTES))).await?;
    kept("a long one", 3, &"ä".repeat(MAX_ERROR_BYTES / 2)).await?;
    let lease = claim(&subject, "b").await?;
    subject.store.fill(&lease, part(&blocks, 5, 6), TTL_MS).await?;
    kept("moved", 0, "").await
}

async fn a_lease_is_renewed_while_its_blocks_are_on_their_way(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    subject.clock.advance_ms(TTL_MS - 1);
    let renewed = subject.store.renew_range(&lease, TTL_MS).await?;
    let expected = RawLease { expires_at_ms: START_MS + 2 * TTL_MS - 1, ..lease.clone() };
    same("renewed from now", &renewed, &expected)?;
    same("it is stored", subject.first_lease().await?, expected)?;
    subject.clock.advance_ms(TTL_MS - 1);
    same("another range for others", claim(&subject, "b").await?.range, heights(10, 20))?;
    // As a fill does, it takes up an expired lease that nobody claimed.
    subject.clock.advance_ms(TTL_MS);
    let renewed = subject.store.renew_range(&lease, 1_000).await?;
    same("after it expired", renewed.expires_at_ms, START_MS + 3 * TTL_MS - 2 + 1_000)?;
    let filled = subject.store.fill(&lease, part(&blocks, 5, 7), TTL_MS).await?;
    let renewed = subject.store.renew_range(&lease, TTL_MS).await?;
    same("what was filled stays", (renewed.done_to, renewed.last_id), (filled.done_to, filled.last_id))?;
    // Another's is not renewed.
    subject.clock.advance_ms(TTL_MS);
    let other = claim(&subject, "c").await?;
    same("taken over", other.range, lease.range)?;
    let before = subject.freeze().await?;
    refused("by who held it", subject.store.renew_range(&lease, TTL_MS).await, is_fenced)?;
    let unknown = RawLease { range: heights(50, 60), ..other.clone() };
    refused("an unknown range", subject.store.renew_range(&unknown, TTL_MS).await, is_fenced)?;
    subject.is_still(&before).await?;
    // Nor one that was given back, nor is there anything to renew of one that is whole.
    let whole = subject.store.fill(&other, part(&blocks, 7, 10), TTL_MS).await?;
    let before = subject.freeze().await?;
    subject.clock.advance_ms(1);
    same("a whole one", subject.store.renew_range(&other, TTL_MS).await?, whole)?;
    subject.is_still(&before).await?;
    let next = claim(&subject, "d").await?;
    subject.store.release(&next, RangeEnd::Released).await?;
    refused("one that was given back", subject.store.renew_range(&next, TTL_MS).await, is_fenced)?;
    subject.store.advance(subject.fence).await?;
    refused("one that is gone", subject.store.renew_range(&other, TTL_MS).await, is_fenced)?;
    Ok(())
}

async fn a_renewal_is_no_movement(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, _) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    subject.store.release(&lease, bad_end()).await?;
    let lease = claim(&subject, "a").await?;
    same("renewed", subject.store.renew_range(&lease, TTL_MS).await?.attempt, 1)?;
    subject.clock.advance_ms(TTL_MS);
    let lease = claim(&subject, "b").await?;
    same("expired after it", lease.attempt, 2)?;
    subject.store.renew_range(&lease, TTL_MS).await?;
    subject.store.release(&lease, bad_end()).await?;
    same("given back after it", subject.first_lease().await?.attempt, 3)
}

async fn a_range_that_ends_every_process_waits_for_an_operator(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (mut subject, blocks) = backfill(&factory).await?;
    let moved = claim(&subject, "a").await?;
    subject.store.fill(&moved, part(&blocks, 5, 7), TTL_MS).await?;
    for died in 1..=MAX_ATTEMPTS {
        let claimed = subject.store.claim_range("a", TTL_MS, 10, Height(11)).await?;
        let claimed = claimed.ok_or_else(|| Failure::new("nothing to claim"))?;
        same("the range", (claimed.range, claimed.attempt), (heights(10, 11), died - 1))?;
        // Whoever comes next frees what is left, as of a holder that ended badly; where there was movement, that doesn't count.
        subject = subject.restart().await?;
        for lease in subject.leases().await?.iter().filter(|lease| lease.state == RawLeaseState::Active) {
            subject.store.release(lease, bad_end()).await?;
        }
        let attempts: Vec<u32> = subject.leases().await?.iter().map(|lease| lease.attempt).collect();
        same("its attempts", attempts, vec![0, died])?;
        if died == 1 {
            // The one that had moved is taken up and held from now on.
            let lease = claim(&subject, "a").await?;
            same("where it goes on", (lease.range, lease.done_to), (heights(5, 10), Height(7)))?;
            subject.store.fill(&lease, part(&blocks, 7, 10), TTL_MS).await?;
        }
    }
    let leases = subject.leases().await?;
    same("the dead one", leases.last().map(RawLease::is_dead), Some(true))?;
    same("nobody claims it", subject.store.claim_range("b", TTL_MS, 10, Height(11)).await?, None)
}

async fn a_range_that_failed_too_often_waits_for_an_operator(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    // One that is given back badly, and one that expires.
    for n in 1..=MAX_ATTEMPTS {
        let lease = claim(&subject, "a").await?;
        same("the range", (lease.range, lease.attempt), (heights(5, 10), n - 1))?;
        subject.store.release(&lease, bad_end()).await?;
    }
    let dead = subject.first_lease().await?;
    same("the dead one", (dead.state, dead.attempt), (RawLeaseState::Failed, MAX_ATTEMPTS))?;
    holds(dead.is_dead(), "it is not dead")?;
    let mut held = claim(&subject, "b").await?;
    for n in 1..MAX_ATTEMPTS {
        same("the next range", (held.range, held.attempt), (heights(10, 20), n - 1))?;
        subject.clock.advance_ms(TTL_MS);
        held = claim(&subject, "b").await?;
    }
    subject.clock.advance_ms(TTL_MS);
    same("the range after both", claim(&subject, "c").await?.range, heights(20, 30))?;
    let leases = subject.leases().await?;
    let two: Vec<_> = leases[..2].iter().map(|lease| (lease.range, lease.is_dead())).collect();
    same("the dead ones", two, vec![(heights(5, 10), true), (heights(10, 20), true)])?;
    let before = subject.freeze().await?;
    let late = subject.store.fill(&held, part(&blocks, 10, 12), TTL_MS).await;
    refused("a fill of the one that died", late, is_fenced)?;
    subject.is_still(&before).await?;
    same("the head stays", subject.store.advance(subject.fence).await?.tip, Some(blocks[4].block_ref()))?;
    // Freed, they count from 0 again.
    same("none begins there", subject.store.retry_range(Height(6)).await?, None)?;
    same("an active one", subject.store.retry_range(Height(20)).await?, None)?;
    let freed = subject.store.retry_range(Height(5)).await?;
    same("freed", freed.map(|lease| (lease.state, lease.attempt)), Some((RawLeaseState::Failed, 0)))?;
    let lease = claim(&subject, "d").await?;
    same("the range that was freed", (lease.range, lease.attempt), (heights(5, 10), 0))?;
    subject.store.fill(&lease, part(&blocks, 5, 10), TTL_MS).await?;
    same("the head", subject.store.advance(subject.fence).await?.tip, Some(blocks[9].block_ref()))
}

async fn an_operator_takes_a_range_from_its_holder(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 5, 7), TTL_MS).await?;
    same("none begins there", subject.store.release_range(Height(7)).await?, None)?;
    let taken = subject.store.release_range(Height(5)).await?;
    let taken = taken.ok_or_else(|| Failure::new("it was not taken"))?;
    same("its state", (taken.state, taken.attempt, taken.done_to), (RawLeaseState::Failed, 0, Height(7)))?;
    holds(taken.fence > lease.fence, "its holder may go on")?;
    same("it is stored", subject.first_lease().await?, taken)?;
    let late = subject.store.fill(&lease, part(&blocks, 7, 9), TTL_MS).await;
    refused("a fill of who held it", late, is_fenced)?;
    same("one that failed", subject.store.release_range(Height(5)).await?, None)?;
    let again = claim(&subject, "b").await?;
    same("it goes on", (again.range, again.done_to), (heights(5, 10), Height(7)))
}

async fn a_lease_that_was_given_back_goes_on_where_it_stood(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 5, 8), TTL_MS).await?;
    subject.store.release(&lease, RangeEnd::Released).await?;
    let given_back = subject.first_lease().await?;
    same("its state", given_back.state, RawLeaseState::Failed)?;
    same("where it stands", (given_back.done_to, given_back.last_id), (Height(8), Some(blocks[7].facts.id)))?;
    let before = subject.freeze().await?;
    let late = subject.store.fill(&lease, part(&blocks, 8, 9), TTL_MS).await;
    refused("a fill after giving it back", late, is_fenced)?;
    refused("giving it back twice", subject.store.release(&lease, bad_end()).await, is_fenced)?;
    subject.is_still(&before).await?;
    // What is filled of it is joined all the same.
    same("the head", subject.store.advance(subject.fence).await?.tip, Some(blocks[7].block_ref()))?;
    let lease = claim(&subject, "b").await?;
    same("the lease", (lease.range, lease.done_to), (heights(5, 10), Height(8)))?;
    subject.store.fill(&lease, part(&blocks, 8, 10), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    subject.shows(&blocks[..10]).await?;
    same("the leases", subject.leases().await?, vec![])
}

async fn a_completed_lease_is_neither_claimed_nor_given_back(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let lease = subject.store.fill(&lease, part(&blocks, 5, 10), TTL_MS).await?;
    same("its state", lease.state, RawLeaseState::Completed)?;
    same("where it stands", lease.done_to, Height(10))?;
    let before = subject.freeze().await?;
    subject.store.release(&lease, bad_end()).await?;
    subject.is_still(&before).await?;
    subject.clock.advance_ms(100 * TTL_MS);
    same("the next claim", claim(&subject, "b").await?.range, heights(10, 20))
}

async fn fences_grow_over_the_head_and_all_leases(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (mut subject, blocks) = backfill(&factory).await?;
    let mut newest = subject.fence;
    for round in 0..3 {
        let lease = claim(&subject, "a").await?;
        holds(lease.fence > newest, format!("a claim's fence {} after {newest}", lease.fence))?;
        subject.store.release(&lease, RangeEnd::Released).await?;
        let lease = claim(&subject, "b").await?;
        holds(lease.fence > newest, "a second claim's fence")?;
        newest = lease.fence;
        let zombie = subject.fence;
        if round == 1 {
            subject = subject.restart().await?;
        } else {
            subject.acquire().await?;
        }
        holds(subject.fence > newest, format!("the head's fence {} after {newest}", subject.fence))?;
        newest = subject.fence;
        refused("the head's old fence", subject.store.advance(zombie).await, is_fenced)?;
        // A new ingester takes nothing from the fillers.
        let at = lease.done_to.get();
        subject.store.fill(&lease, part(&blocks, at, at + 1), TTL_MS).await?;
    }
    Ok(())
}

async fn concurrent_claims_never_overlap(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let workers: Vec<_> = (0..4)
        .map(|n| {
            let (store, blocks) = (subject.store.clone(), blocks.clone());
            tokio::spawn(async move {
                let mut claimed = Vec::new();
                while let Some(lease) = store.claim_range(&format!("w{n}"), TTL_MS, 4, STOP).await? {
                    tokio::task::yield_now().await;
                    let (from, to) = (lease.range.start().get(), lease.range.end().get());
                    store.fill(&lease, part(&blocks, from, to), TTL_MS).await?;
                    claimed.push(lease);
                }
                Ok::<_, StoreError>(claimed)
            })
        })
        .collect();
    let mut claimed = Vec::new();
    for worker in workers {
        claimed.extend(worker.await.map_err(|panic| Failure::new(format!("a worker panicked: {panic}")))??);
    }
    claimed.sort_by_key(|lease| lease.range.start());
    let seams = claimed.windows(2).all(|pair| pair[0].range.end() == pair[1].range.start());
    holds(seams, "the ranges overlap or leave a gap")?;
    let mut fences: Vec<_> = claimed.iter().map(|lease| lease.fence).collect();
    fences.sort();
    holds(fences.is_sorted_by(|a, b| a < b), "two leases have the same fence")?;
    subject.store.advance(subject.fence).await?;
    subject.shows(&blocks[..95]).await?;
    subject.dumps_as(&blocks[..95]).await
}

async fn nothing_is_claimed_while_a_purge_is_pending(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let a = chain(0, 20, 0);
    let b = fork(&a, 9, 30, 1);
    let subject = Subject::with(&factory, &a).await?;
    subject.finalize(&a[5]).await?;
    subject.roll_back(&a[9]).await?;
    // Finality moves on to the other fork, over heights where orphans still stand.
    let finalized: BlockRef = b[35].block_ref();
    subject.store.finalize(subject.fence, Some(finalized), None).await?;
    same("during the purge", subject.store.claim_range("w", TTL_MS, 10, STOP).await?, None)?;
    subject.purge(4).await?;
    let lease = claim(&subject, "w").await?;
    same("after it", lease.range, heights(10, 20))?;
    subject.store.fill(&lease, part(&b, 10, 20), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    subject.shows(&b[..20]).await
}
