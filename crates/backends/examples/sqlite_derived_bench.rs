//! How fast the app store on SQLite takes rows, pages through them, and rolls them back, on made-up token transfers.
//!
//! `cargo run --release -p cairn-backends --features sqlite --example sqlite_derived_bench -- DIR [ROWS]`
//!
//! Prints `figure NAME VALUE UNIT` lines. A commit is a chunk of [`HEIGHTS_PER_CHUNK`] blocks.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions};
use cairn_core::{BlockId, BlockRef, Height, HeightRange, SystemClock};
use cairn_store::derived::{
    ApplyProgress, BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, Column, ColumnType, Coordinator,
    DerivedReader, DerivedWriter, FoldedAt, IndexDef, Key, LAST_HEIGHT, Merge, ReadMark, ReorgApplier, Row,
    Scan, StateRow, StateRows, Table, TableClass, TableDef, TableRows, U256, Value, WorkerLease, column,
};
use cairn_store::suite::blocks::Numbers;
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark};

const ROWS_PER_BLOCK: u64 = 200;
const HEIGHTS_PER_CHUNK: u64 = 25;
const ADDRESSES: u64 = 200_000;
const HOT: u64 = 7;

const TRANSFER_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("transaction_index", ColumnType::Int),
    column("event_index", ColumnType::Int),
    column("transaction_id", ColumnType::Bytes),
    column("timestamp", ColumnType::Int),
    column("token", ColumnType::Bytes),
    column("from_address", ColumnType::Bytes),
    column("to_address", ColumnType::Bytes),
    column("amount", ColumnType::Amount),
];
static TRANSFERS: TableDef = TableDef {
    name: "ft_transfers",
    service: "token_worker",
    class: TableClass::Events { partition_heights: 10_000_000 },
    columns: TRANSFER_COLUMNS,
    key: &[BLOCK_HEIGHT, "transaction_index", "event_index"],
    indexes: &[
        IndexDef { name: "from", columns: &["from_address"] },
        IndexDef { name: "to", columns: &["to_address"] },
        IndexDef { name: "token", columns: &["token"] },
    ],
};
const HOLDING_COLUMNS: &[Column] = &[
    column("token", ColumnType::Bytes),
    column("address", ColumnType::Bytes),
    column("balance", ColumnType::Sum).merged(Merge::Sum),
    column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
];
static HOLDINGS: TableDef = TableDef {
    name: "ft_holdings",
    service: "ft_holdings_worker",
    class: TableClass::State,
    columns: HOLDING_COLUMNS,
    key: &["token", "address"],
    indexes: &[
        IndexDef { name: "address", columns: &["address"] },
        IndexDef { name: "balance", columns: &["token", "balance"] },
    ],
};

