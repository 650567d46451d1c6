//! Lists that an explorer of mainnet recorded: each row is what the workers make of what it says.
#![allow(clippy::unwrap_used)]

use alloy_primitives::{Address, U256};
use cairn_explorer::names;
use cairn_flow::Network;
use serde_json::{Value as Json, json};

mod support;
use support::flow::*;

const FUNGIBLE_TOKEN: &str = "A.f233dcee88fe0abe.FungibleToken";

fn text(row: &Json, field: &str) -> String {
    row[field].as_str().unwrap().to_owned()
}

/// What moved, as the events of its transaction say it: new tokens of which the contract tells, or a withdrawal; and a deposit.
fn events_of(row: &Json) -> Vec<(String, String)> {
    let kind = text(&row["token"], "token");
    let contract = kind.strip_suffix(".Vault").unwrap();
    let amount = || value("UFix64", row["amount"].to_string());
    let account = |name: &str| value("Optional", value("Address", text(row, name)));
    let number = |number: u64| value("UInt64", number.to_string());
    let taken = match text(row, "sender").as_str() {
        "" => event(&format!("{contract}.TokensMinted"), &[("amount", amount())]),
        _ => event(
            &format!("{FUNGIBLE_TOKEN}.Withdrawn"),
            &[
                ("type", value("String", kind.clone())),
                ("amount", amount()),
                ("from", account("sender")),
                ("fromUUID", number(1)),
                ("withdrawnUUID", number(2)),
                ("balanceAfter", value("UFix64", "0.0")),
            ],
        ),
    };
    let put = event(
        &format!("{FUNGIBLE_TOKEN}.Deposited"),
        &[
            ("type", value("String", kind)),
            ("amount", amount()),
            ("to", account("receiver")),
            ("toUUID", number(3)),
            ("depositedUUID", number(2)),
            ("balanceAfter", value("UFix64", "0.0")),
        ],
    );
    vec![taken, put]
}

#[test]
fn every_recorded_transfer_is_the_row_that_its_explorer_shows() {
    let Some(listed) = fixture("findapi-ft-transfers.json") else { return };
    let rows = listed["data"].as_array().unwrap();
    let mut mints = 0;
    for row in rows {
        let height = row["block_height"].as_u64().unwrap();
        let block = flow_block(height, &[with(events_of(row))]);
        let (tables, malformed) = map_all_on(Network::Mainnet, &block);
        assert_eq!(malformed, [], "{row}");
        let of = |column: &str| {
            let found = told(&tables, "ft_transfers", column);
            assert_eq!(found.len(), 1, "{row}");
            found.into_iter().next().unwrap()
        };
        let address = |name: &str| match text(row, name).strip_prefix("0x") {
            Some(address) => address.to_owned(),
            None => "null".to_owned(),
        };
        assert_eq!([of("from_address"), of("to_address")], [address("sender"), address("receiver")]);
        let token = format!("A.{}.{}.Vault", of("token_contract_address"), of("contract_name"));
        assert_eq!(token, text(&row["token"], "token"));
        // Of the recorded amounts none has more digits than a double keeps.
        let units = (row["amount"].as_f64().unwrap() * 1e8).round();
        assert_eq!(of("amount"), format!("{units:.0}"));
        assert_eq!(of("block_height"), height.to_string());
        let is_mint = row["classifier"] == "Coin Minted";
        assert_eq!([of("is_mint"), of("is_burn")], [is_mint.to_string(), "false".to_owned()]);
        assert_eq!(row["direction"], json!("deposit"));
        mints += usize::from(is_mint);
    }
    assert_eq!((rows.len(), mints), (20, 12), "transfers, and how many of them are new tokens");
}

#[test]
fn every_recorded_direct_call_is_the_row_that_its_explorer_shows() {
    let Some(listed) = fixture("findapi-evm-tx.json") else { return };
    let rows = listed["data"].as_array().unwrap();
    let mut calls = 0;
    for row in rows.iter().filter(|row| row["from"] == "0000000000000000000000030000000000000000") {
        let evm_address = |name: &str| text(row, name).parse::<Address>().unwrap();
        let call = Direct {
            sub_type: 3,
            from: evm_address("from"),
            to: evm_address("to"),
            input: Vec::new(),
            value: text(row, "value").parse::<U256>().unwrap(),
            nonce: row["nonce"].as_u64().unwrap(),
        };
        let evm_height = row["block_number"].as_u64().unwrap();
        let position = row["position"].as_u64().unwrap() as u16;
        // What stood before it in its EVM block isn't here, which is reported; its own row doesn't depend on that.
        let event = evm_executed(evm_height, position, &call, &[], 0);
        let (tables, _) = map_on(Network::Emulator, names::EVM_WORKER, &flow_block(7, &[with(vec![event])]));
        let of = |column: &str| told(&tables, "evm_transactions", column).remove(0);
        for (column, field) in [
            ("transaction_id", "hash"),
            ("from_address", "from"),
            ("to_address", "to"),
            ("value", "value"),
            ("gas_limit", "gas_limit"),
            ("gas_used", "gas_used"),
            ("status", "status"),
        ] {
            assert_eq!(of(column), text(row, field), "{column}");
        }
        assert_eq!(of("nonce"), row["nonce"].to_string());
        assert_eq!(of("transaction_index"), row["position"].to_string());
        let execution = |column: &str| told(&tables, "evm_executions", column).remove(0);
        assert_eq!(execution("evm_height"), row["block_number"].to_string());
        assert_eq!(execution("direct_call"), "transfer");
        calls += 1;
    }
    assert_eq!(
        (rows.len(), calls),
        (20, 10),
        "transactions, and how many of them are calls of the chain's own"
    );
}
