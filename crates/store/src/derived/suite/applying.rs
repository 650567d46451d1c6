//! Applying the reorg log: leases, checkpoints and rows go back to the common block, and what follows is as if the other fork had never been.

use std::sync::Arc;

use cairn_core::Height;

use super::raw::{NO_BLOCK, Raw, id};
use super::subject::{Subject, TTL_MS, all};
use super::tables::{ASKER, CODES, FOLDER, HOLDINGS, MAPPER, MOVES, NAMES, NOTES, TOTALS};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseStatus, MAX_ATTEMPTS, WorkerLease};
use crate::derived::reader::{DerivedSnapshot, Scan};
use crate::derived::row::{Key, Row};
use crate::derived::writer::ApplyProgress;
use crate::suite::check::{holds, is_fenced, is_invalid, refused, same};
use crate::{ReorgEntry, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("applying":
        entries_are_applied_in_order,
        an_entry_of_another_log_is_refused,
        beginning_again_changes_nothing,
        leases_go_back_to_the_common_block,
        a_lease_that_ends_at_the_common_block_stays,
        a_dead_lease_stays_dead,
        a_completed_lease_is_reopened_under_a_new_fence,
        checkpoints_go_back_to_the_common_block,
        a_service_that_began_above_begins_there_again,
        nothing_is_finished_while_rows_are_left,
        rows_are_undone_in_bounded_steps,
        r08_state_is_as_if_the_other_fork_had_never_been,
        r06_back_and_forth,
        a_deep_reorg_of_everything,
        skipped_heights_on_one_fork_only,
        answers_above_go_and_content_stays,
        r10_readers_see_no_half_of_it,
        r09_a_crash_at_any_step_is_gone_on_from,
        two_who_apply_at_once_do_it_once,
    )
}

fn is_applied(error: &StoreError) -> bool {
    matches!(error, StoreError::Applied { .. })
}

fn is_other(error: &StoreError) -> bool {
    matches!(error, StoreError::OtherRaw { .. })
}

async fn entries_are_applied_in_order(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let (one, two) = (subject.raw.fork(35), subject.raw.fork(30));
    let before = subject.freeze().await?;
    refused("the second first", subject.store.begin_apply(&two).await, is_applied)?;
    refused("a step of the second", subject.store.apply_step(two.id, 9).await, is_applied)?;
    refused("the end of the second", subject.store.finish_apply(two.id).await, is_applied)?;
    refused("a step before its begin", subject.store.apply_step(one.id, 9).await, is_invalid)?;
    refused("the end before its begin", subject.store.finish_apply(one.id).await, is_invalid)?;
    subject.is_still(&before).await?;
    subject.store.begin_apply(&one).await?;
    let forks = subject.forks().await?;
    same("what is under way", (forks.applied.id, forks.begun.id, forks.begun.digest), (0, 1, one.digest))?;
    refused("the second while the first is", subject.store.begin_apply(&two).await, is_applied)?;
    refused("a step of no rows", subject.store.apply_step(one.id, 0).await, is_invalid)?;
    let forks = subject.finish(&one, 100).await?;
    same("what was applied", (forks.applied.id, forks.applied.digest), (1, one.digest))?;
    same("what was begun", forks.begun, forks.applied)?;
    same("as it is read", subject.forks().await?, forks)?;
    let before = subject.freeze().await?;
    refused("the first again", subject.store.begin_apply(&one).await, is_applied)?;
    refused("its step again", subject.store.apply_step(one.id, 9).await, is_applied)?;
    refused("its end again", subject.store.finish_apply(one.id).await, is_applied)?;
    subject.is_still(&before).await?;
    subject.apply(&two, 100).await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 31, Some(id(30, 1)))
}

async fn an_entry_of_another_log_is_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let mut other = subject.raw.clone();
    let mut stranger = subject.raw.clone();
    stranger.uuid = [9; 16];
    let good = subject.raw.fork(35);
    let before = subject.freeze().await?;
    let stranger = stranger.fork(35);
    refused("another store's", subject.store.begin_apply(&stranger).await, is_other)?;
    let changed = ReorgEntry { digest: [3; 32], ..good.clone() };
    refused("a wrong digest", subject.store.begin_apply(&changed).await, is_other)?;
    let mut fewer = good.clone();
    fewer.orphans.pop();
    refused("content that is not the digest's", subject.store.begin_apply(&fewer).await, is_other)?;
    subject.is_still(&before).await?;
    subject.store.begin_apply(&good).await?;
    let before = subject.freeze().await?;
    let other = other.fork(20);
    refused("another entry of its number", subject.store.begin_apply(&other).await, is_other)?;
    subject.is_still(&before).await?;
    subject.finish(&good, 100).await?;
    // One that follows another first entry.
    let mut third = Raw::with(40, 1);
    third.fork(20);
    third.grow(40, 3);
    let second = third.fork(30);
    refused("the second of another log", subject.store.begin_apply(&second).await, is_other)?;
    Ok(())
}

