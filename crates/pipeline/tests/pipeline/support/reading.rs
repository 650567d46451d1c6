//! A raw store whose reads of ranges of blocks a test sees, and may cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use async_trait::async_trait;
use cairn_core::{BlockId, Height, HeightRange, LinkedRef, Parts, StoredBlock, TxId};
use cairn_store::memory::MemoryStore;
use cairn_store::{
    BlocksRead, Checkpoint, HeadRow, IndexFingerprint, LogQuery, RawLease, RawReader, RawSnapshot,
    ReorgEntry, Result, StoreError, StoreSizes, TxPlace,
};

type ReadFn = dyn Fn(HeightRange, Parts, BlocksRead) -> BlocksRead + Send + Sync;

/// Another way to a store in memory.
pub struct Reading {
    raw: MemoryStore,
    read: Arc<ReadFn>,
    damaged: Option<Height>,
}

impl Reading {
    /// Answers as `read` says, which is told what was asked for and what the store says.
    pub fn through(
        raw: &MemoryStore,
        read: impl Fn(HeightRange, Parts, BlocksRead) -> BlocksRead + Send + Sync + 'static,
    ) -> Arc<Reading> {
        Arc::new(Reading { raw: raw.clone(), read: Arc::new(read), damaged: None })
    }

    /// Has no readable row of this height any more.
    pub fn damaged_at(raw: &MemoryStore, height: Height) -> Arc<Reading> {
        Arc::new(Reading { raw: raw.clone(), read: Arc::new(|_, _, read| read), damaged: Some(height) })
    }

    /// Ends each read after so many blocks, as a store does whose snapshot's time is over: it answers nothing more.
    pub fn cut_after(raw: &MemoryStore, blocks: usize) -> Arc<Reading> {
        Reading::through(raw, move |range, _, mut read| {
            if read.blocks.len() <= blocks {
                return read;
            }
            read.blocks.truncate(blocks);
            BlocksRead::cut(range, read.blocks)
        })
    }
}

#[async_trait]
impl RawReader for Reading {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        let inner = self.raw.snapshot().await?;
        let (read, damaged) = (self.read.clone(), self.damaged);
        Ok(Arc::new(Snapshot { inner, read, damaged, is_over: AtomicBool::new(false) }))
    }
}

struct Snapshot {
    inner: Arc<dyn RawSnapshot>,
    read: Arc<ReadFn>,
    damaged: Option<Height>,
    is_over: AtomicBool,
}

impl Snapshot {
    fn at(&self) -> Result<&dyn RawSnapshot> {
        if self.is_over.load(SeqCst) {
            Err(StoreError::Busy("the snapshot is too old".into()))
        } else {
            Ok(&*self.inner)
        }
    }
}

#[async_trait]
impl RawSnapshot for Snapshot {
    fn head(&self) -> &HeadRow {
        self.inner.head()
    }
    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>> {
        self.at()?.block(height, parts).await
    }
    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead> {
        let whole = self.at()?.blocks(range, parts, max_bytes).await?;
        let next = whole.next;
        let read = (self.read)(range, parts, whole);
        self.is_over.fetch_or(read.next < next, SeqCst);
        Ok(read)
    }
    async fn blocks_at(&self, heights: &[Height], parts: Parts, max_bytes: u64) -> Result<Vec<StoredBlock>> {
        self.at()?.blocks_at(heights, parts, max_bytes).await
    }
    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        if self.damaged == Some(height) {
            return Err(StoreError::Corrupt {
                place: format!("block {height}"),
                what: "its row is gone".into(),
            });
        }
        self.at()?.linked_ref(height).await
    }
    async fn find_block(&self, id: BlockId) -> Result<Option<Height>> {
        self.at()?.find_block(id).await
    }
    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>> {
        self.at()?.find_tx(id).await
    }
    async fn log_candidates(
        &self,
        range: HeightRange,
        query: &LogQuery,
        limit: usize,
    ) -> Result<Vec<Height>> {
        self.at()?.log_candidates(range, query, limit).await
    }
    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
        self.at()?.reorgs(after_id, limit).await
    }
    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>> {
        self.at()?.orphan(reorg_id, id, parts).await
    }
    async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.at()?.checkpoints().await
    }
    async fn raw_leases(&self) -> Result<Vec<RawLease>> {
        self.at()?.raw_leases().await
    }
    async fn sizes(&self) -> Result<StoreSizes> {
        self.at()?.sizes().await
    }
    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>> {
        self.at()?.index_fingerprints(range).await
    }
}
