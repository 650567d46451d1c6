//! Cases from the field: what nodes of many chains really answer. Named by their numbers.

use cairn_core::{RawBlock, TxStatus};
use cairn_evm::{
    BlockView, ChainProfile, Checks, EvmError, LogFilter, SendersAre, check_block, check_block_with,
    from_rpc, from_rpc_with,
};
use serde_json::{Value, json};

use crate::support::assert_same;

const HASH: &str = "0x1111111111111111111111111111111111111111111111111111111111111111";
const TX: &str = "0x2222222222222222222222222222222222222222222222222222222222222222";
const ALICE: &str = "0xa1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const BOB: &str = "0xb0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0";

/// Blocks of these cases are made up: their headers, transactions and receipts hash to nothing.
fn made_up() -> ChainProfile {
    let names = "header-hash,transactions-root,receipts-root,senders,bloom,ommers-hash";
    ChainProfile::relaxing(ChainProfile::parse_relaxations(names).unwrap())
}

/// Only the header is made up: transactions of known type have to hash.
fn made_up_header() -> ChainProfile {
    ChainProfile::relaxing(Checks::HEADER_HASH)
}

fn zeros(bytes: usize) -> String {
    format!("0x{}", "00".repeat(bytes))
}

fn block(transactions: Value) -> Value {
    json!({
        "number": "0x7", "hash": HASH, "parentHash": zeros(32), "sha3Uncles": zeros(32), "miner": BOB,
        "stateRoot": zeros(32), "transactionsRoot": zeros(32), "receiptsRoot": zeros(32), "logsBloom": zeros(256),
        "difficulty": "0x1", "gasLimit": "0x1c9c380", "gasUsed": "0x5208", "timestamp": "0x64", "extraData": "0x",
        "mixHash": zeros(32), "nonce": zeros(8), "uncles": [], "size": "0x220", "transactions": transactions,
    })
}

/// A legacy transaction whose signature is nobody's.
fn legacy(index: u64) -> Value {
    json!({
        "blockHash": HASH, "blockNumber": "0x7", "blockTimestamp": "0x64", "transactionIndex": format!("{index:#x}"),
        "hash": format!("0x{index:064x}"), "from": ALICE, "to": BOB, "type": "0x0", "nonce": format!("{index:#x}"),
        "gas": "0x5208", "gasPrice": "0x3b9aca00", "value": "0x1", "input": "0x", "v": "0x1b", "r": "0x1", "s": "0x1",
    })
}

/// Its hash as its fields give it.
fn hash_of(tx: &mut Value) {
    let wrong = from_rpc(block(json!([tx])), vec![], &made_up_header()).unwrap_err().to_string();
    let at = wrong.find("hash to ").expect("a refusal that names both hashes") + "hash to ".len();
    tx["hash"] = wrong[at..].into();
}

fn receipt(tx: &Value) -> Value {
    json!({
        "blockHash": HASH, "blockNumber": "0x7", "transactionHash": tx["hash"], "transactionIndex": tx["transactionIndex"],
        "type": tx.get("type").cloned().unwrap_or(json!("0x0")), "from": tx["from"], "to": tx["to"], "contractAddress": null,
        "status": "0x1", "cumulativeGasUsed": "0x5208", "gasUsed": "0x5208", "effectiveGasPrice": "0x3b9aca00",
        "logs": [], "logsBloom": zeros(256),
    })
}

fn log(tx: &Value, index: u64) -> Value {
    json!({
        "address": BOB, "topics": [TX], "data": "0x05", "blockNumber": "0x7", "transactionHash": tx["hash"],
        "transactionIndex": tx["transactionIndex"], "blockHash": HASH, "blockTimestamp": "0x64",
        "logIndex": format!("{index:#x}"), "removed": false,
    })
}

fn view(block: &RawBlock) -> BlockView {
    BlockView::decode(block.into(), None).unwrap()
}

/// Nothing is kept beside the bytes but the size that these blocks make up.
fn assert_nothing_beside(block: &RawBlock) {
    let beside: Value = serde_json::from_slice(&block.extras).unwrap();
    assert_eq!(beside, json!({"block": {"set": {"size": "0x220"}}}));
}

/// What makes a value of `object` without a field.
fn without(mut object: Value, name: &str) -> Value {
    object.as_object_mut().unwrap().shift_remove(name).expect("the field is there");
    object
}

fn with(mut object: Value, name: &str, value: impl Into<Value>) -> Value {
    object[name] = value.into();
    object
}

#[test]
fn e03_a_block_whose_receipts_do_not_cover_its_transactions_is_refused() {
    let (mut a, mut b) = (legacy(0), legacy(1));
    hash_of(&mut a);
    hash_of(&mut b);
    for receipts in [vec![], vec![receipt(&a)]] {
        let error = from_rpc(block(json!([a, b])), receipts, &made_up_header()).unwrap_err();
        let EvmError::Inconsistent(failure) = error else { panic!("{error}") };
        assert_eq!(failure.check, Checks::MISSING_RECEIPTS);
        assert!(failure.message.contains("has no receipt; 2 transactions"), "{failure}");
        assert!(failure.message.contains("relax `missing-receipts`"), "{failure}");
    }
    let error = from_rpc(block(json!([a])), vec![receipt(&a), receipt(&a)], &made_up_header()).unwrap_err();
    assert!(error.to_string().contains("two receipts"), "{error}");
}

#[test]
fn e03_a_bloom_without_logs_is_suspicious_and_said_apart() {
    let bloom = format!("0x80{}", "00".repeat(255));
    let empty = with(with(block(json!([])), "logsBloom", bloom), "gasUsed", "0x0");
    let profile = ChainProfile::relaxing(made_up().relaxed - Checks::BLOOM);
    let block = from_rpc(empty, vec![], &profile).unwrap();
    let failure = check_block(&block, &profile).unwrap_err();
    assert!(failure.is_bloom_only() && failure.message.contains("has 1 bits set"), "{failure}");
    assert!(check_block(&block, &made_up()).unwrap().contains(Checks::BLOOM));
}

