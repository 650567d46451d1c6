//! `eth_getLogs`: what is found, what is refused, and that nothing is ever cut short in silence.

use crate::support;

use std::time::Duration;

use alloy_primitives::{Address, B256};
use cairn_api::{EthApi, RpcError, RpcLimits};
use cairn_core::{BlockId, Height, RawBlock};
use serde_json::{Value, json};
use support::made::{self, log};
use support::{api, ask};

const ROOT: BlockId = BlockId([0xee; 32]);

fn hex(n: u64) -> String {
    format!("0x{n:x}")
}

async fn get_logs(api: &EthApi, filter: Value) -> Result<Vec<Value>, RpcError> {
    Ok(ask(api, "eth_getLogs", json!([filter])).await?.as_array().expect("a list").clone())
}

async fn in_range(api: &EthApi, from: u64, to: u64) -> Result<Vec<Value>, RpcError> {
    get_logs(api, json!({"fromBlock": hex(from), "toBlock": hex(to)})).await
}

fn code(result: Result<Vec<Value>, RpcError>) -> i32 {
    result.expect_err("refused").code
}

/// `(block, log index)` of each log.
fn places(logs: &[Value]) -> Vec<(u64, u64)> {
    let number = |value: &Value| {
        u64::from_str_radix(value.as_str().expect("hex").trim_start_matches("0x"), 16).expect("hex")
    };
    logs.iter().map(|log| (number(&log["blockNumber"]), number(&log["logIndex"]))).collect()
}

#[tokio::test]
async fn g02_anonymous_events_are_found_by_address_range_and_hash() {
    let blocks = made::chain(0, 4, ROOT, 0, |height| match height {
        2 => vec![vec![log(0xaa, &[], 3)], vec![log(0xaa, &[1], 0), log(0xbb, &[], 0)]],
        _ => vec![],
    });
    let hash = blocks[2].facts.id;
    let api = api(&made::store(blocks, None).await, RpcLimits::default());
    let by_address = get_logs(&api, json!({"fromBlock": "0x0", "address": Address::repeat_byte(0xaa)}))
        .await
        .expect("logs");
    assert_eq!(places(&by_address), [(2, 0), (2, 1)]);
    assert_eq!(by_address[0]["topics"], json!([]));
    assert_eq!(by_address[0]["data"], "0xaaaaaa");
    assert_eq!(by_address[0]["removed"], false);
    for filter in [
        json!({"fromBlock": "0x0", "topics": []}),
        json!({"blockHash": hash}),
        json!({"fromBlock": "0x2", "toBlock": "0x2"}),
    ] {
        assert_eq!(places(&get_logs(&api, filter).await.expect("logs")), [(2, 0), (2, 1), (2, 2)]);
    }
    // A position demands a topic there.
    assert_eq!(
        places(&get_logs(&api, json!({"fromBlock": "0x0", "topics": [null]})).await.expect("logs")),
        [(2, 1)]
    );
}

#[tokio::test]
async fn g03_ranges_beyond_the_head_or_reversed_are_refused() {
    let blocks = made::chain(0, 101, ROOT, 0, |_| vec![vec![log(1, &[1], 0)]]);
    let limits = RpcLimits { max_log_range_blocks: Some(20), ..RpcLimits::default() };
    let api = api(&made::store(blocks, None).await, limits);
    for (from, to) in
        [("0x65", "0x65"), ("0x32", "0x96"), ("0x65", "latest"), ("0x14", "0xa"), ("latest", "0xa")]
    {
        let error = get_logs(&api, json!({"fromBlock": from, "toBlock": to})).await.expect_err("refused");
        assert_eq!(error.code, -32602, "[{from}, {to}]");
        assert!(
            error.data.is_none() && !error.message.contains("max block range"),
            "[{from}, {to}]: {error}"
        );
    }
    let latest = get_logs(&api, json!({"fromBlock": "latest", "toBlock": "latest"})).await.expect("logs");
    assert_eq!(places(&latest), [(100, 0)]);
    // Tags become heights before the range limit is looked at.
    assert_eq!(
        get_logs(&api, json!({"fromBlock": "0x60", "toBlock": "latest"})).await.expect("logs").len(),
        5
    );
    let error =
        get_logs(&api, json!({"fromBlock": "earliest", "toBlock": "latest"})).await.expect_err("too wide");
    assert_eq!(
        (error.code, error.message.as_str()),
        (-32602, "query exceeds max block range 20. Try with this block range [0x0, 0x13].")
    );
    assert_eq!(in_range(&api, 0, 0x13).await.expect("the hint works").len(), 20);
    assert_eq!(code(get_logs(&api, json!({"fromBlock": "latest", "toBlock": "finalized"})).await), -39001);
}

