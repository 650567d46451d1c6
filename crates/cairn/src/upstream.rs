//! The node that answers state methods where one is configured.

use std::time::Duration;

use async_trait::async_trait;
use cairn_api::RpcError;
use cairn_api::eth::Upstream;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::config::hide_url;

/// The longest answer that is passed on, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// How long a node may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A JSON-RPC node behind a URL.
pub struct HttpUpstream {
    client: reqwest::Client,
    url: String,
    name: String,
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
    /// Prepares the way; connects only when it is used.
    pub fn new(url: &str) -> anyhow::Result<HttpUpstream> {
        let tls = cairn_source::evm::rpc::tls_config(url.starts_with("https"))?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()?;
        Ok(HttpUpstream { client, url: url.to_owned(), name: hide_url(url) })
    }

    fn failed(&self, what: impl std::fmt::Display) -> RpcError {
        RpcError::internal(format!("the upstream node {} {what}", self.name))
    }
}

#[async_trait]
impl Upstream for HttpUpstream {
    async fn forward(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
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
