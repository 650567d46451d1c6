//! Mappers over made-up Flow blocks.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, U256};
use cairn_explorer::names;
use cairn_explorer::processors::flow_catalog;
use cairn_flow::Network;
use cairn_store::derived::{Row, Value};
use serde_json::{Value as Json, json};

use crate::support;
use support::Tables;
use support::flow::*;

/// An address as a column shows it.
fn shown(number: u64) -> String {
    account(number).bare()
}

type Told = (String, String, String, bool, bool);

/// From, to, amount, and whether it is a mint or a burn, of rows of a table of transfers.
fn transfers(tables: &Tables, table: &'static str) -> Vec<Told> {
    let amount = if table == "nft_transfers" { "token_id" } else { "amount" };
    let rows = tables.get(table).map_or(&[][..], Vec::as_slice);
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| {
        ["transaction_index", "event_index", "sub_index"].map(|at| get(table, row, at).as_int())
    });
    let text = |row: &Row, of: &str| match get(table, row, of) {
        Value::Bytes(bytes) => hex::encode(bytes),
        other => other.to_string(),
    };
    let is = |row: &Row, of: &str| get(table, row, of).as_bool().unwrap();
    rows.into_iter()
        .map(|row| {
            let (from, to) = (text(row, "from_address"), text(row, "to_address"));
            (from, to, text(row, amount), is(row, "is_mint"), is(row, "is_burn"))
        })
        .collect()
}

fn nobody() -> String {
    "null".into()
}

#[test]
fn movements_go_to_the_table_of_their_kind_and_fees_to_their_own() {
    let mut events = vec![
        withdrawn(FLOW, 500, Some(1), 10, 11),
        deposited(FLOW, 500, Some(2), 20, 11),
        // The old forms of the same.
        old(FLOW, "TokensWithdrawn", 500, Some(("from", Some(1)))),
        old(FLOW, "TokensDeposited", 500, Some(("to", Some(2)))),
        deposited(COIN, 7, Some(3), 30, 31),
        item_withdrawn(CATS, 4, Some(1)),
        item_deposited(CATS, 4, Some(2)),
    ];
    events.extend(fee_of(1, 12));
    let tables = map_all(&flow_block(5, &[with(events), system(vec![])]));
    assert_eq!(
        transfers(&tables, "ft_transfers"),
        [(shown(1), shown(2), "500".into(), false, false), (nobody(), shown(3), "7".into(), false, false),]
    );
    assert_eq!(transfers(&tables, "nft_transfers"), [(shown(1), shown(2), "4".into(), false, false)]);
    let fees = transfers(&tables, "fee_transfers");
    assert_eq!(fees, [(shown(1), shown(0xe5a8_b7f2_3e8b_548f), "12".into(), false, false)]);
    assert_eq!(told(&tables, "ft_transfers", "contract_name"), ["FlowToken", "Coin"]);
    assert_eq!(told(&tables, "nft_transfers", "kind"), ["cadence-nft"]);
    assert_eq!(told(&tables, "nft_transfers", "amount"), ["1"]);

    // Counts, computation and fee: the fee's own movement counts as none.
    let metrics = |of| told(&tables, "tx_metrics", of);
    let both = |mut pair: Vec<String>| {
        pair.sort();
        pair
    };
    assert_eq!(both(metrics("ft_transfer_count")), ["0", "2"]);
    assert_eq!(both(metrics("nft_transfer_count")), ["0", "1"]);
    assert_eq!(both(metrics("fee")), ["0", "12"]);
    assert_eq!(both(metrics("gas_used")), ["0", "7"]);
    assert_eq!(both(told(&tables, "flow_tx_metrics", "execution_effort")), ["28", "null"]);
    assert_eq!(both(told(&tables, "flow_tx_metrics", "is_system")), ["false", "true"]);

    // The receiver of fees is no party.
    let concerned = told(&tables, "address_transactions", "address");
    assert!(!concerned.contains(&shown(0xe5a8_b7f2_3e8b_548f)));
    assert!([1, 2, 3].iter().all(|number| concerned.contains(&shown(*number))));
}

