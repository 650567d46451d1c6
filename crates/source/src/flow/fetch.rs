//! One whole block from one node.
//!
//! The block comes first; then, by its id, all transactions and all results in one request each. Where a node refuses one of these, what
//! it gave already is kept and the rest is asked for piece by piece: results by index where they are too large together (F03) or where
//! one of them breaks the bulk call; collections and single transactions on nodes of old sporks, which have no bulk calls.

use bytes::Bytes;
use cairn_core::RawBlock;
use cairn_flow::block::with_collection;
use cairn_flow::proto::{self, BlockStatus};
use cairn_flow::{BlockParts, FlowError, assemble};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;

use super::classify::Refusal;
use super::node::{Call, Node};
use crate::{Result, SourceError};

/// How many pieces of one block are asked for at a time, in order.
const PIECES_IN_FLIGHT: usize = 8;

/// The block at `height`, checked; `None` where it isn't sealed yet.
pub(super) async fn block(node: &Node, height: u64, execution_results: bool) -> Result<Option<RawBlock>> {
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
    let pieces = async {
        match transactions(node, &block).await? {
            Bulk::NotYet => Ok(None),
            Bulk::PieceByPiece => by_collection(node, &block).await,
            Bulk::Given(transactions) => {
                let results = results(node, &block, transactions.len()).await?;
                Ok(results.map(|results| (transactions, results)))
            }
        }
    };
    let of_execution = async {
        match execution_results {
            true => execution_result(node, &block).await,
            false => Ok(None),
        }
    };
    let (pieces, execution_result) = futures::try_join!(pieces, of_execution)?;
    let Some((transactions, results)) = pieces else { return Ok(None) };
    let parts = BlockParts { block: bytes, transactions, results, execution_result };
    match assemble(&parts) {
        // Where a node doesn't say that the block is sealed, its results have to, and a block without any can't.
        Ok(raw) => Ok(Some(raw).filter(|raw| is_said_sealed || raw.facts.tx_count > 0)),
        // It may have the rest in a moment.
        Err(error @ FlowError::Incomplete { .. }) => {
            tracing::debug!(node = node.name, height, %error, "a block is not whole yet");
            Ok(None)
        }
        Err(error) => Err(node.refused(height, &error)),
    }
}

fn malformed(node: &Node, height: u64, message: &str) -> SourceError {
    node.refused(height, &FlowError::Malformed { place: format!("block {height}"), message: message.into() })
}

fn of_block(block: &proto::Block) -> proto::GetTransactionsByBlockIdRequest {
    proto::GetTransactionsByBlockIdRequest { block_id: block.id.clone() }
}

/// What a node says to the question for all transactions.
enum Bulk {
    Given(Vec<Bytes>),
    NotYet,
    /// It is too old for that, or they are too large together.
    PieceByPiece,
}

async fn transactions(node: &Node, block: &proto::Block) -> Result<Bulk> {
    match node.ask::<_, proto::TransactionsResponse>(Call::TransactionsByBlockId, of_block(block)).await {
        Ok(answer) => Ok(Bulk::Given(answer.transactions)),
        Err(Refusal::Unimplemented | Refusal::TooLarge(_)) => Ok(Bulk::PieceByPiece),
        Err(Refusal::NotYet) => Ok(Bulk::NotYet),
        Err(refusal) => Err(error_of(node, refusal)),
    }
}

/// A refusal that has to be an error here.
fn error_of(node: &Node, refusal: Refusal) -> SourceError {
    refusal.into_error(&node.name).unwrap_or_else(|| SourceError::Transient {
        endpoint: node.name.clone(),
        message: "it named a block and doesn't have a part of it yet".into(),
    })
}

