//! Blocks that a processor can't process, and events that it can't decode: what stops, what goes on, and what is left to see of it.

// Tests may.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use cairn_core::{Height, HeightRange};
use cairn_pipeline::derive::processor::{FaultLabels, Malformed, ProcessError, Processor};
use cairn_pipeline::derive::{Compute, DeriveOptions, MalformedPolicy};
use cairn_store::StoreError;
use cairn_store::derived::{Coordinator, LeaseKind, LeaseStatus, Severity, Value, WorkerLease};
use cairn_store::memory::CommitHook;

use support::derive::{COUNTS, Derived, counts, mark, marks, odd};
use support::gauges::Gauges;
use support::{pass_ms, tiny};

/// A mapper that panics at height 7 while it is told to, and can't decode 11.
fn broken(is_broken: &Arc<AtomicBool>) -> Processor {
    let is_broken = is_broken.clone();
    marks(move |block, _| {
        let height = block.facts.height.get();
        if is_broken.load(SeqCst) {
            assert!(height != 7, "no decoder for this");
            if height == 11 {
                let block = block.facts.block_ref();
                return Err(ProcessError { block, message: "its body ends early".into() });
            }
        }
        Ok(())
    })
}

fn all_but(holes: &[u64], last: u64) -> Vec<u64> {
    (0..=last).filter(|height| !holes.contains(height)).collect()
}

async fn messages(world: &Derived) -> Vec<(u64, Severity, String)> {
    let logged = world.logged().await;
    let mut all: Vec<_> =
        logged.into_iter().map(|l| (l.error.height.get(), l.error.severity, l.error.message)).collect();
    all.sort();
    all
}

