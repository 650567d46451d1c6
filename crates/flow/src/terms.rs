//! The terms by which events are found. Persisted by stores: these functions never change.

use alloy_primitives::keccak256;
use cairn_core::IndexKey;
use prost::Message;

use crate::proto::{Event, TransactionResult};
use crate::{FlowError, evm, wire};

/// The key of an event's type: the first eight bytes, big-endian, of `keccak256(0x10 ‖ type)`.
///
/// 0x10 keeps it apart from the slots of EVM logs.
pub fn event_term(event_type: &str) -> IndexKey {
    tagged(0x10, event_type.as_bytes())
}

/// The key of an EVM transaction's hash: the first eight bytes, big-endian, of `keccak256(0x11 ‖ hash)`. So that the block of one is found
/// in every store.
pub fn evm_term(hash: &[u8; 32]) -> IndexKey {
    tagged(0x11, hash)
}

/// The terms of an event: its type; and, where it is one of an EVM transaction, whosever contract says so, that transaction's hash.
pub fn terms_of_event(event: &Event) -> impl Iterator<Item = IndexKey> + use<> {
    let hash = event.r#type.ends_with(".EVM.TransactionExecuted").then(|| evm::executed_hash(&event.payload));
    [Some(event_term(&event.r#type)), hash.flatten().map(|hash| evm_term(&hash.0))].into_iter().flatten()
}

/// The terms of a stored block, ascending and without repeats: those that [`crate::assemble`] gave it.
pub fn terms_of_receipts(receipts: &[u8]) -> Result<Vec<IndexKey>, FlowError> {
    let mut terms = Vec::new();
    for result in wire::repeated("receipts", receipts, 1)? {
        let result = TransactionResult::decode(&receipts[result])
            .map_err(|error| FlowError::malformed("a result", error))?;
        terms.extend(result.events.iter().flat_map(terms_of_event));
    }
    terms.sort_unstable();
    terms.dedup();
    Ok(terms)
}

fn tagged(tag: u8, of: &[u8]) -> IndexKey {
    let mut input = Vec::with_capacity(of.len() + 1);
    input.push(tag);
    input.extend_from_slice(of);
    let mut key = [0; 8];
    key.copy_from_slice(&keccak256(&input)[..8]);
    IndexKey::from_be_bytes(key)
}
