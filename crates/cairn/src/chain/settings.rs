//! The settings of `[chain]`: which kind of chain, its nodes, and what is believed of them.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use cairn_evm::{ChainProfile, Checks};
use cairn_flow::Network;
use cairn_source::evm::rpc::FinalityPolicy;
use cairn_source::flow::{FlowConfig, NodeConfig};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use url::Url;

use super::Chain;
use crate::config::hide_url;

/// What is final on an EVM chain where nobody says otherwise.
const EVM_FINALITY: &str = "both:64";

/// A kind of chain by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainKind {
    /// EVM chains.
    Evm,
    /// Flow.
    Flow,
}

/// A network of Flow by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FlowNetwork {
    /// `flow-mainnet`.
    #[serde(alias = "flow-mainnet")]
    #[value(alias = "flow-mainnet")]
    Mainnet,
    /// `flow-testnet`.
    #[serde(alias = "flow-testnet")]
    #[value(alias = "flow-testnet")]
    Testnet,
    /// `flow-emulator`.
    #[serde(alias = "flow-emulator")]
    #[value(alias = "flow-emulator")]
    Emulator,
}

impl From<Network> for FlowNetwork {
    fn from(network: Network) -> Self {
        match network {
            Network::Mainnet => FlowNetwork::Mainnet,
            Network::Testnet => FlowNetwork::Testnet,
            Network::Emulator => FlowNetwork::Emulator,
        }
    }
}

impl From<FlowNetwork> for Network {
    fn from(network: FlowNetwork) -> Self {
        match network {
            FlowNetwork::Mainnet => Network::Mainnet,
            FlowNetwork::Testnet => Network::Testnet,
            FlowNetwork::Emulator => Network::Emulator,
        }
    }
}

/// The chain and its nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChainConfig {
    /// The kind; none: what the nodes that are given, or the archive, say; else EVM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ChainKind>,
    /// EVM nodes, the preferred one first.
    #[serde(deserialize_with = "nodes")]
    pub rpc: Vec<String>,
    /// The chain id that must be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<u64>,
    /// A geth-style genesis.json.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub genesis: Option<PathBuf>,
    /// `tag`, `depth:N` or `both:N`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finality: Option<String>,
    /// Relaxed checks, by name.
    pub relax: Vec<String>,
    /// Accept receipts without a transaction.
    pub extra_receipts: bool,
    /// Archive call traces.
    pub traces: bool,
    /// The network of Flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<FlowNetwork>,
    /// Flow's access nodes.
    #[serde(deserialize_with = "access_nodes")]
    pub access: Vec<AccessNode>,
    /// Limits of Flow's access nodes.
    pub flow: FlowSettings,
}

/// One access node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessNode {
    /// `http://HOST:PORT`, or `https://…`; without a scheme it is http.
    pub url: String,
    /// The first height that it is asked for: its spork's root; none: what it says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The height before which it stops: the next spork's root; none: where another node's spork begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The most requests a second; 0: no limit.
    #[serde(default = "requests_per_s")]
    pub requests_per_s: u32,
    /// Of them, the most scripts and accounts; 0: no limit.
    #[serde(default = "scripts_per_s")]
    pub scripts_per_s: u32,
}

fn requests_per_s() -> u32 {
    100
}

fn scripts_per_s() -> u32 {
    5
}

impl AccessNode {
    fn at(url: &str) -> AccessNode {
        AccessNode {
            url: url.to_owned(),
            from: None,
            until: None,
            requests_per_s: requests_per_s(),
            scripts_per_s: scripts_per_s(),
        }
    }

    fn parsed(&self) -> anyhow::Result<Url> {
        let whole = if self.url.contains("://") { self.url.clone() } else { format!("http://{}", self.url) };
        let parsed = Url::parse(&whole)
            .map_err(|error| anyhow::anyhow!("chain.access {}: {error}", hide_url(&whole)))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
            bail!(
                "chain.access {}: expected HOST:PORT, http://HOST:PORT or https://HOST:PORT",
                hide_url(&whole)
            );
        }
        Ok(parsed)
    }
}

/// Limits that hold for every access node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlowSettings {
    /// The largest answer that is taken, in MiB.
    pub max_response_mib: usize,
    /// How long one request may take, in milliseconds.
    pub request_timeout_ms: u64,
    /// Requests that one node works on at a time.
    pub requests_in_flight: usize,
    /// Ask for each block's execution result: one more request a block. None: on real networks; a flow-emulator gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution_results: Option<bool>,
}

