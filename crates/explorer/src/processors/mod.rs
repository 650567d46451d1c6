//! The processors, and the one place where they are registered.
//!
//! A new one is a file here with a `SERVICE` and a function `make`, its tables in [`crate::tables`], and one line in [`EVM`] or [`FLOW`]. What
//! is chain-neutral, because it reads tables and not blocks, stands beside the folders `evm` and `flow`.

use std::sync::Arc;

use cairn_pipeline::derive::processor::{Processor, ServiceInfo};
use cairn_store::derived::Catalog;

pub mod evm;
pub mod flow;
pub mod ft_holdings;
mod metadata;
pub mod nft_ownership;
mod shared;
pub mod stats;

pub use shared::Shared;

use crate::decode::evm::wrapped::WrappedTokens;
use evm::node::ContractNode;
use flow::node::ScriptNode;

/// What the processors of a chain are made with.
#[derive(Clone, Default)]
pub struct Settings {
    /// Whose `Deposit` and `Withdrawal` events are token movements. After a change the workers that read token events have to be
    /// reindexed.
    pub wrapped: WrappedTokens,
    /// The EVM node that enrichers ask; without one there are none, and their tables stay empty.
    pub node: Option<Arc<dyn ContractNode>>,
    /// Which Flow network the blocks are of: whose contracts count. Without it there are no processors of Flow blocks.
    pub network: Option<cairn_flow::Network>,
    /// The Flow node that enrichers ask, like `node`.
    pub scripts: Option<Arc<dyn ScriptNode>>,
    /// What mappers that are made with these settings or a clone of them share.
    pub evm_blocks: Arc<Shared<evm::EvmBlock>>,
    /// The same of Flow.
    pub flow_blocks: Arc<Shared<flow::FlowBlock>>,
}

/// One processor: what it says of itself, and how it is made; `None` where the settings don't allow it.
#[derive(Clone, Copy)]
pub struct Registration {
    /// Its name, version, upstreams and tables.
    pub service: &'static ServiceInfo,
    /// Makes it.
    pub make: fn(&Settings) -> Option<Processor>,
}

/// The processors of EVM chains. The order of their tables is the order in which every writer touches them.
pub static EVM: &[Registration] = &[
    Registration { service: &evm::token::SERVICE, make: evm::token::make },
    Registration { service: &evm::evm_worker::SERVICE, make: evm::evm_worker::make },
    Registration { service: &evm::meta::SERVICE, make: evm::meta::make },
    Registration { service: &evm::accounts::SERVICE, make: evm::accounts::make },
    Registration { service: &evm::tx_metrics::SERVICE, make: evm::tx_metrics::make },
    Registration { service: &evm::tx_contracts::SERVICE, make: evm::tx_contracts::make },
    Registration { service: &ft_holdings::SERVICE, make: ft_holdings::make },
    Registration { service: &nft_ownership::SERVICE, make: nft_ownership::make },
    Registration { service: &stats::SERVICE, make: stats::make },
    Registration { service: &evm::token_metadata::SERVICE, make: evm::token_metadata::make },
    Registration { service: &evm::nft_metadata::SERVICE, make: evm::nft_metadata::make },
    Registration { service: &evm::contract_code::SERVICE, make: evm::contract_code::make },
];

/// The processors of Flow. Tables, names and the graph are those of EVM chains wherever they are the same thing.
pub static FLOW: &[Registration] = &[
    Registration { service: &flow::token::SERVICE, make: flow::token::make },
    Registration { service: &flow::evm_worker::SERVICE, make: flow::evm_worker::make },
    Registration { service: &flow::meta::SERVICE, make: flow::meta::make },
    Registration { service: &flow::accounts::SERVICE, make: flow::accounts::make },
    Registration { service: &flow::tx_metrics::SERVICE, make: flow::tx_metrics::make },
    Registration { service: &flow::tx_contracts::SERVICE, make: flow::tx_contracts::make },
    Registration { service: &ft_holdings::SERVICE, make: ft_holdings::make_flow },
    Registration { service: &flow::nft_ownership::SERVICE, make: flow::nft_ownership::make },
    Registration { service: &flow::account_state::SERVICE, make: flow::account_state::make },
    Registration { service: &flow::evm_chain::SERVICE, make: flow::evm_chain::make },
    Registration { service: &stats::SERVICE, make: stats::make },
    Registration { service: &flow::token_metadata::SERVICE, make: flow::token_metadata::make },
    Registration { service: &flow::nft_metadata::SERVICE, make: flow::nft_metadata::make },
    Registration { service: &flow::contract_code::SERVICE, make: flow::contract_code::make },
    Registration { service: &flow::account_metadata::SERVICE, make: flow::account_metadata::make },
];

/// The processors of EVM chains that the settings allow.
pub fn evm_processors(settings: &Settings) -> Vec<Processor> {
    made(EVM, settings)
}

/// The processors of Flow that the settings allow.
pub fn flow_processors(settings: &Settings) -> Vec<Processor> {
    made(FLOW, settings)
}

/// Every table of an EVM chain, those of processors that the settings don't allow included: a store's tables don't depend on settings.
pub fn evm_catalog() -> cairn_store::Result<Catalog> {
    catalog(EVM)
}

/// Every table of Flow, likewise.
pub fn flow_catalog() -> cairn_store::Result<Catalog> {
    catalog(FLOW)
}

fn made(registrations: &[Registration], settings: &Settings) -> Vec<Processor> {
    registrations.iter().filter_map(|registration| (registration.make)(settings)).collect()
}

fn catalog(registrations: &[Registration]) -> cairn_store::Result<Catalog> {
    Catalog::new(registrations.iter().flat_map(|registration| registration.service.tables.iter().copied()))
}
