//! The EVM codec. Pure: bytes and JSON in, facts, checks and views out; no I/O, no clock.
//!
//! A block is kept as consensus bytes ([`canonical`]); what consensus can't carry (unknown transaction types, fields that only RPC
//! has) is kept beside them as an overlay ([`overlay`]) and laid over the view when it is served, so that an answer equals the
//! node's own.

pub mod canonical;
pub mod check;
mod creates;
pub mod decoded;
mod error;
pub mod eth_config;
pub mod fees;
pub mod filter;
pub mod genesis;
pub mod json;
mod layout;
pub mod overlay;
pub mod params;
pub mod profile;
mod receipts;
mod rlp;
mod roots;
pub mod rpc_block;
pub mod schedule;
pub mod signature;
pub mod terms;
#[cfg(test)]
mod testdata;
pub mod traces;
pub mod tx;
pub mod views;
mod withdrawals;

pub use canonical::{ConsensusBlock, from_consensus};
pub use check::{SendersAre, check_block, check_block_with};
pub use creates::{CreatedContract, created_contracts};
pub use decoded::{DecodedBlock, DecodedLog, DecodedReceipt, DecodedTx, Recipient};
pub use error::{CheckFailure, EvmError};
pub use eth_config::UnknownFork;
pub use fees::{FeeError, FeeHeader};
pub use filter::{BlockSelector, FilterLimits, LogFilter, RangeError, parse_filter, resolve_range};
pub use genesis::{GenesisError, chain_config_json, genesis_block};
pub use json::Json;
pub use layout::EvmLayout;
pub use params::{
    Arguments, BlockAt, BlockTag, ParamError, TagHeights, parse_address, parse_block_at, parse_block_tag,
    parse_bool, parse_count, parse_data, parse_hash, parse_percentiles, parse_quantity, parse_quantity_u256,
};
pub use profile::{ChainProfile, Checks};
pub use rpc_block::{Beside, from_rpc, from_rpc_with, linked_ref_from_rpc};
pub use schedule::{BlobParams, Fork, ForkSchedule};
pub use terms::{TermSlot, log_term, log_terms_of_receipts};
pub use views::{BlockView, LogPlace};
