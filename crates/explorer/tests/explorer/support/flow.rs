//! Made-up Flow blocks, and the processors of Flow run over them.

use alloy_primitives::{Address, B256, U256, keccak256};
use alloy_rlp::{Encodable, Header};
use bytes::Bytes;
use cairn_core::{RawBlock, StoredBlock};
use cairn_explorer::processors::{Settings, flow_catalog, flow_processors};
use cairn_flow::evm::{DIRECT_CALL, decode_payload, transaction_hash_root};
use cairn_flow::id::{collection_id, transaction_id};
use cairn_flow::proto::{
    Block, CollectionGuarantee, Event, ProposalKey, Timestamp, Transaction, TransactionResult,
    TransactionStatus,
};
use cairn_flow::{BlockParts, FlowAddress, Network, assemble};
use cairn_pipeline::derive::processor::{Malformed, Processor};
use cairn_store::derived::{Row, Value};
use prost::Message;
use serde_json::{Value as Json, json};

use super::{Folded, Tables};

/// Contracts of the emulator.
pub const FT: &str = "A.ee82856bf20e2aa6.FungibleToken";
pub const NFT: &str = "A.f8d6e0586b0a20c7.NonFungibleToken";
pub const FLOW: &str = "A.0ae53cb6e3f42a79.FlowToken";
pub const FEES: &str = "A.e5a8b7f23e8b548f.FlowFees.FeesDeducted";
pub const EVM: &str = "A.f8d6e0586b0a20c7.EVM";
pub const COIN: &str = "A.0000000000000009.Coin";
pub const CATS: &str = "A.0000000000000009.Cats";
pub const SERVICE_ACCOUNT: u64 = 0xf8d6_e058_6b0a_20c7;

pub fn account(number: u64) -> FlowAddress {
    FlowAddress(number.to_be_bytes())
}

pub fn settings() -> Settings {
    Settings { network: Some(Network::Emulator), ..Settings::default() }
}

pub fn processors() -> Vec<Processor> {
    flow_processors(&settings())
}

/// A made-up transaction.
#[derive(Debug, Clone)]
pub struct FlowTx {
    pub script: String,
    pub proposer: u64,
    pub payer: u64,
    pub authorizers: Vec<u64>,
    pub error: Option<String>,
    pub computation: u64,
    pub events: Vec<(String, String)>,
    /// Of the chain itself: it stands last.
    pub is_system: bool,
}

impl Default for FlowTx {
    fn default() -> FlowTx {
        FlowTx {
            script: "transaction {}".into(),
            proposer: 1,
            payer: 1,
            authorizers: vec![1],
            error: None,
            computation: 7,
            events: Vec::new(),
            is_system: false,
        }
    }
}

/// A transaction with these events.
pub fn with(events: Vec<(String, String)>) -> FlowTx {
    FlowTx { events, ..FlowTx::default() }
}

/// The system transaction: the same in every block.
pub fn system(events: Vec<(String, String)>) -> FlowTx {
    FlowTx {
        script: "transaction { /* system chunk */ }".into(),
        proposer: 0,
        payer: 0,
        authorizers: vec![SERVICE_ACCOUNT],
        computation: 0,
        events,
        is_system: true,
        ..FlowTx::default()
    }
}

/// The id of a block of a fork.
pub fn block_id(height: u64, fork: u8) -> B256 {
    keccak256(format!("{height}/{fork}"))
}

