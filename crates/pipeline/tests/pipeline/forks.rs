//! Forks: what is rolled back, what is not, and what readers see of it.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_core::{BlockId, BlockRef, ErrorKind, Height, HeightRange, LinkedRef, Parts};
use cairn_pipeline::IngestError;
use cairn_source::evm::synthetic::{FirstBlock, ForkId, ForkOptions, SyntheticChain, SyntheticOptions};
use cairn_store::{LogQuery, RawDump, RawReader, RawSnapshot};
use support::*;

#[tokio::test(start_paused = true)]
async fn e17_an_answer_of_two_forks_is_taken_only_as_far_as_it_links() {
    for checked in [true, false] {
        let world = World::new(tiny(1), view(MAIN, 9, None));
        let source: Arc<dyn cairn_source::ChainSource> =
            if checked { Arc::new(verified(world.node.clone())) } else { Arc::new(world.node.clone()) };
        let running = world.start_from(source, world.options.clone());
        world.until_tip(MAIN, 9).await;
        let (chain, other) = (world.chain.clone(), fork(&world.chain, 9, 1));
        let mut mixed = true;
        world.node.on_blocks(move |range, mut honest| {
            if std::mem::take(&mut mixed) {
                for block in honest.iter_mut().skip(1) {
                    *block = (*chain.block(other, block.facts.height)).clone();
                }
                assert_eq!((range.start(), honest.len()), (Height(10), 3));
            }
            Ok(honest)
        });
        world.see(view(MAIN, 12, None));
        world.until("height 10", |head| head.tip.is_some_and(|tip| tip.height > Height(9))).await;
        if !checked {
            // The check itself asks again for what doesn't link.
            assert_eq!(world.tip().await, Some(world.chain.block_ref(MAIN, Height(10))), "10 at most");
        }
        world.until_tip(MAIN, 12).await;
        world.assert_holds(MAIN, 0, 12).await;
        assert_eq!(world.head().await.newest_reorg.id, 0, "no reorg was made of it");
        running.stop_well().await;
    }
}