#[tokio::test]
async fn g04_an_unknown_or_orphaned_block_hash_is_an_error() {
    let store = made::store(made::chain(0, 5, ROOT, 0, |_| vec![vec![log(1, &[1], 0)]]), None).await;
    let orphan = made::tip(&store).await.id;
    let common = made::at(&store, 3).await;
    made::roll_back(&store, common).await;
    support::append(&store, made::chain(4, 1, common.id, 1, |_| vec![]), None).await;
    let api = api(&store, RpcLimits::default());
    assert_eq!(code(get_logs(&api, json!({"blockHash": B256::repeat_byte(9)})).await), -32000);
    assert_eq!(code(get_logs(&api, json!({"blockHash": orphan})).await), -32000);
    assert_eq!(code(get_logs(&api, json!({"blockHash": common.id, "fromBlock": "0x1"})).await), -32602);
    assert_eq!(code(get_logs(&api, json!({"blockHash": common.id, "toBlock": "latest"})).await), -32602);
    let tip = made::tip(&store).await.id;
    assert!(get_logs(&api, json!({"blockHash": tip})).await.expect("known, without logs").is_empty());
}

/// Blocks 1, 2 and 3 with 3, 3 and 7 logs.
async fn three_three_seven(limits: RpcLimits) -> EthApi {
    let blocks = made::chain(0, 4, ROOT, 0, |height| {
        let count = [0, 3, 3, 7][height as usize];
        vec![(0..count).map(|i| log(i, &[7], 0)).collect()]
    });
    api(&made::store(blocks, None).await, limits)
}

#[tokio::test]
async fn g06_the_hint_is_smaller_and_works_and_one_block_is_never_capped() {
    let api = three_three_seven(RpcLimits { max_log_results: 5, ..RpcLimits::default() }).await;
    let error = in_range(&api, 1, 3).await.expect_err("over the cap");
    assert_eq!(error.code, -32005);
    assert_eq!(error.message, "query exceeds max results 5. Try with this block range [0x1, 0x1].");
    assert_eq!(error.data, Some(json!({"from": "0x1", "to": "0x1", "limit": 5})));
    assert_eq!(in_range(&api, 1, 1).await.expect("the hint works").len(), 3);
    assert_eq!(in_range(&api, 3, 3).await.expect("one block").len(), 7);
    // Following hints covers the whole range.
    let (mut from, mut found) = (0, 0);
    while from <= 3 {
        let mut to = 3;
        let logs = loop {
            match in_range(&api, from, to).await {
                Ok(logs) => break logs,
                Err(error) => {
                    let hint = error.data.expect("a hint");
                    assert_eq!(hint["from"], hex(from));
                    let smaller =
                        u64::from_str_radix(&hint["to"].as_str().expect("hex")[2..], 16).expect("hex");
                    assert!(smaller < to && smaller >= from);
                    to = smaller;
                }
            }
        };
        found += logs.len();
        from = to + 1;
    }
    assert_eq!(found, 13);
    // A first block that is over the cap by itself.
    let error = in_range(&api, 3, 3).await.map(|logs| logs.len());
    assert_eq!(error, Ok(7));
}

