//! What the app store on PostgreSQL does: rows/s of commits against a bare binary COPY of the same rows, pages of a list,
//! and the rollback of 1,000 blocks in tables of millions of rows while somebody else writes.
//!
//! ```text
//! CAIRN_TEST_PG_URL=postgres://… cargo run --release -p cairn-backends --features postgres --example postgres_derived_bench -- [ROWS]
//! ```
//!
//! Prints lines `figure NAME VALUE UNIT`. Makes a database of its own and drops it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_backends::postgres::{CopyBuf, PgDerived, PgDerivedOptions, PgPool};
use cairn_core::{BlockId, BlockRef, Height, HeightRange};
use cairn_store::derived::{
    ApplyProgress, BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, Column, ColumnType, Coordinator,
    DerivedReader, DerivedWriter, IndexDef, LAST_HEIGHT, Merge, ReadMark, ReorgApplier, Row, Scan, StateRow,
    StateRows, Sum, TableClass, TableDef, TableRows, U256, Value, WorkerLease, column,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark, Result, StoreError};

#[path = "../tests/support/pg.rs"]
mod pg;

const COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("sub_index", ColumnType::Int),
    column("transaction_id", ColumnType::Bytes),
    column("token", ColumnType::Bytes),
    column("from_address", ColumnType::Bytes),
    column("to_address", ColumnType::Bytes),
    column("amount", ColumnType::Amount),
    column("timestamp_ms", ColumnType::Int),
];
const INDEXES: &[IndexDef] = &[
    IndexDef { name: "by_from", columns: &["from_address", BLOCK_HEIGHT] },
    IndexDef { name: "by_to", columns: &["to_address", BLOCK_HEIGHT] },
    IndexDef { name: "by_token", columns: &["token", BLOCK_HEIGHT] },
];
const KEY: &[&str] = &[BLOCK_HEIGHT, "log_index", "sub_index"];
const CLASS: TableClass = TableClass::Events { partition_heights: 10_000_000 };
static TRANSFERS: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: CLASS,
    columns: COLUMNS,
    key: KEY,
    indexes: INDEXES,
};
static OTHERS: TableDef = TableDef {
    name: "others",
    service: "writer",
    class: CLASS,
    columns: COLUMNS,
    key: KEY,
    indexes: INDEXES,
};
static HOLDINGS: TableDef = TableDef {
    name: "holdings",
    service: "folder",
    class: TableClass::State,
    columns: &[
        column("token", ColumnType::Bytes),
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["token", "address"],
    indexes: &[
        IndexDef { name: "by_balance", columns: &["token", "balance"] },
        IndexDef { name: "by_address", columns: &["address"] },
    ],
};

const RAW: [u8; 16] = [7; 16];
/// Transfers in a block.
const PER_BLOCK: u64 = 100;
/// Scatters the addresses that the server makes, by exclusive or.
const SCATTER: u64 = 1_311_768_467_294_899_695;
/// Blocks that are rolled back.
const ORPHANS: u64 = 1_000;

fn id(height: u64) -> BlockId {
    let mut id = [1; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    BlockId(id)
}

fn address(n: u64) -> Value {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[12..].copy_from_slice(&n.to_be_bytes());
    Value::bytes(&bytes)
}

fn transfer(height: u64, log_index: u64) -> Row {
    let n = height * PER_BLOCK + log_index;
    let mut transaction = [2; 32];
    transaction[..8].copy_from_slice(&n.wrapping_mul(0xd134_2543_de82_ef95).to_be_bytes());
    Row(vec![
        Value::uint(height),
        Value::uint(log_index),
        Value::Int(0),
        Value::bytes(&transaction),
        address(1),
        address(if log_index == 0 { 2 } else { n % 900_001 + 10 }),
        address(n % 700_001 + 10),
        Value::Amount(U256::from(n) << 64),
        Value::uint(1_700_000_000_000 + height * 12_000),
    ])
}

fn holding(n: u64, last_height: u64) -> Row {
    let balance = Value::Sum(Box::new(Sum::from(U256::from(last_height) << 70)));
    Row(vec![address(1), address(n), balance, Value::Int(0), Value::uint(last_height)])
}

async fn claim(store: &PgDerived, service: &str) -> Result<WorkerLease> {
    let request = ClaimRequest {
        service: service.into(),
        version: 1,
        owner: "bench".into(),
        ttl_ms: 3_600_000,
        range_heights: 1 << 40,
        first: Height(0),
        limit_exclusive: Height(1 << 40),
        stop_exclusive: None,
        in_order: false,
    };
    Ok(store.claim(&request).await?.expect("a lease"))
}

fn chunk(lease: &WorkerLease, to: u64, finalized: u64) -> ChunkCommit {
    let start = lease.done_to;
    ChunkCommit {
        chunk: HeightRange::new(start, Height(to)),
        parent_id: Some(start.prev().map_or(BlockId::default(), |height| id(height.get()))),
        last_id: Some(id(to - 1)),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        finalized: Height(finalized),
        ttl_ms: 3_600_000,
    }
}

/// Rows/s of commits of 10,000 transfers each, against a COPY of the same rows into a table without index or key.
async fn writing(store: &PgDerived, pool: &PgPool) -> Result<()> {
    const CHUNKS: u64 = 20;
    let rows = |part: u64| -> Vec<Row> {
        (part * 100..(part + 1) * 100)
            .flat_map(|height| (0..PER_BLOCK).map(move |n| transfer(height, n)))
            .collect()
    };
    let conn = pool.get().await?;
    conn.batch("CREATE TABLE bare (LIKE app.transfers)").await?;
    let mut bare = Duration::ZERO;
    for part in 0..CHUNKS {
        let mut buf = CopyBuf::new();
        for row in rows(part) {
            buf.row(9).i64(row.0[0].as_int().unwrap_or(0)).i64(row.0[1].as_int().unwrap_or(0)).i64(0);
            for at in 3..7 {
                buf.bytea(row.0[at].as_bytes().map_or(&[], |bytes| bytes));
            }
            buf.numeric(&row.0[7].as_amount().unwrap_or_default().to_be_bytes::<32>());
            buf.i64(row.0[8].as_int().unwrap_or(0));
        }
        let started = Instant::now();
        conn.copy_in("COPY bare FROM STDIN (FORMAT binary)", buf).await?;
        bare += started.elapsed();
    }
    let mut lease = claim(store, "writer").await?;
    let mut derived = Duration::ZERO;
    for part in 0..CHUNKS {
        let rows = vec![TableRows { table: "others", rows: rows(part) }];
        let commit = ChunkCommit { rows, ..chunk(&lease, (part + 1) * 100, 0) };
        let started = Instant::now();
        lease = store.commit_chunk(&lease, commit).await?.lease;
        derived += started.elapsed();
    }
    let count = (CHUNKS * 100 * PER_BLOCK) as f64;
    println!("figure bare_copy_rows_per_s {:.0} rows/s", count / bare.as_secs_f64());
    println!("figure derived_commit_rows_per_s {:.0} rows/s", count / derived.as_secs_f64());
    println!("figure derived_vs_copy {:.3} ratio", bare.as_secs_f64() / derived.as_secs_f64());
    Ok(())
}

/// Fills the tables below the blocks that are rolled back.
async fn fill(store: &PgDerived, pool: &PgPool, rows: u64) -> Result<()> {
    let blocks = rows / PER_BLOCK;
    store.ensure_partitions(HeightRange::new(Height(0), Height(blocks + ORPHANS))).await?;
    let conn = pool.get().await?;
    conn.batch("SET statement_timeout = 0").await?;
    let rows_in = |n: &str| format!("generate_series(0, {n} - 1) AS g(n)");
    let bytes = |n: &str| {
        format!("int8send({n}::bigint # {SCATTER}) || '\\x00000000'::bytea || int8send({n}::bigint)")
    };
    conn.batch(&format!(
        "INSERT INTO app.transfers SELECT n / {PER_BLOCK}, n % {PER_BLOCK}, 0, sha256(int8send(n)), {token},
             {from}, {to}, n::numeric * 1000000000000, 1700000000000 FROM {series}",
        token = "'\\x01'::bytea",
        from = bytes("(CASE WHEN n % 100 = 0 THEN 2 ELSE n % 1000 + 10 END)"),
        to = bytes("(n % 1000 + 10)"),
        series = rows_in(&format!("{rows}::bigint")),
    ))
    .await?;
    conn.batch(&format!(
        "INSERT INTO app.holdings SELECT '\\x02'::bytea, sha256(int8send(n)), n, 0, n / {PER_BLOCK} FROM {}",
        rows_in(&format!("{rows}::bigint"))
    ))
    .await?;
    conn.batch("ANALYZE").await
}

/// Pages of 25 rows of the sender in every block: the first, and the ten-thousandth.
async fn paging(store: &PgDerived, blocks: u64) -> Result<()> {
    let sender = {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&(2 ^ SCATTER).to_be_bytes());
        bytes[12..].copy_from_slice(&2u64.to_be_bytes());
        Value::bytes(&bytes)
    };
    let page = |before: Option<u64>| Scan {
        index: Some("by_from"),
        prefix: vec![sender.clone()],
        upper: before.map_or(Bound::Unbounded, |height| Bound::Excluded(vec![Value::uint(height)])),
        descending: true,
        ..Scan::new("transfers", 25)
    };
    let mut took = Vec::new();
    for before in [None, Some(blocks.saturating_sub(250_000).max(25))] {
        let scan = page(before);
        let mut best = Duration::MAX;
        for _ in 0..200 {
            let snapshot = store.snapshot().await?;
            let started = Instant::now();
            let found = snapshot.scan(&scan).await?;
            best = best.min(started.elapsed());
            assert!(!found.rows.is_empty(), "the list has rows");
        }
        took.push(best.as_secs_f64());
    }
    println!("figure derived_page_us {:.0} us", took[0] * 1e6);
    println!("figure derived_page_10000_vs_1 {:.2} ratio", took[1] / took[0]);
    Ok(())
}

async fn rollback(store: &Arc<PgDerived>, rows: u64) -> Result<()> {
    let common = rows / PER_BLOCK - 1;
    let (mut mapper, mut folder) = (claim(store, "mapper").await?, claim(store, "folder").await?);
    mapper = store.commit_chunk(&mapper, chunk(&mapper, common + 1, 0)).await?.lease;
    let empty = ChunkCommit { folded_at: Some(0), ..chunk(&folder, common + 1, common) };
    folder = store.commit_chunk(&folder, empty).await?.lease;
    for height in common + 1..=common + ORPHANS {
        let rows = (0..PER_BLOCK).map(|n| transfer(height, n)).collect();
        let commit = ChunkCommit {
            rows: vec![TableRows { table: "transfers", rows }],
            ..chunk(&mapper, height + 1, common)
        };
        mapper = store.commit_chunk(&mapper, commit).await?.lease;
        // The holder who is in every block, and others that come and go.
        let hot = (0u64, (height > common + 1).then_some(height - 1));
        let others = (0..2 * PER_BLOCK - 1).map(|n| (1 + (height * 131 + n) % 20_000, None));
        let states = std::iter::once(hot).chain(others).map(|(n, last)| StateRow {
            row: holding(n, height),
            undo: vec![(Height(height), Some(holding(n, last.unwrap_or(common))))],
        });
        let states = vec![StateRows { table: "holdings", rows: states.collect() }];
        let commit = ChunkCommit { states, folded_at: Some(0), ..chunk(&folder, height + 1, common) };
        folder = store.commit_chunk(&folder, commit).await?.lease;
    }
    let orphans = (common + 1..=common + ORPHANS).map(|height| OrphanRef {
        block: BlockRef { height: Height(height), id: id(height) },
        timestamp_ms: height,
    });
    let common = BlockRef { height: Height(common), id: id(common) };
    let entry = ReorgEntry::chain(1, &[0; 32], RAW, common, orphans.collect(), 0);

    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = tokio::spawn({
        let (store, stop, written) = (store.clone(), stop.clone(), written.clone());
        async move {
            let mut lease = store.lease(1).await?.expect("the writer's lease");
            while !stop.load(Ordering::Relaxed) {
                let start = lease.done_to.get();
                let rows = (start..start + 20)
                    .flat_map(|height| (0..PER_BLOCK).map(move |n| transfer(height, n)))
                    .collect();
                let rows = vec![TableRows { table: "others", rows }];
                let committed =
                    store.commit_chunk(&lease, ChunkCommit { rows, ..chunk(&lease, start + 20, 0) }).await;
                // The reorg takes the lease, which ends far above, from its holder once.
                lease = match committed {
                    Ok(committed) => committed.lease,
                    Err(_) => claim(&store, "writer").await?,
                };
                written.fetch_add(20 * PER_BLOCK, Ordering::Relaxed);
            }
            Ok::<(), StoreError>(())
        }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = written.load(Ordering::Relaxed);
    let started = Instant::now();
    store.begin_apply(&entry).await?;
    let (mut steps, mut longest) = (1, Duration::ZERO);
    loop {
        let step = Instant::now();
        let progress = store.apply_step(1, 10_000).await?;
        longest = longest.max(step.elapsed());
        if progress == ApplyProgress::Done {
            break;
        }
        steps += 1;
    }
    store.finish_apply(1).await?;
    let took = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer ends")?;
    println!("figure rollback_1000_blocks_s {:.2} s", took.as_secs_f64());
    println!("figure rollback_steps {steps} steps");
    println!("figure rollback_longest_step_ms {} ms", longest.as_millis());
    println!("figure rollback_rows_written_meanwhile {} rows", written.load(Ordering::Relaxed) - before);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let rows: u64 = std::env::args().nth(1).and_then(|rows| rows.parse().ok()).unwrap_or(5_000_000);
    let Some(db) = pg::database().await else { return Ok(()) };
    let pool = db.pool();
    let options = PgDerivedOptions { snapshot_max_ms: None, ..PgDerivedOptions::new(&db.url) };
    let catalog = Catalog::new([&TRANSFERS, &OTHERS, &HOLDINGS])?;
    let store = Arc::new(PgDerived::open(options, catalog, None).await?);
    store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await?;
    for service in ["writer", "mapper", "folder"] {
        store.register(service, Height(0)).await?;
    }
    writing(&store, &pool).await?;
    let started = Instant::now();
    fill(&store, &pool, rows).await?;
    println!("filled {rows} rows in each of two tables in {:.0} s", started.elapsed().as_secs_f64());
    rollback(&store, rows).await?;
    paging(&store, rows / PER_BLOCK).await
}
