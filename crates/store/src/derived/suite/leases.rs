//! `claim`, `renew` and `reap`: who works on what, and who no longer does.

use std::sync::Arc;

use cairn_core::{Fence, Height, HeightRange};

use super::raw::Raw;
use super::subject::{START_MS, Subject, TTL_MS};
use super::tables::{FOLDER, MAPPER};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::derived::lease::{
    ClaimRequest, LeaseEnd, LeaseFilter, LeaseGap, LeaseKind, LeaseStatus, MAX_ERROR_BYTES, WorkerLease,
};
use crate::suite::beside::beside;
use crate::suite::check::{holds, is_fenced, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("leases":
        a_new_lease_says_everything,
        ranges_are_cut_at_multiples_and_end_at_the_stop,
        a_new_range_begins_below_the_limit_only,
        changing_the_range_size_is_harmless,
        heights_that_no_lease_covers_are_named,
        services_dont_disturb_each_other,
        a_failed_lease_is_claimed_before_new_ranges,
        the_lowest_lease_is_claimed_first,
        l03_a_lease_expires_by_the_stores_clock,
        l04_a_heartbeat_keeps_a_lease_for_any_time,
        l05_a_renewal_after_the_takeover_is_refused,
        l01_a_zombie_worker_changes_nothing,
        an_expired_lease_that_nobody_claimed_still_takes_its_holders_commit,
        a_completed_lease_is_neither_claimed_nor_ended,
        in_order_one_lease_after_the_other,
        an_older_version_claims_no_newer_lease,
        long_messages_are_cut,
        leases_are_listed_by_number,
        l06_a_flood_of_expired_leases_is_reaped_in_bounded_steps,
        concurrent_claims_never_overlap,
    )
}

pub(super) fn heights(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

pub(super) fn bad(message: &str) -> LeaseEnd {
    LeaseEnd::Bad { message: message.into(), retry_in_ms: 0 }
}

async fn a_new_lease_says_everything(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let lease = subject.claim(MAPPER).await?;
    let expected = WorkerLease {
        id: lease.id,
        service: MAPPER.into(),
        kind: LeaseKind::Index,
        range: heights(0, 10),
        status: LeaseStatus::Active,
        owner: "worker".into(),
        fence: lease.fence,
        expires_at_ms: START_MS + TTL_MS,
        next_try_at_ms: lease.next_try_at_ms,
        attempt: 0,
        done_to: Height(0),
        claimed_done_to: Height(0),
        claimed_to_wait: false,
        last_id: None,
        first_parent: None,
        version: 1,
        corrects_state: false,
        last_error: String::new(),
    };
    same("the lease", &lease, &expected)?;
    same("the lease by number", subject.store.lease(lease.id).await?, Some(lease.clone()))?;
    same("the lease in a list", subject.leases().await?, vec![lease.clone()])?;
    same("no such lease", subject.store.lease(lease.id + 1).await?, None)?;
    holds(lease.fence > Fence(0), "the fence is 0")
}

async fn ranges_are_cut_at_multiples_and_end_at_the_stop(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    subject.store.register("late", Height(5)).await?;
    let request =
        ClaimRequest { first: Height(5), stop_exclusive: Some(Height(37)), ..subject.request("late") };
    for (from, to) in [(5, 10), (10, 20), (20, 30), (30, 37)] {
        let lease = subject.claim_as(&request).await?;
        same("the range", lease.range, heights(from, to))?;
        same("where it stands", lease.done_to, Height(from))?;
    }
    same("above the stop", subject.store.claim(&request).await?, None)?;
    let zero = ClaimRequest { range_heights: 0, ..subject.request(MAPPER) };
    refused("ranges of no heights", subject.store.claim(&zero).await, is_invalid)?;
    let whole = ClaimRequest { range_heights: u64::MAX, ..subject.request(MAPPER) };
    let whole = ClaimRequest { stop_exclusive: Some(Height(1 << 40)), ..whole };
    same("a range of everything", subject.claim_as(&whole).await?.range, heights(0, 1 << 40))
}

async fn a_new_range_begins_below_the_limit_only(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let request = |limit| ClaimRequest { limit_exclusive: Height(limit), ..subject.request(MAPPER) };
    same("nothing to do", subject.store.claim(&request(0)).await?, None)?;
    same("one height to do", subject.claim_as(&request(1)).await?.range, heights(0, 10))?;
    same("the next begins above", subject.store.claim(&request(10)).await?, None)?;
    same("it reaches beyond", subject.claim_as(&request(11)).await?.range, heights(10, 20))?;
    // A lease that is there already is reclaimed whatever the limit.
    subject.clock.advance_ms(TTL_MS);
    same("reclaimed", subject.claim_as(&request(0)).await?.range, heights(0, 10))
}

async fn changing_the_range_size_is_harmless(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    for (range_heights, from, to) in
        [(10, 0, 10), (4, 10, 12), (25, 12, 25), (7, 25, 28), (1, 28, 29), (1_000, 29, 1_000)]
    {
        let request = ClaimRequest { range_heights, ..subject.request(MAPPER) };
        same("the next range", subject.claim_as(&request).await?.range, heights(from, to))?;
    }
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())
}

