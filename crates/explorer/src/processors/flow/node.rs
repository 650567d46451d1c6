//! What enrichers ask of a Flow node.

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_flow::FlowAddress;
use cairn_flow::proto::Account;
use cairn_pipeline::derive::processor::AskError;

/// The longest answer of a script that is read, in bytes of JSON-CDC.
pub const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// What a script gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptAnswer {
    /// The value that it returned, as JSON-CDC.
    Returned(Bytes),
    /// It failed: it didn't check, it panicked, or it took too much. The same script at the same block fails again; the message is the node's. That the node
    /// doesn't have the state of the block is a transient error, and no answer.
    Failed(String),
}

/// An access node that can be asked about contracts. An implementation bounds each question in time and its answer in bytes
/// ([`MAX_ANSWER_BYTES`], and [`super::contract_code::MAX_CODE_BYTES`] for a contract). A block that the node doesn't have yet is a transient error, one
/// that it never had is not.
#[async_trait]
pub trait ScriptNode: Send + Sync {
    /// `ExecuteScriptAtBlockID`, with each argument as JSON-CDC: by the block's id, so that no other fork answers.
    async fn execute(
        &self,
        script: &str,
        arguments: Vec<Vec<u8>>,
        at: BlockRef,
    ) -> Result<ScriptAnswer, AskError>;

    /// `GetAccountAtBlockHeight`: keys and contracts of an account. `None`: there is no such account. Nodes answer it by height alone, which names one block
    /// for ever on sealed chains.
    async fn account(&self, address: FlowAddress, at: BlockRef) -> Result<Option<Account>, AskError>;

    /// The newest block that it calls final, by the policy that the archive has; `None`: it doesn't say.
    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        Ok(None)
    }
}
