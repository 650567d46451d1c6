//! EVM transactions and blocks of Flow that aren't as they should be: numbers that no column holds, and events that can't be read.

use alloy_primitives::{Address, B256};
use cairn_core::StoredBlock;
use cairn_explorer::names;
use cairn_flow::evm::decode_payload;
use cairn_pipeline::derive::processor::Malformed;
use cairn_store::derived::{Row, Value};

use crate::support;
use support::Tables;
use support::flow::*;

type Event = (String, String);

/// What the mappers make of a block: every number fits.
fn mapped(block: &StoredBlock) -> (Tables, Vec<String>) {
    let (tables, malformed) = map_all_on(cairn_flow::Network::Emulator, block);
    for (table, rows) in &tables {
        for row in rows {
            assert!(!row.0.contains(&Value::DOES_NOT_FIT), "{table}: {row:?}");
        }
    }
    (tables, malformed.into_iter().map(|one: Malformed| one.message).collect())
}

/// A column of the rows of `evm_transactions`, or of another table, in the order of `transaction_index`.
fn in_order(tables: &Tables, table: &'static str, name: &str) -> Vec<String> {
    let mut rows: Vec<Row> = tables.get(table).cloned().unwrap_or_default();
    rows.sort_by_key(|row| get(table, row, "transaction_index").as_int());
    column(table, &rows, name)
}

fn executed(index: u16) -> Event {
    evm_executed(8, index, &Direct::call(index.into()), &[], 0)
}

/// The event with another number in place of this one.
fn with_number((name, payload): Event, number: &str, other: u64) -> Event {
    let text = |number: &str| format!("{{\"type\":\"UInt64\",\"value\":\"{number}\"}}");
    assert!(payload.contains(&text(number)));
    (name, payload.replace(&text(number), &text(&other.to_string())))
}

#[test]
fn f07_a_gas_limit_of_64_bits_is_null_and_reported_and_everything_else_is_there() {
    let call = Direct::call(1);
    for (gas_limit, shown) in
        [(i64::MAX as u64, "9223372036854775807"), (1 << 63, "null"), (u64::MAX, "null")]
    {
        let payload = call.payload_with(gas_limit);
        let hash = decode_payload(&payload).unwrap().hash;
        let (name, text) = evm_executed(8, 1, &call, &[], 0);
        let text = text
            .replace(&byte_list(call.hash().as_slice()).to_string(), &byte_list(hash.as_slice()).to_string());
        let text = text.replace(&byte_list(&call.payload()).to_string(), &byte_list(&payload).to_string());
        let block = flow_block(5, &[with(vec![executed(0), (name, text)]), system(vec![evm_closed(8, 2)])]);
        let (tables, malformed) = mapped(&block);
        assert_eq!(in_order(&tables, "evm_transactions", "gas_limit"), ["23300", shown]);
        assert_eq!(in_order(&tables, "evm_transactions", "nonce"), ["0", "1"]);
        assert_eq!(in_order(&tables, "evm_transactions", "cumulative_gas_used"), ["21000", "42000"]);
        assert_eq!((tables["evm_executions"].len(), tables["evm_blocks"].len()), (2, 1));
        let wanted = format!("its gas limit {gas_limit} is 2^63 or more");
        assert_eq!(malformed.len(), usize::from(shown == "null"), "{malformed:?}");
        assert!(malformed.iter().all(|one| one.ends_with(&wanted)), "{malformed:?}");
    }
}

#[test]
fn f07_an_event_with_a_number_that_no_chain_has_is_reported_alone() {
    let fine = [executed(0), executed(1)];
    let large = evm_executed(u64::MAX, 2, &Direct::call(2), &[], 0);
    let hungry = with_number(executed(2), "21000", u64::MAX);
    for (event, said) in [
        (large, "its blockHeight 18446744073709551615 is 2^63 or more"),
        (hungry, "its gasConsumed 18446744073709551615 is more than a block can use"),
    ] {
        let events = fine.iter().cloned().chain([event]).collect();
        let block = flow_block(5, &[with(events), system(vec![evm_closed(8, 2)])]);
        let (tables, malformed) = mapped(&block);
        assert_eq!(in_order(&tables, "evm_transactions", "transaction_index"), ["0", "1"]);
        assert_eq!(tables["evm_blocks"].len(), 1);
        assert_eq!(malformed.len(), 1);
        assert!(malformed[0].ends_with(said), "{malformed:?}");
    }
    // One by one they fit, together they don't.
    let most = (i64::MAX as u64) >> 16;
    let events = (0..3).map(|index| with_number(executed(index), "21000", most / 2)).collect();
    let (tables, malformed) = mapped(&flow_block(5, &[with(events)]));
    assert_eq!((tables["evm_transactions"].len(), malformed.len()), (2, 1), "{malformed:?}");
    assert_eq!(told(&tables, "evm_block_parts", "gas_used"), [(most / 2 * 2).to_string()]);

    let closed = || evm_closed(8, 2);
    for (event, said) in [
        (evm_closed(u64::MAX, 0), "its height 18446744073709551615"),
        (with_number(closed(), "1770000000", u64::MAX), "its timestamp 18446744073709551615"),
        (with_number(closed(), "42000", u64::MAX), "its totalGasUsed 18446744073709551615"),
    ] {
        let block = flow_block(5, &[with(fine.to_vec()), system(vec![event])]);
        let (tables, malformed) = mapped(&block);
        assert!(malformed.len() == 1 && malformed[0].contains(said), "{malformed:?}");
        assert_eq!((tables["evm_transactions"].len(), tables.contains_key("evm_blocks")), (2, false));
        assert_eq!(told(&tables, "evm_block_parts", "closed_gas_used"), ["null"], "it isn't closed");
    }
}

