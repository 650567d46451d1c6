//! The Access API messages that an indexer of sealed blocks needs (onflow/flow `protobuf/flow/access` and `flow/entities`), each with the
//! fields that cairn reads. Written out here, since derived messages need no compiler of `.proto` files. Fields that are not
//! named here are kept all the same: messages are cut by [`crate::block`], never encoded anew.
#![allow(missing_docs, reason = "names and numbers are those of the Access API")]

use bytes::Bytes;
use prost::{Enumeration, Message};

/// A point in time (google.protobuf.Timestamp).
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Timestamp {
    /// Milliseconds since 1970; times before count as 0.
    pub fn millis(&self) -> u64 {
        let millis = self.seconds.saturating_mul(1000).saturating_add(i64::from(self.nanos / 1_000_000));
        u64::try_from(millis).unwrap_or(0)
    }
}

/// How far a block is (`flow.entities.BlockStatus`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum BlockStatus {
    Unknown = 0,
    Finalized = 1,
    Sealed = 2,
}

/// How far a transaction is (`flow.entities.TransactionStatus`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub enum TransactionStatus {
    Unknown = 0,
    Pending = 1,
    Finalized = 2,
    Executed = 3,
    Sealed = 4,
    Expired = 5,
}

/// `SubscribeBlockDigestsFromStartHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct SubscribeBlockDigestsRequest {
    #[prost(uint64, tag = "1")]
    pub start_block_height: u64,
    #[prost(enumeration = "BlockStatus", tag = "2")]
    pub block_status: i32,
}

/// One message of a stream of digests.
#[derive(Clone, PartialEq, Message)]
pub struct BlockDigest {
    #[prost(bytes = "bytes", tag = "1")]
    pub block_id: Bytes,
    #[prost(uint64, tag = "2")]
    pub block_height: u64,
}

/// `GetLatestBlockHeader`.
#[derive(Clone, PartialEq, Message)]
pub struct GetLatestBlockHeaderRequest {
    #[prost(bool, tag = "1")]
    pub is_sealed: bool,
}

/// `GetBlockHeaderByHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct GetBlockHeaderByHeightRequest {
    #[prost(uint64, tag = "1")]
    pub height: u64,
}

/// `GetBlockByHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct GetBlockByHeightRequest {
    #[prost(uint64, tag = "1")]
    pub height: u64,
    #[prost(bool, tag = "2")]
    pub full_block_response: bool,
}

/// `GetCollectionByID`, and others that ask by an id alone.
#[derive(Clone, PartialEq, Message)]
pub struct ByIdRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
}

/// `GetTransaction` and `GetTransactionResult`.
#[derive(Clone, PartialEq, Message)]
pub struct GetTransactionRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub block_id: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub collection_id: Bytes,
}

/// `GetTransactionResultByIndex`.
#[derive(Clone, PartialEq, Message)]
pub struct GetTransactionByIndexRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub block_id: Bytes,
    #[prost(uint32, tag = "2")]
    pub index: u32,
}

/// `GetTransactionsByBlockID` and `GetTransactionResultsByBlockID`.
#[derive(Clone, PartialEq, Message)]
pub struct GetTransactionsByBlockIdRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub block_id: Bytes,
}

/// `ExecuteScriptAtBlockHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct ExecuteScriptAtBlockHeightRequest {
    #[prost(uint64, tag = "1")]
    pub block_height: u64,
    #[prost(bytes = "bytes", tag = "2")]
    pub script: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub arguments: Vec<Bytes>,
}

/// `ExecuteScriptAtBlockID`.
#[derive(Clone, PartialEq, Message)]
pub struct ExecuteScriptAtBlockIdRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub block_id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub script: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub arguments: Vec<Bytes>,
}

/// `GetAccountAtBlockHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct GetAccountAtBlockHeightRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub address: Bytes,
    #[prost(uint64, tag = "2")]
    pub block_height: u64,
}

/// A request without fields.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct EmptyRequest {}

/// `GetNetworkParameters`.
#[derive(Clone, PartialEq, Message)]
pub struct GetNetworkParametersResponse {
    #[prost(string, tag = "1")]
    pub chain_id: String,
}

/// `GetNodeVersionInfo`.
#[derive(Clone, PartialEq, Message)]
pub struct GetNodeVersionInfoResponse {
    #[prost(message, optional, tag = "1")]
    pub info: Option<NodeVersionInfo>,
}

/// What a node is and can serve.
#[derive(Clone, PartialEq, Message)]
pub struct NodeVersionInfo {
    #[prost(string, tag = "1")]
    pub semver: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub spork_id: Bytes,
    #[prost(uint64, tag = "5")]
    pub spork_root_block_height: u64,
    #[prost(uint64, tag = "6")]
    pub node_root_block_height: u64,
}

