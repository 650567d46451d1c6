//! The EVM codec. Pure: bytes and JSON in, facts, checks and views out; no I/O, no clock.
//!
//! A block is kept as consensus bytes ([`canonical`]); what consensus can't carry (unknown transaction types, fields that only RPC
//! has) is kept beside them as an overlay ([`overlay`]) and laid over the view when it is served, so that an answer equals the
//! node's own.

pub mod canonical;
pub mod check;
mod error;
pub mod overlay;
pub mod profile;
mod receipts;
mod rlp;
pub mod terms;
pub mod tx;
mod withdrawals;

pub use canonical::{ConsensusBlock, from_consensus};
pub use check::{SendersAre, check_block, check_block_with};
pub use error::{CheckFailure, EvmError};
pub use profile::{ChainProfile, Checks};
pub use terms::{TermSlot, log_term, log_terms_of_receipts};
