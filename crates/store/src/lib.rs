//! Storage as cairn sees it: small traits cut by what a caller needs, the in-memory reference that defines what they
//! mean, and one conformance suite that every backend runs whole (law 10).
//!
//! * [`RawReader`] and [`RawSnapshot`]: reading, always bounded by the head row of one snapshot.
//! * [`RawWriter`]: the ingester's verbs on the tip: append, finalize, rollback, purge.
//! * [`RawFiller`]: work ahead of the head, under leases and fences.
//! * [`RawReplacer`]: another answer for a stored block, in its place.
//! * [`RawMaintenance`]: bounded background work (merging index runs).
//! * [`PayloadStore`] and [`PayloadRegistry`]: large payloads in object storage, and the rows that say which are needed.
//! * [`RawDump`]: the canonical dump by which two stores are compared.
//! * [`derived`]: tables, leases and checkpoints of what is derived.
//!
//! Ordering, atomicity: each verb of a writer is one transaction. Whatever it changes becomes visible at once, with
//! the head row, or not at all. Readers never wait for writers.

mod check;
pub mod derived;
mod dump;
mod error;
mod filler;
mod head;
pub mod layout;
pub mod memory;
mod payload;
mod reader;
mod reorg;
mod replacer;
pub mod runs;
pub mod suite;
pub mod suite_payload;
mod writer;

pub use check::{MAX_SENDER_BYTES, check_batch};
pub use dump::{Dump, DumpBuilder, RawDump};
pub use error::StoreError;
pub use filler::{MAX_LEASES_BESIDE_DEAD, RangeEnd, RawFiller, RawLease, RawLeaseState, is_held_up};
pub use head::{Checkpoint, HeadRow, PendingPurge, RAW_INGESTER, ReorgMark, StoreInfo};
pub use payload::{
    CollectOptions, Collected, ListedPayload, LivePage, MarkedDead, MemoryPayloads, MemoryRegistry,
    MemoryTransaction, Missing, OffloadOptions, ParsePayloadKeyError, PayloadContent, PayloadCursor,
    PayloadError, PayloadHash, PayloadPage, PayloadRef, PayloadRegistry, PayloadRow, PayloadState,
    PayloadStore, PutOutcome, Reservation, check_live, collect_orphans, offload,
};
pub use reader::{
    BlocksRead, IndexFingerprint, LogQuery, MAX_EVM_PLACES, RawReader, RawSnapshot, StoreSizes, TxPlace,
};
pub use reorg::{OrphanRef, ReorgEntry};
pub use replacer::{RawReplacer, Replacement, is_to_replace};
pub use writer::{AppendBatch, Maintained, PurgeProgress, RawMaintenance, RawWriter, Rollback};

/// The result of a store's verb.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;
