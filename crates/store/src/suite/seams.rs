//! `advance` where a range does not join: it is given up and fetched again, and nothing else changes.

use std::sync::Arc;

use cairn_core::{Height, Parts, RawBlock};

use super::blocks::{anchor_parent, chain, chain_after, fork};
use super::check::{holds, is_below_finality, is_fenced, is_too_deep, is_unlinked, refused, same};
use super::leases::{STOP, TTL_MS, backfill, bad_end, claim, heights, part};
use super::subject::Subject;
use super::{Case, CaseResult, StoreFactory};
use crate::{PurgeProgress, RawLease, RawLeaseState, Rollback, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("seams":
        a_range_that_does_not_link_is_given_up_and_fetched_again,
        the_head_moves_as_far_as_it_can_before_a_broken_seam,
        the_first_range_may_not_link_to_the_tip,
        the_holder_of_a_range_that_was_given_up_is_fenced,
        a_zombie_gives_nothing_up,
        every_broken_seam_is_found_in_its_turn,
        a_rollback_takes_what_was_filled_on_the_fork_that_goes,
        a_rollback_leaves_leases_that_end_at_the_common_block,
        a_mark_that_contradicts_a_filled_block_stops_the_head,
    )
}

/// Blocks of heights `[from, to)` that link to nothing.
fn foreign(from: u64, to: u64) -> Vec<RawBlock> {
    chain_after(anchor_parent(Height(from)), Height(from), to - from, 9)
}

/// What a lease looks like after it was given up.
fn given_up(lease: &RawLease, attempt: u32) -> RawLease {
    RawLease {
        state: RawLeaseState::Failed,
        attempt,
        done_to: lease.range.start(),
        last_id: None,
        first_parent: None,
        ..lease.clone()
    }
}

/// Compares but for fence, expiry and what it ended over.
#[track_caller]
fn same_lease(what: &str, found: &RawLease, expected: &RawLease) -> CaseResult {
    let found = RawLease {
        fence: expected.fence,
        expires_at_ms: expected.expires_at_ms,
        last_error: expected.last_error.clone(),
        ..found.clone()
    };
    same(what, &found, expected)
}

async fn a_range_that_does_not_link_is_given_up_and_fetched_again(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let first = claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    subject.store.fill(&first, part(&blocks, 5, 10), TTL_MS).await?;
    let wrong = foreign(10, 20);
    let second = subject.store.fill(&second, wrong.clone(), TTL_MS).await?;
    let error = refused("the seam", subject.store.advance(subject.fence).await, is_unlinked)?;
    if let StoreError::DoesNotLink { first, parent_id, expected } = error {
        let named = (wrong[0].block_ref(), wrong[0].facts.parent_id, blocks[9].block_ref());
        same("what it names", (first, parent_id, expected), named)?;
    }
    same("the head", subject.head().await?.tip, Some(blocks[9].block_ref()))?;
    subject.shows(&blocks[..10]).await?;
    // Nothing of the wrong blocks is left, in rows or indexes.
    subject.dumps_as(&blocks[..10]).await?;
    same_lease("the lease", &subject.first_lease().await?, &given_up(&second, 1))?;
    let why = subject.first_lease().await?.last_error;
    holds(why.contains(&blocks[9].facts.id.to_string()), "a range that was given up doesn't say why")?;
    let before = subject.freeze().await?;
    subject.store.advance(subject.fence).await?;
    subject.is_still(&before).await?;
    let again = claim(&subject, "c").await?;
    same("fetched again", (again.range, again.done_to, again.attempt), (heights(10, 20), Height(10), 1))?;
    subject.store.fill(&again, part(&blocks, 10, 20), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    subject.shows(&blocks[..20]).await?;
    subject.dumps_as(&blocks[..20]).await
}

async fn the_head_moves_as_far_as_it_can_before_a_broken_seam(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(claim(&subject, "w").await?);
    }
    subject.store.fill(&leases[0], part(&blocks, 5, 10), TTL_MS).await?;
    subject.store.fill(&leases[1], part(&blocks, 10, 20), TTL_MS).await?;
    subject.store.fill(&leases[2], foreign(20, 24), TTL_MS).await?;
    subject.store.fill(&leases[3], part(&blocks, 30, 33), TTL_MS).await?;
    refused("the seam", subject.store.advance(subject.fence).await, is_unlinked)?;
    subject.shows(&blocks[..20]).await?;
    let left = subject.leases().await?;
    same(
        "the leases",
        left.iter().map(|lease| lease.range).collect(),
        vec![heights(20, 30), heights(30, 40)],
    )?;
    same_lease("the one that was given up", &left[0], &given_up(&leases[2], 1))?;
    same("the one above it", (left[1].done_to, left[1].state), (Height(33), RawLeaseState::Active))?;
    let again = claim(&subject, "w").await?;
    subject.store.fill(&again, part(&blocks, 20, 30), TTL_MS).await?;
    same("the head", subject.store.advance(subject.fence).await?.tip, Some(blocks[32].block_ref()))?;
    subject.shows(&blocks[..33]).await
}

