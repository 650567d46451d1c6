//! One ingester and three workers on PostgreSQL, killed with -9 at random moments while the chain forks: in the end every table is what a
//! clean run makes of the final chain.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgOptions, PgPool, PgRawOptions, PgRawStore};
use cairn_store::derived::{DerivedDump, DerivedReader, LeaseFilter};
use cairn_store::{Dump, RawDump, RawReader};
use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::anvil::Anvil;
use crate::peer::{Peer, wait_until};
use crate::report::{Report, figure};
use crate::traffic::Traffic;

/// How long everything may need to come to the node's head after the last kill.
const CATCH_UP: Duration = Duration::from_secs(180);
/// Worker processes beside the ingester.
const WORKERS: usize = 3;

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
    /// A PostgreSQL server on which databases may be made.
    #[arg(long)]
    postgres: String,
    /// Processes killed.
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// Decides every transaction, every fork and every moment of a kill.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep logs in this folder, and the databases.
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// A raw and an app database of one run.
struct Databases {
    admin: PgPool,
    names: [String; 2],
    urls: [String; 2],
}

impl Databases {
    async fn make(server: &str, label: &str) -> Result<Databases> {
        let admin = PgPool::new(PgOptions::new(server))?;
        let unique = format!("{label}_{}_{}", std::process::id(), rand::random::<u32>());
        let names = [format!("{unique}_raw"), format!("{unique}_app")];
        let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
        let urls = names.clone().map(|name| format!("{base}/{name}"));
        let connection = admin.get().await?;
        for name in &names {
            connection.batch(&format!("CREATE DATABASE {name}")).await?;
        }
        drop(connection);
        Ok(Databases { admin, names, urls })
    }

    async fn drop(self) -> Result<()> {
        let connection = self.admin.get().await?;
        for name in &self.names {
            connection.batch(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        }
        Ok(())
    }

    async fn open(&self) -> Result<(PgRawStore, PgDerived)> {
        let mut raw = PgRawOptions::new(self.urls[0].clone());
        raw.read_only = true;
        raw.layout = Arc::new(cairn_evm::EvmLayout);
        raw.snapshot_max_ms = None;
        let catalog = cairn_explorer::processors::evm_catalog()?;
        let mut app = PgDerivedOptions::new(self.urls[1].clone());
        app.snapshot_max_ms = None;
        Ok((PgRawStore::open(raw, None).await?, PgDerived::open(app, catalog, None).await?))
    }

    async fn dumps(&self) -> Result<(Dump, Dump)> {
        let (raw, app) = self.open().await?;
        Ok((RawDump::dump(&raw).await?, DerivedDump::dump(&app).await?))
    }
}

/// Starts cairns on one pair of databases.
struct Fleet {
    cairn: PathBuf,
    node: String,
    folder: PathBuf,
    urls: [String; 2],
}

impl Fleet {
    fn start(&self, role: &str, number: usize, more: &[&str]) -> Result<Peer> {
        let mut command = Command::new(&self.cairn);
        command.args(["run", "--role", role, "--rpc", &self.node, "--finality", "tag", "--poll-ms", "100"]);
        command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]).args(more);
        command.arg("--data").arg(self.folder.join("data"));
        command.env("DB_RAW_URL", &self.urls[0]).env("DB_APP_URL", &self.urls[1]);
        for (name, value) in [
            ("RANGE_HEIGHTS", "48"),
            ("CHUNK_HEIGHTS", "9"),
            ("LEASE_TTL_S", "4"),
            ("POLL_MS", "200"),
            // What a node is asked depends on when; the dump leaves it out.
            ("ASK_NODE", "false"),
        ] {
            command.env(format!("CAIRN_DERIVE__{name}"), value);
        }
        Peer::start(role, command, &self.folder.join(format!("{role}-{number}.log")))
    }
}

/// Runs it and prints its cases.
pub async fn run(options: Options) -> Result<ExitCode> {
    let temporary = tempfile::tempdir()?;
    let folder = options.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder)?;
    let mut report = Report::default();
    let killed = Databases::make(&options.postgres, "cairn_killed").await?;
    let clean = Databases::make(&options.postgres, "cairn_clean").await?;
    report
        .case(
            format!("{} kills while the chain forks: all tables as after a clean run", options.kills),
            async { play(&options, &folder, &killed, &clean).await },
        )
        .await;
    if options.keep.is_none() {
        killed.drop().await?;
        clean.drop().await?;
    }
    Ok(report.finish())
}

