//! `orphan` and `prune_orphans`: what a reorg took away can be read until it is old.

use std::sync::Arc;

use cairn_core::{Parts, RawBlock};

use super::blocks::{as_stored, chain, fork};
use super::check::same;
use super::subject::Subject;
use super::{Case, CaseResult, StoreFactory};
use crate::PurgeProgress;

pub(super) fn cases() -> Vec<Case> {
    case_list!("orphans":
        orphans_are_readable_before_during_and_after_the_purge,
        a_block_that_was_an_orphan_twice_is_readable_under_both_entries,
        pruning_takes_only_old_entries,
        pruning_is_bounded,
    )
}

async fn readable(subject: &Subject, reorg_id: u64, orphans: &[RawBlock]) -> CaseResult {
    let snapshot = subject.snapshot().await?;
    for block in orphans {
        for parts in [Parts::all(), Parts::RECEIPTS | Parts::TRANSACTIONS, Parts::empty()] {
            let found = snapshot.orphan(reorg_id, block.facts.id, parts).await?;
            same("an orphan", found, Some(as_stored(block, parts)))?;
        }
    }
    Ok(())
}

async fn gone(subject: &Subject, reorg_id: u64, blocks: &[RawBlock]) -> CaseResult {
    let snapshot = subject.snapshot().await?;
    for block in blocks {
        let found = snapshot.orphan(reorg_id, block.facts.id, Parts::all()).await?;
        same("a block that is no orphan of the entry", found, None)?;
    }
    Ok(())
}

async fn orphans_are_readable_before_during_and_after_the_purge(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let a = chain(0, 20, 0);
    let b = fork(&a, 11, 6, 1);
    let subject = Subject::with(&factory, &a).await?;
    gone(&subject, 1, &a).await?;
    subject.roll_back(&a[11]).await?;
    readable(&subject, 1, &a[12..]).await?;
    gone(&subject, 1, &a[..12]).await?;
    gone(&subject, 0, &a).await?;
    gone(&subject, 2, &a).await?;
    while subject.store.purge_step(subject.fence, 3).await? != PurgeProgress::Done {
        readable(&subject, 1, &a[12..]).await?;
    }
    readable(&subject, 1, &a[12..]).await?;
    subject.append(&b[12..]).await?;
    readable(&subject, 1, &a[12..]).await?;
    gone(&subject, 1, &b).await?;
    subject.settle().await?;
    let subject = subject.restart().await?;
    readable(&subject, 1, &a[12..]).await?;
    subject.shows(&b).await
}

async fn a_block_that_was_an_orphan_twice_is_readable_under_both_entries(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let a = chain(0, 12, 0);
    let b = fork(&a, 8, 4, 1);
    let subject = Subject::with(&factory, &a).await?;
    subject.switch(&a, &b).await?;
    subject.switch(&b, &a).await?;
    subject.roll_back(&a[9]).await?;
    for purged in [false, true] {
        readable(&subject, 1, &a[9..]).await?;
        readable(&subject, 2, &b[9..]).await?;
        readable(&subject, 3, &a[10..]).await?;
        gone(&subject, 3, &a[9..10]).await?;
        gone(&subject, 1, &b).await?;
        if !purged {
            subject.purge(1).await?;
        }
    }
    Ok(())
}

async fn pruning_takes_only_old_entries(factory: Arc<dyn StoreFactory>) -> CaseResult {
    // First orphans at 10, 15 and 20; the tip ends at 29.
    let a = chain(0, 30, 0);
    let b = fork(&a, 14, 15, 1);
    let c = fork(&b, 19, 10, 2);
    let d = fork(&c, 9, 20, 3);
    let subject = Subject::with(&factory, &a).await?;
    subject.switch(&a, &b).await?;
    subject.switch(&b, &c).await?;
    subject.switch(&c, &d).await?;
    let log = subject.snapshot().await?.reorgs(0, 10).await?;
    same(
        "the first orphans",
        log.iter().map(|entry| entry.first_orphan().get()).collect(),
        vec![15, 20, 10],
    )?;
    let dump = subject.store.dump().await?;
    let prune = |keep: u64| subject.store.prune_orphans(subject.fence, keep, 1_000);
    // The tip is 19 above the third entry's first orphan, 14 above the first one's, 9 above the second one's.
    same("all are young", prune(19).await?, 0)?;
    readable(&subject, 3, &c[10..]).await?;
    same("the third is old", prune(18).await?, 20)?;
    gone(&subject, 3, &c).await?;
    readable(&subject, 1, &a[15..]).await?;
    same("at its limit", prune(14).await?, 0)?;
    same("the first is old", prune(13).await?, 15)?;
    gone(&subject, 1, &a).await?;
    readable(&subject, 2, &b[20..]).await?;
    let subject = subject.restart().await?;
    let prune = |keep: u64| subject.store.prune_orphans(subject.fence, keep, 1_000);
    same("the second is old", prune(0).await?, 10)?;
    gone(&subject, 2, &b).await?;
    same("nothing is left", prune(0).await?, 0)?;
    // The log's entries stay, and no canonical row was touched.
    same("the log", subject.snapshot().await?.reorgs(0, 10).await?, log)?;
    super::subject::same_dump(&subject.store.dump().await?, &dump)?;
    subject.shows(&d).await
}

async fn pruning_is_bounded(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let a = chain(0, 20, 0);
    let b = fork(&a, 9, 12, 1);
    let subject = Subject::with(&factory, &a).await?;
    same("an empty log", subject.store.prune_orphans(subject.fence, 0, 10).await?, 0)?;
    subject.roll_back(&a[9]).await?;
    same("before the purge", subject.store.prune_orphans(subject.fence, 0, 10).await?, 0)?;
    subject.store.purge_step(subject.fence, 5).await?;
    same("during the purge", subject.store.prune_orphans(subject.fence, 0, 10).await?, 0)?;
    readable(&subject, 1, &a[10..]).await?;
    subject.purge(5).await?;
    subject.append(&b[10..]).await?;
    same("of none", subject.store.prune_orphans(subject.fence, 3, 0).await?, 0)?;
    readable(&subject, 1, &a[10..]).await?;
    for (deleted, left) in [(4, 14), (4, 18), (2, 20), (0, 20)] {
        same("a step of four", subject.store.prune_orphans(subject.fence, 3, 4).await?, deleted)?;
        gone(&subject, 1, &a[..left]).await?;
        readable(&subject, 1, &a[left..]).await?;
    }
    subject.shows(&b).await
}
