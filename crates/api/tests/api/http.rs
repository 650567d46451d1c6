//! JSON-RPC over HTTP with a raw client: framing, batches, and what a stranger may do.

use crate::support;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cairn_api::{EthApi, RpcLimits, RpcServerConfig, conformance};
use cairn_core::BlockId;
use serde_json::{Value, json};
use support::http::{Ws, post, post_bytes, raw, read_reply, request, serve};
use support::made::{self, log};
use support::slow::SlowReader;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ROOT: BlockId = BlockId([0xee; 32]);

async fn ten_blocks(limits: RpcLimits) -> EthApi {
    let blocks = made::chain(0, 10, ROOT, 0, |_| vec![vec![log(1, &[1], 100)]]);
    support::api(&made::store(blocks, None).await, limits)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_suite_passes_over_http() {
    let Some(dir) = support::suite_dir() else { return };
    let (server, _wake) = serve(
        support::api(&support::suite_store(&dir).await, RpcLimits::default()),
        RpcServerConfig::default(),
    )
    .await;
    let address = server.local_addr();
    let cases = conformance::load(&dir).expect("the suite");
    let report = conformance::run(&cases, |request| async move {
        String::from_utf8(post(address, &request).await.body).map_err(|error| error.to_string())
    })
    .await;
    assert!(report.failed.is_empty() && report.passed.len() == 79, "{report}");
    // The trap of block 2: 21 MB in one answer, whole.
    let reply =
        post(address, &request(1, "eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x3"}]))).await;
    assert!(reply.body.len() > 20_000_000);
    assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()));
    assert!(reply.json()["result"].as_array().expect("logs").len() > 50);
    server.shutdown().await;
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let (server, _wake) = serve(ten_blocks(RpcLimits::default()).await, RpcServerConfig::default()).await;
    let mut stream = TcpStream::connect(server.local_addr()).await.expect("connect");
    for id in 0..20 {
        stream.write_all(&post_bytes(&request(id, "eth_blockNumber", json!([])), "")).await.expect("write");
        let reply = read_reply(&mut stream).await.expect("a response");
        assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
        assert_eq!(reply.json(), json!({"jsonrpc": "2.0", "id": id, "result": "0x9"}));
    }
    server.shutdown().await;
}

#[tokio::test]
async fn ids_come_back_as_they_were_written_and_notifications_get_no_answer() {
    let (server, _wake) = serve(ten_blocks(RpcLimits::default()).await, RpcServerConfig::default()).await;
    let address = server.local_addr();
    for id in ["1", "null", "\"a b\"", "-7", "1.50", "123456789012345678901234567890", "\"\\u0041\""] {
        let reply = post(address, &format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"net_version"}}"#)).await;
        assert_eq!(
            String::from_utf8_lossy(&reply.body),
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"1337"}}"#)
        );
    }
    let reply = post(address, r#"{"jsonrpc":"2.0","method":"net_version"}"#).await;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    let reply = post(
        address,
        r#"[{"jsonrpc":"2.0","method":"net_version"},{"jsonrpc":"2.0","method":"eth_chainId"}]"#,
    )
    .await;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    server.shutdown().await;
}

#[tokio::test]
async fn batches_are_answered_item_by_item() {
    let limits = RpcLimits { max_batch_items: 4, ..RpcLimits::default() };
    let (server, _wake) = serve(ten_blocks(limits).await, RpcServerConfig::default()).await;
    let address = server.local_addr();
    let body = format!(
        "[{}, {}, 7, {}]",
        request(1, "eth_blockNumber", json!([])),
        r#"{"jsonrpc":"2.0","method":"eth_chainId"}"#,
        request(3, "eth_nothing", json!([]))
    );
    let answers = post(address, &body).await.json();
    let answers = answers.as_array().expect("a list");
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[0], json!({"jsonrpc": "2.0", "id": 1, "result": "0x9"}));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert_eq!((&answers[2]["id"], &answers[2]["error"]["code"]), (&json!(3), &json!(-32601)));
    let over = format!("[{}]", vec![request(1, "eth_chainId", json!([])); 5].join(","));
    let answer = post(address, &over).await.json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert!(answer["error"]["message"].as_str().expect("text").contains("at most 4"));
    assert_eq!(post(address, "[]").await.json()["error"]["code"], -32600);
    server.shutdown().await;
}

