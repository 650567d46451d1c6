//! One COPY at a time into each table.
//!
//! Where two connections of a process fill ranges, both go through the same tables in the same order. Side by side in one table they wait for each other at
//! its end, which the server makes longer page by page, and at the pages of its keys; so one of them sends transactions while the other sends events.
//! A lane is held by a statement, never across two; what holds it waits for nothing but the server, whose timeouts bound it. Other processes have lanes of their own.

use tokio::sync::{Mutex, MutexGuard};

/// The lanes of a store.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    transactions: Mutex<()>,
    events: Mutex<()>,
    tx_lookup: Mutex<()>,
    evm_lookup: Mutex<()>,
    blocks: Mutex<()>,
}

impl Lanes {
    /// Waits until nobody else sends rows to the table. Tables with few rows have no lane.
    pub(super) async fn enter(&self, table: &str) -> Option<MutexGuard<'_, ()>> {
        let lane = match table {
            "transactions" => &self.transactions,
            "events" => &self.events,
            "tx_lookup" => &self.tx_lookup,
            "evm_lookup" => &self.evm_lookup,
            "blocks" => &self.blocks,
            _ => return None,
        };
        Some(lane.lock().await)
    }
}
