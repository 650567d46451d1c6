//! Typed values against the JSON views of the same blocks, and the field cases that concern them.

use alloy_primitives::{Address, B256, U256, hex};
use cairn_core::{StoredBlock, TxStatus};
use cairn_evm::{BlockView, ChainProfile, DecodedBlock, LogFilter, Recipient, from_consensus, from_rpc};
use serde_json::{Value, json};

fn number(value: &Value) -> Option<U256> {
    value.as_str().map(|text| U256::from_str_radix(&text[2..], 16).unwrap())
}

fn wide(number: Option<u128>) -> Option<U256> {
    number.map(U256::from)
}

fn small(number: Option<u64>) -> Option<U256> {
    number.map(U256::from)
}

fn address(value: &Value) -> Option<Address> {
    value.as_str().map(|text| text.parse().unwrap())
}

/// Everything that both say has to be the same.
fn assert_as_served(block: &StoredBlock) -> DecodedBlock {
    let decoded = DecodedBlock::decode(block).unwrap();
    let view = BlockView::decode(block.clone(), None).unwrap();
    assert_eq!(decoded.transactions.len(), view.tx_count());
    let mut logs = Vec::new();
    for (index, tx) in decoded.transactions.iter().enumerate() {
        let (json, receipt) = (view.tx_json(index).unwrap(), view.receipt_json(index).unwrap().unwrap());
        assert_eq!(json["hash"], tx.id.to_string());
        assert_eq!(address(&json["from"]), tx.sender);
        assert_eq!(address(&json["to"]), tx.to.address());
        assert_eq!(tx.to == Recipient::Create, json["to"].is_null());
        assert_eq!(number(&json["nonce"]), small(tx.nonce));
        assert_eq!(number(&json["value"]), tx.value);
        assert_eq!(number(&json["gas"]), small(tx.gas_limit));
        assert_eq!(number(&json["type"]), small(tx.ty));
        assert_eq!(json["input"], hex::encode_prefixed(tx.input.as_ref().unwrap()));
        assert_eq!(number(&json["maxFeePerGas"]), wide(tx.max_fee_per_gas));
        assert_eq!(number(&json["maxPriorityFeePerGas"]), wide(tx.max_priority_fee_per_gas));
        assert_eq!(number(&json["maxFeePerBlobGas"]), wide(tx.max_fee_per_blob_gas));
        assert_eq!(number(&receipt["gasUsed"]), small(Some(tx.receipt.gas_used)));
        assert_eq!(number(&receipt["cumulativeGasUsed"]), small(Some(tx.receipt.cumulative_gas_used)));
        assert_eq!(number(&receipt["effectiveGasPrice"]), wide(tx.receipt.effective_gas_price));
        assert_eq!(number(&receipt["blobGasUsed"]), small(tx.receipt.blob_gas_used));
        assert_eq!(address(&receipt["contractAddress"]), tx.receipt.contract_address);
        for log in &tx.receipt.logs {
            logs.push(json!({
                "address": hex::encode_prefixed(log.address),
                "topics": log.topics.iter().map(B256::to_string).collect::<Vec<_>>(),
                "data": hex::encode_prefixed(&log.data),
                "logIndex": format!("{:#x}", log.log_index),
                "transactionHash": tx.id.to_string(),
            }));
        }
    }
    let served = view.logs(&LogFilter::default(), false).unwrap();
    assert_eq!(served.len(), logs.len());
    for (ours, served) in logs.iter().zip(served) {
        let served: Value = serde_json::from_str(served.get()).unwrap();
        for (name, value) in ours.as_object().unwrap() {
            assert_eq!(&served[name], value, "{name}");
        }
    }
    decoded
}

#[test]
fn typed_values_are_those_that_are_served() {
    let Some(suite) = crate::support::suite() else { return };
    let mut transactions = 0;
    for block in crate::support::chain(&suite) {
        transactions += assert_as_served(&from_consensus(&block).unwrap().into()).transactions.len();
    }
    assert!(transactions > 100);
}

#[test]
fn parts_that_were_not_read_are_unknown_or_named() {
    let Some(suite) = crate::support::suite() else { return };
    let chain = crate::support::chain(&suite);
    let block = chain.iter().map(|block| StoredBlock::from(from_consensus(block).unwrap()));
    let whole = block.max_by_key(|block| block.facts.log_count).unwrap();
    let logs_only = StoredBlock { header: [][..].into(), body: [][..].into(), ..whole.clone() };
    let decoded = DecodedBlock::decode(&logs_only).unwrap();
    assert!(decoded.header.is_none());
    assert_eq!(decoded.logs().count(), whole.facts.log_count as usize);
    assert!(decoded.transactions.iter().all(|tx| tx.to == Recipient::Unknown && tx.value.is_none()));
    let error = DecodedBlock::decode(&StoredBlock { receipts: [][..].into(), ..whole }).unwrap_err();
    assert!(error.to_string().contains("receipts"), "{error}");
}

const HASH: &str = "0x1111111111111111111111111111111111111111111111111111111111111111";
const ALICE: &str = "0xa1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const BOB: &str = "0xb0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0";

fn zeros(bytes: usize) -> String {
    format!("0x{}", "00".repeat(bytes))
}

