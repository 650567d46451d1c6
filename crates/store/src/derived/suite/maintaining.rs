//! Making ranges again, resetting a service, pruning, deleting.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::committing::is_moved;
use super::raw::{Raw, id};
use super::subject::{Subject, same_dump};
use super::tables::{ASKER, CODES, FOLDER, HOLDINGS, MAPPER, MOVES, NAMES, NOTES, TOTALS, note_row};
use super::{Case, CaseResult, DerivedFactory};
use crate::derived::lease::{ClaimRequest, LeaseKind, LeaseStatus};
use crate::derived::row::{Key, Row};
use crate::derived::value::Value;
use crate::derived::writer::{ChunkCommit, TableRows};
use crate::suite::check::{holds, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("maintaining":
        a_range_is_made_again,
        ranges_to_be_made_again_are_cut_at_multiples,
        ranges_to_be_made_again_dont_overlap,
        a_range_made_again_changes_hands_like_any_other,
        answers_are_asked_again,
        a_service_is_reset_in_bounded_steps,
        a_worker_of_a_service_that_is_reset_commits_nothing,
        undo_rows_below_finality_go,
        rows_are_deleted_by_key,
        maintaining_changes_nothing,
    )
}

fn heights(from: u64, to: u64) -> HeightRange {
    HeightRange::new(Height(from), Height(to))
}

async fn a_range_is_made_again(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let before = subject.store.dump().await?;
    let checkpoint = subject.checkpoint(MAPPER).await?;
    same("how many leases", subject.store.request_reindex(MAPPER, 2, heights(12, 18), 100).await?, 1)?;
    let request = ClaimRequest { version: 2, ..subject.request(MAPPER) };
    let lease = subject.claim_as(&request).await?;
    same("the lease", (lease.kind, lease.range, lease.version), (LeaseKind::Reindex, heights(12, 18), 2))?;
    // The new version makes one note a block and no moves.
    let rows =
        |from: u64, to: u64| (from..to).map(|height| note_row(height, "again", 1)).collect::<Vec<Row>>();
    let part = |from, to| vec![TableRows { table: NOTES.name, rows: rows(from, to) }];
    let commit = ChunkCommit { rows: part(12, 15), ..subject.chunk(&lease, 15).await? };
    let committed = subject.store.commit_chunk(&lease, commit).await?;
    same("the checkpoint", committed.checkpoint, checkpoint.clone())?;
    let at = |row: &Row| row.0[0].as_int().unwrap_or(-1);
    let of = |rows: Vec<Row>, from: i64, to: i64| -> Vec<Row> {
        rows.into_iter().filter(|row| (from..to).contains(&at(row))).collect()
    };
    same("the notes made again", of(subject.all(NOTES.name).await?, 12, 15), rows(12, 15))?;
    same("the moves made again", of(subject.all(MOVES.name).await?, 12, 15), Vec::new())?;
    let reference = Subject::reference(Raw::with(40, 1)).await?;
    reference.index_all(10, 10).await?;
    for table in [MOVES.name, NOTES.name] {
        for (from, to) in [(0, 12), (15, 40)] {
            let expected = of(reference.all(table).await?, from, to);
            same("rows beside them", of(subject.all(table).await?, from, to), expected)?;
        }
    }
    let commit = ChunkCommit { rows: part(15, 18), ..subject.chunk(&committed.lease, 18).await? };
    let done = subject.store.commit_chunk(&committed.lease, commit).await?;
    same("its state", done.lease.status, LeaseStatus::Completed)?;
    // Back to what it was.
    subject.store.request_reindex(MAPPER, 2, heights(10, 20), 100).await?;
    let lease = subject.claim_as(&request).await?;
    same("the next", lease.range, heights(10, 20))?;
    subject.work(lease, 4).await?;
    same("the checkpoint, after all", subject.checkpoint(MAPPER).await?, checkpoint)?;
    same_dump(&subject.store.dump().await?, &before)
}

async fn ranges_to_be_made_again_are_cut_at_multiples(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 40, 40).await?;
    same("how many leases", subject.store.request_reindex(MAPPER, 3, heights(5, 27), 10).await?, 3)?;
    let older = subject.claim(MAPPER).await?;
    same("what an older version gets", (older.kind, older.range), (LeaseKind::Index, heights(40, 50)))?;
    for (from, to) in [(5, 10), (10, 20), (20, 27)] {
        let lease = subject.claim_as(&ClaimRequest { version: 3, ..subject.request(MAPPER) }).await?;
        same(
            "the lease",
            (lease.kind, lease.range, lease.attempt),
            (LeaseKind::Reindex, heights(from, to), 0),
        )?;
        same("where it stands", (lease.done_to, lease.last_id), (Height(from), None))?;
    }
    Ok(())
}

