//! JSON-RPC over WebSocket: requests, subscriptions, reorgs, and peers that don't listen.

use crate::support;

use std::time::Duration;

use cairn_api::{RpcLimits, RpcServerConfig, ServerHandle};
use cairn_core::{BlockId, BlockRef, RawBlock};
use cairn_store::memory::MemoryStore;
use futures::SinkExt;
use serde_json::{Value, json};
use support::http::{Ws, post, request, serve};
use support::made::{self, log};
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;

const ROOT: BlockId = BlockId([0xee; 32]);

/// Heights with two logs each, of contract `salt`.
fn blocks(first: u64, count: u64, parent: BlockId, salt: u8) -> Vec<RawBlock> {
    made::chain(first, count, parent, salt, |_| vec![vec![log(salt, &[1], 0)], vec![log(salt, &[2], 0)]])
}

struct Setup {
    store: MemoryStore,
    server: ServerHandle,
    wake: watch::Sender<u64>,
}

impl Setup {
    /// Blocks 0 to 5 of fork 1.
    async fn new(limits: RpcLimits) -> Setup {
        let store = made::store(blocks(0, 6, ROOT, 1), None).await;
        let (server, wake) = serve(support::api(&store, limits), RpcServerConfig::default()).await;
        Setup { store, server, wake }
    }

    async fn connect(&self) -> Ws {
        Ws::connect(self.server.local_addr()).await
    }

    fn wake(&self) {
        self.wake.send_modify(|n| *n += 1);
    }

    async fn append(&self, count: u64, salt: u8) -> Vec<RawBlock> {
        let tip = made::tip(&self.store).await;
        let new = blocks(tip.height.get() + 1, count, tip.id, salt);
        support::append(&self.store, new.clone(), None).await;
        new
    }

    async fn roll_back(&self, height: u64) -> BlockRef {
        let common = made::at(&self.store, height).await;
        made::roll_back(&self.store, common).await;
        common
    }
}

/// Only woken, never polling: tests decide when the feed looks.
fn woken_only() -> RpcLimits {
    RpcLimits { head_poll_ms: 3_600_000, ..RpcLimits::default() }
}

/// `(block, log index, removed)` of a log.
fn place(log: &Value) -> (u64, u64, bool) {
    let number = |name: &str| u64::from_str_radix(&log[name].as_str().expect("hex")[2..], 16).expect("hex");
    (number("blockNumber"), number("logIndex"), log["removed"].as_bool().expect("a flag"))
}

