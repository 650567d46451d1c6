//! One ingester and three workers on PostgreSQL while the chain forks: killed with -9 at random moments, and then left without their app
//! database, which is on a server of its own, for a minute. The ingester stays with the node all the while, and in the end every table is what
//! a clean run makes of the final chain, what the node said of contracts included. About half of the payloads are kept outside the database.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_backends::postgres::{PgOptions, PgPool, PgRawStore};
use cairn_store::RawReader;
use cairn_store::derived::{DerivedReader, LeaseFilter};
use clap::Args;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::process::Command;

use crate::answers;
use crate::anvil::Anvil;
use crate::app_server::{AppServer, AppServerArgs};
use crate::args::{KeepArgs, ServerArgs};
use crate::databases::Databases;
use crate::peer::Peer;
use crate::report::{Report, figure};
use crate::traffic::Traffic;

/// How long everything may need to come to the node's head after the last kill.
const CATCH_UP: Duration = Duration::from_secs(180);
/// How often it is looked how far the ingester is behind the node.
const LOOK: Duration = Duration::from_millis(250);
/// Without the app database the ingester may be so far behind the node as with it, and this: it polls ten times a second, and a reorg has to be taken in.
const LAG_HEIGHTS: u64 = 30;
/// Worker processes beside the ingester.
const WORKERS: usize = 3;
/// After so many kills a worker that asks the node is told to ask again about all that it has done: what it is answered takes the place of what is known, and reorgs give
/// that back.
const ASK_AGAIN_EVERY: usize = 20;
/// The workers that ask the node.
const ASKERS: [&str; 3] = ["token_metadata_worker", "nft_metadata_worker", "contract_code_worker"];
/// Payloads of the killed processes that are longer are kept in a directory: about half of them.
const INLINE_MAX_BYTES: &str = "250";

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
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    app: AppServerArgs,
    /// Processes killed.
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// Decides every transaction, every fork and every moment of a kill.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Starts cairns on one pair of databases.
pub struct Fleet {
    pub cairn: PathBuf,
    /// The node's URL.
    pub node: String,
    /// For logs.
    pub folder: PathBuf,
    /// Of the raw and of the app database.
    pub urls: [String; 2],
    /// Where payloads of more than [`INLINE_MAX_BYTES`] are kept; `None`: all in the database.
    pub payloads: Option<PathBuf>,
    /// Settings beside those that are always made, by the names of the environment.
    pub settings: Vec<(&'static str, &'static str)>,
}

impl Fleet {
    /// Starts one; its log is `ROLE-NUMBER.log`.
    pub fn start(&self, role: &str, number: usize, more: &[&str]) -> Result<Peer> {
        let mut command = Command::new(&self.cairn);
        command.args(["run", "--role", role, "--rpc", &self.node, "--finality", "tag", "--poll-ms", "100"]);
        command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]).args(more);
        command.arg("--data").arg(self.folder.join("data"));
        command.env("DB_RAW_URL", &self.urls[0]).env("DB_APP_URL", &self.urls[1]);
        self.keep_payloads(&mut command);
        command.envs(self.settings.iter().copied());
        Peer::start(role, command, &self.folder.join(format!("{role}-{number}.log")))
    }
}

impl Fleet {
    fn keep_payloads(&self, command: &mut Command) {
        match &self.payloads {
            Some(directory) => command
                .env("PAYLOAD_INLINE_MAX_BYTES", INLINE_MAX_BYTES)
                .env("CAIRN_PAYLOADS__URL", directory),
            None => command.env("CAIRN_PAYLOADS__URL", "none"),
        };
    }

    /// Has a worker ask again about all that it has done; whether it will, for this word: there may be nothing yet, or it may be at it already.
    async fn ask_again(&self, worker: &str) -> Result<bool> {
        let mut command = Command::new(&self.cairn);
        command.args(["reindex", "--worker", worker, "--from", "0", "--data"]).arg(self.folder.join("data"));
        command.env("DB_RAW_URL", &self.urls[0]).env("DB_APP_URL", &self.urls[1]);
        let ended = command.kill_on_drop(true).output().await?;
        let words = String::from_utf8_lossy(&ended.stderr);
        let nothing_yet = words.contains("has never run here") || words.contains("lies outside of it");
        // Those that were told before may be at it still.
        let is_at_it = words.contains("is being made again already");
        ensure!(
            ended.status.success() || nothing_yet || is_at_it,
            "{worker} can't be told to ask again: {words}"
        );
        Ok(ended.status.success())
    }

