//! What the codecs say of stored blocks.

use cairn_core::{IndexKey, StoredBlock};
use cairn_evm::terms::log_terms_of_receipts;
use cairn_evm::{ChainProfile, Checks, check_block};
use cairn_flow::check_stored;
use cairn_flow::terms::terms_of_receipts;
use cairn_pipeline::audit::BlockAuditor;

/// The EVM codec's part.
pub struct EvmAuditor;

impl BlockAuditor for EvmAuditor {
    fn problems(&self, block: &StoredBlock) -> Vec<String> {
        // What was relaxed or impossible when the block was stored is so still; everything else must hold.
        let profile = ChainProfile::relaxing(Checks::of_facts(block.facts.unverified));
        let block = block.clone().without_terms();
        match check_block(&block, &profile) {
            Ok(_) => Vec::new(),
            Err(failure) => vec![failure.to_string()],
        }
    }

    fn log_terms(&self, block: &StoredBlock) -> Result<Vec<IndexKey>, String> {
        log_terms_of_receipts(&block.receipts).map_err(|error| error.to_string())
    }
}

/// The Flow codec's part: the block is put together again from its messages. What is marked as not checked of it, such as its own id, is not checked
/// here either.
pub struct FlowAuditor;

impl BlockAuditor for FlowAuditor {
    fn problems(&self, block: &StoredBlock) -> Vec<String> {
        match check_stored(block) {
            Ok(_) => Vec::new(),
            Err(error) => vec![error.to_string()],
        }
    }

    fn log_terms(&self, block: &StoredBlock) -> Result<Vec<IndexKey>, String> {
        terms_of_receipts(&block.receipts).map_err(|error| error.to_string())
    }
}
