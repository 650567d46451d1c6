//! One module a command.

pub mod backup;
pub mod config;
pub mod demo;
pub mod errors;
pub mod import;
pub mod leases;
pub mod migrate;
pub mod payloads;
pub mod reindex;
pub mod repair;
pub mod retry;
pub mod run;
pub mod serve;
pub mod status;
pub mod verify;
pub mod workers;
