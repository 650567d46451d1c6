//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod derived_memory;
mod derived_suite_catches_bugs;
mod memory_hooks;
mod memory_suite;
mod payload_races;
mod payload_suite;
mod payload_suite_catches_bugs;
mod suite_catches_bugs;
