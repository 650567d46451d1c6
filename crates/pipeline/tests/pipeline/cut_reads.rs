//! Reads of raw blocks that a store ends before their last block, since a snapshot's time is over: what counts as done is what was read, and no row is missing.

// Tests may.

use crate::support;

use std::sync::Arc;

use cairn_core::{Height, HeightRange, Parts};
use cairn_pipeline::derive::processor::Processor;
use cairn_pipeline::derive::state::ChunkInput;
use cairn_pipeline::derive::{DeriveError, DeriveOptions};
use cairn_store::derived::{Coordinator, LeaseKind, LeaseStatus, Value};
use cairn_store::{RawReader, StoreError};

use support::derive::{COUNTS, Derived, LinkWorker, MarkWorker, NAMES, counts, mark, marks, names, odd};
use support::reading::Reading;
use support::{MAIN, fork, pass_ms, tiny};

const LAST: u64 = 60;

/// A mapper that wants the bytes, so that what others read is shared, a folder behind it, and an enricher.
fn processors(parts: Parts) -> Vec<Processor> {
    vec![
        Processor::Mapper(Arc::new(MarkWorker { parts, first: Box::new(|_, _| Ok(())) })),
        counts(|_| Ok(())),
        names(|_, _| (1, Ok(Some("a name".into())))),
    ]
}

#[tokio::test(start_paused = true)]
async fn rows_are_whole_where_time_ends_each_read() {
    for (parts, recent_bytes) in [(Parts::empty(), 0), (Parts::BODY, 0), (Parts::BODY, 64 << 20)] {
        let world = Derived::new(tiny(1), LAST).await;
        let options = DeriveOptions { recent_bytes, ..world.options() };
        let working = world.start_over(Reading::cut_after(&world.raw, 7), processors(parts), options);
        for service in ["mark_worker", "count_worker", "name_worker"] {
            world.until_next(service, LAST + 1).await;
        }
        let every: Vec<u64> = (0..=LAST).collect();
        assert_eq!(world.marked().await, every);
        assert_eq!(world.rows(COUNTS.name).await[0].0[1], Value::uint(LAST + 1));
        assert_eq!(world.rows(NAMES.name).await.len() as u64, LAST + 1);

        // Made again, a chunk takes the old rows of its heights away first.
        let range = HeightRange::new(Height(0), Height(LAST + 1));
        world.app.request_reindex("mark_worker", 1, range, 1_000).await.unwrap();
        let done = async || {
            let leases = world.leases().await;
            leases.iter().any(|l| l.kind == LeaseKind::Reindex && l.status == LeaseStatus::Completed)
        };
        world.until("the rows made again", done).await;
        assert_eq!(world.marked().await, every);
        working.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn errors_of_blocks_that_a_second_reorg_brought_back_stay_where_time_ends_each_read() {
    let world = Derived::new(tiny(1), 20).await;
    let odd = marks(|_, out| {
        out.malformed(odd("odd"));
        Ok(())
    });
    let working = world.start_over(Reading::cut_after(&world.raw, 3), vec![odd], world.options());
    world.until_next("mark_worker", 21).await;
    let side = fork(&world.chain, 12, 1);
    world.reorg(12, side, 21).await;
    world.until_next("mark_worker", 22).await;
    world.reorg(12, MAIN, 22).await;
    world.until_next("mark_worker", 23).await;
    // The committer comes round some times.
    pass_ms(300_000).await;
    let mut logged: Vec<_> =
        world.logged().await.iter().map(|l| (l.error.height.get(), l.error.block_id)).collect();
    logged.sort();
    let right: Vec<_> = (0..=22).map(|h| (h, world.chain.block_ref(MAIN, Height(h)).id)).collect();
    assert_eq!(logged, right);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_above_the_last_block_of_a_chunk_are_refused() {
    let world = Derived::new(tiny(1), 9).await;
    let snapshot = world.raw.snapshot().await.unwrap();
    let range = HeightRange::new(Height(0), Height(10));
    let blocks = snapshot.blocks(range, Parts::empty(), u64::MAX).await.unwrap().blocks;
    let events: Vec<_> = blocks.iter().map(|block| mark(block.facts.block_ref())).collect();
    ChunkInput::fold(&LinkWorker, blocks.clone(), vec![events.clone()]).expect("each has its block");
    for count in [0, 6] {
        match ChunkInput::fold(&LinkWorker, blocks[..count].to_vec(), vec![events.clone()]) {
            Err(DeriveError::Store(StoreError::Corrupt { place, .. })) => {
                assert!(place.ends_with(&count.to_string()), "{place}");
            }
            other => panic!("{count}: {:?}", other.map(|_| ())),
        }
    }
}
