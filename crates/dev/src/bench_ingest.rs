//! `./dev bench ingest`: how fast blocks go from a source into a real archive, and what bounds that.
//!
//! The chain is signed once into a file of the cache folder; it holds consensus bytes only, so that every id is hashed, every
//! sender recovered and every root computed on the way, as with a node. Then, in one run:
//!
//! 1. **ingest**: the real ingester takes the whole chain into a new SQLite store.
//! 2. **read**: the blocks of the last million transactions are read, checked in the same way, and thrown away.
//! 3. **write**: as many bytes as the store took for them go to a plain file, as many at a time as a commit had, each with fsync.
//!
//! Each runs in a process of its own on at most two processors, so that memory is its own and "two cores" means two.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{Clock, Height, HeightRange, SystemClock};
use cairn_pipeline::ingest::{Finished, Ingester};
use cairn_pipeline::status::StatusBoard;
use cairn_source::ChainSource;
use cairn_source::evm::synthetic::{PresignOptions, PresignedSource};
use cairn_store::{Maintained, RawMaintenance, RawReader, StoreSizes};
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::bench::{Commits, cpu_s, ingest_options, presigned_file, resident_mib, verified};
use crate::report::figure;

/// Figures are of this many transactions at the end.
const LAST_TXS: u64 = 1_000_000;
/// What one step of the maintenance that is left at the end handles.
const MAINTAIN_STEP_BYTES: u64 = 8 << 20;
/// Begins the line with which a phase hands its numbers over.
const RESULT: &str = "result ";

/// How much, and where.
#[derive(Parser)]
#[command(
    name = "bench ingest",
    about = "Ingest of a pre-signed chain into a new SQLite store, every check on"
)]
pub struct Options {
    /// Transactions of the chain. Figures are of the last million, or of all of them where there are less than two million.
    #[arg(long, default_value_t = 5_000_000)]
    txs: u64,
    /// Put the store into this folder, which must not hold one, and keep it; default: a temporary one beside the chain.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Not by hand: which part a child process runs.
    #[arg(long, hide = true)]
    phase: Option<Phase>,
    /// Not by hand: the chain.
    #[arg(long, hide = true)]
    chain: Option<PathBuf>,
    /// Not by hand: bytes of one write.
    #[arg(long, hide = true, default_value_t = 0)]
    write_bytes: u64,
    /// Not by hand: how many writes.
    #[arg(long, hide = true, default_value_t = 0)]
    writes: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Phase {
    Ingest,
    Read,
    Write,
}

impl Options {
    /// A piece at the end has to be long against what the ingester has fetched when it begins, some 150,000 transactions, else
    /// it is measured as if it came for nothing.
    fn last_txs(&self) -> u64 {
        if self.txs < 2 * LAST_TXS { self.txs } else { LAST_TXS }
    }
}

/// Runs the benchmark, or one of its phases.
pub async fn run(options: Options) -> Result<ExitCode> {
    if let Some(phase) = options.phase {
        let chain = options.chain.as_deref().context("--chain")?;
        let store = options.keep.as_deref().context("--keep")?;
        let result = match phase {
            Phase::Ingest => ingest(chain, store, options.last_txs()).await?,
            Phase::Read => read(chain, options.last_txs()).await?,
            Phase::Write => write(store, options.write_bytes, options.writes)?,
        };
        println!("{RESULT}{result}");
        return Ok(ExitCode::SUCCESS);
    }
    let chain = presigned_file(PresignOptions::new(1, options.txs)).await?;
    let temporary = match &options.keep {
        Some(_) => None,
        None => Some(tempfile::tempdir_in(crate::bench::cache_dir()?)?),
    };
    let store = match (&options.keep, &temporary) {
        (Some(keep), _) => keep.clone(),
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => bail!("no folder for the store"),
    };
    ensure!(!store.join("raw.sqlite").exists(), "{} holds a store already", store.display());

    let ingest = child(&options, Phase::Ingest, &chain, &store, &[]).await?;
    let read = child(&options, Phase::Read, &chain, &store, &[]).await?;
    let write_bytes = number(&ingest, "commit_bytes")?.round() as u64;
    let writes = number(&ingest, "last_commits")?.round() as u64;
    let more = ["--write-bytes".into(), write_bytes.to_string(), "--writes".into(), writes.to_string()];
    let write = child(&options, Phase::Write, &chain, &store, &more).await?;

    let last = options.last_txs() as f64;
    let (ingest_us, read_us) = (1e6 / number(&ingest, "tx_per_s")?, 1e6 / number(&read, "tx_per_s")?);
    let write_us = number(&write, "seconds")? * 1e6 / last;
    println!(
        "ingest: {ingest_us:.1} µs a transaction of which {:.1} µs of processor time",
        number(&ingest, "cpu_us_per_tx")?
    );
    println!(
        "read, checked and thrown away: {read_us:.1} µs, {:.1} µs of processor time",
        number(&read, "cpu_us_per_tx")?
    );
    println!(
        "write and fsync of the same bytes: {write_us:.1} µs, {writes} writes of {} KiB",
        write_bytes >> 10
    );
    println!("ratios are of the time for the same blocks: 1.00 would be as fast as what it is compared with");
    figure("ingest_tx_per_s", format!("{:.0}", number(&ingest, "tx_per_s")?), "tx/s");
    figure("ingest_whole_tx_per_s", format!("{:.0}", number(&ingest, "whole_tx_per_s")?), "tx/s");
    figure("ingest_peak_rss_mib", number(&ingest, "peak_rss_mib")?, "MiB");
    figure("ingest_rss_growth", format!("{:.2}", number(&ingest, "rss_growth")?), "ratio");
    figure("ingest_vs_read", format!("{:.2}", ingest_us / read_us), "ratio");
    figure("ingest_vs_write_fsync", format!("{:.2}", ingest_us / write_us), "ratio");
    figure("ingest_cpu_us_per_tx", format!("{:.1}", number(&ingest, "cpu_us_per_tx")?), "us");
    figure("ingest_bytes_per_tx", format!("{:.1}", number(&ingest, "bytes_per_tx")?), "bytes");
    Ok(ExitCode::SUCCESS)
}

fn number(result: &Value, name: &str) -> Result<f64> {
    result[name].as_f64().with_context(|| format!("no number {name} in {result}"))
}

/// Runs a phase in a process of its own on the first two processors, passes its lines on, and returns its numbers.
async fn child(
    options: &Options,
    phase: Phase,
    chain: &Path,
    store: &Path,
    more: &[String],
) -> Result<Value> {
    let program = std::env::current_exe().context("this program's path")?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut command = if cores > 2 {
        // Without it (not on Linux) there would be more than two processors: an error rather than another figure.
        let mut pinned = tokio::process::Command::new("taskset");
        pinned.args(["-c", "0,1"]).arg(program);
        pinned
    } else {
        tokio::process::Command::new(program)
    };
    let name = match phase {
        Phase::Ingest => "ingest",
        Phase::Read => "read",
        Phase::Write => "write",
    };
    command
        .args(["bench", "ingest", "--phase", name, "--txs", &options.txs.to_string(), "--chain"])
        .arg(chain);
    command.arg("--keep").arg(store).args(more).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("can't start the phase {name}"))?;
    let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    let mut result = None;
    while let Some(line) = lines.next_line().await? {
        match line.strip_prefix(RESULT) {
            Some(json) => result = Some(serde_json::from_str(json)?),
            None => println!("{line}"),
        }
    }
    let status = child.wait().await?;
    ensure!(status.success(), "the phase {name} ended with {status}");
    result.with_context(|| format!("the phase {name} gave no numbers"))
}

