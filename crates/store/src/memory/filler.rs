//! Filling ahead of the head on the memory store.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockRef, Fence, Height, HeightRange, RawBlock};

use super::MemoryStore;
use super::state::{LeaseRow, State};
use super::writer::{common_of, demand_finality};
use crate::derived::MAX_ATTEMPTS;
use crate::{
    HeadRow, RangeEnd, RawFiller, RawLease, RawLeaseState, Result, StoreError, check_batch, is_held_up,
};

#[async_trait]
impl RawFiller for MemoryStore {
    async fn claim_range(
        &self,
        owner: &str,
        ttl_ms: u64,
        range_heights: u64,
        stop_exclusive: Height,
    ) -> Result<Option<RawLease>> {
        let now_ms = self.now_ms();
        self.commit("claim_range", |state| {
            if range_heights == 0 {
                return Err(StoreError::Invalid(
                    "claim_range: range_heights is 0; ask for at least one height".into(),
                ));
            }
            state.head()?;
            let row = match to_reclaim(state, now_ms, stop_exclusive) {
                Some(row) => row,
                None => match new_range(state, range_heights, stop_exclusive)? {
                    Some(range) => fresh_row(range),
                    None => return Ok(None),
                },
            };
            Ok(Some(claim(state, row, owner, now_ms.saturating_add(ttl_ms))))
        })
    }

    async fn fill(&self, lease: &RawLease, blocks: Vec<RawBlock>, ttl_ms: u64) -> Result<RawLease> {
        let now_ms = self.now_ms();
        self.commit("fill", |state| fill(state, lease, blocks, now_ms.saturating_add(ttl_ms)))
    }

    async fn renew_range(&self, lease: &RawLease, ttl_ms: u64) -> Result<RawLease> {
        let now_ms = self.now_ms();
        self.commit("renew_range", |state| {
            let mut row = demand_lease(state, lease)?.clone();
            if row.lease.state == RawLeaseState::Active {
                row.lease.expires_at_ms = now_ms.saturating_add(ttl_ms);
                put_lease(state, row.clone());
            }
            Ok(row.lease)
        })
    }

    async fn release(&self, lease: &RawLease, end: RangeEnd) -> Result<()> {
        let now_ms = self.now_ms();
        self.commit("release", |state| {
            let mut row = demand_lease(state, lease)?.clone();
            if row.lease.state == RawLeaseState::Completed {
                return Ok(());
            }
            let has_moved = row.has_moved();
            row.lease.end(end, has_moved);
            give_back(state, row, now_ms);
            Ok(())
        })
    }

    async fn retry_range(&self, start: Height) -> Result<Option<RawLease>> {
        self.commit("retry_range", |state| {
            Ok(lease_in(state, start, RawLeaseState::Failed)?.map(|mut row| {
                row.lease.attempt = 0;
                put_lease(state, row.clone());
                row.lease
            }))
        })
    }

    async fn release_range(&self, start: Height) -> Result<Option<RawLease>> {
        let now_ms = self.now_ms();
        self.commit("release_range", |state| {
            let Some(row) = lease_in(state, start, RawLeaseState::Active)? else { return Ok(None) };
            Ok(Some(give_back(state, row, now_ms)))
        })
    }

    async fn advance(&self, fence: Fence) -> Result<HeadRow> {
        let now_ms = self.now_ms();
        // A broken seam is an answer and a commit at once: the head moved below it, and the range above was given up.
        let (head, seam) = self.commit("advance", |state| advance(state, fence, now_ms))?;
        seam.map_or(Ok(head), Err)
    }
}

