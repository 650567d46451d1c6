//! A block: put together from a node's answers, checked against itself (law 6), and read back.
//!
//! | part | what it holds |
//! | --- | --- |
//! | header | the `Block` message: header, guarantees of its collections, seals of earlier blocks |
//! | body | field 1, repeated: the `Transaction` messages, in block order; the system transactions come last |
//! | receipts | field 1, repeated: the `TransactionResultResponse` messages, in the same order, without their metadata |
//! | extras | the `ExecutionResult` message; empty where the node has none |
//!
//! So body and receipts read as the Access API's own `TransactionsResponse` and `TransactionResultsResponse`.

use bytes::{Bytes, BytesMut};
use cairn_core::{BlockFacts, BlockId, Height, IndexKey, RawBlock, StoredBlock, TxFacts, TxId, TxStatus};
use prost::Message;

use crate::id::transaction_id;
use crate::pair::{Paired, pair};
use crate::proto::{
    Block, BlockHeader, ExecutionResult, RESULT_EVENTS, RESULT_METADATA, Transaction, TransactionResult,
};
use crate::terms::terms_of_event;
use crate::{FlowAddress, FlowError, Network};
use crate::{check, wire};

bitflags::bitflags! {
    /// What could not be checked of a block, as bits of [`BlockFacts::unverified`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Checks: u32 {
        /// The block's id is not the hash of its header as far as this version knows: it was taken as the node gave it.
        const BLOCK_ID = 1;
        /// A system transaction's id is not what its bytes give; the node's was taken.
        const SYSTEM_ID = 2;
        /// It has no system transaction: a spork's root has none, and old nodes, asked by collection, don't give it.
        const SYSTEM_MISSING = 4;
        /// The node gave no execution result.
        const EXECUTION_RESULT = 8;
        /// Its events are as the node gave them. The execution result has a hash of each chunk's, which is of another encoding (CCF) than what is stored
        /// (JSON-CDC). That none is missing before another one of its transaction is checked, and that a chunk with events has some.
        const EVENTS = 16;
        /// An EVM block that it closes is not of the EVM transactions in it ([`crate::evm_blocks`]), and the nodes that were asked say so again. Whoever
        /// asks them sets this.
        const EVM_BLOCK = 32;
        /// A result says neither its block nor its height, and the node gave it for the transaction's id alone. The id may stand in other blocks
        /// too, so it may be the result of another one. Whoever asks for it sets this.
        const RESULT_BLOCK = 64;
        /// It is a spork's root that names another parent than the block below it, which the operator accepts: its facts name that block. Whoever takes it
        /// sets this.
        const PARENT = 128;
    }
}

impl Checks {
    /// Those that say how a node answered: the stored block doesn't show them.
    pub const OF_ANSWERS: Checks = Checks::EVM_BLOCK.union(Checks::RESULT_BLOCK).union(Checks::PARENT);

    /// The names of those that are set, as metrics and REST have them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.iter().filter_map(|check| match check {
            Checks::BLOCK_ID => Some("block-id"),
            Checks::SYSTEM_ID => Some("system-id"),
            Checks::SYSTEM_MISSING => Some("system-missing"),
            Checks::EXECUTION_RESULT => Some("execution-result"),
            Checks::EVENTS => Some("events"),
            Checks::EVM_BLOCK => Some("evm-block"),
            Checks::RESULT_BLOCK => Some("result-block"),
            Checks::PARENT => Some("parent"),
            _ => None,
        })
    }
}

/// A node's answers of one block, each message as it came.
#[derive(Debug, Clone, Default)]
pub struct BlockParts {
    /// The `Block` message.
    pub block: Bytes,
    /// The `Transaction` messages, in block order.
    pub transactions: Vec<Bytes>,
    /// The `TransactionResultResponse` messages, in the same order.
    pub results: Vec<Bytes>,
    /// The `ExecutionResult` message.
    pub execution_result: Option<Bytes>,
}

