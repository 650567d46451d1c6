//! A block's transactions and results one by one, where a bulk call is refused.
//!
//! A block's collections say which transactions are users', and in which order. Results by index come without names on real nodes (flow-go sends 32 zero
//! bytes as ids of transaction and collection): they are given those of the collections. A result by id has to name this block, since an id may
//! stand in several. Else cairn asks by the block (`of_this_block`). System transactions follow, each by its id, since their places in
//! answers to the two bulk calls needn't be the same; the last of them, which closes the block, by calls of its own, where the node has those.

use bytes::Bytes;
use cairn_core::TxId;
use cairn_flow::id::transaction_id;
use cairn_flow::pair::{is_of_block, is_unpaid, named};
use cairn_flow::proto;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;

use super::classify::Refusal;
use super::fetch::{Bulk, Pieces, error_of, malformed, results};
use super::node::{Answer, Call, Node};
use crate::{Result, SourceError};

/// How many pieces of one block are asked for at a time, in order.
const PIECES_IN_FLIGHT: usize = 8;

/// What a node may lack.
const SYSTEM_RESULT: &str = "the result of the system transaction";

/// A user's transaction: its id, and its collection's.
#[derive(Clone)]
struct Wanted {
    id: Bytes,
    collection_id: Bytes,
}

/// Nodes of old sporks: all by way of the collections. System transactions aren't to be had there.
pub(super) async fn by_collection(node: &Node, block: &proto::Block) -> Result<Option<Pieces>> {
    let Some(wanted) = wanted(node, block).await? else { return Ok(None) };
    let one = |(index, of): (usize, Wanted)| async move {
        futures::try_join!(transaction(node, block, of.clone()), result_by_id(node, block, index, of))
    };
    let pairs: Vec<(Bytes, Bytes)> = stream::iter(wanted.into_iter().enumerate())
        .map(one)
        .buffered(PIECES_IN_FLIGHT)
        .try_collect()
        .await?;
    let (transactions, results): (_, Vec<Bytes>) = pairs.into_iter().unzip();
    let is_result_doubtful = are_doubtful(node, block, &results)?;
    Ok(Some(Pieces { lacks_system: true, is_result_doubtful, ..Pieces::whole(transactions, results) }))
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
                let closing = match place + 1 == system.len() {
                    true => system_transaction(node, block).await?,
                    false => None,
                };
                let asked = match closing {
                    Some(closing) => closing,
                    None => transaction_of(node, block, result).await?,
                };
                transactions.push(asked);
            }
            Ok(Some(Pieces::whole(transactions, results)))
        }
        Bulk::OneByOne => {
            let closing = match system_transaction(node, block).await? {
                Some(closing) => closing,
                None => {
                    let result = by_index(node, block, users).await;
                    let result = result.map_err(|refusal| refused(node, block, SYSTEM_RESULT, refusal))?;
                    transaction_of(node, block, &result).await?
                }
            };
            // Others of the system's may have run beside it, whose ids only the bulk calls tell: a block without them would be a shorter one.
            match by_index(node, block, users + 1).await {
                Err(Refusal::NotYet) => {}
                Err(refusal) => return Err(error_of(node, refusal)),
                Ok(_) => {
                    let message =
                        format!("more system transactions ran in block {} than it can name", block.height);
                    return Err(SourceError::Transient { endpoint: node.name.clone(), message });
                }
            }
            transactions.push(closing);
            without_bulk_results(node, block, transactions).await
        }
    }
}

