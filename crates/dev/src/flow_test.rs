//! Flow from an access node that is made up, on SQLite and PostgreSQL: every table against the ledger of the chain, and against what the node answers to
//! account calls and scripts, while it forks and a process is killed; and the reliability document's §8 in its own terms.
//!
//! The node speaks the Access API over gRPC, and its chain comes from a seed (`cairn-flow-node`): it has what a flow-emulator hasn't, seals, limits and
//! events of old sporks. `flow_emulator` is the same with a real one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_backends::postgres::{PgOptions, PgPool};
use cairn_core::Height;
use cairn_explorer::processors::FLOW;
use cairn_explorer::tables::flow::accounts::UNPLACED_REVOCATIONS;
use cairn_explorer::tables::flow::evm::EVM_GAPS;
use cairn_explorer::tables::metadata::{NFT_URI_BYTES, TOKEN_ANSWER_BYTES};
use cairn_flow_node::{AccessClient, Behaviour, FlowNode, Generator, GeneratorOptions, Ledger};
use clap::Args;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::args::{KeepArgs, ServerArgs};
use crate::flow_archive::{App, Archive, Raw};
use crate::flow_truth::{self, COMPARISONS, Generated, NodeTruth, Tables, Truth};
use crate::peer::Peer;
use crate::report::{Report, figure};

/// How long everything may need to come to the node's head.
const CATCH_UP: Duration = Duration::from_secs(90);
/// How long a process may need to end after SIGTERM.
const STOP: Duration = Duration::from_secs(25);
/// The reliability document's queries, as they stand there.
const LEASES: &str = "SELECT worker_type, status, COUNT(*) FROM app.worker_leases GROUP BY 1, 2 ORDER BY 1;";
const ERRORS: &str = "SELECT COUNT(*) FROM raw.indexing_errors;";
const CHECKPOINTS: &str = "SELECT * FROM app.indexing_checkpoints ORDER BY service_name;";
const DEAD: &str = "SELECT * FROM app.worker_leases WHERE status = 'FAILED' AND attempt >= 20;";
const OPEN: &str = "SELECT worker_type, from_height, to_height
FROM app.worker_leases
WHERE status != 'COMPLETED'
ORDER BY worker_type, from_height;";

/// Where things are, and how much.
#[derive(Args)]
pub struct Options {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Blocks before anything forks.
    #[arg(long, default_value_t = 800)]
    blocks: u64,
    /// How often the chain grows and is taken back.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Decides the chain and its forks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Runs it and prints its cases.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    println!("seed {}", options.seed);
    let mut report = Report::default();
    let live = archives(&options, folder, "live").await?;
    let clean = archives(&options, folder, "clean").await?;
    let played = play(&options, &live, &clean, &mut report).await;
    if !options.keep.keeps() {
        for archive in live.into_iter().chain(clean) {
            archive.drop().await?;
        }
    }
    played?;
    Ok(report.finish())
}

async fn archives(options: &Options, folder: &Path, name: &str) -> Result<Vec<Archive>> {
    let sqlite = Archive::sqlite(&options.cairn, folder, name)?;
    Ok(vec![sqlite, Archive::postgres(&options.cairn, folder, name, &options.server.postgres).await?])
}

/// An archive with the process that works on it.
struct Follower<'a> {
    archive: &'a Archive,
    process: Peer,
}

