//! Balances of fungible tokens (`ft_holdings`) and what is counted of a token (`token_stats`). State: a row is never deleted, a balance of
//! zero stays.
//!
//! A balance is the sum of transfers. It equals what the token's `balanceOf` answers where the token logs every change as the
//! standard demands; a token that changes balances silently (rebasing, a premine without event) has others, which may be negative.
//!
//! Deposits and withdrawals of wrapped native tokens count where the settings take them for token movements (E25), and then only where
//! no mint or burn of the same transaction says the same; the settings take none by default, and then such a token's balances lack them.
//! Transfers of unknown fungibility never count: their number may be an id.

use bytes::Bytes;
use cairn_store::derived::{Change, ColumnType, IndexDef, Merge, Sum, TableClass, TableDef, Value, column};

use crate::names::FT_HOLDINGS_WORKER;

/// Who holds how much. `is_held` is true where the balance isn't 0: `by_owner` with it lists the balances of an address. `by_balance` lists the
/// holders of a token, down to above 0, and those below 0. The zero address has no row.
pub static FT_HOLDINGS: TableDef = TableDef {
    name: "ft_holdings",
    service: FT_HOLDINGS_WORKER,
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("token_contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("is_held", ColumnType::Bool).merged(Merge::Last),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address", "token_contract_address", "contract_name"],
    indexes: &[
        IndexDef {
            name: "by_owner",
            columns: &["address", "is_held", "token_contract_address", "contract_name"],
        },
        IndexDef {
            name: "by_balance",
            columns: &["token_contract_address", "contract_name", "balance", "address"],
        },
    ],
};

/// The place of `balance` in a row of [`FT_HOLDINGS`].
pub const FT_BALANCE: usize = 3;

/// The place of `is_held` in a row of [`FT_HOLDINGS`].
pub const FT_IS_HELD: usize = 4;

/// A change of a balance. `is_held` is false until the row is settled.
pub fn ft_holding(address: &Bytes, token: (&Bytes, &str), by: Sum, height: u64) -> Change {
    Change(vec![
        Some(Value::Bytes(address.clone())),
        Some(Value::Bytes(token.0.clone())),
        Some(Value::text(token.1)),
        Some(Value::Sum(Box::new(by))),
        Some(Value::Bool(false)),
        Some(Value::uint(height)),
        None,
    ])
}

/// What is counted of a fungible token. `net_minted` is what was minted less what was burnt; `holders` counts balances above 0. On Flow tokens
/// may lie in no account's vault: `net_minted` is then what lies in accounts.
pub static TOKEN_STATS: TableDef = TableDef {
    name: "token_stats",
    service: FT_HOLDINGS_WORKER,
    class: TableClass::State,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("transfer_count", ColumnType::Int).merged(Merge::Sum),
        column("holder_count", ColumnType::Int).merged(Merge::Sum),
        column("net_minted", ColumnType::Sum).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["contract_address", "contract_name"],
    indexes: &[IndexDef {
        name: "by_holders",
        columns: &["holder_count", "contract_address", "contract_name"],
    }],
};

/// A change of a token's counts.
pub fn token_stats(
    token: (&Bytes, &str),
    transfers: i64,
    holders: i64,
    minted: Sum,
    first_height: Option<u64>,
) -> Change {
    Change(vec![
        Some(Value::Bytes(token.0.clone())),
        Some(Value::text(token.1)),
        Some(Value::Int(transfers)),
        Some(Value::Int(holders)),
        Some(Value::Sum(Box::new(minted))),
        first_height.map(Value::uint),
        None,
    ])
}
