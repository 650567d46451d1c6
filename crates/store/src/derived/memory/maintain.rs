//! Deleting.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};

use super::MemoryDerived;
use super::coordinate::request_reindex;
use super::state::State;
use crate::derived::lease::{LeaseStatus, WorkerLease};
use crate::derived::reader::QuarantinedBlock;
use crate::derived::rebuild::{RangeAgain, Rebuild, RebuildRequest};
use crate::derived::row::{Key, Row};
use crate::derived::rules;
use crate::derived::table::TableClass;
use crate::derived::writer::{DerivedMaintenance, TakenBack};
use crate::{Result, StoreError};

#[async_trait]
impl DerivedMaintenance for MemoryDerived {
    async fn maintain(&self, _tip: Height) -> Result<()> {
        Ok(())
    }

    async fn build_indexes(&self, _final_to: Height) -> Result<bool> {
        Ok(false)
    }

    async fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>> {
        let now_ms = self.now_ms();
        self.commit("begin_rebuild", |state| {
            // Some of it may be refused when some of it is done: it is done on a copy.
            let mut after = state.clone();
            let rebuilds = begin_rebuild(&mut after, request, now_ms)?;
            *state = after;
            Ok(rebuilds)
        })
    }

    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        let now_ms = self.now_ms();
        self.commit("reset_step", |state| {
            if max_rows == 0 {
                return Err(StoreError::Invalid(
                    "reset_step: max_rows is 0; nothing would ever be deleted".into(),
                ));
            }
            let rebuild = state.rebuilds.get(service).filter(|rebuild| rebuild.is_clearing);
            let Some(rebuild) = rebuild.cloned() else { return Ok(false) };
            let is_left = reset(state, service, max_rows);
            if !is_left {
                state.put_checkpoint(rebuild.start(now_ms));
            }
            state.put_rebuild(Rebuild { is_clearing: is_left, steps: rebuild.steps + 1, ..rebuild });
            Ok(is_left)
        })
    }

    async fn take_back_step(
        &self,
        service: &str,
        from: Height,
        max_rows: usize,
    ) -> Result<Option<TakenBack>> {
        let now_ms = self.now_ms();
        self.commit("take_back_step", |state| take_back(state, service, from, max_rows, now_ms))
    }

    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64> {
        self.commit("prune_undo", |state| {
            let mut pruned = 0;
            for place in 0..state.tables.len() {
                let old = state.tables[place].undo_by_height.range(..(finalized, Key(Vec::new())));
                let old: Vec<_> = old.take(max_rows - pruned).cloned().collect();
                for (height, key) in old {
                    let data = state.table_mut(place);
                    pruned += data.take_undo(&key, height..=height);
                    data.undo_floor = data.undo_floor.max(height.next());
                }
            }
            Ok(pruned as u64)
        })
    }

    async fn delete_rows(&self, table: &'static str, keys: &[Key]) -> Result<u64> {
        self.commit("delete_rows", |state| {
            let place = state.place(table)?;
            let table = state.catalog.tables()[place].clone();
            let data = state.table_mut(place);
            let mut deleted = 0;
            for key in keys {
                data.take_undo(key, ..);
                deleted += u64::from(data.take(&table, key));
            }
            Ok(deleted)
        })
    }
}

fn begin_rebuild(state: &mut State, request: &RebuildRequest, now_ms: u64) -> Result<Vec<Rebuild>> {
    for again in &request.again {
        let range = if again.is_behind { stop_behind(state, again, now_ms) } else { Some(again.range) };
        if let Some(range) = range {
            request_reindex(state, again, range, now_ms)?;
        }
    }
    let mut rebuilds = Vec::with_capacity(request.anew.len());
    for service in &request.anew {
        let before = state.rebuilds.get(service);
        if let Some(before) = before.filter(|before| before.is_clearing) {
            rebuilds.push(before.clone());
            continue;
        }
        let checkpoint = state.checkpoint(service)?;
        let lowest = state.index_leases(service).first().map(|lease| lease.range.start());
        let rebuild = Rebuild::of(checkpoint, lowest, before, now_ms);
        Arc::make_mut(&mut state.checkpoints).remove(service);
        state.put_rebuild(rebuild.clone());
        rebuilds.push(rebuild);
    }
    Ok(rebuilds)
}

