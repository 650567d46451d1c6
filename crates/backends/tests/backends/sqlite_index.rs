//! Index runs in the database: whatever the merges are doing, every question has the same answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{ChainId, Height, HeightRange, IndexKey, RawBlock, SystemClock, TxFacts, TxId, TxStatus};
use cairn_store::suite::blocks::{Numbers, chain, common_term, own_term};
use cairn_store::{
    AppendBatch, LogQuery, Maintained, RawFiller, RawMaintenance, RawReader, RawSnapshot, RawWriter,
    StoreInfo, TxPlace,
};

async fn new_store(dir: &std::path::Path) -> SqliteStore {
    // Answers are tested here, not how long a snapshot may be held.
    let options = SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::new(dir) };
    let store = SqliteStore::open(options, Arc::new(SystemClock)).await.expect("opens");
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
    store.init(info).await.expect("init");
    store
}

fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir_in(if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" })
        .expect("dir")
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

fn scan(blocks: &[RawBlock], range: HeightRange, query: &LogQuery) -> Vec<Height> {
    let has = |block: &RawBlock, terms: &Vec<IndexKey>| {
        terms.iter().any(|term| block.log_terms.binary_search(term).is_ok())
    };
    blocks
        .iter()
        .filter(|block| range.contains(block.facts.height) && block.facts.log_count > 0)
        .filter(|block| query.groups.iter().all(|terms| has(block, terms)))
        .map(|block| block.facts.height)
        .collect()
}

async fn assert_answers(snapshot: &dyn RawSnapshot, blocks: &[RawBlock], numbers: &mut Numbers) {
    let first = blocks[0].facts.height.get();
    for _ in 0..8 {
        let block = &blocks[numbers.below(blocks.len() as u64) as usize];
        assert_eq!(snapshot.find_block(block.facts.id).await.expect("reads"), Some(block.facts.height));
        for (index, tx) in (0..).zip(&block.transactions) {
            let place = snapshot.find_tx(tx.id).await.expect("reads").expect("is there");
            assert_eq!((place.height, place.index), (block.facts.height, index));
        }
        let from = first + numbers.below(blocks.len() as u64);
        let range = HeightRange::new(Height(from), Height(from + numbers.below(blocks.len() as u64)));
        let groups = (0..numbers.below(4))
            .map(|_| {
                let common = (0..numbers.below(3)).map(|_| common_term(numbers.clone().below(8)));
                let mut terms: Vec<IndexKey> = common.collect();
                terms.extend(Some(own_term(block.facts.id)).filter(|_| numbers.one_in(3)));
                terms.extend((0..numbers.below(40)).map(|_| numbers.next_u64()));
                terms
            })
            .collect();
        let query = LogQuery { groups };
        let limit = numbers.below(200) as usize;
        let mut expected = scan(blocks, range, &query);
        expected.truncate(limit);
        let found = snapshot.log_candidates(range, &query, limit).await.expect("reads");
        assert_eq!(found, expected, "{query:?} over {range}");
    }
}

#[tokio::test]
async fn g09_answers_stay_the_same_at_every_step_of_every_merge() {
    let dir = temp_dir();
    let store = new_store(dir.path()).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(1_000, 3_000, 0);
    let mut numbers = Numbers::new(3);
    let mut done = 0;
    while done < blocks.len() {
        let end = blocks.len().min(done + 1 + numbers.below(12) as usize);
        let mut next = batch(&blocks[done..end]);
        // The newest hundred are not final.
        next.finalized = (end > 100).then(|| blocks[end - 100].block_ref());
        store.append(fence, next).await.expect("appends");
        done = end;
        // Small steps, so that there always is an unfinished merge.
        store.maintain(3_000).await.expect("maintains");
        if numbers.one_in(10) {
            let snapshot = store.snapshot().await.expect("reads");
            assert_answers(&*snapshot, &blocks[..done], &mut numbers).await;
        }
    }
    while store.maintain(60_000).await.expect("maintains") == Maintained::More {
        let snapshot = store.snapshot().await.expect("reads");
        assert_answers(&*snapshot, &blocks, &mut numbers).await;
    }
    drop(store);
    let conn = rusqlite::Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    let count = |select: &str| conn.query_row(select, [], |row| row.get::<_, i64>(0)).expect("counts");
    assert_eq!(count("SELECT count(*) FROM runs WHERE state != 0"), 0);
    assert_eq!(count("SELECT count(*) FROM run_pages WHERE run_id NOT IN (SELECT id FROM runs)"), 0);
    let mut levels: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    let mut select =
        conn.prepare("SELECT kind, level, count(*) FROM runs GROUP BY kind, level").expect("prepares");
    let rows = select.query_map([], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?))).expect("reads");
    levels.extend(rows.map(|row| row.expect("reads")));
    assert!(levels.values().all(|runs| *runs <= 9), "{levels:?}");
}

