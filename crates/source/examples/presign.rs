//! Signs a chain file for the ingest benchmark, and reads it back with every check on.
//!
//! `cargo run --release -p cairn-source --example presign -- FILE TRANSACTIONS`

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use cairn_core::{Height, HeightRange};
use cairn_evm::SendersAre;
use cairn_source::ChainSource;
use cairn_source::evm::synthetic::{
    ForkId, PresignOptions, PresignedSource, SyntheticChain, SyntheticOptions, presign,
};
use cairn_source::verify::{Verified, VerifyOptions};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().context("which file?")?);
    let transactions: u64 = arguments.next().context("how many transactions?")?.parse()?;
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());

    let begun = Instant::now();
    presign(&path, &PresignOptions::new(1, transactions), threads, |_| ())?;
    let bytes = std::fs::metadata(&path)?.len();
    println!("figure presign_tx_per_s {:.0} tx/s", per_second(transactions, begun));
    println!("figure presign_bytes_per_tx {:.0} bytes", bytes as f64 / transactions as f64);

    let begun = Instant::now();
    let options = VerifyOptions { senders: SendersAre::RecoveredHere, ..VerifyOptions::default() };
    let source = Verified::new(PresignedSource::open(&path)?, options);
    let (mut at, mut read) = (Height(0), 0);
    loop {
        let blocks = source.blocks(HeightRange::new(at, at + source.preferred_heights())).await?;
        let Some(last) = blocks.last() else { break };
        at = last.facts.height.next();
        read += blocks.iter().map(|block| u64::from(block.facts.tx_count)).sum::<u64>();
    }
    println!("figure presigned_verified_tx_per_s {:.0} tx/s", per_second(read, begun));

    let traffic = SyntheticChain::tiny_traffic();
    for _ in 0..2 {
        let begun = Instant::now();
        for seed in 0..200 {
            let chain = SyntheticChain::with_traffic(SyntheticOptions::tiny(seed), traffic.clone());
            chain.block(ForkId::MAIN, Height(100));
        }
        println!("figure tiny_chain_of_100_blocks {:.2} ms", begun.elapsed().as_secs_f64() * 1e3 / 200.0);
    }
    Ok(())
}

fn per_second(count: u64, begun: Instant) -> f64 {
    count as f64 / begun.elapsed().as_secs_f64()
}
