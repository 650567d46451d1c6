//! What was recorded from real networks decodes to what it says.

use crate::support;

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, U256};
use alloy_rlp::{Encodable, Header};
use cairn_flow::cdc::CdcValue;
use cairn_flow::evm::{DirectKind, Executed, decode_payload};
use cairn_flow::id::transaction_id;
use cairn_flow::{EventType, Network};
use serde_json::Value;

#[test]
fn all_transaction_ids_are_computed() {
    let Some(vectors) = support::json("txid-vectors.json") else { return };
    let vectors = vectors.as_array().expect("a list");
    assert_eq!(vectors.len(), 8);
    for vector in vectors {
        let computed = hex::encode(transaction_id(&support::transaction(&vector["tx"])).as_bytes());
        assert_eq!(computed, vector["id"].as_str().expect("text"), "{}", vector["name"]);
    }
}

/// A value of the file as [`CdcValue::to_flat`] should show it, read by the words of JSON-CDC alone.
fn plain(value: &Value) -> Value {
    let inner = &value["value"];
    match value["type"].as_str().expect("a kind") {
        "Optional" if inner.is_null() => Value::Null,
        "Optional" => plain(inner),
        "Address" => format!("{:0>16}", inner.as_str().expect("text").trim_start_matches("0x")).into(),
        "Array" => inner.as_array().expect("a list").iter().map(plain).collect(),
        "Struct" | "Enum" => {
            let fields = inner["fields"].as_array().expect("a list").iter();
            let field =
                |field: &Value| (field["name"].as_str().expect("text").to_owned(), plain(&field["value"]));
            Value::Object(fields.map(field).collect())
        }
        "String" | "UFix64" | "Int" | "UInt8" | "UInt16" | "UInt64" | "UInt" => inner.clone(),
        other => panic!("the file has a {other} now: say how it should look"),
    }
}

#[test]
fn all_recorded_events_are_read() {
    let Some(events) = support::json("events.jsoncdc.json") else { return };
    let events = events.as_array().expect("a list");
    assert_eq!(events.len(), 12);
    for event in events {
        let name = event["type"].as_str().expect("text").split(' ').next().expect("a word");
        let payload = event["payload"].as_str().expect("text");
        let parsed = CdcValue::parse_event(payload.as_bytes()).expect("is read");
        let recorded: Value = serde_json::from_str(payload).expect("is JSON");
        let recorded = recorded["value"]["fields"].as_array().expect("a list");
        assert_eq!((parsed.id.as_str(), parsed.fields.len()), (name, recorded.len()));
        assert!(EventType::parse(&parsed.id).is_some());
        for ((name, value), recorded) in parsed.fields.iter().zip(recorded) {
            assert_eq!(name, recorded["name"].as_str().expect("text"), "{}", parsed.id);
            assert_eq!(value.to_flat(), plain(&recorded["value"]), "{}: {name}", parsed.id);
        }
    }
    // And as numbers and addresses, of one that is known by heart.
    let payload = events[0]["payload"].as_str().expect("text");
    let withdrawn = CdcValue::parse_event(payload.as_bytes()).expect("is read");
    let amount = withdrawn.field("amount").and_then(CdcValue::as_number).expect("a number");
    assert_eq!(amount.to_scaled(8), Some(U256::from(6_000_000_000u64)));
    let from = withdrawn
        .field("from")
        .and_then(CdcValue::unwrapped)
        .and_then(CdcValue::as_address)
        .expect("an address");
    assert_eq!(from.to_string(), "0xb4e959600bd0f29e");
}

/// Nothing of cairn is in question here but its list of sporks: it is what blocks are held to, seen in blocks of mainnet that an explorer recorded. Their heights
/// have no gap, and there is something of the chain's own in each, also where no user sent anything. What rows such blocks make, the explorer's tests say.
#[test]
fn every_recorded_mainnet_block_has_an_event_of_the_system() {
    let (Some(blocks), Some(tx)) =
        (support::json("findapi-blocks-141220562.json"), support::json("findapi-tx-e64cb7b0.json"))
    else {
        return;
    };
    let blocks = blocks["data"].as_array().expect("a list");
    let number = |of: &Value| of.as_u64().expect("a number");
    assert_eq!(blocks.len(), 20);
    for (block, height) in blocks.iter().zip((141_220_543..=141_220_562).rev()) {
        assert_eq!((number(&block["height"]), number(&block["system_event_count"])), (height, 1));
        assert_eq!(hex::decode(block["id"].as_str().expect("text")).expect("hex").len(), 32);
    }
    assert!(blocks.iter().any(|block| number(&block["tx"]) == 0));
    let tx = &tx["data"][0];
    let of = blocks.iter().find(|block| block["height"] == tx["block_height"]).expect("is there");
    assert_eq!((&of["id"], &of["timestamp"]), (&tx["block_id"], &tx["timestamp"]));
    let spork = Network::Mainnet.sporks().iter().rfind(|spork| spork.root_height <= 141_220_543);
    assert_eq!(spork.map(|spork| spork.name), Some("mainnet28"));
}