#[test]
fn e05_unknown_type_bytes_are_served_back() {
    let common = |index: u64, ty: &str| {
        json!({
            "blockHash": HASH, "blockNumber": "0x7", "blockTimestamp": "0x64", "transactionIndex": format!("{index:#x}"),
            "hash": format!("0x{index:064x}"), "from": ALICE, "to": BOB, "type": ty, "value": "0x0", "input": "0x",
        })
    };
    let deposit = with(with(common(0, "0x7e"), "sourceHash", TX), "mint", "0x5");
    let upper = with(common(1, "0x7E"), "sourceHash", TX);
    let invented = with(
        with(common(2, "0x6b"), "foo", json!({"bar": [1, null]})),
        "from",
        "0xA1A1A1A1A1A1a1a1a1a1a1a1a1a1a1a1a1a1a1a1",
    );
    let mut plain = with(legacy(3), "transactionIndex", "0x3");
    hash_of(&mut plain);
    let txs = [deposit, upper, invented, plain];
    let mut receipts: Vec<Value> = txs.iter().map(receipt).collect();
    for (index, receipt) in receipts.iter_mut().enumerate() {
        receipt["cumulativeGasUsed"] = format!("{:#x}", 0x5208 * (index + 1)).into();
    }
    receipts[0]["depositNonce"] = "0x4".into();
    receipts[0]["depositReceiptVersion"] = "0x1".into();
    receipts[2]["foo"] = json!([true]);
    let mut served = receipts.clone();
    // Known fields are written in lower case, of the receipts of unknown types too.
    served[1]["type"] = "0x7e".into();
    served[2]["from"] = ALICE.into();
    receipts.reverse();

    let profile = ChainProfile::relaxing(Checks::HEADER_HASH | Checks::SENDERS | Checks::OMMERS_HASH);
    let sent = with(block(json!(txs)), "l1BlockNumber", "0x9");
    let raw = from_rpc(sent.clone(), receipts, &profile).unwrap();
    let unverified = check_block(&raw, &profile).unwrap();
    assert!(unverified.contains(Checks::UNKNOWN_TX_TYPE | Checks::TRANSACTIONS_ROOT | Checks::RECEIPTS_ROOT));

    let view = view(&raw);
    assert_same("block", &view.block_json(true).unwrap(), &sent);
    assert_eq!(view.block_json(false).unwrap()["transactions"][1], txs[1]["hash"]);
    for (index, tx) in txs.iter().enumerate() {
        assert_same("transaction", &view.tx_json(index).unwrap(), tx);
        assert_same("receipt", &view.receipt_json(index).unwrap().unwrap(), &served[index]);
    }
    assert_eq!(view.stored().transactions[0].sender.as_ref(), [0xa1; 20]);
    assert!(matches!(view.raw_block(), Err(EvmError::BytesUnknown { index: 0, .. })));
    assert!(matches!(view.raw_transaction(1), Err(EvmError::BytesUnknown { index: 1, .. })));
    assert!(view.raw_transaction(3).is_ok());
}

#[test]
fn e05_raw_bytes_of_an_unknown_type_make_its_root_checkable() {
    let bytes = bytes::Bytes::from_static(&[0x6b, 0xc2, 0x01, 0x02]);
    let hash = alloy_primitives::keccak256(&bytes).to_string();
    let root = alloy_trie::root::ordered_trie_root_encoded(&[&bytes]).to_string();
    let tx = json!({"hash": hash, "from": ALICE, "type": "0x6b", "foo": "0x1", "transactionIndex": "0x0", "blockTimestamp": "0x64",
        "blockHash": HASH, "blockNumber": "0x7"});
    let profile = ChainProfile::relaxing(Checks::HEADER_HASH | Checks::OMMERS_HASH);
    let beside = || cairn_evm::Beside { raw_transactions: vec![(0, bytes.clone())], ..Default::default() };
    let receipts = || vec![receipt(&with(tx.clone(), "to", BOB))];

    let block_of = |root: &str| with(block(json!([tx])), "transactionsRoot", root);
    let raw = from_rpc_with(block_of(&root), receipts(), beside(), &profile).unwrap();
    let unverified = check_block(&raw, &profile).unwrap();
    assert!(unverified.contains(Checks::UNKNOWN_TX_TYPE) && !unverified.contains(Checks::TRANSACTIONS_ROOT));
    assert_eq!(view(&raw).raw_transaction(0).unwrap(), bytes);
    assert_same("transaction", &view(&raw).tx_json(0).unwrap(), &tx);

    let raw = from_rpc_with(block_of(&zeros(32)), receipts(), beside(), &profile).unwrap();
    assert_eq!(check_block(&raw, &profile).unwrap_err().check, Checks::TRANSACTIONS_ROOT);
    let lie = with(tx.clone(), "hash", TX);
    let error = from_rpc_with(block(json!([lie])), vec![receipt(&lie)], beside(), &profile).unwrap_err();
    assert!(error.to_string().contains("transactions-root"), "{error}");
}

#[test]
fn e06_a_missing_type_is_legacy_and_stays_missing() {
    let mut tx = without(legacy(0), "type");
    hash_of(&mut tx);
    let receipt = without(receipt(&tx), "type");
    let raw = from_rpc(block(json!([tx])), vec![receipt.clone()], &made_up_header()).unwrap();
    assert_same("transaction", &view(&raw).tx_json(0).unwrap(), &tx);
    assert_same("receipt", &view(&raw).receipt_json(0).unwrap().unwrap(), &receipt);

    let error =
        from_rpc(block(json!([without(tx, "gas")])), vec![], &made_up_header()).unwrap_err().to_string();
    assert!(
        error.contains("block 7: transaction 0") && error.contains("field `gas`: it is missing"),
        "{error}"
    );
    let error =
        from_rpc(block(json!([with(legacy(0), "type", "legacy")])), vec![], &made_up_header()).unwrap_err();
    assert!(error.to_string().contains("field `type`: expected a quantity"), "{error}");
}

#[test]
fn e07_a_missing_effective_gas_price_is_the_gas_price_or_null() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    for sent in
        [without(receipt(&tx), "effectiveGasPrice"), with(receipt(&tx), "effectiveGasPrice", Value::Null)]
    {
        let raw = from_rpc(block(json!([tx])), vec![sent], &made_up_header()).unwrap();
        assert_same("receipt", &view(&raw).receipt_json(0).unwrap().unwrap(), &receipt(&tx));
        assert_nothing_beside(&raw);
    }
    let neither = without(legacy(0), "gasPrice");
    let sent = without(receipt(&neither), "effectiveGasPrice");
    let raw = from_rpc(block(json!([neither])), vec![sent], &made_up()).unwrap();
    assert_eq!(view(&raw).receipt_json(0).unwrap().unwrap()["effectiveGasPrice"], Value::Null);
    assert_same("transaction", &view(&raw).tx_json(0).unwrap(), &neither);
}

