//! Tokens whose contract was destroyed: that is said of them, and not that they say nothing.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef};
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_explorer::processors::{Settings, evm_processors};
use cairn_pipeline::derive::processor::AskError;

use super::endpoints::Document;
use super::world::{World, limits, transfer};
use crate::support::made;

const TOKEN: Address = Address::repeat_byte(0xcd);

/// A node whose contracts return nothing, and have this code.
struct Nothing {
    code: &'static [u8],
}

#[async_trait]
impl ContractNode for Nothing {
    async fn call(&self, _: Address, _: Vec<u8>, _: BlockRef) -> Result<CallAnswer, AskError> {
        Ok(CallAnswer::Returned(Bytes::new()))
    }

    async fn code(&self, _: Address, _: BlockRef) -> Result<Bytes, AskError> {
        Ok(Bytes::from_static(self.code))
    }
}

#[tokio::test(start_paused = true)]
async fn e03_a_token_whose_contract_is_gone_is_told_from_one_that_says_nothing() {
    const NONE: &[u8] = &[];
    const SOME: &[u8] = &[0x60];
    for (code, status) in [(NONE, "no-code"), (SOME, "silent")] {
        let moved = transfer(TOKEN, Address::ZERO, Address::repeat_byte(0xaa), U256::from(1));
        let chain = made::chain(0, 2, BlockId::default(), 0, |_| vec![vec![moved.clone()]]);
        let world = World::with(chain, limits()).await;
        let node: Arc<dyn ContractNode> = Arc::new(Nothing { code });
        let path = format!("/v1/tokens/{TOKEN}");
        let processors = evm_processors(&Settings { node: Some(node), ..Settings::default() });
        let is_asked = async || world.get(&path).await.json["data"]["token"].is_object();
        world.derive_until(processors, is_asked).await;
        let reply = world.get(&path).await;
        Document::read(&world).await.check(&path, &reply);
        assert_eq!(reply.json["data"]["token"]["status"], status);
    }
}
