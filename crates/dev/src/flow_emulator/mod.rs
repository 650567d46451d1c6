//! A real Flow node: flow-emulator makes the chain, the real binary follows it on SQLite and PostgreSQL, and every table is held against what the node
//! answers; blocks are taken back with its `POST /emulator/rollback`.
//!
//! | subject | module |
//! | --- | --- |
//! | the process, and its admin port | `emulator` |
//! | who sends, and how it ended | `wallet` |
//! | what happens | `traffic`, in the Cadence of `cadence` and `tests/flow` |
//! | tables against account calls, scripts, transactions and events | `truth` |

mod cadence;
mod emulator;
mod traffic;
mod truth;
mod wallet;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cairn_explorer::tables::flow::accounts::UNPLACED_REVOCATIONS;
use cairn_explorer::tables::flow::evm::{EVM_ABSENCES, EVM_GAPS};
use cairn_explorer::tables::flow::evm_splits::{EVM_BLOCK_PARTS, EVM_SPLITS};
use cairn_flow::Network;
use cairn_flow_node::Key;
use clap::Args;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::args::{KeepArgs, ServerArgs};
use crate::flow_archive::Archive;
use crate::flow_truth::{self, Tables};
use crate::peer::Peer;
use crate::report::{Report, figure};
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
    if !compare(report, "from the first block", emulator, &traffic, &mut followers).await? {
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
        if !compare(report, &when, emulator, &traffic, &mut followers).await? {
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
        report.case(name, same_as_clean(emulator, live, clean)).await;
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

/// Waits for every follower and holds every table of each against the node. Whether all came as far.
async fn compare(
    report: &mut Report,
    when: &str,
    emulator: &Emulator,
    traffic: &Traffic,
    followers: &mut [(&Archive, Peer)],
) -> Result<bool> {
    let tip = tip(emulator).await?;
    let mut all = true;
    for (archive, process) in followers {
        let backend = archive.backend;
        let settled = async { archive.settle(tip.clone(), process, CATCH_UP).await };
        if !report.case(format!("{backend}: everything is derived {when}"), settled).await {
            all = false;
            continue;
        }
        let read = async { flow_truth::read(&archive.database().await?).await };
        let found = match read.await {
            Ok(found) => found,
            Err(error) => {
                report.fail(format!("{backend}: tables {when}"), format!("{error:#}"));
                all = false;
                continue;
            }
        };
        tables(report, backend, when, emulator, traffic, &found, tip.0).await;
        report.case(format!("{backend}: no error is logged {when}"), archive.no_errors()).await;
    }
    Ok(all)
}

async fn tables(
    report: &mut Report,
    backend: &str,
    when: &str,
    emulator: &Emulator,
    traffic: &Traffic,
    found: &Tables,
    height: u64,
) {
    let client = &emulator.client;
    let known = traffic.wallet.holders.iter().map(|holder| holder.signer.address);
    let known: Vec<_> = known.chain([traffic.wallet.service.address]).collect();
    let of_heights = async {
        let question = truth::question(found, known.iter().copied())?;
        let mut compared = 0;
        for at in [height / 3, height * 2 / 3, height] {
            let answers = truth::ask(client, &question, FIRST, at).await?;
            compared += truth::compare(&answers, found, at == height)?;
            if at == height {
                compared += truth::compare_holdings(&answers, found)?;
            }
        }
        Ok(compared)
    };
    count(report, backend, when, "accounts, keys, contracts, balances, items", of_heights.await).await;
    let sent = truth::compare_transactions(client, &traffic.wallet.sent, found).await;
    count(report, backend, when, "transactions by id", sent).await;
    let evm = truth::compare_evm(client, FIRST, height, found).await;
    count(report, backend, when, "EVM transactions, logs, blocks, nonces", evm).await;
    let asked = flow_truth::compare_answers(client, Network::Emulator, found).await;
    count(report, backend, when, "names, supplies, pictures", asked).await;
    // It makes an EVM block in each of its own.
    let may_be_empty =
        [EVM_ABSENCES.name, EVM_GAPS.name, UNPLACED_REVOCATIONS.name, EVM_SPLITS.name, EVM_BLOCK_PARTS.name];
    let empty: Vec<&str> = found.empty().filter(|name| !may_be_empty.contains(name)).collect();
    let name = format!("{backend}: every table has rows, but for those of gaps and doubts, {when}");
    report
        .case(name, async {
            ensure!(empty.is_empty(), "these have none: {}", empty.join(", "));
            Ok(())
        })
        .await;
}

async fn count(report: &mut Report, backend: &str, when: &str, what: &str, compared: Result<usize>) {
    let compared = compared.and_then(|count| {
        ensure!(count > 0, "nothing was compared");
        Ok(count)
    });
    let count = compared.as_ref().copied().unwrap_or(0);
    let name = format!("{backend}: {what} are the node's {when}: {count} answers");
    report.case(name, async { compared.map(drop) }).await;
}
