//! What blocks are as rows: large ones, numbers beyond 32 bits, damage that is seen.

use std::sync::Arc;

use cairn_backends::postgres::{PgRawOptions, PgRawStore};
use cairn_core::{Height, Parts};
use cairn_store::suite::blocks::{as_stored, chain};
use cairn_store::{Maintained, PurgeProgress, RawMaintenance, RawReader, RawWriter, Rollback, StoreError};

use super::{EvenLayout, assert_is_clean, batch, begun, info, number, open, options, tx};
use crate::support::pg;

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

#[tokio::test]
async fn a_newer_schema_and_a_contradicting_checkpoint_are_refused() {
    let Some(db) = pg::database().await else { return };
    assert!(matches!(
        PgRawStore::open(PgRawOptions { read_only: true, ..options(&db) }, None).await,
        Err(StoreError::OldSchema { found: 0, .. })
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
async fn a_checkpoint_says_when_it_moved_last() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    store.append(fence, batch(&chain(0, 3, 0))).await.expect("appends");
    const MOVED: &str = "SELECT (extract(epoch FROM updated_at) * 1000000)::bigint FROM raw.checkpoints";
    let first = number(store.pool(), MOVED).await;
    let age = "SELECT extract(epoch FROM clock_timestamp() - updated_at)::bigint FROM raw.checkpoints";
    assert!((0..60).contains(&number(store.pool(), age).await));
    // The head row changes, and the checkpoint doesn't move.
    let fence = store.acquire().await.expect("acquires").fence;
    assert_eq!(number(store.pool(), MOVED).await, first);
    store.append(fence, batch(&chain(0, 5, 0)[3..])).await.expect("appends");
    assert!(number(store.pool(), MOVED).await > first);
}

#[tokio::test]
async fn an_archive_of_before_gets_the_time_of_its_checkpoint() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    store.append(fence, batch(&chain(0, 3, 0))).await.expect("appends");
    drop(store);
    db.sql("ALTER TABLE raw.checkpoints DROP COLUMN updated_at; DELETE FROM raw.schema_migrations WHERE version > 5").await;
    let store = open(&db).await;
    assert_eq!(number(store.pool(), "SELECT count(updated_at) FROM raw.checkpoints").await, 1);
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
