//! The index of log terms on PostgreSQL when parts of it are lost: an error and never a silent wrong answer, and made anew from the blocks, a piece
//! at a time.

use crate::support::pg;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_backends::LogTerms;
use cairn_backends::postgres::{PgRawOptions, PgRawStore};
use cairn_core::{ChainId, Fence, Height, HeightRange, IndexKey, RawBlock, SystemClock};
use cairn_store::memory::{CommitHook, MemoryStore};
use cairn_store::suite::blocks::{chain, fork};
use cairn_store::{
    AppendBatch, IndexFingerprint, LogQuery, Maintained, PurgeProgress, RawMaintenance, RawReader, RawWriter,
    Result, Rollback, StoreError, StoreInfo,
};

/// More than two pieces.
const BLOCKS: u64 = 2_500;

fn range(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

async fn begun<S: RawWriter>(store: &S) -> Fence {
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
    store.init(info).await.expect("init");
    store.acquire().await.expect("acquire").fence
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

fn terms_of(blocks: &[RawBlock]) -> LogTerms {
    let terms: BTreeMap<Height, Vec<IndexKey>> =
        blocks.iter().map(|block| (block.facts.height, block.log_terms.clone())).collect();
    Arc::new(move |block| terms.get(&block.facts.height).cloned().ok_or_else(|| "unknown".into()))
}

/// A store that holds them in one run, and a term with the heights of its blocks.
async fn filled(db: &pg::TestDb, blocks: &[RawBlock]) -> (PgRawStore, Fence, IndexKey, Vec<Height>) {
    let store = PgRawStore::open(PgRawOptions::with(db.options()), None).await.expect("opens");
    let fence = begun(&store).await;
    store.append(fence, batch(blocks)).await.expect("appends");
    let term = *blocks.iter().find_map(|block| block.log_terms.first()).expect("some block has a log");
    let has = |block: &&RawBlock| block.log_terms.contains(&term);
    let heights = blocks.iter().filter(has).map(|block| block.facts.height).collect();
    (store, fence, term, heights)
}

async fn candidates(store: &PgRawStore, term: IndexKey, range: HeightRange) -> Result<Vec<Height>> {
    let query = LogQuery { groups: vec![vec![term]] };
    store.snapshot().await?.log_candidates(range, &query, 10_000).await
}

async fn fingerprints<S: RawReader>(store: &S) -> Vec<IndexFingerprint> {
    store.snapshot().await.expect("reads").index_fingerprints(range(0, BLOCKS)).await.expect("reads")
}

/// What the index of a store that was never damaged says.
async fn clean(blocks: &[RawBlock]) -> Vec<IndexFingerprint> {
    let store = MemoryStore::new(Arc::new(SystemClock));
    let fence = begun(&store).await;
    store.append(fence, batch(blocks)).await.expect("appends");
    fingerprints(&store).await
}

async fn live_runs(store: &PgRawStore) -> Vec<(i64, i64)> {
    let conn = store.pool().get().await.expect("connects");
    let rows = conn
        .query("SELECT from_height, to_height FROM raw.runs WHERE state = 0 ORDER BY from_height", &[])
        .await
        .expect("runs");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Breaks so many commits of a repair, after the first few.
struct Breaks {
    well: u64,
    seen: AtomicU64,
}

impl CommitHook for Breaks {
    fn before(&self, verb: &'static str) -> Result<()> {
        if verb == "repair_index" && self.seen.fetch_add(1, Ordering::Relaxed) >= self.well {
            return Err(StoreError::Database("killed".into()));
        }
        Ok(())
    }
}

#[tokio::test]
async fn lost_parts_of_the_index_are_an_error_until_they_are_made_anew() {
    let Some(db) = pg::database().await else { return };
    let blocks = chain(0, BLOCKS, 0);
    let (store, _, term, heights) = filled(&db, &blocks).await;
    let (all, terms, expected) = (range(0, BLOCKS), terms_of(&blocks), clean(&blocks).await);
    assert_eq!(candidates(&store, term, all).await.expect("finds"), heights);

    for damage in [
        // A run whose row is gone; its pages; what is in them.
        "DELETE FROM raw.run_pages WHERE run_id = (SELECT max(id) FROM raw.runs WHERE state = 0); \
         DELETE FROM raw.runs WHERE id = (SELECT max(id) FROM raw.runs WHERE state = 0)",
        "DELETE FROM raw.run_pages WHERE run_id = (SELECT max(id) FROM raw.runs WHERE state = 0)",
        "UPDATE raw.run_pages SET data = set_byte(data, 60, (get_byte(data, 60) + 1) % 256)",
    ] {
        let before = live_runs(&store).await;
        db.sql(damage).await;
        let lost = candidates(&store, term, all).await;
        assert!(matches!(lost, Err(StoreError::Corrupt { .. })), "{damage}: {lost:?}");
        assert!(store.repair_index(vec![all], terms.clone()).await.expect("repairs") >= 1, "{before:?}");
        assert_eq!(candidates(&store, term, all).await.expect("finds"), heights, "{damage}");
        assert_eq!(fingerprints(&store).await, expected, "{damage}");
        assert_eq!(live_runs(&store).await, [(0, 1000), (1000, 2000), (2000, 2500)]);
    }
    // What is buried goes, and nothing else.
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_eq!(fingerprints(&store).await, expected);
}

#[tokio::test]
async fn a_repair_of_the_index_that_is_killed_leaves_a_whole_one_and_the_next_goes_on() {
    let Some(db) = pg::database().await else { return };
    let blocks = chain(0, BLOCKS, 0);
    let (store, _, term, heights) = filled(&db, &blocks).await;
    let (all, terms) = (range(0, BLOCKS), terms_of(&blocks));
    // Entries of one page are gone, and the rest is there: found by whoever holds them against the blocks.
    db.sql(
        "DELETE FROM raw.run_pages WHERE (run_id, place) IN (SELECT run_id, place FROM raw.run_pages ORDER BY place OFFSET 1 LIMIT 1)",
    )
    .await;
    let expected = clean(&blocks).await;
    assert_ne!(fingerprints(&store).await, expected);
    store.set_hook(Some(Arc::new(Breaks { well: 1, seen: AtomicU64::new(0) })));
    assert!(store.repair_index(vec![all], terms.clone()).await.is_err());
    store.set_hook(None);
    // Each height is in one run, the old one or the new one.
    assert_eq!(live_runs(&store).await, [(0, 2000), (2000, 2500)]);
    let above: Vec<Height> = heights.iter().copied().filter(|height| *height >= Height(2000)).collect();
    assert_eq!(candidates(&store, term, range(2000, BLOCKS)).await.expect("finds"), above);
    store.repair_index(vec![all], terms).await.expect("repairs");
    assert_eq!(fingerprints(&store).await, expected);
    assert_eq!(candidates(&store, term, all).await.expect("finds"), heights);
}

#[tokio::test]
async fn the_index_of_another_fork_is_never_written() {
    let Some(db) = pg::database().await else { return };
    let blocks = chain(0, 40, 0);
    let (store, fence, ..) = filled(&db, &blocks).await;
    let common = blocks[30].block_ref();
    store.rollback(fence, Rollback { common, max_depth: 100, decided_at_ms: 1 }).await.expect("rolls back");
    // While blocks are being moved nothing is made; afterwards it is made of the blocks that are there.
    let wrong = terms_of(&blocks);
    let busy = store.repair_index(vec![range(0, 40)], wrong).await;
    assert!(matches!(busy, Err(StoreError::Busy(_) | StoreError::PurgePending { .. })), "{busy:?}");
    while store.purge_step(fence, 100).await.expect("purges") != PurgeProgress::Done {}
    let other = fork(&blocks, 30, 9, 1);
    store.append(fence, batch(&other[31..])).await.expect("appends");
    store.repair_index(vec![range(0, 40)], terms_of(&other)).await.expect("repairs");
    let expected = clean(&other).await;
    assert_eq!(fingerprints(&store).await, expected);
}
