//! A Flow transaction: script, arguments, who proposes, pays and authorises, how it ended; and its events.

use std::borrow::Cow;

use bytes::Bytes;
use cairn_core::{BlockFacts, BlockLayout, Height, HeightRange, Parts, StoredBlock, TxId};
use cairn_flow::terms::evm_term;
use cairn_flow::{
    CdcValue, DecodedBlock, DecodedEvent, DecodedTx, EventType, FlowAddress, FlowLayout, Network,
};
use cairn_store::{LogQuery, TxPlace};
use serde::Serialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

use super::block::hash;
use super::evm::{self, FlowEvmTransaction, executions};
use crate::rest::answer::BlockStamp;
use crate::rest::problem::Problem;
use crate::rest::transactions::{Transaction, TransactionRow, TransactionStatus};
use crate::rest::view::View;
use crate::rest::words::{Address, Data, Hash, Num, rfc3339};

/// Larger blocks are decoded off the async threads, in bytes.
const INLINE_BYTES: usize = 64 << 10;
/// Blocks that are looked at for one EVM hash, at most: the term of a hash is eight bytes, and others may share it.
const MAX_CANDIDATES: usize = 16;

/// What a Flow transaction says beside.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowTransaction {
    /// Whether the chain itself made it.
    pub is_system: bool,
    /// Where else its id stands: that of a transaction that the chain itself made, and of a user's that was included more than once. Else null.
    pub repeats: Option<Repeats>,
    /// Cadence. Bytes that are no text are replaced.
    pub script: String,
    /// Its arguments without their types: numbers as strings, addresses as 16 hex digits. One that can't be read is given as it came.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub arguments: Vec<Json>,
    /// The block that it expires after; null where it names none.
    pub reference_block_id: Option<Hash>,
    /// Null where nobody proposes it.
    pub proposer: Option<Proposer>,
    /// Null where nobody pays.
    pub payer: Option<Address>,
    pub authorizers: Vec<Address>,
    /// Null where it is in none: the chain itself made it.
    pub collection_id: Option<Hash>,
    /// 0: it succeeded.
    pub status_code: u32,
    /// The node's words; null where it succeeded.
    pub error_message: Option<String>,
    pub computation_limit: Num,
    pub computation_used: Num,
    /// The hashes of the EVM transactions in it, in their order.
    pub evm_transactions: Vec<Hash>,
    /// The same with what they say.
    pub evm: Vec<FlowEvmTransaction>,
}

/// Whose sequence number a transaction uses up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Proposer {
    pub address: Address,
    pub key_index: u32,
    pub sequence_number: Num,
}

/// That a transaction's id stands at more than one place.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Repeats {
    /// The first height whose block has it.
    pub first_height: Num,
    /// Whether the newest block has it. Without `height` this answer is then of that block, else of the first one; with it, of the block at that height.
    pub is_in_newest_block: bool,
    /// Its places, from the first one on; at most 50.
    pub places: Vec<IdPlace>,
    /// Whether there are more of them.
    pub has_more_places: bool,
    /// What this id is.
    pub note: String,
}

/// One place of an id.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct IdPlace {
    pub block_height: Num,
    pub transaction_index: u32,
}

/// The most places of an id that an answer names.
const MAX_PLACES: usize = 50;
const NOTE: &str = "the chain itself makes this transaction, with the same id in every block in which it runs: give `height` for that of another block";
const INCLUDED_AGAIN: &str = "this transaction was included more than once, and each time has a result of its own: give `height`, and `index` within one block, for another one";

/// An event of Cadence.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CadenceEvent {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Its place in its transaction.
    pub event_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    /// Its type's whole name.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The contract that defines it, as paths take it; null for the chain's own events.
    pub contract: Option<String>,
    /// Its name in the contract.
    pub name: String,
    /// Its fields without their types: numbers as strings, addresses as 16 hex digits. Null where they can't be read.
    #[schema(value_type = Option<serde_json::Value>)]
    pub fields: Option<Json>,
    /// Why they can't be read; else null.
    pub problem: Option<String>,
}

/// A transaction with its place.
pub(crate) struct FlowTx {
    pub index: u32,
    pub tx: DecodedTx,
}

/// The parts that a transaction is read from.
pub(crate) const PARTS: Parts =
    Parts::TRANSACTIONS.union(Parts::HEADER).union(Parts::BODY).union(Parts::RECEIPTS);

fn given(bytes: &Bytes) -> Option<Address> {
    let address = FlowAddress::from_slice(bytes)?;
    (address != FlowAddress::ZERO).then(|| Address::of(&address.0))
}

