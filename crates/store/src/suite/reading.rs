//! Snapshots: parts, byte limits, log queries, and the order of keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_core::{Height, HeightRange, IndexKey, Parts, RawBlock, StoredBlock};

use super::blocks::{as_stored, chain, common_term, own_term};
use super::check::{Failure, holds, is_invalid, refused, same};
use super::subject::{Subject, covers, fingerprint};
use super::{Case, CaseResult, StoreFactory};
use crate::{BlocksRead, LogQuery, RawSnapshot, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("reading":
        every_set_of_parts_is_read_alone,
        a_range_is_read_in_pieces_under_a_byte_limit,
        chosen_heights_are_read_under_the_same_limit,
        heights_that_are_not_stored_are_named,
        a_block_that_was_lost_is_named_by_every_read_that_meets_it,
        log_queries_join_groups_by_and_and_terms_by_or,
        a_group_without_terms_matches_nothing_and_no_groups_every_log,
        log_candidates_come_in_pages,
        the_log_index_selects,
        g07_heights_are_ordered_as_numbers,
        fingerprints_of_any_range_are_those_of_its_blocks,
        sizes_tell_what_is_there,
    )
}

async fn every_set_of_parts_is_read_alone(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 12, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let heights: Vec<Height> = blocks.iter().map(|block| block.facts.height).collect();
    for bits in 0..64 {
        let parts = Parts::from_bits_truncate(bits);
        let expected: Vec<_> = blocks.iter().map(|block| as_stored(block, parts)).collect();
        for (height, expected) in heights.iter().zip(&expected) {
            let found = snapshot.block(*height, parts).await?;
            same(&format!("{parts:?} of a block"), found.as_ref(), Some(expected))?;
        }
        let found = snapshot.blocks(snapshot.head().range(), parts, u64::MAX).await?.blocks;
        same(&format!("{parts:?} of a range"), &found, &expected)?;
        let found = snapshot.blocks_at(&heights, parts, u64::MAX).await?;
        same(&format!("{parts:?} of chosen heights"), &found, &expected)?;
    }
    Ok(())
}

fn bytes_of(block: &StoredBlock) -> u64 {
    let traces = block.traces.as_ref().map_or(0, |traces| traces.len());
    (block.header.len() + block.body.len() + block.receipts.len() + block.extras.len() + traces) as u64
}

/// Demands that an answer ends with the block that reaches the limit, or with the last one there is.
#[track_caller]
fn keeps_limit(found: &[StoredBlock], expected: &[StoredBlock], max_bytes: u64) -> CaseResult {
    holds(!found.is_empty() || expected.is_empty(), "no block, though there is one")?;
    holds(expected.starts_with(found), "the blocks are not those that were asked for, in order")?;
    let sum: u64 = found.iter().map(bytes_of).sum();
    let before = sum - found.last().map_or(0, bytes_of);
    holds(
        found.len() <= 1 || before < max_bytes,
        format!("{before} bytes reach the limit {max_bytes} already"),
    )?;
    let is_all = found.len() == expected.len();
    holds(is_all || sum >= max_bytes, format!("stopped at {sum} bytes below the limit {max_bytes}"))
}

