//! The tip: several endpoints, finality, WebSocket hints.

use crate::support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_core::{ErrorKind, Height, HeightRange};
use cairn_evm::Checks;
use cairn_source::ChainSource;
use cairn_source::evm::rpc::{FinalityPolicy, RpcSource};
use cairn_source::evm::synthetic::{ForkId, ForkOptions};
use serde_json::{Value, json};
use support::ws::MockSocket;
use support::{CallOut, HttpOut, MockNode, chain, config, source};

async fn with_policy(node: &MockNode, policy: FinalityPolicy) -> RpcSource {
    let mut config = config(&[node]);
    config.finality = policy;
    RpcSource::connect(config).await.unwrap()
}

async fn finalized(source: &RpcSource) -> Option<u64> {
    source.heads().await.unwrap().finalized.map(|block| block.height.get())
}

fn on_tag(node: &MockNode, answer: impl Fn() -> Option<CallOut> + Send + 'static) {
    node.on_call(move |call| if call.params.first() == Some(&json!("finalized")) { answer() } else { None });
}

#[tokio::test]
async fn heads_come_with_ids_from_one_batch() {
    let node = MockNode::start(chain(1), 50).await;
    node.state().finalized = Some(30);
    let source = source(&[&node]).await;
    node.take_seen();
    let heads = source.heads().await.unwrap();
    assert_eq!(heads.latest, node.block(50).facts.linked_ref());
    assert_eq!(heads.safe, Some(node.block(30).block_ref()));
    // By default the lower of the tag and 64 heights: a chain of 50 has none by depth.
    assert_eq!(heads.finalized, None);
    assert_eq!(node.take_seen().len(), 1);
}

#[tokio::test]
async fn e21_the_tag_falls_back_to_a_depth_and_never_stops_anything() {
    for absent in [
        CallOut::Error(-32602, "invalid argument 0: unknown tag"),
        CallOut::Error(-32000, "finalized block not found"),
        CallOut::Error(-39001, "java.lang.NumberFormatException"),
        CallOut::Result(Value::Null),
    ] {
        let node = MockNode::start(chain(2), 100).await;
        on_tag(&node, move || Some(absent.clone()));
        let both = with_policy(&node, FinalityPolicy::Both(20)).await;
        let heads = both.heads().await.unwrap();
        assert_eq!(heads.finalized, Some(node.block(80).block_ref()));
        assert_eq!(finalized(&with_policy(&node, FinalityPolicy::Tag).await).await, None);
    }
}

#[tokio::test]
async fn e21_the_more_careful_of_tag_and_depth_wins() {
    let node = MockNode::start(chain(2), 100).await;
    let both = with_policy(&node, FinalityPolicy::Both(20)).await;
    node.state().finalized = Some(70);
    assert_eq!(finalized(&both).await, Some(70));
    // Tags are looked at again once there is another head.
    node.state().finalized = Some(95);
    assert_eq!(finalized(&both).await, Some(70));
    node.state().head = 101;
    assert_eq!(finalized(&both).await, Some(81));
    node.state().head = 100;
    let depth = with_policy(&node, FinalityPolicy::Depth(10)).await;
    assert_eq!(finalized(&depth).await, Some(90));
    assert_eq!(finalized(&with_policy(&node, FinalityPolicy::Depth(0)).await).await, Some(100));
    assert_eq!(finalized(&with_policy(&node, FinalityPolicy::Depth(101)).await).await, None);
    assert_eq!(finalized(&with_policy(&node, FinalityPolicy::Tag).await).await, Some(95));
}

