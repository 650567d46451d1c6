//! Whole blocks from one endpoint: bodies, then receipts, then what is missing, then assembly.
//!
//! **Order.** Blocks by number in batches; the prefix that links; their receipts, asked for by block hash, so that they can't be those of
//! another fork; raw bytes of transactions of unknown type; traces. All of one block comes from one endpoint.
//!
//! **Ways around.** What a node refuses is asked for in the next narrower way: receipts by hash, by number (each must name the
//! block), one by one; an oversized block as header and single transactions; its traces one by one. Never more heights than were asked for
//! (E13, E14).
//!
//! **Absence.** Null for a height that the endpoint announced, and receipts that don't cover the block, are asked for again a few times (E01,
//! E03). Only what stands at the front is waited for: a shorter answer is better than a late one.
//!
//! **Copies.** Answers are slices of the bodies that they came in. A block's JSON text and its receipts' are held once; then, one block at a
//! time and on a blocking thread, each text becomes a tree, and the tree becomes canonical bytes. So a block that is alone in its answers is in memory at most as its own
//! tree, its receipts' text and tree, and its bytes; with others, plus the texts of those.

mod beside;
mod build;
mod receipts;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{Height, HeightRange, RawBlock};
use cairn_evm::ChainProfile;

use super::batch::Kind;
use super::classify::ErrorClass;
use super::config::RpcLimits;
use super::endpoint::{CallError, Endpoint, Patience, is_null};
use super::memory::CallMemory;
use super::outline::{self, Outline};
use super::wire::{Call, json_text, quantity};
use crate::verify::Offload;
use crate::{Result, SourceError};
use beside::Beside;

/// Why there are no more blocks.
#[derive(Debug)]
pub enum Stop {
    /// The endpoint doesn't have the next one yet.
    NotYet,
    /// The last block's bloom says that there are logs, and there are none, also when asked again: only good if nobody knows better.
    Doubtful,
    /// The next one failed.
    Failed(SourceError),
}

/// Blocks from the start of the range, and why there are no more.
#[derive(Debug)]
pub struct Part {
    /// In order and linked.
    pub blocks: Vec<RawBlock>,
    /// `None` where the range is whole, or cut to what is worth having now.
    pub stop: Option<Stop>,
}

impl Part {
    fn none(stop: Stop) -> Part {
        Part { blocks: Vec::new(), stop: Some(stop) }
    }
}

/// A block's JSON.
enum BlockJson {
    /// As it came.
    Whole(Bytes),
    /// Asked for piece by piece.
    Pieces { header: Bytes, transactions: Vec<Bytes> },
}

/// A block without its receipts.
struct Body {
    outline: Outline,
    json: BlockJson,
}

/// One endpoint, asked for a piece of the chain.
pub struct Fetch<'a> {
    /// Who.
    pub endpoint: &'a Endpoint,
    /// What is known of the chain.
    pub profile: &'a ChainProfile,
    /// Whether call traces belong to a block.
    pub traces: bool,
    /// Sizes, counts and times.
    pub limits: &'a RpcLimits,
    /// How long failures are put up with.
    pub patience: Patience,
    /// What answers are charged to.
    pub memory: &'a Arc<CallMemory>,
}

