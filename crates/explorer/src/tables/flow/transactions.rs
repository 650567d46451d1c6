//! What only Flow says of a transaction (`flow_tx_metrics`), and what kinds of things it did (`tx_tags`).

use cairn_store::derived::{ColumnType, IndexDef, TableClass, TableDef, column};

use crate::names::{TX_CONTRACTS_WORKER, TX_METRICS_WORKER};
use crate::tables::LARGE_PARTITION_HEIGHTS;

/// Beside `tx_metrics`, whose `gas_used` is the computation and whose `fee` is in units of 10^-8 FLOW.
///
/// `status_code` is 0 where it succeeded; `error_message` is cleaned and cut. Efforts are in units of 10^-8 and null where no fee was deducted.
/// EVM transactions count where they were executed, failed ones too.
pub static FLOW_TX_METRICS: TableDef = TableDef {
    name: "flow_tx_metrics",
    service: TX_METRICS_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("is_system", ColumnType::Bool),
        column("status_code", ColumnType::Int),
        column("error_message", ColumnType::Text).nullable(),
        column("computation_limit", ColumnType::Amount),
        column("computation_used", ColumnType::Amount),
        column("inclusion_effort", ColumnType::Amount).nullable(),
        column("execution_effort", ColumnType::Amount).nullable(),
        column("evm_transaction_count", ColumnType::Int),
        column("evm_gas_used", ColumnType::Amount),
    ],
    key: &["block_height", "transaction_id", "transaction_index"],
    indexes: &[],
};

/// Tags of transactions. `by_tag` lists the transactions of a tag.
///
/// `system` and `scheduled` (the chain itself made it; it ran a scheduled call), `failed`, `evm`, `ft`, `nft`, `account-created`, `key-added`,
/// `key-revoked`, `contract-added`, `contract-updated`, `contract-removed`, `coa-created`, `staking`, `bridge` (between Cadence and EVM): the latter two of the network's own contracts alone.
pub static TX_TAGS: TableDef = TableDef {
    name: "tx_tags",
    service: TX_CONTRACTS_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("tag", ColumnType::Text),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
    ],
    key: &["block_height", "transaction_id", "transaction_index", "tag"],
    indexes: &[IndexDef { name: "by_tag", columns: &["tag", "block_height", "transaction_index"] }],
};
