//! `tx_metrics_worker`: what a transaction used, paid and did. One whose computation has 64 bits, as no honest node says it, is reported and has no row
//! in `tx_metrics`.

use std::sync::Arc;

use cairn_core::{Parts, StoredBlock};
use cairn_flow::DecodedTx;
use cairn_pipeline::derive::processor::{
    FaultLabels, Malformed, Mapper, Output, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::{Row, Severity, U256, Value};

use super::FlowBlocks;
use crate::decode::flow::{FtKind, fees};
use crate::decode::{TextLimit, clean};
use crate::names::TX_METRICS_WORKER;
use crate::processors::Settings;
use crate::tables::flow::transactions::FLOW_TX_METRICS;
use crate::tables::transactions::{TX_METRICS, TxMetrics};
use crate::tables::{opt, status_name};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TX_METRICS_WORKER,
    version: 4,
    upstreams: &[],
    tables: &[&TX_METRICS, &FLOW_TX_METRICS],
};

/// The longest error message that a row keeps: the raw store has it whole.
const ERROR_LIMIT: TextLimit = TextLimit { chars: 2_000, bytes: 4_000 };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(TxMetricsWorker { blocks: FlowBlocks::of(settings)? })))
}

struct TxMetricsWorker {
    blocks: FlowBlocks,
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
        let amount = |number: u64| Value::Amount(U256::from(number));
        for placed in decoded.each() {
            let (index, tx, moves) = (placed.index, placed.tx, placed.moves());
            let fees = fees(&tx.events, self.blocks.network);
            // What the chain itself does is free. Elsewhere, no event: what was paid isn't known (E07).
            let paid = fees.map(|fees| fees.amount).or_else(|| tx.is_system.then_some(0));
            let computation = tx.result.computation_usage;
            let in_evm = |is_nft| placed.evm().iter().map(|evm| evm.moves.count(is_nft)).sum::<u64>();
            let fungible = moves.fungible.iter().filter(|moved| moved.kind != FtKind::Fee).count();
            let row = TxMetrics {
                block_height: block.facts.height.get(),
                transaction_id: super::id(tx),
                transaction_index: index,
                block_timestamp_ms: block.facts.timestamp_ms,
                status: status_name(tx.status()).into(),
                gas_used: computation,
                fee: paid.map(U256::from),
                value: None,
                event_count: tx.events.len() as u64,
                ft_transfer_count: fungible as u64 + in_evm(false),
                nft_transfer_count: moves.non_fungible.len() as u64 + in_evm(true),
            };
            if i64::try_from(computation).is_ok() {
                out.row(&TX_METRICS, row.to_row());
            } else {
                out.malformed(immeasurable(tx, computation));
            }

            let (mut evm_count, mut evm_gas) = (0u64, U256::ZERO);
            for (executed, _) in
                placed.executions().filter_map(|(_, execution)| execution.executed.as_ref().ok())
            {
                evm_count += 1;
                evm_gas += U256::from(executed.gas_used);
            }
            let error = &tx.result.error_message;
            out.row(
                &FLOW_TX_METRICS,
                Row(vec![
                    Value::height(block.facts.height),
                    Value::Bytes(super::id(tx)),
                    Value::uint(index.into()),
                    Value::uint(block.facts.timestamp_ms),
                    Value::Bool(tx.is_system),
                    Value::uint(tx.result.status_code.into()),
                    opt(Some(error).filter(|error| !error.is_empty()), |error| {
                        Value::text(clean(error, ERROR_LIMIT))
                    }),
                    amount(tx.transaction.gas_limit),
                    amount(computation),
                    opt(fees.and_then(|fees| fees.inclusion_effort), amount),
                    opt(fees.and_then(|fees| fees.execution_effort), amount),
                    Value::uint(evm_count),
                    Value::Amount(evm_gas),
                ]),
            );
        }
        Ok(())
    }
}

/// No transaction computes that much, and `tx_metrics` can't say it: it has no row of this one. `flow_tx_metrics` has the number.
fn immeasurable(tx: &DecodedTx, computation: u64) -> Malformed {
    Malformed {
        transaction_id: tx.id.to_string(),
        severity: Severity::Warn,
        message: format!("its computation of {computation} is 2^63 or more"),
        raw_data: Vec::new(),
        event_index: None,
        labels: FaultLabels::only("computation"),
    }
}
