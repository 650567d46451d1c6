//! The raw store on PostgreSQL beyond the suite: partitions, the schema, several processes, pools, crashes between any two statements, errors.
#![cfg(feature = "postgres-raw")]

#[path = "support/pg.rs"]
mod pg;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_backends::postgres::partition::{self, PartitionedTable, Partitions};
use cairn_backends::postgres::raw::{PartitionSizes, Repaired};
use cairn_backends::postgres::{Isolation, PgOptions, PgPool, PgRawOptions, PgRawStore, StatementHook};
use cairn_core::{
    BlockId, BlockLayout, ChainId, Clock, EventSlice, Height, HeightRange, Parts, RawBlock, Slices,
    SystemClock, TxFacts, TxId, TxSlice, TxStatus,
};
use cairn_store::derived::{ErrorFilter, ErrorLog, NewError, Severity};
use cairn_store::memory::MemoryStore;
use cairn_store::suite::TestClock;
use cairn_store::suite::blocks::{as_stored, chain, fork};
use cairn_store::{
    AppendBatch, Dump, HeadRow, Maintained, PurgeProgress, RawDump, RawFiller, RawLeaseState, RawMaintenance,
    RawReader, RawWriter, Result, Rollback, StoreError, StoreInfo,
};

fn info() -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() }
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

fn options(db: &pg::TestDb) -> PgRawOptions {
    PgRawOptions {
        partitions: PartitionSizes::all(50),
        lookahead_partitions: 1,
        ..PgRawOptions::with(db.options())
    }
}

async fn open(db: &pg::TestDb) -> PgRawStore {
    PgRawStore::open(options(db), None).await.expect("opens")
}

/// An initialised store, acquired.
async fn begun(db: &pg::TestDb) -> (PgRawStore, cairn_core::Fence) {
    let store = open(db).await;
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    (store, fence)
}

async fn clean_dump(blocks: &[RawBlock]) -> Dump {
    let store = MemoryStore::new(Arc::new(SystemClock));
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    if !blocks.is_empty() {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    store.dump().await.expect("dumps")
}

async fn assert_is_clean(store: &PgRawStore, blocks: &[RawBlock]) {
    let (found, expected) = (store.dump().await.expect("dumps"), clean_dump(blocks).await);
    assert_eq!(found.first_difference(&expected), None);
}

/// The same, whatever is final.
async fn assert_holds(store: &PgRawStore, blocks: &[RawBlock]) {
    let (mut found, mut expected) = (store.dump().await.expect("dumps"), clean_dump(blocks).await);
    for dump in [&mut found, &mut expected] {
        dump.lines.retain(|line| !line.starts_with("head/finalized"));
    }
    assert_eq!(found.first_difference(&expected), None);
}

async fn number(pool: &PgPool, query: &str) -> i64 {
    let conn = pool.get().await.expect("connects");
    conn.query_one(query, &[]).await.expect("runs").get(0)
}

async fn partitions_of(pool: &PgPool, table: &'static str) -> Vec<HeightRange> {
    let conn = pool.get().await.expect("connects");
    let table =
        PartitionedTable { schema: "raw", table, heights: 0, storage: "", secondary: &[], when_full: &[] };
    partition::list(&conn, &table).await.expect("lists").into_iter().map(|part| part.heights).collect()
}

/// Cuts a body into as many equal pieces as there are transactions, and the receipts into one piece for each of so many events.
#[derive(Debug)]
struct EvenLayout {
    events: usize,
}

impl BlockLayout for EvenLayout {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let txs = block.transactions.len();
        let (body, receipt) = (block.body.len().checked_div(txs)?, block.receipts.len().checked_div(txs)?);
        let mut slices = Slices::default();
        for index in 0..txs {
            let start = index * receipt;
            slices
                .transactions
                .push(TxSlice { body: index * body..(index + 1) * body, receipt: start..start + receipt });
            for event in 0..self.events {
                let at = start + event * (receipt / self.events);
                slices.events.push(EventSlice { tx_index: index as u32, range: at + 1..at + 3 });
            }
        }
        Some(slices)
    }
}

fn tx(n: u64) -> TxFacts {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    TxFacts { id: TxId(id), sender: vec![1; 20].into(), status: TxStatus::Ok }
}

