//! A flow-emulator: a process with the Access API, and an admin port that takes blocks back.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cairn_flow_node::{AccessClient, Key};
use tokio::process::Command;

use crate::peer::{Peer, free_port, wait_until};

/// It sets up its contracts and the bridge to its EVM first.
const START: Duration = Duration::from_secs(60);

/// A running emulator.
pub struct Emulator {
    /// Of the Access API.
    pub url: String,
    pub client: AccessClient,
    admin: String,
    http: reqwest::Client,
    peer: Peer,
}

impl Emulator {
    /// Starts one whose service account has this key. It makes a block of each transaction at once.
    pub async fn start(binary: &Path, folder: &Path, service: &Key) -> Result<Emulator> {
        let (port, rest, admin, debugger) = (free_port()?, free_port()?, free_port()?, free_port()?);
        let mut command = Command::new(binary);
        command.args(["start", "--host", "127.0.0.1", "--log-format", "JSON"]);
        command.args(["--port", &port.to_string(), "--rest-port", &rest.to_string()]);
        command.args(["--admin-port", &admin.to_string(), "--debugger-port", &debugger.to_string()]);
        // In memory all is lost with the one connection to its database, which a caller who goes away ends.
        command.arg("--persist").arg("--dbpath").arg(folder.join("flowdb"));
        // The bridge would be set up by transactions of the EVM in the first block, of which the node gives no transaction.
        command.args(["--setup-vm-bridge=false"]);
        command.args(["--contracts", "--transaction-fees", "--service-priv-key", &service.secret_hex()]);
        command.args(["--service-sig-algo", "ECDSA_secp256k1", "--service-hash-algo", "SHA3_256"]);
        let mut peer = Peer::start("flow-emulator", command, &folder.join("emulator.log"))?;
        let url = format!("http://127.0.0.1:{port}");
        let client = std::cell::RefCell::new(None);
        let up = wait_until("flow-emulator answers", START, || async {
            let found = AccessClient::connect(&url).await?;
            found.latest().await?;
            client.replace(Some(found));
            Ok(None)
        });
        up.await.with_context(|| peer.log_tail())?;
        peer.check_alive()?;
        let client = client.into_inner().context("it has just answered")?;
        let http = reqwest::Client::builder().no_proxy().timeout(START).build()?;
        Ok(Emulator { url, client, admin: format!("http://127.0.0.1:{admin}/emulator"), http, peer })
    }

    /// Takes back every block above this height.
    pub async fn roll_back(&self, height: u64) -> Result<()> {
        // Its tables are locked while it answers somebody.
        let asked = wait_until("flow-emulator goes back", START, || async {
            let request = self.http.post(format!("{}/rollback", self.admin));
            let request = request.header("content-type", "application/x-www-form-urlencoded");
            let answer = request.body(format!("height={height}")).send().await?;
            let status = answer.status();
            if status.is_success() || self.client.latest().await?.height == height {
                return Ok(None);
            }
            bail!("to {height}: {status}: {}", answer.text().await?)
        });
        asked.await?;
        let head = self.client.latest().await?.height;
        ensure!(head == height, "flow-emulator went back to {head} instead of {height}");
        Ok(())
    }

    /// A block without transactions but its own.
    pub async fn empty_block(&self) -> Result<()> {
        let answer = self.http.get(format!("{}/newBlock", self.admin)).send().await?;
        ensure!(answer.status().is_success(), "flow-emulator makes no block: {}", answer.status());
        Ok(())
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        self.peer.log_tail()
    }
}
