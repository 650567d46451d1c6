//! The terms by which events are found. Persisted by stores: these functions never change.

use alloy_primitives::keccak256;
use cairn_core::IndexKey;

/// The key of an event's type: the first eight bytes, big-endian, of `keccak256(0x10 ‖ type)`.
///
/// 0x10 keeps it apart from the slots of EVM logs.
pub fn event_term(event_type: &str) -> IndexKey {
    let mut input = Vec::with_capacity(event_type.len() + 1);
    input.push(0x10);
    input.extend_from_slice(event_type.as_bytes());
    let mut key = [0; 8];
    key.copy_from_slice(&keccak256(&input)[..8]);
    IndexKey::from_be_bytes(key)
}
