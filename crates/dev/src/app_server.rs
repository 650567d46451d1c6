//! A PostgreSQL server of the app database alone, which a test takes away and brings back.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_backends::postgres::{PgOptions, PgPool};
use clap::Args;
use tokio::process::Command;

use crate::peer::{Peer, wait_until};

/// How long its start and its end may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server, and how long it is to be away.
#[derive(Debug, Args)]
pub struct AppServerArgs {
    /// What starts the app database's server, in a shell. It isn't running yet, and SIGINT has to end it.
    #[arg(long)]
    app_server: String,
    /// That server's URL.
    #[arg(long)]
    pub app_postgres: String,
    /// How long the app database is away, in seconds.
    #[arg(long, default_value_t = 60)]
    away_s: u64,
}

impl AppServerArgs {
    /// How long it is to be away.
    pub fn away(&self) -> Duration {
        Duration::from_secs(self.away_s)
    }
}

/// A server that is started and stopped.
pub struct AppServer<'a> {
    args: &'a AppServerArgs,
    log: PathBuf,
    running: Option<Peer>,
}

impl<'a> AppServer<'a> {
    /// Not yet started; its log is appended to `log`.
    pub fn new(args: &'a AppServerArgs, log: PathBuf) -> AppServer<'a> {
        AppServer { args, log, running: None }
    }

    /// Starts it, and waits until it answers.
    pub async fn start(&mut self) -> Result<()> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec {}", self.args.app_server));
        let server = Peer::start("the app database's server", command, &self.log)?;
        let answers = wait_until("the app database's server answers", PATIENCE, || async {
            let pool = PgPool::new(PgOptions::new(&self.args.app_postgres))?;
            pool.get().await?.batch("SELECT 1").await?;
            Ok(None)
        });
        answers.await.with_context(|| server.log_tail())?;
        self.running = Some(server);
        Ok(())
    }

    /// Ends it as an operator would, with whoever is connected.
    pub async fn stop(&mut self) -> Result<()> {
        match self.running.take() {
            Some(server) => server.interrupt(PATIENCE).await.map(drop),
            None => Ok(()),
        }
    }
}
