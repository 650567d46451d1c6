//! `./dev bench flow`: Flow from an access node into PostgreSQL.
//!
//! The node runs in this process, over a chain from a seed: blocks of so many transactions, each with fees, token movements, EVM and the rest
//! (`cairn-flow-node`). Its answers are encoded beforehand, so that it answers at once.
//!
//! **Throughput.** The real `cairn run --exit-after-head` takes the chain into two new databases and derives every table. The clock runs from the start of the process until it ends by itself. What bounds it is
//! told by two more runs: without derived work (`flow_raw_blocks_per_s`), and the source alone, which fetches and checks the blocks and throws them away (`flow_source_blocks_per_s`).
//! All share the machine with the node and the database.
//!
//! **A node's limit.** A node that lets 100 requests through a second (a bucket of ten) and refuses what is more: how many were used from the first to the last, and how many were
//! refused, which are wasted. Scripts for names are among them. Fewer than [`LEAST_USED_PER_S`], or one refused, is a failure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_backends::postgres::PgPool;
use cairn_core::{Height, HeightRange};
use cairn_flow::Network;
use cairn_flow_node::{Behaviour, FlowNode, Generator, GeneratorOptions, RateLimit};
use cairn_source::ChainSource;
use cairn_source::flow::{FlowConfig, FlowSource, NodeConfig};
use clap::Parser;
use tokio::process::Command;

use crate::args::{KeepArgs, ServerArgs};
use crate::bench::{cache_dir, median};
use crate::bench_pg::{Database, describe};
use crate::peer::Peer;
use crate::report::figure;

const LIMIT: Duration = Duration::from_secs(600);
/// What a public node lets through.
const REQUESTS_PER_S: u32 = 100;
/// So many of them have to be used.
const LEAST_USED_PER_S: f64 = 95.0;

/// Where things are, and how much.
#[derive(Parser)]
#[command(name = "bench flow", about = "From a Flow access node into PostgreSQL, everything derived")]
pub struct Options {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Blocks of the chain.
    #[arg(long, default_value_t = 2_000)]
    blocks: u64,
    /// Transactions of a block.
    #[arg(long, default_value_t = 20)]
    transactions: usize,
    /// How often cairn takes the chain; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Blocks that are asked of the node with a limit.
    #[arg(long, default_value_t = 500)]
    limited_blocks: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Runs the benchmark.
pub async fn run(options: Options) -> Result<ExitCode> {
    describe(&options.server.postgres).await?;
    let folder = options.keep.folder_in(&cache_dir()?)?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let made = GeneratorOptions {
        transactions: options.transactions..=options.transactions,
        rlp_heights: 0,
        old_heights: 0,
        ..GeneratorOptions::new(1)
    };
    let generator = Generator::new(made.clone(), Behaviour::default());
    let begun = Instant::now();
    generator.grow(options.blocks);
    let events: u64 = {
        let state = generator.state();
        let state = state.lock().map_err(|_| anyhow::anyhow!("the generator panicked"))?;
        state.ledger.transactions.values().flatten().map(|tx| tx.event_types.len() as u64).sum()
    };
    println!(
        "{} blocks with {events} events, made in {:.1} s",
        options.blocks,
        begun.elapsed().as_secs_f64()
    );
    let node = FlowNode::serve(generator.state()).await?;
    let all = Run { options: &options, folder, node: &node, requests_per_s: 0, derive: true };
    let mut seconds = Vec::new();
    for number in 0..options.runs.max(1) {
        seconds.push(all.once(&format!("all-{number}"), options.blocks, Some(events)).await?);
    }
    let all_s = median(seconds);
    let raw_s = Run { derive: false, ..all }.once("raw", options.blocks, Some(events)).await?;
    let source_s = source_alone(&node, made.root_height, options.blocks).await?;
    let blocks = options.blocks as f64;
    figure("flow_blocks_per_s", format!("{:.0}", blocks / all_s), "blocks/s");
    figure("flow_events_per_s", format!("{:.0}", events as f64 / all_s), "events/s");
    figure("flow_raw_blocks_per_s", format!("{:.0}", blocks / raw_s), "blocks/s");
    figure("flow_source_blocks_per_s", format!("{:.0}", blocks / source_s), "blocks/s");
    drop(node);
    limited(&options, folder).await?;
    Ok(ExitCode::SUCCESS)
}

/// How cairn is run.
#[derive(Clone, Copy)]
struct Run<'a> {
    options: &'a Options,
    folder: &'a Path,
    node: &'a FlowNode,
    requests_per_s: u32,
    derive: bool,
}

