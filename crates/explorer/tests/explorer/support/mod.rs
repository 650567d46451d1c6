//! Made-up blocks, and mappers and folders run over them as the pipeline runs them.
pub mod flow;
pub mod recorded;
pub mod world;

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, U256, hex, keccak256};
use cairn_core::{Height, HeightRange, StoredBlock};
use cairn_evm::{ChainProfile, from_rpc};
use cairn_explorer::processors::{Settings, evm_catalog, evm_processors};
use cairn_pipeline::derive::processor::{Malformed, Output, Processor};
use cairn_pipeline::derive::replay::{Replay, Slice};
use cairn_pipeline::derive::state::{ChunkInput, ChunkState, Found, Lookup};
use cairn_store::derived::{Catalog, Key, Row, TableDef, Value};
use serde_json::{Value as Json, json};

/// A log of a made-up transaction.
#[derive(Debug, Clone)]
pub struct Log {
    pub address: Address,
    pub topics: Vec<B256>,
    pub data: Vec<u8>,
}

/// A made-up transaction, of a type that nobody knows, so that nothing has to be signed.
#[derive(Debug, Clone)]
pub struct Tx {
    pub from: Address,
    /// `None` creates a contract.
    pub to: Option<Address>,
    /// `None`: the chain doesn't say.
    pub status: Option<bool>,
    pub input: Vec<u8>,
    pub value: U256,
    pub nonce: u64,
    pub gas_price: Option<u128>,
    pub contract: Option<Address>,
    pub logs: Vec<Log>,
}

impl Default for Tx {
    fn default() -> Tx {
        Tx {
            from: Address::repeat_byte(0xf0),
            to: Some(Address::repeat_byte(0xf1)),
            status: Some(true),
            input: Vec::new(),
            value: U256::ZERO,
            nonce: 0,
            gas_price: Some(7),
            contract: None,
            logs: Vec::new(),
        }
    }
}

/// A transaction with these logs.
pub fn with_logs(logs: Vec<Log>) -> Tx {
    Tx { logs, ..Tx::default() }
}

pub fn tx_hash(height: u64, index: usize) -> B256 {
    keccak256(format!("{height}/{index}"))
}

/// A block of these transactions as it is read back from a store. Each used 21,000 gas.
pub fn block(height: u64, timestamp_s: u64, txs: &[Tx]) -> StoredBlock {
    let zeros = |bytes: usize| format!("0x{}", "00".repeat(bytes));
    let mut transactions = Vec::new();
    let mut receipts = Vec::new();
    let mut log_index = 0;
    for (index, tx) in txs.iter().enumerate() {
        let place = |object: &mut Json| {
            object["transactionHash"] = tx_hash(height, index).to_string().into();
            object["transactionIndex"] = format!("{index:#x}").into();
        };
        let mut json = json!({
            "hash": tx_hash(height, index).to_string(), "transactionIndex": format!("{index:#x}"), "type": "0x6b",
            "from": tx.from.to_string(), "to": tx.to.map(|to| to.to_string()), "nonce": format!("{:#x}", tx.nonce),
            "gas": "0x5208", "value": format!("{:#x}", tx.value), "input": hex::encode_prefixed(&tx.input),
        });
        if let Some(price) = tx.gas_price {
            json["gasPrice"] = format!("{price:#x}").into();
        }
        transactions.push(json);
        let mut logs = Vec::new();
        for log in &tx.logs {
            let mut json = json!({
                "address": log.address.to_string(), "data": hex::encode_prefixed(&log.data),
                "topics": log.topics.iter().map(B256::to_string).collect::<Vec<_>>(),
                "logIndex": format!("{log_index:#x}"),
            });
            place(&mut json);
            logs.push(json);
            log_index += 1;
        }
        let mut receipt = json!({
            "from": tx.from.to_string(), "cumulativeGasUsed": format!("{:#x}", 21_000 * (index + 1)), "logs": logs,
            "gasUsed": "0x5208", "contractAddress": tx.contract.map(|address| address.to_string()),
        });
        if let Some(ok) = tx.status {
            receipt["status"] = if ok { "0x1" } else { "0x0" }.into();
        }
        place(&mut receipt);
        receipts.push(receipt);
    }
    let id = |height: u64| keccak256(height.to_be_bytes()).to_string();
    let json = json!({
        "number": format!("{height:#x}"), "hash": id(height), "parentHash": id(height.wrapping_sub(1)), "sha3Uncles": zeros(32),
        "miner": zeros(20), "stateRoot": zeros(32), "transactionsRoot": zeros(32), "receiptsRoot": zeros(32),
        "logsBloom": zeros(256), "difficulty": "0x1", "gasLimit": "0x1c9c380", "gasUsed": "0x5208",
        "timestamp": format!("{timestamp_s:#x}"), "extraData": "0x", "mixHash": zeros(32), "nonce": zeros(8), "uncles": [],
        "transactions": transactions,
    });
    let names = "header-hash,transactions-root,receipts-root,senders,bloom,ommers-hash";
    let profile = ChainProfile::relaxing(ChainProfile::parse_relaxations(names).unwrap());
    let raw = from_rpc(json, receipts, &profile).unwrap();
    StoredBlock {
        facts: raw.facts,
        transactions: raw.transactions,
        header: raw.header,
        body: raw.body,
        receipts: raw.receipts,
        extras: raw.extras,
        traces: raw.traces,
    }
}

