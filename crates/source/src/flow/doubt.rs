//! Blocks whose EVM side contradicts itself (F05): what is done before one is taken all the same.
//!
//! A node that left an event out gives a whole block another time, or another node does. Where several nodes give the same, or one node several times,
//! it is what the chain has: it is taken, and marked. A chain whose EVM blocks never fit would be asked for each block that often; so after some in a
//! row the first answer is taken, until a block fits again.

use std::time::Duration;

use cairn_core::{Height, RawBlock};
use cairn_flow::Checks;
use cairn_flow::evm_blocks::{EvmBlocks, evm_blocks};

use super::node::Node;
use crate::{Result, SourceError};

/// How often all nodes are asked again, and after which pause each.
pub(super) const MOST_AGAIN: u32 = 2;
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// So many nodes that give the same are believed.
const AGREEING_NODES: usize = 2;
/// So many same answers are, of whichever node.
const SAME_ANSWERS: u32 = MOST_AGAIN + 1;
/// After so many blocks in a row one answer is.
const MOST_IN_A_ROW: u32 = 3;

/// Answers for one block that contradict themselves. Only the last one is kept, and who gave the same right before.
#[derive(Debug, Default)]
pub(super) struct Doubted {
    last: Option<RawBlock>,
    nodes: Vec<usize>,
    answers: u32,
}

impl Doubted {
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// One more answer.
    pub fn add(&mut self, node: usize, block: RawBlock) {
        let is_same = self.last.as_ref().is_some_and(|last| {
            last.facts.id == block.facts.id && last.body == block.body && last.receipts == block.receipts
        });
        if !is_same {
            (self.nodes, self.answers) = (Vec::new(), 0);
        }
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
        self.answers += 1;
        self.last = Some(block);
    }

    /// The block, marked, where it is believed; `in_a_row` of the blocks before were.
    pub fn take_agreed(&mut self, in_a_row: u32) -> Option<RawBlock> {
        let is_agreed =
            self.nodes.len() >= AGREEING_NODES || self.answers >= SAME_ANSWERS || in_a_row >= MOST_IN_A_ROW;
        let mut block = self.last.take_if(|_| is_agreed)?;
        tracing::warn!(block = %block.block_ref(), nodes = self.nodes.len(), answers = self.answers, "an EVM block is of other transactions than came; answers agree: taken and marked");
        block.facts.unverified |= Checks::EVM_BLOCK.bits();
        Some(block)
    }
}

/// Holds a block's EVM side against itself.
pub(super) fn evm_side(node: &Node, block: &RawBlock) -> Result<EvmBlocks> {
    evm_blocks(&block.receipts, node.network).map_err(|error| node.refused(block.facts.height.get(), &error))
}

/// What a block that doesn't hold is for whoever asked.
pub(super) fn contradicted(node: &Node, height: u64, message: String) -> SourceError {
    metrics::counter!("cairn_source_check_failures_total", "check" => "evm-block").increment(1);
    SourceError::Inconsistent {
        endpoint: node.name.clone(),
        height: Height(height),
        check: "evm-block".into(),
        message,
    }
}
