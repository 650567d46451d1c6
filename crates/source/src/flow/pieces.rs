//! A block's transactions and results one by one, where a bulk call is refused.
//!
//! A block's collections say which transactions are users', and in which order. Results by index come without names on real nodes (flow-go sends 32 zero
//! bytes as ids of transaction and collection): they are given those of the collections. System transactions follow, each by its id, since their places in
//! answers to the two bulk calls needn't be the same; the last of them, which closes the block, by calls of its own.

use bytes::Bytes;
use cairn_core::TxId;
use cairn_flow::id::transaction_id;
use cairn_flow::pair::{is_unpaid, named};
use cairn_flow::proto;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;

use super::classify::Refusal;
use super::fetch::{Bulk, Pieces, error_of, malformed, results};
use super::node::{Answer, Call, Node};
use crate::Result;

/// How many pieces of one block are asked for at a time, in order.
const PIECES_IN_FLIGHT: usize = 8;

/// A user's transaction: its id, and its collection's.
#[derive(Clone)]
struct Wanted {
    id: Bytes,
    collection_id: Bytes,
}

/// Nodes of old sporks: all by way of the collections. System transactions aren't to be had there.
pub(super) async fn by_collection(node: &Node, block: &proto::Block) -> Result<Option<Pieces>> {
    let Some(wanted) = wanted(node, block).await? else { return Ok(None) };
    let one = |of: Wanted| async move {
        futures::try_join!(transaction(node, block, of.clone()), result_by_id(node, block, of))
    };
    let pairs: Vec<(Bytes, Bytes)> =
        stream::iter(wanted).map(one).buffered(PIECES_IN_FLIGHT).try_collect().await?;
    let (transactions, results) = pairs.into_iter().unzip();
    Ok(Some(Pieces { transactions, results, lacks_system: true }))
}

/// Transactions are too large together. Which system transactions there are the results say, where those come at once; else only the last one is known.
pub(super) async fn without_bulk_transactions(node: &Node, block: &proto::Block) -> Result<Option<Pieces>> {
    let Some(wanted) = wanted(node, block).await? else { return Ok(None) };
    let users = wanted.len();
    let one = |of: Wanted| transaction(node, block, of);
    let mut transactions: Vec<Bytes> =
        stream::iter(wanted).map(one).buffered(PIECES_IN_FLIGHT).try_collect().await?;
    match results(node, block).await? {
        Bulk::NotYet => Ok(None),
        Bulk::Unimplemented => Err(error_of(node, Refusal::Unimplemented)),
        Bulk::Given(results) => {
            let system = results.get(users..).unwrap_or_default();
            for (place, result) in system.iter().enumerate() {
                let asked = if place + 1 == system.len() {
                    system_transaction(node, block).await?
                } else {
                    let id = decoded::<proto::TransactionResult>(node, block, result)?.transaction_id;
                    let collection_id = Bytes::new();
                    transaction(node, block, Wanted { id, collection_id }).await?
                };
                transactions.push(asked);
            }
            Ok(Some(Pieces { transactions, results, lacks_system: false }))
        }
        Bulk::OneByOne => {
            transactions.push(system_transaction(node, block).await?);
            without_bulk_results(node, block, transactions).await
        }
    }
}

/// Results are too large together, or one of them breaks the call.
pub(super) async fn without_bulk_results(
    node: &Node,
    block: &proto::Block,
    transactions: Vec<Bytes>,
) -> Result<Option<Pieces>> {
    let Some(wanted) = wanted(node, block).await? else { return Ok(None) };
    let users = wanted.len();
    let one = |(index, of): (usize, Wanted)| async move {
        let answer = by_index(node, block, index).await.map_err(|refusal| error_of(node, refusal))?;
        name(node, block, &answer, &of)
    };
    let mut results: Vec<Bytes> = stream::iter(wanted.into_iter().enumerate())
        .map(one)
        .buffered(PIECES_IN_FLIGHT)
        .try_collect()
        .await?;
    let system = transactions.get(users..).unwrap_or_default();
    for (place, bytes) in system.iter().enumerate() {
        let decoded: proto::Transaction = decoded(node, block, bytes)?;
        if !is_unpaid(&decoded) {
            return Err(malformed(node, block.height, "it names more transactions than its collections"));
        }
        let id = Bytes::copy_from_slice(transaction_id(&decoded).as_bytes());
        let of = Wanted { id, collection_id: Bytes::from_static(&[0; 32]) };
        let result = match place + 1 == system.len() {
            // What was not executed has no index.
            true => system_result(node, block, of, results.len()).await?,
            false => executed(node, block, of).await?,
        };
        results.extend(result);
    }
    Ok(Some(Pieces { transactions, results, lacks_system: false }))
}

