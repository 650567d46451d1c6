//! A plain JSON-RPC client over HTTP that shows answers as they came: whole JSON, nothing decoded.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

/// One call: method and parameters.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: &'static str,
    pub params: Value,
}

/// Short for a call.
pub fn call(method: &'static str, params: Value) -> Call {
    Call { method, params }
}

/// What a server answered to one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Result(Value),
    Error { code: i64, message: String, data: Value },
}

impl Answer {
    fn of(mut object: Value) -> Result<Answer> {
        let Some(fields) = object.as_object_mut() else { bail!("an answer that is not an object: {object}") };
        match (fields.remove("result"), fields.remove("error")) {
            (Some(result), None) => Ok(Answer::Result(result)),
            (None, Some(error)) => Ok(Answer::Error {
                code: error["code"].as_i64().with_context(|| format!("an error without a code: {error}"))?,
                message: error["message"]
                    .as_str()
                    .with_context(|| format!("an error without a message: {error}"))?
                    .to_owned(),
                data: error["data"].clone(),
            }),
            _ => bail!("an answer with neither or both of result and error: {object}"),
        }
    }

    /// The server doesn't know the method.
    pub fn is_method_missing(&self) -> bool {
        matches!(self, Answer::Error { code: -32601, .. })
    }
}

/// A server's address and a connection pool.
#[derive(Clone)]
pub struct Rpc {
    http: reqwest::Client,
    url: String,
}

impl Rpc {
    /// Every request to `url` is given a minute.
    pub fn new(url: &str) -> Result<Rpc> {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).no_proxy().build()?;
        Ok(Rpc { http, url: url.to_owned() })
    }

    /// Where it asks.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A request's text as it is, and its response's.
    pub async fn post_text(&self, body: String) -> Result<String> {
        let request = self.http.post(&self.url).header("content-type", "application/json").body(body);
        let answer = request.send().await.with_context(|| format!("no answer from {}", self.url))?;
        answer.text().await.with_context(|| format!("{} broke off its answer", self.url))
    }

    async fn post(&self, body: &Value) -> Result<Value> {
        let text = self.post_text(body.to_string()).await?;
        serde_json::from_str(&text).with_context(|| {
            let head: String = text.chars().take(200).collect();
            format!("{} answered with what is not JSON: {head}", self.url)
        })
    }

    /// One call, alone in its request.
    pub async fn ask(&self, call: &Call) -> Result<Answer> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": call.method, "params": call.params});
        Answer::of(self.post(&body).await?).with_context(|| call.method)
    }

    /// Several calls in one batch; the answers are in the calls' order.
    pub async fn ask_all(&self, calls: &[Call]) -> Result<Vec<Answer>> {
        let body: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(id, call)| json!({"jsonrpc": "2.0", "id": id, "method": call.method, "params": call.params}))
            .collect();
        let answers = match self.post(&Value::Array(body)).await? {
            Value::Array(answers) => answers,
            other => bail!("a batch of {} was answered with one object: {other}", calls.len()),
        };
        let mut ordered: Vec<Option<Answer>> = vec![None; calls.len()];
        for answer in answers {
            let id = answer["id"].as_u64().with_context(|| format!("an answer without its id: {answer}"))?;
            let place = usize::try_from(id)
                .ok()
                .and_then(|id| ordered.get_mut(id))
                .with_context(|| format!("an answer to id {id}, which was not asked"))?;
            if place.replace(Answer::of(answer)?).is_some() {
                bail!("two answers to id {id} of one batch");
            }
        }
        ordered
            .into_iter()
            .zip(calls)
            .map(|(answer, call)| {
                answer.with_context(|| format!("no answer to {} in a batch of {}", call.method, calls.len()))
            })
            .collect()
    }

    /// One call whose error is a failure.
    pub async fn result(&self, method: &'static str, params: Value) -> Result<Value> {
        match self.ask(&call(method, params)).await? {
            Answer::Result(result) => Ok(result),
            Answer::Error { code, message, .. } => {
                Err(anyhow!("{} {method}: error {code}: {message}", self.url))
            }
        }
    }

    /// Number and hash of the newest block; `None` where there is none yet.
    pub async fn head(&self) -> Result<Option<(u64, String)>> {
        let block = self.result("eth_getBlockByNumber", json!(["latest", false])).await?;
        if block.is_null() {
            return Ok(None);
        }
        Ok(Some((quantity(&block["number"])?, text(&block["hash"])?)))
    }
}

/// A JSON-RPC quantity.
pub fn quantity(value: &Value) -> Result<u64> {
    let text = value.as_str().with_context(|| format!("not a quantity: {value}"))?;
    let digits = text.strip_prefix("0x").with_context(|| format!("not a quantity: {value}"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("not a quantity: {value}"))
}

/// A JSON string.
pub fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("not a string: {value}"))?.to_owned())
}

/// A number as a JSON-RPC quantity.
pub fn hex(number: u64) -> String {
    format!("{number:#x}")
}
