//! Applying the raw store's reorg log.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::Height;

use super::MemoryDerived;
use super::snapshot::{answer_below, no_undo};
use super::state::{Forks, State};
use crate::derived::answers;
use crate::derived::fork::{ForkMark, ForkState};
use crate::derived::lease::WorkerLease;
use crate::derived::rebuild::Rebuild;
use crate::derived::row::Key;
use crate::derived::rules::{self, LeaseFate};
use crate::derived::table::TableClass;
use crate::derived::value::Value;
use crate::derived::writer::{ApplyProgress, ReorgApplier};
use crate::{ReorgEntry, ReorgMark, Result, StoreError};

#[async_trait]
impl ReorgApplier for MemoryDerived {
    async fn adopt(&self, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<ForkState> {
        self.commit("adopt", |state| {
            let Some(forks) = &state.forks else {
                let fresh = ForkState { raw_uuid, applied: newest, begun: newest };
                state.forks = Some(Forks { state: fresh, base_id: newest.id, marks: Arc::default() });
                return Ok(fresh);
            };
            rules::demand_raw(&forks.state, raw_uuid, newest)?;
            Ok(forks.state)
        })
    }

    async fn forks(&self) -> Result<Option<ForkState>> {
        Ok(self.state()?.forks.as_ref().map(|forks| forks.state))
    }

    async fn begin_apply(&self, entry: &ReorgEntry) -> Result<()> {
        let now_ms = self.now_ms();
        self.commit("begin_apply", |state| begin(state, entry, now_ms))
    }

    async fn apply_step(&self, entry_id: u64, max_rows: usize) -> Result<ApplyProgress> {
        self.commit("apply_step", |state| {
            let first_orphan = demand_begun(state, entry_id)?;
            if max_rows == 0 {
                return Err(StoreError::Invalid(
                    "apply_step: max_rows is 0; nothing would ever be undone".into(),
                ));
            }
            demand_undo(state, first_orphan)?;
            undo(state, first_orphan, max_rows)?;
            Ok(if is_clean(state, first_orphan) { ApplyProgress::Done } else { ApplyProgress::More })
        })
    }

    async fn finish_apply(&self, entry_id: u64) -> Result<ForkState> {
        self.commit("finish_apply", |state| {
            let first_orphan = demand_begun(state, entry_id)?;
            demand_undo(state, first_orphan)?;
            if !is_clean(state, first_orphan) {
                return Err(StoreError::Invalid(format!(
                    "reorg {entry_id} can't be finished: rows are left at height {first_orphan} or above"
                )));
            }
            let mut forks = state.forks()?.clone();
            forks.state.applied = forks.state.begun;
            let after = forks.state;
            state.forks = Some(forks);
            Ok(after)
        })
    }
}

fn begin(state: &mut State, entry: &ReorgEntry, now_ms: u64) -> Result<()> {
    let forks = state.forks()?;
    if rules::demand_next(&forks.state, entry)? {
        return Ok(());
    }
    let mut forks = forks.clone();
    forks.state.begun = ReorgMark { id: entry.id, digest: entry.digest };
    Arc::make_mut(&mut forks.marks).push(ForkMark { id: entry.id, first_orphan: entry.first_orphan() });

    let clamped: Vec<_> = state
        .checkpoints
        .values()
        .filter_map(|checkpoint| {
            let lowest = state.index_leases(&checkpoint.service).first().map(|lease| lease.range.start());
            rules::clamp(checkpoint, lowest, entry.common, now_ms)
        })
        .collect();
    let lowered: Vec<Rebuild> = state
        .rebuilds
        .values()
        .filter_map(|rebuild| Some(Rebuild { until: rebuild.clamped(entry.common)?, ..rebuild.clone() }))
        .collect();
    lowered.into_iter().for_each(|rebuild| state.put_rebuild(rebuild));
    let leases: Vec<WorkerLease> = state.leases.values().cloned().collect();
    for lease in leases {
        match rules::fate(&lease, entry.common) {
            LeaseFate::Keep => {}
            LeaseFate::Delete => state.take_lease(lease.id),
            LeaseFate::Reopen { done_to, last_id } => {
                state.give_back(WorkerLease { done_to, last_id, ..lease }, now_ms);
            }
        }
    }
    for checkpoint in clamped {
        state.put_checkpoint(checkpoint);
    }
    state.keep_quarantined(|block| block.height <= entry.common.height);
    state.forks = Some(forks);
    Ok(())
}

/// Demands that this entry is under way; the first height that it takes away.
fn demand_begun(state: &State, entry_id: u64) -> Result<Height> {
    let forks = state.forks()?;
    let applied = forks.state.applied.id;
    if entry_id != applied + 1 {
        return Err(StoreError::Applied { applied, asked: entry_id });
    }
    forks.applying().ok_or_else(|| {
        StoreError::Invalid(format!("reorg {entry_id} has not been begun; begin to apply it first"))
    })
}

/// Demands that every state that has to be restored can be, and that no answer that might have to be is forgotten.
fn demand_undo(state: &State, first_orphan: Height) -> Result<()> {
    for (table, data) in state.catalog.tables().iter().zip(&state.tables) {
        if table.def().class == TableClass::Answers && data.undo_floor > first_orphan {
            return Err(answers::lost_undo(table, first_orphan));
        }
        let Some(at) = table.height_column().filter(|_| table.def().class == TableClass::State) else {
            continue;
        };
        let is_above = |row: &crate::derived::Row| row.0[at].as_height().is_some_and(|h| h >= first_orphan);
        let lost =
            data.rows.iter().find(|(key, row)| is_above(row) && data.before(key, first_orphan).is_none());
        if let Some((key, _)) = lost {
            return Err(no_undo(table, key, first_orphan));
        }
    }
    Ok(())
}

/// Undoes about `max_rows` rows.
fn undo(state: &mut State, first_orphan: Height, max_rows: usize) -> Result<()> {
    let tables = state.catalog.tables().to_vec();
    let mut left = max_rows;
    for (place, table) in tables.iter().enumerate() {
        let is_answers = table.def().class == TableClass::Answers;
        let changed = state.tables[place].undo_by_height.range((first_orphan, Key(Vec::new()))..);
        let keys: BTreeSet<Key> = changed.take(left).map(|(_, key)| key.clone()).collect();
        for key in keys {
            let data = state.table_mut(place);
            let before = if is_answers {
                answer_below(table, data, &key, first_orphan)?
            } else {
                data.before(&key, first_orphan).cloned().flatten()
            };
            match before {
                Some(row) => data.put(table, key.clone(), row),
                None => {
                    data.take(table, &key);
                }
            }
            left = left.saturating_sub(data.take_undo(&key, first_orphan..));
        }
        // Answers that are left above have replaced none.
        if left == 0 {
            return Ok(());
        }
        let doomed = rows_above(state, place, first_orphan, left);
        left -= doomed.len();
        if !doomed.is_empty() {
            let data = state.table_mut(place);
            for key in &doomed {
                data.take(table, key);
            }
        }
    }
    Ok(())
}

/// Keys of event rows or answers at `first_orphan` and above.
fn rows_above(state: &State, place: usize, first_orphan: Height, limit: usize) -> Vec<Key> {
    let (table, data) = (&state.catalog.tables()[place], &state.tables[place]);
    match table.def().class {
        TableClass::Events { .. } => {
            let above = (Bound::Included(Key(vec![Value::height(first_orphan)])), Bound::Unbounded);
            data.rows.range(above).take(limit).map(|(key, _)| key.clone()).collect()
        }
        TableClass::Answers => {
            let Some(at) = table.height_column() else { return Vec::new() };
            let is_above =
                |row: &crate::derived::Row| row.0[at].as_height().is_some_and(|h| h >= first_orphan);
            let above = data.rows.iter().filter(|(_, row)| is_above(row));
            above.take(limit).map(|(key, _)| key.clone()).collect()
        }
        TableClass::State | TableClass::Content => Vec::new(),
    }
}

/// Whether nothing is left to undo.
fn is_clean(state: &State, first_orphan: Height) -> bool {
    let above = (first_orphan, Key(Vec::new()));
    (0..state.tables.len()).all(|place| {
        rows_above(state, place, first_orphan, 1).is_empty()
            && state.tables[place].undo_by_height.range(above.clone()..).next().is_none()
    })
}
