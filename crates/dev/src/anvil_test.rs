//! The real binary follows a real node: live traffic, reorgs of depth 1, 5 and 64 with other transactions, rollbacks, kills
//! at any moment, SIGTERM; and at the end every answer is the node's own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::anvil::{Anvil, SLOTS_IN_AN_EPOCH};
use crate::args::KeepArgs;
use crate::cairn::Cairn;
use crate::compare::{self, Allowed};
use crate::peer::{Peer, wait_until};
use crate::report::{Report, figure};
use crate::rpc::{Answer, Rpc, call, hex};
use crate::traffic::Traffic;

/// How long cairn may need to reach the node's head.
const CATCH_UP: Duration = Duration::from_secs(60);
/// "Exits in seconds."
const SIGTERM_LIMIT: Duration = Duration::from_secs(5);

/// Blocks come faster than on a chain of the world, and finality is the node's, so that answers can be the same.
pub const FOLLOW: &[&str] = &["--poll-ms", "100", "--finality", "tag"];

/// Fields in which anvil's answers are its own.
const ANVIL_ALLOWED: &[Allowed] = &[WILDCARD_TOPICS, NO_FORK_SCHEDULE, ANVIL_FEE_HISTORY];

/// The same on a chain with blob transactions.
const BLOBS_ALLOWED: &[Allowed] = &[WILDCARD_TOPICS, NO_FORK_SCHEDULE, ANVIL_FEE_HISTORY, POOLED_FORM];

const WILDCARD_TOPICS: Allowed = Allowed {
    method: "eth_getLogs",
    paths: &[".length"],
    applies: |filter, _| {
        let open = |topic: &Value| topic.is_null() || topic.as_array().is_some_and(Vec::is_empty);
        filter["topics"].as_array().is_some_and(|topics| !topics.is_empty() && topics.iter().all(open))
    },
    why: "a filter with more topic positions than a log has topics doesn't match it, as in geth; anvil matches",
};

const NO_FORK_SCHEDULE: Allowed = Allowed {
    method: "eth_feeHistory",
    paths: &[".baseFeePerGas[]", ".baseFeePerBlobGas[]", ".blobGasUsedRatio[]"],
    applies: |_, ours| ours.is_some_and(Value::is_null),
    why: "without a fork schedule (a genesis file) the next base fee and the blob limits are unknown: cairn says null",
};

const ANVIL_FEE_HISTORY: Allowed = Allowed {
    method: "eth_feeHistory",
    paths: &[".baseFeePerGas[]", ".reward"],
    applies: |parameters, _| parameters[1] == "earliest",
    why: "anvil gives the base fee after the head for the block after the range, and an empty list of rewards that were not asked for",
};

const POOLED_FORM: Allowed = Allowed {
    method: "debug_getRawTransaction",
    paths: &[""],
    applies: |_, _| true,
    why: "anvil gives a mined blob transaction in its pooled form, with the blobs; its canonical bytes have none",
};

/// Where things are, and how much of everything.
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
    /// Transactions of the live phase; the reorgs add more.
    #[arg(long, default_value_t = 4000)]
    transactions: usize,
    /// Decides every transaction and every moment of a kill.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

struct Run {
    node: Anvil,
    cairn: Cairn,
    traffic: Mutex<Traffic>,
    rng: SmallRng,
}

impl Run {
    async fn follow(&self) -> Result<()> {
        self.cairn.wait_head(&self.node.rpc, CATCH_UP).await
    }

    /// Number of reorgs that the archive has recorded, and the depth of the newest.
    async fn reorgs(&self) -> Result<(u64, u64)> {
        let status = self.cairn.status().await?;
        let count =
            status["reorgs"]["count"].as_u64().with_context(|| format!("no count of reorgs: {status}"))?;
        Ok((count, status["reorgs"]["newest"][0]["depth"].as_u64().unwrap_or(0)))
    }

