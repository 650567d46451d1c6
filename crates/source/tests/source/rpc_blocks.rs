//! Blocks and receipts from mock nodes: what is asked, in which way, and what is made of odd answers.

use crate::support;

use std::collections::HashMap;
use std::time::Duration;

use cairn_core::{Height, HeightRange, RawBlock};
use cairn_evm::{ChainProfile, Checks};
use cairn_source::evm::rpc::RpcSource;
use cairn_source::{ChainSource, SourceError};
use serde_json::{Value, json};
use support::{CallIn, CallOut, HttpOut, MockNode, chain, config, source};

fn range(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

/// Asks until the range is whole or an answer is empty.
async fn all(source: &RpcSource, range: HeightRange) -> Vec<RawBlock> {
    let mut blocks: Vec<RawBlock> = Vec::new();
    loop {
        let at = Height(range.start().get() + blocks.len() as u64);
        let more = source.blocks(HeightRange::new(at, range.end())).await.unwrap();
        assert!(at.get() + more.len() as u64 <= range.end().get(), "never more than was asked for");
        if more.is_empty() {
            return blocks;
        }
        blocks.extend(more);
    }
}

#[tokio::test]
async fn blocks_come_as_the_chain_has_them_with_receipts_by_hash() {
    let node = MockNode::start(chain(1), 40).await;
    let source = source(&[&node]).await;
    assert_eq!(source.chain_id().await.unwrap(), node.state().chain.chain_id());
    node.take_seen();
    assert_eq!(all(&source, range(0, 41)).await, node.blocks(0..41));
    let receipts = node.take_calls("eth_getBlockReceipts");
    assert!(receipts.iter().all(|call| call.params[0].as_str().unwrap().len() == 66), "by block hash");
    assert!(receipts.len() >= 40);
    assert_eq!(source.linked_ref(Height(7)).await.unwrap(), Some(node.block(7).facts.linked_ref()));
    assert_eq!(source.linked_ref(Height(41)).await.unwrap(), None);
    assert!(source.blocks(range(5, 5)).await.unwrap().is_empty());
    assert!(source.preferred_heights() >= 8);
}

#[tokio::test]
async fn e01_null_for_an_announced_height_is_not_yet() {
    let node = MockNode::start(chain(2), 100).await;
    let source = source(&[&node]).await;
    source.heads().await.unwrap();
    node.on_call(|call| {
        let early = call.method == "eth_getBlockByNumber" && call.height(0) == Some(100) && call.before < 3;
        early.then_some(CallOut::Result(Value::Null))
    });
    node.take_seen();
    assert_eq!(source.blocks(range(100, 101)).await.unwrap(), [node.block(100)]);
    // For ever null: an empty answer after a bounded number of tries, and no error.
    node.on_call(|call| (call.method == "eth_getBlockByNumber").then_some(CallOut::Result(Value::Null)));
    node.take_seen();
    assert!(source.blocks(range(99, 101)).await.unwrap().is_empty());
    assert!(node.take_seen().len() <= 5);
    // Above the announced head it isn't waited for.
    assert!(source.blocks(range(101, 103)).await.unwrap().is_empty());
    assert_eq!(node.take_seen().len(), 1);
    // In the middle of a range: what is there is worth having now.
    node.on_call(|call| {
        (call.method == "eth_getBlockByNumber" && call.height(0) == Some(98))
            .then_some(CallOut::Result(Value::Null))
    });
    assert_eq!(source.blocks(range(95, 100)).await.unwrap(), node.blocks(95..98));
}

#[tokio::test]
async fn e01_another_endpoint_has_the_block() {
    let (slow, quick) = (MockNode::start(chain(2), 100).await, MockNode::start(chain(2), 100).await);
    let source = source(&[&slow, &quick]).await;
    slow.on_call(|call| {
        let hidden = call.method == "eth_getBlockByNumber" && call.height(0) == Some(100);
        hidden.then_some(CallOut::Error(-32000, "header not found"))
    });
    assert_eq!(source.blocks(range(100, 101)).await.unwrap(), [quick.block(100)]);
}

#[tokio::test]
async fn e03_wrongly_empty_receipts_are_asked_for_again() {
    let node = MockNode::start(chain(3), 10).await;
    let source = source(&[&node]).await;
    node.on_call(|call| {
        (call.method == "eth_getBlockReceipts" && call.before < 2).then_some(CallOut::Result(json!([])))
    });
    assert_eq!(source.blocks(range(5, 6)).await.unwrap(), [node.block(5)]);
    // Short, null, of another block, and for ever empty, one by one too: never a block, always an error that names the check.
    let (_, others) = node.json(6);
    let other = others[0].clone();
    for wrong in [json!([]), Value::Null, json!([node.json(5).1[0]]), Value::Array(others)] {
        let (answer, other) = (wrong.clone(), other.clone());
        node.on_call(move |call| match call.method.as_str() {
            "eth_getBlockReceipts" => Some(CallOut::Result(answer.clone())),
            "eth_getTransactionReceipt" => Some(CallOut::Result(other.clone())),
            _ => None,
        });
        match source.blocks(range(5, 6)).await {
            Err(SourceError::Inconsistent { height: Height(5), check, .. }) => assert_eq!(check, "receipts"),
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn e03_the_second_endpoint_settles_a_doubt() {
    let (empty, whole) = (MockNode::start(chain(3), 10).await, MockNode::start(chain(3), 10).await);
    let without_logs = |node: &MockNode| {
        let mut receipts = node.json(5).1;
        for receipt in &mut receipts {
            receipt["logs"] = json!([]);
            receipt["logsBloom"] = json!(format!("0x{}", "00".repeat(256)));
        }
        receipts
    };
    assert!(node_has_logs(&whole, 5));
    let stripped = without_logs(&empty);
    empty.on_call(move |call| match call.method.as_str() {
        "eth_getBlockReceipts" => Some(CallOut::Result(json!(stripped))),
        "eth_getTransactionReceipt" => {
            let of_it = stripped.iter().find(|receipt| receipt["transactionHash"] == call.params[0]);
            Some(CallOut::Result(json!(of_it)))
        }
        _ => None,
    });
    let both = source(&[&empty, &whole]).await;
    empty.take_seen();
    assert_eq!(both.blocks(range(5, 6)).await.unwrap(), [whole.block(5)]);
    assert!(empty.take_calls("eth_getBlockReceipts").len() >= 2, "the first one was asked again before");
    // Alone, it is taken at its word in the end: the receipts root is what decides, in the verifier.
    let alone = source(&[&empty]).await;
    let blocks = alone.blocks(range(5, 6)).await.unwrap();
    assert_eq!((blocks.len(), blocks[0].facts.log_count), (1, 0));
}

fn node_has_logs(node: &MockNode, height: u64) -> bool {
    node.block(height).facts.log_count > 0
}

#[tokio::test]
async fn receipts_are_asked_for_by_number_where_a_hash_is_refused() {
    let node = MockNode::start(chain(4), 20).await;
    let source = source(&[&node]).await;
    node.on_call(|call| {
        let by_hash = call.method == "eth_getBlockReceipts" && call.params[0].as_str().unwrap().len() == 66;
        by_hash.then_some(CallOut::Error(-32602, "invalid argument 0: hex number > 64 bits"))
    });
    assert_eq!(all(&source, range(1, 11)).await, node.blocks(1..11));
    node.take_seen();
    assert_eq!(all(&source, range(11, 21)).await, node.blocks(11..21));
    let calls = node.take_calls("eth_getBlockReceipts");
    assert!(calls.iter().all(|call| call.params[0].as_str().unwrap().len() < 66), "remembered");
    // By number, the receipts of another fork have to be noticed.
    let mut foreign = node.json(5).1;
    foreign.iter_mut().for_each(|receipt| receipt["blockHash"] = json!(format!("0x{}", "ab".repeat(32))));
    node.on_call(move |call| match call.method.as_str() {
        "eth_getBlockReceipts" => Some(CallOut::Result(json!(foreign))),
        "eth_getTransactionReceipt" => Some(CallOut::Result(json!(foreign[0]))),
        _ => None,
    });
    assert!(matches!(source.blocks(range(5, 6)).await, Err(SourceError::Inconsistent { .. })));
}

#[tokio::test]
async fn receipts_are_asked_for_one_by_one_where_the_method_is_missing() {
    let node = MockNode::start(chain(5), 20).await;
    let source = source(&[&node]).await;
    node.on_call(|call| {
        (call.method == "eth_getBlockReceipts").then_some(CallOut::Error(-32601, "Method not found"))
    });
    assert_eq!(all(&source, range(1, 11)).await, node.blocks(1..11));
    node.take_seen();
    assert_eq!(all(&source, range(11, 21)).await, node.blocks(11..21));
    assert!(node.take_calls("eth_getBlockReceipts").is_empty(), "remembered");
}

#[tokio::test]
async fn e13_a_narrow_node_is_asked_for_every_block_once() {
    let node = MockNode::start(chain(6), 10).await;
    let source = source(&[&node]).await;
    node.on_http(|calls| {
        (calls.len() > 3).then(|| {
            HttpOut::Status(400, vec![], r#"{"error":{"code":-32600,"message":"batch too large"}}"#.into())
        })
    });
    node.take_seen();
    assert_eq!(all(&source, range(1, 11)).await, node.blocks(1..11));
    let seen = node.take_seen();
    let mut answered: HashMap<u64, usize> = HashMap::new();
    for call in seen.iter().filter(|seen| seen.calls.len() <= 3).flat_map(|seen| &seen.calls) {
        if call.method == "eth_getBlockByNumber" {
            *answered.entry(call.height(0).unwrap()).or_default() += 1;
        }
    }
    assert_eq!(answered.len(), 10);
    assert!(answered.iter().all(|(height, count)| (1..=10).contains(height) && *count == 1), "{answered:?}");
    // The width is remembered: nothing too wide is asked again soon.
    assert_eq!(all(&source, range(1, 11)).await, node.blocks(1..11));
    assert!(node.take_seen().iter().all(|seen| seen.calls.len() <= 3));
}

/// What becomes of a batch that takes too long.
type Late = fn(&[CallIn]) -> HttpOut;

#[tokio::test]
async fn i08_what_timed_out_is_asked_again_in_halves() {
    let gateway: Late = |_| HttpOut::Status(504, vec![], "<html>Gateway Time-out</html>".into());
    let silence: Late = |_| HttpOut::Hang(Duration::from_secs(10));
    let each: Late = |calls| {
        let error = json!({"code": -32002, "message": "request timed out"});
        let answers = calls.iter().map(|call| json!({"jsonrpc": "2.0", "id": call.id, "error": error}));
        HttpOut::Body(vec![], serde_json::to_vec(&answers.collect::<Vec<_>>()).unwrap())
    };
    for (name, late, most) in [("504", gateway, 1), ("silence", silence, 4), ("each item", each, 2)] {
        let node = MockNode::start(chain(6), 10).await;
        let mut config = config(&[&node]);
        config.limits.request_timeout_ms = 1_000;
        assert_eq!(config.limits.initial_batch_items, 8);
        let source = RpcSource::connect(config).await.unwrap();
        node.on_http(move |calls| (calls.len() > most).then(|| late(calls)));
        node.take_seen();
        assert_eq!(all(&source, range(1, 9)).await, node.blocks(1..9), "{name}");
        // How many went with it each time, of each block and of each one's receipts.
        let mut widths: HashMap<(String, String), Vec<usize>> = HashMap::new();
        for seen in node.take_seen() {
            for call in &seen.calls {
                if call.height(0).is_some() || call.method == "eth_getBlockReceipts" {
                    let item = (call.method.clone(), call.params[0].to_string());
                    widths.entry(item).or_default().push(seen.calls.len());
                }
            }
        }
        assert_eq!(widths.len(), 16, "{name}: {widths:?}");
        for (item, widths) in widths {
            assert_eq!(widths[0], 8, "{name}: {item:?}");
            assert!(widths.windows(2).all(|pair| pair[1] <= pair[0] / 2), "{name}: {item:?}: {widths:?}");
            assert!(*widths.last().unwrap() <= most, "{name}: {item:?}: {widths:?}");
        }
    }
}

#[tokio::test]
async fn a_node_without_batches_is_served_by_single_calls() {
    let node = MockNode::start(chain(6), 10).await;
    let source = source(&[&node]).await;
    node.on_http(|calls| {
        (calls.len() > 1).then(|| {
            HttpOut::Status(
                200,
                vec![],
                r#"{"id":null,"error":{"code":-32600,"message":"Invalid Request"}}"#.into(),
            )
        })
    });
    assert_eq!(all(&source, range(1, 11)).await, node.blocks(1..11));
}

#[tokio::test]
async fn e14_an_oversized_block_is_asked_for_in_narrower_ways() {
    let node = MockNode::start(chain(7), 10).await;
    let source = source(&[&node]).await;
    node.on_call(|call| {
        let by_hash = call.params.first().and_then(Value::as_str).is_some_and(|text| text.len() == 66);
        let seven = call.height(0) == Some(7) || by_hash;
        let whole = call.method == "eth_getBlockReceipts"
            || (call.method == "eth_getBlockByNumber" && call.params[1] == json!(true));
        (whole && seven).then_some(CallOut::Error(-32005, "query returned more than 10000 results"))
    });
    node.take_seen();
    assert_eq!(all(&source, range(6, 9)).await, node.blocks(6..9));
    for seen in node.take_seen() {
        for call in seen.calls.iter().filter(|call| call.method == "eth_getBlockByNumber") {
            assert!((6..9).contains(&call.height(0).unwrap()), "outside of what was asked for: {call:?}");
        }
    }
    // Not even the narrowest way helps: an error, and no loop without end.
    node.on_call(|call| {
        (call.method != "eth_chainId").then_some(CallOut::Error(-32005, "response size exceeded"))
    });
    let error = source.blocks(range(7, 8)).await.unwrap_err();
    assert!(matches!(error.cause(), SourceError::TooWide { .. }), "{error}");
    assert!(node.take_seen().len() < 10);
}

#[tokio::test]
async fn e16_only_failed_items_are_asked_for_again() {
    let node = MockNode::start(chain(8), 10).await;
    let source = source(&[&node]).await;
    let mut first = true;
    node.on_call(move |call| {
        if call.method != "eth_getBlockByNumber" || !first {
            return None;
        }
        match call.height(0) {
            Some(3) => Some(CallOut::Error(429, "too many requests")),
            Some(5) => {
                first = false;
                Some(CallOut::Nothing)
            }
            _ => None,
        }
    });
    node.arrange(|answers| answers.reverse());
    node.take_seen();
    assert_eq!(source.blocks(range(2, 6)).await.unwrap(), node.blocks(2..6));
    let asked: Vec<Vec<u64>> = node
        .take_seen()
        .iter()
        .filter(|seen| seen.calls[0].method == "eth_getBlockByNumber")
        .map(|seen| seen.calls.iter().map(|call| call.height(0).unwrap()).collect())
        .collect();
    assert_eq!(asked, [vec![2, 3, 4, 5], vec![3, 5]]);
}

#[tokio::test]
async fn e16_one_error_for_the_lot_fails_and_retries_all() {
    let node = MockNode::start(chain(8), 10).await;
    let source = source(&[&node]).await;
    let mut failures = 0;
    node.on_http(move |calls| {
        failures += 1;
        (calls.len() > 1 && failures <= 2).then(|| {
            HttpOut::Status(
                200,
                vec![],
                r#"{"id":null,"error":{"code":-32603,"message":"internal error"}}"#.into(),
            )
        })
    });
    assert_eq!(source.blocks(range(2, 6)).await.unwrap(), node.blocks(2..6));
}

#[tokio::test]
async fn e17_only_what_links_is_returned() {
    use cairn_source::evm::synthetic::{ForkId, ForkOptions};
    let node = MockNode::start(chain(9), 20).await;
    let fork = node.state().chain.clone().fork_at((ForkId::MAIN, Height(5)), ForkOptions::new(1));
    let source = source(&[&node]).await;
    let other: Vec<Value> = {
        let mut state = node.state();
        state.fork = fork;
        let blocks = (0..=20).map(|height| state.json(height).0).collect();
        state.fork = ForkId::MAIN;
        blocks
    };
    // From 11 on the node has moved to the other fork.
    node.on_call(move |call| {
        let height =
            call.height(0).filter(|height| *height >= 11 && call.method == "eth_getBlockByNumber")?;
        Some(CallOut::Result(other[height as usize].clone()))
    });
    assert_eq!(source.blocks(range(9, 14)).await.unwrap(), node.blocks(9..11));
}

#[tokio::test]
async fn unknown_types_are_asked_for_as_bytes_where_a_node_gives_them() {
    let node = MockNode::start(chain(10), 10).await;
    let mut config = config(&[&node]);
    config.profile = ChainProfile::relaxing(Checks::HEADER_HASH | Checks::TRANSACTIONS_ROOT);
    let source = RpcSource::connect(config).await.unwrap();
    let raw = "0x5f01c0ffee";
    let hash = alloy_primitives::keccak256(alloy_primitives::hex::decode(raw).unwrap()).to_string();
    let (mut block, mut receipts) = node.json(4);
    block["transactions"][0]["type"] = json!("0x5F");
    block["transactions"][0]["sourceHash"] = json!("0x01");
    block["transactions"][0]["hash"] = json!(hash);
    receipts[0]["type"] = json!("0x5f");
    receipts[0]["transactionHash"] = json!(hash);
    for log in receipts[0]["logs"].as_array_mut().unwrap() {
        log["transactionHash"] = json!(hash);
    }
    node.on_call(move |call| match call.method.as_str() {
        "eth_getBlockByNumber" => Some(CallOut::Result(block.clone())),
        "eth_getBlockReceipts" => Some(CallOut::Result(json!(receipts))),
        "eth_getRawTransactionByHash" => Some(CallOut::Result(json!(raw))),
        _ => None,
    });
    node.take_seen();
    let blocks = source.blocks(range(4, 5)).await.unwrap();
    assert_eq!(blocks.len(), 1);
    let bytes = alloy_primitives::hex::decode(raw).unwrap();
    assert!(blocks[0].body.windows(bytes.len()).any(|window| window == bytes), "its bytes are in the body");
    assert_eq!(node.take_calls("debug_getRawTransaction").len(), 1);
    source.blocks(range(4, 5)).await.unwrap();
    assert!(node.take_calls("debug_getRawTransaction").is_empty(), "the lack is remembered");
}

#[tokio::test]
async fn traces_come_with_their_block() {
    let node = MockNode::start(chain(11), 10).await;
    let mut config = config(&[&node]);
    config.traces = true;
    let source = RpcSource::connect(config).await.unwrap();
    let blocks = source.blocks(range(1, 5)).await.unwrap();
    assert_eq!(blocks.len(), 4);
    for block in &blocks {
        let traces: Vec<Value> = serde_json::from_slice(block.traces.as_ref().unwrap()).unwrap();
        assert_eq!(traces.len(), block.transactions.len());
        assert_eq!(traces[0]["txHash"], json!(block.transactions[0].id.to_string()));
    }
    // Too large for one answer: one by one.
    node.on_call(|call| {
        (call.method == "debug_traceBlockByHash").then_some(CallOut::Error(-32008, "response is too big"))
    });
    assert_eq!(source.blocks(range(1, 5)).await.unwrap()[0].traces, blocks[0].traces);
}

#[tokio::test]
async fn malformed_and_deep_answers_are_errors() {
    let node = MockNode::start(chain(12), 10).await;
    let source = source(&[&node]).await;
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    for body in [
        "",
        "<html>no</html>",
        "{\"id\":",
        "[]",
        "\u{feff}",
        &format!(r#"{{"id":1,"result":{deep}}}"#),
        &deep,
    ] {
        let body = body.to_owned();
        node.on_http(move |_| Some(HttpOut::Body(vec![], body.clone().into_bytes())));
        assert!(source.blocks(range(1, 2)).await.is_err());
    }
    node.on_http(|_| Some(HttpOut::Body(vec![], vec![0xff; 100])));
    assert!(source.blocks(range(1, 2)).await.is_err());
    node.well();
    assert_eq!(source.blocks(range(1, 2)).await.unwrap(), [node.block(1)]);
    // A block of another height, and one without a hash.
    for wrong in [node.json(2).0, json!({"number": "0x1"}), json!(7)] {
        node.on_call(move |call| {
            (call.method == "eth_getBlockByNumber").then(|| CallOut::Result(wrong.clone()))
        });
        assert!(matches!(
            source.blocks(range(1, 2)).await,
            Err(SourceError::Inconsistent { height: Height(1), .. })
        ));
    }
}
