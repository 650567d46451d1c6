//! Transactions: which types are known, how their bytes are decoded, who sent them.

use alloy_consensus::transaction::SignerRecoverable;
use alloy_consensus::{EthereumTxEnvelope, TxEip4844};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::Address;

/// A transaction of a type that this version knows, as consensus has it (blobs without their sidecar).
pub type TxEnvelope = EthereumTxEnvelope<TxEip4844>;

/// The newest known EIP-2718 type: set-code (EIP-7702).
pub(crate) const NEWEST_KNOWN_TYPE: u64 = 4;

/// Decodes EIP-2718 bytes. `None`: a type that this version doesn't know, of which nothing can be said but the type.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<TxEnvelope>, String> {
    match bytes.first() {
        None => Err("no bytes".into()),
        Some(ty @ 0x05..=0x7f) if u64::from(*ty) > NEWEST_KNOWN_TYPE => Ok(None),
        Some(0x01..=0x7f | 0xc0..) => {
            TxEnvelope::decode_2718_exact(bytes).map(Some).map_err(|error| error.to_string())
        }
        Some(first) => Err(format!("first byte 0x{first:02x} is neither a list nor a transaction type")),
    }
}

/// The type of EIP-2718 bytes; 0 for a legacy transaction.
pub(crate) fn type_of(bytes: &[u8]) -> u8 {
    match bytes.first() {
        Some(&ty) if ty < 0x80 => ty,
        _ => 0,
    }
}

/// Who signed it, by libsecp256k1. Signatures with a high `s` are accepted: they were valid before Homestead (EIP-2), and the
/// transactions root covers them after it. `None`: the signature gives no key.
pub(crate) fn recover_sender(tx: &TxEnvelope) -> Option<Address> {
    tx.recover_signer_unchecked().ok()
}
