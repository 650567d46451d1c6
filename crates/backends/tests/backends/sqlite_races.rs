//! Verbs and maintenance on several threads at once: a reorg cuts index runs while merges over them go on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{ChainId, Height, HeightRange, RawBlock, SystemClock};
use cairn_store::memory::CommitHook;
use cairn_store::suite::blocks::{Numbers, chain, fork};
use cairn_store::{
    AppendBatch, Dump, Maintained, PurgeProgress, RawDump, RawMaintenance, RawWriter, Result, Rollback,
    StoreInfo,
};

async fn open(dir: &Path) -> SqliteStore {
    let store = SqliteStore::open(SqliteOptions::new(dir), Arc::new(SystemClock)).await.expect("opens");
    let info = StoreInfo { uuid: [1; 16], chain_id: ChainId(1), chain_config: Default::default() };
    store.init(info).await.expect("init");
    store
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

async fn dump_of(blocks: &[RawBlock]) -> Dump {
    let dir = tempfile::tempdir().expect("dir");
    let store = open(dir.path()).await;
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(blocks)).await.expect("appends");
    store.dump().await.expect("dumps")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_merges_and_reorgs_meet_in_any_order() {
    const ROUNDS: u64 = 40;
    let dir = tempfile::tempdir().expect("dir");
    let store = open(dir.path()).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let ended = Arc::new(AtomicBool::new(false));
    let maintaining = tokio::spawn({
        let (store, ended) = (store.clone(), ended.clone());
        async move {
            // Small steps, so that every merge has many.
            while !ended.load(Ordering::Acquire) {
                store.maintain(1).await.expect("maintains");
            }
        }
    });

    let mut numbers = Numbers::new(9);
    let mut stored = chain(0, 25, 0);
    for block in &stored {
        store.append(fence, batch(std::slice::from_ref(block))).await.expect("appends");
    }
    for round in 1..=ROUNDS {
        let depth = 1 + numbers.below(20);
        let common = stored.len() as u64 - 1 - depth;
        let decided =
            Rollback { common: stored[common as usize].block_ref(), max_depth: 100, decided_at_ms: 1 };
        store.rollback(fence, decided).await.expect("rolls back");
        while store.purge_step(fence, 1 + numbers.below(8)).await.expect("purges") != PurgeProgress::Done {}
        stored = fork(&stored, common, depth + numbers.below(4), round);
        for blocks in stored[common as usize + 1..].chunks(1 + numbers.below(3) as usize) {
            store.append(fence, batch(blocks)).await.expect("appends");
        }
    }
    ended.store(true, Ordering::Release);
    maintaining.await.expect("maintenance ends");
    let mut steps = 0;
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {
        steps += 1;
        assert!(steps < 10_000, "maintenance never comes to rest");
    }
    let (ours, clean) = (store.dump().await.expect("dumps"), dump_of(&stored).await);
    assert_eq!(ours.first_difference(&clean), None);

    drop(store);
    let conn = rusqlite::Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    let overlaps: i64 = conn
        .query_row(
            "SELECT count(*) FROM runs a JOIN runs b ON a.kind = b.kind AND a.id < b.id \
             AND a.from_height < b.to_height AND b.from_height < a.to_height WHERE a.state = 0 AND b.state = 0",
            [],
            |row| row.get(0),
        )
        .expect("counts");
    assert_eq!(overlaps, 0, "a height is in two runs");
}

/// Holds the transaction of a verb just before its commit, until it is told to go on.
struct HoldsAppend {
    reached: std::sync::mpsc::Sender<()>,
    go_on: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl CommitHook for HoldsAppend {
    fn before(&self, verb: &'static str) -> Result<()> {
        if verb == "append" {
            self.reached.send(()).expect("the test waits");
            let go_on = self.go_on.lock().expect("held by nobody else");
            go_on.recv_timeout(Duration::from_secs(30)).expect("the test goes on");
        }
        Ok(())
    }
}

/// Of two that wait for each other neither goes on: the look goes on here, so an append never waits for it either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_daily_look_at_rows_and_an_append_do_not_wait_for_each_other() {
    let dir = tempfile::tempdir().expect("dir");
    let store = open(dir.path()).await;
    let fence = store.acquire().await.expect("acquire").fence;
    let blocks = chain(0, 40, 0);
    store.append(fence, batch(&blocks[..30])).await.expect("appends");
    let all = HeightRange::new(Height(0), Height(1_000));
    let clean = store.find_damage(all).await.expect("looks");
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (go_on, told) = std::sync::mpsc::channel();
    store.set_hook(Some(Arc::new(HoldsAppend { reached, go_on: std::sync::Mutex::new(told) })));
    let appending = tokio::spawn({
        let (store, rest) = (store.clone(), batch(&blocks[30..]));
        async move { store.append(fence, rest).await }
    });
    tokio::task::spawn_blocking(move || is_reached.recv()).await.expect("ends").expect("an append is held");
    let looked = tokio::time::timeout(Duration::from_secs(10), store.find_damage(all)).await;
    assert_eq!(looked.expect("it waits for nobody").expect("looks"), clean);
    go_on.send(()).expect("the append waits");
    appending.await.expect("ends").expect("appends");
    store.set_hook(None);
    // It sees what was committed, and what is wrong with it.
    let with_txs =
        blocks[30..38].iter().find(|block| !block.transactions.is_empty()).expect("one").facts.height;
    let file = rusqlite::Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    let damage =
        format!("DELETE FROM transactions WHERE height = {with_txs}; DELETE FROM blocks WHERE height = 39");
    file.execute_batch(&damage).expect("runs");
    let found = store.find_damage(all).await.expect("looks").damaged;
    assert!(found.contains(&with_txs) && found.contains(&Height(39)), "{found:?}");
}