#[test]
fn e08_receipts_with_a_root_have_no_status() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let old = with(without(receipt(&tx), "status"), "root", TX);
    for sent in [old.clone(), with(old.clone(), "status", Value::Null)] {
        let raw = from_rpc(block(json!([tx])), vec![sent], &made_up_header()).unwrap();
        assert_eq!(raw.transactions[0].status, TxStatus::Unknown);
        assert_same("receipt", &view(&raw).receipt_json(0).unwrap().unwrap(), &old);
    }
    let failed = with(receipt(&tx), "status", "0x0");
    let raw = from_rpc(block(json!([tx])), vec![failed.clone()], &made_up_header()).unwrap();
    assert_eq!(raw.transactions[0].status, TxStatus::Failed);
    assert_same("receipt", &view(&raw).receipt_json(0).unwrap().unwrap(), &failed);
    // Neither: unknown, and the receipts root can't hold.
    let neither = without(receipt(&tx), "status");
    let raw = from_rpc(block(json!([tx])), vec![neither.clone()], &made_up_header()).unwrap();
    assert_eq!(raw.transactions[0].status, TxStatus::Unknown);
    assert_same("receipt", &view(&raw).receipt_json(0).unwrap().unwrap(), &neither);
    let profile = ChainProfile::relaxing(made_up().relaxed - Checks::RECEIPTS_ROOT);
    let failure = check_block(&raw, &profile).unwrap_err();
    assert!(failure.message.contains("neither status nor root"), "{failure}");
}

#[test]
fn e09_a_creation_is_served_with_a_null_recipient() {
    let created = |nonce: u64| {
        let sender: alloy_primitives::Address = ALICE.parse().unwrap();
        format!("{:#x}", sender.create(nonce)).to_lowercase()
    };
    let shapes: [fn(Value) -> Value; 3] =
        [|tx| with(tx, "to", Value::Null), |tx| without(tx, "to"), |tx| with(tx, "to", "")];
    let mut txs: Vec<Value> = (0..).zip(shapes).map(|(index, shape)| shape(legacy(index))).collect();
    txs.iter_mut().for_each(hash_of_at_its_place);
    let receipts: Vec<Value> = (0u64..)
        .zip(&txs)
        .map(|(index, tx)| {
            let receipt = with(receipt(tx), "cumulativeGasUsed", format!("{:#x}", 0x5208 * (index + 1)));
            let receipt = with(receipt, "contractAddress", created(index));
            let receipt = with(receipt, "status", if index == 2 { "0x0" } else { "0x1" });
            match index {
                0 => receipt,
                1 => without(receipt, "to"),
                _ => with(receipt, "to", ""),
            }
        })
        .collect();
    let raw = from_rpc(block(json!(txs)), receipts.clone(), &made_up_header()).unwrap();
    let view = view(&raw);
    for index in 0..3 {
        assert_same(
            "transaction",
            &view.tx_json(index).unwrap(),
            &with(txs[index].clone(), "to", Value::Null),
        );
        assert_same(
            "receipt",
            &view.receipt_json(index).unwrap().unwrap(),
            &with(receipts[index].clone(), "to", Value::Null),
        );
    }
    assert_eq!(raw.transactions[2].status, TxStatus::Failed);
    assert_nothing_beside(&raw);
}

fn hash_of_at_its_place(tx: &mut Value) {
    let place = tx["transactionIndex"].take();
    hash_of(tx);
    tx["transactionIndex"] = place;
}

#[test]
fn e10_injected_transactions_by_the_chains_profile() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let hidden =
        json!({"hash": TX, "transactionIndex": "0x1", "from": zeros(20), "to": zeros(20), "type": "0x0"});
    let mut extra = with(receipt(&hidden), "cumulativeGasUsed", "0x0");
    extra["gasUsed"] = "0x0".into();
    extra["effectiveGasPrice"] = "0x0".into();
    extra["logs"] = json!([log(&hidden, 1)]);
    let mut first = receipt(&tx);
    first["logs"] = json!([log(&tx, 0)]);
    for receipt in [&mut first, &mut extra] {
        receipt["logsBloom"] = bloom_of_log();
    }
    let receipts = || vec![extra.clone(), first.clone()];

    let error = from_rpc(block(json!([tx])), receipts(), &made_up_header()).unwrap_err();
    let EvmError::Inconsistent(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.check, Checks::EXTRA_RECEIPTS);
    assert!(failure.message.contains("1 of 2 receipts") && failure.message.contains(TX), "{failure}");
    assert!(error.kind().is_retryable());

    let profile = ChainProfile::relaxing(made_up().relaxed | Checks::EXTRA_RECEIPTS);
    let raw = from_rpc(block(json!([tx])), receipts(), &profile).unwrap();
    assert_eq!((raw.facts.tx_count, raw.facts.log_count), (2, 2));
    assert!(check_block(&raw, &profile).unwrap().contains(Checks::EXTRA_RECEIPTS));
    // The rows are judged by the roots of what the body lists.
    let strict = ChainProfile::relaxing(Checks::HEADER_HASH);
    assert_eq!(check_block(&raw, &strict).unwrap_err().check, Checks::EXTRA_RECEIPTS);

    let view = view(&raw);
    assert_eq!((view.tx_count(), view.listed_tx_count().unwrap()), (2, 1));
    assert_eq!(view.block_json(false).unwrap()["transactions"], json!([tx["hash"]]));
    assert_same("receipt", &view.receipt_json(1).unwrap().unwrap(), &extra);
    let filter = LogFilter::default();
    let logs: Vec<Value> =
        view.logs(&filter, false).unwrap().iter().map(|l| serde_json::from_str(l.get()).unwrap()).collect();
    assert_eq!(logs, [log(&tx, 0), log(&hidden, 1)]);
    let synthetic = view.tx_json(1).unwrap();
    assert_eq!(
        (&synthetic["hash"], &synthetic["value"], &synthetic["from"]),
        (&json!(TX), &json!("0x0"), &json!(zeros(20)))
    );
    assert_eq!(view.raw_receipts().unwrap().len(), 1);
}

