//! Seeded simulation of ingestion: the real ingester and the real checks on paused time, against nodes that fork, lag, lie and
//! time out, and a store that crashes at its commits.
//!
//! One seed is one run ([`run_seed`]): the seed makes a [`plan::Plan`] (how the chain lives, which nodes see what and when, which answers are
//! wrong, which commits crash), the run plays it, a reader looks at the store all the while ([`observer`]), and at the
//! end the store must equal an oracle built from the final chain alone, byte for byte. Runs of one seed are the same,
//! so a failing seed is a test.

pub mod crash;
pub mod derived;
pub mod node;
pub mod observer;
pub mod plan;
mod run;

pub use run::{Outcome, SimError, World, chain, run_plan, run_seed};