#[tokio::test]
async fn g06_cap_range_size_and_time_have_different_errors() {
    let free = three_three_seven(RpcLimits::default()).await;
    let six = json!(in_range(&free, 1, 2).await.expect("logs")).to_string().len();
    let small = three_three_seven(RpcLimits { max_response_bytes: six, ..RpcLimits::default() }).await;
    let error = in_range(&small, 1, 3).await.expect_err("too large");
    assert_eq!(error.code, -32003);
    assert!(error.message.contains("Try with this block range [0x1, 0x2]"), "{error}");
    assert_eq!(in_range(&small, 1, 2).await.expect("the hint works").len(), 6);
    assert_eq!(code(in_range(&small, 3, 3).await), -32003);

    let slow = three_three_seven(RpcLimits { request_timeout_ms: 0, ..RpcLimits::default() }).await;
    assert_eq!(code(in_range(&slow, 1, 3).await), -32002);

    let narrow = three_three_seven(RpcLimits { max_log_range_blocks: Some(2), ..RpcLimits::default() }).await;
    assert_eq!(code(in_range(&narrow, 1, 3).await), -32602);
    assert_eq!(in_range(&narrow, 1, 2).await.expect("as wide as allowed").len(), 6);
}

#[tokio::test]
async fn a_range_before_the_archive_names_the_first_missing_height() {
    let store = made::store(made::chain(100, 10, ROOT, 0, |_| vec![vec![log(1, &[1], 0)]]), None).await;
    let api = api(&store, RpcLimits::default());
    for (from, to) in [(0, 50), (50, 105), (99, 99), (99, 100)] {
        let error = in_range(&api, from, to).await.expect_err("not archived");
        assert_eq!(error.code, 4444);
        assert_eq!(error.data, Some(json!({"firstMissing": hex(from), "begins": "0x64"})));
        assert!(
            error.message.contains(&format!("block {from} ")) && error.message.contains("100"),
            "{error}"
        );
    }
    assert_eq!(in_range(&api, 100, 109).await.expect("archived").len(), 10);
    assert_eq!(get_logs(&api, json!({"fromBlock": "earliest"})).await.expect("archived").len(), 10);
}

#[tokio::test]
async fn an_empty_archive_is_not_an_empty_answer() {
    let api = api(&support::empty_store(1337, bytes::Bytes::new()).await, RpcLimits::default());
    assert_eq!(code(get_logs(&api, json!({})).await), -32000);
    assert_eq!(code(get_logs(&api, json!({"fromBlock": "0x0", "toBlock": "0x0"})).await), -32000);
    assert_eq!(code(get_logs(&api, json!({"blockHash": B256::ZERO})).await), -32000);
}

/// Every `[a, b]` over `points` equals a scan, and adjacent ranges put together equal the whole.
async fn check_points(blocks: &[RawBlock], points: &[u64]) {
    let store = made::store(blocks.to_vec(), None).await;
    let api = api(&store, RpcLimits::default());
    let (first, last) = (blocks[0].facts.height.get(), blocks[blocks.len() - 1].facts.height.get());
    let address = json!([Address::repeat_byte(0xaa)]);
    let find = async |from: u64, to: u64| {
        let filter = json!({"fromBlock": hex(from), "toBlock": hex(to), "address": address});
        places(&get_logs(&api, filter).await.expect("logs"))
            .into_iter()
            .map(|(block, _)| block)
            .collect::<Vec<_>>()
    };
    for &from in points {
        for &to in points.iter().filter(|to| **to >= from) {
            let expected: Vec<u64> =
                points.iter().copied().filter(|point| (from..=to).contains(point)).collect();
            assert_eq!(find(from, to).await, expected, "[{from}, {to}]");
        }
        if (first..last).contains(&from) {
            let (mut low, high) = (find(first, from).await, find(from + 1, last).await);
            low.extend(high);
            assert_eq!(low, points);
        }
    }
}

#[tokio::test]
async fn g07_heights_are_ordered_as_numbers() {
    for (first, count, points) in [
        (0, 2600, &[9, 10, 99, 100, 255, 256, 2519][..]),
        (65_500, 100, &[65_535, 65_536][..]),
        ((1 << 32) - 20, 40, &[(1 << 32) - 1, 1 << 32, (1 << 32) + 1][..]),
    ] {
        let blocks = made::chain(first, count, ROOT, 0, |height| {
            let address = if points.contains(&height) { 0xaa } else { 0xbb };
            vec![vec![log(address, &[1], 0)]]
        });
        check_points(&blocks, points).await;
    }
}

