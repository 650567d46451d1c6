//! Another answer for a block that is stored, held against it.
//!
//! Nothing proves that the last events of a transaction are all there ([`Checks::EVENTS`](crate::Checks::EVENTS)): a node that hasn't indexed them yet, or
//! lost them, gives a block that holds. So a later answer may have more, and may then take the stored one's place; but only where nothing of what is stored
//! is contradicted or missing in it.

use cairn_core::{BlockFacts, RawBlock, StoredBlock};
use prost::Message;

use crate::proto::{Event, TransactionResult};
use crate::{BlockParts, Checks, FlowError, assemble, wire};

/// What an answer is beside what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Again {
    /// The same transactions, results and events.
    Same,
    /// All that is stored, and more of it.
    More {
        /// The block that may take the stored one's place.
        block: Box<RawBlock>,
        /// How many events more it has, those of further transactions among them.
        events: u32,
    },
    /// It contradicts what is stored, or lacks some of it: in words.
    Other(String),
}

/// Holds an answer, which was checked, against the stored block, of which all parts were read.
///
/// The same block by id, parent and time; each stored transaction with the same end, and its events in the same order, whatever stands between them: a node
/// that leaves events out counts without them. An execution result that the answer lacks is kept, and the answer held against it.
pub fn again(stored: &StoredBlock, answer: RawBlock) -> Result<Again, FlowError> {
    let named = |facts: &BlockFacts| (facts.height, facts.id, facts.parent_id, facts.timestamp_ms);
    if named(&stored.facts) != named(&answer.facts) {
        let (block, parent_id) = (answer.block_ref(), answer.facts.parent_id);
        return Ok(Again::Other(format!("the answer is another block: {block} above {parent_id}")));
    }
    let (before, now) = (results(stored)?, results(&StoredBlock::from(&answer))?);
    if before.len() != stored.transactions.len() || now.len() != answer.transactions.len() {
        let message = "results and transactions aren't as many".into();
        let height = stored.facts.height.get();
        return Err(FlowError::Inconsistent { height, what: "its stored parts", message });
    }
    let mut candidates = answer.transactions.iter().zip(&now);
    for (facts, result) in stored.transactions.iter().zip(&before) {
        let Some((other, outcome)) = candidates.find(|(other, _)| other.id == facts.id) else {
            return Ok(Again::Other(format!(
                "the answer lacks transaction {}, or has it elsewhere",
                facts.id
            )));
        };
        // Not what is said of a failure: that is each node's own.
        if other.status != facts.status {
            return Ok(Again::Other(format!("transaction {} ended otherwise in the answer", facts.id)));
        }
        if let Some(event) = lacking(result, outcome) {
            let place =
                format!("event {} ({:.100}) of transaction {}", event.event_index, event.r#type, facts.id);
            return Ok(Again::Other(format!("the answer lacks {place}, or has another there")));
        }
    }
    let events = answer.facts.log_count.saturating_sub(stored.facts.log_count);
    if events == 0 && now.len() == before.len() {
        return Ok(Again::Same);
    }
    let block = Box::new(with_execution_result(stored, answer)?);
    Ok(Again::More { block, events })
}

/// The first stored event that is not among those of the answer, in their order.
fn lacking<'e>(stored: &'e TransactionResult, answer: &TransactionResult) -> Option<&'e Event> {
    let is_same = |one: &Event, other: &Event| one.r#type == other.r#type && one.payload == other.payload;
    let mut candidates = answer.events.iter();
    stored.events.iter().find(|event| !candidates.any(|other| is_same(event, other)))
}

fn results(block: &StoredBlock) -> Result<Vec<TransactionResult>, FlowError> {
    let what = format!("the receipts of block {}", block.facts.height);
    let ranges = wire::repeated(&what, &block.receipts, 1)?;
    let decode = |range| TransactionResult::decode(block.receipts.slice(range));
    let decoded =
        ranges.into_iter().map(|range| decode(range).map_err(|error| FlowError::malformed(&what, error)));
    decoded.collect()
}

/// The answer with the stored execution result, where it has none of its own: checked once more, now against that.
fn with_execution_result(stored: &StoredBlock, answer: RawBlock) -> Result<RawBlock, FlowError> {
    if stored.extras.is_empty() || !answer.extras.is_empty() {
        return Ok(answer);
    }
    let height = answer.facts.height;
    let parts = |what: &str, of: &bytes::Bytes| -> Result<Vec<bytes::Bytes>, FlowError> {
        let ranges = wire::repeated(&format!("the {what} of block {height}"), of, 1)?;
        Ok(ranges.into_iter().map(|range| of.slice(range)).collect())
    };
    let mut whole = assemble(&BlockParts {
        block: answer.header.clone(),
        transactions: parts("body", &answer.body)?,
        results: parts("receipts", &answer.receipts)?,
        execution_result: Some(stored.extras.clone()),
    })?;
    whole.facts.unverified |= answer.facts.unverified & Checks::OF_ANSWERS.bits();
    whole.facts.parent_id = answer.facts.parent_id;
    Ok(whole)
}
