//! EVM chains.

pub mod file;
