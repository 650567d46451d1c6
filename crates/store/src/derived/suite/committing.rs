//! `commit_chunk`: rows, lease and checkpoint move together, or nothing does.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::{NO_BLOCK, Raw, id};
use super::subject::{FIRST_PARENT, Subject, TTL_MS, states_of};
use super::tables::{
    ASKER, CODES, FOLDER, HOLDINGS, MAPPER, MOVES, NAMES, NOTES, address, move_row, note_row,
};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::StoreError;
use crate::derived::FoldedAt;
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseStatus, WorkerLease};
use crate::derived::row::{Key, Row};
use crate::derived::value::{U256, Value};
use crate::derived::writer::{ChunkCommit, StateRow, StateRows, TableRows};
use crate::suite::check::{is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("committing":
        a_commit_moves_lease_rows_and_checkpoint,
        the_last_chunk_completes_the_lease,
        a_chunk_begins_where_the_lease_stands,
        a_chunk_joins_the_block_below,
        a_chunk_stays_inside_its_lease,
        skipped_heights_are_done_without_a_block,
        a_lease_of_only_skipped_heights_knows_the_block_below,
        the_checkpoint_waits_for_the_range_below,
        the_checkpoint_moves_only_on_the_same_fork,
        a_lost_answer_is_settled_by_the_lease,
        nothing_is_committed_before_a_raw_store_is_adopted,
        rows_that_make_no_sense_are_refused,
        tables_of_another_service_are_refused,
        p01_the_same_key_twice_in_one_batch_is_one_row,
        an_event_row_that_differs_is_damage,
        newer_answers_replace_and_content_stays,
        state_that_is_newer_than_a_chunk_is_damage,
        a_refused_commit_writes_nothing,
        every_type_of_value_comes_back,
        many_rows_in_one_commit,
    )
}

pub(super) fn is_moved(error: &StoreError) -> bool {
    matches!(error, StoreError::LeaseMoved { .. })
}

pub(super) fn is_corrupt(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt { .. })
}

async fn a_commit_moves_lease_rows_and_checkpoint(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let commit = subject.chunk(&lease, 6).await?;
    subject.clock.advance_ms(250);
    let committed = subject.store.commit_chunk(&lease, commit.clone()).await?;
    let expected = WorkerLease {
        done_to: Height(6),
        last_id: Some(id(5, 1)),
        first_parent: FIRST_PARENT,
        expires_at_ms: lease.expires_at_ms + 250,
        ..lease.clone()
    };
    same("the lease in the answer", &committed.lease, &expected)?;
    Subject::ends(&committed.checkpoint, 6, Some(id(5, 1)))?;
    same("when it moved", committed.checkpoint.updated_at_ms, lease.expires_at_ms - TTL_MS + 250)?;
    for _ in 0..2 {
        same("the lease", subject.lease(lease.id).await?, expected.clone())?;
        same("the checkpoint", subject.checkpoint(MAPPER).await?, committed.checkpoint.clone())?;
        for part in &commit.rows {
            let mut rows = part.rows.clone();
            rows.sort();
            same(part.table, subject.all(part.table).await?, rows)?;
        }
        subject.reopen().await?;
    }
    Ok(())
}

async fn the_last_chunk_completes_the_lease(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let lease = subject.commit(&lease, 9).await?.lease;
    same("before the end", lease.status, LeaseStatus::Active)?;
    let done = subject.commit(&lease, 10).await?;
    same("at the end", done.lease.status, LeaseStatus::Completed)?;
    same("where it stands", (done.lease.done_to, done.lease.last_id), (Height(10), Some(id(9, 1))))?;
    Subject::ends(&done.checkpoint, 10, Some(id(9, 1)))
}

