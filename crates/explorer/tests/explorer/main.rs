//! All integration tests of this crate, in one binary: one is linked much sooner than many.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod adding_a_processor;
mod enrichers;
mod field_cases;
mod flow_accounts;
mod flow_burns;
mod flow_chain;
mod flow_enrichers;
mod flow_evm;
mod flow_evm_tokens;
mod flow_folders;
mod flow_ledger;
mod flow_mappers;
mod flow_recorded;
mod flow_recorded_evm;
mod flow_tokens;
mod folders;
mod golden;
mod mappers;
mod support;

// Where the file of `adding` would see them.
mod tables {
    pub use cairn_explorer::tables::LARGE_PARTITION_HEIGHTS;
}