#[tokio::test]
async fn p03_a_block_with_20000_logs_goes_into_rows_and_comes_back() {
    let Some(db) = pg::database().await else { return };
    let mut blocks = chain(0, 2, 0);
    blocks[1].transactions = (0..200).map(tx).collect();
    blocks[1].facts.tx_count = 200;
    blocks[1].facts.log_count = 20_000;
    blocks[1].body = (0..100_000_u32).map(|n| n as u8).collect::<Vec<u8>>().into();
    blocks[1].receipts = (0..200_000_u32).map(|n| (n >> 3) as u8).collect::<Vec<u8>>().into();
    let layout = Arc::new(EvenLayout { events: 100 });
    let store = PgRawStore::open(PgRawOptions { layout, ..options(&db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks)).await.expect("appends");
    assert_eq!(number(&db.pool(), "SELECT count(*) FROM raw.events").await, 20_000);
    assert_eq!(
        number(&db.pool(), "SELECT sum(event_count)::bigint FROM raw.transactions WHERE block_height = 1")
            .await,
        20_000
    );
    assert_eq!(
        number(&db.pool(), "SELECT count(*) FROM raw.blocks WHERE height = 1 AND layout IS NOT NULL").await,
        1
    );
    let snapshot = store.snapshot().await.expect("reads");
    for parts in [Parts::all(), Parts::BODY, Parts::RECEIPTS, Parts::TRANSACTIONS, Parts::HEADER] {
        let found = snapshot.block(Height(1), parts).await.expect("reads");
        assert_eq!(found, Some(as_stored(&blocks[1], parts)));
    }
    // The same bytes again are a no-op, and other ones are seen through the rows.
    store.append(fence, batch(&blocks)).await.expect("again");
    let mut other = blocks.clone();
    let mut receipts = other[1].receipts.to_vec();
    receipts[150_001] ^= 1;
    other[1].receipts = receipts.into();
    assert!(matches!(store.append(fence, batch(&other)).await, Err(StoreError::Conflict { .. })));
    // And away again, with everything that belongs to it.
    drop(snapshot);
    let common = blocks[0].block_ref();
    store.rollback(fence, Rollback { common, max_depth: 5, decided_at_ms: 1 }).await.expect("rolls back");
    assert_eq!(store.purge_step(fence, 10).await.expect("purges"), PurgeProgress::Done);
    for table in ["events", "transactions", "tx_lookup"] {
        let query = format!("SELECT count(*) FROM raw.{table} WHERE block_height = 1");
        assert_eq!(number(&db.pool(), &query).await, 0, "{table}");
    }
    let snapshot = store.snapshot().await.expect("reads");
    let orphan = snapshot.orphan(1, blocks[1].facts.id, Parts::all()).await.expect("reads");
    assert_eq!(orphan, Some(as_stored(&blocks[1], Parts::all())));
}

#[tokio::test]
async fn p06_no_counter_or_position_has_32_bits() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    let conn = store.pool().get().await.expect("connects");
    let rows = conn
        .query(
            "SELECT table_name || '.' || column_name || ' ' || data_type FROM information_schema.columns \
             WHERE table_schema = 'raw' AND (data_type IN ('integer', 'smallint', 'real', 'double precision', 'json', 'jsonb') \
               OR column_default LIKE 'nextval%') ORDER BY 1",
            &[],
        )
        .await
        .expect("runs");
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    // Kinds and states: a few known values each.
    let mut left: Vec<&str> = found.iter().map(String::as_str).collect();
    left.retain(|column| {
        let column = column.split(' ').next().unwrap_or_default();
        !(column.ends_with("transactions.status")
            || column == "runs.kind"
            || column == "runs.state"
            || (column.starts_with("transactions_h") && column.ends_with(".status")))
    });
    assert!(left.is_empty(), "{left:?}");
    // Ids, hashes and addresses are bytes, however they are spelled elsewhere (P09).
    let spelled = number(
        store.pool(),
        "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'raw' AND data_type IN ('text', 'character varying') \
         AND (column_name IN ('id', 'block_id', 'parent_id', 'sender', 'evm_hash', 'tx_id') OR column_name LIKE '%hash') \
         AND column_name <> 'error_hash'",
    );
    assert_eq!(spelled.await, 0);
    // No GIN, and no default partition.
    assert_eq!(
        number(store.pool(), "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%USING gin%'").await,
        0
    );
    assert_eq!(
        number(store.pool(), "SELECT count(*) FROM pg_partitioned_table WHERE partdefid <> 0").await,
        0
    );
}

#[tokio::test]
async fn p06_counters_pass_two_billion() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let edge = (1_i64 << 31) - 10;
    db.sql(&format!(
        "ALTER TABLE raw.runs ALTER COLUMN id RESTART WITH {edge}; ALTER TABLE raw.indexing_errors ALTER COLUMN id RESTART WITH {edge};
         UPDATE raw.head SET last_fence = {edge}, fence = {edge}"
    ))
    .await;
    let fence = cairn_core::Fence(fence.0.max(edge as u64));
    let blocks = chain(edge as u64, 20, 0);
    for block in &blocks {
        store.append(fence, batch(std::slice::from_ref(block))).await.expect("appends");
    }
    assert_is_clean(&store, &blocks).await;
    assert!(store.acquire().await.expect("acquires").fence.0 > edge as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p07_four_writers_that_need_the_same_new_partition_at_once() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    for round in 0..6_u64 {
        let range = HeightRange::one(Height(round * 200));
        let makers: Vec<_> = (0..4)
            .map(|_| {
                let pool = db.pool();
                let tables = ["blocks", "transactions", "events"].map(|table| PartitionedTable {
                    schema: "raw",
                    table,
                    heights: 50,
                    storage: "",
                    secondary: &[],
                    when_full: &[],
                });
                // Each with what its own process knows: nothing.
                let partitions = Partitions::new(tables.to_vec(), 2, false);
                tokio::spawn(async move { partitions.ensure(&pool, range).await })
            })
            .collect();
        for maker in makers {
            maker.await.expect("ends").expect("makes partitions");
        }
    }
    let blocks = partitions_of(store.pool(), "blocks").await;
    assert_eq!(blocks.len(), 18, "{blocks:?}");
    assert!(blocks.windows(2).all(|pair| pair[0].end() <= pair[1].start()));
}

/// A backfill from 0, while another worker is at 20 million, takes in a block whose node says that it is of the year 2300: there are partitions where there are rows,
/// and no others.
#[tokio::test]
async fn p07_rows_at_0_and_at_20_million_and_of_the_year_2300_have_partitions_where_they_are_and_nowhere_else()
 {
    const HIGH: u64 = 20_000_000;
    const YEAR_2300_MS: u64 = 10_413_792_000_000;
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let (mut low, high) = (chain(0, 60, 0), chain(HIGH, 60, 0));
    low[40].facts.timestamp_ms = YEAR_2300_MS;
    store.append(fence, batch(&low[..1])).await.expect("appends");
    // One range from there up to 20 million, and the next one, in processes of their own.
    let stop = Height(HIGH + 60);
    let (backfill, live) = (open(&db).await, open(&db).await);
    let claim = async |store: &PgRawStore| store.claim_range("w", 60_000, HIGH, stop).await.expect("claims");
    let below = claim(&backfill).await.expect("a range");
    let above = claim(&live).await.expect("a range");
    assert_eq!((below.range.start(), below.range.end()), (Height(1), Height(HIGH)));
    assert_eq!((above.range.start(), above.range.end()), (Height(HIGH), stop));
    let above = live.fill(&above, high[..30].to_vec(), 60_000).await.expect("fills");
    let below = backfill.fill(&below, low[1..30].to_vec(), 60_000).await.expect("fills");
    let partitions = "SELECT count(*) FROM pg_inherits";
    let made = number(store.pool(), partitions).await;
    backfill.fill(&below, low[30..].to_vec(), 60_000).await.expect("fills");
    live.fill(&above, high[30..].to_vec(), 60_000).await.expect("fills");
    assert_eq!(number(store.pool(), partitions).await, made, "a time makes no partition");
    let expected: Vec<HeightRange> =
        [0, 50, HIGH, HIGH + 50].map(|first| HeightRange::new(Height(first), Height(first + 50))).to_vec();
    for table in ["blocks", "transactions", "events"] {
        assert_eq!(partitions_of(store.pool(), table).await, expected, "{table}");
    }
    let from_high = format!("SELECT count(*) FROM raw.blocks WHERE height >= {HIGH}");
    assert_eq!(number(store.pool(), &from_high).await, 60);

    // The backfill's are the archive's, the far time too; those above wait until what is between is there.
    let head = store.advance(fence).await.expect("advances");
    assert_eq!(head.tip, Some(low[59].block_ref()));
    let snapshot = store.snapshot().await.expect("reads");
    for block in &low {
        let stored = snapshot.block(block.facts.height, Parts::all()).await.expect("reads");
        assert_eq!(stored, Some(as_stored(block, Parts::all())));
    }
    assert_eq!(snapshot.block(Height(HIGH), Parts::all()).await.expect("reads"), None);
}