/// Takes what is under way from a service that asks about rows that are made again; what of the range it asks about again, if anything.
fn stop_behind(state: &mut State, again: &RangeAgain, now_ms: u64) -> Option<HeightRange> {
    let checkpoint = state.checkpoints.get(&again.service)?.clone();
    let index: Vec<WorkerLease> = state.index_leases(&again.service).into_iter().cloned().collect();
    let lowest = index.first().map(|lease| lease.range.start());
    for lease in index.into_iter().filter(|lease| lease.status == LeaseStatus::Active) {
        state.give_back(lease, now_ms);
    }
    Some(again.done(&checkpoint, lowest)).filter(|range| !range.is_empty())
}

fn take_back(
    state: &mut State,
    service: &str,
    from: Height,
    max_rows: usize,
    now_ms: u64,
) -> Result<Option<TakenBack>> {
    let checkpoint = state.checkpoint(service)?;
    let defs = state.catalog.tables().iter().map(|table| table.def());
    rules::demand_take_back(defs, checkpoint, from, max_rows)?;
    let leases = state.index_leases(service);
    let at = leases.partition_point(|lease| lease.range.start() < from);
    let Some(lease) = leases.get(at).map(|lease| (*lease).clone()) else { return Ok(None) };
    let below = at.checked_sub(1).and_then(|below| leases.get(below)).map(|below| below.range.end());
    let heights = rules::heights_taken_back(checkpoint, below, &lease);
    let mut left = max_rows;
    for place in state.places_of(service) {
        let table = state.catalog.tables()[place].clone();
        let (TableClass::Events { .. }, Some(height)) = (table.def().class, table.height_column()) else {
            continue;
        };
        let of_row = |row: &Row| row.0[height].as_height();
        let rows = state.tables[place].rows.iter().filter_map(|(key, row)| Some((of_row(row)?, key.clone())));
        let mut doomed: Vec<(Height, Key)> = rows.filter(|(height, _)| heights.contains(*height)).collect();
        doomed.sort_unstable_by(|a, b| b.cmp(a));
        doomed.truncate(left);
        left -= doomed.len();
        let data = state.table_mut(place);
        for (_, key) in &doomed {
            data.take(&table, key);
        }
    }
    let is_whole = left > 0;
    if is_whole {
        state.keep_quarantined(|block| block.service != service || !heights.contains(block.height));
        state.take_lease(lease.id);
    } else {
        state.give_back(rules::taken_back(lease), now_ms);
    }
    Ok(Some(TakenBack { heights, rows: (max_rows - left) as u64, is_whole }))
}

/// Deletes rows, then undo rows, then quarantined heights, then leases; whether any is left.
fn reset(state: &mut State, service: &str, max_rows: usize) -> bool {
    let mut left = max_rows;
    for place in state.places_of(service) {
        let table = state.catalog.tables()[place].clone();
        let keys: Vec<Key> = state.tables[place].rows.keys().take(left).cloned().collect();
        let undo: Vec<Key> = state.tables[place].undo.keys().take(left - keys.len()).cloned().collect();
        left -= keys.len() + undo.len();
        if keys.len() + undo.len() > 0 {
            let data = state.table_mut(place);
            for key in &keys {
                data.take(&table, key);
            }
            for key in &undo {
                data.take_undo(key, ..);
            }
        }
        if !state.tables[place].rows.is_empty() || !state.tables[place].undo.is_empty() {
            return true;
        }
        if state.tables[place].undo_floor > Height::ZERO {
            state.table_mut(place).undo_floor = Height::ZERO;
        }
    }
    let quarantined = state.quarantined.iter().filter(|block| block.service == service);
    let doomed: Vec<QuarantinedBlock> = quarantined.take(left).cloned().collect();
    left -= doomed.len();
    for block in &doomed {
        Arc::make_mut(&mut state.quarantined).remove(block);
    }
    if state.quarantined.iter().any(|block| block.service == service) {
        return true;
    }
    let doomed: Vec<u64> = state.leases_of(service).map(|lease| lease.id).take(left).collect();
    for id in doomed {
        state.take_lease(id);
    }
    state.leases_of(service).next().is_some()
}
