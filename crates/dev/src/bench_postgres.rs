//! `./dev bench postgres`: what writing to PostgreSQL costs against a bare binary COPY of the same bytes, and what a page of a list costs.
//!
//! **Raw.** Blocks of a pre-signed EVM chain are made and checked in memory first. Then the real store takes them in one of the two ways in which the ingester writes, in batches
//! of its own size, one transaction each. As a backfill: some ranges at once (`--fill-workers`, as `ingest.fill_workers`), each by [`RawFiller::fill`] under its lease, and after
//! each of them [`RawFiller::advance`]; timed from the first claim until the head has passed them all. In order (`…_in_order`): [`RawWriter::append`], one after the other. All of it
//! counts (checking the batch, cutting, compressing and encoding it, leases and the head's lock, every table and index, the commits). Afterwards every row that was written (blocks, transactions, events, lookups, index pages) is read back in the binary COPY
//! format, and sent again to plain tables of the same columns without key or index: one statement and one transaction a table, nothing encoded while the clock runs. `raw_vs_copy`
//! is the second time by the first: same bytes, same server, same run. Both are done five times in turn, each time in a new database, the bare COPY
//! into new tables; medians count. The bare COPY is one connection's; a server has one process for each connection, and in order a store has one too.
//! `raw_vs_copy_backfill`: ranges at once, with `backfill` on, in which a partition has its keys alone until it is full.
//!
//! **Raw with EVM lookups.** The same once more in a new database whose `evm_lookup` and `tx_lookup` hold 20 million rows each, and with a row of `evm_lookup` for each transaction:
//! `raw_vs_copy_evm_lookup`. Once, since filling takes minutes. A server that wrote those rows has the pages of their keys in its memory, as far as they
//! fit; here, where the keys were built at once, they are read into it before.
//!
//! **Indexes and ON CONFLICT.** The same rows of a table into an empty copy of it with one index each, of all that the table has ([`crate::bench_postgres_costs`]); and through a temporary table and
//! `INSERT … ON CONFLICT DO NOTHING`, which the store does not use: the head's lock makes it needless. Figures are times the bare COPY. Those of `evm_lookup`, which no EVM chain fills, come
//! with the part that does.
//!
//! **Derived.** Commits of rows of a table with a key and three indexes against a bare COPY of the same rows, and what each index and ON CONFLICT cost; then what each index of `evm_logs` costs, as
//! the catalog has it: [`crate::bench_postgres_derived`].
//!
//! **Pages.** A list by token of 300,000 rows is walked by its cursors, 25 rows a page; then pages 1 and 10,000 are asked for in turn. Medians.

use std::ops::Bound;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cairn_backends::postgres::{PgPool, PgRawOptions, PgRawStore};
use cairn_core::{BlockLayout, EvmLookup, Fence, Height, HeightRange, RawBlock, Slices};
use cairn_evm::EvmLayout;
use cairn_source::ChainSource;
use cairn_source::evm::synthetic::{PresignOptions, PresignedSource};
use cairn_store::derived::{DerivedReader, DerivedWriter, Scan};
use cairn_store::{AppendBatch, RawFiller, RawWriter};
use clap::Parser;

use crate::args::ServerArgs;
use crate::bench::{ingest_options, median, presigned_file, verified};
use crate::bench_derived::{self as made, PER_BLOCK};
use crate::bench_pg::{Database, copied, copy_into, describe};
use crate::bench_postgres_costs::{Copied, each_index};
use crate::bench_postgres_derived;
use crate::report::figure;

/// The tables that an append writes to, and their order.
const TABLES: [&str; 7] =
    ["blocks", "transactions", "events", "block_lookup", "tx_lookup", "evm_lookup", "run_pages"];
/// An index that a partition gets when it is full, and not before: its table, its name, what is indexed.
const WHEN_FULL: [(&str, &str, &str); 1] =
    [("transactions", "transactions_in_order", "(block_height, transaction_index)")];
