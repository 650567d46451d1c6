//! Parts of blocks and results of transactions that are too long for a row: no column holds them, and they come back, go with their rows, and are missed.

use crate::support::pg;

use std::sync::Arc;
use std::time::Duration;

use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{PgPayloadRegistry, PgRawOptions, PgRawStore};
use cairn_core::{
    BlockLayout, ChainId, EventSlice, Fence, Height, HeightRange, Parts, RawBlock, Slices, SystemClock,
    TxSlice, Uncut,
};
use cairn_store::suite::blocks::{Numbers, as_stored, chain, fork};
use cairn_store::{
    AppendBatch, CollectOptions, MemoryPayloads, PayloadStore, PurgeProgress, RawReader, RawReplacer,
    RawWriter, Replacement, Rollback, StoreError, StoreInfo, collect_orphans,
};

const INLINE_MAX_BYTES: u64 = 150;

/// The longest value of each column that may be long.
const LONGEST: &str = "SELECT coalesce(max(greatest(octet_length(body), octet_length(receipts), octet_length(extras), \
     octet_length(traces))), 0)::bigint FROM raw.blocks \
     UNION ALL SELECT coalesce(max(greatest(octet_length(body), octet_length(result))), 0)::bigint FROM raw.transactions";

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

/// Blocks of which some have each part long, some short, and some none of it.
fn grown(mut blocks: Vec<RawBlock>) -> Vec<RawBlock> {
    for block in &mut blocks {
        let at = block.facts.height.get();
        let mut numbers = Numbers::new(block.facts.id.index_key());
        let mut long = |is_long: bool| is_long.then(|| numbers.bytes(400));
        if let Some(body) = long(at.is_multiple_of(3)) {
            block.body = body;
        }
        if let Some(receipts) = long(at.is_multiple_of(4)) {
            block.receipts = receipts;
        }
        if let Some(extras) = long(at.is_multiple_of(5)) {
            block.extras = extras;
        }
        if let Some(traces) = long(at.is_multiple_of(2)) {
            block.traces = Some(traces);
        }
    }
    blocks
}

/// Cuts receipts into as many equal pieces as there are transactions, each with one short event, so that what is left of each is its result.
#[derive(Debug)]
struct LongResults;

impl BlockLayout for LongResults {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let txs = block.transactions.len();
        let (body, receipt) = (block.body.len().checked_div(txs)?, block.receipts.len().checked_div(txs)?);
        let mut slices = Slices::default();
        for index in 0..txs {
            let start = index * receipt;
            slices
                .transactions
                .push(TxSlice { body: index * body..(index + 1) * body, receipt: start..start + receipt });
            if receipt > 3 {
                let event_index = slices.events.len() as u32;
                let range = start + 1..start + 3;
                slices.events.push(EventSlice { tx_index: index as u32, index: event_index, range });
            }
        }
        Some(slices)
    }
}

fn options(db: &pg::TestDb, layout: Arc<dyn BlockLayout>) -> PgRawOptions {
    PgRawOptions {
        layout,
        payload_inline_max_bytes: INLINE_MAX_BYTES,
        partitions: PartitionSizes::all(16),
        snapshot_max_ms: None,
        ..PgRawOptions::with(db.options())
    }
}

async fn begun(
    db: &pg::TestDb,
    layout: Arc<dyn BlockLayout>,
    payloads: &MemoryPayloads,
) -> (PgRawStore, Fence) {
    let objects = Arc::new(payloads.clone()) as Arc<dyn PayloadStore>;
    let store = PgRawStore::open_with_payloads(options(db, layout), None, objects).await.expect("opens");
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
    store.init(info).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    (store, fence)
}

async fn numbers_of(store: &PgRawStore, query: &str) -> Vec<i64> {
    let conn = store.pool().get().await.expect("connects");
    conn.query(query, &[]).await.expect("runs").iter().map(|row| row.get(0)).collect()
}

async fn demand_readable(store: &PgRawStore, blocks: &[RawBlock]) {
    let snapshot = store.snapshot().await.expect("reads");
    for block in blocks {
        for parts in [
            Parts::all(),
            Parts::BODY,
            Parts::RECEIPTS,
            Parts::EXTRAS,
            Parts::TRACES,
            Parts::TRANSACTIONS | Parts::HEADER,
        ] {
            let found = snapshot.block(block.facts.height, parts).await.expect("reads");
            assert_eq!(found, Some(as_stored(block, parts)), "height {}, {parts:?}", block.facts.height);
        }
    }
}

async fn collect(payloads: &MemoryPayloads, store: &PgRawStore) {
    let options = CollectOptions { grace_ms: 1, longest_lease_ms: 0, ..CollectOptions::default() };
    let registry = PgPayloadRegistry::new(store.pool().clone());
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        collect_orphans(payloads, &registry, &"07".repeat(16), &SystemClock, options)
            .await
            .expect("collects");
    }
}

