//! The public RPC test suite, asked of the methods directly.

use crate::support;

use cairn_api::{RpcLimits, conformance};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// As a transport would answer: the envelope around a result or an error.
async fn answer(api: &cairn_api::EthApi, request: &str) -> Result<String, String> {
    let request: Value = serde_json::from_str(request).map_err(|error| error.to_string())?;
    let params = request.get("params").map(|params| RawValue::from_string(params.to_string()).expect("json"));
    let method = request["method"].as_str().ok_or("no method")?;
    Ok(match api.call(method, params.as_deref()).await {
        Ok(response) => {
            let result = std::str::from_utf8(response.json()).expect("text");
            format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request["id"])
        }
        Err(error) => json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_that_needs_no_state_passes() {
    let Some(dir) = support::suite_dir() else { return };
    let api = support::api(&support::suite_store(&dir).await, RpcLimits::default());
    let cases = conformance::load(&dir).expect("the suite");
    let report = conformance::run(&cases, |request| {
        let api = &api;
        async move { answer(api, &request).await }
    })
    .await;
    println!("{report}");
    assert!(report.failed.is_empty(), "{report}");
    let traces = report.passed.iter().filter(|case| case.starts_with("debug_trace")).count();
    assert_eq!((report.passed.len() - traces, traces), (74, 5), "74 data cases and 5 trace error cases");
}