async fn the_first_range_may_not_link_to_the_tip(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let head = subject.head().await?;
    for attempt in 1..4 {
        // A fork that forks off below the tip: its first block has another parent.
        let other = fork(&blocks, 3, 20, attempt);
        let lease = if attempt == 1 { lease.clone() } else { claim(&subject, "a").await? };
        subject.store.fill(&lease, part(&other, 5, 7), TTL_MS).await?;
        refused("the seam", subject.store.advance(subject.fence).await, is_unlinked)?;
        same("the head row", subject.head().await?, head.clone())?;
        subject.dumps_as(&blocks[..5]).await?;
        // The fill moved the lease, so the attempts begin anew each time.
        same_lease("the lease", &subject.first_lease().await?, &given_up(&lease, 1))?;
    }
    Ok(())
}

async fn the_holder_of_a_range_that_was_given_up_is_fenced(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let lease = claim(&subject, "a").await?;
    let wrong = foreign(5, 10);
    let lease = subject.store.fill(&lease, wrong[..2].to_vec(), TTL_MS).await?;
    refused("the seam", subject.store.advance(subject.fence).await, is_unlinked)?;
    let before = subject.freeze().await?;
    refused("the next chunk", subject.store.fill(&lease, wrong[2..].to_vec(), TTL_MS).await, is_fenced)?;
    refused("the first again", subject.store.fill(&lease, part(&blocks, 5, 7), TTL_MS).await, is_fenced)?;
    refused("its release", subject.store.release(&lease, bad_end()).await, is_fenced)?;
    subject.is_still(&before).await
}

async fn a_zombie_gives_nothing_up(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (mut subject, blocks) = backfill(&factory).await?;
    let first = claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    subject.store.fill(&first, part(&blocks, 5, 10), TTL_MS).await?;
    subject.store.fill(&second, foreign(10, 12), TTL_MS).await?;
    let zombie = subject.fence;
    subject.acquire().await?;
    let before = subject.freeze().await?;
    refused("a zombie's advance", subject.store.advance(zombie).await, is_fenced)?;
    subject.is_still(&before).await
}

async fn every_broken_seam_is_found_in_its_turn(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (subject, blocks) = backfill(&factory).await?;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(claim(&subject, "w").await?);
    }
    // Every range is another fork's.
    for lease in &leases {
        let (from, to) = (lease.range.start().get(), lease.range.end().get());
        subject.store.fill(lease, foreign(from, to), TTL_MS).await?;
    }
    for lease in &leases {
        refused("a seam", subject.store.advance(subject.fence).await, is_unlinked)?;
        let again = claim(&subject, "w").await?;
        same("the range that was given up", again.range, lease.range)?;
        let (from, to) = (lease.range.start().get(), lease.range.end().get());
        subject.store.fill(&again, part(&blocks, from, to), TTL_MS).await?;
    }
    subject.store.advance(subject.fence).await?;
    subject.shows(&blocks[..40]).await?;
    subject.dumps_as(&blocks[..40]).await
}

