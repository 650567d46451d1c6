//! Reading what strangers wrote: token events, return data, names.

pub mod evm;
pub mod flow;
mod text;

pub use text::{Said, TextLimit, clean, said};
