//! One whole block from one node.
//!
//! The block comes first; then, by its id, all transactions and all results in one request each. Where a node refuses one of these, what
//! it gave already is kept and the rest is asked for piece by piece (`pieces`): transactions or results that are too large together (F03), those whose bulk
//! call fails or finds nothing although the block was sealed long ago, transactions of which results came and they didn't, and all of it on nodes of old
//! sporks, which have no bulk calls.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{RawBlock, TxId};
use cairn_flow::block::check_network;
use cairn_flow::proto::{self, BlockStatus};
use cairn_flow::{BlockParts, Checks, FlowError, assemble};
use prost::Message;

use super::classify::Refusal;
use super::node::{Call, Node};
use super::pieces;
use crate::{Result, SourceError};

/// Transactions and results, each as they came.
pub(super) struct Pieces {
    pub transactions: Vec<Bytes>,
    pub results: Vec<Bytes>,
    /// The node can't give system transactions: it is too old.
    pub lacks_system: bool,
    /// A system transaction that the node names and of which it finds no result: it was not executed, or the block would lack it.
    pub unfound: Option<TxId>,
    /// Some results may be those of another block ([`Checks::RESULT_BLOCK`]).
    pub is_result_doubtful: bool,
}

impl Pieces {
    /// Those of the bulk calls, or put together as if they were.
    pub fn whole(transactions: Vec<Bytes>, results: Vec<Bytes>) -> Pieces {
        Pieces { transactions, results, lacks_system: false, unfound: None, is_result_doubtful: false }
    }
}

/// Whether a block's execution result is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfExecution {
    /// Not at all.
    Unasked,
    /// Once.
    Asked,
    /// For a while: near the sealed head, where a node may have it a little later than the block.
    Awaited,
}

/// How often one is asked for that is awaited, and after which pause each.
const AWAITED_TRIES: u32 = 5;
const AWAITED_PAUSE: Duration = Duration::from_millis(500);
/// After so many in a row that did not come, none is awaited from a node until it gives one.
const MOST_WITHHELD: u32 = 3;

/// The block at `height`, checked; `None` where it isn't sealed yet. One that the node calls sealed and doesn't give whole is an error, so that it is seen.
///
/// Nodes of old sporks say of no block whether it is sealed. There each height up to that node's newest sealed block is; above, its results have to say
/// so, and a block without any can't (F06).
pub(super) async fn block(node: &Node, height: u64, execution: OfExecution) -> Result<Option<RawBlock>> {
    let question = proto::GetBlockByHeightRequest { height, full_block_response: true };
    let answer: Option<proto::BlockResponse> = node.absent(node.ask(Call::BlockByHeight, question).await)?;
    let Some(answer) = answer.filter(|answer| answer.block_status != BlockStatus::Finalized as i32) else {
        return Ok(None);
    };
    let is_said_sealed = answer.block_status == BlockStatus::Sealed as i32;
    let Some(bytes) = answer.block else { return Err(malformed(node, height, "the answer has no block")) };
    let block =
        proto::Block::decode(bytes.as_ref()).map_err(|error| malformed(node, height, &error.to_string()))?;
    if block.height != height {
        let message = format!("asked for height {height}, got {}", block.height);
        return Err(malformed(node, height, &message));
    }
    if let Some(header) = &block.block_header {
        check_network(header, node.network).map_err(|error| node.refused(height, &error))?;
    }
    let (pieces, execution_result) = futures::try_join!(
        transactions_and_results(node, &block),
        execution_result(node, &block, execution)
    )?;
    let Some(Pieces { transactions, results, lacks_system, unfound, is_result_doubtful }) = pieces else {
        let message = "it has no transactions or results of it".into();
        let is_sealed = is_said_sealed || has_sealed(node, height).await?;
        return unfinished(node, is_sealed, &FlowError::Incomplete { height, message });
    };
    if let Some(id) = unfound.filter(|_| !counts_system(execution_result.as_ref())) {
        pieces::demand_not_executed(node, &block, &results, id).await?;
    }
    let assembled = |execution_result: Option<Bytes>| {
        let (transactions, results) = (transactions.clone(), results.clone());
        let mut raw =
            assemble(&BlockParts { block: bytes.clone(), transactions, results, execution_result })?;
        if is_result_doubtful {
            raw.facts.unverified |= Checks::RESULT_BLOCK.bits();
        }
        with_system(raw, lacks_system || node.is_spork_root(height))
    };
    let mut answer = assembled(execution_result);
    // Only the execution result shows whether an event is missing behind a service event.
    if answer.is_err()
        && execution == OfExecution::Unasked
        && let Some(result) = self::execution_result(node, &block, OfExecution::Asked).await?
    {
        answer = assembled(Some(result));
    }
    match answer {
        Ok(raw) if is_said_sealed || raw.facts.tx_count > 0 => Ok(Some(raw)),
        Ok(raw) => Ok(has_sealed(node, height).await?.then_some(raw)),
        Err(error @ FlowError::Incomplete { .. }) => {
            let is_sealed = is_said_sealed || has_sealed(node, height).await?;
            unfinished(node, is_sealed, &error)
        }
        Err(error) => Err(node.refused(height, &error)),
    }
}

