//! The error log, `raw.indexing_errors`: what could not be indexed, once each.

use std::collections::HashSet;

use async_trait::async_trait;
use cairn_core::{BlockId, Height};
use sha2::{Digest, Sha256};

use crate::Result;

/// The longest kept message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4_096;
/// The longest kept payload, in bytes.
pub const MAX_RAW_DATA_BYTES: usize = 8_192;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// One event could not be understood; it is kept raw and the rest goes on.
    Warn,
    /// A range can't be completed.
    Fatal,
}

impl Severity {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Warn => "WARN",
            Severity::Fatal => "FATAL",
        }
    }

    /// The word, back.
    pub fn parse(word: &str) -> Option<Severity> {
        [Severity::Warn, Severity::Fatal].into_iter().find(|severity| severity.as_str() == word)
    }
}

/// An error as a worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewError {
    /// The service.
    pub service: String,
    /// Where.
    pub height: Height,
    /// In which of the blocks that stood there.
    pub block_id: BlockId,
    /// In which transaction, as `0x` and hex; empty where it is not in one.
    pub transaction_id: String,
    /// How bad.
    pub severity: Severity,
    /// For people; also what tells two errors apart.
    pub message: String,
    /// The payload, cut to [`MAX_RAW_DATA_BYTES`] by the store.
    pub raw_data: Vec<u8>,
    /// Where the whole payload is kept, where it is kept elsewhere.
    pub raw_ref: Option<String>,
}

impl NewError {
    /// The dedupe key beside service, height, block and transaction: SHA-256 of severity and message, hex.
    pub fn error_hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.severity.as_str());
        hash.update([0]);
        hash.update(self.message.as_bytes());
        hex::encode(hash.finalize())
    }
}

/// A row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedError {
    /// Its number.
    pub id: u64,
    /// What was reported first.
    pub error: NewError,
    /// See [`NewError::error_hash`].
    pub error_hash: String,
    /// An operator closed it, and it hasn't happened since.
    pub resolved: bool,
    /// When it was reported, by the store's clock, in milliseconds since 1970.
    pub created_at_ms: u64,
}

/// Which errors to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorFilter {
    /// Of this service only.
    pub service: Option<String>,
    /// Resolved ones too.
    pub resolved: bool,
    /// At this height only.
    pub height: Option<Height>,
    /// With a number above this one.
    pub after_id: u64,
    /// At most so many.
    pub limit: usize,
}

/// What became of errors that were recorded within a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// How many were new or opened again.
    pub new: u64,
    /// How many warnings have no open entry, because there is no room for one.
    pub dropped: u64,
}

/// Of errors of one service, those that `room` lets in, each once, and how many it doesn't. Those that are open already, by their place, need none. Fatal ones always come in:
/// they name what has no rows at all.
pub fn within(errors: &[NewError], mut room: u64, is_open: impl Fn(usize) -> bool) -> (Vec<NewError>, u64) {
    let (mut kept, mut dropped, mut seen) = (Vec::new(), 0, HashSet::new());
    for (at, error) in errors.iter().enumerate() {
        let is_new = seen.insert((error.height, error.block_id, &error.transaction_id, error.error_hash()));
        if !is_new || is_open(at) {
            continue;
        }
        if room == 0 && error.severity == Severity::Warn {
            dropped += 1;
            continue;
        }
        room = room.saturating_sub(1);
        kept.push(error.clone());
    }
    (kept, dropped)
}

/// The log. It lives in the raw database; raw ingestion never waits for it.
#[async_trait]
pub trait ErrorLog: Send + Sync {
    /// Records errors, each once. One that is there already (same service, height, block, transaction and hash) is left as it is where it is open;
    /// where it was closed it opens again, since it still happens. Returns how many were new or opened again.
    async fn record(&self, errors: &[NewError]) -> Result<u64>;

    /// As [`ErrorLog::record`], of one service that has at most `max_open` open entries: further warnings are dropped, and told by their number. Those that are open
    /// already stay, and fatal ones are always recorded.
    async fn record_within(&self, errors: &[NewError], max_open: u64) -> Result<Recorded>;

    /// Errors by number.
    async fn list(&self, filter: &ErrorFilter) -> Result<Vec<LoggedError>>;

    /// How many are unresolved.
    async fn count_unresolved(&self) -> Result<u64>;

    /// Closes errors; returns how many were open.
    async fn resolve(&self, ids: &[u64]) -> Result<u64>;

    /// Deletes at most `limit` errors that were closed more than `age_ms` ago, by the store's clock. Returns how many. Open ones stay, whatever their age.
    async fn prune_closed(&self, age_ms: u64, limit: usize) -> Result<u64>;

    /// Deletes the errors of these blocks, resolved or not: a reorg took the blocks. Returns how many.
    async fn forget_blocks(&self, blocks: &[BlockId]) -> Result<u64>;
}
