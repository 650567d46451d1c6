//! Putting the parts together: which source, which checks, what a new store is made with.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use cairn_core::{ChainId, Height};
use cairn_flow::Network;
use cairn_source::ChainSource;
use cairn_source::evm::rpc::RpcSource;
use cairn_source::flow::FlowSource;
use cairn_source::verify::{Verified, VerifyOptions};
use cairn_store::StoreInfo;

use crate::access::AccessScripts;
use crate::chain::Chain;
use crate::config::Config;
use crate::derive::Asked;
use crate::start::{self, Patience};

/// The largest genesis file that is read, in bytes.
const MAX_GENESIS_BYTES: u64 = 256 << 20;

/// Nodes that are connected.
pub struct Nodes {
    /// What they serve, checked (law 6).
    pub source: Arc<dyn ChainSource>,
    /// The chain that they serve.
    pub chain_id: ChainId,
    /// The first height that they serve.
    pub first_height: Height,
    /// The same nodes for who asks: on Flow, where all that is asked of one has one pace.
    pub asked: Asked,
}

/// Connects to the configured nodes, and waits for nodes that are away or refuse. A node of another chain, and settings that can't be used, are errors.
pub async fn connect_waiting(config: &Config) -> anyhow::Result<Nodes> {
    let mut start = Patience::of(config);
    loop {
        let error = match connect(config).await {
            Ok(nodes) => return Ok(nodes),
            Err(error) => error,
        };
        if !start::is_awaited(&error) {
            return Err(error);
        }
        start.wait_for("a node", error).await?;
    }
}

/// Connects to the configured nodes.
pub async fn connect(config: &Config) -> anyhow::Result<Nodes> {
    match config.chain() {
        Chain::Evm => {
            let node = connect_evm(config).await?;
            let chain_id = node.chain_id().await?;
            let profile = config.chain.profile()?;
            if !profile.relaxed.is_empty() {
                tracing::warn!(checks = %profile.relaxed, "these checks are relaxed: what they guard is believed of the node");
            }
            let options = VerifyOptions { name: "the node".into(), profile, ..VerifyOptions::default() };
            let source = Arc::new(Verified::new(node, options));
            Ok(Nodes { source, chain_id, first_height: Height::ZERO, asked: Asked::default() })
        }
        Chain::Flow(network) => {
            let source = Arc::new(connect_flow(config, network).await?);
            Ok(Nodes {
                chain_id: network.chain_number(),
                first_height: source.first_height(),
                asked: Asked {
                    scripts: Some(Arc::new(AccessScripts::of(source.clone()))),
                    ..Asked::default()
                },
                source,
            })
        }
    }
}

/// Connects to the access nodes. Their source checks by itself.
pub async fn connect_flow(config: &Config, network: Network) -> anyhow::Result<FlowSource> {
    let source = config.chain.flow_source(network, config.ingest.max_reorg_depth)?;
    FlowSource::connect(source).await.context("can't use the access node")
}

async fn connect_evm(config: &Config) -> anyhow::Result<RpcSource> {
    if config.chain.rpc.is_empty() {
        bail!(
            "no node is given: use --rpc http://HOST:PORT, or --flow-access HOST:PORT for Flow (or `cairn demo` to try without one)"
        );
    }
    RpcSource::connect(config.chain.rpc_source()?).await.context("can't use the node")
}

/// What a store is made with.
pub fn store_info(chain_id: ChainId, chain_config: Bytes) -> StoreInfo {
    StoreInfo { uuid: rand::random(), chain_id, chain_config }
}

/// The chain's configuration out of a genesis file; empty without one.
pub fn chain_config(genesis: Option<&Path>, chain_id: ChainId) -> anyhow::Result<Bytes> {
    let Some(path) = genesis else { return Ok(Bytes::new()) };
    let size = std::fs::metadata(path).with_context(|| format!("genesis file {}", path.display()))?.len();
    if size > MAX_GENESIS_BYTES {
        bail!("genesis file {} has {size} bytes; at most {MAX_GENESIS_BYTES} are read", path.display());
    }
    let text = std::fs::read(path).with_context(|| format!("genesis file {}", path.display()))?;
    let config =
        cairn_evm::chain_config_json(&text).with_context(|| format!("genesis file {}", path.display()))?;
    let schedule = cairn_evm::ForkSchedule::from_genesis_json(&config)
        .with_context(|| format!("genesis file {}", path.display()))?;
    if schedule.chain_id() != chain_id {
        bail!(
            "genesis file {} is of chain {}, the node serves chain {chain_id}",
            path.display(),
            schedule.chain_id()
        );
    }
    Ok(config)
}
