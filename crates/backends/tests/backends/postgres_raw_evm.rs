//! EVM blocks in rows: cut and put together again, the same dump as SQLite's, large payloads elsewhere.

use crate::support::pg;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{PgOptions, PgPayloadRegistry, PgRawOptions, PgRawStore};
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{BlockLayout, ChainId, Height, HeightRange, Parts, RawBlock, SystemClock};
use cairn_evm::EvmLayout;
use cairn_source::evm::synthetic::{ForkId, ForkOptions, SyntheticChain, SyntheticOptions};
use cairn_store::layout::{TxBytes, cut, rebuild_body, rebuild_receipts};
use cairn_store::suite::TestStore;
use cairn_store::suite::blocks::as_stored;
use cairn_store::{
    AppendBatch, CollectOptions, MemoryPayloads, PayloadError, PayloadPage, PayloadRef, PayloadStore,
    PurgeProgress, PutOutcome, RawDump, RawReader, RawWriter, Rollback, StoreError, StoreInfo,
    collect_orphans,
};

fn info() -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: ChainId(1337), chain_config: Default::default() }
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

/// A chain and a fork that leaves it at block 25.
fn chains() -> (Vec<RawBlock>, Vec<RawBlock>) {
    let chain = SyntheticChain::new(SyntheticOptions { txs_per_block: 0..=12, ..SyntheticOptions::tiny(3) });
    let other = chain.fork_at((ForkId::MAIN, Height(25)), ForkOptions::new(1));
    let blocks = |fork, to: u64| -> Vec<RawBlock> {
        (0..to).map(|height| (*chain.block(fork, Height(height))).clone()).collect()
    };
    (blocks(ForkId::MAIN, 31), blocks(other, 40))
}

fn assert_cut_and_rebuilt(block: &RawBlock) {
    let slices = EvmLayout.slices(block).expect("an EVM block can be cut");
    let pieces = cut(block, &slices).expect("the slices fit");
    assert_eq!(pieces.events.len(), block.facts.log_count as usize, "block {}", block.block_ref());
    let bodies: Vec<TxBytes<'_>> = pieces.transactions.iter().map(|tx| TxBytes::whole(&tx.body)).collect();
    let results: Vec<(&[u8], u32)> =
        pieces.transactions.iter().map(|tx| (&tx.result[..], tx.event_count)).collect();
    let events: Vec<&[u8]> = pieces.events.iter().map(|event| event.payload).collect();
    assert_eq!(rebuild_body(&pieces.body_skeleton, &pieces.layout, &bodies).expect("is rebuilt"), block.body);
    let receipts =
        rebuild_receipts(&pieces.receipts_skeleton, &pieces.layout, &results, &events).expect("is rebuilt");
    assert_eq!(receipts, block.receipts);
    // What belongs to nobody is little: lists' headers, ommers, withdrawals.
    let between = pieces.receipts_skeleton.len();
    assert!(between <= 9, "{between} bytes of receipts between transactions");
}

#[test]
fn every_evm_block_is_cut_and_put_together_again() {
    let (main, other) = chains();
    for block in main.iter().chain(&other) {
        assert_cut_and_rebuilt(block);
    }
    assert!(main.iter().any(|block| block.facts.log_count > 5));
    // Bytes that are no EVM block stay whole.
    for junk in cairn_store::suite::blocks::chain(0, 50, 0) {
        let cut = EvmLayout.slices(&junk).and_then(|slices| cut(&junk, &slices).map(drop));
        assert!(cut.is_none() || junk.transactions.is_empty());
    }
}

async fn follow(store: &dyn TestStore, main: &[RawBlock], other: &[RawBlock]) {
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    for part in main.chunks(7) {
        store.append(fence, batch(part)).await.expect("appends");
    }
    let common = main[25].block_ref();
    store.rollback(fence, Rollback { common, max_depth: 10, decided_at_ms: 1 }).await.expect("rolls back");
    while store.purge_step(fence, 2).await.expect("purges") != PurgeProgress::Done {}
    store.append(fence, batch(&other[26..])).await.expect("appends");
}