/// The lowest lease that failed or expired and isn't dead. An expired one that has not moved counts one attempt more, and may be dead by that.
fn to_reclaim(state: &mut State, now_ms: u64, stop_exclusive: Height) -> Option<LeaseRow> {
    loop {
        let mut row = state
            .leases
            .range(..stop_exclusive)
            .map(|(_, row)| row)
            .find(|row| match row.lease.state {
                RawLeaseState::Failed => !row.lease.is_dead(),
                RawLeaseState::Active => row.lease.expires_at_ms <= now_ms,
                RawLeaseState::Completed => false,
            })?
            .clone();
        if row.lease.state == RawLeaseState::Active && !row.has_moved() {
            row.lease.expire();
            if row.lease.attempt >= MAX_ATTEMPTS {
                give_back(state, row, now_ms);
                continue;
            }
        }
        return Some(row);
    }
}

/// The lease that begins at `start`, where it is in this state.
fn lease_in(state: &State, start: Height, wanted: RawLeaseState) -> Result<Option<LeaseRow>> {
    state.head()?;
    Ok(state.leases.get(&start).filter(|row| row.lease.state == wanted).cloned())
}

/// The heights of a new lease, above the tip and every other lease.
fn new_range(state: &State, range_heights: u64, stop_exclusive: Height) -> Result<Option<HeightRange>> {
    let head = state.head()?;
    let (Some(tip), None) = (head.tip, head.pending_purge) else {
        return Ok(None);
    };
    if is_held_up(state.leases.values().map(|row| &row.lease)) {
        return Ok(None);
    }
    let above_leases = state.leases.last_key_value().map_or(Height::ZERO, |(_, row)| row.lease.range.end());
    let start = tip.height.next().max(above_leases);
    let multiple = (start.get() / range_heights + 1).saturating_mul(range_heights);
    let end = Height(multiple).min(stop_exclusive);
    Ok(Some(HeightRange::new(start, end)).filter(|range| !range.is_empty()))
}

fn fresh_row(range: HeightRange) -> LeaseRow {
    let lease = RawLease {
        range,
        state: RawLeaseState::Active,
        owner: String::new(),
        fence: Fence(0),
        expires_at_ms: 0,
        attempt: 0,
        done_to: range.start(),
        last_id: None,
        first_parent: None,
        last_error: String::new(),
    };
    LeaseRow { lease, claimed_at: range.start() }
}

fn claim(state: &mut State, mut row: LeaseRow, owner: &str, expires_at_ms: u64) -> RawLease {
    row.lease.state = RawLeaseState::Active;
    row.lease.owner = owner.to_owned();
    row.lease.fence = state.next_fence();
    row.lease.expires_at_ms = expires_at_ms;
    row.claimed_at = row.lease.done_to;
    let lease = row.lease.clone();
    put_lease(state, row);
    lease
}

/// Back to `Failed`, under a new fence, so that whoever held it can't go on.
fn give_back(state: &mut State, mut row: LeaseRow, now_ms: u64) -> RawLease {
    row.lease.state = RawLeaseState::Failed;
    row.lease.fence = state.next_fence();
    row.lease.expires_at_ms = now_ms;
    let lease = row.lease.clone();
    put_lease(state, row);
    lease
}

fn put_lease(state: &mut State, row: LeaseRow) {
    Arc::make_mut(&mut state.leases).insert(row.lease.range.start(), row);
}

fn demand_lease<'a>(state: &'a State, held: &RawLease) -> Result<&'a LeaseRow> {
    state.head()?;
    let row = state.leases.get(&held.range.start()).filter(|row| row.lease.range == held.range);
    match row {
        Some(row) if row.lease.fence == held.fence => Ok(row),
        _ => Err(StoreError::Fenced {
            what: format!("the raw lease {}", held.range),
            held: held.fence,
            current: row.map_or(Fence(state.last_fence), |row| row.lease.fence),
        }),
    }
}