#[tokio::test]
async fn p07_an_archive_that_begins_at_20_million_has_only_the_partitions_that_it_needs() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    let low = PgRawStore::open(options(&db), None).await.expect("opens");
    // A chain whose archive begins in the middle, and one more partition ahead.
    let blocks = chain(20_000_000, 60, 0);
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks[..30])).await.expect("appends");
    store.append(fence, batch(&blocks[30..])).await.expect("appends");
    let expected = |first: u64, count: u64| -> Vec<HeightRange> {
        (0..count).map(|n| HeightRange::new(Height(first + n * 50), Height(first + (n + 1) * 50))).collect()
    };
    assert_eq!(partitions_of(store.pool(), "events").await, expected(20_000_000, 2));
    // Blocks that are refused make none, however high they say they are.
    let far = chain(4_102_444_800_000, 2, 0);
    assert!(matches!(store.append(fence, batch(&far)).await, Err(StoreError::DoesNotLink { .. })));
    let lease =
        store.claim_range("w", 60_000, 10, Height(20_000_070)).await.expect("claims").expect("a range");
    assert!(matches!(store.fill(&lease, far, 60_000).await, Err(StoreError::Invalid(_))));
    assert_eq!(partitions_of(store.pool(), "events").await, expected(20_000_000, 2));
    // The manager keeps one ahead, and then does nothing.
    assert!(low.maintain_partitions().await.expect("maintains"));
    assert!(!low.maintain_partitions().await.expect("maintains"));
    assert_eq!(partitions_of(store.pool(), "events").await, expected(20_000_000, 3));
    db.sql("DROP TABLE raw.events_h20000100").await;
    assert!(low.maintain_partitions().await.expect("maintains"));
    assert!(!low.maintain_partitions().await.expect("maintains"));
    // A partition that somebody dropped is made again by who misses it.
    db.sql("DROP TABLE raw.blocks_h20000050 CASCADE").await;
    let mut next = fork(&blocks, 20_000_059, 1, 0);
    let last = next.pop().expect("a block");
    match store.append(fence, batch(std::slice::from_ref(&last))).await {
        Err(StoreError::Busy(_)) => {
            store.append(fence, batch(&[last])).await.expect("the second try makes it");
        }
        other => panic!("{other:?}"),
    }
}

const WITH_EVENTS_BUILT: &str =
    "SELECT count(*) FROM pg_indexes WHERE schemaname = 'raw' AND indexname LIKE '%_h%_with_events'";
const WITH_EVENTS_OF_PARENT: &str =
    "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('raw.blocks_with_events') AND indisvalid";

/// Partitions whose secondary index is the parent's.
const ATTACHED: &str =
    "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('raw.blocks_with_events')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_has_its_indexes_built_where_all_is_final_and_attached_in_the_end_beside_writers() {
    let Some(db) = pg::database().await else { return };
    let backfill = PgRawOptions { backfill: true, ..options(&db) };
    let store = PgRawStore::open(backfill.clone(), None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 130, 0);
    for part in blocks.chunks(20) {
        store.append(fence, batch(part)).await.expect("appends");
    }
    while store.maintain_partitions().await.expect("maintains") {}
    assert_eq!(number(store.pool(), WITH_EVENTS_BUILT).await, 0, "a reorg may have to take rows of any away");
    for (last_final, built) in [(98, 1), (99, 2)] {
        store.finalize(fence, Some(blocks[last_final].block_ref()), None).await.expect("finalises");
        while store.maintain_partitions().await.expect("maintains") {}
        assert_eq!(number(store.pool(), WITH_EVENTS_BUILT).await, built);
    }
    assert_eq!(number(store.pool(), WITH_EVENTS_OF_PARENT).await, 0);

    // Another process that works on the same database, opened without the option, has no say in it: the ingester alone has.
    let worker = open(&db).await;
    while worker.maintain_partitions().await.expect("maintains") {}
    assert_eq!(number(store.pool(), ATTACHED).await, 0);
    assert_eq!(number(store.pool(), WITH_EVENTS_BUILT).await, 2);
    drop(store);

    // The ingester, started without it. It doesn't hold up what is written meanwhile, though the index waits for a writer that was there before.
    let store = open(&db).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let mut writer = db.pool().get().await.expect("connects");
    writer.begin(Isolation::ReadCommitted).await.expect("begins");
    writer.batch("LOCK TABLE raw.blocks_h100 IN ROW EXCLUSIVE MODE").await.expect("locks");
    let building = tokio::spawn({
        let store = store.beside("upkeep").expect("a pool");
        async move { while store.maintain_partitions().await.expect("maintains") {} }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                   AND query LIKE 'CREATE INDEX CONCURRENTLY%'";
    let begun = Instant::now();
    while number(&db.pool(), waiting).await == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "no index is waited for");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let longer = fork(&blocks, 129, 80, 0);
    let appended =
        tokio::time::timeout(Duration::from_secs(5), store.append(fence, batch(&longer[130..140])));
    appended.await.expect("an append waits for no index").expect("appends");
    writer.rollback().await.expect("ends");
    building.await.expect("ends");
    assert_eq!(number(store.pool(), WITH_EVENTS_OF_PARENT).await, 1);
    assert_eq!(
        number(store.pool(), ATTACHED).await,
        partitions_of(store.pool(), "blocks").await.len() as i64
    );
    // A new partition has it from the start.
    store.append(fence, batch(&longer[140..])).await.expect("appends");
    assert_eq!(number(store.pool(), WITH_EVENTS_OF_PARENT).await, 1);
    assert_eq!(
        number(store.pool(), ATTACHED).await,
        partitions_of(store.pool(), "blocks").await.len() as i64
    );
    assert_holds(&store, &longer).await;
    drop(store);

    // The option changes nothing for a table that has the index already: no partition gets a second one.
    let store = PgRawStore::open(backfill, None).await.expect("opens");
    let fence = store.acquire().await.expect("acquire").fence;
    store.finalize(fence, Some(longer[205].block_ref()), None).await.expect("finalises");
    let indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'raw' AND tablename LIKE 'blocks_h%'";
    let before = number(store.pool(), indexes).await;
    while store.maintain_partitions().await.expect("maintains") {}
    assert_eq!(number(store.pool(), indexes).await, before);
}

