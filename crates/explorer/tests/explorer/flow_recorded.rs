//! What an explorer of mainnet recorded: blocks, a transaction, transfers and events are the rows that they say.
//!
//! An explorer's answers are not a node's. What they leave out is filled in as a node has it, and named where that is done.

use std::collections::BTreeSet;

use alloy_primitives::B256;
use bytes::Bytes;
use cairn_core::{BlockLayout, PartKind};
use cairn_flow::cdc::CdcValue;
use cairn_flow::proto::{ProposalKey, Transaction, TransactionStatus};
use cairn_flow::{DecodedBlock, FlowAddress, FlowLayout, Network};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use crate::support;
use support::Tables;
use support::flow::*;
use support::recorded::*;

/// The recorded block at a height, its id and its time, where it is among them.
fn block_at(blocks: &Json, height: u64) -> Option<(B256, u64)> {
    let blocks = blocks["data"].as_array().unwrap();
    let block = blocks.iter().find(|block| block["height"] == height)?;
    Some((hash(&text(block, "id")), millis(&text(block, "timestamp"))))
}

/// A column's numbers, added together.
fn sum(tables: &Tables, table: &'static str, column: &str) -> u64 {
    told(tables, table, column).iter().map(|number| number.parse::<u64>().unwrap()).sum()
}

/// Each block's rows, of as many transactions as it had, add up to what the explorer counts of it.
#[test]
fn every_recorded_block_adds_up_to_what_its_explorer_counts() {
    let (Some(blocks), Some(evm)) =
        (fixture("findapi-blocks-141220562.json"), fixture("findapi-evm-tx.json"))
    else {
        return;
    };
    let number = |of: &Json| of.as_u64().unwrap();
    let mut evm_blocks = 0;
    for block in blocks["data"].as_array().unwrap() {
        let (height, tx_count) = (number(&block["height"]), number(&block["tx"]));
        // Which transaction used and paid how much isn't recorded: the first one used all, and each paid as these blocks' fees come to.
        let mut txs = Vec::new();
        for tx in 0..tx_count {
            let computation = if tx == 0 { number(&block["total_gas_used"]) } else { 0 };
            let fee = mainnet_fee(10_000 + 4_000 * computation, computation);
            txs.push(RecordedTx::of(tx, computation, vec![fee]));
        }
        let mut of_system = event("A.e467b9dd11fa00df.Chain.Ticked", &[]);
        let closed = &block["evm"];
        let of_evm = |row: &&Json| row["block_number"] == closed["height"];
        let mut inner: Vec<&Json> = evm["data"].as_array().unwrap().iter().filter(of_evm).collect();
        inner.sort_by_key(|row| row["position"].as_u64());
        if !inner.is_empty() {
            txs[0].events.extend(inner.iter().map(|row| evm_executed_as(row)));
            of_system = evm_closed_as(hash(&text(closed, "hash")), number(&closed["gas_used"]), &inner);
        }
        txs.push(RecordedTx::system(vec![of_system]));
        let (id, timestamp_ms) = (hash(&text(block, "id")), millis(&text(block, "timestamp")));
        let (tables, malformed) =
            map_all_on(Network::Mainnet, &recorded_block(height, id, timestamp_ms, &txs));
        let signed = inner.iter().filter(|row| !is_direct(row)).count();
        assert_eq!(malformed.len(), signed, "each is told by another hash than its payload's: {malformed:?}");

        assert_eq!(told(&tables, "tx_metrics", "block_height").len() as u64, tx_count + 1);
        assert_eq!(sum(&tables, "tx_metrics", "gas_used"), number(&block["total_gas_used"]));
        assert_eq!(sum(&tables, "tx_metrics", "fee"), units(&block["fees"]), "{block}");
        for time in told(&tables, "tx_metrics", "block_timestamp_ms") {
            assert_eq!(time, timestamp_ms.to_string());
        }
        let is_system = told(&tables, "flow_tx_metrics", "is_system");
        let of_system = is_system.iter().position(|is_system| is_system == "true").unwrap();
        let counted = &told(&tables, "tx_metrics", "event_count")[of_system];
        assert_eq!(*counted, block["system_event_count"].to_string());
        // The explorer counts no direct calls.
        let is_direct = told(&tables, "evm_transactions", "is_injected");
        let signed = is_direct.iter().filter(|is_direct| *is_direct == "false").count() as u64;
        assert_eq!(signed, number(&block["evm_tx_count"]));
        if closed.is_null() {
            assert!(!tables.contains_key("evm_blocks"));
            continue;
        }
        // The EVM block's gas limit, miner and base fee are in no event of Flow's, and in no row.
        evm_blocks += 1;
        let of = |column| told(&tables, "evm_blocks", column).remove(0);
        assert_eq!(of("evm_height"), closed["height"].to_string());
        assert_eq!(of("evm_hash"), text(closed, "hash"));
        assert_eq!(of("gas_used"), closed["gas_used"].to_string());
        assert_eq!(of("transaction_count"), inner.len().to_string());
        assert_eq!(sum(&tables, "evm_transactions", "gas_used"), number(&closed["gas_used"]));
        assert!(!tables.contains_key("evm_block_parts"), "it is whole");
    }
    assert_eq!(evm_blocks, 1);
}

