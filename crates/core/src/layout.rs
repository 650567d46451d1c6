//! Where a block's transactions and events stand in its bytes: what a codec tells stores that keep them in rows.

use std::ops::Range;

use crate::RawBlock;

/// Says where a block's transactions and events stand in its bytes.
pub trait BlockLayout: Send + Sync + std::fmt::Debug {
    /// The slices of a block; `None` where its bytes can't be cut: they are then kept whole.
    fn slices(&self, block: &RawBlock) -> Option<Slices>;
}

/// Cuts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uncut;

impl BlockLayout for Uncut {
    fn slices(&self, _: &RawBlock) -> Option<Slices> {
        None
    }
}

/// Byte ranges in a block's parts; ascending and disjoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slices {
    /// One for each of the block's transactions, in order.
    pub transactions: Vec<TxSlice>,
    /// Each event's, in block order; an event's index in the block is its place here.
    pub events: Vec<EventSlice>,
    /// EVM transactions inside the chain's own ones; empty on EVM chains, where the id is the hash.
    pub evm_lookups: Vec<EvmLookup>,
}

/// Where a transaction stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxSlice {
    /// Its bytes within `body`; empty where the body doesn't list it.
    pub body: Range<usize>,
    /// Its receipt or result within `receipts`, events included.
    pub receipt: Range<usize>,
}

/// Where an event stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSlice {
    /// Its transaction's index in the block.
    pub tx_index: u32,
    /// Its bytes within `receipts`, inside its transaction's receipt.
    pub range: Range<usize>,
}

/// An EVM transaction inside a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmLookup {
    /// The EVM hash.
    pub evm_hash: [u8; 32],
    /// The index of the transaction that holds it.
    pub tx_index: u32,
    /// Its place among the EVM transactions of the block.
    pub evm_index: u32,
}
