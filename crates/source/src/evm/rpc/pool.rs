//! Several endpoints as one: who is asked first, who steps in.
//!
//! **Order.** The leader first: the endpoint whose head was last announced (see [`super::heads`]), so that heads, headers and blocks come from one
//! node's view as long as it serves. Then by preference. Endpoints that pause, that the caller distrusts, or whose own head is below the height
//! in question come after those that don't.
//!
//! **Failing over.** As long as another endpoint is ready, one gets two tries and no waiting; the last resort gets all the patience that is
//! configured. What one endpoint gives is used even if it is less than asked for.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cairn_core::{ChainId, ErrorKind, Height, HeightRange, LinkedRef, RawBlock};
use cairn_evm::ChainProfile;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::batch::Kind;
use super::config::RpcLimits;
use super::endpoint::{Endpoint, Patience, Way, is_null, parse_quantity};
use super::fetch::{Fetch, Part, Stop};
use super::limiter::Readiness;
use super::memory::{CallMemory, MemoryLimits};
use super::meters::LogGate;
use super::wire::{Call, quantity};
use crate::{Result, SourceError};

/// Tries of one item at an endpoint while another one is ready.
const TRIES_WITH_OTHERS: u32 = 2;

/// For how long an endpoint whose block was refused comes after the others.
const DISTRUST: Duration = Duration::from_secs(30);
/// Of how many answers it is remembered who gave them.
const REMEMBERED_ANSWERS: usize = 256;

/// The endpoints of a source.
#[derive(Debug)]
pub struct Pool {
    /// The preferred one first.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// The chain that all of them have to serve.
    pub chain: ChainId,
    /// What is known of the chain.
    pub profile: ChainProfile,
    /// Sizes, counts and times.
    pub limits: RpcLimits,
    /// What answers may take.
    pub memory: MemoryLimits,
    /// Whether call traces belong to a block.
    pub traces: bool,
    /// Whose head was last announced, by index.
    pub leader: AtomicUsize,
    /// How many calls of `blocks` run at once.
    pub calls: Semaphore,
    /// Which ranges were served last, and by whom (index), the newest last.
    pub served: Mutex<VecDeque<(HeightRange, usize)>>,
    /// One line about failing over in a while.
    pub log: LogGate,
}

impl Pool {
    /// The endpoints in the order in which they are asked about `height`. Those of another chain are left out.
    pub fn order(&self, height: Option<Height>) -> Vec<Arc<Endpoint>> {
        let leader = self.leader.load(Ordering::Acquire);
        let mut endpoints: Vec<_> =
            self.endpoints.iter().filter(|endpoint| endpoint.wrong_chain().is_none()).cloned().collect();
        endpoints.sort_by_cached_key(|endpoint| {
            let pause = match endpoint.readiness() {
                Readiness::Paused(left) => left,
                Readiness::Ready | Readiness::Probing => Duration::ZERO,
            };
            let behind = height.zip(endpoint.head()).is_some_and(|(height, head)| head < height);
            (pause, endpoint.is_distrusted(), behind, Reverse(endpoint.index == leader), endpoint.index)
        });
        endpoints
    }

    /// How long one endpoint of the order is put up with: much, where nobody ready comes after it.
    pub fn patience(&self, rest: &[Arc<Endpoint>]) -> Patience {
        let other = rest.iter().any(|endpoint| !matches!(endpoint.readiness(), Readiness::Paused(_)));
        if other {
            Patience {
                attempts: self.limits.attempts_per_endpoint.clamp(1, TRIES_WITH_OTHERS),
                max_wait: Duration::ZERO,
            }
        } else {
            Patience {
                attempts: self.limits.attempts_per_endpoint.max(1),
                max_wait: Duration::from_millis(self.limits.max_wait_ms),
            }
        }
    }

    /// What there is to say where no endpoint is left.
    pub fn nobody(&self) -> SourceError {
        let wrong = self.endpoints.iter().find_map(|endpoint| Some((endpoint, endpoint.wrong_chain()?)));
        match wrong {
            Some((endpoint, found)) => {
                SourceError::WrongChain { endpoint: endpoint.name.to_string(), found, expected: self.chain }
            }
            None => SourceError::Invalid("no endpoint is configured".into()),
        }
    }

