//! An access node over blocks that were made up: the calls, limits and refusals of a real one.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use cairn_flow::id::transaction_id;
use cairn_flow::proto::{self, Block, BlockHeader, BlockStatus, TransactionResult};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status};

use crate::blocks::Draft;

/// What the node has and how it behaves.
#[derive(Default)]
pub struct Chain {
    pub network: &'static str,
    pub root_height: u64,
    pub blocks: BTreeMap<u64, Draft>,
    /// No bulk calls: a node of an old spork.
    pub is_old: bool,
    /// The largest answer that it gives.
    pub max_answer_bytes: usize,
    /// It does not say whether a block is sealed.
    pub is_silent_on_seals: bool,
    /// Bulk results fail over one transaction's message.
    pub is_bulk_broken: bool,
    /// More than so many requests within a second are refused.
    pub requests_per_s: Option<usize>,
    /// How the calls went.
    pub asked: BTreeMap<String, usize>,
    pub refused: usize,
    pub recent: VecDeque<Instant>,
}

/// A node that listens.
#[derive(Clone)]
pub struct FlowNode {
    pub chain: Arc<Mutex<Chain>>,
    pub url: String,
}

impl FlowNode {
    pub async fn start(chain: Chain) -> FlowNode {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let node = FlowNode { chain: Arc::new(Mutex::new(chain)), url };
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let service = node.clone();
        tokio::spawn(async move {
            tonic::transport::Server::builder().serve_with_incoming(service, incoming).await.expect("serves");
        });
        node
    }

    pub fn asked(&self, call: &str) -> usize {
        self.chain.lock().expect("not poisoned").asked.get(call).copied().unwrap_or(0)
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

impl Chain {
    pub fn new(blocks: BTreeMap<u64, Draft>) -> Chain {
        let root_height = blocks.keys().next().copied().unwrap_or(0);
        Chain {
            network: "flow-emulator",
            root_height,
            blocks,
            max_answer_bytes: usize::MAX,
            ..Chain::default()
        }
    }

    fn by_height(&self, height: u64) -> Result<&Draft, Status> {
        if height < self.root_height {
            let root = self.root_height;
            return Err(Status::not_found(format!(
                "block height {height} is less than the spork root block height {root}. Try to use a historic node"
            )));
        }
        self.blocks.get(&height).ok_or_else(|| Status::not_found("not found: key not found"))
    }

    fn by_id(&self, id: &[u8]) -> Result<&Draft, Status> {
        self.blocks
            .values()
            .find(|draft| draft.block.id == id)
            .ok_or_else(|| Status::not_found("key not found"))
    }

    fn tip(&self) -> Result<&Draft, Status> {
        self.blocks.values().next_back().ok_or_else(|| Status::not_found("no block"))
    }

    fn answer(&mut self, call: &str, question: Bytes) -> Result<Bytes, Status> {
        let now = Instant::now();
        while self.recent.front().is_some_and(|at| now.duration_since(*at) >= Duration::from_secs(1)) {
            self.recent.pop_front();
        }
        if self.requests_per_s.is_some_and(|limit| self.recent.len() >= limit) {
            self.refused += 1;
            return Err(Status::resource_exhausted("rate limit exceeded"));
        }
        self.recent.push_back(now);
        *self.asked.entry(call.to_owned()).or_default() += 1;
        let answer = self.found(call, question)?;
        if answer.len() > self.max_answer_bytes {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({} vs. {})",
                answer.len(),
                self.max_answer_bytes
            )));
        }
        Ok(answer)
    }

    fn found(&self, call: &str, question: Bytes) -> Result<Bytes, Status> {
        let bulk =
            ["GetTransactionsByBlockID", "GetTransactionResultsByBlockID", "GetTransactionResultByIndex"];
        if self.is_old && bulk.contains(&call) {
            return Err(Status::unimplemented(format!("unknown method {call}")));
        }
        let result = |(_, result): &(proto::Transaction, TransactionResult)| -> Bytes {
            result.encode_to_vec().into()
        };
        Ok(match call {
            "GetNetworkParameters" => {
                encoded(&proto::GetNetworkParametersResponse { chain_id: self.network.into() })
            }
            "GetNodeVersionInfo" => encoded(&proto::GetNodeVersionInfoResponse {
                info: Some(proto::NodeVersionInfo {
                    spork_root_block_height: self.root_height,
                    node_root_block_height: self.root_height,
                    ..proto::NodeVersionInfo::default()
                }),
            }),
            "GetLatestBlockHeader" => header(&self.tip()?.block),
            "GetBlockHeaderByHeight" => {
                header(&self.by_height(read::<proto::GetBlockHeaderByHeightRequest>(question)?.height)?.block)
            }
            "GetBlockByHeight" => {
                let draft = self.by_height(read::<proto::GetBlockByHeightRequest>(question)?.height)?;
                encoded(&proto::BlockResponse {
                    block: Some(draft.block.encode_to_vec().into()),
                    block_status: if self.is_silent_on_seals {
                        BlockStatus::Unknown
                    } else {
                        BlockStatus::Sealed
                    } as i32,
                })
            }
            "GetTransactionsByBlockID" => {
                let draft =
                    self.by_id(&read::<proto::GetTransactionsByBlockIdRequest>(question)?.block_id)?;
                let transactions =
                    draft.transactions.iter().map(|(tx, _)| tx.encode_to_vec().into()).collect();
                encoded(&proto::TransactionsResponse { transactions })
            }
            "GetTransactionResultsByBlockID" => {
                let draft =
                    self.by_id(&read::<proto::GetTransactionsByBlockIdRequest>(question)?.block_id)?;
                if self.is_bulk_broken {
                    return Err(Status::internal(
                        "transaction failed but error message is empty for tx ID: 0",
                    ));
                }
                let transaction_results = draft.transactions.iter().map(result).collect();
                encoded(&proto::TransactionResultsResponse { transaction_results })
            }
            "GetTransactionResultByIndex" => {
                let question = read::<proto::GetTransactionByIndexRequest>(question)?;
                let draft = self.by_id(&question.block_id)?;
                let found = draft.transactions.get(question.index as usize).map(result);
                found.ok_or_else(|| Status::not_found("no such index"))?
            }
            "GetCollectionByID" => {
                let id = read::<proto::ByIdRequest>(question)?.id;
                let in_it = self.blocks.values().flat_map(|draft| &draft.transactions);
                // Made-up collections have the same ids in every block: the last block's is meant.
                let in_it: Vec<Bytes> = in_it
                    .filter(|(_, result)| result.collection_id == id)
                    .map(|(tx, _)| Bytes::copy_from_slice(transaction_id(tx).as_bytes()))
                    .collect();
                let collection = Some(proto::Collection { id, transaction_ids: in_it });
                encoded(&proto::CollectionResponse { collection })
            }
            "GetTransaction" | "GetTransactionResult" => {
                let question = read::<proto::GetTransactionRequest>(question)?;
                let draft = self.by_id(&question.block_id)?;
                let found = draft
                    .transactions
                    .iter()
                    .find(|(tx, _)| question.id == transaction_id(tx).as_bytes()[..]);
                let (tx, result) = found.ok_or_else(|| Status::not_found("no such transaction"))?;
                match call {
                    "GetTransaction" => {
                        encoded(&proto::TransactionResponse { transaction: Some(tx.encode_to_vec().into()) })
                    }
                    // Old nodes say less.
                    _ => encoded(&TransactionResult { collection_id: Bytes::new(), ..result.clone() }),
                }
            }
            "GetExecutionResultForBlockID" => {
                let draft = self.by_id(&read::<proto::ByIdRequest>(question)?.id)?;
                let execution_result =
                    draft.execution_result.as_ref().map(|result| result.encode_to_vec().into());
                encoded(&proto::ExecutionResultResponse { execution_result })
            }
            _ => return Err(Status::unimplemented(format!("unknown method {call}"))),
        })
    }
}

fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn read<M: Message + Default>(question: Bytes) -> Result<M, Status> {
    M::decode(question).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn header(block: &Block) -> Bytes {
    encoded(&proto::BlockHeaderResponse {
        block: Some(BlockHeader {
            id: block.id.clone(),
            parent_id: block.parent_id.clone(),
            height: block.height,
            ..BlockHeader::default()
        }),
        block_status: BlockStatus::Sealed as i32,
    })
}

impl NamedService for FlowNode {
    const NAME: &'static str = "flow.access.AccessAPI";
}

impl tower::Service<http::Request<Body>> for FlowNode {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let chain = self.chain.clone();
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            let call = path.rsplit('/').next().unwrap_or_default().to_owned();
            let mut grpc = Grpc::new(Plain);
            if call == "SubscribeBlockDigestsFromStartHeight" {
                let digests = tower::service_fn(move |request: Request<Bytes>| {
                    let chain = chain.clone();
                    async move {
                        let from = read::<proto::SubscribeBlockDigestsRequest>(request.into_inner())?
                            .start_block_height;
                        let stream = futures::stream::once(async move {
                            loop {
                                let found = chain.lock().expect("not poisoned").by_height(from).ok().cloned();
                                if let Some(draft) = found {
                                    let digest =
                                        proto::BlockDigest { block_id: draft.block.id, block_height: from };
                                    return Ok::<_, Status>(encoded(&digest));
                                }
                                tokio::time::sleep(Duration::from_millis(20)).await;
                            }
                        });
                        Ok::<_, Status>(Response::new(Box::pin(stream)))
                    }
                });
                return Ok(grpc.server_streaming(digests, request).await);
            }
            let unary = tower::service_fn(move |request: Request<Bytes>| {
                let answer = chain.lock().expect("not poisoned").answer(&call, request.into_inner());
                async move { answer.map(Response::new) }
            });
            Ok(grpc.unary(unary, request).await)
        })
    }
}

/// Bytes in, bytes out.
#[derive(Clone, Copy)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Plain;
    type Decoder = Plain;

    fn encoder(&mut self) -> Plain {
        Plain
    }

    fn decoder(&mut self) -> Plain {
        Plain
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
