//! Partitions by height, and indexes of theirs that are built late.

use std::time::{Duration, Instant};

use cairn_backends::postgres::partition::{self, PartitionedTable, Partitions};
use cairn_backends::postgres::{Isolation, PgPool, PgRawOptions, PgRawStore};
use cairn_core::{Height, HeightRange, Parts};
use cairn_store::suite::blocks::{as_stored, chain, fork};
use cairn_store::{RawFiller, RawReader, RawWriter, StoreError};

use super::{assert_holds, batch, begun, info, number, open, options};
use crate::support::pg;

async fn partitions_of(pool: &PgPool, table: &'static str) -> Vec<HeightRange> {
    let conn = pool.get().await.expect("connects");
    let table =
        PartitionedTable { schema: "raw", table, heights: 0, storage: "", secondary: &[], when_full: &[] };
    partition::list(&conn, &table).await.expect("lists").into_iter().map(|part| part.heights).collect()
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