#[test]
fn an_nft_is_never_promoted_to_a_fungible_token() {
    let mut txs = Vec::new();
    for events in [
        vec![item_withdrawn(CATS, 7, Some(1)), item_deposited(CATS, 7, Some(2))],
        vec![
            event(
                "A.0b2a3299cc857e29.TopShot.Withdraw",
                &[("id", value("UInt64", "7")), ("from", party(Some(1)))],
            ),
            event(
                "A.0b2a3299cc857e29.TopShot.Deposit",
                &[("id", value("UInt64", "7")), ("to", party(Some(2)))],
            ),
        ],
        // One withdrawn beside fungible tokens of the same number.
        vec![
            item_withdrawn(CATS, 9, Some(1)),
            deposited(COIN, 9, Some(2), 1, 2),
            item_deposited(CATS, 9, Some(3)),
        ],
    ] {
        txs.push(with(events));
    }
    let tables = map_all(&flow_block(5, &txs));
    assert_eq!(transfers(&tables, "ft_transfers"), [(nobody(), shown(2), "9".into(), false, false)]);
    let ids: Vec<String> = transfers(&tables, "nft_transfers").into_iter().map(|row| row.2).collect();
    assert_eq!(ids, ["7", "7", "9"]);
}

#[test]
fn only_the_networks_own_contracts_earn_their_tags() {
    let tags = |name: String| {
        let block = flow_block(5, &[with(vec![event(&name, &[])])]);
        let (tables, _) = map_on(Network::Mainnet, names::TX_CONTRACTS_WORKER, &block);
        told(&tables, "tx_tags", "tag")
    };
    for (account, contract, named, tag) in [
        ("8624b52f9ddcd04a", "FlowIDTableStaking", "DelegatorTokensCommitted", "staking"),
        ("8624b52f9ddcd04a", "FlowEpoch", "EpochStart", "staking"),
        ("8d0e87b65159ae63", "FlowStakingCollection", "NodeAddedToStakingCollection", "staking"),
        ("8d0e87b65159ae63", "LockedTokens", "SharedAccountRegistered", "staking"),
        ("1e4aa0b87d10b141", "FlowEVMBridge", "Onboarded", "bridge"),
        ("e467b9dd11fa00df", "EVM", "FLOWTokensDeposited", "bridge"),
        ("e467b9dd11fa00df", "EVM", "TransactionExecuted", "evm"),
        ("e467b9dd11fa00df", "EVM", "CadenceOwnedAccountCreated", "coa-created"),
        ("e467b9dd11fa00df", "FlowTransactionScheduler", "Executed", "scheduled"),
    ] {
        assert_eq!(tags(format!("A.{account}.{contract}.{named}")), [tag], "{contract}");
        assert_eq!(tags(format!("A.0000000000000009.{contract}.{named}")), [""; 0], "anybody's {contract}");
    }
}

#[test]
fn items_that_are_destroyed_are_burnt_however_that_is_told() {
    let by_standard = vec![item_withdrawn(CATS, 1, Some(1)), item_destroyed(NFT, CATS, 1)];
    let by_both =
        vec![item_withdrawn(CATS, 2, Some(1)), item_destroyed(CATS, CATS, 2), item_destroyed(NFT, CATS, 2)];
    let other_way =
        vec![item_withdrawn(CATS, 3, Some(1)), item_destroyed(NFT, CATS, 3), item_destroyed(CATS, CATS, 3)];
    // It lay in no account's collection: only the collection's own event names it.
    let from_nowhere = vec![item_destroyed(NFT, CATS, 4), item_destroyed(CATS, CATS, 4)];
    let before = vec![
        event(
            "A.0b2a3299cc857e29.TopShot.Withdraw",
            &[("id", value("UInt64", "5")), ("from", party(Some(1)))],
        ),
        event("A.0b2a3299cc857e29.TopShot.MomentDestroyed", &[("id", value("UInt64", "5"))]),
    ];
    let left = vec![item_withdrawn(CATS, 6, Some(1))];
    // Somebody's resource of that name that is no item, or of no collection that is known.
    let strange = vec![
        event("A.0000000000000009.Zoo.NFT.ResourceDestroyed", &[("id", value("String", "x"))]),
        item_destroyed(NFT, CATS, 8),
        event("A.0000000000000009.Zoo.Burned", &[("id", value("UInt64", "1"))]),
    ];
    let txs = [by_standard, by_both, other_way, from_nowhere, before, left, strange].map(with);
    let tables = map_all(&flow_block(5, &txs));
    let burn = |from: String, id: &str| (from, nobody(), id.to_owned(), false, true);
    assert_eq!(
        transfers(&tables, "nft_transfers"),
        [
            burn(shown(1), "1"),
            burn(shown(1), "2"),
            burn(shown(1), "3"),
            burn(nobody(), "4"),
            burn(shown(1), "5"),
            (shown(1), nobody(), "6".into(), false, false),
        ]
    );
    // What names no collection isn't lost; which resource an item is, its movement says.
    let mut resources = told(&tables, "nft_resources", "token_id");
    resources.sort();
    assert_eq!(resources, ["6", "8"]);
    let mut destroyed = told(&tables, "nft_resources", "is_destroyed");
    destroyed.sort();
    assert_eq!(destroyed, ["false", "true"]);
}

