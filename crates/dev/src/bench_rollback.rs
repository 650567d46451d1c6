//! `./dev bench rollback`: how long an app store takes to roll 1,000 blocks back, in tables of five million rows.
//!
//! A table of transfers and one of holdings hold so many rows. Above them stand 1,000 blocks that can be undone, each written as the pipeline does: a commit of
//! 100 transfers, and one of 200 holdings with their undo rows; one holder is in every block, the others come and go. Then the reorg is applied from its first transaction to its last, as
//! the pipeline applies it (steps of 10,000 rows), while somebody else commits 2,000 rows at a time to another table with the same indexes, as quickly as it can. In the end the balances are compared with those
//! of the common block. On PostgreSQL and, for comparison, on SQLite.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions};
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions};
use cairn_core::{BlockRef, Height, SystemClock};
use cairn_pipeline::derive::DeriveOptions;
use cairn_store::derived::{
    ApplyProgress, ChunkCommit, Coordinator, DerivedReader, DerivedWriter, Key, ReorgApplier, Row, StateRow,
    StateRows, Table, TableRows, Value, WorkerLease,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark};
use clap::Parser;

use crate::bench::cache_dir;
use crate::bench_derived::{
    HOLDINGS, OTHERS, PER_BLOCK, RAW, SERVICES, TRANSFERS, catalog, chunk, claim, fill_postgres, holding, id,
    transfers,
};
use crate::bench_pg::{Database, describe};
use crate::report::figure;

/// Blocks that are rolled back.
const ORPHANS: u64 = 1_000;
/// Heights of one commit of the writer beside it.
const WRITER_HEIGHTS: u64 = 20;

/// How much.
#[derive(Parser)]
#[command(name = "bench rollback", about = "1,000 blocks rolled back in tables of millions of rows")]
pub struct Options {
    /// A PostgreSQL server on which databases may be made.
    #[arg(long, env = "CAIRN_TEST_PG_URL")]
    postgres: String,
    /// Rows of each of the two tables.
    #[arg(long, default_value_t = 5_000_000)]
    rows: u64,
    /// The same on SQLite; 0: not at all.
    #[arg(long, default_value_t = 5_000_000)]
    sqlite_rows: u64,
}

/// A store that can do it.
trait AppStore: DerivedWriter + DerivedReader + Coordinator + ReorgApplier + 'static {}
impl<S: DerivedWriter + DerivedReader + Coordinator + ReorgApplier + 'static> AppStore for S {}