async fn heights_that_no_lease_covers_are_named(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(60, 1)).await?;
    subject.index_all(10, 10).await?;
    same("nothing is lost", subject.store.lease_gaps(10).await?, Vec::new())?;
    let leases = subject.leases().await?;
    for (service, from) in [(MAPPER, 20), (MAPPER, 30), (MAPPER, 10), (FOLDER, 40), (FOLDER, 10)] {
        let lost =
            leases.iter().find(|lease| lease.service == service && lease.range.start() == Height(from));
        let lost = lost.ok_or_else(|| Failure::new(format!("{service} has no lease at {from}")))?;
        subject.place.lose_lease(lost.id).await?;
    }
    let gap = |service: &str, from, to| LeaseGap { service: service.into(), missing: heights(from, to) };
    let gaps = vec![gap(FOLDER, 10, 20), gap(FOLDER, 40, 50), gap(MAPPER, 10, 40)];
    same("what is lost", subject.store.lease_gaps(10).await?, gaps.clone())?;
    same("the first of them", subject.store.lease_gaps(2).await?, gaps[..2].to_vec())?;
    // A range that is made again is another kind of lease, and fills none.
    subject.store.request_reindex(MAPPER, 1, heights(5, 45), 100).await?;
    subject.reopen().await?;
    same("what is lost still", subject.store.lease_gaps(10).await?, gaps)
}

async fn services_dont_disturb_each_other(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(FOLDER).await?);
    same("the ranges", (one.range, two.range), (heights(0, 10), heights(0, 10)))?;
    holds(one.id != two.id && two.fence > one.fence, format!("{one:?} and {two:?} share something"))?;
    subject.store.end(&one, LeaseEnd::Released).await?;
    same("the other's lease", subject.lease(two.id).await?, two)
}

async fn a_failed_lease_is_claimed_before_new_ranges(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let lease = subject.commit(&lease, 4).await?.lease;
    subject.store.end(&lease, LeaseEnd::Released).await?;
    let given = subject.lease(lease.id).await?;
    same("its state", given.status, LeaseStatus::Failed)?;
    holds(given.fence > lease.fence, "giving it back gave no new fence")?;
    let again = subject.claim_as(&ClaimRequest { owner: "other".into(), ..subject.request(MAPPER) }).await?;
    let expected = WorkerLease {
        owner: "other".into(),
        fence: again.fence,
        next_try_at_ms: again.next_try_at_ms,
        claimed_done_to: Height(4),
        ..lease
    };
    holds(again.fence > given.fence, "the claim gave no new fence")?;
    same("the lease", &again, &expected)?;
    same("the next one", subject.claim(MAPPER).await?.range, heights(10, 20))
}

