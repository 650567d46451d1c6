//! What a transaction used, paid and did (`tx_metrics`), and which contracts it touched (`tx_contracts`).

use bytes::Bytes;
use cairn_store::derived::{ColumnType, IndexDef, Row, TableClass, TableDef, U256, Value, column};

use super::{Fields, LARGE_PARTITION_HEIGHTS, RowError, opt};
use crate::names::{TX_CONTRACTS_WORKER, TX_METRICS_WORKER};

/// `fee` is all that the sender paid to be included, in the chain's smallest unit: gas, blobs and the data on the chain below. Null where a
/// part of it isn't known (E07), never 0.
pub static TX_METRICS: TableDef = TableDef {
    name: "tx_metrics",
    service: TX_METRICS_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("status", ColumnType::Text),
        column("gas_used", ColumnType::Int),
        column("fee", ColumnType::Amount).nullable(),
        column("value", ColumnType::Amount).nullable(),
        column("event_count", ColumnType::Int),
        column("ft_transfer_count", ColumnType::Int),
        column("nft_transfer_count", ColumnType::Int),
    ],
    key: &["block_height", "transaction_id", "transaction_index"],
    indexes: &[],
};

/// A row of [`TX_METRICS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxMetrics {
    /// The block's height.
    pub block_height: u64,
    /// The transaction's id.
    pub transaction_id: Bytes,
    /// Its place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
    /// See [`super::status_name`].
    pub status: String,
    /// Gas that it used.
    pub gas_used: u64,
    /// What was paid; `None` where it isn't known.
    pub fee: Option<U256>,
    /// What it carried.
    pub value: Option<U256>,
    /// Its events.
    pub event_count: u64,
    /// Its rows in `ft_transfers`.
    pub ft_transfer_count: u64,
    /// Its rows in `nft_transfers`.
    pub nft_transfer_count: u64,
}

impl TxMetrics {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            Value::text(self.status.clone()),
            Value::uint(self.gas_used),
            opt(self.fee, Value::Amount),
            opt(self.value, Value::Amount),
            Value::uint(self.event_count),
            Value::uint(self.ft_transfer_count),
            Value::uint(self.nft_transfer_count),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<TxMetrics, RowError> {
        let fields = &mut Fields::of(&TX_METRICS, row);
        Ok(TxMetrics {
            block_height: fields.uint()?,
            transaction_id: fields.bytes()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            status: fields.text()?.into(),
            gas_used: fields.uint()?,
            fee: fields.opt_amount()?,
            value: fields.opt_amount()?,
            event_count: fields.uint()?,
            ft_transfer_count: fields.uint()?,
            nft_transfer_count: fields.uint()?,
        })
    }
}

/// The contracts that a transaction touched, once each. `tags`, in this order and separated by commas: `call` (it was called with
/// data), `create` (the transaction created it), `log` (it logged), `ft` and `nft` (its token moved). An account without code that was
/// sent data has the tag `call` as well: a block doesn't tell them apart. On Flow: `import` (its script imports it; with an empty name, all of
/// the account's), `create`, `update`, `remove` (its code was set, or taken away), `log`, `ft`, `nft`.
pub static TX_CONTRACTS: TableDef = TableDef {
    name: "tx_contracts",
    service: TX_CONTRACTS_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("tags", ColumnType::Text),
    ],
    key: &["block_height", "transaction_id", "transaction_index", "contract_address", "contract_name"],
    indexes: &[IndexDef {
        name: "by_contract",
        columns: &["contract_address", "contract_name", "block_height", "transaction_index"],
    }],
};

/// A row of [`TX_CONTRACTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxContract {
    /// The block's height.
    pub block_height: u64,
    /// The transaction's id.
    pub transaction_id: Bytes,
    /// The contract.
    pub contract_address: Bytes,
    /// Its name within the account, where the chain has such.
    pub contract_name: String,
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
    /// What happened to it.
    pub tags: String,
}

impl TxContract {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::Bytes(self.transaction_id.clone()),
            Value::Bytes(self.contract_address.clone()),
            Value::text(self.contract_name.clone()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            Value::text(self.tags.clone()),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<TxContract, RowError> {
        let fields = &mut Fields::of(&TX_CONTRACTS, row);
        Ok(TxContract {
            block_height: fields.uint()?,
            transaction_id: fields.bytes()?,
            contract_address: fields.bytes()?,
            contract_name: fields.text()?.into(),
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            tags: fields.text()?.into(),
        })
    }
}
