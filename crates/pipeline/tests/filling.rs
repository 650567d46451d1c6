//! Filling ranges in parallel ahead of the head, and the seams between them and to the head.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{Height, HeightRange};
use cairn_pipeline::ingest::FillOptions;
use cairn_store::{RawFiller, RawLease, RawLeaseState};
use support::node::{Asked, transient};
use support::*;

/// A world that fills `workers` ranges of ten heights at once.
fn filling(seed: u64, head: u64, finalized: u64, workers: usize) -> World {
    World::new(tiny(seed), view(MAIN, head, Some(finalized))).with(|options| {
        options.fetches_in_flight = 8;
        options.fill =
            Some(FillOptions { workers, range_heights: 10, lease_ttl_ms: 20_000, owner: "a-test".into() });
    })
}

async fn leases(world: &World) -> Vec<RawLease> {
    world.snapshot().await.raw_leases().await.expect("reads")
}

/// The heights above the tip and below the highest filled one that nobody has filled.
async fn gaps(world: &World) -> Vec<HeightRange> {
    let mut at = world.tip().await.expect("a tip").height.next();
    let mut gaps = Vec::new();
    for lease in leases(world).await.iter().filter(|lease| lease.done_to > lease.range.start()) {
        if lease.range.start() > at {
            gaps.push(HeightRange::new(at, lease.range.start()));
        }
        at = at.max(lease.done_to);
    }
    gaps
}