#[tokio::test]
async fn a_batch_shares_one_response_limit() {
    let limits = RpcLimits { max_response_bytes: 2500, ..RpcLimits::default() };
    let (server, _wake) = serve(ten_blocks(limits).await, RpcServerConfig::default()).await;
    let receipts = |id| request(id, "eth_getBlockReceipts", json!(["0x1"]));
    let alone = post(server.local_addr(), &receipts(1)).await;
    assert!(alone.json()["result"].is_array() && alone.body.len() > 1250);
    let body = format!("[{},{},{}]", receipts(1), receipts(2), request(3, "eth_chainId", json!([])));
    let answers = post(server.local_addr(), &body).await.json();
    assert!(answers[0]["result"].is_array());
    assert_eq!(answers[1]["error"]["code"], -32003);
    assert_eq!(answers[2]["result"], "0x539");
    server.shutdown().await;
}

#[tokio::test]
async fn what_is_not_json_rpc_gets_a_clear_error() {
    let limits = RpcLimits { max_body_bytes: 2000, ..RpcLimits::default() };
    let (server, _wake) = serve(ten_blocks(limits).await, RpcServerConfig::default()).await;
    let address = server.local_addr();
    let deep = "[".repeat(900);
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("hello", -32700),
        ("\u{0}", -32700),
        (deep.as_str(), -32700),
        ("{}", -32600),
        ("null", -32600),
        (r#"{"jsonrpc":"2.0","id":[],"method":"eth_chainId"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":{}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":7}"#, -32602),
    ] {
        let reply = post(address, body).await;
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (200, &json!(code)), "{body:.40}");
    }
    // Too large: announced, or found out on the way.
    let reply = raw(address, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!(-32600)));
    let chunk = format!("{:x}\r\n{}\r\n", 1500, " ".repeat(1500));
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
    );
    assert_eq!(raw(address, chunked.as_bytes()).await.status, 413);
    // Other verbs and types.
    assert_eq!(raw(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.status, 405);
    assert_eq!(raw(address, b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.status, 405);
    for kind in ["Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n", ""] {
        let reply = raw(
            address,
            format!("POST / HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: 2\r\n\r\n{{}}").as_bytes(),
        )
        .await;
        assert_eq!(reply.status, 415, "{kind}");
    }
    // Compressed bodies.
    let body = request(1, "eth_chainId", json!([]));
    for coding in ["gzip", "deflate", "zstd", "br", "identity, gzip"] {
        let reply = raw(address, &post_bytes(&body, &format!("Content-Encoding: {coding}\r\n"))).await;
        let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert_eq!((reply.status, reply.header("accept-encoding")), (415, Some("identity")), "{coding}");
        assert!(message.contains(coding) && message.contains("without content-encoding"), "{message}");
    }
    for coding in ["identity", "Identity", ""] {
        let reply = raw(address, &post_bytes(&body, &format!("Content-Encoding: {coding}\r\n"))).await;
        assert_eq!(reply.json()["result"], "0x539", "{coding}");
    }
    let reply = raw(address, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: Application/JSON; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}").await;
    assert_eq!(reply.status, 200);
    server.shutdown().await;
}

#[tokio::test]
async fn slow_peers_are_cut_off() {
    let limits = RpcLimits { header_timeout_ms: 200, body_timeout_ms: 200, ..RpcLimits::default() };
    let (server, _wake) = serve(ten_blocks(limits).await, RpcServerConfig::default()).await;
    // A body that doesn't come.
    let reply = raw(server.local_addr(), b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (408, &json!(-32600)));
    // A head that doesn't come, and a connection that stays idle.
    for sent in [&b"POST / HTTP/1.1\r\nHost: loc"[..], b""] {
        let mut stream = TcpStream::connect(server.local_addr()).await.expect("connect");
        stream.write_all(sent).await.expect("write");
        let began = Instant::now();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok() && began.elapsed() < Duration::from_secs(5), "cut off");
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_takes_nothing_is_cut_off_and_its_memory_given_back() {
    // 30 MB of logs in one block; room for one such answer at a time.
    let blocks =
        made::chain(
            0,
            2,
            ROOT,
            0,
            |height| if height == 1 { vec![vec![log(1, &[1], 1 << 20); 15]] } else { vec![] },
        );
    let limits = RpcLimits {
        write_stall_timeout_ms: 500,
        responses_in_flight_bytes: 32 << 20,
        request_timeout_ms: 10_000,
        ..RpcLimits::default()
    };
    let api = support::api(&made::store(blocks, None).await, limits);
    let (server, _wake) = serve(api, RpcServerConfig::default()).await;
    let ask = request(1, "eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x1"}]));
    let mut stalled = TcpStream::connect(server.local_addr()).await.expect("connect");
    stalled.write_all(&post_bytes(&ask, "")).await.expect("write");
    tokio::time::sleep(Duration::from_millis(200)).await;
    // The next one waits for the memory of the first, and gets it when the first is cut off.
    let reply = post(server.local_addr(), &ask).await;
    assert!(reply.body.len() > 30_000_000);
    server.shutdown().await;
}

