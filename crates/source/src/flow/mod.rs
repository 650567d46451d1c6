//! Flow blocks from access nodes: sealed blocks alone, over gRPC.
//!
//! | subject | module |
//! | --- | --- |
//! | what it is told | [`config`] |
//! | one node: connection, calls, limits | `node`, `codec`, `pace` |
//! | what refusals mean | `classify` |
//! | one whole block | `fetch`, `pieces` |
//! | scripts and accounts as they are at a block | [`state`] |
//!
//! **Law 6.** Each block is put together and checked by the codec ([`cairn_flow::assemble`]) before it is passed on: heights, links, ids of transactions,
//! results of this block and no other, events in order, collections complete. There is no decorator around this source. What can't be checked,
//! such as the block's own id, is marked in its facts.
//!
//! **Sporks.** A node serves the heights from its spork's root to the next one's. Each height has one node, or several of the same
//! stretch, which are asked in turn. A height that no node serves is a mistake in the configuration and is never taken for "not yet".
//!
//! **Finality.** Sealed blocks aren't undone by the protocol; a node on a wrong execution fork may still have told of one. So a sealed
//! block counts as final [`FlowConfig::finality_heights`] below the sealed head, and above that a mismatch is rolled back.
//!
//! **Back-pressure and shutdown.** A node works on at most [`FlowConfig::requests_in_flight`] requests, at its pace; callers wait. A call that
//! is dropped leaves nothing behind.

mod classify;
mod codec;
pub mod config;
mod fetch;
mod node;
mod pace;
mod pieces;
pub mod state;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_flow::block::linked_ref;
use cairn_flow::{Network, proto};
use futures::{StreamExt, stream};

pub use config::{FlowConfig, NodeConfig};
use node::{Call, Node};

use crate::{ChainSource, Heads, Result, SourceError};

/// How many blocks one call fetches side by side.
const BLOCKS_IN_FLIGHT: usize = 16;

/// Access nodes as a source.
#[derive(Debug)]
pub struct FlowSource {
    config: FlowConfig,
    nodes: Vec<Node>,
    /// Which of several nodes of the same stretch is asked next.
    turn: AtomicUsize,
    /// The sealed height that was seen last: where the wake-up begins.
    seen: AtomicU64,
}

impl FlowSource {
    /// Asks each node what it is, and refuses one of another network, or one that begins above what it is configured for.
    pub async fn connect(config: FlowConfig) -> Result<FlowSource> {
        config.check()?;
        let mut nodes = Vec::with_capacity(config.nodes.len());
        let mut sporks = Vec::with_capacity(config.nodes.len());
        for configured in &config.nodes {
            let mut node = Node::new(configured, &config)?;
            check_network(&node, config.network).await?;
            let version = node
                .ask::<_, proto::GetNodeVersionInfoResponse>(Call::NodeVersionInfo, proto::EmptyRequest {});
            let info = match version.await {
                Err(classify::Refusal::Unimplemented) => None,
                answer => node.absent(answer)?.and_then(|answer| answer.info),
            };
            let info = info.unwrap_or_default();
            let root = info.spork_root_block_height.max(info.node_root_block_height);
            match configured.first_height {
                Some(first) if first < root => {
                    return Err(SourceError::Invalid(format!(
                        "{}: it is configured from height {first}, and serves none below {root}; add a node of the spork before",
                        node.name
                    )));
                }
                Some(_) => {}
                None => node.first_height = root,
            }
            // One that doesn't say its spork begins it where it is asked first.
            let spork = if info.spork_root_block_height > 0 {
                info.spork_root_block_height
            } else {
                node.first_height
            };
            sporks.push(spork);
            node.spork_roots.push(info.spork_root_block_height);
            node.spork_roots.extend(config.network.sporks().iter().map(|spork| spork.root_height));
            nodes.push(node);
        }
        // A spork ends where the next one begins, whether or not a node of that one is configured (F02).
        let roots = config.network.sporks().iter().map(|spork| spork.root_height);
        let roots: Vec<u64> = roots.chain(sporks.iter().copied()).collect();
        for (node, spork) in nodes.iter_mut().zip(&sporks) {
            // One that doesn't say where it begins is taken for one of a chain of its own.
            let of_table = if *spork > 0 { &roots } else { &sporks };
            let next = of_table.iter().copied().filter(|other| other > spork).min();
            node.end_height_exclusive = node.end_height_exclusive.or(next);
        }
        Ok(FlowSource { config, nodes, turn: AtomicUsize::new(0), seen: AtomicU64::new(0) })
    }

    /// The first height that any node serves.
    pub fn first_height(&self) -> Height {
        Height(self.nodes.iter().map(|node| node.first_height).min().unwrap_or(0))
    }

    fn live(&self) -> Result<&Node> {
        self.in_turn(|node| node.end_height_exclusive.is_none()).ok_or_else(|| {
            let end = self.nodes.iter().filter_map(|node| node.end_height_exclusive).max().unwrap_or(0);
            let spork = self.config.network.sporks().iter().find(|spork| spork.root_height == end);
            let next = spork.map_or_else(String::new, |spork| format!(" (spork {})", spork.name));
            SourceError::Invalid(format!(
                "there is no live access node: those that are configured serve heights below {end}; add one of the current spork, or of the next{next}"
            ))
        })
    }

