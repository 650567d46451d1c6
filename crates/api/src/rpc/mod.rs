//! From a body of JSON-RPC text to a message: batches, limits, subscriptions. Knows no transport.

mod budget;
mod gate;
mod service;
mod session;
pub mod wire;

pub(crate) use self::budget::{Account, Charge, client};
pub(crate) use self::gate::SMALL_BYTES;
pub(crate) use self::service::{Answer, Caller, RpcService};
pub(crate) use self::session::{Ending, Outgoing, Session};
