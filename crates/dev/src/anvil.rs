//! An anvil of our own: mines only when told, signs for its ten accounts, reorganises on demand.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::peer::{Peer, free_port, wait_until};
use crate::rpc::Rpc;

/// Slots in an epoch: `safe` is one and `finalized` two epochs behind the head, so that reorgs of 64 stay above finality.
pub const SLOTS_IN_AN_EPOCH: u64 = 40;

/// States that [`Anvil::start_in_memory`] keeps: more than blocks are asked about below the head.
const STATES_IN_MEMORY: u64 = 600;

/// A running anvil.
pub struct Anvil {
    pub rpc: Rpc,
    pub url: String,
    peer: Peer,
}

impl Anvil {
    /// Starts one on a free port.
    pub async fn start(binary: &Path, log: &Path) -> Result<Anvil> {
        Anvil::start_with(binary, log, &[]).await
    }

    /// The same, for chains that fork hundreds of times: the states of the newest blocks are kept in memory, and none on disk. By default anvil moves all but a few to the
    /// disk once it has made about a thousand; a reorg to a block whose state lies there can leave every contract without code for good (1.7.1, at some three thousand states).
    pub async fn start_in_memory(binary: &Path, log: &Path) -> Result<Anvil> {
        Anvil::start_with(binary, log, &["--prune-history", &STATES_IN_MEMORY.to_string()]).await
    }

    async fn start_with(binary: &Path, log: &Path, more: &[&str]) -> Result<Anvil> {
        let port = free_port()?;
        let mut command = Command::new(binary);
        command.args(["--host", "127.0.0.1", "--no-mining", "--order", "fifo", "--gas-limit", "500000000"]);
        command.args(["--no-request-size-limit", "--disable-pool-balance-checks", "-q"]);
        command.arg("--slots-in-an-epoch").arg(SLOTS_IN_AN_EPOCH.to_string());
        command.arg("-p").arg(port.to_string()).args(more);
        let mut peer = Peer::start("anvil", command, log)?;
        let url = format!("http://127.0.0.1:{port}");
        let rpc = Rpc::new(&url)?;
        let probe = rpc.clone();
        wait_until("anvil answers", Duration::from_secs(30), || {
            let probe = probe.clone();
            async move { probe.result("eth_chainId", json!([])).await.map(|_| None) }
        })
        .await?;
        peer.check_alive()?;
        Ok(Anvil { rpc, url, peer })
    }

    /// Fails when it has ended, with the end of its log.
    pub fn check_alive(&mut self) -> Result<()> {
        self.peer.check_alive()
    }

    /// Mines one block.
    pub async fn mine(&self) -> Result<()> {
        self.rpc.result("evm_mine", json!([])).await.map(drop)
    }

    /// Replaces the newest `depth` blocks by as many others; each of `transactions` goes into the block of its number, 0 is the first.
    pub async fn reorg(&self, depth: u64, transactions: Vec<(Value, u64)>) -> Result<()> {
        let pairs: Vec<Value> =
            transactions.into_iter().map(|(transaction, block)| json!([transaction, block])).collect();
        self.rpc.result("anvil_reorg", json!([depth, pairs])).await.map(drop)
    }

    /// Takes the newest `depth` blocks off.
    pub async fn rollback(&self, depth: u64) -> Result<()> {
        self.rpc.result("anvil_rollback", json!([depth])).await.map(drop)
    }
}
