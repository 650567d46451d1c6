//! EVM chains.
