//! Whole blocks from one endpoint: bodies, then receipts, then what is missing, then assembly.
//!
//! **Order.** Blocks by number in batches; the prefix that links; their receipts, asked for by block hash, so that they can't be those of
//! another fork; raw bytes of transactions of unknown type; traces. All of one block comes from one endpoint.
//!
//! **Ways around.** What a node can't give, whatever it says instead, is asked for in the next narrower way after the usual tries: receipts by hash, by number
//! (each must name the block), one by one; a block as header and single transactions; its traces one by one. The endpoint remembers which way failed
//! ([`Way`]). Never more heights than were asked for (E13, E14).
//!
//! **Optional data.** Call traces and bytes of transactions of unknown type never hold up a block. A block without them is taken where no other endpoint has
//! them, and is marked.
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
use super::classify::Hint;
use super::config::RpcLimits;
use super::endpoint::{CallError, Endpoint, Patience, Way, is_null};
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
    /// The block lacks something: its bloom says that there are logs, and there are none, also when asked again; or optional data failed. Only good if nobody
    /// knows better.
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
        let ommers = match self.ommers(&bodies).await {
            Ok(ommers) => ommers,
            Err(error) => return Part::none(Stop::Failed(error)),
        };
        bodies.truncate(ommers.len());
        let (raw_transactions, raw_failed) = self.raw_transactions(&bodies).await;
        bodies.truncate(raw_transactions.len());
        let (traces, traces_failed) = self.traces(&bodies).await;
        bodies.truncate(traces.len());
        let beside: Vec<Beside> = raw_transactions
            .into_iter()
            .zip(ommers)
            .zip(traces)
            .map(|((raw_transactions, ommers), traces)| Beside { raw_transactions, ommers, traces })
            .collect();
        // What failed is lacking of the first block: the others are asked for again.
        let lacks = raw_failed || traces_failed;
        if lacks {
            bodies.truncate(1);
        }
        let mut part = self.assemble(bodies, receipts, beside).await;
        if part.stop.is_none() && (doubtful || lacks) {
            part.stop = Some(Stop::Doubtful);
        }
        part
    }

    /// The linked bodies at the front of `range`, at least one.
    async fn bodies(&self, range: HeightRange) -> Result<Vec<Body>, Stop> {
        let mut ask = range;
        for attempt in 0..=self.limits.not_yet_attempts {
            self.pause_before(attempt).await;
            let ways = self.endpoint.ways();
            if ways.avoids(Way::WholeBlock) {
                return Ok(vec![self.narrow_body(range.start()).await?]);
            }
            let calls: Vec<Call> = ask
                .iter()
                .map(|height| {
                    Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "true"]).about(height)
                })
                .collect();
            let patience = self.patience_with(Way::WholeBlock);
            let mut results =
                self.endpoint.call_many(Kind::Block, &calls, patience, self.memory).await.into_iter();
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
                    return match self.outlines(range, texts).await {
                        Err(Stop::Failed(error)) => match self.narrow_body(range.start()).await {
                            Ok(body) => {
                                self.endpoint.note_failed(Way::WholeBlock, &error.to_string());
                                Ok(vec![body])
                            }
                            Err(_) => Err(Stop::Failed(error)),
                        },
                        read => read.inspect(|_| ways.worked(Way::WholeBlock)),
                    };
                }
                Err(error) if error.hint == Hint::Away => {
                    return Err(Stop::Failed(self.endpoint.error(error)));
                }
                Err(error) => {
                    return match self.narrow_body(range.start()).await {
                        Ok(body) => {
                            self.endpoint.note(Way::WholeBlock, &error);
                            Ok(vec![body])
                        }
                        Err(Stop::NotYet) => Err(Stop::NotYet),
                        Err(stop) => {
                            tracing::debug!(endpoint = %self.endpoint.name, height = %range.start(), ?stop, "the narrow way fails too");
                            Err(Stop::Failed(self.endpoint.error(error)))
                        }
                    };
                }
            }
        }
        Err(Stop::NotYet)
    }

    /// One try is enough of a way that failed the last time: a narrower one is there.
    fn patience_with(&self, way: Way) -> Patience {
        match self.endpoint.ways().doubts(way) {
            true => Patience { attempts: 1, ..self.patience },
            false => self.patience,
        }
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

    /// A block that can't be had in one answer: its header, then its transactions one by one, by block hash.
    async fn narrow_body(&self, height: Height) -> Result<Body, Stop> {
        let failed = |error: CallError| Stop::Failed(self.endpoint.error(error));
        let call = Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "false"]).about(height);
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
        let hash = json_text(&outline.id);
        let calls: Vec<Call> = (0..outline.txs.len() as u64)
            .map(|index| {
                Call::new("eth_getTransactionByBlockHashAndIndex", &[&hash, &quantity(index)]).about(height)
            })
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
