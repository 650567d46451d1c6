//! Token transfers: `ft_transfers` and `nft_transfers`.
//!
//! One row a movement. A list of an address's transfers is the merge of two walks, `by_from` and `by_to`, which have the same order; a
//! self-transfer is in both, and is shown once (E27).

use bytes::Bytes;
use cairn_store::derived::{Column, ColumnType, IndexDef, Row, TableClass, TableDef, U256, Value, column};

use super::{Fields, LARGE_PARTITION_HEIGHTS, RowError, opt_bytes};
use crate::names::TOKEN_WORKER;

const KEY: &[&str] = &["block_height", "transaction_id", "transaction_index", "event_index", "sub_index"];

const INDEXES: &[IndexDef] = &[
    IndexDef {
        name: "by_from",
        columns: &["from_address", "block_height", "transaction_index", "event_index", "sub_index"],
    },
    IndexDef {
        name: "by_to",
        columns: &["to_address", "block_height", "transaction_index", "event_index", "sub_index"],
    },
    IndexDef {
        name: "by_token",
        columns: &[
            "token_contract_address",
            "contract_name",
            "block_height",
            "transaction_index",
            "event_index",
            "sub_index",
        ],
    },
];

/// Movements of fungible tokens, and of those that may be fungible.
pub static FT_TRANSFERS: TableDef = TableDef {
    name: "ft_transfers",
    service: TOKEN_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("transaction_id", ColumnType::Bytes),
        column("event_index", ColumnType::Int),
        column("sub_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("token_contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("from_address", ColumnType::Bytes).nullable(),
        column("to_address", ColumnType::Bytes).nullable(),
        column("amount", ColumnType::Amount),
        column("kind", ColumnType::Text),
        column("is_mint", ColumnType::Bool),
        column("is_burn", ColumnType::Bool),
        column("affects_balance", ColumnType::Bool),
    ],
    key: KEY,
    indexes: INDEXES,
};

/// Movements of NFTs.
pub static NFT_TRANSFERS: TableDef = TableDef {
    name: "nft_transfers",
    service: TOKEN_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: NFT_COLUMNS,
    key: KEY,
    indexes: NFT_INDEXES,
};

const NFT_COLUMNS: &[Column] = &[
    column("block_height", ColumnType::Int),
    column("transaction_id", ColumnType::Bytes),
    column("event_index", ColumnType::Int),
    column("sub_index", ColumnType::Int),
    column("transaction_index", ColumnType::Int),
    column("block_timestamp_ms", ColumnType::Int),
    column("token_contract_address", ColumnType::Bytes),
    column("contract_name", ColumnType::Text),
    column("from_address", ColumnType::Bytes).nullable(),
    column("to_address", ColumnType::Bytes).nullable(),
    column("token_id", ColumnType::Amount),
    column("amount", ColumnType::Amount),
    column("kind", ColumnType::Text),
    column("is_mint", ColumnType::Bool),
    column("is_burn", ColumnType::Bool),
];

const NFT_INDEXES: &[IndexDef] = &[
    INDEXES[0],
    INDEXES[1],
    INDEXES[2],
    IndexDef {
        name: "by_item",
        columns: &[
            "token_contract_address",
            "contract_name",
            "token_id",
            "block_height",
            "transaction_index",
            "event_index",
            "sub_index",
        ],
    },
];

/// Where a row of events stands in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPlace {
    /// The block's height.
    pub block_height: u64,
    /// The transaction's id.
    pub transaction_id: Bytes,
    /// The event's place; on EVM chains in its block.
    pub event_index: u32,
    /// The movement's place in its event.
    pub sub_index: u32,
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
}

impl EventPlace {
    /// What rows of one block are put in order by.
    pub fn order(&self) -> (u32, u32, u32) {
        (self.transaction_index, self.event_index, self.sub_index)
    }

    fn values(&self) -> [Value; 6] {
        [
            Value::uint(self.block_height),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.event_index.into()),
            Value::uint(self.sub_index.into()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
        ]
    }

    fn read(fields: &mut Fields<'_>) -> Result<EventPlace, RowError> {
        Ok(EventPlace {
            block_height: fields.uint()?,
            transaction_id: fields.bytes()?,
            event_index: fields.index()?,
            sub_index: fields.index()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
        })
    }
}

