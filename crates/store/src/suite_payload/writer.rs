//! The writer's side: reserving, and making live.

use std::sync::Arc;

use super::check::*;
use super::{Case, RegistryFactory, payload_cases};
use crate::suite::{CaseResult, Failure};
use crate::{PayloadContent, PayloadHash, PayloadRef, PayloadState, Reservation, StoreError};

type Factory = Arc<dyn RegistryFactory>;

pub(super) fn cases() -> Vec<Case<dyn RegistryFactory>> {
    payload_cases!["writer":
        a_reserved_object_has_a_dead_row,
        contents_are_answered_in_the_order_given,
        nothing_is_reserved_for_nothing,
        a_dead_object_is_used_again,
        a_live_object_is_used_again_and_said_to_be_live,
        another_length_than_the_rows_is_damage,
        rows_are_live_at_the_commit_and_not_before,
        a_transaction_rolled_back_leaves_no_trace,
        what_was_never_reserved_is_lost,
        what_is_deleting_is_lost_and_stays_deleting,
        what_is_gone_is_lost,
        the_same_object_twice_in_one_transaction,
        a_live_object_can_be_made_live_again,
    ]
}

async fn a_reserved_object_has_a_dead_row(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let reserved = registry.reserve(&[content(1)]).await?;
    let [Reservation { object, live: false }] = reserved.as_slice() else {
        return Err(Failure::new(format!("reserved {reserved:?}")));
    };
    same("the content", object.hash, content(1).hash)?;
    holds(object.generation > 0, "generations begin at 1")?;
    let rows = registry.rows().await?;
    same("rows", rows.len(), 1)?;
    same("the row's object", rows[0].object, *object)?;
    same("its state", rows[0].state, PayloadState::Dead)?;
    same("its length", rows[0].size_bytes, content(1).size_bytes)
}

async fn contents_are_answered_in_the_order_given(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let some: Vec<PayloadContent> = [5, 2].map(content).to_vec();
    registry.reserve(&some).await?;
    let all: Vec<PayloadContent> = (0..20).rev().map(content).collect();
    let reserved = registry.reserve(&all).await?;
    let hashes: Vec<PayloadHash> = reserved.iter().map(|reserved| reserved.object.hash).collect();
    same("contents", hashes, all.iter().map(|content| content.hash).collect())?;
    same("rows", registry.rows().await?.len(), 20)
}

async fn nothing_is_reserved_for_nothing(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    same("reserved", registry.reserve(&[]).await?, vec![])?;
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[]).await?, vec![])?;
    tx.commit().await?;
    registry.finish_delete(&[]).await?;
    same("adopted", registry.adopt(&[]).await?, vec![])
}

async fn a_dead_object_is_used_again(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let first = reserve(&*registry, 1).await?;
    same("the second reservation", reserve(&*registry, 1).await?, first)?;
    same("rows", registry.rows().await?.len(), 1)
}

async fn a_live_object_is_used_again_and_said_to_be_live(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    commit(&*registry, 1, object).await?;
    let reserved = registry.reserve(&[content(2), content(1)]).await?;
    same("the live one", reserved[1], Reservation { object, live: true })?;
    holds(!reserved[0].live, "a new object is not live")?;
    same("its state", state_of(&*registry, object).await?, Some(PayloadState::Live))
}

async fn another_length_than_the_rows_is_damage(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    reserve(&*registry, 1).await?;
    let wrong = PayloadContent { size_bytes: content(1).size_bytes + 1, ..content(1) };
    match registry.reserve(&[wrong]).await {
        Err(StoreError::Corrupt { .. }) => Ok(()),
        other => Err(Failure::new(format!("should have been refused as damage: {other:?}"))),
    }
}

async fn rows_are_live_at_the_commit_and_not_before(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object]).await?, vec![])?;
    tx.refer(1, object).await?;
    same("before the commit", state_of(&*registry, object).await?, Some(PayloadState::Dead))?;
    same("references before the commit", registry.references().await?.len(), 0)?;
    tx.commit().await?;
    same("after the commit", state_of(&*registry, object).await?, Some(PayloadState::Live))?;
    same("the reference", registry.references().await?.get(&1).copied(), Some(object))
}

async fn a_transaction_rolled_back_leaves_no_trace(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    let mut tx = registry.begin().await?;
    tx.make_live(&[object]).await?;
    tx.refer(1, object).await?;
    drop(tx);
    // Whoever waits for its locks gets them.
    commit(&*registry, 2, object).await?;
    same("references", registry.references().await?.keys().copied().collect(), vec![2])
}

async fn what_was_never_reserved_is_lost(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    let unknown = PayloadRef { generation: object.generation + 1_000, ..object };
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object, unknown]).await?, vec![unknown])
}

async fn what_is_deleting_is_lost_and_stays_deleting(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    same("deleting", begin_delete_all(&*registry).await?, vec![object])?;
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object]).await?, vec![object])?;
    drop(tx);
    same("its state", state_of(&*registry, object).await?, Some(PayloadState::Deleting))?;
    let next = reserve(&*registry, 1).await?;
    holds(next.generation > object.generation, format!("{next} does not follow {object}"))?;
    commit(&*registry, 1, next).await?;
    same("the old one", state_of(&*registry, object).await?, Some(PayloadState::Deleting))?;
    same("the new one", state_of(&*registry, next).await?, Some(PayloadState::Live))
}

async fn what_is_gone_is_lost(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    begin_delete_all(&*registry).await?;
    registry.finish_delete(&[object]).await?;
    same("rows", registry.rows().await?, vec![])?;
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object]).await?, vec![object])?;
    drop(tx);
    // No generation is ever given out twice: a deletion that arrives late must not hit a newer object.
    let next = reserve(&*registry, 1).await?;
    holds(next.generation > object.generation, format!("{next} does not follow {object}"))?;
    let mut tx = registry.begin().await?;
    same("still lost", tx.make_live(&[object]).await?, vec![object])
}

async fn the_same_object_twice_in_one_transaction(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object, object]).await?, vec![])?;
    same("lost, asked again", tx.make_live(&[object]).await?, vec![])?;
    tx.refer(1, object).await?;
    tx.refer(2, object).await?;
    tx.commit().await?;
    same("references", registry.references().await?.len(), 2)
}

async fn a_live_object_can_be_made_live_again(factory: Factory) -> CaseResult {
    let registry = factory.registry().await?;
    let object = reserve(&*registry, 1).await?;
    commit(&*registry, 1, object).await?;
    commit(&*registry, 2, object).await?;
    forget(&*registry, 1).await?;
    same("marked dead", mark_all_dead(&*registry).await?, 0)
}
