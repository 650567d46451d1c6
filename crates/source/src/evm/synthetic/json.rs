//! Synthetic blocks as a node's JSON, for mock nodes.

use cairn_core::RawBlock;
use cairn_evm::EvmError;
use cairn_evm::views::BlockView;
use serde_json::Value;

/// The block as `eth_getBlockByNumber` answers it with whole transactions, and its receipts as `eth_getBlockReceipts` does.
pub fn to_rpc_json(block: &RawBlock) -> Result<(Value, Vec<Value>), EvmError> {
    let view = BlockView::decode(block.into(), None)?;
    Ok((view.block_json(true)?.0, view.receipts_json()?.into_iter().map(|receipt| receipt.0).collect()))
}
