//! The real `cairn` binary as a child process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use crate::peer::{Peer, wait_until};
use crate::rpc::Rpc;

/// How long a process may need until it listens.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long an address that an earlier process listened on may stay taken by somebody else.
const TAKEN_LIMIT: Duration = Duration::from_secs(60);

/// Where one cairn keeps its data and listens; processes may come and go.
pub struct Cairn {
    binary: PathBuf,
    data: PathBuf,
    log: PathBuf,
    /// What the first process was given. Later ones get the same, since clients know it.
    addresses: OnceLock<Addresses>,
    http: reqwest::Client,
    environment: Vec<(String, String)>,
}

/// Where it listens, as it says itself.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// JSON-RPC.
    pub rpc: SocketAddr,
    /// REST.
    pub rest: SocketAddr,
    /// Health and metrics.
    pub health: SocketAddr,
}

impl Addresses {
    /// Reads what a process says when it listens; `None` until it has said all of it.
    fn read(log: &str) -> Option<Addresses> {
        let after = |name: &str| {
            let line = log.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start().strip_prefix("http://")?.split(['/', ' ']).next()?.parse().ok()
        };
        log.lines().find(|line| line.starts_with("health ") && line.ends_with("/metrics"))?;
        Some(Addresses { rpc: after("JSON-RPC ")?, rest: after("REST ")?, health: after("health ")? })
    }
}

impl Cairn {
    /// A cairn with its data and log in `folder`.
    pub fn new(binary: &Path, folder: &Path) -> Result<Cairn> {
        Ok(Cairn {
            binary: binary.to_owned(),
            data: folder.join("data"),
            log: folder.join("cairn.log"),
            addresses: OnceLock::new(),
            http: reqwest::Client::builder().timeout(Duration::from_secs(10)).no_proxy().build()?,
            environment: Vec::new(),
        })
    }