/// Keys against which ON CONFLICT is tried.
const CONFLICTS: [(&str, &str); 3] = [
    ("transactions", "(block_height, id, transaction_index)"),
    ("tx_lookup", "(id, block_height, tx_index)"),
    ("evm_lookup", "(evm_hash, height, evm_index)"),
];
/// The binary COPY format without a row: its header and its end.
const NO_ROWS_BYTES: usize = 21;
const REPEATS: usize = 5;
/// How long a lease lives without a commit.
const LEASE_TTL_MS: u64 = 60_000;
/// The columns that a row of an EVM chain has in a table, where those are not all.
const WRITTEN: [(&str, &str); 1] = [(
    "transactions",
    "block_height, transaction_index, event_count, status, id, sender, body, result, payload_hash, payload_ref",
)];
/// Rows of a page, the page far down, and how often each is asked for.
const PAGE_ROWS: usize = 25;
const FAR_PAGE: usize = 10_000;
const PAGE_REPEATS: usize = 500;

/// How much.
#[derive(Parser)]
#[command(name = "bench postgres", about = "PostgreSQL stores against a bare binary COPY; pages of a list")]
pub struct Options {
    #[command(flatten)]
    server: ServerArgs,
    /// Transactions of the chain.
    #[arg(long, default_value_t = 400_000)]
    txs: u64,
    /// Lookups that are there already in the second part.
    #[arg(long, default_value_t = 20_000_000)]
    lookups: u64,
    /// Rows of each table in the part `derived`.
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(10_000..))]
    rows: u64,
    /// Ranges that are filled at once.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    fill_workers: u64,
    /// Parts: raw, lookup, derived, pages; all where none is named.
    parts: Vec<String>,
}

