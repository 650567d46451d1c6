//! The collector's side: dead, deleting, gone, and adopted.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::check::*;
use super::{Case, RegistryFactory, payload_cases};
use crate::suite::CaseResult;
use crate::{PayloadRef, PayloadState};

type Factory = Arc<dyn RegistryFactory>;

pub(super) fn cases() -> Vec<Case<dyn RegistryFactory>> {
    payload_cases!["collector":
        what_is_referred_to_stays_live,
        what_nothing_refers_to_goes_step_by_step,
        the_grace_time_is_kept_at_each_step,
        using_a_dead_object_begins_its_grace_anew,
        a_row_that_a_writer_has_locked_is_passed_over,
        a_dead_row_that_a_writer_has_locked_is_passed_over,
        references_committed_before_the_lock_are_seen,
        a_dead_row_that_something_refers_to_is_live_again,
        walks_visit_every_row_once,
        only_rows_that_are_deleting_are_removed,
        only_objects_without_a_row_are_adopted,
        adopted_generations_are_not_given_out_again,
    ]
}

async fn what_is_referred_to_stays_live(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let mut objects = BTreeSet::new();
    for seed in 0..5 {
        let object = reserve(&*registry, seed).await?;
        commit(&*registry, seed, object).await?;
        objects.insert(object);
    }
    same("marked dead", mark_all_dead(&*registry).await?, 0)?;
    same("deleting", begin_delete_all(&*registry).await?, vec![])?;
    let live = registry.live(None, 100).await?;
    same("live", live.rows.iter().map(|row| row.object).collect(), objects)?;
    same("the end", live.next, None)
}

async fn what_nothing_refers_to_goes_step_by_step(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let needed = reserve(&*registry, 1).await?;
    commit(&*registry, 1, needed).await?;
    let object = unneeded(&*registry, 2).await?;
    same("before", state_of(&*registry, object).await?, Some(PayloadState::Live))?;
    same("marked dead", mark_all_dead(&*registry).await?, 1)?;
    same("marked", state_of(&*registry, object).await?, Some(PayloadState::Dead))?;
    same("deleting", begin_delete_all(&*registry).await?, vec![object])?;
    same("begun", state_of(&*registry, object).await?, Some(PayloadState::Deleting))?;
    let left = registry.deleting(None, 10).await?;
    same("left to delete", left.iter().map(|row| row.object).collect(), vec![object])?;
    same("its length", left[0].size_bytes, content(2).size_bytes)?;
    registry.finish_delete(&[object]).await?;
    registry.finish_delete(&[object]).await?;
    same("gone", state_of(&*registry, object).await?, None)?;
    same("the other", state_of(&*registry, needed).await?, Some(PayloadState::Live))
}

async fn the_grace_time_is_kept_at_each_step(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = unneeded(&*registry, 1).await?;
    pause().await;
    same("marked too early", registry.mark_dead(HOUR_MS, None, 10).await?.dead, 0)?;
    same("marked", mark_all_dead(&*registry).await?, 1)?;
    pause().await;
    same("deleted too early", registry.begin_delete(HOUR_MS, 10).await?, vec![])?;
    same("deleting", begin_delete_all(&*registry).await?, vec![object])
}

async fn using_a_dead_object_begins_its_grace_anew(factory: Factory) -> CaseResult {
    const GRACE_MS: u64 = 400;
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    tokio::time::sleep(std::time::Duration::from_millis(GRACE_MS + 50)).await;
    same("reserved again", reserve(&*registry, 1).await?, object)?;
    same("deleted", registry.begin_delete(GRACE_MS, 10).await?, vec![])
}

async fn a_row_that_a_writer_has_locked_is_passed_over(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = unneeded(&*registry, 1).await?;
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object]).await?, vec![])?;
    same("marked under the writer's lock", mark_all_dead(&*registry).await?, 0)?;
    tx.refer(1, object).await?;
    tx.commit().await?;
    same("marked", mark_all_dead(&*registry).await?, 0)?;
    same("its state", state_of(&*registry, object).await?, Some(PayloadState::Live))
}

async fn a_dead_row_that_a_writer_has_locked_is_passed_over(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let (object, other) = (reserve(&*registry, 1).await?, reserve(&*registry, 2).await?);
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object]).await?, vec![])?;
    same("deleting", begin_delete_all(&*registry).await?, vec![other])?;
    drop(tx);
    // A server releases the locks of a dropped transaction a moment later.
    let waited = std::time::Instant::now();
    let mut deleting = begin_delete_all(&*registry).await?;
    while deleting.is_empty() && waited.elapsed() < std::time::Duration::from_secs(10) {
        pause().await;
        deleting = begin_delete_all(&*registry).await?;
    }
    same("deleting later", deleting, vec![object])
}

