//! A block before it is encoded, and small blocks for tests that need no more than links and counts.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_flow::BlockParts;
use cairn_flow::id::transaction_id;
use cairn_flow::proto::{
    Block, CollectionGuarantee, Event, ExecutionResult, ProposalKey, Timestamp, Transaction,
    TransactionResult, TransactionStatus,
};
use prost::Message;

/// What a whole block is made of.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The block's message.
    pub block: Block,
    /// Transactions with their results, in order.
    pub transactions: Vec<(Transaction, TransactionResult)>,
    /// What executing it gave.
    pub execution_result: Option<ExecutionResult>,
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

/// Blocks of so many collections and events each, linked.
pub fn linked_blocks(
    heights: std::ops::RangeInclusive<u64>,
    collections: &[usize],
    events: u32,
) -> BTreeMap<u64, Draft> {
    heights.map(|height| (height, Draft::new(height, collections, events))).collect()
}

impl Draft {
    /// A block with collections of so many transactions each, each transaction with so many events, and the system transaction. Its id
    /// repeats its height's last byte, so that up to 256 such blocks link.
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
                parent_id: Bytes::from(vec![height.wrapping_sub(1) as u8; 32]),
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