/// Runs the benchmark.
pub async fn run(options: Options) -> Result<ExitCode> {
    describe(&options.postgres).await?;
    let db = Database::make(&options.postgres, "rollback").await?;
    let pool = db.pool()?;
    let pg = PgDerivedOptions { snapshot_max_ms: None, ..PgDerivedOptions::new(&db.url) };
    let store = Arc::new(PgDerived::open(pg, catalog()?, None).await?);
    register(&*store).await?;
    let begun = Instant::now();
    fill_postgres(&store, &pool, options.rows).await?;
    println!("PostgreSQL: {} rows in each table in {:.0} s", options.rows, begun.elapsed().as_secs_f64());
    let blocks = options.rows / PER_BLOCK;
    let (mapper, folder) = (claim(&*store, "mapper").await?, claim(&*store, "folder").await?);
    let mapper = store.commit_chunk(&mapper, chunk(&mapper, blocks, 0)).await?.lease;
    let empty = ChunkCommit { folded_at: Some(0), ..chunk(&folder, blocks, blocks) };
    let folder = store.commit_chunk(&folder, empty).await?.lease;
    rollback("", &store, mapper, folder).await?;
    drop((store, pool));
    db.drop().await?;
    if options.sqlite_rows > 0 {
        sqlite(options.sqlite_rows).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn sqlite(rows: u64) -> Result<()> {
    /// Heights of one commit.
    const HEIGHTS: u64 = 500;
    let folder = tempfile::tempdir_in(cache_dir()?)?;
    let mut options = SqliteDerivedOptions::new(folder.path());
    options.snapshot_max_ms = None;
    let store = Arc::new(SqliteDerived::open(options, catalog()?, Arc::new(SystemClock)).await?);
    register(&*store).await?;
    let (mut mapper, mut folder) = (claim(&*store, "mapper").await?, claim(&*store, "folder").await?);
    let (blocks, begun) = (rows / PER_BLOCK, Instant::now());
    for from in (0..blocks).step_by(HEIGHTS as usize) {
        let to = (from + HEIGHTS).min(blocks);
        let rows = vec![TableRows { table: TRANSFERS.name, rows: transfers(from, to) }];
        mapper = store.commit_chunk(&mapper, ChunkCommit { rows, ..chunk(&mapper, to, blocks) }).await?.lease;
        let holders = (from * PER_BLOCK..to * PER_BLOCK).map(|n| StateRow {
            // Other holders than those of the blocks that are rolled back.
            row: holding(n + (1 << 32), n / PER_BLOCK),
            undo: Vec::new(),
        });
        let states = vec![StateRows { table: HOLDINGS.name, rows: holders.collect() }];
        let commit = ChunkCommit { states, folded_at: Some(0), ..chunk(&folder, to, blocks) };
        folder = store.commit_chunk(&folder, commit).await?.lease;
    }
    println!("SQLite: {rows} rows in each table in {:.0} s", begun.elapsed().as_secs_f64());
    rollback("sqlite_", &store, mapper, folder).await
}

async fn register(store: &impl AppStore) -> Result<()> {
    store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await?;
    for service in SERVICES {
        store.register(service, Height(0)).await?;
    }
    Ok(())
}

/// The holders of a block: the one who is in every block with the block that had it before, and others that come and go.
fn holders(first: u64, common: u64, height: u64) -> Vec<StateRow> {
    let hot = (0, (height > first).then_some(height - 1));
    let others = (0..2 * PER_BLOCK - 1).map(|n| {
        let holder = 1 + (height * 131 + n) % 20_000;
        (holder, None)
    });
    let state = |(n, last): (u64, Option<u64>)| StateRow {
        row: holding(n, height),
        undo: vec![(Height(height), Some(holding(n, last.unwrap_or(common))))],
    };
    std::iter::once(hot).chain(others).map(state).collect()
}

/// Writes the blocks on top of what the leases have done, and takes them away again.
async fn rollback<S: AppStore>(
    name: &str,
    store: &Arc<S>,
    mut mapper: WorkerLease,
    mut folder: WorkerLease,
) -> Result<()> {
    let first = mapper.done_to.get();
    let common = first.checked_sub(1).context("no block below")?;
    // The holders that the blocks change are there before, as everybody's balance is.
    for height in first..first + ORPHANS {
        let rows = vec![TableRows { table: TRANSFERS.name, rows: transfers(height, height + 1) }];
        let commit = ChunkCommit { rows, ..chunk(&mapper, height + 1, common) };
        mapper = store.commit_chunk(&mapper, commit).await?.lease;
        let states = vec![StateRows { table: HOLDINGS.name, rows: holders(first, common, height) }];
        let commit = ChunkCommit { states, folded_at: Some(0), ..chunk(&folder, height + 1, common) };
        folder = store.commit_chunk(&folder, commit).await?.lease;
    }
    let orphans = (first..first + ORPHANS).map(|height| OrphanRef {
        block: BlockRef { height: Height(height), id: id(height) },
        timestamp_ms: height,
    });
    let common_block = BlockRef { height: Height(common), id: id(common) };
    let entry = ReorgEntry::chain(1, &[0; 32], RAW, common_block, orphans.collect(), 0);

    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let lease = claim(&**store, "writer").await?;
    let writer = tokio::spawn(write(store.clone(), lease, stop.clone(), written.clone()));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = written.load(Ordering::Relaxed);
    let begun = Instant::now();
    store.begin_apply(&entry).await?;
    // As the pipeline does it.
    let step_rows = DeriveOptions::new("").apply_rows;
    let (mut steps, mut longest) = (0, Duration::ZERO);
    loop {
        let step = Instant::now();
        let progress = store.apply_step(1, step_rows).await?;
        longest = longest.max(step.elapsed());
        steps += 1;
        if progress == ApplyProgress::Done {
            break;
        }
    }
    store.finish_apply(1).await?;
    let took = begun.elapsed();
    let meanwhile = written.load(Ordering::Relaxed) - before;
    stop.store(true, Ordering::Relaxed);
    writer.await.context("the writer")??;

    let table = Table::new(&HOLDINGS)?;
    let keys: Vec<Key> = [0, 1, 77].iter().map(|n| table.key_of(&holding(*n, 0))).collect();
    let found = store.snapshot().await?.rows(HOLDINGS.name, &keys).await?;
    let last_heights = found.iter().map(|row| row.as_ref().and_then(last_height)).collect::<Vec<_>>();
    ensure!(last_heights.iter().all(|last| *last == Some(common)), "not rolled back: {last_heights:?}");
    figure(&format!("rollback_{name}1000_blocks_s"), format!("{:.2}", took.as_secs_f64()), "s");
    figure(&format!("rollback_{name}longest_step_ms"), longest.as_millis(), "ms");
    println!("{steps} steps; {meanwhile} rows were written by the other one meanwhile");
    Ok(())
}

fn last_height(row: &Row) -> Option<u64> {
    row.0.last().and_then(Value::as_height).map(Height::get)
}

/// Commits rows until it is told to stop.
async fn write<S: AppStore>(
    store: Arc<S>,
    mut lease: WorkerLease,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let from = lease.done_to.get();
        let rows = vec![TableRows { table: OTHERS.name, rows: transfers(from, from + WRITER_HEIGHTS) }];
        let commit = ChunkCommit { rows, ..chunk(&lease, from + WRITER_HEIGHTS, 0) };
        // The reorg takes the lease, which ends far above, from its holder once.
        lease = match store.commit_chunk(&lease, commit).await {
            Ok(committed) => committed.lease,
            Err(_) => claim(&*store, "writer").await?,
        };
        written.fetch_add(WRITER_HEIGHTS * PER_BLOCK, Ordering::Relaxed);
    }
    Ok(())
}
