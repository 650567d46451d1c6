//! Filling several ranges at once ahead of the head, at or below finality, and moving the head over what joins.
//!
//! Each worker claims a range, fetches it in order and commits it in batches under its lease's fence; the head advances whenever a
//! commit may have closed a seam. What was filled shows only when the head passes it, so readers see one unbroken
//! archive however the ranges finish. A range given up anywhere is reclaimed from where it stopped.

use cairn_core::{BlockId, ErrorKind, Height, HeightRange};
use cairn_source::Heads;
use cairn_store::{HeadRow, RawLease, StoreError};
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::fetch::{PieceEnd, fetch_in_order};
use super::{FillOptions, Gathered, Ingester, Session, Turn};
use crate::IngestError;

/// How often a seam that doesn't link is fetched again before the ingester halts.
const SEAM_ATTEMPTS: u32 = 3;

impl Ingester {
    /// Frees what a predecessor of the same name left claimed. Only for a store that one process holds.
    pub(super) async fn free_own_leases(&self, fill: &FillOptions) -> Result<(), IngestError> {
        let leases = self.store.snapshot().await?.raw_leases().await?;
        for lease in leases.iter().filter(|lease| lease.owner.starts_with(&fill.owner)) {
            if lease.state == cairn_store::RawLeaseState::Active {
                self.store.release(lease, false).await?;
            }
        }
        Ok(())
    }

    /// Fills ahead where there is enough to do; `None`: too little, or no finality to bound it.
    pub(super) async fn fill_ahead(
        &self,
        session: &mut Session,
        fill: &FillOptions,
        head: &HeadRow,
        heads: &Heads,
        target_inclusive: Height,
        shutdown: &CancellationToken,
    ) -> Result<Option<Turn>, IngestError> {
        let (Some(tip), Some(finalized)) = (head.tip, head.finalized) else { return Ok(None) };
        let stop_exclusive = finalized.height.min(target_inclusive).next();
        let begun = !self.store.snapshot().await?.raw_leases().await?.is_empty();
        let missing = stop_exclusive.since(tip.height.next());
        if !begun && missing < fill.range_heights.saturating_mul(2) {
            return Ok(None);
        }
        tracing::debug!(%stop_exclusive, missing, workers = fill.workers, latest = %heads.latest.block, "filling ahead");
        let joined = tokio::sync::Mutex::new(());
        let workers = (0..fill.workers.max(1))
            .map(|worker| self.fill_worker(session.fence, fill, worker, stop_exclusive, &joined, shutdown));
        let results = join_all(workers).await;
        let mut worked = false;
        for result in results {
            match result {
                Ok(any) => worked |= any,
                Err(IngestError::Store(StoreError::DoesNotLink { first, parent_id, expected })) => {
                    session.seam_attempts += 1;
                    let message =
                        format!("block {first} names parent {parent_id}, the block before is {expected}");
                    if session.seam_attempts >= SEAM_ATTEMPTS {
                        let (at, attempts) = (first.height, session.seam_attempts);
                        return Err(IngestError::Seam { at, attempts, message });
                    }
                    return Ok(Some(Turn::Unsettled(format!("a filled range does not join: {message}"))));
                }
                Err(error) => return Err(error),
            }
        }
        let head = self.store.advance(session.fence).await?;
        self.status.head(&head);
        if head.tip != Some(tip) {
            session.seam_attempts = 0;
            return Ok(Some(Turn::Moved));
        }
        if worked || shutdown.is_cancelled() {
            return Ok(Some(Turn::Moved));
        }
        Ok(Some(Turn::Unsettled("ranges are still leased to another process".into())))
    }

