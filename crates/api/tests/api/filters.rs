//! Filters that are polled: what they tell, over reorgs too, and what bounds them.

use crate::support;

use std::time::Duration;

use cairn_api::{EthApi, RpcError, RpcLimits, RpcServerConfig, TrustedProxies};
use cairn_core::BlockId;
use cairn_store::memory::MemoryStore;
use serde_json::{Value, json};
use support::http::{post, post_bytes, raw, read_reply, request, serve};
use support::made::{self, log};
use support::{api, ask};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const ROOT: BlockId = BlockId([0xee; 32]);

async fn error(api: &EthApi, method: &str, params: Value) -> RpcError {
    match ask(api, method, params.clone()).await {
        Err(error) => error,
        Ok(result) => panic!("{method} {params} answered {result}"),
    }
}

async fn new_filter(api: &EthApi, filter: Value) -> Value {
    ask(api, "eth_newFilter", json!([filter])).await.expect("a filter")
}

async fn changes(api: &EthApi, id: &Value) -> Vec<Value> {
    let changes = ask(api, "eth_getFilterChanges", json!([id])).await.expect("changes");
    changes.as_array().expect("a list").clone()
}

/// `(block, log index, removed)` of each log.
fn places(logs: &[Value]) -> Vec<(String, String, bool)> {
    let text = |log: &Value, name: &str| log[name].as_str().expect("hex").to_owned();
    logs.iter()
        .map(|log| {
            (text(log, "blockNumber"), text(log, "logIndex"), log["removed"].as_bool().expect("a flag"))
        })
        .collect()
}

fn place(block: u64, index: u64, removed: bool) -> (String, String, bool) {
    (format!("{block:#x}"), format!("{index:#x}"), removed)
}

/// Blocks 0 to 4, each with a log of 0x01… and one of 0x02….
async fn five_blocks() -> MemoryStore {
    made::store(made::chain(0, 5, ROOT, 0, |_| vec![vec![log(1, &[1], 0), log(2, &[2], 0)]]), None).await
}

/// Appends `count` blocks of the same kind.
async fn grow(store: &MemoryStore, count: u64, salt: u8) -> Vec<BlockId> {
    let tip = made::tip(store).await;
    let blocks = made::chain(tip.height.get() + 1, count, tip.id, salt, |_| {
        vec![vec![log(1, &[1], 0), log(2, &[2], 0)]]
    });
    let ids = blocks.iter().map(|block| block.facts.id).collect();
    support::append(store, blocks, None).await;
    ids
}

#[tokio::test]
async fn changes_are_told_once_and_only_what_came_since() {
    let store = five_blocks().await;
    let api = api(&store, RpcLimits::default());
    let logs = new_filter(&api, json!({"address": format!("0x{}", "01".repeat(20))})).await;
    let blocks = ask(&api, "eth_newBlockFilter", json!([])).await.expect("a filter");
    assert_ne!(logs, blocks);
    assert!(changes(&api, &logs).await.is_empty() && changes(&api, &blocks).await.is_empty());
    let ids = grow(&store, 3, 0).await;
    assert_eq!(
        places(&changes(&api, &logs).await),
        [place(5, 0, false), place(6, 0, false), place(7, 0, false)]
    );
    assert_eq!(json!(changes(&api, &blocks).await), json!(ids));
    assert!(changes(&api, &logs).await.is_empty() && changes(&api, &blocks).await.is_empty());
    // All logs of its range, however often.
    for _ in 0..2 {
        let all = ask(&api, "eth_getFilterLogs", json!([logs])).await;
        let same = ask(&api, "eth_getLogs", json!([{"address": format!("0x{}", "01".repeat(20))}])).await;
        assert!(all.is_ok() && all == same, "{all:?}");
    }
    assert_eq!(ask(&api, "eth_uninstallFilter", json!([logs])).await, Ok(json!(true)));
    assert_eq!(ask(&api, "eth_uninstallFilter", json!([logs])).await, Ok(json!(false)));
    for (method, id) in [
        ("eth_getFilterChanges", &logs),
        ("eth_getFilterLogs", &logs),
        ("eth_getFilterLogs", &blocks),
        ("eth_getFilterChanges", &json!("0x1")),
        ("eth_getFilterChanges", &json!("")),
    ] {
        let error = error(&api, method, json!([id])).await;
        assert_eq!((error.code, error.message.as_str()), (-32000, "filter not found"), "{method} {id}");
    }
    for params in [json!([]), json!([1]), json!([null]), json!(["0x1", 2])] {
        assert_eq!(error(&api, "eth_getFilterChanges", params.clone()).await.code, -32602, "{params}");
    }
}