fn id(height: u64) -> BlockId {
    let mut id = [7; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    BlockId(id)
}

fn address(n: u64) -> Value {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[12..].copy_from_slice(&n.to_be_bytes());
    Value::bytes(&bytes)
}

fn transfers(chunk: HeightRange) -> Vec<Row> {
    let mut rows = Vec::new();
    for height in chunk.iter() {
        let mut numbers = Numbers::new(height.get());
        for n in 0..ROWS_PER_BLOCK {
            let mut tx = [9; 32];
            tx[..8].copy_from_slice(&numbers.next_u64().to_be_bytes());
            let from = numbers.next_u64() % ADDRESSES;
            // One holder is in every block.
            let to = if n == 0 { HOT } else { numbers.next_u64() % ADDRESSES };
            rows.push(Row(vec![
                Value::height(height),
                Value::uint(n / 2),
                Value::uint(n),
                Value::bytes(&tx),
                Value::uint(height.get() * 12_000),
                address((1 << 40) | (n % 10)),
                address(from),
                address(to),
                Value::Amount(U256::from(numbers.next_u64())),
            ]));
        }
    }
    rows
}

fn commit(chunk: HeightRange, finalized: u64) -> ChunkCommit {
    ChunkCommit {
        chunk,
        parent_id: Some(id(chunk.start().get().wrapping_sub(1))),
        last_id: chunk.last().map(|last| id(last.get())),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(finalized),
        ttl_ms: 60_000,
    }
}

/// Folds the chunk's transfers into holdings.
async fn fold(
    store: &SqliteDerived,
    chunk: HeightRange,
    rows: &[Row],
    finalized: u64,
) -> Result<ChunkCommit, Box<dyn std::error::Error>> {
    let table = Table::new(&HOLDINGS)?;
    let mut changes: std::collections::BTreeMap<Key, Vec<(Height, cairn_store::derived::Change)>> =
        Default::default();
    for row in rows {
        let height = row.0[0].as_height().unwrap_or_default();
        let amount = row.0[8].as_amount().unwrap_or_default();
        for (at, sum) in [(6, Value::minus(amount)), (7, Value::sum(amount))] {
            let change = cairn_store::derived::Change(vec![
                Some(row.0[5].clone()),
                Some(row.0[at].clone()),
                Some(sum),
                None,
            ]);
            changes.entry(change.key(&table)?).or_default().push((height, change));
        }
    }
    let keys: Vec<Key> = changes.keys().cloned().collect();
    let before = store.snapshot().await?.rows(HOLDINGS.name, &keys).await?;
    let mut states = Vec::new();
    for ((_, changes), before) in changes.into_iter().zip(before) {
        let (mut row, mut undo): (Option<Row>, Vec<(Height, Option<Row>)>) = (before, Vec::new());
        for (height, change) in changes {
            if height.get() > finalized && undo.last().is_none_or(|(last, _)| *last < height) {
                undo.push((height, row.clone()));
            }
            row = Some(change.apply(&table, row.as_ref(), height)?);
        }
        states.extend(row.map(|row| StateRow { row, undo }));
    }
    let states = vec![StateRows { table: HOLDINGS.name, rows: states }];
    Ok(ChunkCommit { folded_at: Some(FoldedAt::applied(0)), states, ..commit(chunk, finalized) })
}

async fn claim(
    store: &SqliteDerived,
    service: &str,
    range_heights: u64,
) -> Result<WorkerLease, Box<dyn std::error::Error>> {
    let request = ClaimRequest {
        service: service.into(),
        version: 1,
        owner: "bench".into(),
        ttl_ms: 600_000,
        range_heights,
        first: Height(0),
        limit_exclusive: Height(u64::MAX),
        stop_exclusive: None,
        in_order: true,
    };
    Ok(store.claim(&request).await?.ok_or("nothing to claim")?)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("which directory?")?);
    let total: u64 = args.next().map_or(Ok(5_000_000), |n| n.parse())?;
    let heights = total / ROWS_PER_BLOCK;
    let finalized = heights.saturating_sub(1_001);
    let catalog = Catalog::new([&TRANSFERS, &HOLDINGS])?;
    let store = SqliteDerived::open(SqliteDerivedOptions::new(&dir), catalog, Arc::new(SystemClock)).await?;
    store.adopt([1; 16], ReorgMark::default()).await?;
    for service in ["token_worker", "ft_holdings_worker"] {
        store.register(service, Height(0)).await?;
    }

    let mut lease = claim(&store, "token_worker", heights).await?;
    let mut folder = claim(&store, "ft_holdings_worker", heights).await?;
    let (mut events, mut states, mut read) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut state_rows = 0;
    for chunk in HeightRange::new(Height(0), Height(heights)).chunks(HEIGHTS_PER_CHUNK) {
        let rows = transfers(chunk);
        let part = vec![TableRows { table: TRANSFERS.name, rows: rows.clone() }];
        let clock = Instant::now();
        lease =
            store.commit_chunk(&lease, ChunkCommit { rows: part, ..commit(chunk, finalized) }).await?.lease;
        events += clock.elapsed();
        let clock = Instant::now();
        let folded = fold(&store, chunk, &rows, finalized).await?;
        read += clock.elapsed();
        state_rows += folded.states[0].rows.len();
        let clock = Instant::now();
        folder = store.commit_chunk(&folder, folded).await?.lease;
        states += clock.elapsed();
    }
    println!("figure sqlite_derived_event_rows_per_s {:.0} rows/s", total as f64 / events.as_secs_f64());
    println!("figure sqlite_derived_state_rows_per_s {:.0} rows/s", state_rows as f64 / states.as_secs_f64());
    println!("figure sqlite_derived_fold_rows_per_s {:.0} rows/s", state_rows as f64 / read.as_secs_f64());

    pages(&store).await?;
    rollback(&store, heights).await
}

/// Pages of 20 rows of one token, newest first: the first ones against those around the 10,000th.
async fn pages(store: &SqliteDerived) -> Result<(), Box<dyn std::error::Error>> {
    let mut scan = Scan {
        index: Some("token"),
        prefix: vec![address(1 << 40)],
        descending: true,
        ..Scan::new(TRANSFERS.name, 20)
    };
    let (mut first, mut far, mut page) = (Duration::ZERO, Duration::ZERO, 0_u32);
    const AROUND: u32 = 200;
    loop {
        let snapshot = store.snapshot().await?;
        let clock = Instant::now();
        let found = snapshot.scan(&scan).await?;
        let took = clock.elapsed();
        page += 1;
        if page <= AROUND {
            first += took;
        } else if (10_000 - AROUND..10_000).contains(&page) {
            far += took;
        }
        match found.more {
            Some(more) if page < 10_000 => scan.upper = Bound::Excluded(more),
            _ => break,
        }
    }
    println!("figure sqlite_derived_page_us {:.0} us", first.as_secs_f64() * 1e6 / f64::from(AROUND));
    if page == 10_000 {
        println!(
            "figure sqlite_derived_page_10000_vs_1 {:.2} ratio",
            far.as_secs_f64() / first.as_secs_f64()
        );
    }
    Ok(())
}

/// Takes the last 1,000 blocks away.
async fn rollback(store: &SqliteDerived, heights: u64) -> Result<(), Box<dyn std::error::Error>> {
    let common = heights.saturating_sub(1_001);
    let orphans = (common + 1..heights)
        .map(|height| OrphanRef {
            block: BlockRef { height: Height(height), id: id(height) },
            timestamp_ms: 0,
        })
        .collect();
    let common = BlockRef { height: Height(common), id: id(common) };
    let entry = ReorgEntry::chain(1, &[0; 32], [1; 16], common, orphans, 0);
    let clock = Instant::now();
    store.begin_apply(&entry).await?;
    let (mut steps, mut longest) = (0, Duration::ZERO);
    loop {
        let step = Instant::now();
        let progress = store.apply_step(1, 10_000).await?;
        longest = longest.max(step.elapsed());
        steps += 1;
        if progress == ApplyProgress::Done {
            break;
        }
    }
    store.finish_apply(1).await?;
    println!("figure sqlite_derived_rollback_1000_blocks_s {:.2} s", clock.elapsed().as_secs_f64());
    println!("{steps} steps, the longest {} ms", longest.as_millis());
    Ok(())
}