pub type Tables = BTreeMap<&'static str, Vec<Row>>;

fn processor(all: &[Processor], name: &str) -> Processor {
    all.iter().find(|processor| processor.service().name == name).unwrap().clone()
}

/// What a mapper makes of a block: its rows by key, each checked, no key twice, and in no table but its own.
pub fn map(settings: &Settings, name: &str, block: &StoredBlock) -> (Tables, Vec<Malformed>) {
    map_by(&evm_processors(settings), &evm_catalog().unwrap(), name, block)
}

/// The same, of any chain.
pub fn map_by(
    all: &[Processor],
    catalog: &Catalog,
    name: &str,
    block: &StoredBlock,
) -> (Tables, Vec<Malformed>) {
    let Processor::Mapper(mapper) = processor(all, name) else { panic!("{name} is no mapper") };
    let read = only_parts(block, mapper.parts());
    let mut out = Output::default();
    mapper.map(&read, &mut out).unwrap();
    let (mut tables, malformed) = out.into_parts();
    for (table, rows) in &mut tables {
        let table = catalog.table(table).unwrap();
        assert_eq!(table.def().service, name);
        rows.iter().for_each(|row| table.check(row).unwrap());
        rows.sort_by_key(|row| table.key_of(row));
        let keys: BTreeSet<Key> = rows.iter().map(|row| table.key_of(row)).collect();
        assert_eq!(keys.len(), rows.len(), "{}", table.name());
    }
    (tables, malformed)
}

/// A block without the parts that were not asked for.
fn only_parts(block: &StoredBlock, parts: cairn_core::Parts) -> StoredBlock {
    use cairn_core::Parts;
    let mut block = block.clone();
    if !parts.contains(Parts::HEADER) {
        block.header.clear();
    }
    if !parts.contains(Parts::TRANSACTIONS) {
        block.transactions.clear();
    }
    if !parts.contains(Parts::BODY) {
        block.body.clear();
    }
    if !parts.contains(Parts::RECEIPTS) {
        block.receipts.clear();
    }
    if !parts.contains(Parts::EXTRAS) {
        block.extras.clear();
    }
    if !parts.contains(Parts::TRACES) {
        block.traces = None;
    }
    block
}

