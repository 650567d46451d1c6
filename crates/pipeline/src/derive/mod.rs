//! Derived work: processors, and what runs them.

pub mod processor;