/// A block with its transactions and events.
#[derive(Debug, Clone)]
pub struct DecodedBlock {
    /// Its height.
    pub height: Height,
    /// Its id.
    pub id: BlockId,
    /// Its parent's id.
    pub parent_id: BlockId,
    /// Its time, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The message.
    pub block: Block,
    /// Its transactions, in order.
    pub transactions: Vec<DecodedTx>,
    /// What executing it gave.
    pub execution_result: Option<ExecutionResult>,
}

/// A transaction with what it did.
#[derive(Debug, Clone)]
pub struct DecodedTx {
    /// Its id. That of a system transaction stands in every block.
    pub id: TxId,
    /// Whether the chain itself made it.
    pub is_system: bool,
    /// The message.
    pub transaction: Transaction,
    /// The result, without its events.
    pub result: TransactionResult,
    /// Its events, by index.
    pub events: Vec<DecodedEvent>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedEvent {
    /// Its type's name.
    pub event_type: String,
    /// Its index in its transaction.
    pub index: u32,
    /// JSON-CDC.
    pub payload: Bytes,
}

pub(crate) fn message<M: Message + Default>(what: &str, bytes: &[u8]) -> Result<M, FlowError> {
    M::decode(bytes).map_err(|error| FlowError::malformed(what, error))
}

pub(crate) fn id32(what: &str, bytes: &[u8]) -> Result<[u8; 32], FlowError> {
    bytes.try_into().map_err(|_| FlowError::malformed(what, format!("it has {} bytes, not 32", bytes.len())))
}

/// Whether an id is none: left out, or zeros. As a collection's it is that of the transactions that the chain itself made; as a transaction's, that of
/// a result that doesn't say whose it is (flow-go's `GetTransactionResultByIndex` sends 32 zero bytes).
pub(crate) fn is_none(id: &[u8]) -> bool {
    id.iter().all(|byte| *byte == 0)
}

fn status(result: &TransactionResult) -> TxStatus {
    if result.status_code == 0 && result.error_message.is_empty() { TxStatus::Ok } else { TxStatus::Failed }
}

struct Linked {
    height: u64,
    id: [u8; 32],
    parent_id: [u8; 32],
    timestamp_ms: u64,
}

fn linked(block: &Block) -> Result<Linked, FlowError> {
    let height = block.height;
    let place = |field: &str| format!("block {height}: its {field}");
    if let Some(BlockHeader { id, parent_id, height: inner, .. }) = &block.block_header {
        let same = (id.is_empty() || *id == block.id)
            && (parent_id.is_empty() || *parent_id == block.parent_id)
            && *inner == height;
        if !same {
            let message = format!("the header within is of {} ({})", inner, hex::encode(id));
            return Err(FlowError::Inconsistent { height, what: "its header", message });
        }
    }
    let timestamp = block.timestamp.as_ref();
    let timestamp = timestamp.ok_or_else(|| FlowError::malformed(place("timestamp"), "there is none"))?;
    Ok(Linked {
        height,
        id: id32(&place("id"), &block.id)?,
        parent_id: id32(&place("parent_id"), &block.parent_id)?,
        timestamp_ms: timestamp.millis(),
    })
}

/// Whether a header is one of this network, as far as it says. Old nodes don't.
pub fn check_network(header: &BlockHeader, network: Network) -> Result<(), FlowError> {
    if header.chain_id.is_empty() || Network::from_chain_id(&header.chain_id) == Some(network) {
        return Ok(());
    }
    let message = format!("it is one of {:.100}, not of {}", header.chain_id, network.chain_id());
    Err(FlowError::Inconsistent { height: header.height, what: "its network", message })
}

/// Height, id and parent of a header, for walks along the chain.
pub fn linked_ref(header: &BlockHeader) -> Result<cairn_core::LinkedRef, FlowError> {
    let place = |field: &str| format!("header {}: its {field}", header.height);
    let id = BlockId(id32(&place("id"), &header.id)?);
    let parent_id = BlockId(id32(&place("parent_id"), &header.parent_id)?);
    Ok(cairn_core::LinkedRef { block: cairn_core::BlockRef { height: Height(header.height), id }, parent_id })
}

/// Puts a sealed block together and checks it.
///
/// Each transaction has a result that names it, this block and its height. Ids are computed and compared. Events belong to their
/// transaction and are sorted by index. Only service events may leave gaps (F05, flow-go #3393).
/// Each guaranteed collection's id is computed from its transactions, in the order of the guarantees. The execution result has a chunk for
/// each collection and one for the system. Their numbers of transactions are compared where it has them. What is in the events, and whether a transaction's last ones are there, is the node's word
/// ([`Checks::EVENTS`]). A missing result is an error, never an empty one; system transactions that no result names are left
/// out ([`crate::pair`]). Nodes that don't name block or transaction in a result (old ones) are taken at the order's word.
pub fn assemble(parts: &BlockParts) -> Result<RawBlock, FlowError> {
    let block: Block = message("a block", &parts.block)?;
    let Linked { height, id, parent_id, timestamp_ms } = linked(&block)?;
    let pairs = pair(height, parts)?;
    let mut unverified = Checks::BLOCK_ID;
    let (mut body, mut receipts) = (BytesMut::new(), BytesMut::new());
    let mut transactions = Vec::with_capacity(pairs.len());
    let mut terms: Vec<IndexKey> = Vec::new();
    let mut log_count = 0u32;
    let mut chunks = check::Chunks::default();
    for (index, Paired { transaction, decoded, result, outcome }) in pairs.into_iter().enumerate() {
        let what = format!("block {height}, transaction {index}");
        let is_system = is_none(&outcome.collection_id);
        let tx_id = check::result(height, &id, index, &decoded, &outcome, is_system, &mut unverified)?;
        let events = check::events(height, index, tx_id, &outcome.events)?;
        chunks.add(height, index, &outcome, tx_id, &events)?;
        log_count = log_count.saturating_add(outcome.events.len() as u32);
        terms.extend(outcome.events.iter().flat_map(terms_of_event));
        let payer = FlowAddress::from_slice(&decoded.payer);
        let payer = payer.ok_or_else(|| {
            FlowError::malformed(format!("the payer of {what}"), "it has more than 8 bytes")
        })?;
        transactions.push(TxFacts {
            id: tx_id,
            sender: Bytes::copy_from_slice(&payer.0),
            status: status(&outcome),
        });
        wire::put(&mut body, 1, transaction);
        let result = wire::without(&what, result, &[RESULT_METADATA])?;
        wire::put(&mut receipts, 1, &wire::in_order(&what, &result, RESULT_EVENTS, &events.order)?);
    }
    chunks.check_collections(height, &block)?;
    if !chunks.has_system() {
        unverified |= Checks::SYSTEM_MISSING;
    }
    let execution_result: Option<ExecutionResult> = match &parts.execution_result {
        None => None,
        Some(bytes) => Some(message(&format!("the execution result of block {height}"), bytes)?),
    };
    chunks.check_service_events(height, execution_result.as_ref())?;
    let mut has_shown_events = transactions.is_empty();
    match &execution_result {
        None => unverified |= Checks::EXECUTION_RESULT,
        Some(result) => {
            if !result.block_id.is_empty() && result.block_id != block.id {
                let message = format!("it is of block {}", hex::encode(&result.block_id));
                return Err(FlowError::Inconsistent { height, what: "its execution result", message });
            }
            has_shown_events |= chunks.check_executed(height, result)?;
        }
    }
    if !has_shown_events {
        unverified |= Checks::EVENTS;
    }
    terms.sort_unstable();
    terms.dedup();
    Ok(RawBlock {
        facts: BlockFacts {
            height: Height(height),
            id: BlockId(id),
            parent_id: BlockId(parent_id),
            timestamp_ms,
            tx_count: transactions.len() as u32,
            log_count,
            unverified: unverified.bits(),
        },
        transactions,
        header: parts.block.clone(),
        body: body.freeze(),
        receipts: receipts.freeze(),
        extras: parts.execution_result.clone().unwrap_or_default(),
        traces: None,
        log_terms: terms,
    })
}

/// Holds a stored block against itself once more, by all that it was held against when it was taken, and gives it as it was then. Blocks that were stored
/// before there was a mark for events are without it.
pub fn check_stored(stored: &StoredBlock) -> Result<RawBlock, FlowError> {
    let height = stored.facts.height;
    let parts = |what: &str, of: &Bytes| -> Result<Vec<Bytes>, FlowError> {
        let ranges = wire::repeated(&format!("the {what} of block {height}"), of, 1)?;
        Ok(ranges.into_iter().map(|range| of.slice(range)).collect())
    };
    let mut whole = assemble(&BlockParts {
        block: stored.header.clone(),
        transactions: parts("body", &stored.body)?,
        results: parts("receipts", &stored.receipts)?,
        execution_result: (!stored.extras.is_empty()).then(|| stored.extras.clone()),
    })?;
    if !Checks::from_bits_retain(stored.facts.unverified).contains(Checks::EVENTS) {
        whole.facts.unverified &= !Checks::EVENTS.bits();
    }
    // What other answers said can't be asked again.
    whole.facts.unverified |= stored.facts.unverified & Checks::OF_ANSWERS.bits();
    if Checks::from_bits_retain(stored.facts.unverified).contains(Checks::PARENT) {
        whole.facts.parent_id = stored.facts.parent_id;
    }
    let differs = [
        (whole.facts != stored.facts, "its facts"),
        (whole.transactions != stored.transactions, "the facts of its transactions"),
        (whole.body != stored.body, "its body"),
        (whole.receipts != stored.receipts, "its receipts"),
    ];
    match differs.into_iter().find(|(differ, _)| *differ) {
        None => Ok(whole),
        Some((_, what)) => {
            let message = "what is stored is not what its messages give".into();
            Err(FlowError::Inconsistent { height: height.get(), what, message })
        }
    }
}

impl DecodedBlock {
    /// Decodes a stored block: header, body, receipts, and extras where they were read.
    pub fn decode(stored: &StoredBlock) -> Result<DecodedBlock, FlowError> {
        let height = stored.facts.height;
        let block: Block = message(&format!("block {height}"), &stored.header)?;
        let bodies = wire::repeated(&format!("the body of block {height}"), &stored.body, 1)?;
        let results = wire::repeated(&format!("the receipts of block {height}"), &stored.receipts, 1)?;
        if bodies.len() != results.len() || bodies.len() != stored.facts.tx_count as usize {
            let message = format!(
                "{} bodies, {} results, {} counted",
                bodies.len(),
                results.len(),
                stored.facts.tx_count
            );
            return Err(FlowError::Inconsistent { height: height.get(), what: "its stored parts", message });
        }
        let mut transactions = Vec::with_capacity(bodies.len());
        for (index, (body, result)) in bodies.into_iter().zip(results).enumerate() {
            let what = format!("block {height}, transaction {index}");
            let transaction: Transaction = message(&what, &stored.body[body])?;
            let mut result: TransactionResult = message(&what, &stored.receipts[result])?;
            let events = std::mem::take(&mut result.events).into_iter().map(|event| DecodedEvent {
                event_type: event.r#type,
                index: event.event_index,
                payload: event.payload,
            });
            let id = match <[u8; 32]>::try_from(result.transaction_id.as_ref()) {
                Ok(id) if !is_none(&id) => TxId(id),
                _ => transaction_id(&transaction),
            };
            let events = events.collect();
            transactions.push(DecodedTx {
                id,
                is_system: is_none(&result.collection_id),
                transaction,
                result,
                events,
            });
        }
        let execution_result = match stored.extras.is_empty() {
            true => None,
            false => Some(message(&format!("the execution result of block {height}"), &stored.extras)?),
        };
        Ok(DecodedBlock {
            height,
            id: stored.facts.id,
            parent_id: stored.facts.parent_id,
            timestamp_ms: stored.facts.timestamp_ms,
            block,
            transactions,
            execution_result,
        })
    }
}

impl DecodedTx {
    /// How it ended.
    pub fn status(&self) -> TxStatus {
        status(&self.result)
    }
}

/// The places of a result's events within its bytes.
pub(crate) fn event_ranges(what: &str, result: &[u8]) -> Result<Vec<std::ops::Range<usize>>, FlowError> {
    wire::repeated(what, result, RESULT_EVENTS)
}
