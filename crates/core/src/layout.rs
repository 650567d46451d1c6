//! Where a block's transactions and events stand in its bytes: what a codec tells stores that keep them in rows.

use std::ops::Range;

use bytes::Bytes;

use crate::RawBlock;

/// Says where a block's transactions and events stand in its bytes.
pub trait BlockLayout: Send + Sync + std::fmt::Debug {
    /// The slices of a block; `None` where its bytes can't be cut: they are then kept whole.
    fn slices(&self, block: &RawBlock) -> Option<Slices>;

    /// Whether transactions may carry scripts ([`PartKind::Script`]): these have to be stored before the rows that name them.
    fn has_scripts(&self) -> bool {
        false
    }

    /// Whether transactions may hold EVM transactions ([`EvmLookup`]): their lookups are then held against the blocks in a repair.
    fn has_evm_lookups(&self) -> bool {
        false
    }
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
    /// Each event's, in block order.
    pub events: Vec<EventSlice>,
    /// EVM transactions inside the chain's own ones; empty on EVM chains, where the id is the hash.
    pub evm_lookups: Vec<EvmLookup>,
    /// Parts of transactions that have a place of their own, by transaction; empty on EVM chains.
    pub parts: Vec<TxPart>,
    /// What is said about each transaction beside its bytes: one for each, or none at all.
    pub details: Vec<TxDetails>,
    /// The collections that the block is made of, in order; empty on chains without.
    pub collections: Vec<Collection>,
    /// The name of the extras, where they are the result of executing the block.
    pub execution_result: Option<[u8; 32]>,
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
    /// The index that the chain's protocol gives it: over the block on EVM chains, within its transaction on Flow. Within one transaction it
    /// grows by one from event to event, or by two: Flow skipped the index behind a service event until the end of 2025.
    pub index: u32,
    /// Its bytes within `receipts`, inside its transaction's receipt.
    pub range: Range<usize>,
}

impl EventSlice {
    /// Whether an event of index `next` may follow one of index `index` within a transaction.
    pub fn may_follow(index: u64, next: u64) -> bool {
        matches!(next.checked_sub(index), Some(1 | 2))
    }
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

/// Bytes of a transaction that have a place of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxPart {
    /// Its transaction's index in the block.
    pub tx_index: u32,
    /// What they are.
    pub kind: PartKind,
    /// Where they stand within `body`, inside their transaction's slice.
    pub range: Range<usize>,
}

/// What a part of a transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    /// The program that it runs; many transactions have the same. At most one of a transaction.
    Script,
    /// An argument of the program.
    Argument,
}

/// What a transaction says beside its bytes: copies, for columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxDetails {
    /// The address that proposed it.
    pub proposer: Bytes,
    /// The address that pays for it.
    pub payer: Bytes,
    /// The addresses in whose name it acts.
    pub authorizers: Vec<Bytes>,
    /// Why it failed.
    pub error: Option<String>,
    /// What executing it cost, in the chain's unit.
    pub computation: u64,
}

/// A collection of transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collection {
    /// Its id.
    pub id: [u8; 32],
    /// How many transactions it has.
    pub tx_count: u32,
}
