//! Seeds that once failed, each with what it showed, and an exhaustive run over the commits of a few small plans.

use std::collections::BTreeSet;

use cairn_core::Height;
use cairn_sim::derived::app::AppFault;
use cairn_sim::derived::plan::DerivedPlan;
use cairn_sim::plan::{self, CommitFault, FaultRates};
use cairn_sim::{World, run_plan, run_seed};

/// Every seed that ever failed stays here.
const ONCE_FAILED: [(u64, &str); 23] = [
    (7, "finality announced by one node was taken for blocks that another node gave from a dead fork"),
    (22, "an archive was anchored at a block of a dead fork"),
    (73, "a node that is behind on a dead fork was taken for a chain that leaves ours below finality"),
    (197, "a range whose filled part came from a dead fork was continued for ever"),
    (276, "a node at our own height, on a dead fork, made the ingester halt"),
    (290, "one header that went astray made a whole walk begin again"),
    (361, "a seam was fetched again and again although the tip was the side that was dead"),
    (486, "the last advance over filled ranges ended the ingester at a broken seam"),
    (1483, "two nodes in turn: the contradiction of one was counted on after the other had answered"),
    (2093, "see 276, on the way to a fork that is too deep"),
    (2596, "see 361, with a rollback in between"),
    (2929, "see 276, on the way to a fork that is too deep"),
    (3354, "a process that had lost the head compared with rows that its successor had rolled back"),
    (10, "a lease that waits in many short pieces was never renewed"),
    (45, "the only worker sat on the range at the tip while a failed one waited for it"),
    (160, "undo rows were pruned by a finality that came after a reorg which was still to be applied"),
    (244, "two processes adopted the raw store, and one of them had looked at it before a reorg"),
    (452, "rows to be made again waited, in the hands of the only worker, for work that it was to do"),
    (762, "see 452"),
    (877, "see 160"),
    (59, "a halt was expected at a head that the ingester had not reached"),
    (320, "rows to be made again were left above the tip by a reorg, and were taken for ones that hang"),
    (2757, "see 320, with a range that lies above the tip as a whole"),
];

#[test]
fn seeds_that_once_failed_pass() {
    let world = World::default();
    for (seed, showed) in ONCE_FAILED {
        if let Err(error) = run_seed(&world, seed) {
            panic!("{error}\n(this seed once showed: {showed})");
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let world = World::default();
    for seed in [3, 11, 42] {
        let (first, second) = (run_seed(&world, seed), run_seed(&world, seed));
        assert_eq!(first.expect("passes"), second.expect("passes"), "seed {seed}");
    }
}

/// Rule K1: whenever nodes refuse everything for a while, ingestion waits, and arrives where it would have arrived.
#[test]
fn k1_nodes_that_refuse_for_a_while_end_nothing() {
    let world = World::default();
    for seed in 100..140 {
        let chain = cairn_sim::chain(&world, seed);
        let mut plan = plan::draw(seed, &chain);
        let from_ms = plan.quiet_from_ms * (seed % 10) / 10;
        plan.refused_ms = Some((from_ms, from_ms + 1_000 * (1 + seed % 90)));
        plan.derived = None;
        if let Err(error) = run_plan(&chain, plan) {
            panic!("{error}");
        }
    }
}

/// Field case I01, exhaustively: a crash before and after every single commit of a run with forks, then one lost answer at each.
#[test]
fn i01_a_crash_at_every_commit_loses_and_doubles_nothing() {
    let world = World::default();
    for seed in [16] {
        let chain = cairn_sim::chain(&world, seed);
        let mut plan = plan::draw(seed, &chain);
        plan.commit_faults = Vec::new();
        plan.faults = FaultRates::default();
        plan.derived = None;
        let calm = run_plan(&chain, plan.clone()).expect("the run without faults passes");
        for fault in [CommitFault::CrashBefore, CommitFault::CrashAfter, CommitFault::LostAnswer] {
            for nth in 0..calm.commits.min(120) {
                plan.commit_faults = vec![(nth, fault)];
                if let Err(error) = run_plan(&chain, plan.clone()) {
                    panic!("{fault:?} at commit {nth}: {error}");
                }
            }
        }
    }
}

/// Field case I01 on the derived side: a crash before and after every single verb of a small run with forks, one lost answer and one
/// late arrival at each.
#[test]
fn i01_a_crash_at_every_derived_verb_loses_and_doubles_nothing() {
    let world = World::default();
    let seed = 3;
    let chain = cairn_sim::chain(&world, seed);
    let mut plan = plan::draw(seed, &chain);
    plan.commit_faults = Vec::new();
    plan.faults = FaultRates::default();
    plan.derived = Some(DerivedPlan {
        processes: 1,
        workers: 1,
        range_heights: 16,
        chunk_heights: 8,
        chunk_bytes: 1 << 20,
        recent_bytes: 1 << 20,
        ttl_ms: 6_000,
        apply_rows: 10,
        faults: Vec::new(),
        away_ms: None,
        bugs: Vec::new(),
        incurable: BTreeSet::new(),
        ask_fails_percent: 0,
        reindex_at_ms: None,
        rebuild: None,
        starts_at_ms: 0,
    });
    let with = |faults| {
        let mut plan = plan.clone();
        if let Some(derived) = &mut plan.derived {
            derived.faults = faults;
        }
        run_plan(&chain, plan)
    };
    let calm = with(Vec::new()).expect("the run without faults passes");
    assert!(calm.reorgs > 0 && calm.derived_verbs > 20, "{calm:?}");
    for fault in [AppFault::CrashBefore, AppFault::CrashAfter, AppFault::LostAnswer, AppFault::Late(9_000)] {
        for nth in 0..calm.derived_verbs.min(120) {
            if let Err(error) = with(vec![(nth, fault)]) {
                panic!("{fault:?} at verb {nth}: {error}");
            }
        }
    }
}

/// Field case I07 on the derived side: blocks that a mapper never can process are passed over and named, through forks, ranges that are made again and crashes.
#[test]
fn i07_blocks_that_can_never_be_processed_are_holes_that_are_named() {
    let world = World::default();
    for seed in [3, 5, 11] {
        let chain = cairn_sim::chain(&world, seed);
        let mut plan = plan::draw(seed, &chain);
        plan.faults = FaultRates::default();
        let Some(derived) = &mut plan.derived else { panic!("seed {seed} has no derived half") };
        derived.bugs = Vec::new();
        derived.reindex_at_ms = Some(20_000);
        derived.incurable = [("tx_worker", 3), ("tx_worker", 12), ("mark_worker", 12), ("mark_worker", 21)]
            .map(|(mapper, height)| (mapper, Height(height)))
            .into();
        if let Err(error) = run_plan(&chain, plan) {
            panic!("seed {seed}: {error}");
        }
    }
}