impl Run<'_> {
    /// Into two new databases; how long it took.
    async fn once(&self, name: &str, blocks: u64, events: Option<u64>) -> Result<f64> {
        let raw = Database::make(&self.options.server.postgres, "flow_raw").await?;
        let app = Database::make(&self.options.server.postgres, "flow_app").await?;
        let mut command = Command::new(&self.options.cairn);
        let root = self.node.state().chain.root_height.to_string();
        command.args(["run", "--network", "emulator", "--from", &root, "--exit-after-head"]);
        command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]);
        command.arg("--data").arg(self.folder.join(format!("data-{name}")));
        // Ours, not a setting of cairn's, which refuses what it doesn't know.
        command.env_remove("CAIRN_TEST_PG_URL");
        // As on real networks.
        command.env("CAIRN_CHAIN__FLOW__EXECUTION_RESULTS", "true");
        command.env("DB_RAW_URL", &raw.url).env("DB_APP_URL", &app.url);
        let access = format!(
            "[{{url = \"{}\", requests_per_s = {}, scripts_per_s = 0}}]",
            self.node.url, self.requests_per_s
        );
        command.env("CAIRN_CHAIN__ACCESS", access).env("CAIRN_DERIVE__ENABLED", self.derive.to_string());
        let begun = Instant::now();
        let process = Peer::start("cairn run", command, &self.folder.join(format!("cairn-{name}.log")))?;
        let ended = process.ended(LIMIT).await?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(ended.success(), "cairn run ended with {ended}; --keep FOLDER keeps its log");
        let raw_pool = raw.pool()?;
        let [stored, stored_events] =
            [count(&raw_pool, "raw.blocks").await?, count(&raw_pool, "raw.events").await?];
        println!("{name}: {seconds:.1} s, {stored} blocks, {stored_events} events");
        ensure!(stored == blocks, "{stored} blocks of {blocks} are stored");
        ensure!(
            events.is_none_or(|events| events == stored_events),
            "{stored_events} events of {events:?} are stored"
        );
        drop(raw_pool);
        raw.drop().await?;
        app.drop().await?;
        Ok(seconds)
    }
}

async fn count(pool: &PgPool, table: &str) -> Result<u64> {
    let row = pool.get().await?.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await?;
    Ok(row.try_get::<_, i64>(0)? as u64)
}

/// Fetches and checks every block, and throws it away; how long it took.
async fn source_alone(node: &FlowNode, root: u64, blocks: u64) -> Result<f64> {
    let config = NodeConfig { requests_per_s: 0, ..NodeConfig::new(node.url.parse()?) };
    let source = FlowSource::connect(FlowConfig::new(Network::Emulator, vec![config])).await?;
    let begun = Instant::now();
    let (mut next, end) = (root, root + blocks);
    while next < end {
        let last = end.min(next + source.preferred_heights()) - 1;
        let found = source.blocks(HeightRange::inclusive(Height(next), Height(last))).await?;
        next = found.last().context("the node has no such block")?.facts.height.get() + 1;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// From a node that lets so many requests through.
async fn limited(options: &Options, folder: &Path) -> Result<()> {
    let limit = RateLimit { per_s: REQUESTS_PER_S, burst: 10 };
    let behaviour = Behaviour { rate_limit: Some(limit), ..Behaviour::default() };
    let made = GeneratorOptions { rlp_heights: 0, old_heights: 0, ..GeneratorOptions::new(2) };
    let generator = Generator::new(made, behaviour);
    generator.grow(options.limited_blocks);
    let node = FlowNode::serve(generator.state()).await?;
    let run = Run { options, folder, node: &node, requests_per_s: REQUESTS_PER_S, derive: true };
    let seconds = run.once("limited", options.limited_blocks, None).await?;
    let counts = node.take_counts();
    println!("{} requests in {seconds:.1} s: {:?}", counts.total(), counts.asked);
    figure("flow_requests_used_per_s", format!("{:.1}", counts.per_s()), "requests/s");
    figure("flow_requests_wasted", counts.refused, "requests");
    ensure!(
        counts.per_s() >= LEAST_USED_PER_S && counts.refused == 0,
        "of {REQUESTS_PER_S} requests a second {:.1} were used, and {} were wasted",
        counts.per_s(),
        counts.refused
    );
    Ok(())
}
