//! How a lease ends before it is done: what is charged as an attempt, when a range is dead, and what an operator or a start does about it.

use std::sync::Arc;

use cairn_core::{Fence, Height};

use super::leases::{bad, heights};
use super::raw::Raw;
use super::subject::{START_MS, Subject, TTL_MS};
use super::tables::{FOLDER, MAPPER};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseKind, LeaseStatus, MAX_ATTEMPTS, WorkerLease};
use crate::suite::check::{holds, is_fenced, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("attempts":
        a_lease_that_was_given_back_is_claimed_at_once,
        a_transient_end_pauses_and_does_not_count,
        a_bad_end_counts_where_nothing_moved,
        a_commit_forgets_bad_ends,
        an_expired_lease_counts_once_whoever_notices,
        q03_a_poison_range_is_dead_after_its_attempts,
        a_claim_that_finds_the_last_attempt_expired_goes_on_to_the_next,
        an_operator_frees_a_dead_lease,
        an_operator_takes_a_lease_from_its_holder,
        at_start_every_lease_is_given_back,
        a_range_that_ends_every_process_is_dead_in_the_end,
        a_lease_that_only_waits_is_not_charged_with_its_process,
    )
}

async fn a_lease_that_was_given_back_is_claimed_at_once(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    for _ in 0..2 * MAX_ATTEMPTS {
        let lease = subject.claim(MAPPER).await?;
        same("the lease", (lease.range, lease.attempt), (heights(0, 10), 0))?;
        subject.store.end(&lease, LeaseEnd::Released).await?;
    }
    Ok(())
}

async fn a_transient_end_pauses_and_does_not_count(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let request = ClaimRequest { stop_exclusive: Some(Height(10)), ..subject.request(MAPPER) };
    for _ in 0..2 * MAX_ATTEMPTS {
        let lease = subject.claim_as(&request).await?;
        let end = LeaseEnd::Transient { message: "the node is away".into(), retry_in_ms: 500 };
        subject.store.end(&lease, end).await?;
        let ended = subject.lease(lease.id).await?;
        let now_ms = lease.expires_at_ms - TTL_MS;
        same("when it is due", ended.next_try_at_ms, now_ms + 500)?;
        same("what is kept", (ended.attempt, ended.last_error.as_str()), (0, "the node is away"))?;
        subject.clock.advance_ms(499);
        same("claimed before it is due", subject.store.claim(&request).await?, None)?;
        subject.clock.advance_ms(1);
    }
    Ok(())
}

async fn a_bad_end_counts_where_nothing_moved(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let end = LeaseEnd::Bad { message: "block 0 is odd".into(), retry_in_ms: 70 };
    subject.store.end(&lease, end).await?;
    let ended = subject.lease(lease.id).await?;
    let expected = WorkerLease {
        status: LeaseStatus::Failed,
        fence: ended.fence,
        next_try_at_ms: START_MS + 70,
        expires_at_ms: ended.expires_at_ms,
        attempt: 1,
        last_error: "block 0 is odd".into(),
        ..lease
    };
    same("the lease", &ended, &expected)?;
    subject.clock.advance_ms(70);
    let lease = subject.claim(MAPPER).await?;
    same("the attempts after a claim", lease.attempt, 1)?;
    let lease = subject.commit(&lease, 1).await?.lease;
    subject.store.end(&lease, bad("block 1 is odd")).await?;
    same("the attempts after movement", subject.lease(lease.id).await?.attempt, 0)?;
    // It has not moved since this claim.
    let lease = subject.claim(MAPPER).await?;
    subject.store.end(&lease, bad("block 1 is odd")).await?;
    same("the attempts without movement", subject.lease(lease.id).await?.attempt, 1)
}

async fn a_commit_forgets_bad_ends(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    for expected in 0..5 {
        let lease = subject.claim(MAPPER).await?;
        same("the attempts", lease.attempt, expected)?;
        subject.store.end(&lease, bad("again")).await?;
    }
    let lease = subject.claim(MAPPER).await?;
    same("the attempts after a commit", subject.commit(&lease, 1).await?.lease.attempt, 0)
}

