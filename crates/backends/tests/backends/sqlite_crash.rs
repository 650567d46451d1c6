//! Killed, failing and full of faults: what is there afterwards is a whole prefix, and going on ends as if nothing had happened.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{ChainId, Height, RawBlock, SystemClock};
use cairn_store::memory::{CommitHook, MemoryStore};
use cairn_store::suite::blocks::{Numbers, chain, fork};
use cairn_store::{
    AppendBatch, Dump, HeadRow, Maintained, PurgeProgress, RAW_INGESTER, RawDump, RawMaintenance, RawReader,
    RawWriter, Result, Rollback, StoreError, StoreInfo,
};

/// A child that another test of this process starts holds every lock of this process from its fork until it runs its program.
async fn open(dir: &Path) -> SqliteStore {
    let begun = Instant::now();
    loop {
        match SqliteStore::open(SqliteOptions::new(dir), Arc::new(SystemClock)).await {
            Err(StoreError::Locked { .. }) if begun.elapsed() < Duration::from_secs(10) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            opened => return opened.expect("opens"),
        }
    }
}

fn info() -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() }
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

/// The dump of a store that was given these blocks and nothing else.
async fn clean_dump(blocks: &[RawBlock]) -> Dump {
    let store = MemoryStore::new(Arc::new(SystemClock));
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    if !blocks.is_empty() {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    store.dump().await.expect("dumps")
}

async fn assert_is_clean(store: &SqliteStore, blocks: &[RawBlock]) {
    let (found, expected) = (store.dump().await.expect("dumps"), clean_dump(blocks).await);
    assert_eq!(found.first_difference(&expected), None);
}

/// One step of an ingester that follows `blocks`, and takes its newest blocks back and appends them again now and then. `None` at the end.
async fn step(store: &SqliteStore, blocks: &[RawBlock]) -> Result<Option<HeadRow>> {
    let head = store.acquire().await?;
    if head.pending_purge.is_some() {
        store.purge_step(head.fence, 2).await?;
        return Ok(Some(head));
    }
    let next = head.tip.map_or(0, |tip| tip.height.get() as usize + 1);
    if next >= blocks.len() {
        return Ok(None);
    }
    if next > 40 && head.newest_reorg.id < next as u64 / 40 {
        let common = blocks[next - 6].block_ref();
        store.rollback(head.fence, Rollback { common, max_depth: 10, decided_at_ms: 1 }).await?;
        return Ok(Some(head));
    }
    let end = blocks.len().min(next + 1 + next % 4);
    let head = store.append(head.fence, batch(&blocks[next..end])).await?;
    store.maintain(20_000).await?;
    Ok(Some(head))
}

const CHILD_DIR: &str = "CAIRN_TEST_CRASH_DIR";
const CHILD_BLOCKS: u64 = 3_000;

/// Not a test of its own: the process that [`x02_kill_9_loses_and_doubles_nothing`] kills.
#[tokio::test]
async fn child_that_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let blocks = chain(0, CHILD_BLOCKS, 0);
    let store = open(Path::new(&dir)).await;
    store.init(info()).await.expect("init");
    while let Some(head) = step(&store, &blocks).await.expect("goes on") {
        // What was answered is durable: the parent remembers it.
        if head.pending_purge.is_none() {
            println!("tip {}", head.tip.map_or(0, |tip| tip.height.get()));
        }
    }
    println!("end");
}

#[tokio::test]
async fn x02_kill_9_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let blocks = chain(0, CHILD_BLOCKS, 0);
    let mut numbers = Numbers::new(1);
    let mut tips = Vec::new();
    for _ in 0..20 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "sqlite_crash::child_that_is_killed", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let kill_after = Duration::from_millis(20 + numbers.below(150));
        let (mut answered, mut started) = (0, None);
        for line in lines {
            let line = line.expect("text");
            let Some(tip) = line.strip_prefix("tip ") else { continue };
            answered = tip.parse().expect("a number");
            if started.get_or_insert_with(Instant::now).elapsed() > kill_after {
                child.kill().expect("kills");
                break;
            }
        }
        child.wait().expect("ends");

        let store = open(dir.path()).await;
        let head = store.acquire().await.expect("acquire");
        while store.purge_step(head.fence, 100).await.expect("purges") != PurgeProgress::Done {}
        let snapshot = store.snapshot().await.expect("reads");
        let tip = snapshot.head().tip.expect("a block");
        // A rollback takes five blocks; nothing else ever goes back.
        assert!(tip.height.get() + 5 >= answered, "block {answered} was answered, the tip is {tip}");
        let checkpoints = snapshot.checkpoints().await.expect("reads");
        assert_eq!(checkpoints.len(), 1);
        assert_eq!((checkpoints[0].service_name.as_str(), checkpoints[0].last), (RAW_INGESTER, tip));
        assert_is_clean(&store, &blocks[..=tip.height.get() as usize]).await;
        tips.push(tip.height.get());
    }
    assert!(tips.is_sorted_by(|a, b| *a <= b + 5) && tips[19] > tips[0], "{tips:?}");
    let store = open(dir.path()).await;
    let rest = &blocks[..blocks.len().min(tips[19] as usize + 300)];
    while step(&store, rest).await.expect("goes on").is_some() {}
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, rest).await;
}

/// Breaks the commit with this number, before or after it.
struct BreakAt {
    left: AtomicU64,
    is_before: bool,
}

impl BreakAt {
    fn answer(&self, is_before: bool) -> Result<()> {
        if is_before != self.is_before {
            return Ok(());
        }
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(StoreError::Database("crash".into())),
            _ => Ok(()),
        }
    }
}