/// More results came than transactions: those that are missing are asked for by the ids that the results name.
pub(super) async fn without_some_transactions(
    node: &Node,
    block: &proto::Block,
    transactions: Vec<Bytes>,
    results: Vec<Bytes>,
) -> Result<Pieces> {
    let mut missing = results.len().saturating_sub(transactions.len());
    let mut came = transactions.into_iter().peekable();
    let mut transactions = Vec::with_capacity(results.len());
    for result in &results {
        let next = match came.peek() {
            Some(next) if missing > 0 => {
                let id = transaction_id(&decoded(node, block, next)?);
                named_by(node, block, result)?.is_none_or(|named| named == id).then(|| came.next())
            }
            _ => Some(came.next()),
        };
        let transaction = match next.flatten() {
            Some(transaction) => transaction,
            None => {
                missing = missing.saturating_sub(1);
                transaction_of(node, block, result).await?
            }
        };
        transactions.push(transaction);
    }
    let (height, came) = (block.height, transactions.len());
    tracing::debug!(node = node.name, height, came, "transactions that did not come were asked for by id");
    Ok(Pieces::whole(transactions, results))
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
        match by_index(node, block, index).await {
            Ok(answer) => name(node, block, &answer, &of, true),
            // It may have another way to it.
            Err(Refusal::NotYet) => result_by_id(node, block, index, of).await,
            Err(refusal) => Err(error_of(node, refusal)),
        }
    };
    let mut results: Vec<Bytes> = stream::iter(wanted.into_iter().enumerate())
        .map(one)
        .buffered(PIECES_IN_FLIGHT)
        .try_collect()
        .await?;
    let system = transactions.get(users..).unwrap_or_default();
    let mut unfound = None;
    for (place, bytes) in system.iter().enumerate() {
        let decoded: proto::Transaction = decoded(node, block, bytes)?;
        if !is_unpaid(&decoded) {
            return Err(malformed(node, block.height, "it names more transactions than its collections"));
        }
        let id = transaction_id(&decoded);
        let of =
            Wanted { id: Bytes::copy_from_slice(id.as_bytes()), collection_id: Bytes::from_static(&[0; 32]) };
        if place + 1 == system.len() {
            // What was not executed has no index.
            results.extend(system_result(node, block, of, results.len()).await?);
            continue;
        }
        match executed(node, block, of, results.len()).await? {
            Some(result) => results.push(result),
            None => unfound = unfound.or(Some(id)),
        }
    }
    // In a spork's root none is executed.
    let unfound = unfound.filter(|_| !node.is_spork_root(block.height));
    let is_result_doubtful = are_doubtful(node, block, &results)?;
    Ok(Some(Pieces { unfound, is_result_doubtful, ..Pieces::whole(transactions, results) }))
}

