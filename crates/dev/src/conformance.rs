//! The public JSON-RPC suite over HTTP against a running cairn; parsing and comparison are `cairn_api::conformance`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_api::conformance as suite;
use clap::Args;

use crate::args::KeepArgs;
use crate::cairn::Cairn;
use crate::report::{Report, figure};
use crate::rpc::Rpc;

/// What the suite has for a server without state: said here, so that a case which is no longer run is missed.
const DATA_CASES: usize = 74;
const TRACE_ERROR_CASES: usize = 5;

/// Which server.
#[derive(Args)]
pub struct Options {
    /// Its JSON-RPC over HTTP.
    #[arg(long)]
    url: String,
    /// The suite's folder.
    #[arg(long)]
    suite: PathBuf,
}

/// Which binary.
#[derive(Args)]
pub struct TestOptions {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    /// The suite's folder, with chain.rlp, receipts.json.gz and genesis.json.
    #[arg(long)]
    suite: PathBuf,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Asks all the suite's requests.
pub async fn ask_all(rpc: &Rpc, folder: &Path, report: &mut Report) -> Result<()> {
    let cases = suite::load(folder).with_context(|| folder.display().to_string())?;
    let found = suite::run(&cases, |request| {
        let rpc = rpc.clone();
        async move { rpc.post_text(request).await.map_err(|error| format!("{error:#}")) }
    })
    .await;
    for (method, count) in &found.not_served {
        println!("not served: {method}: {count} cases");
    }
    for (case, why) in &found.failed {
        println!("FAIL {case}: {why}");
    }
    report.add(found.passed.len() as u64, found.failed.len() as u64);
    for (what, all) in [("data", DATA_CASES), ("trace_error", TRACE_ERROR_CASES)] {
        let of_kind = |case: &&String| case.starts_with("debug_trace") == (what == "trace_error");
        let passed = found.passed.iter().filter(of_kind).count();
        let failed = found.failed.iter().map(|(case, _)| case).filter(of_kind).count();
        figure(&format!("conformance_{what}_cases"), passed, "cases");
        if passed + failed != all {
            report.fail("the suite", format!("{} {what} cases were asked, not {all}", passed + failed));
        }
    }
    Ok(())
}

/// `cairn-dev conformance`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let mut report = Report::default();
    ask_all(&Rpc::new(&options.url)?, &options.suite, &mut report).await?;
    Ok(report.finish())
}

/// `cairn-dev conformance-test`: imports the suite's chain, serves it, asks.
pub async fn test(options: TestOptions) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let cairn = Cairn::new(&options.cairn, folder)?;
    let file = |name: &str| {
        let path = options.suite.join(name);
        path.to_str().map(str::to_owned).context("a path that is not UTF-8")
    };
    let (chain, receipts, genesis) = (file("chain.rlp")?, file("receipts.json.gz")?, file("genesis.json")?);
    let mut report = Report::default();
    report
        .case("imports the chain", async {
            let arguments = ["--chain", &chain, "--receipts", &receipts, "--genesis", &genesis];
            cairn.finish("import", &arguments).await.map(drop)
        })
        .await;
    let process = cairn.serve(&[]).await?;
    report.case("serves it", cairn.wait_serving(Duration::from_secs(30))).await;
    ask_all(&cairn.rpc()?, &options.suite, &mut report).await?;
    report.case("SIGTERM ends it", async { process.terminate(Duration::from_secs(5)).await.map(drop) }).await;
    Ok(report.finish())
}
