//! Real client libraries against a cairn that follows an anvil: alloy in this process, viem and web3.py as scripts. Each
//! gets blocks, receipts, logs by filter, and newHeads and logs by subscription; alloy sees a reorg as `removed` logs.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use alloy_eips::BlockNumberOrTag;
use alloy_primitives::{Address, B256, keccak256};
use alloy_provider::{Provider, ProviderBuilder, WsConnect};
use alloy_rpc_types_eth::{Filter, Log};
use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::anvil::{Anvil, SLOTS_IN_AN_EPOCH};
use crate::anvil_test::FOLLOW;
use crate::args::KeepArgs;
use crate::cairn::Cairn;
use crate::report::{Report, totals_of};
use crate::traffic::Traffic;

const LIMIT: Duration = Duration::from_secs(30);
/// Notifications that alloy keeps for a slow reader; its own default of 16 is less than one block's, and it drops silently.
const QUEUE: usize = 4096;

/// Where things are.
#[derive(Args)]
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
    /// Folder whose node_modules holds viem.
    #[arg(long)]
    node_deps: PathBuf,
    /// A Python that has web3.
    #[arg(long)]
    python: PathBuf,
    /// The folder of viem.mjs and web3_client.py.
    #[arg(long)]
    scripts: PathBuf,
    #[command(flatten)]
    keep: KeepArgs,
}

/// `cairn-dev client-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let mut traffic = Traffic::deploy(&node.rpc, &options.contracts, 2).await?;
    traffic.send_set_code().await?;
    for _ in 0..SLOTS_IN_AN_EPOCH {
        traffic.block(20).await?;
    }
    let cairn = Cairn::new(&options.cairn, folder)?;
    let _process = cairn.run(&node.url, FOLLOW).await?;
    let mut report = Report::default();
    if !report.case("cairn follows the node", cairn.wait_head(&node.rpc, LIMIT)).await {
        return Ok(report.finish());
    }
    alloy(&node, &cairn, &mut traffic, &mut report).await?;

    let environment = [
        ("CAIRN_HTTP", cairn.rpc_url()?),
        ("CAIRN_WS", cairn.ws_url()?),
        ("NODE_HTTP", node.url.clone()),
        ("COIN", traffic.coin.address.clone()),
        ("NODE_DEPS", path(&options.node_deps)?),
    ];
    let mut viem = Command::new("node");
    viem.arg(options.scripts.join("viem.mjs"));
    let mut web3 = Command::new(&options.python);
    web3.arg("-u").arg(options.scripts.join("web3_client.py"));
    for (name, mut command) in [("viem", viem), ("web3.py", web3)] {
        command.envs(environment.iter().cloned());
        script(name, command, &mut report).await?;
    }
    Ok(report.finish())
}

fn path(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path)?;
    Ok(absolute.to_str().context("a path that is not UTF-8")?.to_owned())
}

/// Runs a client's script; its cases count as ours.
async fn script(name: &str, mut command: Command, report: &mut Report) -> Result<()> {
    println!("--- {name}");
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(6 * LIMIT, command.output()).await {
        Ok(output) => output.with_context(|| format!("cannot start {name}"))?,
        Err(_) => {
            report.fail(name, "still running after three minutes");
            return Ok(());
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    match totals_of(&text) {
        Some((passed, failed)) if passed > 0 && output.status.success() == (failed == 0) => {
            report.add(passed, failed)
        }
        _ => report.fail(name, format!("ended with {} and no count of its cases", output.status)),
    }
    Ok(())
}

/// The next item of a subscription.
async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin), what: &str) -> Result<T> {
    let item = tokio::time::timeout(LIMIT, stream.next())
        .await
        .with_context(|| format!("no {what} within {LIMIT:?}"))?;
    item.with_context(|| format!("the subscription to {what} ended"))
}