async fn a_chunk_begins_where_the_lease_stands(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.commit(&subject.claim(MAPPER).await?, 4).await?.lease;
    let before = subject.freeze().await?;
    for (from, to) in [(3, 6), (5, 6), (0, 4)] {
        let other = WorkerLease { done_to: Height(from), ..lease.clone() };
        refused("a chunk from elsewhere", subject.try_commit(&other, to).await?, is_moved)?;
    }
    subject.is_still(&before).await
}

async fn a_chunk_joins_the_block_below(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.commit(&subject.claim(MAPPER).await?, 4).await?.lease;
    let before = subject.freeze().await?;
    let commit = subject.chunk(&lease, 6).await?;
    let other = ChunkCommit { parent_id: Some(id(3, 2)), ..commit.clone() };
    refused("another parent", subject.store.commit_chunk(&lease, other).await, is_moved)?;
    let none = ChunkCommit { parent_id: None, ..commit };
    refused("no parent", subject.store.commit_chunk(&lease, none).await, is_invalid)?;
    subject.is_still(&before).await?;
    subject.reopen().await?;
    subject.commit(&lease, 6).await?;
    Ok(())
}

async fn a_chunk_stays_inside_its_lease(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let before = subject.freeze().await?;
    refused("beyond the end", subject.try_commit(&lease, 11).await?, is_invalid)?;
    refused("an empty chunk", subject.try_commit(&lease, 0).await?, is_invalid)?;
    subject.is_still(&before).await
}

async fn skipped_heights_are_done_without_a_block(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut raw = Raw::with(3, 1);
    raw.skip(6);
    raw.grow(30, 1);
    let subject = Subject::new(&factory, raw).await?;
    let lease = subject.commit(&subject.claim(MAPPER).await?, 3).await?.lease;
    // What lies below is known to the lease, whether the commit says it or not.
    for (to, parent_id) in [(4, Some(id(2, 1))), (5, None)] {
        let lease = subject.lease(lease.id).await?;
        let commit = ChunkCommit { parent_id, ..subject.chunk(&lease, to).await? };
        let committed = subject.store.commit_chunk(&lease, commit).await?;
        let stands = (committed.lease.done_to, committed.lease.last_id, committed.lease.first_parent);
        same("the lease", stands, (Height(to), Some(id(2, 1)), FIRST_PARENT))?;
        Subject::ends(&committed.checkpoint, to, Some(id(2, 1)))?;
    }
    let lease = subject.lease(lease.id).await?;
    let committed = subject.commit(&lease, 8).await?;
    Subject::ends(&committed.checkpoint, 8, Some(id(7, 1)))
}

async fn a_lease_of_only_skipped_heights_knows_the_block_below(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let mut raw = Raw::with(8, 1);
    raw.skip(25);
    raw.grow(40, 1);
    let subject = Subject::new(&factory, raw).await?;
    let first = subject.claim(MAPPER).await?;
    let second = subject.work(subject.claim(MAPPER).await?, 4).await?;
    let stands = (second.status, second.last_id, second.first_parent);
    same("the second", stands, (LeaseStatus::Completed, Some(id(7, 1)), Some(id(7, 1))))?;
    subject.work(first, 100).await?;
    subject.store.repair_checkpoints().await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 20, Some(id(7, 1)))?;
    subject.index_all(10, 3).await?;
    subject.dumps_as_its_chain().await
}

async fn the_checkpoint_waits_for_the_range_below(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let (first, second) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    let committed = subject.commit(&second, 15).await?;
    same("the upper lease's parent", committed.lease.first_parent, Some(id(9, 1)))?;
    Subject::ends(&committed.checkpoint, 0, None)?;
    same("rows that can be seen", subject.all(MOVES.name).await?, Vec::new())?;
    let committed = subject.commit(&first, 10).await?;
    Subject::ends(&committed.checkpoint, 10, Some(id(9, 1)))?;
    // The next commit of the upper lease begins above the checkpoint: only the repair crosses.
    let upper = subject.lease(second.id).await?;
    Subject::ends(&subject.commit(&upper, 18).await?.checkpoint, 10, Some(id(9, 1)))
}

