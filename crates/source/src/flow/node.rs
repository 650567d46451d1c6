//! One access node: its connection, its pace, and the calls of the Access API.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{ErrorKind, Height};
use cairn_flow::{Network, proto};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::Semaphore;
use tonic::client::Grpc;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use super::classify::{Refusal, classify};
use super::codec::Plain;
use super::config::{FlowConfig, NodeConfig};
use super::health::Health;
use super::identity::{Standing, Unanswered};
use super::lacks::Lacks;
use super::memory::Memory;
use crate::pace::Pace;
use crate::{Result, SourceError};

/// How long a connection with a question under way may be silent before it is asked whether it is there, and how long it has to answer that.
const PING_AFTER: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How often one question is asked of a node that says "too often".
const RATE_LIMITED_TRIES: u32 = 6;

/// The calls that are made; the names are those of `flow.access.AccessAPI`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    NetworkParameters,
    NodeVersionInfo,
    LatestBlockHeader,
    BlockHeaderByHeight,
    BlockByHeight,
    CollectionById,
    Transaction,
    TransactionResult,
    TransactionResultByIndex,
    TransactionsByBlockId,
    TransactionResultsByBlockId,
    SystemTransaction,
    SystemTransactionResult,
    ExecutionResultForBlockId,
    SubscribeBlockDigests,
    ExecuteScriptAtBlockId,
    AccountAtBlockHeight,
}

impl Call {
    fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Call::NetworkParameters => "/flow.access.AccessAPI/GetNetworkParameters",
            Call::NodeVersionInfo => "/flow.access.AccessAPI/GetNodeVersionInfo",
            Call::LatestBlockHeader => "/flow.access.AccessAPI/GetLatestBlockHeader",
            Call::BlockHeaderByHeight => "/flow.access.AccessAPI/GetBlockHeaderByHeight",
            Call::BlockByHeight => "/flow.access.AccessAPI/GetBlockByHeight",
            Call::CollectionById => "/flow.access.AccessAPI/GetCollectionByID",
            Call::Transaction => "/flow.access.AccessAPI/GetTransaction",
            Call::TransactionResult => "/flow.access.AccessAPI/GetTransactionResult",
            Call::TransactionResultByIndex => "/flow.access.AccessAPI/GetTransactionResultByIndex",
            Call::TransactionsByBlockId => "/flow.access.AccessAPI/GetTransactionsByBlockID",
            Call::TransactionResultsByBlockId => "/flow.access.AccessAPI/GetTransactionResultsByBlockID",
            Call::SystemTransaction => "/flow.access.AccessAPI/GetSystemTransaction",
            Call::SystemTransactionResult => "/flow.access.AccessAPI/GetSystemTransactionResult",
            Call::ExecutionResultForBlockId => "/flow.access.AccessAPI/GetExecutionResultForBlockID",
            Call::ExecuteScriptAtBlockId => "/flow.access.AccessAPI/ExecuteScriptAtBlockID",
            Call::AccountAtBlockHeight => "/flow.access.AccessAPI/GetAccountAtBlockHeight",
            Call::SubscribeBlockDigests => "/flow.access.AccessAPI/SubscribeBlockDigestsFromStartHeight",
        })
    }

    /// Whether it needs the execution state, which nodes ration.
    fn is_of_state(self) -> bool {
        matches!(self, Call::ExecuteScriptAtBlockId | Call::AccountAtBlockHeight)
    }
}

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    /// Its place among all.
    pub index: usize,
    /// Where it is, without whatever of its address is secret.
    pub name: String,
    /// What was configured of it.
    pub configured: NodeConfig,
    /// The network that it has to serve.
    pub network: Network,
    pub(super) standing: Mutex<Standing>,
    /// Held by whoever asks it what it is.
    pub(super) introduction: tokio::sync::Mutex<Option<Unanswered>>,
    /// Whether it can be reached.
    pub health: Health,
    /// Which calls it doesn't have.
    lacks: Lacks,
    grpc: Grpc<Channel>,
    pace: Pace,
    /// That of scripts and accounts, beside the one of all: one that is refused for coming too soon holds no block up.
    state_pace: Pace,
    places: Semaphore,
    /// Room for answers, which all nodes share.
    memory: Arc<Memory>,
    timeout: Duration,
    /// How many execution results it did not have in a row, though they were waited for.
    pub results_withheld: AtomicU32,
    /// The highest sealed height that it told of.
    pub sealed_height: AtomicU64,
}

