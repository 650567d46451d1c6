//! `evm_chain_worker`: whether the EVM chain on Flow is whole (F04).
//!
//! Not every Flow block has an EVM block: that is no fault, and `evm_absences` says where. But the EVM blocks that there are follow each other: each
//! height is one more than the last one's, and each block's parent is the last one. Where that doesn't hold, it is reported as an error and has a row
//! in `evm_gaps`, and the chain goes on from what is there. `cairn repair` asks nodes for what is missing; when it comes, the chain is folded anew.
//!
//! An EVM block whose transactions stand in several Flow blocks, because the system's transaction failed that should have closed it, is put together
//! here: `evm_splits` says whether its parts are all (F05). Their gas and places are compared; the root of its hashes can't be, since no part has all.

use std::sync::Arc;

use cairn_flow::Network;
use cairn_pipeline::derive::processor::{
    Changes, FaultLabels, FoldBlock, Folder, Malformed, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::{Row, Severity, TableDef};

use crate::names::{EVM_CHAIN_WORKER, EVM_WORKER};
use crate::processors::Settings;
use crate::tables::flow::evm::{
    EVM_ABSENCES, EVM_BLOCKS, EVM_CHAIN, EVM_GAPS, EvmBlockRow, EvmBlocksOf, EvmChain, evm_absence,
    evm_chain, evm_chain_counts, evm_gap,
};
use crate::tables::flow::evm_splits::{
    EVM_BLOCK_PARTS, EVM_SPLITS, EvmBlockPart, EvmSplit, evm_split, evm_split_is_complete,
};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: EVM_CHAIN_WORKER,
    version: 3,
    upstreams: &[EVM_WORKER],
    tables: &[&EVM_CHAIN, &EVM_GAPS, &EVM_ABSENCES, &EVM_SPLITS],
};

static READS: &[&TableDef] = &[&EVM_BLOCKS, &EVM_BLOCK_PARTS];

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Folder(Arc::new(EvmChainWorker { network: settings.network? })))
}

struct EvmChainWorker {
    network: Network,
}

impl Folder for EvmChainWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let rows = block.rows.first().copied().unwrap_or_default();
        // By key, which is by EVM height.
        let blocks: Vec<EvmBlockRow> = rows
            .iter()
            .map(EvmBlockRow::from_row)
            .collect::<Result<_, _>>()
            .map_err(|error| error.in_block(block.facts.block_ref()))?;
        let chain_id = self.network.evm_chain_id();
        let mut missing = 0;
        for pair in blocks.windows(2) {
            let [last, next] = pair else { continue };
            let next = (next.evm_height, next.evm_parent_hash);
            let height = block.facts.height.get();
            missing += follow((last.evm_height, last.evm_hash), next, height, changes);
        }
        let of = blocks.first().zip(blocks.last()).map(|(first, last)| EvmBlocksOf {
            first: (first.evm_height, first.evm_parent_hash),
            last: (last.evm_height, last.evm_hash),
            count: blocks.len() as i64,
        });
        changes.change(&EVM_CHAIN, evm_chain(chain_id, of));
        if missing > 0 {
            changes.change(&EVM_CHAIN, evm_chain_counts(chain_id, 0, missing));
        }
        for row in block.rows.get(1).copied().unwrap_or_default() {
            let part =
                EvmBlockPart::from_row(row).map_err(|error| error.in_block(block.facts.block_ref()))?;
            changes.change(&EVM_SPLITS, evm_split(&part));
        }
        Ok(())
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
        if table == EVM_SPLITS.name {
            let before = before.map(EvmSplit::from_row).transpose();
            match (before, EvmSplit::from_row(after)) {
                (Ok(before), Ok(after)) => put_together(before, after, changes),
                (Err(error), _) | (_, Err(error)) => report(unread(table, &error), changes),
            }
            return;
        }
        if table != EVM_CHAIN.name {
            return;
        }
        let before = before.map(EvmChain::from_row).transpose();
        let (before, after_row) = match (before, EvmChain::from_row(after)) {
            (Ok(before), Ok(after_row)) => (before, after_row),
            (Err(error), _) | (_, Err(error)) => return report(unread(table, &error), changes),
        };
        // Before the first EVM block there is nothing to follow.
        let Some(last) = before.and_then(|before| before.last) else { return };
        let chain_id = self.network.evm_chain_id();
        let height =
            after.0.last().and_then(cairn_store::derived::Value::as_height).map_or(0, |height| height.get());
        match after_row.first_of_block {
            None => {
                changes.change(&EVM_CHAIN, evm_chain_counts(chain_id, 1, 0));
                changes.change(&EVM_ABSENCES, evm_absence(last.0, height));
            }
            Some(next) => {
                let missing = follow(last, next, height, changes);
                if missing > 0 {
                    changes.change(&EVM_CHAIN, evm_chain_counts(chain_id, 0, missing));
                }
            }
        }
    }
}

/// Says whether a split EVM block is complete, once it is closed or can't be any more.
fn put_together(before: Option<EvmSplit>, after: EvmSplit, changes: &mut Changes) {
    if after.is_complete.is_some() {
        // Known before, or told by the worker that saw the part.
        return;
    }
    let came = before.map_or(0, |before| before.transaction_count);
    let has_hole = after.first_index.is_some_and(|first| first != came);
    let is_complete = match after.closed_gas_used {
        _ if has_hole => false,
        Some(gas_used) => gas_used == after.gas_used && after.transaction_count > 0,
        None => return,
    };
    changes.change(&EVM_SPLITS, evm_split_is_complete(after.evm_height, is_complete));
    if !is_complete {
        let says = after.closed_gas_used.map_or_else(String::new, |gas_used| format!(" of {gas_used}"));
        report(
            format!(
                "EVM block {} has {} transactions with {} gas{says} in the Flow blocks {} to {}: some are missing",
                after.evm_height,
                after.transaction_count,
                after.gas_used,
                after.first_height,
                after.last_height
            ),
            changes,
        );
    }
}

fn unread(table: &str, error: &impl std::fmt::Display) -> String {
    format!("a row of {table} can't be read ({error}), so nobody looked whether EVM blocks are missing here")
}

fn report(message: String, changes: &mut Changes) {
    changes.malformed(Malformed {
        transaction_id: String::new(),
        severity: Severity::Fatal,
        message,
        raw_data: Vec::new(),
        event_index: None,
        labels: FaultLabels::only("evm-chain"),
    });
}

/// Holds a block against the last one; says how many blocks are missing between them.
fn follow(
    last: (u64, alloy_primitives::B256),
    next: (u64, alloy_primitives::B256),
    height: u64,
    changes: &mut Changes,
) -> i64 {
    let wanted = last.0.saturating_add(1);
    if next.0 > wanted {
        let missing = format!("EVM blocks {wanted} to {} are missing", next.0 - 1);
        report(format!("{missing}: block {} follows block {}", next.0, last.0), changes);
        changes.change(&EVM_GAPS, evm_gap("gap", wanted, next.0 - 1, height));
        // A count that many faults may be added to.
        return (next.0 - wanted).min(1 << 40) as i64;
    }
    if next.0 < wanted {
        report(format!("EVM block {} follows block {}: it comes again, or late", next.0, last.0), changes);
        changes.change(&EVM_GAPS, evm_gap("repeat", next.0, last.0, height));
    } else if next.1 != last.1 {
        let parents = format!("has the parent {}, the block before it is {}", next.1, last.1);
        report(format!("EVM block {} {parents}", next.0), changes);
        changes.change(&EVM_GAPS, evm_gap("fork", next.0, next.0, height));
    }
    0
}
