//! What bounds the ingester: bytes in flight, sizes of requests, times; and blocks that can't be taken.

use crate::support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_pipeline::ingest::{FillOptions, Finished, IngestOptions};
use cairn_pipeline::status::STORE_REFUSED;
use cairn_source::evm::synthetic::SyntheticOptions;
use cairn_source::{ChainSource, Heads, Result};
use cairn_store::suite::blocks;
use cairn_store::{RawReader, StoreError, StoreInfo};
use support::gauges::Gauges;
use support::node::{Asked, transient};
use support::*;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn i02_the_checkpoint_moves_only_over_an_unbroken_run() {
    let world = World::new(tiny(1), view(MAIN, 10, None)).with(|options| options.fetches_in_flight = 8);
    let failing = Arc::new(Mutex::new(true));
    let fails = failing.clone();
    world.node.on_blocks(move |range, mut honest| {
        // Asked from 4 on it fails; what comes before is given.
        if *fails.lock().expect("no panic") {
            honest.retain(|block| block.facts.height < Height(4) || range.start() > Height(4));
            if honest.is_empty() {
                return Err(transient());
            }
        }
        Ok(honest)
    });
    let running = world.start();
    world.until("height 3", |head| head.tip.is_some_and(|tip| tip.height == Height(3))).await;
    pass_ms(120_000).await;
    assert_eq!(world.tip().await.map(|tip| tip.height), Some(Height(3)));
    assert!(running.reason().contains("timed out"), "{}", running.reason());
    *failing.lock().expect("no panic") = false;
    world.until_tip(MAIN, 10).await;
    world.assert_holds(MAIN, 0, 10).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn i07_a_block_that_cannot_be_verified_stops_there_with_its_reason() {
    let chain = tiny_with(SyntheticOptions { txs_per_block: 1..=3, ..SyntheticOptions::tiny(2) });
    let world = World::new(chain, view(MAIN, 30, None));
    world.node.on_blocks(|_, mut honest| {
        if let Some(bad) = honest.iter_mut().find(|block| block.facts.height == Height(7)) {
            bad.transactions[0].sender = Bytes::from_static(&[0x66; 20]);
        }
        Ok(honest)
    });
    let running = world.start();
    world.until("height 6", |head| head.tip.is_some_and(|tip| tip.height == Height(6))).await;
    world.node.take_asked();
    pass_ms(120_000).await;
    assert_eq!(world.tip().await.map(|tip| tip.height), Some(Height(6)));
    let reason = running.reason();
    assert!(reason.contains("block 7") && reason.contains("`senders`"), "{reason}");
    let asked = world.node.take_asked().len();
    assert!(asked < 20 * (1 + world.options.fetches_in_flight), "{asked} calls in two minutes");
    world.node.well();
    world.until_tip(MAIN, 30).await;
    world.assert_holds(MAIN, 0, 30).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn i08_a_retry_never_asks_for_more_than_the_first_try() {
    let world = World::new(tiny(3), view(MAIN, 200, None)).with(|options| options.fetches_in_flight = 10);
    let mut calls = 0;
    world.node.on_blocks(move |range, mut honest| {
        calls += 1;
        if calls <= 10 {
            return Err(transient());
        }
        // Afterwards every third answer is short.
        honest.truncate(if calls % 3 == 0 { 5.min(range.len() as usize) } else { honest.len() });
        Ok(honest)
    });
    let running = world.start();
    world.until_tip(MAIN, 200).await;
    let widest = world.node.take_asked().into_iter().filter_map(|(_, asked)| match asked {
        Asked::Blocks(range) => Some(range.len()),
        _ => None,
    });
    assert_eq!(widest.max(), Some(16), "what the node likes to be asked for");
    world.assert_holds(MAIN, 0, 200).await;
    running.stop_well().await;
}

const MIB: u64 = 1 << 20;

/// A source of given blocks, one a call, some of them slow. Notes when calls begin and what they find outstanding.
struct Listed {
    blocks: Vec<RawBlock>,
    slow_ms: BTreeMap<u64, u64>,
    began: Instant,
    /// When each block was asked for and when it was answered, by height.
    times: Mutex<BTreeMap<u64, (u64, Option<u64>)>>,
}

impl Listed {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

#[async_trait]
impl ChainSource for Listed {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(ChainId(1))
    }

    async fn heads(&self) -> Result<Heads> {
        let latest = self.blocks[self.blocks.len() - 1].facts.linked_ref();
        Ok(Heads { latest, safe: None, finalized: None })
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        Ok(self.blocks.get(height.get() as usize).map(|block| block.facts.linked_ref()))
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let at = range.start().get();
        self.times.lock().expect("no panic").insert(at, (self.now_ms(), None));
        let ms = self.slow_ms.get(&at).copied().unwrap_or(10);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.times.lock().expect("no panic").entry(at).and_modify(|times| times.1 = Some(self.now_ms()));
        Ok(self.blocks.get(at as usize).cloned().into_iter().collect())
    }
}

#[tokio::test(start_paused = true)]
async fn i11_a_block_of_60_mib_beside_small_ones_keeps_others_waiting() {
    const GIANT: u64 = 50;
    const SLOW_MS: u64 = 20_000;
    let mut blocks = blocks::chain(0, 201, 0);
    blocks[GIANT as usize].body = Bytes::from(vec![7; 60 << 20]);
    let source = Arc::new(Listed {
        blocks,
        // The one before it is slow, so that the giant waits in memory for its turn.
        slow_ms: [(GIANT - 1, SLOW_MS)].into(),
        began: Instant::now(),
        times: Mutex::default(),
    });
    let world = World::new(tiny(4), view(MAIN, 1, None));
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(1), chain_config: Default::default() };
    let options = IngestOptions {
        budget_bytes: 4 * MIB,
        batch_blocks: 8,
        fetches_in_flight: 16,
        exit_after_head: true,
        ..IngestOptions::new(info)
    };
    let running = world.start_from(source.clone(), options);
    assert_eq!(running.end().await.expect("ends"), Finished::ReachedHead);
    assert_eq!(world.head().await.range(), HeightRange::new(Height(0), Height(201)));
    let stored = world.store.snapshot().await.expect("reads");
    let giant = stored.block(Height(GIANT), cairn_core::Parts::BODY).await.expect("reads").expect("is there");
    assert_eq!(giant.body.len(), 60 << 20);

    let times = source.times.lock().expect("no panic").clone();
    let answered = |height: u64| times[&height].1.expect("was answered");
    let (giant_came, giant_left) = (answered(GIANT), answered(GIANT - 1));
    assert!(giant_left - giant_came > SLOW_MS / 2, "the giant waited");
    for (height, (asked, _)) in &times {
        assert!(
            *asked <= giant_came || *asked >= giant_left,
            "block {height} was asked for at {asked} ms, while the giant lay in memory from {giant_came} to {giant_left} ms"
        );
    }
    // Careful at first, since the next one might be as large, then as before.
    let last: Vec<u64> = (191..=200).map(|height| times[&height].0).collect();
    assert!(last[9] - last[0] < 60, "ten of the last blocks were asked for at {last:?}");
}

#[tokio::test(start_paused = true)]
async fn i11_what_lies_in_memory_stays_within_the_budget() {
    // Blocks of half a MiB, of which the first of each dozen is slow: whatever came meanwhile lies in memory.
    let mut blocks = blocks::chain(0, 121, 0);
    for block in &mut blocks {
        block.body = Bytes::from(vec![7; 1 << 19]);
    }
    let source = Arc::new(Listed {
        blocks,
        slow_ms: (0..121).filter(|height| height % 12 == 6).map(|height| (height, 3_000)).collect(),
        began: Instant::now(),
        times: Mutex::default(),
    });
    let world = World::new(tiny(5), view(MAIN, 1, None));
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(1), chain_config: Default::default() };
    let options = IngestOptions {
        budget_bytes: 4 * MIB,
        fetches_in_flight: 64,
        exit_after_head: true,
        ..IngestOptions::new(info)
    };
    let running = world.start_from(source.clone(), options);
    let mut most = 0;
    while running.is_running() {
        pass_ms(5).await;
        let stored = match world.store.snapshot().await {
            Ok(snapshot) => snapshot.head().tip.map_or(0, |tip| tip.height.get() + 1),
            Err(_) => 0,
        };
        let came =
            source.times.lock().expect("no panic").iter().filter(|(_, times)| times.1.is_some()).count()
                as u64;
        most = most.max(came - stored);
    }
    assert_eq!(running.end().await.expect("ends"), Finished::ReachedHead);
    assert!((4..=8).contains(&most), "{most} blocks of half a MiB lay in memory, with a budget of 4 MiB");
}

