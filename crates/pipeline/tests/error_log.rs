//! What stands in the error log: of canonical blocks all, of dead forks nothing (law 7).

// Tests may.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use cairn_core::{BlockId, Height};
use cairn_pipeline::derive::processor::Malformed;
use cairn_source::evm::synthetic::ForkId;
use cairn_store::StoreError;
use cairn_store::derived::{ErrorLog, MAX_RAW_DATA_BYTES, NewError, Severity};
use cairn_store::memory::CommitHook;

use support::derive::{Derived, Working, marks, odd};
use support::{MAIN, busy, fork, pass_ms, tiny};

/// Every block has something odd.
async fn all_odd() -> (Derived, Working) {
    let world = Derived::new(tiny(1), 20).await;
    let processor = marks(|_, out| {
        out.malformed(odd("odd"));
        Ok(())
    });
    let working = world.start(vec![processor], world.options());
    world.until_next("mark_worker", 21).await;
    (world, working)
}

async fn logged_blocks(world: &Derived) -> Vec<(u64, BlockId)> {
    let logged = world.logged().await;
    let mut all: Vec<_> = logged.iter().map(|l| (l.error.height.get(), l.error.block_id)).collect();
    all.sort();
    all
}

fn blocks(world: &Derived, parts: &[(ForkId, u64, u64)]) -> Vec<(u64, BlockId)> {
    let of = |(fork, first, last): &(ForkId, u64, u64)| {
        let fork = *fork;
        (*first..=*last).map(move |height| (height, world.chain.block_ref(fork, Height(height)).id))
    };
    parts.iter().flat_map(of).collect()
}

/// Refuses the first so many times to forget.
struct Forgetful(AtomicUsize);

impl CommitHook for Forgetful {
    fn before(&self, verb: &'static str) -> Result<(), StoreError> {
        let refuses = verb == "forget_blocks"
            && self.0.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if refuses { Err(busy()) } else { Ok(()) }
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_dead_fork_go_before_the_reorg_counts_as_applied() {
    let (world, working) = all_odd().await;
    let side = fork(&world.chain, 10, 1);
    world.errors.set_hook(Some(Arc::new(Forgetful(AtomicUsize::new(3)))));
    world.reorg(10, side, 22).await;
    world.until_next("mark_worker", 23).await;
    assert_eq!(logged_blocks(&world).await, blocks(&world, &[(MAIN, 0, 10), (side, 11, 22)]));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_recorded_of_a_dead_fork_too_late_goes_when_the_committer_comes_round() {
    let (world, working) = all_odd().await;
    let side = fork(&world.chain, 10, 1);
    world.reorg(10, side, 22).await;
    world.until_next("mark_worker", 23).await;
    // Back again: what was orphaned first is canonical now.
    world.reorg(10, MAIN, 25).await;
    world.until_next("mark_worker", 26).await;
    let right = blocks(&world, &[(MAIN, 0, 25)]);
    assert_eq!(logged_blocks(&world).await, right);
    let late = |height| NewError {
        service: "mark_worker".into(),
        height: Height(height),
        block_id: world.chain.block_ref(side, Height(height)).id,
        transaction_id: String::new(),
        severity: Severity::Warn,
        message: "odd".into(),
        raw_data: Vec::new(),
        raw_ref: None,
    };
    world.errors.record(&[late(11), late(15), late(22)]).await.unwrap();
    pass_ms(61_000).await;
    assert_eq!(logged_blocks(&world).await, right);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_was_cut_says_where_the_whole_one_is() {
    let world = Derived::new(tiny(1), 9).await;
    let processor = marks(|block, out| {
        if block.facts.height == Height(7) {
            out.malformed(Malformed { raw_data: vec![1; MAX_RAW_DATA_BYTES], ..odd("long") });
            out.malformed(odd("short"));
        }
        Ok(())
    });
    let working = world.start(vec![processor], world.options());
    world.until_next("mark_worker", 10).await;
    let logged = world.logged().await;
    let refs: Vec<_> =
        logged.iter().map(|l| (l.error.message.as_str(), l.error.raw_ref.as_deref())).collect();
    assert_eq!(refs, [("long", Some("raw:7/0x01/3")), ("short", None)]);
    working.stop().await.unwrap();
}
