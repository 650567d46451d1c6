//! Leases and checkpoints.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Fence, Height, HeightRange};

use super::MemoryDerived;
use super::state::State;
use crate::derived::fork::DerivedCheckpoint;
use crate::derived::lease::{
    ClaimRequest, LeaseEnd, LeaseGap, LeaseKind, LeaseStatus, MAX_ATTEMPTS, MAX_ERROR_BYTES, WorkerLease,
};
use crate::derived::rebuild::{RangeAgain, Rebuild};
use crate::derived::rules::{self, Crossing};
use crate::derived::writer::{Coordinator, Repairs};
use crate::{Result, StoreError};

#[async_trait]
impl Coordinator for MemoryDerived {
    async fn register(&self, service: &str, first: Height) -> Result<DerivedCheckpoint> {
        let now_ms = self.now_ms();
        self.commit("register", |state| {
            if let Some(checkpoint) = state.checkpoints.get(service) {
                return Ok(checkpoint.clone());
            }
            if state.rebuilds.get(service).is_some_and(|rebuild| rebuild.is_clearing) {
                return Err(rules::still_clearing(service));
            }
            let checkpoint = DerivedCheckpoint {
                service: service.to_owned(),
                next: first,
                last_id: None,
                updated_at_ms: now_ms,
                paused: false,
                corrections: 0,
            };
            state.put_checkpoint(checkpoint.clone());
            Ok(checkpoint)
        })
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        let now_ms = self.now_ms();
        self.commit("claim", |state| claim(state, request, now_ms))
    }

