//! Contracts of accounts: every version (`contract_versions`), and what is there now (`account_contracts`).

use bytes::Bytes;
use cairn_store::derived::{Change, ColumnType, IndexDef, Merge, Row, TableClass, TableDef, Value, column};

use crate::names::{ACCOUNT_STATE_WORKER, CONTRACT_CODE_WORKER, META_WORKER};
use crate::tables::{Fields, LOOKUP_PARTITION_HEIGHTS, RowError};

/// Contracts as they were added, updated and removed: `change` is one of these words. `code_hash` is the SHA3-256 of the code, of a removed
/// contract that of its last one. The first of a contract is in `smart_contracts` too.
pub static CONTRACT_VERSIONS: TableDef = TableDef {
    name: "contract_versions",
    service: META_WORKER,
    class: TableClass::Events { partition_heights: LOOKUP_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("transaction_id", ColumnType::Bytes),
        column("event_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("change", ColumnType::Text),
        column("code_hash", ColumnType::Bytes),
    ],
    key: &["block_height", "address", "contract_name", "transaction_id", "transaction_index", "event_index"],
    indexes: &[
        IndexDef {
            name: "by_contract",
            columns: &["address", "contract_name", "block_height", "transaction_index", "event_index"],
        },
        IndexDef {
            name: "by_code_hash",
            columns: &["code_hash", "block_height", "transaction_index", "event_index"],
        },
    ],
};

/// A row of [`CONTRACT_VERSIONS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractVersion {
    /// The block's height.
    pub block_height: u64,
    /// The account.
    pub address: Bytes,
    /// The contract's name in it.
    pub contract_name: String,
    /// The transaction's id.
    pub transaction_id: Bytes,
    /// The event's place in its transaction.
    pub event_index: u32,
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
    /// `added`, `updated` or `removed`.
    pub change: String,
    /// SHA3-256 of the code.
    pub code_hash: Bytes,
}

impl ContractVersion {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::Bytes(self.address.clone()),
            Value::text(self.contract_name.clone()),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.event_index.into()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            Value::text(self.change.clone()),
            Value::Bytes(self.code_hash.clone()),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<ContractVersion, RowError> {
        let fields = &mut Fields::of(&CONTRACT_VERSIONS, row);
        Ok(ContractVersion {
            block_height: fields.uint()?,
            address: fields.bytes()?,
            contract_name: fields.text()?.into(),
            transaction_id: fields.bytes()?,
            event_index: fields.index()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            change: fields.text()?.into(),
            code_hash: fields.bytes()?,
        })
    }
}

/// Contracts as they are now. One that was removed keeps its row. `version_count` counts how often code was set.
pub static ACCOUNT_CONTRACTS: TableDef = TableDef {
    name: "account_contracts",
    service: ACCOUNT_STATE_WORKER,
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("code_hash", ColumnType::Bytes).merged(Merge::Last),
        column("version_count", ColumnType::Int).merged(Merge::Sum),
        column("is_removed", ColumnType::Bool).merged(Merge::Last),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address", "contract_name"],
    indexes: &[IndexDef { name: "by_code_hash", columns: &["code_hash", "address", "contract_name"] }],
};

/// A change of a contract.
pub fn account_contract(version: &ContractVersion) -> Change {
    let is_removed = version.change == "removed";
    Change(vec![
        Some(Value::Bytes(version.address.clone())),
        Some(Value::text(version.contract_name.clone())),
        Some(Value::Bytes(version.code_hash.clone())),
        Some(Value::Int(i64::from(!is_removed))),
        Some(Value::Bool(is_removed)),
        Some(Value::uint(version.block_height)),
        None,
    ])
}

/// Which versions of contracts a node was asked about. `contract_code` has the code by the same hash, where `status` is `ok`. It is
/// `superseded` where the contract had other code by then, `empty` where it was gone, `too-large`, or `failed`.
pub static CONTRACT_VERSION_CODE: TableDef = TableDef {
    name: "contract_version_code",
    service: CONTRACT_CODE_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("code_hash", ColumnType::Bytes),
        column("status", ColumnType::Text),
        column("message", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["address", "contract_name", "code_hash"],
    indexes: &[],
};