async fn ranges_to_be_made_again_dont_overlap(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let ask = async |from, to| subject.store.request_reindex(MAPPER, 1, heights(from, to), 10).await;
    for (what, from, to) in [("nothing", 5, 5), ("above the checkpoint", 35, 41)] {
        refused(what, ask(from, to).await, is_invalid)?;
    }
    let no_heights = subject.store.request_reindex(MAPPER, 1, heights(0, 5), 0).await;
    refused("ranges of no heights", no_heights, is_invalid)?;
    same("how many", ask(10, 30).await?, 2)?;
    let before = subject.freeze().await?;
    for (from, to) in [(10, 30), (0, 11), (29, 40), (15, 16), (0, 40)] {
        refused("overlapping", ask(from, to).await, is_invalid)?;
    }
    subject.is_still(&before).await?;
    same("beside it", ask(30, 40).await?, 1)?;
    let first = subject.work(subject.claim(MAPPER).await?, 100).await?;
    same("the first", first.range, heights(10, 20))?;
    refused("one is not done yet", ask(15, 25).await, is_invalid)?;
    same("the one that is done is in the way", subject.store.lease(first.id).await?, Some(first.clone()))?;
    same("in its place", ask(5, 20).await?, 2)?;
    same("the one that was in the way", subject.store.lease(first.id).await?, None)?;
    // Leases of the other kind are not.
    let index = subject.leases().await?.into_iter().filter(|lease| lease.kind == LeaseKind::Index).count();
    same("leases of the other kind", index, 4)
}

async fn a_range_made_again_changes_hands_like_any_other(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(50, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    subject.store.request_reindex(MAPPER, 1, heights(20, 30), 10).await?;
    let lease = subject.claim(MAPPER).await?;
    same("before a new range", lease.kind, LeaseKind::Reindex)?;
    let lease = subject.commit(&lease, 24).await?.lease;
    let stands = (lease.first_parent, lease.last_id);
    same("the blocks that it knows", stands, (Some(id(19, 1)), Some(id(23, 1))))?;
    subject.clock.advance_ms(super::subject::TTL_MS);
    let again = subject.claim(MAPPER).await?;
    same("claimed again", (again.id, again.done_to), (lease.id, Height(24)))?;
    let late = subject.try_commit(&lease, 30).await?;
    refused("its former holder", late, crate::suite::check::is_fenced)?;
    subject.work(again, 100).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn a_service_is_reset_in_bounded_steps(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let before = subject.store.dump().await?.lines;
    let is_folders = |line: &&String| {
        ["holdings/", "totals/", "checkpoint/folder"].iter().any(|name| line.starts_with(name))
    };
    let others: Vec<String> = before.iter().filter(|line| !is_folders(line)).cloned().collect();
    same("nobody's", subject.store.reset_step("nobody", 10).await?, false)?;
    same("of one that was not begun", subject.store.reset_step(FOLDER, 10).await?, false)?;
    same("everything then", subject.store.dump().await?.lines, before.clone())?;
    subject.anew(FOLDER).await?;
    let (mut left, mut steps) = (before.len(), 0);
    loop {
        let goes_on = subject.store.reset_step(FOLDER, 3).await?;
        steps += 1;
        let now = subject.store.dump().await?.lines;
        same("its rows that can be seen", subject.all(HOLDINGS.name).await?, Vec::new())?;
        if !goes_on {
            break;
        }
        holds(left - now.len() <= 10, format!("{} rows went in a step of 3", left - now.len()))?;
        left = now.len();
        same("its checkpoint", subject.snapshot().await?.checkpoint(FOLDER), None)?;
        if steps == 2 {
            subject.reopen().await?;
        }
        holds(steps < 1_000, "there is no end of it")?;
    }
    holds(steps > 5, format!("{steps} steps forgot everything"))?;
    let is_folders = |line: &&String| is_folders(line) && !line.starts_with("checkpoint/");
    let now = subject.store.dump().await?.lines;
    same("rows of it that are left", now.iter().find(is_folders), None)?;
    same("how many lines there are", now.len(), others.len() + 1)?;
    Subject::ends(&subject.checkpoint(FOLDER).await?, 0, None)?;
    let leases = subject.leases().await?;
    holds(leases.iter().all(|lease| lease.service != FOLDER), "a lease of it is left")?;
    same("a step more", subject.store.reset_step(FOLDER, 3).await?, false)?;
    subject.index_all(7, 3).await?;
    subject.dumps_as_its_chain().await?;
    // Its undo rows went as well: those of now are right.
    subject.switch(20, 41, 2, 50).await?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn a_worker_of_a_service_that_is_reset_commits_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let lease = subject.commit(&subject.claim(FOLDER).await?, 8).await?.lease;
    let commit = subject.chunk(&lease, 10).await?;
    subject.anew(FOLDER).await?;
    subject.store.reset_step(FOLDER, 1).await?;
    let before = subject.freeze().await?;
    refused("a commit", subject.store.commit_chunk(&lease, commit.clone()).await, is_moved)?;
    refused("a claim", subject.store.claim(&subject.request(FOLDER)).await, is_invalid)?;
    subject.is_still(&before).await?;
    while subject.store.reset_step(FOLDER, 100).await? {}
    let gone = subject.store.commit_chunk(&lease, commit).await;
    refused("a commit when it is done", gone, crate::suite::check::is_fenced)?;
    Ok(())
}

async fn undo_rows_below_finality_go(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let before = subject.store.dump().await?;
    let mut pruned = 0;
    loop {
        let now = subject.store.prune_undo(Height(25), 7).await?;
        holds(now <= 7, format!("{now} undo rows went, not 7"))?;
        pruned += now;
        if now == 0 {
            break;
        }
    }
    holds(pruned > 20, format!("{pruned} undo rows went"))?;
    same_dump(&subject.store.dump().await?, &before)?;
    // What lies above can still be undone, down to the finalised block.
    for (common, salt) in [(33, 2), (25, 3)] {
        subject.switch(common, 40, salt, 20).await?;
        subject.index_all(10, 10).await?;
        subject.dumps_as_its_chain().await?;
    }
    // Where everything above is final, commits leave none to prune.
    subject.raw.finalized = Height(45);
    subject.raw.grow(46, 1);
    while subject.store.prune_undo(Height(45), 100).await? > 0 {}
    subject.index_all(10, 10).await?;
    same("pruned then", subject.store.prune_undo(Height(45), 100).await?, 0)
}

async fn rows_are_deleted_by_key(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let rows = subject.all(NOTES.name).await?;
    let key = |row: &Row| Key(row.0[..2].to_vec());
    let missing = Key(vec![Value::Int(3), Value::text("nothing")]);
    let keys = [key(&rows[1]), missing.clone(), key(&rows[4])];
    same("how many", subject.store.delete_rows(NOTES.name, &keys).await?, 2)?;
    same("how many again", subject.store.delete_rows(NOTES.name, &keys).await?, 0)?;
    let mut left = rows.clone();
    left.remove(4);
    left.remove(1);
    same("what is left", subject.all(NOTES.name).await?, left.clone())?;
    left.sort_by_key(|row| (row.0[2].clone(), row.0[0].clone(), row.0[1].clone()));
    let by_weight = crate::derived::reader::Scan {
        index: Some("by_weight"),
        ..crate::derived::reader::Scan::new(NOTES.name, 1_000)
    };
    same("by an index", subject.snapshot().await?.scan(&by_weight).await?.rows, left)?;
    for (table, columns) in [(HOLDINGS.name, 2), (TOTALS.name, 1), (NAMES.name, 1), (CODES.name, 1)] {
        let row = subject.all(table).await?.swap_remove(0);
        let key = Key(row.0[..columns].to_vec());
        same(table, subject.store.delete_rows(table, std::slice::from_ref(&key)).await?, 1)?;
        same("the row", subject.snapshot().await?.rows(table, &[key]).await?, vec![None])?;
    }
    refused("rows of no table", subject.store.delete_rows("nothing", &[missing]).await, is_invalid)?;
    Ok(())
}

async fn maintaining_changes_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::new()).await?;
    subject.store.maintain(Height(0)).await?;
    for end in [5, 30, 75, 130] {
        subject.raw.grow(end, 1);
        subject.store.maintain(Height(end)).await?;
        subject.index_all(20, 10).await?;
        let before = subject.freeze().await?;
        subject.store.maintain(Height(end)).await?;
        // A tip that nobody has seen yet, as after a gap in the work.
        subject.store.maintain(Height(end + 1_000)).await?;
        while subject.store.build_indexes(Height(end)).await? {}
        subject.is_still(&before).await?;
        subject.dumps_as_its_chain().await?;
    }
    same("its asker", subject.checkpoint(ASKER).await?.next, Height(130))
}