async fn the_checkpoint_moves_only_on_the_same_fork(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(10, 1)).await?;
    subject.work(subject.claim(MAPPER).await?, 100).await?;
    Subject::ends(&subject.checkpoint(MAPPER).await?, 10, Some(id(9, 1)))?;
    // A worker that reads another fork, of which nothing was said.
    let lease = subject.claim(MAPPER).await?;
    let commit = ChunkCommit {
        chunk: HeightRange::new(Height(10), Height(12)),
        parent_id: Some(id(9, 2)),
        last_id: Some(id(11, 2)),
        rows: Vec::new(),
        ..subject.chunk(&lease, 12).await?
    };
    let committed = subject.store.commit_chunk(&lease, commit).await?;
    same("the lease", committed.lease.done_to, Height(12))?;
    Subject::ends(&committed.checkpoint, 10, Some(id(9, 1)))
}

async fn a_lost_answer_is_settled_by_the_lease(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let commit = subject.chunk(&lease, 6).await?;
    let committed = subject.store.commit_chunk(&lease, commit.clone()).await?;
    let before = subject.freeze().await?;
    refused("the same commit again", subject.store.commit_chunk(&lease, commit).await, is_moved)?;
    let found = subject.lease(lease.id).await?;
    same("the lease", (found.done_to, found.fence), (Height(6), lease.fence))?;
    same("what it was answered", found, committed.lease)?;
    subject.is_still(&before).await
}

async fn nothing_is_committed_before_a_raw_store_is_adopted(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::bare(&factory, Raw::with(30, 1)).await?;
    let reference = Subject::reference(Raw::with(30, 1)).await?;
    subject.store.register(MAPPER, Height(0)).await?;
    let lease = match subject.store.claim(&subject.request(MAPPER)).await {
        Ok(Some(lease)) => lease,
        Ok(None) => return Err(Failure::new("nothing to claim")),
        Err(error) if is_invalid(&error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let commit = reference.chunk(&lease, 5).await?;
    refused("a commit", subject.store.commit_chunk(&lease, commit).await, is_invalid)?;
    same("the lease", subject.lease(lease.id).await?, lease)
}

async fn rows_that_make_no_sense_are_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    subject.commit(&subject.claim(MAPPER).await?, 10).await?;
    let lease = subject.claim(MAPPER).await?;
    let folder = subject.claim(FOLDER).await?;
    let before = subject.freeze().await?;
    let good = subject.chunk(&lease, 14).await?;
    let one = |table, row: Row| vec![TableRows { table, rows: vec![row] }];
    let mut wrong_type = move_row(11, 0, 0, 1, None, U256::from(1));
    wrong_type.0[5] = Value::Int(1);
    let mut null = move_row(11, 0, 0, 1, None, U256::from(1));
    null.0[3] = Value::Null;
    let mut short = move_row(11, 0, 0, 1, None, U256::from(1));
    short.0.pop();
    let nul = Row(vec![Value::Int(11), Value::Text("a\0b".into()), Value::Int(1)]);
    for (what, rows) in [
        ("a value of another type", one(MOVES.name, wrong_type)),
        ("a null where none may be", one(MOVES.name, null)),
        ("a row that is too short", one(MOVES.name, short)),
        ("text with a NUL", one(NOTES.name, nul)),
        ("a row below the chunk", one(NOTES.name, note_row(9, "x", 1))),
        ("a row above the chunk", one(NOTES.name, note_row(14, "x", 1))),
        ("a table that there isn't", one("nothing", note_row(11, "x", 1))),
    ] {
        let commit = ChunkCommit { rows, ..good.clone() };
        refused(what, subject.store.commit_chunk(&lease, commit).await, is_invalid)?;
    }
    let good = subject.chunk(&folder, 10).await?;
    let mut commits = vec![("state without its mark", ChunkCommit { folded_at: None, ..good.clone() })];
    let mut twice = good.clone();
    let states = states_of(&mut twice, HOLDINGS.name)?;
    states.extend(states.clone());
    commits.push(("a state twice", twice));
    let mut outside = good.clone();
    for state in states_of(&mut outside, HOLDINGS.name)? {
        state.row.0[6] = Value::Int(10);
    }
    commits.push(("a last height outside of the chunk", outside));
    let mut no_undo = good.clone();
    for state in states_of(&mut no_undo, HOLDINGS.name)? {
        state.undo.clear();
    }
    commits.push(("a change above finality without undo", no_undo));
    let mut reversed = good.clone();
    for state in states_of(&mut reversed, HOLDINGS.name)? {
        state.undo.insert(0, (Height(9), None));
        state.undo.push((Height(8), None));
    }
    commits.push(("undo rows that don't ascend", reversed));
    for (what, commit) in commits {
        refused(what, subject.store.commit_chunk(&folder, commit).await, is_invalid)?;
    }
    subject.is_still(&before).await?;
    subject.store.commit_chunk(&folder, good).await?;
    Ok(())
}

async fn tables_of_another_service_are_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let before = subject.freeze().await?;
    let good = subject.chunk(&lease, 4).await?;
    let answer = Row(vec![address(1), Value::text("x"), Value::Int(3)]);
    let rows = vec![TableRows { table: NAMES.name, rows: vec![answer] }];
    let commit = ChunkCommit { rows, ..good.clone() };
    refused("another's rows", subject.store.commit_chunk(&lease, commit).await, is_invalid)?;
    let state = StateRow { row: note_row(1, "x", 1), undo: Vec::new() };
    let states = vec![StateRows { table: NOTES.name, rows: vec![state] }];
    let commit = ChunkCommit { states, folded_at: Some(FoldedAt::applied(0)), ..good.clone() };
    refused("events as state", subject.store.commit_chunk(&lease, commit).await, is_invalid)?;
    let commit = ChunkCommit { replaces: vec![NAMES.name], ..good };
    refused("another's rows replaced", subject.store.commit_chunk(&lease, commit).await, is_invalid)?;
    subject.is_still(&before).await
}