    /// What `cairn payloads list --check` says: how many are live. A lost or damaged one is an error.
    async fn check_payloads(&self) -> Result<u64> {
        let mut command = Command::new(&self.cairn);
        command.args(["payloads", "list", "--check", "--limit", "3", "--data"]).arg(self.folder.join("data"));
        command.env("DB_RAW_URL", &self.urls[0]).env("DB_APP_URL", &self.urls[1]);
        self.keep_payloads(&mut command);
        let ended = command.output().await?;
        let words = String::from_utf8_lossy(&ended.stdout);
        ensure!(ended.status.success(), "{words}{}", String::from_utf8_lossy(&ended.stderr));
        let live =
            words.split_whitespace().zip(words.split_whitespace().skip(1)).find(|(_, word)| *word == "live,");
        Ok(live.with_context(|| words.clone().into_owned())?.0.parse()?)
    }
}

/// Small ranges and chunks, so that there are many borders; and leases short enough that what the dead held is taken over.
const SETTINGS: [(&str, &str); 4] = [
    ("CAIRN_DERIVE__RANGE_HEIGHTS", "48"),
    ("CAIRN_DERIVE__CHUNK_HEIGHTS", "9"),
    ("CAIRN_DERIVE__LEASE_TTL_S", "4"),
    ("CAIRN_DERIVE__POLL_MS", "200"),
];

/// Runs it and prints its cases.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    println!("seed {}", options.seed);
    let mut report = Report::default();
    let mut server = AppServer::new(&options.app, folder.join("app-server.log"));
    server.start().await?;
    let mut killed =
        Databases::make_apart(&options.server.postgres, &options.app.app_postgres, "cairn_killed").await?;
    killed.payloads = Some(folder.join("payloads"));
    let clean = Databases::make(&options.server.postgres, "cairn_clean").await?;
    play(&options, folder, &mut server, &killed, &clean, &mut report).await?;
    if !options.keep.keeps() {
        killed.drop().await?;
        clean.drop().await?;
    }
    server.stop().await?;
    Ok(report.finish())
}

async fn play(
    options: &Options,
    folder: &Path,
    server: &mut AppServer<'_>,
    killed: &Databases,
    clean: &Databases,
    report: &mut Report,
) -> Result<()> {
    let mut node = Anvil::start_in_memory(&options.anvil, &folder.join("anvil.log")).await?;
    let mut traffic = Traffic::deploy(&node.rpc, &options.contracts, options.seed).await?;
    traffic.block(20).await?;
    let fleet = Fleet {
        cairn: options.cairn.clone(),
        node: node.url.clone(),
        folder: folder.to_owned(),
        urls: killed.urls.clone(),
        payloads: killed.payloads.clone(),
        settings: SETTINGS.to_vec(),
    };
    let name = format!(
        "{} kills of one ingester and {WORKERS} workers, and {} s without the app database, while the chain forks: everything is derived",
        options.kills,
        options.app.away().as_secs()
    );
    let killing = async {
        let ended = kill(options, server, &node, &mut traffic, &fleet, killed).await;
        if ended.is_err() {
            // Where the node itself has ended, that is the reason.
            node.check_alive()?;
        }
        ended
    };
    if !report.case(name, killing).await {
        return Ok(());
    }
    // Else the end of the chain shows nothing, and what is asked there says so.
    report.case("the node has its contracts still", traffic.demand_contracts()).await;

    let payloads = async {
        let live = fleet.check_payloads().await?;
        figure("kill_test_payloads", live, "payloads outside the database");
        ensure!(live > 100, "only {live} payloads are outside the database");
        Ok(())
    };
    report.case("every payload outside the database is there and whole", payloads).await;

    // All in the database: where payloads are makes no difference to what is read.
    let once = Fleet { urls: clean.urls.clone(), payloads: None, ..fleet };
    let clean_run = async {
        // `--exit-after-head` doesn't wait for those who ask the node.
        let process = once.start("all", 9, &[])?;
        clean.settle(&node.rpc, CATCH_UP).await.with_context(|| process.log_tail())?;
        let (ended, _) = process.terminate(Duration::from_secs(25)).await?;
        ensure!(ended.success(), "it ended with {ended}");
        Ok(())
    };
    if !report.case("a clean run of the same chain comes to its head", clean_run).await {
        return Ok(());
    }
    let ((raw, app), (clean_raw, clean_app)) = (killed.dumps().await?, clean.dumps().await?);
    for (what, ours, theirs) in [("raw", &raw, &clean_raw), ("app", &app, &clean_app)] {
        report
            .case(
                format!("every table of the {what} database is what a clean run makes of the chain"),
                async {
                    ensure!(
                        theirs.lines.len() > 100,
                        "the clean run's dump has {} lines",
                        theirs.lines.len()
                    );
                    if let Some((ours, theirs)) = ours.first_difference(theirs) {
                        bail!("the {what} dumps differ:\n  killed: {ours}\n  clean:  {theirs}");
                    }
                    Ok(())
                },
            )
            .await;
        figure(&format!("kill_test_{what}_lines"), ours.lines.len(), "lines");
    }
    let lookups = async {
        let (ours, theirs) = (lookup_rows(&killed.urls[0]).await?, lookup_rows(&clean.urls[0]).await?);
        ensure!(theirs.len() > 100, "the clean run has {} rows of lookups", theirs.len());
        let differs = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        ensure!(differs.is_none(), "a lookup differs (killed, clean): {differs:?}");
        ensure!(
            ours.len() == theirs.len(),
            "there are {} rows of lookups, {} in a clean run",
            ours.len(),
            theirs.len()
        );
        figure("kill_test_lookups", ours.len(), "rows");
        Ok(())
    };
    report
        .case("every row of the lookups is that of a clean run, with the block that it names", lookups)
        .await;
    let said = async {
        let rows = answers::compare(&killed.urls[1], &clean.urls[1]).await?;
        figure("kill_test_answers", rows, "rows");
        Ok(())
    };
    report.case("what the node said of contracts is what it says to a clean run", said).await;
    let errors = async {
        let (ours, theirs) = (logged_errors(&killed.urls[0]).await?, logged_errors(&clean.urls[0]).await?);
        ensure!(ours == theirs, "the error logs differ:\n  killed: {ours:?}\n  clean:  {theirs:?}");
        Ok(())
    };
    report
        .case("the error log is that of a clean run: nothing twice, nothing of blocks that are gone", errors)
        .await;
    Ok(())
}

