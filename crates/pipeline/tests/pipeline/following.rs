//! Following the head: what a node may say of it, and what comes of that.

use crate::support;

use cairn_core::{ChainId, ErrorKind, Height};
use cairn_pipeline::IngestError;
use cairn_pipeline::ingest::Finished;
use cairn_pipeline::status::IngestState;
use cairn_source::evm::synthetic::{SyntheticOptions, View};
use cairn_store::{RawDump, RawReader, RawWriter, StoreError, StoreInfo};
use support::gauges::Gauges;
use support::node::{Asked, rate_limited, transient};
use support::*;

#[tokio::test(start_paused = true)]
async fn e01_an_announced_block_that_is_not_there_yet_is_waited_for() {
    let world = World::new(tiny(1), View { served_to: Some(Height(99)), ..view(MAIN, 100, None) });
    let running = world.start();
    world.until_tip(MAIN, 99).await;
    pass_ms(10_000).await;
    assert_eq!(world.tip().await.map(|tip| tip.height), Some(Height(99)));
    assert!(running.reason().contains("height 100 was announced"), "{}", running.reason());
    world.see(view(MAIN, 100, None));
    world.until_tip(MAIN, 100).await;
    let status = running.board.get();
    assert_eq!((status.blocks, status.reorgs), (101, 0));
    assert_eq!(world.commits.count("acquire"), 1, "nothing was restarted");
    assert_eq!(world.head().await.newest_reorg.id, 0);
    world.assert_holds(MAIN, 0, 100).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e01_null_twice_then_the_block_is_one_stored_block() {
    let world = World::new(tiny(2), view(MAIN, 99, None));
    let running = world.start();
    world.until_tip(MAIN, 99).await;
    let mut nulls = 2;
    world.node.on_blocks(move |_, honest| {
        nulls -= 1;
        Ok(if nulls >= 0 { Vec::new() } else { honest })
    });
    let commits = world.commits.count("append");
    world.see(view(MAIN, 100, None));
    world.until_tip(MAIN, 100).await;
    assert_eq!(world.commits.count("append"), commits + 1, "99 → 100 in one commit");
    assert_eq!(running.board.get().blocks, 101);
    assert_eq!(world.commits.count("rollback"), 0);
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e15_an_outage_is_met_with_growing_pauses_not_a_storm() {
    let world = World::new(tiny(3), view(MAIN, 40, None));
    let running = world.start();
    world.until_tip(MAIN, 40).await;
    world.node.take_asked();
    world.node.on_heads(|_| Err(rate_limited()));
    world.see(view(MAIN, 60, None));
    pass_ms(60_000).await;
    let asked: Vec<u64> = world.node.take_asked().into_iter().map(|(at_ms, _)| at_ms).collect();
    assert!((5..=14).contains(&asked.len()), "{} calls in a minute", asked.len());
    let pauses: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.last() > pauses.first(), "{pauses:?}");
    assert!(running.reason().contains("too many requests"), "{}", running.reason());
    world.node.well();
    world.until_tip(MAIN, 60).await;

    // The same where only blocks fail: at most one round of fetches for each pause.
    world.node.take_asked();
    world.node.on_blocks(|_, _| Err(transient()));
    world.see(view(MAIN, 200, None));
    pass_ms(60_000).await;
    let asked = world.node.take_asked().len();
    assert!(asked <= 14 * (1 + world.options.fetches_in_flight), "{asked} calls in a minute");
    world.node.well();
    world.until_tip(MAIN, 200).await;
    world.assert_holds(MAIN, 0, 200).await;
    assert!(world.node.most_in_flight() <= world.options.fetches_in_flight);
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e19_catching_up_and_following_meet_without_hole_or_repeat() {
    let world = World::new(tiny(4), view(MAIN, 50, None));
    world.node.latency_ms(20);
    let node = world.node.clone();
    world.node.on_blocks(move |_, honest| {
        // The head moves while the catch-up is under way.
        node.see(view(MAIN, 60, None));
        Ok(honest)
    });
    let running = world.start();
    world.until_tip(MAIN, 60).await;
    world.node.well();
    world.see(view(MAIN, 61, None));
    world.until_tip(MAIN, 61).await;
    let before = world.store.dump().await.expect("dumps");
    for replayed in [44, 45, 46] {
        world.see(view(MAIN, replayed, None));
        pass_ms(2_000).await;
    }
    assert_eq!(world.store.dump().await.expect("dumps"), before, "old heads change nothing");
    world.see(view(MAIN, 63, None));
    world.until_tip(MAIN, 63).await;
    let given: Vec<u64> = world.node.given().iter().map(|height| height.get()).collect();
    let mut sorted = given.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..=63).collect::<Vec<_>>(), "each height was fetched once");
    assert_eq!(running.board.get().blocks, 64);
    world.assert_holds(MAIN, 0, 63).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e20_a_lower_head_is_lag_and_changes_nothing() {
    let gauges = Gauges::default();
    let _recording = metrics::set_default_local_recorder(&gauges);
    let world = World::new(tiny(5), view(MAIN, 100, Some(90)));
    let running = world.start();
    world.until("finality 90", |head| head.finalized.is_some_and(|mark| mark.height == Height(90))).await;
    world.until_tip(MAIN, 100).await;
    let before = world.store.dump().await.expect("dumps");
    world.see(view(MAIN, 50, Some(40)));
    pass_ms(60_000).await;
    assert_eq!(world.store.dump().await.expect("dumps"), before);
    assert_eq!(world.commits.count("rollback"), 0);
    assert_eq!(running.board.get().state, IngestState::Following);
    assert_eq!(running.board.get().source_head, Some(Height(50)));
    assert_eq!(gauges.get("cairn_source_lag_heights"), Some(50.0));
    world.see(view(MAIN, 103, Some(95)));
    world.until_tip(MAIN, 103).await;
    world.until("finality 95", |head| head.finalized.is_some_and(|mark| mark.height == Height(95))).await;
    assert_eq!(gauges.get("cairn_ingest_tip_height"), Some(103.0));
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e20_a_contradiction_below_finality_halts_when_confirmed_and_reading_goes_on() {
    let world = World::new(tiny(6), view(MAIN, 100, Some(90)));
    let running = world.start();
    world.until("finality 90", |head| head.finalized.is_some_and(|mark| mark.height == Height(90))).await;
    let foreign = fork(&world.chain, 79, 1);
    let before = world.store.dump().await.expect("dumps");
    world.node.take_asked();
    let began = tokio::time::Instant::now();
    world.see(view(foreign, 101, Some(91)));
    let board = running.board.clone();
    let error = running.end().await.expect_err("it halts");
    match &error {
        IngestError::BelowFinality { at, theirs, ours, finalized } => {
            assert_eq!((at.get(), finalized.height.get()), (90, 90));
            assert_eq!(*theirs, world.chain.block_ref(foreign, Height(90)));
            assert_eq!(*ours, world.chain.block_ref(MAIN, Height(90)));
        }
        other => panic!("{other}"),
    }
    assert_eq!(error.kind(), ErrorKind::Halt);
    assert!(error.to_string().contains("Nothing was changed"), "{error}");
    assert!(matches!(board.get().state, IngestState::Halted(_)));
    let halt = board.get().halt.expect("it says why");
    assert_eq!((halt.code, halt.height), ("below-finality", Some(Height(90))));
    assert_eq!(halt.message, error.to_string());
    assert!(world.node.take_heads() >= world.options.confirmations as usize, "asked again before it halts");
    assert!(began.elapsed().as_millis() as u64 >= 2 * world.options.poll_ms, "a poll apart");
    assert_eq!(world.store.dump().await.expect("dumps"), before, "rows 0 to 100 are intact");
    assert!(world.snapshot().await.linked_ref(Height(85)).await.expect("reads").is_some());
}

#[tokio::test(start_paused = true)]
async fn e20_a_foreign_chain_that_is_told_less_often_than_needed_halts_nothing() {
    let world = World::new(tiny(7), view(MAIN, 100, Some(90)));
    let running = world.start();
    world.until("finality 90", |head| head.finalized.is_some_and(|mark| mark.height == Height(90))).await;
    let foreign = fork(&world.chain, 79, 1);
    for round in 0..5 {
        world.node.take_asked();
        world.see(view(foreign, 110, Some(90)));
        while world.node.take_heads() == 0 {
            pass_ms(10).await;
        }
        pass_ms(700).await;
        assert!(running.is_running(), "round {round}");
        // The honest node again: whatever was suspected is forgotten.
        world.see(view(MAIN, 101 + round, Some(90)));
        world.until_tip(MAIN, 101 + round).await;
        pass_ms(1_000).await;
    }
    world.assert_holds(MAIN, 0, 105).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e20_a_node_that_is_behind_on_a_dead_fork_is_lag_too() {
    let world = World::new(tiny(8), view(MAIN, 100, Some(90)));
    let running = world.start();
    world.until("finality 90", |head| head.finalized.is_some_and(|mark| mark.height == Height(90))).await;
    let dead = fork(&world.chain, 79, 3);
    for head in [95, 100] {
        world.see(view(dead, head, None));
        pass_ms(60_000).await;
        assert!(running.is_running());
        assert!(running.reason().contains("on a fork that was left"), "{}", running.reason());
    }
    world.see(view(MAIN, 101, Some(92)));
    world.until_tip(MAIN, 101).await;
    world.assert_holds(MAIN, 0, 101).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e21_without_a_finalised_mark_ingestion_goes_on() {
    let world = World::new(tiny(9), view(MAIN, 30, None));
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    assert_eq!(world.head().await.finalized, None);
    world.see(view(MAIN, 40, Some(25)));
    world.until("finality 25", |head| head.finalized.is_some_and(|mark| mark.height == Height(25))).await;
    world.see(view(MAIN, 50, None));
    world.until_tip(MAIN, 50).await;
    assert_eq!(world.head().await.finalized.map(|mark| mark.height), Some(Height(25)), "it stays");
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e21_the_finalised_mark_never_goes_back_nor_above_what_is_stored() {
    let world = World::new(tiny(10), view(MAIN, 30, Some(20)));
    let running = world.start();
    let finalized = async || world.head().await.finalized.map(|mark| mark.height.get());
    world.until("finality", |head| head.finalized.is_some()).await;
    assert_eq!(finalized().await, Some(20));
    world.see(view(MAIN, 31, Some(12)));
    world.until_tip(MAIN, 31).await;
    pass_ms(2_000).await;
    assert_eq!(finalized().await, Some(20), "a lower mark than before");
    // Higher than the head: it proves nothing of what lies below it.
    world.see(view(MAIN, 32, Some(60)));
    world.until_tip(MAIN, 32).await;
    pass_ms(2_000).await;
    assert_eq!(finalized().await, Some(20));
    world.see(view(MAIN, 33, Some(33)));
    world.until_tip(MAIN, 33).await;
    pass_ms(2_000).await;
    assert_eq!(finalized().await, Some(33), "the tip itself may be final");
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn e21_a_mark_that_contradicts_the_stored_chain_is_not_taken() {
    let world = World::new(tiny(11), view(MAIN, 30, Some(20)));
    world.node.on_heads(|mut heads| {
        if let Some(mark) = &mut heads.finalized {
            mark.id.0[31] ^= 0xff;
        }
        Ok(heads)
    });
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    world.see(view(MAIN, 45, Some(40)));
    world.until_tip(MAIN, 45).await;
    pass_ms(5_000).await;
    assert_eq!(world.head().await.finalized, None);
    world.node.well();
    world.until("finality 40", |head| head.finalized == Some(world.chain.block_ref(MAIN, Height(40)))).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn i10_genesis_is_an_anchor_and_time_zero_is_a_time() {
    let chain =
        tiny_with(SyntheticOptions { genesis_timestamp_s: 0, block_time_s: 0, ..SyntheticOptions::tiny(12) });
    for start in [0, 2] {
        let world =
            World::new(chain.clone(), view(MAIN, 3, None)).with(|options| options.start = Height(start));
        let running = world.start();
        world.until_tip(MAIN, 3).await;
        world.assert_holds(MAIN, start, 3).await;
        let snapshot = world.snapshot().await;
        assert_eq!(snapshot.head().first, Some(Height(start)));
        let first = snapshot.block(Height(start), cairn_core::Parts::empty()).await.expect("reads");
        assert_eq!(first.expect("is there").facts.timestamp_ms, 0);
        let below = snapshot.linked_ref(Height(1)).await.expect("reads");
        assert_eq!(below.is_some(), start == 0, "nothing is invented below the anchor");
        running.stop_well().await;
    }
}

#[tokio::test(start_paused = true)]
async fn i10_an_archive_is_not_extended_downwards() {
    let world = World::new(tiny(13), view(MAIN, 30, Some(20))).with(|options| options.start = Height(10));
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    running.stop_well().await;
    let world = world.with(|options| options.start = Height(5));
    let error = world.start().end().await.expect_err("refused");
    assert!(error.to_string().contains("begins at height 10"), "{error}");
    world.assert_holds(MAIN, 10, 30).await;
}

#[tokio::test(start_paused = true)]
async fn an_anchor_that_is_not_final_yet_is_waited_for() {
    let world = World::new(tiny(14), view(MAIN, 60, Some(40))).with(|options| options.start = Height(50));
    let running = world.start();
    pass_ms(30_000).await;
    assert_eq!(world.tip().await, None);
    assert!(running.reason().contains("not final yet"), "{}", running.reason());
    // Meanwhile the block at the anchor's height is replaced: nothing was stored that would have to go.
    let other = fork(&world.chain, 45, 1);
    world.see(view(other, 61, Some(49)));
    pass_ms(5_000).await;
    assert_eq!(world.tip().await, None);
    world.see(view(other, 62, Some(50)));
    world.until_tip(other, 62).await;
    world.assert_holds(other, 50, 62).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_above_the_head_waits_for_it() {
    let world = World::new(tiny(15), view(MAIN, 10, None)).with(|options| options.start = Height(20));
    let running = world.start();
    pass_ms(10_000).await;
    assert_eq!(world.tip().await, None);
    world.see(view(MAIN, 22, None));
    world.until_tip(MAIN, 22).await;
    world.assert_holds(MAIN, 20, 22).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_of_another_chain_is_refused_before_the_first_write() {
    // Another chain than configured: the store isn't even made.
    let world = World::new(tiny(16), view(MAIN, 10, None)).with(|options| options.info.chain_id = ChainId(5));
    let error = world.start().end().await.expect_err("refused");
    assert!(matches!(error, IngestError::Store(StoreError::WrongChain { .. })), "{error}");
    assert_eq!(world.commits.total(), 0, "nothing was written");
    assert!(world.store.snapshot().await.is_err());

    // Another chain than the store's.
    let world = World::new(tiny(16), view(MAIN, 10, None));
    let other = StoreInfo { chain_id: ChainId(5), ..info(&world.chain) };
    world.store.init(other).await.expect("is made");
    let before = world.store.dump().await.expect("dumps");
    let error = world.start().end().await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Halt);
    assert!(error.to_string().contains("holds chain 5"), "{error}");
    assert_eq!(world.store.dump().await.expect("dumps"), before);
    assert_eq!(world.commits.count("acquire"), 0, "it never became the ingester");
    assert!(world.node.given().is_empty());
}

#[tokio::test(start_paused = true)]
async fn stops_at_the_configured_height_and_asks_for_nothing_above() {
    let world =
        World::new(tiny(17), view(MAIN, 100, None)).with(|options| options.stop_inclusive = Some(Height(42)));
    assert_eq!(world.start().end().await.expect("ends"), Finished::ReachedStop);
    world.assert_holds(MAIN, 0, 42).await;
    let asked = world.node.take_asked();
    let highest = asked.iter().filter_map(|(_, asked)| match asked {
        Asked::Blocks(range) => range.last(),
        _ => None,
    });
    assert_eq!(highest.max(), Some(Height(42)));
    assert_eq!(world.start().end().await.expect("ends at once"), Finished::ReachedStop);
    world.assert_holds(MAIN, 0, 42).await;

    // A stop above the head is waited for.
    let world =
        World::new(tiny(17), view(MAIN, 20, None)).with(|options| options.stop_inclusive = Some(Height(25)));
    let running = world.start();
    world.until_tip(MAIN, 20).await;
    pass_ms(5_000).await;
    assert!(running.is_running());
    world.see(view(MAIN, 30, None));
    assert_eq!(running.end().await.expect("ends"), Finished::ReachedStop);
    world.assert_holds(MAIN, 0, 25).await;
}

#[tokio::test(start_paused = true)]
async fn ends_at_the_head_where_it_is_told_to() {
    let world = World::new(tiny(18), view(MAIN, 70, Some(60))).with(|options| options.exit_after_head = true);
    let running = world.start();
    let board = running.board.clone();
    assert_eq!(running.end().await.expect("ends"), Finished::ReachedHead);
    assert_eq!(board.get().state, IngestState::Stopped);
    world.assert_holds(MAIN, 0, 70).await;
    assert_eq!(world.head().await.finalized.map(|mark| mark.height), Some(Height(60)));
}

#[tokio::test(start_paused = true)]
async fn a_zombie_is_fenced_and_its_blocks_are_not_stored() {
    let world = World::new(tiny(19), view(MAIN, 20, None));
    let zombie = world.start();
    world.until_tip(MAIN, 20).await;
    // It is slow, and its node is on another fork.
    let foreign = fork(&world.chain, 20, 1);
    world.node.latency_ms(10_000);
    world.see(view(foreign, 25, None));
    pass_ms(12_000).await;

    let beside = World::new(world.chain.clone(), view(MAIN, 30, None));
    let source = std::sync::Arc::new(verified(beside.node.clone()));
    let other = world.start_from(source, world.options.clone());
    world.until_tip(MAIN, 30).await;
    let error = zombie.end().await.expect_err("it is fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(world.node.given().contains(&Height(21)), "it had fetched blocks of its own");
    world.assert_holds(MAIN, 0, 30).await;
    assert!(other.is_running());
    beside.see(view(MAIN, 31, None));
    world.until_tip(MAIN, 31).await;
    other.stop_well().await;
}