/// What the script asks for, by name and type.
const PARAMETERS: [(&str, &str); 7] = [
    ("amount", "UFix64"),
    ("name", "String"),
    ("artist", "String"),
    ("artistAddress", "Address"),
    ("description", "String"),
    ("royalty", "UFix64"),
    ("typeID", "String"),
];

/// The recorded transaction as its sender sent it, but for reference block, signatures, and arguments that the explorer shows as null: they are empty.
fn message_of(tx: &Json) -> Transaction {
    let address = |json: &Json| -> Bytes {
        let address: FlowAddress = json.as_str().unwrap().parse().unwrap();
        Bytes::copy_from_slice(&address.0)
    };
    let argument = |((name, kind), shown): ((&str, &str), &Json)| -> Bytes {
        assert_eq!(shown["key"], name);
        let given = match &shown["value"] {
            Json::Null => String::new(),
            Json::String(text) => text.clone(),
            number => fixed(units(number)),
        };
        value(kind, given).to_string().into()
    };
    let arguments = tx["argument"].as_array().unwrap();
    assert_eq!(arguments.len(), PARAMETERS.len());
    Transaction {
        script: text(tx, "transaction_body").into(),
        arguments: PARAMETERS.into_iter().zip(arguments).map(argument).collect(),
        gas_limit: 9_999,
        proposal_key: Some(ProposalKey {
            address: address(&tx["proposer"]),
            key_id: tx["proposer_index"].as_u64().unwrap() as u32,
            sequence_number: tx["proposer_sequence_number"].as_u64().unwrap(),
        }),
        payer: address(&tx["payer"]),
        authorizers: tx["authorizers"].as_array().unwrap().iter().map(address).collect(),
        ..Transaction::default()
    }
}

/// The recorded transaction in its block. The explorer shows its fee among its numbers and leaves the event of it out.
fn recorded_mint(tx: &Json, blocks: &Json) -> cairn_core::StoredBlock {
    let events = tx["events"].as_array().unwrap();
    let mut events: Vec<_> =
        events.iter().map(|event| typed(event["name"].as_str().unwrap(), &event["fields"])).collect();
    events.push(mainnet_fee(units(&tx["fee"]), units(&tx["execution_effort"])));
    let recorded = RecordedTx {
        id: Some(hash(&text(tx, "id"))),
        message: message_of(tx),
        computation: tx["gas_used"].as_u64().unwrap(),
        events,
        is_system: false,
    };
    let height = tx["block_height"].as_u64().unwrap();
    let (id, timestamp_ms) = block_at(blocks, height).unwrap();
    recorded_block(height, id, timestamp_ms, &[recorded])
}

fn shown_address(bytes: &[u8]) -> String {
    FlowAddress::from_slice(bytes).unwrap().to_string()
}