async fn a_range_is_read_in_pieces_under_a_byte_limit(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(50, 60, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let range = HeightRange::new(Height(40), Height(200));
    for parts in [Parts::all(), Parts::HEADER, Parts::RECEIPTS | Parts::TRACES] {
        let expected: Vec<_> = blocks.iter().map(|block| as_stored(block, parts)).collect();
        for max_bytes in [0, 1, 100, 1_000, 10_000, u64::MAX] {
            let (mut from, mut at) = (range.start(), 0);
            loop {
                let read = snapshot.blocks(HeightRange::new(from, range.end()), parts, max_bytes).await?;
                let found = read.blocks;
                keeps_limit(&found, &expected[at..], max_bytes)?;
                let is_cut = found.iter().map(bytes_of).sum::<u64>() >= max_bytes;
                let ended =
                    found.last().filter(|_| is_cut).map_or(range.end(), |last| last.facts.height.next());
                same("where the caller goes on", read.next, ended)?;
                let Some(last) = found.last() else { break };
                (from, at) = (last.facts.height.next(), at + found.len());
            }
            same("the blocks read in all", at, blocks.len())?;
        }
    }
    let inside = HeightRange::new(Height(70), Height(73));
    let expected: Vec<_> = blocks[20..23].iter().map(|block| as_stored(block, Parts::all())).collect();
    same(
        "a range inside",
        snapshot.blocks(inside, Parts::all(), u64::MAX).await?,
        BlocksRead::whole(inside, expected),
    )?;
    // Of heights that the store doesn't hold it is known that no block is there.
    for without in [(70, 70), (20, 50), (110, 400)] {
        let without = HeightRange::new(Height(without.0), Height(without.1));
        let read = snapshot.blocks(without, Parts::all(), 1).await?;
        same("a range without a block", read, BlocksRead::whole(without, Vec::new()))?;
    }
    Ok(())
}

async fn chosen_heights_are_read_under_the_same_limit(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(50, 60, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let chosen: Vec<&RawBlock> =
        blocks.iter().filter(|block| [0, 1, 5].contains(&(block.facts.height.get() % 7))).collect();
    let heights: Vec<Height> = chosen.iter().map(|block| block.facts.height).collect();
    for parts in [Parts::all(), Parts::BODY] {
        let expected: Vec<_> = chosen.iter().map(|block| as_stored(block, parts)).collect();
        for max_bytes in [0, 1, 300, 3_000, u64::MAX] {
            let mut at = 0;
            while at < heights.len() {
                let found = snapshot.blocks_at(&heights[at..], parts, max_bytes).await?;
                keeps_limit(&found, &expected[at..], max_bytes)?;
                at += found.len();
            }
        }
    }
    same("no heights", snapshot.blocks_at(&[], Parts::all(), 1).await?, vec![])
}

async fn heights_that_are_not_stored_are_named(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(50, 10, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let read = async |heights: &[u64], max_bytes: u64| {
        let heights: Vec<Height> = heights.iter().copied().map(Height).collect();
        snapshot.blocks_at(&heights, Parts::all(), max_bytes).await
    };
    // Law 2: the first missing height is named, wherever it stands, and whether the limit lets the answer reach it or not.
    for (heights, first) in
        [(&[49, 50][..], 49), (&[50, 55, 60, 61], 60), (&[3, 4, 50], 3), (&[59, 1 << 40], 1 << 40)]
    {
        for max_bytes in [1, u64::MAX] {
            refused(
                "a missing height",
                read(heights, max_bytes).await,
                |error| matches!(error, StoreError::Missing { missing } if missing.start() == Height(first)),
            )?;
        }
    }
    for heights in [&[52, 51][..], &[52, 52], &[50, 58, 51]] {
        refused("heights out of order", read(heights, u64::MAX).await, is_invalid)?;
    }
    Ok(())
}

/// Law 2: no read passes over a height of the head's range whose block is gone.
async fn a_block_that_was_lost_is_named_by_every_read_that_meets_it(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    const HEIGHTS: u64 = 60;
    let blocks = chain(0, HEIGHTS, 0);
    let has_logs = |block: &&RawBlock| block.facts.log_count > 0;
    let inner = &blocks[20..40];
    let with_logs = inner.iter().find(has_logs).ok_or_else(|| Failure::new("no block has logs"))?;
    let silent = inner.iter().find(|block| block.facts.log_count == 0);
    let silent = silent.ok_or_else(|| Failure::new("every block has logs"))?;
    // From the top downwards: the newest loss is the first height that is missing.
    let mut lost = [with_logs, silent, &blocks[0], &blocks[HEIGHTS as usize - 1]];
    lost.sort_by_key(|block| std::cmp::Reverse(block.facts.height));
    let subject = Subject::with(&factory, &blocks).await?;
    for lost in lost {
        let at = lost.facts.height;
        subject.place.lose_block(at).await?;
        let snapshot = subject.snapshot().await?;
        let all = snapshot.head().range();
        let names = |error: &StoreError| *error == StoreError::hole(at);
        refused("the block", snapshot.block(at, Parts::HEADER).await, names)?;
        refused("its link", snapshot.linked_ref(at).await, names)?;
        refused("a range", snapshot.blocks(all, Parts::HEADER, u64::MAX).await, names)?;
        refused("its height", snapshot.blocks_at(&[at], Parts::HEADER, u64::MAX).await, names)?;
        let own = own_term(lost.facts.id);
        for groups in [vec![], vec![vec![common_term(1)]], vec![vec![own]], vec![vec![0xdead]], vec![vec![]]]
        {
            let query = LogQuery { groups };
            for range in [all, HeightRange::one(at)] {
                let found = snapshot.log_candidates(range, &query, usize::MAX).await;
                refused(&format!("logs of {range} by {query:?}"), found, names)?;
            }
            finds(&*snapshot, &blocks, HeightRange::new(all.start(), at), &query.groups).await?;
            // By pages: what comes before it is an answer, and the read that reaches it is none.
            let mut from = all.start();
            let ended = loop {
                let rest = HeightRange::new(from, all.end());
                match snapshot.log_candidates(rest, &query, 5).await {
                    Ok(page) => match page.last() {
                        Some(last) if *last < at => from = last.next(),
                        passed => break Ok(passed.copied()),
                    },
                    Err(error) => break Err(error),
                }
            };
            refused(&format!("pages of logs by {query:?}"), ended, names)?;
        }
    }
    Ok(())
}

/// Demands that a query finds at least what a linear scan of `chain` finds in `range`.
async fn finds(
    snapshot: &dyn RawSnapshot,
    chain: &[RawBlock],
    range: HeightRange,
    groups: &[Vec<IndexKey>],
) -> CaseResult {
    let query = LogQuery { groups: groups.to_vec() };
    let expected = scan(chain, range, groups);
    let found = snapshot.log_candidates(range, &query, usize::MAX).await?;
    let outside = found.iter().find(|height| !range.contains(**height));
    holds(outside.is_none(), format!("candidate {outside:?} lies outside {range}"))?;
    covers(&found, &expected, chain)
}

fn scan(chain: &[RawBlock], range: HeightRange, groups: &[Vec<IndexKey>]) -> Vec<Height> {
    let matches = |block: &RawBlock| {
        block.facts.log_count > 0
            && groups.iter().all(|group| group.iter().any(|term| block.log_terms.contains(term)))
    };
    let blocks = chain.iter().filter(|block| range.contains(block.facts.height) && matches(block));
    blocks.map(|block| block.facts.height).collect()
}

fn all() -> HeightRange {
    HeightRange::new(Height::ZERO, Height(u64::MAX))
}

async fn log_queries_join_groups_by_and_and_terms_by_or(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 150, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    for settled in [false, true] {
        let snapshot = subject.snapshot().await?;
        let own = |at: usize| own_term(blocks[at].facts.id);
        let unknown = 0xdead;
        let queries: Vec<Vec<Vec<IndexKey>>> = vec![
            vec![vec![common_term(0)]],
            vec![vec![common_term(7)]],
            vec![vec![common_term(3), common_term(5)]],
            vec![vec![common_term(1)], vec![common_term(4)]],
            vec![vec![own(10), own(20), own(30), own(31), own(32)]],
            vec![vec![own(10), own(20), own(30), own(31), own(32)], vec![common_term(1)]],
            vec![vec![common_term(2), unknown], vec![unknown, common_term(0)]],
            vec![vec![unknown]],
            vec![vec![common_term(0)], vec![unknown]],
            // G09: the same term several times.
            vec![vec![common_term(2); 5], vec![common_term(2)]],
            vec![(0..1_000).map(|n| 0xabcd_0000 + n).chain([common_term(6)]).collect()],
        ];
        for groups in &queries {
            for range in
                [all(), HeightRange::new(Height(30), Height(33)), HeightRange::new(Height(64), Height(65))]
            {
                finds(&*snapshot, &blocks, range, groups).await?;
            }
        }
        drop(snapshot);
        if !settled {
            subject.finalize(&blocks[149]).await?;
            subject.settle().await?;
        }
    }
    Ok(())
}

async fn a_group_without_terms_matches_nothing_and_no_groups_every_log(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let blocks = chain(0, 60, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let with_logs = scan(&blocks, all(), &[]);
    holds(with_logs.len() < 60 && with_logs.len() > 20, "the chain is of no use for this case")?;
    finds(&*snapshot, &blocks, all(), &[]).await?;
    finds(&*snapshot, &blocks, HeightRange::new(Height(7), Height(20)), &[]).await?;
    let nothing = |groups: Vec<Vec<IndexKey>>| snapshot_candidates(&*snapshot, groups);
    same("an empty group", nothing(vec![vec![]]).await?, vec![])?;
    same("an empty group beside another", nothing(vec![vec![common_term(0)], vec![]]).await?, vec![])?;
    same("an empty group before another", nothing(vec![vec![], vec![common_term(0)]]).await?, vec![])
}

async fn snapshot_candidates(
    snapshot: &dyn RawSnapshot,
    groups: Vec<Vec<IndexKey>>,
) -> crate::Result<Vec<Height>> {
    snapshot.log_candidates(all(), &LogQuery { groups }, usize::MAX).await
}

async fn log_candidates_come_in_pages(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 100, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let range = HeightRange::new(Height(10), Height(90));
    for groups in
        [vec![], vec![vec![common_term(1)]], vec![vec![common_term(0)], vec![common_term(2), common_term(3)]]]
    {
        let query = LogQuery { groups: groups.clone() };
        let whole = snapshot.log_candidates(range, &query, usize::MAX).await?;
        covers(&whole, &scan(&blocks, range, &groups), &blocks)?;
        same("no page", snapshot.log_candidates(range, &query, 0).await?, vec![])?;
        for limit in [1, 2, 7, whole.len(), whole.len() + 1] {
            let (mut from, mut seen) = (range.start(), BTreeSet::new());
            loop {
                let rest = HeightRange::new(from, range.end());
                let page = snapshot.log_candidates(rest, &query, limit).await?;
                holds(page.len() <= limit, format!("{} heights on a page of {limit}", page.len()))?;
                holds(page.is_sorted_by(|a, b| a < b), format!("not ascending: {page:?}"))?;
                seen.extend(page.iter().copied());
                match page.last() {
                    Some(last) if page.len() == limit => from = last.next(),
                    _ => break,
                }
            }
            let expected = scan(&blocks, range, &groups);
            covers(&seen.into_iter().collect::<Vec<_>>(), &expected, &blocks)?;
        }
    }
    Ok(())
}

async fn the_log_index_selects(factory: Arc<dyn StoreFactory>) -> CaseResult {
    // A block without a match may be among the candidates, but an index that names them all is none.
    let blocks = chain(0, 300, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let rare: Vec<&RawBlock> = blocks.iter().filter(|block| block.facts.log_count > 0).step_by(40).collect();
    for settled in [false, true] {
        let snapshot = subject.snapshot().await?;
        for block in &rare {
            let found = snapshot_candidates(&*snapshot, vec![vec![own_term(block.facts.id)]]).await?;
            covers(&found, &[block.facts.height], &blocks)?;
            holds(found.len() <= 30, format!("{} of 300 blocks for a term of one", found.len()))?;
        }
        let found = snapshot_candidates(&*snapshot, vec![vec![0xdead]]).await?;
        holds(found.len() <= 30, format!("{} of 300 blocks for a term of none", found.len()))?;
        drop(snapshot);
        if !settled {
            subject.finalize(&blocks[299]).await?;
            subject.settle().await?;
        }
    }
    Ok(())
}

async fn g07_heights_are_ordered_as_numbers(factory: Arc<dyn StoreFactory>) -> CaseResult {
    // Heights of a store are contiguous, so each edge has its own store, which begins just below it.
    for edge in [9, 99, 255, 2_519, 65_535, (1 << 32) - 1, (1 << 40) - 1] {
        let first = edge - 6;
        let blocks = chain(first, 14, 0);
        let subject = Subject::with(&factory, &blocks).await?;
        subject.shows(&blocks).await?;
        for settled in [false, true] {
            let snapshot = subject.snapshot().await?;
            for from in first..first + 14 {
                for to in from..first + 14 {
                    let range = HeightRange::inclusive(Height(from), Height(to));
                    let expected = blocks.iter().filter(|block| range.contains(block.facts.height));
                    let expected: Vec<_> = expected.map(|block| as_stored(block, Parts::HEADER)).collect();
                    same("a range", snapshot.blocks(range, Parts::HEADER, u64::MAX).await?.blocks, expected)?;
                    finds(&*snapshot, &blocks, range, &[vec![common_term(0)]]).await?;
                }
            }
            drop(snapshot);
            if !settled {
                subject.finalize(&blocks[12]).await?;
                subject.settle().await?;
            }
        }
        subject.dumps_as(&blocks).await?;
    }
    Ok(())
}

async fn fingerprints_of_any_range_are_those_of_its_blocks(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(20, 50, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    for settled in [false, true] {
        let snapshot = subject.snapshot().await?;
        for (from, to) in [(0, 100), (20, 70), (30, 31), (45, 60), (60, 80), (0, 20), (70, 90), (33, 33)] {
            let range = HeightRange::new(Height(from), Height(to));
            let inside = blocks.iter().filter(|block| range.contains(block.facts.height));
            let expected: Vec<_> = inside.map(fingerprint).collect();
            same("the fingerprints", snapshot.index_fingerprints(range).await?, expected)?;
        }
        drop(snapshot);
        if !settled {
            subject.finalize(&blocks[49]).await?;
            subject.settle().await?;
        }
    }
    Ok(())
}

async fn sizes_tell_what_is_there(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let subject = Subject::with(&factory, &chain(0, 50, 0)).await?;
    let sizes = subject.snapshot().await?.sizes().await?;
    holds(sizes.total_bytes > 0 && !sizes.parts.is_empty(), "nothing is told")?;
    holds(sizes.parts.iter().any(|(_, rows, _)| *rows >= 50), "no part has the 50 blocks")?;
    holds(sizes.parts.is_sorted_by(|a, b| a.2 >= b.2), "the largest part is not the first")
}
