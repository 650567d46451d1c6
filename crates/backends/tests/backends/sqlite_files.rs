//! The files: who may open them, which schemas are taken, and what their damage looks like.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::sqlite::{LOCK_NAME, SqliteOptions, SqliteStore};
use cairn_core::{ChainId, Height, HeightRange, Parts, SystemClock};
use cairn_store::derived::ErrorLog;
use cairn_store::suite::blocks::{as_stored, chain, fork};
use cairn_store::{
    AppendBatch, LogQuery, RawDump, RawMaintenance, RawReader, RawWriter, Result, StoreError, StoreInfo,
};
use rusqlite::Connection;

async fn open(dir: &Path) -> Result<SqliteStore> {
    SqliteStore::open(SqliteOptions::new(dir), Arc::new(SystemClock)).await
}

async fn open_read_only(dir: &Path) -> Result<SqliteStore> {
    SqliteStore::open(SqliteOptions::read_only(dir), Arc::new(SystemClock)).await
}

fn info() -> StoreInfo {
    StoreInfo { uuid: [1; 16], chain_id: ChainId(1), chain_config: Default::default() }
}

fn batch(blocks: &[cairn_core::RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

/// A store with the first `count` blocks of the chain.
async fn filled(dir: &Path, count: u64) -> SqliteStore {
    let store = open(dir).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    for blocks in chain(0, count, 0).chunks(10) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    store
}

fn sql(dir: &Path, statements: &str) {
    let conn = Connection::open(dir.join("raw.sqlite")).expect("opens");
    conn.execute_batch(statements).expect("runs");
}

#[tokio::test]
async fn one_process_writes_and_says_so() {
    let dir = tempfile::tempdir().expect("dir");
    let store = open(dir.path()).await.expect("opens");
    match open(dir.path()).await {
        Err(StoreError::Locked { what, holder }) => {
            assert!(what.ends_with(LOCK_NAME), "{what}");
            assert_eq!(holder, Some(std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    let handle = store.clone();
    drop(store);
    assert!(open(dir.path()).await.is_err(), "a handle is left");
    drop(handle);
    open(dir.path()).await.expect("the lock is free again");
}

#[tokio::test]
async fn reading_works_beside_a_writer_and_after_it() {
    let dir = tempfile::tempdir().expect("dir");
    assert!(matches!(open_read_only(dir.path()).await, Err(StoreError::Invalid(_))), "there is no store yet");
    assert!(std::fs::read_dir(dir.path()).expect("reads").next().is_none(), "reading made something");

    let writer = filled(dir.path(), 20).await;
    let reader = open_read_only(dir.path()).await.expect("opens beside the writer");
    let old = reader.snapshot().await.expect("reads");
    let fence = writer.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 30, 0);
    writer.append(fence, batch(&blocks[20..])).await.expect("appends");
    assert_eq!(old.head().tip, Some(blocks[19].block_ref()), "a snapshot stays as it is");
    let new = reader.snapshot().await.expect("reads");
    assert_eq!(new.head().tip, Some(blocks[29].block_ref()));
    let read = new.block(Height(25), Parts::all()).await.expect("reads");
    assert_eq!(read, Some(as_stored(&blocks[25], Parts::all())));
    drop((old, new));

    assert!(matches!(reader.acquire().await, Err(StoreError::Invalid(_))), "a reader must not write");
    assert_eq!(reader.dump().await.expect("dumps"), writer.dump().await.expect("dumps"));
    drop(writer);
    let alone = reader.snapshot().await.expect("reads after the writer went");
    assert_eq!(alone.head().tip, Some(blocks[29].block_ref()));
    drop((alone, reader));
    let again = open_read_only(dir.path()).await.expect("opens with no log beside the file");
    assert_eq!(again.snapshot().await.expect("reads").head().tip, Some(blocks[29].block_ref()));
}

#[tokio::test]
async fn an_unknown_schema_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 10).await);
    sql(dir.path(), "PRAGMA user_version = 99");
    for result in [open(dir.path()).await, open_read_only(dir.path()).await] {
        match result {
            Err(StoreError::UnknownSchema { found: 99, known }) => assert!(known < 99),
            other => panic!("{other:?}"),
        }
    }
    sql(dir.path(), "ALTER TABLE checkpoints DROP COLUMN updated_at; PRAGMA user_version = 3");
    let store = open(dir.path()).await.expect("opens");
    assert_eq!(store.snapshot().await.expect("reads").head().tip.map(|tip| tip.height), Some(Height(9)));
}

#[tokio::test]
async fn a_store_of_the_first_version_gets_the_error_log() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 10).await);
    sql(
        dir.path(),
        "DROP TABLE indexing_errors; ALTER TABLE raw_leases DROP COLUMN last_error; \
         ALTER TABLE checkpoints DROP COLUMN updated_at; PRAGMA user_version = 1",
    );
    assert!(matches!(open_read_only(dir.path()).await, Err(StoreError::Invalid(_))), "readers can't migrate");
    let store = open(dir.path()).await.expect("migrates");
    assert_eq!(store.snapshot().await.expect("reads").head().tip.map(|tip| tip.height), Some(Height(9)));
    assert_eq!(store.count_unresolved().await.expect("is there"), 0);
    let conn = Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    let moved: i64 =
        conn.query_row("SELECT updated_at FROM checkpoints", [], |row| row.get(0)).expect("is there");
    assert!(moved > 1_700_000_000_000, "{moved}");
}