/// Which token moved, and between whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parties {
    /// The token's contract.
    pub contract_address: Bytes,
    /// Its name within the account, where the chain has such; else empty.
    pub contract_name: String,
    /// The sender. On EVM chains the zero address at a mint; `None` where the chain names nobody.
    pub from_address: Option<Bytes>,
    /// The receiver. On EVM chains the zero address at a burn.
    pub to_address: Option<Bytes>,
    /// Whether it was made out of nothing.
    pub is_mint: bool,
    /// Whether it was destroyed.
    pub is_burn: bool,
}

impl Parties {
    /// Who lost what moved: nobody at a mint.
    pub fn giver(&self) -> Option<&Bytes> {
        self.from_address.as_ref().filter(|_| !self.is_mint)
    }

    /// Who got what moved: nobody at a burn.
    pub fn taker(&self) -> Option<&Bytes> {
        self.to_address.as_ref().filter(|_| !self.is_burn)
    }

    fn values(&self) -> [Value; 4] {
        [
            Value::Bytes(self.contract_address.clone()),
            Value::text(self.contract_name.clone()),
            opt_bytes(&self.from_address),
            opt_bytes(&self.to_address),
        ]
    }

    fn read(fields: &mut Fields<'_>) -> Result<Parties, RowError> {
        Ok(Parties {
            contract_address: fields.bytes()?,
            contract_name: fields.text()?.into(),
            from_address: fields.opt_bytes()?,
            to_address: fields.opt_bytes()?,
            is_mint: false,
            is_burn: false,
        })
    }
}

/// A row of [`FT_TRANSFERS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtTransfer {
    /// Where.
    pub place: EventPlace,
    /// Which token, between whom.
    pub parties: Parties,
    /// How much; of an event of unknown fungibility perhaps an id.
    pub amount: U256,
    /// By which rule the event was read.
    pub kind: String,
    /// Whether balances count it: not where fungibility is unknown, nor where another event of the transaction says the same.
    pub affects_balance: bool,
}

impl FtTransfer {
    /// As a row.
    pub fn to_row(&self) -> Row {
        let mut row = Vec::with_capacity(FT_TRANSFERS.columns.len());
        row.extend(self.place.values());
        row.extend(self.parties.values());
        row.extend([
            Value::Amount(self.amount),
            Value::text(self.kind.clone()),
            Value::Bool(self.parties.is_mint),
            Value::Bool(self.parties.is_burn),
            Value::Bool(self.affects_balance),
        ]);
        Row(row)
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<FtTransfer, RowError> {
        let fields = &mut Fields::of(&FT_TRANSFERS, row);
        let place = EventPlace::read(fields)?;
        let mut parties = Parties::read(fields)?;
        let amount = fields.amount()?;
        let kind = fields.text()?.into();
        (parties.is_mint, parties.is_burn) = (fields.boolean()?, fields.boolean()?);
        Ok(FtTransfer { place, parties, amount, kind, affects_balance: fields.boolean()? })
    }
}

/// A row of [`NFT_TRANSFERS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftTransfer {
    /// Where.
    pub place: EventPlace,
    /// Which collection, between whom.
    pub parties: Parties,
    /// Which item.
    pub token_id: U256,
    /// How many of it; 1 where an item has one owner.
    pub amount: U256,
    /// By which rule the event was read.
    pub kind: String,
}

impl NftTransfer {
    /// As a row.
    pub fn to_row(&self) -> Row {
        let mut row = Vec::with_capacity(NFT_TRANSFERS.columns.len());
        row.extend(self.place.values());
        row.extend(self.parties.values());
        row.extend([
            Value::Amount(self.token_id),
            Value::Amount(self.amount),
            Value::text(self.kind.clone()),
            Value::Bool(self.parties.is_mint),
            Value::Bool(self.parties.is_burn),
        ]);
        Row(row)
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<NftTransfer, RowError> {
        let fields = &mut Fields::of(&NFT_TRANSFERS, row);
        let place = EventPlace::read(fields)?;
        let mut parties = Parties::read(fields)?;
        let (token_id, amount) = (fields.amount()?, fields.amount()?);
        let kind = fields.text()?.into();
        (parties.is_mint, parties.is_burn) = (fields.boolean()?, fields.boolean()?);
        Ok(NftTransfer { place, parties, token_id, amount, kind })
    }
}
