//! Deleting.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::Height;

use super::MemoryDerived;
use super::state::State;
use crate::derived::reader::QuarantinedBlock;
use crate::derived::row::Key;
use crate::derived::writer::DerivedMaintenance;
use crate::{Result, StoreError};

#[async_trait]
impl DerivedMaintenance for MemoryDerived {
    async fn maintain(&self, _tip: Height) -> Result<()> {
        Ok(())
    }

    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        self.commit("reset_step", |state| {
            if max_rows == 0 {
                return Err(StoreError::Invalid(
                    "reset_step: max_rows is 0; nothing would ever be deleted".into(),
                ));
            }
            Arc::make_mut(&mut state.checkpoints).remove(service);
            Ok(reset(state, service, max_rows))
        })
    }

    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64> {
        self.commit("prune_undo", |state| {
            let mut pruned = 0;
            for place in 0..state.tables.len() {
                let old = state.tables[place].undo_by_height.range(..(finalized, Key(Vec::new())));
                let old: Vec<_> = old.take(max_rows - pruned).cloned().collect();
                for (height, key) in old {
                    pruned += state.table_mut(place).take_undo(&key, height..=height);
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
