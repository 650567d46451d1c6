//! Flow blocks from access nodes: sealed blocks alone, over gRPC.
//!
//! | subject | module |
//! | --- | --- |
//! | what it is told | [`config`] |
//! | which node is asked | `pool` |
//! | one node: what it is, connection, calls, limits | `identity`, `node`, `lacks`, `codec`, `pace`, `health`, `memory` |
//! | what refusals mean | `classify` |
//! | one whole block | `fetch`, `pieces` |
//! | one whose EVM side contradicts itself | `doubt` |
//! | scripts and accounts as they are at a block | [`state`] |
//!
//! **Law 6.** Each block is put together and checked by the codec ([`cairn_flow::assemble`]) before it is passed on: heights, links, ids of transactions,
//! results of this block and no other, events in order, collections complete. There is no decorator around this source. What can't be checked,
//! such as the block's own id and what is in its events, is marked in its facts, and counted as the decorator does it. A block that closes an EVM block
//! of other EVM transactions than are in it is asked for again, of other nodes first, and taken with a mark where answers agree (F05).
//!
//! **Sporks.** A node serves the heights from its spork's root to the next one's. Each height has one node, or several of the same
//! stretch, which are asked in turn, and instead of each other where one fails. A height that no node serves is a mistake in the configuration and is never
//! taken for "not yet"; nor is one that a node doesn't have though its sealed head is well above: heights have no gaps.
//!
//! **Finality.** Sealed blocks aren't undone by the protocol; a node on a wrong execution fork may still have told of one. So a sealed
//! block counts as final [`FlowConfig::finality_heights`] below the sealed head, and above that a mismatch is rolled back.
//!
//! **Back-pressure and shutdown.** A node works on at most [`FlowConfig::requests_in_flight`] requests, at its pace; callers wait. A call that
//! is dropped leaves nothing behind. Answers that are on their way have room for four of [`FlowConfig::max_response_bytes`] over all nodes together, and wait for
//! it; one call gives about 64 MiB of blocks, and fetches as many side by side as that allows, by what blocks took lately, but at least one.

mod classify;
mod codec;
pub mod config;
mod doubt;
mod fetch;
mod health;
mod identity;
mod lacks;
mod memory;
mod node;
mod pieces;
mod pool;
pub mod state;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, ErrorKind, Height, HeightRange, LinkedRef, RawBlock};
use cairn_flow::block::{check_network, linked_ref};
use cairn_flow::evm_blocks::EvmBlocks;
use cairn_flow::{Checks, proto};
use futures::{StreamExt, stream};

pub use config::{FlowConfig, NodeConfig};
use doubt::Doubted;
use fetch::OfExecution;
use node::{Call, Node};
use pool::{Pool, Tried, Want};

use crate::{ChainSource, Heads, Result, SourceError};

/// How many blocks one call fetches side by side at most.
const BLOCKS_IN_FLIGHT: u64 = 16;
/// What the blocks of one call take together, about, in bytes: fewer are fetched side by side where they are large.
const CALL_BYTES: u64 = 64 << 20;
/// So far below the sealed head a block that isn't there is missing; above, a node may only be behind another one, or behind its own index.
const MISSING_BELOW_HEIGHTS: u64 = 20;
/// So far below the sealed head a node may have a block's execution result later than the block.
const NEAR_HEAD_HEIGHTS: u64 = 100;

/// Access nodes as a source.
#[derive(Debug)]
pub struct FlowSource {
    config: FlowConfig,
    pool: Pool,
    /// The sealed height that was seen last: where the wake-up begins.
    seen: AtomicU64,
    /// What the next block is expected to take, in bytes: follows growth at once, forgets slowly.
    block_bytes: AtomicU64,
    /// How many blocks in a row were taken although their EVM side contradicts itself.
    contradicted: AtomicU32,
}

impl FlowSource {
    /// Asks each node what it is, and refuses one of another network, or one that begins above what it is configured for.
    ///
    /// One node has to answer. One that doesn't now is asked before it is first used, and not used if it is another network's.
    pub async fn connect(config: FlowConfig) -> Result<FlowSource> {
        config.check()?;
        let pool = Pool::connect(&config).await?;
        Ok(FlowSource {
            config,
            pool,
            seen: AtomicU64::new(0),
            block_bytes: AtomicU64::new(0),
            contradicted: AtomicU32::new(0),
        })
    }

    /// The first height that any node serves; 0 where one that didn't answer yet may serve any.
    pub fn first_height(&self) -> Height {
        Height(self.pool.first_height())
    }

    fn blocks_in_flight(&self) -> u64 {
        (CALL_BYTES / self.block_bytes.load(Ordering::Relaxed).max(1)).clamp(1, BLOCKS_IN_FLIGHT)
    }

