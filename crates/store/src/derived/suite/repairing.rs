//! `repair_checkpoints`: the committer crosses from lease to lease, and only where the blocks join.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::{NO_BLOCK, Raw, id};
use super::subject::Subject;
use super::tables::{FOLDER, MAPPER, MOVES, NOTES, note_row};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::StoreError;
use crate::derived::lease::{LeaseEnd, LeaseStatus};
use crate::derived::writer::{ChunkCommit, Repairs, SeamAlarm};
use crate::suite::check::{holds, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("repairing":
        i03_ranges_that_finish_out_of_order_are_crossed,
        a_checkpoint_goes_into_a_lease_as_far_as_it_stands,
        a_checkpoint_stops_where_nothing_was_done,
        an_unset_first_parent_stops_it,
        another_first_parent_is_an_alarm,
        what_lies_above_a_seam_is_taken_back_and_derived_anew,
        what_lies_above_a_gap_is_taken_back_and_both_are_derived_anew,
        what_was_taken_back_below_all_others_is_a_gap,
        what_is_derived_and_what_is_folded_are_not_taken_back,
        after_a_reorg_it_crosses_on_the_new_fork,
        leases_that_make_ranges_again_are_not_crossed,
        whoever_folds_sees_which_rows_are_being_made_again,
        there_is_nothing_to_repair_in_an_empty_store,
    )
}

async fn i03_ranges_that_finish_out_of_order_are_crossed(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(subject.claim(MAPPER).await?);
    }
    for n in [3, 1, 2] {
        subject.work(leases[n].clone(), 100).await?;
        same("repaired too early", subject.store.repair_checkpoints().await?, Repairs::default())?;
        Subject::ends(&subject.checkpoint(MAPPER).await?, 0, None)?;
    }
    subject.work(leases[0].clone(), 100).await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 10, Some(id(9, 1)))?;
    subject.clock.advance_ms(77);
    let repairs = subject.store.repair_checkpoints().await?;
    let checkpoint = subject.checkpoint(MAPPER).await?;
    Subject::ends(&checkpoint, 40, Some(id(39, 1)))?;
    same("when it moved", checkpoint.updated_at_ms, super::subject::START_MS + 77)?;
    same("what was repaired", repairs, Repairs { moved: vec![checkpoint], ..Repairs::default() })?;
    same("repaired again", subject.store.repair_checkpoints().await?, Repairs::default())?;
    subject.reopen().await?;
    subject.work(leases[4].clone(), 3).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn a_checkpoint_goes_into_a_lease_as_far_as_it_stands(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    let two = subject.commit(&two, 14).await?.lease;
    subject.work(one, 100).await?;
    subject.store.repair_checkpoints().await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 14, Some(id(13, 1)))?;
    let rows = subject.all(MOVES.name).await?;
    let above = rows.iter().filter(|row| row.0[0].as_height() >= Some(Height(10))).count();
    same("rows of the upper range are seen", above > 0, true)?;
    // From here on its own commits move it.
    let committed = subject.commit(&two, 17).await?;
    Subject::ends(&committed.checkpoint, 17, Some(id(16, 1)))?;
    same("repaired again", subject.store.repair_checkpoints().await?, Repairs::default())
}

async fn a_checkpoint_stops_where_nothing_was_done(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(subject.claim(MAPPER).await?);
    }
    subject.work(leases[3].clone(), 100).await?;
    let failed = subject.commit(&leases[1], 16).await?.lease;
    let end = LeaseEnd::Bad { message: "odd".into(), retry_in_ms: 0 };
    subject.store.end(&failed, end).await?;
    subject.work(leases[0].clone(), 100).await?;
    // Through the failed one as far as it came; the third has done nothing, the fourth is done in vain.
    subject.store.repair_checkpoints().await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 16, Some(id(15, 1)))?;
    let failed = subject.claim(MAPPER).await?;
    subject.work(failed, 2).await?;
    subject.store.repair_checkpoints().await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 20, Some(id(19, 1)))?;
    subject.work(leases[2].clone(), 100).await?;
    subject.store.repair_checkpoints().await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 40, Some(id(39, 1)))
}

async fn an_unset_first_parent_stops_it(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    let nothing =
        ChunkCommit { parent_id: None, last_id: None, rows: Vec::new(), ..subject.chunk(&two, 13).await? };
    let two = subject.store.commit_chunk(&two, nothing).await?.lease;
    same("what it knows", (two.last_id, two.first_parent), (None, None))?;
    subject.work(one, 100).await?;
    same("repaired", subject.store.repair_checkpoints().await?, Repairs::default())?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 10, Some(id(9, 1)))
}

