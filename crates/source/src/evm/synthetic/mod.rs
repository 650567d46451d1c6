//! A deterministic EVM chain made in process, and sources over it.
//!
//! - [`SyntheticChain`]: blocks from (seed, fork, height): real headers, signed transactions, receipts, roots and links; no state.
//! - [`SyntheticSource`]: the chain with a history, growing and forking with the runtime's clock: what `cairn demo` follows.
//! - [`ContractAnswers`]: what the chain's contracts say of themselves: names, symbols, URIs, code.
//! - [`ViewOfChain`]: a node that sees exactly what it is told to: what the simulation builds its faults on.
//! - [`presign`] and [`PresignedSource`]: millions of transactions signed once into a file, and read back as fast as they can be checked.
//!
//! Nothing here reads the wall clock or draws random numbers: everything follows from seeds and, for the live source,
//! from the runtime's clock, which tests and the simulation pause.

mod actions;
mod assemble;
mod chain;
mod contracts;
mod draw;
mod economy;
mod json;
mod live;
mod presigned;
#[cfg(test)]
mod tests;
mod traffic;
mod view;

pub use actions::{Contracts, Mix};
pub use chain::{FirstBlock, ForkId, ForkOptions, SyntheticChain, SyntheticOptions};
pub use contracts::ContractAnswers;
pub use json::to_rpc_json;
pub use live::{LiveOptions, SyntheticSource};
pub use presigned::{PresignOptions, PresignedSource, presign, presigned};
pub use traffic::{Traffic, TrafficOptions};
pub use view::{View, ViewOfChain};
