//! Contracts: `smart_contracts`, their code by content (`contract_code`), and which code an address has (`contract_code_hashes`).

use bytes::Bytes;
use cairn_store::derived::{ColumnType, IndexDef, Row, TableClass, TableDef, Value, column};

use super::{Fields, LOOKUP_PARTITION_HEIGHTS, RowError, opt_bytes};
use crate::names::{CONTRACT_CODE_WORKER, META_WORKER};

/// Creations that succeeded, one row each: an address can be created again after it was destroyed, and the newest row of `by_address` is
/// the one that holds. The walk of the key, downward, lists the newest first.
///
/// `is_confirmed` is false where the chain doesn't say how the transaction ended (E08, E09). Contracts that contracts created are known
/// where traces are archived; `is_internal` says so.
pub static SMART_CONTRACTS: TableDef = TableDef {
    name: "smart_contracts",
    service: META_WORKER,
    class: TableClass::Events { partition_heights: LOOKUP_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("creator_address", ColumnType::Bytes).nullable(),
        column("init_code_hash", ColumnType::Bytes).nullable(),
        column("is_internal", ColumnType::Bool),
        column("is_confirmed", ColumnType::Bool),
    ],
    key: &["block_height", "address", "contract_name", "transaction_id", "transaction_index"],
    indexes: &[
        IndexDef {
            name: "by_address",
            columns: &["address", "contract_name", "block_height", "transaction_index"],
        },
        IndexDef {
            name: "by_creator",
            columns: &["creator_address", "block_height", "transaction_index", "address"],
        },
    ],
};

/// A row of [`SMART_CONTRACTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmartContract {
    /// The block's height.
    pub block_height: u64,
    /// Where the contract is.
    pub address: Bytes,
    /// Its name within the account, where the chain has such.
    pub contract_name: String,
    /// The transaction that created it.
    pub transaction_id: Bytes,
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
    /// The account or contract that created it.
    pub creator_address: Option<Bytes>,
    /// keccak256 of the init code, where it is known; on Flow the SHA3-256 of the code.
    pub init_code_hash: Option<Bytes>,
    /// Whether a contract created it.
    pub is_internal: bool,
    /// Whether the transaction is known to have succeeded.
    pub is_confirmed: bool,
}

impl SmartContract {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::Bytes(self.address.clone()),
            Value::text(self.contract_name.clone()),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            opt_bytes(&self.creator_address),
            opt_bytes(&self.init_code_hash),
            Value::Bool(self.is_internal),
            Value::Bool(self.is_confirmed),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<SmartContract, RowError> {
        let fields = &mut Fields::of(&SMART_CONTRACTS, row);
        Ok(SmartContract {
            block_height: fields.uint()?,
            address: fields.bytes()?,
            contract_name: fields.text()?.into(),
            transaction_id: fields.bytes()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            creator_address: fields.opt_bytes()?,
            init_code_hash: fields.opt_bytes()?,
            is_internal: fields.boolean()?,
            is_confirmed: fields.boolean()?,
        })
    }
}

/// Which code an address had when a node was asked. `status`: `ok`, `empty` (there is no code: it was destroyed), `too-large` (only hash
/// and length are kept), `failed` (with `message`).
pub static CONTRACT_CODE_HASHES: TableDef = TableDef {
    name: "contract_code_hashes",
    service: CONTRACT_CODE_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("code_hash", ColumnType::Bytes).nullable(),
        column("code_length_bytes", ColumnType::Int).nullable(),
        column("status", ColumnType::Text),
        column("message", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["address", "contract_name"],
    indexes: &[IndexDef { name: "by_code_hash", columns: &["code_hash", "address"] }],
};

/// Code by its hash: keccak256 on EVM chains, SHA3-256 on Flow, as each chain has it.
pub static CONTRACT_CODE: TableDef = TableDef {
    name: "contract_code",
    service: CONTRACT_CODE_WORKER,
    class: TableClass::Content,
    columns: &[column("code_hash", ColumnType::Bytes), column("code", ColumnType::Bytes)],
    key: &["code_hash"],
    indexes: &[],
};