async fn play(options: &Options, live: &[Archive], clean: &[Archive], report: &mut Report) -> Result<()> {
    let root = GeneratorOptions::new(options.seed).root_height;
    let made =
        GeneratorOptions { has_evm_tokens: true, has_elder: true, ..GeneratorOptions::new(options.seed) };
    let mut generator = Generator::new(made, Behaviour::default());
    generator.grow(options.blocks);
    let node = FlowNode::serve(generator.state()).await?;
    let mut followers = Vec::new();
    for archive in live {
        followers.push(Follower { archive, process: archive.run(&node.url, root, &[], &[])? });
    }
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let begun = Instant::now();
    let earlier = earlier_heights(root, options.blocks);
    if !compare(report, "from the root", &node, &mut followers, &earlier, false).await {
        return Ok(());
    }
    figure("flow_first_catch_up_s", format!("{:.1}", begun.elapsed().as_secs_f64()), "s");
    for round in 0..options.rounds {
        let mut what = Vec::new();
        for _ in 0..rng.random_range(1..4) {
            for _ in 0..rng.random_range(2..8) {
                generator.grow(rng.random_range(1..4));
                tokio::time::sleep(Duration::from_millis(rng.random_range(20..150))).await;
            }
            let depth = rng.random_range(1..40);
            generator.rollback(depth);
            // At times it stays shorter than it was for a while.
            generator.grow(rng.random_range(0..depth + 3));
            what.push(depth.to_string());
        }
        let killed = round % 2 == 1;
        if killed {
            for Follower { archive, process } in std::mem::take(&mut followers) {
                process.kill().await?;
                followers.push(Follower { archive, process: archive.run(&node.url, root, &[], &[])? });
            }
            generator.rollback(5);
        }
        generator.grow(45);
        let killed = if killed { " and kill -9" } else { "" };
        let name = format!("after {} blocks were taken back{killed}", what.join(", "));
        if !compare(report, &name, &node, &mut followers, &[], true).await {
            return Ok(());
        }
    }
    // Up to the end of a range, so that the last one can be completed too.
    let tip = generator.sealed_height();
    generator.grow((tip + 1).next_multiple_of(100) - 1 - tip);
    compare(report, "in the end", &node, &mut followers, &earlier, true).await;
    for follower in followers {
        let name = format!("{}: SIGTERM ends it with success", follower.archive.backend);
        let ended = async {
            let (status, _) = follower.process.terminate(STOP).await?;
            ensure!(status.success(), "ended with {status}");
            Ok(())
        };
        report.case(name, ended).await;
    }
    let blocks = generator.sealed_height() + 1 - root;
    figure("flow_blocks", blocks, "blocks");
    let again = FlowNode::serve(generator.copy(Behaviour::default())).await?;
    for (live, clean) in live.iter().zip(clean) {
        reliability(report, clean, &again, root).await;
        clean_tables(report, clean, &again).await?;
        report
            .case(format!("{}: both dumps are those of a clean run", clean.backend), async {
                let ((raw, app), (clean_raw, clean_app)) = (live.dumps().await?, clean.dumps().await?);
                for (what, ours, theirs) in [("raw", &raw, &clean_raw), ("app", &app, &clean_app)] {
                    ensure!(
                        theirs.lines.len() > 1_000,
                        "the clean run's {what} dump has {} lines",
                        theirs.lines.len()
                    );
                    if let Some((ours, theirs)) = ours.first_difference(theirs) {
                        bail!("the {what} dumps differ:\n  forked: {ours}\n  clean:  {theirs}");
                    }
                }
                figure(
                    &format!("flow_dump_lines_{}", clean.backend),
                    raw.lines.len() + app.lines.len(),
                    "lines",
                );
                Ok(())
            })
            .await;
    }
    Ok(())
}

/// A few heights of each age of the chain.
fn earlier_heights(root: u64, blocks: u64) -> Vec<u64> {
    let ages = GeneratorOptions::new(0);
    vec![
        root,
        root + ages.rlp_heights,
        root + ages.old_heights,
        root + blocks / 2,
        (root + blocks).saturating_sub(20),
    ]
}

fn tip(node: &FlowNode) -> Result<(u64, String)> {
    let state = node.state();
    let tip = state.chain.sealed().context("no block")?;
    Ok((tip.header.height, format!("0x{}", alloy_primitives::hex::encode(&tip.id))))
}