impl Default for FlowSettings {
    fn default() -> Self {
        FlowSettings {
            max_response_mib: 64,
            request_timeout_ms: 30_000,
            requests_in_flight: 32,
            execution_results: None,
        }
    }
}

/// A list of URLs; or URLs in one text, separated by commas.
fn nodes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct All;
    impl<'de> Visitor<'de> for All {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of URLs")
        }
        fn visit_str<E>(self, urls: &str) -> Result<Self::Value, E> {
            let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
            Ok(urls.map(str::to_owned).collect())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut urls = Vec::new();
            while let Some(url) = list.next_element()? {
                urls.push(url);
            }
            Ok(urls)
        }
    }
    from.deserialize_any(All)
}

/// A list of nodes, each a URL or a table; or URLs in one text, separated by commas.
fn access_nodes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AccessNode>, D::Error> {
    struct One(AccessNode);
    struct OneVisitor;
    impl<'de> Visitor<'de> for OneVisitor {
        type Value = One;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a URL, or a table with `url`")
        }
        fn visit_str<E>(self, url: &str) -> Result<One, E> {
            Ok(One(AccessNode::at(url)))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<One, A::Error> {
            AccessNode::deserialize(MapAccessDeserializer::new(map)).map(One)
        }
    }
    impl<'de> Deserialize<'de> for One {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<One, D::Error> {
            from.deserialize_any(OneVisitor)
        }
    }
    struct All;
    impl<'de> Visitor<'de> for All {
        type Value = Vec<AccessNode>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of access nodes")
        }
        fn visit_str<E>(self, urls: &str) -> Result<Self::Value, E> {
            let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
            Ok(urls.map(AccessNode::at).collect())
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut nodes = Vec::new();
            while let Some(One(node)) = list.next_element()? {
                nodes.push(node);
            }
            Ok(nodes)
        }
    }
    from.deserialize_any(All)
}

impl ChainConfig {
    /// Whether the settings say which kind of chain it is.
    pub fn says_kind(&self) -> bool {
        self.kind.is_some() || self.is_flow() || !self.rpc.is_empty()
    }

    fn is_flow(&self) -> bool {
        match self.kind {
            Some(kind) => kind == ChainKind::Flow,
            None => !self.access.is_empty() || self.network.is_some(),
        }
    }

    /// The chain; Flow's main network where no other is named.
    pub fn chain(&self) -> Chain {
        match self.is_flow() {
            true => Chain::Flow(self.network.unwrap_or(FlowNetwork::Mainnet).into()),
            false => Chain::Evm,
        }
    }

    /// Checks all that can be checked without the nodes. Settings that are for another kind of chain are refused by name.
    pub fn check(&self) -> anyhow::Result<()> {
        for url in &self.rpc {
            let parsed =
                Url::parse(url).map_err(|error| anyhow::anyhow!("--rpc {}: {error}", hide_url(url)))?;
            if !matches!(parsed.scheme(), "http" | "https" | "ws" | "wss") {
                bail!("--rpc {}: expected http, https, ws or wss", hide_url(url));
            }
        }
        match self.is_flow() {
            true => self.check_flow(),
            false => self.check_evm(),
        }
    }

    fn check_evm(&self) -> anyhow::Result<()> {
        let foreign = [
            (!self.access.is_empty(), "chain.access (--flow-access)"),
            (self.network.is_some(), "chain.network (--network)"),
            (self.flow != FlowSettings::default(), "chain.flow"),
        ];
        refuse(&foreign, "Flow", "an EVM chain; set chain.kind = \"flow\", or leave it out")?;
        self.finality()?;
        self.profile()?;
        Ok(())
    }

    fn check_flow(&self) -> anyhow::Result<()> {
        let foreign = [
            (!self.rpc.is_empty(), "chain.rpc (--rpc)"),
            (self.chain_id.is_some(), "chain.chain_id (--chain-id)"),
            (self.genesis.is_some(), "chain.genesis (--genesis)"),
            (self.finality.is_some(), "chain.finality (--finality)"),
            (!self.relax.is_empty(), "chain.relax (--relax)"),
            (self.extra_receipts, "chain.extra_receipts (--extra-receipts)"),
            (self.traces, "chain.traces (--traces)"),
        ];
        refuse(&foreign, "EVM chains", "Flow")?;
        for node in &self.access {
            let url = node.parsed()?;
            if let (Some(from), Some(until)) = (node.from, node.until)
                && from >= until
            {
                bail!("chain.access {}: from {from} is not below until {until}", hide_url(url.as_str()));
            }
        }
        if !self.access.is_empty() && self.access.iter().all(|node| node.until.is_some()) {
            bail!("chain.access: every node has an `until`; the live one has none");
        }
        let positive = [
            ("chain.flow.max_response_mib", self.flow.max_response_mib as u64),
            ("chain.flow.request_timeout_ms", self.flow.request_timeout_ms),
            ("chain.flow.requests_in_flight", self.flow.requests_in_flight as u64),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            bail!("{name} must be at least 1");
        }
        Ok(())
    }

