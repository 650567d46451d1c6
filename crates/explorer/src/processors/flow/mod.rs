//! Processors that read Flow blocks or ask Flow nodes.
//!
//! A transaction's id doesn't name one transaction on Flow: system transactions have the same id in every block, so every key has the
//! height. Within one block an id is derived once ([`once`]); `token_worker` reports the block that has it twice.

use std::collections::BTreeSet;

use bytes::Bytes;
use cairn_core::{Parts, StoredBlock, TxId};
use cairn_flow::{DecodedBlock, DecodedEvent, DecodedTx, FlowAddress};
use cairn_pipeline::derive::processor::{Malformed, ProcessError};
use cairn_store::derived::{MAX_RAW_DATA_BYTES, Severity};

pub mod account_state;
pub mod accounts;
pub mod contract_code;
pub mod evm_chain;
pub mod evm_worker;
pub mod meta;
mod moves;
pub mod nft_metadata;
pub mod node;
mod scripts;
pub mod token;
pub mod token_metadata;
pub mod tx_contracts;
pub mod tx_metrics;

/// What every processor of Flow blocks reads: transactions and their results, which only make sense together.
const PARTS: Parts = Parts::BODY.union(Parts::RECEIPTS);

/// Decodes the parts of a block that were read.
fn decode(stored: &StoredBlock) -> Result<DecodedBlock, ProcessError> {
    DecodedBlock::decode(stored)
        .map_err(|error| ProcessError { block: stored.facts.block_ref(), message: error.to_string() })
}

/// The transactions of a block with their places, each id once: the first one.
fn once(block: &DecodedBlock) -> impl Iterator<Item = (u32, &DecodedTx)> {
    let mut seen: BTreeSet<TxId> = BTreeSet::new();
    (0u32..).zip(&block.transactions).filter(move |(_, tx)| seen.insert(tx.id))
}

/// An address as tables have it.
fn bytes(address: FlowAddress) -> Bytes {
    Bytes::copy_from_slice(&address.0)
}

/// A transaction's id as tables have it.
fn id(tx: &DecodedTx) -> Bytes {
    Bytes::copy_from_slice(tx.id.as_bytes())
}

/// An event that can't be read.
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
    }
}
