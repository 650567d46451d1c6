//! The EVM transactions of Flow transactions in the form of those of EVM chains, so that the same decoders and mappers read them.
//!
//! In tables that both sides share they stand under their Flow transaction: its id, its place, and as `event_index` that of the event of the EVM
//! transaction, whose movements are counted through by `sub_index`. An EVM transaction whose event can't be read, or whose hash stood in the Flow
//! block before, is none of them: `evm_worker` reports it.

use cairn_core::{StoredBlock, TxId, TxStatus};
use cairn_evm::{DecodedLog, DecodedReceipt, DecodedTx, Recipient};
use cairn_flow::DecodedEvent;
use cairn_flow::evm::{DIRECT_CALL, DirectKind, EvmTransaction, Executed};
use cairn_pipeline::derive::processor::{Malformed, Output};

use super::{PlacedTx, moves};
use crate::decode::evm::wrapped::WrappedTokens;
use crate::processors::evm::moves::{Moves, of_logs};
use crate::processors::evm::token::labels;
use crate::tables::transfers::EventPlace;

/// An EVM transaction with its token movements.
pub(super) struct EvmTx {
    /// The place of its event in the Flow transaction.
    pub event_index: u32,
    pub tx: DecodedTx,
    pub moves: Moves,
}

impl EvmTx {
    /// Reads what an event says. `ids_left` is how many ids of ranges the rest of the Flow block may name.
    pub fn read(
        event: &DecodedEvent,
        executed: &Executed,
        inner: Option<&EvmTransaction>,
        wrapped: &WrappedTokens,
        ids_left: &mut u32,
    ) -> EvmTx {
        let tx = decoded(executed, inner);
        let moves = of_logs(&tx.receipt.logs, wrapped, ids_left);
        EvmTx { event_index: event.index, tx, moves }
    }

    /// Makes the rows of its token movements.
    pub fn transfers(&self, block: &StoredBlock, flow_tx: PlacedTx<'_>, out: &mut Output) {
        let mut first = 0;
        for placed in &self.moves.placed {
            let place = |sub_index: u32| EventPlace {
                // Those of a range follow each other; any other is the one movement here, whatever its place in its log.
                sub_index: first + sub_index - placed.moved.sub_index,
                ..moves::place(block, flow_tx.index, flow_tx.tx, self.event_index, 0)
            };
            for (table, row) in placed.rows(place) {
                out.row(table, row);
            }
            first += placed.moved.count;
        }
        for error in &self.moves.malformed {
            let fault = super::malformed_at(flow_tx.tx, self.event_index, "EVM.TransactionExecuted", error);
            out.malformed(Malformed { labels: labels(error), ..fault });
        }
    }
}

fn decoded(executed: &Executed, inner: Option<&EvmTransaction>) -> DecodedTx {
    let to = match inner {
        None => Recipient::Unknown,
        // A resource may create a contract at an address that it names.
        Some(inner) if inner.direct == Some(DirectKind::Deploy) => Recipient::Create,
        Some(inner) => inner.to.map_or(Recipient::Create, Recipient::Call),
    };
    let log = |(log_index, log): (u32, &cairn_flow::evm::Log)| DecodedLog {
        log_index,
        address: log.address,
        topics: log.topics.clone(),
        data: log.data.0.clone(),
    };
    DecodedTx {
        index: executed.index.into(),
        id: TxId(executed.hash.0),
        sender: inner.and_then(|inner| inner.from),
        status: if executed.error_code == 0 { TxStatus::Ok } else { TxStatus::Failed },
        is_injected: executed.tx_type == DIRECT_CALL,
        ty: Some(executed.tx_type.into()),
        nonce: inner.map(|inner| inner.nonce),
        to,
        value: inner.map(|inner| inner.value),
        input: inner.map(|inner| inner.input.0.clone()),
        gas_limit: inner.map(|inner| inner.gas_limit),
        gas_price: None,
        max_fee_per_gas: None,
        max_priority_fee_per_gas: None,
        max_fee_per_blob_gas: None,
        known: None,
        receipt: DecodedReceipt {
            is_missing: false,
            gas_used: executed.gas_used,
            cumulative_gas_used: 0,
            effective_gas_price: None,
            blob_gas_used: None,
            blob_gas_price: None,
            l1_fee: None,
            contract_address: executed.contract_address,
            logs: (0u32..).zip(&executed.logs).map(log).collect(),
        },
    }
}