/// Waits for every follower, and compares every table of each with the ledger, and with what the node answers. Whether all came as far.
async fn compare(
    report: &mut Report,
    when: &str,
    node: &FlowNode,
    followers: &mut [Follower<'_>],
    earlier: &[u64],
    is_forked: bool,
) -> bool {
    let mut all = true;
    // Nothing changes any more once all have settled, so the ledger need not be held.
    let (ledger, tip) = match tip(node) {
        Ok(tip) => (node.state().ledger.clone(), tip),
        Err(error) => {
            report.fail(format!("the node's head {when}"), format!("{error:#}"));
            return false;
        }
    };
    let truth = truth(&ledger, tip.0, is_forked);
    let begun = Instant::now();
    let answers = match ask_node(node, &truth, earlier).await {
        Ok(answers) => answers,
        Err(error) => {
            report.fail(format!("the node's answers {when}"), format!("{error:#}"));
            return false;
        }
    };
    println!("  the node was asked for {:.1} s", begun.elapsed().as_secs_f64());
    for Follower { archive, process } in followers {
        let backend = archive.backend;
        let settled = async { archive.settle(tip.clone(), process, CATCH_UP).await };
        if !report.case(format!("{backend}: everything is derived {when}"), settled).await {
            all = false;
            continue;
        }
        tables(report, when, archive, &truth, &answers, node).await;
        report.case(format!("{backend}: no error is logged {when}"), archive.no_errors()).await;
    }
    all
}

/// The truth of the chain that this test makes.
fn truth(ledger: &Ledger, height: u64, is_forked: bool) -> Truth<'_> {
    let GeneratorOptions { root_height, old_heights, .. } = GeneratorOptions::new(0);
    let new_from = root_height + old_heights;
    Truth { ledger, root: root_height, height, new_from, is_forked, names: &Generated }
}

/// What the node answers of the head and of some earlier heights.
async fn ask_node(node: &FlowNode, truth: &Truth<'_>, earlier: &[u64]) -> Result<Vec<NodeTruth>> {
    let client = AccessClient::connect(&node.url).await?;
    let mut answers = vec![flow_truth::ask(&client, truth, truth.height).await?];
    for height in earlier.iter().filter(|height| **height < truth.height) {
        answers.push(flow_truth::ask(&client, truth, *height).await?);
    }
    Ok(answers)
}

/// Every table of an archive's database. What the databases have, where all could be read.
async fn tables(
    report: &mut Report,
    when: &str,
    archive: &Archive,
    truth: &Truth<'_>,
    answers: &[NodeTruth],
    node: &FlowNode,
) -> Option<Tables> {
    let backend = archive.backend;
    let read = async { flow_truth::read(&archive.database().await?).await };
    let found = match read.await {
        Ok(found) => found,
        Err(error) => {
            report.fail(format!("{backend}: tables {when}"), format!("{error:#}"));
            return None;
        }
    };
    for comparison in COMPARISONS {
        let compared = comparison.compare(truth, &found);
        let rows = compared.as_ref().copied().unwrap_or(0);
        let name = comparison.table.name;
        let name = format!("{backend}: {name} is the ledger's {when}: {rows} rows compared");
        report.case(name, async { compared.map(drop) }).await;
    }
    for (at, asked) in answers.iter().enumerate() {
        let compared = flow_truth::compare_with_node(asked, truth, &found, at == 0);
        let count = compared.as_ref().copied().unwrap_or(0);
        let name = format!(
            "{backend}: accounts, balances, items and EVM accounts are the node's at {} {when}: {count} answers",
            asked.height
        );
        report.case(name, async { compared.map(drop) }).await;
    }
    let asked = async {
        let client = AccessClient::connect(&node.url).await?;
        flow_truth::compare_answers(&client, truth.ledger.network, &found).await
    };
    let compared = asked.await;
    let count = compared.as_ref().copied().unwrap_or(0);
    let name = format!("{backend}: names, supplies and pictures are the node's {when}: {count} answers");
    report.case(name, async { compared.map(drop) }).await;
    Some(found)
}

