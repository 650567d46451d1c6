//! What moves blocks from a source into a store and keeps the store in order.
//!
//! * [`ingest`]: backfill, follow the head, reorgs, finality, parallel ranges.
//! * [`derive`]: derived tables: processors, leases, workers, the committer, reorgs applied.
//! * [`status`]: what the ingester says of itself, for progress bars, readiness and `eth_syncing`.
//! * [`gaps`]: what the raw store lacks of what the node has, and since when.
//! * [`audit`]: checks every stored block against itself, its links and its index entries.
//!
//! This crate knows traits, never a database and never a chain. Time comes from a [`cairn_core::Clock`] and the async
//! runtime, randomness from a seed: the simulation runs this very code.

pub mod audit;
pub mod backoff;
mod budget;
pub mod derive;
mod error;
pub mod gaps;
pub mod ingest;
pub mod status;
mod term;

pub use error::IngestError;
