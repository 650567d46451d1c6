//! The second part of `./dev bench getlogs`: `eth_getLogs` of cairn and of anvil over HTTP, on the same chain.
//!
//! The chain is anvil's own: the test contracts' traffic in one block of a hundred, empty blocks between. cairn takes it over JSON-RPC and then
//! serves it. Every answer must be the same JSON; each server is asked in turn.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::anvil::Anvil;
use crate::bench::{cache_dir, median};
use crate::cairn::Cairn;
use crate::report::figure;
use crate::rpc::{Rpc, hex};
use crate::traffic::Traffic;

/// Anvil takes longer for each block the more it has: ten thousand take minutes.
const BLOCKS: u64 = 5_000;
/// One block in so many has transactions.
const BUSY_ONCE_IN: u64 = 100;
const TXS_IN_A_BUSY_BLOCK: usize = 10;
const WIDTHS: [u64; 2] = [500, 5_000];
const REPEATS: usize = 15;
/// How long cairn may take to store the chain.
const STORING: Duration = Duration::from_secs(300);
/// Until the index is merged, as it is in an archive that is not seconds old.
const MERGING: Duration = Duration::from_secs(5);

/// Where the programs are; `./dev` names them.
#[derive(Args)]
pub struct Options {
    /// The anvil binary.
    #[arg(long)]
    anvil: Option<PathBuf>,
    /// The cairn binary.
    #[arg(long)]
    cairn: Option<PathBuf>,
    /// Compiled tests/contracts.
    #[arg(long)]
    contracts: Option<PathBuf>,
}

/// Runs the comparison.
pub async fn run(options: &Options) -> Result<()> {
    let folder = tempfile::tempdir_in(cache_dir()?)?;
    let anvil =
        Anvil::start(options.anvil.as_deref().context("--anvil")?, &folder.path().join("anvil.log")).await?;
    let contracts = options.contracts.as_deref().context("--contracts")?;
    let begun = Instant::now();
    let mut traffic = Traffic::deploy(&anvil.rpc, contracts, 1).await?;
    for busy in 0..BLOCKS / BUSY_ONCE_IN {
        traffic.block(TXS_IN_A_BUSY_BLOCK).await?;
        anvil.rpc.result("anvil_mine", json!([hex(BUSY_ONCE_IN - 1)])).await?;
        if (busy + 1) % 10 == 0 {
            let seconds = begun.elapsed().as_secs_f64();
            eprintln!("anvil made {} of {BLOCKS} blocks in {seconds:.0} s", (busy + 1) * BUSY_ONCE_IN);
        }
    }
    let coin = traffic.coin.address.clone();
    let (head, _) = anvil.rpc.head().await?.context("anvil has no block")?;
    println!("anvil made {head} blocks in {:.0} s", begun.elapsed().as_secs_f64());

    let cairn = Cairn::new(options.cairn.as_deref().context("--cairn")?, folder.path())?;
    let begun = Instant::now();
    let _serving = cairn.run(&anvil.url, &["--poll-ms", "200"]).await?;
    cairn.wait_serving(Duration::from_secs(30)).await?;
    cairn.wait_head(&anvil.rpc, STORING).await?;
    println!("cairn took them over JSON-RPC in {:.0} s", begun.elapsed().as_secs_f64());

    tokio::time::sleep(MERGING).await;
    let ours = cairn.rpc()?;
    let nobody = "0x00000000000000000000000000000000c0ffee00";
    for (name, filter) in
        [("absent", json!({ "address": nobody })), ("coin", json!({ "address": coin })), ("all", json!({}))]
    {
        for width in WIDTHS {
            let mut filter = filter.clone();
            filter["fromBlock"] = json!(hex(head + 1 - width));
            filter["toBlock"] = json!(hex(head));
            let same = answer(&anvil.rpc, &filter).await? == answer(&ours, &filter).await?;
            ensure!(same, "{name} over {width} blocks: the answers differ");
            let (mut theirs_s, mut ours_s) = (Vec::new(), Vec::new());
            for _ in 0..REPEATS {
                theirs_s.push(seconds(&anvil.rpc, &filter).await?);
                ours_s.push(seconds(&ours, &filter).await?);
            }
            let (theirs_s, ours_s) = (median(theirs_s), median(ours_s));
            println!(
                "{name:<7} {width:>6} blocks over HTTP: cairn {:.2} ms, anvil {:.2} ms",
                ours_s * 1e3,
                theirs_s * 1e3
            );
            figure(&format!("getlogs_{name}_{width}_vs_anvil"), format!("{:.1}", theirs_s / ours_s), "ratio");
        }
    }
    Ok(())
}

async fn answer(rpc: &Rpc, filter: &Value) -> Result<Value> {
    rpc.result("eth_getLogs", json!([filter])).await
}

/// How long one answer takes, unread.
async fn seconds(rpc: &Rpc, filter: &Value) -> Result<f64> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": [filter]}).to_string();
    let begun = Instant::now();
    let text = rpc.post_text(body).await?;
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(!text.contains("\"error\""), "an error: {}", text.chars().take(200).collect::<String>());
    Ok(seconds)
}
