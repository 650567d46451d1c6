//! Contracts of the EVM side, asked by scripts: what enrichers of EVM chains ask of their node, of one of Flow.

use std::sync::Arc;

use alloy_primitives::{Address, hex};
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_flow::Network;
use cairn_pipeline::derive::processor::AskError;

use super::node::ScriptNode;
use super::scripts::{self, Found};
use crate::processors::evm::node::{CallAnswer, ContractNode};

/// A node of Flow as one of its EVM side.
pub(super) struct EvmContracts {
    pub node: Arc<dyn ScriptNode>,
    pub network: Network,
}

impl EvmContracts {
    async fn run(&self, script: &str, arguments: &[&[u8]], at: BlockRef) -> Result<Found, AskError> {
        let arguments = arguments.iter().map(|bytes| scripts::text(&hex::encode(bytes))).collect();
        scripts::run(&*self.node, self.network, script, arguments, at).await
    }
}

#[async_trait]
impl ContractNode for EvmContracts {
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<CallAnswer, AskError> {
        let script = scripts::evm_call(self.network);
        let found = self.run(&script, &[to.as_slice(), &input], at).await?;
        match found.is("successful") {
            true => Ok(CallAnswer::Returned(bytes_of(&found, "data")?)),
            false => Ok(CallAnswer::Reverted),
        }
    }

    async fn code(&self, address: Address, at: BlockRef) -> Result<Bytes, AskError> {
        let found = self.run(&scripts::evm_code(self.network), &[address.as_slice()], at).await?;
        bytes_of(&found, "code")
    }
}

/// Bytes that a script of ours gave as hex.
fn bytes_of(found: &Found, name: &str) -> Result<Bytes, AskError> {
    let digits = found.str(name).ok_or_else(|| AskError::last(format!("the script gave no {name}")))?;
    match hex::decode(digits) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => Err(AskError::last(format!("the script's {name} is no hex: {error}"))),
    }
}
