//! What ingestion says to the error log: why blocks are not stored.

// Tests may.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cairn_core::{ChainId, Height, HeightRange};
use cairn_pipeline::gaps::GapWatch;
use cairn_pipeline::ingest::{FillOptions, RAW_SERVICE, Reports};
use cairn_source::SourceError;
use cairn_store::derived::memory::MemoryErrorLog;
use cairn_store::derived::{ErrorFilter, ErrorLog, LoggedError, MAX_ATTEMPTS, Severity};
use cairn_store::{RangeEnd, RawFiller};
use support::node::transient;
use support::*;
use tokio_util::sync::CancellationToken;

/// A world whose reports come to a log.
fn reporting(world: World) -> (World, Arc<MemoryErrorLog>) {
    let (reports, writer) = Reports::new();
    let log = Arc::new(MemoryErrorLog::new(world.clock.clone()));
    tokio::spawn(writer.write(log.clone()));
    (World { reports, ..world }, log)
}

async fn logged(log: &MemoryErrorLog) -> Vec<LoggedError> {
    let filter = ErrorFilter { service: Some(RAW_SERVICE.into()), limit: 100, ..ErrorFilter::default() };
    let logged = log.list(&filter).await.unwrap();
    assert!(logged.iter().all(|logged| logged.error.severity == Severity::Fatal), "{logged:#?}");
    logged
}

#[tokio::test(start_paused = true)]
async fn a_block_that_checks_refuse_again_and_again_is_reported_once() {
    let (world, log) = reporting(World::new(tiny(1), view(MAIN, 30, None)));
    world.node.on_blocks(|range, honest| match range.contains(Height(10)) {
        true => Err(SourceError::Inconsistent {
            endpoint: "a node".into(),
            height: Height(10),
            check: "receipts-root".into(),
            message: "0x01 and 0x02".into(),
        }),
        false => Ok(honest),
    });
    let running = world.start();
    pass_ms(1_000).await;
    assert!(logged(&log).await.is_empty(), "a node may mend itself");
    pass_ms(600_000).await;
    let found = logged(&log).await;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].error.height, Height(10));
    assert!(found[0].error.message.contains("receipts-root"), "{}", found[0].error.message);
    world.node.well();
    world.until_tip(MAIN, 30).await;
    pass_ms(1_000).await;
    assert!(logged(&log).await.is_empty(), "it is stored");
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_a_source_fails_at_is_reported_once_and_closed_when_the_height_is_stored() {
    let (world, log) = reporting(World::new(tiny(4), view(MAIN, 30, None)));
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    let failures: [fn() -> SourceError; 3] = [
        || SourceError::TooWide { endpoint: "a node".into(), message: "response too large".into() },
        || SourceError::Refused { endpoint: "a node".into(), message: "HTTP 403".into() },
        transient,
    ];
    for (round, failure) in (1..).zip(failures) {
        world.node.on_blocks(move |_, _| Err(failure()));
        let head = 30 + round * 5;
        world.see(view(MAIN, head, None));
        pass_ms(1_500).await;
        assert!(logged(&log).await.is_empty(), "it may pass");
        pass_ms(3_600_000).await;
        let found = logged(&log).await;
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].error.height, Height(head - 4));
        assert!(found[0].error.message.contains(&failure().to_string()), "{found:#?}");
        world.node.well();
        world.until_tip(MAIN, head).await;
        pass_ms(1_000).await;
        assert!(logged(&log).await.is_empty(), "round {round}");
    }
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_reported_is_closed_when_its_height_is_stored() {
    let (world, log) = reporting(World::new(tiny(5), view(MAIN, 30, None)));
    for height in [7, 30, 45] {
        world.reports.fatal(Height(height), "a block of before".into());
    }
    pass_ms(100).await;
    assert_eq!(logged(&log).await.len(), 3);
    // Another process: it remembers nothing.
    let (reports, writer) = Reports::new();
    tokio::spawn(writer.write(log.clone()));
    let world = World { reports, ..world };
    let running = world.start();
    world.until_tip(MAIN, 30).await;
    pass_ms(2_000).await;
    let open: Vec<u64> = logged(&log).await.iter().map(|logged| logged.error.height.get()).collect();
    assert_eq!(open, [45]);
    world.see(view(MAIN, 45, None));
    world.until_tip(MAIN, 45).await;
    pass_ms(2_000).await;
    assert!(logged(&log).await.is_empty());
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_range_that_fails_says_why_in_its_lease_and_in_the_log() {
    let world = World::new(tiny(2), view(MAIN, 60, Some(60))).with(|options| {
        options.fill =
            Some(FillOptions { workers: 2, range_heights: 10, lease_ttl_ms: 20_000, owner: "a-test".into() });
    });
    let (world, log) = reporting(world);
    let broken = HeightRange::new(Height(20), Height(30));
    world.node.on_blocks(move |range, honest| match broken.contains(range.start()) {
        true => Err(SourceError::WrongChain {
            endpoint: "a node".into(),
            found: ChainId(2),
            expected: ChainId(1),
        }),
        false => Ok(honest),
    });
    world.start().end().await.expect_err("nothing that may pass");
    pass_ms(100).await;
    let leases = world.snapshot().await.raw_leases().await.unwrap();
    let lease = leases.iter().find(|lease| lease.range == broken).expect("it is not passed");
    assert_eq!((lease.attempt, lease.last_error.contains("serves chain 2")), (1, true), "{lease:?}");
    let messages: Vec<String> = logged(&log).await.into_iter().map(|logged| logged.error.message).collect();
    assert!(messages.iter().any(|message| message.contains("heights [20, 30)")), "{messages:?}");
    assert!(messages.iter().any(|message| message.contains("ingestion halted")), "{messages:?}");
}

#[tokio::test(start_paused = true)]
async fn a_range_of_blocks_that_waits_for_an_operator_is_in_the_log() {
    let world = World::new(tiny(3), view(MAIN, 60, Some(60)));
    let running = world.start();
    world.until_tip(MAIN, 60).await;
    running.stop_well().await;
    for _ in 0..MAX_ATTEMPTS {
        let lease = world.store.claim_range("somebody", 1_000, 10, Height(100)).await.unwrap().unwrap();
        assert_eq!(lease.range.start(), Height(61));
        world.store.release(&lease, RangeEnd::Bad("the process died".into())).await.unwrap();
    }
    let (world, log) = reporting(world);
    let stop = CancellationToken::new();
    let watch = GapWatch {
        source: Arc::new(world.node.clone()),
        store: Arc::new(world.store.clone()),
        clock: world.clock.clone(),
        stop_inclusive: None,
        every: Duration::from_secs(10),
        reports: world.reports.clone(),
    };
    let watching = tokio::spawn(watch.run(stop.clone()));
    pass_ms(200_000).await;
    let found = logged(&log).await;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].error.height, Height(61));
    let message = &found[0].error.message;
    assert!(message.contains("[61, 70)") && message.contains("the process died"), "{message}");
    stop.cancel();
    watching.await.unwrap();
}