    /// Replaces `depth` blocks; part of the orphaned transactions come back in other blocks, in their accounts' order.
    async fn reorg(&self, depth: u64) -> Result<()> {
        let mut traffic = self.traffic.lock().await;
        let head = self.node.rpc.head().await?.context("no head")?.0;
        let mut transactions = Vec::new();
        let keeper = self.node.rpc.result("eth_accounts", json!([])).await?[0].clone();
        for back in (0..depth).rev() {
            let block = self.node.rpc.result("eth_getBlockByNumber", json!([hex(head - back), true])).await?;
            for transaction in block["transactions"].as_array().context("transactions")? {
                if transaction["from"] == keeper {
                    let raw =
                        self.node.rpc.result("debug_getRawTransaction", json!([transaction["hash"]])).await?;
                    transactions.push((raw, (depth - back).min(depth - 1)));
                }
            }
        }
        for (mut transaction, block) in traffic.for_reorg(depth, 3)? {
            // The kept account's nonces belong to its kept transactions.
            if transaction["from"] == keeper {
                transaction["from"] = json!(traffic.other_account());
            }
            transactions.push((transaction, block));
        }
        self.node.reorg(depth, transactions).await?;
        // As many blocks as were taken off: a shorter or equal chain may wait for its next block.
        traffic.block(20).await
    }

    async fn compare_tail(&self, blocks: u64, report: &mut Report) -> Result<()> {
        let head = self.node.rpc.head().await?.context("no head")?.0;
        let rpc = self.cairn.rpc()?;
        compare::everything(
            &self.node.rpc,
            &rpc,
            head.saturating_sub(blocks),
            head,
            ANVIL_ALLOWED,
            false,
            report,
        )
        .await
    }
}

