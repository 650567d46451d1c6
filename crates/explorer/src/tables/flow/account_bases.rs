//! What accounts were before the archive saw anything of them, as a node says: balance, keys and contracts.
//!
//! An account's first row of events stands at some height of the archive; the node is asked about the block before it (`asked_at_height`). So what it
//! says and what events say of the account since add up to what it is. An account that was created since has the status `absent`.

use cairn_store::derived::{ColumnType, IndexDef, TableClass, TableDef, column};

use crate::names::ACCOUNT_METADATA_WORKER;

/// The accounts that were asked about. `balance` is in units of 10^-8 FLOW; counts are of all keys that it was ever given, and of the contracts that it had.
///
/// `status` is `ok`, `absent` (there was no such account), `too-large` (only the first keys and contracts are kept; the counts are of all), or `failed` (with
/// `message`: the node doesn't have the state of that block, as a rule).
pub static ACCOUNT_BASES: TableDef = TableDef {
    name: "account_bases",
    service: ACCOUNT_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Amount).nullable(),
        column("key_count", ColumnType::Int).nullable(),
        column("contract_count", ColumnType::Int).nullable(),
        column("status", ColumnType::Text),
        column("message", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["address"],
    indexes: &[],
};

/// Their keys. Algorithms are numbered as Cadence numbers them.
pub static ACCOUNT_BASE_KEYS: TableDef = TableDef {
    name: "account_base_keys",
    service: ACCOUNT_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("address", ColumnType::Bytes),
        column("key_index", ColumnType::Amount),
        column("public_key", ColumnType::Bytes),
        column("sign_algo", ColumnType::Amount),
        column("hash_algo", ColumnType::Amount),
        column("weight", ColumnType::Amount),
        column("is_revoked", ColumnType::Bool),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["address", "key_index"],
    indexes: &[IndexDef { name: "by_public_key", columns: &["public_key", "address", "key_index"] }],
};

/// Their contracts, with the SHA3-256 of the code.
pub static ACCOUNT_BASE_CONTRACTS: TableDef = TableDef {
    name: "account_base_contracts",
    service: ACCOUNT_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("code_hash", ColumnType::Bytes),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["address", "contract_name"],
    indexes: &[],
};
