//! A mock node: a synthetic chain behind JSON-RPC over HTTP and WebSocket, with faults where a test wants them.

#![allow(missing_docs)]

pub mod ws;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response};
use cairn_core::{Height, RawBlock};
use cairn_source::evm::rpc::{RpcConfig, RpcLimits, RpcSource};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain, SyntheticOptions, to_rpc_json};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A call as it came.
#[derive(Debug, Clone)]
pub struct CallIn {
    pub id: Value,
    pub method: String,
    pub params: Vec<Value>,
    /// How often the method was called before.
    pub before: usize,
}

impl CallIn {
    /// The n-th parameter as a height.
    pub fn height(&self, at: usize) -> Option<u64> {
        quantity(self.params.get(at)?)
    }
}

/// What a call is answered.
#[derive(Debug, Clone)]
pub enum CallOut {
    Result(Value),
    Error(i64, &'static str),
    /// The answer leaves it out.
    Nothing,
}

/// What a whole request is answered, in place of its calls' answers.
pub enum HttpOut {
    Status(u16, Vec<(&'static str, String)>, String),
    Body(Vec<(&'static str, String)>, Vec<u8>),
    /// A body that comes in pieces, with pauses.
    Drip(Vec<Vec<u8>>, Duration),
    /// Nothing, for so long.
    Hang(Duration),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: Instant,
    pub calls: Vec<CallIn>,
    pub headers: HeaderMap,
}

type OnCall = Box<dyn FnMut(&CallIn) -> Option<CallOut> + Send>;
type OnHttp = Box<dyn FnMut(&[CallIn]) -> Option<HttpOut> + Send>;
type Arrange = Box<dyn FnMut(&mut Vec<Value>) + Send>;

/// What the node holds and does.
pub struct State {
    pub chain: Arc<SyntheticChain>,
    pub fork: ForkId,
    pub head: u64,
    pub chain_id: u64,
    pub finalized: Option<u64>,
    pub seen: Vec<Seen>,
    counts: HashMap<String, usize>,
    json: HashMap<(ForkId, u64), (Value, Vec<Value>)>,
    on_call: Option<OnCall>,
    on_http: Option<OnHttp>,
    arrange: Option<Arrange>,
}

/// A running node. Dropping it stops it.
pub struct MockNode {
    pub url: url::Url,
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
}

impl Drop for MockNode {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A small chain.
pub fn chain(seed: u64) -> Arc<SyntheticChain> {
    let options = SyntheticOptions { txs_per_block: 2..=4, ..SyntheticOptions::tiny(seed) };
    Arc::new(SyntheticChain::new(options))
}

/// Short times, so that tests are quick; everything else as by default.
pub fn quick() -> RpcLimits {
    RpcLimits {
        connect_timeout_ms: 2_000,
        idle_timeout_ms: 400,
        request_timeout_ms: 2_000,
        backoff_initial_ms: 10,
        backoff_max_ms: 100,
        not_yet_pause_ms: 5,
        ..RpcLimits::default()
    }
}

impl MockNode {
    pub async fn start(chain: Arc<SyntheticChain>, head: u64) -> MockNode {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let state = Arc::new(Mutex::new(State {
            chain_id: chain.chain_id().0,
            chain,
            fork: ForkId::MAIN,
            head,
            finalized: None,
            seen: Vec::new(),
            counts: HashMap::new(),
            json: HashMap::new(),
            on_call: None,
            on_http: None,
            arrange: None,
        }));
        let shared = state.clone();
        let app = axum::Router::new()
            .fallback(move |headers: HeaderMap, body: Bytes| {
                let shared = shared.clone();
                async move { answer(shared, headers, body).await }
            })
            .layer(axum::extract::DefaultBodyLimit::disable());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        MockNode { url, state, server }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn on_call(&self, hook: impl FnMut(&CallIn) -> Option<CallOut> + Send + 'static) {
        self.state().on_call = Some(Box::new(hook));
    }

    pub fn on_http(&self, hook: impl FnMut(&[CallIn]) -> Option<HttpOut> + Send + 'static) {
        self.state().on_http = Some(Box::new(hook));
    }

    pub fn arrange(&self, hook: impl FnMut(&mut Vec<Value>) + Send + 'static) {
        self.state().arrange = Some(Box::new(hook));
    }

    pub fn well(&self) {
        let mut state = self.state();
        (state.on_call, state.on_http, state.arrange) = (None, None, None);
    }

    /// The requests since the last look.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state().seen)
    }

    /// The calls of a method since the last look.
    pub fn take_calls(&self, method: &str) -> Vec<CallIn> {
        self.take_seen()
            .into_iter()
            .flat_map(|seen| seen.calls)
            .filter(|call| call.method == method)
            .collect()
    }

    /// The block that the node holds at a height.
    pub fn block(&self, height: u64) -> RawBlock {
        let state = self.state();
        RawBlock::clone(&state.chain.block(state.fork, Height(height)))
    }

    pub fn blocks(&self, heights: std::ops::Range<u64>) -> Vec<RawBlock> {
        heights.map(|height| self.block(height)).collect()
    }

    /// The block's JSON and its receipts.
    pub fn json(&self, height: u64) -> (Value, Vec<Value>) {
        self.state().json(height)
    }
}

/// A source over nodes, the first one preferred, with quick limits.
pub async fn source(nodes: &[&MockNode]) -> RpcSource {
    RpcSource::connect(config(nodes)).await.unwrap()
}

pub fn config(nodes: &[&MockNode]) -> RpcConfig {
    let mut config = RpcConfig::new(nodes.iter().map(|node| node.url.clone()).collect());
    config.limits = quick();
    config.seed = 7;
    config
}

fn quantity(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

impl State {
    pub fn json(&mut self, height: u64) -> (Value, Vec<Value>) {
        let block = self.chain.block(self.fork, Height(height));
        self.json.entry((self.fork, height)).or_insert_with(|| to_rpc_json(&block).unwrap()).clone()
    }

    fn height_of(&mut self, param: &Value) -> Option<u64> {
        match param.as_str()? {
            "latest" => Some(self.head),
            "safe" | "finalized" => self.finalized,
            "earliest" => Some(0),
            hash if hash.len() == 66 => {
                let id = hash.parse().ok()?;
                (0..=self.head).find(|height| self.chain.block_ref(self.fork, Height(*height)).id == id)
            }
            _ => quantity(param).filter(|height| *height <= self.head),
        }
    }

    fn receipt(&mut self, hash: &Value) -> Option<Value> {
        (0..=self.head).find_map(|height| {
            let (_, receipts) = self.json(height);
            receipts.into_iter().find(|receipt| receipt["transactionHash"] == *hash)
        })
    }

    fn call(&mut self, call: &CallIn) -> CallOut {
        let none = Value::Null;
        let param = |at: usize| call.params.get(at).unwrap_or(&none);
        let result = match call.method.as_str() {
            "eth_chainId" => json!(format!("{:#x}", self.chain_id)),
            "eth_blockNumber" => json!(format!("{:#x}", self.head)),
            "eth_getBlockByNumber" => match self.height_of(param(0)) {
                None => Value::Null,
                Some(height) => {
                    let (mut block, _) = self.json(height);
                    if param(1) != &json!(true) {
                        let txs = block["transactions"].as_array().unwrap();
                        block["transactions"] = txs.iter().map(|tx| tx["hash"].clone()).collect();
                    }
                    block
                }
            },
            "eth_getBlockReceipts" => {
                self.height_of(param(0)).map_or(Value::Null, |height| Value::Array(self.json(height).1))
            }
            "eth_getTransactionReceipt" => self.receipt(param(0)).unwrap_or_default(),
            "eth_getTransactionByBlockHashAndIndex" => {
                let index = quantity(param(1)).unwrap() as usize;
                self.height_of(param(0))
                    .map_or(Value::Null, |height| self.json(height).0["transactions"][index].clone())
            }
            "debug_traceBlockByHash" => {
                match self.height_of(param(0)) {
                    None => return CallOut::Error(-32000, "block not found"),
                    Some(height) => {
                        let (_, receipts) = self.json(height);
                        receipts.iter().map(|receipt| json!({"txHash": receipt["transactionHash"], "result": frame(receipt)})).collect()
                    }
                }
            }
            "debug_traceTransaction" => self.receipt(param(0)).map_or(Value::Null, |receipt| frame(&receipt)),
            _ => return CallOut::Error(-32601, "the method does not exist/is not available"),
        };
        CallOut::Result(result)
    }
}

fn frame(receipt: &Value) -> Value {
    json!({"type": "CALL", "from": receipt["from"], "to": receipt["to"], "gasUsed": receipt["gasUsed"]})
}

async fn answer(state: Arc<Mutex<State>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let (items, is_batch) = match request {
        Value::Array(items) => (items, true),
        one => (vec![one], false),
    };
    let out = {
        let mut state = state.lock().unwrap();
        let calls: Vec<CallIn> = items
            .into_iter()
            .map(|item| {
                let method = item["method"].as_str().unwrap().to_owned();
                let count = state.counts.entry(method.clone()).or_insert(0);
                let before = *count;
                *count += 1;
                CallIn {
                    id: item["id"].clone(),
                    method,
                    params: item["params"].as_array().unwrap().clone(),
                    before,
                }
            })
            .collect();
        state.seen.push(Seen { at: Instant::now(), calls: calls.clone(), headers });
        let mut on_http = state.on_http.take();
        let out = on_http.as_mut().and_then(|hook| hook(&calls));
        state.on_http = on_http;
        out.unwrap_or_else(|| {
            let mut answers: Vec<Value> = calls.iter().filter_map(|call| reply(&mut state, call)).collect();
            if is_batch && let Some(mut arrange) = state.arrange.take() {
                arrange(&mut answers);
                state.arrange = Some(arrange);
            }
            let body = if is_batch { Value::Array(answers) } else { answers.pop().unwrap_or_default() };
            HttpOut::Body(vec![], serde_json::to_vec(&body).unwrap())
        })
    };
    match out {
        HttpOut::Status(status, headers, text) => response(status, headers, Body::from(text)),
        HttpOut::Body(headers, bytes) => response(200, headers, Body::from(bytes)),
        HttpOut::Drip(pieces, pause) => {
            let stream = futures::stream::unfold(pieces.into_iter(), move |mut pieces| async move {
                let piece = pieces.next()?;
                tokio::time::sleep(pause).await;
                Some((Ok::<_, std::io::Error>(Bytes::from(piece)), pieces))
            });
            response(200, vec![], Body::from_stream(stream))
        }
        HttpOut::Hang(time) => {
            tokio::time::sleep(time).await;
            response(200, vec![], Body::empty())
        }
    }
}

fn reply(state: &mut State, call: &CallIn) -> Option<Value> {
    let mut on_call = state.on_call.take();
    let out = on_call.as_mut().and_then(|hook| hook(call));
    state.on_call = on_call;
    match out.unwrap_or_else(|| state.call(call)) {
        CallOut::Result(result) => Some(json!({"jsonrpc": "2.0", "id": call.id, "result": result})),
        CallOut::Error(code, message) => {
            Some(json!({"jsonrpc": "2.0", "id": call.id, "error": {"code": code, "message": message}}))
        }
        CallOut::Nothing => None,
    }
}

fn response(status: u16, headers: Vec<(&'static str, String)>, body: Body) -> Response<Body> {
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(body).unwrap()
}