/// `GetLatestBlockHeader` and `GetBlockHeaderBy…`.
#[derive(Clone, PartialEq, Message)]
pub struct BlockHeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub block: Option<BlockHeader>,
    #[prost(enumeration = "BlockStatus", tag = "2")]
    pub block_status: i32,
}

/// `GetBlockBy…`, with the block as it came.
#[derive(Clone, PartialEq, Message)]
pub struct BlockResponse {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub block: Option<Bytes>,
    #[prost(enumeration = "BlockStatus", tag = "2")]
    pub block_status: i32,
}

/// `GetCollectionByID`.
#[derive(Clone, PartialEq, Message)]
pub struct CollectionResponse {
    #[prost(message, optional, tag = "1")]
    pub collection: Option<Collection>,
}

/// A collection: which transactions it holds, in order.
#[derive(Clone, PartialEq, Message)]
pub struct Collection {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub transaction_ids: Vec<Bytes>,
}

/// `GetTransactionsByBlockID`, each transaction as it came.
#[derive(Clone, PartialEq, Message)]
pub struct TransactionsResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub transactions: Vec<Bytes>,
}

/// `GetTransaction`, the transaction as it came.
#[derive(Clone, PartialEq, Message)]
pub struct TransactionResponse {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub transaction: Option<Bytes>,
}

/// `GetTransactionResultsByBlockID`, each result as it came.
#[derive(Clone, PartialEq, Message)]
pub struct TransactionResultsResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub transaction_results: Vec<Bytes>,
}

/// `GetExecutionResultForBlockID`, the result as it came.
#[derive(Clone, PartialEq, Message)]
pub struct ExecutionResultResponse {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub execution_result: Option<Bytes>,
}

/// `ExecuteScript…`.
#[derive(Clone, PartialEq, Message)]
pub struct ExecuteScriptResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub value: Bytes,
}

/// `GetAccountAt…`.
#[derive(Clone, PartialEq, Message)]
pub struct AccountResponse {
    #[prost(message, optional, tag = "1")]
    pub account: Option<Account>,
}

/// An account: its keys and contracts.
#[derive(Clone, PartialEq, Message)]
pub struct Account {
    #[prost(bytes = "bytes", tag = "1")]
    pub address: Bytes,
    #[prost(uint64, tag = "2")]
    pub balance: u64,
    #[prost(message, repeated, tag = "4")]
    pub keys: Vec<AccountKey>,
    #[prost(btree_map = "string, bytes", tag = "5")]
    pub contracts: std::collections::BTreeMap<String, Vec<u8>>,
}

/// A key of an account. `sign_algo` counts otherwise than events do: 1 is BLS, 2 ECDSA_P256, 3 ECDSA_secp256k1.
#[derive(Clone, PartialEq, Message)]
pub struct AccountKey {
    #[prost(uint32, tag = "1")]
    pub index: u32,
    #[prost(bytes = "bytes", tag = "2")]
    pub public_key: Bytes,
    #[prost(uint32, tag = "3")]
    pub sign_algo: u32,
    #[prost(uint32, tag = "4")]
    pub hash_algo: u32,
    #[prost(uint32, tag = "5")]
    pub weight: u32,
    #[prost(uint32, tag = "6")]
    pub sequence_number: u32,
    #[prost(bool, tag = "7")]
    pub revoked: bool,
}

/// A block's header.
#[derive(Clone, PartialEq, Message)]
pub struct BlockHeader {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub parent_id: Bytes,
    #[prost(uint64, tag = "3")]
    pub height: u64,
    #[prost(message, optional, tag = "4")]
    pub timestamp: Option<Timestamp>,
    #[prost(bytes = "bytes", tag = "5")]
    pub payload_hash: Bytes,
    #[prost(uint64, tag = "6")]
    pub view: u64,
    #[prost(bytes = "bytes", tag = "8")]
    pub parent_voter_sig_data: Bytes,
    #[prost(bytes = "bytes", tag = "9")]
    pub proposer_id: Bytes,
    #[prost(bytes = "bytes", tag = "10")]
    pub proposer_sig_data: Bytes,
    #[prost(string, tag = "11")]
    pub chain_id: String,
    #[prost(bytes = "bytes", tag = "12")]
    pub parent_voter_indices: Bytes,
    #[prost(uint64, tag = "14")]
    pub parent_view: u64,
}

/// A block without its transactions.
#[derive(Clone, PartialEq, Message)]
pub struct Block {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub parent_id: Bytes,
    #[prost(uint64, tag = "3")]
    pub height: u64,
    #[prost(message, optional, tag = "4")]
    pub timestamp: Option<Timestamp>,
    #[prost(message, repeated, tag = "5")]
    pub collection_guarantees: Vec<CollectionGuarantee>,
    #[prost(message, repeated, tag = "6")]
    pub block_seals: Vec<BlockSeal>,
    #[prost(message, optional, tag = "10")]
    pub block_header: Option<BlockHeader>,
}

