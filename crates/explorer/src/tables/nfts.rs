//! NFTs: who owns an item (`nft_ownership`), who holds how many of it (`nft_holdings`), the owners of a collection (`nft_owners`), and what is
//! counted of a collection (`nft_collection_stats`). State: a row is never deleted; a burnt item keeps its row.

use bytes::Bytes;
use cairn_store::derived::{
    Change, ColumnType, IndexDef, Merge, Sum, TableClass, TableDef, U256, Value, column,
};

use crate::names::NFT_OWNERSHIP_WORKER;

/// The items of collections, by id. `owner` is null where the item was burnt, and where its kind has several owners (ERC-1155): those
/// are in [`NFT_HOLDINGS`]. `net_minted` is how many there are of it, as far as mints were logged. A transfer of nothing, which ERC-1155 allows
/// anybody of any id, is none of an item's and makes no row here; the collection counts it.
pub static NFT_OWNERSHIP: TableDef = TableDef {
    name: "nft_ownership",
    service: NFT_OWNERSHIP_WORKER,
    class: TableClass::State,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("nft_id", ColumnType::Amount),
        column("kind", ColumnType::Text).merged(Merge::Last),
        column("owner", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("is_burned", ColumnType::Bool).merged(Merge::Last),
        column("net_minted", ColumnType::Sum).merged(Merge::Sum),
        column("transfer_count", ColumnType::Int).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["contract_address", "contract_name", "nft_id"],
    indexes: &[],
};

/// The place of `owner` in a row of [`NFT_OWNERSHIP`].
pub const NFT_OWNER: usize = 4;
/// The place of `is_burned` in a row of [`NFT_OWNERSHIP`].
pub const NFT_IS_BURNED: usize = 5;
/// The place of `kind`.
pub const NFT_KIND: usize = 3;
/// The place of `net_minted`.
pub const NFT_NET_MINTED: usize = 6;

/// A change of an item.
pub struct ItemChange<'a> {
    /// Collection and its name within the account.
    pub collection: (&'a Bytes, &'a str),
    /// Which item.
    pub nft_id: U256,
    /// By which rule the event was read.
    pub kind: &'a str,
    /// The owner after it; `None` where there is none or several.
    pub owner: Option<&'a Bytes>,
    /// Whether it was burnt.
    pub is_burned: bool,
    /// What was minted, less what was burnt.
    pub minted: Sum,
    /// Transfers.
    pub transfers: i64,
    /// The block.
    pub height: u64,
}

impl ItemChange<'_> {
    /// As a change.
    pub fn to_change(&self) -> Change {
        Change(vec![
            Some(Value::Bytes(self.collection.0.clone())),
            Some(Value::text(self.collection.1)),
            Some(Value::Amount(self.nft_id)),
            Some(Value::text(self.kind)),
            Some(self.owner.map_or(Value::Null, |owner| Value::Bytes(owner.clone()))),
            Some(Value::Bool(self.is_burned)),
            Some(Value::Sum(Box::new(self.minted))),
            Some(Value::Int(self.transfers)),
            Some(Value::uint(self.height)),
            None,
        ])
    }
}

/// Who holds how many of an item; of one with a single owner 1 or 0, and -1 where somebody gave away what no event gave them. `is_held` is true where
/// the balance isn't 0: `by_owner` with it lists the items of an address, and the walk of the key the holders of an item.
pub static NFT_HOLDINGS: TableDef = TableDef {
    name: "nft_holdings",
    service: NFT_OWNERSHIP_WORKER,
    class: TableClass::State,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("nft_id", ColumnType::Amount),
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("is_held", ColumnType::Bool).merged(Merge::Last),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["contract_address", "contract_name", "nft_id", "address"],
    indexes: &[IndexDef {
        name: "by_owner",
        columns: &["address", "is_held", "contract_address", "contract_name", "nft_id"],
    }],
};

/// The place of `balance` in a row of [`NFT_HOLDINGS`].
pub const NFT_BALANCE: usize = 4;

/// The place of `is_held` in a row of [`NFT_HOLDINGS`].
pub const NFT_IS_HELD: usize = 5;

/// A change of a holding of an item.
pub fn nft_holding(
    collection: (&Bytes, &str),
    nft_id: U256,
    address: &Bytes,
    by: Sum,
    is_held: bool,
) -> Change {
    Change(vec![
        Some(Value::Bytes(collection.0.clone())),
        Some(Value::text(collection.1)),
        Some(Value::Amount(nft_id)),
        Some(Value::Bytes(address.clone())),
        Some(Value::Sum(Box::new(by))),
        Some(Value::Bool(is_held)),
        None,
    ])
}

/// How many items of a collection an address holds. `by_balance` lists the owners, down to above 0, and those below 0.
pub static NFT_OWNERS: TableDef = TableDef {
    name: "nft_owners",
    service: NFT_OWNERSHIP_WORKER,
    class: TableClass::State,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["contract_address", "contract_name", "address"],
    indexes: &[IndexDef {
        name: "by_balance",
        columns: &["contract_address", "contract_name", "balance", "address"],
    }],
};

/// The place of `balance` in a row of [`NFT_OWNERS`].
pub const OWNER_BALANCE: usize = 3;

/// A change of what an address holds of a collection.
pub fn nft_owner(collection: (&Bytes, &str), address: &Bytes, by: Sum) -> Change {
    Change(vec![
        Some(Value::Bytes(collection.0.clone())),
        Some(Value::text(collection.1)),
        Some(Value::Bytes(address.clone())),
        Some(Value::Sum(Box::new(by))),
        None,
    ])
}

/// What is counted of a collection: items that aren't burnt, addresses that hold any, transfers.
pub static NFT_COLLECTION_STATS: TableDef = TableDef {
    name: "nft_collection_stats",
    service: NFT_OWNERSHIP_WORKER,
    class: TableClass::State,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("item_count", ColumnType::Int).merged(Merge::Sum),
        column("owner_count", ColumnType::Int).merged(Merge::Sum),
        column("transfer_count", ColumnType::Int).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["contract_address", "contract_name"],
    indexes: &[IndexDef {
        name: "by_owners",
        columns: &["owner_count", "contract_address", "contract_name"],
    }],
};

/// A change of a collection's counts.
pub fn collection_stats(
    collection: (&Bytes, &str),
    items: i64,
    owners: i64,
    transfers: i64,
    first_height: Option<u64>,
) -> Change {
    Change(vec![
        Some(Value::Bytes(collection.0.clone())),
        Some(Value::text(collection.1)),
        Some(Value::Int(items)),
        Some(Value::Int(owners)),
        Some(Value::Int(transfers)),
        first_height.map(Value::uint),
        None,
    ])
}
