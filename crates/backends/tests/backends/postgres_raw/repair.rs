//! Repair: what it puts right, and whom it doesn't disturb.

use std::sync::Arc;

use cairn_backends::postgres::raw::Repaired;
use cairn_backends::postgres::{Isolation, PgOptions, PgRawOptions, PgRawStore};
use cairn_core::{Height, HeightRange};
use cairn_store::suite::blocks::{chain, fork};
use cairn_store::{RawWriter, StoreError};

use super::{EvenLayout, assert_is_clean, batch, info, options};
use crate::support::pg;

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
    // Of the tip nothing is left but what the head row says.
    for height in [c, Height(39)] {
        let wrong = fork(&blocks, height.get() - 1, 1, 77).pop().expect("a block");
        let refused = store.repair_block(wrong).await;
        assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{height}: {refused:?}");
    }
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
