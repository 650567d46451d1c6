//! The audit behind `cairn verify`: what is missing is named, also just before the range.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cairn_core::{ChainId, Fence, Height, HeightRange, IndexKey, StoredBlock, SystemClock};
use cairn_pipeline::audit::{AuditReport, BlockAuditor, Subject, audit};
use cairn_store::memory::MemoryStore;
use cairn_store::suite::blocks::{chain, chain_after};
use cairn_store::{
    AppendBatch, PurgeProgress, RawReader, RawSnapshot, RawWriter, Rollback, StoreError, StoreInfo,
};

/// Finds nothing wrong with a block, and knows the terms of each.
struct Known(BTreeMap<Height, Vec<IndexKey>>);

impl BlockAuditor for Known {
    fn problems(&self, _: &StoredBlock) -> Vec<String> {
        Vec::new()
    }

    fn log_terms(&self, block: &StoredBlock) -> Result<Vec<IndexKey>, String> {
        self.0.get(&block.facts.height).cloned().ok_or_else(|| "not known".into())
    }
}

/// Audits `range` of twenty blocks of which `lost` are missing.
async fn audited(lost: &[u64], range: (u64, u64)) -> AuditReport {
    let blocks = chain(0, 20, 0);
    let terms = blocks.iter().map(|block| (block.facts.height, block.log_terms.clone())).collect();
    let store = MemoryStore::new(Arc::new(SystemClock));
    store
        .init(StoreInfo { uuid: [7; 16], chain_id: ChainId(1), chain_config: Default::default() })
        .await
        .expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, AppendBatch { blocks, ..AppendBatch::default() }).await.expect("append");
    for height in lost {
        store.lose_block(Height(*height)).expect("loses");
    }
    let reader: Arc<dyn RawReader> = Arc::new(store);
    let range = HeightRange::inclusive(Height(range.0), Height(range.1));
    audit(&reader, Arc::new(Known(terms)), range, 100, |_| {}).await.expect("an audit")
}

#[tokio::test]
async fn i06_missing_blocks_are_named_as_ranges() {
    let report = audited(&[0, 5, 6, 7, 12, 19], (0, 19)).await;
    let named: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let what = "no block is stored there, though the head row says so";
    assert_eq!(
        named,
        [
            format!("height 0: {what}"),
            format!("heights 5..7: {what}"),
            format!("height 12: {what}"),
            format!("height 19: {what}")
        ]
    );
    assert_eq!(report.blocks, 14);
    assert!(audited(&[], (0, 19)).await.findings.is_empty());
}

/// The link of the first block can't be checked, and that is said.
#[tokio::test]
async fn i06_a_missing_block_just_before_the_range_is_named() {
    let report = audited(&[5], (6, 6)).await;
    assert_eq!(report.blocks, 1);
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.height, finding.subject)).collect();
    assert_eq!(found, [(Height(5), Subject::Missing(HeightRange::one(Height(5))))]);
    assert!(audited(&[5], (7, 9)).await.findings.is_empty());
    let both = audited(&[5, 6], (6, 8)).await;
    assert_eq!(both.findings[0].subject, Subject::Missing(HeightRange::new(Height(5), Height(7))));
}

/// Replaces the blocks from height 15 on by another fork, just before its `reorg_at`th snapshot.
struct Reorganises {
    store: MemoryStore,
    fence: Fence,
    snapshots: AtomicU64,
    reorg_at: u64,
}

#[async_trait]
impl RawReader for Reorganises {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>, StoreError> {
        if self.snapshots.fetch_add(1, Ordering::Relaxed) == self.reorg_at {
            let common = chain(0, 20, 0)[14].block_ref();
            self.store.rollback(self.fence, Rollback { common, max_depth: 10, decided_at_ms: 0 }).await?;
            while self.store.purge_step(self.fence, 100).await? != PurgeProgress::Done {}
            let blocks = chain_after(common.id, Height(15), 4, 1);
            self.store.append(self.fence, AppendBatch { blocks, ..AppendBatch::default() }).await?;
        }
        self.store.snapshot().await
    }
}

/// Knows the terms of the blocks of both forks.
struct KnowsForks;

impl BlockAuditor for KnowsForks {
    fn problems(&self, _: &StoredBlock) -> Vec<String> {
        Vec::new()
    }

    fn log_terms(&self, block: &StoredBlock) -> Result<Vec<IndexKey>, String> {
        let first = chain(0, 20, 0);
        let second = chain_after(first[14].facts.id, Height(15), 4, 1);
        let found = first.into_iter().chain(second).find(|known| known.facts.id == block.facts.id);
        Ok(found.ok_or("not known")?.log_terms)
    }
}

/// An audit beside an ingester took a block from before a reorg, its index entries from after it, and named them as damage.
#[tokio::test]
async fn i06_a_reorg_between_two_reads_is_no_finding() {
    let mut reorgs = 0;
    for reorg_at in 0..12 {
        let store = MemoryStore::new(Arc::new(SystemClock));
        store
            .init(StoreInfo { uuid: [7; 16], chain_id: ChainId(1), chain_config: Default::default() })
            .await
            .expect("init");
        let fence = store.acquire().await.expect("acquire").fence;
        let blocks = chain(0, 20, 0);
        store.append(fence, AppendBatch { blocks, ..AppendBatch::default() }).await.expect("append");
        let snapshots = AtomicU64::new(0);
        let store = Arc::new(Reorganises { store, fence, snapshots, reorg_at });
        let reader: Arc<dyn RawReader> = store.clone();
        let range = HeightRange::inclusive(Height(0), Height(19));
        let report = audit(&reader, Arc::new(KnowsForks), range, 100, |_| {}).await.expect("an audit");
        assert_eq!(report.findings, [], "a reorg before snapshot {reorg_at}");
        reorgs += u64::from(store.snapshots.load(Ordering::Relaxed) > reorg_at);
    }
    assert!(reorgs > 3, "the audit took more snapshots than {reorgs}");
}