    fn learn(&self, block: &RawBlock) {
        let before = self.block_bytes.load(Ordering::Relaxed);
        self.block_bytes.store(block.size_bytes().max(before - before / 16), Ordering::Relaxed);
    }

    /// The block at a height, from whichever node has it; `None`: not sealed yet.
    async fn block(&self, height: u64) -> Result<Option<RawBlock>> {
        let mut doubted = Doubted::default();
        let mut again = 0;
        loop {
            let error = match self.block_of_any(height, &mut doubted).await {
                Ok(block) => return Ok(block),
                Err(error) => error,
            };
            let in_a_row = self.contradicted.load(Ordering::Relaxed);
            if let Some(block) = doubted.take_agreed(in_a_row) {
                self.contradicted.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(block));
            }
            if doubted.is_empty() || again >= doubt::MOST_AGAIN {
                return Err(error);
            }
            again += 1;
            tokio::time::sleep(doubt::PAUSE).await;
        }
    }

    /// From the first node that has it and whose EVM side holds; those that don't hold are kept aside.
    async fn block_of_any(&self, height: u64, doubted: &mut Doubted) -> Result<Option<RawBlock>> {
        let mut tried = Tried::default();
        loop {
            let node = self.pool.next(Want::Height(height), &mut tried).await?;
            let block = match self.block_of(node, height).await {
                Ok(Some(block)) => block,
                Ok(None) => return Ok(None),
                Err(error) => {
                    tried.failed(node, error);
                    continue;
                }
            };
            match doubt::evm_side(node, &block)? {
                EvmBlocks::Contradicted(message) => {
                    let error = doubt::contradicted(node, height, message);
                    tracing::warn!(node = node.name, height, %error, "the block is asked for again");
                    doubted.add(node.index, block);
                    tried.failed(node, error);
                }
                held => {
                    if held == EvmBlocks::Whole {
                        self.contradicted.store(0, Ordering::Relaxed);
                    }
                    return Ok(Some(block));
                }
            }
        }
    }

    /// From each node that has it and whose EVM side holds, different ones once; where it holds with none, what [`FlowSource::block`] makes of that.
    async fn block_of_each(&self, height: u64) -> Result<Vec<RawBlock>> {
        let mut tried = Tried::default();
        let mut blocks: Vec<RawBlock> = Vec::new();
        let (mut has_answered, mut is_doubted) = (false, false);
        loop {
            let node = match self.pool.next(Want::Height(height), &mut tried).await {
                Ok(node) => node,
                Err(_) if has_answered => break,
                Err(error) => return Err(error),
            };
            let answer = match self.block_of(node, height).await {
                Ok(Some(block)) => doubt::evm_side(node, &block).map(|side| Some((side, block))),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            };
            match answer {
                Ok(Some((EvmBlocks::Contradicted(message), _))) => {
                    tracing::warn!(node = node.name, height, why = message, "an answer is left out");
                    is_doubted = true;
                }
                Ok(Some((_, block))) if !blocks.contains(&block) => blocks.push(block),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(node = node.name, height, %error, "other nodes' answers count");
                    tried.failed(node, error);
                    continue;
                }
            }
            has_answered = true;
            tried.answered(node);
        }
        if blocks.is_empty() && is_doubted {
            blocks.extend(self.block(height).await?);
        }
        Ok(blocks)
    }

    async fn block_of(&self, node: &Node, height: u64) -> Result<Option<RawBlock>> {
        let is_near_head = height.saturating_add(NEAR_HEAD_HEIGHTS) > self.seen.load(Ordering::Relaxed);
        let execution = match (self.config.execution_results, is_near_head) {
            (false, _) => OfExecution::Unasked,
            (true, false) => OfExecution::Asked,
            (true, true) => OfExecution::Awaited,
        };
        let mut block = fetch::block(node, height, execution).await?;
        if let Some(block) = &mut block
            && let Some(below) = self.config.accepted_parent(height)
            && block.facts.parent_id != below
        {
            block.facts.parent_id = below;
            block.facts.unverified |= Checks::PARENT.bits();
        }
        self.is_expected(node, height, block)
    }

    async fn header(&self, height: u64) -> Result<Option<LinkedRef>> {
        let mut tried = Tried::default();
        loop {
            let node = self.pool.next(Want::Height(height), &mut tried).await?;
            match self.header_of(node, height).await {
                Ok(linked) => return Ok(linked),
                Err(error) => tried.failed(node, error),
            }
        }
    }

    async fn header_of(&self, node: &Node, height: u64) -> Result<Option<LinkedRef>> {
        let question = proto::GetBlockHeaderByHeightRequest { height };
        let answer = node.ask::<_, proto::BlockHeaderResponse>(Call::BlockHeaderByHeight, question).await;
        let Some(header) = node.absent(answer)?.and_then(|answer| answer.block) else {
            return self.is_expected(node, height, None);
        };
        let mut linked = linked(node, &header)?;
        if let Some(below) = self.config.accepted_parent(height) {
            linked.parent_id = below;
        }
        if linked.block.height != Height(height) {
            let message = format!("asked for header {height}, got {}", linked.block.height);
            return Err(fetch::malformed(node, height, &message));
        }
        Ok(Some(linked))
    }

    /// "Not there" is an answer near the sealed head only. Heights have no gaps, so below it is a fault, of which somebody should hear.
    fn is_expected<T>(&self, node: &Node, height: u64, answer: Option<T>) -> Result<Option<T>> {
        let sealed_height = self.seen.load(Ordering::Relaxed);
        if answer.is_some() || height.saturating_add(MISSING_BELOW_HEIGHTS) > sealed_height {
            return Ok(answer);
        }
        metrics::counter!("cairn_source_missing_total", "endpoint" => node.name.clone()).increment(1);
        let message =
            format!("it doesn't have height {height} whole, though height {sealed_height} is sealed");
        tracing::warn!(node = node.name, message);
        Err(SourceError::Transient { endpoint: node.name.clone(), message })
    }
}

