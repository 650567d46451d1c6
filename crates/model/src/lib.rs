//! The protocol between the raw store's reorg log and the derived tables, as a model small enough that a checker visits every state.
mod actors;
mod app;
mod model;
mod properties;
mod raw;
mod reach;
mod rules;
mod words;

pub mod configurations;

pub use actors::{Applier, Step, Worker};
pub use app::{App, Checkpoint, Commit, Lease, StateRow, Status};
pub use model::{Action, Protocol, State};
pub use properties::{CANONICAL, FENCED, NO_FALSE_ALARM, ONE_FORK, RAW_WHOLE, STATE, is_done};
pub use raw::{Entry, Raw};
pub use reach::{Reach, explore};
pub use rules::{Off, Rule};
pub use words::{A, B, C, Chain, GENESIS, Height, Id, NONE};
