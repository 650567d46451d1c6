//! Indexes of derived tables on PostgreSQL that were put off: by one process at a time, beside whoever writes, and again after whatever went wrong.

use std::time::{Duration, Instant};

use cairn_backends::postgres::{Isolation, PgDerived, PgDerivedOptions};
use cairn_core::{BlockId, BlockRef, Height, HeightRange};
use cairn_store::derived::{
    ApplyProgress, BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, ColumnType, Coordinator,
    DerivedMaintenance, DerivedReader, DerivedWriter, IndexDef, ReadMark, ReorgApplier, Row, Scan,
    TableClass, TableDef, TableRows, Value, WorkerLease, column,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark, StoreError};

use crate::support::pg;

/// Heights of a partition.
const EACH: u64 = 1_000;
/// Of the table, by the server's name.
const INDEXES: [&str; 2] = ["transfers_by_token", "transfers_by_from"];
static TRANSFERS: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: TableClass::Events { partition_heights: EACH },
    columns: &[
        column(BLOCK_HEIGHT, ColumnType::Int),
        column("log_index", ColumnType::Int),
        column("token", ColumnType::Bytes),
        column("from", ColumnType::Bytes),
    ],
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[
        IndexDef { name: "by_token", columns: &["token", BLOCK_HEIGHT] },
        IndexDef { name: "by_from", columns: &["from", BLOCK_HEIGHT] },
    ],
};
const RAW: [u8; 16] = [7; 16];