#[tokio::test]
async fn r10_logs_that_reorgs_took_away_come_back_as_removed() {
    let store = five_blocks().await;
    let api = api(&store, RpcLimits::default());
    let logs = new_filter(&api, json!({})).await;
    let blocks = ask(&api, "eth_newBlockFilter", json!([])).await.expect("a filter");
    grow(&store, 2, 0).await;
    assert_eq!(changes(&api, &logs).await.len(), 4);
    let told = changes(&api, &blocks).await;
    // Two reorgs between two answers, and a block of a fork that nobody was told of.
    made::roll_back(&store, made::at(&store, 5).await).await;
    grow(&store, 2, 1).await;
    made::roll_back(&store, made::at(&store, 4).await).await;
    let ids = grow(&store, 3, 2).await;
    assert_eq!(
        places(&changes(&api, &logs).await),
        [
            place(6, 1, true),
            place(6, 0, true),
            place(5, 1, true),
            place(5, 0, true),
            place(5, 0, false),
            place(5, 1, false),
            place(6, 0, false),
            place(6, 1, false),
            place(7, 0, false),
            place(7, 1, false),
        ]
    );
    // A filter of blocks tells the hashes of the new fork.
    assert_eq!(json!(changes(&api, &blocks).await), json!(ids));
    assert!(told.iter().all(|id| !ids.iter().any(|new| json!(new) == *id)));
    assert!(changes(&api, &logs).await.is_empty() && changes(&api, &blocks).await.is_empty());
}

#[tokio::test]
async fn a_filters_range_bounds_what_it_tells() {
    let store = five_blocks().await;
    let api = api(&store, RpcLimits::default());
    let within = new_filter(&api, json!({"fromBlock": "0x6", "toBlock": "0x7"})).await;
    let open = new_filter(&api, json!({"fromBlock": "0x1", "toBlock": "latest"})).await;
    grow(&store, 5, 0).await;
    let told = places(&changes(&api, &within).await);
    assert_eq!((told.len(), &told[0], &told[3]), (4, &place(6, 0, false), &place(7, 1, false)));
    // What was there before is not a change; it is among the filter's logs.
    assert_eq!(changes(&api, &open).await.len(), 10);
    let all = ask(&api, "eth_getFilterLogs", json!([open])).await.expect("logs");
    assert_eq!(all.as_array().expect("a list").len(), 18);
    for wrong in [
        json!({"fromBlock": "0x7", "toBlock": "0x6"}),
        json!({"blockHash": made::tip(&store).await.id}),
        json!({"topics": [[], [], [], [], []]}),
        json!(7),
    ] {
        assert_eq!(error(&api, "eth_newFilter", json!([wrong])).await.code, -32602, "{wrong}");
    }
}

#[tokio::test]
async fn too_many_changes_are_an_error_that_says_the_way_and_none_is_lost() {
    let store = five_blocks().await;
    let limits = RpcLimits { max_log_results: 5, ..RpcLimits::default() };
    let api = api(&store, limits);
    let logs = new_filter(&api, json!({})).await;
    let blocks = ask(&api, "eth_newBlockFilter", json!([])).await.expect("a filter");
    grow(&store, 6, 0).await;
    for _ in 0..2 {
        let error = error(&api, "eth_getFilterChanges", json!([logs])).await;
        assert_eq!(error.code, -32005, "{error}");
        let hint = "Try with this block range [0x5, 0x6].";
        let way = "read blocks [0x5, 0xa] with eth_getLogs in such ranges, and install a new filter";
        assert!(error.message.contains(hint) && error.message.contains(way), "{error}");
    }
    let too_many = error(&api, "eth_getFilterChanges", json!([blocks])).await;
    assert!(too_many.code == -32005 && too_many.message.contains("install a new filter"), "{too_many}");
    made::roll_back(&store, made::at(&store, 5).await).await;
    assert_eq!(places(&changes(&api, &logs).await), [place(5, 0, false), place(5, 1, false)]);
}

#[tokio::test(start_paused = true)]
async fn filters_are_bounded_in_number_and_bytes_and_forgotten_when_idle() {
    let limits = RpcLimits { max_filters: 3, filter_idle_timeout_ms: 60_000, ..RpcLimits::default() };
    let store = five_blocks().await;
    let api = support::api(&store, limits);
    let kept = new_filter(&api, json!({})).await;
    let idle = ask(&api, "eth_newBlockFilter", json!([])).await.expect("a filter");
    new_filter(&api, json!({})).await;
    let full = error(&api, "eth_newFilter", json!([{}])).await;
    assert!(full.code == -32005 && full.message.contains("3 filters"), "{full}");
    tokio::time::advance(Duration::from_secs(40)).await;
    assert!(changes(&api, &kept).await.is_empty());
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(error(&api, "eth_getFilterChanges", json!([idle])).await.message, "filter not found");
    assert!(changes(&api, &kept).await.is_empty(), "who is asked for stays");
    new_filter(&api, json!({})).await;

    let api = support::api(&store, RpcLimits { filters_bytes: 10_000, ..RpcLimits::default() });
    let large = json!({"topics": [(0u64..250).map(|n| format!("0x{n:064x}")).collect::<Vec<_>>()]});
    new_filter(&api, large.clone()).await;
    let full = error(&api, "eth_newFilter", json!([large])).await;
    assert!(full.code == -32005 && full.message.contains("10000 bytes"), "{full}");
}

