//! The node that enrichers ask about contracts.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, Height};
use cairn_explorer::processors::evm::contract_code::MAX_CODE_BYTES;
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_pipeline::derive::processor::AskError;
use cairn_source::evm::rpc::classify::{Classifier, ErrorClass, Hint, Symptom};
use cairn_source::evm::rpc::{FinalityPolicy, header_map, retry_after_ms};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::hide_url;

/// How long one question may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept while nobody uses it. It is less than a question may take: those that died silently are gone when one ends.
const IDLE: Duration = Duration::from_secs(5);
/// The longest answer, in bytes of JSON: code of twice the longest that is kept, as hex; so code that is too long is known as such.
const MAX_ANSWER_BYTES: usize = 2 * (2 * MAX_CODE_BYTES);
/// Error codes by which nodes say that a call reverted or can't be run, rather than that the node is in trouble.
const REVERTED_CODES: [i64; 2] = [3, -32_015];
/// One more, which is a limit of the rate elsewhere: there the words say so.
const AMBIGUOUS_CODE: i64 = -32_016;
/// What the execution API answers where a tag names no block now, and JSON-RPC where parameters are wrong: a tag that isn't known is one.
const UNKNOWN_BLOCK: i64 = -39_001;
const INVALID_PARAMS: i64 = -32_602;
/// The longest `Retry-After` that is honoured, in milliseconds.
const RETRY_AFTER_MAX_MS: u64 = 120_000;

/// A JSON-RPC node behind an HTTP URL.
pub struct HttpContractNode {
    client: reqwest::Client,
    url: String,
    name: String,
    classifier: Classifier,
    finality: FinalityPolicy,
}

/// What a node says of the block that a tag names.
enum Tagged {
    Block(BlockRef),
    /// It knows no such block now.
    NotNow,
    /// It doesn't know the tag.
    Unknown,
}

/// What a node answered, and beside it.
struct Answered {
    status: u16,
    retry_after_ms: Option<u64>,
    answer: Answer,
}

/// A node that won't answer.
struct Refusal {
    /// Why, as a label.
    reason: &'static str,
    /// What to do, for people.
    advice: &'static str,
}

#[derive(Deserialize)]
struct Answer {
    result: Option<Value>,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    code: i64,
    message: String,
}

impl HttpContractNode {
    /// Prepares the way, with these headers in every request; connects only when it is used.
    pub fn new(url: &str, headers: &[(String, String)]) -> anyhow::Result<HttpContractNode> {
        let tls = cairn_source::evm::rpc::tls_config(url.starts_with("https"))?;
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .default_headers(header_map(headers)?)
            .timeout(TIMEOUT)
            .pool_idle_timeout(IDLE)
            .build()?;
        Ok(HttpContractNode {
            client,
            url: url.to_owned(),
            name: hide_url(url),
            classifier: Classifier::default(),
            finality: FinalityPolicy::default(),
        })
    }

    /// The same with the archive's policy of finality.
    pub fn with_finality(self, finality: FinalityPolicy) -> HttpContractNode {
        HttpContractNode { finality, ..self }
    }

    /// The block that a tag or a number names.
    async fn tagged(&self, tag: &str) -> Result<Tagged, AskError> {
        const METHOD: &str = "eth_getBlockByNumber";
        let answered = self.ask(METHOD, json!([tag, false])).await?;
        match &answered.answer.error {
            None => {}
            Some(error) if self.is_busy(answered.status, Some(error)) => {
                return Err(self.failed(METHOD, &answered, error));
            }
            // The execution API's code, and the words of those that have none.
            Some(error) if error.code == UNKNOWN_BLOCK || error.message.contains("not found") => {
                return Ok(Tagged::NotNow);
            }
            Some(error) if error.code == INVALID_PARAMS => return Ok(Tagged::Unknown),
            Some(error) => return Err(self.failed(METHOD, &answered, error)),
        }
        let Some(header) = answered.answer.result else { return Ok(Tagged::NotNow) };
        let field = |name: &str| header.get(name).and_then(Value::as_str)?.strip_prefix("0x");
        let height = field("number").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let id = field("hash").and_then(|digits| <[u8; 32]>::try_from(hex::decode(digits).ok()?).ok());
        match (height.map(Height::believable), id) {
            (Some(Ok(height)), Some(id)) => Ok(Tagged::Block(BlockRef { height, id: BlockId(id) })),
            (Some(Err(error)), _) => Err(self.trouble(format!("{METHOD}: the node says {error}"))),
            _ => Err(self.trouble(format!("{METHOD}: a block without number or hash"))),
        }
    }

