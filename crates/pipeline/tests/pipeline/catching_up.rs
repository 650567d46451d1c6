//! An archive far below the head: what is final of it, what is kept to undo it, and where nodes are asked.

// Tests may.

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_core::{BlockRef, Height, HeightRange};
use cairn_pipeline::IngestError;
use cairn_pipeline::derive::DeriveOptions;
use cairn_pipeline::derive::processor::AskError;
use cairn_pipeline::ingest::{FillOptions, Finished, IngestOptions, Ingester};
use cairn_pipeline::status::StatusBoard;
use cairn_source::evm::synthetic::{View, ViewOfChain};
use cairn_store::RawReader;
use cairn_store::derived::{Coordinator, DerivedReader, Value};
use tokio_util::sync::CancellationToken;

use support::derive::{Derived, NAMES, counts, marks, names_of};
use support::node::Node;
use support::{MAIN, World, fork, info, tiny, verified, view};

const DEPTH: u64 = 50;

/// A node at block 1200 whose finalised one is 1100, and an archive that may be undone by [`DEPTH`] blocks.
fn far_below(seed: u64, served_to: u64) -> World {
    let view = View { served_to: Some(Height(served_to)), ..view(MAIN, 1_200, Some(1_100)) };
    World::new(tiny(seed), view).with(|options| options.max_reorg_depth_blocks = DEPTH)
}

async fn finalized(world: &World) -> Option<BlockRef> {
    world.head().await.finalized
}