async fn slow(delay_ms: u64) -> Arc<SlowReader> {
    let store = made::store(made::chain(0, 3, ROOT, 0, |_| vec![]), None).await;
    SlowReader::new(Arc::new(store), Duration::from_millis(delay_ms))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_take_turns_and_each_item_of_a_batch_takes_one() {
    let reader = slow(20).await;
    let limits = RpcLimits { max_concurrent_requests: 3, max_heavy_requests: 1, ..RpcLimits::default() };
    let (server, _wake) = serve(EthApi::new(reader.clone(), limits), RpcServerConfig::default()).await;
    let address = server.local_addr();
    let light = request(1, "eth_blockNumber", json!([]));
    let batch = format!("[{}]", vec![light.clone(); 5].join(","));
    let mut asked = tokio::task::JoinSet::new();
    for body in [light.clone(), batch.clone(), light.clone(), batch, light] {
        asked.spawn(async move { post(address, &body).await.status });
    }
    while let Some(status) = asked.join_next().await {
        assert_eq!(status.expect("a task"), 200);
    }
    assert_eq!(reader.most.load(Ordering::SeqCst), 3);
    reader.most.store(0, Ordering::SeqCst);
    let heavy = request(1, "eth_getBlockByNumber", json!(["0x1", false]));
    for _ in 0..4 {
        let body = heavy.clone();
        asked.spawn(async move { post(address, &body).await.status });
    }
    while let Some(status) = asked.join_next().await {
        assert_eq!(status.expect("a task"), 200);
    }
    assert_eq!(reader.most.load(Ordering::SeqCst), 1);
    server.shutdown().await;
}

#[tokio::test]
async fn a_request_over_the_time_limit_is_an_error_and_a_batch_has_its_own() {
    let limits = RpcLimits { request_timeout_ms: 1_500, batch_timeout_ms: 1_250, ..RpcLimits::default() };
    let (server, _wake) =
        serve(EthApi::new(slow(500).await, limits.clone()), RpcServerConfig::default()).await;
    let ask = |id| request(id, "eth_blockNumber", json!([]));
    let answers =
        post(server.local_addr(), &format!("[{},{},{},{}]", ask(1), ask(2), ask(3), ask(4))).await.json();
    let codes: Vec<Value> =
        answers.as_array().expect("a list").iter().map(|answer| answer["error"]["code"].clone()).collect();
    assert_eq!(codes, [Value::Null, Value::Null, json!(-32002), json!(-32002)]);
    server.shutdown().await;
    let (server, _wake) = serve(EthApi::new(slow(20_000).await, limits), RpcServerConfig::default()).await;
    let answer = post(server.local_addr(), &ask(1)).await.json();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32002)));
    server.shutdown().await;
}

#[tokio::test]
async fn connections_over_the_limit_wait() {
    let limits = RpcLimits { max_connections: 1, header_timeout_ms: 500, ..RpcLimits::default() };
    let (server, _wake) = serve(ten_blocks(limits).await, RpcServerConfig::default()).await;
    let mut first = TcpStream::connect(server.local_addr()).await.expect("connect");
    first.write_all(&post_bytes(&request(1, "eth_chainId", json!([])), "")).await.expect("write");
    assert_eq!(read_reply(&mut first).await.expect("a response").status, 200);
    let address = server.local_addr();
    let mut second = tokio::spawn(async move { post(address, &request(2, "eth_chainId", json!([]))).await });
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut second).await.is_err(), "no place yet");
    drop(first);
    assert_eq!(second.await.expect("a task").json()["id"], 2);
    server.shutdown().await;
}