fn id(height: u64) -> BlockId {
    let mut id = [1; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    BlockId(id)
}

fn transfer(height: u64, token: &[u8]) -> Row {
    Row(vec![Value::uint(height), Value::uint(0), Value::bytes(token), Value::bytes(&[1; 20])])
}

async fn open(db: &pg::TestDb, defer_indexes: bool) -> PgDerived {
    let options = PgDerivedOptions {
        write: db.options(),
        read: db.options(),
        defer_indexes,
        ..PgDerivedOptions::new(&db.url)
    };
    PgDerived::open(options, Catalog::new([&TRANSFERS]).expect("works"), None).await.expect("opens")
}

async fn claim(store: &PgDerived) -> WorkerLease {
    let request = ClaimRequest {
        service: "mapper".into(),
        version: 1,
        owner: "test".into(),
        ttl_ms: 600_000,
        range_heights: EACH,
        first: Height(0),
        limit_exclusive: Height(i64::MAX as u64),
        stop_exclusive: None,
        in_order: false,
    };
    store.claim(&request).await.expect("claims").expect("a lease")
}

async fn commit(store: &PgDerived, lease: &WorkerLease, to: u64, rows: Vec<Row>) -> WorkerLease {
    let start = lease.done_to;
    let commit = ChunkCommit {
        chunk: HeightRange::new(start, Height(to)),
        parent_id: Some(start.prev().map_or(BlockId::default(), |height| id(height.get()))),
        last_id: Some(id(to - 1)),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: vec![TableRows { table: TRANSFERS.name, rows }],
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 600_000,
    };
    store.commit_chunk(lease, commit).await.expect("commits").lease
}

/// A store that put its indexes off, with two full partitions, half of the third one, and a lease on the rest of that.
async fn backfilled(db: &pg::TestDb) -> (PgDerived, WorkerLease) {
    let store = open(db, true).await;
    store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
    store.register("mapper", Height(0)).await.expect("registers");
    let mut lease = claim(&store).await;
    for n in 0..3 {
        if n > 0 {
            lease = claim(&store).await;
        }
        let to = n * EACH + if n == 2 { EACH / 2 } else { EACH };
        let rows = vec![transfer(n * EACH, &[9; 20]), transfer(to - 1, &[9; 20])];
        lease = commit(&store, &lease, to, rows).await;
    }
    (store, lease)
}

async fn count(db: &pg::TestDb, sql: &str) -> i64 {
    let pool = db.pool();
    let conn = pool.get().await.expect("connects");
    conn.query_one(sql, &[]).await.expect("counts").get(0)
}

/// Indexes of partitions beside the keys.
async fn of_partitions(db: &pg::TestDb) -> i64 {
    const SQL: &str = "SELECT count(*) FROM pg_index x JOIN pg_inherits h ON h.inhrelid = x.indrelid
         WHERE h.inhparent = 'app.transfers'::regclass AND NOT x.indisprimary AND x.indisvalid";
    count(db, SQL).await
}

/// Of the table's indexes, those that all of its partitions have.
async fn of_table(db: &pg::TestDb) -> usize {
    let mut valid = 0;
    for index in INDEXES {
        let sql = format!(
            "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('app.{index}') AND indisvalid"
        );
        valid += count(db, &sql).await as usize;
    }
    valid
}

/// Every partition has each of the table's indexes once.
async fn demand_whole(db: &pg::TestDb) {
    assert_eq!(of_table(db).await, INDEXES.len());
    let partitions =
        count(db, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app.transfers'::regclass").await;
    assert_eq!(of_partitions(db).await, partitions * INDEXES.len() as i64);
}

/// Builds until the table has all its indexes. A lock that somebody else holds for a moment (a vacuum) is no failure; anything else is.
async fn build_all(store: &PgDerived, db: &pg::TestDb) -> Result<(), StoreError> {
    let begun = Instant::now();
    while of_table(db).await < INDEXES.len() {
        assert!(begun.elapsed() < Duration::from_secs(60), "indexes are not built");
        match store.build_indexes(Height(0)).await {
            Ok(true) => {}
            Ok(false) | Err(StoreError::Busy(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn wait_until(db: &pg::TestDb, sql: &str) {
    let begun = Instant::now();
    while count(db, sql).await == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_backfill_a_partition_is_indexed_when_it_is_full_and_final() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = backfilled(&db).await;
    for (final_to, built) in [(0, 0), (999, 0), (1_000, 2), (1_999, 2), (9_000, 4)] {
        while store.build_indexes(Height(final_to)).await.expect("builds") {}
        assert_eq!(of_partitions(&db).await, built, "final below {final_to}, indexed below 2,500");
    }
    assert_eq!(of_table(&db).await, 0);
    // Nothing is put off any more: the rest is built, and the table has its indexes, as has what is made from then on.
    let store = open(&db, false).await;
    build_all(&store, &db).await.expect("builds");
    demand_whole(&db).await;
    store.ensure_partitions(HeightRange::one(Height(9_000))).await.expect("makes partitions");
    demand_whole(&db).await;
    assert!(!store.build_indexes(Height(9_000)).await.expect("looks"));
    let scan = Scan {
        index: Some("by_token"),
        prefix: vec![Value::bytes(&[9; 20])],
        ..Scan::new(TRANSFERS.name, 10)
    };
    assert_eq!(store.snapshot().await.expect("reads").scan(&scan).await.expect("reads").rows.len(), 6);
    // Put off again: the table has them, and no partition gets a second one.
    let store = open(&db, true).await;
    assert!(!store.build_indexes(Height(9_000)).await.expect("looks"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_that_build_at_once_are_not_in_each_others_way() {
    let Some(db) = pg::database().await else { return };
    backfilled(&db).await;
    let db = std::sync::Arc::new(db);
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&db, false).await);
    }
    for _ in 0..3 {
        let builders: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, db) = (store.clone(), db.clone());
                tokio::spawn(async move { build_all(&store, &db).await })
            })
            .collect();
        for builder in builders {
            builder.await.expect("ends").expect("builds, or leaves it to others");
        }
        demand_whole(&db).await;
        db.sql("DROP INDEX app.transfers_by_token; DROP INDEX app.transfers_by_from").await;
        assert_eq!(of_partitions(&db).await, 0);
    }
}

/// Builders that wait for a writer who was there before.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
     AND query LIKE 'CREATE INDEX CONCURRENTLY%'";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_and_reorgs_wait_for_no_index_and_one_that_was_broken_off_is_built_anew() {
    let Some(db) = pg::database().await else { return };
    let (store, lease) = backfilled(&db).await;
    // Somebody writes to the partition below the tip's, which is full, and to the tip's.
    let mut writer = db.pool().get().await.expect("connects");
    writer.begin(Isolation::ReadCommitted).await.expect("begins");
    writer.batch("LOCK TABLE app.transfers_p1, app.transfers_p2 IN ROW EXCLUSIVE MODE").await.expect("locks");
    let builder = open(&db, false).await;
    let building = tokio::spawn(async move {
        loop {
            match builder.build_indexes(Height(EACH)).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                // Somebody was in the way for a moment.
                Err(StoreError::Busy(what)) if what.contains("55P03") => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        }
    });
    wait_until(&db, WAITING).await;

    let limit = Duration::from_secs(5);
    let another = open(&db, false).await;
    let looked = tokio::time::timeout(limit, another.build_indexes(Height(EACH)));
    assert!(!looked.await.expect("only one waits for writers").expect("looks"));
    let committed = commit(&store, &lease, 2_600, vec![transfer(2_599, &[9; 20])]);
    tokio::time::timeout(limit, committed).await.expect("a commit waits for no index");
    // Blocks 1,991 to 2,599 are taken away.
    let orphans = (1_991..2_600).map(|height| OrphanRef {
        block: BlockRef { height: Height(height), id: id(height) },
        timestamp_ms: height,
    });
    let common = BlockRef { height: Height(1_990), id: id(1_990) };
    let entry = ReorgEntry::chain(1, &[0; 32], RAW, common, orphans.collect(), 0);
    let undone = async {
        store.begin_apply(&entry).await.expect("begins");
        while store.apply_step(1, 100).await.expect("a step") == ApplyProgress::More {}
        store.finish_apply(1).await.expect("finishes");
    };
    tokio::time::timeout(limit, undone).await.expect("a reorg waits for no index");

    // The builder's process goes away.
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND query LIKE 'CREATE INDEX CONCURRENTLY%'";
    db.sql(kill).await;
    let killed = building.await.expect("ends").expect_err("it was broken off");
    assert!(matches!(killed, StoreError::Busy(_)), "{killed}");
    let broken = "SELECT count(*) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
         WHERE i.relname LIKE 'transfers_p1_by_%' AND NOT x.indisvalid";
    wait_until(&db, broken).await;
    writer.rollback().await.expect("ends");
    build_all(&another, &db).await.expect("builds it anew");
    demand_whole(&db).await;
    assert_eq!(count(&db, broken).await, 0);
    let rows = store.snapshot().await.expect("reads").scan(&Scan::new(TRANSFERS.name, 100)).await;
    let heights = [0, 999, 1_000];
    assert_eq!(rows.expect("reads").rows, heights.map(|height| transfer(height, &[9; 20])));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_fails_keeps_no_other_from_being_built() {
    let Some(db) = pg::database().await else { return };
    let (store, lease) = backfilled(&db).await;
    // A row that an index can't take: of bytes that can't be compressed.
    let mut random = 1_u64;
    let wide: Vec<u8> = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    })
    .take(6_000)
    .collect();
    commit(&store, &lease, 2_600, vec![transfer(2_599, &wide)]).await;
    let store = open(&db, false).await;
    let refused = loop {
        match store.build_indexes(Height(0)).await {
            Err(StoreError::Busy(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            built => break built,
        }
    };
    assert!(matches!(&refused, Err(StoreError::Database(what)) if what.contains("index row")), "{refused:?}");
    assert_eq!(of_table(&db).await, 1, "the other one is whole");
    db.sql("DELETE FROM app.transfers WHERE block_height = 2599").await;
    build_all(&store, &db).await.expect("builds");
    demand_whole(&db).await;
}
