//! What the Flow source is told.

use cairn_core::BlockId;
use cairn_flow::Network;
use url::Url;

use crate::{Result, SourceError};

/// One access node, and the heights that it is asked for.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its gRPC address: `http://host:9000`, or `https://…`.
    pub url: Url,
    /// The first height that it serves: its spork's root. `None`: what it says itself ([`cairn_flow::proto::NodeVersionInfo`]).
    pub first_height: Option<u64>,
    /// The height before which it stops: the next spork's root. `None`: the first height of the next spork among the other nodes; the live one has
    /// no end.
    pub end_height_exclusive: Option<u64>,
    /// How many requests it may be sent a second. Public nodes allow about 100; 0 means no limit of ours.
    pub requests_per_s: u32,
    /// Of them, how many scripts and accounts it may be asked for. Public nodes allow about 5; 0 means no limit of ours.
    pub scripts_per_s: u32,
}

impl NodeConfig {
    /// A node at `url` that is asked for all heights from its own root up.
    pub fn new(url: Url) -> NodeConfig {
        NodeConfig {
            url,
            first_height: None,
            end_height_exclusive: None,
            requests_per_s: 100,
            scripts_per_s: 5,
        }
    }
}

/// The whole source.
#[derive(Debug, Clone)]
pub struct FlowConfig {
    /// The network that every node has to serve.
    pub network: Network,
    /// At least one node; the one without an end is asked for the tip.
    pub nodes: Vec<NodeConfig>,
    /// The largest answer that is taken, in bytes. Four of them have room at a time, over all nodes together. A client's usual limit of 4 MiB is too small: payout transactions leave more.
    pub max_response_bytes: usize,
    /// How long one request may take, in milliseconds.
    pub request_timeout_ms: u64,
    /// How many requests one node works on at a time.
    pub requests_in_flight: usize,
    /// Sealed blocks are taken as final this far below the sealed head, in heights (the archive's `MAX_REORG_DEPTH`).
    pub finality_heights: u64,
    /// Whether each block's execution result is asked for: one more request a block.
    pub execution_results: bool,
    /// Heights of spork roots that needn't link, each with the id of the block below that it follows all the same.
    pub accepted_roots: Vec<(u64, BlockId)>,
}

impl FlowConfig {
    /// With the limits that suit public nodes.
    pub fn new(network: Network, nodes: Vec<NodeConfig>) -> FlowConfig {
        FlowConfig {
            network,
            nodes,
            max_response_bytes: 64 << 20,
            request_timeout_ms: 30_000,
            requests_in_flight: 32,
            finality_heights: 1_000,
            execution_results: true,
            accepted_roots: Vec::new(),
        }
    }

    /// The block that the root of a spork at `height` follows, though it names another one.
    pub(super) fn accepted_parent(&self, height: u64) -> Option<BlockId> {
        self.accepted_roots.iter().find(|(root, _)| *root == height).map(|(_, below)| *below)
    }

    /// Checks what doesn't need the nodes.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(SourceError::Invalid(message));
        if self.nodes.is_empty() {
            return refuse("no access node is configured; give at least one".into());
        }
        for node in &self.nodes {
            if !matches!(node.url.scheme(), "http" | "https") {
                return refuse(format!(
                    "{}: an access node's address begins with http:// or https://",
                    node.url
                ));
            }
            if let (Some(first), Some(end)) = (node.first_height, node.end_height_exclusive)
                && first >= end
            {
                return refuse(format!("{}: its first height {first} is not below its end {end}", node.url));
            }
        }
        match self.nodes.iter().filter(|node| node.end_height_exclusive.is_none()).count() {
            0 => refuse("every access node has an end height; the live one has none".into()),
            _ => Ok(()),
        }
    }
}
