//! Servers that the tests of the backends start or stand in for.

#[cfg(feature = "postgres-raw")]
pub mod pg;
#[cfg(all(feature = "postgres-raw", unix))]
pub mod pg_tls;
#[cfg(feature = "objects")]
pub mod s3_mock;
#[cfg(feature = "objects")]
pub mod s3_real;
