//! Putting the parts together: which store, which source, which checks.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{ChainId, SystemClock};
use cairn_source::evm::rpc::{RpcConfig, RpcSource};
use cairn_store::{RawReader, StoreInfo};
use url::Url;

use crate::config::Config;

/// The largest genesis file that is read, in bytes.
const MAX_GENESIS_BYTES: u64 = 256 << 20;

/// Opens the archive for writing; makes it where there is none.
pub async fn open_store(config: &Config) -> anyhow::Result<SqliteStore> {
    let options =
        SqliteOptions { cache_bytes: config.ingest.cache_mib << 20, ..SqliteOptions::new(&config.data_dir) };
    SqliteStore::open(options, Arc::new(SystemClock))
        .await
        .with_context(|| format!("can't open the archive in {}", config.data_dir.display()))
}

/// Opens the archive for reading only; may run beside a writer.
pub async fn open_read_only(config: &Config) -> anyhow::Result<Arc<dyn RawReader>> {
    read_only(config, SqliteOptions::read_only(&config.data_dir)).await
}

/// The same, with snapshots that may live as long as an audit's pass over the index takes.
pub async fn open_for_audit(config: &Config) -> anyhow::Result<Arc<dyn RawReader>> {
    read_only(config, SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::read_only(&config.data_dir) })
        .await
}

async fn read_only(config: &Config, options: SqliteOptions) -> anyhow::Result<Arc<dyn RawReader>> {
    let dir = config.data_dir.display();
    if !config.data_dir.is_dir() {
        bail!("there is no archive in {dir}; `cairn run --rpc URL --data {dir}` or `cairn import` makes one");
    }
    let store = SqliteStore::open(options, Arc::new(SystemClock))
        .await
        .with_context(|| format!("can't read the archive in {dir}"))?;
    Ok(Arc::new(store))
}

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