/// A block at `height`, one an hour. Its parent is of the same fork above `common`, and of fork 0 at or below it.
pub fn raw_block(height: u64, fork: u8, common: u64, txs: &[FlowTx]) -> RawBlock {
    let fork_at = |height: u64| if height > common { fork } else { 0 };
    let id = Bytes::copy_from_slice(block_id(height, fork_at(height)).as_slice());
    let parent = height.checked_sub(1).map_or(B256::ZERO, |parent| block_id(parent, fork_at(parent)));
    let message = |(place, tx): (usize, &FlowTx)| {
        let address = |number: u64| Bytes::copy_from_slice(&account(number).0);
        Transaction {
            script: tx.script.clone().into(),
            reference_block_id: if tx.is_system { Bytes::new() } else { Bytes::from(vec![7; 32]) },
            gas_limit: if tx.is_system { 100_000_000 } else { 9_999 },
            proposal_key: (tx.proposer != 0).then(|| ProposalKey {
                address: address(tx.proposer),
                key_id: 0,
                sequence_number: height * 1_000 + place as u64,
            }),
            payer: address(tx.payer),
            authorizers: tx.authorizers.iter().map(|number| address(*number)).collect(),
            ..Transaction::default()
        }
    };
    let messages: Vec<Transaction> = txs.iter().enumerate().map(message).collect();
    let users = txs.iter().zip(&messages).filter(|(tx, _)| !tx.is_system);
    let ids: Vec<_> = users.map(|(_, message)| transaction_id(message)).collect();
    let collection = Bytes::copy_from_slice(&collection_id(&ids));
    let result = |(place, (tx, message)): (usize, (&FlowTx, &Transaction))| {
        let tx_id = Bytes::copy_from_slice(transaction_id(message).as_bytes());
        let event = |(index, (name, payload)): (usize, &(String, String))| Event {
            r#type: name.clone(),
            transaction_id: tx_id.clone(),
            transaction_index: place as u32,
            event_index: index as u32,
            payload: payload.clone().into(),
        };
        TransactionResult {
            status: TransactionStatus::Sealed as i32,
            status_code: u32::from(tx.error.is_some()),
            error_message: tx.error.clone().unwrap_or_default(),
            events: tx.events.iter().enumerate().map(event).collect(),
            block_id: id.clone(),
            transaction_id: tx_id.clone(),
            collection_id: if tx.is_system { Bytes::from(vec![0; 32]) } else { collection.clone() },
            block_height: height,
            computation_usage: tx.computation,
        }
    };
    let results = txs.iter().zip(&messages).enumerate().map(result);
    let has_collection = txs.iter().any(|tx| !tx.is_system);
    let guarantee =
        CollectionGuarantee { collection_id: collection.clone(), ..CollectionGuarantee::default() };
    let block = Block {
        id: id.clone(),
        parent_id: Bytes::copy_from_slice(parent.as_slice()),
        height,
        timestamp: Some(Timestamp { seconds: height as i64 * 3_600, nanos: 0 }),
        collection_guarantees: if has_collection { vec![guarantee] } else { Vec::new() },
        ..Block::default()
    };
    let parts = BlockParts {
        block: block.encode_to_vec().into(),
        transactions: messages.iter().map(|message| message.encode_to_vec().into()).collect(),
        results: results.map(|result| result.encode_to_vec().into()).collect(),
        execution_result: None,
    };
    assemble(&parts).unwrap()
}

/// A block of the one fork as it is read back from a store.
pub fn flow_block(height: u64, txs: &[FlowTx]) -> StoredBlock {
    raw_block(height, 0, u64::MAX, txs).into()
}

/// What a mapper makes of a block.
pub fn map(name: &str, block: &StoredBlock) -> (Tables, Vec<Malformed>) {
    map_on(Network::Emulator, name, block)
}

/// The same, of another network.
pub fn map_on(network: Network, name: &str, block: &StoredBlock) -> (Tables, Vec<Malformed>) {
    let settings = Settings { network: Some(network), ..Settings::default() };
    super::map_by(&flow_processors(&settings), &flow_catalog().unwrap(), name, block)
}

/// The rows of every mapper for a block, which must be without faults.
pub fn map_all(block: &StoredBlock) -> Tables {
    let (tables, malformed) = map_all_on(Network::Emulator, block);
    assert_eq!(malformed, []);
    tables
}

/// The rows and the faults of every mapper.
pub fn map_all_on(network: Network, block: &StoredBlock) -> (Tables, Vec<Malformed>) {
    let (mut tables, mut malformed) = (Tables::new(), Vec::new());
    for processor in flow_processors(&Settings { network: Some(network), ..Settings::default() }) {
        if let Processor::Mapper(mapper) = processor {
            let (made, errors) = map_on(network, mapper.service().name, block);
            tables.extend(made);
            malformed.extend(errors);
        }
    }
    (tables, malformed)
}

/// Folds blocks in chunks of so many.
pub fn folded(service: &str, blocks: &[StoredBlock], chunk: usize) -> Folded {
    let chain: Vec<_> =
        blocks.iter().map(|block| (block.clone(), map_all_on(Network::Emulator, block).0)).collect();
    let mut state = Folded::by(flow_catalog().unwrap(), processors());
    for blocks in chain.chunks(chunk) {
        state.fold(service, blocks);
    }
    state.hold_against_replays(service, &chain);
    state
}

/// The value of a column.
pub fn get<'a>(table: &'static str, row: &'a Row, column: &str) -> &'a Value {
    let catalog = flow_catalog().unwrap();
    &row.0[catalog.table(table).unwrap().column(column).unwrap()]
}

