//! What `./dev` runs beside cargo's own tests: the public JSON-RPC suite over HTTP, comparison of a running cairn with a
//! real node, and tests with real nodes and real client libraries. Every command that runs cases ends with a line
//! `N passed, M failed` and fails when a case failed; figures are lines `figure NAME VALUE UNIT`.

// A program for developers.
#![allow(clippy::print_stderr)]

mod answers;
mod anvil;
mod anvil_test;
mod app_server;
mod args;
mod bench;
mod bench_derived;
mod bench_flow;
mod bench_getlogs;
mod bench_idle;
mod bench_ingest;
mod bench_node_to_postgres;
mod bench_peer;
mod bench_pg;
mod bench_postgres;
mod bench_postgres_costs;
mod bench_postgres_derived;
mod bench_rollback;
mod cairn;
mod client_test;
mod compare;
mod conformance;
mod databases;
mod dependency_test;
mod diff;
mod flow_archive;
mod flow_emulator;
mod flow_test;
mod flow_truth;
mod geth_test;
mod holdings_test;
mod holdings_truth;
mod kill_test;
mod load_clients;
mod load_test;
mod odd_nodes;
mod outage_test;
mod peer;
mod proxy;
mod report;
mod rpc;
mod tokens;
mod traffic;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cairn-dev", about = "Tests and benchmarks of a running cairn; see ./dev help")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every answer that cairn gives is the node's own, whole JSON.
    Compare(compare::Options),
    /// Ask all the public suite's requests of a running cairn.
    Conformance(conformance::Options),
    /// Import the public suite's chain, serve it, and ask all the suite's requests.
    ConformanceTest(conformance::TestOptions),
    /// Follow a live anvil through reorgs and kills, then compare everything.
    AnvilTest(anvil_test::Options),
    /// Take the public suite's chain from a geth, then compare everything.
    GethTest(geth_test::Options),
    /// alloy, viem and web3.py against a cairn that follows anvil.
    ClientTest(client_test::Options),
    /// One ingester and three workers on PostgreSQL, killed at random; every table is what a clean run makes.
    KillTest(kill_test::Options),
    /// The app database away for a while: raw ingestion goes on as fast, and derived work catches up.
    OutageTest(outage_test::Options),
    /// Greedy, slow, silent and too many clients at one cairn: the others are served, and memory stays bounded.
    LoadTest(load_test::Options),
    /// Each database, the node and the object storage away for a while: once it is back, every table moves again.
    DependencyTest(dependency_test::Options),
    /// Token and holding tables against what the contracts say, on a chain of random movements that forks.
    HoldingsTest(holdings_test::Options),
    /// Flow from a made-up access node that forks: tables against the chain's ledger, kills, and the reliability document's checks.
    FlowTest(flow_test::Options),
    /// Flow from a real flow-emulator: tables against what it answers, and blocks that it takes back.
    FlowEmulatorTest(flow_emulator::Options),
    /// Odd but honest nodes and real blocks of awkward chains: archived, verified, and served back as they were said.
    OddNodesTest(odd_nodes::Options),
    /// Deploy the test contracts on an anvil and send transactions to it.
    Traffic(traffic::Options),
    /// A benchmark by name; without a name, lists them.
    Bench {
        /// Its name.
        name: Option<String>,
        /// Its own arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// Benchmarks by name. Each is a file `bench_NAME.rs` with a function that takes its own arguments.
const BENCHMARKS: &[&str] =
    &["ingest", "getlogs", "postgres", "rollback", "node-to-postgres", "flow", "idle"];

async fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Compare(options) => compare::run(options).await,
        Command::Conformance(options) => conformance::run(options).await,
        Command::ConformanceTest(options) => conformance::test(options).await,
        Command::AnvilTest(options) => anvil_test::run(options).await,
        Command::GethTest(options) => geth_test::run(options).await,
        Command::ClientTest(options) => client_test::run(options).await,
        Command::KillTest(options) => kill_test::run(options).await,
        Command::OutageTest(options) => outage_test::run(options).await,
        Command::LoadTest(options) => load_test::run(options).await,
        Command::DependencyTest(options) => dependency_test::run(options).await,
        Command::HoldingsTest(options) => holdings_test::run(options).await,
        Command::FlowTest(options) => flow_test::run(options).await,
        Command::FlowEmulatorTest(options) => flow_emulator::run(options).await,
        Command::OddNodesTest(options) => odd_nodes::run(options).await,
        Command::Traffic(options) => traffic::run(options).await,
        Command::Bench { name, arguments } => bench(name.as_deref(), arguments).await,
    }
}

async fn bench(name: Option<&str>, arguments: Vec<String>) -> Result<ExitCode> {
    let arguments = std::iter::once(format!("bench {}", name.unwrap_or_default())).chain(arguments);
    match name {
        None => {
            for name in BENCHMARKS {
                println!("{name}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Some("ingest") => bench_ingest::run(bench_ingest::Options::parse_from(arguments)).await,
        Some("getlogs") => bench_getlogs::run(bench_getlogs::Options::parse_from(arguments)).await,
        Some("postgres") => bench_postgres::run(bench_postgres::Options::parse_from(arguments)).await,
        Some("rollback") => bench_rollback::run(bench_rollback::Options::parse_from(arguments)).await,
        Some("node-to-postgres") => {
            bench_node_to_postgres::run(bench_node_to_postgres::Options::parse_from(arguments)).await
        }
        Some("idle") => bench_idle::run(bench_idle::Options::parse_from(arguments)).await,
        Some("flow") => bench_flow::run(bench_flow::Options::parse_from(arguments)).await,
        Some(name) => bail!("there is no benchmark {name}; there are: {}", BENCHMARKS.join(", ")),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Both reqwest and the client libraries ask for the process-wide provider, also when they speak plain HTTP.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("error: a TLS provider was installed before main");
        return ExitCode::FAILURE;
    }
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
        .and_then(|runtime| runtime.block_on(run(arguments.command)));
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
