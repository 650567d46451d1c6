//! What enrichers ask of a node.

use alloy_primitives::Address;
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_pipeline::derive::processor::AskError;

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAnswer {
    /// The bytes that were returned; empty where there is no such contract.
    Returned(Bytes),
    /// The contract refused: it reverted, ran out of gas, or has no such function.
    Reverted,
}

/// A node that can be asked about contracts. An implementation bounds each question in time and its answer in bytes
/// ([`crate::decode::evm::calls::MAX_RETURN_BYTES`], [`super::contract_code::MAX_CODE_BYTES`]), and asks for the block by its hash (EIP-1898), so that no
/// answer is of another fork. A block that the node doesn't have is a transient error.
#[async_trait]
pub trait ContractNode: Send + Sync {
    /// `eth_call` without sender and value.
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<CallAnswer, AskError>;

    /// `eth_getCode`.
    async fn code(&self, address: Address, at: BlockRef) -> Result<Bytes, AskError>;
}