/// A column of every row, as text; text without its quotes.
pub fn column(table: &'static str, rows: &[Row], column: &str) -> Vec<String> {
    rows.iter()
        .map(|row| match get(table, row, column) {
            Value::Text(text) => text.clone(),
            Value::Bytes(bytes) => hex::encode(bytes),
            other => other.to_string(),
        })
        .collect()
}

/// The same, of the rows that a mapper made.
pub fn told(tables: &Tables, table: &'static str, of: &str) -> Vec<String> {
    column(table, tables.get(table).map_or(&[], Vec::as_slice), of)
}

// Events.

/// A fixed-point number of units of 10^-8.
pub fn fixed(units: u64) -> String {
    format!("{}.{:08}", units / 100_000_000, units % 100_000_000)
}

pub fn value(kind: &str, value: impl Into<Json>) -> Json {
    json!({"type": kind, "value": value.into()})
}

pub fn party(party: Option<u64>) -> Json {
    let address = |number: u64| value("Address", account(number).to_string());
    value("Optional", party.map_or(Json::Null, address))
}

pub fn byte_list(bytes: &[u8]) -> Json {
    let each: Vec<Json> = bytes.iter().map(|byte| value("UInt8", byte.to_string())).collect();
    value("Array", each)
}

pub fn event(name: &str, fields: &[(&str, Json)]) -> (String, String) {
    let fields: Vec<Json> =
        fields.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let payload = json!({"type": "Event", "value": {"id": name, "fields": fields}});
    (name.to_owned(), format!("{payload}\n"))
}

pub fn withdrawn(token: &str, units: u64, from: Option<u64>, of: u64, moved: u64) -> (String, String) {
    event(
        &format!("{FT}.Withdrawn"),
        &[
            ("type", value("String", format!("{token}.Vault"))),
            ("amount", value("UFix64", fixed(units))),
            ("from", party(from)),
            ("fromUUID", value("UInt64", of.to_string())),
            ("withdrawnUUID", value("UInt64", moved.to_string())),
            ("balanceAfter", value("UFix64", "0.00000000")),
        ],
    )
}

pub fn deposited(token: &str, units: u64, to: Option<u64>, of: u64, moved: u64) -> (String, String) {
    event(
        &format!("{FT}.Deposited"),
        &[
            ("type", value("String", format!("{token}.Vault"))),
            ("amount", value("UFix64", fixed(units))),
            ("to", party(to)),
            ("toUUID", value("UInt64", of.to_string())),
            ("depositedUUID", value("UInt64", moved.to_string())),
            ("balanceAfter", value("UFix64", "0.00000000")),
        ],
    )
}

pub fn burned(token: &str, units: u64, vault: u64) -> (String, String) {
    event(
        &format!("{FT}.Burned"),
        &[
            ("type", value("String", format!("{token}.Vault"))),
            ("amount", value("UFix64", fixed(units))),
            ("fromUUID", value("UInt64", vault.to_string())),
        ],
    )
}

/// An old form of an event of a token.
pub fn old(token: &str, name: &str, units: u64, of: Option<(&str, Option<u64>)>) -> (String, String) {
    let mut fields = vec![("amount", value("UFix64", fixed(units)))];
    fields.extend(of.map(|(name, number)| (name, party(number))));
    event(&format!("{token}.{name}"), &fields)
}

pub fn fee(units: u64) -> (String, String) {
    event(
        FEES,
        &[
            ("amount", value("UFix64", fixed(units))),
            ("inclusionEffort", value("UFix64", "1.00000000")),
            ("executionEffort", value("UFix64", "0.00000028")),
        ],
    )
}

/// What a transaction's fee looks like: taken from the payer, put into the vault of the fees, told.
pub fn fee_of(payer: u64, units: u64) -> Vec<(String, String)> {
    let vault = 900_000 + payer;
    vec![
        withdrawn(FLOW, units, Some(payer), payer, vault),
        deposited(FLOW, units, Some(0xe5a8_b7f2_3e8b_548f), 800_000, vault),
        fee(units),
    ]
}

pub fn item_withdrawn(collection: &str, id: u64, from: Option<u64>) -> (String, String) {
    item(collection, "Withdrawn", id, ("from", from))
}

pub fn item_deposited(collection: &str, id: u64, to: Option<u64>) -> (String, String) {
    item(collection, "Deposited", id, ("to", to))
}

