//! Health and metrics.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use cairn_api::health::{HealthState, Readiness, ReadinessLimits, ReadyState, Waiting};
use cairn_api::{ConnectionLimits, OpsConfig, ServerHandle, serve_ops, serve_rest};
use cairn_core::{BlockId, BlockRef, Clock, Height};
use support::http::{Reply, raw, read_reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

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

    // Blocks come, and they are old.
    health.tip(tip(104, 0), clock.now_ms() - 400_000);
    assert_eq!(state(), ReadyState::LaggingSeconds);
    health.tip(tip(104, 1), clock.now_ms());

    health.derived_halted("another raw store");
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::DerivedHalted, false));
    assert_eq!(report.reason, "derived work halted: another raw store");
    health.halted("a reorg of 1200 blocks is deeper than MAX_REORG_DEPTH 1000");
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::Halted, false));
    assert!(report.reason.contains("1200 blocks"));
}

#[test]
fn a_node_that_is_behind_is_no_stalled_chain() {
    let (clock, health) = health(limits());
    health.source_head(Height(1_000));
    health.tip(tip(1_000, 0), clock.now_ms());
    // It was put back, answers all the time, and is synchronised again, still below our tip.
    for head in 0..10 {
        clock.go(10_000);
        health.source_head(Height(400 + head));
    }
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::SourceBehind, false));
    assert!(report.reason.contains("409") && report.reason.contains("1000"), "{}", report.reason);
    health.source_head(Height(1_000));
    assert_eq!(health.report().state, ReadyState::ChainStalled);
}

#[test]
fn tables_that_are_in_a_bad_way_are_not_ready() {
    let (clock, health) = health(limits());
    health.source_head(Height(7));
    health.tip(tip(7, 0), clock.now_ms());
    health.tables(Some((ReadyState::TablesFrozen, "token_worker has stood".into())));
    let report = health.report();
    assert_eq!((report.state, report.ready), (ReadyState::TablesFrozen, false));
    assert_eq!(report.reason, "token_worker has stood");
    health.tables(None);
    assert_eq!(health.report().state, ReadyState::Ready);
}

#[test]
fn what_ingest_waits_for_is_said_at_once_where_it_lasts_and_else_beside_a_tip_that_stands_still() {
    let (clock, health) = health(limits());
    let waits = |state, reason: &str| health.waits_for(Some(Waiting { state, reason: reason.into() }));
    waits(None, "the node timed out");
    let report = health.report();
    assert_eq!(report.state, ReadyState::NoBlockYet);
    assert!(report.reason.contains("the node timed out"), "{}", report.reason);
    waits(Some(ReadyState::SourceRefused), "HTTP 401");
    assert_eq!(health.report().state, ReadyState::SourceRefused);

    health.source_head(Height(100));
    health.tip(tip(100, 0), clock.now_ms());
    for state in [ReadyState::SourceRefused, ReadyState::BlockRefused, ReadyState::HeadQuorum] {
        waits(Some(state), "block 101");
        let report = health.report();
        assert_eq!((report.ready, report.state, report.reason.as_str()), (false, state, "block 101"));
    }
    waits(None, "the node timed out");
    assert!(health.report().ready, "it may pass before anybody misses a block");
    clock.go(61_000);
    health.source_head(Height(101));
    let report = health.report();
    assert_eq!(report.state, ReadyState::Stale);
    assert!(report.reason.ends_with("; waiting: the node timed out"), "{}", report.reason);
    health.tip(tip(101, 0), clock.now_ms());
    health.waits_for(None);
    assert_eq!(health.report().reason, "fresh");
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
        ..OpsConfig::default()
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
    let (_hinting, hint) = tokio::sync::watch::channel(());
    let watching = cairn_api::health::watch_store(
        made::reader(&store),
        health.clone(),
        new_head,
        5,
        hint,
        cancel.clone(),
    );
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

async fn ops(connections: ConnectionLimits) -> ServerHandle {
    let (_clock, health) = health(limits());
    let config = OpsConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        more: Router::new().route("/v1/x", get(|| async { "more" })),
        connections,
        ..OpsConfig::default()
    };
    serve_ops(config, Arc::new(health), Arc::new(|| "cairn_up 1\n".to_owned())).await.expect("a free port")
}