async fn references_committed_before_the_lock_are_seen(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    // Twenty times, since a backend may see it only when both are under way together.
    for round in 0..20 {
        let object = unneeded(&*registry, round).await?;
        let mut tx = registry.begin().await?;
        same("lost", tx.make_live(&[object]).await?, vec![])?;
        tx.refer(1_000 + round, object).await?;
        pause().await;
        let (marked, committed) = tokio::join!(registry.mark_dead(0, None, 100), tx.commit());
        marked?;
        committed?;
        same("its state", state_of(&*registry, object).await?, Some(PayloadState::Live))?;
    }
    Ok(())
}

async fn a_dead_row_that_something_refers_to_is_live_again(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = unneeded(&*registry, 1).await?;
    same("marked dead", mark_all_dead(&*registry).await?, 1)?;
    // A partition is back that was away when the collector looked: nobody makes its objects live.
    let mut tx = registry.begin().await?;
    tx.refer(1, object).await?;
    tx.commit().await?;
    same("deleting", begin_delete_all(&*registry).await?, vec![])?;
    same("its state", state_of(&*registry, object).await?, Some(PayloadState::Live))
}

async fn walks_visit_every_row_once(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let mut all = BTreeSet::new();
    for seed in 0..7 {
        all.insert(unneeded(&*registry, seed).await?);
    }
    let expected: Vec<PayloadRef> = all.into_iter().collect();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = registry.live(after, 3).await?;
        holds(page.rows.len() <= 3, "a page is longer than its limit")?;
        found.extend(page.rows.iter().map(|row| row.object));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    same("live", found, expected.clone())?;

    pause().await;
    let (mut dead, mut after) = (0, None);
    loop {
        let step = registry.mark_dead(SHORT_MS, after, 3).await?;
        holds(step.dead <= 3, "a step is longer than its limit")?;
        dead += step.dead;
        match step.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    same("marked dead", dead, 7)?;

    pause().await;
    let mut found = Vec::new();
    loop {
        let rows = registry.begin_delete(SHORT_MS, 3).await?;
        holds(rows.len() <= 3, "a step is longer than its limit")?;
        if rows.is_empty() {
            break;
        }
        found.extend(rows.iter().map(|row| row.object));
    }
    found.sort_unstable();
    same("begun", found, expected.clone())?;

    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let rows = registry.deleting(after, 3).await?;
        holds(rows.len() <= 3, "a page is longer than its limit")?;
        let Some(last) = rows.last() else { break };
        after = Some(last.object);
        found.extend(rows.iter().map(|row| row.object));
    }
    same("deleting", found, expected)
}

async fn only_rows_that_are_deleting_are_removed(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let live = reserve(&*registry, 1).await?;
    commit(&*registry, 1, live).await?;
    let dead = reserve(&*registry, 2).await?;
    registry.finish_delete(&[live, dead]).await?;
    same("live", state_of(&*registry, live).await?, Some(PayloadState::Live))?;
    same("dead", state_of(&*registry, dead).await?, Some(PayloadState::Dead))
}

async fn only_objects_without_a_row_are_adopted(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let live = reserve(&*registry, 1).await?;
    commit(&*registry, 1, live).await?;
    let deleting = reserve(&*registry, 3).await?;
    begin_delete_all(&*registry).await?;
    let dead = reserve(&*registry, 2).await?;
    let orphan = PayloadRef { hash: content(4).hash, generation: 99 };
    // An older upload of the same content, left behind.
    let older = PayloadRef { generation: 98, ..live };
    let found = [live, dead, deleting, orphan, older].map(|object| (object, 5));
    let adopted: BTreeSet<PayloadRef> = registry.adopt(&found).await?.into_iter().collect();
    same("adopted", adopted, BTreeSet::from([orphan, older]))?;
    same("adopted again", registry.adopt(&found).await?, vec![])?;
    for object in [orphan, older, deleting] {
        same("a deleting one", state_of(&*registry, object).await?, Some(PayloadState::Deleting))?;
    }
    same("the live one", state_of(&*registry, live).await?, Some(PayloadState::Live))?;
    same("the dead one", state_of(&*registry, dead).await?, Some(PayloadState::Dead))
}

async fn adopted_generations_are_not_given_out_again(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let orphan = PayloadRef { hash: content(1).hash, generation: 1_000 };
    same("adopted", registry.adopt(&[(orphan, 5)]).await?, vec![orphan])?;
    let lower = PayloadRef { hash: content(2).hash, generation: 10 };
    same("adopted", registry.adopt(&[(lower, 5)]).await?, vec![lower])?;
    registry.finish_delete(&[orphan, lower]).await?;
    let next = reserve(&*registry, 1).await?;
    holds(next.generation > 1_000, format!("generation {} may be an adopted one", next.generation))
}
