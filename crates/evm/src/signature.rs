//! Signatures over secp256k1, by libsecp256k1.
//!
//! alloy has the same behind a feature, which builds two more copies of the library into the binary.

use alloy_primitives::{Address, B256, Signature, U256};
use secp256k1::ecdsa::{RecoverableSignature, RecoveryId};
use secp256k1::{Message, SecretKey};

/// Who signed a digest. `None`: the signature gives no key.
///
/// A high `s` is accepted: it was valid before Homestead ([EIP-2](https://eips.ethereum.org/EIPS/eip-2)).
pub fn recover(signature: &Signature, digest: B256) -> Option<Address> {
    let mut compact = [0; 64];
    compact[..32].copy_from_slice(&signature.r().to_be_bytes::<32>());
    compact[32..].copy_from_slice(&signature.s().to_be_bytes::<32>());
    let parity = RecoveryId::try_from(i32::from(signature.v())).ok()?;
    let signature = RecoverableSignature::from_compact(&compact, parity).ok()?;
    let public = signature.recover_ecdsa(Message::from_digest(digest.0)).ok()?;
    Some(Address::from_raw_public_key(&public.serialize_uncompressed()[1..]))
}

/// The same, and a high `s` gives no key, as since Homestead.
pub fn recover_low_s(signature: &Signature, digest: B256) -> Option<Address> {
    match signature.normalize_s() {
        Some(_) => None,
        None => recover(signature, digest),
    }
}

/// Signs a digest, for chains that are made in process. `None`: `secret` is 0, or not below the order of the curve.
pub fn sign(secret: B256, digest: B256) -> Option<Signature> {
    let key = SecretKey::from_secret_bytes(secret.0).ok()?;
    let signed = RecoverableSignature::sign_ecdsa_recoverable(Message::from_digest(digest.0), &key);
    let (parity, bytes) = signed.serialize_compact();
    let (r, s) = bytes.split_at(32);
    Some(Signature::new(U256::from_be_slice(r), U256::from_be_slice(s), u8::from(parity) & 1 == 1))
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{address, b256, uint};

    use super::*;

    /// The order of the curve.
    const ORDER: U256 = uint!(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141_U256);

    #[test]
    fn what_is_signed_gives_its_signer_back() {
        // The first account of anvil and hardhat.
        let secret = b256!("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80");
        let digest = B256::repeat_byte(9);
        let low = sign(secret, digest).expect("a key");
        let signer = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
        assert_eq!(recover(&low, digest), Some(signer));
        assert_eq!(recover_low_s(&low, digest), Some(signer));

        let high = Signature::new(low.r(), ORDER - low.s(), !low.v());
        assert_eq!(recover(&high, digest), Some(signer));
        assert_eq!(recover_low_s(&high, digest), None);
    }

    #[test]
    fn what_is_no_key_and_no_signature_gives_nothing() {
        let digest = B256::repeat_byte(9);
        assert_eq!(sign(B256::ZERO, digest), None);
        assert_eq!(sign(B256::repeat_byte(0xff), digest), None);
        for (r, s) in [(U256::ZERO, U256::ZERO), (U256::MAX, U256::ONE), (U256::ONE, U256::MAX)] {
            assert_eq!(recover(&Signature::new(r, s, false), digest), None, "{r} {s}");
        }
    }
}
