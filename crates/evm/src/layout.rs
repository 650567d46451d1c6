//! Where an EVM block's transactions and logs stand in its bytes, for stores that keep them in rows.

use std::ops::Range;

use cairn_core::{BlockLayout, EventSlice, RawBlock, Slices, TxSlice};

use crate::canonical::{Body, transaction_bytes};
use crate::receipts::Receipt;
use crate::rlp::{self, Items};

/// The layout of [`crate::canonical`]'s bytes: a transaction's slice is its EIP-2718 bytes, a receipt's is its whole RLP item, a log's is its RLP.
#[derive(Debug, Clone, Copy, Default)]
pub struct EvmLayout;

impl BlockLayout for EvmLayout {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        slices(block).ok().flatten()
    }
}

fn slices(block: &RawBlock) -> alloy_rlp::Result<Option<Slices>> {
    let body = Body::decode(&block.body)?;
    let mut slices = Slices::default();
    // Transactions that the chain injected follow the body's ones and have no bytes there.
    let mut body_end = 0;
    let mut bodies = body.transactions.iter();
    for (index, receipt) in (0u32..).zip(rlp::list(&block.receipts)?) {
        let receipt = receipt?;
        let in_body = match bodies.next() {
            Some(item) => range_in(&block.body, transaction_bytes(*item).unwrap_or(item.payload)),
            None => body_end..body_end,
        };
        body_end = in_body.end;
        slices.transactions.push(TxSlice { body: in_body, receipt: range_in(&block.receipts, receipt.raw) });
        // A receipt that is missing has no logs.
        let logs = if receipt.payload.is_empty() { &[] } else { Receipt::decode_stored(receipt)?.logs };
        for log in Items(logs) {
            let range = range_in(&block.receipts, log?.raw);
            let log_index = slices.events.len() as u32;
            slices.events.push(EventSlice { tx_index: index, index: log_index, range });
        }
    }
    let is_whole = slices.transactions.len() == block.transactions.len() && bodies.next().is_none();
    Ok(is_whole.then_some(slices))
}

/// Where `part`, which borrows from `whole`, stands in it.
fn range_in(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.len()
}
