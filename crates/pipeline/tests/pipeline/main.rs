//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod absent;
mod audit;
mod catching_up;
mod correcting;
mod crashes;
mod cut_reads;
mod enriching;
mod error_log;
mod filling;
mod folding;
mod following;
mod forks;
mod gaps;
mod holding;
mod lease_gaps;
mod limits;
mod lost_blocks;
mod outages;
mod quarantine;
mod quorum;
mod refusals;
mod reports;
mod resets;
mod sharing;
mod support;
