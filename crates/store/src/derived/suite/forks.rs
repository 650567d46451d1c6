//! Step 3 of a commit: what was read on a fork that the store doesn't stand on is refused, and nothing else is.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::{Raw, id};
use super::subject::Subject;
use super::tables::{ASKER, CODES, FOLDER, MAPPER, NAMES, address};
use super::{Case, CaseResult, DerivedFactory};
use crate::StoreError;
use crate::derived::FoldedAt;
use crate::derived::fork::ReadMark;
use crate::derived::lease::{ClaimRequest, WorkerLease};
use crate::derived::row::Row;
use crate::derived::value::Value;
use crate::derived::writer::{ChunkCommit, TableRows};
use crate::suite::check::{is_fenced, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("forks":
        read_across_a_reorg_that_was_not_begun,
        read_before_a_reorg_that_was_applied,
        read_while_a_reorg_is_applied,
        a_reorg_far_above_disturbs_nobody,
        the_entry_that_matters_is_any_of_several,
        entries_that_nobody_spoke_of_are_demanded,
        entries_before_the_store_followed_are_unknown,
        a_folders_rows_are_as_old_as_its_snapshot,
        folders_demand_their_checkpoint,
        making_a_range_again_is_bound_as_well,
        answers_reach_to_the_block_that_was_asked_at,
    )
}

/// Refused since this entry is in the way.
fn is_fork(reorg_id: u64, first_orphan: u64) -> impl Fn(&StoreError) -> bool {
    move |error| {
        matches!(error, StoreError::ForkBelow { reorg_id: found, first_orphan: at, .. }
            if *found == reorg_id && *at == Height(first_orphan))
    }
}

/// A chain of 40 with the mapper's leases from height 20 on free to be claimed, those below done.
async fn at_twenty(factory: &Arc<dyn DerivedFactory>) -> CaseResult<Subject> {
    let subject = Subject::new(factory, Raw::with(40, 1)).await?;
    for _ in 0..2 {
        subject.work(subject.claim(MAPPER).await?, 10).await?;
    }
    Ok(subject)
}

async fn read_across_a_reorg_that_was_not_begun(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = at_twenty(&factory).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.raw.fork(22);
    subject.raw.grow(40, 2);
    let before = subject.freeze().await?;
    for to in [24, 30] {
        refused("a chunk across it", subject.try_commit(&lease, to).await?, is_fork(1, 23))?;
    }
    subject.is_still(&before).await?;
    // Its end is the first height that was taken.
    let lease = subject.commit(&lease, 23).await?.lease;
    refused("the next height", subject.try_commit(&lease, 24).await?, is_fork(1, 23))?;
    Ok(())
}

async fn read_before_a_reorg_that_was_applied(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = at_twenty(&factory).await?;
    let old = subject.raw.clone();
    let held = subject.claim(MAPPER).await?;
    let early = subject.chunk(&held, 24).await?;
    subject.switch(22, 40, 2, 100).await?;
    let fenced = subject.store.commit_chunk(&held, early).await;
    refused("under the fence of before", fenced, is_fenced)?;
    // A lease taken after it, with a chunk that was read before it.
    let lease = subject.claim(MAPPER).await?;
    same("which lease", lease.id, held.id)?;
    let new = std::mem::replace(&mut subject.raw, old);
    let stale = ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() };
    let chunk = ChunkCommit { read: stale.clone(), ..subject.chunk(&lease, 24).await? };
    refused("a chunk of the other fork", subject.store.commit_chunk(&lease, chunk).await, is_fork(1, 23))?;
    let chunk = ChunkCommit { read: stale, ..subject.chunk(&lease, 23).await? };
    let lease = subject.store.commit_chunk(&lease, chunk).await?.lease;
    subject.raw = new;
    let lease = subject.commit(&lease, 30).await?.lease;
    same("where it stands", lease.last_id, Some(id(29, 2)))
}

