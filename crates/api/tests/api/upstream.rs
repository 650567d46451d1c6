//! What the archive asks another node, and that nobody waits for one that doesn't answer.

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cairn_api::eth::Upstream;
use cairn_api::{EthApi, RpcError, RpcLimits, RpcServerConfig};
use cairn_core::BlockId;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use support::ask;
use support::http::{post, request, serve};
use support::made::{self, log};

const ROOT: BlockId = BlockId([0xee; 32]);

/// Repeats what it was asked.
struct Echo;

#[async_trait]
impl Upstream for Echo {
    async fn forward(&self, method: &str, params: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
        let text = format!(r#"["{method}",{}]"#, params.map_or("null", RawValue::get));
        Ok(RawValue::from_string(text).expect("json"))
    }
}

/// Accepts and never answers.
struct Frozen;

#[async_trait]
impl Upstream for Frozen {
    async fn forward(&self, _: &str, _: Option<&RawValue>) -> Result<Box<RawValue>, RpcError> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Err(RpcError::upstream("http://node.example", "did not answer within 2000 ms"))
    }
}

/// Blocks 100 to 109 of a chain whose forks nobody knows here.
async fn middle(limits: RpcLimits) -> EthApi {
    support::api(
        &made::store(made::chain(100, 10, ROOT, 0, |_| vec![vec![log(1, &[1], 0)]]), None).await,
        limits,
    )
}

#[tokio::test]
async fn what_only_a_fork_schedule_says_is_asked_of_the_upstream() {
    let api = middle(RpcLimits::default()).await.with_upstream(Arc::new(Echo));
    for (method, params) in [
        ("eth_baseFee", json!([])),
        ("eth_config", json!([])),
        ("eth_feeHistory", json!(["0x3", "latest", [50]])),
    ] {
        assert_eq!(ask(&api, method, params.clone()).await, Ok(json!([method, params])), "{method}");
    }
    // What headers prove is answered here.
    let history = ask(&api, "eth_feeHistory", json!(["0x3", "0x6c", []])).await.expect("a history");
    assert_eq!(history["baseFeePerGas"], json!(["0x7", "0x7", "0x7", "0x7"]));
    assert_eq!(ask(&api, "eth_blobBaseFee", json!([])).await, Ok(Value::Null));
    // Wrong parameters are refused here.
    assert_eq!(
        ask(&api, "eth_feeHistory", json!(["x", "latest", []])).await.expect_err("wrong").code,
        -32602
    );
}

/// Law 9: those who ask the archive never wait for those who ask another node.
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_does_not_answer_keeps_nobody_from_the_archive() {
    let limits = RpcLimits { max_concurrent_requests: 2, max_heavy_requests: 1, ..RpcLimits::default() };
    let api = middle(limits).await.with_upstream(Arc::new(Frozen));
    let (server, _wake) = serve(api, RpcServerConfig::default()).await;
    let address = server.local_addr();
    let mut waiting = tokio::task::JoinSet::new();
    for (method, params) in [
        ("eth_call", json!([{}])),
        ("eth_getBalance", json!([])),
        ("eth_gasPrice", json!([])),
        // Heavy ones, which the archive looked at first.
        ("eth_feeHistory", json!(["0x1", "latest", []])),
        ("debug_traceBlockByNumber", json!(["0x65", {"tracer": "callTracer"}])),
        ("debug_traceBlockByNumber", json!(["0x66"])),
    ] {
        waiting.spawn(async move { post(address, &request(1, method, params)).await.json() });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (method, params) in [
        ("eth_blockNumber", json!([])),
        ("eth_getBlockByNumber", json!(["0x65", true])),
        ("eth_getLogs", json!([{"fromBlock": "0x64"}])),
    ] {
        let body = request(2, method, params);
        let asked = tokio::time::timeout(Duration::from_secs(1), post(address, &body));
        assert!(asked.await.expect("at once").json().get("result").is_some(), "{method}");
    }
    while let Some(answer) = waiting.join_next().await {
        let answer = answer.expect("a task");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert_eq!(answer["error"]["code"], -32010, "{answer}");
        assert!(message.contains("node.example") && message.contains("serve.upstream"), "{answer}");
    }
    server.shutdown().await;
}
