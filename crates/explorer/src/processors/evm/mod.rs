//! Processors that read EVM blocks or ask EVM nodes.

use alloy_primitives::Address;
use bytes::Bytes;
use cairn_core::StoredBlock;
use cairn_evm::DecodedBlock;
use cairn_pipeline::derive::processor::ProcessError;

pub mod accounts;
pub mod contract_code;
pub mod evm_worker;
pub mod meta;
mod moves;
pub mod nft_metadata;
pub mod node;
pub mod token;
pub mod token_metadata;
pub mod tx_contracts;
pub mod tx_metrics;

/// Decodes the parts of a block that were read.
fn decode(stored: &StoredBlock) -> Result<DecodedBlock, ProcessError> {
    DecodedBlock::decode(stored)
        .map_err(|error| ProcessError { block: stored.facts.block_ref(), message: error.to_string() })
}

/// An address as tables have it.
fn bytes(address: Address) -> Bytes {
    Bytes::copy_from_slice(address.as_slice())
}