#[test]
fn an_item_that_is_destroyed_with_its_collection_is_found_by_its_resource() {
    let uuid = |row: &Row| get("nft_resources", row, "resource_uuid").as_amount();
    let minted = with(vec![item_deposited(CATS, 4, Some(1)), item_deposited(CATS, 5, Some(1))]);
    let before = map_all(&flow_block(5, &[minted]));
    assert_eq!(told(&before, "nft_resources", "contract_name").len(), 2);
    let gone = with(vec![item_destroyed(NFT, CATS, 5), item_destroyed(NFT, CATS, 4)]);
    let after = map_all(&flow_block(6, &[gone]));
    assert!(!after.contains_key("nft_transfers"), "no event names the collection");
    for row in &after["nft_resources"] {
        let id = get("nft_resources", row, "token_id");
        let entered = before["nft_resources"].iter().find(|entered| uuid(entered) == uuid(row)).unwrap();
        assert_eq!(get("nft_resources", entered, "token_id"), id);
        let collection = get("nft_resources", row, "contract_name");
        assert!(collection.is_null() && !get("nft_resources", entered, "contract_name").is_null());
        assert_eq!(get("nft_resources", row, "is_destroyed"), &Value::Bool(true));
    }
    assert_eq!(after["nft_resources"].len(), 2);
}

#[test]
fn the_system_transaction_is_keyed_with_its_height() {
    let blocks = [5, 6].map(|height| flow_block(height, &[system(vec![evm_closed(height, 0)])]));
    let tables = blocks.each_ref().map(map_all);
    let ids = tables.each_ref().map(|tables| told(tables, "tx_metrics", "transaction_id"));
    assert_eq!(ids[0], ids[1], "one id");
    for table in
        ["tx_metrics", "flow_tx_metrics", "tx_contracts", "tx_tags", "address_transactions", "account_roles"]
    {
        let catalog = flow_catalog().unwrap();
        let def = catalog.table(table).unwrap();
        let keys: Vec<_> =
            tables.iter().flat_map(|tables| &tables[table]).map(|row| def.key_of(row)).collect();
        let mut distinct = keys.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(keys.len(), distinct.len(), "{table}");
    }
    assert_eq!(told(&tables[0], "tx_tags", "tag"), ["system"]);
    // Nobody proposes and pays; the service account authorises.
    assert_eq!(told(&tables[0], "account_roles", "address"), [shown(SERVICE_ACCOUNT)]);
    assert_eq!(told(&tables[0], "account_roles", "is_payer"), ["false"]);
}

/// flow-dps #351: blocks of old sporks have one transaction twice.
#[test]
fn f18_a_transaction_that_stands_twice_in_one_block_is_derived_at_both_places() {
    let twice = with(vec![deposited(COIN, 7, Some(3), 30, 31)]);
    let other = with(vec![deposited(COIN, 8, Some(3), 30, 32)]);
    // Without a proposer there is no sequence number that tells them apart.
    let twice = FlowTx { proposer: 0, ..twice };
    let block = flow_block(5, &[twice.clone(), other, twice]);
    let (tables, malformed) = map_all_on(Network::Emulator, &block);
    assert_eq!(malformed, Vec::new());
    for table in ["ft_transfers", "tx_metrics", "flow_tx_metrics", "tx_tags"] {
        let mut places = told(&tables, table, "transaction_index");
        places.sort();
        assert_eq!(places, ["0", "1", "2"], "{table}");
    }
    let catalog = flow_catalog().unwrap();
    for (table, rows) in &tables {
        let table = catalog.table(table).unwrap();
        let keys: BTreeSet<_> = rows.iter().map(|row| table.key_of(row)).collect();
        assert_eq!(keys.len(), rows.len(), "{}", table.name());
    }
}

