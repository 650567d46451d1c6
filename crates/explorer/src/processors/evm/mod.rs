//! Processors that read EVM blocks or ask EVM nodes.

use alloy_primitives::Address;
use bytes::Bytes;
use cairn_core::Parts;

pub mod accounts;
mod block;
pub mod contract_code;
pub mod evm_worker;
pub mod meta;
pub(crate) mod moves;
pub mod nft_metadata;
pub mod node;
pub mod token;
pub mod token_metadata;
pub mod tx_contracts;
pub mod tx_metrics;

pub use block::EvmBlock;
use block::EvmBlocks;

/// What every mapper of EVM blocks reads, also what it doesn't need itself: a block of the same parts is read and decoded once for all of them.
const PARTS: Parts =
    Parts::HEADER.union(Parts::TRANSACTIONS).union(Parts::BODY).union(Parts::RECEIPTS).union(Parts::EXTRAS);

/// An address as tables have it.
pub(in crate::processors) fn bytes(address: Address) -> Bytes {
    Bytes::copy_from_slice(address.as_slice())
}
