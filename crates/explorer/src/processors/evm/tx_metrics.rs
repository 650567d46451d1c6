//! `tx_metrics_worker`: what a transaction used, paid and did.

use std::sync::Arc;

use alloy_primitives::U256;
use cairn_core::{Parts, StoredBlock};
use cairn_evm::{DecodedReceipt, DecodedTx};
use cairn_pipeline::derive::processor::{
    FaultLabels, Malformed, Mapper, Output, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::Severity;

use super::EvmBlocks;
use crate::names::TX_METRICS_WORKER;
use crate::processors::Settings;
use crate::tables::status_name;
use crate::tables::transactions::{TX_METRICS, TxMetrics};

/// What it says of itself.
pub static SERVICE: ServiceInfo =
    ServiceInfo { name: TX_METRICS_WORKER, version: 3, upstreams: &[], tables: &[&TX_METRICS] };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(TxMetricsWorker { blocks: EvmBlocks::of(settings) })))
}

struct TxMetricsWorker {
    blocks: EvmBlocks,
}

impl Mapper for TxMetricsWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        for (tx, moves) in decoded.with_moves() {
            if tx.receipt.is_missing {
                out.malformed(without_receipt(tx));
                continue;
            }
            let row = TxMetrics {
                block_height: block.facts.height.get(),
                transaction_id: tx.id.0.to_vec().into(),
                transaction_index: tx.index,
                block_timestamp_ms: block.facts.timestamp_ms,
                status: status_name(tx.status).into(),
                gas_used: tx.receipt.gas_used,
                fee: fee(&tx.receipt),
                value: tx.value,
                event_count: tx.receipt.logs.len() as u64,
                ft_transfer_count: moves.count(false),
                nft_transfer_count: moves.count(true),
            };
            out.row(&TX_METRICS, row.to_row());
        }
        Ok(())
    }
}

/// Nothing is known of what it used and did, and `tx_metrics` can't say that: it has no row of this one.
fn without_receipt(tx: &DecodedTx) -> Malformed {
    Malformed {
        transaction_id: tx.id.to_string(),
        severity: Severity::Warn,
        message: "its node has no receipt of it: its outcome, gas and logs are not known".into(),
        raw_data: Vec::new(),
        event_index: None,
        labels: FaultLabels::only("receipt"),
    }
}

/// All that was paid: gas, blobs, and the data on the chain below. `None` where a part isn't known (E07) or the sum isn't possible.
fn fee(receipt: &DecodedReceipt) -> Option<U256> {
    let product = |units: u64, price: u128| U256::from(units) * U256::from(price);
    let gas = product(receipt.gas_used, receipt.effective_gas_price?);
    let blobs = match receipt.blob_gas_used {
        Some(units) if units > 0 => product(units, receipt.blob_gas_price?),
        _ => U256::ZERO,
    };
    gas.checked_add(blobs)?.checked_add(receipt.l1_fee.unwrap_or_default())
}