#[test]
fn accounts_have_their_roles() {
    let created = about("flow.AccountCreated", 9, &[]);
    let tx = FlowTx { proposer: 1, payer: 2, authorizers: vec![1, 3], ..with(vec![created]) };
    let tables = map_all(&flow_block(5, &[tx]));
    let roles = |of| told(&tables, "account_roles", of);
    assert_eq!(roles("address"), [shown(1), shown(2), shown(3)]);
    assert_eq!(roles("is_proposer"), ["true", "false", "false"]);
    assert_eq!(roles("is_payer"), ["false", "true", "false"]);
    assert_eq!(roles("is_authorizer"), ["true", "false", "true"]);
    assert_eq!(told(&tables, "account_creations", "address"), [shown(9)]);
    assert_eq!(told(&tables, "account_creations", "payer_address"), [shown(2)]);
    let directions = told(&tables, "address_transactions", "direction");
    assert_eq!(directions, ["out", "out", "out", "created"]);
    assert_eq!(told(&tables, "tx_tags", "tag"), ["account-created"]);
}

#[test]
fn a_failed_transaction_says_why_and_pays() {
    let error = "[Error Code: 1101] cadence runtime error:\u{0}\u{202e}\n pre-condition failed";
    let tx = FlowTx { error: Some(error.into()), events: fee_of(1, 12), ..FlowTx::default() };
    let tables = map_all(&flow_block(5, &[tx]));
    assert_eq!(told(&tables, "tx_metrics", "status"), ["failed"]);
    assert_eq!(told(&tables, "tx_metrics", "fee"), ["12"]);
    assert_eq!(
        told(&tables, "flow_tx_metrics", "error_message"),
        ["[Error Code: 1101] cadence runtime error: pre-condition failed"]
    );
    assert_eq!(told(&tables, "tx_tags", "tag"), ["failed"]);
}

#[test]
fn keys_and_contracts_are_told_event_by_event() {
    let events = vec![
        key_added(4, &[1; 64], Some(0)),
        key_added(4, &[2; 64], None),
        key_revoked(4, 0),
        contract_set("Added", 4, "Cats", [1; 32]),
        contract_set("Removed", 4, "Cats", [1; 32]),
        contract_set("Added", 4, "Cats", [2; 32]),
        contract_set("Updated", 4, "Cats", [3; 32]),
    ];
    let tables = map_all(&flow_block(5, &[with(events)]));
    let keys = |of| told(&tables, "account_key_events", of);
    assert_eq!(keys("change"), ["added", "added", "revoked"]);
    assert_eq!(keys("key_index"), ["0", "null", "0"]);
    assert_eq!(keys("weight"), ["1000", "null", "null"]);
    assert_eq!(keys("sign_algo"), ["1", "1", "null"]);
    assert_eq!(keys("hash_algo"), ["3", "null", "null"]);
    assert_eq!(keys("public_key"), ["01".repeat(64), "02".repeat(64), nobody()]);
    let versions = |of| told(&tables, "contract_versions", of);
    assert_eq!(versions("change"), ["added", "removed", "added", "updated"]);
    assert_eq!(versions("code_hash")[3], "03".repeat(32));
    // One creation, of the last time that it was added.
    assert_eq!(told(&tables, "smart_contracts", "init_code_hash"), ["02".repeat(32)]);
    assert_eq!(told(&tables, "smart_contracts", "creator_address"), [shown(1)]);
    assert_eq!(told(&tables, "tx_contracts", "tags"), ["create,update,remove"]);
    let tags = ["contract-added", "contract-removed", "contract-updated", "key-added", "key-revoked"];
    assert_eq!(told(&tables, "tx_tags", "tag"), tags);
}