async fn a_rollback_takes_what_was_filled_on_the_fork_that_goes(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    // A mixed set of nodes: what was filled, and advanced over, was never final.
    let good = chain(0, 60, 0);
    let bad = fork(&good, 7, 50, 1);
    let subject = Subject::with(&factory, &good[..5]).await?;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(claim(&subject, "w").await?);
    }
    subject.store.fill(&leases[0], part(&bad, 5, 10), TTL_MS).await?;
    leases[1] = subject.store.fill(&leases[1], part(&bad, 10, 14), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    leases[1] = subject.store.fill(&leases[1], part(&bad, 14, 17), TTL_MS).await?;
    subject.store.fill(&leases[3], part(&bad, 30, 40), TTL_MS).await?;
    subject.shows(&bad[..14]).await?;
    // What is refused leaves them alone.
    let before = subject.freeze().await?;
    let request = Rollback { common: good[7].block_ref(), max_depth: 5, decided_at_ms: 0 };
    refused("a rollback", subject.store.rollback(subject.fence, request).await, is_too_deep)?;
    subject.is_still(&before).await?;

    let entry = subject.roll_back(&good[7]).await?;
    let orphans: Vec<_> = entry.orphans.iter().map(|orphan| orphan.block).collect();
    same("the orphans", orphans, bad[8..14].iter().map(RawBlock::block_ref).collect())?;
    same("the leases", subject.leases().await?, vec![])?;
    subject.dumps_as(&good[..8]).await?;
    let snapshot = subject.snapshot().await?;
    same(
        "the pending purge",
        snapshot.head().pending_purge.map(|purge| purge.orphans),
        Some(heights(8, 14)),
    )?;
    for block in &bad[14..] {
        same("no orphan", snapshot.orphan(1, block.facts.id, Parts::all()).await?, None)?;
    }
    drop(snapshot);
    let before = subject.freeze().await?;
    for lease in &leases {
        let from = lease.done_to.get().min(lease.range.end().get() - 1);
        let answer = subject.store.fill(lease, part(&bad, from, from + 1), TTL_MS).await;
        refused("a fill by the old holder", answer, is_fenced)?;
    }
    same("a claim", subject.store.claim_range("w", TTL_MS, 10, STOP).await?, None)?;
    subject.is_still(&before).await?;
    same("the purge", subject.store.purge_step(subject.fence, 5).await?, PurgeProgress::Left(1))?;
    let subject = subject.restart().await?;
    subject.purge(1).await?;
    subject.dumps_as(&good[..8]).await?;
    // Everything above is claimed anew and may be filled with other blocks.
    for (from, to) in [(8, 10), (10, 20), (20, 30), (30, 40)] {
        let lease = claim(&subject, "w").await?;
        same("the range", lease.range, heights(from, to))?;
        subject.store.fill(&lease, part(&good, from, to), TTL_MS).await?;
    }
    subject.store.advance(subject.fence).await?;
    subject.append(&good[40..]).await?;
    subject.shows(&good).await?;
    subject.settle().await?;
    subject.dumps_as(&good).await
}

async fn a_rollback_leaves_leases_that_end_at_the_common_block(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let good = chain(0, 40, 0);
    let bad = fork(&good, 9, 20, 1);
    let subject = Subject::with(&factory, &good[..5]).await?;
    let first = claim(&subject, "a").await?;
    let second = claim(&subject, "b").await?;
    let first = subject.store.fill(&first, part(&good, 5, 7), TTL_MS).await?;
    // Appends pass over the first and into the second; nobody has advanced since.
    subject.append(&bad[5..15]).await?;
    subject.roll_back(&good[9]).await?;
    let left = subject.leases().await?;
    same("the leases", left, vec![first.clone()])?;
    let answer = subject.store.fill(&second, part(&bad, 10, 11), TTL_MS).await;
    refused("a fill of the second", answer, is_fenced)?;
    subject.purge(2).await?;
    // The first one's holder still finds its blocks stored.
    subject.store.fill(&first, part(&good, 7, 10), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    same("the leases", subject.leases().await?, vec![])?;
    let again = claim(&subject, "c").await?;
    same("the next range", again.range, heights(10, 20))?;
    subject.store.fill(&again, part(&good, 10, 20), TTL_MS).await?;
    subject.store.advance(subject.fence).await?;
    subject.shows(&good[..20]).await?;
    subject.dumps_as(&good[..20]).await
}

async fn a_mark_that_contradicts_a_filled_block_stops_the_head(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 40, 0);
    let other = fork(&blocks, 3, 30, 1);
    let subject = Subject::with(&factory, &blocks[..5]).await?;
    let lease = claim(&subject, "a").await?;
    subject.store.fill(&lease, part(&blocks, 5, 10), TTL_MS).await?;
    // A mark above the tip is taken as it comes, whatever was filled there.
    subject.finalize(&other[8]).await?;
    let before = subject.freeze().await?;
    let error = refused("advance", subject.store.advance(subject.fence).await, is_below_finality)?;
    if let StoreError::BelowFinality { finalized, asked } = error {
        same("what it names", (finalized, asked), (other[8].block_ref(), blocks[8].block_ref()))?;
    }
    subject.is_still(&before).await
}