#[tokio::test]
async fn sqlite_and_postgres_hold_the_same_evm_chain_byte_for_byte() {
    let Some(db) = pg::database().await else { return };
    let (main, other) = chains();
    let dir = tempfile::tempdir().expect("dir");
    let options = SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::new(dir.path()) };
    let sqlite = SqliteStore::open(options, Arc::new(SystemClock)).await.expect("opens");
    let options = PgRawOptions {
        layout: Arc::new(EvmLayout),
        snapshot_max_ms: None,
        partitions: PartitionSizes::all(16),
        ..PgRawOptions::with(db.options())
    };
    let postgres = PgRawStore::open(options, None).await.expect("opens");
    follow(&sqlite, &main, &other).await;
    follow(&postgres, &main, &other).await;
    let (a, b) = (sqlite.dump().await.expect("dumps"), postgres.dump().await.expect("dumps"));
    assert_eq!(b.first_difference(&a), None);
    let (a, b) = (sqlite.snapshot().await.expect("reads"), postgres.snapshot().await.expect("reads"));
    let all = HeightRange::new(Height(0), Height(40));
    for bits in 0..64 {
        let parts = Parts::from_bits_truncate(bits);
        for max_bytes in [0, 5_000, u64::MAX] {
            assert_eq!(
                b.blocks(all, parts, max_bytes).await.expect("reads").blocks,
                a.blocks(all, parts, max_bytes).await.expect("reads").blocks
            );
        }
    }
    for block in &main[26..] {
        let orphan = b.orphan(1, block.facts.id, Parts::all()).await.expect("reads");
        assert_eq!(orphan, Some(as_stored(block, Parts::all())));
    }
    let fingerprints = b.index_fingerprints(all).await.expect("reads");
    assert_eq!(fingerprints, a.index_fingerprints(all).await.expect("reads"));
    drop((a, b));

    // The rows say what the blocks say, in the chain's own bytes.
    let conn = postgres.pool().get().await.expect("connects");
    let row = conn
        .query_one(
            "SELECT (SELECT count(*) FROM raw.events), (SELECT sum(event_count)::bigint FROM raw.transactions), \
             (SELECT sum(event_count)::bigint FROM raw.blocks), (SELECT count(*) FROM raw.tx_lookup), \
             (SELECT count(*) FROM raw.transactions)",
            &[],
        )
        .await
        .expect("counts");
    let count = |column| row.get::<_, i64>(column);
    assert!(count(0) > 0 && count(0) == count(1) && count(1) == count(2));
    assert_eq!(count(3), count(4));
    for row in conn.query("SELECT id, body FROM raw.transactions", &[]).await.expect("reads") {
        let (id, body): (&[u8], &[u8]) = (row.get(0), row.get(1));
        assert_eq!(id.len(), 32);
        assert!(matches!(body.first(), Some(0xc0.. | 1..=4)), "EIP-2718 bytes");
    }
}

/// Often enough for what is not needed to go: once as live, once as dead.
async fn collect(payloads: &MemoryPayloads, registry: &PgPayloadRegistry) {
    let options = CollectOptions { grace_ms: 1, longest_lease_ms: 0, ..CollectOptions::default() };
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        collect_orphans(payloads, registry, &"07".repeat(16), &SystemClock, options).await.expect("collects");
    }
}

