//! A block as its mappers see it: decoded once for all of them, and its token movements read once.

use std::sync::{Arc, OnceLock};

use cairn_core::StoredBlock;
use cairn_evm::{DecodedBlock, DecodedTx};
use cairn_pipeline::derive::processor::ProcessError;

use super::moves::{self, Moves};
use crate::decode::evm::wrapped::WrappedTokens;
use crate::processors::Settings;
use crate::processors::shared::Shared;

/// The blocks of a chain, as the mappers of this process share them.
#[derive(Clone)]
pub(super) struct EvmBlocks {
    wrapped: WrappedTokens,
    shared: Arc<Shared<EvmBlock>>,
}

/// A decoded block.
pub struct EvmBlock {
    wrapped: WrappedTokens,
    decoded: DecodedBlock,
    /// One for each transaction. All at once: what ranges of ids a transaction may name depends on those before it in the block.
    moves: OnceLock<Vec<Moves>>,
}

impl EvmBlocks {
    pub fn of(settings: &Settings) -> Self {
        EvmBlocks { wrapped: settings.wrapped.clone(), shared: settings.evm_blocks.clone() }
    }

    /// Decodes the parts of a block that were read; not its traces.
    pub fn get(&self, stored: &StoredBlock) -> Result<Arc<EvmBlock>, ProcessError> {
        let read = |stored: &StoredBlock| {
            let decoded = DecodedBlock::decode(stored).map_err(|error| ProcessError {
                block: stored.facts.block_ref(),
                message: error.to_string(),
            })?;
            Ok(EvmBlock { wrapped: self.wrapped.clone(), decoded, moves: OnceLock::new() })
        };
        if stored.traces.is_none() {
            return self.shared.get(stored, read);
        }
        // One of the mappers reads them too; without them its block is that of the others.
        self.shared.get(&StoredBlock { traces: None, ..stored.clone() }, read)
    }
}

impl EvmBlock {
    /// All transactions, in order.
    pub(super) fn transactions(&self) -> &[DecodedTx] {
        &self.decoded.transactions
    }

    /// All transactions with their token movements, in order.
    pub(super) fn with_moves(&self) -> impl Iterator<Item = (&DecodedTx, &Moves)> {
        let transactions = &self.decoded.transactions;
        let moves = self.moves.get_or_init(|| moves::of_block(transactions, &self.wrapped));
        transactions.iter().zip(moves)
    }
}
