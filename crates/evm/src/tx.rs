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

#[cfg(test)]
mod tests {
    use alloy_consensus::crypto::secp256k1::{recover_signer_unchecked, sign_message};
    use alloy_consensus::{EthereumTypedTransaction, SignableTransaction, TxLegacy};
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{B256, Signature, U256, uint};

    use super::*;

    /// The order of the curve.
    const ORDER: U256 = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);

    #[test]
    fn frontier_signatures_with_a_high_s_are_recovered() {
        let tx = TxLegacy { nonce: 3, gas_price: 50_000_000_000, gas_limit: 21_000, ..TxLegacy::default() };
        let hash = tx.signature_hash();
        let low = sign_message(B256::repeat_byte(7), hash).unwrap();
        let sender = recover_signer_unchecked(&low, hash).unwrap();
        let high = Signature::new(low.r(), ORDER - low.s(), !low.v());
        assert!(high.s() > ORDER >> 1);
        for signature in [low, high] {
            let tx = TxEnvelope::new_unhashed(EthereumTypedTransaction::Legacy(tx.clone()), signature);
            let decoded = decode(&tx.encoded_2718()).unwrap().unwrap();
            assert_eq!(recover_sender(&decoded), Some(sender));
        }
    }

    #[test]
    fn e05_types_are_told_from_bytes_that_are_none() {
        assert_eq!(decode(&[0x7e, 1, 2]).unwrap(), None);
        assert_eq!(decode(&[0x05]).unwrap(), None);
        for bytes in [&[][..], &[0x00, 0xc0], &[0x80], &[0x02, 0xc0], &[0xc0], &[0x04]] {
            assert!(decode(bytes).is_err(), "{bytes:02x?}");
        }
    }
}
