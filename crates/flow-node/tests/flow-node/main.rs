//! All integration tests of this crate, in one binary: one is linked much sooner than many.

mod deeds;
mod generated;
