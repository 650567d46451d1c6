//! Several ranges at once, ahead of the head: leases, fills, and the advance that joins them.
//!
//! A raw lease covers `[from, to)`. Its holder fills it in order, chunk by chunk: each commit moves `done_to` and `last_id`
//! together with the rows. Nothing of it can be read until [`RawFiller::advance`] moves the head over it, and that only
//! where the lease's first block links to the tip (law 3). The caller keeps ranges at or below what the source calls final, so no reorg
//! of the chain reaches them; what a mixed set of nodes filled wrongly is found where it doesn't link (docs/adr/0002). Each verb is one transaction.
//!
//! `attempt` counts consecutive bad ends without movement of `done_to`, once each, whoever notices: [`RawFiller::release`] with [`RangeEnd::Bad`], or the
//! claim that finds the lease expired, adds one where `done_to` has not moved since the lease was claimed; a fill that moves it
//! sets it to 0; a renewal is no movement. A broken seam adds one too. A lease that failed with `attempt` at [`MAX_ATTEMPTS`] or above is dead: no claim takes it, and what it lacks is not
//! filled, until an operator frees it by [`RawFiller::retry_range`].
//!
//! Fences decide alone: an expired lease that nobody claimed again may still be filled by its holder, which renews it. A
//! lease that is given back or given up takes a new fence, so that its holder can't go on; a fence that isn't the lease's, or a
//! lease that is gone, is [`crate::StoreError::Fenced`].

use async_trait::async_trait;
use cairn_core::{BlockId, Fence, Height, HeightRange, RawBlock};

use crate::derived::rules::shortened;
use crate::derived::{MAX_ATTEMPTS, MAX_ERROR_BYTES};
use crate::{HeadRow, Result, StoreError};

/// Leases that may pile up above a dead one, which the head doesn't pass: every verb reads them.
pub const MAX_LEASES_BESIDE_DEAD: usize = 1_000;

/// Whether no new range may be begun until an operator has freed a dead one.
pub fn is_held_up<'a>(leases: impl IntoIterator<Item = &'a RawLease>) -> bool {
    let (mut count, mut has_dead) = (0, false);
    for lease in leases {
        count += 1;
        has_dead |= lease.is_dead();
    }
    has_dead && count >= MAX_LEASES_BESIDE_DEAD
}

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawLeaseState {
    /// Somebody works on it until it expires.
    Active,
    /// Filled whole.
    Completed,
    /// Given back or expired; the next claim takes it first.
    Failed,
}

/// A range of raw work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawLease {
    /// The heights.
    pub range: HeightRange,
    /// Whether it is worked on.
    pub state: RawLeaseState,
    /// Who works on it.
    pub owner: String,
    /// From one counter per store; grows at each claim.
    pub fence: Fence,
    /// When it expires, by the store's clock, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// How often it ended badly without moving.
    pub attempt: u32,
    /// The next height to fill: everything before it, from `range.start()`, is stored.
    pub done_to: Height,
    /// The id of the block before `done_to`; `None` before the first fill.
    pub last_id: Option<BlockId>,
    /// The parent of the lease's first block; `None` before the first fill.
    pub first_parent: Option<BlockId>,
    /// Why it ended last; empty where it didn't, or has moved since. Truncated to [`MAX_ERROR_BYTES`].
    pub last_error: String,
}

/// How a lease is given back before it is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeEnd {
    /// In order.
    Released,
    /// What may pass is in the way, such as this; no attempt is counted.
    Transient(String),
    /// It failed over this: an attempt is counted where `done_to` has not moved since the claim.
    Bad(String),
}

/// What stores do to a lease that ends, so that all of them say the same of it.
impl RawLease {
    /// Notes how its holder left it.
    pub fn end(&mut self, end: RangeEnd, has_moved: bool) {
        match end {
            RangeEnd::Released => {}
            RangeEnd::Transient(error) => self.note(&error),
            RangeEnd::Bad(error) => {
                self.note(&error);
                self.attempt += u32::from(!has_moved);
            }
        }
    }

    /// Notes that it expired, and nothing was done since it was claimed.
    pub fn expire(&mut self) {
        self.attempt += 1;
        self.note(&format!("{} neither filled nor renewed it in time", self.owner));
    }

    /// Notes that what was filled of it is given up, since it doesn't join.
    pub fn give_up(&mut self, error: &StoreError) {
        self.attempt += 1;
        self.note(&error.to_string());
        self.done_to = self.range.start();
        self.last_id = None;
        self.first_parent = None;
    }

    fn note(&mut self, error: &str) {
        self.last_error = shortened(error, MAX_ERROR_BYTES);
    }
}

impl RawLease {
    /// Failed so often that only an operator frees it.
    pub fn is_dead(&self) -> bool {
        self.state == RawLeaseState::Failed && self.attempt >= MAX_ATTEMPTS
    }
}