/// Asks for random recent blocks until told to stop: the logs of a block are its receipts' logs, whatever happens meanwhile.
async fn watch_consistency(
    rpc: Rpc,
    stop: Arc<AtomicBool>,
    checked: Arc<AtomicU64>,
    seed: u64,
) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        // Between kills nobody answers; that is not what is watched here.
        let Ok(Some((head, _))) = rpc.head().await else { continue };
        let number = hex(head.saturating_sub(rng.random_range(0..8)));
        let Ok(Answer::Result(block)) = rpc.ask(&call("eth_getBlockByNumber", json!([number, false]))).await
        else {
            continue;
        };
        let hash = &block["hash"];
        let calls =
            [call("eth_getBlockReceipts", json!([hash])), call("eth_getLogs", json!([{"blockHash": hash}]))];
        let Ok(answers) = rpc.ask_all(&calls).await else { continue };
        // A block that a reorg took away in between is gone for both or for the later one.
        let [Answer::Result(Value::Array(receipts)), Answer::Result(Value::Array(logs))] = &answers[..]
        else {
            continue;
        };
        let of_receipts: Vec<&Value> =
            receipts.iter().filter_map(|receipt| receipt["logs"].as_array()).flatten().collect();
        ensure!(
            of_receipts == logs.iter().collect::<Vec<_>>(),
            "block {number} {hash}: logs are not the receipts' logs"
        );
        let transactions = block["transactions"].as_array().map(Vec::len);
        ensure!(
            transactions == Some(receipts.len()),
            "block {number} {hash}: {transactions:?} transactions, {} receipts",
            receipts.len()
        );
        checked.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// `cairn-dev anvil-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let traffic = Mutex::new(Traffic::deploy(&node.rpc, &options.contracts, options.seed).await?);
    let cairn = Cairn::new(&options.cairn, folder)?;
    let mut run = Run { node, cairn, traffic, rng: SmallRng::seed_from_u64(options.seed) };
    let mut report = Report::default();

    // Something to catch up with, deeper than finality.
    {
        let mut traffic = run.traffic.lock().await;
        for block in 0..2 * SLOTS_IN_AN_EPOCH + 20 {
            if block % 10 == 0 {
                traffic.send_set_code().await?;
            }
            traffic.block(5).await?;
        }
    }
    let mut process = run.cairn.run(&run.node.url, FOLLOW).await?;
    let caught_up = report.case("catches up with a node and says that it is ready", async {
        run.follow().await?;
        run.cairn.wait_ready(CATCH_UP).await
    });
    if !caught_up.await {
        // Everything else would wait for the same.
        return Ok(report.finish());
    }

    let stop = Arc::new(AtomicBool::new(false));
    let checked = Arc::new(AtomicU64::new(0));
    let watcher =
        tokio::spawn(watch_consistency(run.cairn.rpc()?, stop.clone(), checked.clone(), options.seed));

    report
        .case("follows a live chain", async {
            for _ in 0..options.transactions.div_ceil(100) {
                run.traffic.lock().await.block(100).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            run.follow().await
        })
        .await;

    for depth in [1, 5, 64] {
        report
            .case(format!("survives a reorg of depth {depth} and records it once"), async {
                let before = run.reorgs().await?.0;
                run.reorg(depth).await?;
                run.follow().await?;
                let (after, recorded) = run.reorgs().await?;
                ensure!(after == before + 1, "{} reorgs recorded, not one", after - before);
                ensure!(recorded == depth, "recorded with depth {recorded}");
                run.cairn.wait_ready(CATCH_UP).await
            })
            .await;
        run.compare_tail(depth + 5, &mut report).await?;
    }

    report
        .case("takes a shorter chain for lag, and its other blocks for a reorg", async {
            let before = run.reorgs().await?.0;
            let head = run.cairn.rpc()?.head().await?;
            run.node.rollback(3).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            ensure!(
                run.cairn.rpc()?.head().await? == head,
                "a lower head of the node changed what is served"
            );
            ensure!(run.reorgs().await?.0 == before, "a lower head was taken for a reorg");
            for _ in 0..5 {
                run.traffic.lock().await.block(10).await?;
            }
            run.follow().await?;
            ensure!(
                run.reorgs().await? == (before + 1, 3),
                "the other chain was not recorded as one reorg of depth 3"
            );
            Ok(())
        })
        .await;

    for round in 1..=6 {
        let moment = Duration::from_millis(run.rng.random_range(50..1500));
        process = kill_and_restart(&run, process, round, moment, &mut report).await?;
    }

    stop.store(true, Ordering::Relaxed);
    let watched = watcher.await?;
    report.case("logs of a block equal its receipts' logs at every moment", async { watched }).await;
    figure("anvil_consistency_checks", checked.load(Ordering::Relaxed), "reads");

    let begun = Instant::now();
    let head = run.node.rpc.head().await?.context("no head")?.0;
    let rpc = run.cairn.rpc()?;
    compare::everything(&run.node.rpc, &rpc, 0, head, ANVIL_ALLOWED, false, &mut report).await?;
    figure("anvil_compare_s", format!("{:.1}", begun.elapsed().as_secs_f64()), "s");
    figure("anvil_blocks", head + 1, "blocks");
    figure("anvil_transactions_sent", run.traffic.lock().await.sent, "transactions");
    figure("anvil_reorgs", run.reorgs().await?.0, "reorgs");

    report
        .case("SIGTERM ends it within seconds, with success", async {
            let (status, after) = process.terminate(SIGTERM_LIMIT).await?;
            ensure!(status.success(), "ended with {status}");
            figure("sigterm_ms", after.as_millis(), "ms");
            Ok(())
        })
        .await;
    report
        .case("cairn verify finds the archive whole", async {
            run.cairn.finish("verify", &[]).await.map(drop)
        })
        .await;
    report
        .case("cairn serve, read only, gives the same answers", async {
            let process = run.cairn.serve(&[]).await?;
            run.follow().await?;
            process.terminate(SIGTERM_LIMIT).await.map(drop)
        })
        .await;

    report.case("a reorg below finality halts it, and what it has stays served", below_finality(&run)).await;
    drop(run);
    blobs(&options, folder, &mut report).await?;
    Ok(report.finish())
}