/// The archive of a run in which nothing was taken back: no answer too many, a row in each table, and a row that is altered is seen.
async fn clean_tables(report: &mut Report, archive: &Archive, node: &FlowNode) -> Result<()> {
    let height = tip(node)?.0;
    let ledger = node.state().ledger.clone();
    let truth = truth(&ledger, height, false);
    let answers = ask_node(node, &truth, &[]).await?;
    let when = "in a clean run";
    let Some(mut found) = tables(report, when, archive, &truth, &answers, node).await else { return Ok(()) };
    // Every name of this chain is shown as it is said.
    let may_be_empty =
        [EVM_GAPS.name, UNPLACED_REVOCATIONS.name, TOKEN_ANSWER_BYTES.name, NFT_URI_BYTES.name];
    let empty: Vec<&str> = found.empty().filter(|name| !may_be_empty.contains(name)).collect();
    let name = format!("{}: every table has rows, but for those of gaps and doubts", archive.backend);
    report
        .case(name, async {
            ensure!(empty.is_empty(), "these have none: {}", empty.join(", "));
            Ok(())
        })
        .await;
    let database = archive.database().await?;
    let altered = flow_truth::every_alteration_is_seen(&database, &truth, &mut found).await;
    let count = altered.as_ref().copied().unwrap_or(0);
    let name = format!("{}: a row that is altered is seen in each of {count} tables", archive.backend);
    report.case(name, async { altered.map(drop) }).await;
    Ok(())
}

