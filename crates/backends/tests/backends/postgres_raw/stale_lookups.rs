//! Lookups that lost their rows and stand where blocks are to be written: above the head nobody sees them, and they must not stop what comes.

use cairn_backends::postgres::PgRawStore;
use cairn_backends::postgres::raw::Repaired;
use cairn_core::{ErrorKind, Fence, Height, HeightRange, RawBlock};
use cairn_store::suite::blocks::chain;
use cairn_store::{PurgeProgress, RawFiller, RawWriter, Rollback};

use super::{assert_is_clean, batch, begun, number};
use crate::support::pg;

fn all() -> HeightRange {
    HeightRange::new(Height(0), Height(1_000))
}

/// The highest block with two transactions among these.
fn with_two(blocks: &[RawBlock]) -> &RawBlock {
    blocks.iter().rfind(|block| block.transactions.len() > 1).expect("a block with two transactions")
}

/// Takes the tip back to `common` and moves its rows away.
async fn take_back(store: &PgRawStore, fence: Fence, common: &RawBlock) {
    let rollback = Rollback { common: common.block_ref(), max_depth: 100, decided_at_ms: 0 };
    store.rollback(fence, rollback).await.expect("rolls back");
    while store.purge_step(fence, 7).await.expect("purges") != PurgeProgress::Done {}
}

async fn lookups(store: &PgRawStore) -> (i64, i64) {
    (
        number(store.pool(), "SELECT count(*) FROM raw.block_lookup").await,
        number(store.pool(), "SELECT count(*) FROM raw.tx_lookup").await,
    )
}

async fn assert_nothing_to_repair(store: &PgRawStore) {
    assert_eq!(store.repair_lookups(all()).await.expect("looks"), Repaired::default());
    assert_eq!(store.repair_lookups_above_head().await.expect("looks"), 0);
}

#[tokio::test]
async fn i06_an_append_takes_lookups_without_rows_out_of_its_way() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = chain(0, 40, 0);
    store.append(fence, batch(&blocks)).await.expect("appends");
    let clean = lookups(&store).await;
    // A transaction's row is lost, so that what undoes its block passes over its lookup.
    let lost = with_two(&blocks).facts.height;
    db.sql(&format!("DELETE FROM raw.transactions WHERE block_height = {lost} AND transaction_index = 1"))
        .await;
    take_back(&store, fence, &blocks[25]).await;
    let left = format!("SELECT count(*) FROM raw.tx_lookup WHERE block_height = {lost}");
    assert_eq!(number(store.pool(), &left).await, 1, "the case is what it says");
    // Of blocks, one where it belongs and one that says another height; and a transaction's that is in nobody's way.
    let id = |at: usize| format!("decode('{}', 'hex')", hex::encode(blocks[at].facts.id.0));
    db.sql(&format!(
        "INSERT INTO raw.block_lookup VALUES (27, 0, {}), (900, 0, {});
         INSERT INTO raw.tx_lookup VALUES (28, 99, 0, '\\xaa', '\\xbb')",
        id(27),
        id(29)
    ))
    .await;
    store.append(fence, batch(&blocks[26..])).await.expect("appends");
    assert_eq!(lookups(&store).await, clean);
    assert_nothing_to_repair(&store).await;
}

#[tokio::test]
async fn i06_a_fill_takes_lookups_without_rows_out_of_its_way() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = chain(0, 20, 0);
    store.append(fence, batch(&blocks[..10])).await.expect("appends");
    let transaction = with_two(&blocks[10..]);
    let id = |id: &[u8]| format!("decode('{}', 'hex')", hex::encode(id));
    db.sql(&format!(
        "INSERT INTO raw.block_lookup VALUES (12, 0, {});
         INSERT INTO raw.tx_lookup VALUES ({}, 1, 0, {}, '\\xbb')",
        id(&blocks[12].facts.id.0),
        transaction.facts.height,
        id(&transaction.transactions[1].id.0)
    ))
    .await;
    let claimed = store.claim_range("w", 60_000, 10, Height(20)).await.expect("claims");
    store.fill(&claimed.expect("a range"), blocks[10..].to_vec(), 60_000).await.expect("fills");
    let head = store.advance(fence).await.expect("advances");
    assert_eq!(head.tip.map(|tip| tip.height), Some(Height(19)));
    assert_nothing_to_repair(&store).await;
    assert_is_clean(&store, &blocks).await;
}

#[tokio::test]
async fn i06_a_lookup_that_a_row_stands_behind_stays_and_is_an_error() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = chain(0, 40, 0);
    store.append(fence, batch(&blocks[..30])).await.expect("appends");
    // The next block's id is that of a stored one.
    let id = hex::encode(blocks[30].facts.id.0);
    db.sql(&format!(
        "UPDATE raw.blocks SET id = decode('{id}', 'hex') WHERE height = 3;
         UPDATE raw.block_lookup SET id = decode('{id}', 'hex') WHERE height = 3"
    ))
    .await;
    let before = lookups(&store).await;
    let refused = store.append(fence, batch(&blocks[30..])).await.expect_err("two blocks of one id");
    assert_eq!(refused.kind(), ErrorKind::Halt, "{refused}");
    assert!(refused.to_string().contains("block_lookup_pkey"), "{refused}");
    assert_eq!(lookups(&store).await, before);
    let kept = format!("SELECT height FROM raw.block_lookup WHERE id = decode('{id}', 'hex')");
    assert_eq!(number(store.pool(), &kept).await, 3);
}

#[tokio::test]
async fn i06_repair_removes_lookups_without_rows_above_the_head_and_leaves_fills_alone() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = chain(0, 30, 0);
    store.append(fence, batch(&blocks[..10])).await.expect("appends");
    let (first, second) = (
        store.claim_range("w", 60_000, 10, Height(30)).await.expect("claims").expect("a range"),
        store.claim_range("w", 60_000, 10, Height(30)).await.expect("claims").expect("a range"),
    );
    store.fill(&second, blocks[20..].to_vec(), 60_000).await.expect("fills");
    let before = lookups(&store).await;
    db.sql(
        "INSERT INTO raw.block_lookup VALUES (11, 0, '\\xc0'), (25, 0, '\\xc1'), (70000, 0, '\\xc2');
         INSERT INTO raw.tx_lookup VALUES (12, 0, 0, '\\xaa', '\\xbb'), (26, 99, 0, '\\xaa', '\\xbb'), (80000, 0, 0, '\\xaa', '\\xbb');
         INSERT INTO raw.evm_lookup (height, evm_index, evm_hash, tx_id) VALUES (13, 0, '\\xee', '\\xaa'), (90000, 0, '\\xee', '\\xaa')",
    )
    .await;
    assert_eq!(store.repair_lookups_above_head().await.expect("repairs"), 8);
    assert_nothing_to_repair(&store).await;
    assert_eq!(lookups(&store).await, before);
    store.fill(&first, blocks[10..20].to_vec(), 60_000).await.expect("fills");
    store.advance(fence).await.expect("advances");
    assert_nothing_to_repair(&store).await;
    assert_is_clean(&store, &blocks).await;
}
