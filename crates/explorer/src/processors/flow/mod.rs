//! Processors that read Flow blocks or ask Flow nodes.

pub mod node;