    async fn renew(&self, lease: &WorkerLease, ttl_ms: u64) -> Result<WorkerLease> {
        let now_ms = self.now_ms();
        self.commit("renew", |state| {
            let mut lease = demand_holder(state, lease)?;
            lease.expires_at_ms = now_ms.saturating_add(ttl_ms);
            state.put_lease(lease.clone());
            Ok(lease)
        })
    }

    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) -> Result<()> {
        let now_ms = self.now_ms();
        self.commit("end", |state| {
            let mut lease = demand_holder(state, lease)?;
            let pause_ms = match end {
                LeaseEnd::Released => 0,
                LeaseEnd::Transient { message, retry_in_ms } => {
                    lease.last_error = rules::shortened(&message, MAX_ERROR_BYTES);
                    retry_in_ms
                }
                LeaseEnd::Bad { message, retry_in_ms } => {
                    lease.last_error = rules::shortened(&message, MAX_ERROR_BYTES);
                    lease.attempt = rules::attempt_after_bad_end(&lease);
                    retry_in_ms
                }
            };
            state.give_back(lease, now_ms.saturating_add(pause_ms));
            Ok(())
        })
    }

    async fn lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        Ok(self.state()?.leases.get(&id).cloned())
    }

    async fn reap(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        let now_ms = self.now_ms();
        self.commit("reap", |state| {
            let expired = state.leases.values().filter(|lease| has_expired(lease, now_ms));
            let expired: Vec<WorkerLease> = expired.take(limit).cloned().collect();
            Ok(expired.into_iter().map(|lease| reap(state, lease, now_ms)).collect())
        })
    }

    async fn repair_checkpoints(&self) -> Result<Repairs> {
        let now_ms = self.now_ms();
        self.commit("repair_checkpoints", |state| {
            let mut repairs = Repairs::default();
            for checkpoint in state.checkpoints.values() {
                let mut after = checkpoint.clone();
                for lease in state.index_leases(&checkpoint.service) {
                    match rules::cross(&after, lease) {
                        Crossing::Stays => {}
                        Crossing::To { next, last_id } => {
                            after = DerivedCheckpoint { next, last_id, updated_at_ms: now_ms, ..after };
                        }
                        Crossing::Alarm(alarm) => {
                            repairs.alarms.push(alarm);
                            break;
                        }
                    }
                }
                if after.next != checkpoint.next {
                    repairs.moved.push(after);
                }
            }
            for checkpoint in &repairs.moved {
                state.put_checkpoint(checkpoint.clone());
            }
            let over = |rebuild: &&Rebuild| !rebuild.goes_on(state.checkpoints.get(&rebuild.service));
            repairs.rebuilt =
                state.rebuilds.values().filter(over).map(|rebuild| rebuild.service.clone()).collect();
            for service in &repairs.rebuilt {
                Arc::make_mut(&mut state.rebuilds).remove(service);
            }
            Ok(repairs)
        })
    }

    async fn lease_gaps(&self, limit: usize) -> Result<Vec<LeaseGap>> {
        let state = self.state()?.clone();
        let mut services: Vec<&String> = state.leases.values().map(|lease| &lease.service).collect();
        services.sort_unstable();
        services.dedup();
        let mut gaps = Vec::new();
        for service in services {
            let leases = state.index_leases(service);
            // What is derived ends where the lowest one has to begin, at the latest.
            let derived = state.checkpoints.get(service).map(|checkpoint| checkpoint.next);
            let ends = derived.into_iter().chain(leases.iter().map(|lease| lease.range.end()));
            gaps.extend(
                ends.zip(&leases)
                    .map(|(end, upper)| HeightRange::new(end.min(upper.range.start()), upper.range.start()))
                    .filter(|missing| !missing.is_empty())
                    .map(|missing| LeaseGap { service: service.clone(), missing }),
            );
        }
        gaps.truncate(limit);
        Ok(gaps)
    }

    async fn dead_leases(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        let state = self.state()?.clone();
        Ok(state.leases.values().filter(|lease| lease.is_dead()).take(limit).cloned().collect())
    }

    async fn retry_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        let now_ms = self.now_ms();
        self.commit("retry_lease", |state| {
            let lease = state.leases.get(&id).filter(|lease| lease.status == LeaseStatus::Failed);
            lease.map_or(Ok(()), rules::demand_whole)?;
            let lease =
                lease.map(|lease| WorkerLease { attempt: 0, next_try_at_ms: now_ms, ..lease.clone() });
            if let Some(lease) = &lease {
                state.put_lease(lease.clone());
            }
            Ok(lease)
        })
    }

    async fn release_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        let now_ms = self.now_ms();
        self.commit("release_lease", |state| {
            let lease = state.leases.get(&id).filter(|lease| lease.status == LeaseStatus::Active).cloned();
            Ok(lease.map(|lease| state.give_back(lease, now_ms)))
        })
    }

    async fn release_all(&self) -> Result<u64> {
        let now_ms = self.now_ms();
        self.commit("release_all", |state| {
            let held = state.leases.values().filter(|lease| lease.status == LeaseStatus::Active);
            let held: Vec<WorkerLease> = held.cloned().collect();
            let count = held.len() as u64;
            for lease in held {
                state.give_back(rules::left_behind(lease, rules::ENDED_WITH_IT), now_ms);
            }
            Ok(count)
        })
    }

    async fn set_paused(&self, service: &str, paused: bool) -> Result<()> {
        self.commit("set_paused", |state| {
            let checkpoint = DerivedCheckpoint { paused, ..state.checkpoint(service)?.clone() };
            state.put_checkpoint(checkpoint);
            Ok(())
        })
    }

    async fn request_reindex(
        &self,
        service: &str,
        version: u32,
        range: HeightRange,
        range_heights: u64,
    ) -> Result<u64> {
        let now_ms = self.now_ms();
        self.commit("request_reindex", |state| {
            let again = RangeAgain {
                service: service.to_owned(),
                version,
                range,
                range_heights,
                is_behind: false,
                corrects_state: false,
            };
            request_reindex(state, &again, range, now_ms)
        })
    }
}

fn demand_holder(state: &State, held: &WorkerLease) -> Result<WorkerLease> {
    rules::demand_holder(state.leases.get(&held.id), held, state.newest_fence()).cloned()
}

fn has_expired(lease: &WorkerLease, now_ms: u64) -> bool {
    lease.status == LeaseStatus::Active && lease.expires_at_ms <= now_ms
}

fn reap(state: &mut State, lease: WorkerLease, now_ms: u64) -> WorkerLease {
    state.give_back(rules::left_behind(lease, rules::RAN_OUT), now_ms)
}

