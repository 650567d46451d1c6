//! `./dev bench node-to-postgres`: events/s from an anvil into PostgreSQL, on a chain of 20,000 ERC-20 transfers.
//!
//! The chain: one token, its transfers in blocks of 200, to 2,000 holders. Then the real `cairn run --exit-after-head` takes it into two new databases: it fetches over
//! JSON-RPC, checks every block (hashes, roots, senders), writes raw blocks, transactions and logs, and derives every table of the explorer. The clock runs from the start of the process until it ends by
//! itself, when every worker has done the head; making and migrating the databases' schemas is in it. What is there afterwards is counted: blocks, transactions, logs, transfers, and holdings.
//!
//! Beside it: the same blocks and receipts asked of the same node in batches, and thrown away unread: `erc20_node_events_per_s` is the most that it serves, and bounds everybody. anvil runs on the
//! same machine, so that its processor time is part of both.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_backends::postgres::PgPool;
use clap::Parser;
use futures::{StreamExt, TryStreamExt, stream};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::anvil::Anvil;
use crate::args::{KeepArgs, ServerArgs};
use crate::bench::{cache_dir, median};
use crate::bench_pg::{Database, describe};
use crate::peer::Peer;
use crate::report::figure;
use crate::rpc::{Answer, Rpc, call, hex, quantity, text};
use crate::traffic::Traffic;

/// Transactions of a block.
const PER_BLOCK: u64 = 200;
/// Who receives.
const HOLDERS: u64 = 2_000;
/// Blocks of one batch request to the node, and how many are in flight.
const NODE_BATCH: usize = 10;
const NODE_IN_FLIGHT: usize = 4;
const LIMIT: Duration = Duration::from_secs(600);

