//! What stands in the error log: of canonical blocks all, of dead forks nothing (law 7).

// Tests may.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use cairn_core::{BlockId, Height, HeightRange};
use cairn_pipeline::derive::DeriveOptions;
use cairn_pipeline::derive::processor::{FaultLabels, Malformed, ProcessError, Processor};
use cairn_source::evm::synthetic::ForkId;
use cairn_store::StoreError;
use cairn_store::derived::{Coordinator, ErrorLog, MAX_RAW_DATA_BYTES, NewError, Severity};
use cairn_store::memory::CommitHook;

use support::derive::{Derived, Working, counts, marks, odd};
use support::gauges::Gauges;
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

/// Five thousand bad events of one contract and 20 of another in block 7, and one each of a thousand contracts in block 9.
fn flood() -> Processor {
    let of = |contract: String, index: u32| {
        let labels = FaultLabels { contract, ..odd("").labels };
        Malformed { labels, raw_data: vec![7; 1_000], ..odd(&format!("log {index} is odd")) }
    };
    marks(move |block, out| {
        match block.facts.height.get() {
            7 => (0..5_020).for_each(|index| {
                let contract = if index % 251 == 0 { "0x0d" } else { "0x0c" };
                out.malformed(of(contract.into(), index));
            }),
            9 => (0..1_000).for_each(|index| out.malformed(of(format!("0x{index:04}"), index))),
            _ => {}
        }
        Ok(())
    })
}

/// What the log says, without numbers and times.
async fn told(world: &Derived) -> BTreeMap<u64, Vec<String>> {
    let mut told: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for logged in world.logged().await {
        told.entry(logged.error.height.get()).or_default().push(logged.error.message);
    }
    told.values_mut().for_each(|messages| messages.sort());
    told
}

