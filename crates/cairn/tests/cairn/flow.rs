//! Flow in the binary: settings, start-up, a small run, and the commands over what it made.

use crate::support;

use std::fs;
use std::path::Path;
use std::process::Command;

use cairn_flow_node::{Behaviour, FlowNode, Generator, GeneratorOptions};
use serde_json::{Value, json};
use support::*;

/// The first height of the chain.
const ROOT: u64 = 1_000;

/// A node over a chain, and what it serves from.
struct Node {
    generator: Generator,
    node: FlowNode,
    _runtime: tokio::runtime::Runtime,
}

fn node(blocks: u64) -> Node {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let generator = Generator::new(GeneratorOptions::new(11), Behaviour::default());
    generator.grow(blocks);
    let node = runtime.block_on(FlowNode::serve(generator.state())).expect("serves");
    Node { generator, node, _runtime: runtime }
}

/// `cairn run` from access nodes, without limits of its own.
fn run(dir: &Path, access: &str) -> Command {
    let mut command = cairn(dir);
    command.args(["run", "--data", "archive", "--poll-ms", "50"]);
    // Flags win over these.
    command.env("CAIRN_CHAIN__NETWORK", "emulator").env("CAIRN_INGEST__FROM", ROOT.to_string());
    command.env("CAIRN_SERVE__LISTEN", "127.0.0.1:0").env("CAIRN_CHAIN__FLOW__EXECUTION_RESULTS", "true");
    let access = format!("[{{url=\"{access}\", requests_per_s=0, scripts_per_s=0}}]");
    command.env("CAIRN_CHAIN__ACCESS", access);
    command
}

#[test]
fn settings_of_another_kind_of_chain_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("dir");
    let flow = ["--flow-access", "127.0.0.1:1"];
    for (flags, name) in [
        (["--chain-id", "1"], "chain.chain_id"),
        (["--genesis", "genesis.json"], "chain.genesis"),
        (["--finality", "tag"], "chain.finality"),
        (["--relax", "bloom"], "chain.relax"),
        (["--upstream", "http://127.0.0.1:1"], "serve.upstream"),
    ] {
        let words = end_of(cairn(dir.path()).arg("config").args(flow).args(flags)).badly();
        assert!(words.contains(name) && words.contains("Flow"), "{flags:?}: {words}");
    }
    for flag in ["--traces", "--extra-receipts"] {
        let words = end_of(cairn(dir.path()).arg("config").args(flow).arg(flag)).badly();
        assert!(words.contains(&flag[2..].replace('-', "_")), "{flag}: {words}");
    }
    for (variables, name) in [
        (vec![("CAIRN_CHAIN__KIND", "evm"), ("CAIRN_CHAIN__NETWORK", "testnet")], "chain.network"),
        (vec![("CAIRN_CHAIN__KIND", "evm"), ("CAIRN_CHAIN__ACCESS", "127.0.0.1:1")], "chain.access"),
        (vec![("CAIRN_CHAIN__FLOW__REQUESTS_IN_FLIGHT", "7")], "chain.flow"),
        (vec![("CAIRN_CHAIN__KIND", "flow"), ("CAIRN_CHAIN__RPC", "[\"http://127.0.0.1:1\"]")], "chain.rpc"),
        (
            vec![("CAIRN_CHAIN__KIND", "flow"), ("CAIRN_DERIVE__WRAPPED_TOKENS", "[\"0x12\"]")],
            "wrapped_tokens",
        ),
        (vec![("CAIRN_CHAIN__KIND", "near")], "near"),
        (vec![("CAIRN_CHAIN__ACCESS", "ftp://host:1")], "ftp://host:1"),
        (vec![("CAIRN_CHAIN__ACCESS", "[{url=\"h:1\", from=9, until=9}]")], "from 9"),
        (vec![("CAIRN_CHAIN__ACCESS", "[{url=\"h:1\", until=9}]")], "until"),
        (vec![("CAIRN_CHAIN__ACCESS", "[{url=\"h:1\", form=9}]")], "form"),
        (
            vec![("CAIRN_CHAIN__ACCESS", "h:1"), ("CAIRN_CHAIN__FLOW__REQUEST_TIMEOUT_MS", "0")],
            "request_timeout_ms",
        ),
    ] {
        let words = end_of(cairn(dir.path()).arg("config").envs(variables.clone())).badly();
        assert!(words.contains(name), "{variables:?}: {words}");
    }
    for command in ["import", "demo"] {
        let mut command_of = cairn(dir.path());
        command_of.arg(command).env("CAIRN_CHAIN__KIND", "flow");
        if command == "import" {
            command_of.args(["--chain", "x", "--receipts", "y", "--genesis", "z"]);
        }
        let words = end_of(&mut command_of).badly();
        assert!(words.contains("EVM") && words.contains("flow-mainnet"), "{command}: {words}");
    }
    let words = end_of(cairn(dir.path()).arg("run").env("CAIRN_CHAIN__KIND", "flow")).badly();
    assert!(words.contains("--flow-access"), "it says what to do: {words}");
    let help = end_of(cairn(dir.path()).args(["run", "--help"])).well();
    assert!(help.contains("--flow-access <URL[,URL]>") && help.contains("--network <NETWORK>"), "{help}");
}