/// What was measured when so many transactions were stored.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    cpu_s: f64,
    transactions: u64,
    commits: u64,
    rss_mib: u64,
}

async fn ingest(chain: &Path, dir: &Path, last_txs: u64) -> Result<Value> {
    let source = PresignedSource::open(chain)?;
    let (chain_id, all_txs) = (source.made_from().chain_id, transactions(&source));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(dir), clock.clone()).await?);
    let commits = Commits::new();
    store.set_hook(Some(commits.clone()));
    let board = StatusBoard::new(clock.clone());
    let mut status = board.subscribe();
    let ingester =
        Ingester::new(Arc::new(verified(source)), store.clone(), clock, board, ingest_options(chain_id));
    let working = tokio::spawn(async move { ingester.run(CancellationToken::new()).await });

    let mark = |transactions| -> Result<Mark> {
        let (rss_mib, _) = resident_mib()?;
        Ok(Mark { at: Instant::now(), cpu_s: cpu_s()?, transactions, commits: commits.appends(), rss_mib })
    };
    let mut marks = vec![mark(0)?];
    // Ends when the ingester lets go of its board.
    while status.changed().await.is_ok() {
        let stored = status.borrow_and_update().transactions;
        let before = marks[marks.len() - 1];
        // The end of the chain is a mark too.
        if stored / last_txs > before.transactions / last_txs
            || (stored == all_txs && before.transactions < all_txs)
        {
            let now = mark(stored)?;
            println!(
                "{stored} transactions: {:.0} tx/s, {:.1} µs of processor time each, {} MiB resident, {} commits",
                rate(before, now),
                cpu_us(before, now),
                now.rss_mib,
                now.commits - before.commits
            );
            marks.push(now);
        }
    }
    match working.await.context("the ingester panicked")?? {
        Finished::ReachedHead => {}
        other => bail!("the ingester ended with {other:?}"),
    }
    let [.., before, end] = marks[..] else { bail!("nothing was stored") };
    ensure!(end.transactions == all_txs, "{} of {all_txs} transactions were stored", end.transactions);

    let merging = Instant::now();
    while store.maintain(MAINTAIN_STEP_BYTES).await? == Maintained::More {}
    println!("merges that were left at the end took {:.1} s", merging.elapsed().as_secs_f64());
    let sizes = store.snapshot().await?.sizes().await?;
    print_sizes(&sizes, all_txs);
    let stored_bytes: u64 = sizes.parts.iter().map(|(_, _, bytes)| bytes).sum();
    let last_commits = (end.commits - before.commits).max(1);
    let last_bytes = stored_bytes as f64 * (end.transactions - before.transactions) as f64 / all_txs as f64;
    // The first mark is before the caches are warm, the second one after.
    let first = marks.get(1).map_or(end.rss_mib, |mark| mark.rss_mib).max(1);
    let (_, peak) = resident_mib()?;
    Ok(json!({
        "tx_per_s": rate(before, end),
        "whole_tx_per_s": rate(marks[0], end),
        "cpu_us_per_tx": cpu_us(before, end),
        "peak_rss_mib": peak,
        "rss_growth": end.rss_mib as f64 / first as f64,
        "last_commits": last_commits,
        "commit_bytes": last_bytes / last_commits as f64,
        "bytes_per_tx": sizes.total_bytes as f64 / all_txs as f64,
    }))
}

