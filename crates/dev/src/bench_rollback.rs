//! `./dev bench rollback`: how long an app store takes to roll 3 blocks and 1,000 blocks back, in tables of five million rows.
//!
//! A table of transfers and one of holdings hold so many rows. Above them stand first 3 and then 1,000 blocks that can be undone, each written as the pipeline does: a commit of
//! 100 transfers, and one of 200 holdings with their undo rows; one holder is in every block, the others come and go, and all of them have a balance before. Then the reorg is applied from its first transaction to its last, as
//! the pipeline applies it (steps of 10,000 rows), while somebody else commits 2,000 rows at a time, of heights that stay, to another table with the same indexes, as quickly as it can. After each the balance of every holder that
//! a block changed is what it was at the common block, and no transfer above that block is left in the table, or the benchmark fails; so it does where the other one wrote nothing while 1,000
//! blocks were rolled back. On PostgreSQL and, for comparison, on SQLite; there 3 blocks are also held against a plain DELETE of as many blocks' transfers, committed by itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgPool};
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions};
use cairn_core::{BlockRef, Height, SystemClock};
use cairn_pipeline::derive::DeriveOptions;
use cairn_store::derived::{
    ApplyProgress, ChunkCommit, Coordinator, DerivedReader, DerivedWriter, FoldedAt, Key, ReadMark,
    ReorgApplier, Row, StateRow, StateRows, Table, TableRows, WorkerLease,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark};
use clap::Parser;
use tokio::sync::watch;

use crate::args::ServerArgs;
use crate::bench::cache_dir;
use crate::bench_derived::{
    HOLDINGS, OTHERS, PER_BLOCK, RAW, SERVICES, TRANSFERS, catalog, chunk, claim, claim_below, fill_postgres,
    holding, id, transfer, transfers,
};
use crate::bench_pg::{Database, describe};
use crate::report::figure;

/// Blocks that are rolled back: a usual reorg, and the deepest that is followed by default (R09).
const ORPHANS: [u64; 2] = [3, 1_000];
/// Holders that come and go, beside the one who is in every block.
const HOLDERS: u64 = 20_000;
/// Rows of one commit of the writer beside it, all of one height.
const WRITER_ROWS: u64 = 2_000;

