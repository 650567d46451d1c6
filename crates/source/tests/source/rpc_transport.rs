//! The way to an endpoint: sizes, times, outages, secrets.

use crate::support;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cairn_core::{ChainId, Height, HeightRange};
use cairn_source::evm::rpc::{RpcConfig, RpcSource};
use cairn_source::{ChainSource, SourceError};
use serde_json::json;
use support::{CallOut, HttpOut, MockNode, chain, config, source};

fn one(height: u64) -> HeightRange {
    HeightRange::one(Height(height))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn answers_have_a_largest_size_compressed_or_not() {
    let node = MockNode::start(chain(1), 10).await;
    let mut config = config(&[&node]);
    config.limits.max_response_bytes = 1 << 20;
    config.limits.free_response_bytes = 64 << 10;
    let source = RpcSource::connect(config).await.unwrap();
    // 64 MiB of blanks in 64 KiB.
    let bomb = gzip(&vec![b' '; 64 << 20]);
    node.on_http(move |_| Some(HttpOut::Body(vec![("content-encoding", "gzip".into())], bomb.clone())));
    let error = source.blocks(one(1)).await.unwrap_err();
    assert!(
        matches!(error.cause(), SourceError::TooWide { message, .. } if message.contains("1048576")),
        "{error}"
    );
    let is_too_wide = |error: SourceError| matches!(error.cause(), SourceError::TooWide { .. });
    node.on_http(|_| Some(HttpOut::Body(vec![], vec![b' '; 2 << 20])));
    assert!(is_too_wide(source.blocks(one(1)).await.unwrap_err()));
    // Without a length to be warned by.
    node.on_http(|_| Some(HttpOut::Drip(vec![vec![b' '; 128 << 10]; 20], Duration::ZERO)));
    assert!(is_too_wide(source.blocks(one(1)).await.unwrap_err()));
    // An honest gzip answer passes.
    let block = node.json(1).0;
    node.on_http(move |calls| {
        let wanted = calls[0].method == "eth_getBlockByNumber";
        let body = json!({"id": calls[0].id, "result": block}).to_string();
        wanted.then(|| HttpOut::Body(vec![("content-encoding", "gzip".into())], gzip(body.as_bytes())))
    });
    assert_eq!(source.blocks(one(1)).await.unwrap(), [node.block(1)]);
}

#[tokio::test]
async fn large_answers_pass_one_at_a_time() {
    let node = MockNode::start(chain(2), 20).await;
    let mut config = config(&[&node]);
    config.limits.free_response_bytes = 1 << 10;
    let source = Arc::new(RpcSource::connect(config).await.unwrap());
    let calls = (1..=12).map(|height| {
        let source = source.clone();
        async move { source.blocks(one(height)).await }
    });
    for (blocks, height) in futures::future::join_all(calls).await.into_iter().zip(1..) {
        assert_eq!(blocks.unwrap(), [node.block(height)]);
    }
}

#[tokio::test]
async fn a_60_mib_block_passes() {
    // One transaction's input of 60 MiB, as a node would answer it: 120 MiB of JSON.
    let node = MockNode::start(chain(3), 5).await;
    let mut config = config(&[&node]);
    config.profile = cairn_evm::ChainProfile::relaxing(cairn_evm::Checks::TRANSACTIONS_ROOT);
    config.limits.request_timeout_ms = 60_000;
    config.limits.idle_timeout_ms = 20_000;
    let source = RpcSource::connect(config).await.unwrap();
    let mut block = node.json(1).0;
    block["transactions"][0]["input"] = json!(format!("0x{}", "5a".repeat(60 << 20)));
    let body = format!(r#"{{"id":1,"result":{block}}}"#).into_bytes();
    node.on_http(move |calls| {
        (calls[0].method == "eth_getBlockByNumber").then(|| HttpOut::Body(vec![], body.clone()))
    });
    let blocks = source.blocks(one(1)).await.unwrap();
    assert!(blocks[0].body.len() + blocks[0].extras.len() > 60 << 20);
}

#[tokio::test]
async fn slow_answers_are_given_up_in_time() {
    let node = MockNode::start(chain(4), 10).await;
    let mut config = config(&[&node]);
    config.limits.attempts_per_endpoint = 1;
    config.limits.idle_timeout_ms = 150;
    config.limits.request_timeout_ms = 600;
    let source = RpcSource::connect(config).await.unwrap();
    for (make, least_ms) in [
        (Box::new(|| HttpOut::Hang(Duration::from_secs(30))) as Box<dyn Fn() -> HttpOut + Send>, 500),
        // Pieces that stop.
        (Box::new(|| HttpOut::Drip(vec![vec![b' '], vec![b' ']], Duration::from_millis(400))), 100),
        // Pieces that come for ever, each in time.
        (Box::new(|| HttpOut::Drip(vec![vec![b' ']; 100], Duration::from_millis(50))), 500),
    ] {
        node.on_http(move |_| Some(make()));
        let begun = Instant::now();
        let error = source.blocks(one(1)).await.unwrap_err();
        assert!(matches!(error.cause(), SourceError::Transient { .. }), "{error}");
        // The whole block, and then its header.
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(least_ms) && took < Duration::from_millis(3_000), "{took:?}");
    }
}

#[tokio::test]
async fn connections_that_died_silently_are_given_up_once_the_node_answers_again() {
    let node = MockNode::start(chain(6), 10).await;
    let mut config = config(&[&node]);
    config.limits.request_timeout_ms = 60_000;
    let source = RpcSource::connect(config).await.unwrap();
    let begun = Instant::now();
    node.on_http(move |_| {
        (begun.elapsed() < Duration::from_millis(1_200)).then(|| HttpOut::Hang(Duration::from_secs(60)))
    });
    let blocks = tokio::time::timeout(Duration::from_secs(10), source.blocks(one(1))).await;
    assert_eq!(blocks.expect("in time").unwrap(), [node.block(1)]);
}

#[tokio::test]
async fn a_node_that_works_on_an_answer_for_long_is_waited_for() {
    let node = MockNode::start(chain(7), 10).await;
    let mut config = config(&[&node]);
    config.limits.attempts_per_endpoint = 1;
    config.limits.request_timeout_ms = 1_000;
    let source = RpcSource::connect(config).await.unwrap();
    node.on_http(move |calls| {
        (calls[0].method != "eth_chainId").then(|| HttpOut::Hang(Duration::from_secs(60)))
    });
    let error = source.blocks(one(1)).await.unwrap_err();
    assert!(error.to_string().contains("no whole answer within 1000 ms"), "{error}");
}

#[tokio::test]
async fn e15_retry_after_is_honoured_by_all_workers() {
    let node = MockNode::start(chain(5), 20).await;
    let mut config = config(&[&node]);
    config.limits.initial_in_flight = 8;
    let source = Arc::new(RpcSource::connect(config).await.unwrap());
    node.take_seen();
    // "Retry-After: 1" for two and a half seconds.
    let begun = Instant::now();
    node.on_http(move |_| {
        let down = begun.elapsed() < Duration::from_millis(2_500);
        down.then(|| HttpOut::Status(429, vec![("retry-after", "1".into())], "slow down".into()))
    });
    let workers = (1..=8).map(|height| {
        let source = source.clone();
        tokio::spawn(async move { source.blocks(one(height)).await })
    });
    let results = futures::future::join_all(workers).await;
    let seen = node.take_seen();
    let during: Vec<_> = seen.iter().filter(|seen| seen.at < begun + Duration::from_millis(2_500)).collect();
    assert!(during.len() <= 8 + 3, "{} requests while the node was down", during.len());
    let gaps =
        during.windows(2).map(|pair| pair[1].at - pair[0].at).filter(|gap| *gap > Duration::from_millis(500));
    assert!(gaps.clone().all(|gap| gap >= Duration::from_millis(1_000)), "{:?}", gaps.collect::<Vec<_>>());
    for result in results {
        // Eight tries met one outage; whoever ran out of tries says so, and can come again.
        match result.unwrap() {
            Ok(blocks) => assert_eq!(blocks.len(), 1),
            Err(error) => assert!(matches!(error.cause(), SourceError::RateLimited { .. }), "{error}"),
        }
    }
    // Back after the outage: not all in one moment.
    let after: Vec<_> = seen.iter().filter(|seen| seen.at >= begun + Duration::from_millis(2_500)).collect();
    assert!(after.len() < 2 || after[1].at - after[0].at >= Duration::from_micros(100));
    assert_eq!(source.blocks(one(9)).await.unwrap(), [node.block(9)]);
}

#[tokio::test]
async fn e15_a_retry_after_date_is_honoured_and_capped() {
    let node = MockNode::start(chain(5), 20).await;
    let mut config = config(&[&node]);
    config.limits.attempts_per_endpoint = 1;
    config.limits.retry_after_max_ms = 5_000;
    config.limits.max_wait_ms = 10;
    let source = RpcSource::connect(config).await.unwrap();
    for (date, expected_ms) in
        [("Wed, 21 Oct 2015 07:28:03 GMT", 3_000), ("Wed, 21 Oct 2099 07:28:03 GMT", 5_000)]
    {
        let headers =
            vec![("retry-after", date.to_string()), ("date", "Wed, 21 Oct 2015 07:28:00 GMT".to_string())];
        node.on_http(move |_| Some(HttpOut::Status(503, headers.clone(), String::new())));
        let fresh = {
            let mut config = support::config(&[&node]);
            config.limits.attempts_per_endpoint = 1;
            config.limits.retry_after_max_ms = 5_000;
            RpcSource::connect(config).await.unwrap_err()
        };
        match fresh {
            SourceError::RateLimited { retry_after_ms, .. } => assert_eq!(retry_after_ms, Some(expected_ms)),
            other => panic!("{other}"),
        }
    }
    // While it pauses nothing is sent.
    assert!(source.blocks(one(1)).await.is_err());
    node.take_seen();
    let error = source.blocks(one(1)).await.unwrap_err();
    assert!(
        matches!(error.cause(), SourceError::RateLimited { retry_after_ms: Some(ms), .. } if *ms > 1_000),
        "{error}"
    );
    assert!(node.take_seen().is_empty());
    assert!(source.bound_by().contains("paused"), "{}", source.bound_by());
}

#[tokio::test]
async fn an_outage_of_one_endpoint_is_met_by_another() {
    let (first, second) = (MockNode::start(chain(6), 20).await, MockNode::start(chain(6), 20).await);
    let source = source(&[&first, &second]).await;
    source.heads().await.unwrap();
    for status in [429_u16, 500, 503, 401, 404, 307] {
        first.on_http(move |_| {
            Some(HttpOut::Status(status, vec![("location", "http://127.0.0.1:1/".into())], "no".into()))
        });
        second.take_seen();
        for height in 1..4 {
            assert_eq!(source.blocks(one(height)).await.unwrap(), [second.block(height)]);
        }
        assert!(!second.take_seen().is_empty());
    }
    first.take_seen();
    for height in 1..10 {
        source.blocks(one(height)).await.unwrap();
    }
    assert!(first.take_seen().len() < 6, "its breaker is open");
    // Back in health, the preferred one serves again.
    first.well();
    tokio::time::sleep(Duration::from_millis(300)).await;
    source.heads().await.unwrap();
    second.take_seen();
    source.blocks(one(3)).await.unwrap();
    assert!(second.take_seen().is_empty());
}

#[tokio::test]
async fn a_redirect_takes_no_header_to_another_host() {
    let (first, other) = (MockNode::start(chain(6), 20).await, MockNode::start(chain(6), 20).await);
    let mut config = config(&[&first]);
    config.headers = vec![("authorization".into(), "Bearer t0ken-in-header".into())];
    let source = RpcSource::connect(config).await.unwrap();
    let location = other.url.to_string();
    for status in [301_u16, 302, 303, 307, 308] {
        let location = location.clone();
        first
            .on_http(move |_| Some(HttpOut::Status(status, vec![("location", location.clone())], "".into())));
        let error = source.blocks(one(1)).await.unwrap_err();
        assert!(error.kind().is_retryable(), "{status}: {error}");
    }
    assert!(other.take_seen().is_empty());
}

#[tokio::test]
async fn a_refused_block_makes_others_go_first() {
    let (first, second) = (MockNode::start(chain(6), 20).await, MockNode::start(chain(6), 20).await);
    let source = source(&[&first, &second]).await;
    source.heads().await.unwrap();
    second.take_seen();
    source.blocks(one(3)).await.unwrap();
    assert!(second.take_seen().is_empty());
    source.distrust(Height(3));
    first.take_seen();
    source.blocks(one(3)).await.unwrap();
    assert!(first.take_seen().is_empty() && !second.take_seen().is_empty());
}

#[tokio::test]
async fn all_endpoints_have_to_serve_one_chain() {
    let (one, other) = (MockNode::start(chain(7), 5).await, MockNode::start(chain(7), 5).await);
    other.state().chain_id = 5;
    let error = RpcSource::connect(config(&[&one, &other])).await.unwrap_err();
    assert!(
        matches!(error, SourceError::WrongChain { found: ChainId(5), expected: ChainId(1_337), .. }),
        "{error}"
    );
    let mut config = config(&[&one]);
    config.expected_chain = Some(ChainId(10));
    let error = RpcSource::connect(config).await.unwrap_err();
    assert!(matches!(error, SourceError::WrongChain { expected: ChainId(10), .. }), "{error}");
}

#[tokio::test]
async fn an_endpoint_that_was_away_is_asked_for_its_chain_before_it_is_used() {
    let (one, other) = (MockNode::start(chain(7), 5).await, MockNode::start(chain(7), 9).await);
    other.on_http(|_| Some(HttpOut::Status(500, vec![], String::new())));
    let source = source(&[&one, &other]).await;
    other.well();
    other.state().chain_id = 5;
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(5), "not the other chain's 9");
    one.on_http(|_| Some(HttpOut::Status(500, vec![], String::new())));
    assert!(source.blocks(HeightRange::one(Height(1))).await.is_err());
    assert!(other.take_calls("eth_getBlockByNumber").is_empty());
}

