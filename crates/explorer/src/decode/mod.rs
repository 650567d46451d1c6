//! Reading what strangers wrote: token events, return data, names.

pub mod evm;
mod text;

pub use text::{CleanText, TextLimit, clean, clean_bytes};