/// The longest announcement of a block that is taken, in bytes.
const MAX_DIGEST_BYTES: usize = 64 << 10;

/// What every refusal is, once it is known what it means.
pub(super) type Answer<T> = std::result::Result<T, Refusal>;

impl Node {
    /// Connects when it is first asked.
    pub fn new(index: usize, node: &NodeConfig, config: &FlowConfig, memory: Arc<Memory>) -> Result<Node> {
        let name = format!(
            "{}:{}",
            node.url.host_str().unwrap_or("?"),
            node.url.port_or_known_default().unwrap_or(0)
        );
        let refuse = |error: tonic::transport::Error| SourceError::Invalid(format!("{name}: {error}"));
        let mut endpoint = Endpoint::from_shared(node.url.to_string()).map_err(refuse)?;
        if node.url.scheme() == "https" {
            endpoint = endpoint.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(refuse)?;
        }
        let endpoint = endpoint
            .connect_timeout(Duration::from_millis(config.request_timeout_ms))
            // A connection that died without a word is noticed within the sum. grpc-go closes one after three pings that no data came between.
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .tcp_nodelay(true);
        let grpc = Grpc::new(endpoint.connect_lazy());
        Ok(Node {
            index,
            name,
            configured: node.clone(),
            network: config.network,
            standing: Mutex::new(Standing::Stranger),
            introduction: tokio::sync::Mutex::new(None),
            health: Health::default(),
            lacks: Lacks::default(),
            grpc,
            pace: Pace::new(node.requests_per_s),
            state_pace: Pace::new(node.scripts_per_s),
            places: Semaphore::new(config.requests_in_flight.max(1)),
            memory,
            timeout: Duration::from_millis(config.request_timeout_ms),
            results_withheld: AtomicU32::new(0),
            sealed_height: AtomicU64::new(0),
        })
    }

    /// One question. What the answer holds as bytes is not copied.
    pub async fn ask<Q, A>(&self, call: Call, question: Q) -> Answer<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default,
    {
        let answer = self.ask_raw(call, question).await?;
        A::decode(answer)
            .map_err(|error| Refusal::Transient(format!("the answer to {call:?} is malformed: {error}")))
    }

