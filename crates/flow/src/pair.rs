//! Which result is of which transaction.
//!
//! Access nodes answer for transactions and for results apart, and not always alike. Behind the transactions of a block's collections, a node appends the
//! system transactions that its own configuration knows (flow-go `TransactionsByBlockID`): also at a spork's root, which executes none, and those of the
//! scheduler also in blocks before there was one. Results say what was executed. So a system transaction that no result names is left out.

use bytes::Bytes;
use cairn_core::TxId;

use crate::block::{BlockParts, is_none, message};
use crate::id::transaction_id;
use crate::proto::{
    Block, RESULT_BLOCK, RESULT_COLLECTION, RESULT_TRANSACTION, Transaction, TransactionResult,
};
use crate::{FlowError, wire};

/// A transaction with its result, each as it came and decoded.
pub(crate) struct Paired<'p> {
    pub transaction: &'p Bytes,
    pub decoded: Transaction,
    pub result: &'p Bytes,
    pub outcome: TransactionResult,
}

/// Whether the chain itself made a transaction, as far as the transaction shows: nobody pays for it.
pub fn is_unpaid(transaction: &Transaction) -> bool {
    is_none(&transaction.payer)
}

/// Whether a result is one of this block, as it says itself; `None`: it says neither block nor height. Nodes of old sporks don't.
pub fn is_of_block(result: &TransactionResult, block: &Block) -> Option<bool> {
    match (is_none(&result.block_id), result.block_height) {
        (true, 0) => None,
        (true, height) => Some(height == block.height),
        (false, _) => Some(result.block_id == block.id),
    }
}

/// A result of which the node left out the names, with those of its transaction and its collection: results by index, and those of old nodes. With `block_id`
/// also that of its block, where the question was for that block's result.
pub fn named(
    result: &Bytes,
    id: TxId,
    collection_id: &[u8],
    block_id: Option<&[u8]>,
) -> Result<Bytes, FlowError> {
    let outcome: TransactionResult = message("a result", result)?;
    let mut whole = result.clone();
    if let Some(block_id) = block_id.filter(|_| is_none(&outcome.block_id)) {
        whole = wire::with("a result", &whole, RESULT_BLOCK, block_id)?;
    }
    if is_none(&outcome.transaction_id) {
        whole = wire::with("a result", &whole, RESULT_TRANSACTION, id.as_bytes())?;
    }
    if is_none(&outcome.collection_id) {
        whole = wire::with("a result", &whole, RESULT_COLLECTION, collection_id)?;
    }
    Ok(whole)
}

pub(crate) fn pair(height: u64, parts: &BlockParts) -> Result<Vec<Paired<'_>>, FlowError> {
    let counts = || format!("{} transactions and {} results", parts.transactions.len(), parts.results.len());
    let mut surplus = parts
        .transactions
        .len()
        .checked_sub(parts.results.len())
        .ok_or_else(|| FlowError::Incomplete { height, message: counts() })?;
    let mut results = parts.results.iter().enumerate().peekable();
    let mut paired = Vec::with_capacity(parts.results.len());
    for (place, transaction) in parts.transactions.iter().enumerate() {
        let decoded: Transaction = message(&format!("block {height}, transaction {place}"), transaction)?;
        let is_left_out = surplus > 0
            && is_unpaid(&decoded)
            && match results.peek() {
                None => true,
                Some((index, result)) => {
                    let outcome: TransactionResult =
                        message(&format!("block {height}, result {index}"), result)?;
                    let named = outcome.transaction_id;
                    !is_none(&named) && named.as_ref() != transaction_id(&decoded).as_bytes()
                }
            };
        if is_left_out {
            surplus -= 1;
            continue;
        }
        let Some((index, result)) = results.next() else {
            return Err(FlowError::Incomplete { height, message: counts() });
        };
        let outcome: TransactionResult = message(&format!("block {height}, result {index}"), result)?;
        paired.push(Paired { transaction, decoded, result, outcome });
    }
    // The last one closes the block: without its result the block is cut short, unless the chain itself made none.
    let ends_open = parts.transactions.last().is_some_and(|last| {
        paired.last().is_some_and(|pair: &Paired| is_unpaid(&pair.decoded) && pair.transaction != last)
    });
    if results.next().is_some() || ends_open {
        return Err(FlowError::Incomplete { height, message: counts() });
    }
    Ok(paired)
}