#[tokio::test]
async fn requests_batches_and_binary_frames_are_answered() {
    let setup = Setup::new(RpcLimits::default()).await;
    let mut ws = setup.connect().await;
    assert_eq!(ws.ask("eth_blockNumber", json!([])).await["result"], "0x5");
    ws.send(format!("[{},{}]", request(1, "eth_chainId", json!([])), request(2, "eth_nothing", json!([]))))
        .await;
    let answers = ws.next().await.expect("a batch");
    assert_eq!((&answers[0]["result"], &answers[1]["error"]["code"]), (&json!("0x539"), &json!(-32601)));
    ws.0.send(Message::binary(request(7, "net_version", json!([])).into_bytes())).await.expect("send");
    assert_eq!(ws.next().await.expect("a response"), json!({"jsonrpc": "2.0", "id": 7, "result": "1337"}));
    ws.send("nonsense".into()).await;
    assert_eq!(ws.next().await.expect("an error")["error"]["code"], -32700);
    ws.0.send(Message::Ping(bytes::Bytes::from_static(b"x"))).await.expect("send");
    for id in 0..100 {
        ws.send(request(id, "eth_chainId", json!([]))).await;
    }
    let mut ids: Vec<u64> = Vec::new();
    for _ in 0..100 {
        ids.push(ws.next().await.expect("a response")["id"].as_u64().expect("a number"));
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    setup.server.shutdown().await;
}

#[tokio::test]
async fn new_heads_come_in_order_with_whole_headers() {
    let setup = Setup::new(woken_only()).await;
    let mut ws = setup.connect().await;
    let id = ws.subscribe(json!(["newHeads"])).await;
    assert!(id.starts_with("0x"));
    setup.append(3, 1).await;
    setup.wake();
    for height in 6..9u64 {
        let (subscription, head) = ws.notification().await;
        assert_eq!(subscription, id);
        let reply = post(
            setup.server.local_addr(),
            &request(1, "eth_getBlockByNumber", json!([format!("0x{height:x}"), false])),
        )
        .await;
        let mut block = reply.json()["result"].clone();
        for name in ["size", "uncles", "transactions", "withdrawals"] {
            block.as_object_mut().expect("a block").remove(name);
        }
        assert_eq!(head, block);
    }
    // A wake-up without news says nothing.
    setup.wake();
    ws.quiet().await;
    setup.server.shutdown().await;
}

#[tokio::test]
async fn polling_alone_finds_new_heads() {
    let setup = Setup::new(RpcLimits { head_poll_ms: 20, ..RpcLimits::default() }).await;
    let mut ws = setup.connect().await;
    ws.subscribe(json!(["newHeads"])).await;
    setup.append(1, 1).await;
    assert_eq!(ws.notification().await.1["number"], "0x6");
    setup.server.shutdown().await;
}

#[tokio::test]
async fn logs_are_filtered_for_each_subscription() {
    let setup = Setup::new(woken_only()).await;
    let mut ws = setup.connect().await;
    let topic = alloy_primitives::B256::repeat_byte(2);
    let all = ws.subscribe(json!(["logs"])).await;
    let second = ws.subscribe(json!(["logs", {"topics": [topic]}])).await;
    let none = ws.subscribe(json!(["logs", {"address": alloy_primitives::Address::repeat_byte(9)}])).await;
    assert!(all != second && second != none);
    setup.append(2, 1).await;
    setup.wake();
    let mut of_all = Vec::new();
    let mut of_second = Vec::new();
    for _ in 0..6 {
        let (id, log) = ws.notification().await;
        assert!(id == all || id == second, "{id}");
        if id == all { of_all.push(place(&log)) } else { of_second.push(place(&log)) }
    }
    assert_eq!(of_all, [(6, 0, false), (6, 1, false), (7, 0, false), (7, 1, false)]);
    assert_eq!(of_second, [(6, 1, false), (7, 1, false)]);
    ws.quiet().await;
    setup.server.shutdown().await;
}

#[tokio::test]
async fn a_reorg_takes_logs_back_in_reverse_before_the_new_ones() {
    let setup = Setup::new(woken_only()).await;
    let mut ws = setup.connect().await;
    ws.subscribe(json!(["logs"])).await;
    setup.roll_back(3).await;
    setup.append(3, 2).await;
    setup.wake();
    let mut logs = Vec::new();
    for _ in 0..10 {
        logs.push(ws.notification().await.1);
    }
    let places: Vec<_> = logs.iter().map(place).collect();
    assert_eq!(
        places,
        [
            (5, 1, true),
            (5, 0, true),
            (4, 1, true),
            (4, 0, true),
            (4, 0, false),
            (4, 1, false),
            (5, 0, false),
            (5, 1, false),
            (6, 0, false),
            (6, 1, false),
        ]
    );
    // A removed log is the old one, whole.
    assert_eq!(logs[0]["address"], format!("0x{}", "01".repeat(20)));
    assert_eq!(logs[4]["address"], format!("0x{}", "02".repeat(20)));
    ws.quiet().await;
    setup.server.shutdown().await;
}

#[tokio::test]
async fn forks_that_were_never_announced_are_not_revoked() {
    let setup = Setup::new(woken_only()).await;
    let (mut heads, mut logs) = (setup.connect().await, setup.connect().await);
    heads.subscribe(json!(["newHeads"])).await;
    logs.subscribe(json!(["logs"])).await;
    // A → B → C, shorter and longer, all between two looks; then back to A's own block 5.
    setup.roll_back(4).await;
    setup.append(4, 2).await;
    setup.roll_back(2).await;
    setup.append(1, 3).await;
    setup.wake();
    let mut places = Vec::new();
    for _ in 0..8 {
        places.push(place(&logs.notification().await.1));
    }
    assert_eq!(
        places,
        [
            (5, 1, true),
            (5, 0, true),
            (4, 1, true),
            (4, 0, true),
            (3, 1, true),
            (3, 0, true),
            (3, 0, false),
            (3, 1, false)
        ]
    );
    assert_eq!(heads.notification().await.1["number"], "0x3");
    heads.quiet().await;
    logs.quiet().await;
    setup.server.shutdown().await;
}

#[tokio::test]
async fn r05_a_block_replaced_at_the_same_height_is_announced() {
    let setup = Setup::new(woken_only()).await;
    let mut ws = setup.connect().await;
    ws.subscribe(json!(["newHeads"])).await;
    setup.roll_back(4).await;
    let new = setup.append(1, 2).await;
    setup.wake();
    assert_eq!(ws.notification().await.1["hash"], json!(new[0].facts.id));
    setup.server.shutdown().await;
}

#[tokio::test]
async fn a_deep_reorg_is_replayed_step_by_step() {
    let setup = Setup::new(woken_only()).await;
    let mut ws = setup.connect().await;
    ws.subscribe(json!(["logs"])).await;
    setup.append(94, 1).await;
    setup.wake();
    for _ in 0..188 {
        ws.notification().await;
    }
    setup.roll_back(9).await;
    setup.append(100, 2).await;
    setup.wake();
    for height in (10..100).rev() {
        for index in [1, 0] {
            assert_eq!(place(&ws.notification().await.1), (height, index, true));
        }
    }
    for height in 10..110 {
        for index in [0, 1] {
            assert_eq!(place(&ws.notification().await.1), (height, index, false));
        }
    }
    setup.server.shutdown().await;
}

#[tokio::test]
async fn orphans_that_are_gone_end_the_subscription_with_a_reason() {
    use cairn_store::{RawReader, RawWriter};
    let setup = Setup::new(woken_only()).await;
    let (mut logs, mut heads) = (setup.connect().await, setup.connect().await);
    let id = logs.subscribe(json!(["logs"])).await;
    heads.subscribe(json!(["newHeads"])).await;
    setup.roll_back(3).await;
    setup.append(30, 2).await;
    let fence = setup.store.snapshot().await.expect("snapshot").head().fence;
    assert_eq!(setup.store.prune_orphans(fence, 5, 100).await.expect("prune"), 2);
    setup.wake();
    let last = logs.next().await.expect("a last notification");
    assert_eq!(last["params"]["subscription"], json!(id));
    assert!(last["params"]["error"]["message"].as_str().expect("text").contains("pruned"), "{last}");
    let close = logs.next().await.expect_err("closed").expect("a frame");
    assert_eq!(u16::from(close.code), 1013);
    setup.server.shutdown().await;
}

#[tokio::test]
async fn unsubscribe_ends_one_and_the_limit_counts_them() {
    let setup = Setup::new(RpcLimits { max_subscriptions_per_connection: 2, ..woken_only() }).await;
    let mut ws = setup.connect().await;
    let (first, second) = (ws.subscribe(json!(["newHeads"])).await, ws.subscribe(json!(["newHeads"])).await);
    assert_eq!(ws.ask("eth_subscribe", json!(["logs"])).await["error"]["code"], -32005);
    assert_eq!(ws.ask("eth_unsubscribe", json!([first])).await["result"], true);
    assert_eq!(ws.ask("eth_unsubscribe", json!([first])).await["result"], false);
    assert_eq!(ws.ask("eth_unsubscribe", json!([7])).await["error"]["code"], -32602);
    setup.append(1, 1).await;
    setup.wake();
    assert_eq!(ws.notification().await.0, second);
    ws.quiet().await;
    // Ids are of one connection only.
    let mut other = setup.connect().await;
    assert_eq!(other.ask("eth_unsubscribe", json!([second])).await["result"], false);
    for wrong in [
        json!([]),
        json!(["heads"]),
        json!(["newPendingTransactions"]),
        json!(["syncing"]),
        json!(["logs", {"topics": 1}]),
        json!([["logs"]]),
    ] {
        assert_eq!(other.ask("eth_subscribe", wrong.clone()).await["error"]["code"], -32602, "{wrong}");
    }
    setup.server.shutdown().await;
}

#[tokio::test]
async fn a_subscription_in_a_batch_begins_after_the_response() {
    let setup = Setup::new(RpcLimits { head_poll_ms: 1, ..RpcLimits::default() }).await;
    let mut ws = setup.connect().await;
    ws.send(format!(
        "[{},{}]",
        request(1, "eth_subscribe", json!(["newHeads"])),
        request(2, "eth_blockNumber", json!([]))
    ))
    .await;
    setup.append(1, 1).await;
    let response = ws.next().await.expect("the response first");
    let id = response[0]["result"].as_str().expect("an id").to_owned();
    setup.append(1, 1).await;
    assert_eq!(ws.notification().await.0, id);
    setup.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_blocks_closes_nobody_who_reads() {
    let setup = Setup::new(RpcLimits { feed_queue_blocks: 4, ..woken_only() }).await;
    let mut ws = setup.connect().await;
    ws.subscribe(json!(["newHeads"])).await;
    setup.append(2000, 1).await;
    setup.wake();
    for height in 6..2006u64 {
        assert_eq!(ws.notification().await.1["number"], json!(format!("0x{height:x}")));
    }
    setup.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_falls_behind_is_told_and_closed() {
    falls_behind(RpcLimits { feed_queue_blocks: 4, ..woken_only() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_whose_blocks_had_to_make_room_is_told_and_closed() {
    falls_behind(RpcLimits { feed_payload_bytes: 2 << 20, ..woken_only() }).await;
}

async fn falls_behind(limits: RpcLimits) {
    let setup = Setup::new(RpcLimits { write_stall_timeout_ms: 60_000, ..limits }).await;
    let (mut slow, mut quick) = (setup.connect().await, setup.connect().await);
    let id = slow.subscribe(json!(["logs"])).await;
    quick.subscribe(json!(["newHeads"])).await;
    let tip = made::tip(&setup.store).await;
    // 200 blocks of 1 MB of JSON each: more than socket buffers take.
    let large = made::chain(tip.height.get() + 1, 200, tip.id, 1, |_| vec![vec![log(1, &[1], 500_000)]]);
    support::append(&setup.store, large, None).await;
    setup.wake();
    for height in 6..206u64 {
        assert_eq!(quick.notification().await.1["number"], json!(format!("0x{height:x}")));
    }
    // Now it reads: what was on its way, then why it ends, then the end; never a gap.
    let mut expected = 6;
    loop {
        let message = slow.next().await.expect("a message");
        if let Some(error) = message["params"].get("error") {
            assert_eq!(message["params"]["subscription"], json!(id));
            assert!(error["message"].as_str().expect("text").contains("fell behind"), "{error}");
            break;
        }
        assert_eq!(place(&message["params"]["result"]).0, expected);
        expected += 1;
    }
    assert!(expected < 206);
    let close = slow.next().await.expect_err("closed").expect("a frame");
    assert_eq!(u16::from(close.code), 1013);
    setup.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_takes_nothing_is_cut_off() {
    let setup = Setup::new(RpcLimits { write_stall_timeout_ms: 300, ..woken_only() }).await;
    let mut ws = setup.connect().await;
    ws.subscribe(json!(["logs"])).await;
    let tip = made::tip(&setup.store).await;
    let large = made::chain(tip.height.get() + 1, 100, tip.id, 1, |_| vec![vec![log(1, &[1], 500_000)]]);
    support::append(&setup.store, large, None).await;
    setup.wake();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut count = 0;
    while ws.next().await.is_ok() {
        count += 1;
    }
    assert!(count < 100, "cut off after {count} logs");
    setup.server.shutdown().await;
}

#[tokio::test]
async fn messages_over_the_limit_end_the_connection() {
    let setup = Setup::new(RpcLimits { max_ws_message_bytes: 1000, ..RpcLimits::default() }).await;
    let mut ws = setup.connect().await;
    ws.send(request(1, "eth_chainId", json!([" ".repeat(2000)]))).await;
    let close = ws.next().await.expect_err("closed").expect("a frame");
    assert_eq!(u16::from(close.code), 1009);
    // The server is well.
    assert_eq!(setup.connect().await.ask("eth_blockNumber", json!([])).await["result"], "0x5");
    setup.server.shutdown().await;
}

#[tokio::test]
async fn a_silent_peer_is_closed() {
    let setup = Setup::new(RpcLimits { ws_ping_interval_ms: 100, ..RpcLimits::default() }).await;
    // A peer that answers no pings: a raw socket after the handshake.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(setup.server.local_addr()).await.expect("connect");
    let upgrade = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await.expect("write");
    let mut got = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut got)).await;
    assert!(ended.is_ok(), "closed");
    // One that answers them stays.
    let mut ws = setup.connect().await;
    let waited = tokio::time::timeout(Duration::from_millis(800), ws.next()).await;
    assert!(waited.is_err(), "still open");
    setup.server.shutdown().await;
}
