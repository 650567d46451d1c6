//! EVM on Flow, beside `evm_transactions` and `evm_logs`: its blocks (`evm_blocks`), where its transactions stand in Flow's
//! (`evm_executions`), whether its chain is whole (`evm_chain`, `evm_gaps`), which Flow blocks have none (`evm_absences`). [`super::evm_splits`] has those that
//! aren't whole in one Flow block.

use alloy_primitives::B256;
use bytes::Bytes;
use cairn_store::derived::{Change, ColumnType, IndexDef, Merge, Row, TableClass, TableDef, Value, column};

use crate::names::{EVM_CHAIN_WORKER, EVM_WORKER};
use crate::tables::{Fields, LARGE_PARTITION_HEIGHTS, RowError, opt};

/// EVM blocks. `block_height` and `transaction_id` are those of the Flow block and of the Flow transaction that closed it.
/// `transaction_count` counts the EVM transactions of this Flow block that name it.
pub static EVM_BLOCKS: TableDef = TableDef {
    name: "evm_blocks",
    service: EVM_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("evm_height", ColumnType::Int),
        column("evm_hash", ColumnType::Bytes),
        column("evm_parent_hash", ColumnType::Bytes),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("evm_timestamp_s", ColumnType::Int),
        column("gas_used", ColumnType::Int),
        column("transaction_count", ColumnType::Int),
    ],
    key: &["block_height", "evm_height"],
    indexes: &[
        IndexDef { name: "by_evm_height", columns: &["evm_height", "block_height", "transaction_index"] },
        IndexDef { name: "by_hash", columns: &["evm_hash", "block_height", "transaction_index"] },
    ],
};

/// A row of [`EVM_BLOCKS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmBlockRow {
    /// The Flow block's height.
    pub block_height: u64,
    /// The EVM block's height.
    pub evm_height: u64,
    /// Its hash.
    pub evm_hash: B256,
    /// Its parent's hash.
    pub evm_parent_hash: B256,
    /// The Flow transaction that closed it.
    pub transaction_id: Bytes,
    /// That transaction's place in its block.
    pub transaction_index: u32,
    /// The Flow block's time.
    pub block_timestamp_ms: u64,
    /// The EVM block's time.
    pub evm_timestamp_s: u64,
    /// The gas that it used.
    pub gas_used: u64,
    /// Its transactions in this Flow block.
    pub transaction_count: u64,
}

impl EvmBlockRow {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::uint(self.evm_height),
            Value::bytes(self.evm_hash.as_slice()),
            Value::bytes(self.evm_parent_hash.as_slice()),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            Value::uint(self.evm_timestamp_s),
            Value::uint(self.gas_used),
            Value::uint(self.transaction_count),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<EvmBlockRow, RowError> {
        let fields = &mut Fields::of(&EVM_BLOCKS, row);
        Ok(EvmBlockRow {
            block_height: fields.uint()?,
            evm_height: fields.uint()?,
            evm_hash: fields.hash()?,
            evm_parent_hash: fields.hash()?,
            transaction_id: fields.bytes()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            evm_timestamp_s: fields.uint()?,
            gas_used: fields.uint()?,
            transaction_count: fields.uint()?,
        })
    }
}

/// Where an EVM transaction stands in Flow's. `transaction_id` is its hash, as in `evm_transactions`, and `transaction_index` its place in
/// its EVM block, whose height is `evm_height`.
///
/// `error_code` is 0 where it succeeded, 306 where it reverted. `direct_call` says what kind of direct call it is: `deposit`, `withdraw`,
/// `transfer`, `deploy`, `call`. `returned_data` is null where there are more than 8 KiB of it.
pub static EVM_EXECUTIONS: TableDef = TableDef {
    name: "evm_executions",
    service: EVM_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("flow_transaction_id", ColumnType::Bytes),
        column("flow_transaction_index", ColumnType::Int),
        column("event_index", ColumnType::Int),
        column("evm_height", ColumnType::Int),
        column("error_code", ColumnType::Int),
        column("error_message", ColumnType::Text).nullable(),
        column("direct_call", ColumnType::Text).nullable(),
        column("returned_data", ColumnType::Bytes).nullable(),
        column("returned_data_length_bytes", ColumnType::Int),
    ],
    key: &["block_height", "transaction_id"],
    indexes: &[
        IndexDef {
            name: "by_flow_transaction",
            columns: &["flow_transaction_id", "block_height", "transaction_index"],
        },
        IndexDef { name: "by_evm_height", columns: &["evm_height", "block_height", "transaction_index"] },
    ],
};

