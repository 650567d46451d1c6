//! PostgreSQL (15 and newer): what the raw store and the app store share, and the stores themselves.
//!
//! - [`pool`] bounds and configures connections. `conn` sends statements on one, and bounds the wait for answers.
//! - `tls` decides which certificates are accepted. [`server`] refuses servers and poolers that don't fit.
//! - [`error`] classifies failures. [`copy`] encodes binary COPY.
//! - [`migrate`] brings a schema up to date. [`migrate_table`] rebuilds one table in place.
//! - [`partition`] creates partitions by height, `partition_index` their indexes.
//! - [`payloads`] knows which large payloads are needed.
//! - [`raw`] is the raw store, [`app`] the app store.

#[cfg(feature = "postgres")]
pub mod app;
mod conn;
pub mod copy;
pub mod error;
pub mod migrate;
pub mod migrate_table;
pub mod partition;
mod partition_index;
pub mod payloads;
#[cfg(feature = "postgres")]
mod pipeline;
pub mod pool;
pub mod raw;
pub mod server;
mod statements;
mod tls;

#[cfg(feature = "postgres")]
pub use app::{Behind, Dropped, PgDerived, PgDerivedOptions};
pub use copy::{CopyBuf, PgNumeric};
pub use migrate::Migration;
pub use partition::{PartitionedTable, Partitions};
pub use payloads::PgPayloadRegistry;
pub use pool::{Isolation, PgConn, PgOptions, PgPool};
pub use raw::{PgRawOptions, PgRawStore};
pub use statements::StatementHook;
