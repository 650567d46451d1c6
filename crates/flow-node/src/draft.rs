//! A block before it is encoded, and small blocks for tests that need no more than links and counts.

use std::collections::BTreeMap;

use alloy_primitives::B256;
use bytes::Bytes;
use cairn_flow::evm::transaction_hash_root;
use cairn_flow::id::{collection_id, transaction_id};
use cairn_flow::proto::{
    Block, Chunk, CollectionGuarantee, Event, ExecutionResult, ProposalKey, Timestamp, Transaction,
    TransactionResult, TransactionStatus,
};
use cairn_flow::{BlockParts, Network};
use prost::Message;

use crate::cdc::{self, Cdc};

/// What a whole block is made of.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The block's message.
    pub block: Block,
    /// Transactions with their results, in order.
    pub transactions: Vec<(Transaction, TransactionResult)>,
    /// System transactions that the node names among the block's and that were not executed: before the system's own.
    pub not_executed: Vec<Transaction>,
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
        let count = transactions.len();
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
        let chunk = |(number, size): (usize, usize)| Chunk {
            collection_index: number as u32,
            index: number as u64,
            number_of_transactions: size as u32,
            ..Chunk::default()
        };
        let users = collections.iter().sum::<usize>();
        let sizes = collections.iter().copied().chain([count - users]);
        let execution_result = ExecutionResult {
            block_id: id.clone(),
            chunks: sizes.enumerate().map(chunk).collect(),
            ..ExecutionResult::default()
        };
        let mut draft = Draft {
            block: Block {
                id: id.clone(),
                parent_id: Bytes::from(vec![height.wrapping_sub(1) as u8; 32]),
                height,
                timestamp: Some(Timestamp { seconds: 1_770_000_000, nanos: 123_456_789 }),
                collection_guarantees: (0..collections.len()).map(guarantee).collect(),
                ..Block::default()
            },
            transactions: transactions.collect(),
            not_executed: Vec::new(),
            execution_result: Some(execution_result),
        };
        draft.name_collections();
        draft
    }

    /// A spork's root: nothing is executed, and the node names the system transaction all the same.
    pub fn root(height: u64) -> Draft {
        let mut draft = Draft::new(height, &[], 0);
        draft.not_executed = draft.transactions.drain(..).map(|(transaction, _)| transaction).collect();
        let chunk = Chunk::default();
        draft.execution_result.iter_mut().for_each(|result| result.chunks = vec![chunk.clone()]);
        draft
    }

    /// Adds EVM transactions from place `first` on to the first transaction, and to the last one, which is to be the system's, the event that closes their
    /// EVM block as one of `closed` transactions. Each is told by the byte that its hash repeats, and uses 21,000 gas and as much as that byte.
    pub fn evm_block(&mut self, evm_height: u64, first: u16, came: &[u8], closed: &[u8]) {
        let service = hex::encode(Network::Emulator.accounts().service.0);
        let hash = |number: &u8| B256::repeat_byte(*number);
        let gas = |number: &u8| 21_000 + u64::from(*number);
        for (index, number) in (first..).zip(came) {
            let fields = [
                ("hash", cdc::bytes(hash(number).as_slice())),
                ("index", cdc::number("UInt16", index)),
                ("type", cdc::number("UInt8", 255)),
                ("payload", cdc::bytes(&[0xff])),
                ("gasConsumed", cdc::number("UInt64", gas(number))),
                ("blockHeight", cdc::number("UInt64", evm_height)),
            ];
            self.push_event(0, &format!("A.{service}.EVM.TransactionExecuted"), &fields);
        }
        let hashes: Vec<B256> = closed.iter().map(hash).collect();
        let fields = [
            ("height", cdc::number("UInt64", evm_height)),
            ("hash", cdc::bytes(&[evm_height as u8; 32])),
            ("timestamp", cdc::number("UInt64", 1_770_000_000)),
            ("totalGasUsed", cdc::number("UInt64", closed.iter().map(gas).sum::<u64>())),
            ("parentHash", cdc::bytes(&[evm_height.wrapping_sub(1) as u8; 32])),
            ("transactionHashRoot", cdc::bytes(transaction_hash_root(&hashes).as_slice())),
        ];
        let last = self.transactions.len().saturating_sub(1);
        self.push_event(last, &format!("A.{service}.EVM.BlockExecuted"), &fields);
    }

    fn push_event(&mut self, transaction: usize, event_type: &str, fields: &[(&str, Cdc)]) {
        let Some((_, result)) = self.transactions.get_mut(transaction) else { return };
        result.events.push(Event {
            r#type: event_type.to_owned(),
            transaction_id: result.transaction_id.clone(),
            transaction_index: transaction as u32,
            event_index: result.events.len() as u32,
            payload: cdc::event(event_type, fields),
        });
    }

    /// Gives the collections the ids of the transactions that they have now.
    pub fn name_collections(&mut self) {
        for guarantee in &mut self.block.collection_guarantees {
            let is_in = |result: &TransactionResult| result.collection_id == guarantee.collection_id;
            let ids: Vec<_> = self
                .transactions
                .iter()
                .filter(|(_, result)| is_in(result))
                .map(|(transaction, _)| transaction_id(transaction))
                .collect();
            let id = Bytes::copy_from_slice(&collection_id(&ids));
            for (_, result) in self.transactions.iter_mut().filter(|(_, result)| is_in(result)) {
                result.collection_id = id.clone();
            }
            guarantee.collection_id = id;
        }
    }

    /// Gives the collections the ids of transactions whose messages were changed after [`Draft::parts`]; all of these must be readable.
    pub fn name_collections_of(&mut self, parts: &mut BlockParts) {
        for ((transaction, _), message) in self.transactions.iter_mut().zip(&parts.transactions) {
            *transaction = Transaction::decode(message.as_ref()).expect("a test's own message");
        }
        self.name_collections();
        let named = self.parts();
        (parts.block, parts.results) = (named.block, named.results);
    }

    /// All transactions that the node names, in order.
    pub fn all_transactions(&self) -> impl Iterator<Item = &Transaction> {
        let is_system = |result: &TransactionResult| result.collection_id.iter().all(|byte| *byte == 0);
        let users = self.transactions.iter().take_while(move |(_, result)| !is_system(result)).count();
        let (users, system) = self.transactions.split_at(users);
        let users = users.iter().map(|(transaction, _)| transaction);
        users.chain(&self.not_executed).chain(system.iter().map(|(transaction, _)| transaction))
    }

    /// As a node gives it.
    pub fn parts(&self) -> BlockParts {
        BlockParts {
            block: self.block.encode_to_vec().into(),
            transactions: self.all_transactions().map(|tx| tx.encode_to_vec().into()).collect(),
            results: self.transactions.iter().map(|(_, result)| result.encode_to_vec().into()).collect(),
            execution_result: self.execution_result.as_ref().map(|result| result.encode_to_vec().into()),
        }
    }
}
