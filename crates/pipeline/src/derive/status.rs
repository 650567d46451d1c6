//! What derived work says of itself while it runs: for pages, metrics and health.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{Height, HeightRange};
use cairn_store::derived::{DerivedCheckpoint, LeaseGap, SeamAlarm};
use tokio::sync::watch;

pub use crate::status::Halt;

/// At most so many quarantined heights of one service are named.
const NAMED_HEIGHTS: usize = 1_000;

/// One service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The height after its last complete one.
    pub next: Option<Height>,
    /// When its checkpoint moved last, by the app store's clock, in milliseconds since 1970.
    pub moved_at_ms: u64,
    /// It asks a node: nothing waits for it.
    pub is_enricher: bool,
    /// Rows committed since the start of this process.
    pub rows: u64,
    /// Heights committed since the start of this process.
    pub heights: u64,
    /// Events that could not be decoded since the start of this process.
    pub malformed: u64,
    /// Heights without rows because the block could not be processed, as far as this process left them so: the lowest 1,000 of them. One that
    /// was made again, or that a reorg took, is gone from here. The error log has all of them.
    pub quarantined: BTreeSet<Height>,
    /// How often that happened since the start of this process.
    pub quarantined_total: u64,
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
    /// Of those, the ones at which a checkpoint stands still or will: above it.
    pub open_gaps: Vec<LeaseGap>,
    /// Where ranges lie side by side on different forks, as last seen.
    pub seams: Vec<SeamAlarm>,
    /// Jobs beside the workers (`repair`, `reap`, `apply`, `maintain`, …) that failed last time, and why. They are done again.
    pub failing_jobs: BTreeMap<&'static str, String>,
    /// Stopped for good, and why.
    pub halted: Option<Halt>,
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

    /// Where ranges lie side by side on different forks now.
    pub(super) fn seams(&self, seams: Vec<SeamAlarm>) {
        self.sender.send_if_modified(|status| {
            let is_new = status.seams != seams;
            status.seams = seams;
            is_new
        });
    }

    /// A job failed, or went well again.
    pub(super) fn job(&self, job: &'static str, error: Option<String>) {
        self.sender.send_if_modified(|status| match error {
            None => status.failing_jobs.remove(job).is_some(),
            Some(error) => {
                let before = status.failing_jobs.insert(job, error);
                before.as_ref() != status.failing_jobs.get(job)
            }
        });
    }

    /// Stopped for good. What was said first stays: who met it knows more than who hears of it.
    pub(super) fn halted(&self, halt: Halt) {
        self.update(|status| {
            status.halted.get_or_insert(halt);
        });
    }

    pub(super) fn service(&self, name: &'static str, change: impl FnOnce(&mut ServiceStatus)) {
        self.update(|status| change(status.services.entry(name).or_default()));
    }

    /// These heights of a service were committed; the block at `quarantined` without rows.
    pub(super) fn heights(&self, name: &'static str, chunk: HeightRange, quarantined: Option<Height>) {
        self.service(name, |service| {
            service.heights += chunk.len();
            service.quarantined.retain(|height| !chunk.contains(*height));
            if let Some(height) = quarantined {
                service.quarantined_total += 1;
                service.quarantined.insert(height);
                if service.quarantined.len() > NAMED_HEIGHTS {
                    service.quarantined.pop_last();
                }
            }
        });
    }

    /// A reorg took everything above `common`.
    pub(super) fn took_above(&self, common: Height) {
        self.update(|status| {
            for service in status.services.values_mut() {
                service.quarantined.retain(|height| *height <= common);
            }
        });
    }

    /// A checkpoint of a service that runs in this process moved, whoever moved it.
    pub(super) fn moved(&self, checkpoint: &DerivedCheckpoint) {
        if let Some(name) = self.known(&checkpoint.service) {
            self.checkpoint(name, checkpoint);
        }
    }

    /// Services that have no checkpoint now: what they had made is being deleted.
    pub(super) fn without_checkpoint(&self, has: impl Fn(&str) -> bool) {
        self.sender.send_if_modified(|status| {
            let mut changed = false;
            for (_, service) in status.services.iter_mut().filter(|(name, _)| !has(name)) {
                changed |= service.next.take().is_some();
                service.moved_at_ms = 0;
            }
            changed
        });
    }

    /// How far a service has come as this process last saw it.
    pub(super) fn next_of(&self, service: &str) -> Option<Height> {
        self.sender.borrow().services.get(service).and_then(|service| service.next)
    }

    /// The name of a service that runs in this process.
    pub(super) fn known(&self, service: &str) -> Option<&'static str> {
        self.sender.borrow().services.keys().find(|name| **name == service).copied()
    }

    /// Takes note of a checkpoint, unless a newer one is known: what was read may come late.
    pub(super) fn checkpoint(&self, name: &'static str, checkpoint: &DerivedCheckpoint) {
        let known_ms = self.sender.borrow().services.get(name).map_or(0, |service| service.moved_at_ms);
        if checkpoint.updated_at_ms < known_ms {
            return;
        }
        metrics::gauge!("cairn_worker_tip_height", "service" => name)
            .set(checkpoint.next.get().saturating_sub(1) as f64);
        self.service(name, |service| {
            service.next = Some(checkpoint.next);
            service.moved_at_ms = checkpoint.updated_at_ms;
        });
    }
}