#[tokio::test]
async fn e21_the_finalised_height_never_goes_back_nor_above_the_head() {
    let node = MockNode::start(chain(3), 100).await;
    let tag = with_policy(&node, FinalityPolicy::Tag).await;
    node.state().finalized = Some(70);
    assert_eq!(finalized(&tag).await, Some(70));
    let another_head = || node.state().head += 1;
    node.state().finalized = Some(60);
    another_head();
    assert_eq!(finalized(&tag).await, Some(70), "lower than before");
    let high = node.json(105).0;
    on_tag(&node, move || Some(CallOut::Result(high.clone())));
    another_head();
    assert_eq!(finalized(&tag).await, Some(70), "above the head: not believed");
    let both = with_policy(&node, FinalityPolicy::Both(20)).await;
    node.well();
    node.state().finalized = Some(30);
    assert_eq!(finalized(&both).await, Some(30));
    // A chain that has the tag and stopped finalising: a failing tag is no licence for the depth.
    on_tag(&node, || Some(CallOut::Error(-32602, "unknown tag")));
    another_head();
    assert_eq!(finalized(&both).await, Some(30));
}

#[tokio::test]
async fn a_head_that_stands_still_costs_one_call_a_look() {
    let node = MockNode::start(chain(3), 100).await;
    node.state().finalized = Some(70);
    let source = source(&[&node]).await;
    let first = source.heads().await.unwrap();
    node.take_seen();
    for _ in 0..5 {
        assert_eq!(source.heads().await.unwrap(), first);
    }
    let asked = node.take_calls("eth_getBlockByNumber");
    assert_eq!(asked.len(), 5, "latest alone: {asked:?}");
    node.state().head = 101;
    assert_eq!(source.heads().await.unwrap().safe, Some(node.block(70).block_ref()));
}

#[tokio::test]
async fn an_endpoint_is_sent_no_more_calls_a_second_than_it_allows() {
    let node = MockNode::start(chain(3), 200).await;
    let mut config = config(&[&node]);
    config.limits.requests_per_s = 50;
    let source = RpcSource::connect(config).await.unwrap();
    node.take_seen();
    let begun = Instant::now();
    for height in (1..=60).step_by(20) {
        let range = HeightRange::new(Height(height), Height(height + 20));
        assert_eq!(source.blocks(range).await.unwrap().len(), 20);
    }
    let calls = node.take_calls("eth_getBlockByNumber").len();
    assert!(calls >= 60, "{calls}");
    // Blocks alone are 60 calls; the first second's may go at once.
    assert!(
        begun.elapsed() >= Duration::from_secs_f64((calls as f64 - 50.0) / 50.0),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn e20_a_lower_head_of_another_endpoint_is_lag() {
    let (first, second) = (MockNode::start(chain(4), 100).await, MockNode::start(chain(4), 40).await);
    let source = source(&[&second, &first]).await;
    let heads = source.heads().await.unwrap();
    assert_eq!(
        heads.latest,
        first.block(100).facts.linked_ref(),
        "the highest, though the preferred one lags"
    );
    // What was announced is asked of the endpoint that has it.
    second.take_seen();
    assert_eq!(source.blocks(HeightRange::one(Height(100))).await.unwrap(), [first.block(100)]);
    assert!(second.take_calls("eth_getBlockByNumber").is_empty());
    // It falls silent: the lagging one is no regression, as long as the other isn't known to be down.
    first.on_http(|_| Some(HttpOut::Status(500, vec![], String::new())));
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(100));
    // Down for good: everybody who answers says 40.
    let begun = Instant::now();
    while source.heads().await.unwrap().latest.block.height == Height(100) {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(source.heads().await.unwrap().latest, second.block(40).facts.linked_ref());
    // Both lower: agreed.
    first.well();
    first.state().head = 45;
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(45));
}

#[tokio::test]
async fn e20_one_endpoint_is_reported_as_it_is() {
    let node = MockNode::start(chain(4), 100).await;
    let source = source(&[&node]).await;
    source.heads().await.unwrap();
    node.state().head = 50;
    assert_eq!(source.heads().await.unwrap().latest, node.block(50).facts.linked_ref());
}

#[tokio::test]
async fn heads_headers_and_blocks_come_from_one_view() {
    // The preferred endpoint sits on a dead fork below; the other one is right and far ahead.
    let (dead, live) = (MockNode::start(chain(5), 100).await, MockNode::start(chain(5), 120).await);
    let fork = dead.state().chain.clone().fork_at((ForkId::MAIN, Height(90)), ForkOptions::new(1));
    dead.state().fork = fork;
    let source = source(&[&dead, &live]).await;
    assert_eq!(source.heads().await.unwrap().latest, live.block(120).facts.linked_ref());
    assert_eq!(source.linked_ref(Height(95)).await.unwrap(), Some(live.block(95).facts.linked_ref()));
    assert_eq!(source.blocks(HeightRange::new(Height(95), Height(97))).await.unwrap(), live.blocks(95..97));
}

#[tokio::test]
async fn a_preferred_endpoint_one_behind_keeps_the_lead() {
    let (first, second) = (MockNode::start(chain(6), 99).await, MockNode::start(chain(6), 100).await);
    let source = source(&[&first, &second]).await;
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(99));
    second.state().head = 102;
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(102));
    first.state().head = 101;
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(102), "never back");
    first.state().head = 102;
    source.heads().await.unwrap();
    second.take_seen();
    source.blocks(HeightRange::one(Height(50))).await.unwrap();
    assert!(second.take_seen().is_empty(), "the preferred one leads again");
}