/// Filling ahead of the head.
#[async_trait]
pub trait RawFiller: Send + Sync {
    /// Claims work for `owner` until `ttl_ms` from now by the store's clock (`now()` is the store's: law 5): a failed or
    /// expired lease first, lowest first; else a new range that begins where the last one ends (or above the tip), ends at the
    /// next multiple of `range_heights`, and not above `stop_exclusive`, which is at most the height after the one that the source calls
    /// final. `None`: nothing to do.
    ///
    /// A dead lease is passed over; where there is one, and [`MAX_LEASES_BESIDE_DEAD`] in all, there are no new ranges. An expired one that is dead by this attempt is failed, under a new fence, and passed over too.
    ///
    /// A lease that begins at or above `stop_exclusive` is left alone; one that begins below it is claimed whole. There are
    /// no new ranges before the first block and while a purge is pending. `range_heights` of 0 is
    /// [`crate::StoreError::Invalid`]. A lease expires when `expires_at_ms` is not above the clock's time.
    async fn claim_range(
        &self,
        owner: &str,
        ttl_ms: u64,
        range_heights: u64,
        stop_exclusive: Height,
    ) -> Result<Option<RawLease>>;

    /// Writes the next blocks of a lease, at `done_to`, linked, under the lease's fence, and renews it for `ttl_ms`. The same
    /// blocks again are a no-op; other bytes under a stored height are [`crate::StoreError::Conflict`]. Completes the
    /// lease with its last block.
    ///
    /// The batch lies wholly below `done_to` (again) or begins at it; anything else, and blocks outside the range, are
    /// [`crate::StoreError::Invalid`]. A block that doesn't follow `last_id` is [`crate::StoreError::DoesNotLink`]; the parent
    /// of the lease's first block is recorded and judged by [`RawFiller::advance`]. A block at the finalised height with
    /// another id is [`crate::StoreError::BelowFinality`]. What counts of `lease` are its range and fence.
    async fn fill(&self, lease: &RawLease, blocks: Vec<RawBlock>, ttl_ms: u64) -> Result<RawLease>;

    /// Lengthens a lease to `ttl_ms` from now, while its next blocks are on their way; nothing else of it changes. A completed lease is
    /// left as it is. What counts of `lease` are its range and fence.
    async fn renew_range(&self, lease: &RawLease, ttl_ms: u64) -> Result<RawLease>;

    /// Gives a lease back before it is complete. A completed lease stays completed.
    async fn release(&self, lease: &RawLease, end: RangeEnd) -> Result<()>;

    /// An operator frees the failed or dead lease that begins at `start`: its attempts count from 0 again. `None`: there is no such lease, or it isn't failed.
    async fn retry_range(&self, start: Height) -> Result<Option<RawLease>>;

    /// An operator takes the active lease that begins at `start` from its holder: failed under a new fence, uncounted. `None`: there is no such lease, or it
    /// isn't active.
    async fn release_range(&self, start: Height) -> Result<Option<RawLease>>;

    /// Moves the head over filled heights as far as they join: to `done_to` and `last_id` of the lease whose `first_parent` is
    /// the tip, and on. Deletes leases that it passed whole. A seam that doesn't link stops it with
    /// [`crate::StoreError::DoesNotLink`] after moving as far as it could, and the range above the seam is given
    /// up to be fetched again: its rows are deleted, and its lease is failed, empty, under a new fence.
    ///
    /// A lease into which appends have moved the tip is joined already and only followed. Nothing moves before the first block;
    /// a pending purge is [`crate::StoreError::PurgePending`]. A finalised mark at a height that would be passed has to be the block
    /// there, else [`crate::StoreError::BelowFinality`], and nothing moves.
    async fn advance(&self, fence: Fence) -> Result<HeadRow>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_pile_up_above_a_dead_one_to_a_limit_alone() {
        let lease = |n: u64, state, attempt| RawLease {
            range: HeightRange::new(Height(n), Height(n + 1)),
            state,
            owner: "a".into(),
            fence: Fence(n),
            expires_at_ms: 0,
            attempt,
            done_to: Height(n),
            last_id: None,
            first_parent: None,
            last_error: String::new(),
        };
        let mut leases: Vec<_> = (0..MAX_LEASES_BESIDE_DEAD as u64)
            .map(|n| lease(n, RawLeaseState::Completed, MAX_ATTEMPTS))
            .collect();
        assert!(!is_held_up(&leases), "none is dead");
        leases[0] = lease(0, RawLeaseState::Failed, MAX_ATTEMPTS);
        assert!(is_held_up(&leases));
        leases.pop();
        assert!(!is_held_up(&leases), "there is room for one more");
    }
}
