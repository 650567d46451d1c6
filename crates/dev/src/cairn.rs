//! The real `cairn` binary as a child process.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use crate::peer::{Peer, free_port, wait_until};
use crate::rpc::Rpc;

/// Where one cairn keeps its data and listens; processes may come and go.
pub struct Cairn {
    binary: PathBuf,
    data: PathBuf,
    log: PathBuf,
    rpc_port: u16,
    http_port: u16,
    http: reqwest::Client,
    environment: Vec<(String, String)>,
}

impl Cairn {
    /// A cairn with its data and log in `folder`.
    pub fn new(binary: &Path, folder: &Path) -> Result<Cairn> {
        Ok(Cairn {
            binary: binary.to_owned(),
            data: folder.join("data"),
            log: folder.join("cairn.log"),
            rpc_port: free_port()?,
            http_port: free_port()?,
            http: reqwest::Client::builder().timeout(Duration::from_secs(10)).no_proxy().build()?,
            environment: Vec::new(),
        })
    }

    /// The same with a variable in the environment of its processes.
    pub fn with(mut self, name: &str, value: &str) -> Cairn {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Its JSON-RPC address.
    pub fn rpc_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.rpc_port)
    }

    /// The same for WebSocket.
    pub fn ws_url(&self) -> String {
        format!("ws://127.0.0.1:{}", self.rpc_port)
    }

    /// A client of its JSON-RPC.
    pub fn rpc(&self) -> Result<Rpc> {
        Rpc::new(&self.rpc_url())
    }

    fn command(&self, subcommand: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(subcommand).arg("--data").arg(&self.data);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn listening(&self, subcommand: &str) -> Command {
        let mut command = self.command(subcommand);
        command.args(["--rpc-listen", &format!("127.0.0.1:{}", self.rpc_port)]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.http_port)]);
        command
    }

    /// `cairn run` from a node.
    pub fn run(&self, node: &str, more: &[&str]) -> Result<Peer> {
        let mut command = self.listening("run");
        command.args(["--rpc", node]).args(more);
        Peer::start("cairn run", command, &self.log)
    }

    /// `cairn demo`.
    pub fn demo(&self, more: &[&str]) -> Result<Peer> {
        let mut command = self.listening("demo");
        command.args(more);
        Peer::start("cairn demo", command, &self.log)
    }

    /// `cairn serve`.
    pub fn serve(&self, more: &[&str]) -> Result<Peer> {
        let mut command = self.listening("serve");
        command.args(more);
        Peer::start("cairn serve", command, &self.log)
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

    /// Status code and body of a page on the second address.
    pub async fn page(&self, path: &str) -> Result<(u16, String)> {
        let answer = self.http.get(format!("http://127.0.0.1:{}{path}", self.http_port)).send().await?;
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
