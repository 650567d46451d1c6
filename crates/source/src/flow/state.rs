//! What a node says of the chain's state at a block: scripts and accounts.
//!
//! **Limits.** Nodes ration these calls; they have a pace of their own ([`super::NodeConfig::scripts_per_s`]) and use up the common one too. One that is
//! refused for coming too soon is the caller's to ask again. What else one node fails at is asked of the others of the same heights.

use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_flow::{FlowAddress, proto};

use super::FlowSource;
use super::classify::Refusal;
use super::node::{Call, Node};
use super::pool::{Tried, Want};
use crate::{Result, SourceError};

/// What a script gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    /// The value that it returned, as JSON-CDC.
    Returned(Bytes),
    /// It failed, in the node's words: it doesn't check, it panicked, it took too much. It would again.
    Failed(String),
}

impl FlowSource {
    /// Runs a script against the state that a block left, each argument as JSON-CDC. The block is named by its id, so that the answer is of no
    /// other fork.
    ///
    /// [`SourceError::Permanent`]: no node has this call, or keeps state that old.
    pub async fn execute_script(&self, at: BlockRef, script: &str, arguments: Vec<Bytes>) -> Result<Script> {
        let question = proto::ExecuteScriptAtBlockIdRequest {
            block_id: Bytes::copy_from_slice(at.id.as_bytes()),
            script: Bytes::copy_from_slice(script.as_bytes()),
            arguments,
        };
        let mut tried = Tried::default();
        loop {
            let node = self.pool.next(Want::Height(at.height.get()), &mut tried).await?;
            match script_of(node, at, question.clone()).await {
                Err(error) => not_answered(&mut tried, node, error)?,
                answer => return answer,
            }
        }
    }

    /// An account as it is at a block: balance, keys, contracts. `None`: there is none.
    ///
    /// Asked for by height, since nodes answer it by nothing else.
    pub async fn account(&self, at: BlockRef, address: FlowAddress) -> Result<Option<proto::Account>> {
        let mut tried = Tried::default();
        loop {
            let node = self.pool.next(Want::Height(at.height.get()), &mut tried).await?;
            match self.account_of(node, at, address).await {
                Err(error) => not_answered(&mut tried, node, error)?,
                answer => return answer,
            }
        }
    }

    async fn account_of(
        &self,
        node: &Node,
        at: BlockRef,
        address: FlowAddress,
    ) -> Result<Option<proto::Account>> {
        let question = proto::GetAccountAtBlockHeightRequest {
            address: Bytes::copy_from_slice(&address.0),
            block_height: at.height.get(),
        };
        match node.ask::<_, proto::AccountResponse>(Call::AccountAtBlockHeight, question).await {
            Ok(proto::AccountResponse { account: Some(account) }) => Ok(Some(account)),
            Ok(proto::AccountResponse { account: None }) => Err(SourceError::Transient {
                endpoint: node.name.clone(),
                message: format!("its answer to a question for an account at {at} has none in it"),
            }),
            // That the height isn't there, or not its state, is no answer.
            Err(Refusal::NoAccount) if self.linked(node, at).await? => Ok(None),
            Err(refusal) => Err(error_of(node, at, refusal)),
        }
    }

    /// Whether the node has this block.
    async fn linked(&self, node: &Node, at: BlockRef) -> Result<bool> {
        let found = self.header_of(node, at.height.get()).await?;
        Ok(found.is_some_and(|linked| linked.block == at))
    }
}

/// A script that failed is an answer too.
async fn script_of(
    node: &Node,
    at: BlockRef,
    question: proto::ExecuteScriptAtBlockIdRequest,
) -> Result<Script> {
    match node.ask::<_, proto::ExecuteScriptResponse>(Call::ExecuteScriptAtBlockId, question).await {
        Ok(answer) => Ok(Script::Returned(answer.value)),
        Err(Refusal::ScriptFailed(message) | Refusal::TooLarge(message)) => Ok(Script::Failed(message)),
        Err(refusal) => Err(error_of(node, at, refusal)),
    }
}

/// The next node is asked, unless this one only wants to be asked later.
fn not_answered(tried: &mut Tried, node: &Node, error: SourceError) -> Result<()> {
    if matches!(error, SourceError::RateLimited { .. }) {
        return Err(error);
    }
    tried.failed(node, error);
    Ok(())
}

fn error_of(node: &Node, at: BlockRef, refusal: Refusal) -> SourceError {
    // It says so of state that it doesn't have, too: another node may.
    if let Refusal::BadRequest(message) = refusal {
        let endpoint = node.name.clone();
        return SourceError::Transient {
            endpoint,
            message: format!("it could not answer at block {at}: {message}"),
        };
    }
    refusal.into_error(&node.name).unwrap_or_else(|| SourceError::Transient {
        endpoint: node.name.clone(),
        message: format!("it doesn't have block {at} yet, or no longer its state"),
    })
}
