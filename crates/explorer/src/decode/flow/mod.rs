//! Events of Flow transactions: token movements, accounts, keys, contracts.
//!
//! Token movements are read from a whole transaction, since a withdrawal and its deposit are two events, and vaults are split and merged in
//! between: [`TokenMoves::of`].

mod accounts;
mod fungible;
mod lots;
mod non_fungible;
mod tokens;

pub use accounts::{AccountChange, AccountEvent, AccountKey, ContractChange, RevokedKey, account_event};
pub use tokens::{FtKind, FtMove, MalformedEvent, NftMove, TokenMoves};
