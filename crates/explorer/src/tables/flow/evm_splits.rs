//! EVM blocks that are not whole in one Flow block: their parts (`evm_block_parts`), and what these are together (`evm_splits`).

use cairn_store::derived::{Change, ColumnType, Merge, Row, TableClass, TableDef, Value, column};

use crate::names::{EVM_CHAIN_WORKER, EVM_WORKER};
use crate::tables::{Fields, LARGE_PARTITION_HEIGHTS, RowError, opt};

/// What a Flow block has of an EVM block, where that isn't all of it. One that is closed in the Flow block that has all its transactions has no row.
///
/// `first_index` is the place of the first transaction that is here, and null where there is none; `closed_gas_used` is what the EVM block says it used, and
/// null where it isn't closed here. `is_wrong` says that the part alone shows that something is missing or another: its places, its gas, or the root of
/// its hashes.
pub static EVM_BLOCK_PARTS: TableDef = TableDef {
    name: "evm_block_parts",
    service: EVM_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("evm_height", ColumnType::Int),
        column("first_index", ColumnType::Int).nullable(),
        column("transaction_count", ColumnType::Int),
        column("gas_used", ColumnType::Int),
        column("closed_gas_used", ColumnType::Int).nullable(),
        column("is_wrong", ColumnType::Bool),
    ],
    key: &["block_height", "evm_height"],
    indexes: &[],
};

/// A row of [`EVM_BLOCK_PARTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvmBlockPart {
    /// The Flow block's height.
    pub block_height: u64,
    /// The EVM block's height.
    pub evm_height: u64,
    /// The place of the first transaction here.
    pub first_index: Option<u64>,
    /// Transactions here.
    pub transaction_count: u64,
    /// Their gas.
    pub gas_used: u64,
    /// What the EVM block used, where it is closed here.
    pub closed_gas_used: Option<u64>,
    /// Whether the part itself is wrong.
    pub is_wrong: bool,
}

impl EvmBlockPart {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::uint(self.evm_height),
            opt(self.first_index, Value::uint),
            Value::uint(self.transaction_count),
            Value::uint(self.gas_used),
            opt(self.closed_gas_used, Value::uint),
            Value::Bool(self.is_wrong),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<EvmBlockPart, RowError> {
        let fields = &mut Fields::of(&EVM_BLOCK_PARTS, row);
        Ok(EvmBlockPart {
            block_height: fields.uint()?,
            evm_height: fields.uint()?,
            first_index: fields.opt_uint()?,
            transaction_count: fields.uint()?,
            gas_used: fields.uint()?,
            closed_gas_used: fields.opt_uint()?,
            is_wrong: fields.boolean()?,
        })
    }
}

/// EVM blocks that are not whole in one Flow block, from the Flow block at `first_height` to that at `last_height`. `transaction_count` and `gas_used`
/// are of the transactions that came; `first_index` is that of the newest part. `is_complete` is null until the block is closed; then it says whether the
/// transactions follow each other from the first on and used the gas that the block says.
pub static EVM_SPLITS: TableDef = TableDef {
    name: "evm_splits",
    service: EVM_CHAIN_WORKER,
    class: TableClass::State,
    columns: &[
        column("evm_height", ColumnType::Int),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("transaction_count", ColumnType::Int).merged(Merge::Sum),
        column("gas_used", ColumnType::Int).merged(Merge::Sum),
        column("first_index", ColumnType::Int).nullable().merged(Merge::Last),
        column("closed_gas_used", ColumnType::Int).nullable().merged(Merge::Last),
        column("is_complete", ColumnType::Bool).nullable().merged(Merge::Last),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["evm_height"],
    indexes: &[],
};

/// What a part changes.
pub fn evm_split(part: &EvmBlockPart) -> Change {
    Change(vec![
        Some(Value::uint(part.evm_height)),
        Some(Value::uint(part.block_height)),
        Some(Value::uint(part.transaction_count)),
        Some(Value::uint(part.gas_used)),
        Some(opt(part.first_index, Value::uint)),
        part.closed_gas_used.map(Value::uint),
        part.is_wrong.then_some(Value::Bool(false)),
        None,
    ])
}

/// Whether all of it is there.
pub fn evm_split_is_complete(evm_height: u64, is_complete: bool) -> Change {
    let mut change = vec![None; EVM_SPLITS.columns.len()];
    change[0] = Some(Value::uint(evm_height));
    change[6] = Some(Value::Bool(is_complete));
    Change(change)
}

/// A row of [`EVM_SPLITS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvmSplit {
    /// The EVM block's height.
    pub evm_height: u64,
    /// The Flow block with its first part.
    pub first_height: u64,
    /// Transactions that came.
    pub transaction_count: u64,
    /// Their gas.
    pub gas_used: u64,
    /// The place of the newest part's first transaction.
    pub first_index: Option<u64>,
    /// What the block used, where it is closed.
    pub closed_gas_used: Option<u64>,
    /// Whether all of it is there.
    pub is_complete: Option<bool>,
    /// The Flow block with its newest part.
    pub last_height: u64,
}

impl EvmSplit {
    /// From a row.
    pub fn from_row(row: &Row) -> Result<EvmSplit, RowError> {
        let fields = &mut Fields::of(&EVM_SPLITS, row);
        Ok(EvmSplit {
            evm_height: fields.uint()?,
            first_height: fields.uint()?,
            transaction_count: fields.uint()?,
            gas_used: fields.uint()?,
            first_index: fields.opt_uint()?,
            closed_gas_used: fields.opt_uint()?,
            is_complete: fields.opt_boolean()?,
            last_height: fields.uint()?,
        })
    }
}