/// How much.
#[derive(Parser)]
#[command(name = "bench rollback", about = "3 and 1,000 blocks rolled back in tables of millions of rows")]
pub struct Options {
    #[command(flatten)]
    server: ServerArgs,
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
    describe(&options.server.postgres).await?;
    let db = Database::make(&options.server.postgres, "rollback").await?;
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
    let empty = ChunkCommit { folded_at: Some(FoldedAt::applied(0)), ..chunk(&folder, blocks, blocks) };
    let folder = store.commit_chunk(&folder, empty).await?.lease;
    let tables = Tables::Postgres(pool);
    rollbacks("", &store, &tables, mapper, folder).await?;
    drop((store, tables));
    db.drop().await?;
    if options.sqlite_rows > 0 {
        sqlite(options.sqlite_rows).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn sqlite(rows: u64) -> Result<()> {
    /// Heights of one commit.
    const HEIGHTS: u64 = 500;
    let dir = tempfile::tempdir_in(cache_dir()?)?;
    let mut options = SqliteDerivedOptions::new(dir.path());
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
        let commit =
            ChunkCommit { states, folded_at: Some(FoldedAt::applied(0)), ..chunk(&folder, to, blocks) };
        folder = store.commit_chunk(&folder, commit).await?.lease;
    }
    println!("SQLite: {rows} rows in each table in {:.0} s", begun.elapsed().as_secs_f64());
    let tables = Tables::Sqlite(dir.path().join("app.sqlite"));
    rollbacks("sqlite_", &store, &tables, mapper, folder).await
}

async fn register(store: &impl AppStore) -> Result<()> {
    store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await?;
    for service in SERVICES {
        store.register(service, Height(0)).await?;
    }
    Ok(())
}

/// Where its rows are, seen past what a snapshot shows: what is left above a checkpoint too.
enum Tables {
    Postgres(PgPool),
    Sqlite(PathBuf),
}

impl Tables {
    /// Transfers above a height.
    async fn transfers_above(&self, height: u64) -> Result<i64> {
        let (height, table) = (i64::try_from(height)?, TRANSFERS.name);
        match self {
            Tables::Postgres(pool) => {
                let sql = format!("SELECT count(*) FROM app.{table} WHERE block_height > $1");
                Ok(pool.get().await?.query_one(&sql, &[&height]).await?.try_get(0)?)
            }
            Tables::Sqlite(file) => {
                let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
                let sql = format!("SELECT count(*) FROM {table} WHERE block_height > ?1");
                let conn = rusqlite::Connection::open_with_flags(file, flags)?;
                Ok(conn.query_row(&sql, [height], |row| row.get(0))?)
            }
        }
    }
}

/// The holders of a block: the one who is in every block with the block that had it before, and others that come and go.
fn holders(common: u64, height: u64) -> Vec<StateRow> {
    let hot = (0, height - 1);
    let others = (0..2 * PER_BLOCK - 1).map(|n| (1 + (height * 131 + n) % HOLDERS, common));
    let state = |(n, last): (u64, u64)| StateRow {
        row: holding(n, height),
        undo: vec![(Height(height), Some(holding(n, last)))],
    };
    std::iter::once(hot).chain(others).map(state).collect()
}

/// The balance of every holder that blocks change.
async fn balances(store: &impl AppStore) -> Result<Vec<Option<Row>>> {
    let table = Table::new(&HOLDINGS)?;
    let keys: Vec<Key> = (0..=HOLDERS).map(|n| table.key_of(&holding(n, 0))).collect();
    Ok(store.snapshot().await?.rows(HOLDINGS.name, &keys).await?)
}

/// Writes blocks on top of what the leases have done and takes them away again, a few and then many, while somebody else writes.
async fn rollbacks<S: AppStore>(
    name: &str,
    store: &Arc<S>,
    tables: &Tables,
    mut mapper: WorkerLease,
    mut folder: WorkerLease,
) -> Result<()> {
    // Below all that is rolled back.
    let room = mapper.done_to;
    let lease = claim_below(&**store, "writer", room).await?;
    let (turns, written) = (watch::Sender::new(Turn::Rest), Arc::new(AtomicU64::new(0)));
    let writer = tokio::spawn(write(store.clone(), lease, turns.subscribe(), written.clone()));
    let (mut last, mut few) = (ReorgMark { id: 0, digest: [0; 32] }, Duration::ZERO);
    for orphans in ORPHANS {
        let (common, balances_before) = put_on_top(&**store, mapper, folder, orphans, last.id).await?;
        if let (Tables::Postgres(pool), true) = (tables, last.id > 0) {
            let deleted = delete(pool, common + orphans - ORPHANS[0]).await?;
            figure(
                &format!("rollback_{name}delete_3_blocks_s"),
                format!("{:.4}", deleted.as_secs_f64()),
                "s",
            );
            let ratio = few.as_secs_f64() / deleted.as_secs_f64().max(1e-6);
            figure(&format!("rollback_{name}3_blocks_vs_delete"), format!("{ratio:.1}"), "times");
        }
        let before = written.load(Ordering::Relaxed);
        let entry = entry(&last, common, orphans);
        turns.send_replace(Turn::Write);
        let (took, steps, longest) = apply(&**store, &entry).await?;
        turns.send_replace(Turn::Rest);
        let meanwhile = written.load(Ordering::Relaxed) - before;
        demand_rolled_back(&**store, tables, common, &balances_before).await?;
        figure(&format!("rollback_{name}{orphans}_blocks_s"), format!("{:.3}", took.as_secs_f64()), "s");
        println!("{steps} steps; {meanwhile} rows were written by the other one meanwhile");
        if orphans != ORPHANS[0] {
            ensure!(meanwhile > 0, "nobody else could write while {orphans} blocks were rolled back");
            figure(&format!("rollback_{name}longest_step_ms"), longest.as_millis(), "ms");
        } else {
            few = took;
        }
        last = ReorgMark { id: entry.id, digest: entry.digest };
        // The reorg took them.
        (mapper, folder) = (claim(&**store, "mapper").await?, claim(&**store, "folder").await?);
    }
    turns.send_replace(Turn::End);
    writer.await.context("the writer")?
}

/// Writes a block that stays, in which everybody gets a balance, and so many above it; the height of the former, and the balances there. `applied` is the newest reorg that was applied.
async fn put_on_top(
    store: &impl AppStore,
    mut mapper: WorkerLease,
    mut folder: WorkerLease,
    blocks: u64,
    applied: u64,
) -> Result<(u64, Vec<Option<Row>>)> {
    let read = ReadMark { reorg_id: applied, known_to: applied, newer: Vec::new() };
    let common = mapper.done_to.get();
    let commit = ChunkCommit { read: read.clone(), ..chunk(&mapper, common + 1, common) };
    mapper = store.commit_chunk(&mapper, commit).await?.lease;
    let everybody = (0..=HOLDERS).map(|n| StateRow { row: holding(n, common), undo: Vec::new() });
    let states = vec![StateRows { table: HOLDINGS.name, rows: everybody.collect() }];
    let folded_at = Some(FoldedAt::applied(applied));
    let commit = ChunkCommit { states, folded_at, read: read.clone(), ..chunk(&folder, common + 1, common) };
    folder = store.commit_chunk(&folder, commit).await?.lease;
    let before = balances(store).await?;
    for height in common + 1..=common + blocks {
        let rows = vec![TableRows { table: TRANSFERS.name, rows: transfers(height, height + 1) }];
        let commit = ChunkCommit { rows, read: read.clone(), ..chunk(&mapper, height + 1, common) };
        mapper = store.commit_chunk(&mapper, commit).await?.lease;
        let states = vec![StateRows { table: HOLDINGS.name, rows: holders(common, height) }];
        let commit =
            ChunkCommit { states, folded_at, read: read.clone(), ..chunk(&folder, height + 1, common) };
        folder = store.commit_chunk(&folder, commit).await?.lease;
    }
    // Else there would be nothing to compare.
    let changed = balances(store).await?.iter().zip(&before).filter(|(now, before)| now != before).count();
    ensure!(changed as u64 >= 2 * PER_BLOCK, "{blocks} blocks changed {changed} balances");
    Ok((common, before))
}

/// The entry of the reorg log that takes away so many blocks above the common one.
fn entry(last: &ReorgMark, common: u64, blocks: u64) -> ReorgEntry {
    let orphans = (common + 1..=common + blocks).map(|height| OrphanRef {
        block: BlockRef { height: Height(height), id: id(height) },
        timestamp_ms: height,
    });
    let common = BlockRef { height: Height(common), id: id(common) };
    ReorgEntry::chain(last.id + 1, &last.digest, RAW, common, orphans.collect(), 0)
}

/// Applies it, as the pipeline does. How long it took, in how many steps, and the longest of them.
async fn apply(store: &impl AppStore, entry: &ReorgEntry) -> Result<(Duration, u32, Duration)> {
    let begun = Instant::now();
    store.begin_apply(entry).await?;
    let step_rows = DeriveOptions::new("").apply_rows;
    let (mut steps, mut longest) = (0, Duration::ZERO);
    loop {
        let step = Instant::now();
        let progress = store.apply_step(entry.id, step_rows).await?;
        longest = longest.max(step.elapsed());
        steps += 1;
        if progress == ApplyProgress::Done {
            break;
        }
    }
    store.finish_apply(entry.id).await?;
    Ok((begun.elapsed(), steps, longest))
}

/// Deletes the transfers above a height by one statement, and no more: what is left of them the store takes away.
async fn delete(pool: &PgPool, above: u64) -> Result<Duration> {
    let conn = pool.get().await?;
    let statement = format!("DELETE FROM app.{} WHERE block_height > $1", TRANSFERS.name);
    conn.prepare(&statement).await?;
    let begun = Instant::now();
    let deleted = conn.execute(&statement, &[&i64::try_from(above)?]).await?;
    let took = begun.elapsed();
    ensure!(deleted == ORPHANS[0] * PER_BLOCK, "{deleted} rows were deleted");
    Ok(took)
}

/// Demands every balance that was changed as it was before, and no transfer above the common block.
async fn demand_rolled_back(
    store: &impl AppStore,
    tables: &Tables,
    common: u64,
    before: &[Option<Row>],
) -> Result<()> {
    let now = balances(store).await?;
    ensure!(now.len() == before.len(), "{} balances of {}", now.len(), before.len());
    let mut wrong = now.iter().zip(before).filter(|(now, before)| now != before);
    if let Some((now, before)) = wrong.next() {
        bail!("not rolled back: {} balances, such as {now:?} that was {before:?}", 1 + wrong.count());
    }
    let left = tables.transfers_above(common).await?;
    ensure!(left == 0, "not rolled back: {left} transfers above height {common}");
    Ok(())
}

/// What the writer is to do.
#[derive(Clone, Copy, PartialEq)]
enum Turn {
    Rest,
    Write,
    End,
}

/// Commits rows, a height at a time, whenever it is its turn, until it is told to end.
async fn write<S: AppStore>(
    store: Arc<S>,
    mut lease: WorkerLease,
    mut turn: watch::Receiver<Turn>,
    written: Arc<AtomicU64>,
) -> Result<()> {
    loop {
        match *turn.wait_for(|turn| *turn != Turn::Rest).await? {
            Turn::End => return Ok(()),
            Turn::Rest | Turn::Write => {}
        }
        let height = lease.done_to;
        ensure!(
            height < lease.range.end(),
            "the writer has no heights left below {}: ask for more --rows and --sqlite-rows",
            lease.range.end()
        );
        let rows = (0..WRITER_ROWS).map(|n| transfer(height.get(), n)).collect();
        let rows = vec![TableRows { table: OTHERS.name, rows }];
        let commit = ChunkCommit { rows, ..chunk(&lease, height.get() + 1, 0) };
        lease = store.commit_chunk(&lease, commit).await?.lease;
        written.fetch_add(WRITER_ROWS, Ordering::Relaxed);
    }
}
