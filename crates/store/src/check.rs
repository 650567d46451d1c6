//! What every store demands of blocks before it looks at its own rows.

use cairn_core::RawBlock;

use crate::{Result, StoreError};

/// The longest sender that is stored, in bytes.
pub const MAX_SENDER_BYTES: usize = 255;

/// Checks that a batch makes sense by itself: not empty, heights without a gap, each block linked to the one before,
/// and every block's facts in accord with its lists. Gaps and bad parts are [`StoreError::Invalid`], a broken link
/// [`StoreError::DoesNotLink`]. Every backend's `append` and `fill` begin with it, so that they refuse the same things.
pub fn check_batch(blocks: &[RawBlock]) -> Result<()> {
    if blocks.is_empty() {
        return Err(StoreError::Invalid("the batch holds no block; send at least one".into()));
    }
    blocks.iter().try_for_each(check_block)?;
    for pair in blocks.windows(2) {
        let (before, block) = (pair[0].block_ref(), &pair[1]);
        if block.facts.height.prev() != Some(before.height) {
            return Err(StoreError::Invalid(format!(
                "the batch has a gap: block {} follows block {before}; heights must grow by one",
                block.block_ref()
            )));
        }
        if block.facts.parent_id != before.id {
            return Err(StoreError::DoesNotLink {
                first: block.block_ref(),
                parent_id: block.facts.parent_id,
                expected: before,
            });
        }
    }
    Ok(())
}

fn check_block(block: &RawBlock) -> Result<()> {
    let at = block.block_ref();
    let facts = &block.facts;
    if facts.tx_count as usize != block.transactions.len() {
        return Err(StoreError::Invalid(format!(
            "block {at}: tx_count says {}, but it holds {} transactions",
            facts.tx_count,
            block.transactions.len()
        )));
    }
    if let Some(index) = block.transactions.iter().position(|tx| tx.sender.len() > MAX_SENDER_BYTES) {
        return Err(StoreError::Invalid(format!(
            "block {at}, transaction {index}: the sender has {} bytes, more than {MAX_SENDER_BYTES}",
            block.transactions[index].sender.len()
        )));
    }
    if block.log_terms.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(StoreError::Invalid(format!("block {at}: log_terms must be sorted and without repeats")));
    }
    Ok(())
}