#[tokio::test]
async fn secrets_stay_out_of_errors_and_debug_forms() {
    let node = MockNode::start(chain(8), 5).await;
    let mut url = node.url.clone();
    url.set_username("us3rname").unwrap();
    url.set_password(Some("pa55word")).unwrap();
    url.set_path("/v2/k3y-in-the-path");
    url.set_query(Some("apikey=k3y-in-query"));
    let mut config = RpcConfig::new(vec![url]);
    config.limits = support::quick();
    config.limits.attempts_per_endpoint = 1;
    config.headers = vec![("x-api-key".into(), "Bearer t0ken-in-header".into())];
    let secrets = ["us3rname", "pa55word", "k3y-in-the-path", "k3y-in-query", "t0ken-in-header"];
    let clean = |text: String| assert!(secrets.iter().all(|secret| !text.contains(secret)), "{text}");
    clean(format!("{config:?}"));
    let source = RpcSource::connect(config.clone()).await.unwrap();
    let seen = node.take_seen();
    assert_eq!(seen[0].headers["x-api-key"], "Bearer t0ken-in-header");
    assert!(seen[0].headers["authorization"].to_str().unwrap().starts_with("Basic "));
    clean(format!("{source:?} {}", source.bound_by()));
    assert!(source.bound_by().contains("http://127.0.0.1:"), "{}", source.bound_by());
    let echo = secrets.join(" / ");
    let (status_echo, call_echo) = (echo.clone(), Box::leak(echo.into_boxed_str()));
    node.on_http(move |_| Some(HttpOut::Status(400, vec![], status_echo.clone())));
    clean(source.blocks(one(1)).await.unwrap_err().to_string());
    node.well();
    let call_echo: &'static str = call_echo;
    node.on_call(move |_| Some(CallOut::Error(-32602, call_echo)));
    clean(source.blocks(one(1)).await.unwrap_err().to_string());
    drop(node);
    tokio::time::sleep(Duration::from_millis(50)).await;
    clean(source.blocks(one(1)).await.unwrap_err().to_string());
    let mut bad = config.clone();
    bad.headers = vec![("x-api-key".into(), "t0ken-in-header\n".into())];
    clean(RpcSource::connect(bad).await.unwrap_err().to_string());
    let mut bad = config;
    bad.endpoints = vec!["ftp://us3rname:pa55word@node/k3y-in-the-path".parse().unwrap()];
    clean(RpcSource::connect(bad).await.unwrap_err().to_string());
}