/// A made-up block of these transactions and receipts, as it is read back.
fn made_up(transactions: &[Value], receipts: Vec<Value>) -> StoredBlock {
    let names = "header-hash,transactions-root,receipts-root,senders,bloom,ommers-hash,extra-receipts";
    let profile = ChainProfile::relaxing(ChainProfile::parse_relaxations(names).unwrap());
    let block = json!({
        "number": "0x7", "hash": HASH, "parentHash": zeros(32), "sha3Uncles": zeros(32), "miner": BOB,
        "stateRoot": zeros(32), "transactionsRoot": zeros(32), "receiptsRoot": zeros(32), "logsBloom": zeros(256),
        "difficulty": "0x1", "gasLimit": "0x1c9c380", "gasUsed": "0x5208", "timestamp": "0x64", "extraData": "0x",
        "mixHash": zeros(32), "nonce": zeros(8), "uncles": [], "size": "0x220", "transactions": transactions,
    });
    from_rpc(block, receipts, &profile).unwrap().into()
}

fn tx(index: u64, more: Value) -> Value {
    let mut tx = json!({
        "transactionIndex": format!("{index:#x}"), "hash": format!("0x{index:064x}"), "from": ALICE, "to": BOB,
        "nonce": "0x3", "gas": "0x5208", "value": "0x5", "input": "0x0102",
    });
    tx.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tx
}

fn receipt(index: u64, more: Value) -> Value {
    let mut receipt = json!({
        "transactionHash": format!("0x{index:064x}"), "transactionIndex": format!("{index:#x}"), "status": "0x1",
        "cumulativeGasUsed": format!("{:#x}", 21_000 * (index + 1)), "gasUsed": "0x5208", "logs": [], "from": ALICE,
    });
    receipt.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    receipt
}

#[test]
fn e05_an_unknown_type_gives_what_its_json_says() {
    let deposit = tx(0, json!({ "type": "0x7e", "sourceHash": HASH, "mint": "0x1" }));
    let odd = tx(1, json!({ "type": "0x6b", "foo": 1, "value": null, "input": 7 }));
    let block = made_up(&[deposit, odd], vec![receipt(0, json!({ "l1Fee": "0x9" })), receipt(1, json!({}))]);
    let decoded = DecodedBlock::decode(&block).unwrap();
    let [first, second] = &decoded.transactions[..] else { panic!() };
    assert_eq!((first.ty, first.nonce, first.value), (Some(0x7e), Some(3), Some(U256::from(5))));
    assert_eq!(first.to, Recipient::Call(BOB.parse().unwrap()));
    assert_eq!(first.input.as_deref(), Some(&[1, 2][..]));
    assert_eq!((first.receipt.effective_gas_price, first.receipt.l1_fee), (None, Some(U256::from(9))));
    assert_eq!((second.ty, second.value, second.input.as_ref()), (Some(0x6b), None, None));
    assert_eq!(second.receipt.gas_used, 21_000);
}

#[test]
fn e07_a_price_that_nobody_says_is_unknown_and_not_zero() {
    let with_price = || json!({ "type": "0x6b", "gasPrice": "0x3b9aca00" });
    let transactions = [tx(0, with_price()), tx(1, with_price()), tx(2, json!({ "type": "0x6b" }))];
    let receipts =
        vec![receipt(0, json!({})), receipt(1, json!({ "effectiveGasPrice": null })), receipt(2, json!({}))];
    let decoded = DecodedBlock::decode(&made_up(&transactions, receipts)).unwrap();
    let prices: Vec<_> = decoded.transactions.iter().map(|tx| tx.receipt.effective_gas_price).collect();
    assert_eq!(prices, [Some(1_000_000_000), Some(1_000_000_000), None]);
}

#[test]
fn e09_creations_have_no_recipient_however_it_is_spelled() {
    let create = |index, to: Value| tx(index, json!({ "type": "0x6b", "to": to }));
    let mut absent = create(1, Value::Null);
    absent.as_object_mut().unwrap().remove("to");
    let transactions = [create(0, Value::Null), absent, create(2, "".into())];
    let named = json!({ "contractAddress": BOB, "status": "0x0" });
    let receipts = vec![receipt(0, named), receipt(1, json!({})), receipt(2, json!({}))];
    let decoded = DecodedBlock::decode(&made_up(&transactions, receipts)).unwrap();
    assert!(decoded.transactions.iter().all(|tx| tx.to == Recipient::Create));
    assert_eq!(decoded.transactions[0].receipt.contract_address, Some(BOB.parse().unwrap()));
    assert_eq!(decoded.transactions[0].status, TxStatus::Failed);
}

#[test]
fn e10_injected_transactions_are_flagged() {
    let log = json!({ "address": BOB, "topics": [HASH], "data": "0x", "logIndex": "0x0", "transactionIndex": "0x1" });
    let receipts = vec![receipt(0, json!({})), receipt(1, json!({ "logs": [log] }))];
    let block = made_up(&[tx(0, json!({ "type": "0x6b" }))], receipts);
    let decoded = DecodedBlock::decode(&block).unwrap();
    let [listed, injected] = &decoded.transactions[..] else { panic!() };
    assert!(!listed.is_injected && injected.is_injected);
    assert_eq!((injected.to, injected.value), (Recipient::Unknown, None));
    assert_eq!(decoded.logs().map(|(tx, log)| (tx.index, log.log_index)).collect::<Vec<_>>(), [(1, 0)]);
}
