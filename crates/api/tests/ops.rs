//! Health and metrics.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::get;
use cairn_api::health::{HealthState, Readiness, ReadinessLimits, ReadyState};
use cairn_api::{OpsConfig, serve_ops};
use cairn_core::{BlockId, BlockRef, Clock, Height};
use support::http::{Reply, raw};

/// A clock that tests move.
#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Hands {
    fn go(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for Hands {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn health(limits: ReadinessLimits) -> (Arc<Hands>, HealthState) {
    let clock = Arc::new(Hands(AtomicU64::new(1_700_000_000_000)));
    (Arc::clone(&clock), HealthState::new(limits, clock))
}

fn tip(height: u64, fork: u8) -> BlockRef {
    BlockRef { height: Height(height), id: BlockId([fork; 32]) }
}

fn limits() -> ReadinessLimits {
    ReadinessLimits { max_lag_blocks: Some(5), max_idle_ms: Some(60_000), max_tip_age_ms: Some(300_000) }
}

#[test]
fn x01_frozen_is_not_healthy_and_a_stalled_chain_is_told_apart() {
    let (clock, health) = health(limits());
    let state = || health.report().state;
    assert_eq!(state(), ReadyState::NoBlockYet);
    health.source_head(Height(100));
    health.tip(tip(90, 0), clock.now_ms() - 120_000);
    assert_eq!(state(), ReadyState::LaggingBlocks);
    assert!(health.report().reason.contains("10 blocks behind"));
    health.tip(tip(100, 0), clock.now_ms() - 12_000);
    assert_eq!(state(), ReadyState::Ready);

    // The source falls silent.
    clock.go(61_000);
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::Stale, false));
    assert!(report.reason.contains("silent for 61 s"), "{}", report.reason);
    // It answers, there are new blocks, and we don't get on.
    health.source_head(Height(103));
    assert_eq!(state(), ReadyState::Stale);
    // We get on.
    health.tip(tip(103, 0), clock.now_ms());
    assert_eq!(state(), ReadyState::Ready);
    // The node answers all the time, and its own head stands still: not our fault, and not fresh.
    for _ in 0..10 {
        clock.go(10_000);
        health.source_head(Height(103));
    }
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::ChainStalled, false));
    assert!(report.reason.contains("has not moved for 100 s"), "{}", report.reason);
    // A replaced block at the same height is movement.
    health.tip(tip(103, 1), clock.now_ms());
    assert_eq!(state(), ReadyState::Ready);

    health.halted("a reorg of 1200 blocks is deeper than MAX_REORG_DEPTH 1000");
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::Halted, false));
    assert!(report.reason.contains("1200 blocks"));
    health.resumed();
    assert_eq!(state(), ReadyState::Ready);
    health.derived_halted("another raw store");
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::DerivedHalted, false));
    assert_eq!(report.reason, "derived work halted: another raw store");

    // Blocks come, and they are old.
    health.tip(tip(104, 0), clock.now_ms() - 400_000);
    assert_eq!(state(), ReadyState::LaggingSeconds);
}

#[test]
fn an_archive_that_ends_at_a_height_is_whole_there_and_waits_for_nothing() {
    let (clock, health) = health(limits());
    let health = health.up_to(Some(Height(50)));
    health.source_head(Height(1_000));
    health.tip(tip(44, 0), clock.now_ms() - 900_000);
    let report = health.report();
    assert_eq!((report.state, report.lag_blocks), (ReadyState::LaggingBlocks, Some(6)), "{}", report.reason);
    // Not there yet, and it stands still.
    health.tip(tip(49, 0), clock.now_ms());
    clock.go(61_000);
    assert_eq!(health.report().state, ReadyState::Stale);
    // The blocks are as old as they are, nobody is heard any more, and nothing is missing.
    health.tip(tip(50, 0), clock.now_ms() - 900_000);
    clock.go(10_000_000);
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::Ready, true), "{}", report.reason);
    assert_eq!((report.lag_blocks, report.source_head), (Some(0), Some(Height(1_000))));
    assert!(report.reason.contains("last height"), "{}", report.reason);
    health.derived_halted("another raw store");
    assert_eq!(health.report().state, ReadyState::DerivedHalted);
    health.halted("the store can't be written");
    assert_eq!(health.report().state, ReadyState::Halted);
}