    /// One question, and the answer as it came. One that is refused for coming too soon is asked again a few times, after what
    /// the pace makes it wait: what was answered beside it is not thrown away.
    pub async fn ask_raw<Q: Message + Clone + 'static>(&self, call: Call, question: Q) -> Answer<Bytes> {
        if self.lacks.has_not(call) {
            return Err(Refusal::Unimplemented);
        }
        let pace = if call.is_of_state() { &self.state_pace } else { &self.pace };
        if call.is_of_state() {
            // Before a place is taken: those are for requests that may go.
            pace.slot().await;
        }
        let _place = self.places.acquire().await.map_err(|closed| Refusal::Transient(closed.to_string()))?;
        let mut tries = 0;
        loop {
            let refusal = match self.ask_once(call, question.clone()).await {
                Err(refusal @ Refusal::RateLimited(_)) => refusal,
                other => {
                    pace.answered();
                    if let Err(Refusal::BelowRoot { root_height, is_sporks }) = other {
                        self.begins_at(root_height, is_sporks);
                    }
                    return self.lacks.learn(call, other);
                }
            };
            metrics::counter!("cairn_source_rate_limited_total", "endpoint" => self.name.clone())
                .increment(1);
            pace.refused();
            tries += 1;
            // Whoever asks for state asks again by itself, and keeps no place from blocks meanwhile.
            if call.is_of_state() || tries >= RATE_LIMITED_TRIES {
                return Err(refusal);
            }
        }
    }

    /// An answer that is larger than was expected is asked for once more.
    async fn ask_once<Q: Message + Clone + 'static>(&self, call: Call, question: Q) -> Answer<Bytes> {
        let (mut most_bytes, mut is_again) = (self.memory.expected_bytes(call), false);
        loop {
            self.pace.slot().await;
            // Answers of other nodes may hold it, and those nodes may hang.
            let Ok(_room) = tokio::time::timeout(self.timeout, self.memory.room(most_bytes)).await else {
                let timeout_ms = self.timeout.as_millis();
                return Err(Refusal::Transient(format!(
                    "no room for the answer to {call:?} within {timeout_ms} ms"
                )));
            };
            match self.send(call, question.clone(), most_bytes).await {
                Ok(answer) => {
                    self.memory.learn(call, answer.len());
                    return Ok(answer);
                }
                Err(status) => match self.memory.needed_bytes(&status, most_bytes) {
                    Some(Ok(needed_bytes)) if !is_again => (most_bytes, is_again) = (needed_bytes, true),
                    Some(Err(message)) => return Err(Refusal::TooLarge(format!("{call:?}: {message}"))),
                    _ => return Err(classify(&status)),
                },
            }
        }
    }

    async fn send<Q: Message + 'static>(
        &self,
        call: Call,
        question: Q,
        most_bytes: usize,
    ) -> std::result::Result<Bytes, Status> {
        let mut grpc = self.grpc.clone().max_decoding_message_size(most_bytes);
        let asking = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.unary(Request::new(question), call.path(), Plain::<Q>::default()).await
        };
        let answer = tokio::time::timeout(self.timeout, asking).await;
        let is_silent = answer.is_err();
        let answer = answer.unwrap_or_else(|_| {
            let timeout_ms = self.timeout.as_millis();
            Err(Status::deadline_exceeded(format!("no answer to {call:?} within {timeout_ms} ms")))
        });
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(status) => word_of(status.code()),
        };
        metrics::counter!("cairn_source_requests_total", "endpoint" => self.name.clone(), "outcome" => outcome)
            .increment(1);
        match &answer {
            // One that says that something took too long, such as a stranger's script, has answered.
            Err(status) if is_silent || status.code() == Code::Unavailable => self.health.failed(),
            _ => self.health.answered(),
        }
        answer.map(tonic::Response::into_inner)
    }

    /// Returns when the node announces a sealed block from `height` up, or at most after `at_most`. A hint.
    pub async fn announced(&self, height: u64, at_most: Duration) {
        let request = proto::SubscribeBlockDigestsRequest {
            start_block_height: height,
            block_status: proto::BlockStatus::Sealed as i32,
        };
        let hearing = async {
            self.pace.slot().await;
            let mut grpc = self.grpc.clone().max_decoding_message_size(MAX_DIGEST_BYTES);
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = Call::SubscribeBlockDigests.path();
            let mut stream =
                grpc.server_streaming(Request::new(request), path, Plain::default()).await?.into_inner();
            stream.message().await
        };
        let deadline = tokio::time::Instant::now() + at_most;
        if self.lacks.has_not(Call::SubscribeBlockDigests) {
            return tokio::time::sleep_until(deadline).await;
        }
        match tokio::time::timeout_at(deadline, hearing).await {
            Ok(Ok(Some(_))) | Err(_) => return,
            Ok(Ok(None)) => {}
            Ok(Err(status)) => {
                _ = self.lacks.learn::<()>(Call::SubscribeBlockDigests, Err(classify(&status)));
            }
        }
        // It has no streams, or this one broke: what is left of the time is waited for.
        tokio::time::sleep_until(deadline).await;
    }

    /// A refusal as an error; "not there" is none.
    pub fn absent<T>(&self, answer: Answer<T>) -> Result<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(refusal) => match refusal.into_error(&self.name) {
                None => Ok(None),
                Some(error) => Err(error),
            },
        }
    }

    /// A height that the node names, where a chain can have it.
    pub fn believed(&self, height: u64) -> Result<Height> {
        Height::believable(height).map_err(|error| SourceError::Absurd { endpoint: self.name.clone(), error })
    }

    /// What the codec says of an answer.
    pub fn refused(&self, height: u64, error: &cairn_flow::FlowError) -> SourceError {
        debug_assert!(matches!(error.kind(), ErrorKind::Retry | ErrorKind::Wait));
        SourceError::Inconsistent {
            endpoint: self.name.clone(),
            height: Height(height),
            check: "flow_block".into(),
            message: error.to_string(),
        }
    }
}

/// A code as metrics name it.
fn word_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid-argument",
        Code::DeadlineExceeded => "deadline-exceeded",
        Code::NotFound => "not-found",
        Code::AlreadyExists => "already-exists",
        Code::PermissionDenied => "permission-denied",
        Code::ResourceExhausted => "resource-exhausted",
        Code::FailedPrecondition => "failed-precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out-of-range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data-loss",
        Code::Unauthenticated => "unauthenticated",
    }
}