#[test]
fn whose_an_evm_account_is() {
    let coa = |byte: u8| {
        let address = hex::encode([byte; 20]);
        let fields =
            [("address", value("String", address)), ("uuid", value("UInt64", "18446744073709551615"))];
        event(&format!("{EVM}.CadenceOwnedAccountCreated"), &fields)
    };
    let reference = |contract: &str| {
        let account = json!({"kind": "Resource", "typeID": format!("{contract}.CadenceOwnedAccount")});
        json!({"kind": "Reference", "authorization": {"kind": "Unauthorized"}, "type": account})
    };
    let issued_of = |number: u64, kind: Json| {
        let fields = [("type", value("Type", json!({"staticType": kind})))];
        about("flow.StorageCapabilityControllerIssued", number, &fields)
    };
    let issued = |number: u64| issued_of(number, reference(EVM));
    let published = |number: u64, contract: &str| {
        let capability =
            json!({"id": "1", "address": account(number).to_string(), "borrowType": reference(contract)});
        about("flow.CapabilityPublished", number, &[("capability", value("Capability", capability))])
    };
    // Anybody has an account of that name in a contract of that name, and names that begin or end as it does.
    let strangers = "A.0000000000000002.EVM";
    let longer = json!({"kind": "Resource", "typeID": format!("{EVM}.CadenceOwnedAccountKeeper")});
    let by_two = |events| FlowTx { authorizers: vec![1, 2], ..with(events) };
    let txs = [
        with(vec![coa(1)]),
        by_two(vec![coa(2)]),
        by_two(vec![coa(3), issued(2)]),
        by_two(vec![coa(4), published(2, EVM)]),
        by_two(vec![coa(5), issued_of(2, reference(strangers)), published(2, strangers)]),
        with(vec![coa(6), issued_of(2, reference(strangers)), published(2, strangers)]),
        by_two(vec![coa(7), issued(1), published(2, strangers)]),
        by_two(vec![coa(8), issued_of(2, json!({"kind": "Reference", "type": longer}))]),
        // Of two accounts nothing says which.
        by_two(vec![coa(9), issued(1), published(2, EVM)]),
    ];
    let tables = map_all(&flow_block(5, &txs));
    let told = |of| told(&tables, "coa_accounts", of);
    assert_eq!(told("coa_address"), [1, 2, 3, 4, 5, 6, 7, 8, 9].map(|byte| hex::encode([byte; 20])));
    let (owners, rules) = (told("owner_address"), told("owner_rule"));
    let found: Vec<_> = owners.iter().map(String::as_str).zip(rules.iter().map(String::as_str)).collect();
    let (first, second) = (&*shown(1), &*shown(2));
    let wanted = [
        (first, "authorizer"),
        ("null", "unknown"),
        (second, "capability"),
        (second, "capability"),
        ("null", "unknown"),
        (first, "authorizer"),
        (first, "capability"),
        ("null", "unknown"),
        ("null", "unknown"),
    ];
    assert_eq!(found, wanted);
    assert_eq!(told("resource_uuid")[0], u64::MAX.to_string(), "F07: all 64 bits");
}

#[test]
fn whose_an_evm_account_is_nobody_knows_where_a_capability_cannot_be_read() {
    let fields = [("address", value("String", "01".repeat(20))), ("uuid", value("UInt64", "1"))];
    let coa = || event(&format!("{EVM}.CadenceOwnedAccountCreated"), &fields);
    for name in ["flow.CapabilityPublished", "flow.StorageCapabilityControllerIssued"] {
        let broken = (name.to_owned(), "{\"type\":\"Event\"".to_owned());
        let block = flow_block(5, &[with(vec![coa(), broken.clone(), coa()])]);
        let (tables, malformed) = map_all_on(Network::Emulator, &block);
        assert_eq!(told(&tables, "coa_accounts", "owner_rule"), ["unknown"; 2]);
        assert_eq!(told(&tables, "coa_accounts", "owner_address"), ["null"; 2]);
        assert!(malformed.len() == 1 && malformed[0].message.contains(name), "once: {malformed:?}");
        // Where no account of the kind is made nobody looks at it.
        let (_, malformed) = map_all_on(Network::Emulator, &flow_block(5, &[with(vec![broken])]));
        assert_eq!(malformed, []);
    }
}

