//! Withdrawals (EIP-4895): the third list of a body since Shanghai.

use alloy_eips::eip4895::Withdrawal;

use crate::EvmError;
use crate::canonical::Body;

/// The body's withdrawals; `None` where the body has no such list.
pub(crate) fn decode(height: u64, body: &Body<'_>) -> Result<Option<Vec<Withdrawal>>, EvmError> {
    let Some(items) = &body.withdrawals else { return Ok(None) };
    let decode = |(index, item): (usize, &crate::rlp::Item<'_>)| {
        alloy_rlp::decode_exact(item.raw)
            .map_err(|error| EvmError::malformed(format!("block {height}: withdrawal {index}"), error))
    };
    items.iter().enumerate().map(decode).collect::<Result<_, _>>().map(Some)
}