async fn beginning_again_changes_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let entry = subject.raw.fork(25);
    subject.store.begin_apply(&entry).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.store.apply_step(entry.id, 2).await?;
    let before = subject.freeze().await?;
    subject.store.begin_apply(&entry).await?;
    subject.is_still(&before).await?;
    subject.reopen().await?;
    subject.store.begin_apply(&entry).await?;
    subject.is_still(&before).await?;
    same("a lease taken in between", subject.store.renew(&lease, TTL_MS).await?.id, lease.id)
}

async fn leases_go_back_to_the_common_block(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(60, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(subject.claim(MAPPER).await?);
    }
    for (n, to) in [(0, 10), (1, 20), (3, 35)] {
        subject.commit(&leases[n], to).await?;
    }
    let before: Vec<WorkerLease> = subject.leases().await?;
    let entry = subject.raw.fork(24);
    subject.clock.advance_ms(7);
    subject.store.begin_apply(&entry).await?;
    let after = subject.leases().await?;
    let ids = |leases: &[WorkerLease]| leases.iter().map(|lease| lease.id).collect::<Vec<_>>();
    same("those that are left", ids(&after), ids(&before[..3]))?;
    same("those far below", &after[..2], &before[..2])?;
    // Nothing of it was done: it only changes hands.
    let held = &before[2];
    let expected = WorkerLease {
        status: LeaseStatus::Failed,
        fence: after[2].fence,
        next_try_at_ms: after[2].next_try_at_ms,
        expires_at_ms: after[2].expires_at_ms,
        ..held.clone()
    };
    same("the one across it", &after[2], &expected)?;
    holds(after[2].fence > before[4].fence, "it has no new fence")?;
    refused("its holder's renewal", subject.store.renew(held, TTL_MS).await, is_fenced)?;
    refused("a deleted one's renewal", subject.store.renew(&before[3], TTL_MS).await, is_fenced)?;
    refused("a deleted one's end", subject.store.end(&before[3], LeaseEnd::Released).await, is_fenced)?;
    same("a deleted one", subject.store.lease(before[4].id).await?, None)?;
    same("it is due", subject.claim(MAPPER).await?.id, held.id)?;
    let next = subject.claim(MAPPER).await?;
    same("the next range", next.range, cairn_core::HeightRange::new(Height(30), Height(40)))?;
    holds(next.id > before[4].id, "a lease's number is used again")
}

async fn a_lease_that_ends_at_the_common_block_stays(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let before = subject.leases().await?;
    let entry = subject.raw.fork(19);
    subject.apply(&entry, 100).await?;
    let kept: Vec<_> = before.into_iter().filter(|lease| lease.range.end() <= Height(20)).collect();
    same("the leases", subject.leases().await?, kept)?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 20, Some(id(19, 1)))?;
    subject.raw.grow(40, 2);
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn a_dead_lease_stays_dead(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let lease = subject.commit(&subject.claim(MAPPER).await?, 8).await?.lease;
    subject.store.end(&lease, LeaseEnd::Released).await?;
    let end = LeaseEnd::Bad { message: "poison".into(), retry_in_ms: 0 };
    for _ in 0..MAX_ATTEMPTS {
        subject.store.end(&subject.claim(MAPPER).await?, end.clone()).await?;
    }
    // Another with some attempts, to see that they are kept.
    let other = subject.claim(MAPPER).await?;
    same("the range", other.range.start(), Height(10))?;
    subject.store.end(&other, end).await?;
    let entry = subject.raw.fork(5);
    subject.apply(&entry, 100).await?;
    let dead = subject.store.dead_leases(10).await?;
    same("dead ones", dead.len(), 1)?;
    let stands = (dead[0].id, dead[0].attempt, dead[0].done_to, dead[0].last_id);
    same("the dead one", stands, (lease.id, MAX_ATTEMPTS, Height(6), Some(id(5, 1))))?;
    same("the claim", subject.claim(MAPPER).await?.range.start(), Height(10))?;
    subject.store.retry_lease(lease.id).await?;
    same("the claim of a freed one", subject.claim(MAPPER).await?.id, lease.id)
}

