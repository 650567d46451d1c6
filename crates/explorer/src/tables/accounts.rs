//! Which addresses a transaction concerns: `address_transactions`.

use bytes::Bytes;
use cairn_store::derived::{ColumnType, IndexDef, Row, TableClass, TableDef, Value, column};

use super::{Fields, LARGE_PARTITION_HEIGHTS, RowError};
use crate::names::ACCOUNTS_WORKER;

/// An address once for each transaction that concerns it, however often it occurs in it; never the zero address, which is no user (E27).
///
/// `direction` sums the roles up: `self` (sender and recipient), `out` (sender), `in` (recipient), `created` (the contract that the
/// transaction created), `transfer` (only a party of token transfers).
pub static ADDRESS_TRANSACTIONS: TableDef = TableDef {
    name: "address_transactions",
    service: ACCOUNTS_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("direction", ColumnType::Text),
        column("is_sender", ColumnType::Bool),
        column("is_recipient", ColumnType::Bool),
        column("is_created", ColumnType::Bool),
        column("is_transfer_party", ColumnType::Bool),
    ],
    key: &["block_height", "address", "transaction_id", "transaction_index"],
    indexes: &[IndexDef { name: "by_address", columns: &["address", "block_height", "transaction_index"] }],
};

/// What an address is in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles {
    /// It sent the transaction.
    pub is_sender: bool,
    /// The transaction calls it.
    pub is_recipient: bool,
    /// The transaction created it.
    pub is_created: bool,
    /// A token moved from it or to it.
    pub is_transfer_party: bool,
}

impl Roles {
    /// All of them in one word.
    pub const fn direction(self) -> &'static str {
        match self {
            Roles { is_sender: true, is_recipient: true, .. } => "self",
            Roles { is_sender: true, .. } => "out",
            Roles { is_recipient: true, .. } => "in",
            Roles { is_created: true, .. } => "created",
            _ => "transfer",
        }
    }
}

/// A row of [`ADDRESS_TRANSACTIONS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressTransaction {
    /// The block's height.
    pub block_height: u64,
    /// The address.
    pub address: Bytes,
    /// The transaction's id.
    pub transaction_id: Bytes,
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
    /// What the address is in it.
    pub roles: Roles,
}

impl AddressTransaction {
    /// As a row.
    pub fn to_row(&self) -> Row {
        Row(vec![
            Value::uint(self.block_height),
            Value::Bytes(self.address.clone()),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            Value::text(self.roles.direction()),
            Value::Bool(self.roles.is_sender),
            Value::Bool(self.roles.is_recipient),
            Value::Bool(self.roles.is_created),
            Value::Bool(self.roles.is_transfer_party),
        ])
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<AddressTransaction, RowError> {
        let fields = &mut Fields::of(&ADDRESS_TRANSACTIONS, row);
        Ok(AddressTransaction {
            block_height: fields.uint()?,
            address: fields.bytes()?,
            transaction_id: fields.bytes()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            roles: {
                fields.text()?;
                Roles {
                    is_sender: fields.boolean()?,
                    is_recipient: fields.boolean()?,
                    is_created: fields.boolean()?,
                    is_transfer_party: fields.boolean()?,
                }
            },
        })
    }
}
