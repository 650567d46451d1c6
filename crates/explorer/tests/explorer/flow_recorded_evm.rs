//! EVM transactions that were recorded on mainnet: each is the row that its explorer shows.

use std::collections::BTreeMap;

use alloy_primitives::B256;
use cairn_explorer::names;
use cairn_flow::Network;
use serde_json::Value as Json;

use crate::support;
use support::flow::*;
use support::recorded::*;

/// Of what the explorer shows three things are not the same in a row, deliberately. A direct call has the type and the price of Flow's own event, 255 and 0;
/// the explorer gives it those of the legacy transaction that the EVM gateway makes of it, and the block's base fee. Who sent a signed transaction follows from its
/// signature, which isn't recorded.
#[test]
fn every_recorded_evm_transaction_is_the_row_that_its_explorer_shows() {
    let Some(listed) = fixture("findapi-evm-tx.json") else { return };
    let mut by_block: BTreeMap<u64, Vec<&Json>> = BTreeMap::new();
    for row in listed["data"].as_array().unwrap() {
        by_block.entry(row["block_number"].as_u64().unwrap()).or_default().push(row);
    }
    let (mut direct, mut signed) = (0, 0);
    for (evm_height, mut rows) in by_block {
        rows.sort_by_key(|row| row["position"].as_u64());
        let gas = |row: &&Json| text(row, "gas_used").parse::<u64>().unwrap();
        let closed = evm_closed_as(B256::repeat_byte(3), rows.iter().map(gas).sum(), &rows);
        let events = rows.iter().map(|row| evm_executed_as(row)).collect();
        let txs = [RecordedTx::of(0, 0, events), RecordedTx::system(vec![closed])];
        let block = recorded_block(5, B256::repeat_byte(7), 1_000, &txs);
        let (tables, malformed) = map_on(Network::Mainnet, names::EVM_WORKER, &block);
        let of_payload =
            malformed.iter().filter(|one| one.message.contains("its payload has the hash")).count();
        let count = rows.iter().filter(|row| !is_direct(row)).count();
        assert_eq!((malformed.len(), of_payload), (count, count), "of unknown signatures: {malformed:?}");
        let mut cumulative = 0;
        // Rows come in the order of their keys.
        let ids = told(&tables, "evm_transactions", "transaction_id");
        for row in &rows {
            let at = ids.iter().position(|id| *id == text(row, "hash")).expect("a row of it");
            let of = |column: &str| told(&tables, "evm_transactions", column).remove(at);
            let execution = |column: &str| told(&tables, "evm_executions", column).remove(at);
            for (column, field) in [
                ("transaction_id", "hash"),
                ("to_address", "to"),
                ("value", "value"),
                ("gas_limit", "gas_limit"),
                ("gas_used", "gas_used"),
                ("status", "status"),
                ("input", "raw_input"),
            ] {
                assert_eq!(of(column), text(row, field), "{column}");
            }
            assert_eq!(of("nonce"), row["nonce"].to_string());
            assert_eq!(of("transaction_index"), row["position"].to_string());
            assert_eq!(of("max_fee_per_gas"), row["max_fee_per_gas"].to_string());
            assert_eq!(of("max_priority_fee_per_gas"), row["max_priority_fee_per_gas"].to_string());
            assert_eq!(execution("evm_height"), evm_height.to_string());
            assert_eq!(execution("error_message"), row["revert_reason"].to_string());
            assert_eq!(
                (execution("error_code"), &row["has_error_in_internal_transactions"]),
                ("0".into(), &Json::Bool(false))
            );
            cumulative += gas(row);
            // The explorer's page ends within the lowest block: what its first transaction used isn't recorded, so nobody knows the sum.
            let is_whole = rows[0]["position"] == 0;
            let known = if is_whole { cumulative.to_string() } else { "null".into() };
            assert_eq!((of("cumulative_gas_used"), is_whole), (known, evm_height != 55_215_313));
            let closed_s = told(&tables, "evm_blocks", "evm_timestamp_s").remove(0).parse::<u64>().unwrap();
            assert_eq!(closed_s * 1_000, millis(&text(row, "timestamp")));
            let priced = [of("tx_type"), of("gas_price"), of("effective_gas_price")];
            if is_direct(row) {
                direct += 1;
                assert_eq!(of("from_address"), text(row, "from"));
                assert_eq!([of("is_injected"), execution("direct_call")], ["true", "transfer"]);
                assert_eq!(priced, ["255", "0", "0"]);
                assert_eq!((row["type"].as_u64(), text(row, "gas_price")), (Some(0), "1".into()));
            } else {
                signed += 1;
                assert_ne!(of("from_address"), "null");
                assert_eq!([of("is_injected"), execution("direct_call")], ["false", "null"]);
                let price = text(row, "gas_price");
                assert_eq!(priced, [row["type"].to_string(), price.clone(), price]);
                assert_eq!(of("method"), text(row, "raw_input")[..8]);
            }
        }
    }
    assert_eq!((direct, signed), (10, 10));
}

#[test]
fn a_recorded_evm_event_is_read_and_its_payload_has_the_hash_that_it_names() {
    let Some(events) = fixture("events.jsoncdc.json") else { return };
    let events = events.as_array().unwrap();
    let event =
        events.iter().find(|event| event["type"].as_str().unwrap().contains("EVM.TransactionExecuted"));
    let name = event.unwrap()["type"].as_str().unwrap().split(' ').next().unwrap().to_owned();
    let event = (name, event.unwrap()["payload"].as_str().unwrap().to_owned());
    let block = flow_block(5, &[with(vec![event])]);
    let (tables, malformed) = map_on(Network::Mainnet, names::EVM_WORKER, &block);
    assert_eq!(malformed, [], "a payload of another hash is reported");
    let of = |column| told(&tables, "evm_transactions", column).remove(0);
    assert_eq!(of("transaction_id"), "b055748f36d6bbe99a7ab5e45202b5c095ceda985dec0cc2a8747fd88c80c8c9");
    assert_eq!(["transaction_index", "gas_used", "tx_type", "status"].map(of), ["0", "21000", "255", "ok"]);
    assert_eq!(of("from_address"), "0000000000000000000000010000000000000000");
    assert!(of("to_address").starts_with("000000000000000000000002"), "an account that Cadence owns");
    let execution = |column| told(&tables, "evm_executions", column).remove(0);
    assert_eq!(["evm_height", "error_code", "direct_call"].map(execution), ["55215387", "0", "deposit"]);
}
