//! Refusals, narrower ways after wide ones that fail, and data that is optional.

#![allow(clippy::type_complexity, reason = "tables of cases")]

use crate::support;

use std::time::Duration;

use cairn_core::{ErrorKind, Height, HeightRange, RawBlock};
use cairn_evm::{ChainProfile, Checks};
use cairn_source::evm::rpc::RpcSource;
use cairn_source::verify::{Verified, VerifyOptions};
use cairn_source::{ChainSource, SourceError};
use serde_json::{Value, json};
use support::{CallIn, CallOut, HttpOut, MockNode, chain, config, source};

fn range(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

/// Asks until the range is whole.
async fn all(source: &RpcSource, range: HeightRange) -> Vec<RawBlock> {
    let mut blocks: Vec<RawBlock> = Vec::new();
    while (blocks.len() as u64) < range.len() {
        let at = Height(range.start().get() + blocks.len() as u64);
        let more = source.blocks(HeightRange::new(at, range.end())).await.unwrap();
        assert!(!more.is_empty(), "nothing at {at}");
        blocks.extend(more);
    }
    blocks
}

fn error(status: u16, code: i64, text: &'static str) -> HttpOut {
    HttpOut::Status(status, vec![], json!({"id": null, "error": {"code": code, "message": text}}).to_string())
}

/// A connection that ends in the middle of an answer's head.
fn closed() -> HttpOut {
    HttpOut::Status(200, vec![("content-length", "1000".into())], "{".into())
}

#[tokio::test]
async fn k1_no_refusal_is_for_ever() {
    let page = || "<html><body>Attention Required</body></html>".to_owned();
    let refusals: Vec<(&str, Box<dyn Fn() -> HttpOut + Send>)> = vec![
        ("HTTP 401", Box::new(move || HttpOut::Status(401, vec![], page()))),
        ("HTTP 402", Box::new(|| HttpOut::Status(402, vec![], "payment required".into()))),
        ("HTTP 403", Box::new(|| error(403, -32052, "API key is not allowed to access method"))),
        ("HTTP 404", Box::new(|| HttpOut::Status(404, vec![], "404 page not found".into()))),
        ("HTTP 410", Box::new(|| HttpOut::Status(410, vec![], String::new()))),
        ("HTTP 302", Box::new(|| HttpOut::Status(302, vec![("location", "/login".into())], String::new()))),
        ("-32600", Box::new(|| error(200, -32600, "Invalid Request"))),
        ("-32601", Box::new(|| error(200, -32601, "the method is not available"))),
        ("-32602", Box::new(|| error(200, -32602, "too few arguments"))),
        ("-32700", Box::new(|| error(400, -32700, "Parse error"))),
        ("4444", Box::new(|| error(200, 4444, "pruned history unavailable"))),
        ("plan", Box::new(|| error(200, -32053, "archive requests need a paid plan"))),
        ("Attention", Box::new(move || HttpOut::Status(200, vec![], page()))),
    ];
    for (word, refusal) in refusals {
        let node = MockNode::start(chain(1), 10).await;
        let source = source(&[&node]).await;
        source.heads().await.unwrap();
        node.on_http(move |_| Some(refusal()));
        let errors = [
            source.heads().await.unwrap_err(),
            source.linked_ref(Height(3)).await.unwrap_err(),
            source.blocks(range(3, 6)).await.unwrap_err(),
        ];
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::Retry, "{word}: {error}");
            let text = error.to_string();
            assert!(text.contains(word) && text.contains("http://127.0.0.1:"), "{word}: {text}");
        }
        assert_eq!((errors[1].height(), errors[2].height()), (Some(Height(3)), Some(Height(3))));
        // A node that was away is asked for its chain first.
        assert!(errors[2].to_string().contains("eth_"), "{}", errors[2]);
        node.well();
        assert_eq!(all(&source, range(3, 6)).await, node.blocks(3..6), "{word}");
        assert_eq!(source.heads().await.unwrap().latest.block.height, Height(10), "{word}");
    }
}