#[test]
fn malformed_events_are_reported_once_and_the_rest_counts() {
    let broken = |name: &str| (name.to_owned(), "{\"type\":\"Event\"".to_owned());
    let events = vec![
        broken(&format!("{FT}.Deposited")),
        broken("flow.AccountKeyAdded"),
        broken(&format!("{EVM}.TransactionExecuted")),
        broken(&format!("{EVM}.BlockExecuted")),
        broken(&format!("{EVM}.CadenceOwnedAccountCreated")),
        broken(FEES),
        deposited(COIN, 7, Some(3), 30, 31),
        broken("A.0000000000000009.Other.Event"),
        deposited(&format!("A.0000000000000009.{}", "C".repeat(300)), 7, Some(3), 30, 31),
        ("no type at all".to_owned(), String::new()),
    ];
    let (tables, malformed) = map_all_on(Network::Emulator, &flow_block(5, &[with(events)]));
    let mut said: Vec<&str> = malformed.iter().map(|one| one.message.split(':').next().unwrap()).collect();
    said.sort_unstable();
    assert_eq!(
        said,
        [
            format!("event 0, {FT}.Deposited"),
            "event 1, flow.AccountKeyAdded".into(),
            format!("event 2, {EVM}.TransactionExecuted"),
            format!("event 3, {EVM}.BlockExecuted"),
            format!("event 4, {EVM}.CadenceOwnedAccountCreated"),
            format!("event 5, {FEES}"),
            format!("event 8, {FT}.Deposited"),
        ]
    );
    assert!(malformed.iter().all(|one| !one.raw_data.is_empty() && one.transaction_id.starts_with("0x")));
    assert_eq!(told(&tables, "ft_transfers", "amount"), ["7"]);
    assert_eq!(told(&tables, "tx_metrics", "fee"), ["null"], "what can't be read isn't known");
}

#[test]
fn evm_transactions_and_logs_are_those_of_evm_chains() {
    let topic = |byte: u8| B256::repeat_byte(byte);
    let contract = Address::repeat_byte(0xbb);
    let logs = [(contract, vec![topic(1), topic(2)], vec![9; 3]), (contract, vec![], vec![7; 9_000])];
    let call = Direct::call(3);
    let failed = Direct { to: Address::ZERO, sub_type: 4, ..Direct::call(4) };
    let deposit = Direct { sub_type: 1, ..Direct::call(0) };
    let txs = [
        with(vec![evm_executed(8, 0, &call, &logs, 0)]),
        with(vec![evm_executed(8, 1, &failed, &[], 306), evm_executed(8, 2, &deposit, &logs[..1], 0)]),
        system(vec![evm_closed(8, 3)]),
    ];
    let tables = map_all(&flow_block(5, &txs));
    let mut rows = tables["evm_transactions"].clone();
    rows.sort_by_key(|row| get("evm_transactions", row, "transaction_index").as_int());
    let of = |name: &str| column("evm_transactions", &rows, name);
    assert_eq!(of("transaction_id"), [&call, &failed, &deposit].map(|call| hex::encode(call.hash())));
    assert_eq!(of("status"), ["ok", "failed", "ok"]);
    assert_eq!(of("tx_type"), ["255", "255", "255"]);
    assert_eq!(of("nonce"), ["3", "4", "0"]);
    assert_eq!(of("to_address"), [hex::encode(contract), nobody(), hex::encode(contract)]);
    assert_eq!(of("cumulative_gas_used"), ["21000", "42000", "63000"]);
    assert_eq!(of("method"), ["01020304".to_owned(), nobody(), "01020304".to_owned()]);
    assert_eq!(of("effective_gas_price"), ["0", "0", "0"]);

    let mut logs = tables["evm_logs"].clone();
    logs.sort_by_key(|row| get("evm_logs", row, "log_index").as_int());
    let of = |name: &str| column("evm_logs", &logs, name);
    assert_eq!(of("log_index"), ["0", "1", "2"], "over the whole EVM block");
    assert_eq!(of("transaction_index"), ["0", "0", "2"]);
    assert_eq!(of("topic1"), [hex::encode(topic(2)), nobody(), hex::encode(topic(2))]);
    assert_eq!(of("data")[1], "null", "large data stays with the raw block");
    assert_eq!(of("data_length_bytes"), ["3", "9000", "3"]);
    assert_eq!(of("payload_ref")[1], "raw:5/0/1");

    let executions = |of| {
        let mut rows = tables["evm_executions"].clone();
        rows.sort_by_key(|row| get("evm_executions", row, "transaction_index").as_int());
        column("evm_executions", &rows, of)
    };
    assert_eq!(executions("direct_call"), ["call", "deploy", "deposit"]);
    assert_eq!(executions("flow_transaction_index"), ["0", "1", "1"]);
    assert_eq!(executions("error_code"), ["0", "306", "0"]);
    assert_eq!(told(&tables, "evm_blocks", "transaction_count"), ["3"]);
    assert_eq!(told(&tables, "evm_blocks", "evm_hash"), [hex::encode(evm_hash(8))]);
    let mut counts = told(&tables, "flow_tx_metrics", "evm_transaction_count");
    counts.sort();
    assert_eq!(counts, ["0", "1", "2"]);
    // Parties of EVM transactions are found by their addresses, too.
    let concerned = told(&tables, "address_transactions", "address");
    assert!(concerned.contains(&hex::encode([0xaa; 20])) && concerned.contains(&hex::encode(contract)));
}

