//! Tables of blocks as they are: ids, links, times, transactions, events, collections and scripts, against what the node answers block by block.
//!
//! On PostgreSQL they are rows. On SQLite a block's parts are packed, and ids alone stand beside them.

use std::collections::BTreeMap;

use alloy_primitives::hex;
use anyhow::{Context, Result};
use bytes::Bytes;
use cairn_flow::{FlowAddress, Network};
use cairn_flow_node::client::event_bytes;
use cairn_store::derived::{Column, ColumnType, TableClass, TableDef, column};
use sha2::{Digest, Sha256};

use super::blocks::{Block, Blocks, Tx};
use super::payload::{Fields, parts};
use crate::flow_truth::rows::{Cell, Expected, Tables, bytes, number, text};
use crate::flow_truth::{Database, alteration_is_seen};

/// What the tables are held against.
pub struct RawTruth<'b> {
    pub blocks: &'b Blocks,
    /// Whether blocks were taken back, whose scripts are kept.
    pub is_forked: bool,
}

/// A table with what it has to hold.
pub struct RawComparison {
    pub table: &'static TableDef,
    expect: fn(&RawTruth<'_>, &Tables) -> Result<Expected>,
}

/// A table as SQL finds it; neither service nor class mean anything here.
const fn of_blocks(name: &'static str, columns: &'static [Column], key: &'static [&'static str]) -> TableDef {
    TableDef { name, service: "", class: TableClass::Content, columns, key, indexes: &[] }
}

