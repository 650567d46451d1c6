//! What several mappers read out of one block, read once.
//!
//! The mappers of a process go through the same heights at about the same time, each at its own pace. Whoever comes to a block first reads it, the
//! others take what it read; who comes while it is being read waits for it. Of blocks long past nothing is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cairn_core::{BlockId, StoredBlock};
use cairn_pipeline::derive::processor::ProcessError;

/// The bytes of blocks that are kept, at most, and of one block more; what was read out of them takes a few times as much.
const MAX_BYTES: usize = 32 << 20;

type Read<T> = Result<Arc<T>, ProcessError>;

/// What was read out of the last blocks.
pub struct Shared<T> {
    kept: Mutex<Kept<T>>,
    max_bytes: usize,
}

struct Kept<T> {
    blocks: HashMap<BlockId, Arc<Entry<T>>>,
    /// In the order in which they came.
    order: VecDeque<Arc<Entry<T>>>,
    bytes: usize,
}

struct Entry<T> {
    /// The bytes that it was read from: the same id doesn't make other bytes right, nor other parts the same.
    block: StoredBlock,
    read: OnceLock<Read<T>>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared::with_limit(MAX_BYTES)
    }
}

impl<T> Shared<T> {
    fn with_limit(max_bytes: usize) -> Self {
        let kept = Kept { blocks: HashMap::new(), order: VecDeque::new(), bytes: 0 };
        Shared { kept: Mutex::new(kept), max_bytes }
    }

    /// What `read` makes of this block, or made of it for another. A block that can't be read is tried again by everybody who asks anew.
    pub(super) fn get(
        &self,
        block: &StoredBlock,
        read: impl FnOnce(&StoredBlock) -> Result<T, ProcessError>,
    ) -> Read<T> {
        let entry = self.entry(block);
        let done = entry.read.get_or_init(|| read(block).map(Arc::new)).clone();
        if done.is_err() {
            self.forget(&entry);
        }
        done
    }

    fn entry(&self, block: &StoredBlock) -> Arc<Entry<T>> {
        // Nothing panics while it is held, and what is kept is whole between any two of its lines.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = kept.blocks.get(&block.facts.id).filter(|entry| entry.block == *block) {
            return entry.clone();
        }
        let entry = Arc::new(Entry { block: block.clone(), read: OnceLock::new() });
        kept.blocks.insert(block.facts.id, entry.clone());
        kept.order.push_back(entry.clone());
        kept.bytes += bytes_of(block);
        while kept.bytes > self.max_bytes && kept.order.len() > 1 {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.bytes -= bytes_of(&oldest.block);
            kept.remove(&oldest);
        }
        entry
    }

    fn forget(&self, entry: &Arc<Entry<T>>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(entry);
    }
}

impl<T> Kept<T> {
    /// Takes an entry out of the map, unless another has its place.
    fn remove(&mut self, entry: &Arc<Entry<T>>) {
        let id = &entry.block.facts.id;
        if self.blocks.get(id).is_some_and(|kept| Arc::ptr_eq(kept, entry)) {
            self.blocks.remove(id);
        }
    }
}

fn bytes_of(block: &StoredBlock) -> usize {
    let traces = block.traces.as_ref().map_or(0, |traces| traces.len());
    block.header.len() + block.body.len() + block.receipts.len() + block.extras.len() + traces
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use bytes::Bytes;
    use cairn_core::{BlockFacts, Height};

    use super::*;

    fn block(id: u8, body: &'static [u8]) -> StoredBlock {
        let facts = BlockFacts {
            height: Height(1),
            id: BlockId([id; 32]),
            parent_id: BlockId([0; 32]),
            timestamp_ms: 0,
            tx_count: 0,
            log_count: 0,
            unverified: 0,
        };
        let (header, receipts, extras) = (Bytes::new(), Bytes::new(), Bytes::new());
        StoredBlock {
            facts,
            transactions: Vec::new(),
            header,
            body: Bytes::from_static(body),
            receipts,
            extras,
            traces: None,
        }
    }

    fn length(block: &StoredBlock) -> Result<usize, ProcessError> {
        Ok(block.body.len())
    }

    #[test]
    fn a_block_is_read_once_however_many_ask_at_once() {
        let (shared, reads) = (Shared::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let read = shared.get(&block(1, b"abc"), |block| {
                        reads.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        length(block)
                    });
                    assert_eq!(*read.expect("it can be read"), 3);
                });
            }
        });
        assert_eq!(reads.into_inner(), 1);
    }

    #[test]
    fn other_bytes_under_the_same_id_are_read_anew() {
        let shared = Shared::default();
        assert_eq!(*shared.get(&block(1, b"abc"), length).expect("it can be read"), 3);
        assert_eq!(*shared.get(&block(1, b"mended"), length).expect("it can be read"), 6);
        assert_eq!(*shared.get(&block(1, b"abc"), length).expect("it can be read"), 3);
    }

    #[test]
    fn what_could_not_be_read_is_tried_again() {
        let shared = Shared::default();
        let broken = block(1, b"abc");
        let error = ProcessError { block: broken.facts.block_ref(), message: "no".into() };
        assert_eq!(shared.get(&broken, |_| Err::<usize, _>(error.clone())), Err(error));
        assert_eq!(*shared.get(&broken, length).expect("it can be read"), 3);
    }

    #[test]
    fn no_more_is_kept_than_the_limit_and_one_block() {
        let shared = Shared::with_limit(10);
        for id in 0..100 {
            shared.get(&block(id, b"abcd"), length).expect("it can be read");
        }
        let kept = shared.kept.lock().expect("nobody panicked");
        assert_eq!((kept.blocks.len(), kept.order.len(), kept.bytes), (2, 2, 8));
        let newest = kept.order.back().expect("two are kept");
        assert_eq!(newest.block.facts.id, BlockId([99; 32]));
        drop(kept);
        shared.get(&block(1, b"much too long for it"), length).expect("it can be read");
        assert_eq!(shared.kept.lock().expect("nobody panicked").order.len(), 1);
    }
}