impl CommitHook for BreakAt {
    fn before(&self, _verb: &'static str) -> Result<()> {
        self.answer(true)
    }

    fn after(&self, _verb: &'static str) -> Result<()> {
        self.answer(false)
    }
}

/// A run that is broken at this commit, and one that goes on from there. Whether it came to that commit.
async fn survives_a_crash_at(crash_at: u64, is_before: bool, blocks: &[RawBlock]) -> bool {
    let dir = tempfile::tempdir_in(fast_dir()).expect("dir");
    let store = open(dir.path()).await;
    store.init(info()).await.expect("init");
    store.set_hook(Some(Arc::new(BreakAt { left: AtomicU64::new(crash_at), is_before })));
    let crashed = loop {
        match step(&store, blocks).await {
            Ok(Some(_)) => {}
            Ok(None) => break false,
            Err(StoreError::Database(error)) if error == "crash" => break true,
            Err(error) => panic!("crash at {crash_at}: {error}"),
        }
    };
    drop(store);
    let store = open(dir.path()).await;
    while step(&store, blocks).await.expect("goes on").is_some() {}
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, blocks).await;
    crashed
}

/// Every commit of the script, before and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_a_crash_at_every_commit_point_ends_as_a_clean_run() {
    let blocks = Arc::new(chain(0, 130, 0));
    let runs = [true, false].map(|is_before| {
        let blocks = blocks.clone();
        tokio::spawn(async move {
            let mut crash_at = 0;
            while survives_a_crash_at(crash_at, is_before, &blocks).await {
                crash_at += 1;
            }
            crash_at
        })
    });
    for run in runs {
        let commits = run.await.expect("each is survived");
        assert!(commits > 100, "{commits} commits");
    }
}

/// Where files are written to memory if there is such a place: these tests don't need the disk.
fn fast_dir() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

#[tokio::test]
async fn r09_a_purge_that_fails_in_the_middle_changes_nothing_and_is_tried_again() {
    let dir = tempfile::tempdir().expect("dir");
    let trunk = chain(0, 60, 0);
    let store = open(dir.path()).await;
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    for blocks in trunk.chunks(7) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    let common = trunk[39].block_ref();
    let entry = store
        .rollback(fence, Rollback { common, max_depth: 100, decided_at_ms: 1 })
        .await
        .expect("rolls back");
    assert_eq!(store.purge_step(fence, 4).await.expect("purges"), PurgeProgress::Left(16));

    // The third delete of the next step fails.
    let conn = rusqlite::Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    conn.execute_batch(
        "CREATE TRIGGER broken BEFORE DELETE ON blocks WHEN old.height = 50 BEGIN SELECT RAISE(ABORT, 'broken'); END",
    )
    .expect("makes");
    let before = store.dump().await.expect("dumps");
    let failure = store.purge_step(fence, 8).await.expect_err("fails");
    assert!(failure.to_string().contains("broken"), "{failure}");
    assert_eq!(store.dump().await.expect("dumps"), before);
    let snapshot = store.snapshot().await.expect("reads");
    for orphan in &entry.orphans {
        let block =
            snapshot.orphan(entry.id, orphan.block.id, cairn_core::Parts::all()).await.expect("reads");
        assert_eq!(block.expect("is there once").facts.height, orphan.block.height);
    }
    drop(snapshot);
    assert!(matches!(
        store.append(fence, batch(&fork(&trunk, 39, 1, 5)[40..])).await,
        Err(StoreError::PurgePending { .. })
    ));

    conn.execute_batch("DROP TRIGGER broken").expect("drops");
    assert_eq!(store.purge_step(fence, 8).await.expect("purges"), PurgeProgress::Left(8));
    assert_eq!(store.purge_step(fence, 8).await.expect("purges"), PurgeProgress::Done);
    let other = fork(&trunk, 39, 30, 5);
    store.append(fence, batch(&other[40..])).await.expect("appends");
    assert_is_clean(&store, &other).await;
}

#[tokio::test]
async fn r09_a_rollback_in_a_large_store_is_bounded() {
    let dir = tempfile::tempdir_in(fast_dir()).expect("dir");
    let store = open(dir.path()).await;
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let mut trunk = chain(0, 1_500, 0);
    for block in &mut trunk {
        // Many terms and nothing else: half a million rows of index.
        let mut numbers = Numbers::new(block.facts.height.get());
        block.log_terms = (0..350).map(|_| numbers.next_u64()).collect();
        block.log_terms.sort_unstable();
        block.log_terms.dedup();
    }
    for blocks in trunk.chunks(100) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    let wal = || std::fs::metadata(dir.path().join("raw.sqlite-wal")).expect("is there").len();
    let conn = rusqlite::Connection::open(dir.path().join("raw.sqlite")).expect("opens");
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("empties the log");
    let started = Instant::now();
    let common = trunk[1_496].block_ref();
    store.rollback(fence, Rollback { common, max_depth: 10, decided_at_ms: 1 }).await.expect("rolls back");
    while store.purge_step(fence, 10).await.expect("purges") != PurgeProgress::Done {}
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert!(wal() < 1 << 20, "{} bytes were written", wal());
    assert_is_clean(&store, &trunk[..1_497]).await;
    // And the cut runs merge with what comes after.
    let mut other = fork(&trunk, 1_496, 600, 9);
    other.splice(..1_497, trunk[..1_497].iter().cloned());
    for blocks in other[1_497..].chunks(10) {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, &other).await;
    assert_eq!(store.snapshot().await.expect("reads").head().tip.map(|tip| tip.height), Some(Height(2_096)));
}
