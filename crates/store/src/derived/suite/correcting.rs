//! Corrections: the commit of replaced rows changes the state that was folded from them, and nobody's work is lost over it.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::Raw;
use super::subject::Subject;
use super::tables::{FOLDER, HOLDINGS, MAPPER, TOTALS};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::Result;
use crate::StoreError;
use crate::derived::lease::{ClaimRequest, WorkerLease};
use crate::derived::rebuild::{RangeAgain, RebuildRequest};
use crate::derived::row::{Key, Row};
use crate::derived::value::{U256, Value};
use crate::derived::writer::{ChunkCommit, Committed, CorrectedRow, Correction};
use crate::suite::check::{holds, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("correcting":
        corrected_rows_replace_state_and_what_undoes_it,
        a_reorg_restores_what_was_corrected,
        a_correction_of_other_state_is_refused,
        a_folder_that_read_before_a_correction_is_refused,
        a_service_that_begins_anew_has_nothing_to_correct,
        only_a_lease_that_corrects_state_corrects,
        a_correction_without_sense_is_refused,
    )
}

fn is_moved(error: &StoreError) -> bool {
    matches!(error, StoreError::LeaseMoved { .. })
}

/// A lease under which the mapper makes `[5, 8)` again, and corrects state.
async fn lease(subject: &Subject, corrects_state: bool) -> CaseResult<WorkerLease> {
    let range = HeightRange::new(Height(5), Height(8));
    let again = RangeAgain {
        service: MAPPER.into(),
        version: 1,
        range,
        range_heights: 10,
        is_behind: false,
        corrects_state,
    };
    let request = RebuildRequest { again: vec![again], anew: Vec::new() };
    subject.store.begin_rebuild(&request).await?;
    subject.claim(MAPPER).await
}

/// A store of 20 heights of which none is final, all of them indexed, and a lease that corrects state.
async fn at_20(factory: &Arc<dyn DerivedFactory>) -> CaseResult<(Subject, WorkerLease)> {
    let subject = Subject::new(factory, Raw::with(20, 1)).await?;
    subject.index_all(20, 20).await?;
    let lease = lease(&subject, true).await?;
    Ok((subject, lease))
}

