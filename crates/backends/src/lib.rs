//! Stores that keep data: one module and one feature each. Only the binary and tests name one; everything else knows the traits of
//! [`cairn_store`].

#[cfg(any(feature = "sqlite", feature = "postgres-raw"))]
mod index_runs;
#[cfg(feature = "objects")]
pub mod objects;
#[cfg(feature = "postgres-raw")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "sqlite", feature = "postgres-raw"))]
pub use index_runs::LogTerms;
