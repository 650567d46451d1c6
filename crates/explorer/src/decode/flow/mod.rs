//! Events of Flow transactions: token movements, accounts, keys, contracts.
//!
//! Token movements are read from a whole transaction, since a withdrawal and its deposit are two events, and vaults are split and merged in
//! between: [`TokenMoves::of`].

mod accounts;
mod burns;
mod fees;
mod fungible;
mod imports;
mod lots;
mod non_fungible;
mod tokens;

pub use accounts::{AccountChange, AccountEvent, AccountKey, ContractChange, RevokedKey, account_event};
pub use fees::{Fees, fees};
pub use imports::{MAX_IMPORTS, imports};
pub use tokens::{FtKind, FtMove, MalformedEvent, NftDestroyed, NftKind, NftMove, TokenMoves, contract_of};

/// The kind of rows of fungible tokens, minted and burnt ones included.
pub const FT_KIND: &str = "cadence-ft";
/// The kind of rows of fees.
pub const FEE_KIND: &str = "cadence-fee";
/// The kind of rows of non-fungible tokens. An item of it has one owner, or none while it lies in some other resource than an account's
/// collection.
pub const NFT_KIND: &str = "cadence-nft";

/// The longest name of a contract, in bytes, that tables hold, since they are indexed by it. What is said of a contract with a longer one is
/// malformed.
pub const MAX_NAME_BYTES: usize = 256;