/// That a collection belongs to a block.
#[derive(Clone, PartialEq, Message)]
pub struct CollectionGuarantee {
    #[prost(bytes = "bytes", tag = "1")]
    pub collection_id: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub reference_block_id: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    pub signature: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub signer_indices: Bytes,
    #[prost(bytes = "bytes", tag = "7")]
    pub cluster_chain_id: Bytes,
}

/// That an earlier block's result is agreed on.
#[derive(Clone, PartialEq, Message)]
pub struct BlockSeal {
    #[prost(bytes = "bytes", tag = "1")]
    pub block_id: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub final_state: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub result_id: Bytes,
}

/// A transaction. It has no id field: [`crate::id::transaction_id`].
#[derive(Clone, PartialEq, Message)]
pub struct Transaction {
    #[prost(bytes = "bytes", tag = "1")]
    pub script: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub arguments: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "3")]
    pub reference_block_id: Bytes,
    #[prost(uint64, tag = "4")]
    pub gas_limit: u64,
    #[prost(message, optional, tag = "5")]
    pub proposal_key: Option<ProposalKey>,
    #[prost(bytes = "bytes", tag = "6")]
    pub payer: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub authorizers: Vec<Bytes>,
    #[prost(message, repeated, tag = "8")]
    pub payload_signatures: Vec<Signature>,
    #[prost(message, repeated, tag = "9")]
    pub envelope_signatures: Vec<Signature>,
}

/// Whose sequence number a transaction uses up.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct ProposalKey {
    #[prost(bytes = "bytes", tag = "1")]
    pub address: Bytes,
    #[prost(uint32, tag = "2")]
    pub key_id: u32,
    #[prost(uint64, tag = "3")]
    pub sequence_number: u64,
}

/// A signature of a transaction.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Signature {
    #[prost(bytes = "bytes", tag = "1")]
    pub address: Bytes,
    #[prost(uint32, tag = "2")]
    pub key_id: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub signature: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    pub extension_data: Bytes,
}

/// What a transaction did.
#[derive(Clone, PartialEq, Message)]
pub struct TransactionResult {
    #[prost(enumeration = "TransactionStatus", tag = "1")]
    pub status: i32,
    #[prost(uint32, tag = "2")]
    pub status_code: u32,
    #[prost(string, tag = "3")]
    pub error_message: String,
    #[prost(message, repeated, tag = "4")]
    pub events: Vec<Event>,
    #[prost(bytes = "bytes", tag = "5")]
    pub block_id: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub transaction_id: Bytes,
    #[prost(bytes = "bytes", tag = "7")]
    pub collection_id: Bytes,
    #[prost(uint64, tag = "8")]
    pub block_height: u64,
    #[prost(uint64, tag = "10")]
    pub computation_usage: u64,
}

/// The number of the field of a result that holds its events.
pub(crate) const RESULT_EVENTS: u32 = 4;
/// The number of the field of a result that names its block.
pub(crate) const RESULT_BLOCK: u32 = 5;
/// The number of the field of a result that names its transaction.
pub(crate) const RESULT_TRANSACTION: u32 = 6;
/// The number of the field of a result that names its collection.
pub(crate) const RESULT_COLLECTION: u32 = 7;
/// The number of the field of a result that says something of the node.
pub(crate) const RESULT_METADATA: u32 = 9;

/// An event; its payload is JSON-CDC.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Event {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub transaction_id: Bytes,
    #[prost(uint32, tag = "3")]
    pub transaction_index: u32,
    #[prost(uint32, tag = "4")]
    pub event_index: u32,
    #[prost(bytes = "bytes", tag = "5")]
    pub payload: Bytes,
}

/// What executing a block gave.
#[derive(Clone, PartialEq, Message)]
pub struct ExecutionResult {
    #[prost(bytes = "bytes", tag = "1")]
    pub previous_result_id: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub block_id: Bytes,
    #[prost(message, repeated, tag = "3")]
    pub chunks: Vec<Chunk>,
    #[prost(message, repeated, tag = "4")]
    pub service_events: Vec<ServiceEvent>,
    #[prost(bytes = "bytes", tag = "5")]
    pub execution_data_id: Bytes,
}

/// An event by which the chain's contracts tell the protocol something.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ServiceEvent {
    /// Its kind, such as `setup` or `version-beacon`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// JSON.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
}

/// One collection's share of an execution.
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    #[prost(uint32, tag = "1")]
    pub collection_index: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub event_collection: Bytes,
    #[prost(uint64, tag = "5")]
    pub total_computation_used: u64,
    #[prost(uint32, tag = "6")]
    pub number_of_transactions: u32,
    #[prost(uint64, tag = "7")]
    pub index: u64,
}