#[test]
fn access_nodes_are_told_in_several_ways_and_printed_as_they_are_in_force() {
    let dir = tempfile::tempdir().expect("dir");
    let file = "[chain]\nkind = \"flow\"\nnetwork = \"flow-testnet\"\naccess = [\"a.example:9000\", \
                { url = \"https://user:S3CRET@b.example:9001/S3CRET\", from = 5, requests_per_s = 7 }]\n";
    fs::write(dir.path().join("cairn.toml"), file).expect("writes");
    let shown = end_of(cairn(dir.path()).arg("config")).well();
    for line in [
        "kind = \"flow\"",
        "network = \"testnet\"",
        "http://a.example:9000",
        "from = 5",
        "requests_per_s = 7",
    ] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    assert!(shown.contains("https://b.example:9001/…") && !shown.contains("S3CRET"), "{shown}");
    let shown =
        end_of(cairn(dir.path()).args(["config", "--flow-access", "c:1,d:2", "--network", "emulator"]))
            .well();
    for line in
        ["http://c:1", "http://d:2", "network = \"emulator\"", "requests_per_s = 100", "scripts_per_s = 5"]
    {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    fs::write(dir.path().join("printed.toml"), &shown).expect("writes");
    let again = end_of(cairn(dir.path()).args(["--config", "printed.toml", "config"])).well();
    assert_eq!(again, shown);
}

#[test]
fn f02_heights_that_no_node_has_and_other_networks_are_refused_at_the_start() {
    let dir = tempfile::tempdir().expect("dir");
    let node = node(20);
    let url = node.node.url.clone();
    let words = end_of(run(dir.path(), &url).args(["--from", "7", "--exit-after-head"])).badly();
    assert!(words.contains(&format!("--from {ROOT}")), "{words}");
    let words = end_of(run(dir.path(), &url).args(["--network", "mainnet"])).badly();
    assert!(words.contains("flow-emulator") && words.contains("flow-mainnet"), "{words}");
}

#[test]
fn a_small_run_takes_derives_serves_and_can_be_looked_at() {
    let dir = tempfile::tempdir().expect("dir");
    let node = node(150);
    let tip = node.generator.sealed_height();
    let said = end_of(run(dir.path(), &node.node.url).arg("--exit-after-head"));
    assert!(said.status.success(), "{said:?}");
    assert!(said.err.contains("archiving chain flow-emulator"), "{}", said.err);
    assert!(said.err.contains("JSON-RPC   none") && said.err.contains("/v1/docs"), "{}", said.err);

    // The archive says of which chain it is: nothing is told here.
    let shown = status(dir.path(), "archive");
    assert_eq!((&shown["chain"], &shown["first"]), (&json!("flow-emulator"), &json!(ROOT)));
    assert_eq!(shown["checkpoint"]["height"], json!(tip));
    assert_eq!(shown["gaps"], json!([]));
    let words = verify_clean(dir.path(), "archive");
    assert!(words.contains("verified 150 blocks"), "{words}");
    let workers = end_of(cairn(dir.path()).args(["workers", "--data", "archive", "list"])).well();
    for worker in [
        "token_worker",
        "evm_worker",
        "meta_worker",
        "accounts_worker",
        "tx_metrics_worker",
        "ft_holdings_worker",
        "nft_ownership_worker",
        "tx_contracts_worker",
        "stats_worker",
    ] {
        assert!(workers.contains(worker), "{worker}:\n{workers}");
    }
    let leases = end_of(cairn(dir.path()).args(["leases", "--data", "archive", "list"])).well();
    assert!(leases.contains("token_worker") && !leases.contains("DEAD"), "{leases}");
    end_of(cairn(dir.path()).args(["errors", "--data", "archive", "list"])).well();
    let repaired = end_of(cairn(dir.path()).args(["repair", "--data", "archive"])).well();
    assert!(repaired.contains("150 blocks in full"), "{repaired}");
    let again =
        end_of(cairn(dir.path()).args(["reindex", "--data", "archive", "--worker", "meta_worker"])).well();
    assert!(again.contains("made again"), "{again}");
    end_of(cairn(dir.path()).args(["migrate", "--data", "archive"])).well();

    // Another chain's archive is refused by name, whatever is to be done with it.
    for (command, kind, network) in
        [("status", "evm", None), ("serve", "evm", None), ("verify", "flow", Some("testnet"))]
    {
        let mut command_of = cairn(dir.path());
        command_of.args([command, "--data", "archive"]).env("CAIRN_CHAIN__KIND", kind);
        if let Some(network) = network {
            command_of.env("CAIRN_CHAIN__NETWORK", network);
        }
        let words = end_of(&mut command_of).badly();
        assert!(words.contains("flow-emulator"), "{command}: {words}");
    }

    // Served from what is there, and then followed, over a reorg.
    let mut service = Service::start(cairn(dir.path()).args(["serve", "--data", "archive"]));
    service.until("REST answers", |service| service.get("/v1/status").0 == 200);
    let status: Value = serde_json::from_str(&service.get("/v1/status").1).expect("JSON");
    assert_eq!(status["data"]["chain"], "flow-emulator");
    service.stop();

    let mut node = node;
    let mut service = Service::start(&mut run(dir.path(), &node.node.url));
    node.generator.grow(5);
    let height = |service: &Service| -> Option<u64> {
        let (_, text) = service.get("/v1/status");
        let status: Value = serde_json::from_str(&text).ok()?;
        status["data"]["app_watermark_height"].as_str()?.parse().ok()
    };
    service.until("the new head is derived", |service| height(service) == Some(tip + 5));
    assert_eq!(service.ready().0, 200, "{:?}", service.ready());
    assert!(service.get("/metrics").1.contains("cairn_source_requests_total"));
    // Enrichers ask the same nodes: scripts, and accounts for the code of their contracts.
    service.until("the node was asked about contracts", |_| {
        let state = node.node.state.lock().expect("not poisoned");
        let asked = |call: &str| state.counts.asked.get(call).is_some_and(|count| *count > 0);
        asked("ExecuteScriptAtBlockID") && asked("GetAccountAtBlockHeight")
    });
    service.until("the code of a contract is there", |service| {
        let list: Value = serde_json::from_str(&service.get("/v1/contracts").1).expect("JSON");
        list["data"].as_array().expect("contracts").iter().any(|row| {
            let identifier = row["identifier"].as_str().expect("a contract");
            let (code, text) = service.get(&format!("/v1/contracts/{identifier}/code"));
            let answer: Value = serde_json::from_str(&text).expect("JSON");
            code == 200 && answer["data"]["source"].as_str().is_some_and(|source| source.contains("contract"))
        })
    });
    node.generator.rollback(3);
    node.generator.grow(4);
    service.until("the other fork is derived", |service| {
        let (_, text) = service.get("/v1/status");
        let status: Value = serde_json::from_str(&text).expect("JSON");
        status["data"]["newest_reorg"] == "1" && height(service) == Some(tip + 6)
    });
    let id = node.node.state.lock().expect("not poisoned").chain.at(tip + 4).expect("a block").id.clone();
    let (_, block) = service.get(&format!("/v1/blocks/{}", tip + 4));
    assert!(block.contains(&hex::encode(id)), "{block}");
    let (ended, _) = service.stop();
    assert!(ended.success(), "{ended}");
    verify_clean(dir.path(), "archive");
}

/// An archive that ends far below the head, from a node that has the state of its newest blocks only.
#[test]
fn tokens_are_named_by_a_node_that_has_no_state_of_old_blocks() {
    const TO: u64 = ROOT + 100;
    let dir = tempfile::tempdir().expect("dir");
    let node = node(400);
    node.node.state.lock().expect("not poisoned").behaviour.keeps_state_heights = Some(60);
    let sealed = node.generator.sealed_height();
    let mut command = run(dir.path(), &node.node.url);
    command.args(["--to", &TO.to_string()]).env("CAIRN_INGEST__MAX_REORG_DEPTH", "40");
    let mut service = Service::start(&mut command);
    let json = |service: &Service, path: &str| -> Value {
        serde_json::from_str(&service.get(path).1).expect("JSON")
    };
    let end = TO.to_string();
    let done = |service: &Service, worker: &str| {
        let status = json(service, "/v1/status");
        let workers = status["data"]["derived"]["workers"].as_array().cloned().unwrap_or_default();
        workers.iter().any(|at| at["name"] == worker && at["tip"]["height"] == *end)
    };
    for worker in
        ["token_metadata_worker", "nft_metadata_worker", "contract_code_worker", "account_metadata_worker"]
    {
        service.until(worker, |service| done(service, worker));
    }
    let status = json(&service, "/v1/status");
    assert_eq!(status["data"]["finalized"]["height"], (TO - 40).to_string());
    service.stop();
    let app = rusqlite::Connection::open(dir.path().join("archive/app.sqlite")).expect("opens");
    let number = |query: &str| -> i64 { app.query_row(query, [], |row| row.get(0)).expect("runs") };
    assert!(number("SELECT count(*) FROM tokens WHERE status = 'ok'") > 0);
    assert_eq!(number("SELECT count(*) FROM token_contracts WHERE status IN ('silent', 'failed')"), 0);
    assert!(number("SELECT count(*) FROM nft_asks WHERE status = 'ok'") > 0);
    assert_eq!(number("SELECT count(*) FROM nft_asks WHERE status = 'failed'"), 0);
    // What accounts were before can't be learnt there, and is said so.
    assert!(number("SELECT count(*) FROM account_bases WHERE status = 'failed' AND message <> ''") > 0);
    assert_eq!(number("SELECT count(*) FROM account_bases WHERE status <> 'failed'"), 0);
    for table in ["tokens", "nft_asks", "contract_version_code"] {
        let asked_at = number(&format!("SELECT min(asked_at_height) FROM {table}"));
        assert!((TO + 1..=sealed - 40).contains(&(asked_at as u64)), "{table}: {asked_at}");
    }
}
