//! Readers, workers and errors beside the ingester: nobody stops it (P08). Reads that time ends, and what a failover answers.

use std::time::{Duration, Instant};

use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{Isolation, PgConn, PgOptions, PgPool, PgRawOptions, PgRawStore};
use cairn_core::{BlockId, Height, HeightRange, Parts};
use cairn_store::derived::{ErrorLog, NewError, Severity};
use cairn_store::suite::blocks::chain;
use cairn_store::{RawReader, RawWriter, StoreError};

use super::{batch, begun, info, number, options};
use crate::support::pg;

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

/// What takes too long is broken off by the server, as something that passes: a statement by itself, and one of a verb that waits for somebody.
#[tokio::test]
async fn a_statement_that_takes_too_long_is_broken_off_and_a_write_after_it_is_well() {
    let Some(db) = pg::database().await else { return };
    let (patient, fence) = begun(&db).await;
    let blocks = chain(0, 2, 0);
    patient.append(fence, batch(&blocks[..1])).await.expect("appends");
    let pg = PgOptions { statement_timeout_ms: 500, ..db.options() };
    let store = PgRawStore::open(PgRawOptions { pg, ..options(&db) }, None).await.expect("opens");
    let is_broken_off =
        |error: &StoreError| matches!(error, StoreError::Busy(why) if why.contains("statement timeout"));
    let conn = store.pool().get().await.expect("connects");
    // It would end by itself, and well.
    let error = conn.batch("SELECT pg_sleep(5)").await.expect_err("it takes too long");
    assert!(is_broken_off(&error), "{error}");
    conn.batch("SELECT 1").await.expect("the connection is well");
    drop(conn);
    let mut holder = db.pool().get().await.expect("connects");
    holder.begin(Isolation::ReadCommitted).await.expect("begins");
    holder.batch("LOCK TABLE raw.head").await.expect("locks");
    let error = store.append(fence, batch(&blocks[1..])).await.expect_err("it waits too long");
    assert!(is_broken_off(&error), "{error}");
    holder.rollback().await.expect("lets go");
    let head = store.append(fence, batch(&blocks[1..])).await.expect("appends");
    assert_eq!(head.tip, Some(blocks[1].block_ref()));
}

#[tokio::test]
async fn connections_that_nobody_uses_are_kept_up_to_a_number() {
    let Some(db) = pg::database().await else { return };
    let options =
        PgOptions { max_idle_conns: 1, surplus_kept_ms: 0, application_name: "few".into(), ..db.options() };
    let pool = PgPool::new(options).expect("a URL");
    let watch = db.pool();
    let open = async || {
        number(
            &watch,
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'few'",
        )
        .await
    };
    let pid = async |conn: &PgConn| {
        conn.query_one("SELECT pg_backend_pid()", &[]).await.expect("asks").get::<_, i32>(0)
    };
    let mut used = Vec::new();
    for _ in 0..3 {
        used.push(pool.get().await.expect("connects"));
    }
    assert_eq!(open().await, 3);
    let mut pids = Vec::new();
    for conn in &used {
        pids.push(pid(conn).await);
    }
    drop(used);
    let begun = Instant::now();
    while open().await > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} are kept", open().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let kept = pool.get().await.expect("a connection");
    assert!(pids.contains(&pid(&kept).await), "none was kept");
    assert_eq!(open().await, 1);
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
