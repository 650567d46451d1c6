//! From a body of JSON-RPC text to a message: batches, limits, subscriptions. Knows no transport.

mod gate;
mod service;
mod session;
pub mod wire;

pub(crate) use self::gate::Charge;
pub(crate) use self::service::{Answer, RpcService};
pub(crate) use self::session::{Ending, Outgoing, Session};
