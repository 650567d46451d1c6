//! A Flow access node for tests and benchmarks: it speaks the Access API on loopback, with the limits and refusals of a real one, over a
//! chain that is made from a seed.
//!
//! | subject | module |
//! | --- | --- |
//! | one block before it is encoded | [`draft`] |
//! | blocks as they are served: by height, by id, sealed or not, rolled back | [`chain`] |
//! | events that the node leaves out for a while | [`left_out`] |
//! | the node: calls, streams, limits, what it was asked | [`server`], `answers`, [`behaviour`] |
//! | a chain from a seed: accounts, keys, contracts, tokens, items, EVM, fees, failures, hostile data | [`generate`] |
//! | what is true of that chain at each height | [`ledger`] |
//! | what each transaction did | [`deeds`] |
//! | scripts that ask for it | [`scripts`] |
//! | somebody who asks, and somebody who sends | [`client`], [`sender`] |
//!
//! **Independence.** The generator changes the ledger and writes events from what it did; it encodes only, with encoders of its own, and never
//! reads an event. So that what cairn's tables say is compared with what was done, and not with what was read of it.
//!
//! **Forks.** [`generate::Generator::rollback`] undoes sealed blocks, as the emulator's `POST /emulator/rollback` does, and the chain goes
//! on differently: ids of resources, items and accounts are used again.

mod answers;
pub mod behaviour;
pub mod cdc;
pub mod chain;
pub mod client;
pub mod deeds;
pub mod draft;
pub mod generate;
pub mod history;
pub mod ledger;
pub mod left_out;
mod messages;
pub mod scripts;
pub mod sender;
pub mod server;

pub use behaviour::{Behaviour, Counts, RateLimit};
pub use chain::Chain;
pub use client::AccessClient;
pub use draft::{Draft, linked_blocks};
pub use generate::{Generator, GeneratorOptions};
pub use ledger::{ContractId, Ledger};
pub use left_out::LeftOut;
pub use sender::{Key, Order, Signer};
pub use server::{FlowNode, State};
