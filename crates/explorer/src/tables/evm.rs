//! What only EVM chains have: `evm_transactions` and `evm_logs`, normalised.

use cairn_store::derived::{ColumnType, IndexDef, TableClass, TableDef, column};

use super::LARGE_PARTITION_HEIGHTS;
use crate::names::EVM_WORKER;

/// Transactions. `by_place` lists those of a block, and all of them, newest first.
///
/// `nonce` is an amount, since it has 64 bits; `contract_address` is set only where a contract was created (E09); `effective_gas_price`
/// is null where neither node nor transaction says (E07). `input` is null and `input_hash` (SHA-256) set where there are more than 8 KiB
/// of it; `method` is its first four bytes. `cumulative_gas_used` is null on Flow where a transaction before it in the EVM block isn't in this Flow block, or
/// could not be read; `gas_limit` there too, where it is 2^63 or more. Where the node has no receipt it is null as well, and `gas_used` is 0.
pub static EVM_TRANSACTIONS: TableDef = TableDef {
    name: "evm_transactions",
    service: EVM_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("tx_type", ColumnType::Int).nullable(),
        column("status", ColumnType::Text),
        column("is_injected", ColumnType::Bool),
        column("from_address", ColumnType::Bytes).nullable(),
        column("to_address", ColumnType::Bytes).nullable(),
        column("contract_address", ColumnType::Bytes).nullable(),
        column("nonce", ColumnType::Amount).nullable(),
        column("value", ColumnType::Amount).nullable(),
        column("method", ColumnType::Bytes).nullable(),
        column("input", ColumnType::Bytes).nullable(),
        column("input_length_bytes", ColumnType::Int).nullable(),
        column("input_hash", ColumnType::Bytes).nullable(),
        column("gas_limit", ColumnType::Int).nullable(),
        column("gas_used", ColumnType::Int),
        column("cumulative_gas_used", ColumnType::Int).nullable(),
        column("gas_price", ColumnType::Amount).nullable(),
        column("max_fee_per_gas", ColumnType::Amount).nullable(),
        column("max_priority_fee_per_gas", ColumnType::Amount).nullable(),
        column("max_fee_per_blob_gas", ColumnType::Amount).nullable(),
        column("effective_gas_price", ColumnType::Amount).nullable(),
        column("log_count", ColumnType::Int),
    ],
    key: &["block_height", "transaction_id"],
    indexes: &[IndexDef { name: "by_place", columns: &["block_height", "transaction_index"] }],
};

/// Logs. `log_index` counts in the block, so that with the height it is the full position in the chain. A transaction's logs are a walk
/// of the key.
///
/// `data` is null where there are more than 8 KiB of it: then `payload_hash` is its SHA-256 and `payload_ref` says where the raw store
/// has it, as `raw:HEIGHT/LOG_INDEX`; on Flow as `raw:HEIGHT/EVENT_INDEX/LOG_INDEX`, with the place of the event in its Flow transaction, which
/// `evm_executions` names.
pub static EVM_LOGS: TableDef = TableDef {
    name: "evm_logs",
    service: EVM_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("log_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("topic0", ColumnType::Bytes).nullable(),
        column("topic1", ColumnType::Bytes).nullable(),
        column("topic2", ColumnType::Bytes).nullable(),
        column("topic3", ColumnType::Bytes).nullable(),
        column("data", ColumnType::Bytes).nullable(),
        column("data_length_bytes", ColumnType::Int),
        column("payload_hash", ColumnType::Bytes).nullable(),
        column("payload_ref", ColumnType::Text).nullable(),
    ],
    key: &["block_height", "transaction_id", "log_index"],
    indexes: &[
        IndexDef { name: "by_address", columns: &["address", "block_height", "log_index"] },
        IndexDef { name: "by_topic0", columns: &["topic0", "block_height", "log_index"] },
        IndexDef { name: "by_topic1", columns: &["topic1", "block_height", "log_index"] },
        IndexDef { name: "by_topic2", columns: &["topic2", "block_height", "log_index"] },
        IndexDef { name: "by_topic3", columns: &["topic3", "block_height", "log_index"] },
    ],
};