/// §8 of the reliability document: all workers over about 1,000 blocks; downstream ones wait for upstream ones.
async fn reliability(report: &mut Report, archive: &Archive, node: &FlowNode, root: u64) {
    let backend = archive.backend;
    let mut waits = Waits::default();
    let held = held_up(archive, node, root, &mut waits).await;
    report
        .case(format!("{backend}: every downstream worker waits for upstream ones that are paused"), async {
            held?;
            waits.check_all()
        })
        .await;
    let all = async {
        let mut process = archive.run(&node.url, root, &["--exit-after-head"], &[])?;
        let looking = async {
            loop {
                // Its stores aren't there at once.
                if let Ok(stores) = futures::try_join!(archive.raw(), archive.app()) {
                    let (raw, app) = stores;
                    while waits.look(&*raw, &*app).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let ended = tokio::select! {
            ended = process.wait(CATCH_UP) => ended?,
            never = looking => never,
        };
        ensure!(ended.success(), "it ended with {ended}");
        Ok(())
    };
    report.case(format!("{backend}: a run with all workers ends at the node's head"), all).await;
    let seen: Vec<String> = waits.seen.iter().map(|(service, looks)| format!("{service} {looks}")).collect();
    println!(
        "  looked {} times; at its upstream's checkpoint, below the raw tip: {}",
        waits.looks,
        seen.join(", ")
    );
    report
        .case(format!("{backend}: no worker was ever ahead of an upstream one"), async { waits.check() })
        .await;
    let Some([raw, app]) = archive.urls() else { return };
    report
        .case(format!("{backend}: the verification queries say what they should"), queries(raw, app, node))
        .await;
}

/// Comes to the middle of the chain, and then to its end while all workers on which others depend are paused: until each that depends on one has
/// been seen to stand where that one does, and half as long again.
async fn held_up(archive: &Archive, node: &FlowNode, root: u64, waits: &mut Waits) -> Result<()> {
    let (end, _) = tip(node)?;
    let middle = ((root + end) / 2).next_multiple_of(100) - 1;
    let id = node.state().chain.at(middle).context("no block in the middle")?.id.clone();
    let middle_tip = (middle, format!("0x{}", alloy_primitives::hex::encode(id)));
    let mut process = archive.run(&node.url, root, &["--to", &middle.to_string()], &[])?;
    archive.settle(middle_tip, &mut process, CATCH_UP).await?;
    process.terminate(STOP).await?;
    let upstreams: BTreeSet<&str> = FLOW.iter().flat_map(|one| one.service.upstreams).copied().collect();
    for worker in &upstreams {
        archive.set_paused(worker, true).await?;
    }
    let mut process = archive.run(&node.url, root, &[], &[])?;
    let (raw, app) = futures::try_join!(archive.raw(), archive.app())?;
    let begun = Instant::now();
    let mut all_after = None;
    while all_after.is_none_or(|after: Duration| begun.elapsed() < after + after / 2) {
        process.check_alive()?;
        ensure!(
            begun.elapsed() < CATCH_UP,
            "{} were seen to wait after {} s",
            waits.seen.len(),
            CATCH_UP.as_secs()
        );
        waits.look(&*raw, &*app).await?;
        let is_stored = raw.snapshot().await?.head().tip.is_some_and(|tip| tip.height.get() == end);
        if all_after.is_none() && is_stored && waits.check_all().is_ok() {
            all_after = Some(begun.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    process.terminate(STOP).await?;
    let snapshot = app.snapshot().await?;
    for one in FLOW.iter().filter(|one| !one.service.upstreams.is_empty()) {
        let stands = snapshot.checkpoint(one.service.name).map(|found| found.next.get());
        ensure!(stands == Some(middle + 1), "{} went to {stands:?}, past {middle}", one.service.name);
    }
    for worker in upstreams {
        archive.set_paused(worker, false).await?;
    }
    Ok(())
}

/// What was seen of workers that depend on others.
#[derive(Default)]
struct Waits {
    looks: u64,
    /// How often each had done all that its upstreams had, and the raw tip was above that.
    seen: BTreeMap<&'static str, u64>,
    /// One that was ahead of an upstream.
    ahead: Option<String>,
}

impl Waits {
    async fn look(&mut self, raw: &dyn Raw, app: &dyn App) -> Result<()> {
        // The raw store first: its tip may have risen since, never fallen.
        let head = raw.snapshot().await?.head().clone();
        let (Some(first), Some(tip)) = (head.first, head.tip) else { return Ok(()) };
        let snapshot = app.snapshot().await?;
        self.looks += 1;
        let next = |name: &str| snapshot.checkpoint(name).map_or(Height::ZERO, |found| found.next);
        for one in FLOW {
            let (name, upstreams) = (one.service.name, one.service.upstreams);
            let Some(limit) = upstreams.iter().map(|upstream| next(upstream)).min() else { continue };
            if next(name) > limit {
                self.ahead =
                    Some(format!("{name} is at {}, its upstreams {upstreams:?} at {limit}", next(name)));
            }
            // Below the first height all are, before anything runs.
            if next(name) == limit && limit > first && limit <= tip.height {
                *self.seen.entry(name).or_default() += 1;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if let Some(ahead) = &self.ahead {
            bail!("{ahead}");
        }
        Ok(())
    }

    /// Demands that each was seen to wait.
    fn check_all(&self) -> Result<()> {
        let downstream = FLOW.iter().filter(|one| !one.service.upstreams.is_empty());
        let never: Vec<&str> =
            downstream.map(|one| one.service.name).filter(|name| !self.seen.contains_key(name)).collect();
        ensure!(never.is_empty(), "in {} looks never seen to wait: {}", self.looks, never.join(", "));
        self.check()
    }
}

/// The queries, each in the database that has its table.
async fn queries(raw: &str, app: &str, node: &FlowNode) -> Result<()> {
    let (raw, app) = (PgPool::new(PgOptions::new(raw))?, PgPool::new(PgOptions::new(app))?);
    let errors: i64 = raw.get().await?.query_one(ERRORS, &[]).await?.try_get(0)?;
    ensure!(errors == 0, "{errors} errors are logged");
    let app = app.get().await?;
    let mut leases = 0i64;
    for row in app.query(LEASES, &[]).await? {
        let (service, status, count): (String, String, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        println!("  {service} {status} {count}");
        ensure!(status == "COMPLETED", "{count} leases of {service} are {status}");
        leases += count;
    }
    let tip = tip(node)?.0 as i64;
    let checkpoints = app.query(CHECKPOINTS, &[]).await?;
    for row in &checkpoints {
        let (service, height): (String, i64) = (row.try_get("service_name")?, row.try_get("last_height")?);
        ensure!(height == tip, "the checkpoint of {service} is {height}, the node's head {tip}");
    }
    ensure!(checkpoints.len() == FLOW.len(), "{} checkpoints of {} services", checkpoints.len(), FLOW.len());
    ensure!(app.query(DEAD, &[]).await?.is_empty(), "there are dead leases");
    ensure!(app.query(OPEN, &[]).await?.is_empty(), "there are leases that aren't completed");
    figure("flow_leases_completed", leases, "leases");
    Ok(())
}
