//! A Flow node on loopback, the Flow source and the ingester: what a node that was on a wrong fork told, and takes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_core::{Height, SystemClock};
use cairn_flow::Network;
use cairn_flow_node::{Behaviour, Chain, Draft, FlowNode, linked_blocks};
use cairn_pipeline::ingest::{Finished, IngestOptions, Ingester};
use cairn_pipeline::status::StatusBoard;
use cairn_source::flow::{FlowConfig, FlowSource, NodeConfig};
use cairn_store::memory::MemoryStore;
use cairn_store::{Dump, HeadRow, RawDump, RawReader, StoreInfo};
use tokio_util::sync::CancellationToken;

const ROOT: u64 = 20;
const COMMON: u64 = 27;
const TIP: u64 = 30;
const FINALITY_HEIGHTS: u64 = 5;

/// The blocks above [`COMMON`] as the right fork has them: other ids, other events.
fn other_fork() -> Vec<Draft> {
    let id = |height: u64| {
        let mut id = vec![height as u8; 32];
        if height > COMMON {
            id[0] = 0xff;
        }
        Bytes::from(id)
    };
    let drafts = (COMMON + 1..=TIP + 2).map(|height| {
        let mut draft = Draft::new(height, &[1], 3);
        (draft.block.id, draft.block.parent_id) = (id(height), id(height - 1));
        for (_, result) in &mut draft.transactions {
            result.block_id = id(height);
        }
        draft.execution_result.iter_mut().for_each(|result| result.block_id = id(height));
        draft
    });
    drafts.collect()
}

/// Follows a node into a store until the head row is as asked; `change` is made once the first tip is there.
async fn follow(blocks: BTreeMap<u64, Draft>, change: Option<Vec<Draft>>, tip: u64) -> (HeadRow, Dump) {
    let node = FlowNode::start(Chain::new(blocks), Behaviour::default()).await.expect("listens");
    let config = NodeConfig { requests_per_s: 0, ..NodeConfig::new(node.url.parse().expect("a URL")) };
    let config =
        FlowConfig { finality_heights: FINALITY_HEIGHTS, ..FlowConfig::new(Network::Emulator, vec![config]) };
    let source = Arc::new(FlowSource::connect(config).await.expect("connects"));
    let clock = Arc::new(SystemClock);
    let store = MemoryStore::new(clock.clone());
    let chain_id = Network::Emulator.chain_number();
    let info = StoreInfo { uuid: [7; 16], chain_id, chain_config: Bytes::new() };
    let options = IngestOptions { start: Height(ROOT), poll_ms: 20, ..IngestOptions::new(info) };
    let board = StatusBoard::new(clock.clone());
    let ingester = Ingester::new(source, Arc::new(store.clone()), clock, board, options);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { ingester.run(shutdown).await }
    });
    if let Some(drafts) = change {
        until(&store, |head| head.tip.is_some_and(|tip| tip.height == Height(TIP))).await;
        let mut state = node.state();
        state.chain.rollback(COMMON);
        drafts.iter().for_each(|draft| state.chain.push(draft));
    }
    let head = until(&store, |head| {
        let is_at = |mark: Option<cairn_core::BlockRef>, height| {
            mark.is_some_and(|mark| mark.height == Height(height))
        };
        is_at(head.tip, tip) && is_at(head.finalized, tip - FINALITY_HEIGHTS) && head.pending_purge.is_none()
    })
    .await;
    shutdown.cancel();
    assert_eq!(running.await.expect("no panic").expect("no error"), Finished::Stopped);
    (head, store.dump().await.expect("is dumped"))
}

async fn until(store: &MemoryStore, arrived: impl Fn(&HeadRow) -> bool) -> HeadRow {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Ok(snapshot) = store.snapshot().await {
            if arrived(snapshot.head()) {
                return snapshot.head().clone();
            }
            assert!(Instant::now() < deadline, "{:?}", snapshot.head());
        }
        assert!(Instant::now() < deadline, "the store was never made");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn f06_what_a_node_takes_back_is_a_reorg_and_never_stands_twice() {
    let told_first = linked_blocks(ROOT..=TIP, &[2, 1], 1);
    let (head, dump) = follow(told_first.clone(), Some(other_fork()), TIP + 2).await;
    assert_eq!(head.newest_reorg.id, 1);
    let mut right = told_first;
    right.retain(|height, _| *height <= COMMON);
    right.extend(other_fork().into_iter().map(|draft| (draft.block.height, draft)));
    let (clean_head, clean) = follow(right, None, TIP + 2).await;
    assert_eq!((clean_head.newest_reorg.id, clean_head.tip), (0, head.tip));
    assert_eq!(dump.first_difference(&clean), None, "as if the wrong blocks had never been told");
}