/// The rows of every mapper for a block.
pub fn map_all(settings: &Settings, block: &StoredBlock) -> Tables {
    let mut tables = Tables::new();
    for processor in evm_processors(settings) {
        if let Processor::Mapper(mapper) = processor {
            tables.extend(map(settings, mapper.service().name, block).0);
        }
    }
    tables
}

/// The value of a column.
pub fn get<'a>(table: &'static str, row: &'a Row, column: &str) -> &'a Value {
    let catalog = evm_catalog().unwrap();
    &row.0[catalog.table(table).unwrap().column(column).unwrap()]
}

/// A column of every row, as text.
pub fn column(table: &'static str, rows: &[Row], column: &str) -> Vec<String> {
    rows.iter().map(|row| get(table, row, column).to_string()).collect()
}

/// State as a folder leaves it.
pub struct Folded {
    catalog: Catalog,
    processors: Vec<Processor>,
    pub rows: BTreeMap<(&'static str, Key), Row>,
    pub errors: Vec<Malformed>,
    events: BTreeMap<&'static str, Vec<Row>>,
}

impl Folded {
    pub fn new() -> Folded {
        Folded::by(evm_catalog().unwrap(), evm_processors(&Settings::default()))
    }

    pub fn by(catalog: Catalog, processors: Vec<Processor>) -> Folded {
        Folded { catalog, processors, rows: BTreeMap::new(), errors: Vec::new(), events: BTreeMap::new() }
    }

    /// All rows of a table, by key.
    pub fn table(&self, name: &str) -> Vec<Row> {
        self.rows.iter().filter(|((table, _), _)| *table == name).map(|(_, row)| row.clone()).collect()
    }

    /// Folds a chunk of blocks as the pipeline does, with these rows in place of a store.
    pub fn fold(&mut self, name: &str, blocks: &[(StoredBlock, Tables)]) {
        let Processor::Folder(folder) = processor(&self.processors, name) else { panic!("{name}") };
        let of_chunk: Vec<Vec<Row>> = folder
            .reads()
            .iter()
            .map(|def| {
                blocks.iter().filter_map(|(_, tables)| tables.get(def.name)).flatten().cloned().collect()
            })
            .collect();
        for (def, rows) in folder.reads().iter().zip(&of_chunk) {
            self.events.entry(def.name).or_default().extend(rows.iter().cloned());
        }
        let stored = blocks.iter().map(|(block, _)| block.clone()).collect();
        let input = ChunkInput::fold(&*folder, stored, of_chunk).unwrap();
        let mut state = ChunkState::new(&*folder, &self.catalog, Height(0)).unwrap();
        let mut missing = state.touched_by(&input).unwrap();
        let (state, errors) = loop {
            for (table, key) in missing.places {
                let row = self.rows.get(&(table, key.clone())).cloned();
                state.give(table, key, row);
            }
            for lookup in missing.lookups {
                let found = self.look(&lookup);
                state.give_found(lookup, found);
            }
            let mut worked = state.clone();
            let (errors, more) = worked.run(&*folder, &input).unwrap();
            if more.is_empty() {
                break (worked, errors);
            }
            missing = more;
        };
        self.errors.extend(errors.into_iter().map(|(_, what)| what));
        for rows in state.into_rows() {
            let table = self.catalog.table(rows.table).unwrap().clone();
            assert_eq!(table.def().service, name);
            for changed in rows.rows {
                self.rows.insert((table.name(), table.key_of(&changed.row)), changed.row);
            }
        }
    }

    fn look(&self, lookup: &Lookup) -> Found {
        let columns = self.catalog.table(lookup.table).unwrap().index_columns(lookup.index).unwrap();
        let state = self.rows.iter().filter(|((name, _), _)| *name == lookup.table).map(|(_, row)| row);
        let all = state.chain(self.events.get(lookup.table).into_iter().flatten());
        let fits = |row: &&Row| columns.iter().zip(&lookup.prefix).all(|(&at, value)| row.0[at] == *value);
        let mut rows: Vec<Row> = all.filter(fits).cloned().collect();
        rows.sort_by_cached_key(|row| columns.iter().map(|&at| row.0[at].clone()).collect::<Vec<_>>());
        let is_whole = rows.len() <= lookup.limit;
        rows.truncate(lookup.limit);
        Found { rows, is_whole }
    }

