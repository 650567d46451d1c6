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
use crate::proto::{
    Block, BlockHeader, Event, ExecutionResult, RESULT_COLLECTION, RESULT_EVENTS, RESULT_METADATA,
    Transaction, TransactionResult, TransactionStatus,
};
use crate::terms::terms_of_event;
use crate::wire;
use crate::{FlowAddress, FlowError};

bitflags::bitflags! {
    /// What could not be checked of a block, as bits of [`BlockFacts::unverified`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Checks: u32 {
        /// The block's id is not the hash of its header as far as this version knows: it was taken as the node gave it.
        const BLOCK_ID = 1;
        /// A system transaction's id is not what its bytes give; the node's was taken.
        const SYSTEM_ID = 2;
        /// It has no system transaction: old nodes, asked by collection, don't give it.
        const SYSTEM_MISSING = 4;
        /// The node gave no execution result.
        const EXECUTION_RESULT = 8;
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

fn message<M: Message + Default>(what: &str, bytes: &[u8]) -> Result<M, FlowError> {
    M::decode(bytes).map_err(|error| FlowError::malformed(what, error))
}

fn id32(what: &str, bytes: &[u8]) -> Result<[u8; 32], FlowError> {
    bytes.try_into().map_err(|_| FlowError::malformed(what, format!("it has {} bytes, not 32", bytes.len())))
}

/// Whether a collection's id is that of no collection: of the transactions that the chain itself made.
fn is_none(id: &[u8]) -> bool {
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
    Ok(Linked {
        height,
        id: id32(&place("id"), &block.id)?,
        parent_id: id32(&place("parent_id"), &block.parent_id)?,
        timestamp_ms: timestamp.map_or(0, crate::proto::Timestamp::millis),
    })
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
/// Each transaction has a result that names it, this block and its height; ids are computed and compared; events are those of their
/// transaction, in order; each guaranteed collection has its transactions, in the guarantees' order. A missing result is an
/// error, never an empty one. Nodes that don't name block or transaction in a result (old ones) are taken at the order's word.
pub fn assemble(parts: &BlockParts) -> Result<RawBlock, FlowError> {
    let block: Block = message("a block", &parts.block)?;
    let Linked { height, id, parent_id, timestamp_ms } = linked(&block)?;
    if parts.transactions.len() != parts.results.len() {
        let message =
            format!("{} transactions and {} results", parts.transactions.len(), parts.results.len());
        return Err(FlowError::Incomplete { height, message });
    }
    let mut unverified = Checks::BLOCK_ID;
    let (mut body, mut receipts) = (BytesMut::new(), BytesMut::new());
    let mut transactions = Vec::with_capacity(parts.transactions.len());
    let mut terms: Vec<IndexKey> = Vec::new();
    let mut log_count = 0u32;
    let mut collections: Vec<Bytes> = Vec::new();
    let mut has_system = false;
    for (index, (transaction, result)) in parts.transactions.iter().zip(&parts.results).enumerate() {
        let what = format!("block {height}, transaction {index}");
        let decoded: Transaction = message(&what, transaction)?;
        let outcome: TransactionResult = message(&format!("the result of {what}"), result)?;
        let is_system = is_none(&outcome.collection_id);
        has_system |= is_system;
        if !is_system && has_system {
            let message = format!("transaction {index} of a collection follows the system's own");
            return Err(FlowError::Inconsistent { height, what: "its order", message });
        }
        if !is_system && collections.last() != Some(&outcome.collection_id) {
            collections.push(outcome.collection_id.clone());
        }
        let tx_id = check_result(height, &id, index, &decoded, &outcome, is_system, &mut unverified)?;
        check_events(height, index, tx_id, &outcome.events)?;
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
        wire::put(&mut receipts, 1, &wire::without(&what, result, &[RESULT_METADATA])?);
    }
    check_collections(height, &block, &collections)?;
    if !has_system {
        unverified |= Checks::SYSTEM_MISSING;
    }
    match &parts.execution_result {
        None => unverified |= Checks::EXECUTION_RESULT,
        Some(bytes) => {
            let result: ExecutionResult = message(&format!("the execution result of block {height}"), bytes)?;
            if !result.block_id.is_empty() && result.block_id != block.id {
                let message = format!("it is of block {}", hex::encode(&result.block_id));
                return Err(FlowError::Inconsistent { height, what: "its execution result", message });
            }
        }
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

/// Holds a stored block against itself once more, by all that it was held against when it was taken, and gives it as it was then.
pub fn check_stored(stored: &StoredBlock) -> Result<RawBlock, FlowError> {
    let height = stored.facts.height;
    let parts = |what: &str, of: &Bytes| -> Result<Vec<Bytes>, FlowError> {
        let ranges = wire::repeated(&format!("the {what} of block {height}"), of, 1)?;
        Ok(ranges.into_iter().map(|range| of.slice(range)).collect())
    };
    let whole = assemble(&BlockParts {
        block: stored.header.clone(),
        transactions: parts("body", &stored.body)?,
        results: parts("receipts", &stored.receipts)?,
        execution_result: (!stored.extras.is_empty()).then(|| stored.extras.clone()),
    })?;
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

/// A result with its collection's id, where the node left it out: old ones, asked for one transaction, do.
pub fn with_collection(result: &Bytes, collection_id: &[u8]) -> Result<Bytes, FlowError> {
    let fields = wire::fields("a result", result)?;
    if fields.iter().any(|field| field.number == RESULT_COLLECTION) {
        return Ok(result.clone());
    }
    let mut whole = BytesMut::from(result.as_ref());
    wire::put(&mut whole, RESULT_COLLECTION, collection_id);
    Ok(whole.freeze())
}

fn check_result(
    height: u64,
    block_id: &[u8; 32],
    index: usize,
    transaction: &Transaction,
    result: &TransactionResult,
    is_system: bool,
    unverified: &mut Checks,
) -> Result<TxId, FlowError> {
    if result.status != TransactionStatus::Sealed as i32 {
        let message = format!("the result of transaction {index} has status {}, not sealed", result.status);
        return Err(FlowError::Incomplete { height, message });
    }
    let other = |what: &'static str, message: String| FlowError::Inconsistent { height, what, message };
    if !result.block_id.is_empty() && result.block_id.as_ref() != block_id {
        let message = format!("that of transaction {index} is of block {}", hex::encode(&result.block_id));
        return Err(other("its results", message));
    }
    if result.block_height != 0 && result.block_height != height {
        return Err(other(
            "its results",
            format!("that of transaction {index} is of height {}", result.block_height),
        ));
    }
    let computed = transaction_id(transaction);
    if result.transaction_id.is_empty() || result.transaction_id.as_ref() == computed.as_bytes() {
        return Ok(computed);
    }
    let named = TxId(id32(
        &format!("block {height}: the id in the result of transaction {index}"),
        &result.transaction_id,
    )?);
    if is_system {
        *unverified |= Checks::SYSTEM_ID;
        return Ok(named);
    }
    Err(other("its transaction ids", format!("transaction {index} is {computed}, its result is of {named}")))
}

fn check_events(height: u64, index: usize, id: TxId, events: &[Event]) -> Result<(), FlowError> {
    let mut last = None;
    for event in events {
        let foreign = !event.transaction_id.is_empty() && event.transaction_id.as_ref() != id.as_bytes();
        if foreign
            || event.transaction_index as usize != index
            || last.is_some_and(|last| event.event_index <= last)
        {
            let message = format!(
                "event {} among those of transaction {index} is event {} of transaction {} ({})",
                last.map_or(0, |last| last + 1),
                event.event_index,
                event.transaction_index,
                hex::encode(&event.transaction_id)
            );
            return Err(FlowError::Inconsistent { height, what: "its events", message });
        }
        last = Some(event.event_index);
    }
    Ok(())
}

fn check_collections(height: u64, block: &Block, found: &[Bytes]) -> Result<(), FlowError> {
    let guaranteed: Vec<&Bytes> =
        block.collection_guarantees.iter().map(|guarantee| &guarantee.collection_id).collect();
    if let Some(missing) = guaranteed.iter().find(|id| !found.contains(id)) {
        let message = format!("there are no transactions of collection {}", hex::encode(missing));
        return Err(FlowError::Incomplete { height, message });
    }
    if !guaranteed.iter().copied().eq(found) {
        let message = format!(
            "{} are guaranteed, transactions come from {} stretches of them",
            guaranteed.len(),
            found.len()
        );
        return Err(FlowError::Inconsistent { height, what: "its collections", message });
    }
    Ok(())
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
                Ok(id) => TxId(id),
                Err(_) => transaction_id(&transaction),
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
