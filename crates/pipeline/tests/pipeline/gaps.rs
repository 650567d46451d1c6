//! What the archive lacks of what the node has, and how old that is (I05).

// Tests may.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cairn_core::{Height, HeightRange};
use cairn_pipeline::gaps::{GapAges, GapWatch, gaps};
use cairn_store::{HeadRow, RawFiller};
use tokio_util::sync::CancellationToken;

use support::gauges::Gauges;
use support::{MAIN, World, fork, pass_ms, tiny, view};

fn range(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

async fn gaps_of(world: &World, end: u64) -> Vec<HeightRange> {
    let snapshot = world.snapshot().await;
    gaps(snapshot.head(), &snapshot.raw_leases().await.unwrap(), Height(end))
}

#[tokio::test(start_paused = true)]
async fn i05_a_gap_is_closed_by_what_stores_its_blocks() {
    let chain = tiny(1);
    let world = World::new(chain.clone(), view(MAIN, 100, None));
    let ingester = world.start();
    world.until_tip(MAIN, 100).await;
    assert_eq!(gaps_of(&world, 101).await, []);
    // A reorg that is replaced at once leaves none.
    let side = fork(&chain, 95, 1);
    world.see(view(side, 101, None));
    world.until_tip(side, 101).await;
    assert_eq!(gaps_of(&world, 102).await, []);
    // The ingester stands still, the node goes on.
    ingester.stop_well().await;
    assert_eq!(gaps_of(&world, 151).await, [range(102, 151)]);
}

#[tokio::test(start_paused = true)]
async fn i05_ranges_that_were_filled_ahead_are_no_gaps() {
    let chain = tiny(1);
    let world = World::new(chain.clone(), view(MAIN, 9, None));
    let ingester = world.start();
    world.until_tip(MAIN, 9).await;
    ingester.stop_well().await;
    let claim = async || world.store.claim_range("me", 60_000, 10, Height(60)).await.unwrap().unwrap();
    let (_, second, third) = (claim().await, claim().await, claim().await);
    assert_eq!((second.range, third.range), (range(20, 30), range(30, 40)));
    for (lease, to) in [(second, 25), (third, 40)] {
        let heights = HeightRange::new(lease.range.start(), Height(to));
        let blocks = heights.iter().map(|height| (*chain.block(MAIN, height)).clone()).collect();
        world.store.fill(&lease, blocks, 60_000).await.unwrap();
    }
    assert_eq!(gaps_of(&world, 60).await, [range(10, 20), range(25, 30), range(40, 60)]);
    assert_eq!(gaps_of(&world, 28).await, [range(10, 20), range(25, 28)]);
    assert_eq!(gaps_of(&world, 5).await, []);
}

#[test]
fn a_gap_is_as_old_as_the_first_look_that_its_first_height_was_there_in() {
    let mut ages = GapAges::default();
    assert_eq!(ages.look(Height(10), &[], 1_000), 0);
    assert_eq!(ages.look(Height(11), &[range(10, 11)], 2_000), 0);
    assert_eq!(ages.look(Height(20), &[range(10, 20)], 5_000), 3_000);
    // What is lacking now was there in the second look, not in the first.
    assert_eq!(ages.look(Height(30), &[range(15, 30)], 9_000), 4_000);
    assert_eq!(ages.look(Height(30), &[], 10_000), 0);
    assert_eq!(ages.look(Height(31), &[range(30, 31)], 50_000), 0);
    // However long it takes, only so much is remembered.
    for look in 0..10_000 {
        ages.look(Height(32 + look), &[range(30, 32 + look)], 50_000 + look);
    }
    let age_ms = ages.look(Height(20_000), &[range(30, 20_000)], 60_000);
    assert_eq!(age_ms, 10_000);
}

#[tokio::test(start_paused = true)]
async fn i05_the_gap_shows_and_ages_though_the_ingester_stands_still() {
    let gauges = Arc::new(Gauges::default());
    let _set = metrics::set_default_local_recorder(&*gauges);
    let world = World::new(tiny(1), view(MAIN, 100, None));
    let ingester = world.start();
    world.until_tip(MAIN, 100).await;
    ingester.stop_well().await;
    let stop = CancellationToken::new();
    let watch = GapWatch {
        source: Arc::new(world.node.clone()),
        store: Arc::new(world.store.clone()),
        clock: world.clock.clone(),
        stop_inclusive: None,
        every: Duration::from_secs(10),
        reports: Default::default(),
    };
    let watching = tokio::spawn(watch.run(stop.clone()));
    let seen = || {
        ["cairn_raw_gaps", "cairn_raw_gap_heights", "cairn_raw_gap_age_seconds"].map(|name| gauges.get(name))
    };
    pass_ms(1_000).await;
    assert_eq!(seen(), [Some(0.0), Some(0.0), Some(0.0)]);
    world.see(view(MAIN, 150, None));
    pass_ms(10_000).await;
    assert_eq!(seen(), [Some(1.0), Some(50.0), Some(0.0)]);
    pass_ms(30_000).await;
    let [gaps, heights, age_s] = seen();
    assert_eq!((gaps, heights), (Some(1.0), Some(50.0)));
    assert!(age_s.is_some_and(|age_s| (29.9..31.0).contains(&age_s)), "{age_s:?}");
    stop.cancel();
    watching.await.unwrap();
}

#[test]
fn an_empty_archive_has_no_gaps() {
    let head = HeadRow { tip: None, ..HeadRow::new(support::info(&tiny(1))) };
    assert_eq!(gaps(&head, &[], Height(9)), []);
}
