//! Odd but honest nodes: each plays a small chain with one oddity that real nodes or chains have, or one real block of an
//! awkward chain. The real binary archives it, `cairn verify` finds it whole, what is served back is what the node said,
//! and a second cairn archives the first.
//!
//! Where an answer may differ from the node's words, [`compare::reason`] says why.

mod compare;
mod node;
mod scenario;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures::StreamExt;

use self::node::Node;
use self::scenario::Scenario;
use crate::args::KeepArgs;
use crate::cairn::Cairn;
use crate::report::Report;

/// How long an archive of a few blocks may take, pauses after failures included.
const ARCHIVE_LIMIT: Duration = Duration::from_secs(60);
/// Scenarios at a time: they mostly wait.
const AT_A_TIME: usize = 4;

/// Arguments that a chain needs, by the beginning of the scenario's name. `docs/reference/chains.md` has the same list for people.
const ARGUMENTS: &[(&str, &[&str])] = &[
    ("09-transaction-without-receipt", &["--relax", "missing-receipts"]),
    ("cronos/", &["--relax", "header-hash,transactions-root,receipts-root,bloom,missing-receipts"]),
    ("hyperliquid/", &["--extra-receipts"]),
    ("polygon/", &["--extra-receipts"]),
    ("stable-testnet/", &["--relax", "header-hash"]),
    ("tempo", &["--relax", "header-hash"]),
];

/// Where things are.
#[derive(Args)]
pub struct Options {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    /// The folder that holds cases/odd-nodes and fixtures/evm-real.
    #[arg(long)]
    shared: PathBuf,
    /// Only scenarios whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    #[command(flatten)]
    keep: KeepArgs,
}

/// A step of a scenario and how it ended.
type Step = (String, Result<()>);

/// `cairn-dev odd-nodes-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let mut scenarios = Scenario::all(&options.shared)?;
    scenarios.retain(|scenario| scenario.name.contains(&options.only));
    let played =
        scenarios.into_iter().map(|scenario| play(Arc::new(scenario), &options.cairn, folder.path()));
    let mut played = futures::stream::iter(played).buffered(AT_A_TIME);
    let mut report = Report::default();
    while let Some(steps) = played.next().await {
        for (name, ended) in steps {
            report.case(name, async { ended }).await;
        }
    }
    Ok(report.finish())
}

/// Plays one scenario; a failed step ends it.
async fn play(scenario: Arc<Scenario>, binary: &Path, folder: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Err(error) = play_steps(&scenario, binary, folder, &mut steps).await {
        steps.push((scenario.name.clone(), Err(error)));
    }
    steps
}

async fn play_steps(
    scenario: &Arc<Scenario>,
    binary: &Path,
    folder: &Path,
    steps: &mut Vec<Step>,
) -> Result<()> {
    let step = |what: &str| (format!("{}: {what}", scenario.name), Ok(()));
    let folder = folder.join(scenario.name.replace('/', "-"));
    let first =
        archive(scenario, binary, &folder.join("first"), &Node::start(scenario.clone()).await?.url()).await?;
    steps.push(step("archived"));
    first.finish("verify", &[]).await?;
    steps.push(step("verified"));

    let process = first.serve(&[]).await?;
    first.wait_serving(ARCHIVE_LIMIT).await?;
    let rpc = first.rpc()?;
    compare::with_node(scenario, &rpc).await?;
    steps.push(step("served back"));

    let second = archive(scenario, binary, &folder.join("second"), &first.rpc_url()?).await?;
    let other = second.serve(&[]).await?;
    second.wait_serving(ARCHIVE_LIMIT).await?;
    compare::of_two(scenario, &rpc, &second.rpc()?).await?;
    steps.push(step("archived again from cairn"));
    for process in [process, other] {
        process.terminate(Duration::from_secs(10)).await?;
    }
    Ok(())
}

/// Archives the scenario's blocks from a node with the real binary.
async fn archive(scenario: &Scenario, binary: &Path, folder: &Path, node: &str) -> Result<Cairn> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let cairn = Cairn::new(binary, folder)?;
    let (from, to) = (scenario.bottom().to_string(), scenario.top().to_string());
    let mut arguments = vec!["--from", &from, "--to", &to, "--exit-after-head"];
    arguments.extend(scenario.arguments.iter().map(String::as_str));
    let of_chain = ARGUMENTS.iter().filter(|(name, _)| scenario.name.starts_with(name));
    arguments.extend(of_chain.flat_map(|(_, arguments)| arguments.iter().copied()));
    let status = cairn.run(node, &arguments).await?.ended(ARCHIVE_LIMIT).await?;
    ensure!(status.success(), "ended with {status}; {}", cairn.log_tail());
    Ok(cairn)
}