/// A block, decoded where it doesn't hold others up.
pub(crate) async fn decode(stored: StoredBlock) -> Result<(StoredBlock, DecodedBlock), Problem> {
    let bytes = stored.body.len() + stored.receipts.len();
    let task = move || Ok((DecodedBlock::decode(&stored)?, stored));
    let done: Result<_, Problem> = match bytes < INLINE_BYTES {
        true => task(),
        false => tokio::task::spawn_blocking(task).await.map_err(Problem::internal)?,
    };
    done.map(|(decoded, stored)| (stored, decoded))
}

/// One transaction of a stored block.
pub(crate) async fn read(stored: StoredBlock, index: u32) -> Result<(StoredBlock, FlowTx), Problem> {
    let (stored, mut block) = decode(stored).await?;
    let at = index as usize;
    if at >= block.transactions.len() {
        return Err(Problem::internal(format!("block {} has no transaction {at}", stored.facts.height)));
    }
    Ok((stored, FlowTx { index, tx: block.transactions.swap_remove(at) }))
}

/// The Flow transaction that an EVM transaction is in, and its place: by the store's lookup of such hashes, where it has one. What that names is
/// read and believed only where the EVM transaction is there.
pub(crate) async fn look_up_evm(
    view: &View,
    network: Network,
    evm_hash: TxId,
    range: HeightRange,
) -> Result<Option<(TxPlace, TxId)>, Problem> {
    for place in view.chain().find_evm(evm_hash.0, range).await?.unwrap_or_default() {
        if let Some(found) = evm_in_block(view, network, evm_hash, place.height).await? {
            return Ok(Some(found));
        }
        tracing::warn!(height = %place.height, %evm_hash, "a lookup names a block without this EVM transaction; cairn repair removes it");
    }
    Ok(None)
}

