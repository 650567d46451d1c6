//! The commit of a chunk. What needs no database (shape, order, duplicates) is done before the gate is taken.

use std::collections::BTreeMap;

use async_trait::async_trait;
use cairn_core::Height;
use cairn_store::derived::answers::Answers;
use cairn_store::derived::rules::{self, CheckedAnswers, CheckedChunk, CheckedStates};
use cairn_store::derived::{
    ChunkCommit, Committed, CorrectedRow, DerivedWriter, Key, LeaseKind, Row, WorkerLease,
};
use cairn_store::{Result, StoreError};
use rusqlite::params;

use super::tables::TableSql;
use super::{SqliteDerived, Write, blocking, checkpoints, db, forks, leases, quarantined, rows, sql};

const INSERT_UNDO: &str = "INSERT OR REPLACE INTO state_undo VALUES (?1, ?2, ?3, ?4)";

const DELETE_UNDO: &str = "DELETE FROM state_undo WHERE table_name = ?1 AND row_key = ?2";

/// Undo rows that one commit deletes because finality has passed them, beyond as many as it writes.
const PRUNE_ROWS: usize = 256;

#[async_trait]
impl DerivedWriter for SqliteDerived {
    async fn commit_chunk(&self, lease: &WorkerLease, commit: ChunkCommit) -> Result<Committed> {
        let (shared, held) = (self.shared.clone(), lease.clone());
        blocking(move || {
            let checked = CheckedChunk::new(&shared.catalog, &held, &commit)?;
            shared.commit("commit_chunk", |write| write.commit_chunk(&held, &commit, &checked))
        })
        .await
    }
}