#[tokio::test]
async fn an_https_endpoint_can_be_set_up() {
    // Nothing listens: what matters is that TLS is there and the failure is one of the network.
    let mut config = RpcConfig::new(vec!["https://127.0.0.1:1/k3y-in-the-path".parse().unwrap()]);
    config.limits = support::quick();
    config.limits.attempts_per_endpoint = 1;
    match RpcSource::connect(config).await {
        Err(SourceError::Transient { endpoint, .. }) => assert_eq!(endpoint, "https://127.0.0.1:1/…"),
        // A machine without root certificates says so.
        Err(SourceError::Invalid(message)) => assert!(message.contains("root certificates"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn concurrency_grows_with_demand_and_never_over_the_limit() {
    let node = MockNode::start(chain(9), 400).await;
    let mut config = config(&[&node]);
    config.limits.max_in_flight = 6;
    config.limits.initial_in_flight = 1;
    config.limits.max_batch_items = 1;
    let source = Arc::new(RpcSource::connect(config).await.unwrap());
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let calls = (1..=200).map(|height| {
        let (source, running, most) = (source.clone(), running.clone(), most.clone());
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let blocks = source.blocks(one(height)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            blocks
        }
    });
    for blocks in futures::future::join_all(calls).await {
        assert_eq!(blocks.unwrap().len(), 1);
    }
    assert!(source.bound_by().contains("of 6"), "grown to its maximum: {}", source.bound_by());
}
