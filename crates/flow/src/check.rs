//! What a block's parts are held against: each other, the guarantees of its collections, and the chunks of its execution.

use cairn_core::TxId;

use crate::block::{Checks, id32, is_none};
use crate::id::{collection_id, transaction_id};
use crate::pair::is_unpaid;
use crate::proto::{Block, Event, ExecutionResult, Transaction, TransactionResult, TransactionStatus};
use crate::{EventType, FlowError};

/// The `event_collection` of a chunk without events (flow-go `EmptyEventCollectionID`): the root of an empty Merkle tree.
const NO_EVENTS: [u8; 32] = [
    0x0e, 0x57, 0x51, 0xc0, 0x26, 0xe5, 0x43, 0xb2, 0xe8, 0xab, 0x2e, 0xb0, 0x60, 0x99, 0xda, 0xa1, 0xd1,
    0xe5, 0xdf, 0x47, 0x77, 0x8f, 0x77, 0x87, 0xfa, 0xab, 0x45, 0xcd, 0xf1, 0x2f, 0xe3, 0xa8,
];

/// Holds a result against its block and its transaction, and gives the transaction's id.
pub(crate) fn result(
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
    if !is_none(&result.block_id) && result.block_id.as_ref() != block_id {
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
    if is_none(&result.transaction_id) || result.transaction_id.as_ref() == computed.as_bytes() {
        return Ok(computed);
    }
    let named = TxId(id32(
        &format!("block {height}: the id in the result of transaction {index}"),
        &result.transaction_id,
    )?);
    if is_system && is_unpaid(transaction) {
        *unverified |= Checks::SYSTEM_ID;
        return Ok(named);
    }
    Err(other("its transaction ids", format!("transaction {index} is {computed}, its result is of {named}")))
}

/// The events of a transaction, compared with it.
pub(crate) struct Events {
    /// Their places, by ascending index: nodes may send them in another order (F05).
    pub order: Vec<usize>,
    /// How many service events an index is missing behind.
    skipped: usize,
    /// Whether the last event is a service event: whether an index is missing behind that one doesn't show.
    ends_with_service: bool,
}

/// Compares events with their transaction. Their indexes run from 0 without a gap.
///
/// Exception: before the end of 2025 execution nodes counted each service event twice (flow-go #3393), so the index behind one is skipped. Such a gap is of
/// exactly one, and [`Chunks::check_service_events`] compares the number of gaps with the execution result.
pub(crate) fn events(height: u64, index: usize, id: TxId, events: &[Event]) -> Result<Events, FlowError> {
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|place| events[*place].event_index);
    let (mut expected, mut skipped) = (0u32, 0);
    let mut is_behind_service = false;
    for place in &order {
        let event = &events[*place];
        if is_behind_service && event.event_index == expected.saturating_add(1) {
            (expected, skipped) = (event.event_index, skipped + 1);
        }
        let foreign = !event.transaction_id.is_empty() && event.transaction_id.as_ref() != id.as_bytes();
        if foreign || event.transaction_index as usize != index || event.event_index < expected {
            let message = format!(
                "event {expected} among those of transaction {index} is event {} of transaction {} ({})",
                event.event_index,
                event.transaction_index,
                hex::encode(&event.transaction_id)
            );
            return Err(FlowError::Inconsistent { height, what: "its events", message });
        }
        if event.event_index > expected {
            let message =
                format!("transaction {index} has an event {} and none {expected}", event.event_index);
            return Err(FlowError::Incomplete { height, message });
        }
        expected = expected.saturating_add(1);
        is_behind_service = EventType::parse(&event.r#type).is_some_and(|name| name.is_service_event());
    }
    Ok(Events { order, skipped, ends_with_service: is_behind_service })
}

/// The transactions of a block, chunk by chunk: one chunk a collection, and that of the system.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    collections: Vec<Chunk>,
    system: Option<Chunk>,
    /// How many service events an index is missing behind.
    skipped: usize,
    /// How many transactions end with a service event.
    ends_with_service: usize,
}

#[derive(Debug, Default)]
struct Chunk {
    collection_id: Vec<u8>,
    transactions: Vec<TxId>,
    events: usize,
}

impl Chunks {
    /// The next transaction.
    pub fn add(
        &mut self,
        height: u64,
        index: usize,
        result: &TransactionResult,
        id: TxId,
        events: &Events,
    ) -> Result<(), FlowError> {
        let collection_id = result.collection_id.as_ref();
        let chunk = if is_none(collection_id) {
            self.system.get_or_insert_default()
        } else {
            if self.system.is_some() {
                let message = format!("transaction {index} of a collection follows the system's own");
                return Err(FlowError::Inconsistent { height, what: "its order", message });
            }
            if self.collections.last().is_none_or(|chunk| chunk.collection_id != collection_id) {
                self.collections.push(Chunk { collection_id: collection_id.to_vec(), ..Chunk::default() });
            }
            let last = self.collections.len() - 1;
            &mut self.collections[last]
        };
        chunk.transactions.push(id);
        chunk.events += result.events.len();
        self.skipped += events.skipped;
        self.ends_with_service += usize::from(events.ends_with_service);
        Ok(())
    }

