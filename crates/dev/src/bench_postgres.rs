//! `./dev bench postgres`: what writing to PostgreSQL costs against a bare binary COPY of the same bytes, and what a page of a list costs.
//!
//! **Raw.** Blocks of a pre-signed EVM chain are made and checked in memory first. Then the real store appends them, in batches of the ingester's
//! own size, one transaction each: what is timed is [`RawWriter::append`] from beginning to end (checking the batch, cutting, compressing and encoding it, the head's lock,
//! every table and index, the commit). Afterwards every row that the appends wrote (blocks, transactions, events, lookups, index pages) is read back in the binary COPY
//! format, and sent again to plain tables of the same columns without key or index: one statement and one transaction a table, nothing encoded while the clock runs. `raw_vs_copy`
//! is the second time by the first: same bytes, same server, same run. The bare COPY is done three times into empty tables; the median counts.
//! `raw_vs_copy_backfill`: the same with `backfill` on, in which a partition has its keys alone until it is full.
//!
//! **Raw with EVM lookups.** The same once more in a new database whose `evm_lookup` and `tx_lookup` hold 20 million rows each, and with a row of `evm_lookup` for each transaction:
//! `raw_vs_copy_evm_lookup`.
//!
//! **Indexes and ON CONFLICT.** The same rows of a table into an empty copy of it with one index each; and through a temporary table and `INSERT … ON CONFLICT DO NOTHING`,
//! which the store does not use: the head's lock makes it needless. Figures are times the bare COPY.
//!
//! **Derived.** Commits of 10,000 rows of a table of transfers with a key and three indexes (fence, gate and checkpoint included), against a bare COPY of the same rows.
//!
//! **Pages.** A list by token of 300,000 rows is walked by its cursors, 25 rows a page; then pages 1 and 10,000 are asked for in turn. Medians.

use std::ops::Bound;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgPool, PgRawOptions, PgRawStore};
use cairn_core::{BlockLayout, EvmLookup, Height, HeightRange, RawBlock, Slices};
use cairn_evm::EvmLayout;
use cairn_source::ChainSource;
use cairn_source::evm::synthetic::{PresignOptions, PresignedSource};
use cairn_store::derived::{Coordinator, DerivedReader, DerivedWriter, ReorgApplier, Scan, TableRows};
use cairn_store::{AppendBatch, RawWriter, ReorgMark};
use clap::Parser;

use crate::bench::{ingest_options, median, presigned_file, verified};
use crate::bench_derived::{self as made, PER_BLOCK};
use crate::bench_pg::{Database, copied, copy_into, describe};
use crate::report::figure;

/// The tables that an append writes to, and their order.
const TABLES: [&str; 7] =
    ["blocks", "transactions", "events", "block_lookup", "tx_lookup", "evm_lookup", "run_pages"];
/// The indexes of those tables that are there for every row: a name, the table, what is indexed.
const INDEXES: [(&str, &str, &str); 8] = [
    ("blocks_key", "blocks", "UNIQUE (height)"),
    ("transactions_key", "transactions", "UNIQUE (block_height, id, transaction_index)"),
    ("transactions_in_order", "transactions", "(block_height, transaction_index)"),
    ("events_key", "events", "UNIQUE (block_height, transaction_id, event_index)"),
    ("tx_lookup_key", "tx_lookup", "UNIQUE (id, block_height, tx_index)"),
    ("tx_lookup_by_height", "tx_lookup", "BRIN (block_height)"),
    ("block_lookup_key", "block_lookup", "UNIQUE (id)"),
    ("evm_lookup_key", "evm_lookup", "UNIQUE (evm_hash, height, evm_index)"),
];
const REPEATS: usize = 3;
/// Rows of a page, the page far down, and how often each is asked for.
const PAGE_ROWS: usize = 25;
const FAR_PAGE: usize = 10_000;
const PAGE_REPEATS: usize = 500;

/// How much.
#[derive(Parser)]
#[command(name = "bench postgres", about = "PostgreSQL stores against a bare binary COPY; pages of a list")]
pub struct Options {
    /// A PostgreSQL server on which databases may be made.
    #[arg(long, env = "CAIRN_TEST_PG_URL")]
    postgres: String,
    /// Transactions of the chain.
    #[arg(long, default_value_t = 400_000)]
    txs: u64,
    /// Lookups that are there already in the second part.
    #[arg(long, default_value_t = 20_000_000)]
    lookups: u64,
    /// Parts: raw, lookup, derived, pages; all where none is named.
    parts: Vec<String>,
}

