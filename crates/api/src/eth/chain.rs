//! What the chain and this server are.

use alloy_primitives::{B256, keccak256};
use cairn_core::{Height, Parts};
use cairn_evm::{Arguments, parse_data};
use serde::Serialize;
use serde_json::{Value, json};

use super::{EthApi, Refusal, Response};
use crate::error::RpcError;

/// How far the ingester is, for `eth_syncing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncState {
    /// Where this process began.
    pub starting: Height,
    /// The stored tip.
    pub current: Height,
    /// The node's head.
    pub highest: Height,
}

/// `{"disabled", "oldestBlock"}` of `eth_capabilities`. Nothing is ever deleted, so there is no `deleteStrategy`.
#[derive(Serialize)]
struct Resource {
    disabled: bool,
    #[serde(rename = "oldestBlock", skip_serializing_if = "Option::is_none")]
    oldest_block: Option<String>,
}

fn hex(n: u64) -> String {
    format!("0x{n:x}")
}

impl EthApi {
    pub(super) async fn block_number(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        let reading = self.read().await?;
        let (_, tip) = reading.bounds().ok_or_else(RpcError::empty_archive)?;
        Response::of(&hex(tip.height.get()))
    }

    pub(super) async fn chain_id(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        Response::of(&hex(self.read().await?.head().info.chain_id.0))
    }

    /// The network's number, in decimal: the chain's, since no genesis says another.
    pub(super) async fn net_version(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        Response::of(&self.read().await?.head().info.chain_id.to_string())
    }

    pub(super) fn net_listening(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        Response::of(&true)
    }

    /// A cairn has no peers: it asks nodes.
    pub(super) fn peer_count(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        Response::of(&"0x0")
    }

    pub(super) fn client_version(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        Response::of(&self.client_version)
    }

    pub(super) fn sha3(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let max_bytes = self.limits.max_body_bytes;
        let data = Arguments::new(params, 1)?.required(0, |value| parse_data(value, max_bytes))?;
        Response::of(&keccak256(&data))
    }

    pub(super) fn modules(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        Response::of(&json!({ "debug": "1.0", "eth": "1.0", "net": "1.0", "rpc": "1.0", "web3": "1.0" }))
    }

    pub(super) async fn syncing(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        match self.syncing.as_ref().and_then(|syncing| syncing()) {
            None => Response::of(&false),
            Some(state) => Response::of(&json!({
                "startingBlock": hex(state.starting.get()),
                "currentBlock": hex(state.current.get()),
                "highestBlock": hex(state.highest.get()),
            })),
        }
    }

    /// EIP-7910: the forks' parameters.
    pub(super) async fn config(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        Arguments::new(params, 0)?;
        let reading = self.read().await?;
        let (_, tip) = reading.bounds().ok_or_else(RpcError::empty_archive)?;
        let Some(schedule) = self.schedule(&reading.head().info) else {
            let refusal = RpcError::server(
                "this chain's fork schedule is not known here. Give the chain's genesis file when ingesting, or configure a node to ask \
                 (`serve.upstream`, --upstream)",
            );
            return Err(Refusal::Elsewhere(refusal));
        };
        let genesis = match schedule.genesis_hash() {
            Some(hash) => hash,
            None => match reading.snapshot().linked_ref(Height::ZERO).await? {
                Some(genesis) => B256::new(genesis.block.id.0),
                None => {
                    let refusal = RpcError::server(
                        "the fork id needs the genesis block, and this archive begins after it. Configure a node to ask \
                         (`serve.upstream`, --upstream)",
                    );
                    return Err(Refusal::Elsewhere(refusal));
                }
            },
        };
        let block = reading.stored(tip.height, Parts::empty()).await?;
        match schedule.eth_config_json(block.facts.timestamp_ms / 1000, genesis) {
            Ok(config) => Ok(Response::of(&config)?),
            Err(error) => Err(Refusal::Elsewhere(RpcError::server(error.to_string()))),
        }
    }

    /// What is kept, from where, for routers: <https://github.com/ethereum/execution-apis/pull/755>.
    pub(super) async fn capabilities(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        let reading = self.read().await?;
        let (first, tip) = reading.bounds().ok_or_else(RpcError::empty_archive)?;
        let kept = || Resource { disabled: false, oldest_block: Some(hex(first.get())) };
        // How far back an upstream's state goes is not known here.
        let state = || Resource { disabled: self.upstream.is_none(), oldest_block: None };
        Response::of(&json!({
            "head": { "number": hex(tip.height.get()), "hash": tip.id },
            "state": state(),
            "tx": kept(),
            "logs": kept(),
            "receipts": kept(),
            "blocks": kept(),
            "stateproofs": state(),
        }))
    }
}
