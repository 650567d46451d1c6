//! Clients that ask for much, read slowly or not at all, or come too many: the others are served, and memory stays bounded.

#[path = "api/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cairn_api::{EthApi, RpcLimits, RpcServerConfig, ServerHandle};
use cairn_core::BlockId;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use support::http::{Reply, Ws, post, post_bytes, read_reply, request, serve};
use support::made::{self, log};
use support::slow::SlowReader;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

const ROOT: BlockId = BlockId([0xee; 32]);
/// The JSON of the logs of block 1, about.
const LOGS_MIB: usize = 4;

/// One at a time: they measure time and memory.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Block 1 has logs of some MiB.
async fn large_logs() -> cairn_store::memory::MemoryStore {
    let logs = |height| if height == 1 { vec![vec![log(1, &[1], 1 << 20); LOGS_MIB / 2]] } else { vec![] };
    made::store(made::chain(0, 3, ROOT, 0, logs), None).await
}

async fn large(limits: RpcLimits) -> ServerHandle {
    serve(support::api(&large_logs().await, limits), RpcServerConfig::default()).await.0
}

fn get_logs(id: u64) -> String {
    request(id, "eth_getLogs", json!([{"fromBlock": "0x1", "toBlock": "0x1"}]))
}

fn batch(items: u64) -> String {
    format!("[{}]", (0..items).map(get_logs).collect::<Vec<_>>().join(","))
}

/// Asks for the head again and again, and says how long the slowest answer took.
async fn slowest_head(address: SocketAddr, for_ms: u64) -> Duration {
    slowest_head_at(address, for_ms, "0x2").await
}

async fn slowest_head_at(address: SocketAddr, for_ms: u64, head: &str) -> Duration {
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < Duration::from_millis(for_ms) {
        let asked = Instant::now();
        let reply = post(address, &request(1, "eth_blockNumber", json!([]))).await;
        assert_eq!(reply.json()["result"], head);
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slowest
}

/// Memory in use by this process.
fn resident_mib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4 / 1024
}

