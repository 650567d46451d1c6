//! Event lists for debugging (`DENORMALIZE_EVENTS`): of the chain's blocks all, of dead ones none, and no walk twice.

use crate::support::pg;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{PgRawOptions, PgRawStore, StatementHook};
use cairn_core::{
    BlockLayout, ChainId, EventSlice, Fence, RawBlock, Slices, TxFacts, TxId, TxSlice, TxStatus,
};
use cairn_store::suite::blocks::{chain, fork};
use cairn_store::{AppendBatch, PurgeProgress, RawWriter, Result, Rollback, StoreInfo};

/// Deeper than the default.
const DEPTH: u64 = 1_100;

/// One transaction, and one event in it.
#[derive(Debug)]
struct OneEvent;

impl BlockLayout for OneEvent {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        if block.transactions.is_empty() {
            return None;
        }
        let mut slices = Slices::default();
        slices.transactions.push(TxSlice { body: 0..block.body.len(), receipt: 0..block.receipts.len() });
        slices.events.push(EventSlice { tx_index: 0, index: 0, range: 1..5 });
        Some(slices)
    }
}

fn with_events(mut blocks: Vec<RawBlock>, count: u32) -> Vec<RawBlock> {
    for block in &mut blocks {
        let tx = TxFacts { id: TxId(block.facts.id.0), sender: vec![1; 20].into(), status: TxStatus::Ok };
        block.transactions = vec![tx; count as usize];
        (block.facts.tx_count, block.facts.log_count) = (count, count);
        (block.body, block.receipts) = (vec![7; 8].into(), vec![9; 8].into());
        (block.extras, block.traces) = (bytes::Bytes::new(), None);
    }
    blocks
}

async fn open(db: &pg::TestDb) -> PgRawStore {
    let options = PgRawOptions {
        layout: Arc::new(OneEvent),
        partitions: PartitionSizes::all(5_000),
        ..PgRawOptions::with(db.options())
    };
    PgRawStore::open(options, None).await.expect("opens")
}

async fn append(store: &PgRawStore, fence: Fence, blocks: &[RawBlock]) {
    for blocks in blocks.chunks(250) {
        let batch = AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() };
        store.append(fence, batch).await.expect("appends");
    }
}

async fn begun(db: &pg::TestDb, blocks: &[RawBlock]) -> (PgRawStore, Fence) {
    let store = open(db).await;
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
    store.init(info).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    append(&store, fence, blocks).await;
    (store, fence)
}

async fn list_all(store: &PgRawStore) {
    while store.denormalize_events(DEPTH).await.expect("lists") {}
}

async fn number(db: &pg::TestDb, query: &str) -> i64 {
    db.pool().get().await.expect("connects").query_one(query, &[]).await.expect("runs").get(0)
}

/// How many lists there are, and how many of them are of blocks that aren't the chain's.
async fn lists(db: &pg::TestDb) -> (i64, i64) {
    let all = number(db, "SELECT count(*) FROM raw.transaction_events_debug").await;
    let dead = "SELECT count(*) FROM raw.transaction_events_debug d WHERE NOT EXISTS \
                (SELECT FROM raw.blocks b WHERE b.height = d.block_height AND b.id = d.block_id)";
    (all, number(db, dead).await)
}

/// A reorg that is deeper than the default, seen by the process that wrote the lists, and by the one after it.
#[tokio::test]
async fn lists_of_blocks_that_a_deep_reorg_took_go() {
    for is_restarted in [false, true] {
        let Some(db) = pg::database().await else { return };
        let blocks = with_events(chain(0, 1_060, 0), 1);
        let (store, fence) = begun(&db, &blocks).await;
        list_all(&store).await;
        assert_eq!(lists(&db).await, (1_060, 0));
        let other = with_events(fork(&chain(0, 6, 0), 5, 1_058, 3), 1);
        let common = blocks[5].block_ref();
        let rollback = Rollback { common, max_depth: DEPTH, decided_at_ms: 1 };
        store.rollback(fence, rollback).await.expect("rolls back");
        while store.purge_step(fence, 500).await.expect("purges") != PurgeProgress::Done {}
        append(&store, fence, &other[6..]).await;
        let store = if is_restarted { open(&db).await } else { store };
        list_all(&store).await;
        assert_eq!(lists(&db).await, (other.len() as i64, 0), "restarted: {is_restarted}");
    }
}

/// A hash that stands for an event isn't taken for the event.
#[tokio::test]
async fn an_event_in_object_storage_is_named_by_its_hash() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db, &with_events(chain(0, 3, 0), 1)).await;
    let away = "UPDATE raw.events SET payload = NULL, payload_hash = decode(repeat('ab', 32), 'hex') WHERE block_height = 1";
    db.pool().get().await.expect("connects").batch(away).await.expect("runs");
    list_all(&store).await;
    let named = format!(
        "SELECT count(*) FROM raw.transaction_events_debug WHERE (events = 'sha256:{}') = (block_height = 1)",
        "ab".repeat(32)
    );
    assert_eq!((lists(&db).await.0, number(&db, &named).await), (3, 3));
}

/// A block that takes another's place, of the same id, has the list of its own events; one above the lists has none yet.
#[tokio::test]
async fn the_list_of_a_block_that_was_replaced_is_of_its_own_events() {
    let Some(db) = pg::database().await else { return };
    let blocks = with_events(chain(0, 12, 0), 1);
    let (store, fence) = begun(&db, &blocks[..10]).await;
    store.repair_block(blocks[5].clone()).await.expect("is written where there are no lists");
    list_all(&store).await;
    append(&store, fence, &blocks[10..]).await;
    for height in [5, 11] {
        let other = RawBlock { receipts: vec![5; 8].into(), ..blocks[height].clone() };
        store.repair_block(other).await.expect("is written");
    }
    let of_others = "SELECT count(*) FROM raw.transaction_events_debug WHERE events = '05050505'";
    assert_eq!((lists(&db).await, number(&db, of_others).await), ((10, 0), 1));
    list_all(&store).await;
    assert_eq!((lists(&db).await, number(&db, of_others).await), ((12, 0), 2));
}

/// Counts statements.
#[derive(Default)]
struct Counting(AtomicU64);

impl StatementHook for Counting {
    fn before_statement(&self) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn heights_without_an_event_are_walked_once_and_in_steps() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db, &with_events(chain(0, 1_200, 0), 0)).await;
    let counting = Arc::new(Counting::default());
    store.set_statement_hook(Some(counting.clone()));
    assert!(store.denormalize_events(DEPTH).await.expect("a step"), "all in one transaction");
    assert!(!store.denormalize_events(DEPTH).await.expect("the rest"));
    counting.0.store(0, Ordering::SeqCst);
    assert!(!store.denormalize_events(DEPTH).await.expect("nothing new"));
    let statements = counting.0.load(Ordering::SeqCst);
    assert!(statements <= 1, "{statements} statements where nothing is new");
    // A dropped table is made anew, and lists go on with what comes then.
    db.sql("DROP TABLE raw.transaction_events_debug").await;
    append(&store, fence, &with_events(chain(0, 1_203, 0), 1)[1_200..]).await;
    store.denormalize_events(DEPTH).await.expect_err("the table is gone");
    list_all(&store).await;
    assert_eq!(lists(&db).await, (3, 0));
}
