//! The methods besides `eth_getLogs`: what is absent, what is refused, and how numbers look.

use crate::support;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use cairn_api::eth::{SyncState, Upstream};
use cairn_api::{EthApi, RpcError, RpcLimits};
use cairn_core::{BlockId, Height};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use support::made::{self, log};
use support::{api, ask};

const ROOT: BlockId = BlockId([0xee; 32]);
const NO_HASH: &str = "0x00000000000000000000000000000000000000000000000000000000deadbeef";

async fn error(api: &EthApi, method: &str, params: Value) -> RpcError {
    match ask(api, method, params.clone()).await {
        Err(error) => error,
        Ok(result) => panic!("{method} {params} answered {result}"),
    }
}

/// An archive of blocks 100 to 109, finalised to 105.
async fn middle() -> EthApi {
    let blocks = made::chain(100, 10, ROOT, 0, |_| vec![vec![log(1, &[1], 0)], vec![]]);
    let finalized = blocks[5].block_ref();
    api(&made::store(blocks, Some(finalized)).await, RpcLimits::default())
}

#[tokio::test]
async fn blocks_above_are_null_and_blocks_below_are_pruned() {
    let api = middle().await;
    let by_number: [(&str, Value); 11] = [
        ("eth_getHeaderByNumber", json!(["@"])),
        ("eth_getRawTransactionByBlockNumberAndIndex", json!(["@", "0x0"])),
        ("eth_getBlockByNumber", json!(["@", true])),
        ("eth_getBlockReceipts", json!(["@"])),
        ("eth_getBlockTransactionCountByNumber", json!(["@"])),
        ("eth_getUncleCountByBlockNumber", json!(["@"])),
        ("eth_getUncleByBlockNumberAndIndex", json!(["@", "0x0"])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["@", "0x0"])),
        ("debug_getRawHeader", json!(["@"])),
        ("debug_getRawBlock", json!(["@"])),
        ("debug_getRawReceipts", json!(["@"])),
    ];
    for (method, params) in by_number {
        let at = |block: &str| serde_json::from_str(&params.to_string().replace('@', block)).expect("json");
        assert_eq!(ask(&api, method, at("0x6e")).await.expect("above"), Value::Null, "{method}");
        let below = error(&api, method, at("0x63")).await;
        assert_eq!(
            (below.code, below.data),
            (4444, Some(json!({"firstMissing": "0x63", "begins": "0x64"}))),
            "{method}"
        );
        for wrong in ["99", "0x", "0x063", "", "tip"] {
            assert_eq!(error(&api, method, at(wrong)).await.code, -32602, "{method} {wrong:?}");
        }
    }
    for (tag, number) in [
        ("earliest", "0x64"),
        ("finalized", "0x69"),
        ("safe", "0x69"),
        ("latest", "0x6d"),
        ("pending", "0x6d"),
    ] {
        let block = ask(&api, "eth_getBlockByNumber", json!([tag, false])).await.expect(tag);
        assert_eq!(block["number"], number, "{tag}");
    }
    let hash =
        ask(&api, "eth_getBlockByNumber", json!(["0x65", false])).await.expect("a block")["hash"].clone();
    for named in
        [json!(hash), json!({"blockHash": hash, "requireCanonical": true}), json!({"blockNumber": "0x65"})]
    {
        assert_eq!(
            ask(&api, "eth_getBlockReceipts", json!([named])).await.expect("receipts")[0]["blockNumber"],
            "0x65"
        );
    }
    for (method, params) in [
        ("eth_getBlockByHash", json!([NO_HASH, false])),
        ("eth_getBlockReceipts", json!([NO_HASH])),
        ("eth_getBlockTransactionCountByHash", json!([NO_HASH])),
        ("eth_getUncleCountByBlockHash", json!([NO_HASH])),
        ("eth_getUncleByBlockHashAndIndex", json!([NO_HASH, "0x0"])),
        ("eth_getTransactionByBlockHashAndIndex", json!([NO_HASH, "0x0"])),
        ("eth_getTransactionByBlockHashAndIndex", json!([hash, "0x2"])),
        ("eth_getTransactionByBlockHashAndIndex", json!([hash, "0xffffffffffffffff"])),
        ("eth_getTransactionByHash", json!([NO_HASH])),
        ("eth_getTransactionReceipt", json!([NO_HASH])),
        ("debug_getRawTransaction", json!([NO_HASH])),
        ("eth_getHeaderByHash", json!([NO_HASH])),
        ("eth_getRawTransactionByHash", json!([NO_HASH])),
        ("eth_getRawTransactionByBlockHashAndIndex", json!([NO_HASH, "0x0"])),
        ("eth_getRawTransactionByBlockHashAndIndex", json!([hash, "0x2"])),
        ("eth_getUncleByBlockHashAndIndex", json!([hash, "0x0"])),
    ] {
        assert_eq!(ask(&api, method, params).await.expect(method), Value::Null, "{method}");
    }
}

