//! All integration tests of this crate, in one binary: one is linked much sooner than many.

mod again;
mod blocks;
mod fixtures;
mod support;
mod values;