#[tokio::test]
async fn g08_hex_is_minimal_out_and_strict_in() {
    let blocks = made::chain(0, 272, ROOT, 0, |height| match height {
        271 => vec![vec![log(1, &[], 0), log(1, &[0], 1)]],
        _ => vec![],
    });
    let api = api(&made::store(blocks, None).await, RpcLimits::default());
    let logs = get_logs(&api, json!({"fromBlock": "0x10f", "toBlock": "0x10f"})).await.expect("logs");
    assert_eq!((logs[0]["blockNumber"].as_str(), logs[0]["logIndex"].as_str()), (Some("0x10f"), Some("0x0")));
    // Data keeps its leading zeros.
    assert_eq!(logs[1]["topics"][0], B256::ZERO.to_string());
    assert_eq!(logs[1]["address"], Address::repeat_byte(1).to_string().to_lowercase());
    assert_eq!(
        get_logs(&api, json!({"fromBlock": "0x0", "topics": [B256::ZERO]})).await.expect("logs").len(),
        1
    );
    for wrong in ["0x010f", "10f", "0x", "", "271", "0xg", "-0x1", "0x10000000000000000", "newest"] {
        assert_eq!(code(get_logs(&api, json!({"fromBlock": wrong})).await), -32602, "{wrong}");
    }
    for wrong in [json!(271), json!(true), json!({}), json!(["0x1"])] {
        assert_eq!(code(get_logs(&api, json!({"fromBlock": wrong})).await), -32602);
    }
    assert_eq!(code(get_logs(&api, json!({"topics": ["0x0"]})).await), -32602);
    assert_eq!(code(get_logs(&api, json!({"address": "0x1"})).await), -32602);
}

