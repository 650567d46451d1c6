//! Filling several ranges at once ahead of the head, at or below finality, and moving the head over what joins.
//!
//! Each worker claims a range, fetches it in order and commits it in batches under its lease's fence; the head advances whenever a
//! commit may have closed a seam. What was filled shows only when the head passes it, so readers see one unbroken
//! archive however the ranges finish. A range given up anywhere is reclaimed from where it stopped.
//!
//! A lease is renewed for as long as its blocks are on their way, so that a slow node makes no range look abandoned. Who can't renew it drops
//! its work before the lease expires, and begins no write under it from then on (law 5, [`crate::term`]). One that a dead
//! process left is a bad end where nothing of it was done: a range that ends every process that fills it has to be dead at some time,
//! however fast the next one is there.

use cairn_core::{BlockId, BlockRef, ErrorKind, Height, HeightRange, RawBlock};
use cairn_source::Heads;
use cairn_store::derived::MAX_ATTEMPTS;
use cairn_store::{RangeEnd, RawLease, RawLeaseState, StoreError};
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fetch::{PieceEnd, fetch_in_order};
use super::{FillOptions, Gathered, Ingester, Session, Turn};
use crate::IngestError;
use crate::term::{LeaseTerm, Lost};

/// How often in a row, without the tip moving, a seam that doesn't link is fetched again before the ingester halts.
const SEAM_ATTEMPTS: u32 = 20;

/// What filling ahead came to.
pub(super) enum FillTurn {
    /// Nothing to fill: append in order, up to this height.
    AppendTo(Height),
    /// It did this.
    Did(Turn),
}

/// What workers that fill share.
struct Joining {
    /// The head advances for one of them at a time.
    one_at_a_time: tokio::sync::Mutex<()>,
    /// What the source called final when they began.
    finalized: Option<BlockRef>,
}

