//! Blocks that a service could not process: holes that are named in the transaction that leaves them, until they are made again or a reorg takes them.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::Raw;
use super::subject::{Subject, same_dump};
use super::tables::{FOLDER, MAPPER};
use super::{Case, CaseResult, DerivedFactory};
use crate::derived::lease::WorkerLease;
use crate::derived::reader::{Quarantined, QuarantinedBlock};
use crate::derived::writer::{ChunkCommit, Committed};
use crate::suite::check::{holds, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("quarantine":
        holes_are_named_by_the_commit_that_leaves_them,
        a_hole_above_the_checkpoint_is_not_seen_yet,
        holes_are_named_until_they_are_made_again,
        a_reorg_takes_the_holes_above_its_common_block,
        a_reset_forgets_them_in_bounded_steps,
    )
}

/// Commits up to `to`, with holes at these heights.
async fn leave(subject: &Subject, lease: &WorkerLease, to: u64, holes: &[u64]) -> CaseResult<Committed> {
    let mut commit = subject.chunk(lease, to).await?;
    let is_hole = |height: Height| holes.contains(&height.get());
    for part in &mut commit.rows {
        part.rows.retain(|row| row.0[0].as_height().is_none_or(|height| !is_hole(height)));
    }
    commit.quarantined = holes.iter().copied().map(Height).collect();
    Ok(subject.store.commit_chunk(lease, commit).await?)
}

async fn named(subject: &Subject, services: &[&str], below: u64, limit: usize) -> CaseResult<Quarantined> {
    let heights = HeightRange::new(Height::ZERO, Height(below));
    Ok(subject.snapshot().await?.quarantined(services, heights, limit).await?)
}

fn of(service: &str, heights: &[u64]) -> Vec<QuarantinedBlock> {
    let block = |&height: &u64| QuarantinedBlock { height: Height(height), service: service.into() };
    heights.iter().map(block).collect()
}

async fn holes_are_named_by_the_commit_that_leaves_them(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    same("none at first", named(&subject, &[MAPPER], 100, 9).await?, Quarantined::default())?;
    let lease = subject.claim(MAPPER).await?;
    let before = subject.freeze().await?;
    let outside = ChunkCommit { quarantined: vec![Height(4)], ..subject.chunk(&lease, 4).await? };
    refused("one outside of the chunk", subject.store.commit_chunk(&lease, outside).await, is_invalid)?;
    subject.is_still(&before).await?;
    let lease = leave(&subject, &lease, 4, &[1, 3]).await?.lease;
    let lease = subject.commit(&lease, 6).await?.lease;
    leave(&subject, &lease, 8, &[7]).await?;
    same("all of them", named(&subject, &[MAPPER, FOLDER], 100, 9).await?.lowest, of(MAPPER, &[1, 3, 7]))?;
    let some = named(&subject, &[MAPPER], 100, 2).await?;
    same("the lowest, and how many", (some.lowest, some.total), (of(MAPPER, &[1, 3]), 3))?;
    let none = named(&subject, &[MAPPER], 100, 0).await?;
    same("only how many", (none.lowest, none.total), (Vec::new(), 3))?;
    let below = named(&subject, &[MAPPER], 7, 9).await?;
    same("those below a height", (below.lowest, below.total), (of(MAPPER, &[1, 3]), 2))?;
    let three = HeightRange::new(Height(3), Height(4));
    let one = subject.snapshot().await?.quarantined(&[MAPPER], three, 9).await?;
    same("those of one height", (one.lowest, one.total), (of(MAPPER, &[3]), 1))?;
    let others = named(&subject, &[FOLDER, "nobody"], 100, 9).await?;
    same("of other services", others, Quarantined::default())?;
    let lines = subject.store.dump().await?.lines;
    holds(lines.contains(&format!("quarantined/{MAPPER}/7")), "the dump names none of them")?;
    subject.reopen().await?;
    same("after a crash", named(&subject, &[MAPPER], 100, 9).await?.lowest, of(MAPPER, &[1, 3, 7]))
}

async fn a_hole_above_the_checkpoint_is_not_seen_yet(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let lower = subject.claim(MAPPER).await?;
    let upper = subject.claim(MAPPER).await?;
    let at = upper.range.start().get();
    leave(&subject, &upper, at + 2, &[at + 1]).await?;
    same("above the checkpoint", named(&subject, &[MAPPER], 100, 9).await?, Quarantined::default())?;
    subject.work(lower, 100).await?;
    subject.store.repair_checkpoints().await?;
    same("below it", named(&subject, &[MAPPER], 100, 9).await?.lowest, of(MAPPER, &[at + 1]))
}

async fn holes_are_named_until_they_are_made_again(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(10, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    leave(&subject, &lease, 10, &[2, 4, 6]).await?;
    let range = |from, to| HeightRange::new(Height(from), Height(to));
    subject.store.request_reindex(MAPPER, 1, range(3, 7), 100).await?;
    same("while it is asked for", named(&subject, &[MAPPER], 100, 9).await?.total, 3)?;
    // Of what is made again one block still can't be processed.
    leave(&subject, &subject.claim(MAPPER).await?, 7, &[6]).await?;
    same("what is left", named(&subject, &[MAPPER], 100, 9).await?.lowest, of(MAPPER, &[2, 6]))?;
    subject.store.request_reindex(MAPPER, 1, range(0, 10), 100).await?;
    subject.work(subject.claim(MAPPER).await?, 100).await?;
    same("nothing is left", named(&subject, &[MAPPER], 100, 9).await?, Quarantined::default())
}

async fn a_reorg_takes_the_holes_above_its_common_block(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(10, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    leave(&subject, &lease, 10, &[3, 4, 5, 7]).await?;
    let entry = subject.raw.fork(4);
    subject.store.begin_apply(&entry).await?;
    same("while it is applied", named(&subject, &[MAPPER], 100, 9).await?.lowest, of(MAPPER, &[3, 4]))?;
    subject.finish(&entry, 3).await?;
    subject.raw.grow(10, 2);
    subject.index(MAPPER, 100, 100).await?;
    same("on the other fork", named(&subject, &[MAPPER], 100, 9).await?.lowest, of(MAPPER, &[3, 4]))?;
    subject.store.request_reindex(MAPPER, 1, HeightRange::new(Height(3), Height(5)), 100).await?;
    subject.work(subject.claim(MAPPER).await?, 100).await?;
    subject.index_all(100, 100).await?;
    subject.dumps_as_its_chain().await
}

async fn a_reset_forgets_them_in_bounded_steps(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(9, 1)).await?;
    let empty = subject.store.dump().await?;
    let lease = subject.claim(MAPPER).await?;
    leave(&subject, &lease, 8, &[0, 1, 2, 3, 4, 5, 6, 7]).await?;
    subject.anew(MAPPER).await?;
    holds(subject.store.reset_step(MAPPER, 3).await?, "eight of them went in a step of three")?;
    same("while it is reset", named(&subject, &[MAPPER], 100, 9).await?, Quarantined::default())?;
    let left = |lines: Vec<String>| lines.iter().filter(|line| line.starts_with("quarantined/")).count();
    same("how many are left", left(subject.store.dump().await?.lines), 5)?;
    while subject.store.reset_step(MAPPER, 3).await? {}
    same_dump(&subject.store.dump().await?, &empty)
}