    fn trouble(&self, what: impl std::fmt::Display) -> AskError {
        AskError::transient(format!("{}: {what}", self.name))
    }

    /// Whether an answer says that too much is asked, of whatever it is.
    fn is_busy(&self, http_status: u16, error: Option<&AnswerError>) -> bool {
        let (code, text) = error.map_or((None, ""), |error| (Some(error.code), error.message.as_str()));
        let class = |code| self.classifier.classify(Symptom { http_status: Some(http_status), code, text }).0;
        match error {
            _ if http_status == 429 => true,
            Some(error) if is_about_the_call(error) => false,
            Some(error) if error.code == AMBIGUOUS_CODE => class(None) == ErrorClass::RateLimited,
            _ => class(code) == ErrorClass::RateLimited,
        }
    }

    async fn ask(&self, method: &str, params: Value) -> Result<Answered, AskError> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let request = self.client.post(&self.url).header("content-type", "application/json").body(body);
        let mut response = request.send().await.map_err(|error| self.trouble(error.without_url()))?;
        let status = response.status().as_u16();
        let retry_after_ms = retry_after_ms(response.headers(), SystemTime::now())
            .map(|asked_ms| asked_ms.min(RETRY_AFTER_MAX_MS));
        let mut text = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.trouble(error.without_url()))? {
            if text.len() + chunk.len() > MAX_ANSWER_BYTES {
                let message = format!("{method}: HTTP {status}, more than {MAX_ANSWER_BYTES} bytes");
                // A page with which a node, or what stands before it, refuses says nothing of what was asked.
                return Err(if status == 200 { AskError::last(message) } else { self.trouble(message) });
            }
            text.extend_from_slice(&chunk);
        }
        match serde_json::from_slice::<Answer>(&text) {
            Ok(answer) if answer.error.is_some() || !self.is_busy(status, None) => {
                Ok(Answered { status, retry_after_ms, answer })
            }
            _ => {
                let what = format!("{}: {method}: HTTP {status} without a JSON-RPC answer", self.name);
                let is_busy = self.is_busy(status, None);
                Err(if is_busy { AskError::busy(retry_after_ms, what) } else { AskError::transient(what) })
            }
        }
    }

    /// What an error that isn't about the call says of the node. One that refuses is asked again: another one may stand behind its address tomorrow.
    fn failed(&self, method: &'static str, answered: &Answered, error: &AnswerError) -> AskError {
        let message = format!("{}: {method}: {} ({})", self.name, error.message, error.code);
        if self.is_busy(answered.status, Some(error)) {
            return AskError::busy(answered.retry_after_ms, message);
        }
        match self.refusal(answered.status, error) {
            Some(Refusal { reason, advice }) => {
                metrics::counter!("cairn_node_refusals_total", "method" => method, "reason" => reason)
                    .increment(1);
                AskError::transient(format!("{message}: {advice}"))
            }
            None => AskError::transient(message),
        }
    }

    /// Whether an error says that the node won't answer this, however often it is asked.
    fn refusal(&self, http_status: u16, error: &AnswerError) -> Option<Refusal> {
        let symptom =
            Symptom { http_status: Some(http_status), code: Some(error.code), text: &error.message };
        match self.classifier.classify(symptom).1 {
            Hint::MethodMissing => Some(Refusal {
                reason: "method-missing",
                advice: "it doesn't have this method, or not for this key; put a node first in chain.rpc that does, or set derive.ask_node = false",
            }),
            Hint::StateMissing => Some(Refusal {
                reason: "state-missing",
                advice: "it doesn't keep the state of that block; put an archive node first in chain.rpc",
            }),
            Hint::Refused => Some(Refusal { reason: "refused", advice: "it refuses this key or path" }),
            Hint::None | Hint::TimedOut | Hint::NotFound | Hint::Away => None,
        }
    }

    fn bytes(&self, method: &str, result: Option<Value>) -> Result<Bytes, AskError> {
        let text = result.as_ref().and_then(Value::as_str).unwrap_or_default();
        let digits = text.strip_prefix("0x").ok_or_else(|| self.trouble(format!("{method}: no hex data")))?;
        let bytes = hex::decode(digits).map_err(|_| self.trouble(format!("{method}: no hex data")))?;
        Ok(bytes.into())
    }
}