#[tokio::test(start_paused = true)]
async fn an_archive_that_catches_up_has_a_mark_where_nothing_is_undone_any_more() {
    let world = far_below(21, 400);
    let running = world.start();
    world.until_tip(MAIN, 400).await;
    assert_eq!(finalized(&world).await, Some(world.chain.block_ref(MAIN, Height(400 - DEPTH))));
    world.assert_holds(MAIN, 0, 400).await;
    // It moves with the tip, and on to the node's own when the archive is there.
    world.see(View { served_to: Some(Height(640)), ..view(MAIN, 1_200, Some(1_100)) });
    world.until_tip(MAIN, 640).await;
    assert_eq!(finalized(&world).await, Some(world.chain.block_ref(MAIN, Height(640 - DEPTH))));
    world.see(view(MAIN, 1_200, Some(1_100)));
    world.until_tip(MAIN, 1_200).await;
    world
        .until("the node's mark", |head| head.finalized.is_some_and(|mark| mark.height == Height(1_100)))
        .await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn an_archive_that_ends_far_below_the_head_has_one_too() {
    for fill in [None, Some(FillOptions { workers: 2, range_heights: 10, ..FillOptions::default() })] {
        let is_filled = fill.is_some();
        let world = far_below(22, 1_200).with(|options| {
            options.stop_inclusive = Some(Height(400));
            options.fill = fill;
        });
        assert_eq!(world.start().end().await.unwrap(), Finished::ReachedStop);
        assert_eq!(finalized(&world).await, Some(world.chain.block_ref(MAIN, Height(350))));
        world.assert_holds(MAIN, 0, 400).await;
        if is_filled {
            assert!(world.commits.count("finalize") > 2, "while ranges are filled it moves");
        }
    }
    // Nothing is final of an archive that could be undone as a whole, nor where the node knows of nothing that is.
    let world = far_below(22, 1_200).with(|options| options.stop_inclusive = Some(Height(DEPTH - 1)));
    assert_eq!(world.start().end().await.unwrap(), Finished::ReachedStop);
    assert_eq!(finalized(&world).await, None);
    let world = World::new(tiny(22), view(MAIN, 400, None)).with(|options| {
        options.max_reorg_depth_blocks = DEPTH;
        options.stop_inclusive = Some(Height(300));
    });
    assert_eq!(world.start().end().await.unwrap(), Finished::ReachedStop);
    assert_eq!(finalized(&world).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_dead_fork_within_the_limit_is_undone_while_the_archive_catches_up_and_a_deeper_one_halts() {
    for (common, is_undone) in [(400 - DEPTH, true), (400 - DEPTH - 1, false)] {
        let world = far_below(23, 400);
        let running = world.start();
        world.until_tip(MAIN, 400).await;
        let other = fork(&world.chain, common, 1);
        world.see(view(other, 1_200, Some(1_100)));
        if is_undone {
            world.until_tip(other, 1_200).await;
            world.assert_holds(other, 0, 1_200).await;
            running.stop_well().await;
        } else {
            let error = running.end().await.expect_err("it halts");
            assert!(matches!(error, IngestError::TooDeep { .. }), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_undoes_state_is_bounded_all_through_a_backfill() {
    let chain = tiny(24);
    let world = Derived::new(chain.clone(), 1).await;
    let node = Node::new(ViewOfChain::new(chain.clone(), view(MAIN, 3_000, Some(2_900))));
    let clock = Arc::new(support::TestClock::now());
    let options = IngestOptions {
        batch_blocks: 16,
        fetches_in_flight: 4,
        poll_ms: 500,
        max_reorg_depth_blocks: DEPTH,
        stop_inclusive: Some(Height(2_000)),
        ..IngestOptions::new(info(&chain))
    };
    let raw = Arc::new(world.raw.clone());
    let board = StatusBoard::new(clock.clone());
    let ingester = Ingester::new(Arc::new(verified(node)), raw, clock, board, options);
    assert_eq!(ingester.run(CancellationToken::new()).await.unwrap(), Finished::ReachedStop);
    assert_eq!(world.raw.snapshot().await.unwrap().head().stored_finalized(), Some(Height(1_950)));
    let options = DeriveOptions { chunk_heights: 100, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(())), counts(|_| Ok(()))], options);
    world.until_next("count_worker", 2_001).await;
    let kept = world.app.undo_rows().unwrap();
    assert!((1..=DEPTH as usize).contains(&kept), "{kept} undo rows");
    working.stop().await.unwrap();
}

/// What was asked, by the height of the block.
type Asked = Arc<Mutex<Vec<u64>>>;

#[tokio::test(start_paused = true)]
async fn a_node_without_the_state_of_old_blocks_is_asked_at_its_own_finalised_block() {
    let world = Derived::new(tiny(25), 20).await;
    let ahead = world.chain.block_ref(MAIN, Height(500));
    let asked = Asked::default();
    let notes = asked.clone();
    let enricher = names_of(Some(ahead), move |_, at| {
        notes.lock().unwrap().push(at.height.get());
        match at.height >= Height(400) {
            true => (1, Ok(Some("a name".into()))),
            false => (1, Err(AskError::transient("missing trie node"))),
        }
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    let rows = world.rows(NAMES.name).await;
    assert_eq!(rows.len(), 21);
    assert!(rows.iter().all(|row| row.0[2].as_height() == Some(Height(500))), "they say where it was");
    assert_eq!(*asked.lock().unwrap(), vec![500; 21]);
    assert_eq!(
        world.app.snapshot().await.unwrap().newest_asked(NAMES.name).await.unwrap(),
        Some(Height(500))
    );
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_archive_beyond_the_nodes_finalised_block_asks_at_its_own() {
    let world = Derived::new(tiny(26), 20).await;
    let asked = Asked::default();
    let notes = asked.clone();
    let enricher = names_of(Some(world.chain.block_ref(MAIN, Height(20))), move |_, at| {
        notes.lock().unwrap().push(at.height.get());
        (1, Ok(Some("a name".into())))
    });
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], world.options());
    world.until_next("name_worker", 21).await;
    assert_eq!(*asked.lock().unwrap(), (0..=20).collect::<Vec<_>>());
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_again_is_not_asked_below_the_answer_that_it_is_to_replace() {
    let world = Derived::new(tiny(28), 20).await;
    let ahead = world.chain.block_ref(MAIN, Height(500));
    let saying = |finalized, name: &'static str| {
        vec![marks(|_, _| Ok(())), names_of(finalized, move |_, _| (1, Ok(Some(name.into()))))]
    };
    let said = async || -> Vec<Value> {
        world.rows(NAMES.name).await.into_iter().map(|mut row| row.0.swap_remove(1)).collect()
    };
    let working = world.start(saying(Some(ahead), "one"), world.options());
    world.until_next("name_worker", 21).await;
    working.stop().await.unwrap();
    let heights = HeightRange::new(Height(0), Height(21));
    world.app.request_reindex("name_worker", 1, heights, 100).await.unwrap();
    // A node that doesn't say now which block is final.
    let working = world.start(saying(None, "two"), world.options());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(said().await, vec![Value::text("one"); 21]);
    working.stop().await.unwrap();
    let working = world.start(saying(Some(ahead), "two"), world.options());
    tokio::time::timeout(Duration::from_secs(600), async {
        while said().await != vec![Value::text("two"); 21] {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("it is asked again once the node says it");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reorg_of_an_archive_that_catches_up_loses_no_answer_about_what_stays() {
    let chain = tiny(27);
    let side = fork(&chain, 16, 1);
    let world = Derived::new(chain.clone(), 20).await;
    let ahead = chain.block_ref(MAIN, Height(500));
    let enricher = names_of(Some(ahead), |_, _| (1, Ok(Some("a name".into()))));
    let options = DeriveOptions { clear_ms: 1_000, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(())), enricher], options);
    world.until_next("name_worker", 21).await;
    world.reorg(16, side, 18).await;
    world.until("all is asked anew", async || world.rows(NAMES.name).await.len() == 19).await;
    world.until_next("name_worker", 19).await;
    // Of each block of this fork, and of no other.
    let mut named: Vec<Vec<u8>> =
        world.rows(NAMES.name).await.iter().map(|row| row.0[0].as_bytes().unwrap().to_vec()).collect();
    let mut expected: Vec<Vec<u8>> =
        (0..=18).map(|height| chain.block_ref(side, Height(height)).id.as_bytes().to_vec()).collect();
    named.sort();
    expected.sort();
    assert_eq!(named, expected);
    working.stop().await.unwrap();
}
