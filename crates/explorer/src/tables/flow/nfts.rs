//! Which owners' collections were asked about items: `nft_asks`.

use cairn_store::derived::{ColumnType, TableClass, TableDef, column};

use crate::names::NFT_METADATA_WORKER;

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
