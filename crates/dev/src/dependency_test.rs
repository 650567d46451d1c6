//! Each dependency goes away for a while, without a fork: both databases, the node, the object storage. Once it is back, every table moves again within seconds,
//! and nobody has to do anything for it.
//!
//! It goes away in two ways, which are played side by side: it closes every connection, or it falls silent and says nothing any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::anvil::Anvil;
use crate::anvil_test::FOLLOW;
use crate::args::{KeepArgs, ServerArgs};
use crate::cairn::Cairn;
use crate::databases::Databases;
use crate::peer::{Peer, wait_until};
use crate::proxy::{Proxy, Way};
use crate::report::{Report, figure};
use crate::rpc::Rpc;
use crate::traffic::Traffic;

/// How long anything may need that isn't measured.
const PATIENCE: Duration = Duration::from_secs(120);
/// After the return of a dependency every table has to move within this.
const MOVES_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(400);
/// The end of an outage, in which nothing moves that needs what is away.
const STANDS_STILL: Duration = Duration::from_secs(5);
const BLOCK_EVERY: Duration = Duration::from_millis(500);
const TRANSACTIONS_A_BLOCK: usize = 4;
/// Payloads of more bytes are kept in the object storage: those of nearly every transaction.
const INLINE_MAX_BYTES: &str = "100";
/// The longest statement. A session that died silently is noticed 5 s after that; by default it takes longer than [`MOVES_WITHIN`].
const STATEMENT_TIMEOUT_MS: &str = "8000";
/// What goes away, one after the other.
const NAMES: [&str; 4] = ["app_database", "raw_database", "node", "object_storage"];
/// Behind a chain that lives, tables are never at its very tip.
const CAUGHT_UP_LAG_HEIGHTS: u64 = 10;

/// Where things are, and how long.
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
    /// The object storage: http://ACCESS_KEY:SECRET_KEY@HOST:PORT/BUCKET.
    #[arg(long)]
    s3: String,
    /// How long each dependency is away, in seconds.
    #[arg(long, default_value_t = 30)]
    away_s: u64,
    /// Only dependencies whose names contain this.
    #[arg(long)]
    only: Option<String>,
    /// Decides every transaction.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// `cairn-dev dependency-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    println!("seed {}", options.seed);
    // Most of it is waiting, so both ways are played at once, each with a chain and databases of its own.
    let (mut report, silent) =
        tokio::try_join!(in_one_way(&options, folder, CLOSED), in_one_way(&options, folder, SILENT))?;
    report.merge(silent);
    Ok(report.finish())
}

