//! The app database goes away while a chain is taken in: raw ingestion goes on as fast as before, and when the database is back, derived work
//! catches up by itself, over the reorgs that it missed.
//!
//! The chain is made in process (`cairn demo`), so that nothing waits for a node: first a history, which is taken in as fast as it goes, then
//! blocks and forks in real time.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cairn_backends::postgres::PgRawStore;
use cairn_store::RawReader;
use clap::Args;
use serde_json::Value;

use crate::app_server::{AppServer, AppServerArgs};
use crate::args::{KeepArgs, ServerArgs};
use crate::cairn::Cairn;
use crate::databases::Databases;
use crate::peer::wait_until;
use crate::report::{Report, figure};

/// How long anything may need that isn't measured.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the height of the archive is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often ingestion is measured with the app database and without it, in turns: a machine that gets slower slows both.
const PAIRS: u64 = 3;
/// The longest of these measurements.
const LONGEST: Duration = Duration::from_secs(10);
/// The fewest heights that say how fast ingestion is.
const LEAST_HEIGHTS: u64 = 1_000;
/// Ingestion without the app database is at least so fast, measured by ingestion with it. It is no slower; machines have moods.
const LEAST_RATIO: f64 = 0.9;
/// Behind a chain that lives, derived work is never at its very tip.
const CAUGHT_UP_LAG_HEIGHTS: u64 = 30;
/// Besides these and those that ask a node, which is switched off: `token_worker` and `ft_holdings_worker`, a mapper and a folder behind it.
const DISABLED: &str = r#"["accounts_worker", "evm_worker", "meta_worker", "nft_ownership_worker", "stats_worker", "tx_contracts_worker", "tx_metrics_worker"]"#;

/// Where things are, and how long.
#[derive(Args)]
pub struct Options {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    app: AppServerArgs,
    /// Heights of the history.
    #[arg(long, default_value_t = 15_000)]
    blocks: u64,
    /// What the chain is made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: KeepArgs,
}

/// `cairn-dev outage-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    println!("seed {}", options.seed);
    let mut report = Report::default();
    let mut server = AppServer::new(&options.app, folder.join("app-server.log"));
    server.start().await?;
    let databases =
        Databases::make_apart(&options.server.postgres, &options.app.app_postgres, "cairn_outage").await?;
    play(&options, folder, &mut server, &databases, &mut report).await?;
    if !options.keep.keeps() {
        databases.drop().await?;
    }
    server.stop().await?;
    Ok(report.finish())
}

async fn play(
    options: &Options,
    folder: &Path,
    server: &mut AppServer<'_>,
    databases: &Databases,
    report: &mut Report,
) -> Result<()> {
    // One process does everything, so that ingestion could be disturbed. Leases are shorter than the outage, so that they expire meanwhile.
    let cairn = Cairn::new(&options.cairn, folder)?
        .with("DB_RAW_URL", &databases.urls[0])
        .with("DB_APP_URL", &databases.urls[1])
        .with("CAIRN_DERIVE__DISABLED", DISABLED)
        .with("CAIRN_DERIVE__ASK_NODE", "false")
        .with("CAIRN_DERIVE__LEASE_TTL_S", "8");
    let mut process = cairn
        .demo(&[
            "--blocks",
            &options.blocks.to_string(),
            "--block-time-ms",
            "100",
            "--seed",
            &options.seed.to_string(),
        ])
        .await?;
    let under_way = wait_until("some heights are derived", PATIENCE, || async {
        let stand = Stand::of(&cairn).await?;
        Ok((stand.derived < 100).then(|| format!("{stand:?}")))
    });
    if !report.case("ingestion and derived work are under way", under_way).await {
        println!("{}", cairn.log_tail());
        return Ok(());
    }

    let raw = databases.open_raw().await?;
    let away = options.app.away();
    let mut away_from = Instant::now();
    let (mut with, mut without) = (Pace::default(), Pace::default());
    for pair in 0..PAIRS {
        let until = |part: u64| options.blocks * part / (2 * PAIRS);
        if pair > 0 {
            server.start().await?;
        }
        with.add(&ingestion(&raw, until(2 * pair + 1), LONGEST).await?);
        away_from = Instant::now();
        server.stop().await?;
        without.add(&ingestion(&raw, until(2 * pair + 2), LONGEST).await?);
    }
    let ratio = without.heights_per_s() / with.heights_per_s();
    for (name, pace) in [("with", &with), ("without", &without)] {
        figure(&format!("ingest_{name}_app_heights"), pace.heights, "heights");
        figure(&format!("ingest_{name}_app_heights_per_s"), format!("{:.0}", pace.heights_per_s()), "1/s");
        figure(&format!("ingest_{name}_app_longest_pause_ms"), pace.longest_pause.as_millis(), "ms");
    }
    figure("ingest_without_app_ratio", format!("{ratio:.2}"), "without / with");
    report
        .case("raw ingestion is as fast while the app database is away", async {
            ensure!(
                with.heights >= LEAST_HEIGHTS && without.heights >= LEAST_HEIGHTS,
                "{} and {} heights are too few to say",
                with.heights,
                without.heights
            );
            ensure!(
                ratio >= LEAST_RATIO,
                "{:.0} heights/s with the app database, {:.0} without",
                with.heights_per_s(),
                without.heights_per_s()
            );
            process.check_alive()
        })
        .await;

    // The tip and the newest reorg.
    let missed = Cell::new((0u64, 0u64));
    report
        .case(
            format!("blocks and reorgs are taken in while the app database is away for {} s", away.as_secs()),
            async {
                tokio::time::sleep(away.saturating_sub(away_from.elapsed())).await;
                // On a slow machine the history takes longer, and only what comes after it forks.
                wait_until("a reorg is recorded", PATIENCE, || async {
                    let head = raw.snapshot().await?.head().clone();
                    missed.set((head.tip.map_or(0, |tip| tip.height.get()), head.newest_reorg.id));
                    Ok((missed.get().1 == 0).then(|| format!("{:?}", head.tip)))
                })
                .await?;
                process.check_alive()
            },
        )
        .await;
    figure("outage_away_s", format!("{:.1}", away_from.elapsed().as_secs_f64()), "s");
    figure("outage_tip_when_back", missed.get().0, "height");
    figure("outage_reorgs_when_back", missed.get().1, "reorgs");

    server.start().await?;
    let begun = Instant::now();
    let at_once = Cell::new(None);
    report
        .case("derived work catches up by itself when the app database is back", async {
            wait_until("it has caught up", PATIENCE, || async {
                let stand = Stand::of(&cairn).await?;
                at_once.set(at_once.get().or(Some(stand.derived)));
                let caught_up = stand.derived >= missed.get().0
                    && stand.applied_reorg >= missed.get().1
                    && stand.tip.saturating_sub(stand.derived) <= CAUGHT_UP_LAG_HEIGHTS;
                Ok((!caught_up).then(|| format!("{stand:?}, wanted {missed:?}")))
            })
            .await
            .with_context(|| cairn.log_tail())?;
            process.check_alive()
        })
        .await;
    figure("outage_derived_height_when_back", at_once.get().unwrap_or(0), "height");
    figure("outage_caught_up_after_s", format!("{:.1}", begun.elapsed().as_secs_f64()), "s");
    report
        .case("SIGTERM ends it with success", async {
            let (status, _) = process.terminate(Duration::from_secs(25)).await?;
            ensure!(status.success(), "ended with {status}");
            Ok(())
        })
        .await;
    Ok(())
}

