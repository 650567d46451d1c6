//! Events that a node leaves out in silence for a while: what it gives is consistent, counted without them, and less than there is.

use bytes::Bytes;
use cairn_flow::proto::{TransactionResult, TransactionResultsResponse};
use prost::Message;

use crate::chain::{ServedBlock, ServedTx};

/// Which events of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// Those of contracts that are called `EVM`.
    OfEvm,
    /// All of the chain's own transactions.
    OfSystem,
}

impl LeftOut {
    fn takes(self, is_system: bool, event_type: &str) -> bool {
        match self {
            LeftOut::OfEvm => event_type.split('.').nth(2) == Some("EVM"),
            LeftOut::OfSystem => is_system,
        }
    }

    /// The block without them.
    pub(crate) fn lessen(self, block: &ServedBlock) -> Result<ServedBlock, prost::DecodeError> {
        let transactions: Vec<ServedTx> =
            block.transactions.iter().map(|tx| self.lessen_tx(tx)).collect::<Result<_, _>>()?;
        let transaction_results = transactions.iter().map(|tx| tx.result.clone()).collect();
        let all_results: Bytes = TransactionResultsResponse { transaction_results }.encode_to_vec().into();
        Ok(ServedBlock { transactions, all_results, ..block.clone() })
    }

    fn lessen_tx(self, tx: &ServedTx) -> Result<ServedTx, prost::DecodeError> {
        let mut result = TransactionResult::decode(tx.result.clone())?;
        result.events.retain(|event| !self.takes(tx.is_system(), &event.r#type));
        for (index, event) in (0..).zip(&mut result.events) {
            event.event_index = index;
        }
        Ok(ServedTx { result: result.encode_to_vec().into(), ..tx.clone() })
    }
}
