//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod conformance;
mod decoded;
mod field_cases;
mod hostile;
mod layout;
mod real_blocks;
mod round_trip;
mod support;