#[tokio::test]
async fn an_empty_archive_says_so() {
    let api = api(&support::empty_store(1337, Bytes::new()).await, RpcLimits::default());
    for method in ["eth_blockNumber", "eth_baseFee", "eth_blobBaseFee", "eth_config", "eth_capabilities"] {
        let error = error(&api, method, json!([])).await;
        assert!(error.code == -32000 && error.message.contains("empty"), "{method}: {error}");
    }
    assert_eq!(ask(&api, "eth_getBlockByNumber", json!(["latest", false])).await, Ok(Value::Null));
    assert_eq!(ask(&api, "eth_chainId", json!([])).await, Ok(json!("0x539")));
    assert_eq!(ask(&api, "net_version", json!([])).await, Ok(json!("1337")));
    assert_eq!(ask(&api, "eth_syncing", json!([])).await, Ok(json!(false)));
}

#[tokio::test]
async fn unknown_safe_and_finalized_are_their_own_error() {
    let api = api(&made::store(made::chain(0, 3, ROOT, 0, |_| vec![]), None).await, RpcLimits::default());
    for tag in ["safe", "finalized"] {
        assert_eq!(error(&api, "eth_getBlockByNumber", json!([tag, false])).await.code, -39001);
        assert_eq!(error(&api, "eth_getBlockReceipts", json!([tag])).await.code, -39001);
    }
}

#[tokio::test]
async fn parameters_are_read_strictly() {
    let api = middle().await;
    for (method, params) in [
        ("eth_blockNumber", json!([1])),
        ("eth_chainId", json!(["latest"])),
        ("eth_getBlockByNumber", json!([])),
        ("eth_getBlockByNumber", json!(["latest"])),
        ("eth_getBlockByNumber", json!(["latest", null])),
        ("eth_getBlockByNumber", json!(["latest", "true"])),
        ("eth_getBlockByNumber", json!(["latest", true, 1])),
        ("eth_getBlockByNumber", json!([100, true])),
        ("eth_getBlockByNumber", json!({"block": "latest"})),
        ("eth_getBlockByNumber", json!("latest")),
        ("eth_getBlockByHash", json!(["latest", true])),
        ("eth_getBlockByHash", json!(["0x12", true])),
        ("eth_getTransactionByHash", json!([NO_HASH.trim_start_matches("0x")])),
        ("eth_getTransactionByHash", json!([format!("{NO_HASH}00")])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["latest", 0])),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["latest", "0x00"])),
        ("eth_getBlockReceipts", json!([{"blockNumber": "0x65", "blockHash": NO_HASH}])),
        ("eth_getBlockReceipts", json!([{}])),
        ("eth_getLogs", json!([[]])),
        ("eth_getLogs", json!([])),
        ("eth_feeHistory", json!(["0x1", "latest", [50, 10]])),
        ("eth_feeHistory", json!(["0x401", "latest", []])),
        ("eth_feeHistory", json!(["0x1", "latest", [101]])),
        ("web3_sha3", json!(["0x1"])),
    ] {
        assert_eq!(error(&api, method, params.clone()).await.code, -32602, "{method} {params}");
    }
    // Any letter case of a hash will do.
    let hash =
        ask(&api, "eth_getBlockByNumber", json!(["latest", false])).await.expect("a block")["hash"].clone();
    let shouted = hash.as_str().expect("hex").to_uppercase().replace("0X", "0x");
    assert_eq!(
        ask(&api, "eth_getBlockByHash", json!([shouted, false])).await.expect("a block")["hash"],
        hash
    );
    // Absent parameters are none.
    assert!(api.call("eth_blockNumber", None).await.is_ok());
}

