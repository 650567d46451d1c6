//! Services that make everything anew: begun whole, cleared by anybody, and said to be less than whole until they are where they were.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::Raw;
use super::subject::{START_MS, Subject};
use super::tables::{ASKER, FOLDER, HOLDINGS, MAPPER};
use super::{Case, CaseResult, DerivedFactory};
use crate::StoreError;
use crate::derived::lease::LeaseKind;
use crate::derived::rebuild::{RangeAgain, Rebuild, RebuildRequest};
use crate::suite::check::{holds, is_fenced, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("rebuilding":
        ranges_and_rebuilds_begin_together_or_not_at_all,
        who_asks_about_rows_made_again_loses_what_is_under_way,
        a_rebuild_is_told_until_everything_is_there_again,
        a_rebuild_that_was_left_is_finished_by_others,
        what_is_cleared_twice_is_cleared_once,
        a_rebuild_within_a_rebuild_goes_as_far_as_the_first,
        a_reorg_lowers_where_a_rebuild_ends,
        a_reorg_in_the_middle_of_clearing_leaves_nothing,
        a_paused_service_stays_paused,
    )
}

fn again(service: &str, from: u64, to: u64) -> RangeAgain {
    let range = HeightRange::new(Height(from), Height(to));
    RangeAgain {
        service: service.into(),
        version: 1,
        range,
        range_heights: 10,
        is_behind: false,
        corrects_state: false,
    }
}

/// What the store says of the folder's rebuild, and whether it still counts.
async fn told(subject: &Subject) -> CaseResult<(Option<Rebuild>, bool)> {
    let snapshot = subject.snapshot().await?;
    let stored = snapshot.rebuilds().iter().find(|rebuild| rebuild.service == FOLDER).cloned();
    Ok((stored, snapshot.being_rebuilt(FOLDER).is_some()))
}

async fn clear(subject: &Subject) -> CaseResult {
    for _ in 0..1_000 {
        if !subject.store.reset_step(FOLDER, 5).await? {
            return Ok(());
        }
    }
    holds(false, "there is no end of it")
}