async fn the_lowest_lease_is_claimed_first(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(subject.claim(MAPPER).await?);
    }
    subject.store.end(&leases[3], LeaseEnd::Released).await?;
    subject.store.end(&leases[1], bad("failed")).await?;
    subject.clock.advance_ms(1);
    same("the first", subject.claim(MAPPER).await?.range, heights(10, 20))?;
    same("the second", subject.claim(MAPPER).await?.range, heights(30, 40))?;
    subject.clock.advance_ms(TTL_MS - 1);
    for n in [0, 2] {
        same("an expired one", subject.claim(MAPPER).await?.range, leases[n].range)?;
    }
    same("a new one", subject.claim(MAPPER).await?.range, heights(40, 50))
}

async fn l03_a_lease_expires_by_the_stores_clock(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let stop = Some(Height(10));
    let request = ClaimRequest { stop_exclusive: stop, ttl_ms: 1_000, ..subject.request(MAPPER) };
    let lease = subject.claim_as(&request).await?;
    same("when it expires", lease.expires_at_ms, START_MS + 1_000)?;
    subject.clock.advance_ms(999);
    same("a claim before that", subject.store.claim(&request).await?, None)?;
    same("reaped before that", subject.store.reap(10).await?, Vec::new())?;
    subject.clock.advance_ms(1);
    let again = subject.claim_as(&request).await?;
    same("a claim then", (again.id, again.expires_at_ms), (lease.id, START_MS + 2_000))?;
    same("another claim then", subject.store.claim(&request).await?, None)
}

async fn l04_a_heartbeat_keeps_a_lease_for_any_time(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let request = ClaimRequest { stop_exclusive: Some(Height(10)), ..subject.request(MAPPER) };
    let lease = subject.claim_as(&request).await?;
    for beat in 1..20 {
        subject.clock.advance_ms(TTL_MS / 2);
        let expected =
            WorkerLease { expires_at_ms: START_MS + beat * (TTL_MS / 2) + TTL_MS, ..lease.clone() };
        // The lease as it was claimed will do: its number and fence say which it is.
        same("renewed", subject.store.renew(&lease, TTL_MS).await?, expected)?;
        same("reaped", subject.store.reap(10).await?, Vec::new())?;
        same("claimed by another", subject.store.claim(&request).await?, None)?;
    }
    subject.clock.advance_ms(TTL_MS);
    let again = subject.claim_as(&request).await?;
    same("after the heart stopped", (again.id, again.attempt), (lease.id, 1))
}

async fn l05_a_renewal_after_the_takeover_is_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.clock.advance_ms(TTL_MS);
    // Expired, but nobody has noticed: its holder may come back.
    let lease = subject.store.renew(&lease, TTL_MS).await?;
    subject.clock.advance_ms(TTL_MS);
    same("reaped", subject.store.reap(10).await?.len(), 1)?;
    refused("a renewal after the reaper", subject.store.renew(&lease, TTL_MS).await, is_fenced)?;
    let other = subject.claim(MAPPER).await?;
    refused("a renewal after a claim", subject.store.renew(&lease, TTL_MS).await, is_fenced)?;
    same("the lease", subject.lease(lease.id).await?, other)
}

async fn l01_a_zombie_worker_changes_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let zombie = subject.claim(MAPPER).await?;
    let zombie = subject.commit(&zombie, 2).await?.lease;
    let late = subject.chunk(&zombie, 7).await?;
    subject.clock.advance_ms(TTL_MS);
    let living = subject.claim(MAPPER).await?;
    same("which lease", living.id, zombie.id)?;
    let living = subject.commit(&living, 5).await?.lease;
    let before = subject.freeze().await?;
    refused("a zombie's commit", subject.store.commit_chunk(&zombie, late.clone()).await, is_fenced)?;
    refused("a zombie's renewal", subject.store.renew(&zombie, TTL_MS).await, is_fenced)?;
    refused("a zombie's release", subject.store.end(&zombie, LeaseEnd::Released).await, is_fenced)?;
    refused("a zombie's failure", subject.store.end(&zombie, bad("zombie")).await, is_fenced)?;
    let made_up = WorkerLease { id: 1_000, ..living.clone() };
    refused("a lease that never was", subject.store.renew(&made_up, TTL_MS).await, is_fenced)?;
    refused("its commit", subject.store.commit_chunk(&made_up, late).await, is_fenced)?;
    subject.is_still(&before).await?;
    subject.commit(&living, 10).await?;
    subject.index(MAPPER, 10, 4).await
}