/// Written, read in every way, written again, taken away by a reorg, and collected.
async fn live_through(layout: Arc<dyn BlockLayout>, elsewhere: &[&str]) {
    let Some(db) = pg::database().await else { return };
    let payloads = MemoryPayloads::new(Arc::new(SystemClock));
    let (store, fence) = begun(&db, layout, &payloads).await;
    let trunk = chain(0, 24, 0);
    let (main, other) = (grown(trunk.clone()), grown(fork(&trunk, 15, 20, 5)));
    for part in main.chunks(7) {
        store.append(fence, batch(part)).await.expect("appends");
    }
    for longest in numbers_of(&store, LONGEST).await {
        assert!(longest <= INLINE_MAX_BYTES as i64, "a value of {longest} bytes is in a row");
    }
    for column in elsewhere {
        let (table, column) = column.split_once('.').expect("a table and a column");
        let query = format!("SELECT count(*) FROM raw.{table} WHERE {column} IS NOT NULL");
        assert!(numbers_of(&store, &query).await[0] > 0, "nothing of {column} is elsewhere");
    }
    demand_readable(&store, &main).await;

    // The same again is a no-op, and other bytes are seen through the objects.
    store.append(fence, batch(&main[17..])).await.expect("again");
    let mut wrong = main[17..].to_vec();
    let last = wrong.len() - 2;
    let mut traces = wrong[last].traces.clone().expect("height 22 has traces").to_vec();
    traces[399] ^= 1;
    wrong[last].traces = Some(traces.into());
    assert!(matches!(store.append(fence, batch(&wrong)).await, Err(StoreError::Conflict { .. })));
    // What was put for it is nobody's.
    collect(&payloads, &store).await;

    // A reorg takes them along, and nothing that a row needs is collected, an orphan's neither.
    let common = main[15].block_ref();
    store.rollback(fence, Rollback { common, max_depth: 20, decided_at_ms: 1 }).await.expect("rolls back");
    while store.purge_step(fence, 3).await.expect("purges") != PurgeProgress::Done {}
    for part in other[16..].chunks(7) {
        store.append(fence, batch(part)).await.expect("appends");
    }
    let objects = payloads.keys().len();
    collect(&payloads, &store).await;
    assert_eq!(payloads.keys().len(), objects);
    demand_readable(&store, &other).await;
    let snapshot = store.snapshot().await.expect("reads");
    for block in &main[16..] {
        let orphan = snapshot.orphan(1, block.facts.id, Parts::all()).await.expect("reads");
        assert_eq!(orphan, Some(as_stored(block, Parts::all())));
    }
    drop(snapshot);
    store.prune_orphans(fence, 0, 100).await.expect("prunes");
    collect(&payloads, &store).await;
    assert!(payloads.keys().len() < objects, "what only the orphans needed is gone");
    demand_readable(&store, &other).await;
}

#[tokio::test]
async fn long_parts_of_blocks_that_are_kept_whole_lie_elsewhere() {
    let columns = ["body", "receipts", "extras", "traces"].map(|part| format!("blocks.{part}_payload_ref"));
    live_through(Arc::new(Uncut), &columns.each_ref().map(String::as_str)).await;
}

#[tokio::test]
async fn long_results_of_transactions_lie_elsewhere() {
    live_through(
        Arc::new(LongResults),
        &["transactions.result_payload_ref", "transactions.payload_ref", "blocks.traces_payload_ref"],
    )
    .await;
}

#[tokio::test]
async fn f04_a_block_whose_long_parts_lie_elsewhere_is_replaced_where_it_is_what_was_read() {
    let Some(db) = pg::database().await else { return };
    let payloads = MemoryPayloads::new(Arc::new(SystemClock));
    let (store, fence) = begun(&db, Arc::new(Uncut), &payloads).await;
    let mut blocks = grown(chain(0, 9, 0));
    store.append(fence, batch(&blocks)).await.expect("appends");
    for height in [3, 4, 6] {
        let read = as_stored(&blocks[height], Parts::all());
        let more = |what: &[u8]| {
            let receipts = [&blocks[height].receipts[..], what].concat().into();
            RawBlock { receipts, ..blocks[height].clone() }
        };
        let (one, other) = (more(&[1; 200]), more(&[2; 300]));
        let replace = |block: &RawBlock| Replacement { block: block.clone(), read: read.clone() };
        store.replace_block(replace(&one)).await.expect("is replaced");
        let refused = store.replace_block(replace(&other)).await;
        assert!(matches!(refused, Err(StoreError::Replaced { .. })), "{refused:?}");
        blocks[height] = one;
        demand_readable(&store, &blocks).await;
    }
}

#[tokio::test]
async fn a_part_whose_object_is_lost_is_named_and_fetched_again() {
    let Some(db) = pg::database().await else { return };
    let payloads = MemoryPayloads::new(Arc::new(SystemClock));
    let (store, fence) = begun(&db, Arc::new(Uncut), &payloads).await;
    let blocks = grown(chain(0, 9, 0));
    store.append(fence, batch(&blocks)).await.expect("appends");
    let conn = store.pool().get().await.expect("connects");
    let row = conn.query_one("SELECT traces_payload_ref FROM raw.blocks WHERE height = 4", &[]).await;
    let object = row.expect("reads").get::<_, String>(0).parse().expect("a key");
    drop(conn);
    payloads.delete(object).await.expect("deletes");
    let snapshot = store.snapshot().await.expect("reads");
    let error = snapshot.block(Height(4), Parts::TRACES).await.expect_err("its traces are lost");
    assert!(error.to_string().contains("height 4, traces"), "{error}");
    // Who doesn't ask for them misses nothing.
    let without = Parts::all() - Parts::TRACES;
    assert_eq!(
        snapshot.block(Height(4), without).await.expect("reads"),
        Some(as_stored(&blocks[4], without))
    );
    drop(snapshot);
    store.repair_block(blocks[4].clone()).await.expect("repairs");
    demand_readable(&store, &blocks).await;
    drop(store);

    // Without object storage a reader says what it lacks.
    let bare = PgRawStore::open(options(&db, Arc::new(Uncut)), None).await.expect("opens");
    let snapshot = bare.snapshot().await.expect("reads");
    let all = HeightRange::new(Height(0), Height(9));
    assert_eq!(snapshot.blocks(all, Parts::HEADER, u64::MAX).await.expect("reads").blocks.len(), 9);
    let error = snapshot.block(Height(4), Parts::TRACES).await.expect_err("no objects here");
    assert!(matches!(error, StoreError::Invalid(_)), "{error}");
}
