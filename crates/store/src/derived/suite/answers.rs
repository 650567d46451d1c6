//! Answers of which several come under one key: the one that was asked at the highest block is read, and a reorg that takes it brings back the one below.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::Height;

use super::raw::Raw;
use super::subject::{Subject, TTL_MS};
use super::tables::{ASKER, NAMES};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::StoreError;
use crate::derived::lease::{ClaimRequest, WorkerLease};
use crate::derived::reader::Scan;
use crate::derived::row::{Key, Row};
use crate::derived::value::Value;
use crate::derived::writer::{ApplyProgress, ChunkCommit, TableRows};
use crate::suite::check::{holds, is_fenced, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("answers":
        a_reorg_brings_back_what_a_newer_answer_replaced,
        a_reorg_goes_down_to_the_right_answer,
        answers_of_one_commit_take_their_places,
        a_late_answer_takes_its_place_below,
        an_answer_of_the_same_block_replaces,
        readers_see_the_answer_below_at_every_moment,
        a_crash_at_any_step_is_gone_on_from,
        a_late_answer_between_two_steps_is_what_is_left,
        who_is_too_late_leaves_nothing_to_bring_back,
        what_finality_passed_is_forgotten,
        a_reset_leaves_nothing_to_bring_back,
        a_deleted_row_leaves_nothing_to_bring_back,
        what_was_asked_last_is_told_while_a_reorg_is_applied,
        any_order_and_any_reorg,
    )
}

/// What was answered about a thing, and at which block.
type Answer<'a> = (u8, &'a str, u64);

fn key(thing: u8) -> Value {
    Value::bytes(&[thing; 20])
}

fn row(&(thing, name, at): &Answer<'_>) -> Row {
    Row(vec![key(thing), Value::text(name), Value::height(Height(at))])
}

