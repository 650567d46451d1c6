//! Where blocks come from that are lost, or doubted: the nodes that the process has, or those that the configuration names.

use std::sync::Arc;

use cairn_core::ChainId;
use cairn_source::ChainSource;

use crate::chain::Chain;
use crate::config::Config;
use crate::wiring;

/// The place, and why not where there is none.
#[derive(Clone)]
pub enum Fetch {
    /// A node, or whatever else serves the chain; its answers are verified.
    From(Arc<dyn ChainSource>),
    /// Nowhere: why.
    Nowhere(String),
}

impl Fetch {
    /// The configured nodes. Without one, or where they are away, there is nowhere, and a repair goes on as far as it can; nodes of another chain are an error.
    pub async fn configured(config: &Config, chain_id: ChainId) -> anyhow::Result<Fetch> {
        if config.chain.rpc.is_empty() && config.chain.access.is_empty() {
            let flag = match config.chain() {
                Chain::Evm => "--rpc http://HOST:PORT",
                Chain::Flow(_) => "--flow-access HOST:PORT",
            };
            return Ok(Fetch::Nowhere(format!("no node is given to fetch it from: use {flag}")));
        }
        match wiring::connect(config).await {
            Ok(nodes) if nodes.chain_id != chain_id => anyhow::bail!(
                "the node serves chain {}, the archive holds chain {}",
                nodes.chain_id,
                chain_id
            ),
            Ok(nodes) => Ok(Fetch::From(nodes.source)),
            Err(error) => Ok(Fetch::Nowhere(format!("{error:#}"))),
        }
    }

    /// It, or why there is none.
    pub fn source(&self) -> anyhow::Result<&Arc<dyn ChainSource>> {
        match self {
            Fetch::From(source) => Ok(source),
            Fetch::Nowhere(why) => anyhow::bail!("{why}"),
        }
    }
}
