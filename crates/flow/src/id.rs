//! Transaction ids: `SHA3-256(RLP([payload, payload signatures, envelope signatures]))`, since the message has no id field.

use std::collections::BTreeMap;

use alloy_rlp::{BufMut, Encodable, Header};
use cairn_core::TxId;
use sha3::{Digest, Sha3_256};

use crate::proto::{Signature, Transaction};

/// The id of a transaction.
///
/// Identical for the system transactions of all blocks, until their script changes.
pub fn transaction_id(transaction: &Transaction) -> TxId {
    let mut inner = Vec::new();
    payload(transaction, &mut inner);
    let signers = signer_indices(transaction);
    signatures(&transaction.payload_signatures, &signers, &mut inner);
    signatures(&transaction.envelope_signatures, &signers, &mut inner);
    let mut whole = Vec::with_capacity(inner.len() + 9);
    list(&inner, &mut whole);
    TxId(Sha3_256::digest(&whole).into())
}

fn list(inner: &[u8], out: &mut Vec<u8>) {
    Header { list: true, payload_length: inner.len() }.encode(out);
    out.put_slice(inner);
}

/// Bytes at their full width: shorter ones are padded on the left, as a node pads what a message left out.
fn wide<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    let taken = bytes.len().min(N);
    padded[N - taken..].copy_from_slice(&bytes[bytes.len() - taken..]);
    padded
}

fn payload(transaction: &Transaction, out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    transaction.script.as_ref().encode(&mut inner);
    let mut arguments = Vec::new();
    for argument in &transaction.arguments {
        argument.as_ref().encode(&mut arguments);
    }
    list(&arguments, &mut inner);
    wide::<32>(&transaction.reference_block_id).encode(&mut inner);
    transaction.gas_limit.encode(&mut inner);
    let key = transaction.proposal_key.clone().unwrap_or_default();
    wide::<8>(&key.address).encode(&mut inner);
    u64::from(key.key_id).encode(&mut inner);
    key.sequence_number.encode(&mut inner);
    wide::<8>(&transaction.payer).encode(&mut inner);
    let mut authorizers = Vec::new();
    for authorizer in &transaction.authorizers {
        wide::<8>(authorizer).encode(&mut authorizers);
    }
    list(&authorizers, &mut inner);
    list(&inner, out);
}

/// Each signer's place among proposer, payer and authorizers, each counted once. A proposer of zeros is none.
fn signer_indices(transaction: &Transaction) -> BTreeMap<[u8; 8], u64> {
    let mut indices = BTreeMap::new();
    let mut add = |address: [u8; 8]| {
        let next = indices.len() as u64;
        indices.entry(address).or_insert(next);
    };
    let none = [0; 8];
    if let Some(key) = transaction.proposal_key.as_ref().filter(|key| wide::<8>(&key.address) != none) {
        add(wide(&key.address));
    }
    if wide::<8>(&transaction.payer) != none {
        add(wide(&transaction.payer));
    }
    for authorizer in &transaction.authorizers {
        add(wide(authorizer));
    }
    indices
}

fn signatures(signatures: &[Signature], signers: &BTreeMap<[u8; 8], u64>, out: &mut Vec<u8>) {
    let mut sorted: Vec<(u64, &Signature)> = signatures
        .iter()
        // One of somebody who is no signer stands at index 0, as a node takes it.
        .map(|signature| (signers.get(&wide::<8>(&signature.address)).copied().unwrap_or(0), signature))
        .collect();
    sorted.sort_by_key(|(index, signature)| (*index, signature.key_id));
    let mut inner = Vec::new();
    for (index, signature) in sorted {
        let mut one = Vec::new();
        index.encode(&mut one);
        u64::from(signature.key_id).encode(&mut one);
        signature.signature.as_ref().encode(&mut one);
        let extension = signature.extension_data.as_ref();
        if !extension.is_empty() && extension != [0] {
            extension.encode(&mut one);
        }
        list(&one, &mut inner);
    }
    list(&inner, out);
}