#[test]
fn code_that_is_deployed_at_an_address_is_no_call_of_a_method() {
    // As a flow-emulator makes the EVM account of a resource: the account's address stands where a call has whom it calls.
    let deployed = Direct { sub_type: 4, ..Direct::call(0) };
    let tables =
        map(names::EVM_WORKER, &flow_block(5, &[with(vec![evm_executed(8, 0, &deployed, &[], 0)])])).0;
    assert_eq!(told(&tables, "evm_transactions", "to_address"), [hex::encode([0xbb; 20])]);
    assert_eq!(told(&tables, "evm_transactions", "method"), [nobody()]);
    assert_eq!(told(&tables, "evm_executions", "direct_call"), ["deploy"]);
}

#[test]
fn an_evm_nonce_of_255_is_not_the_type() {
    let call = Direct::call(0);
    let tables = map(names::EVM_WORKER, &flow_block(5, &[with(vec![evm_executed(8, 0, &call, &[], 0)])])).0;
    assert_eq!(
        told(&tables, "evm_transactions", "nonce"),
        ["0"],
        "the first item is the type, the last the nonce"
    );
    let call = Direct { value: U256::from(1), ..Direct::call(255) };
    let tables = map(names::EVM_WORKER, &flow_block(5, &[with(vec![evm_executed(8, 0, &call, &[], 0)])])).0;
    assert_eq!(told(&tables, "evm_transactions", "nonce"), ["255"]);
}

#[test]
fn f05_an_evm_block_without_all_its_transactions_is_reported() {
    let calls = [Direct::call(0), Direct::call(1), Direct::call(2)];
    let whole = [
        with(vec![evm_executed(8, 0, &calls[0], &[], 0), evm_executed(8, 1, &calls[1], &[], 0)]),
        system(vec![evm_closed(8, 3)]),
    ];
    let (tables, malformed) = map(names::EVM_WORKER, &flow_block(5, &whole));
    assert_eq!(malformed.len(), 1);
    assert!(malformed[0].message.contains("EVM block 8 used 63000 gas"), "{}", malformed[0].message);
    assert_eq!(tables["evm_transactions"].len(), 2, "what is there counts");

    // One in the middle, the same one twice, and a payload that is another's.
    let hole = [with(vec![evm_executed(8, 0, &calls[0], &[], 0), evm_executed(8, 2, &calls[2], &[], 0)])];
    let (_, malformed) = map(names::EVM_WORKER, &flow_block(5, &hole));
    assert!(malformed[0].message.contains("EVM transaction 2 of EVM block 8 follows number 0"));
    let twice = [with(vec![evm_executed(8, 0, &calls[0], &[], 0), evm_executed(8, 1, &calls[0], &[], 0)])];
    let (tables, malformed) = map(names::EVM_WORKER, &flow_block(5, &twice));
    assert_eq!((malformed.len(), tables["evm_transactions"].len()), (1, 1));
    let (name, payload) = evm_executed(8, 0, &calls[0], &[], 0);
    let hash = byte_list(calls[0].hash().as_slice()).to_string();
    let other = payload.replace(&hash, &byte_list(calls[1].hash().as_slice()).to_string());
    let (tables, malformed) = map(names::EVM_WORKER, &flow_block(5, &[with(vec![(name, other)])]));
    assert!(malformed[0].message.contains("its payload has the hash"));
    assert_eq!(told(&tables, "evm_transactions", "transaction_id"), [hex::encode(calls[1].hash())]);
}