/// Where everything stands, by `/v1/status`.
#[derive(Debug)]
struct Stand {
    tip: u64,
    /// The slowest worker's height.
    derived: u64,
    applied_reorg: u64,
}

impl Stand {
    async fn of(cairn: &Cairn) -> Result<Stand> {
        let (status, body) = cairn.page("/v1/status").await?;
        let answer: Value = serde_json::from_str(&body).with_context(|| format!("{status}: {body}"))?;
        let data = &answer["data"];
        let number =
            |value: &Value| value.as_str().map_or(Ok(0), str::parse::<u64>).with_context(|| body.clone());
        let workers = data["derived"]["workers"].as_array().with_context(|| body.clone())?;
        let mut derived = None;
        for worker in
            workers.iter().filter(|worker| !DISABLED.contains(worker["name"].as_str().unwrap_or_default()))
        {
            let height = number(&worker["tip"]["height"])?;
            derived = Some(derived.map_or(height, |least: u64| least.min(height)));
        }
        Ok(Stand {
            tip: number(&data["raw_tip_height"])?,
            derived: derived.with_context(|| body.clone())?,
            applied_reorg: number(&data["derived"]["applied_reorg"])?,
        })
    }
}

/// How fast heights were stored.
#[derive(Default)]
struct Pace {
    heights: u64,
    lasted: Duration,
    longest_pause: Duration,
}

impl Pace {
    fn heights_per_s(&self) -> f64 {
        self.heights as f64 / self.lasted.as_secs_f64()
    }

    fn add(&mut self, more: &Pace) {
        self.heights += more.heights;
        self.lasted += more.lasted;
        self.longest_pause = self.longest_pause.max(more.longest_pause);
    }
}

/// Watches the archive grow up to `until` or for `most`, whichever comes first.
async fn ingestion(raw: &PgRawStore, until: u64, most: Duration) -> Result<Pace> {
    let begun = Instant::now();
    let first = tip(raw).await?;
    let (mut last, mut grown_at, mut longest_pause) = (first, begun, Duration::ZERO);
    while begun.elapsed() < most && last < until {
        tokio::time::sleep(LOOK).await;
        let now = tip(raw).await?;
        longest_pause = longest_pause.max(grown_at.elapsed());
        if now > last {
            (last, grown_at) = (now, Instant::now());
        }
    }
    Ok(Pace { heights: last - first, lasted: begun.elapsed(), longest_pause })
}

async fn tip(raw: &PgRawStore) -> Result<u64> {
    Ok(raw.snapshot().await?.head().tip.map_or(0, |tip| tip.height.get()))
}