/// A refusal that a client can act on.
fn assert_refused(reply: &Reply) {
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!(-32005)));
    let after: u64 = reply.header("retry-after").expect("a header").parse().expect("seconds");
    assert!((1..=60).contains(&after));
    assert_eq!(reply.json()["error"]["data"]["retryAfterSeconds"], after);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_large_answers_stop_nobody() {
    let _alone = ALONE.lock().await;
    let limits = RpcLimits {
        responses_in_flight_bytes: 16 << 20,
        responses_in_flight_bytes_per_address: 16 << 20,
        responses_in_flight_bytes_per_connection: 16 << 20,
        ..RpcLimits::default()
    };
    let server = large(limits).await;
    let address = server.local_addr();
    let mut batches = JoinSet::new();
    for _ in 0..6 {
        batches.spawn(async move { post(address, &batch(10)).await });
    }
    // Each of these holds what it got and asks for more than there is.
    let slowest = slowest_head(address, 1_500).await;
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let (mut made, mut refused) = (0, 0);
    let ended = tokio::time::timeout(Duration::from_secs(15), async {
        while let Some(reply) = batches.join_next().await {
            let reply = reply.expect("a task").json();
            let items: Vec<Value> = reply.as_array().expect("a batch").clone();
            assert_eq!(items.len(), 10);
            for item in items {
                match item.get("error") {
                    None => made += 1,
                    Some(error) => {
                        assert_eq!(error["code"], -32005, "{error}");
                        refused += 1;
                    }
                }
            }
        }
    });
    ended.await.expect("no batch waits for ever");
    assert!(made >= 3 && refused > 0, "{made} made, {refused} refused");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_take_nothing_leave_room_for_small_answers() {
    let _alone = ALONE.lock().await;
    let limits = RpcLimits {
        responses_in_flight_bytes: 16 << 20,
        responses_in_flight_bytes_per_address: 16 << 20,
        ..RpcLimits::default()
    };
    let server = large(limits).await;
    let address = server.local_addr();
    let mut silent = Vec::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        stream.write_all(&post_bytes(&batch(4), "")).await.expect("write");
        silent.push(stream);
    }
    let slowest = slowest_head(address, 3_000).await;
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // A large answer finds no room and is told so, in time.
    let began = Instant::now();
    assert_refused(&post(address, &get_logs(1)).await);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(silent);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_twice_the_capacity_the_surplus_is_refused_and_memory_stays_bounded() {
    let _alone = ALONE.lock().await;
    // At most 20 a second.
    let store = SlowReader::new(Arc::new(large_logs().await), Duration::from_millis(100));
    let limits = RpcLimits { max_heavy_requests: 2, queue_timeout_ms: 500, ..RpcLimits::default() };
    let (server, _wake) = serve(EthApi::new(store, limits), RpcServerConfig::default()).await;
    let address = server.local_addr();
    let before_mib = resident_mib();
    let mut asked = JoinSet::new();
    let (mut peak_mib, mut served, mut refused) = (before_mib, 0, 0);
    let mut check = |(reply, took): (Reply, Duration)| {
        match reply.status {
            200 => served += 1,
            _ => {
                assert_refused(&reply);
                refused += 1;
            }
        }
        assert!(took < Duration::from_secs(3), "{took:?}");
    };
    for _ in 0..160 {
        asked.spawn(async move {
            let began = Instant::now();
            let mut stream = TcpStream::connect(address).await.expect("connect");
            stream.write_all(&post_bytes(&get_logs(1), "")).await.expect("write");
            (read_reply(&mut stream).await.expect("a response"), began.elapsed())
        });
        tokio::time::sleep(Duration::from_millis(25)).await;
        peak_mib = peak_mib.max(resident_mib());
        while let Some(done) = asked.try_join_next() {
            check(done.expect("a task"));
        }
    }
    while let Some(done) = asked.join_next().await {
        check(done.expect("a task"));
    }
    assert!(served >= 10 && refused >= 40, "{served} served, {refused} refused");
    assert!(peak_mib < before_mib + 200, "{before_mib} MiB, then {peak_mib} MiB");
    server.shutdown().await;
}

/// Asks again and again until the answer is there.
async fn served_within(address: SocketAddr, body: &str, limit: Duration) -> Duration {
    let began = Instant::now();
    while post(address, body).await.status != 200 {
        assert!(began.elapsed() < limit, "still refused after {limit:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn drip_readers_are_cut_off_and_give_their_memory_back() {
    let _alone = ALONE.lock().await;
    let limits = RpcLimits {
        responses_in_flight_bytes: 64 << 20,
        responses_in_flight_bytes_per_address: 64 << 20,
        response_timeout_ms: 2_000,
        // Who got his answer whole is left idle, and closed.
        header_timeout_ms: 3_000,
        ..RpcLimits::default()
    };
    let server = large(limits).await;
    let address = server.local_addr();
    let mut dripping = JoinSet::new();
    for _ in 0..4 {
        dripping.spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("connect");
            stream.write_all(&post_bytes(&batch(12), "")).await.expect("write");
            // 130 KB/s.
            let mut piece = [0; 13_000];
            let began = Instant::now();
            while stream.read_exact(&mut piece).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
                // What the kernel holds already comes all the same.
                if began.elapsed() > Duration::from_secs(4) {
                    piece = [0; 13_000];
                    while stream.read_exact(&mut piece).await.is_ok() {}
                    return;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert!(slowest_head(address, 500).await < Duration::from_secs(1));
    served_within(address, &batch(12), Duration::from_secs(6)).await;
    let ended = tokio::time::timeout(Duration::from_secs(10), dripping.join_all());
    ended.await.expect("no drip reader is served for ever");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_no_more_than_its_share_of_memory() {
    let _alone = ALONE.lock().await;
    let limits = RpcLimits {
        responses_in_flight_bytes: 64 << 20,
        responses_in_flight_bytes_per_address: 32 << 20,
        responses_in_flight_bytes_per_connection: 32 << 20,
        ..RpcLimits::default()
    };
    let server = large(limits).await;
    let address = server.local_addr();
    let mut silent = Vec::new();
    let began = Instant::now();
    // A batch that found no memory once takes no more, so that some of them may leave room: others fill it.
    let refused = loop {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        stream.write_all(&post_bytes(&batch(12), "")).await.expect("write");
        silent.push(stream);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let reply = post(address, &get_logs(1)).await;
        if reply.status != 200 || began.elapsed() > Duration::from_secs(20) {
            break reply;
        }
    };
    assert_refused(&refused);
    let mut other = connect_from("127.0.0.2", address).await;
    other.write_all(&post_bytes(&get_logs(1), "")).await.expect("write");
    assert_eq!(read_reply(&mut other).await.expect("a response").status, 200);
    drop(silent);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_answer_that_flows_is_not_cut_off() {
    let _alone = ALONE.lock().await;
    let server = large(RpcLimits { write_stall_timeout_ms: 700, ..RpcLimits::default() }).await;
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let stream = TcpStream::connect(server.local_addr()).await.expect("connect");
    let socket = SlowRead { stream, pause: None };
    let asked = format!("ws://{}/", server.local_addr());
    let (mut ws, _) =
        tokio_tungstenite::client_async_with_config(asked, socket, Some(config)).await.expect("a WebSocket");
    ws.send(Message::text(batch(15))).await.expect("send");
    let began = Instant::now();
    let answer = tokio::time::timeout(Duration::from_secs(60), ws.next()).await.expect("in time");
    let text = answer.expect("a message").expect("whole").into_text().expect("text");
    let items: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    assert!(items.len() == 15 && items.iter().all(|item| item["result"].is_array()));
    assert!(began.elapsed() > Duration::from_millis(1_500), "{:?}", began.elapsed());
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_that_nobody_reads_hold_a_bounded_memory() {
    let _alone = ALONE.lock().await;
    let store = made::store(made::chain(0, 3, ROOT, 0, |_| vec![]), None).await;
    let limits = RpcLimits {
        responses_in_flight_bytes: 32 << 20,
        responses_in_flight_bytes_per_connection: 16 << 20,
        head_poll_ms: 50,
        ..RpcLimits::default()
    };
    let (server, _wake) = serve(support::api(&store, limits), RpcServerConfig::default()).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        let mut ws = Ws::connect(server.local_addr()).await;
        for _ in 0..64 {
            ws.subscribe(json!(["logs"])).await;
        }
        silent.push(ws);
    }
    let mut reader = Ws::connect(server.local_addr()).await;
    let id = reader.subscribe(json!(["logs"])).await;
    let before_mib = resident_mib();
    // 8 MiB of JSON a block.
    let tip = made::tip(&store).await;
    let logs = made::chain(tip.height.get() + 1, 1, tip.id, 1, |_| vec![vec![log(1, &[1], 64 << 10); 64]]);
    support::append(&store, logs, None).await;
    let mut peak_mib = 0;
    for index in 0..64 {
        let (subscription, log) = reader.notification().await;
        assert_eq!((subscription, &log["logIndex"]), (id.clone(), &json!(format!("0x{index:x}"))));
        peak_mib = peak_mib.max(resident_mib());
    }
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        peak_mib = peak_mib.max(resident_mib());
    }
    assert!(peak_mib < before_mib + 150, "{before_mib} MiB, then {peak_mib} MiB");
    assert!(slowest_head_at(server.local_addr(), 500, "0x3").await < Duration::from_secs(1));
    drop(silent);
    server.shutdown().await;
}

/// A connection from an address of this machine.
async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{from}:0").parse().expect("an address")).expect("bound");
    socket.connect(to).await.expect("connect")
}

/// Takes some 20 MB/s.
struct SlowRead {
    stream: TcpStream,
    pause: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for SlowRead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if let Some(pause) = &mut this.pause {
            std::task::ready!(pause.as_mut().poll(cx));
        }
        std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let bytes = buf.filled().len() as u64;
        this.pause = Some(Box::pin(tokio::time::sleep(Duration::from_micros(bytes / 20))));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SlowRead {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