    /// Demands that the state of `name` is what a replay of the chain makes of it, at once and in slices: that groups can be folded alone.
    pub fn hold_against_replays(&self, name: &str, chain: &[(StoredBlock, Tables)]) {
        let Processor::Folder(folder) = processor(&self.processors, name) else { panic!("{name}") };
        let Some(first) = chain.first().map(|(block, _)| block.facts.height) else { return };
        for max_bytes in [usize::MAX, 6_000] {
            let (mut slices, mut compared, mut too_large) = (vec![Slice::ALL], 0, BTreeSet::new());
            while let Some(slice) = slices.pop() {
                let mut replay =
                    Replay::new(folder.clone(), &self.catalog, slice, 5, first, max_bytes).unwrap();
                for (block, tables) in chain {
                    let heights = HeightRange::new(replay.next(), block.facts.height.next());
                    let rows = |table: &&TableDef| tables.get(table.name).cloned().unwrap_or_default();
                    let events = folder.reads().iter().map(rows).collect();
                    let input = ChunkInput::fold(&*folder, vec![block.clone()], events).unwrap();
                    let mut found = BTreeMap::new();
                    loop {
                        let wanted = replay.fold(heights, &input, &found, Height::ZERO).unwrap();
                        if wanted.is_empty() {
                            break;
                        }
                        found.extend(wanted.into_iter().map(|lookup| (lookup.clone(), self.look(&lookup))));
                    }
                }
                for table in folder.service().tables {
                    let stored = self.table(table.name);
                    let (some, differences) = replay.differences(table.name, None, None, &stored).unwrap();
                    assert_eq!(differences, [], "{} of {slice:?}", table.name);
                    compared += some as usize;
                }
                too_large.extend(replay.too_large().map(<[Value]>::to_vec));
                slices.extend(replay.left_out());
            }
            let left = self.rows.keys().filter(|(table, key)| too_large.contains(folder.group(table, key)));
            assert_eq!(compared + left.count(), self.rows.len());
            assert!(max_bytes < usize::MAX || too_large.is_empty());
        }
    }
}

/// The public test suite's blocks 1 to 54.
pub fn suite_chain(folder: &std::path::Path) -> Vec<StoredBlock> {
    use std::io::Read;
    let chain: bytes::Bytes = std::fs::read(folder.join("chain.rlp")).unwrap().into();
    let mut json = String::new();
    let file = std::fs::File::open(folder.join("receipts.json.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut json).unwrap();
    let receipts: Json = serde_json::from_str(&json).unwrap();
    let unhex = |text: &Json| bytes::Bytes::from(hex::decode(text.as_str().unwrap()).unwrap());
    let mut blocks = Vec::new();
    let mut rest = &chain[..];
    while !rest.is_empty() {
        let start = rest;
        let head = alloy_rlp::Header::decode(&mut rest).unwrap();
        rest = &rest[head.payload_length..];
        let block = chain.slice_ref(&start[..start.len() - rest.len()]);
        let number = blocks.len() as u64 + 1;
        let of_block = receipts.as_array().unwrap().iter().find(|entry| match &entry["number"] {
            Json::Number(n) => n.as_u64() == Some(number),
            Json::String(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16) == Ok(number),
            _ => false,
        });
        let receipts = of_block.unwrap()["receipts"].as_array().unwrap().iter().map(unhex).collect();
        let block = cairn_evm::ConsensusBlock::from_block_rlp(&block, receipts).unwrap();
        let raw = cairn_evm::from_consensus(&block).unwrap();
        blocks.push(raw.into());
    }
    blocks
}
