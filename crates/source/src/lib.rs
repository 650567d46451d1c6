//! Where blocks come from.
//!
//! [`ChainSource`] is what the ingester sees. Implementations: [`evm::rpc`] (JSON-RPC nodes), [`evm::file`] (a chain file with
//! its receipts), [`evm::synthetic`] (a deterministic chain made in process), [`flow`] (Flow access nodes). [`verify`] is the decorator that enforces law 6
//! over any of them: nothing reaches the ingester that it didn't check.

mod error;
pub mod evm;
pub mod flow;
mod pace;
mod source;
pub mod verify;

pub use error::SourceError;
pub use source::{ChainSource, Heads};

/// The result of asking a source.
pub type Result<T, E = SourceError> = std::result::Result<T, E>;