async fn an_expired_lease_that_nobody_claimed_still_takes_its_holders_commit(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.clock.advance_ms(10 * TTL_MS);
    let committed = subject.commit(&lease, 3).await?;
    same("when it expires now", committed.lease.expires_at_ms, START_MS + 11 * TTL_MS)?;
    same("reaped", subject.store.reap(10).await?, Vec::new())
}

async fn a_completed_lease_is_neither_claimed_nor_ended(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let lease = subject.work(subject.claim(MAPPER).await?, 100).await?;
    same("its state", lease.status, LeaseStatus::Completed)?;
    subject.clock.advance_ms(10 * TTL_MS);
    let before = subject.freeze().await?;
    refused("an end", subject.store.end(&lease, bad("late")).await, is_fenced)?;
    refused("a renewal", subject.store.renew(&lease, TTL_MS).await, is_fenced)?;
    same("reaped", subject.store.reap(10).await?, Vec::new())?;
    same("released", subject.store.release_lease(lease.id).await?, None)?;
    same("retried", subject.store.retry_lease(lease.id).await?, None)?;
    subject.is_still(&before).await?;
    same("the next claim", subject.claim(MAPPER).await?.range, heights(10, 20))
}

async fn in_order_one_lease_after_the_other(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let lease = subject.claim(FOLDER).await?;
    same("while it is held", subject.store.claim(&subject.request(FOLDER)).await?, None)?;
    let lease = subject.commit(&lease, 4).await?.lease;
    let end = LeaseEnd::Transient { message: "away".into(), retry_in_ms: 1_000 };
    subject.store.end(&lease, end).await?;
    same("while it waits", subject.store.claim(&subject.request(FOLDER)).await?, None)?;
    subject.clock.advance_ms(1_000);
    let lease = subject.claim(FOLDER).await?;
    same("which one", lease.range, heights(0, 10))?;
    subject.work(lease, 100).await?;
    same("the next", subject.claim(FOLDER).await?.range, heights(10, 20))
}

async fn an_older_version_claims_no_newer_lease(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let stop = Some(Height(10));
    let version = |version| ClaimRequest { version, stop_exclusive: stop, ..subject.request(MAPPER) };
    let lease = subject.claim_as(&version(2)).await?;
    same("the version", lease.version, 2)?;
    subject.clock.advance_ms(TTL_MS);
    same("an older claim of an expired one", subject.store.claim(&version(1)).await?, None)?;
    same("the lease, not reaped", subject.lease(lease.id).await?.fence, lease.fence)?;
    subject.store.end(&lease, LeaseEnd::Released).await?;
    same("an older claim", subject.store.claim(&version(1)).await?, None)?;
    let lease = subject.claim_as(&version(3)).await?;
    same("a newer claim", lease.version, 3)?;
    subject.store.end(&lease, LeaseEnd::Released).await?;
    same("the former version", subject.store.claim(&version(2)).await?, None)?;
    same("the same version", subject.claim_as(&version(3)).await?.id, lease.id)
}

async fn long_messages_are_cut(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let lease = subject.claim(MAPPER).await?;
    let long = format!("a\0{}", "é".repeat(MAX_ERROR_BYTES));
    subject.store.end(&lease, bad(&long)).await?;
    let kept = subject.lease(lease.id).await?.last_error;
    let whole = long.replace('\0', "\u{fffd}");
    holds(
        kept.len() <= MAX_ERROR_BYTES && kept.len() > MAX_ERROR_BYTES - 4 && whole.starts_with(&kept),
        format!("{} bytes are kept of {}", kept.len(), whole.len()),
    )
}

