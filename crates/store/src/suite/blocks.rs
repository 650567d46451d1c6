//! Blocks made from numbers: chain-neutral, the same bytes each time, forks by salt.

use bytes::Bytes;
use cairn_core::{
    BlockFacts, BlockId, Height, IndexKey, Parts, RawBlock, StoredBlock, TxFacts, TxId, TxStatus,
};
use sha2::{Digest, Sha256};

/// A small generator (SplitMix64): the same numbers from the same seed, on every machine.
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// Begins at `seed`.
    pub fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Bytes that compress somewhat: about half of them repeat.
    pub fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = Vec::with_capacity(len + 16);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_be_bytes());
            bytes.extend_from_slice(b"cairnrow");
        }
        bytes.truncate(len);
        bytes.into()
    }
}

fn hash(domain: &str, numbers: &[u64], parent: Option<BlockId>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(domain.as_bytes());
    for number in numbers {
        hash.update(number.to_be_bytes());
    }
    if let Some(parent) = parent {
        hash.update(parent.as_bytes());
    }
    hash.finalize().into()
}

/// A transaction id that depends on the numbers alone.
pub fn tx_id(numbers: &[u64]) -> TxId {
    TxId(hash("tx", numbers, None))
}

/// A term that stands in many blocks; `n` from 0 to 7, each rarer than the one before.
pub fn common_term(n: u64) -> IndexKey {
    0x1000_0000_0000_0000 + n
}

/// The term that stands in the one block with this id, where that has logs.
pub fn own_term(id: BlockId) -> IndexKey {
    id.index_key() | 1
}

/// The parent of a chain's first block.
pub fn anchor_parent(height: Height) -> BlockId {
    if height == Height::ZERO { BlockId::default() } else { BlockId(hash("before", &[height.get()], None)) }
}

/// The block at `height` on the fork `salt` that follows `parent_id`.
///
/// Its first transaction is the same on every fork; the others are the fork's own. Every third block or so has no logs, some have
/// no transactions, some have extras or traces, and some parts are empty.
pub fn block(height: Height, parent_id: BlockId, salt: u64) -> RawBlock {
    let at = height.get();
    let id = BlockId(hash("block", &[at, salt], Some(parent_id)));
    let mut numbers = Numbers::new(id.index_key());
    let tx_count = numbers.below(5);
    let transactions: Vec<TxFacts> = (0..tx_count)
        .map(|index| TxFacts {
            id: if index == 0 { tx_id(&[at]) } else { tx_id(&[at, salt, index]) },
            sender: numbers.bytes(if numbers.clone().one_in(9) { 255 } else { 20 }),
            status: [TxStatus::Failed, TxStatus::Ok, TxStatus::Unknown][numbers.below(3) as usize],
        })
        .collect();
    let mut log_terms = Vec::new();
    if !numbers.one_in(3) {
        log_terms.push(own_term(id));
        log_terms.extend((0..8).filter(|n| at.is_multiple_of(1 << n)).map(common_term));
        log_terms.sort_unstable();
        log_terms.dedup();
    }
    let facts = BlockFacts {
        height,
        id,
        parent_id,
        timestamp_ms: at.saturating_mul(1_000) + salt,
        tx_count: tx_count as u32,
        log_count: log_terms.len() as u32,
        unverified: if numbers.one_in(7) { 5 } else { 0 },
    };
    let mut part = |least: u64, most: u64| {
        let len = least + numbers.below(most - least);
        numbers.bytes(len as usize)
    };
    let header = part(30, 200);
    let body = part(0, 40 + 200 * tx_count);
    let receipts = part(0, 1 + 60 * log_terms.len() as u64);
    let extras = if id.0[0].is_multiple_of(4) { part(1, 90) } else { Bytes::new() };
    let traces = if id.0[1].is_multiple_of(3) { Some(part(0, 300)) } else { None };
    RawBlock { facts, transactions, header, body, receipts, extras, traces, log_terms }
}

/// `count` linked blocks from `first` on, the first of which follows `parent_id`.
pub fn chain_after(parent_id: BlockId, first: Height, count: u64, salt: u64) -> Vec<RawBlock> {
    let mut parent_id = parent_id;
    (0..count)
        .map(|n| {
            let block = block(first + n, parent_id, salt);
            parent_id = block.facts.id;
            block
        })
        .collect()
}

/// `count` linked blocks from `first` on, on a chain that begins there.
pub fn chain(first: u64, count: u64, salt: u64) -> Vec<RawBlock> {
    chain_after(anchor_parent(Height(first)), Height(first), count, salt)
}

/// `trunk` up to and with the block at `common`, and `count` blocks of the fork `salt` on top.
pub fn fork(trunk: &[RawBlock], common: u64, count: u64, salt: u64) -> Vec<RawBlock> {
    let mut blocks: Vec<RawBlock> =
        trunk.iter().take_while(|block| block.facts.height.get() <= common).cloned().collect();
    let parent_id = blocks.last().map_or_else(|| anchor_parent(Height(common + 1)), |block| block.facts.id);
    blocks.extend(chain_after(parent_id, Height(common + 1), count, salt));
    blocks
}

/// What reading `block` with `parts` answers.
pub fn as_stored(block: &RawBlock, parts: Parts) -> StoredBlock {
    let part = |flag: Parts, bytes: &Bytes| if parts.contains(flag) { bytes.clone() } else { Bytes::new() };
    StoredBlock {
        facts: block.facts,
        transactions: if parts.contains(Parts::TRANSACTIONS) {
            block.transactions.clone()
        } else {
            Vec::new()
        },
        header: part(Parts::HEADER, &block.header),
        body: part(Parts::BODY, &block.body),
        receipts: part(Parts::RECEIPTS, &block.receipts),
        extras: part(Parts::EXTRAS, &block.extras),
        traces: block.traces.clone().filter(|_| parts.contains(Parts::TRACES)),
    }
}
