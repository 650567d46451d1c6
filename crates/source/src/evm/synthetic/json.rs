//! Synthetic blocks as a node's JSON, for mock nodes.

use cairn_core::{RawBlock, StoredBlock};
use cairn_evm::EvmError;
use cairn_evm::views::BlockView;
use serde_json::Value;

/// The block as `eth_getBlockByNumber` answers it with whole transactions, and its receipts as `eth_getBlockReceipts` does.
pub fn to_rpc_json(block: &RawBlock) -> Result<(Value, Vec<Value>), EvmError> {
    let view = BlockView::decode(stored(block), None)?;
    Ok((view.block_json(true)?, view.receipts_json()?))
}

/// As a store gives it back with all its parts.
fn stored(block: &RawBlock) -> StoredBlock {
    StoredBlock {
        facts: block.facts,
        transactions: block.transactions.clone(),
        header: block.header.clone(),
        body: block.body.clone(),
        receipts: block.receipts.clone(),
        extras: block.extras.clone(),
        traces: block.traces.clone(),
    }
}
