//! Recorded Flow data, and blocks put together from it.
#![allow(dead_code)]

use std::path::PathBuf;

use bytes::Bytes;
use cairn_flow::BlockParts;
use cairn_flow::id::transaction_id;
use cairn_flow::proto::{
    Block, CollectionGuarantee, Event, ExecutionResult, ProposalKey, Signature, Timestamp, Transaction,
    TransactionResult, TransactionStatus,
};
use prost::Message;
use serde_json::Value;

/// A recorded file; `None`, with a word on where to get it, where it isn't on this machine (a failure in CI).
pub fn fixture(name: &str) -> Option<Vec<u8>> {
    let shared = std::env::var_os("CAIRN_SHARED")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").into(), PathBuf::from);
    let file = shared.join("fixtures/flow").join(name);
    if file.is_file() {
        return Some(std::fs::read(&file).expect("is read"));
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", file.display());
    eprintln!("not run: {} is not there; see CONTRIBUTING.md on CAIRN_SHARED", file.display());
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

/// A transaction whose script says which one it is.
pub fn numbered(number: u64) -> Transaction {
    Transaction {
        script: format!("transaction {{ /* {number} */ }}").into(),
        reference_block_id: Bytes::from(vec![7; 32]),
        gas_limit: 9999,
        proposal_key: Some(ProposalKey {
            address: Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]),
            key_id: 1,
            sequence_number: number,
        }),
        payer: Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]),
        ..Transaction::default()
    }
}

/// The system transaction: the same in every block.
pub fn system() -> Transaction {
    Transaction {
        script: "transaction { /* system chunk */ }".into(),
        gas_limit: 100_000_000,
        authorizers: vec![Bytes::from_static(&[0xf8, 0xd6, 0xe0, 0x58, 0x6b, 0x0a, 0x20, 0xc7])],
        ..Transaction::default()
    }
}

/// What a whole block is made of, before it is encoded.
#[derive(Clone)]
pub struct Draft {
    pub block: Block,
    pub transactions: Vec<(Transaction, TransactionResult)>,
    pub execution_result: Option<ExecutionResult>,
}

impl Draft {
    /// A block with collections of so many transactions each, each transaction with so many events, and the system transaction.
    pub fn new(height: u64, collections: &[usize], events: u32) -> Draft {
        let id = Bytes::from(vec![height as u8; 32]);
        let mut transactions = Vec::new();
        for (number, size) in collections.iter().enumerate() {
            for _ in 0..*size {
                let transaction = numbered(height * 1000 + transactions.len() as u64);
                transactions.push((transaction, Bytes::from(vec![0xc0 + number as u8; 32])));
            }
        }
        transactions.push((system(), Bytes::from(vec![0; 32])));
        let transactions = (0u32..).zip(transactions).map(|(index, (transaction, collection_id))| {
            let tx_id = Bytes::copy_from_slice(transaction_id(&transaction).as_bytes());
            let event = |event_index| Event {
                r#type: format!("A.0000000000000009.Counter.E{}", event_index % 3),
                transaction_id: tx_id.clone(),
                transaction_index: index,
                event_index,
                payload: r#"{"type":"Event","value":{"id":"A.0000000000000009.Counter.E0","fields":[]}}"#
                    .into(),
            };
            let result = TransactionResult {
                status: TransactionStatus::Sealed as i32,
                events: (0..events).map(event).collect(),
                block_id: id.clone(),
                transaction_id: tx_id.clone(),
                collection_id,
                block_height: height,
                ..TransactionResult::default()
            };
            (transaction, result)
        });
        let guarantee = |number: usize| CollectionGuarantee {
            collection_id: Bytes::from(vec![0xc0 + number as u8; 32]),
            ..CollectionGuarantee::default()
        };
        Draft {
            block: Block {
                id: id.clone(),
                parent_id: Bytes::from(vec![(height - 1) as u8; 32]),
                height,
                timestamp: Some(Timestamp { seconds: 1_770_000_000, nanos: 123_456_789 }),
                collection_guarantees: (0..collections.len()).map(guarantee).collect(),
                ..Block::default()
            },
            transactions: transactions.collect(),
            execution_result: Some(ExecutionResult { block_id: id.clone(), ..ExecutionResult::default() }),
        }
    }

    /// As a node gives it.
    pub fn parts(&self) -> BlockParts {
        BlockParts {
            block: self.block.encode_to_vec().into(),
            transactions: self.transactions.iter().map(|(tx, _)| tx.encode_to_vec().into()).collect(),
            results: self.transactions.iter().map(|(_, result)| result.encode_to_vec().into()).collect(),
            execution_result: self.execution_result.as_ref().map(|result| result.encode_to_vec().into()),
        }
    }
}