#[tokio::test]
async fn transactions_get_their_index_by_place_when_all_of_a_partition_is_final() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = chain(0, 130, 0);
    for part in blocks.chunks(20) {
        store.append(fence, batch(part)).await.expect("appends");
    }
    const BUILT: &str =
        "SELECT count(*) FROM pg_indexes WHERE schemaname = 'raw' AND indexname LIKE '%_h%_in_order'";
    for (last_final, built) in [(48, 0), (49, 1), (120, 2)] {
        store.finalize(fence, Some(blocks[last_final].block_ref()), None).await.expect("finalises");
        while store.maintain_partitions().await.expect("maintains") {}
        assert_eq!(number(store.pool(), BUILT).await, built, "final up to {last_final}");
    }
    assert_holds(&store, &blocks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p08_readers_that_hold_every_connection_do_not_stop_the_ingester() {
    let Some(db) = pg::database().await else { return };
    // One store, as a process of the default role has: an ingester, workers and people who ask.
    let pg = PgOptions { max_open_conns: 2, pool_wait_ms: 200, ..db.options() };
    let store = PgRawOptions { pg, snapshot_max_ms: Some(1_500), ..options(&db) };
    let store = PgRawStore::open(store, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 40, 0);
    store.append(fence, batch(&blocks[..1])).await.expect("appends");
    let (api, work) = (store.readers("api").expect("a pool"), store.readers("work").expect("a pool"));
    let (one, two) = (api.snapshot().await.expect("reads"), api.snapshot().await.expect("reads"));
    let refused = api.snapshot().await.err().expect("no connection is left");
    assert!(refused.kind().is_retryable() && refused.to_string().contains("api"), "{refused}");
    // Nor do they stop workers, or workers the ingester, which reads too.
    let working = (work.snapshot().await.expect("reads"), work.snapshot().await.expect("reads"));
    assert_eq!(store.snapshot().await.expect("reads").head().tip, Some(blocks[0].block_ref()));
    let begun = Instant::now();
    for block in &blocks[1..] {
        store.append(fence, batch(std::slice::from_ref(block))).await.expect("appends");
    }
    assert!(one.block(Height(0), Parts::all()).await.is_ok() || begun.elapsed() > Duration::from_secs(1));
    // They grow old, whether they are held or not, and their connections go back.
    tokio::time::sleep(Duration::from_millis(1_800)).await;
    assert!(matches!(one.block(Height(0), Parts::all()).await, Err(StoreError::Busy(_))));
    let new = api.snapshot().await.expect("a connection is free again");
    assert_eq!(new.head().tip, Some(blocks[39].block_ref()));
    drop((one, two, new, working));
    // A dropped snapshot gives its connection back too, without anybody waiting for its time to pass.
    for _ in 0..20 {
        api.snapshot().await.expect("reads").block(Height(3), Parts::all()).await.expect("reads");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p08_a_flood_of_errors_and_slow_statements_beside_do_not_stop_the_ingester() {
    let Some(db) = pg::database().await else { return };
    let pg = PgOptions { max_open_conns: 2, pool_wait_ms: 200, ..db.options() };
    let store = PgRawStore::open(PgRawOptions { pg, ..options(&db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 40, 0);
    store.append(fence, batch(&blocks[..1])).await.expect("appends");
    // What a process gives its error log, its repair and its workers.
    let beside = store.beside("beside").expect("a pool");
    let slow = {
        let pool = beside.pool().clone();
        tokio::spawn(async move { pool.get().await?.batch("SELECT pg_sleep(4)").await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Somebody holds up the error log too, so that whoever records keeps his connection; the others wait for one, again and again.
    let mut holder = db.pool().get().await.expect("connects");
    holder.begin(Isolation::ReadCommitted).await.expect("begins");
    holder.batch("LOCK TABLE raw.indexing_errors IN EXCLUSIVE MODE").await.expect("locks");
    let recorders: Vec<_> = (0..6)
        .map(|n| {
            let beside = beside.clone();
            tokio::spawn(async move {
                let error = NewError {
                    service: "token_worker".into(),
                    height: Height(n),
                    block_id: BlockId([1; 32]),
                    transaction_id: String::new(),
                    severity: Severity::Warn,
                    message: "it can't be decoded".into(),
                    raw_data: Vec::new(),
                    raw_ref: None,
                };
                loop {
                    match beside.record(std::slice::from_ref(&error)).await {
                        Err(StoreError::Busy(_)) => {}
                        recorded => return recorded,
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let refused = beside.count_unresolved().await.expect_err("no connection is left");
    assert!(refused.kind().is_retryable() && refused.to_string().contains("beside"), "{refused}");
    let begun = Instant::now();
    for block in &blocks[1..] {
        store.append(fence, batch(std::slice::from_ref(block))).await.expect("appends");
    }
    let refused = beside.repair_lookups(HeightRange::new(Height(0), Height(9))).await;
    assert!(matches!(refused, Err(StoreError::Busy(_))), "it was not held all the while: {refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "appends took {:?}", begun.elapsed());
    holder.rollback().await.expect("lets go");
    for recorder in recorders {
        assert_eq!(recorder.await.expect("ends").expect("records"), 1);
    }
    slow.await.expect("ends").expect("sleeps");
    // It is the same store.
    assert_eq!(store.count_unresolved().await.expect("counts"), 6);
    assert_eq!(beside.snapshot().await.expect("reads").head().tip, Some(blocks[39].block_ref()));
}

#[tokio::test]
async fn a_newer_schema_and_a_contradicting_checkpoint_are_refused() {
    let Some(db) = pg::database().await else { return };
    assert!(matches!(
        PgRawStore::open(PgRawOptions { read_only: true, ..options(&db) }, None).await,
        Err(StoreError::Invalid(_))
    ));
    let (store, fence) = begun(&db).await;
    store.append(fence, batch(&chain(0, 3, 0))).await.expect("appends");
    drop(store);
    let reader =
        PgRawStore::open(PgRawOptions { read_only: true, ..options(&db) }, None).await.expect("opens");
    assert!(matches!(reader.acquire().await, Err(StoreError::Invalid(_))), "it was opened for reading only");
    drop(reader);
    open(&db).await;
    db.sql("UPDATE raw.checkpoints SET last_height = 1").await;
    assert!(matches!(PgRawStore::open(options(&db), None).await, Err(StoreError::Corrupt { .. })));
    db.sql("UPDATE raw.checkpoints SET last_height = 2").await;
    open(&db).await;
    db.sql("INSERT INTO raw.schema_migrations (version, name) VALUES (99, 'later')").await;
    match PgRawStore::open(options(&db), None).await {
        Err(StoreError::UnknownSchema { found: 99, known }) => {
            assert_eq!(known, PgRawStore::migrations().last().expect("one").version);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn i06_a_row_that_is_gone_is_damage_and_not_an_empty_answer() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = chain(0, 30, 0);
    store.append(fence, batch(&blocks)).await.expect("appends");
    let victim = blocks.iter().find(|block| block.transactions.len() > 1).expect("one").facts.height;
    db.sql(&format!("DELETE FROM raw.transactions WHERE block_height = {victim} AND transaction_index = 0"))
        .await;
    let snapshot = store.snapshot().await.expect("reads");
    match snapshot.block(victim, Parts::all()).await {
        Err(StoreError::Corrupt { place, .. }) => assert!(place.contains(&victim.to_string()), "{place}"),
        other => panic!("{other:?}"),
    }
    drop(snapshot);
    db.sql(&format!("DELETE FROM raw.blocks WHERE height = {victim}")).await;
    let snapshot = store.snapshot().await.expect("reads");
    let read = snapshot.blocks(snapshot.head().range(), Parts::HEADER, u64::MAX).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
}

/// Breaks the statement with this number.
struct BreakAt {
    left: AtomicU64,
}

impl StatementHook for BreakAt {
    fn before_statement(&self) -> Result<()> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(StoreError::Database("crash".into())),
            _ => Ok(()),
        }
    }
}

/// One step of a script that appends, takes blocks back, fills ahead and joins. `None` at the end.
async fn step(store: &PgRawStore, blocks: &[RawBlock], dead: &[RawBlock]) -> Result<Option<HeadRow>> {
    let head = store.acquire().await?;
    if head.pending_purge.is_some() {
        store.purge_step(head.fence, 2).await?;
        return Ok(Some(head));
    }
    let next = head.tip.map_or(0, |tip| tip.height.get() as usize + 1);
    // First onto the dead fork, then back, then on.
    if next == 12 && head.newest_reorg.id == 0 {
        store.append(head.fence, batch(&dead[12..16])).await?;
        return Ok(Some(head));
    }
    if next == 16 && head.newest_reorg.id == 0 {
        let common = blocks[11].block_ref();
        store.rollback(head.fence, Rollback { common, max_depth: 10, decided_at_ms: 1 }).await?;
        return Ok(Some(head));
    }
    if next >= blocks.len() {
        store.prune_orphans(head.fence, 0, 1).await?;
        store.maintain(20_000).await?;
        return Ok(None);
    }
    if (16..36).contains(&next) {
        let stop = Height(36.min(blocks.len() as u64));
        let lease = store.claim_range("w", 0, 10, stop).await?;
        if let Some(lease) = lease {
            let (from, to) = (lease.done_to.get() as usize, lease.range.end().get() as usize);
            store.fill(&lease, blocks[from..to.min(from + 5)].to_vec(), 0).await?;
        }
        return store.advance(head.fence).await.map(Some);
    }
    let end = blocks.len().min(next + 3);
    store.append(head.fence, batch(&blocks[next..end])).await?;
    store.maintain(20_000).await?;
    Ok(Some(head))
}

/// A run that is broken at this statement, and one that goes on from there: as clean as one that was never broken. Whether it came to that statement.
async fn survives_a_crash_at(db: &pg::TestDb, crash_at: u64, blocks: &[RawBlock], dead: &[RawBlock]) -> bool {
    db.sql("DROP SCHEMA IF EXISTS raw CASCADE").await;
    let store = open(db).await;
    store.init(info()).await.expect("init");
    store.set_statement_hook(Some(Arc::new(BreakAt { left: AtomicU64::new(crash_at) })));
    let crashed = loop {
        match step(&store, blocks, dead).await {
            Ok(Some(_)) => {}
            Ok(None) => break false,
            Err(StoreError::Database(error)) if error == "crash" => break true,
            Err(error) => panic!("crash at {crash_at}: {error}"),
        }
    };
    drop(store);
    let store = open(db).await;
    while step(&store, blocks, dead).await.expect("goes on").is_some() {}
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, blocks).await;
    crashed
}

/// Every statement of the script, those of several runs beside each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i01_a_crash_between_any_two_statements_ends_as_a_clean_run() {
    const BESIDE: u64 = 4;
    let (blocks, trunk) = (Arc::new(chain(0, 45, 0)), chain(0, 12, 0));
    let dead = Arc::new(fork(&trunk, 11, 6, 9));
    let mut runs = Vec::new();
    for first in 0..BESIDE {
        let Some(db) = pg::database().await else { return };
        let (blocks, dead) = (blocks.clone(), dead.clone());
        runs.push(tokio::spawn(async move {
            let mut crash_at = first;
            while survives_a_crash_at(&db, crash_at, &blocks, &dead).await {
                crash_at += BESIDE;
            }
            crash_at
        }));
    }
    let mut statements = u64::MAX;
    for run in runs {
        statements = statements.min(run.await.expect("each is survived"));
    }
    assert!(statements > 200, "{statements} statements");
}

/// Three fillers, each with its own connections, an ingester that advances and appends: as several processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_processes_fill_while_the_ingester_appends_and_advances() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = Arc::new(chain(0, 400, 0));
    store.append(fence, batch(&blocks[..5])).await.expect("appends");
    let fillers: Vec<_> = (0..3)
        .map(|n| {
            let (options, blocks) = (options(&db), blocks.clone());
            tokio::spawn(async move {
                let store = PgRawStore::open(options, None).await.expect("opens");
                let owner = format!("filler {n}");
                let mut filled = 0_u64;
                loop {
                    let claimed = store.claim_range(&owner, 60_000, 16, Height(380)).await;
                    let Some(mut lease) = claimed.expect("claims") else { break filled };
                    while lease.state == RawLeaseState::Active {
                        let from = lease.done_to.get() as usize;
                        let to = (from + 5).min(lease.range.end().get() as usize);
                        lease = match store.fill(&lease, blocks[from..to].to_vec(), 60_000).await {
                            Ok(renewed) => renewed,
                            // The appends of the ingester have passed the end of its range.
                            Err(StoreError::Fenced { .. }) => break,
                            Err(error) => panic!("{error}"),
                        };
                        filled += 1;
                    }
                }
            })
        })
        .collect();
    let mut done = Vec::new();
    for filler in fillers {
        // The head moves meanwhile, and appends run into what was filled.
        for _ in 0..5 {
            let head = store.advance(fence).await.expect("advances");
            let next = head.tip.expect("a tip").height.get() as usize + 1;
            // Two blocks, and nothing above what the fillers may take.
            if next + 2 <= 380 {
                store.append(fence, batch(&blocks[next..next + 2])).await.expect("appends");
            }
        }
        done.push(filler.await.expect("ends"));
    }
    let head = store.advance(fence).await.expect("advances");
    assert_eq!(head.tip.map(|tip| tip.height), Some(Height(379)), "{done:?}");
    store.append(fence, batch(&blocks[380..])).await.expect("appends");
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, &blocks).await;
    assert!(store.snapshot().await.expect("reads").raw_leases().await.expect("reads").is_empty());
}

/// A fill that is being committed and a rollback that takes its lease away: whichever comes first, nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rollback_beside_running_fills_leaves_nothing_behind() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let trunk = chain(0, 10, 0);
    let branch = Arc::new(fork(&trunk, 7, 60, 1));
    store.append(fence, batch(&trunk[..8])).await.expect("appends");
    for round in 0..12_u64 {
        store.append(fence, batch(&branch[8..10])).await.expect("appends");
        let lease = store.claim_range("w", 60_000, 100, Height(60)).await.expect("claims").expect("a range");
        let (filler, blocks, held) = (open(&db).await, branch.clone(), lease.clone());
        let filling = tokio::spawn(async move {
            let mut held = held;
            while held.done_to < Height(50) {
                let from = held.done_to.get() as usize;
                match filler.fill(&held, blocks[from..from + 4].to_vec(), 60_000).await {
                    Ok(renewed) => held = renewed,
                    Err(error) => return error,
                }
            }
            StoreError::Invalid("it was never stopped".into())
        });
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        let common = trunk[7].block_ref();
        store
            .rollback(fence, Rollback { common, max_depth: 10, decided_at_ms: 1 })
            .await
            .expect("rolls back");
        let ended = filling.await.expect("ends");
        assert!(matches!(ended, StoreError::Fenced { .. } | StoreError::Invalid(_)), "{ended}");
        while store.purge_step(fence, 1).await.expect("purges") != PurgeProgress::Done {}
        assert_is_clean(&store, &trunk[..8]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p02_writers_of_the_same_rows_in_opposite_order_do_not_fail() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    let errors: Vec<NewError> = (0..500)
        .map(|n| NewError {
            service: format!("worker {}", n % 7),
            height: Height(n),
            block_id: BlockId([n as u8; 32]),
            transaction_id: format!("0x{n:x}"),
            severity: Severity::Warn,
            message: "it can't be decoded".into(),
            raw_data: vec![1; 10],
            raw_ref: None,
        })
        .collect();
    let reversed: Vec<NewError> = errors.iter().rev().cloned().collect();
    let other = open(&db).await;
    for _ in 0..40 {
        db.sql("DELETE FROM raw.indexing_errors").await;
        let (a, b) = tokio::join!(store.record(&errors), other.record(&reversed));
        assert_eq!(a.expect("records") + b.expect("records"), 500);
    }
}

#[tokio::test]
async fn p01_the_same_error_twice_in_one_batch_is_recorded_once() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    let error = |message: &str, block: u8| NewError {
        service: "token_worker".into(),
        height: Height(9),
        block_id: BlockId([block; 32]),
        transaction_id: String::new(),
        severity: Severity::Fatal,
        message: message.into(),
        raw_data: vec![0, 1, 2],
        raw_ref: Some("payloads/x".into()),
    };
    let list = [error("a\0b", 1), error("a\0b", 1), error("other", 1), error("a\0b", 2)];
    assert_eq!(store.record(&list).await.expect("records"), 3);
    assert_eq!(store.record(&list).await.expect("records"), 0);
    assert_eq!(store.count_unresolved().await.expect("counts"), 3);
    let filter = ErrorFilter { limit: 2, ..ErrorFilter::default() };
    let found = store.list(&filter).await.expect("lists");
    assert_eq!(found.len(), 2);
    assert!(found[0].created_at_ms > 1_600_000_000_000);
    let rest =
        store.list(&ErrorFilter { after_id: found[1].id, limit: 9, ..filter.clone() }).await.expect("lists");
    assert_eq!(rest.len(), 1);
    assert_eq!(store.resolve(&[found[0].id, found[0].id, 1 << 40]).await.expect("resolves"), 1);
    assert_eq!(store.resolve(&[found[0].id]).await.expect("resolves"), 0);
    assert_eq!(store.count_unresolved().await.expect("counts"), 2);
    let all = ErrorFilter { resolved: true, limit: 9, height: Some(Height(9)), ..ErrorFilter::default() };
    assert_eq!(store.list(&all).await.expect("lists").len(), 3);
    let nobody = ErrorFilter { service: Some("nobody".into()), ..all };
    assert_eq!(store.list(&nobody).await.expect("lists"), []);
    assert_eq!(store.forget_blocks(&[BlockId([1; 32])]).await.expect("forgets"), 2);
    // The reliability document's query, as it stands.
    assert_eq!(number(store.pool(), "SELECT COUNT(*) FROM raw.indexing_errors;").await, 1);
}

#[tokio::test]
async fn l03_leases_expire_by_the_databases_clock_whatever_a_process_thinks() {
    // A process whose clock is ten minutes behind the server's, and one whose clock is ten minutes ahead.
    for (skew, seconds) in [("10 minutes", 600_i64), ("-10 minutes", -600)] {
        let Some(db) = pg::database().await else { return };
        db.skew_clock(skew).await;
        let (store, fence) = begun(&db).await;
        let blocks = chain(0, 9, 0);
        store.append(fence, batch(&blocks[..3])).await.expect("appends");
        let lease = store.claim_range("a", 3_000, 10, Height(9)).await.expect("claims").expect("a range");
        let ahead_ms = lease.expires_at_ms as i64 - SystemClock.now_ms() as i64;
        assert!((ahead_ms - seconds * 1_000).abs() < 60_000, "the clocks differ by {skew}: {ahead_ms} ms");
        assert_eq!(store.claim_range("b", 3_000, 10, Height(9)).await.expect("claims"), None, "{skew}");
        // It lives on where it is renewed, and not a moment longer than it says.
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let lease = store.fill(&lease, blocks[3..5].to_vec(), 3_000).await.expect("renews");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(store.claim_range("b", 3_000, 10, Height(9)).await.expect("claims"), None, "{skew}");
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let taken = store.claim_range("b", 3_000, 10, Height(9)).await.expect("claims").expect("expired");
        assert_eq!((taken.range, taken.done_to), (lease.range, Height(5)), "{skew}");
        let late = store.fill(&lease, blocks[5..6].to_vec(), 3_000).await;
        assert!(matches!(late, Err(StoreError::Fenced { .. })), "{skew}: {late:?}");
    }
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    store.append(fence, batch(&chain(0, 3, 0))).await.expect("appends");
    let taken = store.claim_range("b", 60_000, 10, Height(9)).await.expect("claims").expect("a range");
    // And with a clock of its own, as the simulation has it.
    let clock = Arc::new(TestClock::new(5));
    let driven = PgRawStore::open(options(&db), Some(clock)).await.expect("opens");
    let renewed = driven.fill(&taken, chain(0, 4, 0)[3..].to_vec(), 10).await.expect("fills");
    assert_eq!(renewed.expires_at_ms, 15);
}

#[tokio::test]
async fn the_finished_runs_fill_pages_without_long_value_storage() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let mut blocks = chain(0, 60, 0);
    for block in &mut blocks {
        let mut numbers = cairn_store::suite::blocks::Numbers::new(block.facts.height.get());
        block.log_terms = (0..900).map(|_| numbers.next_u64()).collect();
        block.log_terms.sort_unstable();
        block.log_terms.dedup();
    }
    for part in blocks.chunks(3) {
        store.append(fence, batch(part)).await.expect("appends");
    }
    while store.maintain(60_000).await.expect("maintains") == Maintained::More {}
    assert_eq!(number(store.pool(), "SELECT count(*) FROM raw.runs WHERE state <> 0").await, 0);
    assert_eq!(number(store.pool(), "SELECT count(*) FROM raw.runs WHERE level = 1").await, 2);
    let toasted =
        "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'raw.run_pages'::regclass";
    assert_eq!(number(store.pool(), toasted).await, 0);
    assert_is_clean(&store, &blocks).await;
}

#[tokio::test]
async fn i06_repair_puts_lookups_right_both_ways_and_names_blocks_to_be_fetched_again() {
    let Some(db) = pg::database().await else { return };
    let layout = Arc::new(EvenLayout { events: 2 });
    let store = PgRawStore::open(PgRawOptions { layout, ..options(&db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let mut blocks = chain(0, 40, 0);
    for block in &mut blocks {
        block.facts.log_count = 2 * block.facts.tx_count;
    }
    store.append(fence, batch(&blocks)).await.expect("appends");
    let all = HeightRange::new(Height(0), Height(1_000));
    let clean = store.repair_lookups(all).await.expect("repairs");
    assert_eq!(clean, Repaired { silent: clean.silent.clone(), ..Repaired::default() });
    let with_txs: Vec<Height> =
        blocks.iter().filter(|block| block.transactions.len() > 1).map(|block| block.facts.height).collect();
    let (a, b, c) = (with_txs[0], with_txs[1], with_txs[2]);
    db.sql(&format!(
        "DELETE FROM raw.tx_lookup WHERE block_height = {a}; UPDATE raw.tx_lookup SET block_id = '\\x00' WHERE block_height = {b};
         DELETE FROM raw.block_lookup WHERE height = {a};
         INSERT INTO raw.tx_lookup VALUES ({c}, 99, 0, '\\xaa', '\\xbb');
         INSERT INTO raw.block_lookup VALUES ({c}, 0, '\\xcc');
         DELETE FROM raw.transactions WHERE block_height = {c} AND transaction_index = 0; DELETE FROM raw.blocks WHERE height = 39"
    ))
    .await;
    let count = |height: Height| blocks[height.get() as usize].transactions.len() as u64;
    let repaired = store.repair_lookups(all).await.expect("repairs");
    assert_eq!(repaired.lookups_written, count(a) + 1 + count(b));
    // One invented and one whose row is gone, an invented block and one whose row is gone.
    assert_eq!(repaired.lookups_removed, 4);
    assert_eq!(repaired.damaged, [c, Height(39)]);
    let wrong = fork(&blocks, c.get() - 1, 1, 77).pop().expect("a block");
    assert!(matches!(store.repair_block(wrong).await, Err(StoreError::Conflict { .. })));
    for height in [c, Height(39)] {
        store.repair_block(blocks[height.get() as usize].clone()).await.expect("repairs");
    }
    // A count of events that is wrong hides a block from whoever asks for all logs.
    db.sql(&format!("UPDATE raw.blocks SET event_count = 0 WHERE height IN ({a}, {b})")).await;
    let found = store.repair_lookups(all).await.expect("looks");
    assert_eq!(found, Repaired { damaged: vec![a, b], ..clean.clone() });
    for height in [a, b] {
        store.repair_block(blocks[height.get() as usize].clone()).await.expect("repairs");
    }
    assert_eq!(store.repair_lookups(all).await.expect("repairs"), clean);
    assert_is_clean(&store, &blocks).await;
    assert!(matches!(
        store.repair_block(chain(0, 41, 0).pop().expect("one")).await,
        Err(StoreError::Invalid(_))
    ));
}

#[tokio::test]
async fn a_repair_that_finds_nothing_to_mend_waits_for_no_writer_and_holds_up_none() {
    let Some(db) = pg::database().await else { return };
    let pg = PgOptions { lock_timeout_ms: 300, ..db.options() };
    let store = PgRawStore::open(PgRawOptions { pg, ..options(&db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 40, 0);
    store.append(fence, batch(&blocks)).await.expect("appends");
    let all = HeightRange::new(Height(0), Height(1_000));
    // Somebody holds the head: a repair that took its lock to look would wait for him, and he for it.
    let mut holder = db.pool().get().await.expect("connects");
    holder.begin(Isolation::ReadCommitted).await.expect("begins");
    holder.query("SELECT FROM raw.head FOR UPDATE", &[]).await.expect("locks");
    assert_eq!(store.repair_lookups(all).await.expect("looks"), Repaired::default());
    db.sql("DELETE FROM raw.block_lookup WHERE height IN (3, 7)").await;
    let refused = store.repair_lookups(all).await.expect_err("writing takes the lock");
    assert!(refused.kind().is_retryable(), "{refused}");
    holder.rollback().await.expect("lets go");
    let repaired = store.repair_lookups(all).await.expect("repairs");
    assert_eq!((repaired.lookups_written, repaired.lookups_removed), (2, 0));
    assert_is_clean(&store, &blocks).await;
}

/// A read of many blocks that time ends says where, and never passes for a whole one.
#[tokio::test]
async fn a_read_that_time_ends_says_how_far_it_came() {
    const BLOCKS: u64 = 5_000;
    let Some(db) = pg::database().await else { return };
    let sizes = PartitionSizes::all(10_000);
    let store =
        PgRawStore::open(PgRawOptions { partitions: sizes, ..options(&db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    for blocks in chain(0, BLOCKS, 0).chunks(500) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    drop(store);
    let all = HeightRange::new(Height(0), Height(BLOCKS));
    // How long the whole takes depends on the machine.
    let mut max_ms = 20;
    loop {
        let options = PgRawOptions { read_only: true, snapshot_max_ms: Some(max_ms), ..options(&db) };
        let store = PgRawStore::open(options, None).await.expect("opens");
        let read = match store.snapshot().await {
            Ok(snapshot) => snapshot.blocks(all, Parts::all(), u64::MAX).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(read) => {
                let last = read.blocks.last().expect("at least one").facts.height;
                assert_eq!((read.blocks.len() as u64, read.next), (last.get() + 1, last.next()));
                assert!(read.next < all.end(), "time never ended a read");
                return;
            }
            Err(error) => assert!(matches!(error, StoreError::Busy(_)), "{error}"),
        }
        max_ms += max_ms / 8;
    }
}

/// What a failover answers passes, and the connections that lead to a server without writes aren't used again.
#[tokio::test]
async fn what_a_failover_answers_passes() {
    let Some(db) = pg::database().await else { return };
    let pool = db.pool();
    let fails = async |code: &str| {
        let conn = pool.get().await.expect("connects");
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$");
        conn.batch(&raise).await.expect_err("it fails")
    };
    for code in ["08006", "25006", "53300", "57P01", "57P03", "58000"] {
        let error = fails(code).await;
        assert!(matches!(error, StoreError::Busy(_)), "{code}: {error}");
    }
    // A disk that can't be read is of this range, and a file that isn't there is damage.
    for code in ["42501", "22003", "58030"] {
        let error = fails(code).await;
        assert!(matches!(error, StoreError::Database(_)), "{code}: {error}");
    }
    let error = fails("58P01").await;
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    let same = number(&pool, "SELECT pg_backend_pid()::bigint").await;
    fails("57P03").await;
    assert_eq!(number(&pool, "SELECT pg_backend_pid()::bigint").await, same);
    fails("25006").await;
    assert_ne!(number(&pool, "SELECT pg_backend_pid()::bigint").await, same, "the connection is used again");
}