#[test]
fn recorded_payloads_are_flat_as_explorers_show_them() {
    let (Some(events), Some(flat)) =
        (support::json("events.jsoncdc.json"), support::json("mainnet-tx-events-flat.json"))
    else {
        return;
    };
    let flat: Vec<&serde_json::Value> = flat
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(|tx| tx["events"].as_array().expect("a list"))
        .collect();
    let mut seen = 0;
    for event in events.as_array().expect("a list").iter().filter(|event| event["network"] == "flow-mainnet")
    {
        let value = CdcValue::parse(event["payload"].as_str().expect("text").as_bytes()).expect("is read");
        seen += flat
            .iter()
            .filter(|flat| flat["type"] == event["type"] && flat["payload"] == value.to_flat())
            .count();
    }
    assert_eq!(seen, 2, "the two that are in both files");
}

#[test]
fn a_direct_call_is_read_and_its_hash_computed() {
    let Some(text) = support::fixture("evmgw_direct_call.bin") else { return };
    let tx = decode_payload(&hex::decode(text.trim_ascii()).expect("hex")).expect("is read");
    let hash: B256 =
        "0xb055748f36d6bbe99a7ab5e45202b5c095ceda985dec0cc2a8747fd88c80c8c9".parse().expect("a hash");
    let address = |text: &str| text.parse::<Address>().expect("an address");
    assert_eq!(tx.hash, hash);
    assert_eq!(tx.from, Some(address("0x0000000000000000000000010000000000000000")));
    assert_eq!(tx.to, Some(address("0x000000000000000000000002ef6737ccBbAa9977")));
    assert_eq!((tx.value, tx.gas_limit, tx.gas_price), (U256::from(10_000_000_000u64), 23_300, 0));
    assert_eq!(
        (tx.nonce, tx.direct),
        (0, Some(DirectKind::Deposit)),
        "the nonce is the last item, not the second"
    );
    assert_eq!((tx.tx_type, tx.input.len(), tx.max_priority_fee_per_gas), (255, 0, None));
}

/// Of flow-go: `fvm/evm/types/call_test.go`, and the payload in `fvm/evm/events/events_test.go`, which is of before direct calls had a nonce.
#[test]
fn direct_calls_of_flows_own_tests_are_read() {
    let address = |bytes: [u8; 2]| {
        let mut address = Address::ZERO;
        address[..2].copy_from_slice(&bytes);
        address
    };
    let (from, to) = (address([1, 2]), address([3, 4]));
    let tx =
        decode_payload(&direct_call(1, from, to, &[0xf, 0xa, 0xb], U256::from(5), 100, 0)).expect("is read");
    let hash: B256 =
        "0xed76124cc3c59f13e1113f5c380e2a67dab9bf616afc645073d2491fe3aecb62".parse().expect("a hash");
    assert_eq!((tx.hash, tx.direct), (hash, Some(DirectKind::Deposit)));

    let payload = "fff83b81ff01940000000000000000000000000000000000000000940000000000000000000000000000000000000001\
                   80895150ae84a8cdf00000825208";
    let payload = hex::decode(payload).expect("hex");
    let tx = decode_payload(&payload).expect("is read");
    let value: U256 = "0x5150ae84a8cdf00000".parse().expect("a number");
    assert_eq!((tx.value, tx.gas_limit, tx.nonce, tx.direct), (value, 21_000, 0, Some(DirectKind::Deposit)));
    let to = Address::with_last_byte(1);
    assert_eq!((tx.from, tx.to, tx.input.len()), (Some(Address::ZERO), Some(to), 0));
    // Cut shorter, it is none.
    let mut cut = payload[..payload.len() - 3].to_vec();
    cut[2] -= 3;
    decode_payload(&cut).expect_err("is refused");
}

#[test]
fn a_signed_transaction_is_read_and_its_sender_recovered() {
    let Some(text) = support::fixture("evmgw_transaction_call.bin") else { return };
    let tx = decode_payload(&hex::decode(text.trim_ascii()).expect("hex")).expect("is read");
    let hash: B256 =
        "0xe414f90fea2aebd75e8c0b3b6a4a0c9928e86c16ea724343d884f40bfe2c4c6b".parse().expect("a hash");
    let sender: Address = "0x658Bdf435d810C91414eC09147DAA6DB62406379".parse().expect("an address");
    assert_eq!((tx.hash, tx.from, tx.to), (hash, Some(sender), None));
    assert_eq!((tx.gas_limit, tx.input.len(), tx.direct), (125_000, 264, None));
    assert_eq!((tx.tx_type, tx.nonce, tx.value, tx.gas_price), (0, 0, U256::ZERO, 0));
    assert_eq!(tx.max_priority_fee_per_gas, None);
    // Its v is 1327, which is the chain's number and the signature's parity (EIP-155).
    let payload = hex::decode(text.trim_ascii()).expect("hex");
    let signed = TxEnvelope::decode_2718(&mut payload.as_slice()).expect("is read");
    assert_eq!((signed.chain_id(), signed.signature().v()), (Some(646), false));
    assert!(payload.windows(3).any(|bytes| bytes == [0x82, 0x05, 0x2f]), "1327");
}