impl Fetch<'_> {
    /// The blocks of `range` from its start, as many as are there and link.
    pub async fn piece(&self, range: HeightRange) -> Part {
        let mut bodies = match self.bodies(range).await {
            Ok(bodies) => bodies,
            Err(stop) => return Part::none(stop),
        };
        let (receipts, doubtful) = match self.receipts(&bodies).await {
            Ok(receipts) => receipts,
            Err(stop) => return Part::none(stop),
        };
        bodies.truncate(receipts.len());
        let beside = async {
            let raw_transactions = self.raw_transactions(&bodies).await?;
            let ommers = self.ommers(&bodies).await?;
            let traces = self.traces(&bodies).await?;
            let whole = ommers.len().min(traces.len());
            let beside = raw_transactions.into_iter().zip(ommers).zip(traces);
            Ok((
                whole,
                beside
                    .map(|((raw_transactions, ommers), traces)| Beside { raw_transactions, ommers, traces })
                    .collect(),
            ))
        };
        let (whole, beside) = match beside.await {
            Ok(beside) => beside,
            Err(error) => return Part::none(Stop::Failed(error)),
        };
        bodies.truncate(whole);
        let mut part = self.assemble(bodies, receipts, beside).await;
        if part.stop.is_none() && doubtful {
            part.stop = Some(Stop::Doubtful);
        }
        part
    }

    /// The linked bodies at the front of `range`, at least one.
    async fn bodies(&self, range: HeightRange) -> Result<Vec<Body>, Stop> {
        let mut ask = range;
        for attempt in 0..=self.limits.not_yet_attempts {
            self.pause_before(attempt).await;
            let calls: Vec<Call> = ask
                .iter()
                .map(|height| Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "true"]))
                .collect();
            let mut results =
                self.endpoint.call_many(Kind::Block, &calls, self.patience, self.memory).await.into_iter();
            let Some(first) = results.next() else { return Err(Stop::NotYet) };
            match first {
                Ok(block) if is_null(&block) => {
                    if self.endpoint.head().is_some_and(|head| head < range.start()) {
                        return Err(Stop::NotYet);
                    }
                    // The first one alone is waited for.
                    ask = HeightRange::one(range.start());
                }
                Ok(first) => {
                    let texts: Vec<Bytes> = std::iter::once(first)
                        .chain(results.map_while(|result| result.ok().filter(|block| !is_null(block))))
                        .collect();
                    return self.outlines(range, texts).await;
                }
                Err(error) if error.class == ErrorClass::TooWide => {
                    return Ok(vec![self.narrow_body(range.start(), error).await?]);
                }
                Err(error) => return Err(Stop::Failed(self.endpoint.error(error))),
            }
        }
        Err(Stop::NotYet)
    }

    /// Reads the outlines of blocks and keeps those that link.
    async fn outlines(&self, range: HeightRange, texts: Vec<Bytes>) -> Result<Vec<Body>, Stop> {
        let read = move || {
            let mut bodies: Vec<Body> = Vec::with_capacity(texts.len());
            for (height, text) in range.iter().zip(texts) {
                let outline = match outline::read_block(&text) {
                    Ok(outline) if outline.height == height => outline,
                    Ok(outline) => return (bodies, Some((height, format!("got height {}", outline.height)))),
                    Err(error) => return (bodies, Some((height, error))),
                };
                if bodies.last().is_some_and(|before| before.outline.id != outline.parent_id) {
                    break;
                }
                bodies.push(Body { outline, json: BlockJson::Whole(text) });
            }
            (bodies, None)
        };
        let (bodies, problem) = self.offload(read).await.map_err(Stop::Failed)?;
        match problem {
            Some((height, message)) if bodies.is_empty() => {
                Err(Stop::Failed(self.inconsistent(height, "block", message)))
            }
            _ => Ok(bodies),
        }
    }

    /// A block that is too large for one answer: its header, then its transactions one by one, by block hash.
    async fn narrow_body(&self, height: Height, whole: CallError) -> Result<Body, Stop> {
        let failed = |error: CallError| Stop::Failed(self.endpoint.error(error));
        let call = Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "false"]);
        let header =
            self.endpoint.call(Kind::Header, call, self.patience, self.memory).await.map_err(Stop::Failed)?;
        if is_null(&header) {
            return Err(Stop::NotYet);
        }
        let outline = outline::read_block(&header)
            .map_err(|error| Stop::Failed(self.inconsistent(height, "block", error)))?;
        if outline.height != height {
            return Err(Stop::Failed(self.inconsistent(
                height,
                "block",
                format!("got height {}", outline.height),
            )));
        }
        if outline.txs.is_empty() {
            // Nothing to ask for piece by piece: it is too large as it is.
            return Err(failed(whole));
        }
        let hash = json_text(&outline.id);
        let calls: Vec<Call> = (0..outline.txs.len() as u64)
            .map(|index| Call::new("eth_getTransactionByBlockHashAndIndex", &[&hash, &quantity(index)]))
            .collect();
        let mut transactions = Vec::with_capacity(calls.len());
        let mut types = Vec::with_capacity(calls.len());
        let results = self.endpoint.call_many(Kind::Transaction, &calls, self.patience, self.memory).await;
        for (tx, result) in outline.txs.iter().zip(results) {
            let text = result.map_err(failed)?;
            if is_null(&text) {
                // The block is not on the node's chain any more, or not quite there.
                return Err(Stop::NotYet);
            }
            let found = outline::read_tx(&text)
                .map_err(|error| Stop::Failed(self.inconsistent(height, "transactions", error)))?;
            if found.hash != tx.hash {
                let message =
                    format!("the block lists transaction {}, asked by index it is {}", tx.hash, found.hash);
                return Err(Stop::Failed(self.inconsistent(height, "transactions", message)));
            }
            types.push(found);
            transactions.push(text);
        }
        let outline = Outline { txs: types, ..outline };
        Ok(Body { outline, json: BlockJson::Pieces { header, transactions } })
    }

    async fn pause_before(&self, attempt: u32) {
        if let Some(doublings) = attempt.checked_sub(1) {
            let ms = self.limits.not_yet_pause_ms.saturating_mul(1 << doublings.min(6));
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        Offload::Blocking.run(self.endpoint.name.as_str(), work).await
    }

    fn inconsistent(
        &self,
        height: Height,
        check: impl Into<String>,
        message: impl AsRef<str>,
    ) -> SourceError {
        SourceError::Inconsistent {
            endpoint: self.endpoint.name.to_string(),
            height,
            check: check.into(),
            message: self.endpoint.name.scrub(message.as_ref()),
        }
    }
}
