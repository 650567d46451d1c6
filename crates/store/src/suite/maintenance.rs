//! `maintain`: background work that nobody sees.

use std::sync::Arc;

use cairn_core::{Height, RawBlock};

use super::blocks::{chain, fork};
use super::check::{Failure, holds};
use super::leases::{TTL_MS, part};
use super::subject::{Subject, same_dump};
use super::{Case, CaseResult, StoreFactory};
use crate::Maintained;

pub(super) fn cases() -> Vec<Case> {
    case_list!("maintenance":
        maintenance_never_changes_the_dump,
        maintenance_runs_beside_every_verb,
        maintenance_of_a_long_backfill_comes_to_an_end,
    )
}

/// Maintains step by step, at most `max_steps`, and compares after each.
async fn maintain_watched(subject: &Subject, max_bytes: u64, max_steps: usize) -> CaseResult<usize> {
    let before = subject.store.dump().await?;
    for step in 0..max_steps {
        if subject.store.maintain(max_bytes).await? == Maintained::Nothing {
            return Ok(step);
        }
        same_dump(&subject.store.dump().await?, &before)?;
    }
    Ok(max_steps)
}

async fn maintenance_never_changes_the_dump(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut on = chain(0, 20, 0);
    let mut subject = Subject::with(&factory, &on).await?;
    for round in 1..=12 {
        for block in on.clone() {
            if block.facts.height.get() + 6 == on.len() as u64 {
                subject.finalize(&block).await?;
            }
        }
        let to = fork(&on, on.len() as u64 - 4, 30, round);
        subject.switch(&on, &to).await?;
        on = to;
        let max_bytes = [1, 4 << 10, 1 << 20][round as usize % 3];
        maintain_watched(&subject, max_bytes, 40).await?;
        subject.dumps_as(&on).await?;
        if round % 4 == 0 {
            // Safe to stop after any step.
            subject = subject.restart().await?;
        }
    }
    subject.settle().await?;
    subject.shows(&on).await?;
    subject.dumps_as(&on).await
}

async fn maintenance_runs_beside_every_verb(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let trunk = chain(0, 6, 0);
    let mut on = trunk.clone();
    let subject = Subject::with(&factory, &on).await?;
    let store = subject.store.clone();
    let worker = tokio::spawn(async move {
        for _ in 0..400 {
            store.maintain(64 << 10).await?;
            tokio::task::yield_now().await;
        }
        Ok::<_, crate::StoreError>(())
    });
    for salt in 1..40 {
        let to: Vec<RawBlock> = fork(&on, on.len() as u64 - 3, 4, salt);
        subject.switch(&on, &to).await?;
        tokio::task::yield_now().await;
        on = to;
        if salt % 8 == 0 {
            subject.finalize(&on[on.len() - 4]).await?;
        }
    }
    worker.await.map_err(|panic| Failure::new(format!("maintenance panicked: {panic}")))??;
    subject.shows(&on).await?;
    subject.settle().await?;
    subject.shows(&on).await?;
    subject.dumps_as(&on).await
}

async fn maintenance_of_a_long_backfill_comes_to_an_end(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 700, 0);
    let subject = Subject::with(&factory, &blocks[..1]).await?;
    subject.finalize(&blocks[650]).await?;
    let mut leases = Vec::new();
    while let Some(lease) = subject.store.claim_range("w", TTL_MS, 50, Height(651)).await? {
        leases.push(lease);
    }
    holds(leases.len() > 10, "too few ranges")?;
    // Every second range first, in small pieces.
    for lease in leases.iter().step_by(2).chain(leases.iter().skip(1).step_by(2)) {
        for piece in lease.range.chunks(7) {
            subject.store.fill(lease, part(&blocks, piece.start().get(), piece.end().get()), TTL_MS).await?;
        }
        subject.store.maintain(16 << 10).await?;
    }
    let filled = maintain_watched(&subject, 8 << 10, 50).await?;
    subject.store.advance(subject.fence).await?;
    for piece in blocks[651..].chunks(3) {
        subject.append(piece).await?;
    }
    subject.settle().await?;
    holds(
        subject.store.maintain(1 << 20).await? == Maintained::Nothing,
        format!("work again after {filled} steps"),
    )?;
    subject.shows(&blocks).await?;
    subject.dumps_as(&blocks).await
}
