//! `./dev bench getlogs`: what `eth_getLogs` costs on a chain of a hundred thousand blocks, for filters that match little, some and much,
//! over 10^3, 10^4 and 10^5 blocks that all end at the head.
//!
//! Each answer is compared, byte for byte, with a brute-force scan in the same run: all receipts of the range are read through the store and
//! filtered. The sparse filter's logs all lie within the last thousand blocks, so that each of its ranges has the same matches and
//! only the width differs; `spread` has its few matches everywhere. Then cairn and anvil answer over HTTP on anvil's chain: see
//! [`crate::bench_peer`].

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use cairn_api::{EthApi, RpcLimits};
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{Clock, Height, HeightRange, Parts, SystemClock};
use cairn_evm::{BlockView, FilterLimits, LogFilter, parse_filter};
use cairn_pipeline::ingest::{Finished, Ingester};
use cairn_pipeline::status::StatusBoard;
use cairn_source::evm::synthetic::{PresignOptions, PresignedSource};
use cairn_store::{Maintained, RawMaintenance, RawReader};
use clap::Parser;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::bench::{cache_dir, ingest_options, median, presigned_file, verified};
use crate::bench_peer;
use crate::report::figure;
use crate::rpc::{hex, quantity, text};

const BLOCKS: u64 = 100_000;
const TXS_PER_BLOCK: u32 = 2;
const WIDTHS: [u64; 3] = [1_000, 10_000, 100_000];
/// The sparse filter's contracts are called only in this many blocks at the head.
const SPARSE_WITHIN: u64 = 1_000;
/// How many contracts the sparse filters name.
const SPARSE_CONTRACTS: usize = 5;
/// A filter is asked again and again for so long, each width in turn, and at least this often.
const REPEAT_FOR: Duration = Duration::from_secs(4);
const REPEAT_AT_LEAST: usize = 3;
/// Bytes of receipts that the scan reads at once: as much as the server does.
const SCAN_BYTES: u64 = 4 << 20;
const MAINTAIN_STEP_BYTES: u64 = 8 << 20;

/// What to run beside the comparison with a scan.
#[derive(Parser)]
#[command(
    name = "bench getlogs",
    about = "eth_getLogs by index against a scan, over ranges of growing width"
)]
pub struct Options {
    /// Without the second part, in which cairn and an anvil are asked over HTTP on anvil's chain.
    #[arg(long)]
    no_peer: bool,
    /// The second part alone.
    #[arg(long, conflicts_with = "no_peer")]
    peer_only: bool,
    #[command(flatten)]
    programs: bench_peer::Options,
    /// Keep the store in this folder; one that is whole is used again.
    #[arg(long)]
    keep: Option<PathBuf>,
}

struct Bench {
    store: Arc<SqliteStore>,
    api: EthApi,
    head: u64,
}

/// A filter, and its cost: seconds for each width, by index and by scan.
struct Measured {
    logs: Vec<usize>,
    index_s: Vec<f64>,
    scan_s: Vec<f64>,
}

/// Runs the benchmark.
pub async fn run(options: Options) -> Result<ExitCode> {
    if !options.peer_only {
        let temporary = tempfile::tempdir_in(cache_dir()?)?;
        run_on(options.keep.as_deref().unwrap_or(temporary.path())).await?;
    }
    if !options.no_peer {
        bench_peer::run(&options.programs).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_on(dir: &Path) -> Result<()> {
    let chain = PresignOptions {
        txs_per_block: TXS_PER_BLOCK,
        ..PresignOptions::new(2, BLOCKS * u64::from(TXS_PER_BLOCK))
    };
    let store = build(chain.clone(), dir).await?;
    // Nothing is refused here: what is measured is what answers cost.
    let limits = RpcLimits {
        max_log_results: usize::MAX,
        max_response_bytes: usize::MAX,
        request_timeout_ms: 600_000,
        max_filter_values: usize::MAX,
        ..RpcLimits::default()
    };
    let head = store.snapshot().await?.head().tip.context("an empty store")?.height.get();
    let bench = Bench { api: EthApi::new(store.clone(), limits), store, head };
    let traffic = chain.traffic();
    let contracts = traffic.contracts();

    let sparse = bench.called_at_the_end_only(&contracts.rare).await?;
    let one = json!({ "address": sparse[0] });
    let spread = json!({ "address": &contracts.rare[..500] });
    for (name, filter) in [
        ("sparse", json!({ "address": sparse })),
        ("sparse_one", one),
        ("spread", spread),
        ("medium", json!({ "address": contracts.erc20[30] })),
        ("dense", json!({ "address": contracts.erc20[0] })),
    ] {
        let measured = bench.measure(&filter).await.with_context(|| name.to_owned())?;
        for (at, width) in WIDTHS.iter().enumerate() {
            let (index_s, scan_s) = (measured.index_s[at], measured.scan_s[at]);
            println!(
                "{name:<10} {width:>6} blocks: {:>6} logs, {:>9.3} ms by index, {:>9.1} ms by scan",
                measured.logs[at],
                index_s * 1e3,
                scan_s * 1e3
            );
            figure(&format!("getlogs_{name}_{width}_vs_scan"), format!("{:.1}", scan_s / index_s), "ratio");
        }
        let growth = measured.index_s[2] / measured.index_s[1];
        figure(&format!("getlogs_{name}_growth_10x"), format!("{growth:.2}"), "ratio");
    }
    Ok(())
}

/// The archive of the chain, every block checked, its index merged as it would be after a while.
async fn build(chain: PresignOptions, dir: &Path) -> Result<Arc<SqliteStore>> {
    let file = presigned_file(chain.clone()).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(dir), clock.clone()).await?);
    let source = Arc::new(verified(PresignedSource::open(&file)?));
    let begun = Instant::now();
    let board = StatusBoard::new(clock.clone());
    let ingester = Ingester::new(source, store.clone(), clock, board, ingest_options(chain.chain_id));
    match ingester.run(CancellationToken::new()).await? {
        Finished::ReachedHead => {}
        other => bail!("the ingester ended with {other:?}"),
    }
    while store.maintain(MAINTAIN_STEP_BYTES).await? == Maintained::More {}
    println!("{} blocks stored in {:.0} s", chain.blocks(), begun.elapsed().as_secs_f64());
    Ok(store)
}

