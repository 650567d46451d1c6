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

/// What is stored of a contract that has no code at the block at which a node was asked, though it logged at or below it.
pub(super) const NO_CODE: &str = "no-code";

/// A node that can be asked about contracts. An implementation bounds each question in time and its answer in bytes
/// ([`crate::decode::evm::calls::MAX_RETURN_BYTES`], [`super::contract_code::MAX_CODE_BYTES`]), and asks for the block by its hash (EIP-1898), which has to be on
/// the node's own chain, so that no answer is of another fork. A block that the node doesn't have, or not there, is a transient error.
#[async_trait]
pub trait ContractNode: Send + Sync {
    /// `eth_call` without sender and value.
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<CallAnswer, AskError>;

    /// `eth_getCode`.
    async fn code(&self, address: Address, at: BlockRef) -> Result<Bytes, AskError>;

    /// The newest block that it calls final, by the policy that the archive has; `None`: it doesn't say.
    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        Ok(None)
    }
}

/// Calls a contract; nothing where it has no code at this block. A call of what has no code returns nothing, as contracts do that say nothing, and no call of it is ever
/// refused. So where nothing is returned the code is asked for, and then the call is made once more: a node may have answered the first from another state than the code.
pub(super) async fn call_code(
    node: &dyn ContractNode,
    to: Address,
    input: Vec<u8>,
    at: BlockRef,
) -> Result<Option<CallAnswer>, AskError> {
    match node.call(to, input.clone(), at).await? {
        CallAnswer::Returned(nothing) if nothing.is_empty() => {}
        answer => return Ok(Some(answer)),
    }
    if node.code(to, at).await?.is_empty() {
        return Ok(None);
    }
    node.call(to, input, at).await.map(Some)
}
