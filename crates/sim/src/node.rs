//! A load balancer in front of nodes that lag, stick, lie and time out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_source::evm::synthetic::{SyntheticChain, View};
use cairn_source::{ChainSource, Heads, Result, SourceError};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::plan::Plan;

/// The source of one run. Every answer is that of one node at one moment, with the plan's faults.
pub struct FaultyNodes {
    chain: Arc<SyntheticChain>,
    plan: Arc<Plan>,
    began: Instant,
    rng: Mutex<SmallRng>,
}

impl FaultyNodes {
    /// Nodes that play `plan` from `began` on.
    pub fn new(chain: Arc<SyntheticChain>, plan: Arc<Plan>, began: Instant) -> Self {
        let rng = Mutex::new(SmallRng::seed_from_u64(plan.seed ^ 0x0dd5));
        FaultyNodes { chain, plan, began, rng }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut SmallRng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn is_quiet(&self) -> bool {
        let now_ms = self.now_ms();
        let calm = self.plan.calm_ms.is_some_and(|(from, to)| (from..to).contains(&now_ms));
        calm || now_ms >= self.plan.quiet_from_ms
    }

    /// What the node that got this call sees.
    fn view(&self) -> View {
        let now_ms = self.now_ms();
        if self.is_quiet() {
            return self.chain_at(now_ms);
        }
        let node = &self.plan.nodes[self.draw(|rng| rng.random_range(0..self.plan.nodes.len()))];
        let seen_ms = match node.stuck_ms {
            Some((from, to)) if (from..to).contains(&now_ms) => from,
            _ => now_ms,
        };
        self.chain_at(seen_ms.saturating_sub(node.lag_ms))
    }

    fn chain_at(&self, at_ms: u64) -> View {
        let moments = &self.plan.moments;
        let seen = moments.iter().rev().find(|moment| moment.at_ms <= at_ms).unwrap_or(&moments[0]);
        seen.view
    }

    fn strikes(&self, per_thousand: u32) -> bool {
        !self.is_quiet() && per_thousand > 0 && self.draw(|rng| rng.random_range(0..1_000) < per_thousand)
    }

    /// The way to the node and back, with what may go wrong on it.
    async fn travel(&self) -> Result<()> {
        let latency_ms = self.draw(|rng| rng.random_range(1..40));
        tokio::time::sleep(Duration::from_millis(latency_ms)).await;
        let now_ms = self.now_ms();
        if self.plan.refused_ms.is_some_and(|(from, to)| (from..to).contains(&now_ms)) && !self.is_quiet() {
            return Err(SourceError::Permanent { endpoint: "node".into(), message: "HTTP 402".into() });
        }
        if self.strikes(self.plan.faults.rate_limited) {
            let retry_after_ms = self.draw(|rng| rng.random_bool(0.5).then(|| rng.random_range(100..3_000)));
            return Err(SourceError::RateLimited {
                endpoint: "node".into(),
                message: "too many requests".into(),
                retry_after_ms,
            });
        }
        if self.strikes(self.plan.faults.timeout) {
            let wait_ms = self.draw(|rng| rng.random_range(1_000..20_000));
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            return Err(SourceError::Transient { endpoint: "node".into(), message: "timed out".into() });
        }
        Ok(())
    }

    /// Another fork's block at this height.
    fn foreign(&self, block: &RawBlock) -> Option<Arc<RawBlock>> {
        self.plan
            .moments
            .iter()
            .map(|moment| self.chain.block(moment.view.fork, block.facts.height))
            .find(|other| other.facts.id != block.facts.id)
    }

    fn spoil(&self, block: &mut RawBlock) {
        let faults = &self.plan.faults;
        if self.strikes(faults.foreign_receipts)
            && let Some(foreign) = self.foreign(block)
        {
            block.receipts = foreign.receipts.clone();
            block.log_terms = foreign.log_terms.clone();
            block.facts.log_count = foreign.facts.log_count;
        }
        if self.strikes(faults.empty_receipts) && !block.transactions.is_empty() {
            block.receipts = Bytes::from_static(&[0xc0]);
            block.log_terms.clear();
            block.facts.log_count = 0;
        }
        if self.strikes(faults.wrong_sender)
            && let Some(tx) = block.transactions.first_mut()
        {
            tx.sender = Bytes::from_static(&[0x66; 20]);
        }
    }
}

#[async_trait]
impl ChainSource for FaultyNodes {
    async fn chain_id(&self) -> Result<ChainId> {
        self.travel().await?;
        Ok(self.chain.chain_id())
    }

    async fn heads(&self) -> Result<Heads> {
        self.travel().await?;
        let view = if self.strikes(self.plan.faults.stale_head) {
            let upto = self.draw(|rng| rng.random_range(0..=self.now_ms()));
            self.chain_at(upto)
        } else {
            self.view()
        };
        let mut heads = view.heads(&self.chain);
        if self.strikes(self.plan.faults.false_finality)
            && let Some(mark) = &mut heads.finalized
        {
            mark.id.0[31] ^= 0xff;
        }
        Ok(heads)
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.travel().await?;
        if self.strikes(self.plan.faults.missing) {
            return Ok(None);
        }
        Ok(self.view().linked_ref(&self.chain, height))
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        self.travel().await?;
        let faults = &self.plan.faults;
        if self.strikes(faults.missing) {
            return Ok(Vec::new());
        }
        let mut blocks = self.view().blocks(&self.chain, range, self.plan.preferred_heights);
        if self.strikes(faults.partial) && !blocks.is_empty() {
            let keep = self.draw(|rng| rng.random_range(0..=blocks.len()));
            blocks.truncate(keep);
        }
        if self.strikes(faults.shuffled) {
            self.draw(|rng| blocks.shuffle(rng));
        }
        blocks.iter_mut().for_each(|block| self.spoil(block));
        Ok(blocks)
    }

    fn preferred_heights(&self) -> u64 {
        self.plan.preferred_heights
    }
}
