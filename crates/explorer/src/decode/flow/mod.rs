//! Events of Flow transactions as token movements.
//!
//! Movements are read from a whole transaction, since a withdrawal and its deposit are two events, and vaults are split and merged in
//! between: [`TokenMoves::of`].

mod fungible;
mod lots;
mod non_fungible;
mod tokens;

pub use tokens::{FtKind, FtMove, MalformedEvent, NftMove, TokenMoves};
