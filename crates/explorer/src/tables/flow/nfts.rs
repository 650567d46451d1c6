//! What only Flow's items have: the ids of their resources (`nft_resources`), and which owners' collections were asked about them (`nft_asks`).

use cairn_store::derived::{ColumnType, IndexDef, TableClass, TableDef, column};

use crate::names::{NFT_METADATA_WORKER, TOKEN_WORKER};
use crate::tables::LOOKUP_PARTITION_HEIGHTS;

/// The ids of items' resources: a row where one came into an account's collection out of none, and a row, with `is_destroyed`, where one was
/// destroyed and the transaction doesn't name its collection (that was destroyed with it, as a rule). So the rows of a `resource_uuid` say which
/// item is gone that `nft_ownership` still shows with its last owner.
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
    key: &["block_height", "transaction_id", "event_index"],
    indexes: &[IndexDef {
        name: "by_resource",
        columns: &["resource_uuid", "block_height", "transaction_index", "event_index"],
    }],
};

/// An item can only be asked while it lies in an account's public collection: one row for each owner that it had. `status` is `ok` and
/// `silent` (`nft_metadata` has what was said, or that nothing was), `not-held` (it didn't lie there, or not in public), `failed`.
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