#[tokio::test]
async fn one_address_has_a_share_of_the_filters() {
    let limits = RpcLimits { max_filters_per_address: 2, ..RpcLimits::default() };
    let (server, _wake) = serve(api(&five_blocks().await, limits), RpcServerConfig::default()).await;
    let body = request(1, "eth_newBlockFilter", json!([]));
    let new = || post(server.local_addr(), &body);
    let ids = [new().await.json()["result"].clone(), new().await.json()["result"].clone()];
    assert!(ids.iter().all(Value::is_string) && ids[0] != ids[1], "{ids:?}");
    let full = new().await.json();
    assert_eq!(full["error"]["code"], -32005, "{full}");
    let gone = post(server.local_addr(), &request(1, "eth_uninstallFilter", json!([ids[0]]))).await;
    assert_eq!(gone.json()["result"], true);
    assert!(new().await.json()["result"].is_string());
    server.shutdown().await;
}

#[tokio::test]
async fn a_trusted_proxy_has_no_share_and_its_callers_have_one_each() {
    let limits = RpcLimits { max_filters_per_address: 1, ..RpcLimits::default() };
    let body = request(1, "eth_newBlockFilter", json!([]));
    let store = five_blocks().await;
    for is_trusted in [true, false] {
        let proxies = if is_trusted { vec!["127.0.0.0/8".to_owned()] } else { Vec::new() };
        let proxies = TrustedProxies::parse(&proxies).expect("networks");
        let config = RpcServerConfig { proxies, ..RpcServerConfig::default() };
        let (server, _wake) = serve(api(&store, limits.clone()), config).await;
        let address = server.local_addr();
        let new = async |caller: &str| {
            let header = format!("X-Forwarded-For: {caller}\r\nConnection: close\r\n");
            raw(address, &post_bytes(&body, &header)).await.json()
        };
        assert!(new("203.0.113.1").await["result"].is_string());
        assert_eq!(new("203.0.113.2").await["result"].is_string(), is_trusted);
        assert_eq!(new("203.0.113.2").await["error"]["code"], -32005);
        server.shutdown().await;
    }
    let limits = RpcLimits { max_connections_per_address: 1, ..RpcLimits::default() };
    let proxies = TrustedProxies::parse(&["127.0.0.1".into()]).expect("an address");
    let config = RpcServerConfig { proxies, ..RpcServerConfig::default() };
    let (server, _wake) = serve(api(&store, limits), config).await;
    let open = TcpStream::connect(server.local_addr()).await.expect("connect");
    for _ in 0..3 {
        let mut second = TcpStream::connect(server.local_addr()).await.expect("connect");
        second.write_all(&post_bytes(&body, "")).await.expect("write");
        assert_eq!(read_reply(&mut second).await.expect("a response").status, 200);
    }
    drop(open);
    server.shutdown().await;
}

/// An answer that finds no room in its batch was not told.
#[tokio::test]
async fn changes_that_did_not_go_out_are_told_again() {
    let store = five_blocks().await;
    let limits = RpcLimits { max_response_bytes: 3_000, ..RpcLimits::default() };
    let (server, _wake) = serve(api(&store, limits), RpcServerConfig::default()).await;
    let address = server.local_addr();
    let id = post(address, &request(1, "eth_newFilter", json!([{}]))).await.json()["result"].clone();
    grow(&store, 2, 0).await;
    let poll = request(2, "eth_getFilterChanges", json!([id]));
    let logs = request(1, "eth_getLogs", json!([{"fromBlock": "0x5", "toBlock": "0x6"}]));
    let answers = post(address, &format!("[{logs},{poll}]")).await.json();
    assert!(answers[0]["result"].is_array(), "{answers}");
    assert_eq!(answers[1]["error"]["code"], -32003, "{answers}");
    let told = post(address, &poll).await.json();
    assert_eq!(told["result"].as_array().map(Vec::len), Some(4), "{told}");
    assert_eq!(post(address, &poll).await.json()["result"], json!([]));
    server.shutdown().await;
}

#[tokio::test]
async fn pending_transactions_are_refused_since_there_is_no_mempool() {
    let api = api(&five_blocks().await, RpcLimits::default());
    let error = error(&api, "eth_newPendingTransactionFilter", json!([])).await;
    assert!(error.code == -32004 && error.message.contains("mempool"), "{error}");
}
