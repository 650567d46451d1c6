//! What cairn serves over one archive: Ethereum JSON-RPC over HTTP and WebSocket, and health and metrics for those who run it.
//!
//! It reads through [`cairn_store::RawReader`] only and knows no backend, no ingester and no node: how the ingester does is told to it
//! ([`health::HealthState`], [`eth::Syncing`]), and state methods go to an [`eth::Upstream`] where there is one.
//!
//! * [`eth::EthApi`]: the methods, without a transport.
//! * [`serve_rpc`]: JSON-RPC over HTTP and WebSocket on one address.
//! * [`serve_ops`]: `/livez`, `/readyz`, `/metrics` on another; [`serve_rest`]: REST on a third.
//! * [`RpcLimits`]: every limit, with its unit.
//! * `conformance` (feature): the public suite's files and their strict comparison.
//!
//! Laws kept here: one snapshot per request (2), never a silent wrong answer (2), bounded everything (9).

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
pub mod eth;
mod feed;
pub mod health;
mod limits;
mod metered;
mod ops;
pub mod rest;
mod rpc;
mod server;

pub use error::RpcError;
pub use eth::EthApi;
pub use limits::{ConnectionLimits, RpcLimits};
pub use metered::describe_metrics;
pub use ops::{MetricsText, OpsConfig, serve_ops, serve_rest};
pub use server::{RpcServerConfig, ServerHandle, TrustedProxies, serve_rpc};