fn claim(state: &mut State, request: &ClaimRequest, now_ms: u64) -> Result<Option<WorkerLease>> {
    let is_paused = state.checkpoint(&request.service)?.paused;
    let service = state.index_leases(&request.service);
    let above = service.last().map(|lease| lease.range.end());
    let is_behind = service.iter().any(|lease| lease.status != LeaseStatus::Completed);
    let fresh = rules::next_range(above, request)?;
    if is_paused {
        return Ok(None);
    }
    let is_due = |lease: &&WorkerLease| {
        lease.version <= request.version
            && match lease.status {
                LeaseStatus::Active => has_expired(lease, now_ms),
                LeaseStatus::Failed => lease.attempt < MAX_ATTEMPTS && lease.next_try_at_ms <= now_ms,
                LeaseStatus::Completed => false,
            }
    };
    loop {
        let due = state.leases_of(&request.service).filter(is_due);
        let Some(lowest) = due.min_by_key(|lease| (lease.range.start(), lease.id)).cloned() else { break };
        let lease = if lowest.status == LeaseStatus::Active { reap(state, lowest, now_ms) } else { lowest };
        if !lease.is_dead() {
            return Ok(Some(hand_out(state, lease, request, now_ms)));
        }
    }
    let Some(range) = fresh.filter(|_| !(request.in_order && is_behind)) else { return Ok(None) };
    let lease = new_lease(state, &request.service, LeaseKind::Index, range, now_ms);
    Ok(Some(hand_out(state, lease, request, now_ms)))
}

/// Makes a lease its new holder's, under a new fence.
fn hand_out(state: &mut State, lease: WorkerLease, request: &ClaimRequest, now_ms: u64) -> WorkerLease {
    let lease = WorkerLease {
        status: LeaseStatus::Active,
        owner: request.owner.clone(),
        fence: state.next_fence(),
        expires_at_ms: now_ms.saturating_add(request.ttl_ms),
        claimed_done_to: lease.done_to,
        claimed_to_wait: rules::is_to_wait(&lease, request),
        version: request.version,
        ..lease
    };
    state.put_lease(lease.clone());
    lease
}

/// A lease that nobody holds yet; not stored.
fn new_lease(
    state: &mut State,
    service: &str,
    kind: LeaseKind,
    range: HeightRange,
    now_ms: u64,
) -> WorkerLease {
    WorkerLease {
        id: state.next_lease(),
        service: service.to_owned(),
        kind,
        range,
        status: LeaseStatus::Failed,
        owner: String::new(),
        fence: Fence(0),
        expires_at_ms: now_ms,
        next_try_at_ms: now_ms,
        attempt: 0,
        done_to: range.start(),
        claimed_done_to: range.start(),
        claimed_to_wait: false,
        last_id: None,
        first_parent: None,
        version: 0,
        last_error: String::new(),
        corrects_state: false,
    }
}

/// Makes `range` again, by a request for it or for more.
pub(super) fn request_reindex(
    state: &mut State,
    again: &RangeAgain,
    range: HeightRange,
    now_ms: u64,
) -> Result<u64> {
    let RangeAgain { service, version, range_heights, corrects_state, .. } = again;
    let range_heights = *range_heights;
    let invalid = |what: String| StoreError::Invalid(format!("reindex of {service} on {range}: {what}"));
    let checkpoint = state.checkpoint(service)?;
    if range.is_empty() || range_heights == 0 {
        return Err(invalid("there is nothing in the range, or in the ranges that it is cut into".into()));
    }
    if range.end() > checkpoint.next {
        return Err(invalid(format!("the checkpoint ends at height {}", checkpoint.next)));
    }
    let in_the_way = state
        .leases_of(service)
        .filter(|lease| lease.kind == LeaseKind::Reindex && !lease.range.intersect(range).is_empty());
    let in_the_way: Vec<WorkerLease> = in_the_way.cloned().collect();
    if let Some(lease) = in_the_way.iter().find(|lease| lease.status != LeaseStatus::Completed) {
        return Err(invalid(format!("lease {} on {} is not done", lease.id, lease.range)));
    }
    for lease in in_the_way {
        state.take_lease(lease.id);
    }
    let (mut at, mut count) = (range.start(), 0);
    while at < range.end() {
        let end = rules::next_multiple(at, range_heights).min(range.end());
        let mut lease = new_lease(state, service, LeaseKind::Reindex, HeightRange::new(at, end), now_ms);
        lease.version = *version;
        lease.corrects_state = *corrects_state;
        lease.fence = state.next_fence();
        state.put_lease(lease);
        (at, count) = (end, count + 1);
    }
    Ok(count)
}
