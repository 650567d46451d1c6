//! PostgreSQL (15 and newer): what the raw store and the app store share, and the stores themselves.
//!
//! [`pool`] bounds and configures connections, `tls` says whose certificates are taken, [`error`] says what a failure means, [`copy`] encodes binary COPY, [`migrate`] brings
//! a schema up to date, [`migrate_table`] makes one table anew in place, [`partition`] makes partitions by height, `partition_index` their indexes, [`payloads`] knows which large payloads are needed. [`server`] refuses old servers, [`raw`] is the raw store, [`app`] the app store.

#[cfg(feature = "postgres")]
pub mod app;
pub mod copy;
pub mod error;
pub mod migrate;
pub mod migrate_table;
pub mod partition;
mod partition_index;
pub mod payloads;
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