#[tokio::test]
async fn k3_receipts_are_asked_for_one_by_one_whatever_the_wide_call_answers() {
    let node = MockNode::start(chain(2), 30).await;
    let (_, five) = node.json(5);
    let (_, six) = node.json(6);
    let answers: Vec<(&str, CallOut)> = vec![
        ("null", CallOut::Result(Value::Null)),
        ("empty", CallOut::Result(json!([]))),
        ("too short", CallOut::Result(json!([five[0]]))),
        ("too long", CallOut::Result(json!(five.iter().chain(&five[..1]).collect::<Vec<_>>()))),
        ("another block's", CallOut::Result(json!(six))),
        ("no list", CallOut::Result(json!({"receipts": five}))),
        ("a text", CallOut::Result(json!("error"))),
        ("nulls", CallOut::Result(json!([null, null]))),
        (
            "a count",
            CallOut::Error(
                -32000,
                "transaction and receipt count mismatch, tx count = 2, receipts count = 1",
            ),
        ),
        ("internal", CallOut::Error(-32603, "internal error")),
        ("missing", CallOut::Error(-32601, "the method does not exist/is not available")),
        ("refused", CallOut::Error(-32600, "not on your plan")),
        ("pruned", CallOut::Error(4444, "pruned history unavailable")),
        ("limited", CallOut::Error(-32005, "limit exceeded")),
        ("left out", CallOut::Nothing),
    ];
    for (name, answer) in answers {
        let source = source(&[&node]).await;
        node.on_call(move |call| (call.method == "eth_getBlockReceipts").then(|| answer.clone()));
        assert_eq!(all(&source, range(5, 8)).await, node.blocks(5..8), "{name}");
    }
    let whole: Vec<(&str, Box<dyn Fn(&[CallIn]) -> HttpOut + Send>)> = vec![
        ("400", Box::new(|_| HttpOut::Status(400, vec![], String::new()))),
        ("403", Box::new(|_| HttpOut::Status(403, vec![], "<html>".into()))),
        ("500", Box::new(|_| HttpOut::Status(500, vec![], String::new()))),
        ("closed", Box::new(|_| closed())),
        ("page", Box::new(|_| HttpOut::Status(200, vec![], "<html>".into()))),
        ("cut", Box::new(|_| HttpOut::Status(200, vec![], r#"[{"id":1,"result":[{"#.into()))),
        ("number", Box::new(|_| HttpOut::Status(200, vec![], "7".into()))),
    ];
    for (name, answer) in whole {
        let source = source(&[&node]).await;
        node.on_http(move |calls| (calls[0].method == "eth_getBlockReceipts").then(|| answer(calls)));
        assert_eq!(all(&source, range(5, 8)).await, node.blocks(5..8), "{name}");
        node.well();
    }
}

#[tokio::test]
async fn k3_the_endpoint_remembers_which_way_fails_and_tries_it_again() {
    let node = MockNode::start(chain(2), 60).await;
    let mut config = config(&[&node]);
    config.limits.capability_memory_ms = 300;
    let source = RpcSource::connect(config).await.unwrap();
    node.on_call(|call| (call.method == "eth_getBlockReceipts").then_some(CallOut::Result(Value::Null)));
    assert_eq!(all(&source, range(1, 6)).await, node.blocks(1..6));
    node.take_seen();
    assert_eq!(all(&source, range(6, 12)).await, node.blocks(6..12));
    assert!(node.take_calls("eth_getBlockReceipts").is_empty(), "avoided");
    node.well();
    tokio::time::sleep(Duration::from_millis(400)).await;
    all(&source, range(12, 20)).await;
    assert!(!node.take_calls("eth_getBlockReceipts").is_empty(), "tried again");
    all(&source, range(20, 30)).await;
    assert!(node.take_calls("eth_getTransactionReceipt").is_empty(), "and used");

    // One odd block among good ones turns nobody to the narrow way.
    let odd = node.block(33).facts.id.to_string();
    node.on_call(move |call| {
        let is_odd = call.method == "eth_getBlockReceipts" && call.params[0] == json!(odd);
        is_odd.then_some(CallOut::Error(-32000, "receipts of this block are broken"))
    });
    assert_eq!(all(&source, range(30, 50)).await, node.blocks(30..50));
    let narrow = node.take_calls("eth_getTransactionReceipt");
    assert_eq!(narrow.len(), node.block(33).transactions.len());
}

#[tokio::test]
async fn k3_receipts_that_checks_refuse_are_asked_for_one_by_one() {
    let node = MockNode::start(chain(2), 30).await;
    let source = Verified::new(source(&[&node]).await, VerifyOptions::default());
    let (_, mut receipts) = node.json(5);
    receipts[0]["status"] = json!("0x0");
    node.on_call(move |call| {
        (call.method == "eth_getBlockReceipts").then(|| CallOut::Result(json!(receipts)))
    });
    let mut tries = 0;
    let blocks = loop {
        tries += 1;
        match source.blocks(range(5, 6)).await {
            Ok(blocks) => break blocks,
            Err(error) => assert!(tries < 5, "{error}"),
        }
    };
    assert_eq!(blocks, [node.block(5)]);
}

#[tokio::test]
async fn k3_a_batch_that_fails_twice_is_halved_however_it_fails() {
    let each = |calls: &[CallIn], of: fn(&CallIn) -> Value| {
        let answers: Vec<Value> = calls.iter().map(of).collect();
        HttpOut::Status(200, vec![], json!(answers).to_string())
    };
    let failures: Vec<(&str, Box<dyn Fn(&[CallIn]) -> HttpOut + Send>)> = vec![
        ("an empty 400", Box::new(|_| HttpOut::Status(400, vec![], String::new()))),
        ("403", Box::new(|_| HttpOut::Status(403, vec![], "<html>".into()))),
        ("405", Box::new(|_| HttpOut::Status(405, vec![], String::new()))),
        ("500", Box::new(|_| HttpOut::Status(500, vec![], "oops".into()))),
        ("closed", Box::new(|_| closed())),
        ("empty", Box::new(|_| HttpOut::Status(200, vec![], String::new()))),
        ("an empty list", Box::new(|_| HttpOut::Status(200, vec![], "[]".into()))),
        ("null", Box::new(|_| HttpOut::Status(200, vec![], "null".into()))),
        ("one error", Box::new(|_| error(200, -32603, "internal error"))),
        ("limited", Box::new(|_| error(200, -32005, "limit exceeded"))),
        ("no method", Box::new(|_| error(200, -32601, "Method not found"))),
        (
            "one result",
            Box::new(|calls| {
                HttpOut::Status(200, vec![], json!({"id": calls[0].id, "result": null}).to_string())
            }),
        ),
        ("no ids", Box::new(move |calls| each(calls, |_| json!({"result": "0x1"})))),
        ("other ids", Box::new(move |calls| each(calls, |_| json!({"id": 999, "result": "0x1"})))),
        (
            "an error each",
            Box::new(move |calls| {
                each(calls, |call| json!({"id": call.id, "error": {"code": -32600, "message": "no"}}))
            }),
        ),
        (
            "an internal error each",
            Box::new(move |calls| {
                each(calls, |call| json!({"id": call.id, "error": {"code": -32603, "message": "no"}}))
            }),
        ),
        ("broken", Box::new(|_| HttpOut::Status(200, vec![], r#"[{"id":1,"result":{"#.into()))),
    ];
    for (name, failure) in failures {
        let node = MockNode::start(chain(6), 40).await;
        let source = source(&[&node]).await;
        node.on_http(move |calls| (calls.len() > 2).then(|| failure(calls)));
        assert_eq!(source.heads().await.unwrap().latest.block.height, Height(40), "{name}");
        assert_eq!(all(&source, range(1, 9)).await, node.blocks(1..9), "{name}");
        // Learned: what comes next isn't sent in vain, but for a wider batch now and then.
        node.take_seen();
        all(&source, range(9, 17)).await;
        let seen = node.take_seen();
        let wide = seen.iter().filter(|seen| seen.calls.len() > 2).count();
        assert!(wide <= 4, "{name}: {wide} of {} requests", seen.len());
    }
}

#[tokio::test]
async fn k3_an_outage_is_not_asked_about_call_by_call() {
    let node = MockNode::start(chain(6), 40).await;
    let mut config = config(&[&node]);
    config.limits.max_wait_ms = 0;
    let source = RpcSource::connect(config).await.unwrap();
    node.on_http(|_| Some(HttpOut::Status(500, vec![], String::new())));
    node.take_seen();
    assert!(source.blocks(range(1, 40)).await.is_err());
    assert!(node.take_seen().len() <= 12);
    node.well();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(source.preferred_heights() >= 8, "an outage makes batches no narrower");
}

#[tokio::test]
async fn k3_a_block_that_fails_whole_is_asked_for_in_pieces() {
    for (name, whole) in [
        ("error", CallOut::Error(-32603, "internal error")),
        ("text", CallOut::Result(json!("too large"))),
        ("other", CallOut::Result(json!({"number": "0x1"}))),
    ] {
        let node = MockNode::start(chain(7), 10).await;
        let source = source(&[&node]).await;
        node.on_call(move |call| {
            let is_whole = call.method == "eth_getBlockByNumber" && call.params[1] == json!(true);
            (is_whole && call.height(0) == Some(7)).then(|| whole.clone())
        });
        assert_eq!(all(&source, range(6, 9)).await, node.blocks(6..9), "{name}");
    }
}

#[tokio::test]
async fn one_broken_item_fails_alone() {
    let node = MockNode::start(chain(8), 20).await;
    let source = source(&[&node]).await;
    // The answer for block 5, in a batch or alone, is no JSON.
    let block = |node: &MockNode, height: u64| node.json(height).0;
    let texts: Vec<String> = (0..=20).map(|height| block(&node, height).to_string()).collect();
    node.on_http(move |calls| {
        let is_whole = |call: &CallIn| call.method == "eth_getBlockByNumber" && call.params[1] == json!(true);
        let heights: Vec<usize> = calls.iter().map(|call| call.height(0).unwrap_or(0) as usize).collect();
        (calls.iter().all(is_whole) && heights.contains(&5)).then(|| {
            let item = |(call, height): (&CallIn, &usize)| {
                let text = if *height == 5 { r#"{"number":}"# } else { &texts[*height] };
                format!(r#"{{"id":{},"result":{text}}}"#, call.id)
            };
            let items: Vec<String> = calls.iter().zip(&heights).map(item).collect();
            let body = if calls.len() == 1 { items[0].clone() } else { format!("[{}]", items.join(",")) };
            HttpOut::Body(vec![], body.into_bytes())
        })
    });
    assert_eq!(all(&source, range(2, 5)).await, node.blocks(2..5));
    // In pieces it is whole.
    assert_eq!(all(&source, range(5, 9)).await, node.blocks(5..9));
}

#[tokio::test]
async fn broken_text_in_an_extra_field_fails_no_block() {
    let node = MockNode::start(chain(8), 20).await;
    let source = source(&[&node]).await;
    let texts: Vec<Vec<u8>> = (0..=20)
        .map(|height| {
            let mut block = node.json(height).0;
            block["note"] = json!("MARK");
            let mark: &[u8] = match height {
                5 => b"\xff\xfe \xc3",
                6 => br"\ud800",
                7 => br"\udfff \ud83d x",
                _ => b"fine",
            };
            let text = block.to_string();
            let (before, after) = text.split_once("MARK").unwrap();
            [before.as_bytes(), mark, after.as_bytes()].concat()
        })
        .collect();
    node.take_seen();
    node.on_http(move |calls| {
        let is_whole = |call: &CallIn| call.method == "eth_getBlockByNumber" && call.params[1] == json!(true);
        calls.iter().all(is_whole).then(|| {
            let items: Vec<Vec<u8>> = calls
                .iter()
                .map(|call| {
                    let text = &texts[call.height(0).unwrap() as usize];
                    [format!(r#"{{"id":{},"result":"#, call.id).as_bytes(), text, b"}"].concat()
                })
                .collect();
            let body = if calls.len() == 1 {
                items[0].clone()
            } else {
                [b"[", &items.join(&b","[..])[..], b"]"].concat()
            };
            HttpOut::Body(vec![], body)
        })
    });
    let blocks = all(&source, range(2, 10)).await;
    for (block, height) in blocks.iter().zip(2..) {
        assert_eq!((block.facts, &block.body), (node.block(height).facts, &node.block(height).body));
    }
    // In one answer, or two: none of them was asked for by itself.
    assert!(
        node.take_seen()
            .iter()
            .flat_map(|seen| &seen.calls)
            .all(|call| call.params.get(1) != Some(&json!(false)))
    );
}

fn tracing(node: &MockNode) -> cairn_source::evm::rpc::RpcConfig {
    let mut config = config(&[node]);
    config.traces = true;
    config
}

fn without_traces(blocks: &[RawBlock]) -> bool {
    blocks
        .iter()
        .all(|block| block.traces.is_none() && block.facts.unverified == Checks::MISSING_TRACES.bits())
}

#[tokio::test]
async fn k4_call_traces_never_hold_up_a_block() {
    let failures = [
        CallOut::Error(-32601, "no such method"),
        CallOut::Error(-32603, "internal error"),
        CallOut::Error(-32000, "execution timeout"),
        CallOut::Error(4444, "pruned history unavailable"),
        CallOut::Error(-32005, "limit exceeded"),
        CallOut::Result(Value::Null),
        CallOut::Result(json!("no")),
        CallOut::Nothing,
    ];
    for failure in failures {
        let node = MockNode::start(chain(11), 20).await;
        let source =
            Verified::new(RpcSource::connect(tracing(&node)).await.unwrap(), VerifyOptions::default());
        let answer = failure.clone();
        node.on_call(move |call| call.method.starts_with("debug_").then(|| answer.clone()));
        let mut blocks = Vec::new();
        while blocks.len() < 8 {
            blocks.extend(source.blocks(range(1 + blocks.len() as u64, 9)).await.unwrap());
        }
        assert!(without_traces(&blocks), "{failure:?}: {blocks:?}");
        // It is known by now.
        node.take_seen();
        assert!(without_traces(&source.blocks(range(9, 12)).await.unwrap()));
        assert!(
            node.take_seen()
                .iter()
                .flat_map(|seen| &seen.calls)
                .all(|call| !call.method.starts_with("debug_"))
        );
    }
}

#[tokio::test]
async fn k4_an_endpoint_with_traces_is_asked_for_them() {
    let (bare, full) = (MockNode::start(chain(11), 20).await, MockNode::start(chain(11), 20).await);
    let mut config = config(&[&bare, &full]);
    config.traces = true;
    let source = RpcSource::connect(config).await.unwrap();
    bare.on_call(|call| {
        call.method.starts_with("debug_").then_some(CallOut::Error(-32601, "no such method"))
    });
    for block in all(&source, range(1, 5)).await {
        assert!(block.traces.is_some() && block.facts.unverified == 0);
    }
    // With the other one away, blocks come without.
    full.on_http(|_| Some(HttpOut::Status(500, vec![], String::new())));
    assert!(without_traces(&all(&source, range(5, 9)).await));
}

#[tokio::test]
async fn k4_transactions_without_a_trace_have_null() {
    let node = MockNode::start(chain(11), 10).await;
    let source = RpcSource::connect(tracing(&node)).await.unwrap();
    let id = node.block(3).transactions[0].id.to_string();
    let read =
        |block: &RawBlock| serde_json::from_slice::<Vec<Value>>(block.traces.as_ref().unwrap()).unwrap();
    // The block's answer leaves the first one out; then it fails for it, and the narrow call has it, or hasn't.
    let whole = |node: &MockNode, failed: bool| -> Value {
        let receipts = node.json(3).1;
        let mut entries: Vec<Value> = receipts
            .iter()
            .map(|receipt| json!({"txHash": receipt["transactionHash"], "result": {"a": 1}}))
            .collect();
        if failed {
            entries[0] = json!({"txHash": receipts[0]["transactionHash"], "error": "execution timeout"});
        } else {
            entries.remove(0);
        }
        json!(entries)
    };
    for (failed, narrow, marks, first) in [
        (false, CallOut::Error(-32603, "no"), 0, Value::Null),
        (true, CallOut::Result(json!({"b": 2})), 0, json!({"b": 2})),
        (true, CallOut::Error(-32603, "no"), Checks::MISSING_TRACES.bits(), Value::Null),
    ] {
        let answer = whole(&node, failed);
        node.on_call(move |call| match call.method.as_str() {
            "debug_traceBlockByHash" => Some(CallOut::Result(answer.clone())),
            "debug_traceTransaction" => Some(narrow.clone()),
            _ => None,
        });
        let blocks = source.blocks(range(3, 4)).await.unwrap();
        let entries = read(&blocks[0]);
        assert_eq!(entries.len(), blocks[0].transactions.len());
        assert_eq!((&entries[0]["txHash"], &entries[0]["result"]), (&json!(id), &first));
        assert_eq!(entries[1]["result"], json!({"a": 1}));
        assert_eq!(blocks[0].facts.unverified, marks);
    }
}

#[tokio::test]
async fn k4_bytes_of_unknown_types_never_hold_up_a_block() {
    for failure in [
        CallOut::Error(-32603, "internal error"),
        CallOut::Error(-32000, "transaction type not supported"),
        CallOut::Error(-32005, "limit exceeded"),
        CallOut::Result(json!("0x")),
        CallOut::Result(json!(7)),
        CallOut::Nothing,
    ] {
        let node = MockNode::start(chain(10), 10).await;
        let mut config = config(&[&node]);
        config.profile = ChainProfile::relaxing(Checks::HEADER_HASH | Checks::TRANSACTIONS_ROOT);
        let source = RpcSource::connect(config).await.unwrap();
        let (mut block, receipts) = node.json(4);
        block["transactions"][0]["type"] = json!("0x5f");
        let answer = failure.clone();
        node.on_call(move |call| match call.method.as_str() {
            "eth_getBlockByNumber" => Some(CallOut::Result(block.clone())),
            "eth_getBlockReceipts" => Some(CallOut::Result(json!(receipts))),
            "debug_getRawTransaction" | "eth_getRawTransactionByHash" => Some(answer.clone()),
            _ => None,
        });
        for _ in 0..4 {
            assert_eq!(source.blocks(range(4, 5)).await.unwrap().len(), 1, "{failure:?}");
        }
    }
}

#[tokio::test]
async fn k6_a_receipt_is_missing_only_where_it_is_asked_for_by_itself() {
    let node = MockNode::start(chain(2), 10).await;
    let (_, receipts) = node.json(5);
    let gone = receipts[1]["transactionHash"].clone();
    let list =
        json!(receipts.iter().filter(|receipt| receipt["transactionHash"] != gone).collect::<Vec<_>>());
    for (really, relaxed) in [(false, true), (true, true), (true, false)] {
        let mut config = config(&[&node]);
        if relaxed {
            config.profile = ChainProfile::relaxing(Checks::MISSING_RECEIPTS);
        }
        let source = RpcSource::connect(config).await.unwrap();
        let (list, gone) = (list.clone(), gone.clone());
        node.on_call(move |call| match call.method.as_str() {
            "eth_getBlockReceipts" => Some(CallOut::Result(list.clone())),
            "eth_getTransactionReceipt" if really && call.params[0] == gone => {
                Some(CallOut::Result(Value::Null))
            }
            _ => None,
        });
        match source.blocks(range(5, 6)).await {
            Ok(blocks) if !really => assert_eq!(blocks, [node.block(5)]),
            Ok(blocks) => {
                assert!(relaxed && blocks[0].transactions[1].status == cairn_core::TxStatus::Unknown)
            }
            Err(error) => assert!(!relaxed && error.height() == Some(Height(5)), "{error}"),
        }
    }
}

#[tokio::test]
async fn errors_name_the_newest_blocks_own_height() {
    let node = MockNode::start(chain(9), 12).await;
    let source = source(&[&node]).await;
    let (mut block, _) = node.json(12);
    block["gasUsed"] = json!("0x1");
    node.on_call(move |call| (call.method == "eth_getBlockByNumber").then(|| CallOut::Result(block.clone())));
    let error = source.heads().await.unwrap_err();
    assert!(
        matches!(&error, SourceError::Inconsistent { height: Height(12), check, .. } if check == "header-hash"),
        "{error}"
    );
    assert!(error.to_string().contains("--relax header-hash"), "{error}");
}