fn fill(state: &mut State, held: &RawLease, blocks: Vec<RawBlock>, expires_at_ms: u64) -> Result<RawLease> {
    let mut row = demand_lease(state, held)?.clone();
    let lease = &mut row.lease;
    check_batch(&blocks)?;
    let (first, last) = (&blocks[0], blocks[blocks.len() - 1].block_ref());
    if first.facts.height < lease.range.start() || last.height >= lease.range.end() {
        return Err(StoreError::Invalid(format!(
            "fill: blocks {} to {last} reach outside the lease {}",
            first.block_ref(),
            lease.range
        )));
    }
    if last.height < lease.done_to {
        state.demand_no_conflict(&blocks)?;
        return Ok(lease.clone());
    }
    if first.facts.height != lease.done_to {
        return Err(StoreError::Invalid(format!(
            "fill: the lease {} goes on at {}, the blocks begin at {}",
            lease.range,
            lease.done_to,
            first.block_ref()
        )));
    }
    if let (Some(last_id), Some(before)) = (lease.last_id, lease.done_to.prev())
        && first.facts.parent_id != last_id
    {
        return Err(StoreError::DoesNotLink {
            first: first.block_ref(),
            parent_id: first.facts.parent_id,
            expected: BlockRef { height: before, id: last_id },
        });
    }
    state.demand_no_conflict(&blocks)?;
    demand_finality(state.head()?.finalized, |height| {
        let at = height.get().checked_sub(first.facts.height.get())?;
        blocks.get(usize::try_from(at).ok()?).map(RawBlock::block_ref)
    })?;

    lease.first_parent = lease.first_parent.or(Some(first.facts.parent_id));
    lease.done_to = last.height.next();
    lease.last_id = Some(last.id);
    lease.attempt = 0;
    lease.last_error.clear();
    lease.expires_at_ms = expires_at_ms;
    if lease.done_to == lease.range.end() {
        lease.state = RawLeaseState::Completed;
    }
    let lease = lease.clone();
    for block in blocks {
        state.put_block(Arc::new(block));
    }
    put_lease(state, row);
    Ok(lease)
}

fn advance(state: &mut State, fence: Fence, now_ms: u64) -> Result<(HeadRow, Option<StoreError>)> {
    let head = state.demand_head(fence)?;
    if let Some(purge) = head.pending_purge {
        return Err(StoreError::PurgePending { reorg_id: purge.reorg_id, common: common_of(purge.orphans) });
    }
    let finalized = head.finalized;
    let Some(mut tip) = head.tip else { return Ok((head.clone(), None)) };

    // Find out first how far it goes: nothing is changed before everything is known.
    let (mut passed, mut seam) = (Vec::new(), None);
    for (start, row) in state.leases.iter() {
        let lease = &row.lease;
        if *start > tip.height.next() {
            break;
        }
        if lease.done_to > tip.height.next() {
            let (Some(last_id), Some(last_height)) = (lease.last_id, lease.done_to.prev()) else { break };
            if *start == tip.height.next() && lease.first_parent != Some(tip.id) {
                seam = Some(row.clone());
                break;
            }
            tip = BlockRef { height: last_height, id: last_id };
        }
        if lease.range.end() > tip.height.next() {
            break;
        }
        passed.push(*start);
    }
    demand_finality(finalized, |height| if height <= tip.height { state.row_ref(height) } else { None })?;

    let leases = Arc::make_mut(&mut state.leases);
    for start in &passed {
        leases.remove(start);
    }
    let head = state.head_mut()?;
    head.tip = Some(tip);
    let head = head.clone();
    let seam = seam.map(|row| give_up(state, row, tip, now_ms));
    Ok((head, seam))
}

/// Deletes what was filled of a lease that doesn't link to the tip, so that it is fetched again.
fn give_up(state: &mut State, mut row: LeaseRow, tip: BlockRef, now_ms: u64) -> StoreError {
    let range = row.lease.range;
    let first_id = state.row_ref(range.start()).map(|first| first.id).unwrap_or_default();
    let error = StoreError::DoesNotLink {
        first: BlockRef { height: range.start(), id: first_id },
        parent_id: row.lease.first_parent.unwrap_or_default(),
        expected: tip,
    };
    for height in HeightRange::new(range.start(), row.lease.done_to).iter() {
        state.take_block(height);
    }
    row.lease.give_up(&error);
    give_back(state, row, now_ms);
    error
}