    /// The header at `height`; `None` where no endpoint has it now.
    pub async fn linked_ref(&self, height: Height, memory: &Arc<CallMemory>) -> Result<Option<LinkedRef>> {
        let order = self.order(Some(height));
        let mut failure = None;
        for (at, endpoint) in order.iter().enumerate() {
            let patience = self.patience(&order[at + 1..]);
            let asked = async {
                endpoint.ensure_chain(self.chain, patience, memory).await?;
                self.header(endpoint, height, patience, memory).await
            };
            match asked.await {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => worst_last(&mut failure, error),
            }
        }
        match failure {
            Some(error) => Err(error.at(height)),
            None if order.is_empty() => Err(self.nobody()),
            None => Ok(None),
        }
    }

    /// The header at `height` of one endpoint. Null for a height that it announced is asked for again (E01).
    pub async fn header(
        &self,
        endpoint: &Endpoint,
        height: Height,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Result<Option<LinkedRef>> {
        for attempt in 0..=self.limits.not_yet_attempts {
            if let Some(doublings) = attempt.checked_sub(1) {
                let ms = self.limits.not_yet_pause_ms.saturating_mul(1 << doublings.min(6));
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            let call = Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "false"]).about(height);
            let text = endpoint.call(Kind::Header, call, patience, memory).await?;
            if is_null(&text) {
                if endpoint.head().is_some_and(|head| head < height) {
                    break;
                }
                continue;
            }
            let found = self.read_header(endpoint, height, &text)?;
            if found.block.height != height {
                return Err(SourceError::Inconsistent {
                    endpoint: endpoint.name.to_string(),
                    height,
                    check: "height".into(),
                    message: format!("asked for height {height}, got {}", found.block),
                });
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Reads a header and computes its hash. `near` is its height in an error where it says none itself.
    pub fn read_header(&self, endpoint: &Endpoint, near: Height, text: &[u8]) -> Result<LinkedRef> {
        let inconsistent = |height: Height, message: String| SourceError::Inconsistent {
            endpoint: endpoint.name.to_string(),
            height,
            check: "header-hash".into(),
            message: endpoint.name.scrub(&message),
        };
        let value = cairn_evm::json::parse(text)
            .map_err(|error| inconsistent(near, format!("malformed header: {error}")))?;
        let number = value.get("number").and_then(Value::as_str).and_then(parse_quantity);
        let height = number.map_or(Ok(near), |number| believed(endpoint, number))?;
        cairn_evm::linked_ref_from_rpc(&value, &self.profile)
            .map_err(|error| inconsistent(height, error.to_string()))
    }

    /// The newest height of the first endpoint that says one: a light question for the WebSocket's watchdog.
    pub async fn newest_height(&self) -> Result<Height> {
        let order = self.order(None);
        let memory = self.memory.call();
        let mut failure = None;
        for (at, endpoint) in order.iter().enumerate() {
            let call = Call::new("eth_blockNumber", &[]);
            match endpoint.call(Kind::Header, call, self.patience(&order[at + 1..]), &memory).await {
                Ok(text) => {
                    let number =
                        serde_json::from_slice::<String>(&text).ok().as_deref().and_then(parse_quantity);
                    match number.map(|number| believed(endpoint, number)) {
                        Some(Ok(height)) => return Ok(height),
                        Some(Err(error)) => worst_last(&mut failure, error),
                        None => {
                            let message = "its answer to eth_blockNumber is no height".into();
                            let endpoint = endpoint.name.to_string();
                            worst_last(&mut failure, SourceError::Transient { endpoint, message });
                        }
                    }
                }
                Err(error) => worst_last(&mut failure, error),
            }
        }
        Err(failure.unwrap_or_else(|| self.nobody()))
    }

    /// The blocks of `range` from its start, as many as are there, until their size passes `max_answer_bytes`.
    pub async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        // The semaphore is never closed.
        let _place = self.calls.acquire().await.ok();
        let memory = self.memory.call();
        let mut blocks: Vec<RawBlock> = Vec::new();
        let mut bytes = 0;
        while bytes < self.limits.max_answer_bytes && !memory.has_slot() {
            let at = Height(range.start().get() + blocks.len() as u64);
            if at >= range.end() {
                break;
            }
            let piece =
                HeightRange::new(at, Height(at.get().saturating_add(self.piece_heights())).min(range.end()));
            let more = match self.piece(piece, &memory).await {
                Ok(more) => more,
                Err(error) if blocks.is_empty() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, %at, "a shorter answer after a failure");
                    break;
                }
            };
            let links = match (blocks.last(), more.first()) {
                (Some(before), Some(next)) => before.facts.id == next.facts.parent_id,
                (_, next) => next.is_some(),
            };
            if !links {
                break;
            }
            let whole = more.len() as u64 == piece.len();
            bytes += more.iter().map(RawBlock::size_bytes).sum::<u64>();
            blocks.extend(more);
            if !whole {
                break;
            }
        }
        Ok(blocks)
    }