/// Runs the benchmark.
pub async fn run(options: Options) -> Result<ExitCode> {
    describe(&options.postgres).await?;
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|name| name == part);
    if wanted("raw") || wanted("lookup") {
        let chain = Chain::read(options.txs).await?;
        if wanted("raw") {
            raw(&options, &chain).await?;
        }
        if wanted("lookup") {
            raw_with_lookups(&options, &chain).await?;
        }
    }
    if wanted("derived") {
        derived(&options).await?;
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
}

impl Chain {
    async fn read(txs: u64) -> Result<Chain> {
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
        Ok(Chain { id, batches })
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
    backfill: bool,
) -> Result<(Written, PgPool)> {
    let pool = db.pool()?;
    let options = PgRawOptions { layout, backfill, ..PgRawOptions::new(&db.url) };
    let store = PgRawStore::open(options, None).await?;
    if lookups > 0 {
        fill_lookups(&pool, lookups).await?;
    }
    pool.get().await?.batch("CHECKPOINT").await?;
    let took = chain.append(&store).await?;
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
        tables.push((table, copied(&conn, &format!("SELECT * FROM raw.{table} {own}")).await?));
    }
    drop(conn);
    Ok((Written { append: took, rows, tables }, pool))
}

/// The bare COPY of the same bytes: seconds for each table.
async fn bare(pool: &PgPool, written: &Written) -> Result<Vec<f64>> {
    let conn = pool.get().await?;
    conn.batch("DROP SCHEMA IF EXISTS bare CASCADE; CREATE SCHEMA bare").await?;
    for (table, _) in &written.tables {
        conn.batch(&format!("CREATE TABLE bare.{table} (LIKE raw.{table} INCLUDING STORAGE)")).await?;
    }
    let mut took = vec![Vec::new(); written.tables.len()];
    for _ in 0..REPEATS {
        conn.batch("CHECKPOINT").await?;
        for (at, (table, rows)) in written.tables.iter().enumerate() {
            conn.batch(&format!("TRUNCATE bare.{table}")).await?;
            took[at].push(copy_into(&conn, &format!("bare.{table}"), rows).await?.as_secs_f64());
        }
    }
    Ok(took.into_iter().map(median).collect())
}

/// Prints both and their ratio, under a name.
fn compared(name: &str, chain_txs: u64, written: &Written, bare: &[f64]) {
    let (append, copy) = (written.append.as_secs_f64(), bare.iter().sum::<f64>());
    let bytes: usize = written.tables.iter().map(|(_, rows)| rows.len()).sum();
    println!("{} rows, {} MiB: append {append:.2} s, bare COPY {copy:.2} s", written.rows, bytes >> 20);
    for ((table, rows), seconds) in written.tables.iter().zip(bare).filter(|((_, rows), _)| rows.len() > 21) {
        println!("  bare COPY of {table}: {} MiB, {seconds:.2} s", rows.len() >> 20);
    }
    figure(&format!("{name}_rows_per_s"), format!("{:.0}", written.rows as f64 / append), "rows/s");
    figure(&format!("{name}_txs_per_s"), format!("{:.0}", chain_txs as f64 / append), "tx/s");
    figure(&format!("{name}_bare_copy_rows_per_s"), format!("{:.0}", written.rows as f64 / copy), "rows/s");
    let ratio = name.replacen("raw", "raw_vs_copy", 1);
    figure(&ratio, format!("{:.2}", copy / append), "ratio");
}

async fn raw(options: &Options, chain: &Chain) -> Result<()> {
    let db = Database::make(&options.postgres, "raw").await?;
    let (written, pool) = append(&db, chain, Arc::new(EvmLayout), 0, false).await?;
    let bare = bare(&pool, &written).await?;
    compared("raw", options.txs, &written, &bare);
    costs(&pool, &written, &bare).await?;
    drop(pool);
    db.drop().await?;
    let db = Database::make(&options.postgres, "backfill").await?;
    let (written, pool) = append(&db, chain, Arc::new(EvmLayout), 0, true).await?;
    drop(pool);
    db.drop().await?;
    compared("raw_backfill", options.txs, &written, &bare);
    Ok(())
}

