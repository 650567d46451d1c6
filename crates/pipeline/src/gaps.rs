//! What the raw store lacks of what the node has: stretches of heights from the archive's first block up to the node's head.
//!
//! The upper bound is asked of the node by itself, so that a gap shows though the ingester stands still (I05). A gap is closed by the transaction that stores its
//! blocks: there is no list that could say something else than the store. Ranges that failed too often, and so are filled by nobody, are named beside.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{Clock, Height, HeightRange};
use cairn_source::{ChainSource, SourceError};
use cairn_store::{HeadRow, RawLease, RawReader, StoreError};
use tokio_util::sync::CancellationToken;

use crate::ingest::Reports;

/// How many looks are remembered, to tell how old a gap is.
const MAX_LOOKS: usize = 1_024;

/// The heights in `[next, end)` that are not stored: those below the tip all are, and above it those that ranges which were filled ahead hold.
pub fn gaps(head: &HeadRow, leases: &[RawLease], end: Height) -> Vec<HeightRange> {
    let Some(tip) = head.tip else { return Vec::new() };
    let mut filled: Vec<HeightRange> = leases
        .iter()
        .map(|lease| HeightRange::new(lease.range.start(), lease.done_to))
        .filter(|filled| !filled.is_empty())
        .collect();
    filled.sort_by_key(|filled| filled.start());
    let mut gaps = Vec::new();
    let mut next = tip.height.next();
    for filled in filled {
        let gap = HeightRange::new(next, filled.start().min(end).max(next));
        if !gap.is_empty() {
            gaps.push(gap);
        }
        next = next.max(filled.end());
    }
    if next < end {
        gaps.push(HeightRange::new(next, end));
    }
    gaps
}

/// Since when heights are known to be there for the taking.
#[derive(Debug, Default)]
pub struct GapAges {
    /// Where the node's head was, and when; ascending in both.
    looks: VecDeque<(Height, u64)>,
}

impl GapAges {
    /// The node has everything below `end` now. How long the oldest of these gaps has been known, in milliseconds; 0 without any.
    pub fn look(&mut self, end: Height, gaps: &[HeightRange], now_ms: u64) -> u64 {
        let Some(oldest) = gaps.first() else {
            self.looks.clear();
            return 0;
        };
        if self.looks.back().is_none_or(|(highest, _)| *highest < end) {
            if self.looks.len() == MAX_LOOKS {
                // Every second one is enough, and the first, which says how old the oldest gap is. Those between say a later time by some looks.
                let kept = self.looks.iter().copied().enumerate().filter(|(at, _)| at % 2 == 0);
                self.looks = kept.map(|(_, look)| look).collect();
            }
            self.looks.push_back((end, now_ms));
        }
        while self.looks.front().is_some_and(|(seen, _)| *seen <= oldest.start()) {
            self.looks.pop_front();
        }
        self.looks.front().map_or(0, |(_, at_ms)| now_ms.saturating_sub(*at_ms))
    }
}

/// After which time a range that waits for an operator is named again, in milliseconds.
const TELL_AGAIN_MS: u64 = 60_000;

/// Why there was no look.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node could not be asked.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Looks for gaps at intervals and says what it finds in metrics.
#[derive(Clone)]
pub struct GapWatch {
    /// The node.
    pub source: Arc<dyn ChainSource>,
    /// The raw store.
    pub store: Arc<dyn RawReader>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Heights above this one are not wanted.
    pub stop_inclusive: Option<Height>,
    /// How often it looks.
    pub every: Duration,
    /// Hears of ranges that wait for an operator.
    pub reports: Reports,
}

impl GapWatch {
    /// Looks until told to stop. What can't be looked at keeps its last value and is looked at again.
    pub async fn run(self, stop: CancellationToken) {
        let mut ages = GapAges::default();
        let mut told = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                looked = self.look_for_dead(&mut told) => {
                    if let Err(error) = looked {
                        tracing::debug!(%error, "it can't be said now which ranges wait for an operator");
                    }
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                looked = self.look(&mut ages) => {
                    if let Err(error) = looked {
                        tracing::debug!(%error, "it can't be said now what the archive lacks");
                    }
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// Counts ranges that failed too often, and names each when it is found and now and then again. Asks no node: it may be away.
    async fn look_for_dead(&self, told: &mut BTreeMap<Height, u64>) -> Result<(), StoreError> {
        let snapshot = match self.store.snapshot().await {
            Ok(snapshot) => snapshot,
            // Nobody has made it yet.
            Err(StoreError::Invalid(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut dead = snapshot.raw_leases().await?;
        drop(snapshot);
        dead.retain(RawLease::is_dead);
        metrics::gauge!("cairn_raw_dead_leases").set(dead.len() as f64);
        told.retain(|start, _| dead.iter().any(|lease| lease.range.start() == *start));
        let now_ms = self.clock.now_ms();
        for lease in &dead {
            let start = lease.range.start();
            if told.get(&start).is_some_and(|at_ms| now_ms.saturating_sub(*at_ms) < TELL_AGAIN_MS) {
                continue;
            }
            told.insert(start, now_ms);
            let why = format!(
                "heights {} failed {} times and wait for an operator: {}",
                lease.range, lease.attempt, lease.last_error
            );
            self.reports.fatal(lease.done_to, why);
            tracing::error!(
                range = %lease.range,
                done_to = %lease.done_to,
                attempt = lease.attempt,
                owner = lease.owner,
                error = lease.last_error,
                "CRITICAL: a range of blocks failed too often to be filled, and the archive can't go on above it. Mend the cause, then `cairn leases retry raw:{start}`"
            );
        }
        Ok(())
    }

    async fn look(&self, ages: &mut GapAges) -> Result<(), LookError> {
        // The node first: what it has by then may be stored meanwhile, and is no gap.
        let head = self.source.heads().await?.latest.block.height;
        let end = self.stop_inclusive.map_or(head, |stop| stop.min(head)).next();
        let snapshot = match self.store.snapshot().await {
            Ok(snapshot) => snapshot,
            // Nobody has made it yet.
            Err(StoreError::Invalid(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let gaps = gaps(snapshot.head(), &snapshot.raw_leases().await?, end);
        let age_ms = ages.look(end, &gaps, self.clock.now_ms());
        metrics::gauge!("cairn_raw_gaps").set(gaps.len() as f64);
        metrics::gauge!("cairn_raw_gap_heights").set(gaps.iter().map(|gap| gap.len()).sum::<u64>() as f64);
        metrics::gauge!("cairn_raw_gap_age_seconds").set(age_ms as f64 / 1_000.0);
        Ok(())
    }
}