/// The lookups' rows, whole: of these the dump has no more than the key and the place.
async fn lookup_rows(url: &str) -> Result<Vec<String>> {
    let pool = PgPool::new(PgOptions::new(url))?;
    let rows = pool
        .get()
        .await?
        .query(
            "SELECT 'block ' || l::text FROM raw.block_lookup l UNION ALL SELECT 'tx ' || l::text FROM raw.tx_lookup l \
             UNION ALL SELECT 'evm ' || l::text FROM raw.evm_lookup l ORDER BY 1",
            &[],
        )
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// What the error log says, without when.
async fn logged_errors(url: &str) -> Result<Vec<String>> {
    let pool = PgPool::new(PgOptions::new(url))?;
    let rows = pool
        .get()
        .await?
        .query(
            "SELECT format('%s %s %s %s %s %s', worker_name, block_height, encode(block_id, 'hex'), transaction_id, \
             error_hash, resolved) FROM raw.indexing_errors ORDER BY 1",
            &[],
        )
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Kills and starts again, takes the app database away and brings it back, until everything stands at the node's head.
async fn kill(
    options: &Options,
    server: &mut AppServer<'_>,
    node: &Anvil,
    traffic: &mut Traffic,
    fleet: &Fleet,
    databases: &Databases,
) -> Result<()> {
    let mut processes = vec![fleet.start("ingest", 0, &[])?];
    for number in 1..=WORKERS {
        processes.push(fleet.start("work", number, &[])?);
    }
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let (mut forks, mut asked_again) = (0, 0);
    let begun = Instant::now();
    let reached;
    {
        let chain = live(node, traffic, options.seed, &mut forks);
        tokio::pin!(chain);
        for number in 0..options.kills {
            if number % ASK_AGAIN_EVERY == ASK_AGAIN_EVERY / 2 {
                let worker = ASKERS[number / ASK_AGAIN_EVERY % ASKERS.len()];
                tokio::select! {
                    ended = &mut chain => { ended?; bail!("the chain stopped living") }
                    again = fleet.ask_again(worker) => asked_again += usize::from(again?),
                }
            }
            let pause = Duration::from_millis(rng.random_range(60..800));
            let victim = rng.random_range(0..processes.len());
            tokio::select! {
                ended = &mut chain => { ended?; bail!("the chain stopped living") }
                () = tokio::time::sleep(pause) => {}
            }
            // Who has ended by itself, can't be killed.
            processes[victim].check_alive()?;
            processes.remove(victim).kill().await?;
            let role = if victim == 0 { "ingest" } else { "work" };
            processes.insert(victim, fleet.start(role, victim, &[])?);
        }
        figure("kills_per_s", format!("{:.1}", options.kills as f64 / begun.elapsed().as_secs_f64()), "1/s");
        reached = Reached::of(databases).await?;
        tokio::select! {
            ended = &mut chain => { ended?; bail!("the chain stopped living") }
            ended = outage(options, server, node, databases) => ended?,
        }
    }
    figure("kill_test_forks", forks, "forks");
    figure("kill_test_asked_again", asked_again, "times");
    figure("kill_test_taken_back", taken_back(&fleet.folder)?, "answers");
    ensure!(
        asked_again > 0 || options.kills < 3 * ASK_AGAIN_EVERY,
        "no worker had anything to ask again about while processes were killed"
    );
    for process in &mut processes {
        process.check_alive()?;
    }
    let Reached { raw_height, derived_height, fence } = reached;
    figure("kill_test_raw_height_at_last_kill", raw_height, "heights");
    figure("kill_test_derived_height_at_last_kill", derived_height, "heights");
    figure("kill_test_lease_fences_at_last_kill", fence, "fences");
    let begun = Instant::now();
    databases.settle(&node.rpc, CATCH_UP).await?;
    figure("kill_test_settled_after_s", format!("{:.1}", begun.elapsed().as_secs_f64()), "s");
    for process in processes {
        process.terminate(Duration::from_secs(25)).await?;
    }
    ensure!(
        derived_height > 48 && fence as usize > options.kills,
        "while they were killed {derived_height} of {raw_height} heights were derived, under {fence} fences: too few to show anything"
    );
    Ok(())
}

/// How often the node said that a contract isn't there, and then what it is.
fn taken_back(logs: &Path) -> Result<usize> {
    const WORDS: &str = "the node said that this isn't there, and now says what it is";
    let mut times = 0;
    for entry in std::fs::read_dir(logs)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            times += String::from_utf8_lossy(&std::fs::read(&path)?).matches(WORDS).count();
        }
    }
    Ok(times)
}

