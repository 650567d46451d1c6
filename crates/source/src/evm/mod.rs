//! EVM chains.

pub mod file;
pub mod rpc;
pub mod synthetic;
