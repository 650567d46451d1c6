//! Blocks of what was recorded of real ones: under the ids, times and numbers that were recorded, whatever these are made of.

use alloy_primitives::{Address, B256, U256};
use alloy_rlp::{Encodable, Header};
use bytes::Bytes;
use cairn_core::{StoredBlock, TxId};
use cairn_flow::id::{collection_id, transaction_id};
use cairn_flow::proto::{
    Block, CollectionGuarantee, Event, ProposalKey, Timestamp, Transaction, TransactionResult,
    TransactionStatus,
};
use cairn_flow::{BlockParts, FlowAddress, assemble};
use prost::Message;
use serde_json::Value as Json;

use super::flow::{Direct, byte_list, event, party, value};

/// Mainnet's own contracts.
pub const MAINNET_EVM: &str = "A.e467b9dd11fa00df.EVM";
pub const MAINNET_FT: &str = "A.f233dcee88fe0abe.FungibleToken";
pub const MAINNET_FEES: &str = "A.f919ee77447b7497.FlowFees";

/// A transaction of a recorded block.
#[derive(Debug, Clone)]
pub struct RecordedTx {
    /// Its id, where one was recorded: not that of the message, of which signatures and reference block weren't.
    pub id: Option<B256>,
    pub message: Transaction,
    pub computation: u64,
    pub events: Vec<(String, String)>,
    pub is_system: bool,
}

impl RecordedTx {
    /// Somebody's with these events. `number` tells it from others.
    pub fn of(number: u64, computation: u64, events: Vec<(String, String)>) -> RecordedTx {
        let somebody = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]);
        let key = ProposalKey { address: somebody.clone(), key_id: 0, sequence_number: number };
        let message = Transaction {
            script: "transaction {}".into(),
            proposal_key: Some(key),
            payer: somebody,
            ..Transaction::default()
        };
        RecordedTx { id: None, message, computation, events, is_system: false }
    }

    /// The one that closes a block.
    pub fn system(events: Vec<(String, String)>) -> RecordedTx {
        let message = Transaction { script: "transaction { /* system */ }".into(), ..Transaction::default() };
        RecordedTx { id: None, message, computation: 0, events, is_system: true }
    }
}

/// A block as it is read back from a store: users' transactions in one collection, the system's behind them.
pub fn recorded_block(height: u64, id: B256, timestamp_ms: u64, txs: &[RecordedTx]) -> StoredBlock {
    let computed: Vec<TxId> = txs.iter().map(|tx| transaction_id(&tx.message)).collect();
    let users = txs.iter().zip(&computed).filter(|(tx, _)| !tx.is_system);
    let users: Vec<TxId> = users.map(|(_, id)| *id).collect();
    let collection = Bytes::copy_from_slice(&collection_id(&users));
    let result = |(place, (tx, id)): (usize, (&RecordedTx, &TxId))| {
        let tx_id = Bytes::copy_from_slice(id.as_bytes());
        let event = |(index, (name, payload)): (usize, &(String, String))| Event {
            r#type: name.clone(),
            transaction_id: tx_id.clone(),
            transaction_index: place as u32,
            event_index: index as u32,
            payload: payload.clone().into(),
        };
        TransactionResult {
            status: TransactionStatus::Sealed as i32,
            events: tx.events.iter().enumerate().map(event).collect(),
            transaction_id: tx_id.clone(),
            collection_id: if tx.is_system { Bytes::from(vec![0; 32]) } else { collection.clone() },
            block_height: height,
            computation_usage: tx.computation,
            ..TransactionResult::default()
        }
    };
    let results = txs.iter().zip(&computed).enumerate().map(result);
    let guarantee =
        CollectionGuarantee { collection_id: collection.clone(), ..CollectionGuarantee::default() };
    let block = Block {
        id: Bytes::copy_from_slice(id.as_slice()),
        parent_id: Bytes::from(vec![1; 32]),
        height,
        timestamp: Some(Timestamp {
            seconds: (timestamp_ms / 1_000) as i64,
            nanos: (timestamp_ms % 1_000 * 1_000_000) as i32,
        }),
        collection_guarantees: if users.is_empty() { Vec::new() } else { vec![guarantee] },
        ..Block::default()
    };
    let parts = BlockParts {
        block: block.encode_to_vec().into(),
        transactions: txs.iter().map(|tx| tx.message.encode_to_vec().into()).collect(),
        results: results.map(|result| result.encode_to_vec().into()).collect(),
        execution_result: None,
    };
    let mut stored: StoredBlock = assemble(&parts).unwrap().into();
    for (place, tx) in txs.iter().enumerate() {
        let Some(id) = tx.id else { continue };
        stored.receipts = replaced(&stored.receipts, computed[place].as_bytes(), &id.0);
        stored.transactions[place].id = TxId(id.0);
    }
    stored
}

fn replaced(bytes: &[u8], old: &[u8; 32], new: &[u8; 32]) -> Bytes {
    let mut bytes = bytes.to_vec();
    for at in 0..bytes.len().saturating_sub(31) {
        if bytes[at..at + 32] == old[..] {
            bytes[at..at + 32].copy_from_slice(new);
        }
    }
    bytes.into()
}

