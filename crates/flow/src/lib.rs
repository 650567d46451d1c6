//! The Flow codec. Pure: Access API messages in, facts, checks and views out; no I/O, no clock.
//!
//! A block is kept as the messages that an access node gave ([`block`]), field by field as they came, so that a field that this
//! version doesn't know is kept too; only what says something of the node and not of the block is left out. Events stay JSON-CDC
//! ([`cdc`]); EVM transactions inside events are decoded by [`evm`].
//!
//! A transaction id does not name one transaction on Flow: the system transactions have the same id in every block ([`id`]).

pub mod address;
pub mod again;
pub mod block;
pub mod cdc;
mod check;
mod error;
pub mod event;
pub mod evm;
pub mod evm_blocks;
pub mod id;
mod layout;
pub mod network;
pub mod pair;
pub mod proto;
pub mod terms;
mod wire;

pub use address::FlowAddress;
pub use block::{BlockParts, Checks, DecodedBlock, DecodedEvent, DecodedTx, assemble, check_stored};
pub use cdc::CdcValue;
pub use error::FlowError;
pub use event::EventType;
pub use layout::FlowLayout;
pub use network::Network;
