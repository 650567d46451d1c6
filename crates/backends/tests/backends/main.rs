//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[cfg(feature = "objects")]
mod objects_cases;
#[cfg(feature = "objects")]
mod objects_suite;
#[cfg(feature = "postgres-raw")]
mod postgres_debug_lists;
#[cfg(feature = "postgres")]
mod postgres_derived;
#[cfg(feature = "postgres")]
mod postgres_derived_crash;
#[cfg(feature = "postgres")]
mod postgres_derived_indexes;
#[cfg(feature = "postgres")]
mod postgres_derived_suite;
#[cfg(all(feature = "postgres", feature = "postgres-raw"))]
mod postgres_failover;
#[cfg(feature = "postgres-raw")]
mod postgres_index;
#[cfg(feature = "postgres-raw")]
mod postgres_large_parts;
#[cfg(feature = "postgres")]
mod postgres_migrate;
#[cfg(feature = "postgres-raw")]
mod postgres_payloads;
#[cfg(feature = "postgres-raw")]
mod postgres_raw;
#[cfg(all(feature = "postgres-raw", feature = "sqlite"))]
mod postgres_raw_evm;
#[cfg(feature = "postgres-raw")]
mod postgres_raw_flow;
#[cfg(feature = "postgres-raw")]
mod postgres_raw_suite;
#[cfg(all(feature = "postgres-raw", unix))]
mod postgres_tls;
#[cfg(feature = "sqlite")]
mod sqlite_crash;
#[cfg(feature = "sqlite")]
mod sqlite_derived_files;
#[cfg(feature = "sqlite")]
mod sqlite_derived_suite;
#[cfg(feature = "sqlite")]
mod sqlite_files;
#[cfg(feature = "sqlite")]
mod sqlite_index;
#[cfg(feature = "sqlite")]
mod sqlite_races;
#[cfg(feature = "sqlite")]
mod sqlite_suite;
mod support;
