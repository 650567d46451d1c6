//! Where transactions and events stand in a Flow block's bytes, and which EVM transactions its events hold.

use cairn_core::{BlockLayout, EventSlice, EvmLookup, RawBlock, Slices, TxSlice};
use prost::Message;

use crate::block::event_ranges;
use crate::cdc::CdcValue;
use crate::event::EventType;
use crate::evm::Executed;
use crate::network::Network;
use crate::proto::Event;
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

    /// The hash of an EVM transaction, where the event is of one. What can't be read has no lookup; the event itself is kept.
    fn evm_hash(&self, event: &[u8]) -> Option<[u8; 32]> {
        let event = Event::decode(event).ok()?;
        let name = EventType::parse(&event.r#type)?;
        if !name.is(self.network.accounts().service, "EVM", "TransactionExecuted") {
            return None;
        }
        let executed = Executed::from_event(&CdcValue::parse_event(&event.payload).ok()?).ok()?;
        Some(executed.hash.0)
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
                if let Some(evm_hash) = self.evm_hash(&block.receipts[range.clone()]) {
                    let evm_index = slices.evm_lookups.len() as u32;
                    slices.evm_lookups.push(EvmLookup { evm_hash, tx_index, evm_index });
                }
                slices.events.push(EventSlice { tx_index, range });
            }
            slices.transactions.push(TxSlice { body, receipt });
        }
        Some(slices)
    }
}