    fn node_of(&self, height: u64) -> Result<&Node> {
        self.in_turn(|node| node.serves(height)).ok_or_else(|| {
            let sporks = self.config.network.sporks();
            let spork = sporks.iter().rev().find(|spork| spork.root_height <= height);
            let advice = spork.map_or_else(String::new, |spork| format!(" (spork {})", spork.name));
            SourceError::Invalid(format!(
                "no access node is configured for height {height}{advice}; nodes serve from {}",
                self.nodes
                    .iter()
                    .map(|node| format!("{} ({})", node.first_height, node.name))
                    .collect::<Vec<_>>()
                    .join(", ")
            ))
        })
    }

    fn in_turn(&self, fits: impl Fn(&Node) -> bool) -> Option<&Node> {
        let fitting: Vec<&Node> = self.nodes.iter().filter(|node| fits(node)).collect();
        match fitting.len() {
            0 => None,
            count => fitting.get(self.turn.fetch_add(1, Ordering::Relaxed) % count).copied(),
        }
    }

    async fn header(&self, node: &Node, height: u64) -> Result<Option<LinkedRef>> {
        let question = proto::GetBlockHeaderByHeightRequest { height };
        let answer = node.ask::<_, proto::BlockHeaderResponse>(Call::BlockHeaderByHeight, question).await;
        let Some(header) = node.absent(answer)?.and_then(|answer| answer.block) else { return Ok(None) };
        let linked = linked_ref(&header).map_err(|error| node.refused(height, &error))?;
        Ok((linked.block.height == Height(height)).then_some(linked))
    }
}

async fn check_network(node: &Node, network: Network) -> Result<()> {
    let answer =
        node.ask::<_, proto::GetNetworkParametersResponse>(Call::NetworkParameters, proto::EmptyRequest {});
    let parameters = node.absent(answer.await)?;
    let Some(parameters) = parameters else {
        return Err(SourceError::Permanent {
            endpoint: node.name.clone(),
            message: "it does not say which network it serves".into(),
        });
    };
    match Network::from_chain_id(&parameters.chain_id) {
        Some(found) if found == network => Ok(()),
        Some(found) => Err(SourceError::WrongChain {
            endpoint: node.name.clone(),
            found: found.chain_number(),
            expected: network.chain_number(),
        }),
        None => Err(SourceError::Invalid(format!(
            "{} serves {:.100}, expected {}; remove it",
            node.name,
            parameters.chain_id,
            network.chain_id()
        ))),
    }
}

#[async_trait]
impl ChainSource for FlowSource {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(self.config.network.chain_number())
    }

    async fn heads(&self) -> Result<Heads> {
        let node = self.live()?;
        let question = proto::GetLatestBlockHeaderRequest { is_sealed: true };
        let answer = node.ask::<_, proto::BlockHeaderResponse>(Call::LatestBlockHeader, question).await;
        let header = node.absent(answer)?.and_then(|answer| answer.block);
        let header = header.ok_or_else(|| SourceError::Transient {
            endpoint: node.name.clone(),
            message: "it has no sealed block yet".into(),
        })?;
        let latest = linked_ref(&header).map_err(|error| node.refused(header.height, &error))?;
        self.seen.store(header.height, Ordering::Relaxed);
        let finalized: Option<BlockRef> = match header.height.checked_sub(self.config.finality_heights) {
            Some(height) if height >= self.first_height().get() => {
                self.header(self.node_of(height)?, height).await?.map(|linked| linked.block)
            }
            _ => None,
        };
        Ok(Heads { latest, safe: None, finalized })
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.header(self.node_of(height.get())?, height.get()).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let one = |height: Height| async move {
            let node = self.node_of(height.get())?;
            fetch::block(node, height.get(), self.config.execution_results).await
        };
        let mut answers = stream::iter(range.iter()).map(one).buffered(BLOCKS_IN_FLIGHT);
        let mut blocks: Vec<RawBlock> = Vec::new();
        while let Some(answer) = answers.next().await {
            let block = match answer {
                Ok(Some(block)) => block,
                // What comes before it is given; it is asked for again.
                Ok(None) => break,
                Err(error) if blocks.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "an answer is cut before a block that failed");
                    break;
                }
            };
            if blocks.last().is_some_and(|last| last.facts.id != block.facts.parent_id) {
                tracing::debug!(at = %block.block_ref(), "an answer is cut where it stops linking");
                break;
            }
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn preferred_heights(&self) -> u64 {
        BLOCKS_IN_FLIGHT as u64
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        let at_most = Duration::from_millis(at_most_ms);
        match self.live() {
            Ok(node) => node.announced(self.seen.load(Ordering::Relaxed) + 1, at_most).await,
            Err(_) => tokio::time::sleep(at_most).await,
        }
    }

    fn bound_by(&self) -> String {
        let paces = self.config.nodes.iter().map(|node| format!("{} requests/s", node.requests_per_s));
        format!("{} access nodes at most at {}", self.nodes.len(), paces.collect::<Vec<_>>().join(", "))
    }
}
