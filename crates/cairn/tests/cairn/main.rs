//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod commands;
mod flow;
mod flow_forks;
mod flow_gaps;
mod flow_recorded;
mod flow_repair;
mod live_commands;
mod log_readers;
mod odd_nodes;
mod operators;
mod resets;
mod seams;
mod service;
mod support;
mod verification;