async fn leases_are_listed_by_number(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(60, 1)).await?;
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(subject.claim(if n == 4 { FOLDER } else { MAPPER }).await?.id);
    }
    subject.work(subject.lease(ids[1]).await?, 100).await?;
    subject.store.end(&subject.lease(ids[3]).await?, bad("x")).await?;
    let list = async |filter: LeaseFilter| -> CaseResult<Vec<u64>> {
        Ok(subject.snapshot().await?.leases(&filter).await?.iter().map(|lease| lease.id).collect())
    };
    let every = LeaseFilter { limit: 100, ..LeaseFilter::default() };
    same("all", list(every.clone()).await?, ids.clone())?;
    same("two", list(LeaseFilter { limit: 2, ..every.clone() }).await?, ids[..2].to_vec())?;
    let after = LeaseFilter { after_id: ids[2], ..every.clone() };
    same("after the third", list(after).await?, ids[3..].to_vec())?;
    let folder = LeaseFilter { service: Some(FOLDER.into()), ..every.clone() };
    same("the folder's", list(folder).await?, vec![ids[4]])?;
    for (status, expected) in [
        (LeaseStatus::Active, vec![ids[0], ids[2], ids[4], ids[5]]),
        (LeaseStatus::Completed, vec![ids[1]]),
        (LeaseStatus::Failed, vec![ids[3]]),
    ] {
        let filter = LeaseFilter { status: Some(status), ..every.clone() };
        same(status.as_str(), list(filter).await?, expected)?;
    }
    same("dead ones", list(LeaseFilter { dead: true, ..every }).await?, Vec::new())
}

async fn l06_a_flood_of_expired_leases_is_reaped_in_bounded_steps(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let count = factory.expired_leases();
    let services = count / 200 + 1;
    for number in 0..services {
        subject.store.register(&format!("flood {number}"), Height(0)).await?;
    }
    let request =
        ClaimRequest { range_heights: 1, limit_exclusive: Height(u64::MAX), ..subject.request(MAPPER) };
    beside(factory.at_once(), 0..count, |height| {
        let store = subject.store.clone();
        let request = ClaimRequest { service: format!("flood {}", height % services), ..request.clone() };
        async move {
            let lease = store.claim(&request).await?;
            holds(lease.is_some(), format!("nothing to claim for {}", request.service))
        }
    })
    .await?;
    subject.clock.advance_ms(TTL_MS);
    let (step, mut reaped) = ((count / 20).max(1), 0);
    loop {
        let now = subject.store.reap(step as usize).await?;
        holds(now.len() as u64 <= step, format!("{} were reaped, not {step}", now.len()))?;
        let is_reaped = |lease: &WorkerLease| lease.status == LeaseStatus::Failed && lease.attempt == 1;
        holds(now.iter().all(is_reaped), "a lease was not reaped")?;
        if now.is_empty() {
            break;
        }
        reaped += now.len() as u64;
    }
    same("how many were reaped", reaped, count)
}

async fn concurrent_claims_never_overlap(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    let mut tasks = Vec::new();
    for worker in 0..4 {
        let request = ClaimRequest { owner: format!("worker {worker}"), ..subject.request(MAPPER) };
        let store = subject.store.clone();
        tasks.push(tokio::spawn(async move {
            let mut claimed = Vec::new();
            for _ in 0..15 {
                claimed.push(store.claim(&request).await);
            }
            claimed
        }));
    }
    let (mut ranges, mut fences, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for task in tasks {
        let claimed = task.await.map_err(|panic| super::Failure::new(panic.to_string()))?;
        for lease in claimed {
            let lease = lease?.ok_or_else(|| super::Failure::new("nothing was left to claim"))?;
            ranges.push((lease.range.start(), lease.range.end()));
            fences.push(lease.fence);
            ids.push(lease.id);
        }
    }
    ranges.sort_unstable();
    let expected: Vec<_> = (0..60).map(|n| (Height(10 * n), Height(10 * n + 10))).collect();
    same("the ranges", ranges, expected)?;
    for numbers in [fences.iter().map(|fence| fence.0).collect::<Vec<_>>(), ids] {
        let distinct: std::collections::BTreeSet<_> = numbers.iter().collect();
        same("distinct numbers", distinct.len(), 60)?;
    }
    Ok(())
}
