//! Raw blocks that were read last, for the other mappers of the process: they come to the same heights at about the same time.
//!
//! Which blocks are canonical is asked of the snapshot each time, without their bytes; those that are here with these very facts are taken, the rest is
//! read. A block's id is the hash of its bytes, so what was read once is what would be read again; only repair changes what is stored under an id, and what is
//! made again after it (`LeaseKind::Reindex`) is never read from here.
//!
//! Whoever comes first to a height reads; who wants to begin at the same one waits for that, instead of reading the same beside it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_core::{BlockFacts, Height, HeightRange, Parts, StoredBlock, TxFacts};
use cairn_store::{BlocksRead, RawSnapshot, StoreError};

/// Chunks that begin at different heights are read beside each other, up to so many.
const TURNS: usize = 16;

pub(super) struct RecentBlocks {
    turns: [tokio::sync::Mutex<()>; TURNS],
    kept: Mutex<Kept>,
    max_bytes: u64,
}

#[derive(Default)]
struct Kept {
    blocks: HashMap<Height, Recent>,
    /// In the order in which they came.
    order: VecDeque<Height>,
    bytes: u64,
}

struct Recent {
    block: StoredBlock,
    /// Those that were read of it.
    parts: Parts,
}

impl RecentBlocks {
    /// Keeps blocks of so many bytes, and one more at most.
    pub fn new(max_bytes: u64) -> Self {
        RecentBlocks { turns: Default::default(), kept: Mutex::default(), max_bytes }
    }

    /// As [`RawSnapshot::blocks`].
    pub async fn blocks(
        &self,
        snapshot: &dyn RawSnapshot,
        range: HeightRange,
        parts: Parts,
        max_bytes: u64,
    ) -> Result<BlocksRead, StoreError> {
        if parts.is_empty() || self.max_bytes == 0 {
            return snapshot.blocks(range, parts, max_bytes).await;
        }
        let turn = (range.start().get() % TURNS as u64) as usize;
        let _turn = self.turns[turn].lock().await;
        let (mut blocks, mut bytes, mut rest) = (Vec::new(), 0, range);
        if self.kept().blocks.contains_key(&range.start()) {
            let canonical = snapshot.blocks(range, Parts::empty(), max_bytes).await?;
            rest = HeightRange::new(canonical.next, range.end());
            for there in canonical.blocks {
                let Some(block) = self.kept().find(&there.facts, parts) else {
                    rest = HeightRange::new(there.facts.height, range.end());
                    break;
                };
                bytes += bytes_of(&block);
                blocks.push(block);
                if bytes >= max_bytes {
                    return Ok(BlocksRead::cut(range, blocks));
                }
            }
        }
        if rest.is_empty() {
            return Ok(BlocksRead::whole(range, blocks));
        }
        let read = match snapshot.blocks(rest, parts, max_bytes - bytes).await {
            Ok(read) => read,
            // Time may be over: what was found so far is an answer.
            Err(StoreError::Busy(_)) if !blocks.is_empty() => {
                return Ok(BlocksRead { blocks, next: rest.start() });
            }
            Err(error) => return Err(error),
        };
        let mut kept = self.kept();
        for block in &read.blocks {
            kept.add(block.clone(), parts);
        }
        kept.shrink(self.max_bytes);
        blocks.extend(read.blocks);
        Ok(BlocksRead { blocks, next: read.next })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// The block with these facts and these parts of it alone, if all of them were read.
    fn find(&self, facts: &BlockFacts, parts: Parts) -> Option<StoredBlock> {
        let recent = self.blocks.get(&facts.height)?;
        if recent.block.facts != *facts || !recent.parts.contains(parts) {
            return None;
        }
        let of = |part: Parts, bytes: &bytes::Bytes| {
            if parts.contains(part) { bytes.clone() } else { bytes::Bytes::new() }
        };
        let block = &recent.block;
        Some(StoredBlock {
            facts: block.facts,
            transactions: if parts.contains(Parts::TRANSACTIONS) {
                block.transactions.clone()
            } else {
                Vec::new()
            },
            header: of(Parts::HEADER, &block.header),
            body: of(Parts::BODY, &block.body),
            receipts: of(Parts::RECEIPTS, &block.receipts),
            extras: of(Parts::EXTRAS, &block.extras),
            traces: block.traces.clone().filter(|_| parts.contains(Parts::TRACES)),
        })
    }

    fn add(&mut self, block: StoredBlock, parts: Parts) {
        let height = block.facts.height;
        self.bytes += weight_of(&block);
        match self.blocks.insert(height, Recent { block, parts }) {
            Some(before) => self.bytes -= weight_of(&before.block),
            None => self.order.push_back(height),
        }
    }

    fn shrink(&mut self, max_bytes: u64) {
        while self.bytes > max_bytes && self.order.len() > 1 {
            let oldest = self.order.pop_front().and_then(|height| self.blocks.remove(&height));
            self.bytes -= oldest.map_or(0, |oldest| weight_of(&oldest.block));
        }
    }
}

/// The bytes of the parts that were read.
fn bytes_of(block: &StoredBlock) -> u64 {
    let traces = block.traces.as_ref().map_or(0, bytes::Bytes::len);
    (block.header.len() + block.body.len() + block.receipts.len() + block.extras.len() + traces) as u64
}

/// The memory that it takes, about.
fn weight_of(block: &StoredBlock) -> u64 {
    let facts = block.transactions.len() * (std::mem::size_of::<TxFacts>() + 20);
    bytes_of(block) + (facts + std::mem::size_of::<Recent>()) as u64
}
