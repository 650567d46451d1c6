//! cairn: indexes and archives blockchains.

mod access;
mod chain;
mod cli;
mod commands;
mod config;
#[cfg(unix)]
mod control;
mod derive;
mod node;
mod operators;
mod output;
mod progress;
mod repair;
mod service;
mod stores;
mod upstream;
mod wiring;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

/// How a repair ends that found nothing which is still wrong, but could not look at everything.
const INCOMPLETE: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(message) = start_logging(&cli) {
        eprintln!("error: {message}");
        return ExitCode::from(2);
    }
    let file = cli.config.as_deref();
    let result = match &cli.command {
        Command::Run(args) => commands::run::run(file, args).await,
        Command::Demo(args) => commands::demo::demo(file, args).await,
        Command::Import(args) => commands::import::import(file, args).await,
        Command::Serve(args) => commands::serve::serve(file, args).await,
        Command::Status(args) => commands::status::status(file, args).await,
        Command::Leases(args) => commands::leases::leases(file, args).await,
        Command::Workers(args) => commands::workers::workers(file, args).await,
        Command::Errors(args) => commands::errors::errors(file, args).await,
        Command::Reindex(args) => commands::reindex::reindex(file, args).await,
        Command::Migrate(args) => commands::migrate::migrate(file, args).await,
        Command::Repair(args) => commands::repair::repair(file, args).await,
        Command::Payloads(args) => commands::payloads::payloads(file, args).await,
        Command::Verify(args) => commands::verify::verify(file, args).await,
        Command::Config(args) => commands::config::config(file, args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            match error.is::<repair::Incomplete>() {
                true => ExitCode::from(INCOMPLETE),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// Logs go to standard error. On a terminal the progress bar says what goes well, so that only warnings are logged there.
fn start_logging(cli: &Cli) -> Result<(), String> {
    let terminal = std::io::stderr().is_terminal();
    let filter = match cli.log.clone().or_else(|| std::env::var("CAIRN_LOG").ok()) {
        Some(filter) => filter,
        None if terminal => "warn".into(),
        None => "info".into(),
    };
    let filter = EnvFilter::try_new(&filter).map_err(|error| format!("--log {filter}: {error}"))?;
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(terminal).with_writer(std::io::stderr);
    if cli.log_json {
        log.json().init()
    } else {
        log.init()
    }
    Ok(())
}