/// Whether an execution result counts the system's transactions, so that the block is held against their number. The system's chunk is the last one; nodes that don't count say 0.
fn counts_system(execution_result: Option<&Bytes>) -> bool {
    let result = execution_result.and_then(|bytes| proto::ExecutionResult::decode(bytes.as_ref()).ok());
    result
        .and_then(|result| result.chunks.last().map(|chunk| chunk.number_of_transactions > 0))
        .unwrap_or(false)
}

/// Whether what a node lacks of a block won't come by itself: its spork is over, or the block is well below its newest sealed one. Nearer to that a node
/// may only be behind its own index.
async fn is_settled(node: &Node, height: u64) -> Result<bool> {
    let is_over = node.configured.end_height_exclusive.is_some()
        || node.root().is_some_and(|root| root.spork > 0 && node.network.spork_end(root.spork).is_some());
    Ok(is_over || has_sealed(node, height.saturating_add(super::MISSING_BELOW_HEIGHTS)).await?)
}

/// Whether a node's newest sealed block is at this height or above. It is asked only about what lies above all that it told of before.
async fn has_sealed(node: &Node, height: u64) -> Result<bool> {
    if height <= node.sealed_height.load(Ordering::Relaxed) {
        return Ok(true);
    }
    Ok(height <= super::latest_of(node).await?.block.height.get())
}

/// Every block ends with a transaction of the chain's own, but for a spork's root and where the node has no call for it.
fn with_system(raw: RawBlock, may_lack: bool) -> std::result::Result<RawBlock, FlowError> {
    let lacks = Checks::from_bits_truncate(raw.facts.unverified).contains(Checks::SYSTEM_MISSING);
    if !lacks || may_lack {
        return Ok(raw);
    }
    let message = "its system transaction isn't there".into();
    Err(FlowError::Incomplete { height: raw.facts.height.get(), message })
}

/// What a block that isn't whole means: an error where the node calls it sealed; else it isn't yet.
fn unfinished(node: &Node, is_said_sealed: bool, error: &FlowError) -> Result<Option<RawBlock>> {
    let FlowError::Incomplete { height, .. } = error else { return Ok(None) };
    if is_said_sealed {
        return Err(node.refused(*height, error));
    }
    tracing::debug!(node = node.name, height, %error, "a block is not whole yet");
    Ok(None)
}

pub(super) fn malformed(node: &Node, height: u64, message: &str) -> SourceError {
    node.refused(height, &FlowError::Malformed { place: format!("block {height}"), message: message.into() })
}

/// A refusal that has to be an error here.
pub(super) fn error_of(node: &Node, refusal: Refusal) -> SourceError {
    refusal.into_error(&node.name).unwrap_or_else(|| SourceError::Transient {
        endpoint: node.name.clone(),
        message: "it named a block and doesn't have a part of it yet".into(),
    })
}

fn of_block(block: &proto::Block) -> proto::GetTransactionsByBlockIdRequest {
    proto::GetTransactionsByBlockIdRequest { block_id: block.id.clone() }
}

/// What a node says to a question for all of a block's transactions or results.
pub(super) enum Bulk {
    Given(Vec<Bytes>),
    NotYet,
    /// They are too large together, one of them breaks the call, or it doesn't find what must be there: one by one.
    OneByOne,
    /// It is too old for that.
    Unimplemented,
}