/// What each index and ON CONFLICT cost, as times the bare COPY of the table's rows.
async fn costs(pool: &PgPool, written: &Written, bare: &[f64]) -> Result<()> {
    let conn = pool.get().await?;
    let rows_of = |table: &str| {
        let at = written.tables.iter().position(|(name, _)| *name == table)?;
        Some((&written.tables[at].1, bare[at])).filter(|(rows, _)| rows.len() > 21)
    };
    for (name, table, index) in INDEXES {
        let Some((rows, plain)) = rows_of(table) else { continue };
        let (unique, using) = match index.split_once(' ') {
            Some(("UNIQUE", rest)) => ("UNIQUE ", rest.to_owned()),
            Some(("BRIN", rest)) => ("", format!("USING brin {rest}")),
            _ => ("", index.to_owned()),
        };
        conn.batch(&format!("TRUNCATE bare.{table}; CREATE {unique}INDEX {name} ON bare.{table} {using}"))
            .await?;
        let mut took = Vec::new();
        for _ in 0..REPEATS {
            conn.batch(&format!("TRUNCATE bare.{table}")).await?;
            took.push(copy_into(&conn, &format!("bare.{table}"), rows).await?.as_secs_f64());
        }
        figure(&format!("index_{name}"), format!("{:.2}", median(took) / plain), "times_bare_copy");
        conn.batch(&format!("DROP INDEX bare.{name}")).await?;
    }
    for (table, key) in [
        ("transactions", "(block_height, id, transaction_index)"),
        ("tx_lookup", "(id, block_height, tx_index)"),
    ] {
        let Some((rows, _)) = rows_of(table) else { continue };
        conn.batch(&format!(
            "TRUNCATE bare.{table}; CREATE UNIQUE INDEX keyed ON bare.{table} {key};
             CREATE TEMP TABLE arrived (LIKE bare.{table} INCLUDING STORAGE)"
        ))
        .await?;
        let keyed = copy_into(&conn, &format!("bare.{table}"), rows).await?.as_secs_f64();
        conn.batch(&format!("TRUNCATE bare.{table}")).await?;
        let mut merged = copy_into(&conn, "arrived", rows).await?.as_secs_f64();
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
    let db = Database::make(&options.postgres, "lookup").await?;
    let (written, pool) = append(&db, chain, Arc::new(WithEvmLookups), options.lookups, false).await?;
    let bare = bare(&pool, &written).await?;
    compared("raw_evm_lookup", options.txs, &written, &bare);
    drop(pool);
    db.drop().await
}

async fn derived(options: &Options) -> Result<()> {
    const CHUNKS: u64 = 30;
    const HEIGHTS: u64 = 100;
    let db = Database::make(&options.postgres, "derived").await?;
    let pool = db.pool()?;
    let store = open_derived(&db).await?;
    let mut lease = made::claim(&store, "writer").await?;
    store.ensure_partitions(HeightRange::new(Height(0), Height(CHUNKS * HEIGHTS))).await?;
    let mut took = Duration::ZERO;
    for part in 0..CHUNKS {
        let rows = made::transfers(part * HEIGHTS, (part + 1) * HEIGHTS);
        let rows = vec![TableRows { table: made::OTHERS.name, rows }];
        let commit =
            cairn_store::derived::ChunkCommit { rows, ..made::chunk(&lease, (part + 1) * HEIGHTS, 0) };
        let begun = Instant::now();
        lease = store.commit_chunk(&lease, commit).await?.lease;
        took += begun.elapsed();
    }
    let conn = pool.get().await?;
    let rows = copied(&conn, "SELECT * FROM app.others").await?;
    conn.batch("CREATE TABLE bare (LIKE app.others)").await?;
    let mut bare = Vec::new();
    for _ in 0..REPEATS {
        conn.batch("TRUNCATE bare").await?;
        bare.push(copy_into(&conn, "bare", &rows).await?.as_secs_f64());
    }
    let (count, took, bare) = ((CHUNKS * HEIGHTS * PER_BLOCK) as f64, took.as_secs_f64(), median(bare));
    figure("derived_rows_per_s", format!("{:.0}", count / took), "rows/s");
    figure("derived_bare_copy_rows_per_s", format!("{:.0}", count / bare), "rows/s");
    figure("derived_vs_copy", format!("{:.2}", bare / took), "ratio");
    drop(conn);
    drop((store, pool));
    db.drop().await
}

async fn open_derived(db: &Database) -> Result<PgDerived> {
    let options = PgDerivedOptions { snapshot_max_ms: None, ..PgDerivedOptions::new(&db.url) };
    let store = PgDerived::open(options, made::catalog()?, None).await?;
    store.adopt(made::RAW, ReorgMark { id: 0, digest: [0; 32] }).await?;
    for service in made::SERVICES {
        store.register(service, Height(0)).await?;
    }
    Ok(store)
}

async fn pages(options: &Options) -> Result<()> {
    let db = Database::make(&options.postgres, "pages").await?;
    let (pool, store) = (db.pool()?, open_derived(&db).await?);
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