#[tokio::test]
async fn a_newest_header_that_does_not_hash_is_named_by_its_own_height() {
    let node = MockNode::start(chain(7), 73).await;
    let source = source(&[&node]).await;
    node.on_call(|call| {
        let is_newest =
            call.method == "eth_getBlockByNumber" && call.params.first() == Some(&json!("latest"));
        is_newest.then(|| CallOut::Result(json!({ "number": "0x4a", "hash": "0x01" })))
    });
    let error = source.heads().await.expect_err("it is no header");
    assert_eq!(error.height(), Some(Height(0x4a)), "{error}");
    assert_eq!(error.check(), Some("header-hash"), "{error}");
}

#[tokio::test]
async fn a_block_is_held_by_the_endpoints_that_have_it_and_by_no_others() {
    let chain = chain(8);
    let nodes = [50, 50, 50, 30].map(|head| MockNode::start(chain.clone(), head));
    let [honest, liar, refusing, behind] = futures::future::join_all(nodes).await.try_into().ok().unwrap();
    let source = source(&[&honest, &liar, &refusing, &behind]).await;
    liar.state().fork = chain.fork_at((ForkId::MAIN, Height(40)), ForkOptions::new(1));
    refusing.on_http(|_| Some(HttpOut::Status(403, vec![], "not for you".into())));
    let name = |node: &MockNode| format!("127.0.0.1:{}", node.url.port().unwrap());
    let is = |holders: &[String], nodes: &[&MockNode]| {
        holders.len() == nodes.len()
            && nodes.iter().all(|node| holders.iter().any(|holder| holder.contains(&name(node))))
    };
    let holders = source.holders(honest.block(45).block_ref(), 4).await.unwrap();
    assert!(is(&holders, &[&honest]), "{holders:?}");
    let holders = source.holders(liar.block(45).block_ref(), 4).await.unwrap();
    assert!(is(&holders, &[&liar]), "{holders:?}");
    let holders = source.holders(honest.block(20).block_ref(), 4).await.unwrap();
    assert!(is(&holders, &[&honest, &liar, &behind]), "{holders:?}");
    assert_eq!(source.holders(honest.block(20).block_ref(), 2).await.unwrap().len(), 2, "enough is enough");
}