async fn idle(address: std::net::SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut idle = Vec::new();
    for _ in 0..count {
        idle.push(TcpStream::connect(address).await.expect("connect"));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    idle
}

#[tokio::test]
async fn idle_sockets_blind_nobody() {
    let few = ConnectionLimits {
        max_connections: 20,
        max_connections_per_address: 1_000,
        first_byte_timeout_ms: 1_500,
        ..ConnectionLimits::default()
    };
    let server = ops(few).await;
    let address = server.local_addr();
    let mut idle = idle(address, 24).await;
    let began = Instant::now();
    assert_eq!(fetch(address, "/livez", "localhost").await.status, 200);
    assert_eq!(fetch(address, "/metrics", "localhost").await.status, 200);
    // The reserved places are for health alone.
    let reply = fetch(address, "/v1/x", "localhost").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // Who says nothing is closed soon, and all is served again.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(fetch(address, "/v1/x", "localhost").await.status, 200);
    for stream in &mut idle {
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "closed");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn an_address_has_no_more_than_its_share_of_connections() {
    let few = ConnectionLimits {
        max_connections: 20,
        max_connections_per_address: 5,
        reserved_connections: 2,
        ..ConnectionLimits::default()
    };
    let server = ops(few).await;
    let address = server.local_addr();
    let _idle = idle(address, 7).await;
    // Its share is used up, and so are the reserved places.
    let reply = send(address, "GET /v1/x", "Host: localhost\r\n").await;
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    let from: std::net::SocketAddr = ([127, 0, 0, 2], 0).into();
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(from).expect("bound");
    let mut other = socket.connect(address).await.expect("connect");
    other.write_all(b"GET /v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("write");
    assert_eq!(read_reply(&mut other).await.expect("a response").status, 200);
    server.shutdown().await;
}

async fn send(address: std::net::SocketAddr, line: &str, headers: &str) -> Reply {
    raw(address, format!("{line} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await
}

#[tokio::test]
async fn rest_behind_a_proxy_and_for_pages_of_other_origins() {
    let (_clock, health) = health(limits());
    let config = OpsConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        more: Router::new().route("/v1/x", get(|| async { "more" })),
        allowed_hosts: vec!["api.example".into()],
        allowed_origins: vec!["https://app.example".into()],
        ..OpsConfig::default()
    };
    let server = serve_ops(config, Arc::new(health), Arc::new(|| "cairn_up 1\n".to_owned()))
        .await
        .expect("a free port");
    let address = server.local_addr();
    assert_eq!(send(address, "GET /v1/x", "Host: api.example\r\n").await.status, 200);
    assert_eq!(send(address, "GET /v1/x", "Host: evil.example\r\n").await.status, 403);
    let page = "Host: api.example\r\nOrigin: https://app.example\r\n";
    let reply = send(address, "GET /v1/x", page).await;
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://app.example"));
    let reply =
        send(address, "OPTIONS /v1/x", &format!("{page}Access-Control-Request-Method: GET\r\n")).await;
    assert_eq!((reply.status, reply.header("access-control-allow-methods")), (204, Some("GET, HEAD")));
    assert!(reply.header("access-control-allow-headers").expect("a header").contains("last-event-id"));
    // Other pages may not read, and none may read health and metrics.
    let stranger = "Host: api.example\r\nOrigin: https://evil.example\r\n";
    for (line, headers) in [("GET /v1/x", stranger), ("GET /metrics", page), ("GET /readyz", page)] {
        let reply = send(address, line, headers).await;
        assert_eq!(reply.header("access-control-allow-origin"), None, "{line}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn rest_on_an_address_of_its_own_shows_neither_health_nor_metrics() {
    let config = OpsConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        more: Router::new().route("/v1/x", get(|| async { "more" })),
        ..OpsConfig::default()
    };
    let server = serve_rest(config).await.expect("a free port");
    let address = server.local_addr();
    assert_eq!(fetch(address, "/v1/x", "localhost").await.status, 200);
    for path in ["/", "/livez", "/readyz", "/metrics"] {
        assert_eq!(fetch(address, path, "localhost").await.status, 404, "{path}");
    }
    server.shutdown().await;
}