/// That no more transactions ran in a block than there are results, where the node names one of the system's and finds no result of it: "not found" may mean that it has no way to
/// that result, and a block without it would be a shorter one. What shows it is the place at which the closing transaction's events say that it stands, else that by index there is
/// none behind it.
pub(super) async fn demand_not_executed(
    node: &Node,
    block: &proto::Block,
    results: &[Bytes],
    id: TxId,
) -> Result<()> {
    let message =
        format!("it names system transaction {id} in block {}, and has no result of it", block.height);
    let unproven = || SourceError::Transient { endpoint: node.name.clone(), message };
    let Some(closing) = results.len().checked_sub(1) else { return Err(unproven()) };
    let result: proto::TransactionResult = decoded(node, block, &results[closing])?;
    if !result.events.is_empty() {
        // An event of another place is refused with the whole block.
        return Ok(());
    }
    // Some nodes have users' results alone by index: there nothing is known of what is behind them.
    match (by_index(node, block, closing).await, by_index(node, block, closing + 1).await) {
        (Ok(_), Err(Refusal::NotYet)) => Ok(()),
        (Err(refusal), _) | (_, Err(refusal)) if refusal != Refusal::NotYet => Err(error_of(node, refusal)),
        _ => Err(unproven()),
    }
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

/// Of which part of which block a refusal is.
fn refused(node: &Node, block: &proto::Block, part: &str, refusal: Refusal) -> SourceError {
    if refusal != Refusal::NotYet {
        return error_of(node, refusal);
    }
    let message = format!("it doesn't have {part} of block {}", block.height);
    SourceError::Transient { endpoint: node.name.clone(), message }
}

fn tx_id(node: &Node, block: &proto::Block, of: &Wanted) -> Result<TxId> {
    let id = of.id[..].try_into().map(TxId);
    id.map_err(|_| malformed(node, block.height, "a transaction's id has not 32 bytes"))
}

/// A result with the names that the node may have left out; that of the block, where the question was for this block's result.
fn name(
    node: &Node,
    block: &proto::Block,
    result: &Bytes,
    of: &Wanted,
    is_of_this_block: bool,
) -> Result<Bytes> {
    let block_id = is_of_this_block.then_some(&block.id[..]);
    named(result, tx_id(node, block, of)?, &of.collection_id, block_id)
        .map_err(|error| node.refused(block.height, &error))
}

/// Whether some results don't say of which block they are.
fn are_doubtful(node: &Node, block: &proto::Block, results: &[Bytes]) -> Result<bool> {
    for result in results {
        if is_of_block(&decoded(node, block, result)?, block).is_none() {
            return Ok(true);
        }
    }
    Ok(false)
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

/// The transaction that closes the block; `None`: the node has no call for it (flow-go before 0.33, of the end of 2023).
async fn system_transaction(node: &Node, block: &proto::Block) -> Result<Option<Bytes>> {
    let question = proto::GetTransactionsByBlockIdRequest { block_id: block.id.clone() };
    match node.ask::<_, proto::TransactionResponse>(Call::SystemTransaction, question).await {
        Err(Refusal::Unimplemented) => Ok(None),
        answer => given(node, block, answer).map(Some),
    }
}

/// Whose a result is: as it says itself, else as its events say.
fn named_by(node: &Node, block: &proto::Block, result: &Bytes) -> Result<Option<TxId>> {
    let result: proto::TransactionResult = decoded(node, block, result)?;
    let mut ids =
        [&result.transaction_id].into_iter().chain(result.events.iter().map(|event| &event.transaction_id));
    Ok(ids.find(|id| id.iter().any(|byte| *byte != 0)).and_then(|id| id[..].try_into().ok()).map(TxId))
}

/// A result's transaction, by the id that the result names. Some nodes keep users' transactions alone, and make the system's when they are asked for a
/// whole block. Its id is the same in every block until its script changes, so it may be had with the parent's.
async fn transaction_of(node: &Node, block: &proto::Block, result: &Bytes) -> Result<Bytes> {
    let id = named_by(node, block, result)?
        .ok_or_else(|| malformed(node, block.height, "a result doesn't say of which transaction it is"))?;
    let of = Wanted { id: Bytes::copy_from_slice(id.as_bytes()), collection_id: Bytes::new() };
    match node.ask::<_, proto::TransactionResponse>(Call::Transaction, question(block, &of)).await {
        Err(Refusal::NotYet) => {}
        answer => return given(node, block, answer),
    }
    let question = proto::GetTransactionsByBlockIdRequest { block_id: block.parent_id.clone() };
    let answer = node.ask::<_, proto::TransactionsResponse>(Call::TransactionsByBlockId, question).await;
    let of_parent = node.absent(answer)?.map(|answer| answer.transactions).unwrap_or_default();
    for transaction in of_parent.into_iter().rev() {
        if transaction_id(&decoded(node, block, &transaction)?) == id {
            return Ok(transaction);
        }
    }
    Err(SourceError::Transient {
        endpoint: node.name.clone(),
        message: format!(
            "it has the result of transaction {id} of block {}, and not the transaction",
            block.height
        ),
    })
}

fn given(node: &Node, block: &proto::Block, answer: Answer<proto::TransactionResponse>) -> Result<Bytes> {
    let transaction = answer.map_err(|refusal| refused(node, block, "a transaction", refusal))?.transaction;
    transaction.ok_or_else(|| malformed(node, block.height, "an answer has no transaction"))
}

async fn result_by_id(node: &Node, block: &proto::Block, index: usize, of: Wanted) -> Result<Bytes> {
    let part = format!("the result of transaction {}", tx_id(node, block, &of)?);
    let answer = node.ask_raw(Call::TransactionResult, question(block, &of)).await;
    let answer = answer.map_err(|refusal| refused(node, block, &part, refusal))?;
    of_this_block(node, block, index, &of, &answer).await
}

/// A result by id with its names. One that is of another block, or doesn't say of which, is asked for by its index in this block, then with all of the block's.
/// Where the node has neither call, one that doesn't say is taken as it came, which marks the block ([`are_doubtful`]).
async fn of_this_block(
    node: &Node,
    block: &proto::Block,
    index: usize,
    of: &Wanted,
    answer: &Bytes,
) -> Result<Bytes> {
    let is_of_block =
        |result: &Bytes| Ok::<_, SourceError>(is_of_block(&decoded(node, block, result)?, block));
    let is_of_this_block = is_of_block(answer)?;
    if is_of_this_block == Some(true) {
        return name(node, block, answer, of, true);
    }
    let of_block = match by_index(node, block, index).await {
        Ok(result) => Some(result),
        Err(Refusal::NotYet | Refusal::Unimplemented) => match results(node, block).await? {
            Bulk::Given(results) => results.into_iter().nth(index),
            _ => None,
        },
        Err(refusal) => return Err(error_of(node, refusal)),
    };
    match of_block {
        Some(result) if is_of_block(&result)? != Some(false) => name(node, block, &result, of, true),
        _ if is_of_this_block.is_none() => name(node, block, answer, of, false),
        _ => {
            let id = tx_id(node, block, of)?;
            let message = format!(
                "it gives the result of transaction {id} in another block for that in block {}: take a node that has GetTransactionResultByIndex",
                block.height
            );
            Err(SourceError::Transient { endpoint: node.name.clone(), message })
        }
    }
}

async fn by_index(node: &Node, block: &proto::Block, index: usize) -> Answer<Bytes> {
    let question = proto::GetTransactionByIndexRequest { block_id: block.id.clone(), index: index as u32 };
    node.ask_raw(Call::TransactionResultByIndex, question).await
}

/// The result of a system transaction that needn't have been executed in this block; `None`: the node finds none.
async fn executed(node: &Node, block: &proto::Block, of: Wanted, index: usize) -> Result<Option<Bytes>> {
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
    of_this_block(node, block, index, &of, &answer).await.map(Some)
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
        Err(refusal) => Err(refused(node, block, SYSTEM_RESULT, refusal)),
        Ok(answer) => name(node, block, &answer, &of, true).map(Some),
    }
}