impl Bench {
    fn range(&self, width: u64) -> HeightRange {
        HeightRange::inclusive(Height(self.head + 1 - width), Height(self.head))
    }

    fn in_range(&self, filter: &Value, width: u64) -> Value {
        let mut filter = filter.clone();
        filter["fromBlock"] = json!(hex(self.head + 1 - width));
        filter["toBlock"] = json!(hex(self.head));
        filter
    }

    async fn ask(&self, params: &RawValue) -> Result<bytes::Bytes> {
        let answer = self.api.call("eth_getLogs", Some(params)).await;
        Ok(answer.map_err(|error| anyhow!("error {}: {}", error.code, error.message))?.into_json())
    }

    /// Contracts of these that have logs only in the last blocks.
    async fn called_at_the_end_only(&self, contracts: &[alloy_primitives::Address]) -> Result<Vec<String>> {
        let filter = self.in_range(&json!({ "address": contracts }), self.head + 1);
        let logs: Vec<Value> = serde_json::from_slice(&self.ask(&params(&filter)?).await?)?;
        let mut first_seen: HashMap<String, u64> = HashMap::new();
        for log in &logs {
            first_seen.entry(text(&log["address"])?).or_insert(quantity(&log["blockNumber"])?);
        }
        let begin = self.head + 1 - SPARSE_WITHIN;
        let mut late: Vec<String> =
            first_seen.into_iter().filter(|(_, first)| *first >= begin).map(|(address, _)| address).collect();
        late.sort();
        late.truncate(SPARSE_CONTRACTS);
        ensure!(late.len() == SPARSE_CONTRACTS, "only {} contracts are new at the end", late.len());
        Ok(late)
    }

    async fn measure(&self, filter: &Value) -> Result<Measured> {
        let questions: Vec<Box<RawValue>> =
            WIDTHS.iter().map(|width| params(&self.in_range(filter, *width))).collect::<Result<_>>()?;
        let (mut logs, mut scan_s) = (Vec::new(), Vec::new());
        for (width, question) in WIDTHS.iter().zip(&questions) {
            let (_, parsed) = parse_filter(
                &self.in_range(filter, *width),
                &FilterLimits { max_addresses: usize::MAX, max_topics_per_position: usize::MAX },
            )
            .map_err(|error| anyhow!("{error:?}"))?;
            let begun = Instant::now();
            let (count, scanned) = self.scan(self.range(*width), parsed).await?;
            scan_s.push(begun.elapsed().as_secs_f64());
            // Also what warms the caches.
            ensure!(self.ask(question).await? == scanned, "the answer over {width} blocks is not the scan's");
            logs.push(count);
        }
        // In turn, so that whatever else the machine does meets every width.
        let mut times = vec![Vec::new(); WIDTHS.len()];
        let begun = Instant::now();
        while begun.elapsed() < REPEAT_FOR || times[0].len() < REPEAT_AT_LEAST {
            for (times, question) in times.iter_mut().zip(&questions) {
                let asked = Instant::now();
                self.ask(question).await?;
                times.push(asked.elapsed().as_secs_f64());
            }
        }
        Ok(Measured { logs, index_s: times.into_iter().map(median).collect(), scan_s })
    }

    /// Reads the receipts of every block and filters them; how many logs there are, and the answer.
    async fn scan(&self, range: HeightRange, filter: LogFilter) -> Result<(usize, Vec<u8>)> {
        let parts = Parts::RECEIPTS | Parts::TRANSACTIONS | Parts::EXTRAS;
        let (mut at, mut count, mut out) = (range.start(), 0, vec![b'[']);
        while at < range.end() {
            let snapshot = self.store.snapshot().await?;
            let read = snapshot.blocks(HeightRange::new(at, range.end()), parts, SCAN_BYTES).await?;
            at = read.next;
            for block in read.blocks {
                count += BlockView::decode(block, None)?.write_logs(&filter, false, &mut out)?;
            }
        }
        if count > 0 {
            out.pop();
        }
        out.push(b']');
        Ok((count, out))
    }
}

fn params(filter: &Value) -> Result<Box<RawValue>> {
    Ok(RawValue::from_string(json!([filter]).to_string())?)
}