#[tokio::test]
async fn large_payloads_live_in_object_storage_and_come_back() {
    let Some(db) = pg::database().await else { return };
    let (main, other) = chains();
    let payloads = MemoryPayloads::new(Arc::new(SystemClock));
    let options = PgRawOptions {
        layout: Arc::new(EvmLayout),
        snapshot_max_ms: None,
        payload_inline_max_bytes: 150,
        partitions: PartitionSizes::all(16),
        ..PgRawOptions::with(db.options())
    };
    let store = Arc::new(payloads.clone()) as Arc<dyn PayloadStore>;
    let store = PgRawStore::open_with_payloads(options.clone(), None, store).await.expect("opens");
    follow(&store, &main, &other).await;
    let conn = store.pool().get().await.expect("connects");
    let row = conn
        .query_one(
            "SELECT count(*) FILTER (WHERE payload_ref IS NOT NULL), count(*) FILTER (WHERE payload IS NULL), count(*), \
             coalesce(max(octet_length(payload)), 0)::bigint FROM raw.events",
            &[],
        )
        .await
        .expect("counts");
    let (elsewhere, without, all, longest): (i64, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    assert!(elsewhere > 0 && elsewhere == without && elsewhere <= all && longest <= 150);
    drop(conn);
    let objects = payloads.keys().len();
    assert!(objects > 0);
    let snapshot = store.snapshot().await.expect("reads");
    for block in &other {
        let found = snapshot.block(block.facts.height, Parts::all()).await.expect("reads");
        assert_eq!(found, Some(as_stored(block, Parts::all())));
    }
    for block in &main[26..] {
        let orphan = snapshot.orphan(1, block.facts.id, Parts::all()).await.expect("reads");
        assert_eq!(orphan, Some(as_stored(block, Parts::all())));
    }
    drop(snapshot);

    // Only what no row refers to any more is collected: the orphans' own, once they are pruned.
    let registry = PgPayloadRegistry::new(db.pool());
    collect(&payloads, &registry).await;
    assert_eq!(payloads.keys().len(), objects);
    let fence = store.acquire().await.expect("acquire").fence;
    assert_eq!(store.prune_orphans(fence, 0, 100).await.expect("prunes"), 5);
    collect(&payloads, &registry).await;
    assert!(payloads.keys().len() < objects);
    let snapshot = store.snapshot().await.expect("reads");
    let read = snapshot
        .blocks(HeightRange::new(Height(0), Height(40)), Parts::all(), u64::MAX)
        .await
        .expect("reads")
        .blocks;
    assert_eq!(read.len(), 40);
    drop(snapshot);

    // Without object storage a reader says what it lacks, and what it needs no object for it reads.
    let bare = PgRawStore::open(options, None).await.expect("opens");
    let snapshot = bare.snapshot().await.expect("reads");
    let all = HeightRange::new(Height(0), Height(40));
    assert_eq!(snapshot.blocks(all, Parts::HEADER, u64::MAX).await.expect("reads").blocks.len(), 40);
    assert!(matches!(snapshot.blocks(all, Parts::all(), u64::MAX).await, Err(StoreError::Invalid(_))));
}

/// Objects that nobody gets before the door opens.
#[derive(Debug)]
struct Closed {
    inner: MemoryPayloads,
    door: tokio::sync::Semaphore,
    asked: AtomicUsize,
}

#[async_trait]
impl PayloadStore for Closed {
    async fn claim(&self, owner: &str) -> Result<(), PayloadError> {
        self.inner.claim(owner).await
    }
    async fn put(&self, object: PayloadRef, body: Bytes) -> Result<PutOutcome, PayloadError> {
        self.inner.put(object, body).await
    }
    async fn get(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<Bytes, PayloadError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let _open = self.door.acquire().await.expect("it is never taken away");
        self.inner.get(object, size_bytes).await
    }
    async fn size(&self, object: PayloadRef) -> Result<Option<u64>, PayloadError> {
        self.inner.size(object).await
    }
    async fn delete(&self, object: PayloadRef) -> Result<(), PayloadError> {
        self.inner.delete(object).await
    }
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<PayloadPage, PayloadError> {
        self.inner.list(after, limit).await
    }
}

#[tokio::test]
async fn p08_object_storage_that_does_not_answer_holds_no_connection() {
    let Some(db) = pg::database().await else { return };
    let (main, other) = chains();
    let payloads = Arc::new(Closed {
        inner: MemoryPayloads::new(Arc::new(SystemClock)),
        door: tokio::sync::Semaphore::new(0),
        asked: AtomicUsize::new(0),
    });
    let options = PgRawOptions {
        pg: PgOptions { max_open_conns: 1, pool_wait_ms: 5_000, ..db.options() },
        layout: Arc::new(EvmLayout),
        snapshot_max_ms: Some(500),
        payload_inline_max_bytes: 150,
        partitions: PartitionSizes::all(16),
        ..PgRawOptions::with(db.options())
    };
    let store = PgRawStore::open_with_payloads(options, None, payloads.clone()).await.expect("opens");
    follow(&store, &main, &other).await;
    // The answer to the last append was lost: what is stored is compared with what is offered, and nobody asks for objects under the head's lock.
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&other[26..])).await.expect("is there already");
    assert_eq!(payloads.asked.load(Ordering::SeqCst), 0);

    let snapshot = store.snapshot().await.expect("reads");
    let all = HeightRange::new(Height(0), Height(40));
    let reading = tokio::spawn(async move { snapshot.blocks(all, Parts::all(), u64::MAX).await });
    // Several at once, and no more than that, wait for their bytes; the one connection goes back when the snapshot's time is over.
    let waiting = tokio::time::timeout(Duration::from_secs(20), async {
        while payloads.asked.load(Ordering::SeqCst) < 8 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waiting.await.expect("they are asked for together");
    store
        .snapshot()
        .await
        .expect("the connection is free")
        .block(Height(0), Parts::HEADER)
        .await
        .expect("reads");
    assert_eq!(payloads.asked.load(Ordering::SeqCst), 8);
    payloads.door.add_permits(64);
    let expected: Vec<_> = other.iter().map(|block| as_stored(block, Parts::all())).collect();
    assert_eq!(reading.await.expect("ends").expect("reads").blocks, expected);
}
