//! Nodes that refuse, or lack what is optional, with the binary.

use crate::support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use support::node::MockNode;
use support::*;

fn run(dir: &Path, data: &str, url: &str) -> Command {
    let mut command = cairn(dir);
    command.args(["run", "--data", data, "--rpc", url, "--to", "4", "--poll-ms", "50", "--log", "warn"]);
    command
}

fn whole(dir: &Path, data: &str, url: &str, more: &[&str]) {
    let mut command = run(dir, data, url);
    command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--exit-after-head"]);
    end_of(command.args(more)).well();
}

fn serve(dir: &Path, data: &str) -> Service {
    Service::start(cairn(dir).args(["serve", "--data", data]))
}

#[test]
fn k1_run_waits_for_a_node_that_refuses_at_the_start_and_later() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 2);
    node.state().refuses = Some(axum::http::StatusCode::FORBIDDEN);
    let well = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1_500));
            node.state().refuses = None;
        });
        let mut service = Service::start(&mut run(dir.path(), "archive", &node.url));
        service.until("it has the first blocks", |service| service.height() == Some(2));
        node.state().refuses = Some(axum::http::StatusCode::FORBIDDEN);
        std::thread::sleep(Duration::from_millis(1_500));
        assert!(service.child_is_alive(), "{}", service.log());
        let mut state = node.state();
        (state.refuses, state.head) = (None, 4);
        drop(state);
        service.until("it has the others", |service| service.height() == Some(4));
        service.log()
    });
    assert!(well.contains("for a node: can't use the node") && well.contains("403"), "{well}");
    assert!(!well.contains("halted"), "{well}");
}

#[test]
fn k4_a_cairn_is_archived_from_a_cairn() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 4);
    node.state().with_unknown_type(2);
    whole(dir.path(), "first", &node.url, &[]);
    let first = serve(dir.path(), "first");
    whole(dir.path(), "second", &format!("http://{}", first.rpc), &[]);
    let second = serve(dir.path(), "second");
    for height in 0..=4 {
        let at = json!([format!("{height:#x}"), true]);
        let blocks = [&first, &second]
            .map(|service| service.call("eth_getBlockByNumber", at.clone()).expect("a block"));
        assert_eq!(blocks[0], blocks[1]);
        let receipts = [&first, &second]
            .map(|service| service.call("eth_getBlockReceipts", json!([at[0]])).expect("receipts"));
        assert_eq!(receipts[0], receipts[1]);
    }
    let odd = second.call("eth_getBlockByNumber", json!(["0x2", true])).expect("a block");
    assert_eq!(odd["transactions"][0]["type"], json!("0x5f"));
}

#[test]
fn k4_blocks_are_stored_without_traces_and_repair_asks_again() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 4);
    whole(dir.path(), "archive", &node.url, &["--traces"]);
    let traces = |service: &Service, height: u64| -> Result<Value, Value> {
        service.call("debug_traceBlockByNumber", json!([format!("{height:#x}"), {"tracer": "callTracer"}]))
    };
    let service = serve(dir.path(), "archive");
    assert_eq!(service.height(), Some(4));
    traces(&service, 3).expect_err("they are not there");
    service.stop();
    let repair = |dir: &Path| {
        end_of(cairn(dir).args(["repair", "--data", "archive", "--raw-only", "--traces", "--rpc", &node.url]))
            .well()
    };
    let words = repair(dir.path());
    assert!(words.contains("4 blocks from height 1 on lack call traces"), "{words}");
    node.state().traces = true;
    let words = repair(dir.path());
    assert!(words.contains("4 blocks have call traces"), "{words}");
    let service = serve(dir.path(), "archive");
    for height in 1..=4 {
        let block =
            service.call("eth_getBlockByNumber", json!([format!("{height:#x}"), false])).expect("a block");
        let all = traces(&service, height).expect("traces");
        assert_eq!(all.as_array().map(Vec::len), block["transactions"].as_array().map(Vec::len));
    }
    verify_clean(dir.path(), "archive");
}