async fn a_completed_lease_is_reopened_under_a_new_fence(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let end = LeaseEnd::Bad { message: "once".into(), retry_in_ms: 0 };
    subject.store.end(&subject.claim(MAPPER).await?, end).await?;
    let done = subject.work(subject.claim(MAPPER).await?, 3).await?;
    same("its state", done.status, LeaseStatus::Completed)?;
    let entry = subject.raw.fork(6);
    subject.raw.grow(40, 2);
    subject.apply(&entry, 100).await?;
    let reopened = subject.lease(done.id).await?;
    let stands = (reopened.status, reopened.done_to, reopened.last_id, reopened.attempt);
    same("reopened", stands, (LeaseStatus::Failed, Height(7), Some(id(6, 1)), done.attempt))?;
    same("its first parent", reopened.first_parent, Some(NO_BLOCK))?;
    holds(reopened.fence > done.fence, "it has no new fence")?;
    let again = subject.claim(MAPPER).await?;
    same("the claim", (again.id, again.claimed_done_to), (done.id, Height(7)))?;
    let again = subject.work(again, 100).await?;
    same("done again", (again.status, again.last_id), (LeaseStatus::Completed, Some(id(9, 2))))?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 10, Some(id(9, 2)))
}

async fn checkpoints_go_back_to_the_common_block(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.store.register("waiting", Height(70)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let folder = subject.claim(FOLDER).await?;
    subject.commit(&folder, 8).await?;
    subject.store.set_paused(MAPPER, true).await?;
    let entry = subject.raw.fork(24);
    subject.clock.advance_ms(9);
    let before = subject.checkpoint(FOLDER).await?;
    subject.store.begin_apply(&entry).await?;
    let mapper = subject.checkpoint(MAPPER).await?;
    Subject::ends(&mapper, 25, Some(id(24, 1)))?;
    holds(mapper.paused, "a clamped checkpoint forgot that it is paused")?;
    same("one below it", subject.checkpoint(FOLDER).await?, before)?;
    Subject::ends(&subject.checkpoint("waiting").await?, 70, None)?;
    subject.reopen().await?;
    same("after a restart", subject.checkpoint(MAPPER).await?, mapper)
}

async fn a_service_that_began_above_begins_there_again(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.store.register("late", Height(33)).await?;
    let request = ClaimRequest { first: Height(33), ..subject.request("late") };
    let lease = subject.claim_as(&request).await?;
    let committed = subject.commit(&lease, 36).await?;
    Subject::ends(&committed.checkpoint, 36, Some(id(35, 1)))?;
    subject.switch(20, 40, 2, 100).await?;
    // It would wait for ever at a height that none of its leases covers.
    Subject::ends(&subject.checkpoint("late").await?, 33, None)?;
    let lease = subject.claim_as(&request).await?;
    same("the lease", lease.range.start(), Height(33))?;
    let committed = subject.commit(&lease, 40).await?;
    Subject::ends(&committed.checkpoint, 40, Some(id(39, 2)))?;
    same("its first parent", committed.lease.first_parent, Some(id(32, 2)))
}

async fn nothing_is_finished_while_rows_are_left(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let entry = subject.raw.fork(20);
    subject.store.begin_apply(&entry).await?;
    let mut steps = 0;
    loop {
        let before = subject.freeze().await?;
        refused("its end", subject.store.finish_apply(entry.id).await, is_invalid)?;
        subject.is_still(&before).await?;
        steps += 1;
        if subject.store.apply_step(entry.id, 5).await? == ApplyProgress::Done {
            break;
        }
    }
    holds(steps > 3, format!("{steps} steps undid everything"))?;
    same("a step more", subject.store.apply_step(entry.id, 5).await?, ApplyProgress::Done)?;
    subject.store.finish_apply(entry.id).await?;
    Ok(())
}

async fn rows_are_undone_in_bounded_steps(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(120, 1)).await?;
    subject.index_all(200, 200).await?;
    let lines = subject.store.dump().await?.lines;
    let events = lines.iter().filter(|line| line.starts_with("moves/") || line.starts_with("notes/")).count();
    let entry = subject.raw.fork(0);
    subject.store.begin_apply(&entry).await?;
    let (mut before, mut steps) = (subject.store.dump().await?.lines, 0);
    loop {
        let progress = subject.store.apply_step(entry.id, 10).await?;
        let after = subject.store.dump().await?.lines;
        steps += 1;
        let gone = before.iter().filter(|line| after.binary_search(line).is_err()).count();
        holds(gone <= 40, format!("{gone} rows changed in a step of about 10"))?;
        before = after;
        if progress == ApplyProgress::Done {
            break;
        }
    }
    holds(steps >= events / 40, format!("{steps} steps undid {events} event rows"))?;
    subject.store.finish_apply(entry.id).await?;
    subject.raw.grow(10, 2);
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn r08_state_is_as_if_the_other_fork_had_never_been(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    // Several changes of one row in one chunk and in several; rows that the other fork made.
    for (common, range_heights, chunk_heights, max_rows) in
        [(12, 10, 10, 1), (3, 7, 2, 3), (22, 100, 1, 1_000), (0, 100, 100, 2)]
    {
        let mut raw = Raw::with(24, 1);
        raw.finalized = Height(common / 2);
        let mut subject = Subject::new(&factory, raw).await?;
        subject.index_all(range_heights, chunk_heights).await?;
        let entry = subject.raw.fork(common);
        subject.apply(&entry, max_rows).await?;
        subject
            .dumps_as_its_chain()
            .await
            .map_err(|failure| Failure::new(format!("after going back from 24 to {common}: {failure}")))?;
        subject.raw.grow(30, 2);
        subject.index_all(range_heights + 3, chunk_heights).await?;
        subject.dumps_as_its_chain().await?;
        same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    }
    Ok(())
}

async fn r06_back_and_forth(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(24, 1)).await?;
    subject.index_all(10, 4).await?;
    for (common, end, salt) in [(15, 22, 2), (15, 25, 1), (11, 27, 3), (20, 28, 1), (11, 30, 1), (29, 31, 2)]
    {
        subject.switch(common, end, salt, 7).await?;
        subject.dumps_as_its_chain().await.err();
        subject.index_all(10, 4).await?;
        let same_as = subject.dumps_as_its_chain().await;
        same_as.map_err(|failure| Failure::new(format!("after {common} to {end} of {salt}: {failure}")))?;
    }
    Ok(())
}