async fn play(options: &Options, folder: &Path, killed: &Databases, clean: &Databases) -> Result<()> {
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let traffic = Mutex::new(Traffic::deploy(&node.rpc, &options.contracts, options.seed).await?);
    traffic.lock().await.block(20).await?;
    let fleet = Fleet {
        cairn: options.cairn.clone(),
        node: node.url.clone(),
        folder: folder.to_owned(),
        urls: killed.urls.clone(),
    };
    let mut processes = vec![fleet.start("ingest", 0, &[])?];
    for number in 0..WORKERS {
        processes.push(fleet.start("work", number, &[])?);
    }
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let chain = live(&node, &traffic, options.seed);
    tokio::pin!(chain);
    let begun = Instant::now();
    for _ in 0..options.kills {
        let pause = Duration::from_millis(rng.random_range(60..500));
        let victim = rng.random_range(0..processes.len());
        tokio::select! {
            ended = &mut chain => { ended?; bail!("the chain stopped living") }
            () = tokio::time::sleep(pause) => {}
        }
        let role = if victim == 0 { "ingest" } else { "work" };
        let next = fleet.start(role, victim, &[]);
        // The old one first: two ingesters may overlap, but that is another test.
        std::mem::replace(&mut processes[victim], next?).kill().await?;
    }
    figure("kills_per_s", format!("{:.1}", options.kills as f64 / begun.elapsed().as_secs_f64()), "1/s");
    for process in &mut processes {
        process.check_alive()?;
    }
    settle(&node, killed).await?;
    for process in processes {
        process.terminate(Duration::from_secs(25)).await?;
    }

    let once = Fleet { urls: clean.urls.clone(), ..fleet };
    let run = once.start("all", 9, &["--exit-after-head"])?;
    let ended = run.ended(CATCH_UP).await?;
    ensure!(ended.success(), "the clean run ended with {ended}");
    let ((raw, app), (clean_raw, clean_app)) = (killed.dumps().await?, clean.dumps().await?);
    for (what, ours, theirs) in [("raw", &raw, &clean_raw), ("app", &app, &clean_app)] {
        ensure!(theirs.lines.len() > 100, "the clean run's {what} dump has {} lines", theirs.lines.len());
        if let Some((ours, theirs)) = ours.first_difference(theirs) {
            bail!("the {what} dumps differ:\n  killed: {ours}\n  clean:  {theirs}");
        }
        figure(&format!("kill_test_{what}_lines"), ours.lines.len(), "lines");
    }
    Ok(())
}

/// New blocks all the time, and a fork every few of them.
async fn live(node: &Anvil, traffic: &Mutex<Traffic>, seed: u64) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xf0f0);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..200))).await;
        let mut traffic = traffic.lock().await;
        let most = rng.random_range(1..12);
        traffic.block(most).await?;
        if rng.random_ratio(1, 12) {
            let head = node.rpc.head().await?.context("no head")?.0;
            let depth = rng.random_range(1..=12).min(head / 2);
            let transactions = traffic.for_reorg(depth, 3)?;
            node.reorg(depth, transactions).await?;
            traffic.block(2).await?;
        }
    }
}

/// Waits until both stores stand at the node's head and no range is left.
async fn settle(node: &Anvil, databases: &Databases) -> Result<()> {
    let (raw, app) = databases.open().await?;
    let head = node.rpc.head().await?.context("no head")?;
    wait_until("everything is derived", CATCH_UP, || async {
        let stored = raw.snapshot().await?.head().clone();
        let Some(tip) = stored.tip else { return Ok(Some("no raw tip".into())) };
        if (tip.height.get(), tip.id.to_string()) != head {
            return Ok(Some(format!("raw tip {tip}, node {head:?}")));
        }
        let snapshot = app.snapshot().await?;
        let forks = snapshot.forks();
        if !forks.is_settled() || forks.applied.id != stored.newest_reorg.id {
            return Ok(Some(format!("reorg {} of {}", forks.applied.id, stored.newest_reorg.id)));
        }
        for checkpoint in snapshot.checkpoints() {
            if checkpoint.last() != Some(tip) {
                return Ok(Some(format!("{checkpoint:?}")));
            }
        }
        let dead = LeaseFilter { dead: true, limit: 10, ..LeaseFilter::default() };
        match snapshot.leases(&dead).await?.first() {
            Some(lease) => bail!("a dead lease: {lease:?}"),
            None => Ok(None),
        }
    })
    .await
}