/// Milliseconds since 1970 of a time such as `2026-02-05T12:42:41.283Z`.
pub fn millis(time: &str) -> u64 {
    let numbers: Vec<u64> = time
        .trim_end_matches('Z')
        .split(['-', 'T', ':', '.'])
        .map(|digits| digits.parse().unwrap())
        .collect();
    let [year, month, day, hour, minute, second] = numbers[..6] else { panic!("{time}") };
    let fraction = time.trim_end_matches('Z').split_once('.').map_or("", |(_, digits)| digits);
    let millis: u64 = format!("{fraction:0<3}")[..3].parse().unwrap();
    let days_in = [31, if year % 4 == 0 { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days_of_years: u64 = (1970..year).map(|year| if year % 4 == 0 { 366 } else { 365 }).sum();
    let days = days_of_years + days_in[..month as usize - 1].iter().sum::<u64>() + day - 1;
    (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + millis
}

pub fn text(row: &Json, field: &str) -> String {
    row[field].as_str().unwrap().to_owned()
}

pub fn hash(text: &str) -> B256 {
    text.parse().unwrap()
}

/// Units of 10^-8 of a recorded number, which a double has kept.
pub fn units(number: &Json) -> u64 {
    (number.as_f64().unwrap() * 1e8).round() as u64
}

/// What an explorer shows of an event, with types.
pub fn typed(name: &str, flat: &Json) -> (String, String) {
    let number = |json: &Json| match json {
        Json::Number(number) => number.to_string(),
        other => other.as_str().unwrap().to_owned(),
    };
    let fields: Vec<(&str, Json)> = flat
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, json)| {
            let typed = match name.as_str() {
                "from" | "to" if json.is_null() => party(None),
                "from" | "to" => {
                    let address: FlowAddress = json.as_str().unwrap().parse().unwrap();
                    value("Optional", value("Address", address.to_string()))
                }
                "type" => value("String", json.as_str().unwrap()),
                "id" | "uuid" => value("UInt64", number(json)),
                name if name.ends_with("UUID") => value("UInt64", number(json)),
                name if name.starts_with("amount") || name.ends_with("Effort") || name == "balanceAfter" => {
                    value("UFix64", number(json))
                }
                _ => value("String", json.as_str().map_or_else(|| json.to_string(), str::to_owned)),
            };
            (name.as_str(), typed)
        })
        .collect();
    event(name, &fields)
}

/// What a fee of so many units, of which so much was for execution, is told by.
pub fn mainnet_fee(units: u64, execution_units: u64) -> (String, String) {
    let fixed = |units: u64| value("UFix64", super::flow::fixed(units));
    event(
        &format!("{MAINNET_FEES}.FeesDeducted"),
        &[
            ("amount", fixed(units)),
            ("inclusionEffort", fixed(100_000_000)),
            ("executionEffort", fixed(execution_units)),
        ],
    )
}

// EVM transactions as an explorer lists them.

/// Whether the chain itself made it: a direct call, which moves value between accounts of Cadence.
pub fn is_direct(row: &Json) -> bool {
    row["from"] == "0000000000000000000000030000000000000000"
}

/// Its payload. Of a signed one nobody recorded the signature: it has one that anybody could make, which is of another sender and gives another hash.
pub fn payload(row: &Json) -> Vec<u8> {
    let address = |name: &str| text(row, name).parse::<Address>().unwrap();
    let number = |name: &str| text(row, name).parse::<U256>().unwrap();
    let input = hex::decode(text(row, "raw_input")).unwrap();
    let nonce = row["nonce"].as_u64().unwrap();
    if is_direct(row) {
        assert_eq!(text(row, "gas_limit"), "23300", "what a direct call of the tests has");
        let (from, to, value) = (address("from"), address("to"), number("value"));
        return Direct { sub_type: 3, from, to, input, value, nonce }.payload();
    }
    let mut items = Vec::new();
    Encodable::encode(&nonce, &mut items);
    number("gas_price").encode(&mut items);
    number("gas_limit").encode(&mut items);
    address("to").encode(&mut items);
    number("value").encode(&mut items);
    input.as_slice().encode(&mut items);
    // Of the chain 747.
    Encodable::encode(&1_529u64, &mut items);
    [1u8, 1].iter().for_each(|part| part.encode(&mut items));
    let mut payload = Vec::new();
    Header { list: true, payload_length: items.len() }.encode(&mut payload);
    payload.extend(items);
    payload
}

/// The event that told of it.
pub fn evm_executed_as(row: &Json) -> (String, String) {
    let kind = if is_direct(row) { 255 } else { row["type"].as_u64().unwrap() };
    event(
        &format!("{MAINNET_EVM}.TransactionExecuted"),
        &[
            ("hash", byte_list(hash(&text(row, "hash")).as_slice())),
            ("index", value("UInt16", row["position"].to_string())),
            ("type", value("UInt8", kind.to_string())),
            ("payload", byte_list(&payload(row))),
            ("errorCode", value("UInt16", "0")),
            ("errorMessage", value("String", "")),
            ("gasConsumed", value("UInt64", text(row, "gas_used"))),
            ("contractAddress", value("String", "")),
            ("logs", byte_list(&[])),
            ("blockHeight", value("UInt64", row["block_number"].to_string())),
            ("returnedData", byte_list(&[])),
            ("precompiledCalls", byte_list(&[])),
        ],
    )
}

/// The event that closes the EVM block of these, in their order.
pub fn evm_closed_as(hash: B256, gas_used: u64, rows: &[&Json]) -> (String, String) {
    let timestamp_s = millis(&text(rows[0], "timestamp")) / 1_000;
    event(
        &format!("{MAINNET_EVM}.BlockExecuted"),
        &[
            ("height", value("UInt64", rows[0]["block_number"].to_string())),
            ("hash", byte_list(hash.as_slice())),
            ("timestamp", value("UInt64", timestamp_s.to_string())),
            ("totalSupply", value("Int", "0")),
            ("totalGasUsed", value("UInt64", gas_used.to_string())),
            ("parentHash", byte_list(&[1; 32])),
            ("receiptRoot", byte_list(&[0; 32])),
        ],
    )
}
