//! cairn: indexes and archives blockchains.

#![warn(clippy::print_stdout)]

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
mod servers;
mod service;
mod start;
mod stores;
mod supervise;
mod telemetry;
mod upstream;
mod watch;
mod wiring;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

/// How a repair ends that found nothing which is still wrong, but could not look at everything.
const INCOMPLETE: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    // Writes out what waits when it is dropped.
    let _log = match output::start_logging(cli.log.clone(), cli.log_json) {
        Ok(guard) => guard,
        Err(message) => {
            output::say_error(message);
            return ExitCode::from(2);
        }
    };
    let file = cli.config.as_deref();
    let result = match &cli.command {
        Command::Run(args) => commands::run::run(file, args).await,
        Command::Demo(args) => commands::demo::demo(file, args).await,
        Command::Import(args) => commands::import::import(file, args).await,
        Command::Serve(args) => commands::serve::serve(file, args).await,
        Command::Status(args) => commands::status::status(file, args).await,
        Command::Backup(args) => commands::backup::backup(file, args).await,
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
            output::say_error(format_args!("{error:#}"));
            match error.is::<repair::Incomplete>() {
                true => ExitCode::from(INCOMPLETE),
                false => ExitCode::FAILURE,
            }
        }
    }
}
