//! How derived work is done.

use std::collections::BTreeMap;

use cairn_core::Height;

/// Whether a range may complete over an event that can't be decoded, or over a block that a mapper can't process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MalformedPolicy {
    /// It is recorded and counted, and the range goes on. A block that can't be processed even when it is tried again gives no rows: a hole that the
    /// error log names. Folders stop at one all the same.
    Continue,
    /// It fails the range.
    Halt,
}

/// Where computing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// On the async threads: for simulations, where a run has to be the same each time.
    Inline,
    /// On threads that may block.
    Blocking,
}

/// Options of a [`super::Deriver`]. The defaults are the seeds' where they name one.
#[derive(Debug, Clone)]
pub struct DeriveOptions {
    /// Names this process in leases, for people.
    pub owner: String,
    /// The first height that is derived; below the archive's first one, that one.
    pub start: Height,
    /// Ranges are cut at multiples of this many heights.
    pub range_heights: u64,
    /// The same for single services.
    pub range_heights_of: BTreeMap<String, u64>,
    /// Nothing at or above this height is derived.
    pub stop_exclusive: Option<Height>,
    /// Ranges of one mapper that are worked on at once in this process. Folders and enrichers have one.
    pub workers_per_service: usize,
    /// How long a lease lasts without a sign of life.
    pub lease_ttl_ms: u64,
    /// A worker stops by itself so long before its lease would expire.
    pub lease_margin_ms: u64,
    /// At most so many heights in one commit.
    pub chunk_heights: u64,
    /// Raw bytes read for one commit, at most one block more.
    pub chunk_bytes: u64,
    /// Bytes of rows that a mapper makes for one commit, at most one block's more.
    pub chunk_output_bytes: usize,
    /// Raw blocks that mappers read are kept for the others, so many bytes of them in this process; 0 for none.
    pub recent_bytes: u64,
    /// How often stores are looked at when nothing wakes a worker.
    pub poll_ms: u64,
    /// How often checkpoints are repaired.
    pub repair_ms: u64,
    /// How often expired leases are reaped.
    pub reap_ms: u64,
    /// How often gaps and dead leases are looked for.
    pub detect_ms: u64,
    /// How often it is looked whether a reset was left unfinished; one that stands still for so long is finished.
    pub clear_ms: u64,
    /// Leases reaped by one statement.
    pub reap_batch: usize,
    /// Pauses before a failed block at the tip is tried again; after the last one the lease is given up.
    pub live_retries_ms: Vec<u64>,
    /// The first pause after a range failed; doubled with each attempt.
    pub failed_pause_ms: u64,
    /// The longest such pause.
    pub failed_pause_cap_ms: u64,
    /// Rows deleted or restored in one transaction when a reorg is applied.
    pub apply_rows: usize,
    /// How many questions an enricher asks at once.
    pub asks_in_flight: usize,
    /// Questions whose answers go into one commit, at most some more, and never less than one block's.
    pub chunk_asks: usize,
    /// Bytes of answers that go into one commit, likewise.
    pub chunk_answer_bytes: usize,
    /// Open entries that the error log has of a service at most; further warnings are counted. Fatal ones are always recorded.
    pub max_open_errors: u64,
    /// How long closed entries of the error log are kept; `None`: for ever.
    pub closed_errors_kept_ms: Option<u64>,
    /// What happens to ranges with something that can't be decoded.
    pub malformed: MalformedPolicy,
    /// Where computing is done.
    pub compute: Compute,
    /// Jitter.
    pub seed: u64,
    /// End when every service has come to the raw tip or to `stop_exclusive`, and nothing more is coming.
    pub exit_when_caught_up: bool,
}

impl DeriveOptions {
    /// The defaults, for a process of this name.
    pub fn new(owner: impl Into<String>) -> Self {
        DeriveOptions {
            owner: owner.into(),
            start: Height::ZERO,
            range_heights: 50_000,
            range_heights_of: BTreeMap::new(),
            stop_exclusive: None,
            workers_per_service: 2,
            lease_ttl_ms: 60_000,
            lease_margin_ms: 6_000,
            chunk_heights: 500,
            chunk_bytes: 4 << 20,
            chunk_output_bytes: 32 << 20,
            recent_bytes: 64 << 20,
            poll_ms: 1_000,
            repair_ms: 5_000,
            reap_ms: 30_000,
            detect_ms: 60_000,
            clear_ms: 5_000,
            reap_batch: 500,
            live_retries_ms: vec![5_000, 10_000, 20_000],
            failed_pause_ms: 1_000,
            failed_pause_cap_ms: 300_000,
            apply_rows: 20_000,
            asks_in_flight: 4,
            chunk_asks: 256,
            chunk_answer_bytes: 8 << 20,
            max_open_errors: 10_000,
            closed_errors_kept_ms: Some(30 * 86_400_000),
            malformed: MalformedPolicy::Continue,
            compute: Compute::Blocking,
            seed: 0,
            exit_when_caught_up: false,
        }
    }

    /// The range size of a service.
    pub fn range_of(&self, service: &str) -> u64 {
        self.range_heights_of.get(service).copied().unwrap_or(self.range_heights)
    }

    /// The pause after a range's `attempt`-th bad end.
    pub fn failed_pause(&self, attempt: u32) -> u64 {
        self.failed_pause_ms.saturating_mul(1 << attempt.min(20)).min(self.failed_pause_cap_ms)
    }
}