#[tokio::test]
async fn g09_order_is_that_of_the_chain_and_each_log_comes_once() {
    let blocks = made::chain(0, 30, ROOT, 0, |height| {
        (0..3).map(|tx| (0..2).map(|i| log(0xb9 + (height % 3) as u8 + tx + i, &[i], 0)).collect()).collect()
    });
    let api = api(&made::store(blocks, None).await, RpcLimits::default());
    let all = in_range(&api, 0, 29).await.expect("logs");
    let places_of_all = places(&all);
    assert!(places_of_all.is_sorted() && places_of_all.len() == 180);
    // Three spellings of 0xbb…bb.
    let (lower, upper) =
        ("0xbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "0xBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB");
    let mixed = "0xBbBbBbBbBbBbBbBbBbBbBbBbBbBbBbBbBbBbBbBb";
    let found =
        get_logs(&api, json!({"fromBlock": "0x0", "address": [lower, upper, mixed]})).await.expect("logs");
    let expected: Vec<Value> = all.iter().filter(|log| log["address"] == lower).cloned().collect();
    assert!(!expected.is_empty());
    assert_eq!(found, expected);
    let addresses =
        |n: u64| (0..n).map(|i| Address::left_padding_from(&(i << 40).to_be_bytes())).collect::<Vec<_>>();
    assert!(get_logs(&api, json!({"fromBlock": "0x0", "address": addresses(1000)})).await.is_ok());
    let error =
        get_logs(&api, json!({"fromBlock": "0x0", "address": addresses(1001)})).await.expect_err("too many");
    assert!(error.code == -32602 && error.message.contains("1000"), "{error}");
}

#[tokio::test]
async fn r07_reads_by_number_follow_the_canonical_block() {
    let store = made::store(made::chain(0, 5, ROOT, 0, |_| vec![vec![log(1, &[1], 0)]]), None).await;
    let (old, common) = (made::at(&store, 4).await, made::at(&store, 3).await);
    let old_tx = {
        let api = api(&store, RpcLimits::default());
        ask(&api, "eth_getBlockByNumber", json!(["0x4", false])).await.expect("block")["transactions"][0]
            .clone()
    };
    made::roll_back(&store, common).await;
    support::append(&store, made::chain(4, 1, common.id, 1, |_| vec![vec![log(2, &[2], 0)]]), None).await;
    let new = made::at(&store, 4).await;
    assert_ne!(old.id, new.id);
    let api = api(&store, RpcLimits::default());
    let new_hash = json!(new.id);
    for (method, params, path) in [
        ("eth_getBlockByNumber", json!(["0x4", false]), "/hash"),
        ("eth_getBlockByNumber", json!(["latest", true]), "/transactions/0/blockHash"),
        ("eth_getBlockReceipts", json!(["0x4"]), "/0/blockHash"),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x4", "0x0"]), "/blockHash"),
        ("eth_getLogs", json!([{"fromBlock": "0x4", "toBlock": "0x4"}]), "/0/blockHash"),
    ] {
        let answer = ask(&api, method, params).await.expect(method);
        assert_eq!(answer.pointer(path), Some(&new_hash), "{method}");
    }
    for (method, params) in [
        ("eth_getBlockByHash", json!([old.id, false])),
        ("eth_getBlockReceipts", json!([old.id])),
        ("eth_getTransactionByHash", json!([old_tx])),
        ("eth_getTransactionReceipt", json!([old_tx])),
        ("debug_getRawTransaction", json!([old_tx])),
        ("eth_getTransactionByBlockHashAndIndex", json!([old.id, "0x0"])),
    ] {
        assert_eq!(ask(&api, method, params).await.expect(method), Value::Null, "{method}");
    }
}

/// What one fork's block says.
#[derive(Debug, PartialEq)]
struct Fork {
    logs: Vec<Value>,
    receipts: Value,
    block: Value,
}

async fn fork(api: &EthApi) -> Fork {
    Fork {
        logs: in_range(api, 5, 5).await.expect("logs"),
        receipts: ask(api, "eth_getBlockReceipts", json!(["0x5"])).await.expect("receipts"),
        block: ask(api, "eth_getBlockByNumber", json!(["0x5", true])).await.expect("block"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r10_every_answer_is_of_one_fork_while_a_block_flips_a_thousand_times() {
    flip(RpcLimits::default(), 1000).await;
}

/// The same where a request opens a new snapshot at every step, as a long one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r10_renewed_snapshots_stay_on_one_fork() {
    flip(RpcLimits { max_snapshot_age_ms: 0, ..RpcLimits::default() }, 500).await;
}

async fn flip(limits: RpcLimits, flips: usize) {
    let store = made::store(made::chain(0, 5, ROOT, 0, |_| vec![vec![log(9, &[9], 0)]]), None).await;
    let common = made::tip(&store).await;
    let tip_of = |salt: u8| {
        made::chain(5, 1, common.id, salt, move |_| {
            (0..4 + usize::from(salt)).map(|tx| (0..=tx).map(|_| log(salt, &[salt], 40)).collect()).collect()
        })
    };
    let mut forks = Vec::new();
    for salt in [1, 2] {
        support::append(&store, tip_of(salt), None).await;
        forks.push(fork(&api(&store, RpcLimits::default())).await);
        made::roll_back(&store, common).await;
    }
    for fork in &forks {
        let of_receipts: Vec<Value> = fork
            .receipts
            .as_array()
            .expect("receipts")
            .iter()
            .flat_map(|r| r["logs"].as_array().expect("logs").clone())
            .collect();
        assert_eq!(fork.logs, of_receipts, "the logs of a block are those of its receipts");
    }
    let flipping = {
        let store = store.clone();
        let tips = [tip_of(1), tip_of(2)];
        tokio::spawn(async move {
            for flip in 0..flips {
                support::append(&store, tips[flip % 2].clone(), None).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
                made::roll_back(&store, common).await;
            }
            support::append(&store, tips[0].clone(), None).await;
        })
    };
    let api = api(&store, limits);
    let mut seen = [0usize; 2];
    while !flipping.is_finished() {
        // Between the forks there is no block 5: that is an error or null, never a mixture.
        if let Ok(logs) = in_range(&api, 5, 5).await {
            let which = forks.iter().position(|fork| fork.logs == logs).expect("the logs of one fork");
            seen[which] += 1;
        }
        // A range that is on both sides of the fork point.
        if let Ok(logs) = in_range(&api, 0, 5).await {
            assert!(
                forks.iter().any(|fork| logs[5..] == fork.logs[..])
                    && logs[..5].iter().all(|log| log["topics"][0] == B256::repeat_byte(9).to_string())
            );
        }
        let receipts = ask(&api, "eth_getBlockReceipts", json!(["0x5"])).await.expect("receipts or null");
        assert!(receipts.is_null() || forks.iter().any(|fork| fork.receipts == receipts));
        let block = ask(&api, "eth_getBlockByNumber", json!(["0x5", true])).await.expect("a block or null");
        assert!(block.is_null() || forks.iter().any(|fork| fork.block == block));
    }
    flipping.await.expect("the writer");
    assert!(seen[0] > 0 && seen[1] > 0, "both forks were seen: {seen:?}");
    assert_eq!(fork(&api).await, forks[0]);
}

#[tokio::test]
async fn a_long_range_is_read_in_pages_and_chunks() {
    // Blocks of 40 kB, so that a chunk holds a hundred; only every third has a log, so that pages and heights differ.
    let blocks = made::chain(0, 3000, ROOT, 0, |height| match height % 3 {
        0 => vec![vec![log((height % 2) as u8, &[1], 40_000)]],
        _ => vec![vec![]],
    });
    let store = made::store(blocks, None).await;
    for max_snapshot_age_ms in [0, 1000] {
        let limits = RpcLimits { max_snapshot_age_ms, max_response_bytes: 200 << 20, ..RpcLimits::default() };
        let api = api(&store, limits);
        let all = places(&in_range(&api, 0, 2999).await.expect("logs"));
        assert_eq!(all, (0..3000).step_by(3).map(|height| (height, 0)).collect::<Vec<_>>());
        let odd = json!({"fromBlock": "0x1", "toBlock": "0xbb6", "address": Address::repeat_byte(1)});
        let odd = places(&get_logs(&api, odd).await.expect("logs"));
        assert_eq!(odd, (3..=0xbb6).step_by(6).map(|height| (height, 0)).collect::<Vec<_>>());
    }
}

/// Law 2: a height without its block is in no answer over a range, whatever the filter, and in none of its block.
#[tokio::test]
async fn i06_an_answer_accounts_for_every_height_of_its_range() {
    // Block 3 has no logs: no index names it.
    let blocks = made::chain(0, 6, ROOT, 0, |height| match height {
        3 => vec![],
        _ => vec![vec![log(1, &[1], 0)]],
    });
    let ids: Vec<BlockId> = blocks.iter().map(|block| block.facts.id).collect();
    for lost in [2u64, 3] {
        let store = made::store(blocks.clone(), None).await;
        store.lose_block(Height(lost)).expect("loses");
        let api = api(&store, RpcLimits::default());
        let named = |error: &RpcError| error.message.contains(&format!("height {lost}:"));
        let filters = [
            json!({}),
            json!({"address": Address::repeat_byte(1)}),
            json!({"address": Address::repeat_byte(9)}),
            json!({"topics": [B256::repeat_byte(1)]}),
            json!({"topics": [null]}),
        ];
        for filter in filters {
            let over = |from: u64, to: u64| {
                let mut filter = filter.clone();
                (filter["fromBlock"], filter["toBlock"]) = (json!(hex(from)), json!(hex(to)));
                filter
            };
            for (from, to) in [(0, 5), (lost, lost), (0, lost), (lost, 5)] {
                let error = get_logs(&api, over(from, to)).await.expect_err("a hole");
                assert!(named(&error), "{filter} over {from} to {to}: {error}");
            }
            for (from, to) in [(0, lost - 1), (lost + 1, 5)] {
                get_logs(&api, over(from, to)).await.expect("beside the hole");
            }
        }
        let by_hash = get_logs(&api, json!({"blockHash": ids[lost as usize]})).await.expect_err("a hole");
        assert!(named(&by_hash), "{by_hash}");
        for (method, params) in [
            ("eth_getBlockReceipts", json!([hex(lost)])),
            ("eth_getBlockByNumber", json!([hex(lost), false])),
            ("eth_getHeaderByNumber", json!([hex(lost)])),
            ("eth_getBlockTransactionCountByNumber", json!([hex(lost)])),
            ("eth_getUncleCountByBlockHash", json!([ids[lost as usize]])),
            ("eth_feeHistory", json!(["0x5", "0x4", []])),
            ("debug_getRawHeader", json!([hex(lost)])),
        ] {
            let error = ask(&api, method, params).await.expect_err(method);
            assert!(named(&error), "{method}: {error}");
        }
    }
}