/// The EVM chain so far: one row, keyed by its EIP-155 chain id. `evm_height` and `evm_hash` are the last block's, and null before the
/// first one. `absent_count` counts Flow blocks without an EVM block, which is no fault by itself (F04): see [`EVM_ABSENCES`];
/// `missing_count` EVM blocks that no Flow block has: see [`EVM_GAPS`].
///
/// `first_of_block` and `parent_of_block` are the height and parent of the first EVM block of the Flow block at `last_height`.
pub static EVM_CHAIN: TableDef = TableDef {
    name: "evm_chain",
    service: EVM_CHAIN_WORKER,
    class: TableClass::State,
    columns: &[
        column("evm_chain_id", ColumnType::Int),
        column("first_evm_height", ColumnType::Int).nullable().merged(Merge::First),
        column("evm_height", ColumnType::Int).nullable().merged(Merge::Last),
        column("evm_hash", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("first_of_block", ColumnType::Int).nullable().merged(Merge::Last),
        column("parent_of_block", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("block_count", ColumnType::Int).merged(Merge::Sum),
        column("absent_count", ColumnType::Int).merged(Merge::Sum),
        column("missing_count", ColumnType::Int).merged(Merge::Sum),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["evm_chain_id"],
    indexes: &[],
};

/// The EVM blocks of one Flow block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvmBlocksOf {
    /// The first one's height and its parent's hash.
    pub first: (u64, B256),
    /// The last one's height and hash.
    pub last: (u64, B256),
    /// How many there are.
    pub count: i64,
}

/// What a Flow block changes of the EVM chain; `None`: it has no EVM block.
pub fn evm_chain(evm_chain_id: u64, blocks: Option<EvmBlocksOf>) -> Change {
    let hash = |hash: B256| Value::bytes(hash.as_slice());
    Change(vec![
        Some(Value::uint(evm_chain_id)),
        blocks.map(|of| Value::uint(of.first.0)),
        blocks.map(|of| Value::uint(of.last.0)),
        blocks.map(|of| hash(of.last.1)),
        Some(opt(blocks, |of| Value::uint(of.first.0))),
        Some(opt(blocks, |of| hash(of.first.1))),
        Some(Value::Int(blocks.map_or(0, |of| of.count))),
        Some(Value::Int(0)),
        Some(Value::Int(0)),
        None,
    ])
}

/// More Flow blocks without an EVM block, or more EVM blocks that are missing.
pub fn evm_chain_counts(evm_chain_id: u64, absent: i64, missing: i64) -> Change {
    let mut change = vec![None; EVM_CHAIN.columns.len()];
    change[0] = Some(Value::uint(evm_chain_id));
    change[7] = Some(Value::Int(absent));
    change[8] = Some(Value::Int(missing));
    Change(change)
}

/// A row of [`EVM_CHAIN`], as far as the next block has to fit it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmChain {
    /// The last block's height and hash.
    pub last: Option<(u64, B256)>,
    /// The height and parent of the first block of the Flow block that changed the row last.
    pub first_of_block: Option<(u64, B256)>,
}

impl EvmChain {
    /// From a row.
    pub fn from_row(row: &Row) -> Result<EvmChain, RowError> {
        let fields = &mut Fields::of(&EVM_CHAIN, row);
        fields.uint()?;
        fields.opt_uint()?;
        let last = fields.opt_uint()?.zip(fields.opt_hash()?);
        Ok(EvmChain { last, first_of_block: fields.opt_uint()?.zip(fields.opt_hash()?) })
    }
}

/// Where the EVM chain isn't whole. `kind` is `gap` (the heights from `from_evm_height` to `to_evm_height` are missing), `repeat` (the block at
/// `from_evm_height` comes after the one at `to_evm_height`: again, or late) or `fork` (the block at `from_evm_height` has another parent than the one
/// before it). Each is in the error log too.
pub static EVM_GAPS: TableDef = TableDef {
    name: "evm_gaps",
    service: EVM_CHAIN_WORKER,
    class: TableClass::State,
    columns: &[
        column("from_evm_height", ColumnType::Int),
        column("seen_at_height", ColumnType::Int),
        column("kind", ColumnType::Text).merged(Merge::Last),
        column("to_evm_height", ColumnType::Int).merged(Merge::Last),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["from_evm_height", "seen_at_height"],
    indexes: &[],
};

/// A row of [`EVM_GAPS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmGap {
    /// The first EVM block's height.
    pub from_evm_height: u64,
    /// The Flow block at which it was seen.
    pub seen_at_height: u64,
    /// `gap`, `repeat` or `fork`.
    pub kind: String,
    /// The last EVM block's height, included.
    pub to_evm_height: u64,
}

impl EvmGap {
    /// From a row.
    pub fn from_row(row: &Row) -> Result<EvmGap, RowError> {
        let fields = &mut Fields::of(&EVM_GAPS, row);
        Ok(EvmGap {
            from_evm_height: fields.uint()?,
            seen_at_height: fields.uint()?,
            kind: fields.text()?.to_owned(),
            to_evm_height: fields.uint()?,
        })
    }
}

/// A place where the EVM chain isn't whole.
pub fn evm_gap(kind: &'static str, from: u64, to: u64, height: u64) -> Change {
    Change(vec![
        Some(Value::uint(from)),
        Some(Value::uint(height)),
        Some(Value::text(kind)),
        Some(Value::uint(to)),
        None,
    ])
}

/// Flow blocks without an EVM block, a row for all of them in succession: those after the EVM block at `evm_height`, from `first_height` to
/// `last_height`. `absent_count` counts them. However long the EVM stands still, that is one row; where EVM blocks come again (a `repeat` in
/// [`EVM_GAPS`]), those after the block of one height are counted together.
pub static EVM_ABSENCES: TableDef = TableDef {
    name: "evm_absences",
    service: EVM_CHAIN_WORKER,
    class: TableClass::State,
    columns: &[
        column("evm_height", ColumnType::Int),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("absent_count", ColumnType::Int).merged(Merge::Sum),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["evm_height"],
    indexes: &[],
};

/// The Flow block at `height` has no EVM block; the last one before it is at `evm_height`.
pub fn evm_absence(evm_height: u64, height: u64) -> Change {
    Change(vec![Some(Value::uint(evm_height)), Some(Value::uint(height)), Some(Value::Int(1)), None])
}
