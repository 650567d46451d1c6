//! What only Flow's blocks and tables say. The paths are those of every chain.
//!
//! A transaction's id does not name one transaction on Flow: the system's own have the same id in every block. An answer by id is of the newest block
//! where that has it, else of the first one, and says so ([`transaction::Repeats`]); `height` asks for another block's.

pub(super) mod account;
pub(super) mod block;
pub(super) mod evm;
pub(super) mod gaps;
pub(super) mod history;
pub(super) mod list;
pub(super) mod transaction;

use cairn_flow::FlowError;

use super::problem::Problem;

impl From<FlowError> for Problem {
    fn from(error: FlowError) -> Problem {
        Problem::internal(error)
    }
}