static BLOCKS: TableDef = of_blocks(
    "blocks",
    &[
        column("height", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("parent_id", ColumnType::Bytes),
        column("timestamp_ms", ColumnType::Int),
        column("tx_count", ColumnType::Int),
        column("event_count", ColumnType::Int),
    ],
    &["height"],
);

static TRANSACTIONS: TableDef = of_blocks(
    "transactions",
    &[
        column("block_height", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("event_count", ColumnType::Int),
        column("status", ColumnType::Int),
        column("sender", ColumnType::Bytes),
        column("script_hash", ColumnType::Bytes),
        column("arguments", ColumnType::Text),
        column("proposer", ColumnType::Bytes),
        column("payer", ColumnType::Bytes),
        column("authorizers", ColumnType::Text),
        column("error", ColumnType::Text).nullable(),
        column("computation", ColumnType::Int),
    ],
    &["block_height", "id", "transaction_index"],
);

static EVENTS: TableDef = of_blocks(
    "events",
    &[
        column("block_height", ColumnType::Int),
        column("event_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("payload", ColumnType::Bytes),
    ],
    &["block_height", "transaction_id", "event_index"],
);

static COLLECTIONS: TableDef = of_blocks(
    "collections",
    &[
        column("block_height", ColumnType::Int),
        column("collection_index", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("transaction_count", ColumnType::Int),
    ],
    &["block_height", "id", "collection_index"],
);

static EXECUTION_RESULTS: TableDef = of_blocks(
    "execution_results",
    &[
        column("block_height", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("block_id", ColumnType::Bytes),
    ],
    &["block_height", "id"],
);

static TX_LOOKUP: TableDef = of_blocks(
    "tx_lookup",
    &[
        column("block_height", ColumnType::Int),
        column("tx_index", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("block_id", ColumnType::Bytes),
        column("timestamp_ms", ColumnType::Int),
    ],
    &["id", "block_height", "tx_index"],
);

static BLOCK_LOOKUP: TableDef = of_blocks(
    "block_lookup",
    &[
        column("height", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("timestamp_ms", ColumnType::Int),
    ],
    &["id"],
);

static EVM_LOOKUP: TableDef = of_blocks(
    "evm_lookup",
    &[
        column("height", ColumnType::Int),
        column("evm_index", ColumnType::Int),
        column("evm_hash", ColumnType::Bytes),
        column("tx_id", ColumnType::Bytes),
    ],
    &["evm_hash", "height", "evm_index"],
);

static SCRIPTS: TableDef = of_blocks(
    "scripts",
    &[column("script_hash", ColumnType::Bytes), column("script_text", ColumnType::Text)],
    &["script_hash"],
);

static SQLITE_BLOCKS: TableDef = of_blocks(
    "blocks",
    &[
        column("height", ColumnType::Int),
        column("id", ColumnType::Bytes),
        column("parent_id", ColumnType::Bytes),
        column("timestamp_ms", ColumnType::Int),
        column("tx_count", ColumnType::Int),
        column("log_count", ColumnType::Int),
    ],
    &["height"],
);

static SQLITE_TRANSACTIONS: TableDef = of_blocks(
    "transactions",
    &[column("height", ColumnType::Int), column("ids", ColumnType::Bytes)],
    &["height"],
);

static POSTGRES: &[RawComparison] = &[
    RawComparison { table: &BLOCKS, expect: |truth, _| blocks(truth, &BLOCKS) },
    RawComparison { table: &TRANSACTIONS, expect: transactions },
    RawComparison { table: &EVENTS, expect: events },
    RawComparison { table: &COLLECTIONS, expect: collections },
    // The emulator has none.
    RawComparison { table: &EXECUTION_RESULTS, expect: |_, _| Expected::of(&EXECUTION_RESULTS) },
    RawComparison { table: &TX_LOOKUP, expect: tx_lookup },
    RawComparison { table: &BLOCK_LOOKUP, expect: block_lookup },
    RawComparison { table: &EVM_LOOKUP, expect: evm_lookup },
    RawComparison { table: &SCRIPTS, expect: scripts },
];

static SQLITE: &[RawComparison] = &[
    RawComparison { table: &SQLITE_BLOCKS, expect: |truth, _| blocks(truth, &SQLITE_BLOCKS) },
    RawComparison { table: &SQLITE_TRANSACTIONS, expect: ids },
];

/// The tables of a database that are compared.
pub fn comparisons(database: &Database) -> &'static [RawComparison] {
    match database {
        Database::Sqlite(_) => SQLITE,
        Database::Postgres(..) => POSTGRES,
    }
}

/// All of them as they stand.
pub async fn read(database: &Database) -> Result<Tables> {
    database.read_all(comparisons(database).iter().map(|one| one.table)).await
}

/// Alters a row of each, and fails where that isn't seen. How many tables it were.
pub async fn every_alteration_is_seen(
    database: &Database,
    truth: &RawTruth<'_>,
    tables: &mut Tables,
) -> Result<usize> {
    let comparisons = comparisons(database);
    for one in comparisons {
        alteration_is_seen(database, one.table, tables, |tables| one.compare(truth, tables)).await?;
    }
    Ok(comparisons.len())
}

impl RawComparison {
    /// How many rows were compared; fails with the first difference.
    pub fn compare(&self, truth: &RawTruth<'_>, found: &Tables) -> Result<usize> {
        (self.expect)(truth, found)?.same(found.rows(self.table)?)
    }
}

/// Transactions with their places.
fn all<'b>(truth: &RawTruth<'b>) -> impl Iterator<Item = (&'b Block, usize, &'b Tx)> + use<'b> {
    let blocks: &'b Blocks = truth.blocks;
    blocks.iter().flat_map(|block| block.transactions.iter().enumerate().map(move |(at, tx)| (block, at, tx)))
}

fn blocks(truth: &RawTruth<'_>, table: &'static TableDef) -> Result<Expected> {
    let mut expected = Expected::of(table)?;
    for block in truth.blocks.iter() {
        let events: usize = block.transactions.iter().map(|tx| tx.result.events.len()).sum();
        let mut row = vec![number(block.height), bytes(&block.id), bytes(&block.parent_id)];
        row.extend([number(block.time_ms), number(block.transactions.len()), number(events)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// A list of bytes as PostgreSQL writes it.
fn array(list: &[Bytes]) -> Cell {
    let items: Vec<String> = list.iter().map(|bytes| format!("\"\\\\x{}\"", hex::encode(bytes))).collect();
    text(format!("{{{}}}", items.join(",")))
}

fn transactions(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&TRANSACTIONS)?;
    for (block, at, Tx { id, transaction, result, .. }) in all(truth) {
        let sender = FlowAddress::from_slice(&transaction.payer).context("a payer of more than 8 bytes")?;
        let proposer = transaction.proposal_key.as_ref().map(|key| key.address.clone()).unwrap_or_default();
        let error = Some(&result.error_message).filter(|error| !error.is_empty());
        let mut row = vec![number(block.height), number(at), bytes(id), number(result.events.len())];
        row.extend([number(u8::from(result.status_code == 0)), bytes(sender.0)]);
        row.extend([bytes(Sha256::digest(&transaction.script)), array(&transaction.arguments)]);
        row.extend([bytes(proposer), bytes(&transaction.payer), array(&transaction.authorizers)]);
        row.extend([error.and_then(text), number(result.computation_usage)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// Events go by the index that the node gives them, within their transaction.
fn events(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&EVENTS)?;
    for (block, at, tx) in all(truth) {
        for event in &tx.result.events {
            let mut row = vec![number(block.height), number(event.event_index)];
            row.extend([number(at), bytes(&tx.id)]);
            row.push(bytes(event_bytes(event)));
            expected.add(row)?;
        }
    }
    Ok(expected)
}

fn collections(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&COLLECTIONS)?;
    for block in truth.blocks.iter() {
        for (at, (id, count)) in block.collections.iter().enumerate() {
            expected.add(vec![number(block.height), number(at), bytes(id), number(count)])?;
        }
    }
    Ok(expected)
}

fn tx_lookup(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&TX_LOOKUP)?;
    for (block, at, tx) in all(truth) {
        let mut row = vec![number(block.height), number(at), bytes(&tx.id), bytes(&block.id)];
        row.push(number(block.time_ms));
        expected.add(row)?;
    }
    Ok(expected)
}

fn block_lookup(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&BLOCK_LOOKUP)?;
    for block in truth.blocks.iter() {
        expected.add(vec![number(block.height), bytes(&block.id), number(block.time_ms)])?;
    }
    Ok(expected)
}

/// The EVM transactions of a Flow block, counted over it.
fn evm_lookup(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let service = Network::Emulator.accounts().service;
    let mut expected = Expected::of(&EVM_LOOKUP)?;
    let mut next: BTreeMap<u64, usize> = BTreeMap::new();
    for (block, _, tx) in all(truth) {
        for event in &tx.result.events {
            if parts(&event.r#type) == Some((service, "EVM", "TransactionExecuted")) {
                let next = next.entry(block.height).or_default();
                let hash = Fields::of(&event.payload)?.hash("hash")?;
                expected.add(vec![number(block.height), number(*next), bytes(hash), bytes(&tx.id)])?;
                *next += 1;
            }
        }
    }
    Ok(expected)
}

/// Scripts are kept whatever is taken back: then there may be others, and each is what its hash says.
fn scripts(truth: &RawTruth<'_>, found: &Tables) -> Result<Expected> {
    let mut wanted: BTreeMap<Cell, Cell> = BTreeMap::new();
    for (_, _, tx) in all(truth) {
        let script = std::str::from_utf8(&tx.transaction.script)?;
        wanted.insert(bytes(Sha256::digest(script)), text(script));
    }
    for row in found.rows(&SCRIPTS)?.iter().filter(|_| truth.is_forked) {
        let script = row.said("script_text")?;
        wanted.insert(bytes(Sha256::digest(&script)), text(script));
    }
    let mut expected = Expected::of(&SCRIPTS)?;
    wanted.into_iter().try_for_each(|(hash, script)| expected.add(vec![hash, script]))?;
    Ok(expected)
}

/// The ids of each block's transactions, one behind the other.
fn ids(truth: &RawTruth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&SQLITE_TRANSACTIONS)?;
    for block in truth.blocks.iter().filter(|block| !block.transactions.is_empty()) {
        let ids: Vec<&[u8]> = block.transactions.iter().map(|tx| &tx.id[..]).collect();
        expected.add(vec![number(block.height), bytes(ids.concat())])?;
    }
    Ok(expected)
}
