//! Replacing single blocks of the memory store.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::Parts;

use super::MemoryStore;
use super::state::stored;
use crate::{RawReplacer, Replacement, Result, StoreError, is_to_replace};

#[async_trait]
impl RawReplacer for MemoryStore {
    async fn replace_block(&self, replacement: Replacement) -> Result<()> {
        replacement.check()?;
        let Replacement { block, read } = replacement;
        self.commit("replace_block", |state| {
            let (height, range) = (block.facts.height, state.head()?.range());
            if !range.contains(height) {
                return Err(StoreError::Invalid(format!(
                    "replace: block {} is outside the chain {range}",
                    block.block_ref()
                )));
            }
            let now = state.blocks.get(&height).map(|now| stored(now, Parts::all()));
            if is_to_replace(&block, &read, now.as_ref())? {
                state.take_block(height);
                state.put_block(Arc::new(block));
            }
            Ok(())
        })
    }
}