async fn p01_the_same_key_twice_in_one_batch_is_one_row(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let row = move_row(2, 0, 0, 1, Some(2), U256::from(7));
    let other = move_row(2, 0, 0, 1, Some(2), U256::from(8));
    let part = |rows: &[&Row]| TableRows { table: MOVES.name, rows: rows.iter().copied().cloned().collect() };
    let good = subject.chunk(&lease, 4).await?;
    let before = subject.freeze().await?;
    let differing = ChunkCommit { rows: vec![part(&[&row, &other])], ..good.clone() };
    refused("other fields", subject.store.commit_chunk(&lease, differing).await, is_corrupt)?;
    subject.is_still(&before).await?;
    let twice = ChunkCommit { rows: vec![part(&[&row, &row]), part(&[&row])], ..good };
    subject.store.commit_chunk(&lease, twice).await?;
    same("the rows", subject.all(MOVES.name).await?, vec![row])?;

    let asker = subject.claim(ASKER).await?;
    let answer = |name: &str| Row(vec![address(1), Value::text(name), Value::Int(3)]);
    let code = |byte| Row(vec![Value::bytes(b"h"), Value::bytes(&[byte])]);
    let rows = vec![
        TableRows { table: NAMES.name, rows: vec![answer("a"), answer("b"), answer("a"), answer("c")] },
        TableRows { table: CODES.name, rows: vec![code(1), code(2), code(1)] },
    ];
    let commit = ChunkCommit { rows, ..subject.chunk(&asker, 4).await? };
    subject.store.commit_chunk(&asker, commit).await?;
    same("the last answer", subject.all(NAMES.name).await?, vec![answer("c")])?;
    same("the first content", subject.all(CODES.name).await?, vec![code(1)])
}