/// Where things are, and how much.
#[derive(Parser)]
#[command(name = "bench node-to-postgres", about = "From an anvil into PostgreSQL, everything derived")]
pub struct Options {
    /// The anvil binary.
    #[arg(long)]
    anvil: PathBuf,
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    /// Compiled tests/contracts.
    #[arg(long)]
    contracts: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Transfers of the chain.
    #[arg(long, default_value_t = 20_000)]
    transfers: u64,
    /// How often cairn takes the chain; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Runs the benchmark.
pub async fn run(options: Options) -> Result<ExitCode> {
    describe(&options.server.postgres).await?;
    let folder = options.keep.folder_in(&cache_dir()?)?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let anvil = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let head = make_chain(&anvil, &options).await?;

    let mut seconds = Vec::new();
    for number in 0..options.runs.max(1) {
        seconds.push(once(&options, &anvil, folder, number, head).await?);
    }
    let cairn_s = median(seconds);
    let mut seconds = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        node_alone(&anvil.rpc, head).await?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let node_s = median(seconds);
    let events = options.transfers as f64;
    figure("erc20_events_per_s", format!("{:.0}", events / cairn_s), "events/s");
    figure("erc20_node_events_per_s", format!("{:.0}", events / node_s), "events/s");
    figure("erc20_vs_node", format!("{:.2}", node_s / cairn_s), "ratio");
    Ok(ExitCode::SUCCESS)
}

/// A token and its transfers; the newest height.
async fn make_chain(anvil: &Anvil, options: &Options) -> Result<u64> {
    let begun = Instant::now();
    let traffic = Traffic::deploy(&anvil.rpc, &options.contracts, 1).await?;
    let coin = traffic.coin.address.clone();
    let accounts = anvil.rpc.result("eth_accounts", json!([])).await?;
    let accounts: Vec<String> =
        accounts.as_array().context("accounts")?.iter().map(text).collect::<Result<_>>()?;
    let mut nonces = Vec::with_capacity(accounts.len());
    for account in &accounts {
        let count = anvil.rpc.result("eth_getTransactionCount", json!([account, "latest"])).await?;
        nonces.push(quantity(&count)?);
    }
    let mut rng = SmallRng::seed_from_u64(1);
    // With its nonce: anvil takes the calls of one batch in any order.
    let mut transaction = |from: usize, selector: &str, to: &str, value: u64| {
        let to = to.trim_start_matches("0x");
        nonces[from] += 1;
        json!([{"from": accounts[from], "to": coin, "gas": hex(200_000), "gasPrice": hex(20_000_000_000),
            "nonce": hex(nonces[from] - 1), "data": format!("0x{selector}{to:0>64}{value:064x}")}])
    };
    let mints: Vec<Value> = accounts
        .iter()
        .enumerate()
        .map(|(at, account)| transaction(at, "40c10f19", account, 1 << 60))
        .collect();
    send(anvil, mints).await?;
    for from in (0..options.transfers).step_by(PER_BLOCK as usize) {
        let calls = (from..(from + PER_BLOCK).min(options.transfers))
            .map(|_| {
                let holder = format!("{:x}", 0x00c0_ffee_0000 + rng.random_range(0..HOLDERS));
                let from = rng.random_range(0..accounts.len());
                transaction(from, "a9059cbb", &holder, rng.random_range(1..1_000_000))
            })
            .collect();
        send(anvil, calls).await?;
    }
    let (head, _) = anvil.rpc.head().await?.context("no head")?;
    println!(
        "{} transfers in {head} blocks, made in {:.0} s",
        options.transfers,
        begun.elapsed().as_secs_f64()
    );
    Ok(head)
}

/// Sends transactions and mines them in a block of their own.
async fn send(anvil: &Anvil, transactions: Vec<Value>) -> Result<()> {
    let calls: Vec<_> = transactions.into_iter().map(|params| call("eth_sendTransaction", params)).collect();
    for answer in anvil.rpc.ask_all(&calls).await? {
        if let Answer::Error { code, message, .. } = answer {
            anyhow::bail!("anvil refused a transaction: {code} {message}");
        }
    }
    anvil.mine().await
}

/// One run of cairn into two new databases; how long it took.
async fn once(options: &Options, anvil: &Anvil, folder: &Path, number: usize, head: u64) -> Result<f64> {
    let raw = Database::make(&options.server.postgres, "node_raw").await?;
    let app = Database::make(&options.server.postgres, "node_app").await?;
    let mut command = Command::new(&options.cairn);
    command.args(["run", "--rpc", &anvil.url, "--exit-after-head"]);
    command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]);
    command.arg("--data").arg(folder.join(format!("data-{number}")));
    // Ours, not a setting of cairn's, which refuses what it doesn't know.
    command.env_remove("CAIRN_TEST_PG_URL");
    command.env("DB_RAW_URL", &raw.url).env("DB_APP_URL", &app.url);
    let begun = Instant::now();
    let process = Peer::start("cairn run", command, &folder.join(format!("cairn-{number}.log")))?;
    let ended = process.ended(LIMIT).await?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(ended.success(), "cairn run ended with {ended}; --keep FOLDER keeps its log");
    let (raw_pool, app_pool) = (raw.pool()?, app.pool()?);
    let [blocks, txs, logs] = [
        count(&raw_pool, "raw.blocks").await?,
        count(&raw_pool, "raw.transactions").await?,
        count(&raw_pool, "raw.events").await?,
    ];
    let [transfers, holdings] =
        [count(&app_pool, "app.ft_transfers").await?, count(&app_pool, "app.ft_holdings").await?];
    println!(
        "{seconds:.1} s: {blocks} blocks, {txs} transactions, {logs} logs, {transfers} transfers, {holdings} holdings"
    );
    ensure!(blocks == head + 1, "{blocks} blocks, the head is {head}");
    ensure!(txs >= options.transfers && logs >= options.transfers, "transactions or logs are missing");
    ensure!(transfers >= options.transfers, "{transfers} of {} transfers", options.transfers);
    ensure!(holdings > 0, "no holdings");
    let behind = app_pool
        .get()
        .await?
        .query_one("SELECT count(*) FROM app.indexing_checkpoints WHERE last_height <> $1", &[&(head as i64)])
        .await?;
    ensure!(behind.try_get::<_, i64>(0)? == 0, "some worker has not done the head");
    drop((raw_pool, app_pool));
    raw.drop().await?;
    app.drop().await?;
    Ok(seconds)
}

async fn count(pool: &PgPool, table: &str) -> Result<u64> {
    let row = pool.get().await?.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await?;
    Ok(row.try_get::<_, i64>(0)? as u64)
}

/// Asks the node for every block and its receipts, and throws the answers away.
async fn node_alone(rpc: &Rpc, head: u64) -> Result<()> {
    let heights: Vec<u64> = (0..=head).collect();
    stream::iter(heights.chunks(NODE_BATCH))
        .map(|heights| async move {
            let mut calls = Vec::new();
            for height in heights {
                calls.push(json!({"jsonrpc": "2.0", "id": calls.len(), "method": "eth_getBlockByNumber",
                    "params": [hex(*height), true]}));
                calls.push(json!({"jsonrpc": "2.0", "id": calls.len(), "method": "eth_getBlockReceipts",
                    "params": [hex(*height)]}));
            }
            let answer = rpc.post_text(Value::Array(calls).to_string()).await?;
            ensure!(!answer.contains("\"error\""), "the node answered with an error");
            Ok(())
        })
        .buffer_unordered(NODE_IN_FLIGHT)
        .try_collect::<Vec<()>>()
        .await
        .map(drop)
}
