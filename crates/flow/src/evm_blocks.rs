//! Whether EVM blocks are of the EVM transactions that came with them (F05).
//!
//! `EVM.BlockExecuted` has the gas of all transactions of its EVM block, and since some version the root over their hashes. So a node that left an
//! `EVM.TransactionExecuted` out of a Flow block contradicts itself, though nothing else in the block shows it.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::B256;
use bytes::Bytes;
use prost::Message;

use crate::evm::{EvmBlock, executed_outline, transaction_hash_root};
use crate::proto::TransactionResult;
use crate::{CdcValue, FlowError, Network, wire};

/// What the EVM blocks that a Flow block closes say of the EVM transactions in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvmBlocks {
    /// Nothing: it closes none; or one that began in an earlier Flow block, so that what is here needn't be all (F04); or what it says can't be read.
    Unsaid,
    /// They are all of each block.
    Whole,
    /// They are not: in words.
    Contradicted(String),
}

/// What came of an EVM block.
#[derive(Debug, Default)]
struct Came {
    first_index: u64,
    hashes: Vec<B256>,
    gas_used: u64,
}

/// Holds the EVM blocks of the network's own contract against the EVM transactions, both out of a Flow block's receipts.
pub fn evm_blocks(receipts: &Bytes, network: Network) -> Result<EvmBlocks, FlowError> {
    let service = hex::encode(network.accounts().service.0);
    let (executed, closed) =
        (format!("A.{service}.EVM.TransactionExecuted"), format!("A.{service}.EVM.BlockExecuted"));
    let mut came: BTreeMap<u64, Came> = BTreeMap::new();
    let mut seen: BTreeSet<B256> = BTreeSet::new();
    let mut blocks: Vec<EvmBlock> = Vec::new();
    for range in wire::repeated("receipts", receipts, 1)? {
        let result = TransactionResult::decode(receipts.slice(range))
            .map_err(|error| FlowError::malformed("a result", error))?;
        for event in &result.events {
            if event.r#type == closed {
                let block = CdcValue::parse_event(&event.payload);
                let Ok(block) = block.and_then(|fields| EvmBlock::from_event(&fields)) else {
                    return Ok(EvmBlocks::Unsaid);
                };
                blocks.push(block);
            } else if event.r#type == executed {
                let Some(outline) = executed_outline(&event.payload) else { return Ok(EvmBlocks::Unsaid) };
                if !seen.insert(outline.hash) {
                    continue;
                }
                let first_index = outline.index;
                let came = came
                    .entry(outline.block_height)
                    .or_insert_with(|| Came { first_index, ..Came::default() });
                came.hashes.push(outline.hash);
                came.gas_used = came.gas_used.saturating_add(outline.gas_used);
            }
        }
    }
    let mut answer = EvmBlocks::Unsaid;
    for block in &blocks {
        let Some(came) = came.get(&block.height).filter(|came| came.first_index == 0) else { continue };
        match contradiction(block, came) {
            Some(message) => return Ok(EvmBlocks::Contradicted(message)),
            None => answer = EvmBlocks::Whole,
        }
    }
    Ok(answer)
}

/// The heights of the EVM blocks of the network's own contract that a Flow block closes, out of its receipts. An event that can't be read names none.
pub fn closed_heights(receipts: &Bytes, network: Network) -> Result<Vec<u64>, FlowError> {
    let closed = format!("A.{}.EVM.BlockExecuted", hex::encode(network.accounts().service.0));
    let mut heights = Vec::new();
    for range in wire::repeated("receipts", receipts, 1)? {
        let result = TransactionResult::decode(receipts.slice(range))
            .map_err(|error| FlowError::malformed("a result", error))?;
        for event in result.events.iter().filter(|event| event.r#type == closed) {
            let fields = CdcValue::parse_event(&event.payload);
            heights.extend(fields.and_then(|fields| EvmBlock::from_event(&fields)).map(|block| block.height));
        }
    }
    Ok(heights)
}

fn contradiction(block: &EvmBlock, came: &Came) -> Option<String> {
    let (height, count) = (block.height, came.hashes.len());
    if came.gas_used != block.gas_used {
        let (said, gas_used) = (block.gas_used, came.gas_used);
        return Some(format!(
            "EVM block {height} used {said} gas, the {count} transactions that came {gas_used}"
        ));
    }
    let root = block.transaction_hash_root?;
    (transaction_hash_root(&came.hashes) != root).then(|| {
        format!("EVM block {height} has the root {root} of its transactions' hashes, the {count} that came have another")
    })
}
