//! Token and holding tables against a real node: whatever is minted, sent on and burnt, and whatever forks, `/v1` says what the contracts say.
//! One chain, and one cairn on each backend beside it, which is killed now and then.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::anvil::Anvil;
use crate::anvil_test::FOLLOW;
use crate::args::KeepArgs;
use crate::cairn::Cairn;
use crate::databases::Databases;
use crate::holdings_truth::Truth;
use crate::peer::{Peer, wait_until};
use crate::report::{Report, figure};
use crate::rpc::quantity;
use crate::tokens::Tokens;

/// How long cairn may need to derive everything up to the node's head.
const CATCH_UP: Duration = Duration::from_secs(60);
/// Transactions in one block, at most.
const BLOCK_TRANSACTIONS: usize = 40;

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
    /// A PostgreSQL server on which databases may be made; without it there is SQLite alone.
    #[arg(long)]
    postgres: Option<String>,
    /// Rounds of traffic; all but the first end in a fork.
    #[arg(long, default_value_t = 16)]
    rounds: usize,
    /// Decides every transaction and every fork.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// A cairn that follows the chain.
struct Follower {
    backend: &'static str,
    cairn: Cairn,
    process: Peer,
}

impl Follower {
    async fn start(backend: &'static str, cairn: Cairn, node: &str) -> Result<Follower> {
        // Many small ranges, so that movements of one party are in several; and short leases, so that what the dead held is taken over.
        let cairn = cairn
            .with("CAIRN_DERIVE__RANGE_HEIGHTS", "32")
            .with("CAIRN_DERIVE__CHUNK_HEIGHTS", "5")
            .with("CAIRN_DERIVE__LEASE_TTL_S", "4")
            .with("CAIRN_DERIVE__POLL_MS", "200");
        let process = cairn.run(node, FOLLOW).await?;
        Ok(Follower { backend, cairn, process })
    }

    async fn kill_and_start(self, node: &str) -> Result<Follower> {
        self.process.kill().await?;
        let process = self.cairn.run(node, FOLLOW).await?;
        Ok(Follower { process, ..self })
    }

    /// Waits until every worker stands at the node's head.
    async fn derived(&self, head: &(u64, String)) -> Result<()> {
        let waited = wait_until("everything is derived", CATCH_UP, || async {
            let (status, body) = self.cairn.page("/v1/status").await?;
            let answer: Value = serde_json::from_str(&body).with_context(|| format!("{status}: {body}"))?;
            let data = &answer["data"];
            if data["raw_tip"]["id"] != head.1 || data["derived"]["is_reorg_under_way"] != false {
                return Ok(Some(body));
            }
            let workers = data["derived"]["workers"].as_array().context("no workers")?;
            let behind = workers.iter().find(|worker| worker["tip"]["id"] != head.1);
            Ok(behind
                .map(|worker| format!("{head:?}: {worker}"))
                .or_else(|| workers.is_empty().then_some(body)))
        })
        .await;
        waited.with_context(|| self.cairn.log_tail())
    }
}

/// `cairn-dev holdings-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    println!("seed {}", options.seed);
    let databases = match &options.postgres {
        Some(server) => Some(Databases::make(server, "cairn_holdings").await?),
        None => None,
    };
    let mut report = Report::default();
    let played = play(&options, folder, databases.as_ref(), &mut report).await;
    if let (Some(databases), false) = (databases, options.keep.keeps()) {
        databases.drop().await?;
    }
    played?;
    Ok(report.finish())
}

