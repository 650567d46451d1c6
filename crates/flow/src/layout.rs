//! Where transactions and events stand in a Flow block's bytes, and which EVM transactions its events hold.
//!
//! A transaction's script and arguments have places of their own: the same script stands in thousands of transactions. Collections are those that
//! the header guarantees. The message of an execution result doesn't say its id, which only a later block's seal does, and can't be hashed again (service
//! events stand in it as JSON, the id is over their own structures): it goes by the SHA3-256 of its bytes, which is not that id.

use std::ops::Range;

use bytes::Bytes;
use cairn_core::{
    BlockLayout, Collection, EventSlice, EvmLookup, PartKind, RawBlock, Slices, TxDetails, TxPart, TxSlice,
};
use prost::Message;
use sha3::{Digest, Sha3_256};

use crate::block::event_ranges;
use crate::event::EventType;
use crate::evm::executed_hash;
use crate::network::Network;
use crate::proto::{Block, Event, Transaction, TransactionResult};
use crate::wire;

/// The layout of a network's blocks.
#[derive(Debug, Clone, Copy)]
pub struct FlowLayout {
    network: Network,
}

impl FlowLayout {
    /// Of the blocks of `network`: whose `EVM` contract counts.
    pub fn new(network: Network) -> FlowLayout {
        FlowLayout { network }
    }

    /// The hash of an EVM transaction, where the event is of one: as its term has it ([`executed_hash`]), whatever else of the event can't be read. Without a
    /// hash there is no lookup; the event itself is kept.
    fn evm_hash(&self, event: &Event) -> Option<[u8; 32]> {
        let name = EventType::parse(&event.r#type)?;
        if !name.is(self.network.accounts().service, "EVM", "TransactionExecuted") {
            return None;
        }
        executed_hash(&event.payload).map(|hash| hash.0)
    }
}

impl BlockLayout for FlowLayout {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let bodies = wire::repeated("a body", &block.body, 1).ok()?;
        let results = wire::repeated("receipts", &block.receipts, 1).ok()?;
        if bodies.len() != block.transactions.len() || results.len() != bodies.len() {
            return None;
        }
        let mut slices = Slices::default();
        for (tx_index, (body, receipt)) in (0u32..).zip(bodies.into_iter().zip(results)) {
            for event in event_ranges("a result", &block.receipts[receipt.clone()]).ok()? {
                let range = receipt.start + event.start..receipt.start + event.end;
                let event = Event::decode(&block.receipts[range.clone()]).ok()?;
                if let Some(evm_hash) = self.evm_hash(&event) {
                    let evm_index = slices.evm_lookups.len() as u32;
                    slices.evm_lookups.push(EvmLookup { evm_hash, tx_index, evm_index });
                }
                // Not its place: behind a service event an index may be missing.
                slices.events.push(EventSlice { tx_index, index: event.event_index, range });
            }
            let (message, outcome) = (&block.body[body.clone()], &block.receipts[receipt.clone()]);
            slices.parts.extend(parts(tx_index, body.start, message)?);
            slices.details.push(details(message, outcome)?);
            slices.transactions.push(TxSlice { body, receipt });
        }
        slices.collections = collections(block)?;
        slices.execution_result = (!block.extras.is_empty()).then(|| Sha3_256::digest(&block.extras).into());
        Some(slices)
    }

    fn has_scripts(&self) -> bool {
        true
    }

    fn has_evm_lookups(&self) -> bool {
        true
    }
}

/// The script and the arguments of a transaction whose message begins at `start`.
fn parts(tx_index: u32, start: usize, message: &[u8]) -> Option<Vec<TxPart>> {
    const SCRIPT: u32 = 1;
    const ARGUMENT: u32 = 2;
    let fields = wire::fields("a transaction", message).ok()?;
    // A message that says it twice is odd, but it is what the node sent: the script then stays where it is.
    let has_one_script = fields.iter().filter(|field| field.number == SCRIPT).count() == 1;
    let part = |kind, at: &Range<usize>| TxPart { tx_index, kind, range: start + at.start..start + at.end };
    let part_of = |field: &wire::Field| match (field.number, &field.value) {
        (SCRIPT, Some(at)) if has_one_script => Some(part(PartKind::Script, at)),
        (ARGUMENT, Some(at)) => Some(part(PartKind::Argument, at)),
        _ => None,
    };
    Some(fields.iter().filter_map(part_of).collect())
}

fn details(message: &[u8], outcome: &[u8]) -> Option<TxDetails> {
    let transaction = Transaction::decode(message).ok()?;
    let result = TransactionResult::decode(outcome).ok()?;
    Some(TxDetails {
        proposer: transaction.proposal_key.map(|key| key.address).unwrap_or_default(),
        payer: transaction.payer,
        authorizers: transaction.authorizers,
        error: Some(result.error_message).filter(|error| !error.is_empty()),
        computation: result.computation_usage,
    })
}

/// The guaranteed collections, each with its number of transactions.
fn collections(block: &RawBlock) -> Option<Vec<Collection>> {
    let header = Block::decode(&block.header[..]).ok()?;
    let results = wire::repeated("receipts", &block.receipts, 1).ok()?;
    let mut in_collection: Vec<Bytes> = Vec::with_capacity(results.len());
    for result in results {
        in_collection.push(TransactionResult::decode(&block.receipts[result]).ok()?.collection_id);
    }
    let collection = |id: Bytes| {
        let tx_count = in_collection.iter().filter(|of| **of == id).count() as u32;
        Some(Collection { id: id[..].try_into().ok()?, tx_count })
    };
    header.collection_guarantees.into_iter().map(|guarantee| collection(guarantee.collection_id)).collect()
}
