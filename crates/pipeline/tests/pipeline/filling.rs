//! Filling ranges in parallel ahead of the head, and the seams between them and to the head.

use crate::support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_core::{Clock, ErrorKind, Fence, Height, HeightRange};
use cairn_pipeline::ingest::FillOptions;
use cairn_store::derived::MAX_ATTEMPTS;
use cairn_store::{RawFiller, RawLease, RawLeaseState, StoreError};
use support::node::{Asked, transient};
use support::*;
use tokio::time::Instant;

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

/// Waits for a lease that is as asked.
async fn until_lease(world: &World, is_it: impl Fn(&RawLease) -> bool) -> RawLease {
    for _ in 0..10_000 {
        if let Some(lease) = leases(world).await.into_iter().find(|lease| is_it(lease)) {
            return lease;
        }
        pass_ms(20).await;
    }
    panic!("no such lease: {:?}", leases(world).await);
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
    world.node.take_asked();
    let began = tokio::time::Instant::now();
    let running = world.start();
    pass_ms(100).await;
    // It is a bad end of what hadn't moved, and only of that.
    let freed = leases(&world).await;
    let mut bad_ends = 0;
    for before in held.iter().filter(|lease| lease.state == RawLeaseState::Active) {
        // One that is whole by now is passed by the head.
        let Some(after) = freed.iter().find(|lease| lease.range == before.range) else { continue };
        let is_bad = before.done_to == before.range.start();
        assert_eq!((before.attempt, after.attempt), (0, u32::from(is_bad)), "{before:?} {after:?}");
        assert!(after.fence > before.fence, "{before:?} {after:?}");
        bad_ends += u32::from(is_bad);
    }
    assert!(bad_ends > 0, "{held:?}");
    world.node.well();
    running.kill().await;
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
    // A name that only begins like the process's own.
    let held = world.store.claim_range("a-test-2/0", 30_000, 10, Height(101)).await.expect("claims");
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

#[tokio::test(start_paused = true)]
async fn a_range_that_ends_every_process_waits_for_an_operator_in_the_end() {
    let world = filling(12, 60, 60, 2);
    let poisoned = HeightRange::new(Height(20), Height(30));
    world.node.hang(move |asked| matches!(asked, Asked::Blocks(range) if poisoned.contains(range.start())));
    let attempts = async || {
        let leases = leases(&world).await;
        leases.into_iter().find(|lease| lease.range == poisoned).map(|lease| (lease.attempt, lease.state))
    };
    // A supervisor starts the next process at once, long before a lease expires.
    for died in 0..MAX_ATTEMPTS {
        let running = world.start();
        world.until("the first block", |head| head.tip.is_some()).await;
        let mut looks = 0;
        while attempts().await != Some((died, RawLeaseState::Active)) {
            pass_ms(20).await;
            looks += 1;
            assert!(looks < 1_000, "after {died} processes: {:?}", attempts().await);
        }
        running.kill().await;
    }
    let running = world.start();
    world.until("height 19", |head| head.tip.is_some_and(|tip| tip.height == Height(19))).await;
    pass_ms(60_000).await;
    assert_eq!(attempts().await, Some((MAX_ATTEMPTS, RawLeaseState::Failed)), "nobody claims it any more");
    assert!(running.reason().contains("cairn leases retry raw:20"), "{}", running.reason());
    world.node.well();
    assert!(world.store.retry_range(Height(20)).await.expect("frees it").is_some());
    world.until_tip(MAIN, 60).await;
    world.assert_holds(MAIN, 0, 60).await;
    running.stop_well().await;
}

/// A range that failed may be claimed at once, and is: what keeps it from being asked for without end is that each failure ends a turn, and that turns that fail are ever
/// further apart, in every process by itself.
#[tokio::test(start_paused = true)]
async fn a_range_that_fails_at_once_again_and_again_is_tried_ever_more_seldom() {
    const MINUTES: u64 = 20;
    let world = filling(17, 60, 60, 2);
    let failing = HeightRange::new(Height(20), Height(30));
    world.node.on_blocks(move |range, blocks| match failing.contains(range.start()) {
        true => Err(transient()),
        false => Ok(blocks),
    });
    let first = world.start();
    world.until("height 19", |head| head.tip.is_some_and(|tip| tip.height == Height(19))).await;
    let mut options = world.options.clone();
    options.fill.as_mut().expect("it fills").owner = "another".into();
    options.seed += 1;
    let second = world.start_from(Arc::new(verified(world.node.clone())), options);
    let (before, processes) = (world.commits.count("claim_range"), 2);
    pass_ms(MINUTES * 60_000).await;
    // The longest pause is between 5 s and 10 s, and two workers may claim in a turn.
    let tried = world.commits.count("claim_range") - before;
    let most = processes * 2 * (MINUTES as usize * 12 + 10);
    assert!((MINUTES as usize..=most).contains(&tried), "claimed {tried} times in {MINUTES} minutes");
    let lease = leases(&world).await.into_iter().find(|lease| lease.range == failing).expect("it is there");
    assert_eq!(lease.attempt, 0, "what may pass counts no attempt");
    world.node.well();
    world.until_tip(MAIN, 60).await;
    world.assert_holds(MAIN, 0, 60).await;
    second.stop_well().await;
    let error = first.end().await.expect_err("the other one has the head");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_piece_that_takes_longer_than_the_lease_is_no_bad_end() {
    let world = filling(13, 40, 40, 3);
    // More than two lives of a lease for each answer.
    world.node.latency_ms(45_000);
    let running = world.start();
    world.until("the first block", |head| head.tip.is_some()).await;
    let mut most = 0;
    let mut claims: BTreeMap<Height, Vec<Fence>> = BTreeMap::new();
    for _ in 0..1_800 {
        for lease in leases(&world).await {
            most = most.max(lease.attempt);
            claims.entry(lease.range.start()).or_default().push(lease.fence);
        }
        pass_ms(1_000).await;
    }
    assert_eq!(most, 0, "bad ends");
    for (start, mut fences) in claims {
        fences.dedup();
        assert_eq!(fences.len(), 1, "the range at {start} was claimed again");
    }
    assert!(world.commits.count("renew_range") > 3, "{} renewals", world.commits.count("renew_range"));
    world.assert_holds(MAIN, 0, 40).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_before_the_lease_expires() {
    let world = filling(14, 40, 40, 3);
    world.commits.fail(|when, verb, _| (when == When::Before && verb == "renew_range").then(busy));
    world.node.latency_ms(45_000);
    let running = world.start();
    world.until("the first block", |head| head.tip.is_some()).await;
    until_lease(&world, |_| true).await;
    pass_ms(17_000).await;
    world.commits.heal();
    pass_ms(2_000).await;
    let now_ms = world.clock.now_ms();
    for lease in leases(&world).await {
        assert!(lease.expires_at_ms > now_ms + 15_000, "{lease:?} at {now_ms}");
    }
    world.until_tip(MAIN, 40).await;
    world.assert_holds(MAIN, 0, 40).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn l05_a_range_whose_lease_cannot_be_renewed_is_written_no_more_after_its_own_deadline() {
    const TTL_MS: u64 = 20_000;
    const MARGIN_MS: u64 = TTL_MS / 10;
    let world = filling(17, 40, 40, 1);
    // Blocks come after the deadline, while the store is still away.
    world.node.latency_ms(45_000);
    let running = world.start();
    world.until("the first block", |head| head.tip.is_some()).await;
    let lease = until_lease(&world, |_| true).await;
    let from = Instant::now() + Duration::from_millis(TTL_MS / 2);
    let until = from + Duration::from_millis(2 * TTL_MS);
    let seen: Arc<Mutex<Vec<(Instant, &'static str)>>> = Arc::default();
    let notes = seen.clone();
    world.commits.fail(move |when, verb, _| {
        let now = Instant::now();
        if when == When::Before {
            notes.lock().unwrap().push((now, verb));
        }
        (when == When::Before && now >= from && now < until).then(busy)
    });
    pass_ms(3 * TTL_MS).await;
    let seen = seen.lock().unwrap().clone();
    let of = |verb: &'static str| seen.iter().filter(move |(_, seen)| *seen == verb).map(|(at, _)| *at);
    let last_good = of("renew_range").filter(|at| *at < from).max().unwrap();
    let deadline = last_good + Duration::from_millis(TTL_MS - MARGIN_MS);
    for verb in ["renew_range", "fill", "release"] {
        let late: Vec<_> = of(verb).filter(|at| *at >= deadline && *at < until).collect();
        assert_eq!(late, Vec::<Instant>::new(), "{verb} after {deadline:?}");
    }
    // It did try, up to then.
    assert!(of("renew_range").any(|at| at > from && at < deadline), "{seen:?}");
    // The work was not lost with it: a new fence did it.
    world.commits.heal();
    world.node.latency_ms(10);
    until_lease(&world, |now| now.range == lease.range && now.fence > lease.fence).await;
    world.until_tip(MAIN, 40).await;
    world.assert_holds(MAIN, 0, 40).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn l05_what_is_committed_of_a_range_renews_its_lease() {
    let world = filling(18, 140, 140, 1).with(|options| {
        options.fetches_in_flight = 1;
        options.fill.as_mut().expect("it fills").range_heights = 64;
    });
    // Each piece takes most of a lease's life, the range several; and no renewal goes well.
    world.commits.fail(|when, verb, _| (when == When::Before && verb == "renew_range").then(busy));
    world.node.latency_ms(15_000);
    let running = world.start();
    world.until("the first block", |head| head.tip.is_some()).await;
    let mut claims: BTreeMap<Height, Vec<Fence>> = BTreeMap::new();
    for _ in 0..300 {
        for lease in leases(&world).await {
            claims.entry(lease.range.start()).or_default().push(lease.fence);
        }
        pass_ms(500).await;
    }
    assert!(!claims.is_empty());
    for (start, mut fences) in claims {
        fences.dedup();
        assert_eq!(fences.len(), 1, "the range at {start} was claimed again");
    }
    world.commits.heal();
    world.until_tip(MAIN, 140).await;
    world.assert_holds(MAIN, 0, 140).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn who_loses_a_range_drops_what_it_fetches_of_it() {
    let world = filling(15, 40, 40, 1);
    let slow = HeightRange::new(Height(10), Height(20));
    world.node.hang(move |asked| matches!(asked, Asked::Blocks(range) if slow.contains(range.start())));
    let running = world.start();
    world.until("height 9", |head| head.tip.is_some_and(|tip| tip.height == Height(9))).await;
    pass_ms(100).await;
    world.node.well();
    // An operator takes it away: at the next renewal its holder hears of that, and asks anew.
    let taken = world.store.release_range(Height(10)).await.expect("releases").expect("it was held");
    assert_eq!(taken.range, slow);
    world.until_tip(MAIN, 40).await;
    world.assert_holds(MAIN, 0, 40).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_its_holder_ends_while_the_next_process_begins_stops_nobody() {
    let world = filling(16, 60, 60, 2);
    world.node.hang(|asked| matches!(asked, Asked::Blocks(range) if range.start() == Height(10)));
    let running = world.start();
    world.until("height 9", |head| head.tip.is_some_and(|tip| tip.height == Height(9))).await;
    pass_ms(1_000).await;
    running.kill().await;
    world.node.well();
    // Between the look at the leases and their release another process gave them back.
    world.commits.fail(|when, verb, _| {
        let fenced = StoreError::Fenced { what: "the raw lease".into(), held: Fence(1), current: Fence(2) };
        (when == When::Before && verb == "release").then_some(fenced)
    });
    let running = world.start();
    pass_ms(1_000).await;
    assert!(running.is_running(), "{}", running.reason());
    world.commits.heal();
    world.until_tip(MAIN, 60).await;
    world.assert_holds(MAIN, 0, 60).await;
    running.stop_well().await;
}
