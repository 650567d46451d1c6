//! Large payloads: bodies that are too long for a row live in object storage, content-addressed; the row keeps a reference.
//!
//! * [`PayloadStore`]: where the bodies are. Objects are written once and never change.
//! * [`PayloadRegistry`]: which objects there are, in the raw database: one row an object, with generation and state.
//! * [`offload`]: what a writer does before its transaction. [`collect_orphans`]: what `cairn payloads gc` does.
//! * [`MemoryPayloads`] and [`MemoryRegistry`]: the references; [`crate::suite_payload`]: the suite that every backend runs.
//!
//! # The protocol
//!
//! A writer, for the bodies of one batch:
//!
//! 1. **reserve** ([`PayloadRegistry::reserve`], a transaction of its own): each body gets an object, either one that is there or a new one,
//!    whose row is `dead` (nothing refers to it yet). So an object has a row before it exists.
//! 2. **put**: upload and verify what isn't live yet ([`PayloadStore::put`]).
//! 3. **make live**: the data transaction locks the rows of all its objects and makes them `live`, then writes the rows that refer to them. Where one
//!    is `deleting` or gone, the transaction is rolled back and the writer begins again at 1, which gives it the next generation.
//!
//! The collector ([`collect_orphans`]):
//!
//! 1. what is `live`, old enough and not referred to becomes `dead` ([`PayloadRegistry::mark_dead`]);
//! 2. what has been `dead` for long enough becomes `deleting` under the same lock ([`PayloadRegistry::begin_delete`]);
//! 3. the object is deleted, then its row ([`PayloadRegistry::finish_delete`]);
//! 4. objects without a row (the database was restored from a backup; an upload arrived after its deletion) are found by listing and taken over as
//!    `deleting` ([`PayloadRegistry::adopt`]).
//!
//! # Why no object that is referred to is ever deleted
//!
//! Generations come from one counter and are never used twice. A row that is `deleting` never leaves that state but by being removed. Making live
//! and collecting lock the same row, and the collector looks for references only after it has the lock. So either the writer comes first, and the
//! collector sees its references; or the collector does, and the writer finds `dead` (the object is still there) or `deleting` (it
//! takes the next generation). None of this needs a clock. The grace time protects readers that still hold a reference which has just gone,
//! and saves uploads from being done twice; it has to be longer than the longest lease.
//!
//! After a crash at any step: a row that is `dead` and an object that may be there, collected when the grace is over; or a row that is `deleting`,
//! which the next collection finishes.

mod collect;
mod memory;
mod object;
mod offload;
mod registry;
mod store;

pub use collect::{CollectOptions, Collected, Missing, check_live, collect_orphans};
pub use memory::{MemoryPayloads, MemoryRegistry, MemoryTransaction};
pub use object::{ParsePayloadKeyError, PayloadHash, PayloadRef};
pub use offload::{OffloadOptions, offload};
pub use registry::{
    LivePage, MarkedDead, PayloadContent, PayloadCursor, PayloadRegistry, PayloadRow, PayloadState,
    Reservation,
};
pub use store::{ListedPayload, PayloadError, PayloadPage, PayloadStore, PutOutcome};
