//! A real Flow node: flow-emulator makes the chain, the real binary follows it on SQLite and PostgreSQL, and every table is held against what the node
//! answers; blocks are taken back with its `POST /emulator/rollback`.
//!
//! | subject | module |
//! | --- | --- |
//! | the process, and its admin port | `emulator` |
//! | who sends, and how it ended | `wallet` |
//! | what happens | `traffic`, in the Cadence of `cadence` and `tests/flow` |
//! | what the node answers, and the tables against it | `truth` |
//! | the cases of one comparison | `compare` |

mod cadence;
mod compare;
mod emulator;
mod traffic;
mod truth;
mod wallet;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cairn_flow_node::Key;
use clap::Args;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::args::{KeepArgs, ServerArgs};
use crate::flow_archive::Archive;
use crate::report::{Report, figure};
use compare::Comparer;
use emulator::Emulator;
use traffic::Traffic;
use wallet::Wallet;

const CATCH_UP: Duration = Duration::from_secs(90);
const STOP: Duration = Duration::from_secs(25);
/// The emulator's first block.
const FIRST: u64 = 0;
/// What it has no execution results for.
const SETTINGS: &[(&str, &str)] = &[("CAIRN_CHAIN__FLOW__EXECUTION_RESULTS", "false")];

/// Where things are, and how much.
#[derive(Args)]
pub struct Options {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    /// The flow-emulator binary.
    #[arg(long)]
    emulator: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Random deeds before anything is taken back, and in each round.
    #[arg(long, default_value_t = 30)]
    deeds: u64,
    /// How often blocks are taken back.
    #[arg(long, default_value_t = 2)]
    rounds: u64,
    /// Decides what happens.
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
    let mut archives = Vec::new();
    for name in ["live", "clean"] {
        archives.push(Archive::sqlite(&options.cairn, folder, name)?);
        archives.push(Archive::postgres(&options.cairn, folder, name, &options.server.postgres).await?);
    }
    let service = Key::named("cairn flow-emulator test");
    let emulator = Emulator::start(&options.emulator, folder, &service).await?;
    let (live, clean) = archives.split_at(2);
    let played = play(&options, &emulator, service, live, clean, &mut report).await;
    if !options.keep.keeps() {
        for archive in archives {
            archive.drop().await?;
        }
    }
    if let Err(error) = played {
        bail!("{error:#}\nflow-emulator's log ends:\n{}", emulator.log_tail());
    }
    Ok(report.finish())
}

async fn play(
    options: &Options,
    emulator: &Emulator,
    service: Key,
    live: &[Archive],
    clean: &[Archive],
    report: &mut Report,
) -> Result<()> {
    let mut followers = Vec::new();
    for archive in live {
        followers.push((archive, archive.run(&emulator.url, FIRST, &[], SETTINGS)?));
    }
    let mut rng = SmallRng::seed_from_u64(options.seed);
    let wallet = Wallet::new(emulator.client.clone(), service);
    let mut traffic = Traffic::begin(wallet, SmallRng::seed_from_u64(rng.random())).await?;
    let begun = emulator.client.latest().await?.height;
    for _ in 0..options.deeds {
        traffic.act().await?;
    }
    let mut comparer = Comparer::new(emulator);
    if !comparer.compare(report, "from the first block", &traffic, &mut followers, false).await? {
        return Ok(());
    }
    for _ in 0..options.rounds {
        let head = emulator.client.latest().await?.height;
        let depth = rng.random_range(1..(head - begun).min(60));
        emulator.roll_back(head - depth).await?;
        traffic.wallet.roll_back(head - depth);
        if rng.random() {
            emulator.empty_block().await?;
        }
        for _ in 0..options.deeds {
            traffic.act().await?;
        }
        let when = format!("after {depth} blocks were taken back");
        if !comparer.compare(report, &when, &traffic, &mut followers, true).await? {
            return Ok(());
        }
    }
    for (archive, process) in followers {
        let ended = async {
            let (status, _) = process.terminate(STOP).await?;
            ensure!(status.success(), "ended with {status}");
            Ok(())
        };
        report.case(format!("{}: SIGTERM ends it with success", archive.backend), ended).await;
    }
    let height = emulator.client.latest().await?.height;
    figure("flow_emulator_blocks", height + 1, "blocks");
    figure("flow_emulator_transactions", traffic.wallet.sent.len(), "transactions");
    for (live, clean) in live.iter().zip(clean) {
        let name = format!("{}: both dumps are those of a clean run", clean.backend);
        if report.case(name, same_as_clean(emulator, live, clean)).await {
            comparer.clean(report, clean).await?;
        }
    }
    Ok(())
}

async fn same_as_clean(emulator: &Emulator, live: &Archive, clean: &Archive) -> Result<()> {
    let mut process = clean.run(&emulator.url, FIRST, &[], SETTINGS)?;
    clean.settle(tip(emulator).await?, &mut process, CATCH_UP).await?;
    let (status, _) = process.terminate(STOP).await?;
    ensure!(status.success(), "the clean run ended with {status}");
    let ((raw, app), (clean_raw, clean_app)) = (live.dumps().await?, clean.dumps().await?);
    for (what, ours, theirs) in [("raw", &raw, &clean_raw), ("app", &app, &clean_app)] {
        ensure!(theirs.lines.len() > 500, "the clean run's {what} dump has {} lines", theirs.lines.len());
        if let Some((ours, theirs)) = ours.first_difference(theirs) {
            bail!("the {what} dumps differ:\n  forked: {ours}\n  clean:  {theirs}");
        }
    }
    Ok(())
}

async fn tip(emulator: &Emulator) -> Result<(u64, String)> {
    let head = emulator.client.latest().await?;
    Ok((head.height, format!("0x{}", alloy_primitives::hex::encode(&head.id))))
}
