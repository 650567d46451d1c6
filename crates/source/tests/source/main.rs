//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod flow;
mod rpc_blocks;
mod rpc_heads;
mod rpc_suite;
mod rpc_transport;
mod rpc_ways;
mod support;
