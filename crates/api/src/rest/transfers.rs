//! Token transfers as rows of lists.

use axum::Json;
use bytes::Bytes;
use cairn_store::derived::Row;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::Page;
use super::fields::Fields;
use super::list::{Rows, Walk};
use super::params::Paging;
use super::problem::Problem;
use super::view::View;
use super::words::{Address, Amount, Hash, Num, rfc3339};

/// What moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    /// A fungible token.
    Ft,
    /// An NFT.
    Nft,
}

/// What a transfer is to the address that was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    In,
    Out,
    /// From the address to itself: one row (E27).
    #[serde(rename = "self")]
    Own,
}

/// A movement of a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Transfer {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// The event's place in its block.
    pub event_index: u32,
    /// The movement's place in its event.
    pub sub_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    pub family: Family,
    /// The token as paths take it: its address, on Flow `A.<address>.<name>`.
    pub token_identifier: String,
    pub token_address: Address,
    /// The contract's name within its account, where the chain has such; else empty.
    pub contract_name: String,
    /// Null where the chain names nobody.
    pub from: Option<Address>,
    /// Null where the chain names nobody.
    pub to: Option<Address>,
    /// Of an NFT, which; else null.
    pub item_id: Option<Amount>,
    /// In the token's smallest unit; of an NFT how many of the item.
    pub amount: Amount,
    /// By which rule the event was read.
    pub kind: String,
    pub is_mint: bool,
    pub is_burn: bool,
    /// Of a fungible token, whether balances count it; of an NFT null.
    pub affects_balance: Option<bool>,
    /// What it is to the address that was asked about; null where none was.
    pub direction: Option<Direction>,
}

impl Transfer {
    fn of(view: &View, table: &'static str, row: &Row, subject: Option<&Bytes>) -> Result<Transfer, Problem> {
        let fields = Fields::new(view.table(table)?, row);
        let family = if table == "nft_transfers" { Family::Nft } else { Family::Ft };
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        let (from, to) = (fields.opt_bytes("from_address")?, fields.opt_bytes("to_address")?);
        let direction =
            subject.map(|subject| match (from.as_ref() == Some(subject), to.as_ref() == Some(subject)) {
                (true, true) => Direction::Own,
                (true, false) => Direction::Out,
                (false, _) => Direction::In,
            });
        let is_nft = family == Family::Nft;
        Ok(Transfer {
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            event_index: fields.index("event_index")?,
            sub_index: fields.index("sub_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            family,
            token_identifier: view.identifier(&fields, "token_contract_address")?,
            token_address: fields.address("token_contract_address")?,
            contract_name: fields.text("contract_name")?,
            from: from.map(Address),
            to: to.map(Address),
            item_id: if is_nft { Some(fields.amount("token_id")?) } else { None },
            amount: fields.amount("amount")?,
            kind: fields.text("kind")?,
            is_mint: fields.boolean("is_mint")?,
            is_burn: fields.boolean("is_burn")?,
            affects_balance: if is_nft { None } else { Some(fields.boolean("affects_balance")?) },
            direction,
        })
    }

    /// A page of rows of `ft_transfers` or `nft_transfers`, as the walks say. `subject` is the address that was asked about.
    pub(crate) fn page(
        view: &View,
        found: Rows,
        walks: &[Walk],
        subject: Option<&Bytes>,
        paging: &Paging,
    ) -> Result<Json<Page<Transfer>>, Problem> {
        let data = found
            .rows
            .iter()
            .map(|(walk, row)| Transfer::of(view, walks[*walk].table, row, subject))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Json(Page { data, page: found.page(paging), meta: view.meta() }))
    }
}