/// The users' transactions, by collection; `None` where a collection isn't there yet.
async fn wanted(node: &Node, block: &proto::Block) -> Result<Option<Vec<Wanted>>> {
    let collection = |guarantee: &proto::CollectionGuarantee| {
        let id = guarantee.collection_id.clone();
        async move {
            let question = proto::ByIdRequest { id: id.clone() };
            let answer = node.ask::<_, proto::CollectionResponse>(Call::CollectionById, question).await;
            let collection = node.absent(answer)?.and_then(|answer| answer.collection);
            Ok::<_, crate::SourceError>(collection.map(|collection| (id, collection)))
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
        let of = |id| Wanted { id, collection_id: collection_id.clone() };
        wanted.extend(collection.transaction_ids.into_iter().map(of));
    }
    Ok(Some(wanted))
}

fn decoded<M: Message + Default>(node: &Node, block: &proto::Block, bytes: &Bytes) -> Result<M> {
    M::decode(bytes.as_ref()).map_err(|error| malformed(node, block.height, &error.to_string()))
}

/// A result with the names that the node may have left out.
fn name(node: &Node, block: &proto::Block, result: &Bytes, of: &Wanted) -> Result<Bytes> {
    let id = of.id[..].try_into().map(TxId);
    let id = id.map_err(|_| malformed(node, block.height, "a transaction's id has not 32 bytes"))?;
    named(result, id, &of.collection_id).map_err(|error| node.refused(block.height, &error))
}

fn question(block: &proto::Block, of: &Wanted) -> proto::GetTransactionRequest {
    proto::GetTransactionRequest {
        id: of.id.clone(),
        block_id: block.id.clone(),
        collection_id: of.collection_id.clone(),
    }
}

async fn transaction(node: &Node, block: &proto::Block, of: Wanted) -> Result<Bytes> {
    let answer = node.ask::<_, proto::TransactionResponse>(Call::Transaction, question(block, &of)).await;
    given(node, block, answer)
}

/// The transaction that closes the block.
async fn system_transaction(node: &Node, block: &proto::Block) -> Result<Bytes> {
    let question = proto::GetTransactionsByBlockIdRequest { block_id: block.id.clone() };
    let answer = node.ask::<_, proto::TransactionResponse>(Call::SystemTransaction, question).await;
    given(node, block, answer)
}

fn given(node: &Node, block: &proto::Block, answer: Answer<proto::TransactionResponse>) -> Result<Bytes> {
    let transaction = answer.map_err(|refusal| error_of(node, refusal))?.transaction;
    transaction.ok_or_else(|| malformed(node, block.height, "an answer has no transaction"))
}

async fn result_by_id(node: &Node, block: &proto::Block, of: Wanted) -> Result<Bytes> {
    let answer = node.ask_raw(Call::TransactionResult, question(block, &of)).await;
    name(node, block, &answer.map_err(|refusal| error_of(node, refusal))?, &of)
}

async fn by_index(node: &Node, block: &proto::Block, index: usize) -> Answer<Bytes> {
    let question = proto::GetTransactionByIndexRequest { block_id: block.id.clone(), index: index as u32 };
    node.ask_raw(Call::TransactionResultByIndex, question).await
}

/// The result of a system transaction that needn't have been executed in this block; `None`: it was not.
async fn executed(node: &Node, block: &proto::Block, of: Wanted) -> Result<Option<Bytes>> {
    // By the id alone: it is in no collection.
    let by_id = Wanted { id: of.id.clone(), collection_id: Bytes::new() };
    let Some(answer) = node.absent(node.ask_raw(Call::TransactionResult, question(block, &by_id)).await)?
    else {
        return Ok(None);
    };
    let status = decoded::<proto::TransactionResult>(node, block, &answer)?.status;
    if status == proto::TransactionStatus::Unknown as i32 {
        return Ok(None);
    }
    name(node, block, &answer, &of).map(Some)
}

/// The result of the transaction that closes the block: by its own call, or by its index from nodes that don't have that one. `None`: a spork's root,
/// in which it was not executed.
async fn system_result(node: &Node, block: &proto::Block, of: Wanted, index: usize) -> Result<Option<Bytes>> {
    let question = proto::GetTransactionsByBlockIdRequest { block_id: block.id.clone() };
    let answer = match node.ask_raw(Call::SystemTransactionResult, question).await {
        Err(Refusal::Unimplemented | Refusal::NotYet) => by_index(node, block, index).await,
        answer => answer,
    };
    match answer {
        Err(Refusal::NotYet) if node.is_spork_root(block.height) => Ok(None),
        Err(refusal) => Err(error_of(node, refusal)),
        Ok(answer) => name(node, block, &answer, &of).map(Some),
    }
}