/// All results at once, or one by one; `None` where they aren't there yet.
async fn results(node: &Node, block: &proto::Block, count: usize) -> Result<Option<Vec<Bytes>>> {
    match node
        .ask::<_, proto::TransactionResultsResponse>(Call::TransactionResultsByBlockId, of_block(block))
        .await
    {
        Ok(answer) => Ok(Some(answer.transaction_results)),
        Err(Refusal::NotYet) => Ok(None),
        Err(Refusal::TooLarge(why) | Refusal::BrokenBulk(why)) => {
            tracing::debug!(node = node.name, height = block.height, why, "results are asked for one by one");
            metrics::counter!("cairn_source_bulk_fallbacks_total", "endpoint" => node.name.clone())
                .increment(1);
            let one = |index: usize| async move {
                let question =
                    proto::GetTransactionByIndexRequest { block_id: block.id.clone(), index: index as u32 };
                raw(node, Call::TransactionResultByIndex, question).await
            };
            let results = stream::iter(0..count).map(one).buffered(PIECES_IN_FLIGHT).try_collect().await?;
            Ok(Some(results))
        }
        Err(refusal) => Err(error_of(node, refusal)),
    }
}

/// An answer that is itself what is kept.
async fn raw<Q: Message + Clone + 'static>(node: &Node, call: Call, question: Q) -> Result<Bytes> {
    node.ask_raw(call, question).await.map_err(|refusal| error_of(node, refusal))
}

/// Transactions and results by way of the collections: nodes of old sporks. System transactions aren't to be had there.
async fn by_collection(node: &Node, block: &proto::Block) -> Result<Option<(Vec<Bytes>, Vec<Bytes>)>> {
    let collection = |guarantee: &proto::CollectionGuarantee| {
        let id = guarantee.collection_id.clone();
        async move {
            let question = proto::ByIdRequest { id: id.clone() };
            let answer =
                node.absent(node.ask::<_, proto::CollectionResponse>(Call::CollectionById, question).await)?;
            Ok::<_, SourceError>(
                answer.and_then(|answer| answer.collection).map(|collection| (id, collection)),
            )
        }
    };
    let collections: Vec<Option<(Bytes, proto::Collection)>> = stream::iter(&block.collection_guarantees)
        .map(collection)
        .buffered(PIECES_IN_FLIGHT)
        .try_collect()
        .await?;
    let mut wanted = Vec::new();
    for collection in collections {
        let Some((collection_id, collection)) = collection else { return Ok(None) };
        wanted.extend(collection.transaction_ids.into_iter().map(|id| (id, collection_id.clone())));
    }
    let one = |(id, collection_id): (Bytes, Bytes)| async move {
        let question = proto::GetTransactionRequest {
            id,
            block_id: block.id.clone(),
            collection_id: collection_id.clone(),
        };
        let transaction = node.ask::<_, proto::TransactionResponse>(Call::Transaction, question.clone());
        let result = raw(node, Call::TransactionResult, question);
        let (transaction, result) = futures::join!(transaction, result);
        let transaction = transaction.map_err(|refusal| error_of(node, refusal))?.transaction;
        let transaction =
            transaction.ok_or_else(|| malformed(node, block.height, "an answer has no transaction"))?;
        let result =
            with_collection(&result?, &collection_id).map_err(|error| node.refused(block.height, &error))?;
        Ok::<_, SourceError>((transaction, result))
    };
    let pairs: Vec<(Bytes, Bytes)> =
        stream::iter(wanted).map(one).buffered(PIECES_IN_FLIGHT).try_collect().await?;
    Ok(Some(pairs.into_iter().unzip()))
}

/// The execution result, where the node has one to give.
async fn execution_result(node: &Node, block: &proto::Block) -> Result<Option<Bytes>> {
    let question = proto::ByIdRequest { id: block.id.clone() };
    match node.ask::<_, proto::ExecutionResultResponse>(Call::ExecutionResultForBlockId, question).await {
        Ok(answer) => Ok(answer.execution_result),
        Err(Refusal::Unimplemented | Refusal::NotYet) => Ok(None),
        Err(refusal) => Err(error_of(node, refusal)),
    }
}
