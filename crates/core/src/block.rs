//! A block as cairn keeps it: chain-neutral facts beside the chain's own canonical bytes.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{BlockId, BlockRef, Height, IndexKey, LinkedRef, TxId};

/// How a transaction ended. Three-valued: old EVM receipts don't say (EIP-658 came with Byzantium).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum TxStatus {
    /// It failed.
    Failed = 0,
    /// It succeeded.
    Ok = 1,
    /// The chain doesn't say.
    Unknown = 2,
}

impl TxStatus {
    /// The stored byte, back.
    pub fn from_byte(byte: u8) -> Option<TxStatus> {
        match byte {
            0 => Some(TxStatus::Failed),
            1 => Some(TxStatus::Ok),
            2 => Some(TxStatus::Unknown),
            _ => None,
        }
    }
}

/// What every chain can say of a transaction. Its index is its place in the block's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxFacts {
    /// The transaction's id.
    pub id: TxId,
    /// Who sent it, in the chain's own bytes (20 on EVM chains, 8 on Flow, an account name on NEAR). At most 255 bytes.
    pub sender: Bytes,
    /// How it ended.
    pub status: TxStatus,
}

/// What every chain can say of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockFacts {
    /// Its height.
    pub height: Height,
    /// Its id.
    pub id: BlockId,
    /// Its parent's id.
    pub parent_id: BlockId,
    /// Its time, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// How many transactions it holds.
    pub tx_count: u32,
    /// How many logs (events) its transactions left.
    pub log_count: u32,
    /// The checks that were relaxed or impossible for this block, as bits that the chain's codec names. 0: all held.
    pub unverified: u32,
}

impl BlockFacts {
    /// Height and id.
    pub fn block_ref(&self) -> BlockRef {
        BlockRef { height: self.height, id: self.id }
    }

    /// Height, id and parent's id.
    pub fn linked_ref(&self) -> LinkedRef {
        LinkedRef { block: self.block_ref(), parent_id: self.parent_id }
    }
}

/// A whole block on its way into a store.
///
/// The byte parts are the chain's canonical encoding, uncompressed, each readable without the others; `extras` holds
/// what that encoding can't carry. The codec of the chain turns them into typed views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawBlock {
    /// Facts; `tx_count` equals `transactions.len()`.
    pub facts: BlockFacts,
    /// Facts of each transaction, in block order.
    pub transactions: Vec<TxFacts>,
    /// The header.
    pub header: Bytes,
    /// Transactions and whatever else the block's body holds.
    pub body: Bytes,
    /// Receipts or results.
    pub receipts: Bytes,
    /// What the canonical encoding can't carry; empty where there is nothing.
    pub extras: Bytes,
    /// Call traces, where they are archived.
    pub traces: Option<Bytes>,
    /// The terms by which this block's logs are found: sorted, without repeats. Derived from `receipts`.
    pub log_terms: Vec<IndexKey>,
}

impl RawBlock {
    /// Height and id.
    pub fn block_ref(&self) -> BlockRef {
        self.facts.block_ref()
    }

    /// The memory that its parts take, in bytes: what byte budgets are charged with.
    pub fn size_bytes(&self) -> u64 {
        let parts = self.header.len()
            + self.body.len()
            + self.receipts.len()
            + self.extras.len()
            + self.traces.as_ref().map_or(0, Bytes::len);
        let facts = self.transactions.len() * (std::mem::size_of::<TxFacts>() + 20);
        (parts + facts + self.log_terms.len() * 8 + std::mem::size_of::<RawBlock>()) as u64
    }
}

bitflags::bitflags! {
    /// The separately readable parts of a stored block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Parts: u8 {
        /// The header bytes.
        const HEADER = 1;
        /// The facts of each transaction.
        const TRANSACTIONS = 2;
        /// The body bytes.
        const BODY = 4;
        /// The receipts bytes.
        const RECEIPTS = 8;
        /// What the canonical encoding can't carry.
        const EXTRAS = 16;
        /// Call traces.
        const TRACES = 32;
    }
}

/// A block read back: its facts, and the parts that were asked for.
///
/// A part that was not asked for is empty (`None` for traces), and so is one that has nothing in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// Facts.
    pub facts: BlockFacts,
    /// With [`Parts::TRANSACTIONS`].
    pub transactions: Vec<TxFacts>,
    /// With [`Parts::HEADER`].
    pub header: Bytes,
    /// With [`Parts::BODY`].
    pub body: Bytes,
    /// With [`Parts::RECEIPTS`].
    pub receipts: Bytes,
    /// With [`Parts::EXTRAS`].
    pub extras: Bytes,
    /// With [`Parts::TRACES`]; `None` also where none were archived.
    pub traces: Option<Bytes>,
}

impl StoredBlock {
    /// As a block on its way into a store: where all parts were read, the one that it was, but for the log terms, which no store gives back.
    pub fn without_terms(self) -> RawBlock {
        RawBlock {
            facts: self.facts,
            transactions: self.transactions,
            header: self.header,
            body: self.body,
            receipts: self.receipts,
            extras: self.extras,
            traces: self.traces,
            log_terms: Vec::new(),
        }
    }
}

/// As a store gives it back with all its parts.
impl From<RawBlock> for StoredBlock {
    fn from(block: RawBlock) -> Self {
        Self {
            facts: block.facts,
            transactions: block.transactions,
            header: block.header,
            body: block.body,
            receipts: block.receipts,
            extras: block.extras,
            traces: block.traces,
        }
    }
}

/// As a store gives it back with all its parts, which are shared and not copied.
impl From<&RawBlock> for StoredBlock {
    fn from(block: &RawBlock) -> Self {
        Self {
            facts: block.facts,
            transactions: block.transactions.clone(),
            header: block.header.clone(),
            body: block.body.clone(),
            receipts: block.receipts.clone(),
            extras: block.extras.clone(),
            traces: block.traces.clone(),
        }
    }
}
