//! What the benchmarks share: where their chains are kept, and what the operating system says of this process.
//!
//! A benchmark compares things in one run and prints ratios; nothing here passes or fails by a clock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use cairn_core::ChainId;
use cairn_evm::SendersAre;
use cairn_pipeline::ingest::IngestOptions;
use cairn_source::evm::synthetic::{PresignOptions, PresignedSource, presigned};
use cairn_source::verify::{Verified, VerifyOptions};
use cairn_store::StoreInfo;

/// Where benchmarks keep what is made once: `bench` in the cache folder of `./dev`.
pub fn cache_dir() -> Result<PathBuf> {
    let cache = match std::env::var_os("CAIRN_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("neither CAIRN_CACHE nor HOME is set")?)
            .join(".cache/cairn"),
    };
    let dir = cache.join("bench");
    std::fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    Ok(dir)
}

/// The file of a pre-signed chain; signed first where it is not there or was made from other options.
pub async fn presigned_file(options: PresignOptions) -> Result<PathBuf> {
    let name = format!("presigned-{}x{}.cairnps", options.transactions, options.txs_per_block);
    let path = cache_dir()?.join(name);
    let file = path.clone();
    let signing = tokio::task::spawn_blocking(move || {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        let (begun, mut told) = (Instant::now(), 0);
        presigned(&file, &options, threads, |signed| {
            if signed / 100_000 > told {
                told = signed / 100_000;
                let seconds = begun.elapsed().as_secs_f64();
                eprintln!("signed {signed} of {} transactions in {seconds:.0} s", options.transactions);
            }
        })
    });
    signing.await.context("signing ended early")??;
    Ok(path)
}

/// The chain in the file with every check on. Senders are recovered as the file is read: it holds none that could be believed.
pub fn verified(source: PresignedSource) -> Verified<PresignedSource> {
    let options = VerifyOptions { senders: SendersAre::RecoveredHere, ..VerifyOptions::default() };
    Verified::new(source, options)
}

/// What `cairn run` gives its ingester by default, to end at the source's head.
pub fn ingest_options(chain_id: u64) -> IngestOptions {
    let info =
        StoreInfo { uuid: *b"cairn-benchmark.", chain_id: ChainId(chain_id), chain_config: Bytes::new() };
    IngestOptions { exit_after_head: true, ..IngestOptions::new(info) }
}

/// The middle one; zero where there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Resident memory of this process now and at its peak, in MiB. Linux; elsewhere an error that says so.
pub fn resident_mib() -> Result<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status")
        .context("resident memory is read from /proc/self/status, which only Linux has")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib >> 10).with_context(|| format!("no {name} in /proc/self/status"))
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Processor time that this process has used, in seconds.
pub fn cpu_s() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("processor time")?;
    // After the program's name, which may hold anything: field 14 is user time, 15 system time, in hundredths.
    let fields: Vec<&str> =
        stat.rsplit(')').next().map(|rest| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |at: usize| fields.get(at).and_then(|ticks| ticks.parse::<f64>().ok());
    Ok((ticks(11).context("user time")? + ticks(12).context("system time")?) / 100.0)
}

/// Counts what a store commits.
#[derive(Debug, Default)]
pub struct Commits {
    appends: std::sync::atomic::AtomicU64,
}

impl Commits {
    /// A counter to be set as a store's hook.
    pub fn new() -> Arc<Commits> {
        Arc::default()
    }

    /// How many batches were appended.
    pub fn appends(&self) -> u64 {
        self.appends.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl cairn_store::memory::CommitHook for Commits {
    fn after(&self, verb: &'static str) -> cairn_store::Result<()> {
        if verb == "append" {
            self.appends.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }
}