#[test]
fn f07_a_computation_of_64_bits_is_reported_and_the_other_transactions_have_their_metrics() {
    let txs = [FlowTx { computation: u64::MAX, ..FlowTx::default() }, with(vec![])];
    let (tables, malformed) = mapped(&flow_block(5, &txs));
    assert_eq!(told(&tables, "tx_metrics", "gas_used"), ["7"]);
    let mut used = told(&tables, "flow_tx_metrics", "computation_used");
    used.sort();
    assert_eq!(used, [u64::MAX.to_string(), "7".to_owned()]);
    assert_eq!(malformed, ["its computation of 18446744073709551615 is 2^63 or more"]);
}

fn broken() -> Event {
    (format!("{EVM}.TransactionExecuted"), "{\"type\":\"Event\"".to_owned())
}

fn logging(index: u16) -> Event {
    let log = (Address::repeat_byte(0xbb), vec![B256::repeat_byte(1)], vec![9; 3]);
    evm_executed(8, index, &Direct::call(index.into()), &[log], 0)
}

fn mapped_events(events: Vec<Event>, closed: Option<u64>) -> (Tables, Vec<String>) {
    let closed = closed.map(|transactions| evm_closed(8, transactions));
    mapped(&flow_block(5, &[with(events), system(closed.into_iter().collect())]))
}

#[test]
fn behind_an_event_that_can_not_be_read_places_are_right_and_what_is_unknown_is_null() {
    let (tables, malformed) = mapped_events(vec![logging(0), broken(), logging(2), logging(3)], Some(4));
    let of = |name: &str| in_order(&tables, "evm_transactions", name);
    assert_eq!(of("transaction_index"), ["0", "2", "3"]);
    assert_eq!(of("cumulative_gas_used"), ["21000", "null", "null"]);
    assert_eq!(in_order(&tables, "evm_logs", "log_index"), ["0", "1", "2"], "of those that are here");
    assert_eq!(told(&tables, "evm_block_parts", "is_wrong"), ["true"]);
    // The event itself, and that the block used more gas; no place is called wrong.
    assert_eq!(malformed.len(), 2, "{malformed:?}");
    assert!(malformed[1].contains("used 84000 gas"), "{malformed:?}");

    // The first one of the block; and one that was of no transaction between two.
    let (tables, malformed) = mapped_events(vec![broken(), logging(1)], None);
    assert_eq!(in_order(&tables, "evm_transactions", "cumulative_gas_used"), ["null"]);
    assert_eq!(malformed.len(), 1, "{malformed:?}");
    let (tables, malformed) = mapped_events(vec![logging(0), broken(), logging(1)], Some(2));
    assert_eq!(in_order(&tables, "evm_transactions", "cumulative_gas_used"), ["21000", "42000"]);
    assert_eq!(malformed.len(), 1, "{malformed:?}");
}

#[test]
fn a_gap_that_nothing_explains_is_reported_once() {
    // Two are missing, and one could not be read.
    let (tables, malformed) = mapped_events(vec![logging(0), broken(), logging(3), logging(4)], None);
    assert_eq!(malformed.len(), 2, "{malformed:?}");
    assert!(malformed[1].ends_with("EVM transaction 3 of EVM block 8 follows number 0"), "{malformed:?}");
    assert_eq!(in_order(&tables, "evm_transactions", "cumulative_gas_used"), ["21000", "null", "null"]);
    let (_, malformed) = mapped_events(vec![logging(0), logging(2), logging(3)], None);
    assert_eq!(malformed.len(), 1, "{malformed:?}");
    // One that comes late is one, whatever could not be read.
    let (_, malformed) = mapped_events(vec![logging(1), broken(), logging(0)], None);
    assert!(malformed[1].contains("EVM transaction 0 of EVM block 8 follows number 1"), "{malformed:?}");
}

#[test]
fn f04_what_was_used_before_in_an_earlier_flow_block_is_not_known() {
    let late = flow_block(12, &[with(vec![logging(1), logging(2)]), system(vec![evm_closed(8, 3)])]);
    let (tables, malformed) = map(names::EVM_WORKER, &late);
    assert_eq!(malformed, []);
    assert_eq!(in_order(&tables, "evm_transactions", "cumulative_gas_used"), ["null", "null"]);
    assert_eq!(in_order(&tables, "evm_logs", "log_index"), ["0", "1"]);
}