/// What nodes say of a call that can't be run, in small letters. geth's words for it are those of its `core/vm/errors.go`. A call that was stopped because it took
/// too long is not among them: a busy node says that of any call. The enrichers' own count gives it up.
const ABOUT_THE_CALL: [&str; 11] = [
    "revert",
    "out of gas",
    "opcode",
    "stack underflow",
    "stack overflow",
    "stack limit reached",
    "invalid jump",
    "return data out of bounds",
    "gas uint64 overflow",
    "write protection",
    "max call depth exceeded",
];

/// Says whether an error is about the call and not about the node.
fn is_about_the_call(error: &AnswerError) -> bool {
    let message = error.message.to_ascii_lowercase();
    REVERTED_CODES.contains(&error.code) || ABOUT_THE_CALL.iter().any(|words| message.contains(words))
}

/// A block by its hash, which the node has to have on its own chain: an answer of another fork is an error.
fn block(at: BlockRef) -> Value {
    json!({"blockHash": at.id.to_string(), "requireCanonical": true})
}

#[async_trait]
impl ContractNode for HttpContractNode {
    async fn call(
        &self,
        to: alloy_primitives::Address,
        input: Vec<u8>,
        at: BlockRef,
    ) -> Result<CallAnswer, AskError> {
        let call = json!({"to": to.to_string(), "data": format!("0x{}", hex::encode(input))});
        let answered = self.ask("eth_call", json!([call, block(at)])).await?;
        match &answered.answer.error {
            None => Ok(CallAnswer::Returned(self.bytes("eth_call", answered.answer.result)?)),
            Some(error) if self.is_busy(answered.status, Some(error)) => {
                Err(self.failed("eth_call", &answered, error))
            }
            Some(error) if is_about_the_call(error) || error.code == AMBIGUOUS_CODE => {
                Ok(CallAnswer::Reverted)
            }
            Some(error) => Err(self.failed("eth_call", &answered, error)),
        }
    }