async fn an_expired_lease_counts_once_whoever_notices(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.clock.advance_ms(TTL_MS);
    let reaped = subject.store.reap(10).await?;
    let expected = WorkerLease {
        status: LeaseStatus::Failed,
        fence: reaped.first().map_or(Fence(0), |lease| lease.fence),
        next_try_at_ms: START_MS + TTL_MS,
        expires_at_ms: reaped.first().map_or(0, |lease| lease.expires_at_ms),
        attempt: 1,
        last_error: reaped.first().map_or(String::new(), |lease| lease.last_error.clone()),
        ..lease.clone()
    };
    same("what was reaped", &reaped, &vec![expected])?;
    holds(reaped[0].fence > lease.fence, "reaping gave no new fence")?;
    holds(!reaped[0].last_error.is_empty(), "a reaped lease doesn't say why")?;
    same("as it is read", subject.lease(lease.id).await?, reaped[0].clone())?;
    same("reaped again", subject.store.reap(10).await?, Vec::new())?;
    refused("its holder's bad end", subject.store.end(&lease, bad("late")).await, is_fenced)?;
    let lease = subject.claim(MAPPER).await?;
    same("the attempts when claimed", lease.attempt, 1)?;
    // Found by the claim itself.
    subject.clock.advance_ms(TTL_MS);
    let lease = subject.claim(MAPPER).await?;
    same("the attempts when found by a claim", lease.attempt, 2)?;
    let lease = subject.commit(&lease, 3).await?.lease;
    subject.clock.advance_ms(TTL_MS);
    same("the attempts of one that moved", subject.claim(MAPPER).await?.attempt, lease.attempt)
}

async fn q03_a_poison_range_is_dead_after_its_attempts(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::new()).await?;
    let mut last = None;
    for n in 0..MAX_ATTEMPTS {
        same("dead leases", subject.store.dead_leases(10).await?, Vec::new())?;
        let lease = subject.claim(MAPPER).await?;
        same("the lease", (lease.range, lease.attempt), (heights(0, 10), n))?;
        if n % 2 == 0 {
            subject.store.end(&lease, bad("poison")).await?;
        } else {
            subject.clock.advance_ms(TTL_MS);
            subject.store.reap(1).await?;
        }
        last = Some(lease.id);
    }
    subject.reopen().await?;
    let dead = subject.store.dead_leases(10).await?;
    same("dead leases", dead.iter().map(|lease| Some(lease.id)).collect::<Vec<_>>(), vec![last])?;
    holds(dead[0].is_dead(), format!("it isn't dead: {:?}", dead[0]))?;
    subject.clock.advance_ms(1_000 * TTL_MS);
    same("the next claim", subject.claim(MAPPER).await?.range, heights(10, 20))?;
    same("reaped", subject.store.reap(10).await?, Vec::new())
}

async fn a_claim_that_finds_the_last_attempt_expired_goes_on_to_the_next(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    for _ in 1..MAX_ATTEMPTS {
        let lease = subject.claim(MAPPER).await?;
        subject.store.end(&lease, bad("poison")).await?;
    }
    let poison = subject.claim(MAPPER).await?;
    let next = subject.claim(MAPPER).await?;
    subject.clock.advance_ms(TTL_MS);
    same("the claim", subject.claim(MAPPER).await?.id, next.id)?;
    let dead = subject.lease(poison.id).await?;
    same("the dead one", (dead.status, dead.attempt), (LeaseStatus::Failed, MAX_ATTEMPTS))
}

async fn an_operator_frees_a_dead_lease(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let mut id = 0;
    for _ in 0..MAX_ATTEMPTS {
        let lease = subject.claim(MAPPER).await?;
        id = lease.id;
        subject.store.end(&lease, LeaseEnd::Bad { message: "poison".into(), retry_in_ms: 1_000 }).await?;
        subject.clock.advance_ms(1_000);
    }
    let freed = subject.store.retry_lease(id).await?;
    let freed = freed.ok_or_else(|| super::Failure::new("the dead lease could not be freed"))?;
    same("freed", (freed.attempt, freed.status), (0, LeaseStatus::Failed))?;
    same("as it is read", subject.lease(id).await?, freed)?;
    let again = subject.claim(MAPPER).await?;
    same("the claim", (again.id, again.attempt), (id, 0))?;
    same("an active one", subject.store.retry_lease(id).await?, None)?;
    same("none", subject.store.retry_lease(id + 77).await?, None)?;
    // One that only waits is freed as well.
    let end = LeaseEnd::Transient { message: "away".into(), retry_in_ms: 1_000_000 };
    subject.store.end(&again, end).await?;
    subject.store.retry_lease(id).await?;
    same("due now", subject.claim(MAPPER).await?.id, id)
}