#[test]
fn e10_an_injected_transaction_that_the_node_lists_is_kept_outside_the_roots() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let listed = with(with(legacy(1), "hash", TX), "r", "0x0");
    let receipts = || vec![receipt(&tx), receipt(&listed)];
    let sent = block(json!([tx, listed]));
    assert!(from_rpc(sent.clone(), receipts(), &made_up_header()).is_err());
    let profile = ChainProfile::relaxing(
        Checks::HEADER_HASH | Checks::EXTRA_RECEIPTS | Checks::SENDERS | Checks::OMMERS_HASH,
    );
    let roots = [("transactionsRoot", "raw_transaction"), ("receiptsRoot", "raw_receipts")];
    let raw = from_rpc(sent.clone(), receipts(), &profile).unwrap();
    let seen = view(&raw);
    let mut sent = sent;
    for (name, of) in roots {
        let items = if of == "raw_receipts" {
            seen.raw_receipts().unwrap()
        } else {
            vec![seen.raw_transaction(0).unwrap()]
        };
        assert_eq!(items.len(), 1);
        sent[name] = alloy_trie::root::ordered_trie_root_encoded(&items).to_string().into();
    }
    let raw = from_rpc(sent.clone(), receipts(), &profile).unwrap();
    let unverified = check_block(&raw, &profile).unwrap();
    assert!(unverified.contains(Checks::EXTRA_RECEIPTS));
    assert!(
        !unverified.intersects(Checks::TRANSACTIONS_ROOT | Checks::RECEIPTS_ROOT | Checks::UNKNOWN_TX_TYPE)
    );
    assert_same("block", &view(&raw).block_json(true).unwrap(), &sent);
    // Not at the end, and the root doesn't cover what is left: a lie.
    let (a, b) =
        (with(listed.clone(), "transactionIndex", "0x0"), with(tx.clone(), "transactionIndex", "0x1"));
    let receipts = vec![receipt(&a), receipt(&b)];
    assert!(from_rpc(block(json!([a, b])), receipts, &profile).is_err());
}

fn bloom_of_log() -> Value {
    let mut bloom = alloy_primitives::Bloom::ZERO;
    let topic: alloy_primitives::B256 = TX.parse().unwrap();
    bloom.accrue_raw_log(BOB.parse().unwrap(), &[topic]);
    alloy_primitives::hex::encode_prefixed(bloom).into()
}

#[test]
fn e17_what_belongs_to_another_block_or_place_is_refused() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let good = || {
        let mut receipt = receipt(&tx);
        receipt["logs"] = json!([log(&tx, 0), log(&tx, 1)]);
        receipt["logsBloom"] = bloom_of_log();
        receipt
    };
    assert!(from_rpc(block(json!([tx])), vec![good()], &made_up_header()).is_ok());
    let refused = |tx: Value, receipt: Value, field: &str| {
        let error = from_rpc(block(json!([tx])), vec![receipt], &made_up_header()).unwrap_err();
        let EvmError::Inconsistent(failure) = &error else { panic!("{error}") };
        assert!(failure.message.contains(&format!("`{field}`")), "{failure}");
    };
    for (field, value) in [("blockHash", TX), ("blockNumber", "0x8")] {
        refused(with(tx.clone(), field, value), good(), field);
        refused(tx.clone(), with(good(), field, value), field);
    }
    refused(tx.clone(), with(good(), "from", BOB), "from");
    for (field, value) in
        [("blockHash", TX), ("transactionHash", TX), ("transactionIndex", "0x1"), ("logIndex", "0x2")]
    {
        if !field.ends_with("Index") {
            let mut receipt = good();
            receipt["logs"][1][field] = value.into();
            refused(tx.clone(), receipt, field);
        }
        // What a node leaves out is filled in.
        let mut receipt = good();
        receipt["logs"][1].as_object_mut().unwrap().shift_remove(field);
        let raw = from_rpc(block(json!([tx])), vec![receipt], &made_up_header()).unwrap();
        assert_same("receipt", &view(&raw).receipt_json(0).unwrap().unwrap(), &good());
    }
}

#[test]
fn g02_a_log_without_topics_is_kept_and_found_by_address() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let anonymous = with(log(&tx, 0), "topics", json!([]));
    let receipt = with(receipt(&tx), "logs", json!([anonymous]));
    let raw = from_rpc(block(json!([tx])), vec![receipt], &made_up()).unwrap();
    let address: alloy_primitives::Address = BOB.parse().unwrap();
    assert_eq!(raw.log_terms, [cairn_evm::log_term(cairn_evm::TermSlot::Address, address.as_slice())]);
    for filter in [LogFilter::default(), LogFilter::new(vec![address], vec![])] {
        assert_eq!(view(&raw).logs(&filter, false).unwrap().len(), 1);
    }
    assert!(view(&raw).logs(&LogFilter::new(vec![], vec![None]), false).unwrap().is_empty());
}

#[test]
fn g08_hex_forms_in_and_out() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let minimal = tx.clone();
    tx["gas"] = "0x0005208".into();
    tx["r"] = format!("0x{:064x}", 1).into();
    tx["to"] = BOB.to_uppercase().replace('X', "x").into();
    let sent = with(block(json!([tx])), "number", "0x007");
    let sent = with(sent, "timestamp", "0x0064");
    let raw = from_rpc(sent, vec![receipt(&minimal)], &made_up_header()).unwrap();
    assert_nothing_beside(&raw);
    assert_same(
        "block",
        &view(&raw).block_json(true).unwrap(),
        &with(block(json!([minimal])), "transactions", json!([minimal])),
    );
}

#[test]
fn a_chain_whose_headers_hash_otherwise_is_served_as_its_node_says() {
    let mut sent = block(json!([]));
    for name in ["mixHash", "nonce", "difficulty", "size"] {
        sent.as_object_mut().unwrap().shift_remove(name);
    }
    // Out of the order of a header's RLP: no base fee, but a withdrawals root.
    sent["withdrawalsRoot"] = TX.into();
    sent["sealFields"] = json!(["0x1", {"deep": [TX]}]);
    let raw = from_rpc(sent.clone(), vec![], &made_up()).unwrap();
    assert_same("block", &view(&raw).block_json(true).unwrap(), &sent);
    let head = view(&raw).header_json().unwrap();
    assert!(
        head.get("sealFields").is_some()
            && head.get("transactions").is_none()
            && head.get("uncles").is_none()
    );
    let unverified = check_block_with(&raw, &made_up(), SendersAre::Claimed).unwrap();
    assert!(unverified.contains(Checks::HEADER_HASH));
    let error = from_rpc(sent, vec![], &ChainProfile::default()).unwrap_err();
    assert!(error.to_string().contains("`difficulty` is missing"), "{error}");
    let error = from_rpc(block(json!([])), vec![], &ChainProfile::default()).unwrap_err();
    assert!(error.to_string().contains("header-hash") && error.to_string().contains(HASH), "{error}");
}

