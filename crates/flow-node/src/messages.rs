//! Messages of calls that cairn doesn't make, in the shapes of onflow/flow `protobuf/flow/access`.

use bytes::Bytes;
use cairn_flow::proto::{BlockHeader, Event, Timestamp, Transaction};
use prost::Message;

/// `GetEventsForHeightRange`.
#[derive(Clone, PartialEq, Message)]
pub struct EventsForHeightRangeRequest {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(uint64, tag = "2")]
    pub start_height: u64,
    #[prost(uint64, tag = "3")]
    pub end_height: u64,
}

/// `GetEventsForBlockIDs`.
#[derive(Clone, PartialEq, Message)]
pub struct EventsForBlockIdsRequest {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub block_ids: Vec<Bytes>,
}

/// The answer to both.
#[derive(Clone, PartialEq, Message)]
pub struct EventsResponse {
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<EventsResult>,
}

/// The events of one block.
#[derive(Clone, PartialEq, Message)]
pub struct EventsResult {
    #[prost(bytes = "bytes", tag = "1")]
    pub block_id: Bytes,
    #[prost(uint64, tag = "2")]
    pub block_height: u64,
    #[prost(message, repeated, tag = "3")]
    pub events: Vec<Event>,
    #[prost(message, optional, tag = "4")]
    pub block_timestamp: Option<Timestamp>,
}

/// `ExecuteScriptAtLatestBlock`.
#[derive(Clone, PartialEq, Message)]
pub struct ExecuteScriptAtLatestRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub script: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub arguments: Vec<Bytes>,
}

/// `GetAccountBalanceAtBlockHeight`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct BalanceResponse {
    #[prost(uint64, tag = "1")]
    pub balance: u64,
}

/// `Subscribe…FromStartHeight`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SubscribeRequest {
    #[prost(uint64, tag = "1")]
    pub start_block_height: u64,
    #[prost(int32, tag = "2")]
    pub block_status: i32,
}

/// `SubscribeBlockHeadersFromStartHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderOfStream {
    #[prost(message, optional, tag = "1")]
    pub header: Option<BlockHeader>,
}

/// `SubscribeBlocksFromStartHeight`.
#[derive(Clone, PartialEq, Message)]
pub struct BlockOfStream {
    #[prost(bytes = "bytes", tag = "1")]
    pub block: Bytes,
}

/// `SendTransaction`.
#[derive(Clone, PartialEq, Message)]
pub struct SendTransactionRequest {
    #[prost(message, optional, tag = "1")]
    pub transaction: Option<Transaction>,
}

/// Its answer.
#[derive(Clone, PartialEq, Message)]
pub struct SendTransactionResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
}