async fn read_while_a_reorg_is_applied(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = at_twenty(&factory).await?;
    let lease = subject.claim(MAPPER).await?;
    subject.commit(&lease, 30).await?;
    let entry = subject.raw.fork(22);
    subject.raw.grow(40, 2);
    subject.store.begin_apply(&entry).await?;
    let lease = subject.claim(MAPPER).await?;
    same("where it stands", (lease.done_to, lease.last_id), (Height(23), Some(id(22, 1))))?;
    let chunk = subject.chunk(&lease, 25).await?;
    // Whether the entry was begun when the chunk was read, or only then in the raw log.
    let earlier = ChunkCommit {
        read: ReadMark {
            reorg_id: 1,
            known_to: 0,
            newer: vec![crate::derived::fork::ForkMark { id: 1, first_orphan: Height(23) }],
        },
        ..chunk.clone()
    };
    for chunk in [chunk.clone(), earlier] {
        refused("while it is begun", subject.store.commit_chunk(&lease, chunk).await, is_fork(1, 23))?;
    }
    subject.finish(&entry, 3).await?;
    let lease = subject.store.commit_chunk(&lease, chunk).await?.lease;
    subject.work(lease, 100).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn a_reorg_far_above_disturbs_nobody(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let stale = subject.chunk(&lease, 3).await?;
    let entry = subject.raw.fork(30);
    let lease = subject.store.commit_chunk(&lease, stale).await?.lease;
    let stale = subject.chunk(&lease, 5).await?;
    subject.store.begin_apply(&entry).await?;
    let lease = subject.store.commit_chunk(&lease, stale).await?.lease;
    let lease = subject.commit(&lease, 7).await?.lease;
    let stale = subject.chunk(&lease, 9).await?;
    subject.finish(&entry, 100).await?;
    let lease = subject.store.commit_chunk(&lease, stale).await?.lease;
    same("its fence", lease.fence, subject.commit(&lease, 10).await?.lease.fence)
}

async fn the_entry_that_matters_is_any_of_several(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let mut entries = Vec::new();
    for (common, salt) in [(30, 2), (8, 3), (35, 4)] {
        entries.push(subject.raw.fork(common));
        subject.raw.grow(40, salt);
    }
    let stale = ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() };
    // None was begun, the first was, all were.
    for applied in 0..=3 {
        if applied > 0 {
            subject.apply(&entries[applied - 1], 100).await?;
        }
        let lease = subject.claim(MAPPER).await?;
        let begins = WorkerLease { done_to: Height(0), ..lease.clone() };
        let chunk = subject.chunk(&begins, 10).await?;
        let crosses = match applied {
            0 | 1 => subject.store.commit_chunk(&lease, chunk).await,
            _ => subject.store.commit_chunk(&lease, ChunkCommit { read: stale.clone(), ..chunk }).await,
        };
        refused("the second is in the way", crosses, is_fork(2, 9))?;
        subject.store.end(&lease, crate::derived::lease::LeaseEnd::Released).await?;
    }
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn entries_that_nobody_spoke_of_are_demanded(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    for (common, salt) in [(30, 2), (35, 3)] {
        subject.raw.fork(common);
        subject.raw.grow(40, salt);
    }
    let good = subject.chunk(&lease, 5).await?;
    let before = subject.freeze().await?;
    for left_out in 0..2 {
        let mut chunk = good.clone();
        chunk.read.newer.remove(left_out);
        refused("an entry is left out", subject.store.commit_chunk(&lease, chunk).await, is_invalid)?;
    }
    subject.is_still(&before).await?;
    subject.store.commit_chunk(&lease, good).await?;
    Ok(())
}

async fn entries_before_the_store_followed_are_unknown(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut raw = Raw::with(40, 1);
    raw.fork(30);
    raw.grow(40, 2);
    raw.fork(35);
    raw.grow(40, 3);
    let subject = Subject::new(&factory, raw).await?;
    let lease = subject.claim(MAPPER).await?;
    let good = subject.chunk(&lease, 5).await?;
    let stale =
        ChunkCommit { read: ReadMark { reorg_id: 1, known_to: 1, newer: Vec::new() }, ..good.clone() };
    let is_any_fork = |error: &StoreError| matches!(error, StoreError::ForkBelow { .. });
    refused("read before that", subject.store.commit_chunk(&lease, stale).await, is_any_fork)?;
    subject.store.commit_chunk(&lease, good).await?;
    Ok(())
}

async fn a_folders_rows_are_as_old_as_its_snapshot(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    subject.index(FOLDER, 10, 10).await?;
    subject.switch(22, 40, 2, 100).await?;
    subject.index(MAPPER, 10, 10).await?;
    let lease = subject.claim(FOLDER).await?;
    same("where it stands", lease.done_to, Height(23))?;
    let good = subject.chunk(&lease, 26).await?;
    let stale = ChunkCommit { folded_at: Some(FoldedAt::applied(0)), ..good.clone() };
    refused("folded before it", subject.store.commit_chunk(&lease, stale).await, is_fork(1, 23))?;
    subject.store.commit_chunk(&lease, good).await?;
    // One far above doesn't matter.
    let entry = subject.raw.fork(35);
    subject.raw.grow(40, 3);
    let lease = subject.lease(lease.id).await?;
    let early = subject.chunk(&lease, 28).await?;
    subject.apply(&entry, 100).await?;
    let lease = subject.store.commit_chunk(&lease, early).await?.lease;
    subject.index(MAPPER, 10, 10).await?;
    subject.work(lease, 10).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn folders_demand_their_checkpoint(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let (lower, upper) = {
        let out_of_order = ClaimRequest { in_order: false, ..subject.request(FOLDER) };
        (subject.claim(FOLDER).await?, subject.claim_as(&out_of_order).await?)
    };
    let before = subject.freeze().await?;
    let early = subject.try_commit(&upper, 15).await?;
    refused("above the checkpoint", early, super::committing::is_moved)?;
    subject.is_still(&before).await?;
    subject.commit(&lower, 10).await?;
    let other = ChunkCommit { parent_id: Some(id(9, 5)), ..subject.chunk(&upper, 15).await? };
    let other = subject.store.commit_chunk(&upper, other).await;
    refused("on another block", other, super::committing::is_moved)?;
    let committed = subject.commit(&upper, 15).await?;
    Subject::ends(&committed.checkpoint, 15, Some(id(14, 1)))
}

async fn making_a_range_again_is_bound_as_well(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let range = HeightRange::new(Height(20), Height(30));
    subject.store.request_reindex(MAPPER, 1, range, 10).await?;
    let lease = subject.claim(MAPPER).await?;
    let entry = subject.raw.fork(25);
    subject.raw.grow(40, 2);
    let before = subject.freeze().await?;
    refused("across it", subject.try_commit(&lease, 27).await?, is_fork(1, 26))?;
    subject.is_still(&before).await?;
    subject.commit(&lease, 24).await?;
    subject.apply(&entry, 100).await?;
    let now = subject.lease(lease.id).await?;
    refused("its holder", subject.store.renew(&lease, 1).await, is_fenced)?;
    same("where it stands", (now.done_to, now.last_id), (Height(24), Some(id(23, 1))))?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn answers_reach_to_the_block_that_was_asked_at(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let lease = subject.claim(ASKER).await?;
    let good = subject.chunk(&lease, 5).await?;
    let asked = |height| {
        let answer = Row(vec![address(1), Value::text("x"), Value::Int(height)]);
        let code = Row(vec![Value::bytes(b"h"), Value::bytes(b"c")]);
        let rows = vec![
            TableRows { table: NAMES.name, rows: vec![answer] },
            TableRows { table: CODES.name, rows: vec![code] },
        ];
        ChunkCommit { rows, ..good.clone() }
    };
    subject.switch(30, 40, 2, 100).await?;
    // The node was asked at a block that is gone now; the chunk lies far below.
    let stale = subject.store.commit_chunk(&lease, asked(31)).await;
    refused("asked at an orphan", stale, is_fork(1, 31))?;
    same("the answers", subject.all(NAMES.name).await?, Vec::new())?;
    subject.store.commit_chunk(&lease, asked(30)).await?;
    same("the answers", subject.all(NAMES.name).await?.len(), 1)
}
