//! The node itself: gRPC on loopback, bytes in and bytes out.
//!
//! **Shutdown.** A node serves until it is dropped; its task ends with it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use futures::stream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status};

use crate::answers::{of_stream, read};
use crate::behaviour::{Behaviour, Bucket, Counts};
use crate::chain::Chain;
use crate::ledger::Ledger;
use crate::messages::SubscribeRequest;

/// The largest request that is taken, as grpc-go's default has it.
const MAX_REQUEST_BYTES: usize = 4 << 20;
/// How often a stream looks for its next block.
const STREAM_LOOK: Duration = Duration::from_millis(20);

/// All that a node has.
#[derive(Debug)]
pub struct State {
    /// Its blocks.
    pub chain: Chain,
    /// What is true of them; empty for blocks that nobody generated.
    pub ledger: Ledger,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// What it was asked.
    pub counts: Counts,
    bucket: Bucket,
}

impl State {
    /// With blocks and what is true of them.
    pub fn new(chain: Chain, ledger: Ledger, behaviour: Behaviour) -> State {
        State { chain, ledger, behaviour, counts: Counts::default(), bucket: Bucket::default() }
    }

    /// Counts a request, or refuses it.
    fn admit(&mut self, call: &str) -> Result<(), Status> {
        let now = Instant::now();
        if let Some(limit) = self.behaviour.rate_limit
            && !self.bucket.take(limit, now)
        {
            self.counts.refused += 1;
            return Err(Status::resource_exhausted(format!(
                "{call} is rejected: rate limit of {} requests/s exceeded, please retry later",
                limit.per_s
            )));
        }
        let first = self.counts.between.map_or(now, |(first, _)| first);
        self.counts.between = Some((first, now));
        *self.counts.asked.entry(call.to_owned()).or_default() += 1;
        Ok(())
    }

    fn answer(&mut self, call: &str, question: Bytes) -> Result<Bytes, Status> {
        self.admit(call)?;
        let answer = self.found(call, question)?;
        let most = self.behaviour.max_answer_bytes;
        if answer.len() > most {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({} vs. {most})",
                answer.len(),
            )));
        }
        Ok(answer)
    }
}

/// A node that listens.
#[derive(Clone)]
pub struct FlowNode {
    /// All that it has; may be changed while it serves.
    pub state: Arc<Mutex<State>>,
    /// Its gRPC address.
    pub url: String,
    /// Ends the server when the last handle is gone.
    _running: Arc<Running>,
}

struct Running(tokio::task::JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl FlowNode {
    /// Serves blocks that nobody knows more about, on a port of its own.
    pub async fn start(chain: Chain, behaviour: Behaviour) -> std::io::Result<FlowNode> {
        let ledger = Ledger::new(chain.network);
        FlowNode::serve(Arc::new(Mutex::new(State::new(chain, ledger, behaviour)))).await
    }

    /// Serves what a generator makes.
    pub async fn serve(state: Arc<Mutex<State>>) -> std::io::Result<FlowNode> {
        FlowNode::serve_at("127.0.0.1:0", state).await
    }

    /// Serves at an address: as a node that was away and comes back.
    pub async fn serve_at(address: &str, state: Arc<Mutex<State>>) -> std::io::Result<FlowNode> {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let service = Access(state.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) =
                tonic::transport::Server::builder().serve_with_incoming(service, incoming).await
            {
                println!("the access node ended: {error}");
            }
        });
        Ok(FlowNode { state, url, _running: Arc::new(Running(serving)) })
    }

    /// Its state, for as long as the guard lives.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// How often a call was made.
    pub fn asked(&self, call: &str) -> u64 {
        self.state().counts.asked.get(call).copied().unwrap_or(0)
    }

    /// What it was asked since this was called last.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.state().counts)
    }
}

pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
struct Access(Arc<Mutex<State>>);

impl NamedService for Access {
    const NAME: &'static str = "flow.access.AccessAPI";
}

impl tower::Service<http::Request<Body>> for Access {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let state = self.0.clone();
        let path = request.uri().path().to_owned();
        Box::pin(async move {
            let call = path.rsplit('/').next().unwrap_or_default().to_owned();
            let mut grpc = Grpc::new(Plain).max_decoding_message_size(MAX_REQUEST_BYTES);
            if call.starts_with("SubscribeBlock") && call.ends_with("FromStartHeight") {
                let blocks = tower::service_fn(move |request: Request<Bytes>| {
                    let (state, call) = (state.clone(), call.clone());
                    async move {
                        {
                            let mut state = lock(&state);
                            state.admit(&call)?;
                            state.may_fail(&call)?;
                        }
                        let from = read::<SubscribeRequest>(request.into_inner())?.start_block_height;
                        Ok::<_, Status>(Response::new(Box::pin(sealed_from(state, call, from))))
                    }
                });
                return Ok(grpc.server_streaming(blocks, request).await);
            }
            let unary = tower::service_fn(move |request: Request<Bytes>| {
                let (answer, hangs) = {
                    let mut state = lock(&state);
                    let hangs = state.behaviour.hanging == Some(call.as_str());
                    (state.answer(&call, request.into_inner()), hangs)
                };
                async move {
                    if hangs {
                        std::future::pending::<()>().await;
                    }
                    answer.map(Response::new)
                }
            });
            Ok(grpc.unary(unary, request).await)
        })
    }
}

/// Sealed blocks from a height on, each when it is there. What was told of is not told again, whatever becomes of it.
fn sealed_from(
    state: Arc<Mutex<State>>,
    call: String,
    from: u64,
) -> impl futures::Stream<Item = Result<Bytes, Status>> + Send {
    stream::unfold((state, call, from), |(state, call, height)| async move {
        loop {
            let found = {
                let state = lock(&state);
                let block = state.chain.at(height).filter(|_| state.chain.is_sealed(height));
                block.map(|block| of_stream(&call, block))
            };
            if let Some(message) = found {
                return Some((Ok(message), (state, call, height + 1)));
            }
            tokio::time::sleep(STREAM_LOOK).await;
        }
    })
}

/// Bytes in, bytes out.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

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
