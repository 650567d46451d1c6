//! The audit behind `cairn verify`: what is missing is named, also just before the range.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{ChainId, Height, HeightRange, IndexKey, StoredBlock, SystemClock};
use cairn_pipeline::audit::{AuditReport, BlockAuditor, Subject, audit};
use cairn_store::memory::MemoryStore;
use cairn_store::suite::blocks::chain;
use cairn_store::{AppendBatch, RawReader, RawWriter, StoreInfo};

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