#[test]
fn a_recorded_transaction_decodes_to_what_its_explorer_shows() {
    let (Some(tx), Some(blocks)) =
        (fixture("findapi-tx-e64cb7b0.json"), fixture("findapi-blocks-141220562.json"))
    else {
        return;
    };
    let tx = &tx["data"][0];
    let stored = recorded_mint(tx, &blocks);
    let decoded = DecodedBlock::decode(&stored).unwrap();
    assert_eq!(decoded.height.get(), tx["block_height"].as_u64().unwrap());
    assert_eq!(hex::encode(decoded.id.as_bytes()), text(tx, "block_id"));
    assert_eq!(decoded.timestamp_ms, millis(&text(tx, "timestamp")));
    let [one] = &decoded.transactions[..] else { panic!("one transaction") };
    assert_eq!(hex::encode(one.id.as_bytes()), text(tx, "id"));
    assert_eq!(
        (text(tx, "status").as_str(), one.result.status),
        ("SEALED", TransactionStatus::Sealed as i32)
    );
    assert_eq!((one.result.error_message.clone(), one.result.status_code), (text(tx, "error"), 0));
    assert_eq!(tx["error_code"], "", "which is a code of 0");
    assert_eq!(one.result.computation_usage, tx["gas_used"].as_u64().unwrap());

    let message = &one.transaction;
    let key = message.proposal_key.as_ref().unwrap();
    assert_eq!(shown_address(&key.address), text(tx, "proposer"));
    assert_eq!(json!(key.key_id), tx["proposer_index"]);
    assert_eq!(json!(key.sequence_number), tx["proposer_sequence_number"]);
    assert_eq!(shown_address(&message.payer), text(tx, "payer"));
    let authorizers: Vec<Json> = message.authorizers.iter().map(|one| shown_address(one).into()).collect();
    assert_eq!(json!(authorizers), tx["authorizers"]);
    for ((argument, shown), (name, kind)) in
        message.arguments.iter().zip(tx["argument"].as_array().unwrap()).zip(PARAMETERS)
    {
        assert!(text(tx, "transaction_body").contains(&format!("\t{name}: {kind}")));
        let read = CdcValue::parse(argument).unwrap();
        match &shown["value"] {
            Json::Null => assert_eq!(read.to_flat(), "", "{name}: the explorer lost it"),
            Json::String(text) => assert_eq!(read.as_address().unwrap().to_string(), *text, "{name}"),
            number => {
                let scaled = read.as_number().and_then(|read| read.to_scaled(8)).unwrap();
                assert_eq!(scaled, alloy_primitives::U256::from(units(number)), "{name}");
            }
        }
    }
    // The script stands in `raw.scripts` under its SHA-256, which is what the explorer has it under.
    let raw = stored.clone().without_terms();
    let parts = FlowLayout::new(Network::Mainnet).slices(&raw).unwrap().parts;
    let script = parts.iter().find(|part| part.kind == PartKind::Script).unwrap();
    let script = &raw.body[script.range.clone()];
    assert_eq!(script, text(tx, "transaction_body").as_bytes());
    assert_eq!(hex::encode(Sha256::digest(script)), text(tx, "transaction_body_hash"));
}