async fn another_first_parent_is_an_alarm(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(subject.claim(MAPPER).await?);
    }
    // A raw store that changed forks without saying so.
    let other = ChunkCommit {
        parent_id: Some(id(9, 2)),
        last_id: Some(id(19, 2)),
        ..subject.chunk(&leases[1], 20).await?
    };
    subject.store.commit_chunk(&leases[1], other).await?;
    subject.work(leases[2].clone(), 100).await?;
    same("before they meet", subject.store.repair_checkpoints().await?, Repairs::default())?;
    subject.work(leases[0].clone(), 100).await?;
    let alarm =
        SeamAlarm { service: MAPPER.into(), at: Height(10), last_id: id(9, 1), first_parent: id(9, 2) };
    for _ in 0..2 {
        let expected = Repairs { alarms: vec![alarm.clone()], ..Repairs::default() };
        same("the alarm", subject.store.repair_checkpoints().await?, expected)?;
        Subject::ends(&subject.checkpoint(MAPPER).await?, 10, Some(id(9, 1)))?;
    }
    Ok(())
}

/// Takes back everything from a height on, in steps of about so many rows; how many steps it took.
async fn take_back(subject: &Subject, from: u64, max_rows: usize) -> CaseResult<u64> {
    let mut steps = 0;
    while let Some(taken) = subject.store.take_back_step(MAPPER, Height(from), max_rows).await? {
        steps += 1;
        holds(taken.rows <= 4 * max_rows as u64, "a step is bounded")?;
    }
    Ok(steps)
}

async fn what_lies_above_a_seam_is_taken_back_and_derived_anew(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(subject.claim(MAPPER).await?);
    }
    // A raw store that changed forks without saying so: rows that are on no chain, and a block that could not be processed.
    let mut strange = ChunkCommit {
        parent_id: Some(id(9, 2)),
        last_id: Some(id(19, 2)),
        quarantined: vec![Height(13)],
        ..subject.chunk(&leases[1], 20).await?
    };
    for part in &mut strange.rows {
        part.rows.retain(|row| row.0[0].as_height() != Some(Height(13)));
        if part.table == NOTES.name {
            part.rows.push(note_row(11, "stray", 1));
        }
    }
    subject.store.commit_chunk(&leases[1], strange).await?;
    subject.work(leases[2].clone(), 100).await?;
    subject.work(leases[0].clone(), 100).await?;
    same("alarms", subject.store.repair_checkpoints().await?.alarms.len(), 1)?;

    // One step: some rows are left, and the range is nobody's.
    let step = subject.store.take_back_step(MAPPER, Height(10), 5).await?;
    let step = step.ok_or_else(|| Failure::new("nothing was taken back"))?;
    same("the heights", step.heights, HeightRange::new(Height(10), Height(20)))?;
    holds(!step.is_whole && step.rows > 0 && step.rows < 20, "a step is bounded")?;
    let half = subject.lease(leases[1].id).await?;
    same("where it stands", (half.done_to, half.last_id, half.is_dead()), (Height(10), None, true))?;
    holds(half.last_error.contains("leases reset --worker mapper --from 10"), "it says how to go on")?;
    // Who took it up would leave the rows that are left.
    let freed = subject.store.retry_lease(half.id).await;
    refused(
        "freed half done",
        freed,
        |error: &StoreError| matches!(error, StoreError::Invalid(what) if what.contains("leases reset")),
    )?;
    same("alarms", subject.store.repair_checkpoints().await?, Repairs::default())?;
    subject.reopen().await?;

    holds(take_back(&subject, 10, 5).await? > 3, "it takes steps")?;
    let left: Vec<HeightRange> = subject.leases().await?.iter().map(|lease| lease.range).collect();
    same("the leases", left, vec![leases[0].range])?;
    // Whoever held one learns that it is gone.
    let held = subject.try_commit(&leases[3], 35).await?;
    refused("a commit on what was taken back", held, |error: &StoreError| {
        matches!(error, StoreError::Fenced { .. })
    })?;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    same("again", subject.store.take_back_step(MAPPER, Height(10), 5).await?, None)?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 10, Some(id(9, 1)))?;
    subject.index_all(10, 10).await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 50, Some(id(49, 1)))?;
    subject.dumps_as_its_chain().await
}

