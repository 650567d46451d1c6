//! What derived work says of itself while it runs: for pages, metrics and health.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::Height;
use cairn_store::derived::DerivedCheckpoint;
use tokio::sync::watch;

/// One service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The height after its last complete one.
    pub next: Option<Height>,
    /// It asks a node: nothing waits for it.
    pub is_enricher: bool,
    /// Rows committed since the start of this process.
    pub rows: u64,
    /// Heights committed since the start of this process.
    pub heights: u64,
    /// Events that could not be decoded since the start of this process.
    pub malformed: u64,
    /// Chunks refused because of a reorg, a lost lease or a moved checkpoint, since the start of this process.
    pub refused: u64,
    /// What went wrong last; empty where the last chunk went well.
    pub last_error: String,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeriveStatus {
    /// By service.
    pub services: BTreeMap<&'static str, ServiceStatus>,
    /// The raw store's tip as last seen.
    pub raw_tip: Option<Height>,
    /// Reorgs applied since the start of this process.
    pub reorgs_applied: u64,
    /// A reorg is being applied now.
    pub applying: bool,
    /// Dead leases as last counted.
    pub dead_leases: u64,
    /// Gaps in lease coverage as last counted.
    pub lease_gaps: u64,
    /// Stopped for good, and why.
    pub halted: Option<String>,
}

impl DeriveStatus {
    /// The lowest `next` of all services but those that ask a node: everything below is derived.
    pub fn watermark_exclusive(&self) -> Option<Height> {
        self.services
            .values()
            .filter(|service| !service.is_enricher)
            .map(|service| service.next)
            .min()
            .flatten()
    }
}

/// Where the status stands. Clones are handles.
#[derive(Debug, Clone)]
pub struct DeriveBoard {
    sender: Arc<watch::Sender<DeriveStatus>>,
}

impl Default for DeriveBoard {
    fn default() -> Self {
        DeriveBoard { sender: Arc::new(watch::Sender::new(DeriveStatus::default())) }
    }
}

impl DeriveBoard {
    /// Follows the status.
    pub fn subscribe(&self) -> watch::Receiver<DeriveStatus> {
        self.sender.subscribe()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut DeriveStatus)) {
        self.sender.send_modify(change);
    }

    pub(super) fn service(&self, name: &'static str, change: impl FnOnce(&mut ServiceStatus)) {
        self.update(|status| change(status.services.entry(name).or_default()));
    }

    /// A checkpoint of a service that runs in this process moved, whoever moved it.
    pub(super) fn moved(&self, checkpoint: &DerivedCheckpoint) {
        let known = self.sender.borrow().services.keys().find(|name| **name == checkpoint.service).copied();
        if let Some(name) = known {
            self.checkpoint(name, checkpoint);
        }
    }

    pub(super) fn checkpoint(&self, name: &'static str, checkpoint: &DerivedCheckpoint) {
        metrics::gauge!("cairn_worker_tip_height", "service" => name)
            .set(checkpoint.next.get().saturating_sub(1) as f64);
        self.service(name, |service| service.next = Some(checkpoint.next));
    }
}