#[test]
fn a_recorded_transaction_is_the_rows_that_its_explorer_shows() {
    let (Some(tx), Some(listed), Some(blocks)) = (
        fixture("findapi-tx-e64cb7b0.json"),
        fixture("findapi-ft-transfers.json"),
        fixture("findapi-blocks-141220562.json"),
    ) else {
        return;
    };
    let tx = &tx["data"][0];
    let (tables, malformed) = map_all_on(Network::Mainnet, &recorded_mint(tx, &blocks));
    assert_eq!(malformed, []);
    let of = |table, column| told(&tables, table, column).remove(0);
    for table in ["tx_metrics", "flow_tx_metrics", "ft_transfers"] {
        assert_eq!(of(table, "transaction_id"), text(tx, "id"), "{table}");
        assert_eq!(of(table, "block_height"), tx["block_height"].to_string());
        assert_eq!(of(table, "block_timestamp_ms"), millis(&text(tx, "timestamp")).to_string());
    }
    assert_eq!(of("tx_metrics", "status"), "ok");
    assert_eq!(of("tx_metrics", "gas_used"), tx["gas_used"].to_string());
    assert_eq!(of("tx_metrics", "fee"), units(&tx["fee"]).to_string());
    assert_eq!(of("tx_metrics", "ft_transfer_count"), "1");
    assert_eq!(of("flow_tx_metrics", "computation_used"), tx["gas_used"].to_string());
    assert_eq!(of("flow_tx_metrics", "execution_effort"), units(&tx["execution_effort"]).to_string());
    assert_eq!(of("flow_tx_metrics", "status_code"), "0");
    assert_eq!(of("flow_tx_metrics", "error_message"), "null");
    assert_eq!(of("flow_tx_metrics", "is_system"), "false");
    let evm = tx["evm_transactions"].as_array().unwrap().len();
    assert_eq!(of("flow_tx_metrics", "evm_transaction_count"), evm.to_string());

    let listed = listed["data"].as_array().unwrap();
    let shown = listed.iter().find(|row| row["transaction_hash"] == tx["id"]).unwrap();
    let receiver = text(shown, "receiver");
    assert_eq!(of("ft_transfers", "to_address"), receiver.trim_start_matches("0x"));
    assert_eq!([of("ft_transfers", "from_address"), of("ft_transfers", "is_mint")], ["null", "true"]);
    assert_eq!(of("ft_transfers", "amount"), units(&shown["amount"]).to_string());

    let named = |tag: &str| -> BTreeSet<String> {
        let rows = &tables["tx_contracts"];
        let has_tag = |row: &&cairn_store::derived::Row| {
            get("tx_contracts", row, "tags").as_text().unwrap().split(',').any(|one| one == tag)
        };
        rows.iter()
            .filter(has_tag)
            .map(|row| {
                let address = get("tx_contracts", row, "contract_address").as_bytes().unwrap();
                let name = get("tx_contracts", row, "contract_name").as_text().unwrap();
                format!("A.{}.{name}", hex::encode(address))
            })
            .collect()
    };
    let list = |json: &Json| -> BTreeSet<String> {
        json.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(named("import"), list(&tx["contract_imports"]));
    let mut outputs = list(&tx["contract_outputs"]);
    // Which the explorer leaves out, as it does the fee's event.
    outputs.insert(MAINNET_FEES.to_owned());
    assert_eq!(named("log"), outputs);
    let roles: BTreeSet<String> = told(&tables, "account_roles", "address").into_iter().collect();
    let signers = list(&tx["authorizers"]);
    assert!(signers.contains(&text(tx, "payer")) && signers.contains(&text(tx, "proposer")));
    let signers: BTreeSet<String> =
        signers.iter().map(|one| one.trim_start_matches("0x").to_owned()).collect();
    assert_eq!(roles, signers);
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
            &format!("{MAINNET_FT}.Withdrawn"),
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
        &format!("{MAINNET_FT}.Deposited"),
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

/// Names, pictures and prices of tokens, and what the explorer thinks of them, are no part of the chain's events.
#[test]
fn every_recorded_transfer_is_the_row_that_its_explorer_shows() {
    let (Some(listed), Some(blocks)) =
        (fixture("findapi-ft-transfers.json"), fixture("findapi-blocks-141220562.json"))
    else {
        return;
    };
    let rows = listed["data"].as_array().unwrap();
    let mut mints = 0;
    for row in rows {
        let height = row["block_height"].as_u64().unwrap();
        // Some of their blocks were recorded too.
        let of_row = (B256::repeat_byte(7), millis(&text(row, "timestamp")));
        let (id, timestamp_ms) = block_at(&blocks, height).unwrap_or(of_row);
        let transaction_hash = text(row, "transaction_hash");
        let moving = RecordedTx { id: Some(hash(&transaction_hash)), ..RecordedTx::of(0, 0, events_of(row)) };
        let block = recorded_block(height, id, timestamp_ms, &[moving]);
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
        assert_eq!(of("amount"), units(&row["amount"]).to_string());
        assert_eq!(of("block_height"), height.to_string());
        assert_eq!(of("transaction_id"), transaction_hash);
        assert_eq!(of("block_timestamp_ms"), millis(&text(row, "timestamp")).to_string());
        let is_mint = row["classifier"] == "Coin Minted";
        assert_eq!([of("is_mint"), of("is_burn")], [is_mint.to_string(), "false".to_owned()]);
        // The list is of what its accounts got.
        assert_eq!((&row["direction"], &row["address"]), (&json!("deposit"), &row["receiver"]));
        mints += usize::from(is_mint);
    }
    assert_eq!((rows.len(), mints), (20, 12), "transfers, and how many of them are new tokens");
}

/// From, to, contract and amount of the rows of a table, in the order of their events.
fn moved(tables: &Tables, table: &'static str) -> Vec<[String; 4]> {
    let columns = ["from_address", "to_address", "contract_name", "amount"].map(|of| told(tables, table, of));
    let places = told(tables, table, "event_index").into_iter().map(|place| place.parse::<u32>().unwrap());
    let mut rows: Vec<_> =
        places.enumerate().map(|(at, place)| (place, columns.each_ref().map(|of| of[at].clone()))).collect();
    rows.sort();
    rows.into_iter().map(|(_, row)| row).collect()
}

#[test]
fn recorded_transactions_events_are_their_rows() {
    let Some(recorded) = fixture("mainnet-tx-events-flat.json") else { return };
    let rows = |at: usize| -> Tables {
        let tx = &recorded[at];
        let events = tx["events"].as_array().unwrap();
        let typed: Vec<_> =
            events.iter().map(|event| typed(event["type"].as_str().unwrap(), &event["payload"])).collect();
        for (index, (event, (name, payload))) in events.iter().zip(&typed).enumerate() {
            let read = CdcValue::parse_event(payload.as_bytes()).unwrap();
            assert_eq!((&*read.id, index), (&**name, event["event_index"].as_u64().unwrap() as usize));
            assert_eq!(CdcValue::Composite(read).to_flat(), event["payload"], "every field of {name}");
        }
        let id = Some(hash(&text(tx, "transaction_id")));
        let block =
            recorded_block(1, B256::repeat_byte(7), 0, &[RecordedTx { id, ..RecordedTx::of(0, 0, typed) }]);
        let (tables, malformed) = map_all_on(Network::Mainnet, &block);
        assert_eq!(malformed, []);
        for table in ["ft_transfers", "fee_transfers", "tx_metrics", "flow_tx_metrics"] {
            let ids = told(&tables, table, "transaction_id");
            assert!(!ids.is_empty() && ids.iter().all(|id| *id == text(tx, "transaction_id")), "{table}");
        }
        assert_eq!(told(&tables, "tx_metrics", "event_count"), [events.len().to_string()]);
        tables
    };
    let row =
        |from: &str, to: &str, contract: &str, amount: &str| [from, to, contract, amount].map(str::to_owned);
    let paid = |tables: &Tables| {
        let of = |column| told(tables, "flow_tx_metrics", column).remove(0);
        [told(tables, "tx_metrics", "fee").remove(0), of("inclusion_effort"), of("execution_effort")]
    };
    let (flow, fees) = ("FlowToken", "f919ee77447b7497");
    let staked = rows(0);
    let committed = row("43b5b87eac607406", "8624b52f9ddcd04a", flow, "1698900000000");
    assert_eq!(moved(&staked, "ft_transfers"), [committed]);
    assert_eq!(moved(&staked, "fee_transfers"), [row("55e1dd4d35647e67", fees, flow, "2299")]);
    assert_eq!(paid(&staked), ["2299", "100000000", "88"]);
    assert!(told(&staked, "tx_tags", "tag").contains(&"staking".to_owned()));
    // What a vault was split into goes on from whom the vault was taken from; a token that has no events of its own is one all the same.
    let lost = rows(1);
    let sender = "e7aded0979f825d0";
    let bridged = "EVMVMBridgedToken_2aabea2058b5ac2d339b163c6ab6f2b6d53aabed";
    assert_eq!(
        moved(&lost, "ft_transfers"),
        [
            row(sender, "null", bridged, "100000"),
            row(sender, "473d6a2c37eab5be", flow, "201"),
            row(sender, "473d6a2c37eab5be", flow, "1233"),
            row(sender, sender, flow, "792"),
        ]
    );
    assert_eq!(moved(&lost, "fee_transfers"), [row("319e67f2ef9d937f", fees, flow, "578000")]);
    assert_eq!(paid(&lost), ["578000", "100000000", "142"]);
}

#[test]
fn each_recorded_event_alone_makes_rows_and_no_fault() {
    let Some(events) = fixture("events.jsoncdc.json") else { return };
    for recorded in events.as_array().unwrap() {
        let name = recorded["type"].as_str().unwrap().split(' ').next().unwrap();
        let network = match recorded["network"].as_str().unwrap() {
            network if network.starts_with("flow-testnet") => Network::Testnet,
            "flow-emulator" => Network::Emulator,
            _ => Network::Mainnet,
        };
        let event = (name.to_owned(), recorded["payload"].as_str().unwrap().to_owned());
        let (tables, malformed) = map_all_on(network, &flow_block(3, &[with(vec![event])]));
        // An EVM transaction that stood second in its block says that the first is missing.
        let expected = usize::from(name.ends_with("EVM.TransactionExecuted"));
        assert!(malformed.len() <= expected, "{name}: {malformed:?}");
        let table = match name.rsplit('.').next().unwrap() {
            "TokensWithdrawn" | "TokensDeposited" => "ft_transfers",
            "Withdrawn" | "Deposited" if name.contains(".FungibleToken.") => "ft_transfers",
            "Withdrawn" | "Deposited" => "nft_transfers",
            "AccountCreated" => "account_creations",
            "AccountKeyAdded" => "account_key_events",
            "TransactionExecuted" => "evm_transactions",
            "FeesDeducted" => "flow_tx_metrics",
            other => panic!("{other}"),
        };
        // Tokens that were taken from no account are nobody's movement.
        let is_nobodys = recorded["payload"].as_str().unwrap().contains("\"Optional\",\"value\":null");
        assert_eq!(!tables.contains_key(table), is_nobodys, "{name}");
    }
}
