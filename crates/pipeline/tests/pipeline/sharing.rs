//! Mappers of a process share what they read of a block, and never take one for another.

// Tests may.

use crate::support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cairn_core::{BlockId, Height, HeightRange, Parts, StoredBlock};
use cairn_pipeline::derive::DeriveOptions;
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Coordinator, LeaseStatus};

use support::derive::{Derived, MarkWorker, TAILS, mark};
use support::reading::Reading;
use support::{MAIN, fork, tiny};

/// Blocks whose bytes were read, and how often.
type Reads = Arc<Mutex<BTreeMap<BlockId, usize>>>;

/// A mapper of `TAILS`, which wants the same parts as the other.
struct TailWorker;

static TAIL_WORKER: ServiceInfo =
    ServiceInfo { name: "tail_worker", version: 1, upstreams: &[], tables: &[&TAILS] };

impl Mapper for TailWorker {
    fn service(&self) -> &'static ServiceInfo {
        &TAIL_WORKER
    }
    fn parts(&self) -> Parts {
        Parts::BODY
    }
    fn map(&self, block: &StoredBlock, out: &mut Output) -> std::result::Result<(), ProcessError> {
        assert!(!block.body.is_empty());
        out.row(&TAILS, mark(block.facts.block_ref()));
        Ok(())
    }
}

fn mappers() -> Vec<Processor> {
    let marks = MarkWorker { parts: Parts::BODY, first: Box::new(|_, _| Ok(())) };
    vec![Processor::Mapper(Arc::new(marks)), Processor::Mapper(Arc::new(TailWorker))]
}

async fn reads_of(recent_bytes: u64) -> (Derived, Reads, support::derive::Working) {
    let world = Derived::new(tiny(1), 30).await;
    let reads = Reads::default();
    let counted = reads.clone();
    let reader = Reading::through(&world.raw, move |_, parts, read| {
        if !parts.is_empty() {
            let mut reads = counted.lock().unwrap();
            read.blocks.iter().for_each(|block| *reads.entry(block.facts.id).or_default() += 1);
        }
        read
    });
    let options = DeriveOptions { recent_bytes, ..world.options() };
    let working = world.start_over(reader, mappers(), options);
    world.until_next("mark_worker", 31).await;
    world.until_next("tail_worker", 31).await;
    (world, reads, working)
}

#[tokio::test(start_paused = true)]
async fn a_block_is_read_once_for_all_mappers() {
    for (recent_bytes, times) in [(64 << 20, 1), (0, 2)] {
        let (_world, reads, working) = reads_of(recent_bytes).await;
        let reads = reads.lock().unwrap().clone();
        assert_eq!(reads.len(), 31);
        assert!(reads.values().all(|read| *read == times), "{recent_bytes}: {reads:?}");
        working.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_fork_at_the_same_heights_is_read_anew() {
    let (world, reads, working) = reads_of(64 << 20).await;
    let side = fork(&world.chain, 20, 1);
    reads.lock().unwrap().clear();
    world.reorg(20, side, 32).await;
    world.until_next("mark_worker", 33).await;
    world.until_next("tail_worker", 33).await;
    for table in ["marks", "tails"] {
        let rows = world.rows(table).await;
        for (row, height) in rows.iter().zip(0..) {
            let of = if height <= 20 { MAIN } else { side };
            assert_eq!(*row, mark(world.chain.block_ref(of, Height(height))), "{table}");
        }
    }
    let reads = reads.lock().unwrap().clone();
    let new: Vec<BlockId> = (21..=32).map(|height| world.chain.block_ref(side, Height(height)).id).collect();
    assert!(new.iter().all(|id| reads.contains_key(id)), "{reads:?}");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_made_again_is_read_again() {
    let (world, reads, working) = reads_of(64 << 20).await;
    reads.lock().unwrap().clear();
    world.app.request_reindex("mark_worker", 1, HeightRange::new(Height(0), Height(31)), 100).await.unwrap();
    let done = async || {
        let leases = world.leases().await;
        leases.iter().any(|lease| lease.status == LeaseStatus::Completed && lease.range.end() == Height(31))
    };
    world.until("the rows made again", done).await;
    let reads = reads.lock().unwrap().clone();
    assert_eq!((reads.len(), reads.values().max()), (31, Some(&1)));
    working.stop().await.unwrap();
}
