//! Recorded Flow data.
use std::path::PathBuf;

use bytes::Bytes;
use cairn_flow::proto::{ProposalKey, Signature, Transaction};
use serde_json::Value;

/// A recorded file; `None`, with a word on where to get it, where it isn't on this machine (a failure in CI).
pub fn fixture(name: &str) -> Option<Vec<u8>> {
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), PathBuf::from);
    let file = shared.join("fixtures/flow").join(name);
    if file.is_file() {
        return Some(std::fs::read(&file).expect("is read"));
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", file.display());
    println!("not run: {} is not there; see CONTRIBUTING.md on CAIRN_SHARED", file.display());
    None
}

pub fn json(name: &str) -> Option<Value> {
    fixture(name).map(|bytes| serde_json::from_slice(&bytes).expect("is JSON"))
}

fn bytes(value: &Value) -> Bytes {
    hex::decode(value.as_str().expect("hex")).expect("hex").into()
}

fn signatures(list: &Value) -> Vec<Signature> {
    let signature = |one: &Value| Signature {
        address: bytes(&one["address"]),
        key_id: one["key_id"].as_u64().expect("a number") as u32,
        signature: bytes(&one["signature"]),
        extension_data: Bytes::new(),
    };
    list.as_array().expect("a list").iter().map(signature).collect()
}

/// A transaction as the vectors write it.
pub fn transaction(tx: &Value) -> Transaction {
    let texts = |list: &Value| -> Vec<Bytes> {
        list.as_array()
            .expect("a list")
            .iter()
            .map(|text| text.as_str().expect("text").to_owned().into())
            .collect()
    };
    let key = &tx["proposal_key"];
    Transaction {
        script: tx["script"].as_str().expect("text").to_owned().into(),
        arguments: texts(&tx["arguments"]),
        reference_block_id: bytes(&tx["reference_block_id"]),
        gas_limit: tx["gas_limit"].as_u64().expect("a number"),
        proposal_key: Some(ProposalKey {
            address: bytes(&key["address"]),
            key_id: key["key_id"].as_u64().expect("a number") as u32,
            sequence_number: key["sequence_number"].as_u64().expect("a number"),
        }),
        payer: bytes(&tx["payer"]),
        authorizers: tx["authorizers"].as_array().expect("a list").iter().map(bytes).collect(),
        payload_signatures: signatures(&tx["payload_signatures"]),
        envelope_signatures: signatures(&tx["envelope_signatures"]),
    }
}