/// Traffic runs on while cairn is killed and started again; every other round the chain is reorganised meanwhile.
async fn kill_and_restart(
    run: &Run,
    process: Peer,
    round: u64,
    moment: Duration,
    report: &mut Report,
) -> Result<Peer> {
    let mut next = None;
    let name = format!(
        "kill -9 after {} ms of traffic loses and doubles nothing (round {round})",
        moment.as_millis()
    );
    let passed = report
        .case(name, async {
            let busy = async {
                for _ in 0..15 {
                    run.traffic.lock().await.block(60).await?;
                }
                anyhow::Ok(())
            };
            let killed = async {
                tokio::time::sleep(moment).await;
                process.kill().await
            };
            futures::try_join!(busy, killed)?;
            if round.is_multiple_of(2) {
                run.reorg(round).await?;
            }
            // A node may be given with a WebSocket, which wakes the poller.
            let websocket = run.node.url.replacen("http", "ws", 1);
            let nodes = if round.is_multiple_of(3) {
                format!("{},{websocket}", run.node.url)
            } else {
                run.node.url.clone()
            };
            let started = next.insert(run.cairn.run(&nodes, FOLLOW).await?);
            run.follow().await?;
            started.check_alive()
        })
        .await;
    match next {
        Some(process) => Ok(process),
        None if passed => bail!("round {round}: no process"),
        None => run.cairn.run(&run.node.url, FOLLOW).await,
    }
}

/// The last case: afterwards the archive and the node are on different chains.
async fn below_finality(run: &Run) -> Result<()> {
    let process = run.cairn.run(&run.node.url, FOLLOW).await?;
    run.follow().await?;
    run.cairn.wait_ready(CATCH_UP).await?;
    let rpc = run.cairn.rpc()?;
    let head = rpc.head().await?;
    let depth = 2 * SLOTS_IN_AN_EPOCH + 10;
    run.node.reorg(depth, vec![]).await?;
    run.node.mine().await?;
    let begun = Instant::now();
    loop {
        let (status, body) = run.cairn.page("/readyz").await?;
        if status == 503 {
            ensure!(!body.trim().is_empty(), "/readyz gives no reason");
            break;
        }
        ensure!(begun.elapsed() < CATCH_UP, "/readyz still says {status}: {body}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(rpc.head().await? == head, "what is served changed");
    process.terminate(SIGTERM_LIMIT).await.map(drop)
}

/// anvil 1.7.1 computes the transactions root of a block with blob transactions over their pooled form, blobs included, so
/// that its blocks break the rule. They are refused by name; with the named relaxation they are stored and served.
async fn blobs(options: &Options, folder: &Path, report: &mut Report) -> Result<()> {
    let folder = folder.join("blobs");
    std::fs::create_dir_all(&folder)?;
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let mut traffic = Traffic::deploy(&node.rpc, &options.contracts, options.seed).await?;
    traffic.block(5).await?;
    traffic.send_blob().await?;
    traffic.block(5).await?;
    let cairn = Cairn::new(&options.cairn, &folder)?;
    let process = cairn.run(&node.url, FOLLOW).await?;
    let rpc = cairn.rpc()?;
    report
        .case("a block that breaks its transactions root is refused, and the check named", async {
            wait_until("the check is named", CATCH_UP, || async {
                Ok((!cairn.log_tail().contains("transactions-root")).then(|| cairn.log_tail()))
            })
            .await?;
            wait_until("the head is the last good block", CATCH_UP, || async {
                let head = rpc.head().await?.map(|(height, _)| height);
                Ok((head != Some(2)).then(|| format!("{head:?}")))
            })
            .await?;
            process.terminate(SIGTERM_LIMIT).await.map(drop)
        })
        .await;
    let process = cairn.run(&node.url, &[FOLLOW, &["--relax", "transactions-root"]].concat()).await?;
    let stored = cairn.wait_head(&node.rpc, CATCH_UP);
    if report.case("the same block is stored and served under a named relaxation", stored).await {
        compare::everything(&node.rpc, &rpc, 0, 3, BLOBS_ALLOWED, false, report).await?;
    }
    process.terminate(SIGTERM_LIMIT).await.map(drop)
}