async fn a_deep_reorg_of_everything(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    subject.index_all(10, 10).await?;
    // Two reorgs that nobody applied in time.
    let first = subject.raw.fork(40);
    subject.raw.grow(45, 2);
    let second = subject.raw.fork(0);
    subject.raw.grow(45, 3);
    subject.apply(&first, 100).await?;
    subject.apply(&second, 100).await?;
    let rest = subject.leases().await?;
    holds(
        rest.iter().all(|lease| lease.range.start() == Height(0)),
        format!("leases above the common block are left: {rest:?}"),
    )?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn skipped_heights_on_one_fork_only(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut raw = Raw::with(12, 1);
    raw.skip(14);
    raw.grow(20, 1);
    let mut subject = Subject::new(&factory, raw).await?;
    subject.index_all(5, 2).await?;
    subject.raw.fork(11);
    let entry = subject.raw.reorgs[0].clone();
    same("the first height taken", entry.first_orphan(), Height(12))?;
    subject.apply(&entry, 100).await?;
    // This fork has blocks where the other skipped.
    subject.raw.grow(20, 2);
    subject.index_all(5, 2).await?;
    subject.dumps_as_its_chain().await?;
    subject.raw.fork(13);
    let entry = subject.raw.reorgs[1].clone();
    subject.apply(&entry, 100).await?;
    subject.raw.skip(17);
    subject.raw.grow(22, 3);
    subject.index_all(5, 2).await?;
    subject.dumps_as_its_chain().await
}

async fn answers_above_go_and_content_stays(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(24, 1)).await?;
    subject.index_all(10, 10).await?;
    let (names, codes) = (subject.all(NAMES.name).await?, subject.all(CODES.name).await?);
    // Those that were asked above go, and those whose place they took are there again.
    let reference = Subject::reference(Raw::with(21, 1)).await?;
    reference.index_all(100, 100).await?;
    let expected = reference.all(NAMES.name).await?;
    holds(expected != names, "no answer was asked above the common block")?;
    let entry = subject.raw.fork(20);
    subject.store.begin_apply(&entry).await?;
    same("the answers while it is applied", subject.all(NAMES.name).await?, expected.clone())?;
    subject.finish(&entry, 1).await?;
    same("the answers", subject.all(NAMES.name).await?, expected)?;
    same("the content", subject.all(CODES.name).await?, codes)?;
    Subject::ends(&subject.checkpoint(ASKER).await?, 21, Some(id(20, 1)))
}

/// Everything that can be read of events and state.
async fn seen(snapshot: &dyn DerivedSnapshot) -> CaseResult<Vec<(&'static str, Vec<Row>)>> {
    let mut tables = Vec::new();
    for table in [MOVES.name, NOTES.name, HOLDINGS.name, TOTALS.name] {
        tables.push((table, all(snapshot, table).await?));
    }
    Ok(tables)
}