impl Ingester {
    /// Frees what a predecessor of the same name left claimed, so that nobody waits until it expires. To be called by whoever has just
    /// become the store's ingester: the predecessor is dead, or ends at its next step since the head's fence is another's, and what it
    /// still commits is fenced by the lease's new fence.
    ///
    /// It is the end that an expired lease would have come to, and counts as that does: an attempt where nothing was done since the claim.
    pub(super) async fn free_own_leases(&self) -> Result<(), IngestError> {
        let fill = self.options.fill.clone().unwrap_or_default();
        let leases = self.store.snapshot().await?.raw_leases().await?;
        for lease in leases.iter().filter(|lease| lease.state == RawLeaseState::Active && is_of(&fill, lease))
        {
            let end = RangeEnd::Bad(format!("{} ended without giving it back", lease.owner));
            match self.store.release(lease, end).await {
                Ok(()) => {}
                // It was given back, or completed and passed, since it was read.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    tracing::debug!(%error, "a lease of before is nobody's any more");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills ahead where there is enough to do, or where ranges were begun; else says how far to append in order.
    pub(super) async fn fill_ahead(
        &self,
        session: &mut Session,
        tip: BlockRef,
        heads: &Heads,
        target_inclusive: Height,
        shutdown: &CancellationToken,
    ) -> Result<FillTurn, IngestError> {
        let leases = self.store.snapshot().await?.raw_leases().await?;
        let lowest = leases.iter().map(|lease| lease.range.start()).min();
        if let Some(before) = lowest.and_then(Height::prev).filter(|before| *before > tip.height) {
            // A rollback or a seam that was given up left a hole below the ranges: it is closed in order.
            return Ok(FillTurn::AppendTo(before.min(target_inclusive)));
        }
        let highest = leases.iter().map(|lease| lease.range.end()).max();
        let fill = match &self.options.fill {
            Some(fill) => fill.clone(),
            // Ranges that another process with other settings began are finished.
            None if lowest.is_some() => FillOptions { workers: 1, ..FillOptions::default() },
            None => return Ok(FillTurn::AppendTo(target_inclusive)),
        };
        let settled = heads.finalized.map_or(Height::ZERO, |mark| mark.height.min(target_inclusive).next());
        let wanted = if self.options.fill.is_some() { settled } else { Height::ZERO };
        let stop_exclusive = wanted.max(highest.unwrap_or(Height::ZERO));
        let missing = stop_exclusive.since(tip.height.next());
        if lowest.is_none() && missing < fill.range_heights.saturating_mul(2) {
            return Ok(FillTurn::AppendTo(target_inclusive));
        }
        self.fill_up_to(session, &fill, tip, heads, stop_exclusive, shutdown).await.map(FillTurn::Did)
    }

    async fn fill_up_to(
        &self,
        session: &mut Session,
        fill: &FillOptions,
        tip: BlockRef,
        heads: &Heads,
        stop_exclusive: Height,
        shutdown: &CancellationToken,
    ) -> Result<Turn, IngestError> {
        let missing = stop_exclusive.since(tip.height.next());
        tracing::debug!(%stop_exclusive, missing, workers = fill.workers, "filling ahead");
        let joined = Joining { one_at_a_time: tokio::sync::Mutex::new(()), finalized: heads.finalized };
        // The first failure ends all: what lies above a seam that doesn't link may have to be thrown away.
        let enough = shutdown.child_token();
        let (head_fence, joined, stop) = (session.fence, &joined, &enough);
        let workers = (0..fill.workers.max(1)).map(|worker| async move {
            let done = self.fill_worker(head_fence, fill, worker, stop_exclusive, joined, stop).await;
            if done.is_err() {
                stop.cancel();
            }
            done
        });
        let mut worked = false;
        let mut broken_seam = None;
        for result in join_all(workers).await {
            match result {
                Ok(any) => worked |= any,
                Err(error) => broken_seam = Some(seam(error)?),
            }
        }
        match self.store.advance(session.fence).await {
            Ok(head) => self.status.head(&head),
            Err(error) => broken_seam = Some(seam(error.into())?),
        }
        let head = self.settled_head(session).await?;
        if head.tip != Some(tip) {
            session.seam_attempts = 0;
            return Ok(Turn::Moved);
        }
        let Some((at, message)) = broken_seam else {
            return Ok(if worked || shutdown.is_cancelled() {
                Turn::Moved
            } else {
                Turn::Unsettled(self.why_nothing_was_filled().await?)
            });
        };
        session.seam_attempts += 1;
        let attempts = session.seam_attempts;
        if attempts >= SEAM_ATTEMPTS {
            return Err(IngestError::Seam { at, attempts, message });
        }
        tracing::warn!(message, attempts, "a filled range does not join; it is fetched again");
        // Either side may have come from a node on a dead fork. The range above is given up already; whether the tip stands
        // is a question of its own.
        let is_boundary = at == tip.height.next() && self.source.boundary_setting(at, tip).is_some();
        let above = if is_boundary { self.source.linked_ref(at).await? } else { None };
        self.resolve_fork(session, &head, heads, above).await
    }

    async fn why_nothing_was_filled(&self) -> Result<String, IngestError> {
        let leases = self.store.snapshot().await?.raw_leases().await?;
        Ok(match leases.iter().find(|lease| lease.is_dead()) {
            Some(dead) => format!(
                "heights {} failed {} times and wait for an operator: `cairn leases retry raw:{}`",
                dead.range,
                dead.attempt,
                dead.range.start()
            ),
            None => "ranges are still leased to another process".into(),
        })
    }

    /// Claims and fills until there is nothing to claim. Says whether it filled anything.
    async fn fill_worker(
        &self,
        head_fence: cairn_core::Fence,
        fill: &FillOptions,
        worker: usize,
        stop_exclusive: Height,
        joined: &Joining,
        shutdown: &CancellationToken,
    ) -> Result<bool, IngestError> {
        let owner = owner_of(fill, worker);
        let mut worked = false;
        while !shutdown.is_cancelled() {
            // Processes end while these ranges are worked on, and which of them is to blame isn't known: one at a time, so that those that
            // aren't get further and no count of theirs goes on.
            if worker > 0 && self.are_ends_many().await? {
                break;
            }
            let asked_at = Instant::now();
            let claimed =
                self.store.claim_range(&owner, fill.lease_ttl_ms, fill.range_heights, stop_exclusive).await?;
            let Some(lease) = claimed else { break };
            match self.fill_lease(head_fence, fill, lease, asked_at, joined, shutdown).await {
                Ok(()) => worked = true,
                // Somebody else took the lease over: it is their work now (law 5).
                Err(IngestError::Store(StoreError::Fenced { .. })) if !self.head_lost(head_fence).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(worked)
    }

    /// Whether a range that is still tried has ended badly half as often as it may.
    async fn are_ends_many(&self) -> Result<bool, IngestError> {
        let leases = self.store.snapshot().await?.raw_leases().await?;
        Ok(leases.iter().any(|lease| !lease.is_dead() && lease.attempt >= MAX_ATTEMPTS / 2))
    }

    async fn head_lost(&self, head_fence: cairn_core::Fence) -> Result<bool, IngestError> {
        Ok(self.store.snapshot().await?.head().fence != head_fence)
    }

    async fn fill_lease(
        &self,
        head_fence: cairn_core::Fence,
        fill: &FillOptions,
        mut lease: RawLease,
        asked_at: Instant,
        joined: &Joining,
        shutdown: &CancellationToken,
    ) -> Result<(), IngestError> {
        let held = lease.clone();
        let term = LeaseTerm::new(fill.lease_ttl_ms, fill.lease_margin_ms(), asked_at);
        let result = tokio::select! {
            biased;
            result = self.fill_range(head_fence, fill, &mut lease, &term, joined, shutdown) => result,
            lost = self.keep_alive(head_fence, &held, &term, fill.lease_ttl_ms) => Err(lost),
        };
        let finished = lease.done_to >= lease.range.end();
        let fenced = matches!(&result, Err(error) if error.kind() == ErrorKind::Fenced);
        if !finished {
            // Where the head is another's, the lease may still be this process's: its successor waits for it. Another's is refused.
            let end = match &result {
                Err(error) if fenced => {
                    tracing::debug!(%error, range = %lease.range, "another one has it, or the head");
                    RangeEnd::Released
                }
                Err(error) if error.kind().is_retryable() || error.is_store_refusal() => {
                    RangeEnd::Transient(error.to_string())
                }
                Err(error) => {
                    self.reports.fatal(lease.done_to, format!("heights {}: {error}", lease.range));
                    RangeEnd::Bad(error.to_string())
                }
                Ok(()) => RangeEnd::Released,
            };
            // After its own deadline it is let expire: whose it is by then, only the store knows.
            if !term.is_over()
                && let Err(error) = self.store.release(&lease, end).await
            {
                // It expires by itself; the first failure is what the caller should hear of.
                tracing::debug!(%error, range = %lease.range, "could not give the lease back");
            }
        }
        result
    }

    /// Renews a lease at a third of its time, whatever is waited for meanwhile. Ends only where it is another's, or the head is, or where it could not
    /// be renewed in time: then what is still fetched is of no use.
    async fn keep_alive(
        &self,
        head_fence: cairn_core::Fence,
        held: &RawLease,
        term: &LeaseTerm,
        ttl_ms: u64,
    ) -> IngestError {
        let renew = || async {
            let asked_at = Instant::now();
            self.store.renew_range(held, ttl_ms).await?;
            term.renewed(asked_at);
            // Else a process that has lost the head could keep its successor from the range as long as its source is silent.
            match self.store.snapshot().await.map(|snapshot| snapshot.head().fence) {
                Ok(current) if current != head_fence => {
                    Err(StoreError::Fenced { what: "the head".into(), held: head_fence, current })
                }
                // The next renewal looks again.
                _ => Ok(()),
            }
        };
        match term.keep(held.range, renew).await {
            Lost::Taken(error) => error.into(),
            Lost::Overdue => {
                tracing::warn!(range = %held.range, "the lease could not be renewed in time; its work is dropped");
                overdue(held)
            }
        }
    }

    async fn fill_range(
        &self,
        head_fence: cairn_core::Fence,
        fill: &FillOptions,
        lease: &mut RawLease,
        term: &LeaseTerm,
        joined: &Joining,
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
                let Gathered { mut blocks, reservations, end, .. } = gathered;
                let linked = linked_after(lease.last_id, lease.done_to, &blocks);
                let broken = blocks.get(linked).map(|block| block.facts.linked_ref());
                blocks.truncate(linked);
                while !blocks.is_empty() {
                    let blocks = self.commits.next_of(&mut blocks, linked);
                    let count = blocks.len() as u64;
                    let bytes = blocks.iter().map(RawBlock::size_bytes).sum();
                    let transactions = blocks.iter().map(|block| block.transactions.len() as u64).sum();
                    // Blocks and the deadline may come at the same moment.
                    if term.is_over() {
                        return Err(overdue(lease));
                    }
                    let asked_at = Instant::now();
                    *lease = self.commits.ended(self.store.fill(lease, blocks, fill.lease_ttl_ms).await)?;
                    term.renewed(asked_at);
                    self.status.committed(count, transactions, bytes, self.source.bound_by());
                    let _one_at_a_time = joined.one_at_a_time.lock().await;
                    let head = self.store.advance(head_fence).await?;
                    self.status.head(&head);
                    self.follow_advance(head_fence, head, joined.finalized).await?;
                }
                drop(reservations);
                if let Some(block) = broken {
                    let (height, id) = (lease.done_to, lease.last_id.unwrap_or_default());
                    let expected = BlockRef { height: height.prev().unwrap_or_default(), id };
                    let (first, parent_id) = (block.block, block.parent_id);
                    return Err(StoreError::DoesNotLink { first, parent_id, expected }.into());
                }
                match end {
                    PieceEnd::Whole => {}
                    PieceEnd::NotYet(height) => {
                        return Err(transient(format!(
                            "height {height} is final, but the node does not have it"
                        )));
                    }
                    PieceEnd::Failed(height, error) => return Err(error.at(height).into()),
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

/// Under which name a worker claims.
fn owner_of(fill: &FillOptions, worker: usize) -> String {
    format!("{}/{worker}", fill.owner)
}

/// Whether a worker of a process of this name claimed it last.
fn is_of(fill: &FillOptions, lease: &RawLease) -> bool {
    lease.owner.strip_prefix(&fill.owner).is_some_and(|worker| worker.starts_with('/'))
}

/// The place and the words of a seam that doesn't link; any other error stays one.
#[expect(clippy::result_large_err, reason = "called where a turn ends, not where speed matters")]
fn seam(error: IngestError) -> Result<(Height, String), IngestError> {
    match error {
        IngestError::Store(StoreError::DoesNotLink { first, parent_id, expected }) => {
            let message = format!("block {first} names parent {parent_id}, the block before is {expected}");
            Ok((first.height, message))
        }
        error => Err(error),
    }
}

/// A lease that could not be renewed in time. It may go better later.
fn overdue(lease: &RawLease) -> IngestError {
    StoreError::Busy(format!("the lease of heights {} could not be renewed in time", lease.range)).into()
}

fn transient(message: String) -> IngestError {
    cairn_source::SourceError::Transient { endpoint: "the source".into(), message }.into()
}

/// How many of `blocks` follow `last_id` at `at` and each other.
fn linked_after(last_id: Option<BlockId>, at: Height, blocks: &[RawBlock]) -> usize {
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
