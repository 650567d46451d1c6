//! What the endpoints say of the tip, made into one answer that the ingester can rely on (field cases E20, E21).
//!
//! **Which head.** All endpoints that take requests are asked at once, each in one batch. The answer is the head of the *leader*: the most preferred endpoint
//! that is at most [`MAX_LAG_HEIGHTS`] behind the highest, and not behind what was answered before. The leader is then asked first for headers and blocks, so
//! an announced head is one that the endpoint asked for blocks can serve.
//!
//! **Tags.** `safe` and `finalized` are asked for with the first look at an endpoint, and again once its head is another one: between two heads they
//! don't move.
//!
//! **Lag.** A lower head of another endpoint is lag, and shows in a metric. The answer goes back only when every endpoint that takes requests says so.
//! When the endpoint that announced the last answer doesn't answer this time, that answer holds for [`HEAD_MEMORY`].
//!
//! **Finality.** See [`FinalityPolicy`]. Never above `latest`, never lower than answered before (unless `latest` itself fell below it).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{BlockRef, Height, LinkedRef};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use super::batch::Kind;
use super::classify::{ErrorClass, Hint};
use super::config::FinalityPolicy;
use super::endpoint::{CallError, Endpoint, Patience, Way, is_null};
use super::limiter::Readiness;
use super::memory::CallMemory;
use super::pool::{Pool, worst_last};
use super::wire::Call;
use crate::{Heads, Result, SourceError};

/// How far the preferred endpoint may be behind before another one leads.
const MAX_LAG_HEIGHTS: u64 = 1;
/// How long the others are waited for once one has answered.
const GRACE: Duration = Duration::from_millis(1_500);
/// How long an answer holds while the endpoint that gave it is silent.
const HEAD_MEMORY: Duration = Duration::from_secs(30);

/// What is remembered from answer to answer.
#[derive(Debug, Default)]
pub struct HeadMemory {
    last: Option<(Heads, usize, Instant)>,
    finalized: Option<BlockRef>,
    /// Whether the chain has ever answered the tag.
    tag_seen: bool,
    /// What each endpoint said last, by its place.
    tips: HashMap<usize, Tip>,
}

/// What a tag gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Found(BlockRef),
    /// The chain doesn't have it, or has nothing under it.
    Absent,
    /// It could not be found out.
    Unknown,
}

/// One endpoint's tip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tip {
    latest: LinkedRef,
    safe: Tag,
    finalized: Tag,
}

impl Pool {
    /// The tip; see the module's text.
    pub async fn heads(&self, policy: FinalityPolicy, memory: &mut HeadMemory) -> Result<Heads> {
        let call_memory = self.memory.call();
        let (tips, failure, all_answered) = self.ask_all(policy, &memory.tips, &call_memory).await;
        let mut unchanged = HashSet::new();
        for (endpoint, tip) in &tips {
            if memory.tips.insert(endpoint.index, *tip) == Some(*tip) {
                unchanged.insert(endpoint.index);
            }
        }
        let Some(highest) = tips.iter().map(|(_, tip)| tip.latest.block.height).max() else {
            return Err(failure.unwrap_or_else(|| SourceError::Invalid("no endpoint is configured".into())));
        };
        for (endpoint, tip) in &tips {
            let height = tip.latest.block.height;
            endpoint.set_head(height);
            endpoint.meters.head(height.get(), highest.since(height));
        }
        if let Some((last, leader, when)) = &memory.last
            && highest < last.latest.block.height
            && !all_answered
            && when.elapsed() < HEAD_MEMORY
            && !tips.iter().any(|(endpoint, _)| endpoint.index == *leader)
            && self.takes_requests(*leader)
        {
            return Ok(*last);
        }
        let before = memory.last.as_ref().map_or(Height::ZERO, |(last, ..)| last.latest.block.height);
        let least = highest.saturating_sub(MAX_LAG_HEIGHTS).max(before.min(highest));
        let leader = tips
            .iter()
            .filter(|(endpoint, tip)| tip.latest.block.height >= least && !endpoint.is_distrusted())
            .chain(tips.iter().filter(|(_, tip)| tip.latest.block.height == highest))
            .next();
        let Some((endpoint, tip)) = leader else {
            return Err(SourceError::Invalid("no endpoint is configured".into()));
        };
        self.leader.store(endpoint.index, Ordering::Release);
        let latest = tip.latest;
        // The same words of the same endpoint: what is final by depth isn't asked for again either.
        if let Some((last, leader, when)) = &mut memory.last
            && unchanged.contains(&endpoint.index)
            && *leader == endpoint.index
            && last.latest == latest
            && last.finalized.is_some()
        {
            *when = Instant::now();
            return Ok(*last);
        }
        let not_above = |tag: Tag| match tag {
            Tag::Found(block) if block.height <= latest.block.height => Some(block),
            _ => None,
        };
        let finalized = self.finalized(policy, endpoint, tip, memory, &call_memory).await;
        let heads = Heads { latest, safe: not_above(tip.safe), finalized };
        memory.last = Some((heads, endpoint.index, Instant::now()));
        Ok(heads)
    }