async fn ranges_and_rebuilds_begin_together_or_not_at_all(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let before = subject.freeze().await?;
    let anew = |name: &str| vec![name.to_owned()];
    for (what, request) in [
        (
            "a service that nobody knows",
            RebuildRequest { again: vec![again(MAPPER, 0, 40)], anew: anew("nobody") },
        ),
        (
            "a range above the checkpoint, after one that is fine",
            RebuildRequest { again: vec![again(MAPPER, 0, 20), again(MAPPER, 20, 41)], anew: anew(FOLDER) },
        ),
        (
            "a second service that nobody knows",
            RebuildRequest { again: vec![again(MAPPER, 0, 40)], anew: vec![FOLDER.into(), "nobody".into()] },
        ),
    ] {
        refused(what, subject.store.begin_rebuild(&request).await, is_invalid)?;
        same("the rebuilds", subject.snapshot().await?.rebuilds().to_vec(), Vec::new())?;
        subject.is_still(&before).await?;
    }
    let request = RebuildRequest { again: vec![again(MAPPER, 0, 40)], anew: anew(FOLDER) };
    let begun = subject.store.begin_rebuild(&request).await?;
    let expected = Rebuild {
        service: FOLDER.into(),
        first: Height(0),
        until: Height(40),
        is_clearing: true,
        steps: 0,
        paused: false,
        begun_at_ms: START_MS,
    };
    same("what was begun", begun, vec![expected.clone()])?;
    let snapshot = subject.snapshot().await?;
    same("what a snapshot says", snapshot.rebuilds().to_vec(), vec![expected])?;
    same("the folder's checkpoint", snapshot.checkpoint(FOLDER), None)?;
    same(
        "where the mapper's rows are made again",
        snapshot.made_again_from(MAPPER, Height(0)).await?,
        Some(Height(0)),
    )?;
    drop(snapshot);
    clear(&subject).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

/// Begins to make a range of the mapper's again, with whoever asks about it.
async fn make_again(subject: &Subject, from: u64, to: u64) -> CaseResult {
    let behind = |service: &str| RangeAgain { is_behind: true, ..again(service, from, to) };
    let again = vec![again(MAPPER, from, to), behind(ASKER), behind("nobody")];
    subject.store.begin_rebuild(&RebuildRequest { again, ..RebuildRequest::default() }).await?;
    Ok(())
}

/// The ranges of the asker's leases of kind `Reindex`.
async fn asked_again(subject: &Subject) -> CaseResult<Vec<HeightRange>> {
    let leases = subject.leases().await?.into_iter();
    let again = leases.filter(|lease| lease.service == ASKER && lease.kind == LeaseKind::Reindex);
    Ok(again.map(|lease| lease.range).collect())
}

async fn who_asks_about_rows_made_again_loses_what_is_under_way(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let lease = subject.claim(ASKER).await?;
    let held = subject.commit(&lease, 5).await?.lease;
    make_again(&subject, 0, 20).await?;
    // What it has read of the old rows.
    refused("the commit under way", subject.try_commit(&held, 8).await?, is_fenced)?;
    let done = HeightRange::new(Height(0), Height(5));
    same("what it has done is asked about again", asked_again(&subject).await?, vec![done])?;
    // Of heights that it never came to it may have read rows all the same.
    let held = subject.claim(ASKER).await?;
    same("what is claimed next", (held.id, held.kind), (lease.id, LeaseKind::Index))?;
    make_again(&subject, 20, 40).await?;
    refused("the next commit under way", subject.try_commit(&held, 8).await?, is_fenced)?;
    same("nothing is added", asked_again(&subject).await?, vec![done])
}

async fn a_rebuild_is_told_until_everything_is_there_again(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    same("before", told(&subject).await?, (None, false))?;
    subject.anew(FOLDER).await?;
    holds(subject.store.reset_step(FOLDER, 3).await?, "one step of 3 forgot everything")?;
    let (stored, counts) = told(&subject).await?;
    same(
        "its steps while it is cleared",
        stored.map(|rebuild| (rebuild.is_clearing, rebuild.steps)),
        Some((true, 1)),
    )?;
    holds(counts, "it is not told while it is cleared")?;
    subject.reopen().await?;
    clear(&subject).await?;
    let (stored, counts) = told(&subject).await?;
    same(
        "when it is cleared",
        stored.map(|rebuild| (rebuild.is_clearing, rebuild.until)),
        Some((false, Height(40))),
    )?;
    holds(counts, "it is not told when it is cleared")?;
    subject.raw.grow(50, 1);
    subject.index(MAPPER, 10, 10).await?;
    let request =
        crate::derived::lease::ClaimRequest { limit_exclusive: Height(40), ..subject.request(FOLDER) };
    for end in [10, 20, 30, 40] {
        let lease = subject.claim_as(&request).await?;
        same("the repaired", subject.store.repair_checkpoints().await?.rebuilt, Vec::<String>::new())?;
        holds(told(&subject).await?.1, format!("it is not told at a checkpoint below height {end}"))?;
        subject.commit(&lease, end).await?;
    }
    holds(!told(&subject).await?.1, "it is told when everything is there again")?;
    same("what is over", subject.store.repair_checkpoints().await?.rebuilt, vec![FOLDER.to_owned()])?;
    same("then", told(&subject).await?, (None, false))?;
    same("over once more", subject.store.repair_checkpoints().await?.rebuilt, Vec::<String>::new())?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn a_rebuild_that_was_left_is_finished_by_others(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    subject.anew(FOLDER).await?;
    for steps in 1..1_000 {
        let refusal = subject.store.register(FOLDER, Height(7)).await;
        refused("registered in the middle", refusal, |error| matches!(error, StoreError::NotYet { .. }))?;
        // Whoever did the step before died.
        subject.reopen().await?;
        let goes_on = subject.store.reset_step(FOLDER, 20).await?;
        same("its steps", told(&subject).await?.0.map(|rebuild| rebuild.steps), Some(steps))?;
        if !goes_on {
            break;
        }
    }
    let known = subject.store.register(FOLDER, Height(7)).await?;
    Subject::ends(&known, 0, None)?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn what_is_cleared_twice_is_cleared_once(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    subject.anew(FOLDER).await?;
    // Somebody else asks for the same, and takes steps too.
    same("begun again", subject.anew(FOLDER).await?.until, Height(40))?;
    let (a, b) = futures::future::join(clear(&subject), clear(&subject)).await;
    a?;
    b?;
    subject.index_all(10, 10).await?;
    let before = subject.freeze().await?;
    // A step that comes late finds that nothing is to be deleted.
    same("a late step", subject.store.reset_step(FOLDER, 100).await?, false)?;
    subject.is_still(&before).await?;
    subject.dumps_as_its_chain().await
}

async fn a_rebuild_within_a_rebuild_goes_as_far_as_the_first(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    subject.anew(FOLDER).await?;
    clear(&subject).await?;
    let lease = subject.claim(FOLDER).await?;
    subject.commit(&lease, 5).await?;
    let second = subject.anew(FOLDER).await?;
    same("the second", (second.first, second.until, second.is_clearing), (Height(0), Height(40), true))?;
    clear(&subject).await?;
    same("its rows", subject.all(HOLDINGS.name).await?, Vec::new())?;
    subject.index_all(10, 10).await?;
    holds(!told(&subject).await?.1, "it is told when everything is there again")?;
    subject.dumps_as_its_chain().await
}

async fn a_reorg_lowers_where_a_rebuild_ends(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    subject.anew(FOLDER).await?;
    clear(&subject).await?;
    // The other chain is shorter.
    subject.switch(25, 30, 2, 100).await?;
    let (stored, counts) = told(&subject).await?;
    same("where it ends now", stored.map(|rebuild| rebuild.until), Some(Height(26)))?;
    holds(counts, "it is not told any more")?;
    subject.index(MAPPER, 10, 10).await?;
    subject.index(FOLDER, 10, 10).await?;
    holds(!told(&subject).await?.1, "it is told when everything is there again")?;
    // One that is over, and was not forgotten yet, is not told again either.
    subject.switch(12, 40, 3, 100).await?;
    holds(!told(&subject).await?.1, "it is told again after a reorg")?;
    subject.index_all(10, 10).await?;
    same("what is left", told(&subject).await?, (None, false))?;
    subject.dumps_as_its_chain().await
}

async fn a_reorg_in_the_middle_of_clearing_leaves_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for steps in [0, 1, 3, 6, 12] {
        let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
        subject.index_all(10, 10).await?;
        subject.anew(FOLDER).await?;
        for _ in 0..steps {
            subject.store.reset_step(FOLDER, 20).await?;
        }
        subject.switch(25, 41, 2, 3).await?;
        clear(&subject).await?;
        same("its rows", subject.all(HOLDINGS.name).await?, Vec::new())?;
        subject.index_all(10, 10).await?;
        subject.dumps_as_its_chain().await?;
        subject.switch(20, 42, 3, 50).await?;
        subject.index_all(10, 10).await?;
        subject.dumps_as_its_chain().await?;
    }
    Ok(())
}

async fn a_paused_service_stays_paused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(20, 1)).await?;
    subject.index_all(10, 10).await?;
    subject.store.set_paused(FOLDER, true).await?;
    holds(subject.anew(FOLDER).await?.paused, "the rebuild doesn't know of the pause")?;
    clear(&subject).await?;
    holds(subject.checkpoint(FOLDER).await?.paused, "it goes on by itself")?;
    same("what it claims", subject.store.claim(&subject.request(FOLDER)).await?, None)?;
    subject.store.set_paused(FOLDER, false).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}