#[tokio::test]
async fn browsers_of_other_origins_and_rebound_names_are_refused() {
    let (server, _wake) = serve(ten_blocks(RpcLimits::default()).await, RpcServerConfig::default()).await;
    let address = server.local_addr();
    let body = request(1, "eth_chainId", json!([]));
    let with_host = |host: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    assert_eq!(raw(address, with_host("evil.example").as_bytes()).await.status, 403);
    assert_eq!(raw(address, with_host("localhost:8545").as_bytes()).await.status, 200);
    // Without permission an answer carries no CORS headers, so that the page can't read it.
    let reply = raw(address, &post_bytes(&body, "Origin: https://app.example\r\n")).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, None));
    let upgrade = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: https://app.example\r\n\r\n";
    assert_eq!(raw(address, upgrade.as_bytes()).await.status, 403);
    // A page of this very server is no stranger.
    let own = upgrade.replace("https://app.example", "http://localhost");
    assert_eq!(raw(address, own.as_bytes()).await.status, 101);
    server.shutdown().await;

    let config =
        RpcServerConfig { allowed_origins: vec!["https://app.example".into()], ..RpcServerConfig::default() };
    let (server, _wake) = serve(ten_blocks(RpcLimits::default()).await, config).await;
    let reply = raw(server.local_addr(), &post_bytes(&body, "Origin: https://app.example\r\n")).await;
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://app.example"));
    let preflight = b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n\r\n";
    let reply = raw(server.local_addr(), preflight).await;
    assert_eq!((reply.status, reply.header("access-control-allow-headers")), (204, Some("content-type")));
    let reply = raw(server.local_addr(), upgrade.as_bytes()).await;
    assert_eq!(
        (reply.status, reply.header("sec-websocket-accept")),
        (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
    );
    server.shutdown().await;
}

#[tokio::test]
async fn shutdown_finishes_what_is_under_way_and_ends_the_rest() {
    let (server, _wake) =
        serve(EthApi::new(slow(300).await, RpcLimits::default()), RpcServerConfig::default()).await;
    let address = server.local_addr();
    let under_way =
        tokio::spawn(async move { post(address, &request(1, "eth_blockNumber", json!([]))).await });
    let _idle = TcpStream::connect(address).await.expect("connect");
    let mut ws = Ws::connect(address).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    server.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(under_way.await.expect("a task").json()["result"], "0x2");
    assert_eq!(ws.next().await.expect_err("closed").map(|frame| u16::from(frame.code)), Some(1001));
    assert!(TcpStream::connect(address).await.is_err());
}

/// POSTs as HTTP/1.0, so that the body ends with the connection, and asks for an encoding.
async fn post_encoded(address: std::net::SocketAddr, body: &str, encoding: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    let head = format!(
        "POST / HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept-Encoding: {encoding}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("write");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.expect("read");
    let end = got.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    (String::from_utf8_lossy(&got[..end]).to_lowercase(), got.split_off(end))
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_take_it() {
    let blocks = made::chain(0, 2, ROOT, 0, |_| vec![vec![log(1, &[1], 200_000)]]);
    let api = support::api(&made::store(blocks, None).await, RpcLimits::default());
    let (server, _wake) = serve(api, RpcServerConfig::default()).await;
    let address = server.local_addr();
    let ask = request(1, "eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x1"}]));
    let plain = post(address, &ask).await.body;
    let (head, body) = post_encoded(address, &ask, "gzip").await;
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"), "{head}");
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut unpacked).expect("gzip");
    assert!(body.len() < plain.len() / 10 && unpacked == plain, "{} of {}", body.len(), plain.len());
    let (head, body) = post_encoded(address, &ask, "zstd").await;
    assert!(head.contains("content-encoding: zstd") && body.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]), "{head}");
    // What is small goes out as it is.
    let (head, _) = post_encoded(address, &request(1, "eth_blockNumber", json!([])), "gzip, zstd").await;
    assert!(!head.contains("content-encoding") && head.contains("content-length"), "{head}");
    server.shutdown().await;
}