    /// The access nodes. What is this far below the sealed head counts as final, in heights: as far as a reorg may go.
    pub fn flow_source(&self, network: Network, max_reorg_depth: u64) -> anyhow::Result<FlowConfig> {
        if self.access.is_empty() {
            bail!("no access node is given: use --flow-access HOST:PORT");
        }
        let nodes = self.access.iter().map(|node| {
            Ok(NodeConfig {
                first_height: node.from,
                end_height_exclusive: node.until,
                requests_per_s: node.requests_per_s,
                scripts_per_s: node.scripts_per_s,
                ..NodeConfig::new(node.parsed()?)
            })
        });
        let mut source = FlowConfig::new(network, nodes.collect::<anyhow::Result<_>>()?);
        source.max_response_bytes = self.flow.max_response_mib.saturating_mul(1 << 20);
        source.request_timeout_ms = self.flow.request_timeout_ms;
        source.requests_in_flight = self.flow.requests_in_flight;
        source.execution_results = self.flow.execution_results.unwrap_or(network != Network::Emulator);
        source.finality_heights = max_reorg_depth;
        Ok(source)
    }

    /// The finality policy of an EVM chain.
    pub fn finality(&self) -> anyhow::Result<FinalityPolicy> {
        let text = self.finality.as_deref().unwrap_or(EVM_FINALITY);
        let depth = |digits: &str| {
            digits
                .parse::<u64>()
                .with_context(|| format!("chain.finality `{text}`: `{digits}` is no number of blocks"))
        };
        match text.split_once(':') {
            None if text == "tag" => Ok(FinalityPolicy::Tag),
            Some(("depth", digits)) => Ok(FinalityPolicy::Depth(depth(digits)?)),
            Some(("both", digits)) => Ok(FinalityPolicy::Both(depth(digits)?)),
            _ => bail!("chain.finality `{text}`: expected `tag`, `depth:N` or `both:N`"),
        }
    }

    /// What is demanded of an EVM chain's blocks.
    pub fn profile(&self) -> anyhow::Result<ChainProfile> {
        let mut relaxed = ChainProfile::parse_relaxations(&self.relax.join(","))
            .with_context(|| format!("chain.relax `{}`", self.relax.join(",")))?;
        if self.extra_receipts {
            relaxed |= Checks::EXTRA_RECEIPTS;
        }
        Ok(ChainProfile::relaxing(relaxed))
    }

    /// The nodes as they may be shown.
    pub fn shown_nodes(&self) -> String {
        let access = self.access.iter().map(|node| match node.parsed() {
            Ok(url) => hide_url(url.as_str()),
            Err(_) => hide_url(&node.url),
        });
        self.rpc.iter().map(|url| hide_url(url)).chain(access).collect::<Vec<_>>().join(", ")
    }

    /// The same, fit to be shown.
    pub fn without_secrets(mut self) -> ChainConfig {
        self.rpc = self.rpc.iter().map(|url| hide_url(url)).collect();
        for node in &mut self.access {
            node.url = match node.parsed() {
                Ok(url) => hide_url(url.as_str()),
                Err(_) => hide_url(&node.url),
            };
        }
        self
    }
}

/// Refuses settings that are for another kind of chain.
pub fn refuse(foreign: &[(bool, &str)], theirs: &str, ours: &str) -> anyhow::Result<()> {
    match foreign.iter().find(|(is_set, _)| *is_set) {
        Some((_, name)) => bail!("{name} is a setting of {theirs}, and the configuration is for {ours}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_emulator_is_not_asked_for_execution_results_unless_it_is_said() {
        let asked = |network, execution_results| {
            let flow = FlowSettings { execution_results, ..FlowSettings::default() };
            let config = ChainConfig { access: vec![AccessNode::at("a:1")], flow, ..ChainConfig::default() };
            config.flow_source(network, 10).expect("has a node").execution_results
        };
        assert!(asked(Network::Mainnet, None) && asked(Network::Testnet, None));
        assert!(!asked(Network::Emulator, None) && asked(Network::Emulator, Some(true)));
        assert!(!asked(Network::Mainnet, Some(false)));
    }
}