#[test]
fn ommers_that_were_not_given_are_asked_for() {
    let sent = with(block(json!([])), "uncles", json!([TX]));
    let error = from_rpc(sent.clone(), vec![], &made_up_header()).unwrap_err();
    assert!(error.to_string().contains("eth_getUncleByBlockHashAndIndex"), "{error}");
    let raw = from_rpc(sent.clone(), vec![], &made_up()).unwrap();
    let view = view(&raw);
    assert_eq!(view.block_json(true).unwrap()["uncles"], sent["uncles"]);
    assert_eq!(view.ommer_count().unwrap(), 1);
    assert!(view.ommer_json(0).unwrap().is_none());
}

/// A block whose roots are those of what was built of it: only its header is made up.
fn with_roots(sent: &Value, receipts: &[Value], profile: &ChainProfile) -> Value {
    let relaxed = profile.relaxed | Checks::TRANSACTIONS_ROOT | Checks::RECEIPTS_ROOT;
    let raw = from_rpc(sent.clone(), receipts.to_vec(), &ChainProfile::relaxing(relaxed)).unwrap();
    let view = view(&raw);
    let root = |items: &[bytes::Bytes]| alloy_trie::root::ordered_trie_root_encoded(items).to_string();
    let listed = view.listed_tx_count().unwrap();
    let transactions: Vec<_> = (0..listed).filter_map(|index| view.raw_transaction(index).ok()).collect();
    let sent = with(sent.clone(), "transactionsRoot", root(&transactions));
    with(sent, "receiptsRoot", root(&view.raw_receipts().unwrap()))
}

/// Built, checked, and marked with this.
fn taken(sent: &Value, receipts: &[Value], profile: &ChainProfile, marks: Checks) -> RawBlock {
    let raw = from_rpc(sent.clone(), receipts.to_vec(), profile).unwrap();
    assert_eq!(check_block(&raw, profile).unwrap(), profile.relaxed | marks);
    raw
}

/// Everything but the header and the senders is checked.
fn roots_hold() -> ChainProfile {
    ChainProfile::relaxing(Checks::HEADER_HASH | Checks::SENDERS | Checks::OMMERS_HASH | Checks::BLOOM)
}