fn part(answers: &[Answer<'_>]) -> Vec<TableRows> {
    vec![TableRows { table: NAMES.name, rows: answers.iter().map(row).collect() }]
}

/// A chain of 40 blocks, and a lease over all of it.
async fn begin(factory: &Arc<dyn DerivedFactory>) -> CaseResult<(Subject, WorkerLease)> {
    let subject = Subject::new(factory, Raw::with(40, 1)).await?;
    let lease = claim(&subject).await?;
    Ok((subject, lease))
}

async fn claim(subject: &Subject) -> CaseResult<WorkerLease> {
    subject.claim_as(&ClaimRequest { range_heights: 1_000, ..subject.request(ASKER) }).await
}

/// The commit of the lease's next block, with these answers.
async fn chunk(subject: &Subject, lease: &WorkerLease, answers: &[Answer<'_>]) -> CaseResult<ChunkCommit> {
    let to = lease.done_to.get() + 1;
    Ok(ChunkCommit { rows: part(answers), ..subject.chunk(lease, to).await? })
}

async fn lay(subject: &Subject, lease: &WorkerLease, answers: &[Answer<'_>]) -> CaseResult<WorkerLease> {
    let commit = chunk(subject, lease, answers).await?;
    Ok(subject.store.commit_chunk(lease, commit).await?.lease)
}

/// Lays each answer by a commit of its own.
async fn lay_each(subject: &Subject, lease: WorkerLease, answers: &[Answer<'_>]) -> CaseResult<WorkerLease> {
    let mut lease = lease;
    for answer in answers {
        lease = lay(subject, &lease, std::slice::from_ref(answer)).await?;
    }
    Ok(lease)
}

/// Demands that these answers are read, and no others.
async fn reads(subject: &Subject, answers: &[Answer<'_>]) -> CaseResult {
    let expected: Vec<Row> = answers.iter().map(row).collect();
    same("the answers", subject.all(NAMES.name).await?, expected)
}

async fn a_reorg_brings_back_what_a_newer_answer_replaced(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for max_rows in [1, 2, 100] {
        let (mut subject, lease) = begin(&factory).await?;
        lay_each(&subject, lease, &[(1, "a", 20), (1, "b", 25), (1, "c", 30)]).await?;
        reads(&subject, &[(1, "c", 30)]).await?;
        subject.switch(30, 40, 2, max_rows).await?;
        reads(&subject, &[(1, "c", 30)]).await?;
        subject.switch(27, 40, 3, max_rows).await?;
        reads(&subject, &[(1, "b", 25)]).await?;
        subject.switch(24, 40, 4, max_rows).await?;
        reads(&subject, &[(1, "a", 20)]).await?;
        // Another answer of the new fork takes the place again, and the reorg that takes it leaves the same.
        let lease = claim(&subject).await?;
        lay(&subject, &lease, &[(1, "d", 26)]).await?;
        reads(&subject, &[(1, "d", 26)]).await?;
        subject.switch(25, 40, 5, max_rows).await?;
        reads(&subject, &[(1, "a", 20)]).await?;
        subject.switch(19, 40, 6, max_rows).await?;
        reads(&subject, &[]).await?;
    }
    Ok(())
}

async fn a_reorg_goes_down_to_the_right_answer(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let answers: [&[Answer<'_>]; 3] = [
        &[(1, "a", 20), (3, "a", 20), (5, "a", 22)],
        &[(1, "b", 25), (2, "b", 25)],
        &[(1, "c", 30), (2, "c", 30), (4, "c", 30), (5, "c", 30)],
    ];
    for max_rows in [1, 3, 100] {
        let (mut subject, mut lease) = begin(&factory).await?;
        for answers in answers {
            lease = lay(&subject, &lease, answers).await?;
        }
        lay(&subject, &lease, &[(1, "d", 35)]).await?;
        // Of 2 what came before was asked above as well, and of 4 there was nothing.
        subject.switch(22, 40, 2, max_rows).await?;
        reads(&subject, &[(1, "a", 20), (3, "a", 20), (5, "a", 22)]).await?;
        subject.switch(21, 40, 3, max_rows).await?;
        reads(&subject, &[(1, "a", 20), (3, "a", 20)]).await?;
    }
    Ok(())
}

async fn answers_of_one_commit_take_their_places(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    lay(&subject, &lease, &[(1, "b", 25), (1, "x", 20), (1, "c", 30), (2, "c", 30), (1, "a", 20)]).await?;
    reads(&subject, &[(1, "c", 30), (2, "c", 30)]).await?;
    subject.switch(27, 40, 2, 100).await?;
    reads(&subject, &[(1, "b", 25)]).await?;
    subject.switch(24, 40, 3, 100).await?;
    reads(&subject, &[(1, "a", 20)]).await
}

async fn a_late_answer_takes_its_place_below(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for (common, expected) in [(32, Some((1, "d", 30))), (27, Some((1, "c", 25))), (22, Some((1, "b", 20)))] {
        let (mut subject, lease) = begin(&factory).await?;
        // An old question is answered after a newer one: what is read stays.
        lay_each(&subject, lease, &[(1, "a", 10), (1, "d", 30), (1, "b", 20), (1, "c", 25)]).await?;
        reads(&subject, &[(1, "d", 30)]).await?;
        subject.switch(common, 40, 2, 100).await?;
        reads(&subject, &Vec::from_iter(expected)).await?;
        subject.switch(15, 40, 3, 100).await?;
        reads(&subject, &[(1, "a", 10)]).await?;
    }
    Ok(())
}

async fn an_answer_of_the_same_block_replaces(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    // As when a range is made again.
    lay_each(&subject, lease, &[(1, "a", 20), (1, "b", 25), (1, "b2", 25), (1, "a2", 20)]).await?;
    reads(&subject, &[(1, "b2", 25)]).await?;
    subject.switch(22, 40, 2, 100).await?;
    reads(&subject, &[(1, "a2", 20)]).await?;
    subject.switch(15, 40, 3, 100).await?;
    reads(&subject, &[]).await
}

/// A node may be asked at a block above everything that is stored; whoever applies a reorg has to know that it was.
async fn what_was_asked_last_is_told_while_a_reorg_is_applied(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    same("before any answer", subject.snapshot().await?.newest_asked(NAMES.name).await?, None)?;
    lay_each(&subject, lease, &[(1, "a", 3), (2, "b", 90), (1, "c", 30)]).await?;
    let newest = async |subject: &Subject| -> CaseResult<Option<Height>> {
        Ok(subject.snapshot().await?.newest_asked(NAMES.name).await?)
    };
    same("the highest block", newest(&subject).await?, Some(Height(90)))?;
    let is_invalid = |error: &StoreError| matches!(error, StoreError::Invalid(_));
    let no_answers = subject.snapshot().await?.newest_asked(super::tables::MOVES.name).await;
    refused("a table without answers", no_answers, is_invalid)?;
    let entry = subject.raw.fork(22);
    subject.store.begin_apply(&entry).await?;
    reads(&subject, &[(1, "a", 3)]).await?;
    same("while it is applied", newest(&subject).await?, Some(Height(90)))?;
    while subject.store.apply_step(entry.id, 100).await? != ApplyProgress::Done {}
    subject.store.finish_apply(entry.id).await?;
    same("after it", newest(&subject).await?, Some(Height(3)))
}

async fn readers_see_the_answer_below_at_every_moment(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, mut lease) = begin(&factory).await?;
    let mut expected = Vec::new();
    for thing in 0..9 {
        // Some were asked below only, some above only, some both, some more than once.
        let all = [(thing, "a", 20), (thing, "b", 25), (thing, "c", 30)];
        let answers = &all[usize::from(thing % 3 == 2)..=usize::from(thing % 4).min(2)];
        lease = lay(&subject, &lease, answers).await?;
        expected.extend(answers.first().filter(|answer| answer.2 == 20).map(row));
    }
    let early = subject.snapshot().await?;
    let seen_early = super::subject::all(&*early, NAMES.name).await?;
    let keys: Vec<Key> = (0..9).map(|thing| Key(vec![key(thing)])).collect();
    let is_there = |key: &Key| expected.iter().find(|row| row.0[0] == key.0[0]).cloned();
    let points: Vec<Option<Row>> = keys.iter().map(is_there).collect();
    let named = Scan { filters: vec![("name", Value::text("a"))], ..Scan::new(NAMES.name, 100) };
    let by_asked = Scan { index: Some("by_asked"), ..Scan::new(NAMES.name, 100) };
    let is_not_yet = |error: &StoreError| matches!(error, StoreError::NotYet { .. });
    let entry = subject.raw.fork(22);
    subject.store.begin_apply(&entry).await?;
    let mut steps = 0;
    loop {
        let snapshot = subject.snapshot().await?;
        let all = super::subject::all(&*snapshot, NAMES.name).await?;
        same("the answers while it is applied", all, expected.clone())?;
        same("answers by key", snapshot.rows(NAMES.name, &keys).await?, points.clone())?;
        same("by what they say", snapshot.scan(&named).await?.rows, expected.clone())?;
        let page = snapshot.scan(&Scan { descending: true, ..Scan::new(NAMES.name, 1) }).await?;
        holds(page.rows.len() <= 1, "a page of one has more")?;
        refused("a list ordered by what may come back", snapshot.scan(&by_asked).await, is_not_yet)?;
        steps += 1;
        if subject.store.apply_step(entry.id, 1).await? == ApplyProgress::Done {
            break;
        }
    }
    holds(steps > 5, format!("{steps} steps undid everything"))?;
    subject.store.finish_apply(entry.id).await?;
    let snapshot = subject.snapshot().await?;
    same("the answers after it", super::subject::all(&*snapshot, NAMES.name).await?, expected.clone())?;
    same("in the order of the blocks", snapshot.scan(&by_asked).await?.rows, expected)?;
    same("what an early reader sees", super::subject::all(&*early, NAMES.name).await?, seen_early)
}

async fn a_crash_at_any_step_is_gone_on_from(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let answers: Vec<[Answer<'_>; 3]> =
        (0..4).map(|thing| [(thing, "a", 20), (thing, "b", 25), (thing, "c", 30)]).collect();
    for crash_at in 0..6 {
        let (mut subject, mut lease) = begin(&factory).await?;
        for answers in &answers {
            lease = lay(&subject, &lease, answers).await?;
        }
        let entry = subject.raw.fork(27);
        let mut step = 0;
        subject.store.begin_apply(&entry).await?;
        loop {
            if step >= crash_at {
                subject.reopen().await?;
                subject.store.begin_apply(&entry).await?;
            }
            step += 1;
            if subject.store.apply_step(entry.id, 1).await? == ApplyProgress::Done {
                break;
            }
        }
        subject.reopen().await?;
        subject.store.finish_apply(entry.id).await?;
        let middle: Vec<Answer<'_>> = answers.iter().map(|answers| answers[1]).collect();
        reads(&subject, &middle).await?;
        subject.raw.grow(40, 2);
        subject.switch(22, 40, 3, 1).await?;
        let first: Vec<Answer<'_>> = answers.iter().map(|answers| answers[0]).collect();
        reads(&subject, &first).await?;
    }
    Ok(())
}

async fn a_late_answer_between_two_steps_is_what_is_left(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for late_at in 0..5 {
        let (mut subject, lease) = begin(&factory).await?;
        let mut lease = lay(&subject, &lease, &[(1, "b", 30)]).await?;
        for thing in 2..=4 {
            lease = lay(&subject, &lease, &[(thing, "a", 20), (thing, "b", 30)]).await?;
        }
        let entry = subject.raw.fork(25);
        subject.store.begin_apply(&entry).await?;
        // Whoever works below the reorg goes on while it is applied.
        let lease = claim(&subject).await?;
        let mut expected: Vec<Answer<'_>> = vec![(2, "a", 20), (3, "a", 20), (4, "a", 20)];
        for step in 0.. {
            if step == late_at {
                lay(&subject, &lease, &[(1, "late", 9)]).await?;
                expected.insert(0, (1, "late", 9));
            }
            let progress = subject.store.apply_step(entry.id, 1).await?;
            reads(&subject, &expected).await?;
            if progress == ApplyProgress::Done {
                break;
            }
        }
        subject.store.finish_apply(entry.id).await?;
        reads(&subject, &expected).await?;
    }
    Ok(())
}

async fn who_is_too_late_leaves_nothing_to_bring_back(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    let lease = lay(&subject, &lease, &[(1, "a", 20)]).await?;
    // A zombie: its lease is another's by now.
    let zombie = lease.clone();
    subject.store.release_lease(lease.id).await?;
    let lease = claim(&subject).await?;
    let late = chunk(&subject, &zombie, &[(1, "z", 30), (2, "z", 24)]).await?;
    let before = subject.freeze().await?;
    refused("a zombie's answers", subject.store.commit_chunk(&zombie, late).await, is_fenced)?;
    subject.is_still(&before).await?;
    let lease = lay(&subject, &lease, &[(1, "b", 33)]).await?;
    // One that asked before a reorg, at a block that is gone when it speaks.
    let stale = chunk(&subject, &lease, &[(1, "s", 31)]).await?;
    subject.switch(30, 40, 2, 100).await?;
    reads(&subject, &[(1, "a", 20)]).await?;
    let lease = claim(&subject).await?;
    let before = subject.freeze().await?;
    let is_fork = |error: &StoreError| matches!(error, StoreError::ForkBelow { .. });
    refused("answers of a dead fork", subject.store.commit_chunk(&lease, stale).await, is_fork)?;
    subject.is_still(&before).await?;
    same("it is renewed", subject.store.renew(&lease, TTL_MS).await?.id, lease.id)?;
    lay(&subject, &lease, &[(1, "c", 36)]).await?;
    subject.switch(34, 40, 3, 100).await?;
    reads(&subject, &[(1, "a", 20)]).await
}

async fn what_finality_passed_is_forgotten(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    let lease = lay_each(&subject, lease, &[(1, "a", 20), (1, "b", 24), (2, "b", 24)]).await?;
    // Everything below 25 is final from here on.
    subject.raw.finalized = Height(25);
    let lease = lay_each(&subject, lease, &[(1, "c", 25), (2, "c", 30), (1, "d", 30)]).await?;
    while subject.store.prune_undo(Height(25), 100).await? > 0 {}
    // An old block is asked about again: nothing is kept for a reorg that can't be.
    lay(&subject, &lease, &[(2, "x", 22), (3, "x", 22), (3, "y", 23)]).await?;
    same("how many are old", subject.store.prune_undo(Height(25), 100).await?, 0)?;
    subject.switch(27, 40, 2, 100).await?;
    reads(&subject, &[(1, "c", 25), (2, "b", 24), (3, "y", 23)]).await?;
    subject.switch(24, 40, 3, 100).await?;
    reads(&subject, &[(1, "b", 24), (2, "b", 24), (3, "y", 23)]).await?;
    // No raw store asks for this.
    let entry = subject.raw.fork(22);
    let is_corrupt = |error: &StoreError| matches!(error, StoreError::Corrupt { .. });
    subject.store.begin_apply(&entry).await?;
    refused("a reorg below finality", subject.store.apply_step(entry.id, 100).await, is_corrupt)?;
    Ok(())
}

async fn a_reset_leaves_nothing_to_bring_back(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    lay_each(&subject, lease, &[(1, "a", 20), (1, "b", 25), (1, "c", 30), (2, "a", 20)]).await?;
    subject.anew(ASKER).await?;
    while subject.store.reset_step(ASKER, 1).await? {}
    reads(&subject, &[]).await?;
    same("undo rows", subject.store.prune_undo(Height(32), 100).await?, 0)?;
    let lease = claim(&subject).await?;
    lay(&subject, &lease, &[(1, "d", 35)]).await?;
    subject.switch(32, 40, 2, 100).await?;
    reads(&subject, &[]).await
}

async fn a_deleted_row_leaves_nothing_to_bring_back(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = begin(&factory).await?;
    let answers = [(1, "a", 20), (1, "b", 30), (2, "a", 20), (2, "b", 30)];
    let lease = lay_each(&subject, lease, &answers).await?;
    same("how many", subject.store.delete_rows(NAMES.name, &[Key(vec![key(1)])]).await?, 1)?;
    reads(&subject, &[(2, "b", 30)]).await?;
    lay(&subject, &lease, &[(1, "c", 35)]).await?;
    subject.switch(25, 40, 2, 100).await?;
    reads(&subject, &[(2, "a", 20)]).await
}

/// Numbers of a sequence.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

async fn any_order_and_any_reorg(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for seed in 1..=4 {
        let mut numbers = Numbers(seed);
        let (mut subject, mut lease) = begin(&factory).await?;
        // What a store that never forgot anything would say.
        let mut known: BTreeMap<u8, BTreeMap<u64, String>> = BTreeMap::new();
        for step in 0..30_u8 {
            match numbers.below(8) {
                0..=4 => {
                    let mut answers: Vec<(u8, String, u64)> = Vec::new();
                    for _ in 0..1 + numbers.below(6) {
                        let (thing, at) = (numbers.below(4) as u8, 12 + numbers.below(28));
                        answers.push((thing, format!("{step} {}", answers.len()), at));
                    }
                    let of: Vec<Answer<'_>> =
                        answers.iter().map(|(thing, name, at)| (*thing, name.as_str(), *at)).collect();
                    lease = lay(&subject, &lease, &of).await?;
                    for (thing, name, at) in answers {
                        known.entry(thing).or_default().insert(at, name);
                    }
                }
                5 | 6 => {
                    let lowest = subject.raw.finalized.get().max(31);
                    let common = lowest + numbers.below(39 - lowest);
                    subject.switch(common, 40, 2 + step, 1 + numbers.below(4) as usize).await?;
                    known.values_mut().for_each(|answers| answers.retain(|at, _| *at <= common));
                    lease = claim(&subject).await?;
                }
                _ => {
                    let higher = subject.raw.finalized.get() + numbers.below(5);
                    subject.raw.finalized = Height(higher.min(36));
                    subject.store.prune_undo(subject.raw.finalized, 5).await?;
                }
            }
            let expected: Vec<Answer<'_>> = known
                .iter()
                .filter_map(|(thing, answers)| {
                    let (at, name) = answers.last_key_value()?;
                    Some((*thing, name.as_str(), *at))
                })
                .collect();
            let as_expected = reads(&subject, &expected).await;
            as_expected.map_err(|failure| Failure::new(format!("seed {seed}, step {step}: {failure}")))?;
        }
    }
    Ok(())
}
