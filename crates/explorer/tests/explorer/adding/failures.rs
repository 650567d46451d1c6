//! `failures_worker`: transactions that failed, by sender. From what every chain can say, so no codec is needed.

use std::sync::Arc;

use cairn_core::{Parts, StoredBlock, TxStatus};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{ColumnType, IndexDef, Row, TableClass, TableDef, Value, column};

use super::Settings;
use crate::tables::LARGE_PARTITION_HEIGHTS;

/// What it says of itself.
pub static SERVICE: ServiceInfo =
    ServiceInfo { name: "failures_worker", version: 1, upstreams: &[], tables: &[&FAILED_TRANSACTIONS] };

/// A row for each transaction that failed.
pub static FAILED_TRANSACTIONS: TableDef = TableDef {
    name: "failed_transactions",
    service: "failures_worker",
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("sender_address", ColumnType::Bytes),
    ],
    key: &["block_height", "transaction_id"],
    indexes: &[IndexDef {
        name: "by_sender",
        columns: &["sender_address", "block_height", "transaction_index"],
    }],
};

/// Makes it.
pub fn make(_settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(FailuresWorker)))
}

struct FailuresWorker;

impl Mapper for FailuresWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        Parts::TRANSACTIONS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        for (index, tx) in block.transactions.iter().enumerate() {
            if tx.status == TxStatus::Failed {
                let row = vec![
                    Value::height(block.facts.height),
                    Value::bytes(&tx.id.0),
                    Value::uint(index as u64),
                    Value::uint(block.facts.timestamp_ms),
                    Value::Bytes(tx.sender.clone()),
                ];
                out.row(&FAILED_TRANSACTIONS, Row(row));
            }
        }
        Ok(())
    }
}
