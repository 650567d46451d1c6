//! What only Flow has. What Flow and EVM chains both have is in the tables beside this folder.
//!
//! * `transaction_id` is the Flow transaction's, except in [`evm`], where it is the EVM transaction's hash, as in `evm_transactions`.
//! * A system transaction has the same id in every block, so every key has the height (the schema plan's (`block_height`, id)).
//! * `event_index` is the event's place in its transaction.

pub mod account_bases;
pub mod accounts;
pub mod contracts;
pub mod evm;
pub mod evm_splits;
pub mod fees;
pub mod nfts;
pub mod transactions;