async fn transactions_and_results(node: &Node, block: &proto::Block) -> Result<Option<Pieces>> {
    // Nothing was executed in a chain's first block, and a node may fail when it is asked about that (flow-emulator does).
    if block.height == 0 && block.collection_guarantees.is_empty() {
        return Ok(Some(Pieces { lacks_system: true, ..Pieces::whole(Vec::new(), Vec::new()) }));
    }
    let pieces = match transactions(node, block).await? {
        Bulk::NotYet => return Ok(None),
        Bulk::Unimplemented => return pieces::by_collection(node, block).await,
        Bulk::OneByOne => return pieces::without_bulk_transactions(node, block).await,
        Bulk::Given(transactions) => match results(node, block).await? {
            Bulk::Given(results) if results.len() > transactions.len() => {
                return pieces::without_some_transactions(node, block, transactions, results).await.map(Some);
            }
            Bulk::Given(results) => Pieces::whole(transactions, results),
            Bulk::OneByOne => return pieces::without_bulk_results(node, block, transactions).await,
            Bulk::NotYet => return Ok(None),
            Bulk::Unimplemented => return Err(error_of(node, Refusal::Unimplemented)),
        },
    };
    Ok(Some(pieces))
}

async fn transactions(node: &Node, block: &proto::Block) -> Result<Bulk> {
    match node.ask::<_, proto::TransactionsResponse>(Call::TransactionsByBlockId, of_block(block)).await {
        Ok(answer) => Ok(Bulk::Given(answer.transactions)),
        Err(refusal) => refused_bulk(node, block, "transactions", refusal).await,
    }
}

/// All results at once.
pub(super) async fn results(node: &Node, block: &proto::Block) -> Result<Bulk> {
    let question = of_block(block);
    match node.ask::<_, proto::TransactionResultsResponse>(Call::TransactionResultsByBlockId, question).await
    {
        Ok(answer) => Ok(Bulk::Given(answer.transaction_results)),
        Err(refusal) => refused_bulk(node, block, "results", refusal).await,
    }
}

async fn refused_bulk(node: &Node, block: &proto::Block, of: &str, refusal: Refusal) -> Result<Bulk> {
    let why = match refusal {
        // A node that is slow altogether doesn't answer the first piece either, and the block is tried again later.
        Refusal::TooLarge(why) | Refusal::Internal(why) | Refusal::TimedOut(why) => why,
        Refusal::NotYet if is_settled(node, block.height).await? => "it isn't found".into(),
        Refusal::NotYet => return Ok(Bulk::NotYet),
        Refusal::Unimplemented => return Ok(Bulk::Unimplemented),
        refusal => return Err(error_of(node, refusal)),
    };
    tracing::debug!(node = node.name, height = block.height, of, why, "asked for one by one");
    metrics::counter!("cairn_source_bulk_fallbacks_total", "endpoint" => node.name.clone()).increment(1);
    Ok(Bulk::OneByOne)
}

/// The execution result, where the node has one to give. A block without one is stored and marked.
async fn execution_result(
    node: &Node,
    block: &proto::Block,
    execution: OfExecution,
) -> Result<Option<Bytes>> {
    if execution == OfExecution::Unasked {
        return Ok(None);
    }
    let mut tries = 0;
    loop {
        let question = proto::ByIdRequest { id: block.id.clone() };
        let answer = node.ask::<_, proto::ExecutionResultResponse>(Call::ExecutionResultForBlockId, question);
        match answer.await {
            Ok(answer) => {
                if answer.execution_result.is_some() {
                    node.results_withheld.store(0, Ordering::Relaxed);
                }
                return Ok(answer.execution_result);
            }
            Err(Refusal::Unimplemented) => return Ok(None),
            Err(Refusal::NotYet) => {
                tries += 1;
                let is_awaited = execution == OfExecution::Awaited
                    && node.results_withheld.load(Ordering::Relaxed) < MOST_WITHHELD;
                if !is_awaited {
                    return Ok(None);
                }
                if tries >= AWAITED_TRIES {
                    node.results_withheld.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        node = node.name,
                        height = block.height,
                        "the node has no execution result of a sealed block; it is taken without"
                    );
                    return Ok(None);
                }
                tokio::time::sleep(AWAITED_PAUSE).await;
            }
            Err(refusal) => return Err(error_of(node, refusal)),
        }
    }
}
