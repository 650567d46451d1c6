//! Ids of transactions and collections, as flow-go makes them (`model/flow`): SHA3-256 of RLP.

use std::collections::BTreeMap;

use alloy_rlp::{BufMut, Encodable, Header};
use cairn_core::TxId;
use sha3::{Digest, Sha3_256};

use crate::proto::{Signature, Transaction};

/// The id of a transaction: `SHA3-256(RLP([payload, payload signatures, envelope signatures]))`, since the message has no id field.
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

/// The id of a collection: `SHA3-256(RLP([[transaction ids]]))`, of flow-go's `LightCollection`, a structure of one list.
pub fn collection_id(transactions: &[TxId]) -> [u8; 32] {
    let mut ids = Vec::with_capacity(transactions.len() * 33);
    for id in transactions {
        id.as_bytes().encode(&mut ids);
    }
    let (mut inner, mut whole) = (Vec::with_capacity(ids.len() + 9), Vec::with_capacity(ids.len() + 18));
    list(&ids, &mut inner);
    list(&inner, &mut whole);
    Sha3_256::digest(&whole).into()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Collections of mainnet block 12,884,163, as Flow CLI's documentation of `flow blocks get` shows them.
    #[test]
    fn ids_of_mainnet_collections_are_computed() {
        let vectors: [(&str, &[&str]); 3] = [
            (
                "3e694588e789a72489667a36dd73104dea4579bcd400959d47aedccd7f930eeb",
                &[
                    "acc2ae1ff6deb2f4d7663d24af6ab1baf797ec264fd76a745a30792f6882093b",
                    "ae8bfbc85ce994899a3f942072bfd3455823b1f7652106ac102d161c17fcb55c",
                    "70c4d39d34e654173c5c2746e7bb3a6cdf1f5e6963538d62bad2156fc02ea1b2",
                    "2466237b5eafb469c01e2e5f929a05866de459df3bd768cde748e068c81c57bf",
                ],
            ),
            (
                "e93f2bd988d66288c7e1ad991dec227c6c74b8039a430e43896ad94cf8feccce",
                &["4d790300722b646e7ed3e2c52675430d7ccf2efd1d93f106b53bc348df601af6"],
            ),
            (
                "1a4f563b48aaa38f3a7e867c89422e0bd84887de125e8f48ba147f4ee58ddf0d",
                &["fbcc99326336d4dbb4cbc01a3b9b85cfcdcdc071b3d0e01ee88ecd144444600b"],
            ),
        ];
        for (id, transactions) in vectors {
            let transactions: Vec<TxId> = transactions
                .iter()
                .map(|id| TxId(hex::decode(id).expect("hex").try_into().expect("32 bytes")))
                .collect();
            assert_eq!(hex::encode(collection_id(&transactions)), id);
        }
    }
}