#[tokio::test]
async fn files_of_others_are_refused() {
    let dir = tempfile::tempdir().expect("dir");
    sql(dir.path(), "CREATE TABLE notes (text TEXT)");
    assert!(matches!(open(dir.path()).await, Err(StoreError::Database(_))));
    let bytes = std::fs::read(dir.path().join("raw.sqlite")).expect("reads");
    assert!(bytes[18] == 1, "the journal mode of somebody else's file was changed");

    let dir = tempfile::tempdir().expect("dir");
    std::fs::write(dir.path().join("raw.sqlite"), vec![b'x'; 10_000]).expect("writes");
    assert!(matches!(open(dir.path()).await, Err(StoreError::Corrupt { .. })));
}

#[tokio::test]
async fn a_checkpoint_that_contradicts_the_head_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 10).await);
    sql(dir.path(), "UPDATE checkpoints SET height = height + 1");
    assert!(matches!(open(dir.path()).await, Err(StoreError::Corrupt { .. })));
}

#[tokio::test]
async fn i06_rows_that_went_missing_are_damage_never_an_empty_answer() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 40).await);
    let blocks = chain(0, 40, 0);
    let with_txs = blocks.iter().find(|block| !block.transactions.is_empty()).expect("one has");
    let height = with_txs.facts.height;
    sql(
        dir.path(),
        &format!("DELETE FROM transactions WHERE height = {height}; DELETE FROM blocks WHERE height = 30"),
    );
    let store = open(dir.path()).await.expect("opens");
    let snapshot = store.snapshot().await.expect("reads");
    let damaged = |what: &str, place: String| {
        assert!(place.contains(what), "{place}");
    };
    match snapshot.block(height, Parts::TRANSACTIONS).await {
        Err(StoreError::Corrupt { place, .. }) => damaged(&height.to_string(), place),
        other => panic!("{other:?}"),
    }
    match snapshot.find_tx(with_txs.transactions[0].id).await {
        Err(StoreError::Corrupt { place, .. }) => damaged(&height.to_string(), place),
        other => panic!("{other:?}"),
    }
    let all = HeightRange::new(Height(25), Height(40));
    match snapshot.blocks(all, Parts::HEADER, u64::MAX).await {
        Err(StoreError::Corrupt { place, .. }) => damaged("30", place),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn i06_a_block_that_is_gone_is_put_back_where_it_was_and_no_other_forks() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 40).await);
    sql(dir.path(), "DELETE FROM blocks WHERE height IN (20, 39)");
    let store = open(dir.path()).await.expect("opens");
    let blocks = chain(0, 40, 0);
    // Of the tip nothing is left but what the head row says.
    for height in [20, 39] {
        let wrong = fork(&blocks, height as u64 - 1, 1, 77).pop().expect("a block");
        let refused = store.repair_block(wrong).await;
        assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{height}: {refused:?}");
        store.repair_block(blocks[height].clone()).await.expect("repairs");
    }
    let all = HeightRange::new(Height(0), Height(40));
    let stored = store.snapshot().await.expect("reads").blocks(all, Parts::all(), u64::MAX).await;
    let whole: Vec<_> = blocks.iter().map(|block| as_stored(block, Parts::all())).collect();
    assert_eq!(stored.expect("reads").blocks, whole);
}

