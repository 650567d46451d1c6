//! Plays a scenario as an EVM node over HTTP: right blocks and receipts, and the scenario's oddity.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::scenario::{Override, Scenario};

/// A node under way; it ends when this is dropped.
pub struct Node {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Node {
    /// Serves the scenario on a free port of loopback.
    pub async fn start(scenario: Arc<Scenario>) -> Result<Node> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let played = Arc::new(Played { scenario, requests: AtomicU64::new(0) });
        let app = Router::new().fallback(answer).with_state(played);
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                println!("the odd node ended: {error}");
            }
        });
        Ok(Node { address, task })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Played {
    scenario: Arc<Scenario>,
    /// HTTP requests so far.
    requests: AtomicU64,
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    id: Value,
    method: String,
    #[serde(default)]
    params: Vec<Value>,
}

async fn answer(State(played): State<Arc<Played>>, body: Bytes) -> Response {
    let request = played.requests.fetch_add(1, Ordering::Relaxed) + 1;
    let batch = body.first() == Some(&b'[');
    if let Some(http) = played.scenario.http_override(request, batch) {
        let status = StatusCode::from_u16(http.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, http.body.clone()).into_response();
        if let Ok(kind) = HeaderValue::from_str(&http.content_type) {
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        return response;
    }
    let text = if batch {
        match serde_json::from_slice::<Vec<Request>>(&body) {
            Ok(requests) => {
                let answers: Vec<String> = requests.iter().map(|one| played.scenario.respond(one)).collect();
                format!("[{}]", answers.join(","))
            }
            Err(error) => refused(&error),
        }
    } else {
        match serde_json::from_slice::<Request>(&body) {
            Ok(request) => played.scenario.respond(&request),
            Err(error) => refused(&error),
        }
    };
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn refused(error: &serde_json::Error) -> String {
    let error = json!({"code": -32700, "message": error.to_string()});
    json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string()
}

/// A JSON-RPC answer: a result's text as it is, or an error.
enum Answered {
    Result(String),
    Error(String),
}

impl Scenario {
    fn respond(&self, request: &Request) -> String {
        let id = &request.id;
        match self.answered(&request.method, &request.params) {
            Answered::Result(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
            Answered::Error(error) => format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#),
        }
    }

    fn answered(&self, method: &str, params: &[Value]) -> Answered {
        if let Some(instead) = self.rpc_override(method, params.first()) {
            return instead.answered();
        }
        let first = params.first().unwrap_or(&Value::Null);
        let whole = params.get(1) == Some(&Value::Bool(true));
        let found = match method {
            "eth_chainId" => Some(json!(format!("{:#x}", self.chain_id)).to_string()),
            "net_version" => Some(json!(self.chain_id.to_string()).to_string()),
            "eth_blockNumber" => Some(json!(format!("{:#x}", self.top())).to_string()),
            "eth_getBlockByNumber" | "eth_getBlockByHash" => self
                .block_at(first)
                .map(|block| if whole { block.text.get().to_owned() } else { block.with_hashes_alone() }),
            "eth_getBlockReceipts" => self.block_at(first).map(|block| block.receipts.get().to_owned()),
            "eth_getTransactionReceipt" => first.as_str().and_then(|hash| self.receipt(hash)),
            "debug_traceBlockByHash" | "debug_traceBlockByNumber"
                if self.block_at(first).is_some_and(|block| block.traces.is_some()) =>
            {
                self.block_at(first).and_then(|block| block.traces.as_deref()).map(|raw| raw.get().to_owned())
            }
            _ => {
                let message = format!("the method {method} does not exist/is not available");
                return Answered::Error(json!({"code": -32601, "message": message}).to_string());
            }
        };
        Answered::Result(found.unwrap_or_else(|| "null".to_owned()))
    }
}

impl Override {
    fn answered(&self) -> Answered {
        let text = |raw: &RawValue| raw.get().to_owned();
        match (&self.error, &self.result) {
            (Some(error), _) => Answered::Error(text(error)),
            (None, Some(result)) => Answered::Result(text(result)),
            // `"result": null` and no result are the same to serde.
            (None, None) => Answered::Result("null".to_owned()),
        }
    }
}