async fn a_hole_that_is_known(change: impl FnOnce(DeriveOptions) -> DeriveOptions) {
    let world = Derived::new(tiny(1), 30).await;
    let is_broken = Arc::new(AtomicBool::new(true));
    let options = change(world.options());
    let working = world.start(vec![broken(&is_broken), counts(|_| Ok(()))], options);
    world.until_next("count_worker", 31).await;
    assert_eq!(world.marked().await, all_but(&[7, 11], 30));
    let status = working.status().services["mark_worker"].clone();
    assert_eq!(status.quarantined.into_iter().collect::<Vec<_>>(), [Height(7), Height(11)]);
    assert_eq!(status.quarantined_total, 2);
    let block = |height| world.chain.block_ref(support::MAIN, Height(height));
    let logged = world.logged().await;
    assert_eq!(logged.len(), 2, "{logged:#?}");
    for (logged, height) in logged.iter().zip([7, 11]) {
        let error = &logged.error;
        assert_eq!((error.height, error.block_id), (Height(height), block(height).id));
        assert_eq!((error.severity, error.service.as_str()), (Severity::Fatal, "mark_worker"));
        assert_eq!(error.raw_ref, Some(format!("raw:{height}")));
    }
    assert!(logged[0].error.message.contains("panicked: no decoder for this"), "{}", logged[0].error.message);
    assert!(logged[1].error.message.contains("its body ends early"));

    // Made again while it is still broken, the hole stays and so does what is beside it.
    let range = HeightRange::new(Height(5), Height(13));
    world.app.request_reindex("mark_worker", 1, range, 100).await.unwrap();
    let done = async || {
        world.leases().await.iter().all(|lease| lease.rest().is_empty() || lease.range.end() > Height(30))
    };
    world.until("the rows made again", done).await;
    assert_eq!(world.marked().await, all_but(&[7, 11], 30));
    assert_eq!(world.logged().await.len(), 2);
    assert_eq!(working.status().services["mark_worker"].quarantined.len(), 2);

    is_broken.store(false, SeqCst);
    world.app.request_reindex("mark_worker", 1, range, 100).await.unwrap();
    world.until("the holes closed", async || world.marked().await == all_but(&[], 30)).await;
    assert!(working.status().services["mark_worker"].quarantined.is_empty());
    assert!(working.is_running());
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i07_a_block_that_can_never_be_processed_leaves_a_known_hole_at_the_tip() {
    a_hole_that_is_known(|options| options).await;
}

#[tokio::test(start_paused = true)]
async fn i07_a_block_that_can_never_be_processed_leaves_a_known_hole_below_the_tip() {
    a_hole_that_is_known(|options| DeriveOptions { range_heights: 4, ..options }).await;
}

#[tokio::test]
async fn e24_a_panic_on_a_blocking_thread_is_an_error_of_its_block() {
    a_hole_that_is_known(|options| DeriveOptions {
        compute: Compute::Blocking,
        poll_ms: 5,
        live_retries_ms: vec![1],
        ..options
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn i07_rows_that_were_right_stay_where_a_newer_decoder_fails() {
    let world = Derived::new(tiny(1), 20).await;
    let is_broken = Arc::new(AtomicBool::new(false));
    let working = world.start(vec![broken(&is_broken)], world.options());
    world.until_next("mark_worker", 21).await;
    is_broken.store(true, SeqCst);
    world.app.request_reindex("mark_worker", 1, HeightRange::new(Height(0), Height(21)), 100).await.unwrap();
    world.until("both reported", async || world.logged().await.len() == 2).await;
    let done = async || {
        world.leases().await.iter().all(|lease| lease.rest().is_empty() || lease.range.end() > Height(21))
    };
    world.until("the rows made again", done).await;
    assert_eq!(world.marked().await, all_but(&[], 20));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i07_under_halt_the_range_fails_until_the_decoder_is_mended() {
    let world = Derived::new(tiny(1), 30).await;
    let is_broken = Arc::new(AtomicBool::new(true));
    let options = DeriveOptions { malformed: MalformedPolicy::Halt, range_heights: 10, ..world.options() };
    let working = world.start(vec![broken(&is_broken)], options);
    world
        .until("20 bad ends", async || {
            world.leases().await.iter().any(|lease| lease.range.start() == Height(0) && lease.is_dead())
        })
        .await;
    // The other ranges were worked off meanwhile, but for the one that has the other broken block.
    let done_to = async || world.leases().await.iter().map(|lease| lease.done_to.get()).collect::<Vec<_>>();
    world.until("the rest", async || done_to().await == [7, 11, 30, 31]).await;
    assert_eq!(world.next("mark_worker").await, 7);
    let logged = messages(&world).await;
    assert_eq!(
        logged.iter().map(|(height, severity, _)| (*height, *severity)).collect::<Vec<_>>(),
        [(7, Severity::Fatal), (11, Severity::Fatal)]
    );
    let dead = world.leases().await.into_iter().find(|lease| lease.is_dead()).unwrap();
    assert_eq!((dead.status, dead.done_to), (LeaseStatus::Failed, Height(7)));
    assert!(dead.last_error.contains("no decoder for this"), "{}", dead.last_error);

    is_broken.store(false, SeqCst);
    for lease in world.leases().await.iter().filter(|lease| lease.status == LeaseStatus::Failed) {
        world.app.retry_lease(lease.id).await.unwrap();
    }
    world.until_next("mark_worker", 31).await;
    assert_eq!(world.marked().await, all_but(&[], 30));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i07_state_never_passes_over_a_block_that_cannot_be_folded() {
    let world = Derived::new(tiny(1), 20).await;
    let is_broken = Arc::new(AtomicBool::new(true));
    let looks = is_broken.clone();
    let folder = counts(move |height| {
        assert!(height != Height(7) || !looks.load(SeqCst), "a sum that overflows");
        Ok(())
    });
    let working = world.start(vec![marks(|_, _| Ok(())), folder], world.options());
    world.until_next("mark_worker", 21).await;
    world.until("a dead range", async || world.leases().await.iter().any(|lease| lease.is_dead())).await;
    assert_eq!(world.next("count_worker").await, 7);
    assert_eq!(world.rows(COUNTS.name).await[0].0[1], Value::Int(7));
    let logged = world.logged().await;
    assert_eq!(logged.len(), 1, "{logged:#?}");
    assert_eq!((logged[0].error.height, logged[0].error.severity), (Height(7), Severity::Fatal));
    assert_eq!(logged[0].error.service, "count_worker");

    is_broken.store(false, SeqCst);
    for lease in world.leases().await.iter().filter(|lease| lease.is_dead()) {
        world.app.retry_lease(lease.id).await.unwrap();
    }
    world.until_next("count_worker", 21).await;
    assert_eq!(world.rows(COUNTS.name).await[0].0[1], Value::Int(21));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i07_many_broken_blocks_in_a_row_are_waited_for_once() {
    let world = Derived::new(tiny(1), 40).await;
    let began = tokio::time::Instant::now();
    let working = world.start(
        vec![marks(|block, _| {
            let block = block.facts.block_ref();
            if block.height < Height(5) {
                return Ok(());
            }
            Err(ProcessError { block, message: "a fork that this program doesn't know".into() })
        })],
        world.options(),
    );
    world.until_next("mark_worker", 41).await;
    // 5, 10 and 20 s, once.
    assert!(began.elapsed().as_secs() < 40, "{:?}", began.elapsed());
    assert_eq!(world.logged().await.len(), 36);
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn e24_an_event_that_cannot_be_decoded_stops_its_range_only_where_the_policy_says_so() {
    for (policy, stops) in [(MalformedPolicy::Continue, false), (MalformedPolicy::Halt, true)] {
        let world = Derived::new(tiny(1), 20).await;
        let processor = marks(|block, out| {
            if block.facts.height == Height(7) {
                out.malformed(odd("31 bytes of data"));
            }
            Ok(())
        });
        let options = DeriveOptions { malformed: policy, ..world.options() };
        let working = world.start(vec![processor], options);
        if stops {
            world
                .until("a dead range", async || world.leases().await.iter().any(|lease| lease.is_dead()))
                .await;
        }
        pass_ms(200_000).await;
        assert_eq!(world.next("mark_worker").await, if stops { 7 } else { 21 });
        // It is in the log as what it is, once; and so is the range that it stops.
        let mut logged = messages(&world).await;
        let range = logged.split_off(1);
        assert_eq!(logged, [(7, Severity::Warn, "31 bytes of data".to_owned())]);
        assert_eq!(range.len(), usize::from(stops), "{range:?}");
        if let Some((height, severity, message)) = range.first() {
            assert_eq!((*height, *severity), (7, Severity::Fatal));
            assert!(message.contains("wait for an operator") && message.contains("31 bytes"), "{message}");
        }
        working.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn e24_what_cannot_be_decoded_is_counted_by_reason_contract_and_topic() {
    let counters = Arc::new(Gauges::default());
    let _set = metrics::set_default_local_recorder(&*counters);
    let world = Derived::new(tiny(1), 20).await;
    let processor = marks(|block, out| {
        match block.facts.height.get() {
            3 | 5 => out.malformed(odd("31 bytes of data")),
            7 => panic!("no decoder for this"),
            9 => {
                let labels = FaultLabels { contract: "0x0d".into(), ..odd("").labels };
                out.malformed(Malformed { labels, ..odd("31 bytes of data") });
            }
            _ => {}
        }
        Ok(())
    });
    let working = world.start(vec![processor], world.options());
    world.until_next("mark_worker", 21).await;
    let counted = |reason: &str, contract: &str, topic: &str| {
        counters.counted(&format!(
            "cairn_malformed_events_total{{service=mark_worker,reason={reason},contract={contract},topic={topic}}}"
        ))
    };
    assert_eq!(counted("odd", "0x0c", "0xdd"), 2);
    assert_eq!(counted("odd", "0x0d", "0xdd"), 1);
    assert_eq!(counted("block", "", ""), 1);
    // Made again it is the same, and counted once.
    world.app.request_reindex("mark_worker", 1, HeightRange::new(Height(0), Height(6)), 100).await.unwrap();
    let done = async || {
        world.leases().await.iter().all(|lease| lease.rest().is_empty() || lease.range.end() > Height(20))
    };
    world.until("the rows made again", done).await;
    assert_eq!(counted("odd", "0x0c", "0xdd"), 2);
    working.stop().await.unwrap();
}

/// Refuses every chunk, as a store does that a newer program has changed.
struct Changed;

impl CommitHook for Changed {
    fn before(&self, verb: &'static str) -> Result<(), StoreError> {
        if verb == "commit_chunk" { Err(StoreError::UnknownSchema { found: 9, known: 1 }) } else { Ok(()) }
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_halt_says_who_met_it_and_where_in_words_for_programs_too() {
    let world = Derived::new(tiny(1), 20).await;
    let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
    world.until_next("mark_worker", 21).await;
    assert_eq!(working.status().halted, None);
    world.app.set_hook(Some(Arc::new(Changed)));
    world.append(support::MAIN, 21, 21).await;
    world.until("the halt", async || working.status().halted.is_some()).await;
    let halt = working.status().halted.unwrap();
    assert_eq!(
        (halt.service, halt.height, halt.code),
        (Some("mark_worker"), Some(Height(21)), "unknown-schema")
    );
    assert!(halt.message.contains("version 9"), "{}", halt.message);
    working.stop().await.unwrap_err();
}

/// Counts commits of chunks.
#[derive(Default)]
struct Commits(AtomicUsize);

impl CommitHook for Commits {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        self.0.fetch_add(usize::from(verb == "commit_chunk"), SeqCst);
        Ok(())
    }

    fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn e24_a_chunk_whose_blocks_make_many_rows_ends_earlier_and_none_is_missing() {
    let row_bytes = mark(tiny(1).block_ref(support::MAIN, Height(1))).size_bytes();
    for (chunk_output_bytes, expected) in [(1 << 20, 1), (4 * row_bytes, 8), (1, 31)] {
        let world = Derived::new(tiny(1), 30).await;
        let commits = Arc::new(Commits::default());
        world.app.set_hook(Some(commits.clone()));
        let options = DeriveOptions { chunk_output_bytes, ..world.options() };
        let working = world.start(vec![marks(|_, _| Ok(())), counts(|_| Ok(()))], options);
        world.until_next("mark_worker", 31).await;
        world.until_next("count_worker", 31).await;
        assert_eq!(world.marked().await, all_but(&[], 30));
        // The folder behind it has a commit each time that it finds something.
        assert!(commits.0.load(SeqCst) > expected, "{chunk_output_bytes}: {:?}", commits.0);
        if expected == 1 {
            assert_eq!(commits.0.load(SeqCst), 2);
        }
        // The same of a range that is made again.
        commits.0.store(0, SeqCst);
        world
            .app
            .request_reindex("mark_worker", 1, HeightRange::new(Height(0), Height(31)), 100)
            .await
            .unwrap();
        let is_done =
            |lease: &WorkerLease| lease.kind == LeaseKind::Index || lease.status == LeaseStatus::Completed;
        world.until("the rows made again", async || world.leases().await.iter().all(is_done)).await;
        assert_eq!(commits.0.load(SeqCst), expected, "{chunk_output_bytes}");
        assert_eq!(world.marked().await, all_but(&[], 30));
        working.stop().await.unwrap();
    }
}