#[tokio::test]
async fn g07_every_range_over_odd_heights_equals_a_scan() {
    for first in [0_u64, 200, 2_500, 65_500, (1 << 32) - 40] {
        let dir = temp_dir();
        let store = new_store(dir.path()).await;
        let fence = store.acquire().await.expect("acquire").fence;
        let blocks = chain(first, 80, 0);
        for blocks in blocks.chunks(3) {
            store.append(fence, batch(blocks)).await.expect("appends");
        }
        while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
        let snapshot = store.snapshot().await.expect("reads");
        for groups in
            [vec![], vec![vec![common_term(0)]], vec![vec![common_term(1)], vec![common_term(3), 5]]]
        {
            let query = LogQuery { groups };
            for a in (0..80).step_by(3) {
                for b in (a..80).step_by(4) {
                    let range = HeightRange::inclusive(Height(first + a), Height(first + b));
                    let found = snapshot.log_candidates(range, &query, usize::MAX).await.expect("reads");
                    assert_eq!(found, scan(&blocks, range, &query), "{range}");
                }
            }
        }
    }
}

#[tokio::test]
async fn g09_a_thousand_addresses_with_repeats_in_any_order() {
    let dir = temp_dir();
    let store = new_store(dir.path()).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 600, 0);
    for blocks in blocks.chunks(5) {
        store.append(fence, batch(blocks)).await.expect("appends");
        store.maintain(50_000).await.expect("maintains");
    }
    let mut numbers = Numbers::new(4);
    let mut addresses: Vec<IndexKey> = (0..1_000).map(|_| numbers.next_u64()).collect();
    let wanted: Vec<&RawBlock> =
        blocks.iter().step_by(37).filter(|block| block.facts.log_count > 0).collect();
    for block in &wanted {
        addresses.extend([own_term(block.facts.id); 3]);
    }
    let snapshot = store.snapshot().await.expect("reads");
    let query = LogQuery { groups: vec![addresses, vec![common_term(0)]] };
    let range = HeightRange::new(Height(0), Height(600));
    let found = snapshot.log_candidates(range, &query, usize::MAX).await.expect("reads");
    assert_eq!(found, wanted.iter().map(|block| block.facts.height).collect::<Vec<_>>());
}

#[tokio::test]
async fn runs_above_the_head_wait_for_it() {
    let dir = temp_dir();
    let store = new_store(dir.path()).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 400, 0);
    store.append(fence, batch(&blocks[..1])).await.expect("appends");
    let first = store.claim_range("a", 60_000, 200, Height(400)).await.expect("claims").expect("work");
    let second = store.claim_range("b", 60_000, 200, Height(400)).await.expect("claims").expect("work");
    for lease in [second, first] {
        let (from, to) = (lease.range.start().get() as usize, lease.range.end().get() as usize);
        for blocks in blocks[from..to].chunks(10) {
            store.fill(&lease, blocks.to_vec(), 60_000).await.expect("fills");
            assert_eq!(store.maintain(1 << 20).await.expect("maintains"), Maintained::Nothing);
        }
    }
    assert_eq!(
        store.snapshot().await.expect("reads").find_block(blocks[300].facts.id).await.expect("reads"),
        None
    );
    assert_eq!(store.advance(fence).await.expect("advances").tip, Some(blocks[399].block_ref()));
    assert_eq!(store.maintain(1 << 20).await.expect("maintains"), Maintained::More);
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    let snapshot = store.snapshot().await.expect("reads");
    assert_answers(&*snapshot, &blocks, &mut Numbers::new(5)).await;
}

#[tokio::test]
async fn f17_every_place_of_a_transaction_is_found() {
    let dir = temp_dir();
    let store = new_store(dir.path()).await;
    // One id in every block from the third on, twice in even ones.
    let mut blocks = chain(0, 40, 1);
    let mut places = Vec::new();
    for block in &mut blocks[2..] {
        let again = TxFacts { id: TxId([7; 32]), sender: Default::default(), status: TxStatus::Ok };
        block.transactions.push(again.clone());
        if block.facts.height.get().is_multiple_of(2) {
            block.transactions.insert(0, again);
        }
        block.facts.tx_count = block.transactions.len() as u32;
        let of_block = (0..).zip(&block.transactions).filter(|(_, tx)| tx.id == TxId([7; 32]));
        places.extend(of_block.map(|(index, _)| TxPlace { height: block.facts.height, index }));
    }
    let fence = store.acquire().await.expect("acquire").fence;
    for blocks in blocks.chunks(7) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    let snapshot = store.snapshot().await.expect("reads");
    let found = async |range, limit| snapshot.places_of_tx(TxId([7; 32]), range, limit).await.expect("reads");
    let all = snapshot.head().range();
    assert_eq!(found(all, 1_000).await, places);
    assert_eq!(found(all, 5).await, places[..5]);
    let within = HeightRange::inclusive(Height(10), Height(20));
    let expected: Vec<TxPlace> =
        places.iter().copied().filter(|place| within.contains(place.height)).collect();
    assert_eq!(found(within, 1_000).await, expected);
    assert_eq!(snapshot.places_of_tx(TxId([8; 32]), all, 5).await.expect("reads"), []);
}