async fn answers_are_asked_again(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index_all(10, 10).await?;
    let (mut names, codes) = (subject.all(NAMES.name).await?, subject.all(CODES.name).await?);
    let (before, checkpoint) = (subject.store.dump().await?, subject.checkpoint(ASKER).await?);
    same("how many leases", subject.store.request_reindex(ASKER, 1, heights(39, 40), 100).await?, 1)?;
    let lease = subject.claim(ASKER).await?;
    same("the lease", (lease.kind, lease.range), (LeaseKind::Reindex, heights(39, 40)))?;
    // The node says something else now.
    let mut commit = ChunkCommit { replaces: Vec::new(), ..subject.chunk(&lease, 40).await? };
    for part in commit.rows.iter_mut().filter(|part| part.table == NAMES.name) {
        part.rows.iter_mut().for_each(|row| row.0[1] = Value::text("again"));
    }
    let asked = commit.rows.iter().filter(|part| part.table == NAMES.name).flat_map(|part| part.rows.clone());
    let asked: Vec<Row> = asked.collect();
    let done = subject.store.commit_chunk(&lease, commit).await?;
    same("its state", done.lease.status, LeaseStatus::Completed)?;
    same("the checkpoint", subject.checkpoint(ASKER).await?, checkpoint)?;
    same_dump(&subject.store.dump().await?, &before)?;
    same("content", subject.all(CODES.name).await?, codes)?;
    for name in &mut names {
        if let Some(again) = asked.iter().find(|row| row.0[0] == name.0[0]) {
            *name = again.clone();
        }
    }
    same("how many were asked", asked.len(), 1)?;
    same("the answers", subject.all(NAMES.name).await?, names)
}