/// The same by the log terms of blocks: where a store has no such lookup, or lost one.
pub(crate) async fn search_evm(
    view: &View,
    network: Network,
    evm_hash: TxId,
    range: HeightRange,
) -> Result<Option<(TxPlace, TxId)>, Problem> {
    let query = LogQuery { groups: vec![vec![evm_term(&evm_hash.0)]] };
    for height in view.chain().log_candidates(range, &query, MAX_CANDIDATES).await? {
        if let Some(found) = evm_in_block(view, network, evm_hash, height).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn evm_in_block(
    view: &View,
    network: Network,
    evm_hash: TxId,
    height: Height,
) -> Result<Option<(TxPlace, TxId)>, Problem> {
    let Some(stored) = view.chain().block(height, PARTS).await? else { return Ok(None) };
    let (_, block) = decode(stored).await?;
    let has = |tx: &DecodedTx| executions(network, tx).any(|(_, hash)| hash.0 == evm_hash.0);
    let found = (0u32..).zip(&block.transactions).find(|(_, tx)| has(tx));
    Ok(found.map(|(index, tx)| (TxPlace { height, index }, tx.id)))
}

/// The place of an id that stands in more than one block: the newest block's, where that has it.
pub(crate) async fn newest(view: &View, id: TxId, first: TxPlace) -> Result<TxPlace, Problem> {
    let Some(tip) = view.head().tip.filter(|tip| tip.height > first.height) else { return Ok(first) };
    Ok(in_block(view, id, tip.height, None).await?.unwrap_or(first))
}

/// The place of an id in one block: the one with this index, else the first.
pub(crate) async fn in_block(
    view: &View,
    id: TxId,
    height: Height,
    index: Option<u32>,
) -> Result<Option<TxPlace>, Problem> {
    let Some(stored) = view.chain().block(height, Parts::TRANSACTIONS).await? else { return Ok(None) };
    let mut places = (0u32..).zip(&stored.transactions).filter(|(_, tx)| tx.id == id);
    let found = places.find(|(at, _)| index.is_none_or(|index| index == *at));
    Ok(found.map(|(index, _)| TxPlace { height, index }))
}

impl Repeats {
    /// Of a transaction that is answered as the block at `height` has it; `None`: its id stands there alone.
    pub(crate) async fn of(
        view: &View,
        id: TxId,
        height: Height,
        is_system: bool,
    ) -> Result<Option<Repeats>, Problem> {
        let mut places = view.chain().places_of_tx(id, view.head().range(), MAX_PLACES + 1).await?;
        if places.len() < 2 && !is_system {
            return Ok(None);
        }
        let has_more_places = places.len() > MAX_PLACES;
        places.truncate(MAX_PLACES);
        let is_in_newest_block = match view.head().tip {
            Some(tip) if tip.height == height => true,
            Some(tip) => in_block(view, id, tip.height, None).await?.is_some(),
            None => false,
        };
        Ok(Some(Repeats {
            first_height: Num(places.first().map_or(height, |first| first.height).get()),
            is_in_newest_block,
            places: places
                .into_iter()
                .map(|TxPlace { height, index }| IdPlace {
                    block_height: Num(height.get()),
                    transaction_index: index,
                })
                .collect(),
            has_more_places,
            note: if is_system { NOTE } else { INCLUDED_AGAIN }.into(),
        }))
    }
}

fn text(bytes: &[u8]) -> String {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

impl FlowTx {
    /// As an answer.
    pub(crate) fn transaction(&self, network: Network, facts: &BlockFacts) -> Transaction {
        let (tx, message) = (&self.tx, &self.tx.transaction);
        let key = message.proposal_key.as_ref();
        let proposer = key.and_then(|key| {
            Some(Proposer {
                address: given(&key.address)?,
                key_index: key.key_id,
                sequence_number: Num(key.sequence_number),
            })
        });
        let argument = |argument: &Bytes| match CdcValue::parse(argument) {
            Ok(value) => value.to_flat(),
            Err(_) => Json::String(text(argument)),
        };
        let flow = FlowTransaction {
            is_system: tx.is_system,
            repeats: None,
            script: text(&message.script),
            arguments: message.arguments.iter().map(argument).collect(),
            reference_block_id: hash(&message.reference_block_id),
            proposer,
            payer: given(&message.payer),
            authorizers: message.authorizers.iter().filter_map(given).collect(),
            collection_id: hash(&tx.result.collection_id),
            status_code: tx.result.status_code,
            error_message: (!tx.result.error_message.is_empty()).then(|| tx.result.error_message.clone()),
            computation_limit: Num(message.gas_limit),
            computation_used: Num(tx.result.computation_usage),
            evm_transactions: executions(network, tx).map(|(_, hash)| Hash::of(hash.as_slice())).collect(),
            evm: evm::transactions(network, tx),
        };
        Transaction {
            from: flow.payer.clone(),
            gas_limit: Some(flow.computation_limit),
            gas_used: flow.computation_used,
            event_count: Num(tx.events.len() as u64),
            flow: Some(flow),
            ..Transaction::bare(
                tx.id,
                BlockStamp::of(facts),
                self.index,
                TransactionStatus::from(tx.status()),
            )
        }
    }

    /// As a row of a list.
    pub(crate) fn row(&self, facts: &BlockFacts) -> TransactionRow {
        let message = &self.tx.transaction;
        TransactionRow {
            block_height: Num(facts.height.get()),
            id: Hash::of(self.tx.id.as_bytes()),
            transaction_index: self.index,
            timestamp_ms: Num(facts.timestamp_ms),
            timestamp: rfc3339(facts.timestamp_ms),
            tx_type: None,
            status: self.tx.status().into(),
            is_system: self.tx.is_system,
            from: given(&message.payer),
            to: None,
            contract_address: None,
            nonce: message
                .proposal_key
                .as_ref()
                .filter(|_| !self.tx.is_system)
                .map(|key| Num(key.sequence_number)),
            value: None,
            method: None,
            input_length_bytes: None,
            gas_limit: Some(Num(message.gas_limit)),
            gas_used: Num(self.tx.result.computation_usage),
            effective_gas_price: None,
            event_count: Num(self.tx.events.len() as u64),
        }
    }

    /// An event as an answer.
    pub(crate) fn event(&self, facts: &BlockFacts, event: &DecodedEvent) -> CadenceEvent {
        let parsed = EventType::parse(&event.event_type);
        let contract =
            parsed.and_then(|parsed| Some(format!("A.{}.{}", parsed.address?.bare(), parsed.contract)));
        let name = parsed.map_or(event.event_type.as_str(), |parsed| parsed.event);
        let (fields, problem) = match CdcValue::parse_event(&event.payload) {
            Ok(composite) => (Some(CdcValue::Composite(composite).to_flat()), None),
            Err(error) => (None, Some(error.to_string())),
        };
        CadenceEvent {
            block_height: Num(facts.height.get()),
            transaction_id: Hash::of(self.tx.id.as_bytes()),
            transaction_index: self.index,
            event_index: event.index,
            timestamp_ms: Num(facts.timestamp_ms),
            timestamp: rfc3339(facts.timestamp_ms),
            event_type: event.event_type.clone(),
            contract,
            name: name.to_owned(),
            fields,
            problem,
        }
    }
}

/// The bytes of a transaction and of its result, as the node gave them.
pub(crate) fn raw(network: Network, stored: StoredBlock, index: u32) -> Result<(Data, Data), Problem> {
    let height = stored.facts.height;
    let block = stored.without_terms();
    let slices = FlowLayout::new(network).slices(&block);
    let slice = slices.and_then(|slices| slices.transactions.into_iter().nth(index as usize));
    let slice = slice.ok_or_else(|| {
        Problem::internal(format!("transaction {index} of block {height} can't be cut out"))
    })?;
    Ok((Data(block.body.slice(slice.body)), Data(block.receipts.slice(slice.receipt))))
}
