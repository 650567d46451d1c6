//! Transactions: which types are known, how their bytes are decoded, who sent them.

use alloy_consensus::{EthereumTxEnvelope, Transaction as _, TxEip4844};
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::Address;

use described::Described;

use crate::signature;

pub(crate) mod described;

/// A transaction of a type that this version knows, as consensus has it (blobs without their sidecar).
pub type TxEnvelope = EthereumTxEnvelope<TxEip4844>;

/// The newest EIP-2718 type of Ethereum's own that is known: set-code (EIP-7702).
const NEWEST_OF_ETHEREUM: u8 = 4;

/// Whether transactions of a type can be decoded; the raw bytes of others say more than their JSON.
pub fn is_known_type(ty: u64) -> bool {
    u8::try_from(ty).is_ok_and(|ty| is_ethereums(ty) || described::has_type(ty))
}

/// Whether Ethereum has the type.
pub(crate) fn is_ethereums(ty: u8) -> bool {
    ty <= NEWEST_OF_ETHEREUM
}

/// A transaction that is understood.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every transaction is the large one")]
pub(crate) enum Tx {
    /// As Ethereum has it.
    Ethereum(TxEnvelope),
    /// As a single chain has it.
    Described(Described),
}

/// What a transaction's bytes say of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The signature gives it, or the bytes name it.
    Proven(Address),
    /// `r` and `s` are 0, which is no signature: the sender is the node's word.
    Unsigned,
    /// The signature gives no key.
    None,
}

impl Tx {
    /// Decodes EIP-2718 bytes. `None`: a type that this version doesn't know, of which nothing can be said but the type.
    pub fn decode(bytes: &[u8]) -> Result<Option<Tx>, String> {
        match bytes.first() {
            None => Err("no bytes".into()),
            Some(0x01..=NEWEST_OF_ETHEREUM | 0xc0..) => match TxEnvelope::decode_2718_exact(bytes) {
                Ok(known) => Ok(Some(Tx::Ethereum(known))),
                Err(error) => match Described::decode(bytes) {
                    Some(described) => Ok(Some(Tx::Described(described))),
                    None => Err(error.to_string()),
                },
            },
            Some(0x01..=0x7f) => Ok(Described::decode(bytes).map(Tx::Described)),
            Some(first) => Err(format!("first byte 0x{first:02x} is neither a list nor a transaction type")),
        }
    }

    /// The EIP-2718 bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Tx::Ethereum(known) => known.encoded_2718(),
            Tx::Described(described) => described.encode(),
        }
    }

    /// Who sent it. Signatures are recovered by libsecp256k1; those with a high `s` are accepted: they were valid before Homestead (EIP-2), and
    /// the transactions root covers them after it.
    pub fn sender(&self) -> Sender {
        match self {
            Tx::Ethereum(_) if self.is_unsigned() => Sender::Unsigned,
            Tx::Ethereum(known) => signature::recover(known.signature(), known.signature_hash())
                .map_or(Sender::None, Sender::Proven),
            Tx::Described(described) => described.sender(),
        }
    }

    /// Whether nothing in it says who sent it: `r` and `s` are 0, which is no signature.
    pub fn is_unsigned(&self) -> bool {
        match self {
            Tx::Ethereum(known) => known.signature().r().is_zero() && known.signature().s().is_zero(),
            Tx::Described(described) => described.sender() == Sender::Unsigned,
        }
    }

    /// Whether its chain's rules alone say who sent it: neither a signature nor the bytes do.
    pub fn has_fixed_sender(&self) -> bool {
        matches!(self, Tx::Described(described) if described.has_fixed_sender())
    }

    /// Whom it calls; `None` where it creates a contract.
    pub fn to(&self) -> Option<Address> {
        match self {
            Tx::Ethereum(known) => known.to(),
            Tx::Described(described) => described.to(),
        }
    }

    /// As Ethereum has it.
    pub fn ethereum(&self) -> Option<&TxEnvelope> {
        match self {
            Tx::Ethereum(known) => Some(known),
            Tx::Described(_) => None,
        }
    }
}

/// The type of EIP-2718 bytes; 0 for a legacy transaction.
pub(crate) fn type_of(bytes: &[u8]) -> u8 {
    match bytes.first() {
        Some(&ty) if ty < 0x80 => ty,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{EthereumTypedTransaction, SignableTransaction, TxLegacy};
    use alloy_primitives::{B256, Signature, U256, uint};

    use super::*;

    /// The order of the curve.
    const ORDER: U256 = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);

    #[test]
    fn frontier_signatures_with_a_high_s_are_recovered() {
        let tx = TxLegacy { nonce: 3, gas_price: 50_000_000_000, gas_limit: 21_000, ..TxLegacy::default() };
        let hash = tx.signature_hash();
        let low = signature::sign(B256::repeat_byte(7), hash).unwrap();
        let sender = signature::recover(&low, hash).unwrap();
        let high = Signature::new(low.r(), ORDER - low.s(), !low.v());
        assert!(high.s() > ORDER >> 1);
        for signature in [low, high] {
            let tx = TxEnvelope::new_unhashed(EthereumTypedTransaction::Legacy(tx.clone()), signature);
            let decoded = Tx::decode(&tx.encoded_2718()).unwrap().unwrap();
            assert_eq!(decoded.sender(), Sender::Proven(sender));
        }
    }

    #[test]
    fn e05_types_are_told_from_bytes_that_are_none() {
        assert_eq!(Tx::decode(&[0x7e, 1, 2]).unwrap(), None);
        assert_eq!(Tx::decode(&[0x05]).unwrap(), None);
        for bytes in [&[][..], &[0x00, 0xc0], &[0x80], &[0x02, 0xc0], &[0xc0], &[0x04]] {
            assert!(Tx::decode(bytes).is_err(), "{bytes:02x?}");
        }
    }
}