#[tokio::test]
async fn damaged_index_pages_and_parts_are_named() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 10).await);
    sql(
        dir.path(),
        "UPDATE run_pages SET data = CAST(substr(data, 1, length(data) - 1) || x'77' AS BLOB); \
         UPDATE blocks SET header = x'0700' WHERE height = 3",
    );
    let store = open(dir.path()).await.expect("opens");
    let snapshot = store.snapshot().await.expect("reads");
    let blocks = chain(0, 10, 0);
    let query = LogQuery { groups: vec![vec![1]] };
    let range = HeightRange::new(Height(0), Height(10));
    for result in [
        snapshot.find_block(blocks[4].facts.id).await.map(|_| ()),
        snapshot.log_candidates(range, &query, 10).await.map(|_| ()),
        snapshot.index_fingerprints(range).await.map(|_| ()),
    ] {
        match result {
            Err(StoreError::Corrupt { place, .. }) => assert!(place.contains("index run"), "{place}"),
            other => panic!("{other:?}"),
        }
    }
    match snapshot.block(Height(3), Parts::HEADER).await {
        Err(StoreError::Corrupt { place, .. }) => assert!(place.contains("height 3"), "{place}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn old_snapshots_end_and_give_their_connection_back() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 10).await);
    let options = SqliteOptions {
        max_readers: 1,
        reader_wait_ms: 50,
        snapshot_max_ms: Some(1_500),
        ..SqliteOptions::new(dir.path())
    };
    let store = SqliteStore::open(options, Arc::new(SystemClock)).await.expect("opens");
    let first = store.snapshot().await.expect("one connection");
    assert!(matches!(store.snapshot().await, Err(StoreError::Busy(_))), "there is no second one");
    assert!(first.block(Height(1), Parts::HEADER).await.expect("young enough").is_some());
    tokio::time::sleep(std::time::Duration::from_millis(1_550)).await;
    assert!(matches!(first.block(Height(1), Parts::HEADER).await, Err(StoreError::Busy(_))), "too old");
    let second = store.snapshot().await.expect("the old one was ended");
    assert!(matches!(first.block(Height(1), Parts::HEADER).await, Err(StoreError::Busy(_))));
    assert!(second.block(Height(1), Parts::HEADER).await.expect("reads").is_some());
}

#[tokio::test]
async fn everybody_may_exchange_an_old_snapshot_at_once() {
    let dir = tempfile::tempdir().expect("dir");
    drop(filled(dir.path(), 10).await);
    let options = SqliteOptions {
        max_readers: 2,
        reader_wait_ms: 20_000,
        snapshot_max_ms: Some(200),
        ..SqliteOptions::new(dir.path())
    };
    let store = SqliteStore::open(options, Arc::new(SystemClock)).await.expect("opens");
    let exchange = || async {
        let old = store.snapshot().await.expect("a connection");
        // Both hold one when both ask for another.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let new = store.snapshot().await.expect("the old ones end in time");
        drop(old);
        new.block(Height(1), Parts::HEADER).await.expect("reads")
    };
    let (one, other) = tokio::join!(exchange(), exchange());
    assert!(one.is_some() && other.is_some());
}

#[tokio::test]
async fn maintenance_goes_on_where_its_caller_went_away() {
    let dir = tempfile::tempdir().expect("dir");
    let store = open(dir.path()).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 300, 0);
    for block in blocks.chunks(1) {
        store.append(fence, batch(block)).await.expect("appends");
    }
    let before = store.dump().await.expect("dumps");
    for wait_us in (0..4_000).step_by(7) {
        let wait = std::time::Duration::from_micros(wait_us);
        if let Ok(step) = tokio::time::timeout(wait, store.maintain(1)).await {
            step.expect("maintains beside a step that nobody waits for");
        }
    }
    while store.maintain(1 << 20).await.expect("maintains") == cairn_store::Maintained::More {}
    assert_eq!(store.dump().await.expect("dumps"), before);
}