/// The id of an item's resource.
pub fn uuid(collection: &str, id: u64) -> u64 {
    id + 1_000 + collection.len() as u64 * 1_000_000
}

fn item(collection: &str, name: &str, id: u64, of: (&str, Option<u64>)) -> (String, String) {
    event(
        &format!("{NFT}.{name}"),
        &[
            ("type", value("String", format!("{collection}.NFT"))),
            ("id", value("UInt64", id.to_string())),
            ("uuid", value("UInt64", uuid(collection, id).to_string())),
            (of.0, party(of.1)),
        ],
    )
}

/// As the chain says that an item was destroyed: in the name of the standard, and of the collection where it declares that.
pub fn item_destroyed(of: &str, collection: &str, id: u64) -> (String, String) {
    event(
        &format!("{of}.NFT.ResourceDestroyed"),
        &[
            ("id", value("UInt64", id.to_string())),
            ("uuid", value("UInt64", uuid(collection, id).to_string())),
        ],
    )
}

/// An event about an account.
pub fn about(name: &str, number: u64, fields: &[(&str, Json)]) -> (String, String) {
    let mut all = vec![("address", value("Address", account(number).to_string()))];
    all.extend(fields.iter().cloned());
    event(name, &all)
}

pub fn raw_enum(number: u8) -> Json {
    let field = json!({"name": "rawValue", "value": value("UInt8", number.to_string())});
    json!({"type": "Enum", "value": {"id": "E", "fields": [field]}})
}

/// A key that is added; the index is left out where events leave it out.
pub fn key_added(number: u64, key: &[u8], index: Option<u64>) -> (String, String) {
    let key = json!({"type": "Struct", "value": {"id": "PublicKey", "fields": [
        {"name": "publicKey", "value": byte_list(key)}, {"name": "signatureAlgorithm", "value": raw_enum(1)}]}});
    let mut fields = vec![("publicKey", key)];
    if let Some(index) = index {
        fields.extend([
            ("weight", value("UFix64", "1000.00000000")),
            ("hashAlgorithm", raw_enum(3)),
            ("keyIndex", value("Int", index.to_string())),
        ]);
    }
    about("flow.AccountKeyAdded", number, &fields)
}

pub fn key_revoked(number: u64, index: u64) -> (String, String) {
    about("flow.AccountKeyRemoved", number, &[("publicKey", value("Int", index.to_string()))])
}

/// As the oldest events say it: `RLP([key, algorithm, hash algorithm, weight])`, all of ECDSA_P256 and SHA3_256.
pub fn old_key_added(number: u64, key: &[u8], weight: u64) -> (String, String) {
    about("flow.AccountKeyAdded", number, &[("publicKey", byte_list(&rlp_key(key, &[2, 3, weight])))])
}

/// The key as it is stored, revoked.
pub fn old_key_revoked(number: u64, key: &[u8], weight: u64) -> (String, String) {
    about("flow.AccountKeyRemoved", number, &[("publicKey", byte_list(&rlp_key(key, &[2, 3, weight, 0, 1])))])
}

fn rlp_key(key: &[u8], numbers: &[u64]) -> Vec<u8> {
    let mut inner = Vec::new();
    Encodable::encode(key, &mut inner);
    numbers.iter().for_each(|number| Encodable::encode(number, &mut inner));
    let mut whole = Vec::new();
    alloy_rlp::Header { list: true, payload_length: inner.len() }.encode(&mut whole);
    whole.extend(inner);
    whole
}

/// A contract that is `Added`, `Updated` or `Removed`.
pub fn contract_set(change: &str, number: u64, name: &str, code_hash: [u8; 32]) -> (String, String) {
    let fields = [("codeHash", byte_list(&code_hash)), ("contract", value("String", name))];
    about(&format!("flow.AccountContract{change}"), number, &fields)
}

// EVM.

/// A direct call.
#[derive(Debug, Clone)]
pub struct Direct {
    pub sub_type: u8,
    pub from: Address,
    pub to: Address,
    pub input: Vec<u8>,
    pub value: U256,
    pub nonce: u64,
}

impl Direct {
    pub fn call(nonce: u64) -> Direct {
        Direct {
            sub_type: 5,
            from: Address::repeat_byte(0xaa),
            to: Address::repeat_byte(0xbb),
            input: vec![1, 2, 3, 4, 5],
            value: U256::from(6),
            nonce,
        }
    }

    pub fn payload(&self) -> Vec<u8> {
        self.payload_with(23_300)
    }