#[tokio::test(start_paused = true)]
async fn i03_ranges_that_finish_out_of_order_move_nothing_over_the_gap() {
    let world = filling(1, 29, 29, 3);
    world.node.on_blocks(|range, honest| {
        let middle = HeightRange::new(Height(10), Height(20));
        if middle.contains(range.start()) { Err(transient()) } else { Ok(honest) }
    });
    let running = world.start();
    world.until("height 9", |head| head.tip.is_some_and(|tip| tip.height == Height(9))).await;
    pass_ms(60_000).await;
    assert_eq!(world.tip().await, Some(world.chain.block_ref(MAIN, Height(9))), "the watermark");
    let highest = leases(&world).await.iter().map(|lease| lease.done_to).max();
    assert_eq!(highest, Some(Height(30)), "the highest filled height is 29");
    assert_eq!(gaps(&world).await, [HeightRange::new(Height(10), Height(20))]);
    let snapshot = world.snapshot().await;
    assert_eq!(
        snapshot.linked_ref(Height(25)).await.expect("reads"),
        None,
        "nothing above the watermark can be read"
    );
    let filled = world.chain.block(MAIN, Height(25)).facts.id;
    assert_eq!(snapshot.find_block(filled).await.expect("reads"), None);
    world.node.well();
    world.until_tip(MAIN, 29).await;
    assert!(leases(&world).await.is_empty());
    world.assert_holds(MAIN, 0, 29).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_archive_is_filled_in_parallel_from_its_first_block_on() {
    let world = filling(2, 120, 100, 4);
    let running = world.start();
    world.until_tip(MAIN, 120).await;
    assert_eq!(world.commits.count("fill"), 11, "ranges of ten: [1, 10), [10, 20), … [100, 101)");
    world.assert_holds(MAIN, 0, 120).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn filling_begins_above_an_anchor_in_the_middle() {
    let world = filling(3, 120, 100, 4).with(|options| options.start = Height(37));
    let running = world.start();
    world.until_tip(MAIN, 120).await;
    assert!(world.commits.count("fill") >= 6);
    world.assert_holds(MAIN, 37, 120).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn i05_the_upper_bound_comes_from_the_node() {
    let world = filling(4, 100, 100, 3);
    let running = world.start();
    world.until_tip(MAIN, 100).await;
    running.stop_well().await;
    // Nothing ran while the node went on to 150.
    world.see(view(MAIN, 150, Some(150)));
    let mut first = true;
    world.node.on_blocks(move |range, honest| {
        // The lowest missing range comes last, so that the gap can be seen.
        if range.start() == Height(101) && std::mem::take(&mut first) { Err(transient()) } else { Ok(honest) }
    });
    let running = world.start();
    world.until("a gap", |head| head.tip.is_some_and(|tip| tip.height >= Height(100))).await;
    while gaps(&world).await.is_empty() && world.tip().await.expect("a tip").height < Height(150) {
        pass_ms(1).await;
    }
    assert_eq!(running.board.get().target, Some(Height(150)));
    world.until_tip(MAIN, 150).await;
    assert!(
        gaps(&world).await.is_empty() && leases(&world).await.is_empty(),
        "a gap is closed with its last block"
    );
    world.assert_holds(MAIN, 0, 150).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn i05_a_reorg_that_is_replaced_at_once_leaves_no_gap() {
    let world = filling(5, 40, 20, 2);
    let running = world.start();
    world.until_tip(MAIN, 40).await;
    let other = fork(&world.chain, 34, 1);
    world.see(view(other, 41, Some(20)));
    world.until_tip(other, 41).await;
    assert!(gaps(&world).await.is_empty() && leases(&world).await.is_empty());
    world.assert_holds(other, 0, 41).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn i09_the_block_at_the_seam_is_stored_once() {
    let world = filling(6, 120, 99, 3);
    world.node.latency_ms(15);
    let node = world.node.clone();
    world.node.on_blocks(move |range, honest| {
        // The head and finality move while the backfill ends.
        if range.contains(Height(99)) {
            node.see(view(MAIN, 131, Some(110)));
        }
        Ok(honest)
    });
    let running = world.start();
    world.until_tip(MAIN, 131).await;
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    for height in world.node.given() {
        *times.entry(height.get()).or_default() += 1;
    }
    assert_eq!(times, (0..=131).map(|height| (height, 1)).collect(), "each block was fetched once");
    assert_eq!(running.board.get().blocks, 132, "and committed once");
    world.assert_holds(MAIN, 0, 131).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn filling_never_asks_for_more_at_once_than_it_may() {
    let world = filling(7, 300, 300, 4);
    world.node.latency_ms(50);
    let running = world.start();
    world.until_tip(MAIN, 300).await;
    assert!((2..=8).contains(&world.node.most_in_flight()), "{}", world.node.most_in_flight());
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_range_that_a_dead_process_held_is_freed_at_once_and_goes_on_where_it_stopped() {
    let world = filling(8, 60, 60, 2);
    let mut left = 3;
    world.node.hang(|asked| matches!(asked, Asked::Blocks(range) if range.start() >= Height(25)));
    world.node.on_blocks(move |_, mut honest| {
        // Answers come in small pieces, so that a range is left half done.
        honest.truncate(if left > 0 { 4 } else { honest.len() });
        left -= 1;
        Ok(honest)
    });
    let running = world.start();
    world.until("height 19", |head| head.tip.is_some_and(|tip| tip.height >= Height(19))).await;
    pass_ms(200).await;
    let held = leases(&world).await;
    assert!(held.iter().any(|lease| lease.state == RawLeaseState::Active), "{held:?}");
    running.kill().await;
    world.node.well();
    world.node.take_asked();
    let began = tokio::time::Instant::now();
    let running = world.start();
    world.until_tip(MAIN, 60).await;
    assert!(began.elapsed().as_millis() < 10_000, "it did not wait for leases to expire");
    world.assert_holds(MAIN, 0, 60).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_range_held_by_another_process_is_waited_for_until_it_expires() {
    let world = filling(9, 60, 60, 2);
    let running = world.start();
    world.until_tip(MAIN, 60).await;
    running.stop_well().await;
    world.see(view(MAIN, 100, Some(100)));
    let held = world.store.claim_range("somebody else", 30_000, 10, Height(101)).await.expect("claims");
    assert_eq!(held.expect("a range").range, HeightRange::new(Height(61), Height(70)));
    let running = world.start();
    pass_ms(20_000).await;
    assert_eq!(world.tip().await.map(|tip| tip.height), Some(Height(60)), "it is theirs");
    world.until_tip(MAIN, 100).await;
    world.assert_holds(MAIN, 0, 100).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_range_filled_from_a_dead_fork_is_fetched_again_at_the_seam() {
    let world = filling(10, 60, 60, 2);
    let (chain, dead) = (world.chain.clone(), fork(&world.chain, 15, 1));
    let mut lies = 1;
    world.node.on_blocks(move |range, honest| {
        if range.start() == Height(20) && lies > 0 {
            lies -= 1;
            return Ok(honest.iter().map(|block| (*chain.block(dead, block.facts.height)).clone()).collect());
        }
        Ok(honest)
    });
    let running = world.start();
    world.until_tip(MAIN, 60).await;
    assert_eq!(world.commits.count("rollback"), 0, "a seam is never a reorg");
    world.assert_holds(MAIN, 0, 60).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn without_workers_ranges_that_others_began_are_finished() {
    let world = filling(11, 60, 60, 3);
    world.node.hang(|asked| matches!(asked, Asked::Blocks(range) if range.start() == Height(10)));
    let running = world.start();
    world.until("height 9", |head| head.tip.is_some_and(|tip| tip.height == Height(9))).await;
    pass_ms(1_000).await;
    running.kill().await;
    assert!(!leases(&world).await.is_empty());
    world.node.well();
    let world = world.with(|options| options.fill = None);
    let running = world.start_from(Arc::new(verified(world.node.clone())), world.options.clone());
    world.until_tip(MAIN, 60).await;
    assert!(leases(&world).await.is_empty());
    world.assert_holds(MAIN, 0, 60).await;
    running.stop_well().await;
}