#[test]
fn limits_that_are_not_set_are_not_looked_at() {
    let (clock, health) =
        health(ReadinessLimits { max_lag_blocks: None, max_idle_ms: None, max_tip_age_ms: None });
    health.tip(tip(1, 0), 0);
    health.source_head(Height(1_000_000));
    clock.go(1_000_000_000);
    assert_eq!(health.report().state, ReadyState::Ready);
}

async fn fetch(address: std::net::SocketAddr, path: &str, host: &str) -> Reply {
    raw(address, format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn x01_readyz_says_503_with_the_reason_while_livez_stays_200() {
    let (clock, health) = health(limits());
    let health = Arc::new(health);
    let config = OpsConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        rpc_url: Some("http://127.0.0.1:8545".into()),
        more: Router::new().route("/v1/x", get(|| async { "more" })),
    };
    let server =
        serve_ops(config, health.clone(), Arc::new(|| "cairn_up 1\n".to_owned())).await.expect("a free port");
    let address = server.local_addr();
    let reply = fetch(address, "/readyz", "localhost").await;
    assert_eq!((reply.status, reply.json()["state"].as_str()), (503, Some("no_block_yet")));
    health.source_head(Height(7));
    health.tip(tip(7, 0), clock.now_ms());
    let reply = fetch(address, "/readyz", "localhost").await;
    assert_eq!((reply.status, reply.json()["ready"].as_bool()), (200, Some(true)));
    assert_eq!(reply.json()["tip"], 7);
    health.halted("the disk is full");
    let reply = fetch(address, "/readyz", "localhost").await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.json()["reason"], "ingest halted: the disk is full");
    assert_eq!(fetch(address, "/livez", "localhost").await.status, 200);
    let reply = fetch(address, "/metrics", "localhost").await;
    assert_eq!((reply.status, reply.body.as_slice()), (200, &b"cairn_up 1\n"[..]));
    let page = String::from_utf8(fetch(address, "/", "127.0.0.1").await.body).expect("text");
    assert!(
        page.contains("http://127.0.0.1:8545")
            && page.contains("/readyz")
            && page.contains("the disk is full")
    );
    assert_eq!(fetch(address, "/v1/x", "localhost").await.body, b"more");
    assert_eq!(fetch(address, "/nothing", "localhost").await.status, 404);
    for path in ["/", "/readyz", "/v1/x"] {
        assert_eq!(fetch(address, path, "evil.example").await.status, 403);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn a_watcher_tells_of_the_stores_head() {
    use support::made;
    let (clock, health) = health(ReadinessLimits { max_tip_age_ms: None, ..limits() });
    let health = Arc::new(health);
    let store = support::empty_store(1337, bytes::Bytes::new()).await;
    let (new_head, mut woken) = tokio::sync::watch::channel(0);
    let cancel = tokio_util::sync::CancellationToken::new();
    let watching =
        cairn_api::health::watch_store(made::reader(&store), health.clone(), new_head, 5, cancel.clone());
    let watching = tokio::spawn(watching);
    let blocks = made::chain(0, 3, BlockId([1; 32]), 0, |_| vec![]);
    support::append(&store, blocks, None).await;
    woken.changed().await.expect("a wake-up");
    assert_eq!((health.report().tip, health.report().state), (Some(Height(2)), ReadyState::Ready));
    clock.go(61_000);
    assert_eq!(health.report().state, ReadyState::Stale);
    // Replaced at the same height: movement.
    let common = made::at(&store, 1).await;
    made::roll_back(&store, common).await;
    support::append(&store, made::chain(2, 1, common.id, 1, |_| vec![]), None).await;
    while health.report().state != ReadyState::Ready {
        woken.changed().await.expect("a wake-up");
    }
    cancel.cancel();
    watching.await.expect("ended");
}