async fn followed(node: &MockNode, socket: &MockSocket) -> Arc<RpcSource> {
    let mut config = config(&[node]);
    config.websockets = vec![socket.url.clone()];
    config.limits.ws_silence_ms = 300;
    Arc::new(RpcSource::connect(config).await.unwrap())
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How long a wait for a head takes, at most five seconds.
async fn waited(source: &RpcSource) -> Duration {
    let begun = Instant::now();
    source.wait_for_head(5_000).await;
    begun.elapsed()
}

#[tokio::test]
async fn e18_a_silent_socket_is_dropped_when_the_chain_goes_on() {
    let (node, socket) = (MockNode::start(chain(7), 10).await, MockSocket::start().await);
    let source = followed(&node, &socket).await;
    until("it is connected", || socket.open() == 1).await;
    source.wait_for_head(50).await;
    for height in 8..=10 {
        socket.head(height);
        assert!(waited(&source).await < Duration::from_secs(2), "each head wakes");
    }
    // Silence on a quiet chain: the socket stays.
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(socket.connections(), 1);
    // Silence while the chain goes on: found out within two periods.
    node.state().head = 15;
    assert!(waited(&source).await < Duration::from_millis(700));
    until("it reconnects", || socket.connections() == 2).await;
}

#[tokio::test]
async fn while_a_socket_tells_of_heads_nobody_polls() {
    let (node, socket) = (MockNode::start(chain(7), 10).await, MockSocket::start().await);
    let mut config = config(&[&node]);
    config.websockets = vec![socket.url.clone()];
    config.limits.ws_silence_ms = 1_500;
    let source = RpcSource::connect(config).await.unwrap();
    until("it is connected", || socket.open() == 1).await;
    source.wait_for_head(50).await;
    let begun = Instant::now();
    source.wait_for_head(50).await;
    assert!(begun.elapsed() < Duration::from_millis(700), "it has told of nothing yet");
    socket.head(10);
    source.wait_for_head(50).await;
    let begun = Instant::now();
    source.wait_for_head(50).await;
    assert!(begun.elapsed() >= Duration::from_millis(1_000), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn e18_a_socket_that_never_spoke_is_found_out_too() {
    let (node, socket) = (MockNode::start(chain(7), 10).await, MockSocket::start().await);
    let _source = followed(&node, &socket).await;
    until("it is connected", || socket.open() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    node.state().head = 11;
    until("it reconnects", || socket.connections() == 2).await;
}

#[tokio::test]
async fn e19_replayed_and_missed_heads_change_nothing() {
    let (node, socket) = (MockNode::start(chain(8), 50).await, MockSocket::start().await);
    let source = followed(&node, &socket).await;
    until("it is connected", || socket.open() == 1).await;
    // What an ingester does: fetch from what is stored to the head, on every hint.
    let mut stored: Vec<u64> = Vec::new();
    let mut catch_up = async |source: &RpcSource| {
        loop {
            let next = stored.len() as u64 + 1;
            let head = source.heads().await.unwrap().latest.block.height;
            if next > head.get() {
                return stored.clone();
            }
            let blocks = source.blocks(HeightRange::new(Height(next), head.next())).await.unwrap();
            stored.extend(blocks.iter().map(|block| block.facts.height.get()));
        }
    };
    catch_up(&source).await;
    node.state().head = 61;
    socket.head(61);
    source.wait_for_head(5_000).await;
    catch_up(&source).await;
    // The connection is lost; after it is back the server replays old heads.
    socket.say("close");
    until("it reconnects", || socket.connections() == 2 && socket.open() == 1).await;
    for height in 44..=46 {
        socket.head(height);
        source.wait_for_head(5_000).await;
        catch_up(&source).await;
    }
    assert_eq!(catch_up(&source).await, (1..=61).collect::<Vec<_>>());
}

#[tokio::test]
async fn odd_socket_messages_are_harmless_and_oversized_ones_refused() {
    let (node, socket) = (MockNode::start(chain(9), 10).await, MockSocket::start().await);
    let _source = followed(&node, &socket).await;
    until("it is connected", || socket.open() == 1).await;
    for odd in [
        "",
        "no json",
        "[]",
        r#"{"method":"eth_subscription"}"#,
        r#"{"method":"eth_subscription","params":{"result":{"number":7}}}"#,
    ] {
        socket.say(odd);
    }
    socket.say(&"[".repeat(10_000));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((socket.connections(), socket.open()), (1, 1));
    socket.say(&" ".repeat(2 << 20));
    until("it reconnects", || socket.connections() == 2).await;
}

#[tokio::test]
async fn dropping_the_source_closes_its_socket() {
    let (node, socket) = (MockNode::start(chain(9), 10).await, MockSocket::start().await);
    let source = followed(&node, &socket).await;
    until("it is connected", || socket.open() == 1).await;
    drop(source);
    until("it is closed", || socket.open() == 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(socket.connections(), 1);
}

#[tokio::test]
async fn without_a_socket_waiting_takes_its_time() {
    let node = MockNode::start(chain(9), 10).await;
    let source = source(&[&node]).await;
    let begun = Instant::now();
    source.wait_for_head(80).await;
    assert!(begun.elapsed() >= Duration::from_millis(75));
}

/// Heights that no chain has: they don't fit a signed number, or nothing comes after them.
const ABSURD: [u64; 4] = [u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64];

/// A header of that height, with its right hash.
fn absurd_header(node: &MockNode, height: u64) -> Value {
    let mut header = node.json(10).0;
    let number = json!(format!("{height:#x}"));
    header["number"] = number.clone();
    header["transactions"] = json!([]);
    // A relaxed profile takes it whatever its hash is; a strict one refuses it by its height first.
    header["hash"] = json!(format!("{:#066x}", height));
    header
}

#[tokio::test]
async fn a_head_that_no_chain_has_is_refused_by_its_number_and_others_go_on() {
    for height in ABSURD {
        let (liar, honest) = (MockNode::start(chain(7), 10).await, MockNode::start(chain(7), 20).await);
        let header = absurd_header(&liar, height);
        liar.on_call(move |call| match call.params.first() {
            Some(tag) if tag == &json!("latest") => Some(CallOut::Result(header.clone())),
            _ if call.method == "eth_blockNumber" => Some(CallOut::Result(json!(format!("{height:#x}")))),
            _ => None,
        });
        let mut alone = config(&[&liar]);
        alone.profile.relaxed = Checks::HEADER_HASH;
        let alone = RpcSource::connect(alone).await.unwrap();
        let error = alone.heads().await.expect_err("no chain has it");
        let said = error.to_string();
        assert!(said.contains(&format!("the node says height {height}, which no chain has")), "{said}");
        assert_eq!((error.kind(), error.height()), (ErrorKind::Retry, None));
        // Another endpoint goes on, also with the blocks.
        let both = source(&[&liar, &honest]).await;
        for _ in 0..3 {
            assert_eq!(both.heads().await.unwrap().latest, honest.block(20).facts.linked_ref());
        }
        liar.take_seen();
        assert_eq!(both.blocks(HeightRange::one(Height(5))).await.unwrap(), [honest.block(5)]);
        assert!(liar.take_calls("eth_getBlockByNumber").is_empty(), "the liar comes last");
    }
}

#[tokio::test]
async fn a_final_block_that_no_chain_has_is_not_believed() {
    for height in ABSURD {
        let node = MockNode::start(chain(7), 100).await;
        let header = absurd_header(&node, height);
        on_tag(&node, move || Some(CallOut::Result(header.clone())));
        let mut config = config(&[&node]);
        config.profile.relaxed = Checks::HEADER_HASH;
        config.finality = FinalityPolicy::Both(20);
        let source = RpcSource::connect(config).await.unwrap();
        let heads = source.heads().await.unwrap();
        assert_eq!((heads.latest.block.height, heads.finalized), (Height(100), None));
    }
}

#[tokio::test]
async fn a_socket_that_tells_of_a_head_that_no_chain_has_is_dropped() {
    for (count, height) in ABSURD.into_iter().enumerate() {
        let (node, socket) = (MockNode::start(chain(7), 10).await, MockSocket::start().await);
        let source = followed(&node, &socket).await;
        until("it is connected", || socket.open() == 1).await;
        source.wait_for_head(50).await;
        socket.head(height);
        until("it reconnects", || socket.connections() == 2 && socket.open() == 1).await;
        assert_eq!(source.heads().await.unwrap().latest.block.height, Height(10), "{count}");
    }
}
