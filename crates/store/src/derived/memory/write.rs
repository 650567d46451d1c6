//! The commit of a chunk.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::Height;

use super::MemoryDerived;
use super::state::{State, TableData};
use crate::derived::answers::Answers;
use crate::derived::lease::WorkerLease;
use crate::derived::reader::QuarantinedBlock;
use crate::derived::row::{Key, Row};
use crate::derived::rules::{self, CheckedChunk, CheckedRows, CheckedStates};
use crate::derived::table::{Table, TableClass};
use crate::derived::value::Value;
use crate::derived::writer::{ChunkCommit, Committed, DerivedWriter, StateRow};
use crate::{Result, StoreError};

#[async_trait]
impl DerivedWriter for MemoryDerived {
    async fn commit_chunk(&self, lease: &WorkerLease, commit: ChunkCommit) -> Result<Committed> {
        let now_ms = self.now_ms();
        self.commit("commit_chunk", |state| commit_chunk(state, lease, commit, now_ms))
    }
}

fn commit_chunk(
    state: &mut State,
    held: &WorkerLease,
    commit: ChunkCommit,
    now_ms: u64,
) -> Result<Committed> {
    let checked = CheckedChunk::new(&state.catalog, held, &commit)?;
    let forks = state.forks()?;
    let before = rules::demand_holder(state.leases.get(&held.id), held, state.newest_fence())?;
    let lease = rules::advance_lease(before, &commit, now_ms)?;
    rules::demand_fork(&forks.state, forks.base_id, &forks.marks, &commit, checked.reaches)?;
    let checkpoint = state.checkpoints.get(&before.service).ok_or_else(|| StoreError::LeaseMoved {
        what: format!("the checkpoint of {}, which is not registered,", before.service),
        expected: commit.chunk.start(),
    })?;
    let moved = rules::advance_checkpoint(checkpoint, before, &commit, now_ms)?;
    let checkpoint = moved.unwrap_or_else(|| checkpoint.clone());
    let mut corrected = Vec::with_capacity(checked.corrections.len());
    for correction in &checked.corrections {
        let folder = state.checkpoints.get(&correction.service);
        corrected.extend(rules::correct_checkpoint(correction, folder, &commit)?);
    }
    for part in &checked.rows {
        let is_replaced = checked.replaces.iter().any(|table| table.name() == part.table.name());
        if !is_replaced {
            demand_same(state, part)?;
        }
    }
    for part in &checked.states {
        demand_not_newer(state, part, &commit)?;
    }
    let mut answers = Vec::new();
    for part in checked.answers {
        let place = state.place(part.table.name())?;
        for (key, laid) in part.rows {
            let change = answer(&part.table, &state.tables[place], &key, laid)?.change(commit.finalized);
            answers.push((place, part.table.clone(), key, change));
        }
    }

    for table in &checked.replaces {
        let place = state.place(table.name())?;
        let data = state.table_mut(place);
        let chunk =
            Key(vec![Value::height(commit.chunk.start())])..Key(vec![Value::height(commit.chunk.end())]);
        let doomed: Vec<Key> = data.rows.range(chunk).map(|(key, _)| key.clone()).collect();
        for key in doomed {
            data.take(table, &key);
        }
    }
    for part in checked.rows {
        let place = state.place(part.table.name())?;
        let data = state.table_mut(place);
        for (key, row) in part.rows {
            if !data.rows.contains_key(&key) {
                data.put(&part.table, key, Arc::new(row));
            }
        }
    }
    for (place, table, key, change) in answers {
        let data = state.table_mut(place);
        data.undo_floor = data.undo_floor.max(change.undo_floor);
        for (height, before) in change.undo {
            data.put_undo(&key, height, Some(Arc::new(before)));
        }
        if let Some(row) = change.row {
            data.put(&table, key, Arc::new(row));
        }
    }
    for part in checked.states {
        let place = state.place(part.table.name())?;
        let data = state.table_mut(place);
        for (key, change) in part.rows {
            for (height, before) in change.undo.into_iter().filter(|(at, _)| *at >= commit.finalized) {
                data.put_undo(&key, height, before.map(Arc::new));
            }
            data.put(&part.table, key, Arc::new(change.row));
        }
    }
    for (table, rows) in checked.corrections.into_iter().flat_map(|correction| correction.tables) {
        let place = state.place(table.name())?;
        let data = state.table_mut(place);
        for (key, corrected) in rows {
            data.take_undo(&key, ..);
            for (height, before) in corrected.undo.into_iter().filter(|(at, _)| *at >= commit.finalized) {
                data.put_undo(&key, height, before.map(Arc::new));
            }
            match corrected.row {
                Some(row) => data.put(&table, key, Arc::new(row)),
                None => _ = data.take(&table, &key),
            }
        }
    }
    corrected.into_iter().for_each(|checkpoint| state.put_checkpoint(checkpoint));
    let (service, chunk) = (&lease.service, commit.chunk);
    state.keep_quarantined(|block| block.service != *service || !chunk.contains(block.height));
    if !commit.quarantined.is_empty() {
        let named = commit.quarantined.iter();
        let blocks = named.map(|&height| QuarantinedBlock { height, service: service.clone() });
        Arc::make_mut(&mut state.quarantined).extend(blocks);
    }
    state.put_lease(lease.clone());
    state.put_checkpoint(checkpoint.clone());
    Ok(Committed { lease, checkpoint })
}

/// The answers of a key with those of a commit among them.
fn answer(table: &Table, data: &TableData, key: &Key, laid: BTreeMap<Height, Row>) -> Result<Answers> {
    let row = data.rows.get(key).map(|row| Row::clone(row));
    let undo = data.undo.get(key).into_iter().flatten();
    let undo = undo.map(|(height, before)| (*height, before.as_deref().cloned()));
    let mut answers = Answers::new(table, row, undo)?;
    laid.into_iter().for_each(|(height, row)| answers.lay(height, row));
    Ok(answers)
}

/// The height guard: nothing older ever overwrites something newer.
fn demand_not_newer(state: &State, part: &CheckedStates, commit: &ChunkCommit) -> Result<()> {
    let data = &state.tables[state.place(part.table.name())?];
    let height = |row: &Row| part.table.height_column().and_then(|at| row.0[at].as_height());
    let is_newer = |(key, change): &(&Key, &StateRow)| {
        data.rows.get(*key).is_some_and(|stored| height(stored) > height(&change.row))
    };
    match part.rows.iter().filter(is_newer).count() {
        0 => Ok(()),
        newer => Err(rules::newer_state(&part.table, newer, commit.chunk)),
    }
}

/// Whether every event row that is there already is the same, field for field.
fn demand_same(state: &State, part: &CheckedRows) -> Result<()> {
    if !matches!(part.table.def().class, TableClass::Events { .. }) {
        return Ok(());
    }
    let data = &state.tables[state.place(part.table.name())?];
    let other = |key: &Key, row: &Row| data.rows.get(key).is_some_and(|stored| **stored != *row);
    match part.rows.iter().find(|(key, row)| other(key, row)) {
        Some((key, _)) => Err(rules::other_fields(&part.table, key)),
        None => Ok(()),
    }
}
