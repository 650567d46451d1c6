//! Somebody who sends transactions: what is signed as flow-go's `model/flow` encodes it, keys of secp256k1 over SHA3-256.

use alloy_rlp::{Encodable, Header};
use bytes::Bytes;
use cairn_flow::FlowAddress;
use cairn_flow::proto::{ProposalKey, Signature, Transaction};
use secp256k1::ecdsa::RecoverableSignature;
use secp256k1::{Message, PublicKey, SecretKey};
use sha3::{Digest, Sha3_256};

use crate::cdc::Cdc;

/// What stands before everything that is signed for a transaction, filled up with zeros to 32 bytes.
const TRANSACTION_TAG: &[u8] = b"FLOW-V0.0-transaction";

/// A private key.
#[derive(Clone)]
pub struct Key(SecretKey);

impl Key {
    /// A made-up key, the same for the same name.
    pub fn named(name: &str) -> Key {
        // A hash that is no key is less likely than anything that could go wrong.
        Key(SecretKey::from_secret_bytes(Sha3_256::digest(name).into()).expect("a hash that is a key"))
    }

    /// The private key, in hex.
    pub fn secret_hex(&self) -> String {
        hex::encode(self.0.to_secret_bytes())
    }

    /// The public key as Flow has it: both coordinates.
    pub fn public_key(&self) -> [u8; 64] {
        let mut both = [0; 64];
        both.copy_from_slice(&PublicKey::from_secret_key(&self.0).serialize_uncompressed()[1..]);
        both
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut tag = [0; 32];
        tag[..TRANSACTION_TAG.len()].copy_from_slice(TRANSACTION_TAG);
        let digest = Sha3_256::new_with_prefix(tag).chain_update(message).finalize();
        let digest = Message::from_digest(digest.into());
        RecoverableSignature::sign_ecdsa_recoverable(digest, &self.0).serialize_compact().1
    }
}

/// An account that signs with the first of its keys.
#[derive(Clone)]
pub struct Signer {
    /// Whose.
    pub address: FlowAddress,
    /// The key at index 0.
    pub key: Key,
}

/// A transaction that somebody wants.
pub struct Order<'o> {
    /// Cadence.
    pub script: &'o str,
    /// The script's.
    pub arguments: &'o [Cdc],
    /// No more than some blocks old.
    pub reference_block_id: Bytes,
    /// What it may use.
    pub compute_limit: u64,
    /// Whose sequence number it uses up.
    pub proposer: &'o Signer,
    /// Of the proposer's key.
    pub sequence_number: u64,
    /// Who pays the fees.
    pub payer: &'o Signer,
    /// Whose accounts it may change.
    pub authorizers: &'o [&'o Signer],
}

impl Order<'_> {
    /// The transaction, signed by everybody who has to.
    pub fn signed(&self) -> Transaction {
        let mut transaction = Transaction {
            script: self.script.as_bytes().to_vec().into(),
            arguments: self.arguments.iter().map(|argument| argument.0.clone().into()).collect(),
            reference_block_id: self.reference_block_id.clone(),
            gas_limit: self.compute_limit,
            proposal_key: Some(ProposalKey {
                address: bytes(self.proposer.address),
                key_id: 0,
                sequence_number: self.sequence_number,
            }),
            payer: bytes(self.payer.address),
            authorizers: self.authorizers.iter().map(|signer| bytes(signer.address)).collect(),
            payload_signatures: Vec::new(),
            envelope_signatures: Vec::new(),
        };
        let payload = self.payload();
        // Each once, by its place among them: proposer, payer, authorizers. The payer signs the envelope, with all the others' signatures in it.
        let mut signers: Vec<&Signer> = Vec::new();
        for signer in [self.proposer, self.payer].into_iter().chain(self.authorizers.iter().copied()) {
            if signers.iter().all(|there| there.address != signer.address) {
                signers.push(signer);
            }
        }
        let mut others = Vec::new();
        for (at, signer) in signers.iter().enumerate() {
            if signer.address != self.payer.address {
                let signature = signer.key.sign(&payload);
                list(&mut others, |one| {
                    at.encode(one);
                    0u64.encode(one);
                    signature.as_slice().encode(one);
                });
                transaction.payload_signatures.push(of(signer, &signature));
            }
        }
        let mut envelope = Vec::new();
        list(&mut envelope, |out| {
            out.extend_from_slice(&payload);
            list(out, |out| out.extend_from_slice(&others));
        });
        transaction.envelope_signatures.push(of(self.payer, &self.payer.key.sign(&envelope)));
        transaction
    }

    fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        list(&mut payload, |out| {
            self.script.as_bytes().encode(out);
            list(out, |out| self.arguments.iter().for_each(|argument| argument.0.as_bytes().encode(out)));
            self.reference_block_id.as_ref().encode(out);
            self.compute_limit.encode(out);
            self.proposer.address.0.encode(out);
            0u64.encode(out);
            self.sequence_number.encode(out);
            self.payer.address.0.encode(out);
            list(out, |out| self.authorizers.iter().for_each(|signer| signer.address.0.encode(out)));
        });
        payload
    }
}

fn bytes(address: FlowAddress) -> Bytes {
    address.0.to_vec().into()
}

fn of(signer: &Signer, signature: &[u8]) -> Signature {
    Signature {
        address: bytes(signer.address),
        key_id: 0,
        signature: signature.to_vec().into(),
        extension_data: Bytes::new(),
    }
}

fn list(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    Header { list: true, payload_length: inner.len() }.encode(out);
    out.extend_from_slice(&inner);
}
