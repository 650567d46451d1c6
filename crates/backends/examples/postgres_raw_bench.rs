//! How fast the raw store on PostgreSQL takes blocks, against a bare binary COPY of the same rows into tables without any index, in one run. Made-up
//! blocks of 200 transactions with two events each.
//!
//! `cargo run --release -p cairn-backends --features postgres-raw --example postgres_raw_bench -- URL [TRANSACTIONS]`
//!
//! The database behind URL must be empty; its schema `raw` is dropped at the end. Prints `figure NAME VALUE UNIT` lines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_backends::postgres::{CopyBuf, PgConn, PgRawOptions, PgRawStore};
use cairn_core::{
    BlockFacts, BlockId, BlockLayout, ChainId, EventSlice, Height, RawBlock, Slices, TxFacts, TxId, TxSlice,
    TxStatus,
};
use cairn_store::suite::blocks::Numbers;
use cairn_store::{AppendBatch, RawMaintenance, RawWriter, StoreInfo};

const TXS_PER_BLOCK: u64 = 200;
const EVENTS_PER_TX: usize = 2;
const BLOCKS_PER_BATCH: u64 = 50;
const BODY_BYTES: usize = 170;
const EVENT_BYTES: usize = 150;
const RECEIPT_BYTES: usize = 12 + EVENTS_PER_TX * EVENT_BYTES;

/// The tables that a block's rows go to.
const TABLES: [&str; 5] = ["blocks", "transactions", "events", "block_lookup", "tx_lookup"];

#[derive(Debug)]
struct Fixed;

impl BlockLayout for Fixed {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let mut slices = Slices::default();
        for index in 0..block.transactions.len() {
            let at = index * RECEIPT_BYTES;
            slices.transactions.push(TxSlice {
                body: index * BODY_BYTES..(index + 1) * BODY_BYTES,
                receipt: at..at + RECEIPT_BYTES,
            });
            for event in 0..EVENTS_PER_TX {
                let at = at + 12 + event * EVENT_BYTES;
                slices.events.push(EventSlice { tx_index: index as u32, range: at..at + EVENT_BYTES });
            }
        }
        Some(slices)
    }
}

fn random(numbers: &mut Numbers, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&numbers.next_u64().to_be_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn make_block(height: u64, parent_id: BlockId) -> RawBlock {
    let mut numbers = Numbers::new(height ^ 0x5eed);
    let mut hash = || -> [u8; 32] {
        let mut id = [0; 32];
        id.copy_from_slice(&random(&mut numbers, 32));
        id
    };
    let id = BlockId(hash());
    let transactions: Vec<TxFacts> = (0..TXS_PER_BLOCK)
        .map(|n| TxFacts {
            id: TxId(hash()),
            sender: Bytes::copy_from_slice(&[n as u8; 20]),
            status: TxStatus::Ok,
        })
        .collect();
    let facts = BlockFacts {
        height: Height(height),
        id,
        parent_id,
        timestamp_ms: height * 12_000,
        tx_count: TXS_PER_BLOCK as u32,
        log_count: (TXS_PER_BLOCK as usize * EVENTS_PER_TX) as u32,
        unverified: 0,
    };
    let mut log_terms: Vec<u64> = (0..300).map(|_| numbers.below(50_000)).collect();
    log_terms.sort_unstable();
    log_terms.dedup();
    RawBlock {
        facts,
        transactions,
        header: random(&mut numbers, 540).into(),
        body: random(&mut numbers, BODY_BYTES * TXS_PER_BLOCK as usize).into(),
        receipts: random(&mut numbers, RECEIPT_BYTES * TXS_PER_BLOCK as usize).into(),
        extras: Bytes::new(),
        traces: None,
        log_terms,
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("which database?")?;
    let txs: u64 = args.next().map_or(Ok(400_000), |n| n.parse())?;
    let options = PgRawOptions { layout: Arc::new(Fixed), ..PgRawOptions::new(url) };
    let store = PgRawStore::open(options, None).await?;
    store.init(StoreInfo { uuid: [1; 16], chain_id: ChainId(1), chain_config: Bytes::new() }).await?;
    let mut head = store.acquire().await?;

    let blocks = txs / TXS_PER_BLOCK;
    let (mut wall, mut maintaining) = (Duration::ZERO, Duration::ZERO);
    let mut parent_id = BlockId::default();
    for from in (0..blocks).step_by(BLOCKS_PER_BATCH as usize) {
        let mut batch = Vec::new();
        for height in from..(from + BLOCKS_PER_BATCH).min(blocks) {
            let block = make_block(height, parent_id);
            parent_id = block.facts.id;
            batch.push(block);
        }
        let clock = Instant::now();
        head = store.append(head.fence, AppendBatch { blocks: batch, ..AppendBatch::default() }).await?;
        wall += clock.elapsed();
        let clock = Instant::now();
        store.maintain(8 << 20).await?;
        maintaining += clock.elapsed();
    }
    let rows = blocks + txs * (1 + EVENTS_PER_TX as u64) + blocks + txs;
    println!("figure raw_rows_per_s {:.0} rows/s", rows as f64 / wall.as_secs_f64());
    println!("figure raw_txs_per_s {:.0} tx/s", txs as f64 / wall.as_secs_f64());
    println!("figure raw_maintain_share {:.3} ratio", maintaining.as_secs_f64() / wall.as_secs_f64());

    // The same rows as the server sends them, into tables of the same columns.
    let conn = store.pool().get().await?;
    conn.batch("SET statement_timeout = 0; DROP SCHEMA IF EXISTS bare CASCADE; CREATE SCHEMA bare").await?;
    let mut bare = Duration::ZERO;
    for table in TABLES {
        conn.batch(&format!("CREATE TABLE bare.{table} (LIKE raw.{table} INCLUDING STORAGE)")).await?;
        let took = bare_copy(&conn, table).await?;
        println!("bare copy of {table}: {:.2} s", took.as_secs_f64());
        bare += took;
    }
    println!("figure raw_vs_copy {:.2} ratio", bare.as_secs_f64() / wall.as_secs_f64());
    // What each index costs, beside the bare rows.
    for (name, table, index) in [
        ("transactions_key", "transactions", "(block_height, id, transaction_index)"),
        ("transactions_in_order", "transactions", "(block_height, transaction_index)"),
        ("events_key", "events", "(block_height, transaction_id, event_index)"),
        ("tx_lookup_key", "tx_lookup", "(id, block_height, tx_index)"),
    ] {
        conn.batch(&format!("TRUNCATE bare.{table}; CREATE INDEX {name} ON bare.{table} {index}")).await?;
        let took = bare_copy(&conn, table).await?;
        println!("copy of {table} with {name}: {:.2} s", took.as_secs_f64());
        conn.batch(&format!("DROP INDEX bare.{name}")).await?;
    }
    conn.batch("DROP SCHEMA bare CASCADE; DROP SCHEMA raw CASCADE").await?;
    Ok(())
}

/// Copies a raw table's rows into the bare one; how long that took without the reading.
async fn bare_copy(conn: &PgConn, table: &str) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    conn.copy_out(&format!("COPY (SELECT * FROM raw.{table}) TO STDOUT (FORMAT binary)"), |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    let clock = Instant::now();
    conn.copy_in(&format!("COPY bare.{table} FROM STDIN (FORMAT binary)"), CopyBuf::encoded(bytes.into()))
        .await?;
    Ok(clock.elapsed())
}