#[test]
fn k2_positions_are_ours_and_the_nodes_are_kept_beside() {
    let mut txs = [legacy(0), legacy(1)];
    txs.iter_mut().for_each(hash_of_at_its_place);
    let mut receipts: Vec<Value> = txs.iter().map(receipt).collect();
    receipts[1]["cumulativeGasUsed"] = "0xa410".into();
    for (receipt, tx) in receipts.iter_mut().zip(&txs) {
        receipt["logs"] = json!([log(tx, 0), log(tx, 1)]);
        receipt["logsBloom"] = bloom_of_log();
    }
    // A number in JSON, a position beyond the block, and one that is no number.
    txs[1]["transactionIndex"] = json!(7);
    receipts[1]["transactionIndex"] = "0x9".into();
    receipts[1]["logs"][0]["transactionIndex"] = json!([]);
    receipts[1]["logs"][1]["logIndex"] = json!(0);
    let sent = with(block(json!(txs)), "gasUsed", "0xa410");
    let sent = with_roots(&sent, &receipts, &roots_hold());
    receipts.reverse();
    let raw = taken(&sent, &receipts, &roots_hold(), Checks::POSITIONS);
    let view = view(&raw);

    let logs: Vec<Value> = view
        .logs(&LogFilter::default(), false)
        .unwrap()
        .iter()
        .map(|log| serde_json::from_str(log.get()).unwrap())
        .collect();
    let of = |name: &str| logs.iter().map(|log| log[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("logIndex"), ["0x0", "0x1", "0x2", "0x3"]);
    assert_eq!(of("transactionIndex"), ["0x0", "0x0", "0x1", "0x1"]);
    assert_eq!(of("nodeLogIndex"), [Value::Null, Value::Null, "0x0".into(), json!(0)]);
    assert_eq!(logs[2]["nodeTransactionIndex"], json!([]));
    let served = view.receipts_json().unwrap();
    assert_eq!(served[1]["logs"], json!(logs[2..]));
    assert_eq!(
        (&served[1]["transactionIndex"], &served[1]["nodeTransactionIndex"]),
        (&json!("0x1"), &json!("0x9"))
    );
    let tx = view.tx_json(1).unwrap();
    assert_eq!((&tx["transactionIndex"], &tx["nodeTransactionIndex"]), (&json!("0x1"), &json!(7)));
    // A cairn that takes it from this one keeps the node's numbers, and the mark.
    let again: Vec<Value> = served.into_iter().map(|receipt| receipt.0).collect();
    let again = taken(&view.block_json(true).unwrap(), &again, &roots_hold(), Checks::POSITIONS);
    assert_eq!(again, raw);
}

#[test]
fn k5_a_transaction_without_a_signature_is_the_nodes_word_and_its_neighbours_are_not() {
    let profile = ChainProfile::relaxing(Checks::HEADER_HASH | Checks::OMMERS_HASH | Checks::BLOOM);
    let unsigned = |index: u64, v: Value| {
        let tx = with(with(with(legacy(index), "r", "0x0"), "s", "0x0"), "v", v);
        without(tx, "transactionIndex")
    };
    // As Optimism had them before Bedrock, with the chain's id, and as a node leaves the signature out.
    let mut txs = [unsigned(0, "0x0".into()), unsigned(1, "0xa95".into()), unsigned(2, "0x1".into())];
    for (tx, v) in txs.iter_mut().zip([0u64, 0xa95, 1]) {
        let rlp = |tx: &Value| {
            let mut items = Vec::new();
            let number = |name: &str| u64::from_str_radix(&tx[name].as_str().unwrap()[2..], 16).unwrap();
            for name in ["nonce", "gasPrice", "gas"] {
                alloy_rlp::Encodable::encode(&number(name), &mut items);
            }
            alloy_rlp::Encodable::encode(&hex::decode(&BOB[2..]).unwrap()[..], &mut items);
            alloy_rlp::Encodable::encode(&number("value"), &mut items);
            items.push(0x80);
            alloy_rlp::Encodable::encode(&v, &mut items);
            items.extend([0x80, 0x80]);
            let mut list = Vec::new();
            alloy_rlp::Header { list: true, payload_length: items.len() }.encode(&mut list);
            [list, items].concat()
        };
        tx["hash"] = alloy_primitives::keccak256(rlp(tx)).to_string().into();
    }
    txs[2]["v"] = Value::Null;
    let absent = ["r", "s"].into_iter().fold(txs[0].clone(), without);
    for (tx, hashes) in [(&txs[0], true), (&txs[1], true), (&absent, true), (&txs[2], false)] {
        let receipts = [without(receipt(tx), "transactionIndex")];
        let sent = block(json!([tx]));
        if !hashes {
            // `v` was 1, and the node doesn't say so: nothing hashes to the id.
            assert!(from_rpc(sent, receipts.to_vec(), &profile).is_err());
            continue;
        }
        let sent = with_roots(&sent, &receipts, &profile);
        let raw = taken(&sent, &receipts, &profile, Checks::UNSIGNED_TX);
        assert_eq!(raw.transactions[0].sender.as_ref(), [0xa1; 20]);
        let served = view(&raw).tx_json(0).unwrap();
        assert_same("transaction", &without(served.0, "transactionIndex"), tx);
    }
    // A neighbour that is signed by nobody that is named is a lie still.
    let mut signed = with(legacy(1), "transactionIndex", "0x1");
    hash_of_at_its_place(&mut signed);
    let receipts = [receipt(&txs[0]), with(receipt(&signed), "cumulativeGasUsed", "0xa410")];
    let sent = with(block(json!([txs[0], signed])), "gasUsed", "0xa410");
    let sent = with_roots(&sent, &receipts, &profile);
    let raw = from_rpc(sent, receipts.to_vec(), &profile).unwrap();
    let failure = check_block(&raw, &profile).unwrap_err();
    assert!(failure.check == Checks::SENDERS && failure.message.contains("transaction 1"), "{failure}");
}

#[test]
fn k5_an_extra_receipt_inside_the_root_needs_no_flag_and_outside_it_does() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let of_block = json!({"hash": HASH, "transactionIndex": "0x1", "from": null, "to": null});
    let mut extra = with(with(receipt(&of_block), "cumulativeGasUsed", "0x0"), "gasUsed", "0x0");
    extra["logs"] = json!([log(&of_block, 0)]);
    extra["logsBloom"] = bloom_of_log();
    let receipts = [receipt(&tx), extra.clone()];
    let allowing = ChainProfile::relaxing(roots_hold().relaxed | Checks::EXTRA_RECEIPTS);
    let outside = with_roots(&block(json!([tx])), &receipts, &allowing);
    let raw = from_rpc(outside.clone(), receipts.to_vec(), &allowing).unwrap();
    let bytes = |block: &RawBlock| view(block).raw_receipts().unwrap();
    assert_eq!(bytes(&raw).len(), 1);
    let error = from_rpc(outside, receipts.to_vec(), &roots_hold()).unwrap_err().to_string();
    assert!(error.contains("relax `extra-receipts`") && error.contains(HASH), "{error}");

    // The same receipts, all of them covered: as a transaction of its own would be.
    let mut second = with(legacy(1), "transactionIndex", "0x1");
    hash_of_at_its_place(&mut second);
    let alike = with(with(extra.clone(), "transactionHash", second["hash"].clone()), "from", ALICE);
    let alike = with(with(alike, "to", BOB), "logs", json!([log(&second, 0)]));
    let twin = from_rpc(block(json!([tx, second])), vec![receipt(&tx), alike], &made_up()).unwrap();
    let root = alloy_trie::root::ordered_trie_root_encoded(&bytes(&twin)).to_string();
    let inside = with(with_roots(&block(json!([tx])), &receipts, &allowing), "receiptsRoot", root);
    let raw = taken(&inside, &receipts, &roots_hold(), Checks::EXTRA_RECEIPTS);
    assert_eq!((bytes(&raw).len(), raw.facts.tx_count, raw.facts.log_count), (2, 2, 1));
    assert_same("receipt", &view(&raw).receipt_json(1).unwrap().unwrap(), &extra);
}

