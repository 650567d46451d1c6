//! An event's row goes by the index that its chain's protocol gives it: over the block, or within its transaction.

use std::sync::Arc;

use cairn_backends::postgres::{PgRawOptions, PgRawStore};
use cairn_core::{BlockLayout, EventSlice, Fence, Height, Parts, RawBlock, Slices, TxSlice};
use cairn_store::suite::blocks::{as_stored, chain};
use cairn_store::{PurgeProgress, RawReader, RawWriter, Rollback, StoreError, TxPlace};

use super::{assert_is_clean, batch, info, number, options, tx};
use crate::support::pg;

/// Two events a transaction, whose indexes begin anew in each.
#[derive(Debug)]
struct WithinTransactions;

impl BlockLayout for WithinTransactions {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let mut slices = Slices::default();
        for tx_index in 0..u32::try_from(block.transactions.len()).ok()? {
            let start = tx_index as usize * 10;
            slices.transactions.push(TxSlice { body: 0..0, receipt: start..start + 10 });
            for index in 0..2 {
                let at = start + 1 + 4 * index as usize;
                slices.events.push(EventSlice { tx_index, index, range: at..at + 3 });
            }
        }
        Some(slices)
    }
}

/// Three transactions, of which the last has the id of the first.
fn block_with_events() -> Vec<RawBlock> {
    let mut blocks = chain(0, 2, 0);
    blocks[1].transactions = vec![tx(1), tx(2), tx(1)];
    (blocks[1].facts.tx_count, blocks[1].facts.log_count) = (3, 6);
    blocks[1].body = Default::default();
    blocks[1].receipts = (100..130_u8).collect::<Vec<u8>>().into();
    blocks
}

async fn filled(db: &pg::TestDb, blocks: &[RawBlock]) -> (PgRawStore, Fence) {
    let layout = Arc::new(WithinTransactions);
    let store = PgRawStore::open(PgRawOptions { layout, ..options(db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(blocks)).await.expect("appends");
    (store, fence)
}

#[tokio::test]
async fn indexes_within_transactions_are_kept_through_a_reorg_and_a_gap_is_seen() {
    let Some(db) = pg::database().await else { return };
    let blocks = block_with_events();
    let (store, fence) = filled(&db, &blocks).await;
    let pool = db.pool();
    let conn = pool.get().await.expect("connects");
    let rows = conn
        .query(
            "SELECT transaction_index, event_index, transaction_id, payload FROM raw.events WHERE block_height = 1 \
             ORDER BY transaction_index, event_index",
            &[],
        )
        .await
        .expect("runs");
    let found: Vec<(i64, i64, Vec<u8>, Vec<u8>)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    // The second one of an id follows the first, so that the key tells them apart.
    let expected: Vec<(i64, i64, Vec<u8>, Vec<u8>)> = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (2, 3)]
        .into_iter()
        .enumerate()
        .map(|(place, (tx_index, index))| {
            let id = blocks[1].transactions[tx_index].id.0.to_vec();
            let at = tx_index * 10 + 1 + 4 * (place % 2);
            (tx_index as i64, index, id, blocks[1].receipts[at..at + 3].to_vec())
        })
        .collect();
    assert_eq!(found, expected);
    assert_is_clean(&store, &blocks).await;
    store.append(fence, batch(&blocks)).await.expect("the same again");

    // As an archive of before has them: counted over the block.
    let over_the_block = "UPDATE raw.events SET event_index = 100 + 2 * transaction_index + event_index % 2 WHERE block_height = 1";
    conn.execute(over_the_block, &[]).await.expect("runs");
    conn.execute("UPDATE raw.events SET event_index = event_index - 100 WHERE block_height = 1", &[])
        .await
        .expect("runs");
    assert_is_clean(&store, &blocks).await;

    conn.execute("UPDATE raw.events SET event_index = 9 WHERE block_height = 1 AND event_index = 3", &[])
        .await
        .expect("runs");
    let read = store.snapshot().await.expect("reads").block(Height(1), Parts::RECEIPTS).await;
    let damage = read.map(drop).expect_err("there is a gap").to_string();
    assert!(damage.contains("height 1, transaction 1") && damage.contains("have a gap"), "{damage}");
    conn.execute("DELETE FROM raw.events WHERE block_height = 1 AND event_index = 9", &[])
        .await
        .expect("runs");
    let read = store.snapshot().await.expect("reads").block(Height(1), Parts::RECEIPTS).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
}

#[tokio::test]
async fn events_of_one_block_that_was_taken_away_may_have_one_index() {
    let Some(db) = pg::database().await else { return };
    let blocks = block_with_events();
    let (store, fence) = filled(&db, &blocks).await;
    let common = blocks[0].block_ref();
    store.rollback(fence, Rollback { common, max_depth: 5, decided_at_ms: 1 }).await.expect("rolls back");
    assert_eq!(store.purge_step(fence, 10).await.expect("purges"), PurgeProgress::Done);
    assert_eq!(number(&db.pool(), "SELECT count(*) FROM raw.orphan_events").await, 6);
    let snapshot = store.snapshot().await.expect("reads");
    let orphan = snapshot.orphan(1, blocks[1].facts.id, Parts::all()).await.expect("reads");
    assert_eq!(orphan, Some(as_stored(&blocks[1], Parts::all())));
}

/// As Flow had it behind service events until the end of 2025 (flow-go #3393).
#[derive(Debug)]
struct Skipping;

impl BlockLayout for Skipping {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let mut slices = WithinTransactions.slices(block)?;
        let mut within = slices.events.iter_mut().filter(|event| event.index == 1);
        within.by_ref().for_each(|event| event.index = 2);
        Some(slices)
    }
}

#[tokio::test]
async fn f05_an_index_that_is_left_out_is_kept_so_and_every_place_of_an_id_is_found() {
    let Some(db) = pg::database().await else { return };
    let blocks = block_with_events();
    let layout = Arc::new(Skipping);
    let store = PgRawStore::open(PgRawOptions { layout, ..options(&db) }, None).await.expect("opens");
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks)).await.expect("appends");
    let conn = db.pool();
    let conn = conn.get().await.expect("connects");
    let rows = conn
        .query(
            "SELECT transaction_index, event_index FROM raw.events WHERE block_height = 1 ORDER BY 1, 2",
            &[],
        )
        .await
        .expect("runs");
    let found: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    // The second one of an id follows the first, so that the key tells them apart.
    assert_eq!(found, [(0, 0), (0, 2), (1, 0), (1, 2), (2, 3), (2, 5)]);
    assert_is_clean(&store, &blocks).await;
    let snapshot = store.snapshot().await.expect("reads");
    let of = |index| TxPlace { height: Height(1), index };
    let all = snapshot.head().range();
    assert_eq!(snapshot.places_of_tx(tx(1).id, all, 9).await.expect("reads"), [of(0), of(2)]);
    assert_eq!(snapshot.places_of_tx(tx(1).id, all, 1).await.expect("reads"), [of(0)]);
}