    async fn code(&self, address: alloy_primitives::Address, at: BlockRef) -> Result<Bytes, AskError> {
        let answered = self.ask("eth_getCode", json!([address.to_string(), block(at)])).await?;
        match &answered.answer.error {
            None => self.bytes("eth_getCode", answered.answer.result),
            Some(error) => Err(self.failed("eth_getCode", &answered, error)),
        }
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        let tagged = match self.finality.uses_tag() {
            true => self.tagged("finalized").await?,
            false => Tagged::Unknown,
        };
        let (tagged, depth) = match (tagged, self.finality.depth_heights()) {
            // Where there is a tag, one that is missing never falls back to the depth.
            (Tagged::NotNow, _) | (Tagged::Unknown, None) => return Ok(None),
            (Tagged::Block(block), None) => return Ok(Some(block)),
            (Tagged::Block(block), Some(depth)) => (Some(block), depth),
            (Tagged::Unknown, Some(depth)) => (None, depth),
        };
        let Tagged::Block(latest) = self.tagged("latest").await? else { return Ok(None) };
        let Some(deep) = latest.height.get().checked_sub(depth) else { return Ok(None) };
        if let Some(block) = tagged.filter(|block| block.height.get() <= deep) {
            return Ok(Some(block));
        }
        match self.tagged(&format!("{deep:#x}")).await? {
            Tagged::Block(block) => Ok(Some(block)),
            Tagged::NotNow | Tagged::Unknown => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::Address;
    use cairn_pipeline::derive::processor::AskFailure;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What is said of a contract whose code has so many bytes.
    async fn code_of(len: usize) -> Result<Bytes, AskError> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"0x{}"}}"#, "60".repeat(len));
        let node = answering("200 OK", "", body).await;
        node.code(Address::ZERO, AT).await
    }

    const AT: BlockRef = BlockRef { height: Height(1), id: BlockId([1; 32]) };

    /// A node that answers one request so.
    async fn answering(status: &'static str, header: &'static str, body: String) -> HttpContractNode {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            let _ = stream.read(&mut [0; 4_096]).await;
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{header}Connection: close\r\n\r\n",
                body.len()
            );
            // Whoever has read enough hangs up.
            let _ = stream.write_all((head + &body).as_bytes()).await;
        });
        HttpContractNode::new(&url, &[]).expect("a client")
    }

    #[tokio::test]
    async fn a_node_that_limits_the_rate_is_told_from_one_that_fails_over_the_call() {
        use AskFailure::{Busy, Transient};
        let busy = Some(Busy { retry_after_ms: None });
        let error = |code: i64, message: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"{message}"}}}}"#)
        };
        let page = || "<html>slow down</html>".to_owned();
        let later = "Retry-After: 7\r\n";
        for (status, header, body, expected) in [
            ("429 Too Many Requests", later, page(), Some(Busy { retry_after_ms: Some(7_000) })),
            ("429 Too Many Requests", "", error(-32_000, "execution reverted"), busy),
            ("503 Service Unavailable", "", page(), busy),
            ("429 Too Many Requests", "", "{}".to_owned(), busy),
            ("200 OK", "", error(-32_005, "limit exceeded"), busy),
            ("200 OK", "", error(-32_000, "Too many requests, retry in 10s"), busy),
            ("200 OK", "", error(-32_016, "rate limit reached"), busy),
            // What a contract says of itself is no word of the node.
            ("200 OK", "", error(3, "execution reverted: too many requests"), None),
            ("200 OK", "", error(-32_016, "VM execution error"), None),
            ("200 OK", "", error(-32_000, "header not found"), Some(Transient)),
            ("200 OK", "", error(-32_000, "hash is not currently canonical"), Some(Transient)),
            ("502 Bad Gateway", "", page(), Some(Transient)),
        ] {
            let node = answering(status, header, body.clone()).await;
            let said = node.call(Address::ZERO, Vec::new(), AT).await;
            match expected {
                None => assert_eq!(said, Ok(CallAnswer::Reverted), "{body}"),
                Some(failure) => {
                    assert_eq!(said.expect_err("it can't answer").failure, failure, "{status} {body}")
                }
            }
        }
    }

    #[tokio::test]
    async fn every_question_is_about_a_block_on_the_nodes_own_chain() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let node = HttpContractNode::new(&url, &[]).expect("a client");
        let hears = async {
            let mut heard = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.expect("accepts");
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    let mut part = [0; 4_096];
                    let len = stream.read(&mut part).await.expect("reads");
                    request.extend_from_slice(&part[..len]);
                }
                let request = String::from_utf8(request).expect("text");
                let body = request.split_once("\r\n\r\n").expect("a body").1.to_owned();
                heard.push(serde_json::from_str::<Value>(&body).expect("JSON"));
                let answer = r#"{"jsonrpc":"2.0","id":1,"result":"0x60"}"#;
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    answer.len()
                );
                stream.write_all((head + answer).as_bytes()).await.expect("writes");
            }
            heard
        };
        let asks = async {
            node.call(Address::ZERO, Vec::new(), AT).await.expect("an answer");
            node.code(Address::ZERO, AT).await.expect("code");
        };
        let (heard, ()) = futures::join!(hears, asks);
        for (request, method) in heard.iter().zip(["eth_call", "eth_getCode"]) {
            assert_eq!(request["method"], method);
            let block = json!({"blockHash": AT.id.to_string(), "requireCanonical": true});
            assert_eq!(request["params"][1], block);
        }
    }

    /// A node that answers each question for a block by the tag.
    async fn tagging(says: fn(&str) -> String, finality: FinalityPolicy) -> HttpContractNode {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepts");
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    let mut part = [0; 4_096];
                    let len = stream.read(&mut part).await.expect("reads");
                    request.extend_from_slice(&part[..len]);
                }
                let request = String::from_utf8(request).expect("text");
                let body = request.split_once("\r\n\r\n").expect("a body").1;
                let asked: Value = serde_json::from_str(body).expect("JSON");
                let body = says(asked["params"][0].as_str().expect("a tag"));
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        });
        HttpContractNode::new(&url, &[]).expect("a client").with_finality(finality)
    }

    /// A node at block 1000, whose finalised one is 930.
    fn settled(tag: &str) -> String {
        let height: u64 = match tag {
            "latest" => 1_000,
            "finalized" => 930,
            digits => u64::from_str_radix(&digits[2..], 16).expect("a number"),
        };
        json!({"id": 1, "result": {"number": format!("{height:#x}"), "hash": BlockId([height as u8; 32]).to_string()}})
            .to_string()
    }

    fn without_a_tag(tag: &str) -> String {
        match tag {
            "finalized" => {
                json!({"id": 1, "error": {"code": INVALID_PARAMS, "message": "invalid block tag"}})
                    .to_string()
            }
            tag => settled(tag),
        }
    }

    fn none_now(tag: &str) -> String {
        match tag {
            "finalized" => {
                json!({"id": 1, "error": {"code": -39_001, "message": "unknown block"}}).to_string()
            }
            tag => settled(tag),
        }
    }

    #[tokio::test]
    async fn the_finalised_block_is_found_by_the_archives_policy() {
        use FinalityPolicy::{Both, Depth, Tag};
        let says: [fn(&str) -> String; 3] = [settled, without_a_tag, none_now];
        for (policy, expected) in [
            (Tag, [Some(930), None, None]),
            (Both(64), [Some(930), Some(936), None]),
            (Both(100), [Some(900), Some(900), None]),
            (Depth(64), [Some(936); 3]),
            (Depth(2_000), [None; 3]),
        ] {
            for (says, expected) in says.into_iter().zip(expected) {
                let found = tagging(says, policy).await.finalized().await.expect("an answer");
                let expected: Option<u64> = expected;
                assert_eq!(
                    found,
                    expected
                        .map(|height| BlockRef { height: Height(height), id: BlockId([height as u8; 32]) }),
                    "{policy:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn code_that_is_too_long_to_keep_is_still_read() {
        for len in [2, MAX_CODE_BYTES, MAX_CODE_BYTES + 1] {
            assert_eq!(code_of(len).await.expect("is read").len(), len);
        }
        let error = code_of(3 * MAX_CODE_BYTES).await.expect_err("no end to it");
        assert!(
            error.failure == AskFailure::Final && error.message.contains("more than"),
            "{}",
            error.message
        );
    }

    #[tokio::test]
    async fn k1_a_long_page_of_a_node_that_refuses_is_no_answer() {
        let node = answering("403 Forbidden", "", "x".repeat(MAX_ANSWER_BYTES + 1)).await;
        let error = node.code(Address::ZERO, AT).await.expect_err("it refuses");
        assert_eq!(error.failure, AskFailure::Transient, "{}", error.message);
        assert!(error.message.contains("HTTP 403"), "{}", error.message);
    }

    #[tokio::test]
    async fn a_node_that_refuses_for_good_is_told_from_one_in_trouble_and_says_what_to_do() {
        let error = |code: i64, message: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"{message}"}}}}"#)
        };
        for (status, body, advice) in [
            ("200 OK", error(-32_004, "no"), Some("doesn't have this method")),
            (
                "200 OK",
                error(-32_601, "the method eth_getCode does not exist/is not available"),
                Some("method"),
            ),
            ("200 OK", error(-32_000, "missing trie node 12ab"), Some("archive node")),
            ("200 OK", error(4_444, "gone"), Some("archive node")),
            ("401 Unauthorized", error(-32_000, "invalid key"), Some("refuses this key")),
            ("200 OK", error(-32_000, "header not found"), None),
            ("200 OK", error(-32_603, "Internal error"), None),
        ] {
            let node = answering(status, "", body.clone()).await;
            let said = node.code(Address::ZERO, AT).await.expect_err("it doesn't answer");
            assert_eq!(said.failure, AskFailure::Transient, "{body}");
            match advice {
                Some(advice) => assert!(said.message.contains(advice), "{body}: {}", said.message),
                None => assert!(said.message.ends_with(')'), "{body}: {}", said.message),
            }
        }
    }

    #[test]
    fn what_a_node_says_of_a_call_is_told_from_its_own_trouble() {
        let about =
            |message: &str| is_about_the_call(&AnswerError { code: -32_000, message: message.into() });
        for message in [
            "execution reverted",
            "out of gas",
            "invalid opcode: INVALID",
            "stack limit reached 1024 (1023)",
            "stack underflow (0 <=> 1)",
            "invalid jump destination",
            "return data out of bounds",
            "gas uint64 overflow",
            "write protection",
        ] {
            assert!(about(message), "{message}");
        }
        for message in
            ["header not found", "missing trie node", "execution aborted (timeout = 5s)", "too many requests"]
        {
            assert!(!about(message), "{message}");
        }
    }
}