#[test]
fn k5_injected_transactions_stand_anywhere_and_the_root_decides_which_they_are() {
    let profile = ChainProfile::relaxing(roots_hold().relaxed | Checks::EXTRA_RECEIPTS);
    let make = |count: usize, change: &dyn Fn(usize, Value) -> Value| {
        let mut txs: Vec<Value> = (0..count).map(|index| change(index, legacy(index as u64))).collect();
        for tx in &mut txs {
            hash_of_at_its_place(tx);
        }
        txs
    };
    let free = |tx: Value| with(tx, "gasPrice", "0x0");
    let unsigned = |tx: Value| with(with(tx, "r", "0x0"), "s", "0x0");
    let wrong_hash = |tx: Value| with(tx, "hash", TX);
    let cases: [(&str, Vec<Value>, &[usize]); 6] = [
        ("a free one first", make(3, &|index, tx| if index == 0 { free(tx) } else { tx }), &[0]),
        ("free ones around", make(3, &|index, tx| if index != 1 { free(tx) } else { tx }), &[0, 2]),
        ("an unsigned one between", make(3, &|index, tx| if index == 1 { unsigned(tx) } else { tx }), &[1]),
        ("an ordinary one last", make(2, &|_, tx| tx), &[1]),
        ("an ordinary one first", make(2, &|_, tx| tx), &[0]),
        (
            "one that doesn't hash first",
            {
                let mut txs = make(2, &|_, tx| tx);
                txs[0] = wrong_hash(txs[0].clone());
                txs
            },
            &[0],
        ),
    ];
    for (what, txs, outside) in cases {
        let receipts: Vec<Value> = txs.iter().map(receipt).collect();
        // The roots of the block without them.
        let left = |items: &[Value]| -> Vec<Value> {
            let kept = items.iter().enumerate().filter(|(index, _)| !outside.contains(index));
            kept.map(|(_, item)| item.clone()).collect()
        };
        let places = |item: Value| without(item, "transactionIndex");
        let (txs_left, receipts_left): (Vec<Value>, Vec<Value>) =
            (left(&txs).into_iter().map(places).collect(), left(&receipts).into_iter().map(places).collect());
        let roots = with_roots(&block(json!(txs_left)), &receipts_left, &roots_hold());
        let sent = with(roots, "transactions", json!(txs));
        let raw =
            from_rpc(sent.clone(), receipts.clone(), &profile).unwrap_or_else(|e| panic!("{what}: {e}"));
        let marks = check_block(&raw, &profile).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(
            marks.contains(Checks::EXTRA_RECEIPTS) && !marks.contains(Checks::TRANSACTIONS_ROOT),
            "{what}"
        );
        assert!(!marks.contains(Checks::RECEIPTS_ROOT), "{what}");
        let view = view(&raw);
        assert_same(what, &view.block_json(true).unwrap(), &sent);
        assert_eq!(view.raw_receipts().unwrap().len(), txs_left.len(), "{what}");
        assert!(view.raw_block().is_ok(), "{what}");
        let decoded = cairn_evm::DecodedBlock::decode(&(&raw).into()).unwrap();
        let injected: Vec<usize> =
            (0..txs.len()).filter(|at| decoded.transactions[*at].is_injected).collect();
        assert_eq!(injected, outside, "{what}");
        // What no root covers is nothing that a node may slip in unasked.
        let refused =
            from_rpc(sent, receipts, &roots_hold()).and_then(|raw| Ok(check_block(&raw, &roots_hold())?));
        assert!(refused.is_err(), "{what}");
    }
}

#[test]
fn k6_a_transaction_without_a_receipt_is_unknown_and_never_an_empty_answer() {
    let mut txs = [legacy(0), legacy(1)];
    txs.iter_mut().for_each(hash_of_at_its_place);
    let both = [receipt(&txs[0]), with(receipt(&txs[1]), "cumulativeGasUsed", "0xa410")];
    let sent = with(block(json!(txs)), "gasUsed", "0xa410");
    let sent = with_roots(&sent, &both, &roots_hold());
    let profile = ChainProfile::relaxing(roots_hold().relaxed | Checks::MISSING_RECEIPTS);
    // Which one the node has, and a root that covers all receipts or those alone that there are.
    for (at, root_of_one) in [(0, false), (1, false), (0, true), (1, true)] {
        let receipts = [both[at].clone()];
        let alone = with_roots(
            &block(json!([txs[at]])),
            &[without(receipts[0].clone(), "transactionIndex")],
            &roots_hold(),
        );
        let sent = match root_of_one {
            true => with(sent.clone(), "receiptsRoot", alone["receiptsRoot"].clone()),
            false => sent.clone(),
        };
        let marks = if root_of_one { Checks::empty() } else { Checks::RECEIPTS_ROOT };
        let raw = taken(&sent, &receipts, &profile, Checks::MISSING_RECEIPTS | marks);
        assert_eq!((raw.facts.tx_count, raw.facts.log_count), (2, 1));
        assert_eq!(raw.transactions[1 - at].status, TxStatus::Unknown);
        let view = view(&raw);
        assert!(view.receipt_json(1 - at).unwrap().is_none());
        assert_same("block", &view.block_json(true).unwrap(), &sent);
        if at == 0 {
            assert_same("receipt", &view.receipt_json(0).unwrap().unwrap(), &receipts[0]);
        }
        let missing = txs[1 - at]["hash"].as_str().unwrap();
        for error in [
            view.receipts_json().unwrap_err(),
            view.logs(&LogFilter::default(), false).unwrap_err(),
            view.raw_receipts().unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains(missing) && error.contains("block 7"), "{error}");
        }
        // Whatever is searched for, the index names the block.
        let filter =
            LogFilter::new(vec![ALICE.parse().unwrap()], vec![None, Some(vec![TX.parse().unwrap()])]);
        for group in filter.groups() {
            assert!(group.iter().any(|key| raw.log_terms.contains(key)));
        }
        assert_eq!(cairn_evm::terms::log_terms_of_receipts(&raw.receipts).unwrap(), raw.log_terms);
        let decoded = cairn_evm::DecodedBlock::decode(&(&raw).into()).unwrap();
        assert!(
            decoded.transactions[1 - at].receipt.is_missing && !decoded.transactions[at].receipt.is_missing
        );
        assert_eq!(check_block(&raw, &roots_hold()).unwrap_err().check, Checks::MISSING_RECEIPTS);
    }
}