    /// Claims and fills until there is nothing to claim. Says whether it filled anything.
    async fn fill_worker(
        &self,
        head_fence: cairn_core::Fence,
        fill: &FillOptions,
        worker: usize,
        stop_exclusive: Height,
        joined: &tokio::sync::Mutex<()>,
        shutdown: &CancellationToken,
    ) -> Result<bool, IngestError> {
        let owner = format!("{}/{worker}", fill.owner);
        let mut worked = false;
        while !shutdown.is_cancelled() {
            let claimed =
                self.store.claim_range(&owner, fill.lease_ttl_ms, fill.range_heights, stop_exclusive).await?;
            let Some(lease) = claimed else { break };
            match self.fill_lease(head_fence, fill, lease, joined, shutdown).await {
                Ok(()) => worked = true,
                // Somebody else took the lease over: it is their work now (law 5).
                Err(IngestError::Store(StoreError::Fenced { .. })) if !self.head_lost(head_fence).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(worked)
    }

    async fn head_lost(&self, head_fence: cairn_core::Fence) -> Result<bool, IngestError> {
        Ok(self.store.snapshot().await?.head().fence != head_fence)
    }

    async fn fill_lease(
        &self,
        head_fence: cairn_core::Fence,
        fill: &FillOptions,
        mut lease: RawLease,
        joined: &tokio::sync::Mutex<()>,
        shutdown: &CancellationToken,
    ) -> Result<(), IngestError> {
        let begun_at = lease.done_to;
        let result = self.fill_range(head_fence, fill, &mut lease, joined, shutdown).await;
        let finished = lease.done_to >= lease.range.end();
        let fenced = matches!(&result, Err(error) if error.kind() == ErrorKind::Fenced);
        if !finished && !fenced {
            let transient = result.as_ref().err().is_none_or(|error| error.kind().is_retryable());
            let bad_end = !transient && lease.done_to == begun_at;
            if let Err(error) = self.store.release(&lease, bad_end).await {
                // It expires by itself; the first failure is what the caller should hear of.
                tracing::debug!(%error, range = %lease.range, "could not give the lease back");
            }
        }
        result
    }

    async fn fill_range(
        &self,
        head_fence: cairn_core::Fence,
        fill: &FillOptions,
        lease: &mut RawLease,
        joined: &tokio::sync::Mutex<()>,
        shutdown: &CancellationToken,
    ) -> Result<(), IngestError> {
        let range = HeightRange::new(lease.done_to, lease.range.end());
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let share = self.options.fetches_in_flight.div_ceil(fill.workers.max(1));
        let fetching = fetch_in_order(self.source.clone(), range, share, self.budget.clone(), sender);
        let filling = async {
            while let Some(first) = pieces.recv().await {
                let mut gathered = Gathered::new(first);
                while gathered.may_grow(&self.options) {
                    match pieces.try_recv() {
                        Ok(piece) => gathered.add(piece),
                        Err(_) => break,
                    }
                }
                let Gathered { mut blocks, reservations, end, bytes } = gathered;
                let linked = linked_after(lease.last_id, lease.done_to, &blocks);
                let broken = blocks.get(linked).map(|block| block.block_ref());
                blocks.truncate(linked);
                if !blocks.is_empty() {
                    let count = blocks.len() as u64;
                    let transactions = blocks.iter().map(|block| block.transactions.len() as u64).sum();
                    *lease = self.store.fill(lease, blocks, fill.lease_ttl_ms).await?;
                    self.status.committed(count, transactions, bytes, self.source.bound_by());
                    let _one_at_a_time = joined.lock().await;
                    let head = self.store.advance(head_fence).await?;
                    self.status.head(&head);
                }
                drop(reservations);
                if let Some(block) = broken {
                    let message = format!("block {block} does not follow the block before it");
                    return Err(transient(message));
                }
                match end {
                    PieceEnd::Whole => {}
                    PieceEnd::NotYet(height) => {
                        return Err(transient(format!(
                            "height {height} is final, but the node does not have it"
                        )));
                    }
                    PieceEnd::Failed(error) => return Err(error.into()),
                }
                if shutdown.is_cancelled() {
                    break;
                }
            }
            Ok(())
        };
        tokio::pin!(filling);
        tokio::select! {
            biased;
            result = &mut filling => result,
            () = fetching => filling.await,
        }
    }
}

fn transient(message: String) -> IngestError {
    cairn_source::SourceError::Transient { endpoint: "the source".into(), message }.into()
}

/// How many of `blocks` follow `last_id` at `at` and each other.
fn linked_after(last_id: Option<BlockId>, at: Height, blocks: &[cairn_core::RawBlock]) -> usize {
    let (mut before, mut height) = (last_id, at);
    for (index, block) in blocks.iter().enumerate() {
        if block.facts.height != height || before.is_some_and(|id| block.facts.parent_id != id) {
            return index;
        }
        before = Some(block.facts.id);
        height = height.next();
    }
    blocks.len()
}