    /// The same with a variable in the environment of its processes.
    pub fn with(mut self, name: &str, value: &str) -> Cairn {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Where it listens. An error before the first process did.
    pub fn addresses(&self) -> Result<Addresses> {
        self.addresses.get().copied().context("this cairn was never started, so it has no address yet")
    }

    /// Its JSON-RPC address.
    pub fn rpc_url(&self) -> Result<String> {
        Ok(format!("http://{}", self.addresses()?.rpc))
    }

    /// The same for WebSocket.
    pub fn ws_url(&self) -> Result<String> {
        Ok(format!("ws://{}", self.addresses()?.rpc))
    }

    /// A client of its JSON-RPC.
    pub fn rpc(&self) -> Result<Rpc> {
        Rpc::new(&self.rpc_url()?)
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(subcommand).arg("--data").arg(&self.data);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts a process that listens, and returns when it does, or when it has ended before.
    ///
    /// The system chooses the ports: one that was free a moment ago may be taken when the process comes to it.
    async fn start(&self, subcommand: &str, arguments: &[&str]) -> Result<Peer> {
        let begun = Instant::now();
        loop {
            let known = self.addresses.get();
            let address = |known: Option<SocketAddr>| known.map_or("127.0.0.1:0".into(), |at| at.to_string());
            let mut command = self.command(subcommand);
            command.args(["--rpc-listen", &address(known.map(|at| at.rpc))]);
            command.args(["--listen", &address(known.map(|at| at.rest))]).args(arguments);
            let before = std::fs::metadata(&self.log).map_or(0, |log| log.len());
            let mut process = Peer::start(&format!("cairn {subcommand}"), command, &self.log)?;
            let said = self.listens(&mut process, usize::try_from(before)?).await?;
            let taken = said.contains("can't listen on") && process.has_ended()?;
            if !taken || begun.elapsed() > TAKEN_LIMIT {
                return Ok(process);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Waits until the process says where it listens, or has ended. Returns what it said.
    async fn listens(&self, process: &mut Peer, before: usize) -> Result<String> {
        let begun = Instant::now();
        loop {
            // Looked at first: what it said last is then in the log.
            let ended = process.has_ended()?;
            let log = std::fs::read(&self.log).with_context(|| self.log.display().to_string())?;
            let said = String::from_utf8_lossy(log.get(before..).unwrap_or_default()).into_owned();
            if let Some(addresses) = Addresses::read(&said) {
                self.addresses.get_or_init(|| addresses);
                return Ok(said);
            }
            if ended {
                return Ok(said);
            }
            if begun.elapsed() > START_LIMIT {
                bail!("cairn does not listen after {} s; {}", START_LIMIT.as_secs(), self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// `cairn run` from a node.
    pub async fn run(&self, node: &str, more: &[&str]) -> Result<Peer> {
        self.start("run", &[&["--rpc", node], more].concat()).await
    }

    /// `cairn demo`.
    pub async fn demo(&self, more: &[&str]) -> Result<Peer> {
        self.start("demo", more).await
    }

    /// `cairn serve`.
    pub async fn serve(&self, more: &[&str]) -> Result<Peer> {
        self.start("serve", more).await
    }

    /// A command that ends by itself; its output when it succeeds.
    pub async fn finish(&self, subcommand: &str, more: &[&str]) -> Result<Output> {
        let mut command = self.command(subcommand);
        command.args(more).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(120), command.output())
            .await
            .with_context(|| format!("cairn {subcommand} is still running after 120 s"))?
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        if !output.status.success() {
            bail!(
                "cairn {subcommand} ended with {}:\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(output)
    }

    /// `cairn status --json`.
    pub async fn status(&self) -> Result<Value> {
        let output = self.finish("status", &["--json"]).await?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("cairn status --json: {}", String::from_utf8_lossy(&output.stdout)))
    }

    /// Status code and body of a page of REST, health or metrics.
    pub async fn page(&self, path: &str) -> Result<(u16, String)> {
        let Addresses { rest, health, .. } = self.addresses()?;
        let at = if path.starts_with("/v1") { rest } else { health };
        let answer = self.http.get(format!("http://{at}{path}")).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// Waits until `/readyz` says 200.
    pub async fn wait_ready(&self, limit: Duration) -> Result<()> {
        wait_until("/readyz is 200", limit, || async {
            let (status, body) = self.page("/readyz").await?;
            Ok((status != 200).then(|| format!("{status}: {body}")))
        })
        .await
    }

    /// Waits until it answers JSON-RPC.
    pub async fn wait_serving(&self, limit: Duration) -> Result<()> {
        let rpc = self.rpc()?;
        let waited = wait_until("cairn answers", limit, || async { rpc.head().await.map(|_| None) }).await;
        waited.with_context(|| self.log_tail())
    }

    /// Waits until the newest block served is the node's newest.
    pub async fn wait_head(&self, node: &Rpc, limit: Duration) -> Result<()> {
        let rpc = self.rpc()?;
        let waited = wait_until("cairn's head is the node's", limit, || async {
            let (theirs, ours) = (node.head().await?, rpc.head().await?);
            Ok((theirs != ours).then(|| format!("node {theirs:?}, cairn {ours:?}")))
        })
        .await;
        waited.with_context(|| self.log_tail())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        match std::fs::read(&self.log) {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text);
                let lines: Vec<&str> = text.lines().collect();
                format!("the log ends:\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
            }
            Err(error) => format!("no log: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_once_all_of_them_are_said() {
        let first = "2026 INFO opened\nJSON-RPC   http://127.0.0.1:40001 (HTTP and WebSocket)\n";
        assert!(Addresses::read(first).is_none());
        let rest = "REST       http://127.0.0.1:40002/v1/status   http://127.0.0.1:40002/v1/docs\n";
        assert!(Addresses::read(&format!("{first}{rest}health     http://127.0.0.1:400")).is_none());
        let all = format!(
            "{first}{rest}health     http://127.0.0.1:40003/readyz   metrics http://127.0.0.1:40003/metrics\n"
        );
        let read = Addresses::read(&all).expect("all are there");
        assert_eq!((read.rpc.port(), read.rest.port(), read.health.port()), (40001, 40002, 40003));
    }
}