#[tokio::test(start_paused = true)]
async fn shutdown_in_the_middle_of_a_backfill_is_quick_and_loses_nothing() {
    for fill in [false, true] {
        let world = World::new(tiny(6), view(MAIN, 700, Some(690))).with(|options| {
            options.fill =
                fill.then(|| FillOptions { workers: 3, range_heights: 50, ..FillOptions::default() });
        });
        world.node.latency_ms(1_000);
        let running = world.start();
        pass_ms(7_700).await;
        let (ended, took_ms) = running.stop().await;
        assert_eq!(ended.expect("no error"), Finished::Stopped);
        assert!(took_ms <= 100, "it took {took_ms} ms, fill: {fill}");
        let tip = world.tip().await.expect("a part is stored").height;
        assert!(Height(10) < tip && tip < Height(650), "stopped at {tip}");
        world.node.latency_ms(1);
        let running = world.start();
        world.until_tip(MAIN, 700).await;
        world.assert_holds(MAIN, 0, 700).await;
        running.stop_well().await;
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_a_node_that_never_answers() {
    let is_blocks = |asked: Asked| matches!(asked, Asked::Blocks(_));
    type Hangs = fn(Asked) -> bool;
    let cases: [(&str, Hangs, bool); 5] = [
        ("chain id", |asked| asked == Asked::ChainId, false),
        ("heads", |asked| asked == Asked::Heads, false),
        ("blocks", is_blocks, false),
        ("blocks of a range", is_blocks, true),
        ("headers of a fork", |asked| matches!(asked, Asked::Header(_)), false),
    ];
    for (what, hangs, fill) in cases {
        let world = World::new(tiny(7), view(MAIN, 40, Some(10))).with(|options| {
            options.fill =
                fill.then(|| FillOptions { workers: 2, range_heights: 10, ..FillOptions::default() });
        });
        let running = world.start();
        world.until_tip(MAIN, 40).await;
        if what == "chain id" {
            running.stop_well().await;
            world.node.hang(hangs);
            let running = world.start();
            pass_ms(5_000).await;
            let (ended, took_ms) = running.stop().await;
            assert_eq!(ended.expect("no error"), Finished::Stopped, "{what}");
            assert!(took_ms <= 3_000, "{what}: it took {took_ms} ms");
            continue;
        }
        world.node.hang(hangs);
        let other = fork(&world.chain, 37, 1);
        world.see(view(
            if what == "headers of a fork" { other } else { MAIN },
            140,
            Some(if fill { 130 } else { 10 }),
        ));
        pass_ms(5_000).await;
        let (ended, took_ms) = running.stop().await;
        assert_eq!(ended.expect("no error"), Finished::Stopped, "{what}");
        assert!(took_ms <= 3_000, "{what}: it took {took_ms} ms");
        world.assert_holds(MAIN, 0, 40).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_busy_for_a_while_is_tried_again() {
    let world = World::new(tiny(8), view(MAIN, 60, Some(30)));
    world.commits.fail(|when, _, before| (when == When::Before && before.is_multiple_of(2)).then(busy));
    let running = world.start();
    world.until_tip(MAIN, 60).await;
    world.commits.heal();
    world.until("finality", |head| head.finalized.is_some()).await;
    world.assert_holds(MAIN, 0, 60).await;
    running.stop_well().await;
}

/// What a database says that isn't known to pass.
fn unlisted() -> cairn_store::StoreError {
    cairn_store::StoreError::Database("could not open a file (SQLSTATE XX000)".into())
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_for_a_while_is_tried_again() {
    for filled in [false, true] {
        let world = World::new(tiny(9), view(MAIN, 60, Some(40))).with(|options| {
            options.fill =
                filled.then(|| FillOptions { workers: 2, range_heights: 10, ..FillOptions::default() });
        });
        world.commits.fail(|when, verb, before| {
            let is_write = matches!(verb, "append" | "fill");
            (when == When::Before && is_write && before >= 2).then(unlisted)
        });
        let running = world.start();
        pass_ms(600_000).await;
        assert!(running.is_running());
        let obstacle = running.board.get().obstacle.expect("it is named");
        assert_eq!(obstacle.code, STORE_REFUSED);
        assert!(obstacle.message.contains("XX000") && obstacle.remedy.is_some(), "{obstacle:?}");
        world.commits.heal();
        pass_ms(120_000).await;
        world.assert_holds(MAIN, 0, 60).await;
        assert_eq!(running.board.get().obstacle, None);
        running.stop_well().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_for_good_halts() {
    let world = World::new(tiny(9), view(MAIN, 60, None));
    world
        .commits
        .fail(|when, verb, before| (when == When::Before && verb == "append" && before >= 2).then(unlisted));
    let began = Instant::now();
    let error = world.start().end().await.expect_err("it halts");
    assert!(error.to_string().contains("XX000"), "{error}");
    let minutes = began.elapsed().as_secs() / 60;
    assert!((15..=60).contains(&minutes), "after {minutes} minutes");
    let tip = world.tip().await.expect("a part is stored").height;
    world.assert_holds(MAIN, 0, tip.get()).await;
}

#[tokio::test(start_paused = true)]
async fn an_index_that_can_not_be_merged_is_counted_and_holds_nothing_up() {
    let gauges = Gauges::default();
    let _recorder = metrics::set_default_local_recorder(&gauges);
    let world = World::new(tiny(4), view(MAIN, 40, None));
    let damage = StoreError::Corrupt { place: "run 7".into(), what: "a checksum".into() };
    world.store.set_maintenance(Some(damage));
    let running = world.start();
    world.until_tip(MAIN, 40).await;
    pass_ms(3_600_000).await;
    let failed = gauges.counted("cairn_background_failures_total{job=index-merge}");
    assert!((10..=40).contains(&failed), "{failed} tries in an hour");
    // Blocks go on, and it is well again by itself.
    world.see(view(MAIN, 60, None));
    world.until_tip(MAIN, 60).await;
    world.store.set_maintenance(None);
    pass_ms(600_000).await;
    let after = gauges.counted("cairn_background_failures_total{job=index-merge}");
    pass_ms(3_600_000).await;
    assert_eq!(gauges.counted("cairn_background_failures_total{job=index-merge}"), after);
    running.stop_well().await;
}

/// A database that is never done with a large commit in time has to be given smaller ones.
#[tokio::test(start_paused = true)]
async fn commits_that_fail_are_followed_by_smaller_ones() {
    let commits = async |failures: usize| {
        let world = World::new(tiny(31), view(MAIN, 127, Some(127)));
        let world = world.with(|options| options.batch_blocks = 64);
        world.commits.fail(move |when, verb, before| {
            (when == When::Before && verb == "append" && before < failures).then(busy)
        });
        let running = world.start();
        world.until_tip(MAIN, 127).await;
        world.assert_holds(MAIN, 0, 127).await;
        running.stop_well().await;
        world.commits.count("append") - failures
    };
    let (large, small) = (commits(0).await, commits(4).await);
    assert!(small >= 3 * large, "{small} commits after failures, {large} without");
}