    pub fn payload_with(&self, gas_limit: u64) -> Vec<u8> {
        let mut inner = Vec::new();
        DIRECT_CALL.encode(&mut inner);
        self.sub_type.encode(&mut inner);
        self.from.encode(&mut inner);
        self.to.encode(&mut inner);
        self.input.as_slice().encode(&mut inner);
        self.value.encode(&mut inner);
        Encodable::encode(&gas_limit, &mut inner);
        Encodable::encode(&self.nonce, &mut inner);
        let mut payload = vec![DIRECT_CALL];
        Header { list: true, payload_length: inner.len() }.encode(&mut payload);
        payload.extend(inner);
        payload
    }

    pub fn hash(&self) -> B256 {
        decode_payload(&self.payload()).unwrap().hash
    }
}

/// `RLP([[address, [topic…], data]…])`.
pub fn evm_logs(logs: &[(Address, Vec<B256>, Vec<u8>)]) -> Vec<u8> {
    let list = |inner: &[u8]| {
        let mut out = Vec::new();
        Header { list: true, payload_length: inner.len() }.encode(&mut out);
        out.extend_from_slice(inner);
        out
    };
    if logs.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (address, topics, data) in logs {
        let mut inner_topics = Vec::new();
        topics.iter().for_each(|topic| topic.encode(&mut inner_topics));
        let mut one = Vec::new();
        address.encode(&mut one);
        one.extend(list(&inner_topics));
        data.as_slice().encode(&mut one);
        all.extend(list(&one));
    }
    list(&all)
}

/// An EVM transaction that was executed; 21,000 gas. `error` is 0 where it succeeded.
pub fn evm_executed(
    evm_height: u64,
    index: u16,
    call: &Direct,
    logs: &[(Address, Vec<B256>, Vec<u8>)],
    error: u16,
) -> (String, String) {
    event(
        &format!("{EVM}.TransactionExecuted"),
        &[
            ("hash", byte_list(call.hash().as_slice())),
            ("index", value("UInt16", index.to_string())),
            ("type", value("UInt8", "255")),
            ("payload", byte_list(&call.payload())),
            ("errorCode", value("UInt16", error.to_string())),
            ("errorMessage", value("String", if error == 0 { "" } else { "reverted" })),
            ("gasConsumed", value("UInt64", "21000")),
            ("contractAddress", value("String", "")),
            ("logs", byte_list(&evm_logs(logs))),
            ("blockHeight", value("UInt64", evm_height.to_string())),
            ("returnedData", byte_list(&[9])),
            ("precompiledCalls", byte_list(&[])),
        ],
    )
}

/// The id of an EVM block.
pub fn evm_hash(evm_height: u64) -> B256 {
    keccak256(format!("evm/{evm_height}"))
}

/// An EVM block that is closed with so many transactions, of whose hashes it has no root.
pub fn evm_closed(evm_height: u64, transactions: u64) -> (String, String) {
    event(&format!("{EVM}.BlockExecuted"), &evm_block(evm_height, transactions))
}

/// An EVM block that is closed with the transactions of these hashes.
pub fn evm_closed_over(evm_height: u64, hashes: &[B256]) -> (String, String) {
    let mut fields = evm_block(evm_height, hashes.len() as u64);
    fields.push(("transactionHashRoot", byte_list(transaction_hash_root(hashes).as_slice())));
    event(&format!("{EVM}.BlockExecuted"), &fields)
}

fn evm_block(evm_height: u64, transactions: u64) -> Vec<(&'static str, Json)> {
    vec![
        ("height", value("UInt64", evm_height.to_string())),
        ("hash", byte_list(evm_hash(evm_height).as_slice())),
        ("timestamp", value("UInt64", "1770000000")),
        ("totalSupply", value("Int", "0")),
        ("totalGasUsed", value("UInt64", (21_000 * transactions).to_string())),
        ("parentHash", byte_list(evm_hash(evm_height - 1).as_slice())),
        ("receiptRoot", byte_list(&[0; 32])),
    ]
}

/// A recorded file; `None`, with a word on where to get it, where it isn't on this machine (a failure in CI).
pub fn fixture(name: &str) -> Option<Json> {
    let shared =
        std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), std::path::PathBuf::from);
    let file = shared.join("fixtures/flow").join(name);
    let Ok(text) = std::fs::read(&file) else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", file.display());
        println!("not run: {} is not there; see CONTRIBUTING.md on CAIRN_SHARED", file.display());
        return None;
    };
    Some(serde_json::from_slice(&text).unwrap())
}
