//! Processors that read Flow blocks or ask Flow nodes.
//!
//! A transaction's id doesn't name one transaction on Flow: system transactions have the same id in every block, and blocks of old sporks have one
//! twice. So every key has the height and the transaction's index in the block.

use bytes::Bytes;
use cairn_core::Parts;
use cairn_flow::{DecodedEvent, DecodedTx, FlowAddress};
use cairn_pipeline::derive::processor::{FaultLabels, Malformed};
use cairn_store::derived::{MAX_RAW_DATA_BYTES, Severity};

pub mod account_metadata;
pub mod account_state;
pub mod accounts;
mod block;
pub mod contract_code;
pub mod evm_chain;
mod evm_node;
mod evm_tx;
pub mod evm_worker;
pub mod meta;
mod moves;
pub mod nft_metadata;
pub mod nft_ownership;
pub mod node;
mod revocations;
mod scripts;
pub mod token;
pub mod token_metadata;
pub mod tx_contracts;
pub mod tx_metrics;

pub use block::FlowBlock;
use block::{FlowBlocks, PlacedTx};

/// The length of an address of the EVM side; accounts have 8.
const EVM_ADDRESS_BYTES: usize = 20;

/// What every processor of Flow blocks reads: transactions and their results, which only make sense together.
const PARTS: Parts = Parts::BODY.union(Parts::RECEIPTS);

/// An address as tables have it.
fn bytes(address: FlowAddress) -> Bytes {
    Bytes::copy_from_slice(&address.0)
}

/// A transaction's id as tables have it.
fn id(tx: &DecodedTx) -> Bytes {
    Bytes::copy_from_slice(tx.id.as_bytes())
}

/// An event that can't be read.
/// The longest label that metrics get.
const MAX_LABEL_CHARS: usize = 200;

fn malformed_event(tx: &DecodedTx, event: &DecodedEvent, message: impl std::fmt::Display) -> Malformed {
    malformed_at(tx, event.index, &event.event_type, message)
}

fn malformed_at(
    tx: &DecodedTx,
    event_index: u32,
    event_type: &str,
    message: impl std::fmt::Display,
) -> Malformed {
    let payload = tx.events.iter().find(|event| event.index == event_index).map(|event| &event.payload);
    Malformed {
        transaction_id: tx.id.to_string(),
        severity: Severity::Warn,
        message: format!("event {event_index}, {event_type:.300}: {message}"),
        raw_data: payload
            .map(|payload| payload[..payload.len().min(MAX_RAW_DATA_BYTES)].to_vec())
            .unwrap_or_default(),
        event_index: Some(event_index),
        labels: labels_of(event_type),
    }
}

/// What metrics count an event's fault under: its contract and its name. Both come from a node, so what is too long is cut.
fn labels_of(event_type: &str) -> FaultLabels {
    let (contract, topic) = event_type.rsplit_once('.').unwrap_or(("", event_type));
    let cut = |text: &str| text.chars().take(MAX_LABEL_CHARS).collect();
    FaultLabels { reason: "event", contract: cut(contract), topic: cut(topic) }
}