async fn what_lies_above_a_gap_is_taken_back_and_both_are_derived_anew(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(subject.claim(MAPPER).await?);
    }
    // The lost one has left rows, of which one is on no chain.
    let mut strange = subject.chunk(&leases[1], 20).await?;
    let notes = strange.rows.iter_mut().find(|part| part.table == NOTES.name);
    notes.ok_or_else(|| Failure::new("the mapper writes no notes"))?.rows.push(note_row(11, "stray", 1));
    subject.store.commit_chunk(&leases[1], strange).await?;
    subject.work(leases[2].clone(), 100).await?;
    subject.place.lose_lease(leases[1].id).await?;
    subject.work(leases[0].clone(), 100).await?;
    let gaps = subject.store.lease_gaps(10).await?;
    let missing = HeightRange::new(Height(10), Height(20));
    same("the gap", gaps.iter().map(|gap| gap.missing).collect(), vec![missing])?;
    take_back(&subject, missing.end().get(), 5).await?;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn what_was_taken_back_below_all_others_is_a_gap(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    subject.work(two, 100).await?;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    // The first step takes the lowest one, and whoever asks for it goes no further.
    let step = subject.store.take_back_step(MAPPER, Height(0), 100).await?;
    holds(step.is_some_and(|step| step.is_whole), "it had no rows")?;
    let gaps = subject.store.lease_gaps(10).await?;
    same("the gap", gaps.iter().map(|gap| gap.missing).collect(), vec![one.range])?;
    take_back(&subject, one.range.end().get(), 100).await?;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn what_is_derived_and_what_is_folded_are_not_taken_back(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    subject.index_all(10, 10).await?;
    let before = subject.freeze().await?;
    let invalid = |error: &StoreError| matches!(error, StoreError::Invalid(_));
    let asked = async |service: &str, from: u64, max_rows: usize| {
        subject.store.take_back_step(service, Height(from), max_rows).await
    };
    refused("what is derived", asked(MAPPER, 29, 5).await, invalid)?;
    refused("what is folded", asked(FOLDER, 30, 5).await, invalid)?;
    refused("steps of nothing", asked(MAPPER, 30, 0).await, invalid)?;
    refused("an unknown service", asked("nobody", 30, 5).await, invalid)?;
    same("nothing lies above", asked(MAPPER, 30, 5).await?, None)?;
    subject.is_still(&before).await
}

async fn after_a_reorg_it_crosses_on_the_new_fork(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    subject.switch(13, 40, 2, 100).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    same("the first", (one.range.start(), one.done_to), (Height(10), Height(14)))?;
    subject.work(two, 100).await?;
    same("too early", subject.store.repair_checkpoints().await?, Repairs::default())?;
    let one = subject.commit(&one, 16).await?;
    Subject::ends(&one.checkpoint, 16, Some(id(15, 2)))?;
    subject.work(one.lease, 100).await?;
    subject.store.repair_checkpoints().await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 30, Some(id(29, 2)))?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn leases_that_make_ranges_again_are_not_crossed(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let range = HeightRange::new(Height(5), Height(38));
    subject.store.request_reindex(MAPPER, 1, range, 100).await?;
    let again = subject.work(subject.claim(MAPPER).await?, 100).await?;
    same("its state", (again.status, again.range), (LeaseStatus::Completed, range))?;
    // The checkpoint goes back into what the other lease has done.
    let entry = subject.raw.fork(20);
    subject.apply(&entry, 100).await?;
    subject.raw.grow(40, 2);
    let again = subject.claim(MAPPER).await?;
    same("the one that is made again", again.range, range)?;
    let above = subject.try_commit(&again, 22).await?;
    refused("made again above the checkpoint", above, super::committing::is_moved)?;
    subject.work(again, 100).await?;
    same("repaired", subject.store.repair_checkpoints().await?, Repairs::default())?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 21, Some(id(20, 1)))?;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await?;
    subject.clock.advance_ms(1_000);
    let again = subject.work(subject.claim(MAPPER).await?, 100).await?;
    same("made again then", (again.range, again.status), (range, LeaseStatus::Completed))?;
    subject.dumps_as_its_chain().await
}

async fn whoever_folds_sees_which_rows_are_being_made_again(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let again = async |subject: &Subject, from: u64| {
        subject.store.snapshot().await?.made_again_from(MAPPER, Height(from)).await
    };
    same("nothing was asked for", again(&subject, 0).await?, None)?;
    for (from, to) in [(20, 30), (5, 12)] {
        let range = HeightRange::new(Height(from), Height(to));
        subject.store.request_reindex(MAPPER, 1, range, 100).await?;
    }
    same("the lower of two", again(&subject, 0).await?, Some(Height(5)))?;
    same("in the middle of it", again(&subject, 8).await?, Some(Height(8)))?;
    same("above the lower one", again(&subject, 12).await?, Some(Height(20)))?;
    same("above both", again(&subject, 30).await?, None)?;
    let other = subject.store.snapshot().await?.made_again_from(FOLDER, Height(0)).await?;
    same("of another service", other, None)?;
    let (mut low, mut high) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    if low.range.start() > high.range.start() {
        std::mem::swap(&mut low, &mut high);
    }
    let low = subject.commit(&low, 9).await?.lease;
    same("as far as it came", again(&subject, 0).await?, Some(Height(9)))?;
    subject.reopen().await?;
    same("after a restart", again(&subject, 0).await?, Some(Height(9)))?;
    subject.work(low, 100).await?;
    same("the lower one is done", again(&subject, 0).await?, Some(Height(20)))?;
    subject.work(high, 100).await?;
    same("both are done", again(&subject, 0).await?, None)?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn there_is_nothing_to_repair_in_an_empty_store(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::new()).await?;
    same("repaired", subject.store.repair_checkpoints().await?, Repairs::default())?;
    let lease = subject.claim(MAPPER).await?;
    same("with a lease that did nothing", subject.store.repair_checkpoints().await?, Repairs::default())?;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    same("the block below the first", lease.first_parent.unwrap_or(NO_BLOCK), NO_BLOCK)
}