#[tokio::test(start_paused = true)]
async fn r03_a_reorg_at_the_end_of_a_hundred_empty_blocks() {
    let chain = tiny_with(SyntheticOptions {
        txs_per_block: 0..=0,
        withdrawals_per_block: 0,
        ..SyntheticOptions::tiny(2)
    });
    let world = World::new(chain, view(MAIN, 100, None));
    let running = world.start();
    world.until_tip(MAIN, 100).await;
    let other = fork(&world.chain, 99, 1);
    world.see(view(other, 101, None));
    world.until_tip(other, 101).await;
    world.assert_holds(other, 0, 101).await;
    let reorgs = world.snapshot().await.reorgs(0, 10).await.expect("reads");
    assert_eq!(reorgs.len(), 1);
    assert_eq!((reorgs[0].common.height, reorgs[0].orphans.len()), (Height(99), 1));
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn r05_a_block_replaced_at_its_height_is_noticed_with_nothing_further() {
    let chain = tiny_with(SyntheticOptions { txs_per_block: 1..=3, ..SyntheticOptions::tiny(3) });
    let world = World::new(chain, view(MAIN, 50, None));
    let running = world.start();
    world.until_tip(MAIN, 50).await;
    let options = ForkOptions { first_block: FirstBlock::SameTransactions, ..ForkOptions::new(4) };
    let other = world.chain.fork_at((MAIN, Height(49)), options);
    world.see(view(other, 50, None));
    pass_ms(60_000).await;
    assert_eq!(world.tip().await, Some(world.chain.block_ref(other, Height(50))));
    world.assert_holds(other, 0, 50).await;
    assert_eq!(running.board.get().reorgs, 1);
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn r05_a_flicker_at_one_height_is_not_taken() {
    let world = World::new(tiny(4), view(MAIN, 50, None));
    let running = world.start();
    world.until_tip(MAIN, 50).await;
    let other = fork(&world.chain, 49, 1);
    // Behind a load balancer each fork is told once.
    let (chain, mut turn) = (world.chain.clone(), 0);
    world.node.on_heads(move |_| {
        turn += 1;
        Ok(view(if turn % 2 == 0 { other } else { MAIN }, 50, None).heads(&chain))
    });
    pass_ms(60_000).await;
    assert_eq!(world.commits.count("rollback"), 0);
    world.assert_holds(MAIN, 0, 50).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn r06_there_and_back_equals_never_having_been_there() {
    let world = World::new(tiny(5), view(MAIN, 11, None));
    let running = world.start();
    world.until_tip(MAIN, 11).await;
    let b = fork(&world.chain, 10, 1);
    world.see(view(b, 11, None));
    world.until_tip(b, 11).await;
    world.see(view(MAIN, 12, None));
    world.until_tip(MAIN, 12).await;
    world.assert_holds(MAIN, 0, 12).await;
    let reorgs = world.snapshot().await.reorgs(0, 10).await.expect("reads");
    let orphans: Vec<Vec<BlockRef>> =
        reorgs.iter().map(|entry| entry.orphans.iter().map(|orphan| orphan.block).collect()).collect();
    let at_11 = |fork| world.chain.block_ref(fork, Height(11));
    assert_eq!(orphans, [[at_11(MAIN)], [at_11(b)]], "the history of reorgs is all that differs");
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn r06_many_forks_in_a_row_leave_only_the_last() {
    let world = World::new(tiny(6), view(MAIN, 40, None));
    let running = world.start();
    world.until_tip(MAIN, 40).await;
    let mut head = 40;
    for (round, depth) in [1_u64, 5, 2, 17, 1, 30, 3].into_iter().enumerate() {
        let other = fork(&world.chain, 40 - depth, 1 + round as u64);
        head += 1;
        world.see(view(other, head, None));
        world.until_tip(other, head).await;
        world.assert_holds(other, 0, head).await;
    }
    world.see(view(MAIN, head + 1, None));
    world.until_tip(MAIN, head + 1).await;
    world.assert_holds(MAIN, 0, head + 1).await;
    assert_eq!(running.board.get().reorgs, 8);
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn r07_every_way_of_reading_gives_the_canonical_block() {
    let chain = tiny_with(SyntheticOptions { txs_per_block: 2..=3, ..SyntheticOptions::tiny(7) });
    let world = World::new(chain, view(MAIN, 20, None));
    let running = world.start();
    world.until_tip(MAIN, 20).await;
    let other = fork(&world.chain, 15, 1);
    // The rollback's rows can't be moved away for a while: reads must not see them all the same.
    world.commits.fail(|when, verb, _| (when == When::Before && verb == "purge_step").then(busy));
    world.see(view(other, 21, None));
    world.until("the rollback", |head| head.pending_purge.is_some()).await;
    assert_reads_one_fork(&*world.snapshot().await, &world.chain, other, MAIN, 15).await;
    world.commits.heal();
    world.until_tip(other, 21).await;
    assert_reads_one_fork(&*world.snapshot().await, &world.chain, other, MAIN, 15).await;
    world.assert_holds(other, 0, 21).await;
    running.stop_well().await;
}

/// Whatever is asked about `15..=21`, the answer is of `live` up to the tip, and never of `dead`.
async fn assert_reads_one_fork(
    snapshot: &dyn RawSnapshot,
    chain: &SyntheticChain,
    live: ForkId,
    dead: ForkId,
    common: u64,
) {
    let tip = snapshot.head().tip.expect("a tip").height;
    for height in (common..=21).map(Height) {
        let want = (height <= tip).then(|| chain.block(live, height));
        let found = snapshot.block(height, Parts::all()).await.expect("reads");
        assert_eq!(found.map(|found| found.facts), want.as_ref().map(|want| want.facts));
        let linked = snapshot.linked_ref(height).await.expect("reads");
        assert_eq!(linked, want.as_ref().map(|want| want.facts.linked_ref()));
        let gone = chain.block(dead, height);
        if height.get() > common {
            assert_eq!(snapshot.find_block(gone.facts.id).await.expect("reads"), None);
        }
        for tx in &gone.transactions {
            let place = snapshot.find_tx(tx.id).await.expect("reads");
            let expected = (0..=tip.get()).map(Height).find_map(|height| {
                let at = chain.block(live, height).transactions.iter().position(|other| other.id == tx.id)?;
                Some((height, at as u32))
            });
            assert_eq!(place.map(|place| (place.height, place.index)), expected, "transaction {}", tx.id);
        }
    }
    let range = HeightRange::inclusive(Height(0), Height(30));
    let listed = snapshot.blocks(range, Parts::empty(), u64::MAX).await.expect("reads").blocks;
    let want: Vec<BlockRef> = (0..=tip.get()).map(|height| chain.block_ref(live, Height(height))).collect();
    assert_eq!(listed.iter().map(|block| block.facts.block_ref()).collect::<Vec<_>>(), want);
}

#[tokio::test(start_paused = true)]
async fn r09_a_rollback_that_fails_midway_is_finished() {
    // 300 blocks are moved away in three steps; each is broken on both sides, and so is the rollback itself.
    let chain = tiny(8);
    let other = fork(&chain, 20, 1);
    for (broken, nth) in [("rollback", 0), ("purge_step", 0), ("purge_step", 1), ("purge_step", 2)] {
        for side in [When::Before, When::After] {
            let world = World::new(chain.clone(), view(MAIN, 320, None));
            let source = Arc::new(world.node.clone());
            let running = world.start_from(source.clone(), world.options.clone());
            world.until_tip(MAIN, 320).await;
            let mut left = 3;
            world.commits.fail(move |when, verb, before| {
                let strikes = when == side && verb == broken && before >= nth && left > 0;
                if strikes {
                    left -= 1;
                }
                strikes.then(busy)
            });
            world.see(view(other, 321, None));
            world.until_tip(other, 321).await;
            world.assert_holds(other, 0, 321).await;
            let reorgs = world.snapshot().await.reorgs(0, 10).await.expect("reads");
            assert_eq!(reorgs.len(), 1, "{broken} {nth} {side:?}");
            assert_eq!(reorgs[0].orphans.len(), 300);
            assert!(running.board.get().reorgs <= 1);
            running.stop_well().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn r09_a_process_that_dies_in_a_rollback_is_followed_by_one_that_finishes_it() {
    let world = World::new(tiny(9), view(MAIN, 200, None));
    let running = world.start_from(Arc::new(world.node.clone()), world.options.clone());
    world.until_tip(MAIN, 200).await;
    let other = fork(&world.chain, 20, 1);
    world
        .commits
        .fail(|when, verb, before| (when == When::Before && verb == "purge_step" && before >= 1).then(busy));
    world.see(view(other, 201, None));
    world.until("half a purge", |head| head.pending_purge.is_some()).await;
    pass_ms(100).await;
    running.kill().await;
    world.commits.heal();
    let running = world.start_from(Arc::new(world.node.clone()), world.options.clone());
    world.until_tip(other, 201).await;
    world.assert_holds(other, 0, 201).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn r10_a_reader_never_sees_two_forks_in_one_snapshot() {
    const COMMON: u64 = 20;
    let chain = tiny_with(SyntheticOptions { txs_per_block: 1..=3, ..SyntheticOptions::tiny(10) });
    let world = World::new(chain.clone(), view(MAIN, 25, None));
    let running = world.start();
    world.until_tip(MAIN, 25).await;
    let forks = [MAIN, fork(&chain, COMMON, 1)];
    let reader: Arc<dyn RawReader> = Arc::new(world.store.clone());
    let looks: Arc<[AtomicU64; 2]> = Arc::default();
    let looking = tokio::spawn({
        let (chain, seen_of) = (chain.clone(), looks.clone());
        async move {
            loop {
                let snapshot = reader.snapshot().await.expect("reads");
                let tip = snapshot.head().tip.expect("a tip");
                let seen = forks.iter().position(|fork| chain.block_ref(*fork, tip.height) == tip);
                let at = seen.expect("a tip of one of the forks");
                seen_of[at].fetch_add(1, Ordering::SeqCst);
                for height in (COMMON..=tip.height.get()).map(Height) {
                    let want = chain.block(forks[at], height);
                    // The writer runs between two questions to one snapshot.
                    pass_ms(3).await;
                    let found = snapshot.block(height, Parts::all()).await.expect("reads").expect("is there");
                    assert_eq!(found.facts, want.facts);
                    assert_eq!(found.receipts, want.receipts);
                    pass_ms(3).await;
                    let range = HeightRange::one(height);
                    for term in &want.log_terms {
                        let query = LogQuery { groups: vec![vec![*term]] };
                        let found = snapshot.log_candidates(range, &query, 2).await.expect("reads");
                        assert_eq!(found, [height], "a log of the block is found with the block");
                    }
                }
            }
        }
    });
    for round in 1..=100 {
        let fork = forks[round % 2];
        world.see(view(fork, 25, None));
        world.until_tip(fork, 25).await;
    }
    assert!(!looking.is_finished(), "the reader saw what it must not see");
    looking.abort();
    assert!(looks.iter().all(|looks| looks.load(Ordering::SeqCst) > 100), "{looks:?}");
    assert_eq!(world.head().await.newest_reorg.id, 100);
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_of_the_greatest_depth_is_followed_and_one_block_more_halts() {
    let limited = |seed| {
        World::new(tiny(seed), view(MAIN, 30, None)).with(|options| options.max_reorg_depth_blocks = 8)
    };
    let world = limited(11);
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    let exact = fork(&world.chain, 22, 1);
    world.see(view(exact, 31, None));
    world.until_tip(exact, 31).await;
    world.assert_holds(exact, 0, 31).await;
    running.stop_well().await;

    let world = limited(11);
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    let before = world.store.dump().await.expect("dumps");
    let deeper = fork(&world.chain, 21, 1);
    world.node.take_asked();
    world.see(view(deeper, 31, None));
    let error = running.end().await.expect_err("it halts");
    assert_eq!(error.kind(), ErrorKind::Halt);
    match &error {
        IngestError::TooDeep { at, limit, tip, .. } => {
            assert_eq!((at.get(), *limit, tip.height.get()), (22, 8, 30));
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("MAX_REORG_DEPTH"), "{error}");
    assert!(world.node.take_heads() >= world.options.confirmations as usize);
    assert_eq!(world.store.dump().await.expect("dumps"), before);
    assert_eq!(world.commits.count("rollback"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_chain_replaces_a_longer_one_only_when_confirmed() {
    let world = World::new(tiny(12), view(MAIN, 50, None));
    let running = world.start();
    world.until_tip(MAIN, 50).await;
    let shorter = fork(&world.chain, 44, 1);
    world.node.take_asked();
    world.see(view(shorter, 47, None));
    world.until("the rollback", |head| head.newest_reorg.id == 1).await;
    assert!(world.node.take_heads() >= world.options.confirmations as usize);
    world.until_tip(shorter, 47).await;
    world.assert_holds(shorter, 0, 47).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_is_not_taken_before_its_first_block_is_there_whole() {
    let world = World::new(tiny(13), view(MAIN, 50, None));
    let running = world.start();
    world.until_tip(MAIN, 50).await;
    let other = fork(&world.chain, 46, 1);
    world.node.on_blocks(|range, honest| {
        // Headers of the new fork are told, its bodies are not there.
        Ok(if range.start() >= Height(47) { Vec::new() } else { honest })
    });
    world.see(view(other, 52, None));
    pass_ms(30_000).await;
    assert_eq!(
        world.tip().await,
        Some(world.chain.block_ref(MAIN, Height(50))),
        "nothing is undone for headers alone"
    );
    world.node.well();
    world.until_tip(other, 52).await;
    world.assert_holds(other, 0, 52).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn an_archive_from_the_middle_whose_anchor_is_gone_halts() {
    let world = World::new(tiny(14), view(MAIN, 40, None)).with(|options| options.start = Height(30));
    let running = world.start();
    world.until_tip(MAIN, 40).await;
    let before = world.store.dump().await.expect("dumps");
    let other = fork(&world.chain, 25, 1);
    world.see(view(other, 41, None));
    let error = running.end().await.expect_err("it halts");
    let anchor = world.chain.block_ref(MAIN, Height(30));
    assert!(matches!(&error, IngestError::AnchorGone { anchor: found } if *found == anchor), "{error}");
    assert_eq!(world.store.dump().await.expect("dumps"), before);
}

#[tokio::test(start_paused = true)]
async fn a_reorg_right_above_finality_is_followed() {
    let world = World::new(tiny(15), view(MAIN, 50, Some(40)));
    let running = world.start();
    world.until("finality", |head| head.finalized.is_some()).await;
    world.until_tip(MAIN, 50).await;
    let other = fork(&world.chain, 40, 1);
    world.see(view(other, 51, Some(40)));
    world.until_tip(other, 51).await;
    world.assert_holds(other, 0, 51).await;
    world.see(view(other, 60, Some(50)));
    world.until("finality 50", |head| head.finalized == Some(world.chain.block_ref(other, Height(50)))).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_spork_root_that_does_not_link_halts_with_both_ids_and_what_lets_it_follow() {
    for is_boundary in [true, false] {
        let world = World::new(tiny(14), view(MAIN, 40, None));
        let root = Height(31);
        let other = BlockId([9; 32]);
        world.node.on_header(move |height, found| {
            Ok(found
                .map(|found| if height == root { LinkedRef { parent_id: other, ..found } } else { found }))
        });
        world.node.on_blocks(move |_, mut honest| {
            let links_until = honest.iter().position(|block| block.facts.height == root);
            match links_until {
                Some(0) => honest[0].facts.parent_id = other,
                Some(at) => honest.truncate(at),
                None => {}
            }
            Ok(honest)
        });
        if is_boundary {
            world.node.boundary(root);
        }
        // Its blocks check themselves: nothing holds them against a hash.
        let running = world.start_from(Arc::new(world.node.clone()), world.options.clone());
        world.until_tip(MAIN, 30).await;
        let below = world.chain.block_ref(MAIN, Height(30));
        if !is_boundary {
            // Elsewhere it may be two nodes behind one address.
            pass_ms(60_000).await;
            world.node.well();
            world.until_tip(MAIN, 40).await;
            running.stop_well().await;
            continue;
        }
        let error = running.end().await.expect_err("it halts");
        assert_eq!((error.code(), error.height()), ("unlinked", Some(root)));
        let told = error.to_string();
        assert!(told.contains(&other.to_string()) && told.contains(&below.to_string()), "{told}");
        assert!(told.contains(&format!("accepted_roots 31:{}", below.id)), "{told}");
        assert_eq!(world.tip().await, Some(below));
    }
}