    /// How many heights one piece has: what fits a batch of blocks at the endpoint that is asked first.
    pub fn piece_heights(&self) -> u64 {
        self.order(None).first().map_or(1, |endpoint| endpoint.width(Kind::Block).items() as u64)
    }

    /// One piece, from the first endpoint that has its beginning. Empty: not here yet.
    async fn piece(&self, range: HeightRange, memory: &Arc<CallMemory>) -> Result<Vec<RawBlock>> {
        let mut order = self.order(Some(range.start()));
        if self.traces {
            // Whoever has traces goes first, and the others follow: a block without traces is better than none.
            order.sort_by_key(|endpoint| endpoint.ways().avoids(Way::Traces));
        }
        let mut failure: Option<SourceError> = None;
        let mut doubtful: Option<(usize, Vec<RawBlock>)> = None;
        for (at, endpoint) in order.iter().enumerate() {
            let patience = self.patience(&order[at + 1..]);
            if let Err(error) = endpoint.ensure_chain(self.chain, patience, memory).await {
                worst_last(&mut failure, error);
                continue;
            }
            let fetch = Fetch {
                endpoint,
                profile: &self.profile,
                traces: self.traces,
                limits: &self.limits,
                patience,
                memory,
            };
            let Part { blocks, stop } = fetch.piece(range).await;
            match stop {
                Some(Stop::Doubtful) => {
                    // The first one's is kept: it is used if nobody has a better one.
                    doubtful.get_or_insert((endpoint.index, blocks));
                }
                Some(Stop::Failed(error)) if blocks.is_empty() => worst_last(&mut failure, error),
                _ if !blocks.is_empty() => {
                    self.remember(range, endpoint.index);
                    self.log_failover(endpoint, at > 0, failure.as_ref());
                    return Ok(blocks);
                }
                _ => {}
            }
        }
        if let Some((index, blocks)) = doubtful {
            // All that answered agree, or there is one endpoint only. The verifier judges by the receipts root.
            self.remember(range, index);
            return Ok(blocks);
        }
        match failure {
            Some(error) => Err(error.at(range.start())),
            None if order.is_empty() => Err(self.nobody()),
            None => Ok(Vec::new()),
        }
    }

    /// An endpoint contradicted itself: it comes after the others for a while, and somebody hears of it.
    pub fn doubt(&self, endpoint: &Endpoint, error: &SourceError) {
        endpoint.distrust(DISTRUST);
        if let Some(held_back) = self.log.open() {
            tracing::warn!(endpoint = %endpoint.name, %error, held_back, "an endpoint's head is not believed");
        }
    }

    fn remember(&self, range: HeightRange, index: usize) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if served.len() >= REMEMBERED_ANSWERS {
            served.pop_front();
        }
        served.push_back((range, index));
    }

    /// The endpoint that gave the block at `height` last.
    pub fn served_by(&self, height: Height) -> Option<&Arc<Endpoint>> {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, index) = served.iter().rev().find(|(range, _)| range.contains(height))?;
        self.endpoints.get(*index)
    }

    /// Whoever served `height` last comes after the others for a while.
    pub fn distrust(&self, height: Height) {
        if let Some(endpoint) = self.served_by(height) {
            endpoint.distrust(DISTRUST);
            endpoint.ways().refuse_receipts(height);
            tracing::debug!(endpoint = %endpoint.name, %height, "a block of it was refused; others go first for a while");
        }
    }

    fn log_failover(&self, endpoint: &Endpoint, in_place_of_another: bool, failure: Option<&SourceError>) {
        if in_place_of_another {
            endpoint.meters.failover();
            if let (Some(error), Some(held_back)) = (failure, self.log.open()) {
                tracing::warn!(endpoint = %endpoint.name, %error, held_back, "another endpoint stepped in");
            }
        }
    }
}

/// A height that an endpoint names.
fn believed(endpoint: &Endpoint, number: u64) -> Result<Height> {
    Height::believable(number)
        .map_err(|error| SourceError::Absurd { endpoint: endpoint.name.to_string(), error })
}

/// Keeps the failure that says best what to do: one that may pass is better than one that won't, since the caller tries again; among equals the first.
pub fn worst_last(kept: &mut Option<SourceError>, new: SourceError) {
    let rank = |error: &SourceError| match error.kind() {
        ErrorKind::Retry | ErrorKind::Wait => 0,
        ErrorKind::GiveUp | ErrorKind::Fenced => 1,
        ErrorKind::Halt => 2,
    };
    if kept.as_ref().is_none_or(|kept| rank(&new) < rank(kept)) {
        *kept = Some(new);
    }
}
