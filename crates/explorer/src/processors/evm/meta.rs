//! `meta_worker`: contracts, who created them and where.
//!
//! From receipts, and from call traces where they are archived: only those show what contracts created. A creation that failed
//! made no contract (E09); one of which the chain doesn't say how it ended is there and flagged.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, keccak256};
use cairn_core::{Parts, StoredBlock, TxStatus};
use cairn_evm::{DecodedTx, created_contracts};
use cairn_pipeline::derive::processor::{
    FaultLabels, Malformed, Mapper, Output, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::Severity;

use super::EvmBlocks;
use crate::names::META_WORKER;
use crate::processors::Settings;
use crate::tables::contracts::{SMART_CONTRACTS, SmartContract};

/// What it says of itself.
pub static SERVICE: ServiceInfo =
    ServiceInfo { name: META_WORKER, version: 1, upstreams: &[], tables: &[&SMART_CONTRACTS] };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(MetaWorker { blocks: EvmBlocks::of(settings) })))
}

struct MetaWorker {
    blocks: EvmBlocks,
}

impl Mapper for MetaWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS | Parts::TRACES
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        let traces = created_contracts(block).unwrap_or_else(|error| {
            // A tracer of another kind, or a broken one: what the receipts say stays right.
            out.malformed(Malformed {
                transaction_id: String::new(),
                severity: Severity::Warn,
                message: error.to_string(),
                raw_data: Vec::new(),
                event_index: None,
                labels: FaultLabels::only("trace"),
            });
            None
        });
        for (at, tx) in decoded.transactions().iter().enumerate() {
            // An address that was created twice in one transaction keeps the later creation.
            let mut created: BTreeMap<Address, SmartContract> = BTreeMap::new();
            if let Some(address) = tx.created_contract() {
                created.insert(address, created_by(block, tx, address));
            }
            let traced = traces.as_ref().and_then(|traces| traces.get(at));
            for inner in traced.into_iter().flatten().filter(|inner| !inner.is_top_level) {
                if tx.status == TxStatus::Failed {
                    break;
                }
                let contract = SmartContract {
                    creator_address: Some(super::bytes(inner.creator)),
                    init_code_hash: inner.init_code_hash.map(|hash| hash.to_vec().into()),
                    is_internal: true,
                    ..contract(block, tx, inner.address)
                };
                created.insert(inner.address, contract);
            }
            for contract in created.values() {
                out.row(&SMART_CONTRACTS, contract.to_row());
            }
        }
        Ok(())
    }
}

/// The contract that a transaction itself created.
pub(in crate::processors) fn created_by(
    block: &StoredBlock,
    tx: &DecodedTx,
    address: Address,
) -> SmartContract {
    SmartContract {
        creator_address: tx.sender.map(super::bytes),
        init_code_hash: tx.input.as_ref().map(|code| keccak256(code).to_vec().into()),
        ..contract(block, tx, address)
    }
}

fn contract(block: &StoredBlock, tx: &DecodedTx, address: Address) -> SmartContract {
    SmartContract {
        block_height: block.facts.height.get(),
        address: super::bytes(address),
        contract_name: String::new(),
        transaction_id: tx.id.0.to_vec().into(),
        transaction_index: tx.index,
        block_timestamp_ms: block.facts.timestamp_ms,
        creator_address: None,
        init_code_hash: None,
        is_internal: false,
        is_confirmed: tx.status == TxStatus::Ok,
    }
}