#[test]
fn k7_absent_null_and_empty_mean_the_same() {
    let mut tx = with(with(legacy(0), "to", Value::Null), "input", "0x");
    hash_of(&mut tx);
    let spelled: [(&str, Vec<Value>); 4] = [
        ("to", vec!["".into(), "0x".into(), Value::Null]),
        ("input", vec!["".into(), Value::Null, "0x".into()]),
        ("type", vec![Value::Null, "".into(), "0x0".into()]),
        ("chainId", vec![Value::Null, "".into()]),
    ];
    for (name, values) in spelled {
        for value in values {
            let sent = with(tx.clone(), name, value.clone());
            let raw = from_rpc(block(json!([sent])), vec![receipt(&tx)], &made_up_header());
            let raw = raw.unwrap_or_else(|error| panic!("{name}: {value}: {error}"));
            let served = view(&raw).tx_json(0).unwrap();
            if name == "input" || name == "type" {
                assert_eq!(served[name], value, "{name}");
            }
        }
    }
    // `data` in place of `input`.
    let mut other = without(tx.clone(), "input");
    other["data"] = "0x".into();
    let raw = from_rpc(block(json!([other])), vec![receipt(&tx)], &made_up_header()).unwrap();
    assert_same("transaction", &view(&raw).tx_json(0).unwrap(), &other);
    // In receipts and logs.
    for (name, value) in
        [("logs", Value::Null), ("root", "".into()), ("root", "0x".into()), ("contractAddress", "".into())]
    {
        let sent = with(receipt(&tx), name, value);
        from_rpc(block(json!([tx])), vec![sent.clone()], &made_up_header())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for (name, value) in [("data", Value::Null), ("data", "".into()), ("topics", Value::Null)] {
        let log = with(log(&tx, 0), name, value.clone());
        let sent = with(receipt(&tx), "logs", json!([log]));
        let raw = from_rpc(block(json!([tx])), vec![sent.clone()], &made_up_header()).unwrap();
        let served = view(&raw).receipt_json(0).unwrap().unwrap();
        assert_eq!(served["logs"][0][name], value, "{name}");
    }
    // In blocks.
    for (name, value) in [
        ("uncles", Value::Null),
        ("withdrawals", Value::Null),
        ("withdrawals", json!([])),
        ("extraData", Value::Null),
        ("extraData", "".into()),
        ("baseFeePerGas", "".into()),
    ] {
        let sent = with(block(json!([])), name, value);
        let profile =
            ChainProfile::relaxing(made_up().relaxed - Checks::OMMERS_HASH - Checks::WITHDRAWALS_ROOT);
        let sent = with(sent, "sha3Uncles", alloy_primitives::keccak256([0xc0]).to_string());
        let raw = from_rpc(sent.clone(), vec![], &profile).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_block(&raw, &profile).unwrap();
        assert_same(name, &view(&raw).block_json(true).unwrap(), &sent);
    }
    let sent = with(block(json!([])), "transactions", Value::Null);
    let raw = from_rpc(sent, vec![], &made_up()).unwrap();
    assert_eq!(view(&raw).block_json(true).unwrap()["transactions"], json!([]));
    // A header with the root of no withdrawals has an empty list, whatever the node gives.
    let root = alloy_primitives::keccak256([0x80]).to_string();
    for value in [Value::Null, json!([])] {
        let sent = with(with(block(json!([])), "withdrawalsRoot", root.clone()), "withdrawals", value);
        let sent = with(sent, "baseFeePerGas", "0x7");
        let profile = ChainProfile::relaxing(made_up().relaxed - Checks::WITHDRAWALS_ROOT);
        let raw = from_rpc(sent.clone(), vec![], &profile).unwrap();
        check_block(&raw, &profile).unwrap();
        assert_same("block", &view(&raw).block_json(true).unwrap(), &sent);
    }
}

#[test]
fn what_json_trees_can_not_hold_comes_back_as_it_was() {
    let mut tx = legacy(0);
    hash_of(&mut tx);
    let text = with(block(json!([tx])), "totalDifficulty", "TOTAL").to_string();
    let text = text.replace("\"TOTAL\"", "58750003716598352816469").replacen('{', r#"{"note":"\ud800","#, 1);
    let sent = cairn_evm::json::parse(text.as_bytes()).unwrap();
    let receipt = receipt(&tx).to_string().replacen('{', r#"{"price":1.10e5,"deep":[{"x":"\udfff"}],"#, 1);
    let receipt = cairn_evm::json::parse(receipt.as_bytes()).unwrap();
    let raw = from_rpc(sent, vec![receipt], &made_up_header()).unwrap();
    let served = view(&raw).block_json(false).unwrap().to_string();
    assert!(served.contains("\"totalDifficulty\":58750003716598352816469"), "{served}");
    assert!(served.contains(r#""note":"\ud800""#), "{served}");
    let served = view(&raw).receipt_json(0).unwrap().unwrap().to_string();
    assert!(served.contains(r#""price":1.10e5"#) && served.contains(r#"{"x":"\udfff"}"#), "{served}");
    // What is a quantity of the header is one as an integer too, and comes back as one.
    let text = block(json!([]))
        .to_string()
        .replace(r#""difficulty":"0x1""#, r#""difficulty":58750003716598352816469"#);
    let raw = from_rpc(cairn_evm::json::parse(text.as_bytes()).unwrap(), vec![], &made_up()).unwrap();
    assert_eq!(view(&raw).header().unwrap().difficulty.to_string(), "58750003716598352816469");
    let served = view(&raw).header_json().unwrap().to_string();
    assert!(served.contains("\"difficulty\":58750003716598352816469"), "{served}");
}

#[test]
fn authorization_lists_are_read_in_both_spellings() {
    use alloy_eips::eip2718::Encodable2718;
    use alloy_eips::eip7702::{Authorization, SignedAuthorization};
    use alloy_primitives::{Signature, U256};

    let authorization = |parity| {
        let inner = Authorization { chain_id: U256::from(1), address: BOB.parse().unwrap(), nonce: 7 };
        SignedAuthorization::new_unchecked(inner, parity, U256::from(5), U256::from(6))
    };
    let tx = alloy_consensus::TxEip7702 {
        chain_id: 1,
        gas_limit: 21_000,
        to: BOB.parse().unwrap(),
        authorization_list: vec![authorization(0), authorization(1)],
        ..Default::default()
    };
    let signature = Signature::new(U256::from(1), U256::from(1), true);
    let envelope = cairn_evm::tx::TxEnvelope::new_unhashed(tx.into(), signature);
    let hash = alloy_primitives::keccak256(envelope.encoded_2718()).to_string();
    for (name, parities) in [
        ("yParity", ["0x0", "0x1"]),
        ("v", ["0x0", "0x1"]),
        ("v", ["0x1b", "0x1c"]),
        ("yParity", ["0x00", "0x01"]),
    ] {
        let list = parities.map(|parity| {
            let entry = json!({"chainId": "0x1", "address": BOB, "nonce": "0x7", "r": "0x5", "s": "0x6"});
            with(entry, name, parity)
        });
        let tx = json!({
            "blockHash": HASH, "blockNumber": "0x7", "blockTimestamp": "0x64", "transactionIndex": "0x0", "hash": hash, "from": ALICE,
            "to": BOB, "type": "0x4", "nonce": "0x0", "gas": "0x5208", "gasPrice": "0x0", "maxFeePerGas": "0x0",
            "maxPriorityFeePerGas": "0x0", "value": "0x0", "input": "0x", "accessList": [], "chainId": "0x1",
            "authorizationList": list, "v": "0x1", "yParity": "0x1", "r": "0x1", "s": "0x1",
        });
        let raw = from_rpc(block(json!([tx])), vec![receipt(&tx)], &made_up_header()).unwrap();
        assert_eq!(view(&raw).raw_transaction(0).unwrap(), envelope.encoded_2718());
        assert_same("transaction", &view(&raw).tx_json(0).unwrap(), &tx);
    }
}
