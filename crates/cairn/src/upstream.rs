//! The node that is asked what the archive can't say, where one is configured.

use std::time::Duration;

use async_trait::async_trait;
use cairn_api::RpcError;
use cairn_api::eth::Upstream;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

use crate::config::hide_url;

/// The longest answer that is passed on, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// How long a connection is kept while nobody uses it: each that died silently costs a request its time.
const IDLE: Duration = Duration::from_secs(5);
/// Requests that wait for the node at once. More wait for their turn, within their time.
const MAX_REQUESTS: usize = 64;

/// A JSON-RPC node behind a URL.
pub struct HttpUpstream {
    client: reqwest::Client,
    url: String,
    name: String,
    timeout_ms: u64,
    turns: Semaphore,
}

#[derive(Deserialize)]
struct Answer {
    result: Option<Box<RawValue>>,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    code: i32,
    message: String,
    #[serde(default)]
    data: Option<serde_json::Value>,
}

impl HttpUpstream {
    /// Prepares the way; connects only when it is used. A request waits at most `timeout_ms` for its whole answer.
    pub fn new(url: &str, timeout_ms: u64) -> anyhow::Result<HttpUpstream> {
        let tls = cairn_source::evm::rpc::tls_config(url.starts_with("https"))?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(IDLE)
            .build()?;
        let turns = Semaphore::new(MAX_REQUESTS);
        Ok(HttpUpstream { client, url: url.to_owned(), name: hide_url(url), timeout_ms, turns })
    }

    fn failed(&self, what: impl std::fmt::Display) -> RpcError {
        RpcError::upstream(&self.name, what)
    }

    async fn ask(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
        let _turn = self.turns.acquire().await.map_err(|error| self.failed(error))?;
        let name = serde_json::to_string(method).map_err(|error| self.failed(error))?;
        let params = params.map_or("[]", RawValue::get);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":{name},"params":{params}}}"#);
        let request = self.client.post(&self.url).header("content-type", "application/json").body(body);
        let mut response = request
            .send()
            .await
            .map_err(|error| self.failed(format!("can't be reached: {}", error.without_url())))?;
        let mut text = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.failed(format!("broke off its answer: {}", error.without_url())))?
        {
            if text.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(self.failed(format!("answered more than {MAX_ANSWER_BYTES} bytes")));
            }
            text.extend_from_slice(&chunk);
        }
        let status = response.status();
        let answer: Answer = serde_json::from_slice(&text)
            .map_err(|_| self.failed(format!("answered HTTP {status} without a JSON-RPC answer")))?;
        match (answer.error, answer.result) {
            (Some(error), _) => Err(RpcError { code: error.code, message: error.message, data: error.data }),
            (None, Some(result)) => Ok(result),
            (None, None) => to_raw_value(&()).map_err(|error| self.failed(error)),
        }
    }
}

#[async_trait]
impl Upstream for HttpUpstream {
    async fn forward(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
        let answer = tokio::time::timeout(Duration::from_millis(self.timeout_ms), self.ask(method, params));
        answer.await.unwrap_or_else(|_| {
            Err(self.failed(format!(
                "did not answer within {} ms (`serve.limits.upstream_timeout_ms`)",
                self.timeout_ms
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A node that takes a request, sends `first`, and then a byte now and then, for ever.
    async fn node(first: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v2/S3CRET", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 4096]).await;
                    let mut sent = stream.write_all(first.as_bytes()).await;
                    while sent.is_ok() && !first.is_empty() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        sent = stream.write_all(b" ").await;
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        url
    }

    #[tokio::test]
    async fn a_node_that_never_answers_or_drips_is_given_up_in_time() {
        let drips = "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
        for first in ["", "HTTP/1.1 200", drips] {
            let url = node(first).await;
            let upstream = HttpUpstream::new(&url, 200).expect("a URL");
            let began = Instant::now();
            let error = upstream.forward("eth_call", None).await.expect_err("no answer");
            assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
            assert_eq!(error.code, -32010);
            for words in ["127.0.0.1", "did not answer within 200 ms", "serve.limits.upstream_timeout_ms"] {
                assert!(error.message.contains(words), "{error}");
            }
            assert!(!error.message.contains("S3CRET"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_node_that_is_not_there_is_named() {
        let upstream = HttpUpstream::new("http://127.0.0.1:1/S3CRET", 5_000).expect("a URL");
        let error = upstream.forward("eth_call", None).await.expect_err("nobody is there");
        assert!(error.code == -32010 && error.message.contains("can't be reached"), "{error}");
        assert!(!error.message.contains("S3CRET"), "{error}");
    }
}
