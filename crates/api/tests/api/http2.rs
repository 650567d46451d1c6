//! HTTP/2 by a client that begins with it: the same answers, the same limits.

use crate::support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use cairn_api::{RpcLimits, RpcServerConfig, ServerHandle};
use cairn_core::BlockId;
use http_body_util::BodyExt;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use support::http::{PATIENCE, request, serve};
use support::made::{self, log};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Block 1 has logs of 4 MiB.
async fn server(limits: RpcLimits) -> ServerHandle {
    let logs = |height| if height == 1 { vec![vec![log(1, &[1], 1 << 20); 2]] } else { vec![] };
    let store = made::store(made::chain(0, 10, BlockId([0xee; 32]), 0, logs), None).await;
    serve(support::api(&store, limits), RpcServerConfig::default()).await.0
}

/// A connection, and what ends when it does.
async fn connect(address: SocketAddr) -> (SendRequest<Body>, tokio::task::JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.expect("connect");
    // Small, so that an answer that nobody reads waits at the server.
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(64 << 10)
        .handshake(TokioIo::new(stream))
        .await
        .expect("a handshake");
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

fn ask(address: SocketAddr, host: &str, id: u64, method: &str, params: Value) -> Request<Body> {
    Request::post(format!("http://{host}:{}/", address.port()))
        .header("content-type", "application/json")
        .body(Body::from(request(id, method, params)))
        .expect("a request")
}

fn logs() -> Value {
    json!([{"fromBlock": "0x1", "toBlock": "0x1"}])
}

#[tokio::test]
async fn one_connection_answers_many_requests_at_once() {
    let server = server(RpcLimits::default()).await;
    let address = server.local_addr();
    let (sender, _connection) = connect(address).await;
    let mut asked = JoinSet::new();
    for id in 0..100 {
        let mut sender = sender.clone();
        asked.spawn(async move {
            sender.ready().await.expect("a stream");
            let (method, params) =
                if id % 25 == 0 { ("eth_getLogs", logs()) } else { ("eth_blockNumber", json!([])) };
            let reply = sender.send_request(ask(address, "127.0.0.1", id, method, params)).await;
            let (head, body) = reply.expect("an answer").into_parts();
            assert_eq!(head.status, StatusCode::OK);
            let body = body.collect().await.expect("a whole answer").to_bytes();
            let answer: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(answer["id"], id);
            match method {
                "eth_getLogs" => assert_eq!(answer["result"].as_array().map(Vec::len), Some(2)),
                _ => assert_eq!(answer["result"], "0x9"),
            }
        });
    }
    asked.join_all().await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_name_that_was_rebound_is_refused() {
    let server = server(RpcLimits::default()).await;
    let address = server.local_addr();
    let (mut sender, _connection) = connect(address).await;
    let reply = sender.send_request(ask(address, "evil.example", 1, "eth_blockNumber", json!([]))).await;
    assert_eq!(reply.expect("an answer").status(), StatusCode::FORBIDDEN);
    server.shutdown().await;
}

#[tokio::test]
async fn idle_and_stalled_connections_are_closed() {
    let limits = RpcLimits { header_timeout_ms: 300, response_timeout_ms: 1_000, ..RpcLimits::default() };
    let server = server(limits).await;
    let address = server.local_addr();
    let closed_within = async |what: &str, limit_ms: u64, end: &mut (dyn Future<Output = ()> + Unpin)| {
        let began = Instant::now();
        tokio::time::timeout(PATIENCE, end).await.unwrap_or_else(|_| panic!("{what} stays open"));
        assert!(began.elapsed() < Duration::from_millis(limit_ms), "{what}: {:?}", began.elapsed());
    };

    let (mut sender, mut connection) = connect(address).await;
    let reply = sender.send_request(ask(address, "127.0.0.1", 1, "eth_blockNumber", json!([]))).await;
    reply.expect("an answer").into_body().collect().await.expect("a whole answer");
    closed_within("an idle one", 3_000, &mut Box::pin(async { drop((&mut connection).await) })).await;

    // Half of the words that HTTP/2 begins with.
    let mut half = TcpStream::connect(address).await.expect("connect");
    half.write_all(b"PRI * HTTP/2").await.expect("write");
    let read = async { drop(half.read(&mut [0]).await) };
    closed_within("half a preface", 3_000, &mut Box::pin(read)).await;

    // A peer that says nothing after its first words, and confirms nothing.
    let mut silent = TcpStream::connect(address).await.expect("connect");
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("write");
    let read = async { while silent.read(&mut [0; 64]).await.is_ok_and(|bytes| bytes > 0) {} };
    closed_within("a silent one", 3_000, &mut Box::pin(read)).await;

    // Who takes nothing of an answer is cut off, though the connection itself takes what it is sent.
    let (mut sender, mut connection) = connect(address).await;
    let reply = sender.send_request(ask(address, "127.0.0.1", 1, "eth_getLogs", logs())).await;
    let unread = reply.expect("an answer").into_body();
    closed_within("an unread one", 5_000, &mut Box::pin(async { drop((&mut connection).await) })).await;
    drop(unread);
    server.shutdown().await;
}