async fn an_event_row_that_differs_is_damage(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let range = HeightRange::new(Height(0), Height(10));
    subject.store.request_reindex(MAPPER, 1, range, 10).await?;
    let lease = subject.claim(MAPPER).await?;
    // The same rows once more are left as they are, without replacing them first.
    let same_rows = ChunkCommit { replaces: Vec::new(), ..subject.chunk(&lease, 5).await? };
    let dump = subject.store.dump().await?;
    let lease = subject.store.commit_chunk(&lease, same_rows).await?.lease;
    super::subject::same_dump(&subject.store.dump().await?, &dump)?;
    let mut other = ChunkCommit { replaces: Vec::new(), ..subject.chunk(&lease, 10).await? };
    let rows = other.rows.iter_mut().find(|part| part.table == MOVES.name);
    let row = rows.and_then(|part| part.rows.first_mut());
    row.ok_or_else(|| Failure::new("the chunk has no moves"))?.0[7] = Value::text("changed");
    let before = subject.freeze().await?;
    refused("other fields", subject.store.commit_chunk(&lease, other).await, is_corrupt)?;
    subject.is_still(&before).await
}

async fn newer_answers_replace_and_content_stays(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let asker = subject.claim(ASKER).await?;
    let answer = |name: &str, at| Row(vec![address(1), Value::text(name), Value::Int(at)]);
    let code = |byte| Row(vec![Value::bytes(b"h"), Value::bytes(&[byte])]);
    let mut lease = asker;
    for (to, name, at) in [(2, "one", 20), (4, "two", 21), (6, "three", 21)] {
        let rows = vec![
            TableRows { table: NAMES.name, rows: vec![answer(name, at)] },
            TableRows { table: CODES.name, rows: vec![code(to as u8)] },
        ];
        let commit = ChunkCommit { rows, ..subject.chunk(&lease, to).await? };
        lease = subject.store.commit_chunk(&lease, commit).await?.lease;
        // The height is when, not what: an answer from above the checkpoint is shown.
        same("the answer", subject.all(NAMES.name).await?, vec![answer(name, at)])?;
        same("the content", subject.all(CODES.name).await?, vec![code(2)])?;
    }
    let found = subject.snapshot().await?.rows(CODES.name, &[Key(vec![Value::bytes(b"h")])]).await?;
    same("by key", found, vec![Some(code(2))])
}

async fn state_that_is_newer_than_a_chunk_is_damage(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let lease = subject.commit(&subject.claim(FOLDER).await?, 5).await?.lease;
    let good = subject.chunk(&lease, 8).await?;
    subject.place.set_last_height(HOLDINGS.name, Height(5)).await?;
    let before = subject.freeze().await?;
    subject.place.set_last_height(HOLDINGS.name, Height(20)).await?;
    refused("older state", subject.store.commit_chunk(&lease, good.clone()).await, is_corrupt)?;
    subject.place.set_last_height(HOLDINGS.name, Height(5)).await?;
    subject.is_still(&before).await?;
    subject.reopen().await?;
    subject.is_still(&before).await?;
    // As new as the chunk is not newer.
    subject.store.commit_chunk(&lease, good).await?;
    Ok(())
}

async fn a_refused_commit_writes_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    subject.index_all(10, 5).await?;
    let asker = subject.claim(ASKER).await?;
    let mapper = subject.claim(MAPPER).await?;
    subject.raw.grow(40, 1);
    let mapper = subject.commit(&mapper, 32).await?.lease;
    let asker = subject.commit(&asker, 32).await?.lease;
    let mut commits = Vec::new();
    for lease in [&mapper, &asker] {
        let good = subject.chunk(lease, 35).await?;
        // Each fails at another step.
        commits.push((lease, ChunkCommit { parent_id: Some(id(1, 9)), ..good.clone() }));
        let mut behind = good.clone();
        behind.read.reorg_id = 1;
        commits.push((lease, behind));
    }
    let mut late = subject.chunk(&mapper, 35).await?;
    let last = note_row(34, "zzz", 1);
    late.rows.push(TableRows { table: NOTES.name, rows: vec![last, note_row(34, "zzz", 2)] });
    commits.push((&mapper, late));
    let before = subject.freeze().await?;
    for (lease, commit) in commits {
        refused("a bad commit", subject.store.commit_chunk(lease, commit).await, |_| true)?;
        subject.is_still(&before).await?;
    }
    subject.reopen().await?;
    subject.is_still(&before).await
}