    /// Where indexes are missing behind service events, the execution result has to have one for each gap, and no other than those and the ones that end a
    /// transaction. Otherwise events are missing.
    pub fn check_service_events(
        &self,
        height: u64,
        result: Option<&ExecutionResult>,
    ) -> Result<(), FlowError> {
        if self.skipped == 0 {
            return Ok(());
        }
        let gaps = format!("an event index is missing behind {} service events", self.skipped);
        let message = match result.map(|result| result.service_events.len()) {
            None => format!(
                "{gaps}, and there is no execution result to say how many there are: take a node that has it"
            ),
            Some(count) if (self.skipped..=self.skipped + self.ends_with_service).contains(&count) => {
                return Ok(());
            }
            Some(count) => format!(
                "{gaps}, {} more end a transaction, and the execution result has {count}",
                self.ends_with_service
            ),
        };
        Err(FlowError::Incomplete { height, message })
    }

    /// Whether the chain itself made any.
    pub fn has_system(&self) -> bool {
        self.system.is_some()
    }

    /// Each guaranteed collection is there, in the guarantees' order, and its id is that of its transactions.
    pub fn check_collections(&self, height: u64, block: &Block) -> Result<(), FlowError> {
        let found = || self.collections.iter().map(|chunk| chunk.collection_id.as_slice());
        let guaranteed =
            || block.collection_guarantees.iter().map(|guarantee| guarantee.collection_id.as_ref());
        if let Some(missing) = guaranteed().find(|id| !found().any(|found| found == *id)) {
            let message = format!("there are no transactions of collection {}", hex::encode(missing));
            return Err(FlowError::Incomplete { height, message });
        }
        if !guaranteed().eq(found()) {
            let message = format!(
                "{} are guaranteed, transactions come from {} stretches of them",
                block.collection_guarantees.len(),
                self.collections.len()
            );
            return Err(FlowError::Inconsistent { height, what: "its collections", message });
        }
        match self
            .collections
            .iter()
            .find(|chunk| collection_id(&chunk.transactions)[..] != chunk.collection_id)
        {
            None => Ok(()),
            Some(chunk) => {
                let message = format!(
                    "the {} transactions of collection {} aren't all that its id is of",
                    chunk.transactions.len(),
                    hex::encode(&chunk.collection_id)
                );
                Err(FlowError::Incomplete { height, message })
            }
        }
    }

    /// There is a chunk for each collection and one for the system, each with as many transactions as came, and with events where some came. Its count
    /// of transactions may be 0 (old nodes). Which events it has can't be told: their hash is of another encoding than JSON-CDC. Answers whether these
    /// are all events, which it can show only where there are none.
    ///
    /// A spork's root has a chunk in which nothing is executed, and old nodes give no system transaction: there only what is more than came is refused.
    pub fn check_executed(&self, height: u64, result: &ExecutionResult) -> Result<bool, FlowError> {
        let chunks = self.collections.len() + 1;
        if self.has_system() && result.chunks.len() != chunks {
            let message = format!(
                "it has {} chunks, and there are {} collections and the system's transactions",
                result.chunks.len(),
                self.collections.len()
            );
            return Err(FlowError::Inconsistent { height, what: "its execution result", message });
        }
        let mut has_shown_events = self.has_system();
        let came = self.collections.iter().map(Some).chain([self.system.as_ref()]);
        for (number, (executed, came)) in result.chunks.iter().zip(came).enumerate() {
            let Some(came) = came else { continue };
            let (said, count) = (executed.number_of_transactions as usize, came.transactions.len());
            let message = || format!("chunk {number} has {said} transactions, {count} came");
            if said > count {
                return Err(FlowError::Incomplete { height, message: message() });
            }
            if self.has_system() && said > 0 && said < count {
                let what = "its execution result";
                return Err(FlowError::Inconsistent { height, what, message: message() });
            }
            let hash = executed.event_collection.as_ref();
            has_shown_events &= hash == NO_EVENTS;
            // Nodes that give no system transaction are of sporks whose events were hashed otherwise.
            if !self.has_system() || is_none(hash) {
                continue;
            }
            if came.events == 0 && hash != NO_EVENTS {
                let message = format!("chunk {number} has events, none came");
                return Err(FlowError::Incomplete { height, message });
            }
            if came.events > 0 && hash == NO_EVENTS {
                let message = format!("chunk {number} has no events, {} came", came.events);
                return Err(FlowError::Inconsistent { height, what: "its events", message });
            }
        }
        Ok(has_shown_events)
    }
}