/// Runs the benchmark.
pub async fn run(options: Options) -> Result<ExitCode> {
    describe(&options.server.postgres).await?;
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|name| name == part);
    if wanted("raw") || wanted("lookup") {
        let chain = Chain::read(options.txs, options.fill_workers).await?;
        if wanted("raw") {
            raw(&options, &chain).await?;
        }
        if wanted("lookup") {
            raw_with_lookups(&options, &chain).await?;
        }
    }
    if wanted("derived") {
        bench_postgres_derived::run(&options.server.postgres, options.rows).await?;
    }
    if wanted("pages") {
        pages(&options).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Blocks in memory, in the batches that the ingester would make.
struct Chain {
    id: u64,
    batches: Vec<Vec<RawBlock>>,
    fill_workers: u64,
}

impl Chain {
    async fn read(txs: u64, fill_workers: u64) -> Result<Chain> {
        let source = PresignedSource::open(&presigned_file(PresignOptions::new(1, txs)).await?)?;
        let (id, head) = (source.made_from().chain_id, source.head());
        let limits = ingest_options(id);
        let source = verified(source);
        let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut at = Height::ZERO;
        while at <= head {
            let blocks = source.blocks(HeightRange::new(at, head.next())).await?;
            at = blocks.last().with_context(|| format!("block {at} is not there"))?.facts.height.next();
            for block in blocks {
                bytes += block.size_bytes();
                batch.push(block);
                if bytes >= limits.batch_bytes || batch.len() >= limits.batch_blocks {
                    batches.push(std::mem::take(&mut batch));
                    bytes = 0;
                }
            }
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        println!("{txs} transactions in {} batches", batches.len());
        Ok(Chain { id, batches, fill_workers })
    }

    /// Appends all of it; how long the appends took.
    async fn append(&self, store: &PgRawStore) -> Result<Duration> {
        store.init(ingest_options(self.id).info).await?;
        let mut head = RawWriter::acquire(store).await?;
        let mut took = Duration::ZERO;
        for blocks in &self.batches {
            let batch = AppendBatch { blocks: blocks.clone(), ..AppendBatch::default() };
            let begun = Instant::now();
            head = store.append(head.fence, batch).await?;
            took += begun.elapsed();
        }
        Ok(took)
    }

    /// Fills ranges of it at once and moves the head over them; how long that took. Its first block, above which ranges begin, is there before.
    async fn fill(&self, store: &PgRawStore) -> Result<Duration> {
        store.init(ingest_options(self.id).info).await?;
        let fence = RawWriter::acquire(store).await?.fence;
        let mut first = self.batches.concat();
        let blocks = first.split_off(1);
        store.append(fence, AppendBatch { blocks: first, ..AppendBatch::default() }).await?;
        let last = blocks.last().context("the chain has one block")?.block_ref();
        let stop = last.height.next();
        let filling = Arc::new(Filling {
            store: store.clone(),
            fence,
            blocks,
            range_heights: stop.get().div_ceil(4 * self.fill_workers),
            stop,
            advancing: tokio::sync::Mutex::default(),
        });
        let begun = Instant::now();
        let workers: Vec<_> = (0..self.fill_workers).map(|n| tokio::spawn(filling.clone().work(n))).collect();
        for worker in workers {
            worker.await??;
        }
        let head = store.advance(fence).await?;
        let took = begun.elapsed();
        ensure!(head.tip == Some(last), "the head is {:?}, not {last}", head.tip);
        Ok(took)
    }
}

/// What workers share that fill ranges, as those of the ingester do.
struct Filling {
    store: PgRawStore,
    fence: Fence,
    /// From the second one on.
    blocks: Vec<RawBlock>,
    range_heights: u64,
    stop: Height,
    advancing: tokio::sync::Mutex<()>,
}

impl Filling {
    async fn work(self: Arc<Self>, number: u64) -> Result<()> {
        let (store, owner) = (&self.store, format!("bench/{number}"));
        while let Some(mut lease) =
            store.claim_range(&owner, LEASE_TTL_MS, self.range_heights, self.stop).await?
        {
            while lease.done_to < lease.range.end() {
                let batch = self.batch(HeightRange::new(lease.done_to, lease.range.end()));
                lease = store.fill(&lease, batch, LEASE_TTL_MS).await?;
                let _one_at_a_time = self.advancing.lock().await;
                store.advance(self.fence).await?;
            }
        }
        Ok(())
    }

    /// The next blocks of a range, as many as the ingester would gather.
    fn batch(&self, range: HeightRange) -> Vec<RawBlock> {
        let limits = ingest_options(0);
        let Some(first) = self.blocks.first() else { return Vec::new() };
        let from = range.start().since(first.facts.height) as usize;
        let (mut bytes, mut batch) = (0, Vec::new());
        for block in self.blocks[from..].iter().take(limits.batch_blocks.min(range.len() as usize)) {
            if bytes >= limits.batch_bytes {
                break;
            }
            bytes += block.size_bytes();
            batch.push(block.clone());
        }
        batch
    }
}

/// In which of its ways the store writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    InOrder,
    Ranges,
}

/// How long appending took, and what of each table was written, in the binary COPY format.
struct Written {
    append: Duration,
    rows: u64,
    tables: Vec<(&'static str, Bytes)>,
}

/// Appends the chain and reads what it wrote. `lookups`: rows of lookups that are not its own.
async fn append(
    db: &Database,
    chain: &Chain,
    layout: Arc<dyn BlockLayout>,
    lookups: u64,
    (way, backfill): (Way, bool),
) -> Result<(Written, PgPool)> {
    let pool = db.pool()?;
    let options = PgRawOptions { layout, backfill, ..PgRawOptions::new(&db.url) };
    let store = PgRawStore::open(options, None).await?;
    if lookups > 0 {
        fill_lookups(&pool, lookups).await?;
    }
    pool.get().await?.batch("CHECKPOINT").await?;
    let took = match way {
        Way::InOrder => chain.append(&store).await?,
        Way::Ranges => chain.fill(&store).await?,
    };
    let written = read_written(&pool, took, lookups).await?;
    drop(store);
    Ok((written, pool))
}

/// A table with the columns that are written to.
fn with_columns(table: &str) -> String {
    let columns = WRITTEN.iter().find(|(name, _)| *name == table).map(|(_, columns)| format!(" ({columns})"));
    format!("{table}{}", columns.unwrap_or_default())
}

async fn read_written(pool: &PgPool, took: Duration, lookups: u64) -> Result<Written> {
    let conn = pool.get().await?;
    let (mut rows, mut tables) = (0, Vec::new());
    for table in TABLES {
        let own = match table {
            "tx_lookup" if lookups > 0 => format!("WHERE block_height < {FILLED_FROM}"),
            "evm_lookup" if lookups > 0 => format!("WHERE height < {FILLED_FROM}"),
            _ => String::new(),
        };
        let count = conn.query_one(&format!("SELECT count(*) FROM raw.{table} {own}"), &[]).await?;
        rows += count.try_get::<_, i64>(0)? as u64;
        let columns = WRITTEN.iter().find(|(name, _)| *name == table).map_or("*", |(_, columns)| *columns);
        tables.push((table, copied(&conn, &format!("SELECT {columns} FROM raw.{table} {own}")).await?));
    }
    Ok(Written { append: took, rows, tables })
}

/// Medians of some rounds, each in a new database: the chain written, and right after it the bare COPY of the same rows, since machines have moods.
struct Rounds {
    /// As the last one wrote it; `append` is the median.
    written: Written,
    /// The bare COPY of each table, in seconds.
    bare: Vec<f64>,
    /// The bare COPY's time by the writing's.
    ratio: f64,
}

/// The last database is still there.
async fn rounds(
    options: &Options,
    label: &str,
    chain: &Chain,
    how: (Way, bool),
) -> Result<(Rounds, PgPool, Database)> {
    let (mut took, mut tables, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let db = Database::make(&options.server.postgres, label).await?;
        let (mut written, pool) = append(&db, chain, Arc::new(EvmLayout), 0, how).await?;
        let bare = bare(&pool, &written).await?;
        let append = written.append.as_secs_f64();
        ratios.push(bare.iter().sum::<f64>() / append);
        took.push(append);
        tables.resize(bare.len(), Vec::new());
        tables.iter_mut().zip(&bare).for_each(|(all, seconds)| all.push(*seconds));
        if took.len() == REPEATS {
            written.append = Duration::from_secs_f64(median(took));
            let bare = tables.into_iter().map(median).collect();
            return Ok((Rounds { written, bare, ratio: median(ratios) }, pool, db));
        }
        drop(pool);
        db.drop().await?;
    }
}

/// The bare COPY of the same bytes into new tables: seconds for each.
async fn bare(pool: &PgPool, written: &Written) -> Result<Vec<f64>> {
    let conn = pool.get().await?;
    conn.batch("DROP SCHEMA IF EXISTS bare CASCADE; CREATE SCHEMA bare; CHECKPOINT").await?;
    let mut took = Vec::new();
    for (table, rows) in &written.tables {
        conn.batch(&format!("CREATE TABLE bare.{table} (LIKE raw.{table} INCLUDING STORAGE)")).await?;
        took.push(copy_into(&conn, &format!("bare.{}", with_columns(table)), rows).await?.as_secs_f64());
    }
    Ok(took)
}

/// Prints both and their ratio, under a name.
fn compared(name: &str, chain_txs: u64, Rounds { written, bare, ratio }: &Rounds) {
    let (append, copy) = (written.append.as_secs_f64(), bare.iter().sum::<f64>());
    let bytes: usize = written.tables.iter().map(|(_, rows)| rows.len()).sum();
    println!("{} rows, {} MiB: written in {append:.2} s, bare COPY {copy:.2} s", written.rows, bytes >> 20);
    for ((table, rows), seconds) in
        written.tables.iter().zip(bare).filter(|((_, rows), _)| rows.len() > NO_ROWS_BYTES)
    {
        println!("  bare COPY of {table}: {} MiB, {seconds:.2} s", rows.len() >> 20);
    }
    figure(&format!("{name}_rows_per_s"), format!("{:.0}", written.rows as f64 / append), "rows/s");
    figure(&format!("{name}_txs_per_s"), format!("{:.0}", chain_txs as f64 / append), "tx/s");
    figure(&format!("{name}_bare_copy_rows_per_s"), format!("{:.0}", written.rows as f64 / copy), "rows/s");
    figure(&name.replacen("raw", "raw_vs_copy", 1), format!("{ratio:.2}"), "ratio");
}

async fn raw(options: &Options, chain: &Chain) -> Result<()> {
    let (all, pool, db) = rounds(options, "raw", chain, (Way::Ranges, false)).await?;
    compared("raw", options.txs, &all);
    costs(&pool, &all.written, &all.bare, &TABLES).await?;
    drop(pool);
    db.drop().await?;
    for (name, how) in [("raw_in_order", (Way::InOrder, false)), ("raw_backfill", (Way::Ranges, true))] {
        let (all, pool, db) = rounds(options, name, chain, how).await?;
        compared(name, options.txs, &all);
        drop(pool);
        db.drop().await?;
    }
    Ok(())
}

/// What each index and ON CONFLICT cost, as times the bare COPY of a table's rows, of those of `tables` that have some.
async fn costs(pool: &PgPool, written: &Written, bare: &[f64], tables: &[&str]) -> Result<()> {
    let conn = pool.get().await?;
    for ((table, rows), plain_s) in written.tables.iter().zip(bare) {
        if !tables.contains(table) || rows.len() <= NO_ROWS_BYTES {
            continue;
        }
        let copied = Copied { schema: "raw", table, target: with_columns(table), rows, plain_s: *plain_s };
        let when_full = WHEN_FULL.iter().filter(|(of, ..)| of == table);
        let when_full: Vec<_> = when_full.map(|(_, name, how)| (*name, *how)).collect();
        each_index(&conn, "index_", &copied, &when_full).await?;
        let Some((_, key)) = CONFLICTS.iter().find(|(of, _)| of == table) else { continue };
        conn.batch(&format!(
            "TRUNCATE bare.{table}; CREATE UNIQUE INDEX keyed ON bare.{table} {key};
             CREATE TEMP TABLE arrived (LIKE bare.{table} INCLUDING STORAGE)"
        ))
        .await?;
        let keyed = copy_into(&conn, &format!("bare.{}", with_columns(table)), rows).await?.as_secs_f64();
        conn.batch(&format!("TRUNCATE bare.{table}")).await?;
        let arrived = with_columns(table).replacen(table, "arrived", 1);
        let mut merged = copy_into(&conn, &arrived, rows).await?.as_secs_f64();
        let begun = Instant::now();
        conn.batch(&format!("INSERT INTO bare.{table} SELECT * FROM arrived ON CONFLICT DO NOTHING")).await?;
        merged += begun.elapsed().as_secs_f64();
        figure(&format!("on_conflict_{table}"), format!("{:.2}", merged / keyed), "times_copy_with_key");
        conn.batch("DROP TABLE arrived; DROP INDEX bare.keyed").await?;
    }
    Ok(())
}

/// Where the lookups of the second part stand that are there already: above every block of the chain.
const FILLED_FROM: u64 = 1 << 40;

/// Rows of both lookup tables, with random ids: as if 20 million transactions had been stored before.
async fn fill_lookups(pool: &PgPool, rows: u64) -> Result<()> {
    let begun = Instant::now();
    let conn = pool.get().await?;
    // The key is built at once afterwards, which is quicker and leaves it as full as it would be after a REINDEX.
    conn.batch(&format!(
        "ALTER TABLE raw.tx_lookup DROP CONSTRAINT tx_lookup_pkey;
         ALTER TABLE raw.evm_lookup DROP CONSTRAINT evm_lookup_pkey;
         INSERT INTO raw.tx_lookup (block_height, tx_index, timestamp_ms, id, block_id)
           SELECT {FILLED_FROM} + n / 200, n % 200, n, sha256(int8send(n)), '\\x{block}'::bytea
           FROM generate_series(1, {rows}::bigint) AS g(n);
         INSERT INTO raw.evm_lookup (height, evm_index, evm_hash, tx_id)
           SELECT {FILLED_FROM} + n / 200, n % 200, sha256(int8send(-n)), sha256(int8send(n))
           FROM generate_series(1, {rows}::bigint) AS g(n)",
        block = "07".repeat(32),
    ))
    .await?;
    conn.batch(
        "SET maintenance_work_mem = '512MB';
         ALTER TABLE raw.tx_lookup ADD CONSTRAINT tx_lookup_pkey PRIMARY KEY (id, block_height, tx_index);
         ALTER TABLE raw.evm_lookup ADD CONSTRAINT evm_lookup_pkey PRIMARY KEY (evm_hash, height, evm_index)",
    )
    .await?;
    conn.batch("VACUUM (ANALYZE) raw.tx_lookup").await?;
    conn.batch("VACUUM (ANALYZE) raw.evm_lookup").await?;
    // Reads the whole of each key into the server's memory: more than once, for what it keeps is what it meets again.
    let read =
        [("id", "tx_lookup", "block_height, tx_index"), ("evm_hash", "evm_lookup", "height, evm_index")];
    for (id, table, place) in read.repeat(3) {
        conn.batch(&format!(
            "SET enable_seqscan = off; SET enable_sort = off;
             SELECT count(*) FROM (SELECT {id} FROM raw.{table} ORDER BY {id}, {place} OFFSET 0) o;
             RESET enable_seqscan; RESET enable_sort"
        ))
        .await?;
    }
    println!("{rows} rows in each of two lookup tables in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// An EVM chain whose transactions are found by another hash too, as those inside of another chain's transactions are.
#[derive(Debug)]
struct WithEvmLookups;

impl BlockLayout for WithEvmLookups {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let mut slices = EvmLayout.slices(block)?;
        slices.evm_lookups = (0u32..)
            .zip(&block.transactions)
            .map(|(index, tx)| {
                let mut evm_hash = tx.id.0;
                evm_hash.reverse();
                EvmLookup { evm_hash, tx_index: index, evm_index: index }
            })
            .collect();
        Some(slices)
    }
}

async fn raw_with_lookups(options: &Options, chain: &Chain) -> Result<()> {
    let db = Database::make(&options.server.postgres, "lookup").await?;
    let (written, pool) =
        append(&db, chain, Arc::new(WithEvmLookups), options.lookups, (Way::Ranges, false)).await?;
    let mut tables = Vec::new();
    for _ in 0..REPEATS {
        let round = bare(&pool, &written).await?;
        tables.resize(round.len(), Vec::new());
        tables.iter_mut().zip(&round).for_each(|(all, seconds)| all.push(*seconds));
    }
    let bare: Vec<f64> = tables.into_iter().map(median).collect();
    let ratio = bare.iter().sum::<f64>() / written.append.as_secs_f64();
    let all = Rounds { written, bare, ratio };
    compared("raw_evm_lookup", options.txs, &all);
    costs(&pool, &all.written, &all.bare, &["evm_lookup"]).await?;
    drop(pool);
    db.drop().await
}

async fn pages(options: &Options) -> Result<()> {
    let db = Database::make(&options.server.postgres, "pages").await?;
    let (pool, store) = (db.pool()?, bench_postgres_derived::open(&db).await?);
    let rows = 300_000;
    made::fill_postgres(&store, &pool, rows).await?;
    let lease = made::claim(&store, "mapper").await?;
    store.commit_chunk(&lease, made::chunk(&lease, rows / PER_BLOCK, 0)).await?;
    let mut scan = Scan {
        index: Some("by_token"),
        prefix: vec![made::token()],
        descending: true,
        ..Scan::new(made::TRANSFERS.name, PAGE_ROWS)
    };
    let first = scan.clone();
    let snapshot = store.snapshot().await?;
    for page in 1..FAR_PAGE {
        let found = snapshot.scan(&scan).await?;
        let more = found.more.with_context(|| format!("the list ends at page {page}"))?;
        scan.upper = Bound::Excluded(more);
    }
    drop(snapshot);
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for _ in 0..PAGE_REPEATS {
        for (scan, took) in [(&first, &mut near), (&scan, &mut far)] {
            let snapshot = store.snapshot().await?;
            let begun = Instant::now();
            let found = snapshot.scan(scan).await?;
            took.push(begun.elapsed().as_secs_f64());
            ensure!(found.rows.len() == PAGE_ROWS, "a page has {} rows", found.rows.len());
        }
    }
    let (near, far) = (median(near), median(far));
    figure("page_1_us", format!("{:.0}", near * 1e6), "us");
    figure("page_10000_us", format!("{:.0}", far * 1e6), "us");
    figure("page_10000_vs_1", format!("{:.2}", far / near), "ratio");
    drop((store, pool));
    db.drop().await
}
