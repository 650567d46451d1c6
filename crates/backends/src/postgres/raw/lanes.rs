//! One COPY at a time into each table, of those that fill ranges.
//!
//! Where two connections of a process fill ranges, both go through the same tables in the same order. Side by side in one table they wait for each other at
//! its end, which the server makes longer page by page, and at the pages of its keys; so one of them sends transactions while the other sends events.
//!
//! A lane saves time and is needed for nothing else: who waits too long goes on without it. It is held by one statement, never across two, and by nobody who has the
//! head's lock: appending and repair have no lanes, so that no append ever waits for a fill. Other processes have lanes of their own.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

/// How long somebody waits for a lane at most: well below what a server lets a transaction be idle.
const PATIENCE: Duration = Duration::from_secs(5);

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
    /// Waits until nobody else sends rows to the table, for a while. Tables with few rows have no lane.
    pub(super) async fn enter(&self, table: &str) -> Option<MutexGuard<'_, ()>> {
        let lane = match table {
            "transactions" => &self.transactions,
            "events" => &self.events,
            "tx_lookup" => &self.tx_lookup,
            "evm_lookup" => &self.evm_lookup,
            "blocks" => &self.blocks,
            _ => return None,
        };
        tokio::time::timeout(PATIENCE, lane.lock()).await.ok()
    }
}
