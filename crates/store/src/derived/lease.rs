//! Leases of derived work: who works on which heights, how far they have come, and under which fence (law 5).
//!
//! A lease covers `[from, to)` of one service. Its holder works it off in chunks; each commit moves `done_to` and `last_id` with the
//! rows. States: ACTIVE → COMPLETED by the commit that reaches `to`; ACTIVE → FAILED on an error, when given back, or
//! when it is found expired or its process gone; FAILED → ACTIVE by reclaim, once `next_try_at` has come. FAILED with `attempt >= MAX_ATTEMPTS` is dead:
//! only an operator frees it. `attempt` counts consecutive bad ends in which `done_to` did not move since the claim, once each,
//! whoever notices; a commit that moves it sets it to 0, and transient ends don't count. Nor does it count that a process was gone, or silent for too long,
//! whose lease had nothing to do when it was claimed: what only waits ends no process.

use std::fmt;

use cairn_core::{BlockId, Fence, Height, HeightRange};

/// After so many bad ends in a row a lease is dead (the reliability document, §2).
pub const MAX_ATTEMPTS: u32 = 20;

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseStatus {
    /// Somebody works on it until it expires.
    Active,
    /// Every height is done.
    Completed,
    /// Given back, failed or expired.
    Failed,
}

impl LeaseStatus {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            LeaseStatus::Active => "ACTIVE",
            LeaseStatus::Completed => "COMPLETED",
            LeaseStatus::Failed => "FAILED",
        }
    }

    /// The word, back.
    pub fn parse(word: &str) -> Option<LeaseStatus> {
        [LeaseStatus::Active, LeaseStatus::Completed, LeaseStatus::Failed]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

impl fmt::Display for LeaseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a lease is for. Leases of one service and kind never overlap; of different kinds they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Work that moves the service's checkpoint.
    Index,
    /// Rows of a range made again; the checkpoint stays.
    Reindex,
}

impl LeaseKind {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            LeaseKind::Index => "index",
            LeaseKind::Reindex => "reindex",
        }
    }

    /// The word, back.
    pub fn parse(word: &str) -> Option<LeaseKind> {
        [LeaseKind::Index, LeaseKind::Reindex].into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A row of `app.worker_leases`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLease {
    /// Its number, never used again.
    pub id: u64,
    /// The service (`worker_type` in the table).
    pub service: String,
    /// What it is for.
    pub kind: LeaseKind,
    /// The heights (`from_height`, `to_height`).
    pub range: HeightRange,
    /// Its state.
    pub status: LeaseStatus,
    /// Who holds it, or held it last (`leased_by`).
    pub owner: String,
    /// From one counter per store; grows at each claim and whenever it is taken from its holder.
    pub fence: Fence,
    /// When it expires, by the store's clock, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// Not reclaimed before, by the store's clock, in milliseconds since 1970.
    pub next_try_at_ms: u64,
    /// Consecutive bad ends without movement.
    pub attempt: u32,
    /// The next height to do: everything before it, from `range.start()`, is committed.
    pub done_to: Height,
    /// `done_to` when it was claimed.
    pub claimed_done_to: Height,
    /// When it was claimed there was nothing to do: of kind `Index`, and `done_to` not below the claim's [`ClaimRequest::limit_exclusive`].
    pub claimed_to_wait: bool,
    /// The id of the last block done; `None` before the first.
    pub last_id: Option<BlockId>,
    /// The parent of the first block done; `None` before the first.
    pub first_parent: Option<BlockId>,
    /// The version of the processor that worked on it last; an older one can't claim it.
    pub version: u32,
    /// Why it failed since its last commit; empty where it didn't. Truncated to [`MAX_ERROR_BYTES`].
    pub last_error: String,
    /// Of kind `Reindex`: each commit corrects the state that was folded from the rows it replaces.
    pub corrects_state: bool,
}

/// The longest kept `last_error`, in bytes.
pub const MAX_ERROR_BYTES: usize = 2_048;

impl WorkerLease {
    /// What is left to do.
    pub fn rest(&self) -> HeightRange {
        HeightRange::new(self.done_to, self.range.end())
    }

    /// Failed too often: nobody takes it any more until an operator frees it.
    pub fn is_dead(&self) -> bool {
        self.status == LeaseStatus::Failed && self.attempt >= MAX_ATTEMPTS
    }
}

/// What a claim asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The service.
    pub service: String,
    /// Its processor's version.
    pub version: u32,
    /// Who claims, for people.
    pub owner: String,
    /// How long the lease lasts without a commit or renewal, in milliseconds.
    pub ttl_ms: u64,
    /// New ranges end at the next multiple of this many heights.
    pub range_heights: u64,
    /// Where the service's first range begins: the raw store's first height, or a configured start.
    pub first: Height,
    /// How far it may work now: the height after the raw tip, or the lowest checkpoint of its upstreams. A new range begins below it only: there has to be something to do. One that is
    /// claimed again and stands at or above it is claimed to wait.
    pub limit_exclusive: Height,
    /// New ranges are cut here; at height 0 there are none, and only what others left is claimed.
    pub stop_exclusive: Option<Height>,
    /// One lease after the other (folders): no new range while an earlier one isn't completed.
    pub in_order: bool,
}

/// How a lease ended that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Given back in good order: reclaimable at once.
    Released,
    /// The node, the network or a database was away: reclaimable after a pause, not counted.
    Transient {
        /// What happened.
        message: String,
        /// The pause, in milliseconds.
        retry_in_ms: u64,
    },
    /// It failed: counted where `done_to` has not moved since the claim.
    Bad {
        /// What happened.
        message: String,
        /// The pause, in milliseconds.
        retry_in_ms: u64,
    },
}

/// Which leases to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseFilter {
    /// Of this service only.
    pub service: Option<String>,
    /// In this state only.
    pub status: Option<LeaseStatus>,
    /// Only dead ones.
    pub dead: bool,
    /// With a number above this one.
    pub after_id: u64,
    /// At most so many.
    pub limit: usize,
}

/// Heights between two leases of a service that no lease covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseGap {
    /// The service.
    pub service: String,
    /// The heights.
    pub missing: HeightRange,
}