/// What was reached while they died: had nobody done anything before the last kill, nothing would have been tried.
struct Reached {
    raw_height: u64,
    /// Of the slowest worker.
    derived_height: u64,
    /// The highest that was given.
    fence: u64,
}

impl Reached {
    async fn of(databases: &Databases) -> Result<Reached> {
        let raw_height =
            databases.open_raw().await?.snapshot().await?.head().tip.map_or(0, |tip| tip.height.get());
        let app = databases.open_app().await?;
        let snapshot = app.snapshot().await?;
        let derived =
            snapshot.checkpoints().iter().map(|one| one.last().map_or(0, |tip| tip.height.get())).min();
        let leases = snapshot.leases(&LeaseFilter { limit: 10_000, ..LeaseFilter::default() }).await?;
        let fence = leases.iter().map(|lease| lease.fence.0).max().unwrap_or(0);
        Ok(Reached { raw_height, derived_height: derived.unwrap_or(0), fence })
    }
}

/// The app database is away for a while. The ingester is no further behind the node meanwhile than before.
async fn outage(
    options: &Options,
    server: &mut AppServer<'_>,
    node: &Anvil,
    databases: &Databases,
) -> Result<()> {
    let raw = databases.open_raw().await?;
    let with = behind(&raw, node, options.app.away() / 4).await?;
    server.stop().await?;
    let without = behind(&raw, node, options.app.away()).await?;
    server.start().await?;
    for (name, lag) in [("with", &with), ("without", &without)] {
        figure(&format!("kill_test_{name}_app_heights"), lag.heights, "heights");
        figure(&format!("kill_test_{name}_app_furthest_behind"), lag.furthest, "heights");
    }
    ensure!(without.heights > 0, "the node made no block while the app database was away");
    ensure!(
        without.furthest <= with.furthest + LAG_HEIGHTS,
        "without the app database the ingester was {} heights behind the node, with it {}",
        without.furthest,
        with.furthest
    );
    Ok(())
}

/// How far the ingester was behind the node.
struct Lag {
    /// Heights that the node's head rose by.
    heights: u64,
    furthest: u64,
}

async fn behind(raw: &PgRawStore, node: &Anvil, time: Duration) -> Result<Lag> {
    let begun = Instant::now();
    let first = node.rpc.head().await?.context("no head")?.0;
    let mut lag = Lag { heights: 0, furthest: 0 };
    while begun.elapsed() < time {
        tokio::time::sleep(LOOK).await;
        let head = node.rpc.head().await?.context("no head")?.0;
        let tip = raw.snapshot().await?.head().tip.map_or(0, |tip| tip.height.get());
        lag.heights = head.saturating_sub(first);
        lag.furthest = lag.furthest.max(head.saturating_sub(tip));
    }
    Ok(lag)
}

/// New blocks all the time, and a fork every few of them.
async fn live(node: &Anvil, traffic: &mut Traffic, seed: u64, forks: &mut u64) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xf0f0);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..200))).await;
        let most = rng.random_range(1..12);
        traffic.block(most).await?;
        if rng.random_ratio(1, 12) {
            let head = node.rpc.head().await?.context("no head")?.0;
            let depth = rng.random_range(1..=12).min(head / 2);
            let transactions = traffic.for_reorg(depth, 3)?;
            node.reorg(depth, transactions).await?;
            traffic.block(2).await?;
            *forks += 1;
        }
    }
}
