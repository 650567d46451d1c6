//! Stores that keep data: one module and one feature each. Only the binary and tests name one; everything else knows the traits of
//! [`cairn_store`].

#[cfg(feature = "objects")]
pub mod objects;
#[cfg(feature = "postgres-raw")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
