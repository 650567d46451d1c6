//! Putting the parts together: which source, which checks, what a new store is made with.

use std::path::Path;

use anyhow::{Context, bail};
use bytes::Bytes;
use cairn_core::ChainId;
use cairn_source::evm::rpc::{RpcConfig, RpcSource};
use cairn_store::StoreInfo;
use url::Url;

use crate::config::Config;

/// The largest genesis file that is read, in bytes.
const MAX_GENESIS_BYTES: u64 = 256 << 20;

/// Connects to the configured nodes.
pub async fn connect(config: &Config) -> anyhow::Result<RpcSource> {
    if config.chain.rpc.is_empty() {
        bail!("no node is given: use --rpc http://HOST:PORT (or `cairn demo` to try without one)");
    }
    let urls = config.chain.rpc.iter().map(|url| Url::parse(url)).collect::<Result<Vec<_>, _>>()?;
    let mut rpc = RpcConfig::new(urls);
    rpc.expected_chain = config.chain.chain_id.map(ChainId);
    rpc.finality = config.finality()?;
    rpc.profile = config.profile()?;
    rpc.traces = config.chain.traces;
    rpc.seed = rand::random();
    RpcSource::connect(rpc).await.context("can't use the node")
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