impl Write<'_> {
    fn commit_chunk(
        &self,
        held: &WorkerLease,
        commit: &ChunkCommit,
        checked: &CheckedChunk,
    ) -> Result<Committed> {
        let forks = forks::read(self.tx)?;
        let current = leases::find(self.tx, held.id)?;
        let before = rules::demand_holder(current.as_ref(), held, leases::newest_fence(self.tx)?)?;
        let lease = rules::advance_lease(before, commit, self.now_ms)?;

        let lower = rules::lowest_known(commit).min(forks.state.applied.id);
        let known = forks::marks_after(self.tx, lower)?;
        rules::demand_fork(&forks.state, forks.base_id, &known, commit, checked.reaches)?;

        let checkpoint =
            checkpoints::find(self.tx, &before.service)?.ok_or_else(|| StoreError::LeaseMoved {
                what: format!("the checkpoint of {}, which is not registered,", before.service),
                expected: commit.chunk.start(),
            })?;
        let moved = rules::advance_checkpoint(&checkpoint, before, commit, self.now_ms)?;

        let mut corrected = Vec::with_capacity(checked.corrections.len());
        for correction in &checked.corrections {
            let folder = checkpoints::find(self.tx, &correction.service)?;
            corrected.extend(rules::correct_checkpoint(correction, folder.as_ref(), commit)?);
        }

        leases::update(self.tx, &lease)?;
        if let Some(moved) = &moved {
            checkpoints::write(self.tx, moved)?;
        }
        for table in &checked.replaces {
            let table = self.tables.get(table.name())?;
            rows::delete_range(self.tx, table, commit.chunk.start(), commit.chunk.end())?;
        }
        for part in &checked.rows {
            rows::write(self.tx, self.tables.get(part.table.name())?, part.rows.values())?;
        }
        let (service, chunk) = (&before.service, commit.chunk);
        if before.kind == LeaseKind::Reindex {
            quarantined::forget(self.tx, service, chunk)?;
        }
        quarantined::remember(self.tx, service, &commit.quarantined)?;
        let mut undone = 0;
        for part in &checked.answers {
            undone += self.write_answers(part, commit.finalized)?;
        }
        for part in &checked.states {
            undone += self.write_states(part, commit)?;
        }
        for (table, rows) in checked.corrections.iter().flat_map(|correction| &correction.tables) {
            self.write_corrected(self.tables.get(table.name())?, rows, commit.finalized)?;
        }
        for checkpoint in &corrected {
            checkpoints::write(self.tx, checkpoint)?;
        }
        // What is final in the raw snapshot of a reorg that isn't applied yet may still have to be undone here.
        let may_undo = !checked.states.is_empty() || !checked.answers.is_empty();
        if may_undo && commit.read.reorg_id <= forks.state.applied.id {
            forks::prune_undo(self.tx, commit.finalized, undone + PRUNE_ROWS)?;
        }
        Ok(Committed { lease, checkpoint: moved.unwrap_or(checkpoint) })
    }

    /// Lays answers among those that are there; how many undo rows that writes.
    fn write_answers(&self, part: &CheckedAnswers, finalized: Height) -> Result<usize> {
        let table = self.tables.get(part.table.name())?;
        let mut insert = self.tx.prepare_cached(INSERT_UNDO).map_err(db)?;
        let mut undone = 0;
        let mut newest = Vec::with_capacity(part.rows.len());
        let mut floor = Height::ZERO;
        for (key, laid) in &part.rows {
            let encoded = key.encode();
            let undo = forks::undo_of(self.tx, table, &encoded)?;
            let mut answers = Answers::new(&part.table, rows::find(self.tx, table, key)?, undo)?;
            laid.iter().for_each(|(height, row)| answers.lay(*height, row.clone()));
            let change = answers.change(finalized);
            for (height, before) in &change.undo {
                let before = before.encode();
                insert
                    .execute(params![sql(*height), part.table.name(), encoded.as_ref(), before.as_ref()])
                    .map_err(db)?;
            }
            undone += change.undo.len();
            floor = floor.max(change.undo_floor);
            newest.extend(change.row);
        }
        if floor > Height::ZERO {
            forks::raise_undo_floor(self.tx, part.table.name(), floor)?;
        }
        rows::write(self.tx, table, &newest)?;
        Ok(undone)
    }

    /// Puts rows of state in the place of those of their keys, undo rows included.
    fn write_corrected(
        &self,
        table: &TableSql,
        rows: &BTreeMap<Key, CorrectedRow>,
        finalized: Height,
    ) -> Result<()> {
        let mut delete = self.tx.prepare_cached(DELETE_UNDO).map_err(db)?;
        let mut insert = self.tx.prepare_cached(INSERT_UNDO).map_err(db)?;
        let name = table.table.name();
        for (key, corrected) in rows {
            let encoded = key.encode();
            delete.execute(params![name, encoded.as_ref()]).map_err(db)?;
            for (height, before) in corrected.undo.iter().filter(|(height, _)| *height >= finalized) {
                let before = before.as_ref().map(Row::encode);
                insert
                    .execute(params![sql(*height), name, encoded.as_ref(), before.as_deref()])
                    .map_err(db)?;
            }
            rows::restore(self.tx, table, key, corrected.row.as_ref())?;
        }
        // Undo rows below it went.
        forks::raise_undo_floor(self.tx, name, finalized)
    }

    /// Writes state with its undo rows; how many of these there are.
    fn write_states(&self, part: &CheckedStates, commit: &ChunkCommit) -> Result<usize> {
        let (chunk, finalized) = (commit.chunk, commit.finalized);
        let table = self.tables.get(part.table.name())?;
        let mut insert = self.tx.prepare_cached(INSERT_UNDO).map_err(db)?;
        let mut undone = 0;
        // Changes below finality have no undo rows, and neither has one at the finalised height itself, where the folder gives none.
        let mut floor = if chunk.start() < finalized { chunk.end().min(finalized) } else { Height::ZERO };
        for (key, state) in &part.rows {
            let changed_at = part.table.height_column().and_then(|at| state.row.0[at].as_height());
            let kept = state.undo.iter().filter(|(height, _)| *height >= finalized);
            if kept.clone().next_back().map(|(height, _)| *height) != changed_at {
                floor = floor.max(changed_at.unwrap_or_default().next());
            }
            let key = if state.undo.is_empty() { None } else { Some(key.encode()) };
            for (height, before) in kept {
                let before = before.as_ref().map(Row::encode);
                insert
                    .execute(params![sql(*height), part.table.name(), key.as_deref(), before.as_deref()])
                    .map_err(db)?;
                undone += 1;
            }
        }
        if floor > Height::ZERO {
            forks::raise_undo_floor(self.tx, part.table.name(), floor)?;
        }
        let written = rows::write(self.tx, table, part.rows.values().map(|state| &state.row))?;
        match part.rows.len().saturating_sub(written) {
            0 => Ok(undone),
            newer => Err(rules::newer_state(&part.table, newer, chunk)),
        }
    }
}