async fn an_operator_takes_a_lease_from_its_holder(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(10, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let taken = subject.store.release_lease(lease.id).await?;
    let taken = taken.ok_or_else(|| super::Failure::new("the lease could not be taken"))?;
    same("taken", (taken.status, taken.attempt), (LeaseStatus::Failed, 0))?;
    holds(taken.fence > lease.fence, "taking it gave no new fence")?;
    refused("its holder's commit", subject.try_commit(&lease, 5).await?, is_fenced)?;
    same("taken again", subject.store.release_lease(lease.id).await?, None)?;
    same("none", subject.store.release_lease(lease.id + 77).await?, None)?;
    same("the claim", subject.claim(MAPPER).await?.id, lease.id)
}

async fn at_start_every_lease_is_given_back(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(FOLDER).await?);
    let done = subject.work(subject.claim(MAPPER).await?, 100).await?;
    same("one that is done", done.status, LeaseStatus::Completed)?;
    // One that was given back in order, and isn't counted therefore.
    let ended = subject.claim(MAPPER).await?;
    subject.store.end(&ended, LeaseEnd::Released).await?;
    subject.commit(&one, 5).await?;
    subject.reopen().await?;
    same("given back", subject.store.release_all().await?, 2)?;
    same("given back again", subject.store.release_all().await?, 0)?;
    same("the one that was given back", subject.lease(ended.id).await?.attempt, 0)?;
    // Nothing was done of the second one.
    for (lease, attempt) in [(&one, 0), (&two, 1)] {
        let now = subject.lease(lease.id).await?;
        same("the lease", (now.status, now.attempt), (LeaseStatus::Failed, attempt))?;
        let why = format!("{} ended without giving it back", lease.owner);
        same("why", now.last_error, why)?;
        holds(now.fence > lease.fence, "it has no new fence")?;
        refused("its holder's end", subject.store.end(lease, LeaseEnd::Released).await, is_fenced)?;
    }
    same("the one that is done", subject.lease(done.id).await?, done)?;
    same("the claim", subject.claim(MAPPER).await?.id, one.id)
}

async fn a_range_that_ends_every_process_is_dead_in_the_end(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let mut id = 0;
    for died in 0..MAX_ATTEMPTS {
        let lease = subject.claim(MAPPER).await?;
        same("the range", (lease.range, lease.attempt), (heights(0, 10), died))?;
        id = lease.id;
        subject.reopen().await?;
        same("left behind", subject.store.release_all().await?, 1)?;
        // Whoever looks again finds nothing to count.
        same("left behind again", subject.store.release_all().await?, 0)?;
        same("its attempts", subject.lease(id).await?.attempt, died + 1)?;
    }
    let dead = subject.store.dead_leases(10).await?;
    same("the dead", dead.iter().map(|lease| lease.id).collect::<Vec<_>>(), vec![id])?;
    same("the claim", subject.claim(MAPPER).await?.range, heights(10, 20))
}

/// However its holder's end is noticed: at the next start, by whoever reaps, or by the next claim.
async fn a_lease_that_only_waits_is_not_charged_with_its_process(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(15, 1)).await?;
    for service in [MAPPER, FOLDER] {
        subject.index(service, 10, 5).await?;
    }
    // The mapper's range ends every process now, and the folder can't get on.
    subject.raw.grow(16, 1);
    for died in 0..MAX_ATTEMPTS + 5 {
        let guilty = subject.at_limit(MAPPER).await?;
        let waiting = subject.at_limit(FOLDER).await?;
        let waiting = waiting.map(|lease| (lease.done_to, lease.attempt, lease.claimed_to_wait));
        same("the one that waits", waiting, Some((Height(15), 0, true)))?;
        let charged = guilty.as_ref().map(|lease| (lease.range, lease.attempt, lease.claimed_to_wait));
        same("the guilty one", charged, (died < MAX_ATTEMPTS).then_some((heights(10, 20), died, false)))?;
        match died % 3 {
            0 => {
                subject.reopen().await?;
                let held = 1 + u64::from(guilty.is_some());
                same("left behind", subject.store.release_all().await?, held)?;
            }
            1 => {
                subject.clock.advance_ms(TTL_MS);
                subject.store.reap(10).await?;
            }
            _ => subject.clock.advance_ms(TTL_MS),
        }
    }
    // As it was found, and not only as it is handed out.
    subject.clock.advance_ms(TTL_MS);
    subject.store.reap(10).await?;
    let dead = subject.store.dead_leases(10).await?;
    same("the dead", dead.iter().map(|lease| lease.service.as_str()).collect::<Vec<_>>(), vec![MAPPER])?;
    let leases = subject.leases().await?;
    let folder = leases.iter().find(|lease| lease.service == FOLDER && lease.done_to == Height(15));
    let folder = folder.map(|lease| (lease.status, lease.attempt, lease.last_error.is_empty()));
    same("the folder's", folder, Some((LeaseStatus::Failed, 0, false)))?;
    // Once there is something to do it is charged as any other.
    subject.store.retry_lease(dead[0].id).await?;
    subject.index(MAPPER, 10, 5).await?;
    for died in 0..3 {
        let lease = subject.at_limit(FOLDER).await?.ok_or_else(|| Failure::new("nothing to claim"))?;
        let charged = (lease.done_to, lease.attempt, lease.claimed_to_wait);
        same("the one that has work now", charged, (Height(15), died, false))?;
        subject.reopen().await?;
        subject.store.release_all().await?;
    }
    // So is what is made again, wherever the service may work now.
    subject.store.request_reindex(MAPPER, 1, heights(0, 10), 10).await?;
    let again = ClaimRequest { limit_exclusive: Height(0), ..subject.request(MAPPER) };
    let again = subject.claim_as(&again).await?;
    same("what is made again", (again.kind, again.claimed_to_wait), (LeaseKind::Reindex, false))
}