async fn play(
    options: &Options,
    folder: &Path,
    databases: Option<&Databases>,
    report: &mut Report,
) -> Result<()> {
    let begun = Instant::now();
    std::fs::create_dir_all(folder)?;
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let mut tokens = Tokens::deploy(&node.rpc, &options.contracts, options.seed).await?;
    let mut rng = SmallRng::seed_from_u64(options.seed ^ 0x0a0a);
    let mut followers = Vec::new();
    for (backend, urls) in [("sqlite", None), ("postgres", databases.map(|databases| &databases.urls))] {
        if backend == "postgres" && urls.is_none() {
            continue;
        }
        let folder = folder.join(backend);
        std::fs::create_dir_all(&folder)?;
        let mut cairn = Cairn::new(&options.cairn, &folder)?;
        if let Some([raw, app]) = urls {
            cairn = cairn.with("DB_RAW_URL", raw).with("DB_APP_URL", app);
        }
        followers.push(Follower::start(backend, cairn, &node.url).await?);
    }
    let (mut calls, mut compared) = (0, 0);
    for round in 0..options.rounds {
        let what = traffic(&node, &mut tokens, &mut rng, round).await?;
        // Every third round ends in a process that begins anew.
        if round % 3 == 2 {
            let mut started = Vec::new();
            for follower in followers {
                started.push(follower.kill_and_start(&node.url).await?);
            }
            followers = started;
            tokens.block(BLOCK_TRANSACTIONS).await?;
        }
        let head = node.rpc.head().await?.context("no head")?;
        let truth = Truth::ask(&node.rpc, &tokens).await?;
        calls += truth.calls;
        for follower in &mut followers {
            let title = format!("round {round} ({what}), {}", follower.backend);
            let reached = report
                .case(format!("{title}: everything is derived up to the node's head {}", head.0), async {
                    follower.derived(&head).await?;
                    follower.process.check_alive()
                })
                .await;
            if !reached {
                return Ok(());
            }
            let cairn = &follower.cairn;
            let mut counts = [0; 3];
            report
                .case(format!("{title}: ft_holdings equals balanceOf"), async {
                    counts[0] = truth.check_fungible(cairn, &tokens).await?;
                    Ok(())
                })
                .await;
            report
                .case(format!("{title}: nft_ownership equals ownerOf"), async {
                    counts[1] = truth.check_owners(cairn, &tokens).await?;
                    Ok(())
                })
                .await;
            report
                .case(format!("{title}: nft_holdings equals balanceOf of every party and item"), async {
                    counts[2] = truth.check_many(cairn, &tokens).await?;
                    Ok(())
                })
                .await;
            compared += counts.iter().sum::<usize>();
        }
    }
    for follower in followers {
        let name = format!("{}: SIGTERM ends it with success", follower.backend);
        let movements = movements(&follower.cairn, &tokens).await?;
        figure(&format!("holdings_movements_{}", follower.backend), movements, "movements");
        report
            .case(name, async {
                let (status, _) = follower.process.terminate(Duration::from_secs(25)).await?;
                anyhow::ensure!(status.success(), "ended with {status}");
                Ok(())
            })
            .await;
    }
    figure("holdings_transactions_sent", tokens.sent, "transactions");
    figure("holdings_node_calls", calls, "calls");
    figure("holdings_compared", compared, "balances and owners above zero");
    figure("holdings_test_s", format!("{:.1}", begun.elapsed().as_secs_f64()), "s");
    Ok(())
}

/// Movements of tokens on the chain as it is in the end.
async fn movements(cairn: &Cairn, tokens: &Tokens) -> Result<u64> {
    let mut movements = 0;
    let paths = tokens.grains.iter().map(|grain| format!("/v1/tokens/{grain}"));
    let collections = [tokens.plot, tokens.basket].map(|one| format!("/v1/nft-collections/{one}"));
    for path in paths.chain(collections) {
        let (status, body) = cairn.page(&path).await?;
        let answer: Value =
            serde_json::from_str(&body).with_context(|| format!("{path}: {status}: {body}"))?;
        let count =
            answer["data"]["transfer_count"].as_str().with_context(|| format!("{path}: {status}: {body}"))?;
        movements += count.parse::<u64>().with_context(|| format!("{path}: {body}"))?;
    }
    Ok(movements)
}

/// Blocks full of movements, then a fork; says what was done.
async fn traffic(node: &Anvil, tokens: &mut Tokens, rng: &mut SmallRng, round: usize) -> Result<String> {
    let snapshot = node.rpc.result("evm_snapshot", json!([])).await?;
    let before = node.rpc.result("eth_blockNumber", json!([])).await?;
    let blocks = rng.random_range(8..16);
    for _ in 0..blocks {
        let transactions = rng.random_range(0..=BLOCK_TRANSACTIONS);
        tokens.block(transactions).await?;
        // So that most blocks are derived before they are taken away again.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    if round == 0 {
        return Ok("no fork".into());
    }
    let head = node.rpc.head().await?.context("no head")?.0;
    let depth = rng.random_range(1..=30).min(head - 2);
    let what = match round % 3 {
        0 => {
            // Back to where the round began, and other blocks, until they are more.
            node.rpc.result("evm_revert", json!([snapshot])).await?;
            let depth = head - quantity(&before)?;
            for _ in 0..=depth {
                let transactions = rng.random_range(0..=BLOCK_TRANSACTIONS / 2);
                tokens.block(transactions).await?;
            }
            format!("{depth} blocks reverted")
        }
        1 => {
            let transactions = tokens.for_reorg(depth, 4);
            node.reorg(depth, transactions).await?;
            format!("a reorg of {depth}")
        }
        _ => {
            // A shorter chain first, which is lag, then another one of the same heights and more.
            node.rollback(depth).await?;
            for _ in 0..=depth {
                tokens.block(4).await?;
            }
            format!("{depth} blocks rolled back")
        }
    };
    // Two forks in a row, of which the second may be seen before the first is undone.
    if rng.random_ratio(1, 2) {
        let depth = rng.random_range(1..=6);
        let transactions = tokens.for_reorg(depth, 2);
        node.reorg(depth, transactions).await?;
        tokens.block(4).await?;
        return Ok(format!("{what} and a reorg of {depth}"));
    }
    tokens.block(4).await?;
    Ok(what)
}