async fn every_type_of_value_comes_back(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(30, 1)).await?;
    let lease = subject.claim(MAPPER).await?;
    let most = U256::MAX;
    let sum = |n: usize, negative: bool| {
        let one = crate::derived::value::Sum::from(most);
        let sum = (0..n).fold(crate::derived::value::Sum::ZERO, |sum, _| sum + one);
        Value::Sum(Box::new(if negative { -sum } else { sum }))
    };
    let mut rows = Vec::new();
    let amounts = [U256::ZERO, U256::from(1), U256::from(u64::MAX), U256::from(1) << 255, most];
    let texts = ["", " ", "a", "A", "é", "e\u{301}", "\u{10ffff}", "\u{fffd}", "'\"\\\t\n", "null", "\\N"];
    for n in 0..16_usize {
        let mut row = move_row(n as u64 / 4, n as i64, i64::MAX - n as i64, n as u64, None, amounts[n % 5]);
        row.0[3] = Value::bytes(&vec![n as u8 * 17; n]);
        row.0[4] = if n == 3 { Value::bytes(b"") } else { Value::Null };
        row.0[6] = sum(n / 2, n % 2 == 1);
        row.0[7] = texts.get(n).map_or(Value::Null, |text| Value::text(*text));
        rows.push(row);
    }
    let notes = vec![note_row(0, "", i64::MIN), note_row(0, "x", i64::MAX), note_row(3, "x", -1)];
    let parts = vec![
        TableRows { table: MOVES.name, rows: rows.clone() },
        TableRows { table: NOTES.name, rows: notes.clone() },
    ];
    let commit = ChunkCommit { rows: parts, ..subject.chunk(&lease, 4).await? };
    subject.store.commit_chunk(&lease, commit).await?;
    subject.reopen().await?;
    rows.sort();
    same("the moves", subject.all(MOVES.name).await?, rows.clone())?;
    same("the notes", subject.all(NOTES.name).await?, notes)?;
    let keys: Vec<Key> = rows.iter().rev().map(|row| Key(row.0[..3].to_vec())).collect();
    let found = subject.snapshot().await?.rows(MOVES.name, &keys).await?;
    same("by key", found, rows.into_iter().rev().map(Some).collect())
}

async fn many_rows_in_one_commit(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(200, 1)).await?;
    let request = ClaimRequest { range_heights: 1_000, ..subject.request(MAPPER) };
    let lease = subject.claim_as(&request).await?;
    // P03: a statement's parameters have a limit; P07: heights lie in several partitions.
    let rows: Vec<Row> = (0..12_000_u64)
        .map(|n| move_row(n % 150, (n / 150) as i64, 0, n, Some(n + 1), U256::from(n)))
        .collect();
    let parts = vec![TableRows { table: MOVES.name, rows: rows.clone() }];
    let commit = ChunkCommit { rows: parts, ..subject.chunk(&lease, 150).await? };
    subject.store.commit_chunk(&lease, commit).await?;
    let found = subject.all(MOVES.name).await?;
    same("how many rows", found.len(), rows.len())?;
    let mut rows = rows;
    rows.sort();
    same("the rows", found, rows)?;
    subject.store.end(&subject.lease(lease.id).await?, LeaseEnd::Released).await?;
    let asker = subject.claim(ASKER).await?;
    same("the block below the next service's first", subject.raw.below(Height(0)), NO_BLOCK)?;
    subject.commit(&asker, 10).await?;
    Ok(())
}
