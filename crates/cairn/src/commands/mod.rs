//! One module a command.

pub mod config;
pub mod demo;
pub mod import;
pub mod run;
pub mod serve;
pub mod status;
pub mod verify;
