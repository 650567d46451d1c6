//! What only Flow's items have: the ids of their resources (`nft_resources`), and which owners' collections were asked about them (`nft_asks`).

use bytes::Bytes;
use cairn_store::derived::{ColumnType, IndexDef, Row, TableClass, TableDef, U256, column};

use crate::names::{NFT_METADATA_WORKER, TOKEN_WORKER};
use crate::tables::{Fields, LOOKUP_PARTITION_HEIGHTS, RowError};

/// The ids of items' resources: a row for each movement that says it, which it does since Cadence 1.0; and a row, with `is_destroyed`, where one was
/// destroyed and the transaction doesn't name its collection (that was destroyed with it, as a rule). So the rows of a `resource_uuid` say which
/// item is gone; `nft_ownership` follows them. An item whose end alone is here keeps its last owner there.
pub static NFT_RESOURCES: TableDef = TableDef {
    name: "nft_resources",
    service: TOKEN_WORKER,
    class: TableClass::Events { partition_heights: LOOKUP_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("event_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("resource_uuid", ColumnType::Amount),
        column("token_contract_address", ColumnType::Bytes).nullable(),
        column("contract_name", ColumnType::Text).nullable(),
        column("token_id", ColumnType::Amount).nullable(),
        column("is_destroyed", ColumnType::Bool),
    ],
    key: &["block_height", "transaction_id", "transaction_index", "event_index"],
    indexes: &[IndexDef {
        name: "by_resource",
        columns: &["resource_uuid", "block_height", "transaction_index", "event_index"],
    }],
};

/// A row of [`NFT_RESOURCES`], as far as the folder of owners reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRow {
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The event's place in its transaction.
    pub event_index: u32,
    /// The resource's id.
    pub resource_uuid: U256,
    /// The collection's account and its name in it, where that is said.
    pub collection: Option<(Bytes, String)>,
    /// The item's id in its collection, where that is said.
    pub token_id: Option<U256>,
    /// Whether it was destroyed.
    pub is_destroyed: bool,
}

impl ResourceRow {
    /// From a row.
    pub fn from_row(row: &Row) -> Result<ResourceRow, RowError> {
        let fields = &mut Fields::of(&NFT_RESOURCES, row);
        fields.uint()?;
        fields.bytes()?;
        let event_index = fields.index()?;
        let transaction_index = fields.index()?;
        fields.uint()?;
        let resource_uuid = fields.amount()?;
        let collection = fields.opt_bytes()?.zip(fields.opt_text()?);
        Ok(ResourceRow {
            transaction_index,
            event_index,
            resource_uuid,
            collection,
            token_id: fields.opt_amount()?,
            is_destroyed: fields.boolean()?,
        })
    }

    /// Its place in the block, comparable with [`crate::tables::transfers::EventPlace::order`].
    pub fn order(&self) -> (u32, u32, u32) {
        (self.transaction_index, self.event_index, 0)
    }
}

/// An item can only be asked while it lies in an account's public collection: one row for each owner that it had. Items of the EVM side are asked
/// whoever has them: one row, with an empty owner and the status that `nft_metadata` has. `status` is `ok` and
/// `silent` (`nft_metadata` has what was said, or that nothing was), `not-held` (it didn't lie there, or not in public), `failed` (no node could be asked, or the script failed; `message` says why).
pub static NFT_ASKS: TableDef = TableDef {
    name: "nft_asks",
    service: NFT_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("nft_id", ColumnType::Amount),
        column("owner_address", ColumnType::Bytes),
        column("status", ColumnType::Text),
        column("message", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name", "nft_id", "owner_address"],
    indexes: &[],
};