#[test]
fn a_recorded_evm_event_names_the_hash_of_its_payload() {
    let Some(events) = support::json("events.jsoncdc.json") else { return };
    let of_evm = |event: &&serde_json::Value| {
        let name = event["type"].as_str().and_then(EventType::parse);
        name.is_some_and(|name| name.is(Network::Mainnet.accounts().service, "EVM", "TransactionExecuted"))
    };
    let event = events.as_array().expect("a list").iter().find(of_evm).expect("there is one");
    let event = CdcValue::parse_event(event["payload"].as_str().expect("text").as_bytes()).expect("is read");
    let executed = Executed::from_event(&event).expect("is read");
    let tx = decode_payload(&executed.payload).expect("is read");
    assert_eq!((tx.hash, tx.tx_type, tx.nonce), (executed.hash, executed.tx_type, 0));
    assert_eq!((executed.block_height, executed.gas_used, executed.error_code), (55_215_387, 21_000, 0));
    assert!(executed.logs.is_empty() && executed.contract_address.is_none());
}

/// Of a direct call everything is recorded that its hash is made of; of a signed transaction its signature is not, and so neither its hash nor its sender
/// can be computed. Type and price of a direct call are those of Flow's own event here, 255 and 0: the explorer shows the legacy transaction that the EVM
/// gateway makes of it, at the block's base fee.
#[test]
fn recorded_evm_transactions_are_what_an_explorer_shows() {
    let Some(listed) = support::json("findapi-evm-tx.json") else { return };
    let rows = listed["data"].as_array().expect("a list");
    let text = |row: &Value, field: &str| row[field].as_str().expect("text").to_owned();
    let moves_value: Address = "0x0000000000000000000000030000000000000000".parse().expect("an address");
    let (mut direct, mut signed) = (0, 0);
    for row in rows {
        let from: Address = text(row, "from").parse().expect("an address");
        let to: Address = text(row, "to").parse().expect("an address");
        let hash: B256 = text(row, "hash").parse().expect("a hash");
        let number = |field: &str| text(row, field).parse::<u64>().expect("a number");
        let (gas_limit, price) = (number("gas_limit"), number("gas_price"));
        assert!(number("gas_used") <= gas_limit, "{hash}");
        let nonce = row["nonce"].as_u64().expect("a number");
        let value: U256 = text(row, "value").parse().expect("a number");
        let input = hex::decode(text(row, "raw_input")).expect("hex");
        assert!(row["max_fee_per_gas"].is_null() && row["max_priority_fee_per_gas"].is_null());
        assert_eq!(row["type"], 0);
        let payload = match from == moves_value {
            true => direct_call(3, from, to, &input, value, gas_limit, nonce),
            false => legacy(nonce, price, gas_limit, to, value, &input),
        };
        let tx = decode_payload(&payload).expect("is read");
        assert_eq!((tx.to, tx.value, tx.nonce, tx.gas_limit), (Some(to), value, nonce, gas_limit));
        assert_eq!((&tx.input[..], tx.max_priority_fee_per_gas), (&input[..], None));
        if from == moves_value {
            direct += 1;
            assert_eq!((tx.hash, tx.from, tx.direct), (hash, Some(from), Some(DirectKind::Transfer)));
            assert_eq!((tx.tx_type, tx.gas_price, price), (255, 0, 1));
            // Any other kind of call has another hash.
            let other = decode_payload(&direct_call(5, from, to, &input, value, gas_limit, nonce));
            assert_ne!(other.expect("is read").hash, hash);
        } else {
            signed += 1;
            assert_eq!((tx.tx_type, tx.gas_price, tx.direct), (0, u128::from(price), None));
        }
    }
    assert_eq!((direct, signed), (10, 10));
}

fn list(items: &[u8]) -> Vec<u8> {
    let mut list = Vec::new();
    Header { list: true, payload_length: items.len() }.encode(&mut list);
    list.extend(items);
    list
}

/// A transaction of mainnet's EVM, whose number is 747, with a signature that anybody could make.
fn legacy(nonce: u64, price: u64, gas_limit: u64, to: Address, value: U256, input: &[u8]) -> Vec<u8> {
    let mut items = Vec::new();
    nonce.encode(&mut items);
    price.encode(&mut items);
    gas_limit.encode(&mut items);
    to.encode(&mut items);
    value.encode(&mut items);
    input.encode(&mut items);
    (747u64 * 2 + 35).encode(&mut items);
    [1u8, 1].iter().for_each(|part| part.encode(&mut items));
    list(&items)
}

/// A direct call's payload.
fn direct_call(
    sub_type: u8,
    from: Address,
    to: Address,
    input: &[u8],
    value: U256,
    gas_limit: u64,
    nonce: u64,
) -> Vec<u8> {
    let mut items = Vec::new();
    cairn_flow::evm::DIRECT_CALL.encode(&mut items);
    sub_type.encode(&mut items);
    from.encode(&mut items);
    to.encode(&mut items);
    input.encode(&mut items);
    value.encode(&mut items);
    gas_limit.encode(&mut items);
    nonce.encode(&mut items);
    [&[cairn_flow::evm::DIRECT_CALL][..], &list(&items)].concat()
}