async fn correction(
    subject: &Subject,
    tables: Vec<(&'static str, Vec<CorrectedRow>)>,
) -> CaseResult<Correction> {
    let stands = subject.snapshot().await?.checkpoint(FOLDER).cloned();
    Ok(Correction { service: FOLDER.into(), stands, tables })
}

async fn commit(subject: &Subject, lease: &WorkerLease, by: Correction) -> CaseResult<Result<Committed>> {
    let chunk = subject.chunk(lease, 8).await?;
    let commit = ChunkCommit { corrections: vec![by], ..chunk };
    Ok(subject.store.commit_chunk(lease, commit).await)
}

/// A row of holdings whose balance is higher by 7.
fn raised(row: &Row) -> Row {
    let mut row = row.clone();
    if let Some(balance) = row.0[2].as_sum() {
        row.0[2] = Value::Sum(Box::new(*balance + crate::derived::value::Sum::from(U256::from(7))));
    }
    row
}

/// A key that nothing else writes.
fn new_key() -> Key {
    Key(vec![Value::Int(9), Value::bytes(&[9; 20])])
}

fn new_row(height: u64) -> Row {
    Row(vec![
        Value::Int(9),
        Value::bytes(&[9; 20]),
        Value::sum(U256::from(5)),
        Value::Int(1),
        Value::height(Height(height)),
        Value::Null,
        Value::height(Height(height)),
    ])
}

/// What a correction makes of some rows: the first is raised, the second goes, and one is new.
async fn changed(subject: &Subject) -> CaseResult<Vec<CorrectedRow>> {
    let stored = subject.all(HOLDINGS.name).await?;
    let key = |row: &Row| Key(row.0[..2].to_vec());
    let [first, second, ..] = &stored[..] else { return Err(Failure::new("too few rows")) };
    let keys = [key(first), key(second)];
    let undo = subject.snapshot().await?.undo_rows(HOLDINGS.name, &keys, Height(0), usize::MAX).await?;
    let of_first = undo.unwrap_or_default().swap_remove(0);
    holds(of_first.len() > 1, "a row that several blocks changed has undo rows")?;
    let raise = |(height, before): &(Height, Option<Row>)| (*height, before.as_ref().map(raised));
    Ok(vec![
        CorrectedRow {
            key: keys[0].clone(),
            row: Some(raised(first)),
            undo: of_first.iter().map(raise).collect(),
        },
        CorrectedRow { key: keys[1].clone(), row: None, undo: Vec::new() },
        CorrectedRow { key: new_key(), row: Some(new_row(6)), undo: vec![(Height(6), None)] },
    ])
}

async fn corrected_rows_replace_state_and_what_undoes_it(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = at_20(&factory).await?;
    let rows = changed(&subject).await?;
    let before = subject.checkpoint(FOLDER).await?;
    let by = correction(&subject, vec![(HOLDINGS.name, rows.clone())]).await?;
    let committed = commit(&subject, &lease, by).await??;
    same("the mapper's checkpoint", committed.checkpoint.corrections, 0)?;
    subject.reopen().await?;
    let after = subject.checkpoint(FOLDER).await?;
    same("where the folder stands", (after.next, after.last_id), (before.next, before.last_id))?;
    same("how often it was corrected", after.corrections, before.corrections + 1)?;
    let snapshot = subject.snapshot().await?;
    let keys: Vec<Key> = rows.iter().map(|row| row.key.clone()).collect();
    let expected: Vec<Option<Row>> = rows.iter().map(|row| row.row.clone()).collect();
    same("the rows", snapshot.rows(HOLDINGS.name, &keys).await?, expected)?;
    let undo: Vec<Vec<(Height, Option<Row>)>> = rows.iter().map(|row| row.undo.clone()).collect();
    let count = undo.iter().map(Vec::len).sum::<usize>();
    same("the undo rows", snapshot.undo_rows(HOLDINGS.name, &keys, Height(0), count).await?, Some(undo))?;
    same("more than the limit", snapshot.undo_rows(HOLDINGS.name, &keys, Height(0), count - 1).await?, None)?;
    let from_10 = snapshot.undo_rows(HOLDINGS.name, &keys, Height(10), count).await?.unwrap_or_default();
    let above =
        |of_key: &Vec<(Height, Option<Row>)>| of_key.iter().filter(|(at, _)| *at >= Height(10)).count();
    let expected: Vec<usize> = rows.iter().map(|row| above(&row.undo)).collect();
    same("from a height on", from_10.iter().map(Vec::len).collect::<Vec<_>>(), expected)?;
    same("undo rows of nothing", snapshot.undo_rows(TOTALS.name, &[], Height(0), 0).await?, Some(Vec::new()))
}

async fn a_reorg_restores_what_was_corrected(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = at_20(&factory).await?;
    let rows = changed(&subject).await?;
    let by = correction(&subject, vec![(HOLDINGS.name, rows.clone())]).await?;
    commit(&subject, &lease, by).await??;
    let entry = subject.raw.fork(4);
    subject.apply(&entry, 3).await?;
    let snapshot = subject.snapshot().await?;
    same("the new row", snapshot.rows(HOLDINGS.name, &[new_key()]).await?, vec![None])?;
    let first_above = rows[0].undo.iter().find(|(height, _)| *height > Height(4));
    let expected = first_above.map_or(rows[0].row.clone(), |(_, before)| before.clone());
    same("the first row", snapshot.rows(HOLDINGS.name, &[rows[0].key.clone()]).await?, vec![expected])
}

async fn a_correction_of_other_state_is_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (mut subject, lease) = at_20(&factory).await?;
    let rows = changed(&subject).await?;
    let by = correction(&subject, vec![(HOLDINGS.name, rows.clone())]).await?;
    subject.raw.grow(22, 1);
    subject.index(MAPPER, 20, 20).await?;
    subject.index(FOLDER, 20, 20).await?;
    let before = subject.freeze().await?;
    refused("the folder went on", commit(&subject, &lease, by).await?, is_moved)?;
    let nobody = Correction { service: FOLDER.into(), stands: None, tables: Vec::new() };
    refused("it has state", commit(&subject, &lease, nobody).await?, is_moved)?;
    subject.is_still(&before).await?;

    // Two corrections that were computed from one state: the second would undo the first.
    let (first, second) = (correction(&subject, Vec::new()).await?, correction(&subject, Vec::new()).await?);
    let half = subject.chunk(&lease, 6).await?;
    let half = ChunkCommit { corrections: vec![first], ..half };
    let lease = subject.store.commit_chunk(&lease, half).await?.lease;
    refused("it was corrected since", commit(&subject, &lease, second).await?, is_moved)?;
    let third = correction(&subject, Vec::new()).await?;
    commit(&subject, &lease, third).await??;
    same("how often", subject.checkpoint(FOLDER).await?.corrections, 2)
}