/// How a dependency goes away, and its name.
type How = (Way, &'static str);
const CLOSED: How = (Way::Closed, "closed");
const SILENT: How = (Way::Silent, "silent");

async fn in_one_way(options: &Options, folder: &Path, how: How) -> Result<Report> {
    let folder = folder.join(how.1);
    let folder = folder.as_path();
    std::fs::create_dir_all(folder)?;
    let mut report = Report::default();
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    let mut traffic = Traffic::deploy(&node.rpc, &options.contracts, options.seed).await?;
    traffic.block(TRANSACTIONS_A_BLOCK).await?;
    let databases =
        Databases::make(&options.server.postgres, &format!("cairn_dependencies_{}", how.1)).await?;

    let stop = CancellationToken::new();
    let stopped = stop.clone();
    // The node itself never goes away: the chain goes on meanwhile.
    let living = tokio::spawn(async move {
        while !stopped.is_cancelled() {
            traffic.block(TRANSACTIONS_A_BLOCK).await?;
            tokio::time::sleep(BLOCK_EVERY).await;
        }
        anyhow::Ok(())
    });
    let played = play(options, folder, how, &node, &databases, &mut report).await;
    stop.cancel();
    let lived = living.await.context("the chain")?;
    // The proxies stay until cairn has ended.
    let (process, _proxies) = played?;
    report
        .case(format!("{}: in the end every table is at the node's head", how.1), async {
            lived?;
            databases.settle(&node.rpc, PATIENCE).await.map(drop)
        })
        .await;
    report
        .case(format!("{}: SIGTERM ends it with success", how.1), async {
            let (status, _) = process.terminate(Duration::from_secs(25)).await?;
            ensure!(status.success(), "ended with {status}");
            Ok(())
        })
        .await;
    if !options.keep.keeps() {
        databases.drop().await?;
    }
    Ok(report)
}

async fn play(
    options: &Options,
    folder: &Path,
    (way, how): How,
    node: &Anvil,
    databases: &Databases,
    report: &mut Report,
) -> Result<(Peer, [Proxy; 4])> {
    let mut s3 = reqwest::Url::parse(&options.s3).context("--s3")?;
    let (key, secret) = (s3.username().to_owned(), s3.password().context("--s3 without a key")?.to_owned());
    let bucket = s3.path().trim_matches('/').to_owned();
    if s3.set_username("").and_then(|()| s3.set_password(None)).is_err() {
        bail!("--s3 {s3}: not an address");
    }
    s3.set_path("");
    let [raw, app] = &databases.urls;
    let (raw_proxy, raw_through) = Proxy::before(raw, 5432).await?;
    let (app_proxy, app_through) = Proxy::before(app, 5432).await?;
    let (node_proxy, node_through) = Proxy::before(&node.url, 80).await?;
    let (s3_proxy, s3_through) = Proxy::before(s3.as_str(), 80).await?;
    let proxies = [app_proxy, raw_proxy, node_proxy, s3_proxy];
    let over = |raw: &str, app: &str, s3: &str| -> Result<Cairn> {
        // A place of their own for these databases.
        let place = format!("s3://{bucket}/dependencies-{how}-{}-{}", std::process::id(), options.seed);
        let settings = [
            ("DB_RAW_URL", raw),
            ("DB_APP_URL", app),
            ("CAIRN_RAW__STATEMENT_TIMEOUT_MS", STATEMENT_TIMEOUT_MS),
            ("CAIRN_APP__STATEMENT_TIMEOUT_MS", STATEMENT_TIMEOUT_MS),
            ("PAYLOAD_INLINE_MAX_BYTES", INLINE_MAX_BYTES),
            ("CAIRN_PAYLOADS__URL", &place),
            ("AWS_ENDPOINT", s3.trim_end_matches('/')),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", &key),
            ("AWS_SECRET_ACCESS_KEY", &secret),
        ];
        let cairn = Cairn::new(&options.cairn, folder)?;
        Ok(settings.into_iter().fold(cairn, |cairn, (name, value)| cairn.with(name, value)))
    };
    let cairn = over(&raw_through, &app_through, &s3_through)?;
    let stage = Stage {
        // What is looked at never goes away.
        looker: over(raw, app, s3.as_str())?,
        node: node.rpc.clone(),
        away: Duration::from_secs(options.away_s),
    };
    let mut process = cairn.run(&node_through, FOLLOW).await?;
    let under_way = stage.caught_up();
    if !report.case(format!("{how}: every table follows the node"), under_way).await {
        println!("{}", cairn.log_tail());
        return Ok((process, proxies));
    }
    for (name, proxy) in NAMES.into_iter().zip(&proxies) {
        let one = format!("{name}_{how}");
        if options.only.as_ref().is_some_and(|only| !one.contains(only.as_str())) {
            continue;
        }
        let case = format!("{name} {how} for {} s: every table moves again", options.away_s);
        report
            .case(case, async {
                let outage = stage.outage(&one, &cairn, proxy, way).await;
                // Whatever happened, the next case begins as this one did.
                proxy.set(Way::Open);
                process.check_alive()?;
                let (moved, log) = (Instant::now(), cairn.log_tail());
                let caught_up = stage.caught_up().await;
                outage.context(log)?;
                caught_up.with_context(|| cairn.log_tail())?;
                figure(&format!("{one}_caught_up_later_s"), seconds(moved), "s");
                cairn.wait_ready(PATIENCE).await
            })
            .await;
    }
    Ok((process, proxies))
}

struct Stage {
    /// Asks for the status past the proxies.
    looker: Cairn,
    node: Rpc,
    away: Duration,
}

impl Stage {
    /// Takes the dependency away and gives it back, and waits until everything moves.
    async fn outage(&self, name: &str, cairn: &Cairn, proxy: &Proxy, way: Way) -> Result<()> {
        proxy.set(way);
        tokio::time::sleep(self.away.saturating_sub(STANDS_STILL)).await;
        let before = Stand::of(&self.looker).await?;
        tokio::time::sleep(STANDS_STILL).await;
        let (livez, body) = cairn.page("/livez").await?;
        ensure!(livez == 200, "/livez says {livez} while it is away: {body}");
        let then = Stand::of(&self.looker).await?;
        ensure!(before.tables == then.tables, "tables moved while it was away: {before:?}, then {then:?}");

        proxy.set(Way::Open);
        let returned = Instant::now();
        let rpc = cairn.rpc()?;
        let served = wait_for("the head that is served moves", || async {
            let head = tokio::time::timeout(Duration::from_secs(2), rpc.head()).await??;
            let head = head.map_or(0, |(height, _)| height);
            Ok((head <= then.tip).then(|| format!("head {head}, at the return {}", then.tip)))
        });
        let tables = wait_for("every table moves", || async {
            let now = Stand::of(&self.looker).await?;
            let standing = now.standing_since(&then);
            Ok((!standing.is_empty()).then(|| format!("{standing:?} stand; the archive is at {}", now.tip)))
        });
        let (served, tables) = tokio::join!(served, tables);
        for (what, after) in [("head", &served), ("tables", &tables)] {
            if let Ok(after) = after {
                figure(&format!("{name}_{what}_moves_after_s"), format!("{:.1}", after.as_secs_f64()), "s");
            }
        }
        let after = served?.max(tables?);
        ensure!(
            after <= MOVES_WITHIN,
            "it took {:.1} s, not {} s",
            returned.elapsed().as_secs_f64(),
            MOVES_WITHIN.as_secs()
        );
        Ok(())
    }

    /// Waits until every table is at the node's head, nearly.
    async fn caught_up(&self) -> Result<()> {
        wait_until("every table is at the node's head", PATIENCE, || async {
            let head = self.node.head().await?.map_or(0, |(height, _)| height);
            let stand = Stand::of(&self.looker).await?;
            let least = stand.tables.values().copied().min().context("no table yet")?.min(stand.tip);
            tokio::time::sleep(LOOK).await;
            Ok((least + CAUGHT_UP_LAG_HEIGHTS < head).then(|| format!("node {head}, {stand:?}")))
        })
        .await
    }
}

/// Waits until `probe` says that it has come true; after what time it did. It goes on past [`MOVES_WITHIN`], to say how long it takes.
async fn wait_for<F>(what: &str, mut probe: impl FnMut() -> F) -> Result<Duration>
where
    F: Future<Output = Result<Option<String>>>,
{
    let begun = Instant::now();
    loop {
        let pending = match probe().await {
            Ok(None) => return Ok(begun.elapsed()),
            Ok(Some(pending)) => pending,
            Err(error) => format!("{error:#}"),
        };
        ensure!(begun.elapsed() < PATIENCE, "{what}: not within {} s; last: {pending}", PATIENCE.as_secs());
        tokio::time::sleep(LOOK).await;
    }
}

fn seconds(since: Instant) -> String {
    format!("{:.1}", since.elapsed().as_secs_f64())
}

/// Where everything stands, by `cairn status`.
#[derive(Debug)]
struct Stand {
    tip: u64,
    /// The last height of each worker.
    tables: BTreeMap<String, u64>,
}

impl Stand {
    async fn of(cairn: &Cairn) -> Result<Stand> {
        let status = cairn.status().await?;
        let tables = status["tables"].as_array().with_context(|| format!("no tables: {status}"))?;
        let tables = tables.iter().map(|table| {
            let worker = table["worker"].as_str().with_context(|| format!("no name: {table}"))?;
            // Null before its first block.
            Ok((worker.to_owned(), table["last_height"].as_u64().unwrap_or(0)))
        });
        Ok(Stand {
            tip: status["checkpoint"]["height"].as_u64().with_context(|| format!("no tip: {status}"))?,
            tables: tables.collect::<Result<_>>()?,
        })
    }

    /// What is where it was then: the archive itself, and workers.
    fn standing_since(&self, then: &Stand) -> Vec<String> {
        let workers = then.tables.iter().filter(|(worker, at)| self.tables.get(*worker) <= Some(*at));
        let archive = (self.tip <= then.tip).then(|| "the archive".to_owned());
        workers.map(|(worker, at)| format!("{worker} at {at}")).chain(archive).collect()
    }
}
