//! Decoders of EVM logs and return data.

pub mod abi;
pub mod calls;
mod token_event;
pub mod transfers;
pub mod wrapped;

pub use token_event::{DecodeError, Mismatch, TokenEvent, TokenKind, TokenMove};