#[test]
fn f05_an_evm_block_of_other_transactions_of_the_same_gas_is_reported() {
    let calls = [Direct::call(0), Direct::call(1), Direct::call(2)];
    let block = |closed| {
        let executed = vec![evm_executed(8, 0, &calls[0], &[], 0), evm_executed(8, 1, &calls[1], &[], 0)];
        map(names::EVM_WORKER, &flow_block(5, &[with(executed), system(vec![closed])]))
    };
    let hashes = [0, 1, 2].map(|at: usize| calls[at].hash());
    let (tables, malformed) = block(evm_closed_over(8, &hashes[..2]));
    assert_eq!((malformed, tables["evm_blocks"].len()), (vec![], 1));
    for other in [[hashes[0], hashes[2]], [hashes[1], hashes[0]]] {
        let (tables, malformed) = block(evm_closed_over(8, &other));
        assert_eq!(malformed.len(), 1);
        assert!(malformed[0].message.contains("root"), "{}", malformed[0].message);
        assert_eq!((tables["evm_transactions"].len(), tables["evm_blocks"].len()), (2, 1));
    }
    let (_, malformed) =
        map(names::EVM_WORKER, &flow_block(5, &[with(vec![]), system(vec![evm_closed_over(8, &[])])]));
    assert_eq!(malformed, [], "a block without any");
}

#[test]
fn f04_an_evm_block_that_is_closed_a_block_later_is_derived_where_it_was_executed() {
    // The system's transaction of block 11 failed: its EVM transaction belongs to the EVM block that block 12 closes.
    let early = flow_block(11, &[with(vec![evm_executed(6, 0, &Direct::call(0), &[], 0)]), system(vec![])]);
    let (tables, malformed) = map(names::EVM_WORKER, &early);
    assert_eq!((malformed, tables["evm_transactions"].len()), (vec![], 1));
    assert!(!tables.contains_key("evm_blocks"));
    let part = |tables: &_| {
        ["evm_height", "first_index", "transaction_count", "gas_used", "closed_gas_used", "is_wrong"]
            .map(|name| told(tables, "evm_block_parts", name).join(","))
    };
    assert_eq!(part(&tables), ["6", "0", "1", "21000", "null", "false"]);
    let late = flow_block(
        12,
        &[with(vec![evm_executed(6, 1, &Direct::call(1), &[], 0)]), system(vec![evm_closed(6, 2)])],
    );
    let (tables, malformed) = map(names::EVM_WORKER, &late);
    assert_eq!(malformed, [], "a block in two parts is no fault");
    assert_eq!((tables["evm_transactions"].len(), tables["evm_blocks"].len()), (1, 1));
    assert_eq!(part(&tables), ["6", "1", "1", "21000", "42000", "false"]);
    // Where block 12 has no EVM transaction, all of them stand in block 11.
    let late = flow_block(12, &[system(vec![evm_closed(6, 1)])]);
    let (tables, malformed) = map(names::EVM_WORKER, &late);
    assert_eq!(malformed, []);
    assert_eq!(part(&tables), ["6", "null", "0", "0", "21000", "false"]);
    // A whole block is no part of one, whether or not anything is in it.
    for whole in [
        flow_block(12, &[system(vec![evm_closed(6, 0)])]),
        flow_block(
            12,
            &[with(vec![evm_executed(6, 0, &Direct::call(0), &[], 0)]), system(vec![evm_closed(6, 1)])],
        ),
    ] {
        let (tables, malformed) = map(names::EVM_WORKER, &whole);
        assert_eq!((malformed, tables.contains_key("evm_block_parts")), (vec![], false));
    }
}