#[tokio::test]
async fn deep_nesting_is_refused_with_bounded_work() {
    let api = middle().await;
    for params in [
        "[".repeat(10_000) + &"]".repeat(10_000),
        format!("[{}1{}]", r#"{"a":"#.repeat(10_000), "}".repeat(10_000)),
    ] {
        let params: Box<RawValue> = RawValue::from_string(params).expect("json");
        let error = api.call("eth_getLogs", Some(&params)).await.expect_err("too deep");
        assert!(error.code == -32602 && error.message.contains("recursion"), "{error}");
    }
}

/// Every number that could pass 2^53 is a minimal hex string; data keeps its length.
#[tokio::test(flavor = "multi_thread")]
async fn a05_numbers_are_hex_strings_with_their_digits() {
    let Some(dir) = support::suite_dir() else { return };
    let api = api(&support::suite_store(&dir).await, RpcLimits::default());
    fn check(path: &str, value: &Value) {
        match value {
            Value::Number(number) => panic!("{path} is the number {number}"),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(i, item)| check(&format!("{path}[{i}]"), item))
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    let quantity = field.as_str().and_then(|text| text.strip_prefix("0x"));
                    let is_data = [
                        "hash", "root", "bloom", "address", "data", "input", "topics", "from", "to", "nonce",
                        "miner", "author",
                    ]
                    .iter()
                    .any(|part| name.to_lowercase().contains(part))
                        || quantity.is_some_and(|digits| digits.len() >= 40);
                    if let (false, Some(digits)) = (is_data, quantity) {
                        assert!(digits == "0" || !digits.starts_with('0'), "{path}.{name} is {field}");
                    }
                    check(&format!("{path}.{name}"), field);
                }
            }
            _ => {}
        }
    }
    for height in 0..=0x36u64 {
        let at = format!("0x{height:x}");
        check("block", &ask(&api, "eth_getBlockByNumber", json!([at, true])).await.expect("a block"));
        if height != 2 {
            check("receipts", &ask(&api, "eth_getBlockReceipts", json!([at])).await.expect("receipts"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn views_of_one_block_agree_with_each_other() {
    let Some(dir) = support::suite_dir() else { return };
    let api = api(&support::suite_store(&dir).await, RpcLimits::default());
    let mut uncles = 0;
    for height in 0..=0x36u64 {
        let at = format!("0x{height:x}");
        let block = ask(&api, "eth_getBlockByNumber", json!([at, true])).await.expect("a block");
        let hash = &block["hash"];
        assert_eq!(ask(&api, "eth_getBlockByHash", json!([hash, true])).await.expect("a block"), block);
        let list = block["transactions"].as_array().expect("a list");
        let count = json!(format!("0x{:x}", list.len()));
        assert_eq!(ask(&api, "eth_getBlockTransactionCountByNumber", json!([at])).await, Ok(count.clone()));
        assert_eq!(ask(&api, "eth_getBlockTransactionCountByHash", json!([hash])).await, Ok(count));
        let mut header = block.clone();
        for name in ["size", "transactions", "uncles", "withdrawals"] {
            header.as_object_mut().expect("an object").shift_remove(name);
        }
        assert_eq!(ask(&api, "eth_getHeaderByNumber", json!([at])).await, Ok(header.clone()));
        assert_eq!(ask(&api, "eth_getHeaderByHash", json!([hash])).await, Ok(header));
        let receipts = ask(&api, "eth_getBlockReceipts", json!([hash])).await.expect("receipts");
        let receipts = receipts.as_array().expect("a list");
        assert_eq!(receipts.len(), list.len());
        let logs: Vec<Value> =
            receipts.iter().flat_map(|receipt| receipt["logs"].as_array().expect("logs").clone()).collect();
        assert_eq!(
            ask(&api, "eth_getLogs", json!([{"blockHash": hash}])).await,
            Ok(json!(logs)),
            "block {height}"
        );
        for (i, tx) in list.iter().enumerate().take(5) {
            let index = format!("0x{i:x}");
            assert_eq!(
                &ask(&api, "eth_getTransactionByHash", json!([tx["hash"]])).await.expect("a transaction"),
                tx
            );
            assert_eq!(
                &ask(&api, "eth_getTransactionByBlockHashAndIndex", json!([hash, index]))
                    .await
                    .expect("a transaction"),
                tx
            );
            let raw = ask(&api, "debug_getRawTransaction", json!([tx["hash"]])).await.expect("bytes");
            assert!(raw.as_str().is_some_and(|raw| raw.len() > 100), "{raw}");
            for (method, params) in [
                ("eth_getRawTransactionByHash", json!([tx["hash"]])),
                ("eth_getRawTransactionByBlockHashAndIndex", json!([hash, index])),
                ("eth_getRawTransactionByBlockNumberAndIndex", json!([at, index])),
            ] {
                assert_eq!(ask(&api, method, params).await.as_ref(), Ok(&raw), "{method}");
            }
            assert_eq!(
                ask(&api, "eth_getTransactionReceipt", json!([tx["hash"]])).await.as_ref(),
                Ok(&receipts[i])
            );
        }
        let ommers = block["uncles"].as_array().expect("a list");
        let count = json!(format!("0x{:x}", ommers.len()));
        assert_eq!(ask(&api, "eth_getUncleCountByBlockNumber", json!([at])).await, Ok(count.clone()));
        assert_eq!(ask(&api, "eth_getUncleCountByBlockHash", json!([hash])).await, Ok(count));
        for (i, ommer) in ommers.iter().enumerate() {
            let found = ask(&api, "eth_getUncleByBlockNumberAndIndex", json!([at, format!("0x{i:x}")]))
                .await
                .expect("an ommer");
            assert_eq!(&found["hash"], ommer);
            assert_eq!(
                ask(&api, "eth_getUncleByBlockHashAndIndex", json!([hash, format!("0x{i:x}")])).await,
                Ok(found)
            );
            uncles += 1;
        }
        let beyond = json!([at, format!("0x{:x}", ommers.len())]);
        assert_eq!(ask(&api, "eth_getUncleByBlockNumberAndIndex", beyond).await, Ok(Value::Null));
    }
    assert!(uncles > 0, "the suite's chain has ommers");
}

#[tokio::test(flavor = "multi_thread")]
async fn fee_history_agrees_with_headers_and_the_next_fee() {
    let Some(dir) = support::suite_dir() else { return };
    let api = api(&support::suite_store(&dir).await, RpcLimits::default());
    let history =
        ask(&api, "eth_feeHistory", json!(["0x37", "latest", [0, 50, 100]])).await.expect("a history");
    assert_eq!(history["oldestBlock"], "0x0");
    let fees = history["baseFeePerGas"].as_array().expect("a list");
    assert_eq!((fees.len(), history["reward"].as_array().expect("a list").len()), (0x38, 0x37));
    for (height, fee) in fees[..0x37].iter().enumerate() {
        let block = ask(&api, "eth_getBlockByNumber", json!([format!("0x{height:x}"), false]))
            .await
            .expect("a block");
        assert_eq!(fee, block.get("baseFeePerGas").unwrap_or(&json!("0x0")), "block {height}");
    }
    assert_eq!(fees[0x37], ask(&api, "eth_baseFee", json!([])).await.expect("the next fee"));
    // The fee after a block in the middle is that of the block that came.
    let middle = ask(&api, "eth_feeHistory", json!([1, "0x1b", null])).await.expect("a history");
    assert_eq!(middle["baseFeePerGas"], json!([fees[0x1b], fees[0x1c]]));
    assert!(middle.get("reward").is_none());
    assert_eq!(
        ask(&api, "eth_feeHistory", json!(["0x0", "latest", []])).await,
        Ok(json!({"oldestBlock": "0x0", "gasUsedRatio": null}))
    );
    assert_eq!(error(&api, "eth_feeHistory", json!(["0x1", "0x37", []])).await.code, -32000);
}

#[tokio::test]
async fn fees_of_a_chain_without_a_schedule_are_served_as_far_as_headers_say() {
    let api = middle().await;
    let history =
        ask(&api, "eth_feeHistory", json!(["0x3", "0x6c", []])).await.expect("headers say all of it");
    assert_eq!(history["baseFeePerGas"], json!(["0x7", "0x7", "0x7", "0x7"]));
    let error_of = |error: RpcError| (error.code, error.message.contains("genesis file"));
    // Of the newest blocks too; only the fees of the block that isn't there yet are unknown.
    let history =
        ask(&api, "eth_feeHistory", json!(["0x3", "latest", []])).await.expect("as far as headers say");
    assert_eq!(history["baseFeePerGas"], json!(["0x7", "0x7", "0x7", null]));
    assert_eq!(history["baseFeePerBlobGas"], json!(["0x0", "0x0", "0x0", null]));
    assert_eq!(history["blobGasUsedRatio"], json!([0, 0, 0]));
    assert_eq!(error_of(error(&api, "eth_baseFee", json!([])).await), (-32000, true));
    assert_eq!(error_of(error(&api, "eth_config", json!([])).await), (-32000, true));
    assert_eq!(error(&api, "eth_feeHistory", json!(["0x3", "0x65", []])).await.code, 4444);
}

#[tokio::test]
async fn capabilities_say_where_the_archive_begins() {
    let got = ask(&middle().await, "eth_capabilities", json!([])).await.expect("capabilities");
    assert_eq!(got["head"]["number"], "0x6d");
    for kept in ["tx", "logs", "receipts", "blocks"] {
        assert_eq!(got[kept], json!({"disabled": false, "oldestBlock": "0x64"}));
    }
    assert_eq!(got["state"], json!({"disabled": true}));
    assert_eq!(got["stateproofs"], json!({"disabled": true}));
}

#[tokio::test]
async fn syncing_is_what_the_ingester_says() {
    let state = Arc::new(Mutex::new(Some(SyncState {
        starting: Height(100),
        current: Height(105),
        highest: Height(271),
    })));
    let says = Arc::clone(&state);
    let api = middle().await.with_syncing(Arc::new(move || *says.lock().expect("lock")));
    assert_eq!(
        ask(&api, "eth_syncing", json!([])).await,
        Ok(json!({"startingBlock": "0x64", "currentBlock": "0x69", "highestBlock": "0x10f"}))
    );
    *state.lock().expect("lock") = None;
    assert_eq!(ask(&api, "eth_syncing", json!([])).await, Ok(json!(false)));
}

#[tokio::test]
async fn small_methods() {
    let api = middle().await;
    assert_eq!(ask(&api, "eth_blockNumber", json!([])).await, Ok(json!("0x6d")));
    assert_eq!(ask(&api, "net_listening", json!([])).await, Ok(json!(true)));
    assert_eq!(ask(&api, "net_peerCount", json!([])).await, Ok(json!("0x0")));
    let version = ask(&api, "web3_clientVersion", json!([])).await.expect("a version");
    assert!(version.as_str().expect("text").starts_with("cairn/v"), "{version}");
    assert_eq!(
        ask(&api, "web3_sha3", json!(["0x68656c6c6f20776f726c64"])).await,
        Ok(json!("0x47173285a8d7341e5e972fc677286384f802f8ef42a5ec5f03bbfa254cb01fad"))
    );
    assert_eq!(ask(&api, "rpc_modules", json!([])).await.expect("modules")["eth"], "1.0");
    for method in ["eth_nothing", "", "ETH_BLOCKNUMBER", "engine_newPayloadV4", "trace_block", "eth_getWork"]
    {
        assert_eq!(error(&api, method, json!([])).await.code, -32601, "{method:?}");
    }
    for method in ["eth_subscribe", "eth_unsubscribe"] {
        assert_eq!(error(&api, method, json!(["newHeads"])).await.code, -32601);
    }
}

/// Repeats what it was asked.
struct Echo;

#[async_trait]
impl Upstream for Echo {
    async fn forward(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
        if method == "eth_estimateGas" {
            return Err(RpcError {
                code: 3,
                message: "execution reverted".into(),
                data: Some(json!("0x08c379a0")),
            });
        }
        let text = format!(r#"["{method}",{}]"#, params.map_or("null", RawValue::get));
        Ok(RawValue::from_string(text).expect("json"))
    }
}

#[tokio::test]
async fn state_is_refused_in_one_way_or_forwarded_unchanged() {
    let methods = [
        "eth_call",
        "eth_getBalance",
        "eth_getCode",
        "eth_getStorageAt",
        "eth_getProof",
        "eth_createAccessList",
        "eth_getTransactionCount",
        "eth_sendRawTransaction",
        "eth_simulateV1",
        "txpool_status",
        "txpool_content",
        "eth_gasPrice",
        "eth_maxPriorityFeePerGas",
        "debug_traceCall",
    ];
    let alone = middle().await;
    for method in methods {
        let error = error(&alone, method, json!([])).await;
        assert_eq!(error.code, -32004);
        assert!(error.message.contains("keeps none") && error.message.contains("serve.upstream"), "{error}");
    }
    let forwarding = middle().await.with_upstream(Arc::new(Echo));
    // Digits, spaces and order reach the upstream as they were written.
    let params: Box<RawValue> =
        RawValue::from_string(r#"[{"b":1e400,  "a":12345678901234567890123}]"#.into()).expect("json");
    for method in methods {
        let response = forwarding.call(method, Some(&params)).await.expect(method);
        assert_eq!(
            std::str::from_utf8(response.json()).expect("text"),
            format!(r#"["{method}",{}]"#, params.get())
        );
    }
    let reverted = error(&forwarding, "eth_estimateGas", json!([])).await;
    assert_eq!((reverted.code, reverted.data), (3, Some(json!("0x08c379a0"))));
    // What is answered here is never forwarded.
    assert_eq!(ask(&forwarding, "eth_blockNumber", json!([])).await, Ok(json!("0x6d")));
    assert_eq!(error(&forwarding, "eth_nothing", json!([])).await.code, -32601);
}

#[tokio::test]
async fn call_frames_are_served_as_they_were_archived() {
    let mut blocks = made::chain(0, 3, ROOT, 0, |height| vec![vec![]; height as usize * 2]);
    let ids: Vec<String> = blocks[2].transactions.iter().map(|tx| tx.id.to_string()).collect();
    let frame = |gas: u64| {
        format!(r#"{{"type":"CALL","gas":"0x{gas:x}","calls":[{{"type":"CREATE"}}],"input":"0x"}}"#)
    };
    let entry = |i: usize| format!(r#"{{"txHash":"{}","result":{}}}"#, ids[i], frame(i as u64));
    let traces = format!("[{},{},{},{}]", entry(0), entry(1), entry(2), entry(3));
    blocks[2].traces = Some(Bytes::from(traces.clone()));
    let (hash, untraced) = (blocks[2].facts.id, blocks[1].transactions[0].id);
    let store = made::store(blocks, None).await;
    let alone = api(&store, RpcLimits::default());
    let call_tracer = json!({"tracer": "callTracer"});
    for (method, at) in [
        ("debug_traceBlockByNumber", json!("0x2")),
        ("debug_traceBlockByNumber", json!("latest")),
        ("debug_traceBlockByHash", json!(hash)),
    ] {
        let params: Box<RawValue> =
            RawValue::from_string(json!([at, call_tracer]).to_string()).expect("json");
        assert_eq!(alone.call(method, Some(&params)).await.expect(method).json().as_ref(), traces.as_bytes());
    }
    let one = ask(&alone, "debug_traceTransaction", json!([ids[3], call_tracer])).await.expect("a trace");
    assert_eq!(one, serde_json::from_str::<Value>(&frame(3)).expect("json"));
    let top = json!({"tracer": "callTracer", "tracerConfig": {"onlyTopCall": true}});
    let one = ask(&alone, "debug_traceTransaction", json!([ids[1], top])).await.expect("a trace");
    assert_eq!(one, json!({"type": "CALL", "gas": "0x1", "input": "0x"}));
    let all = ask(&alone, "debug_traceBlockByNumber", json!(["0x2", top])).await.expect("traces");
    assert_eq!((all[3]["txHash"].as_str(), all[3]["result"].get("calls")), (Some(ids[3].as_str()), None));

    for (method, params) in [
        ("debug_traceBlockByNumber", json!(["0x2", {"tracer": "prestateTracer"}])),
        ("debug_traceBlockByNumber", json!(["0x2", {"disableStack": true}])),
        ("debug_traceBlockByNumber", json!(["0x2"])),
        (
            "debug_traceTransaction",
            json!([ids[0], {"tracer": "callTracer", "tracerConfig": {"withLog": true}}]),
        ),
    ] {
        let error = error(&alone, method, params.clone()).await;
        assert!(error.code == -32000 && error.message.contains("callTracer"), "{method} {params}: {error}");
    }
    for (method, params) in [
        ("debug_traceBlockByNumber", json!(["0x1", call_tracer])),
        ("debug_traceTransaction", json!([untraced, call_tracer])),
    ] {
        let error = error(&alone, method, params).await;
        assert!(error.code == -32000 && error.message.contains("block 1 were not archived"), "{error}");
    }
    for (method, params, words) in [
        ("debug_traceBlockByNumber", json!(["0x0", call_tracer]), "genesis is not traceable"),
        ("debug_traceBlockByNumber", json!(["0x9", call_tracer]), "block 0x9 not found"),
        ("debug_traceBlockByHash", json!([NO_HASH, call_tracer]), "not found"),
        ("debug_traceTransaction", json!([NO_HASH, call_tracer]), "transaction not found"),
    ] {
        let error = error(&alone, method, params).await;
        assert!(error.code == -32000 && error.message.contains(words), "{error}");
    }
    assert_eq!(error(&alone, "debug_traceBlockByNumber", json!(["0x2", "callTracer"])).await.code, -32602);

    // An upstream re-executes what isn't archived.
    let forwarding = api(&store, RpcLimits::default()).with_upstream(Arc::new(Echo));
    assert_eq!(
        ask(&forwarding, "debug_traceBlockByNumber", json!(["0x2"])).await,
        Ok(json!(["debug_traceBlockByNumber", ["0x2"]]))
    );
    assert_eq!(
        ask(&forwarding, "debug_traceTransaction", json!([untraced, call_tracer])).await,
        Ok(json!(["debug_traceTransaction", [untraced, call_tracer]]))
    );
}

#[tokio::test]
async fn an_answer_over_the_size_limit_is_an_error() {
    let blocks = made::chain(0, 2, ROOT, 0, |_| vec![vec![log(1, &[1], 5000)]]);
    let api =
        api(&made::store(blocks, None).await, RpcLimits { max_response_bytes: 8000, ..RpcLimits::default() });
    for (method, params) in
        [("eth_getBlockReceipts", json!(["0x1"])), ("debug_getRawReceipts", json!(["0x1"]))]
    {
        let error = error(&api, method, params).await;
        assert!(error.code == -32003 && error.message.contains("8000"), "{error}");
    }
}

fn any_params() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "0x[0-9a-f]{0,66}".prop_map(Value::from),
        "\\PC{0,10}".prop_map(Value::from),
        proptest::sample::select(vec![
            "latest",
            "earliest",
            "pending",
            "safe",
            "finalized",
            "0x0",
            "0x65",
            "0x6d",
            "0x6e",
            NO_HASH,
            "callTracer"
        ])
        .prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 16, 4, |inner| {
        let key = proptest::sample::select(vec![
            "address",
            "topics",
            "fromBlock",
            "toBlock",
            "blockHash",
            "blockNumber",
            "requireCanonical",
            "tracer",
            "tracerConfig",
            "x",
        ]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key, inner), 0..4)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    });
    prop_oneof![proptest::collection::vec(value.clone(), 0..4).prop_map(Value::from), value]
}

/// No parameters make the server fail: they are answered, or refused by a code that says what is wrong with them.
#[test]
fn any_parameters_are_answered_or_refused() {
    use proptest::strategy::{Strategy, ValueTree};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let api = middle().await;
        let methods: Vec<&str> = cairn_api::eth::methods::served().collect();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let params = any_params();
        for _ in 0..600 {
            let params = params.new_tree(&mut runner).expect("a value").current();
            for method in &methods {
                if let Err(error) = ask(&api, method, params.clone()).await {
                    let fine = [-32602, -32601, -32000, -39001, 4444];
                    assert!(fine.contains(&error.code), "{method} {params}: {error}");
                }
            }
        }
    });
}
