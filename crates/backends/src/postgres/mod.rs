//! PostgreSQL (15 and newer): what the raw store and the app store share, and the stores themselves.
//!
//! [`pool`] bounds and configures connections, [`error`] says what a failure means, [`copy`] encodes binary COPY, [`migrate`] brings
//! a schema up to date.

pub mod copy;
pub mod error;
pub mod migrate;
pub mod pool;

pub use copy::{CopyBuf, PgNumeric};
pub use migrate::Migration;
pub use pool::{Isolation, PgConn, PgOptions, PgPool};
