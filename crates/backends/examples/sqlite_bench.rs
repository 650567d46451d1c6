//! How fast the SQLite store takes blocks and answers questions, on made-up blocks of 200 transactions with two logs each.
//!
//! `cargo run --release -p cairn-backends --features sqlite --example sqlite_bench -- DIR [TRANSACTIONS]`
//!
//! Prints a line for each million transactions and then `figure NAME VALUE UNIT` lines. CPU time is that of this process, the
//! making of the blocks left out.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{
    BlockFacts, BlockId, ChainId, Height, HeightRange, IndexKey, RawBlock, SystemClock, TxFacts, TxId,
    TxStatus,
};
use cairn_store::suite::blocks::Numbers;
use cairn_store::{
    AppendBatch, LogQuery, Maintained, PurgeProgress, RawMaintenance, RawReader, RawWriter, Rollback,
    StoreInfo,
};

const TXS_PER_BLOCK: u64 = 200;
const BLOCKS_PER_BATCH: u64 = 50;
const MAINTAIN_BYTES: u64 = 8 << 20;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("which directory?")?);
    let txs: u64 = args.next().map_or(Ok(5_000_000), |n| n.parse())?;
    let store = SqliteStore::open(SqliteOptions::new(&dir), Arc::new(SystemClock)).await?;
    store.init(StoreInfo { uuid: [1; 16], chain_id: ChainId(1), chain_config: Bytes::new() }).await?;
    let mut head = store.acquire().await?;

    let blocks = txs / TXS_PER_BLOCK;
    let mut wall = Duration::ZERO;
    let mut cpu_s = 0.0;
    let mut last = (Duration::ZERO, 0.0);
    let started = head.tip.map_or(0, |tip| tip.height.get() + 1);
    let mut parent_id = head.tip.map_or(BlockId::default(), |tip| tip.id);
    for from in (started..blocks).step_by(BLOCKS_PER_BATCH as usize) {
        let mut batch = Vec::new();
        for height in from..(from + BLOCKS_PER_BATCH).min(blocks) {
            let block = make_block(height, parent_id);
            parent_id = block.facts.id;
            batch.push(block);
        }
        let (clock, cpu) = (Instant::now(), process_cpu_s());
        head = store.append(head.fence, AppendBatch { blocks: batch, ..AppendBatch::default() }).await?;
        store.maintain(MAINTAIN_BYTES).await?;
        wall += clock.elapsed();
        cpu_s += process_cpu_s() - cpu;
        let done = (from + BLOCKS_PER_BATCH) * TXS_PER_BLOCK;
        if done.is_multiple_of(1_000_000) {
            let (wall_s, cpu) = ((wall - last.0).as_secs_f64(), cpu_s - last.1);
            println!(
                "{done} transactions: {:.0} tx/s, {:.2} cpu s per million, {} MiB resident",
                1e6 / wall_s,
                cpu,
                rss_mib()
            );
            last = (wall, cpu_s);
        }
    }
    let written = (blocks - started) * TXS_PER_BLOCK;
    if written > 0 {
        println!("figure sqlite_append_tx_per_s {:.0} tx/s", written as f64 / wall.as_secs_f64());
        println!("figure sqlite_cores_at_10k_tx_per_s {:.2} cores", cpu_s / written as f64 * 10_000.0);
    }
    let clock = Instant::now();
    while store.maintain(MAINTAIN_BYTES).await? == Maintained::More {}
    println!("the rest of the merges took {:.1} s", clock.elapsed().as_secs_f64());
    println!("figure sqlite_rss {} MiB", rss_mib());
    let sizes = store.snapshot().await?.sizes().await?;
    for (part, rows, bytes) in &sizes.parts {
        println!("  {part}: {rows} rows, {:.1} bytes per transaction", *bytes as f64 / txs as f64);
    }
    println!("  files: {:.1} bytes per transaction", sizes.total_bytes as f64 / txs as f64);

    lookups(&store, blocks).await?;
    log_queries(&store, blocks).await?;

    // R09: a rollback costs what it takes away, however large the store is.
    let common = store.snapshot().await?.linked_ref(Height(blocks - 4)).await?.ok_or("no block")?.block;
    let clock = Instant::now();
    store.rollback(head.fence, Rollback { common, max_depth: 10, decided_at_ms: 0 }).await?;
    while store.purge_step(head.fence, 100).await? != PurgeProgress::Done {}
    println!("figure sqlite_rollback_of_3 {:.1} ms", clock.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

async fn lookups(store: &SqliteStore, blocks: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = Numbers::new(7);
    let mut ids = Vec::new();
    for _ in 0..1_000 {
        let (height, index) = (numbers.below(blocks - 4), numbers.below(TXS_PER_BLOCK));
        ids.push((tx_id(height, index), height, index));
    }
    let clock = Instant::now();
    for (id, height, index) in &ids {
        let place = store.snapshot().await?.find_tx(*id).await?.ok_or("not found")?;
        assert_eq!((place.height.get(), u64::from(place.index)), (*height, *index));
    }
    println!("figure sqlite_find_tx {:.0} us", clock.elapsed().as_secs_f64() * 1e3);
    let clock = Instant::now();
    for n in 0..1_000 {
        assert!(store.snapshot().await?.find_tx(tx_id(n, TXS_PER_BLOCK + 1)).await?.is_none());
    }
    println!("figure sqlite_find_absent_tx {:.0} us", clock.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

async fn log_queries(store: &SqliteStore, blocks: u64) -> Result<(), Box<dyn std::error::Error>> {
    for (name, groups) in [
        ("sparse", vec![vec![account(12_345)]]),
        ("sparse_and_dense", vec![vec![contract(0)], vec![account(12_345)]]),
        ("dense", vec![vec![contract(0)]]),
    ] {
        for heights in [100, 1_000, 10_000, 100_000].into_iter().filter(|heights| *heights <= blocks * 4) {
            let heights = heights.min(blocks);
            let query = LogQuery { groups: groups.clone() };
            let (mut spent, mut found) = (Duration::ZERO, 0);
            const ROUNDS: u32 = 200;
            for _ in 0..ROUNDS {
                let clock = Instant::now();
                let range = HeightRange::new(Height(blocks - heights), Height(blocks));
                found = store.snapshot().await?.log_candidates(range, &query, 1_000).await?.len();
                spent += clock.elapsed();
            }
            println!(
                "figure sqlite_candidates_{name}_{heights} {:.0} us ({found} blocks)",
                spent.as_secs_f64() * 1e6 / f64::from(ROUNDS)
            );
        }
    }
    Ok(())
}

fn mix(a: u64, b: u64) -> u64 {
    Numbers::new(a.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ b).next_u64()
}

fn tx_id(height: u64, index: u64) -> TxId {
    let mut id = [0; 32];
    for (at, part) in id.chunks_exact_mut(8).enumerate() {
        part.copy_from_slice(&mix(height << 20 | index, at as u64).to_be_bytes());
    }
    TxId(id)
}

fn contract(n: u64) -> IndexKey {
    mix(1, n)
}

fn account(n: u64) -> IndexKey {
    mix(2, n)
}

fn make_block(height: u64, parent_id: BlockId) -> RawBlock {
    let mut numbers = Numbers::new(height);
    let (mut body, mut receipts, mut log_terms) = (Vec::new(), Vec::new(), Vec::new());
    let mut transactions = Vec::new();
    for index in 0..TXS_PER_BLOCK {
        let from = numbers.below(1_000_000);
        let sender: Vec<u8> = mix(3, from).to_be_bytes().into_iter().cycle().take(20).collect();
        transactions.push(TxFacts { id: tx_id(height, index), sender: sender.into(), status: TxStatus::Ok });
        // A signature, an address and some small fields.
        for _ in 0..11 {
            body.extend_from_slice(&numbers.next_u64().to_be_bytes());
        }
        body.extend_from_slice(&[0; 22]);
        for _ in 0..2 {
            // A few contracts have most of the logs.
            let which = numbers.below(100) * numbers.below(100) * numbers.below(100) / 100;
            let (a, b) = (numbers.below(1_000_000), numbers.below(1_000_000));
            log_terms.extend([contract(which), mix(4, which % 7), account(a), account(b)]);
            for term in [contract(which), mix(4, which % 7), account(a), account(b), numbers.next_u64()] {
                receipts.extend_from_slice(&[0; 12]);
                receipts.extend_from_slice(&term.to_be_bytes());
                receipts.extend_from_slice(&term.rotate_left(7).to_be_bytes());
            }
        }
    }
    log_terms.sort_unstable();
    log_terms.dedup();
    let mut header = Vec::new();
    for _ in 0..64 {
        header.extend_from_slice(&numbers.next_u64().to_be_bytes());
    }
    RawBlock {
        facts: BlockFacts {
            height: Height(height),
            id: BlockId(tx_id(height, u64::MAX >> 44).0),
            parent_id,
            timestamp_ms: height * 12_000,
            tx_count: TXS_PER_BLOCK as u32,
            log_count: 2 * TXS_PER_BLOCK as u32,
            unverified: 0,
        },
        transactions,
        header: header.into(),
        body: body.into(),
        receipts: receipts.into(),
        extras: Bytes::new(),
        traces: None,
        log_terms,
    }
}

/// User and system time of this process, in seconds; 0 where there is no /proc.
fn process_cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .into_iter()
        .flat_map(|rest| rest.split_whitespace().skip(11).take(2))
        .filter_map(|n| n.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or_default() >> 10
}