    fn takes_requests(&self, index: usize) -> bool {
        self.endpoints.get(index).is_some_and(|endpoint| {
            endpoint.wrong_chain().is_none() && !matches!(endpoint.readiness(), Readiness::Paused(_))
        })
    }

    /// Asks every endpoint that takes requests, in order of preference in the answer. Also: the failure to report if nobody answered, and whether
    /// all of them answered.
    async fn ask_all(
        &self,
        policy: FinalityPolicy,
        before: &HashMap<usize, Tip>,
        memory: &Arc<CallMemory>,
    ) -> (Vec<(Arc<Endpoint>, Tip)>, Option<SourceError>, bool) {
        let order = self.order(None);
        let ready: Vec<_> = order
            .iter()
            .filter(|endpoint| !matches!(endpoint.readiness(), Readiness::Paused(_)))
            .cloned()
            .collect();
        // Everybody pauses: wait for the one that comes back first.
        let asked = if ready.is_empty() { order.into_iter().take(1).collect() } else { ready };
        let patience = if asked.len() > 1 {
            Patience { attempts: 2, max_wait: Duration::ZERO }
        } else {
            self.patience(&[])
        };
        let count = asked.len();
        let mut asking: FuturesUnordered<_> = asked
            .into_iter()
            .map(|endpoint| async move {
                let before = before.get(&endpoint.index).copied();
                let tip = self.ask_tip(&endpoint, policy, before, patience, memory).await;
                (endpoint, tip)
            })
            .collect();
        let (mut tips, mut failure) = (Vec::with_capacity(count), None);
        let mut deadline = None;
        loop {
            let next = match deadline {
                None => asking.next().await,
                Some(deadline) => match tokio::time::timeout_at(deadline, asking.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            let Some((endpoint, tip)) = next else { break };
            match tip {
                Ok(tip) => {
                    deadline = deadline.or_else(|| Some(Instant::now() + GRACE));
                    tips.push((endpoint, tip));
                }
                Err(error) => {
                    if matches!(error, SourceError::Inconsistent { .. } | SourceError::Absurd { .. }) {
                        self.doubt(&endpoint, &error);
                    }
                    worst_last(&mut failure, error);
                }
            }
        }
        tips.sort_by_key(|(endpoint, _)| endpoint.index);
        let all_answered = tips.len() == count;
        if count == 0 {
            failure = Some(self.nobody());
        }
        (tips, failure, all_answered)
    }

    /// One endpoint's tip. The tags are asked for together with the first look, and then whenever its head is another one.
    async fn ask_tip(
        &self,
        endpoint: &Endpoint,
        policy: FinalityPolicy,
        before: Option<Tip>,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Result<Tip> {
        endpoint.ensure_chain(self.chain, patience, memory).await?;
        let tag = |name: &str| Call::new("eth_getBlockByNumber", &[&format!("\"{name}\""), "false"]);
        let ask_safe = !endpoint.ways().avoids(Way::SafeTag);
        let ask_finalized = policy.uses_tag() && !endpoint.ways().avoids(Way::FinalizedTag);
        let mut tags = Vec::new();
        tags.extend(ask_safe.then(|| tag("safe")));
        tags.extend(ask_finalized.then(|| tag("finalized")));
        let mut calls = vec![tag("latest")];
        if before.is_none() {
            calls.append(&mut tags);
        }
        let mut results = endpoint.call_many(Kind::Header, &calls, patience, memory).await.into_iter();
        let near = endpoint.head().unwrap_or(Height::ZERO);
        let latest = match results.next() {
            Some(Ok(text)) if !is_null(&text) => self.read_header(endpoint, near, &text)?,
            Some(Err(error)) => return Err(endpoint.error(error)),
            _ => {
                return Err(SourceError::Transient {
                    endpoint: endpoint.name.to_string(),
                    message: "it has no latest block: it is starting, or behind a balancer that mixes nodes"
                        .into(),
                });
            }
        };
        if let Some(before) = before {
            let is_known = before.safe != Tag::Unknown && before.finalized != Tag::Unknown;
            if before.latest == latest && is_known {
                return Ok(before);
            }
            results = endpoint.call_many(Kind::Header, &tags, patience, memory).await.into_iter();
        }
        let mut tag = |asked: bool, way: Way| match asked.then(|| results.next()).flatten() {
            Some(result) => self.read_tag(endpoint, near, result, way),
            None => Tag::Absent,
        };
        let safe = tag(ask_safe, Way::SafeTag);
        let finalized = tag(ask_finalized, Way::FinalizedTag);
        Ok(Tip { latest, safe, finalized })
    }

    fn read_tag(&self, endpoint: &Endpoint, near: Height, result: Result<Bytes, CallError>, way: Way) -> Tag {
        match result {
            Ok(text) if is_null(&text) => Tag::Absent,
            Ok(text) => match self.read_header(endpoint, near, &text) {
                Ok(found) => Tag::Found(found.block),
                Err(error) => {
                    match error {
                        SourceError::Absurd { .. } => self.doubt(endpoint, &error),
                        _ => {
                            tracing::debug!(endpoint = %endpoint.name, %error, "a tag's block can't be read")
                        }
                    }
                    Tag::Unknown
                }
            },
            // "Unknown block", "invalid argument", exception texts: chains say in many ways that they have no such tag.
            Err(error) if error.class == ErrorClass::Refused && error.hint != Hint::Refused => {
                endpoint.note(way, &error);
                Tag::Absent
            }
            Err(error) if error.class == ErrorClass::Transient && error.answered => Tag::Absent,
            Err(_) => Tag::Unknown,
        }
    }

    async fn finalized(
        &self,
        policy: FinalityPolicy,
        endpoint: &Endpoint,
        tip: &Tip,
        memory: &mut HeadMemory,
        call_memory: &Arc<CallMemory>,
    ) -> Option<BlockRef> {
        let latest = tip.latest.block;
        let tagged = match tip.finalized {
            Tag::Found(block) => {
                memory.tag_seen = true;
                // Above its own head: a balancer that mixes nodes, or nonsense.
                Some(block).filter(|block| block.height <= latest.height)
            }
            Tag::Absent | Tag::Unknown => None,
        };
        let depth_counts = match (tip.finalized, policy) {
            (_, FinalityPolicy::Tag) => false,
            (_, FinalityPolicy::Depth(_)) => true,
            // The more careful of both wins; one of them alone is only careful where the other one can't exist.
            (Tag::Found(_), FinalityPolicy::Both(_)) => true,
            (Tag::Absent, FinalityPolicy::Both(_)) => !memory.tag_seen,
            (Tag::Unknown, FinalityPolicy::Both(_)) => false,
        };
        let deep = policy
            .depth_heights()
            .filter(|_| depth_counts)
            .and_then(|depth| latest.height.get().checked_sub(depth))
            .map(Height);
        let found = match (tagged, deep) {
            (Some(tagged), Some(deep)) if deep >= tagged.height => Some(tagged),
            (Some(tagged), None) if policy == FinalityPolicy::Tag => Some(tagged),
            (_, Some(deep)) if deep == latest.height => Some(latest),
            (_, Some(deep)) => {
                let patience = Patience { attempts: 2, max_wait: Duration::ZERO };
                match self.header(endpoint, deep, patience, call_memory).await {
                    Ok(found) => found.map(|found| found.block),
                    Err(error) => {
                        tracing::debug!(endpoint = %endpoint.name, %error, height = %deep, "the finalised block is not known now");
                        None
                    }
                }
            }
            // `latest` is less deep than the depth: nothing is final yet.
            (_, None) => None,
        };
        let kept = memory.finalized.filter(|kept| kept.height <= latest.height);
        let best = match (kept, found) {
            (Some(kept), Some(found)) if found.height <= kept.height => Some(kept),
            (kept, found) => found.or(kept),
        };
        memory.finalized = best.or(memory.finalized);
        best
    }
}