#[tokio::test(start_paused = true)]
async fn e24_a_flood_of_bad_events_leaves_some_rows_and_the_number_of_the_others() {
    let counters = Arc::new(Gauges::default());
    let _set = metrics::set_default_local_recorder(&*counters);
    let world = Derived::new(tiny(1), 20).await;
    let working = world.start(vec![flood()], world.options());
    world.until_next("mark_worker", 21).await;
    let counted = |contract: &str| {
        counters.counted(&format!(
            "cairn_malformed_events_total{{service=mark_worker,reason=odd,contract={contract},topic={}}}",
            if contract == "other" { "other" } else { "0xdd" }
        ))
    };
    let of_all = || ["0x0c", "0x0d", "0x0000", "0x0097", "other"].map(counted);
    // Two contracts and then 98 are counted by themselves.
    assert_eq!(of_all(), [5_000, 20, 1, 1, 1_000 - 98]);
    assert_eq!(working.status().services["mark_worker"].malformed, 6_020);

    let first = told(&world).await;
    let (seven, nine) = (&first[&7], &first[&9]);
    assert_eq!((seven.len(), nine.len()), (16 + 16 + 2, 128 + 1));
    for line in [
        "and 4984 more like the first 16 of this block: odd, contract 0x0c, event 0xdd",
        "and 4 more like the first 16 of this block: odd, contract 0x0d, event 0xdd",
        "log 0 is odd",
        "log 16 is odd",
        "log 3765 is odd",
    ] {
        assert!(seven.iter().any(|told| told == line), "{line}: {seven:?}");
    }
    assert_eq!(
        nine[0],
        "and 872 more events of this block that can't be understood, of several contracts or kinds"
    );
    let rest = world.logged().await.into_iter().find(|logged| logged.error.message == nine[0]).unwrap();
    assert_eq!(rest.error.raw_ref.as_deref(), Some("raw:9"));
    assert!(rest.error.raw_data.is_empty() && rest.error.transaction_id.is_empty());

    // Made again it is the same, and nothing is counted twice.
    world.app.request_reindex("mark_worker", 1, HeightRange::new(Height(0), Height(12)), 100).await.unwrap();
    let done = async || {
        world.leases().await.iter().all(|lease| lease.rest().is_empty() || lease.range.end() > Height(20))
    };
    world.until("the rows made again", done).await;
    assert_eq!((told(&world).await, of_all()), (first.clone(), [5_000, 20, 1, 1, 902]));
    working.stop().await.unwrap();

    // Whatever the chunks are.
    let other = Derived::new(tiny(1), 20).await;
    let options = DeriveOptions { chunk_output_bytes: 1, ..other.options() };
    let working = other.start(vec![flood()], options);
    other.until_next("mark_worker", 21).await;
    assert_eq!(told(&other).await, first);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_block_is_named_and_those_below_it_are_derived() {
    let world = Derived::new(tiny(1), 40).await;
    world.raw.lose_block(Height(25)).unwrap();
    let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
    world.until("the range is dead", async || world.leases().await.iter().any(|lease| lease.is_dead())).await;
    // The committer comes round.
    pass_ms(120_000).await;
    let heights: Vec<u64> = world.logged().await.iter().map(|logged| logged.error.height.get()).collect();
    assert_eq!(heights, [25]);
    let dead = world.leases().await.into_iter().find(|lease| lease.is_dead()).unwrap();
    assert_eq!((dead.done_to, world.next("mark_worker").await), (Height(25), 25));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_overcome_is_no_longer_a_leases_error() {
    let world = Derived::new(tiny(1), 20).await;
    let block = world.chain.block_ref(MAIN, Height(7));
    let tries = Arc::new(AtomicUsize::new(0));
    let failed = tries.clone();
    let processor = counts(move |height| {
        let fails = height == Height(7) && failed.fetch_add(1, SeqCst) < 4;
        if fails { Err(ProcessError { block, message: "an odd mood".into() }) } else { Ok(()) }
    });
    // The range ends below the tip, so it is given up at the first failure.
    let options = DeriveOptions { range_heights: 16, ..world.options() };
    let working = world.start(vec![marks(|_, _| Ok(())), processor], options);
    world.until_next("count_worker", 21).await;
    assert!(tries.load(SeqCst) > 4);
    let errors: Vec<String> = world.leases().await.into_iter().map(|lease| lease.last_error).collect();
    assert!(errors.iter().all(String::is_empty), "{errors:?}");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_error_log_takes_no_more_warnings_and_work_goes_on() {
    let counters = Arc::new(Gauges::default());
    let _set = metrics::set_default_local_recorder(&*counters);
    let world = Derived::new(tiny(1), 20).await;
    let processor = marks(|block, out| {
        if block.facts.height == Height(15) {
            out.malformed(Malformed { severity: Severity::Fatal, ..odd("bad") });
        }
        out.malformed(odd("odd"));
        Ok(())
    });
    let options = DeriveOptions { max_open_errors: 8, ..world.options() };
    let working = world.start(vec![processor], options);
    world.until_next("mark_worker", 21).await;
    let logged = world.logged().await;
    let of = |severity| logged.iter().filter(|logged| logged.error.severity == severity).count();
    assert_eq!((of(Severity::Warn), of(Severity::Fatal)), (8, 1));
    assert_eq!(counters.counted("cairn_errors_dropped_total{service=mark_worker}"), 13);
    assert_eq!(working.status().services["mark_worker"].malformed, 22, "all are counted");
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn maintenance_deletes_closed_errors_that_are_old() {
    const HOUR_MS: u64 = 3_600_000;
    let world = Derived::new(tiny(1), 20).await;
    let processor = marks(|_, out| {
        out.malformed(odd("odd"));
        Ok(())
    });
    let options = DeriveOptions { closed_errors_kept_ms: Some(2 * HOUR_MS), ..world.options() };
    let working = world.start(vec![processor], options);
    world.until_next("mark_worker", 21).await;
    let ids: Vec<u64> = world.logged().await.iter().map(|logged| logged.id).collect();
    world.errors.resolve(&ids[..5]).await.unwrap();
    pass_ms(HOUR_MS + HOUR_MS / 2).await;
    assert_eq!(world.logged().await.len(), 21);
    pass_ms(2 * HOUR_MS).await;
    assert_eq!(logged_blocks(&world).await, blocks(&world, &[(MAIN, 5, 20)]));
    working.stop().await.unwrap();
}