async fn alloy(node: &Anvil, cairn: &Cairn, traffic: &mut Traffic, report: &mut Report) -> Result<()> {
    println!("--- alloy");
    let http = ProviderBuilder::new().connect_http(cairn.rpc_url()?.parse()?);
    let coin: Address = traffic.coin.address.parse()?;
    let transfer = keccak256("Transfer(address,address,uint256)");

    report
        .case("alloy: chain id, block with transactions, and every transaction's receipt", async {
            ensure!(http.get_chain_id().await? == 31337, "chain id");
            let head = http.get_block_number().await?;
            for height in [0, 1, 2, head] {
                let number = BlockNumberOrTag::Number(height);
                let block = http.get_block_by_number(number).full().await?.context("no block")?;
                ensure!(
                    block.header.hash_slow() == block.header.hash,
                    "block {height}: its header has another hash"
                );
                let receipts = http.get_block_receipts(number.into()).await?.context("no receipts")?;
                ensure!(receipts.len() == block.transactions.len(), "block {height}: receipts");
                for (transaction, receipt) in block.transactions.txns().zip(&receipts) {
                    let hash = *transaction.inner.tx_hash();
                    ensure!(receipt.transaction_hash == hash, "block {height}: receipts in another order");
                    let signed = transaction.inner.inner();
                    let signer = cairn_evm::signature::recover(signed.signature(), signed.signature_hash());
                    ensure!(signer == Some(receipt.from), "block {height}: {hash} is signed by {signer:?}");
                    let single = http.get_transaction_receipt(hash).await?.context("no receipt")?;
                    ensure!(json!(single) == json!(receipt), "block {height}: two receipts of {hash}");
                }
            }
            Ok(())
        })
        .await;

    report
        .case("alloy: logs by address, by topic, by both, and by block hash", async {
            let all = Filter::new().from_block(0u64);
            let by_both = http.get_logs(&all.clone().address(coin).event_signature(transfer)).await?;
            ensure!(!by_both.is_empty(), "no transfers");
            let expected: Vec<Log> = http
                .get_logs(&all.clone().address(coin))
                .await?
                .into_iter()
                .filter(|log| log.topic0() == Some(&transfer))
                .collect();
            ensure!(by_both == expected, "a filter by both is not the filter by one, filtered");
            let hash = by_both[0].block_hash.context("a log without its block")?;
            let of_block = http
                .get_logs(&Filter::new().at_block_hash(hash).address(coin).event_signature(transfer))
                .await?;
            let expected: Vec<&Log> = by_both.iter().filter(|log| log.block_hash == Some(hash)).collect();
            ensure!(of_block.iter().collect::<Vec<_>>() == expected, "logs by block hash");
            Ok(())
        })
        .await;

    let ws = ProviderBuilder::new().connect_ws(WsConnect::new(cairn.ws_url()?)).await.context("WebSocket")?;
    report
        .case("alloy: newHeads and logs arrive by subscription, in order", async {
            let mut heads = ws.subscribe_blocks().channel_size(QUEUE).await?.into_stream();
            let mut logs =
                ws.subscribe_logs(&Filter::new().address(coin)).channel_size(QUEUE).await?.into_stream();
            for _ in 0..3 {
                traffic.block(40).await?;
                let (number, hash) = node.rpc.head().await?.context("no head")?;
                let head = next(&mut heads, "newHeads").await?;
                ensure!(
                    head.number == number && head.hash == hash.parse::<B256>()?,
                    "head {} {}, not {number} {hash}",
                    head.number,
                    head.hash
                );
                let expected = logs_of(node, &hash, &traffic.coin.address).await?;
                for expected in expected {
                    let log = next(&mut logs, "logs").await?;
                    ensure!(json!(log) == expected, "log {}, not {expected}", json!(log));
                }
            }
            Ok(())
        })
        .await;

    report
        .case("alloy: after a reorg the orphaned logs come as removed, then the new ones", async {
            let mut logs =
                ws.subscribe_logs(&Filter::new().address(coin)).channel_size(QUEUE).await?.into_stream();
            // A subscription may begin with the block before it: what counts begins after this block.
            traffic.block(40).await?;
            let (_, hash) = node.rpc.head().await?.context("no head")?;
            let block = logs_of(node, &hash, &traffic.coin.address).await?;
            let last = block.last().context("a block without a log")?;
            while json!(next(&mut logs, "logs").await?) != *last {}
            let head = node.rpc.head().await?.context("no head")?.0;
            let mut gone = Vec::new();
            for height in head - 1..=head {
                let block =
                    node.rpc.result("eth_getBlockByNumber", json!([crate::rpc::hex(height), false])).await?;
                gone.extend(
                    logs_of(node, block["hash"].as_str().context("hash")?, &traffic.coin.address).await?,
                );
            }
            ensure!(!gone.is_empty(), "nothing to orphan");
            node.reorg(2, traffic.for_reorg(2, 10)?).await?;
            traffic.block(10).await?;
            let mut seen = Vec::new();
            for _ in 0..gone.len() {
                let log = next(&mut logs, "removed logs").await?;
                ensure!(log.removed, "a new log before the old ones are removed: {}", json!(log));
                let mut log = json!(log);
                log["removed"] = json!(false);
                seen.push(log);
            }
            let key = |log: &Value| (log["blockNumber"].to_string(), log["logIndex"].to_string());
            gone.sort_by_key(key);
            seen.sort_by_key(key);
            ensure!(seen == gone, "removed logs are not the orphaned ones");
            let mut expected = Vec::new();
            for height in head - 1..=head + 1 {
                let block =
                    node.rpc.result("eth_getBlockByNumber", json!([crate::rpc::hex(height), false])).await?;
                expected.extend(
                    logs_of(node, block["hash"].as_str().context("hash")?, &traffic.coin.address).await?,
                );
            }
            for expected in expected {
                let log = next(&mut logs, "new logs").await?;
                ensure!(json!(log) == expected, "log {}, not {expected}", json!(log));
            }
            Ok(())
        })
        .await;
    Ok(())
}

/// A contract's logs in one block, as the node has them.
async fn logs_of(node: &Anvil, hash: &str, address: &str) -> Result<Vec<Value>> {
    let logs = node.rpc.result("eth_getLogs", json!([{"blockHash": hash, "address": address}])).await?;
    Ok(logs.as_array().context("logs")?.clone())
}