/// Writes MiBs beside the store, as a busy writer does.
fn write_mib(dir: &Path, mib: u64) {
    let conn = Connection::open(dir.join("raw.sqlite")).expect("opens");
    conn.busy_timeout(Duration::from_secs(20)).expect("sets");
    conn.execute_batch("CREATE TABLE IF NOT EXISTS filler (id INTEGER PRIMARY KEY, data BLOB)")
        .expect("runs");
    for id in 0..mib / 4 {
        let put = "INSERT OR REPLACE INTO filler VALUES (?1, zeroblob(4 << 20))";
        conn.execute(put, [id as i64]).expect("writes");
    }
    // Closing the last connection would empty the log.
}

#[tokio::test]
async fn a_process_that_only_reads_ends_snapshots_that_nobody_asks_any_more() {
    let dir = tempfile::tempdir().expect("dir");
    let writer = filled(dir.path(), 10).await;
    let reader = open_read_only(dir.path()).await.expect("opens");
    let forgotten = (reader.snapshot().await.expect("reads"), writer.snapshot().await.expect("reads"));
    let wal_bytes = || std::fs::metadata(dir.path().join("raw.sqlite-wal")).expect("is there").len();
    write_mib(dir.path(), 100);
    assert!(wal_bytes() > 90 << 20, "the snapshot keeps the log from starting anew");
    // They may get two seconds old. Nobody waits for a connection of the reader, and it has no maintenance.
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    writer.maintain(1 << 20).await.expect("maintains");
    assert!(wal_bytes() < 1 << 20, "{} bytes are left", wal_bytes());
    drop(forgotten);
    // The sweeper went when nothing was open; with the next snapshot there is one again.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let forgotten = reader.snapshot().await.expect("reads");
    write_mib(dir.path(), 100);
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    writer.maintain(1 << 20).await.expect("maintains");
    assert!(wal_bytes() < 1 << 20, "{} bytes are left", wal_bytes());
    drop(forgotten);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_stays_bounded_though_there_is_always_some_reader() {
    let dir = tempfile::tempdir().expect("dir");
    let writer = filled(dir.path(), 10).await;
    let reader = open_read_only(dir.path()).await.expect("opens");
    let readers = (0..4).map(|n| {
        let reader = reader.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(n * 75)).await;
            loop {
                // Longer than the time for which a log that isn't long is waited for.
                let snapshot = reader.snapshot().await.expect("reads");
                tokio::time::sleep(Duration::from_millis(300)).await;
                assert!(snapshot.block(Height(5), Parts::all()).await.expect("reads").is_some());
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    let wal_bytes = || std::fs::metadata(dir.path().join("raw.sqlite-wal")).expect("is there").len();
    let (mut most, mut before, mut emptied) = (0, 0, 0);
    for _ in 0..20 {
        let place = dir.path().to_owned();
        tokio::task::spawn_blocking(move || write_mib(&place, 40)).await.expect("writes");
        most = most.max(wal_bytes());
        writer.maintain(1 << 20).await.expect("maintains");
        emptied += u32::from(wal_bytes() < before);
        before = wal_bytes();
    }
    // 800 MiB were written. It is emptied when it is above 256 MiB and maintenance comes round; a busy machine may need another round.
    assert!(most < 400 << 20, "{} MiB", most >> 20);
    assert!(emptied >= 1 && readers.iter().all(|reader| !reader.is_finished()));
    readers.iter().for_each(|reader| reader.abort());
}

#[tokio::test]
async fn a_checkpoint_says_when_it_moved_last() {
    let dir = tempfile::tempdir().expect("dir");
    let store = filled(dir.path(), 10).await;
    let updated_at = || -> i64 {
        let conn = Connection::open(dir.path().join("raw.sqlite")).expect("opens");
        conn.query_row("SELECT updated_at FROM checkpoints", [], |row| row.get(0)).expect("reads")
    };
    let first = updated_at();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert!((now.as_millis() as i64 - first).abs() < 60_000, "{first}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    // The head row changes, and the checkpoint doesn't move.
    let fence = store.acquire().await.expect("acquire").fence;
    assert_eq!(updated_at(), first);
    store.append(fence, batch(&chain(0, 20, 0)[10..])).await.expect("appends");
    assert!(updated_at() > first);
}

#[tokio::test]
async fn sizes_are_kept_with_every_change() {
    let dir = tempfile::tempdir().expect("dir");
    let store = filled(dir.path(), 40).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let common = chain(0, 40, 0)[29].block_ref();
    let rollback = cairn_store::Rollback { common, max_depth: 100, decided_at_ms: 1 };
    store.rollback(fence, rollback).await.expect("rolls back");
    while store.purge_step(fence, 3).await.expect("purges") != cairn_store::PurgeProgress::Done {}
    let sizes = store.snapshot().await.expect("reads").sizes().await.expect("reads");
    assert!(sizes.total_bytes > 50_000);
    drop(store);
    let conn = Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    for (part, table, column) in [
        ("headers", "blocks", "header"),
        ("bodies", "bodies", "data"),
        ("receipts", "receipts", "data"),
        ("extras", "extras", "data"),
        ("traces", "traces", "data"),
        ("transactions", "transactions", "ids || facts"),
        (
            "orphans",
            "orphans",
            "header || coalesce(tx_ids, x'') || coalesce(tx_facts, x'') || coalesce(body, x'') \
         || coalesce(receipts, x'') || coalesce(extras, x'') || coalesce(traces, x'')",
        ),
    ] {
        let select =
            format!("SELECT count(*), coalesce(sum(length(CAST({column} AS BLOB))), 0) FROM {table}");
        let counted: (u64, u64) = conn
            .query_row(&select, [], |row| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64)))
            .expect("counts");
        let kept = sizes.parts.iter().find(|(name, ..)| name == part).expect("is listed");
        assert_eq!((kept.1, kept.2), counted, "{part}");
    }
}

/// A read of many blocks that time ends says where, and never passes for a whole one.
#[tokio::test]
async fn a_read_that_time_ends_says_how_far_it_came() {
    const BLOCKS: u64 = 4_000;
    let dir = tempfile::tempdir().expect("dir");
    let store = open(dir.path()).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, BLOCKS, 0);
    for blocks in blocks.chunks(500) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    drop(store);
    let all = HeightRange::new(Height(0), Height(BLOCKS));
    // How long the whole takes depends on the machine.
    for max_ms in 1.. {
        let options = SqliteOptions { snapshot_max_ms: Some(max_ms), ..SqliteOptions::read_only(dir.path()) };
        let store = SqliteStore::open(options, Arc::new(SystemClock)).await.expect("opens");
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
    }
}
