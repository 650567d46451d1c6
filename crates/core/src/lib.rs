//! The words of cairn: what a height, a block reference, a range, a fence and an error kind are.
//!
//! This crate does no I/O and knows no chain. Everything else is written in these terms, so that one vocabulary
//! runs from a node's answer to an HTTP response.

mod block;
mod clock;
mod error;
mod height;
mod id;
mod layout;

pub use block::{BlockFacts, Parts, RawBlock, StoredBlock, TxFacts, TxStatus};
pub use clock::{Clock, SystemClock};
pub use error::ErrorKind;
pub use height::{Height, HeightRange, ImpossibleHeight};
pub use id::{BlockId, BlockRef, ChainId, FLOW_NETWORKS, Fence, HexError, LinkedRef, TxId};
pub use layout::{
    BlockLayout, Collection, EventSlice, EvmLookup, PartKind, Slices, TxDetails, TxPart, TxSlice, Uncut,
};

/// A term or a hash prefix in the store's index: the first eight bytes, big-endian, of whatever is looked up.
///
/// Keys may collide; a reader always checks what it found against the whole value.
pub type IndexKey = u64;
