//! A small node: a synthetic chain behind JSON-RPC over HTTP, on a runtime of its own, that grows, freezes and hangs as told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use cairn_core::Height;
use cairn_source::evm::synthetic::{ForkId, SyntheticChain, SyntheticOptions, to_rpc_json};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::quantity;

/// What the node holds and does.
pub struct State {
    pub chain: Arc<SyntheticChain>,
    pub fork: ForkId,
    pub head: u64,
    /// Requests are taken and never answered.
    pub hangs: bool,
    /// It has call traces.
    pub traces: bool,
    /// Requests are refused with this HTTP status.
    pub refuses: Option<StatusCode>,
    /// The block whose receipts are those of another one.
    pub spoilt: Option<u64>,
    /// Heights that are answered `null` so many times, though they are announced.
    pub nulls: HashMap<u64, usize>,
    /// How often a height was asked for whole.
    pub asked: HashMap<u64, usize>,
    json: HashMap<(ForkId, u64), (Value, Value)>,
}

/// A running node. Dropping it stops it.
pub struct MockNode {
    pub url: String,
    state: Arc<Mutex<State>>,
    _runtime: Runtime,
}

impl MockNode {
    pub fn start(chain_id: u64, head: u64) -> MockNode {
        let options = SyntheticOptions { chain_id, txs_per_block: 1..=3, ..SyntheticOptions::tiny(5) };
        let state = Arc::new(Mutex::new(State {
            chain: Arc::new(SyntheticChain::new(options)),
            fork: ForkId::MAIN,
            head,
            hangs: false,
            traces: false,
            refuses: None,
            spoilt: None,
            nulls: HashMap::new(),
            asked: HashMap::new(),
            json: HashMap::new(),
        }));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("is bound"));
        let shared = state.clone();
        let app = axum::Router::new().fallback(move |body: Bytes| {
            let shared = shared.clone();
            async move { answer(shared, body).await }
        });
        runtime.spawn(async move { axum::serve(listener, app).await });
        MockNode { url, state, _runtime: runtime }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

async fn answer(state: Arc<Mutex<State>>, body: Bytes) -> Result<axum::Json<Value>, StatusCode> {
    while state.lock().unwrap().hangs {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let request: Value = serde_json::from_slice(&body).expect("the client sends JSON");
    let mut state = state.lock().unwrap();
    if let Some(status) = state.refuses {
        return Err(status);
    }
    let mut reply = |call: &Value| match state.call(call) {
        Some(result) => json!({"jsonrpc": "2.0", "id": call["id"], "result": result}),
        None => {
            let error = json!({"code": -32601, "message": "the method does not exist/is not available"});
            json!({"jsonrpc": "2.0", "id": call["id"], "error": error})
        }
    };
    Ok(axum::Json(match &request {
        Value::Array(calls) => calls.iter().map(reply).collect(),
        one => reply(one),
    }))
}

impl State {
    /// The block as `eth_getBlockByNumber` answers it with whole transactions, and its receipts.
    pub fn json(&mut self, height: u64) -> (Value, Value) {
        let block = self.chain.block(self.fork, Height(height));
        let made = || {
            let (block, receipts) = to_rpc_json(&block).expect("a block");
            (block, Value::Array(receipts))
        };
        self.json.entry((self.fork, height)).or_insert_with(made).clone()
    }

    /// Makes the first transaction of a block one of a type that nobody knows.
    pub fn with_unknown_type(&mut self, height: u64) {
        let (mut block, mut receipts) = self.json(height);
        block["transactions"][0]["type"] = json!("0x5f");
        receipts[0]["type"] = json!("0x5f");
        self.json.insert((self.fork, height), (block, receipts));
    }

    fn height_of(&mut self, param: &Value) -> Option<u64> {
        match param.as_str()? {
            "latest" => Some(self.head),
            "earliest" => Some(0),
            hash if hash.len() == 66 => {
                let id = hash.parse().ok()?;
                (0..=self.head).find(|height| self.chain.block_ref(self.fork, Height(*height)).id == id)
            }
            _ => quantity(param).filter(|height| *height <= self.head),
        }
    }

    fn receipts(&mut self, height: u64) -> Value {
        let (_, mut receipts) = self.json(height);
        if self.spoilt == Some(height) {
            receipts[0]["status"] = json!("0x0");
        }
        receipts
    }

    fn call(&mut self, call: &Value) -> Option<Value> {
        let params = &call["params"];
        let result = match call["method"].as_str()? {
            "eth_chainId" => json!(format!("{:#x}", self.chain.chain_id().0)),
            "eth_blockNumber" => json!(format!("{:#x}", self.head)),
            "eth_getBlockByNumber" | "eth_getBlockByHash" => {
                let Some(height) = self.height_of(&params[0]) else { return Some(Value::Null) };
                let (mut block, _) = self.json(height);
                if params[1] == json!(true) {
                    *self.asked.entry(height).or_default() += 1;
                    if let Some(left) = self.nulls.get_mut(&height).filter(|left| **left > 0) {
                        *left -= 1;
                        return Some(Value::Null);
                    }
                } else {
                    let txs = block["transactions"].as_array().expect("a list");
                    block["transactions"] = txs.iter().map(|tx| tx["hash"].clone()).collect();
                }
                block
            }
            "eth_getBlockReceipts" => {
                self.height_of(&params[0]).map_or(Value::Null, |height| self.receipts(height))
            }
            "eth_getTransactionReceipt" => {
                let mut all = (0..=self.head).rev().map(|height| self.receipts(height));
                all.find_map(|receipts| {
                    receipts
                        .as_array()?
                        .iter()
                        .find(|receipt| receipt["transactionHash"] == params[0])
                        .cloned()
                })
                .unwrap_or(Value::Null)
            }
            "debug_traceBlockByHash" if self.traces => {
                let (block, _) = self.height_of(&params[0]).map(|height| self.json(height))?;
                let txs = block["transactions"].as_array().expect("a list").iter();
                txs.map(|tx| json!({"txHash": tx["hash"], "result": {"type": "CALL", "from": tx["from"]}}))
                    .collect()
            }
            _ => return None,
        };
        Some(result)
    }
}
