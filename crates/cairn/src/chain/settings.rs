//! The settings of `[chain]`: which kind of chain, its nodes, and what is believed of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use cairn_core::{BlockId, ChainId};
use cairn_evm::{ChainProfile, Checks};
use cairn_flow::Network;
use cairn_source::evm::rpc::config::is_at;
use cairn_source::evm::rpc::{ErrorRule, FinalityPolicy, RpcConfig, RpcLimits, header_map};
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// How many nodes must have a fork's first block before stored blocks are rolled back for it; none: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_quorum: Option<usize>,
    /// `tag`, `depth:N` or `both:N`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finality: Option<String>,
    /// Relaxed checks, by name.
    pub relax: Vec<String>,
    /// Accept receipts without a transaction.
    pub extra_receipts: bool,
    /// Archive call traces.
    pub traces: bool,
    /// Headers of every request to an EVM node. Values are secrets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The same for single nodes, by `HOST:PORT` or `HOST`; they win over those of all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_of: BTreeMap<String, BTreeMap<String, String>>,
    /// What errors of EVM nodes mean, before the built-in rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub error_rules: Vec<ErrorRule>,
    /// The most calls in one JSON-RPC batch; 1: no batches.
    pub batch_max: usize,
    /// Limits of EVM nodes.
    pub limits: RpcLimits,
    /// The network of Flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<FlowNetwork>,
    /// Flow's access nodes.
    #[serde(deserialize_with = "access_nodes")]
    pub access: Vec<AccessNode>,
    /// Limits of Flow's access nodes.
    pub flow: FlowSettings,
}