/// A node's newest sealed block.
async fn latest_of(node: &Node) -> Result<LinkedRef> {
    let question = proto::GetLatestBlockHeaderRequest { is_sealed: true };
    let answer = node.ask::<_, proto::BlockHeaderResponse>(Call::LatestBlockHeader, question).await;
    let header = node.absent(answer)?.and_then(|answer| answer.block);
    let header = header.ok_or_else(|| SourceError::Transient {
        endpoint: node.name.clone(),
        message: "it has no sealed block yet".into(),
    })?;
    let latest = linked(node, &header)?;
    node.sealed_height.fetch_max(latest.block.height.get(), Ordering::Relaxed);
    Ok(latest)
}

/// A header's place, where it is one of this network.
fn linked(node: &Node, header: &proto::BlockHeader) -> Result<LinkedRef> {
    node.believed(header.height)?;
    check_network(header, node.network)
        .and_then(|()| linked_ref(header))
        .map_err(|error| node.refused(header.height, &error))
}

#[async_trait]
impl ChainSource for FlowSource {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(self.config.network.chain_number())
    }

    async fn heads(&self) -> Result<Heads> {
        let mut tried = Tried::default();
        let latest = loop {
            let node = self.pool.next(Want::Live, &mut tried).await?;
            match latest_of(node).await {
                Ok(latest) => break latest,
                Err(error) => tried.failed(node, error),
            }
        };
        let latest_height = latest.block.height.get();
        self.seen.store(latest_height, Ordering::Relaxed);
        let finalized: Option<BlockRef> = match latest_height.checked_sub(self.config.finality_heights) {
            Some(height) if height >= self.first_height().get() => match self.header(height).await {
                Ok(linked) => linked.map(|linked| linked.block),
                // It may be another spork's, whose node is away: what is final is not known now, and the tip is all the same.
                Err(error) if error.kind() == ErrorKind::Retry => {
                    tracing::warn!(height, %error, "which block is final is not known now");
                    None
                }
                Err(error) => return Err(error),
            },
            _ => None,
        };
        Ok(Heads { latest, safe: None, finalized })
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.header(height.get()).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let one = |height: Height| self.block(height.get());
        let mut answers = stream::iter(range.iter()).map(one).buffered(self.blocks_in_flight() as usize);
        let mut blocks: Vec<RawBlock> = Vec::new();
        let mut bytes = 0;
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
            for check in Checks::from_bits_truncate(block.facts.unverified).names() {
                metrics::counter!("cairn_source_unverified_total", "check" => check).increment(1);
            }
            self.learn(&block);
            bytes += block.size_bytes();
            blocks.push(block);
            if bytes >= CALL_BYTES {
                // What is left is asked for again, fewer at a time.
                break;
            }
        }
        Ok(blocks)
    }

    async fn answers(&self, height: Height) -> Result<Vec<RawBlock>> {
        self.block_of_each(height.get()).await
    }

    fn boundary_setting(&self, height: Height, below: BlockRef) -> Option<String> {
        let is_root = self.pool.is_spork_root(height.get());
        is_root.then(|| format!("chain.flow.accepted_roots = [\"{height}:{}\"]", below.id))
    }

    fn preferred_heights(&self) -> u64 {
        self.blocks_in_flight()
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        let at_most = Duration::from_millis(at_most_ms);
        match self.pool.live() {
            Some(node) => node.announced(self.seen.load(Ordering::Relaxed) + 1, at_most).await,
            None => tokio::time::sleep(at_most).await,
        }
    }

    fn bound_by(&self) -> String {
        let paces = self.config.nodes.iter().map(|node| format!("{} requests/s", node.requests_per_s));
        format!("{} access nodes at most at {}", self.pool.len(), paces.collect::<Vec<_>>().join(", "))
    }
}
