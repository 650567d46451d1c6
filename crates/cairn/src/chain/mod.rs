//! Which kind of chain an archive is of, and all that this decides: the codec's part of an audit, how PostgreSQL cuts blocks into rows, who derives
//! which tables, and what is served.
//!
//! The configuration says the kind, or the nodes that it names do; where neither does, the archive itself does. An archive of another chain than the
//! configuration says is refused by name, before anything is done with it.

mod audit;
mod layout;
pub mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, bail};
use cairn_api::rest::RestChain;
use cairn_backends::LogTerms;
use cairn_core::{BlockLayout, ChainId};
use cairn_explorer::processors::{self, Registration, Settings};
use cairn_flow::{FlowLayout, Network};
use cairn_pipeline::audit::BlockAuditor;
use cairn_pipeline::derive::processor::Processor;
use cairn_store::StoreError;
use cairn_store::derived::Catalog;

use crate::config::Config;
use crate::stores::{self, RawStore};
use layout::Heard;
use settings::{ChainKind, FlowNetwork};

/// The networks of Flow.
const NETWORKS: [Network; 3] = [Network::Mainnet, Network::Testnet, Network::Emulator];

/// A kind of chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// Any EVM chain.
    Evm,
    /// A network of Flow.
    Flow(Network),
}

impl Chain {
    /// By the id in a store.
    pub fn of(id: ChainId) -> Chain {
        match NETWORKS.into_iter().find(|network| network.chain_number() == id) {
            Some(network) => Chain::Flow(network),
            None => Chain::Evm,
        }
    }

    /// The kind, for people.
    pub fn name(self) -> &'static str {
        match self {
            Chain::Evm => "an EVM chain",
            Chain::Flow(network) => network.chain_id(),
        }
    }

    /// Whether a store of chain `id` can be of this kind.
    fn fits(self, id: ChainId) -> bool {
        Chain::of(id) == self
    }

    /// How blocks are cut into rows.
    pub fn layout(self) -> Arc<dyn BlockLayout> {
        match self {
            Chain::Evm => Arc::new(Heard(cairn_evm::EvmLayout)),
            Chain::Flow(network) => Arc::new(Heard(FlowLayout::new(network))),
        }
    }

    /// The codec's part of an audit.
    pub fn auditor(self) -> Arc<dyn BlockAuditor> {
        match self {
            Chain::Evm => Arc::new(audit::EvmAuditor),
            Chain::Flow(_) => Arc::new(audit::FlowAuditor),
        }
    }

    /// The log terms of a stored block.
    pub fn log_terms(self) -> LogTerms {
        let auditor = self.auditor();
        Arc::new(move |block| auditor.log_terms(block))
    }

    /// Who derives.
    pub fn registrations(self) -> &'static [Registration] {
        match self {
            Chain::Evm => processors::EVM,
            Chain::Flow(_) => processors::FLOW,
        }
    }

    /// Every derived table.
    pub fn catalog(self) -> anyhow::Result<Catalog> {
        let catalog = match self {
            Chain::Evm => processors::evm_catalog(),
            Chain::Flow(_) => processors::flow_catalog(),
        };
        catalog.context("the derived tables contradict each other; this is a bug")
    }

    /// Which services each service reads from.
    pub fn upstreams(self) -> BTreeMap<&'static str, &'static [&'static str]> {
        let services = self.registrations().iter().map(|registration| registration.service);
        services.map(|service| (service.name, service.upstreams)).collect()
    }

    /// The processors that the settings allow.
    pub fn processors(self, settings: &Settings) -> Vec<Processor> {
        match self {
            Chain::Evm => processors::evm_processors(settings),
            Chain::Flow(_) => processors::flow_processors(settings),
        }
    }

    /// For REST.
    pub fn rest(self) -> RestChain {
        match self {
            Chain::Evm => RestChain::Evm,
            Chain::Flow(network) => RestChain::Flow(network),
        }
    }

    /// Whether JSON-RPC can be served: its methods are those of EVM chains.
    pub fn has_json_rpc(self) -> bool {
        self == Chain::Evm
    }

    /// Refuses what only EVM chains have.
    pub fn demand_evm(self, what: &str) -> anyhow::Result<()> {
        match self {
            Chain::Evm => Ok(()),
            Chain::Flow(_) => bail!("{what} is of EVM chains, and the configuration is for {}", self.name()),
        }
    }
}

/// Fills in the kind of chain where the configuration leaves it open and an archive is there, and refuses an archive of another chain.
pub async fn settle(config: &mut Config) -> anyhow::Result<()> {
    if config.chain.says_kind() && config.raw.url.is_some() {
        // Whoever opens the database looks; it is not asked twice.
        return Ok(());
    }
    // What can't be opened now is opened again by whoever needs it, and says then what is wrong with it.
    let Ok(Some(id)) = stores::stored_chain(config).await else { return Ok(()) };
    if config.chain.says_kind() {
        return check(config, id);
    }
    if let Chain::Flow(network) = Chain::of(id) {
        config.chain.kind = Some(ChainKind::Flow);
        config.chain.network = Some(FlowNetwork::from(network));
        config.check()?;
    }
    Ok(())
}

/// Refuses an archive of another chain than the configuration says.
pub async fn check_store(config: &Config, store: &dyn RawStore) -> anyhow::Result<()> {
    match store.snapshot().await {
        Ok(snapshot) => check(config, snapshot.head().info.chain_id),
        // Nobody has made it yet: whoever does says of which chain it is.
        Err(StoreError::Invalid(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn check(config: &Config, id: ChainId) -> anyhow::Result<()> {
    let chain = config.chain();
    if chain.fits(id) {
        return Ok(());
    }
    let place = config.archive_place();
    bail!(
        "the archive in {place} holds chain {id}, and the configuration is for {}; use another data directory or database, or correct chain.kind and \
         chain.network and the nodes",
        chain.name()
    )
}