async fn r10_readers_see_no_half_of_it(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    subject.index_all(10, 4).await?;
    let early = subject.snapshot().await?;
    let seen_early = seen(&*early).await?;
    let entry = subject.raw.fork(17);
    let reference = Subject::reference(Raw::with(18, 1)).await?;
    reference.index_all(100, 100).await?;
    let expected = seen(&*reference.snapshot().await?).await?;
    subject.store.begin_apply(&entry).await?;
    let by_state = Scan { index: Some("by_balance"), ..Scan::new(HOLDINGS.name, 10) };
    let by_key = Scan { index: Some("by_address"), ..Scan::new(HOLDINGS.name, 1_000) };
    let addresses = reference.snapshot().await?.scan(&by_key).await?.rows;
    let keys: Vec<Key> = seen_early[2].1.iter().map(|row| Key(row.0[..2].to_vec())).collect();
    let points = reference.snapshot().await?.rows(HOLDINGS.name, &keys).await?;
    let is_not_yet = |error: &StoreError| matches!(error, StoreError::NotYet { .. });
    let mut steps = 0;
    loop {
        let snapshot = subject.snapshot().await?;
        same("what is read", seen(&*snapshot).await?, expected.clone())?;
        same("state by an index of its key", snapshot.scan(&by_key).await?.rows, addresses.clone())?;
        same("state by key", snapshot.rows(HOLDINGS.name, &keys).await?, points.clone())?;
        refused("a list ordered by state", snapshot.scan(&by_state).await, is_not_yet)?;
        let (rows, end) = snapshot.events(MOVES.name, Height(0), Height(100), usize::MAX).await?;
        same("where the events end", (end, &rows), (Height(18), &expected[0].1))?;
        drop(snapshot);
        steps += 1;
        if subject.store.apply_step(entry.id, 2).await? == ApplyProgress::Done {
            break;
        }
    }
    holds(steps > 5, format!("{steps} steps undid everything"))?;
    let snapshot = subject.snapshot().await?;
    refused("a list ordered by state, before its end", snapshot.scan(&by_state).await, is_not_yet)?;
    subject.store.finish_apply(entry.id).await?;
    let snapshot = subject.snapshot().await?;
    same("what is read after it", seen(&*snapshot).await?, expected)?;
    let listed = reference.snapshot().await?.scan(&by_state).await?.rows;
    same("a list ordered by state, after it", snapshot.scan(&by_state).await?.rows, listed)?;
    same("what an early reader sees", seen(&*early).await?, seen_early)
}

async fn r09_a_crash_at_any_step_is_gone_on_from(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for crash_at in 0..8 {
        let mut subject = Subject::new(&factory, Raw::with(24, 1)).await?;
        subject.index_all(10, 5).await?;
        let entry = subject.raw.fork(14);
        let mut step = 0;
        loop {
            if step >= crash_at {
                // Whoever comes next knows only the log.
                subject.reopen().await?;
                subject.store.adopt(subject.raw.uuid, subject.raw.newest()).await?;
                subject.store.begin_apply(&entry).await?;
            } else if step == 0 {
                subject.store.begin_apply(&entry).await?;
            }
            step += 1;
            if subject.store.apply_step(entry.id, 4).await? == ApplyProgress::Done {
                break;
            }
        }
        subject.reopen().await?;
        subject.store.finish_apply(entry.id).await?;
        subject.reopen().await?;
        subject.dumps_as_its_chain().await?;
        subject.raw.grow(26, 2);
        subject.index_all(10, 5).await?;
        subject.dumps_as_its_chain().await?;
    }
    Ok(())
}

async fn two_who_apply_at_once_do_it_once(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(24, 1)).await?;
    subject.index_all(10, 5).await?;
    subject.raw.fork(14);
    subject.raw.grow(20, 2);
    subject.raw.fork(10);
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let (store, entries) = (subject.store.clone(), subject.raw.reorgs.clone());
        tasks.push(tokio::spawn(async move {
            for entry in entries {
                // Whoever comes late is told so, and nothing else.
                let applied = async {
                    store.begin_apply(&entry).await?;
                    while store.apply_step(entry.id, 3).await? == ApplyProgress::More {
                        tokio::task::yield_now().await;
                    }
                    store.finish_apply(entry.id).await
                };
                match applied.await {
                    Ok(_) | Err(StoreError::Applied { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        }));
    }
    for task in tasks {
        task.await.map_err(|panic| Failure::new(panic.to_string()))??;
    }
    let forks = subject.forks().await?;
    same("what was applied", (forks.applied.id, forks.begun.id), (2, 2))?;
    subject.dumps_as_its_chain().await
}