impl Default for ChainConfig {
    fn default() -> Self {
        let limits = RpcLimits::default();
        ChainConfig {
            kind: None,
            rpc: Vec::new(),
            chain_id: None,
            genesis: None,
            finality: None,
            head_quorum: None,
            relax: Vec::new(),
            extra_receipts: false,
            traces: false,
            headers: BTreeMap::new(),
            headers_of: BTreeMap::new(),
            error_rules: Vec::new(),
            batch_max: limits.max_batch_items,
            limits,
            network: None,
            access: Vec::new(),
            flow: FlowSettings::default(),
        }
    }
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

/// A root and the id of the block below it, as settings have them.
fn accepted_root(text: &str) -> anyhow::Result<(u64, BlockId)> {
    let parsed = text.split_once(':').and_then(|(height, id)| Some((height.parse().ok()?, id.parse().ok()?)));
    parsed.with_context(|| {
        format!("chain.flow.accepted_roots `{text}`: expected HEIGHT:ID, the root's height and the id of the block below it")
    })
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
    /// Roots of sporks that don't link and are accepted all the same: `HEIGHT:ID`, the root's height and the id of the block below it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted_roots: Vec<String>,
}

impl Default for FlowSettings {
    fn default() -> Self {
        FlowSettings {
            max_response_mib: 64,
            request_timeout_ms: 30_000,
            requests_in_flight: 32,
            execution_results: None,
            accepted_roots: Vec::new(),
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
        for url in self.urls()? {
            if !matches!(url.scheme(), "http" | "https" | "ws" | "wss") {
                bail!("--rpc {}: expected http, https, ws or wss", hide_url(url.as_str()));
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
        if self.batch_max == 0 {
            bail!("chain.batch_max must be at least 1, which turns batches off");
        }
        self.limits.check().map_err(|error| anyhow::anyhow!("chain.limits.{error}"))?;
        for (place, headers) in [("chain.headers".to_owned(), &self.headers)].into_iter().chain(
            self.headers_of.iter().map(|(place, headers)| (format!("chain.headers_of.\"{place}\""), headers)),
        ) {
            header_map(&pairs(headers)).with_context(|| place.clone())?;
        }
        let urls = self.urls()?;
        if let Some(place) = self.headers_of.keys().find(|place| !urls.iter().any(|url| is_at(place, url))) {
            bail!(
                "chain.headers_of.\"{place}\": no node of chain.rpc is there; expected the HOST or HOST:PORT of one"
            );
        }
        let says_nothing =
            |rule: &ErrorRule| rule.http_status.is_none() && rule.code.is_none() && rule.contains.is_none();
        if self.error_rules.iter().any(says_nothing) {
            bail!(
                "chain.error_rules: a rule needs http_status, code or contains, or it would hold for every error"
            );
        }
        self.check_head_quorum()
    }

    /// WebSockets only tell of new heads, and one URL is one node.
    fn check_head_quorum(&self) -> anyhow::Result<()> {
        let urls = self.rpc.iter().filter_map(|url| Url::parse(url).ok());
        let nodes: BTreeSet<Url> = urls.filter(|url| matches!(url.scheme(), "http" | "https")).collect();
        match self.head_quorum {
            Some(0) => bail!("chain.head_quorum must be at least 1"),
            Some(quorum) if quorum > nodes.len() && !nodes.is_empty() => bail!(
                "chain.head_quorum = {quorum}, and chain.rpc (--rpc) has {} http or https nodes; add nodes or lower it",
                nodes.len()
            ),
            _ => Ok(()),
        }
    }

    fn urls(&self) -> anyhow::Result<Vec<Url>> {
        let parse = |url: &String| {
            Url::parse(url).map_err(|error| anyhow::anyhow!("--rpc {}: {error}", hide_url(url)))
        };
        self.rpc.iter().map(parse).collect()
    }

    /// The nodes of an EVM chain, and how they are asked.
    pub fn rpc_source(&self) -> anyhow::Result<RpcConfig> {
        let mut source = RpcConfig::new(self.urls()?);
        source.expected_chain = self.chain_id.map(ChainId);
        source.finality = self.finality()?;
        source.profile = self.profile()?;
        source.traces = self.traces;
        source.headers = pairs(&self.headers);
        source.headers_of =
            self.headers_of.iter().map(|(place, headers)| (place.clone(), pairs(headers))).collect();
        source.error_rules = self.error_rules.clone();
        source.limits = RpcLimits { max_batch_items: self.batch_max, ..self.limits.clone() };
        source.seed = rand::random();
        Ok(source)
    }

    fn check_flow(&self) -> anyhow::Result<()> {
        let foreign = [
            (!self.rpc.is_empty(), "chain.rpc (--rpc)"),
            (self.chain_id.is_some(), "chain.chain_id (--chain-id)"),
            (self.genesis.is_some(), "chain.genesis (--genesis)"),
            (self.head_quorum.is_some(), "chain.head_quorum"),
            (self.finality.is_some(), "chain.finality (--finality)"),
            (!self.relax.is_empty(), "chain.relax (--relax)"),
            (self.extra_receipts, "chain.extra_receipts (--extra-receipts)"),
            (self.traces, "chain.traces (--traces)"),
            (!self.headers.is_empty(), "chain.headers"),
            (!self.headers_of.is_empty(), "chain.headers_of"),
            (!self.error_rules.is_empty(), "chain.error_rules"),
            (self.batch_max != ChainConfig::default().batch_max, "chain.batch_max"),
            (self.limits != RpcLimits::default(), "chain.limits"),
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
        self.flow.accepted_roots.iter().try_for_each(|root| accepted_root(root).map(drop))?;
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
        source.accepted_roots =
            self.flow.accepted_roots.iter().map(|root| accepted_root(root)).collect::<anyhow::Result<_>>()?;
        Ok(source)
    }

    /// How many nodes must have a fork's first block.
    pub fn head_quorum(&self) -> usize {
        self.head_quorum.unwrap_or(1)
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
        for value in
            self.headers.values_mut().chain(self.headers_of.values_mut().flat_map(BTreeMap::values_mut))
        {
            *value = "(hidden)".into();
        }
        for node in &mut self.access {
            node.url = match node.parsed() {
                Ok(url) => hide_url(url.as_str()),
                Err(_) => hide_url(&node.url),
            };
        }
        self
    }
}

/// Names and values of headers.
fn pairs(headers: &BTreeMap<String, String>) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
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

    fn evm(toml: &str) -> ChainConfig {
        toml::from_str(&format!("rpc = ['https://a.example/v2/K', 'http://b.example:8545']\n{toml}"))
            .expect("TOML")
    }

    #[test]
    fn settings_of_the_nodes_reach_the_source() {
        let config = evm("batch_max = 1\nheaders = { authorization = 'Bearer s3cret', x = 'y' }\n\
             headers_of = { 'b.example:8545' = { Authorization = 'Bearer 0ther' } }\n\
             error_rules = [{ http_status = 403, contains = 'plan', class = 'rate-limited' }]\n\
             limits = { max_in_flight = 2 }");
        config.check().expect("can be used");
        let source = config.rpc_source().expect("can be used");
        assert_eq!((source.limits.max_batch_items, source.limits.max_in_flight), (1, 2));
        assert_eq!(source.error_rules.len(), 1);
        let headers = |at: usize| source.headers_for(&source.endpoints[at]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(headers(0), [pair("authorization", "Bearer s3cret"), pair("x", "y")]);
        assert_eq!(headers(1), [pair("x", "y"), pair("Authorization", "Bearer 0ther")]);
        let shown = toml::to_string(&config.without_secrets()).expect("TOML");
        assert!(
            shown.contains("(hidden)") && !shown.contains("s3cret") && !shown.contains("0ther"),
            "{shown}"
        );
    }

    #[test]
    fn settings_that_no_node_can_be_asked_with_are_refused() {
        for (toml, part) in [
            ("batch_max = 0", "chain.batch_max"),
            ("limits = { max_in_flight = 0 }", "chain.limits.max_in_flight"),
            ("limits = { backoff_max_ms = 1 }", "chain.limits.backoff_max_ms"),
            ("headers = { 'a b' = 'c' }", "chain.headers"),
            ("headers = { a = \"s3cret\\n\" }", "chain.headers"),
            ("headers_of = { 'c.example' = { a = 'b' } }", "c.example"),
            ("error_rules = [{ class = 'transient' }]", "chain.error_rules"),
        ] {
            let error = format!("{:#}", evm(toml).check().expect_err(toml));
            assert!(error.contains(part) && !error.contains("s3cret"), "{error}");
        }
        let flow = "network = 'mainnet'\nbatch_max = 3";
        let error = toml::from_str::<ChainConfig>(flow).expect("TOML").check().expect_err("is not Flow's");
        assert!(error.to_string().contains("chain.batch_max"), "{error}");
    }

    #[test]
    fn a_head_quorum_needs_so_many_nodes_that_are_asked_for_blocks() {
        let check = |quorum, urls: &[&str]| {
            let rpc = urls.iter().map(|url| (*url).to_owned()).collect();
            ChainConfig { head_quorum: Some(quorum), rpc, ..ChainConfig::default() }.check()
        };
        let [a, b, socket] = ["http://a:1", "https://b", "ws://a:1"];
        check(2, &[a, b]).expect("two nodes");
        check(2, &[]).expect("an archive that is only served");
        for urls in [&[a][..], &[a, socket], &[a, a, "http://a:1/"]] {
            let words = check(2, urls).expect_err("one node").to_string();
            assert!(words.contains("chain.head_quorum = 2") && words.contains("has 1"), "{words}");
        }
        assert!(check(0, &[a]).is_err());
        let network = Some(FlowNetwork::Mainnet);
        let flow = ChainConfig { head_quorum: Some(2), network, ..ChainConfig::default() };
        assert!(flow.check().expect_err("a setting of EVM chains").to_string().contains("chain.head_quorum"));
    }

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