async fn a_folder_that_read_before_a_correction_is_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(20, 1)).await?;
    subject.index(MAPPER, 20, 20).await?;
    let request = ClaimRequest { range_heights: 20, ..subject.request(FOLDER) };
    let folder = subject.claim_as(&request).await?;
    let folder = subject.commit(&folder, 6).await?.lease;
    // It reads rows of heights 6 and 7, which are replaced before it commits.
    let stale = subject.chunk(&folder, 12).await?;
    let lease = lease(&subject, true).await?;
    let by = correction(&subject, Vec::new()).await?;
    commit(&subject, &lease, by).await??;
    let before = subject.freeze().await?;
    refused("a stale chunk", subject.store.commit_chunk(&folder, stale).await, is_moved)?;
    subject.is_still(&before).await?;
    subject.work(folder, 5).await?;
    subject.index(super::tables::ASKER, 20, 20).await?;
    subject.dumps_as_its_chain().await
}

async fn a_service_that_begins_anew_has_nothing_to_correct(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (subject, lease) = at_20(&factory).await?;
    let late = correction(&subject, Vec::new()).await?;
    subject.anew(FOLDER).await?;
    refused("it had state", commit(&subject, &lease, late).await?, is_moved)?;
    let by = correction(&subject, Vec::new()).await?;
    same("where it stands", &by.stands, &None)?;
    commit(&subject, &lease, by).await??;
    while subject.store.reset_step(FOLDER, 1_000).await? {}
    let begun = subject.checkpoint(FOLDER).await?.corrections;
    holds(begun > 1, "a number that no state of before had")?;
    subject.index_all(20, 20).await?;
    subject.dumps_as_its_chain().await
}

async fn only_a_lease_that_corrects_state_corrects(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(20, 1)).await?;
    subject.index_all(20, 20).await?;
    let plain = lease(&subject, false).await?;
    holds(!plain.corrects_state, "it was not asked for")?;
    let by = correction(&subject, Vec::new()).await?;
    refused("a lease that corrects nothing", commit(&subject, &plain, by).await?, is_invalid)?;
    subject.commit(&plain, 8).await?;
    let correcting = lease(&subject, true).await?;
    holds(correcting.corrects_state, "it was asked for")?;
    subject.reopen().await?;
    holds(subject.lease(correcting.id).await?.corrects_state, "it is stored")?;
    // Whoever takes it up knows it too.
    subject.store.release_lease(correcting.id).await?;
    holds(subject.claim(MAPPER).await?.corrects_state, "a claim says it")
}

async fn a_correction_without_sense_is_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let (subject, lease) = at_20(&factory).await?;
    let before = subject.freeze().await?;
    let new = |undo| CorrectedRow { key: new_key(), row: Some(new_row(6)), undo };
    let other = CorrectedRow { key: Key(vec![Value::Int(1), Value::bytes(&[1; 20])]), ..new(Vec::new()) };
    let falling = new(vec![(Height(7), None), (Height(6), None)]);
    let stands = subject.snapshot().await?.checkpoint(FOLDER).cloned();
    let of = |tables| Correction { service: FOLDER.into(), stands: stands.clone(), tables };
    for (what, by) in [
        ("events", of(vec![("moves", Vec::new())])),
        ("a table of nobody", of(vec![("nothing", Vec::new())])),
        ("a row of another key", of(vec![(HOLDINGS.name, vec![other])])),
        ("a key twice", of(vec![(HOLDINGS.name, vec![new(Vec::new()), new(Vec::new())])])),
        ("undo rows that fall", of(vec![(HOLDINGS.name, vec![falling])])),
        ("state of nobody", Correction { stands: None, ..of(vec![(HOLDINGS.name, vec![new(Vec::new())])]) }),
    ] {
        refused(what, commit(&subject, &lease, by).await?, is_invalid)?;
        subject.is_still(&before).await?;
    }
    let twice = vec![correction(&subject, Vec::new()).await?, correction(&subject, Vec::new()).await?];
    let twice = ChunkCommit { corrections: twice, ..subject.chunk(&lease, 8).await? };
    refused("two of one folder", subject.store.commit_chunk(&lease, twice).await, is_invalid)?;
    subject.is_still(&before).await
}