fn transactions(source: &PresignedSource) -> u64 {
    source.head().get() * u64::from(source.made_from().txs_per_block)
}

fn rate(from: Mark, to: Mark) -> f64 {
    (to.transactions - from.transactions) as f64 / (to.at - from.at).as_secs_f64()
}

fn cpu_us(from: Mark, to: Mark) -> f64 {
    (to.cpu_s - from.cpu_s) * 1e6 / (to.transactions - from.transactions) as f64
}

fn print_sizes(sizes: &StoreSizes, txs: u64) {
    for (part, rows, bytes) in sizes.parts.iter().filter(|(_, rows, _)| *rows > 0) {
        println!("  {part}: {rows} rows, {:.1} bytes a transaction", *bytes as f64 / txs as f64);
    }
    println!("  files: {:.1} bytes a transaction", sizes.total_bytes as f64 / txs as f64);
}

/// Reads the last blocks as the ingester does, as many calls in flight, and drops them.
async fn read(chain: &Path, last_txs: u64) -> Result<Value> {
    let source = PresignedSource::open(chain)?;
    let head = source.head();
    let blocks = last_txs.div_ceil(u64::from(source.made_from().txs_per_block));
    let chain_id = source.made_from().chain_id;
    let source = verified(source);
    let range = HeightRange::inclusive(Height(head.get() - blocks + 1), head);
    let in_flight = ingest_options(chain_id).fetches_in_flight;
    let step = source.preferred_heights();
    let calls = (range.start().get()..range.end().get())
        .step_by(step as usize)
        .map(|from| HeightRange::new(Height(from), Height(from + step).min(range.end())));
    let (begun, cpu) = (Instant::now(), cpu_s()?);
    let txs: u64 = stream::iter(calls)
        .map(|piece| {
            let source = &source;
            async move {
                let (mut at, mut txs) = (piece.start(), 0);
                while at < piece.end() {
                    let blocks = source.blocks(HeightRange::new(at, piece.end())).await?;
                    let last = blocks.last().with_context(|| format!("block {at} is not there"))?;
                    at = last.facts.height.next();
                    txs += blocks.iter().map(|block| u64::from(block.facts.tx_count)).sum::<u64>();
                }
                anyhow::Ok(txs)
            }
        })
        .buffered(in_flight)
        .try_fold(0, |sum, txs| async move { Ok(sum + txs) })
        .await?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(json!({ "tx_per_s": txs as f64 / seconds, "cpu_us_per_tx": (cpu_s()? - cpu) * 1e6 / txs as f64 }))
}

/// Writes bytes of the store's own file, so that they are as compressed as they are, and syncs after each piece. Reading them isn't timed.
fn write(store: &Path, write_bytes: u64, writes: u64) -> Result<Value> {
    use std::io::{Read, Seek, SeekFrom, Write};
    let mut from = std::fs::File::open(store.join("raw.sqlite"))?;
    let mut to = tempfile::tempfile_in(store)?;
    let mut piece = vec![0; write_bytes.max(1) as usize];
    let mut seconds = 0.0;
    for _ in 0..writes {
        let mut filled = 0;
        while filled < piece.len() {
            match from.read(&mut piece[filled..])? {
                0 => from.seek(SeekFrom::Start(0)).map(drop)?,
                read => filled += read,
            }
        }
        let begun = Instant::now();
        to.write_all(&piece)?;
        to.sync_data()?;
        seconds += begun.elapsed().as_secs_f64();
    }
    Ok(json!({ "seconds": seconds }))
}
