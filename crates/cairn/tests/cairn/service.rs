//! The service: killed, stopped, starved, locked out; and what it answers meanwhile.

use crate::support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use cairn_backends::sqlite::{SqliteOptions, SqliteStore};
use cairn_core::{Height, SystemClock};
use cairn_source::evm::synthetic::{ForkId, Mix, SyntheticChain, SyntheticOptions};
use cairn_store::memory::MemoryStore;
use cairn_store::suite::blocks::Numbers;
use cairn_store::{AppendBatch, RawDump, RawReader, RawWriter, StoreInfo};
use serde_json::{Value, json};
use support::node::MockNode;
use support::*;

const FREE_PORTS: [&str; 4] = ["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];

/// `cairn demo` on a chain with a history of `blocks`.
fn demo(dir: &Path, blocks: u64, block_time_ms: u64) -> Command {
    let mut command = cairn(dir);
    command.args(["demo", "--data", "archive", "--seed", "7", "--blocks", &blocks.to_string()]);
    command.args(["--block-time-ms", &block_time_ms.to_string(), "--genesis-time-s", "1700000000"]);
    command
}

/// `cairn run` from a node.
fn run(dir: &Path, node: &MockNode) -> Command {
    let mut command = cairn(dir);
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    command
}

#[test]
fn x02_killed_at_any_moment_the_archive_is_whole_and_goes_on() {
    const BLOCKS: u64 = 300;
    let dir = tempfile::tempdir().expect("dir");
    let mut numbers = Numbers::new(0x5eed);
    let mut heights: Vec<u64> = Vec::new();
    for round in 0.. {
        // Ten moments are enough, unless the machine is so slow that nobody came far.
        if round >= 10 && heights.last().is_some_and(|tip| *tip >= BLOCKS) {
            break;
        }
        assert!(round < 40, "it never got far: {heights:?}");
        let mut command = demo(dir.path(), BLOCKS, 40);
        let mut child =
            command.args(FREE_PORTS).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        std::thread::sleep(Duration::from_millis(60 + numbers.below(900) + 100 * (round.max(10) - 10)));
        assert!(child.try_wait().expect("can be asked").is_none(), "round {round}: it ended by itself");
        if round % 2 == 0 {
            child.kill().expect("is killed");
            child.wait().expect("ends");
        } else {
            terminate(&child);
            let ended = wait(&mut child, Duration::from_secs(5));
            let ended = ended.expect("it ends within seconds after SIGTERM");
            // A signal before it was ready for one ends it at once.
            assert!(ended.success() || ended.code().is_none(), "{ended}");
        }
        let shown = end_of(cairn(dir.path()).args(["status", "--json", "--data", "archive"]));
        if !shown.status.success() {
            assert!(heights.is_empty(), "round {round}: what was there is gone: {shown:?}");
            continue;
        }
        let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
        assert_eq!(shown["gaps"], json!([]), "round {round}");
        if let Some(tip) = shown["checkpoint"]["height"].as_u64() {
            assert_eq!(shown["first"], json!(0));
            let before = heights.last().copied().unwrap_or(0);
            // A reorg that was under way may have lowered it.
            assert!(tip + 10 > before, "round {round}: from {before} back to {tip}");
            heights.push(tip);
            verify_clean(dir.path(), "archive");
        }
    }

    // To a head that stays, and then it is what an undisturbed run makes.
    let end = BLOCKS + 150;
    end_of(demo(dir.path(), end, 40).args(FREE_PORTS).arg("--exit-after-head")).well();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let options =
            SqliteOptions { snapshot_max_ms: None, ..SqliteOptions::read_only(dir.path().join("archive")) };
        let store = SqliteStore::open(options, Arc::new(SystemClock)).await.expect("opens");
        let head = store.snapshot().await.expect("reads").head().clone();
        let chain = SyntheticChain::new(SyntheticOptions {
            seed: 7,
            mix: Mix::Economy,
            ..SyntheticOptions::default()
        });
        let clean = MemoryStore::new(Arc::new(SystemClock));
        let info = StoreInfo { uuid: [1; 16], chain_id: chain.chain_id(), chain_config: Default::default() };
        clean.init(info).await.expect("is made");
        let fence = clean.acquire().await.expect("acquires").fence;
        let blocks = (0..=end).map(|height| (*chain.block(ForkId::MAIN, Height(height))).clone()).collect();
        let batch = AppendBatch { blocks, finalized: head.finalized, safe: None };
        clean.append(fence, batch).await.expect("appends");
        let (dump, want) = (store.dump().await.expect("dumps"), clean.dump().await.expect("dumps"));
        assert_eq!(dump.first_difference(&want), None);
    });
}

#[test]
fn an_archive_up_to_a_height_below_the_head_is_ready_when_it_is_there() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 200);
    let mut command = run(dir.path(), &node);
    command.env("CAIRN_HEALTH__MAX_AGE_S", "1").args(["--to", "30"]);
    let mut service = Service::start(&mut command);
    service.until("height 30", |service| service.height() == Some(30));
    service.until("it is ready", |service| service.ready().0 == 200);
    // 170 blocks below the node's head, and longer without a new one than it may be while it follows.
    std::thread::sleep(Duration::from_millis(1_500));
    let (status, report) = service.ready();
    assert_eq!(
        (status, &report["state"], &report["lag_blocks"]),
        (200, &json!("ready"), &json!(0)),
        "{report}"
    );
    assert_eq!(service.call("eth_syncing", json!([])), Ok(json!(false)));
    assert!(service.stop().0.success());
}

#[test]
fn a_node_that_never_answers_about_contracts_is_named_in_the_log_the_metrics_and_the_status() {
    let dir = tempfile::tempdir().expect("dir");
    // It has no `eth_call`.
    let node = MockNode::start(1337, 100);
    let mut service = Service::start(&mut run(dir.path(), &node));
    let status = |service: &Service| -> Value {
        let status: Value = serde_json::from_str(&service.get("/v1/status").1).expect("JSON");
        status["data"].clone()
    };
    let asker = |status: &Value| -> Value {
        let workers = status["derived"]["workers"].as_array().cloned().unwrap_or_default();
        workers.into_iter().find(|worker| worker["name"] == "token_metadata_worker").unwrap_or_default()
    };
    service.until("the log says so", |service| {
        service.log().lines().any(|line| {
            line.contains("WARN") && line.contains("token_metadata_worker") && line.contains("doesn't get on")
        })
    });
    let told = asker(&status(&service))["last_error"].as_str().expect("an error").to_owned();
    assert!(told.contains("eth_call") && told.contains("derive.ask_node = false"), "{told}");
    let metrics = service.get("/metrics").1;
    for name in [
        r#"cairn_node_refusals_total{method="eth_call",reason="method-missing"}"#,
        r#"cairn_worker_troubles_total{service="token_metadata_worker"}"#,
    ] {
        assert!(metrics.contains(name), "{name}\n{metrics}");
    }
    // And nothing waits for it.
    service.until("all else is derived", |service| status(service)["app_watermark_height"] == "100");
    assert!(service.stop().0.success());
}

#[test]
fn a_start_waits_for_what_is_not_there_yet_and_says_for_what() {
    let dir = tempfile::tempdir().expect("dir");
    // Nobody listens there.
    let nowhere = {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        port.local_addr().expect("an address").port()
    };
    let database = format!("postgres://cairn@127.0.0.1:{nowhere}/cairn");
    let node = format!("http://127.0.0.1:{nowhere}");
    for role in ["all", "ingest", "work", "api"] {
        let mut command = cairn(dir.path());
        command.args(["run", "--role", role, "--rpc", &node]).args(FREE_PORTS);
        command.env("CAIRN_START_WAIT_S", "2").env("DB_RAW_URL", &database).env("DB_APP_URL", &database);
        let begun = std::time::Instant::now();
        let words = end_of(&mut command).badly();
        assert!(begun.elapsed() >= Duration::from_secs(2), "{role}: {words}");
        assert!(words.contains("waiting up to 2 s for the raw database"), "{role}: {words}");
        assert!(words.contains("waited 2 s (start_wait_s) for the raw database"), "{role}: {words}");
    }
    let mut command = cairn(dir.path());
    command.args(["run", "--rpc", &node, "--data", "archive"]).args(FREE_PORTS);
    let words = end_of(command.env("CAIRN_START_WAIT_S", "1")).badly();
    assert!(words.contains("waited 1 s (start_wait_s) for a node"), "{words}");
    // What fails is said in one line, however often it is tried, and once more at the end.
    assert_eq!(words.lines().filter(|line| line.contains(&nowhere.to_string())).count(), 2, "{words}");
}

#[test]
fn a_server_over_a_pair_that_does_not_fit_is_not_ready() {
    let dir = tempfile::tempdir().expect("dir");
    let made = |name: &str, blocks: &str, derives: &str| {
        let mut command = cairn(dir.path());
        command.args(["demo", "--data", name, "--blocks", blocks, "--exit-after-head"]).args(FREE_PORTS);
        end_of(command.env("CAIRN_DERIVE__ENABLED", derives)).well();
    };
    let state_of = |name: &str, wanted: &str| {
        let mut command = cairn(dir.path());
        command.args(["serve", "--data", name]);
        let mut service = Service::start(command.env("CAIRN_HEALTH__MAX_TABLE_LAG_HEIGHTS", "10"));
        service.until(wanted, |service| service.ready().1["state"] == wanted);
        let (status, report) = service.ready();
        assert_eq!(status == 200, wanted == "ready", "{report}");
        assert!(service.stop().0.success());
    };
    made("one", "30", "true");
    made("other", "30", "true");
    std::fs::copy(dir.path().join("one/raw.sqlite"), dir.path().join("older.sqlite")).expect("copies");
    state_of("one", "ready");
    // The archive grows, and nobody derives.
    made("one", "60", "false");
    state_of("one", "tables_lagging");
    made("one", "60", "true");
    state_of("one", "ready");
    // An older copy of the raw database.
    let put = |from: &str, name: &str| {
        for end in ["-wal", "-shm"] {
            let beside = dir.path().join(format!("one/{name}{end}"));
            assert!(!beside.exists() || std::fs::remove_file(&beside).is_ok(), "{end} goes with its file");
        }
        std::fs::copy(dir.path().join(from), dir.path().join("one").join(name)).expect("copies");
    };
    put("older.sqlite", "raw.sqlite");
    state_of("one", "pair_unfit");
    // Another raw database.
    put("other/app.sqlite", "app.sqlite");
    state_of("one", "pair_unfit");
}

#[test]
fn a_server_that_starts_before_the_derived_tables_serves_them_once_they_are_made() {
    let dir = tempfile::tempdir().expect("dir");
    let made = |derives: &str| {
        let mut command = demo(dir.path(), 30, 100);
        command.args(FREE_PORTS).arg("--exit-after-head");
        end_of(command.env("CAIRN_DERIVE__ENABLED", derives)).well();
    };
    made("false");
    let mut server = Service::start(cairn(dir.path()).args(["serve", "--data", "archive"]));
    server.until("it says that the tables are away", |server| server.ready().1["state"] == "app_away");
    made("true");
    server.until("the tables are served", |server| server.ready().0 == 200);
    assert_eq!(server.get("/v1/tokens").0, 200);
    assert!(server.stop().0.success());
}

#[test]
fn an_archive_begins_where_people_say_and_one_without_a_block_says_so() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 200);
    let first = |name: &str, from: &str| {
        let mut command = cairn(dir.path());
        command.args(["run", "--rpc", &node.url, "--exit-after-head", "--poll-ms", "50"]).args(FREE_PORTS);
        command.env("CAIRN_DERIVE__ENABLED", "false").args(["--data", name, "--from", from]);
        end_of(&mut command).well();
        status(dir.path(), name)["first"].as_u64()
    };
    // The first block can't be undone: it is a final one, 64 below the head where the node has no tag.
    assert_eq!(first("latest", "latest"), Some(136));
    assert_eq!(first("below", "-100"), Some(100));
    assert_eq!(first("hex", "0x1e"), Some(30));
    // What is counted from the head is only counted once.
    assert_eq!(first("below", "-50"), Some(100));

    let mut command = cairn(dir.path());
    command.args(["run", "--rpc", &node.url, "--data", "above", "--from", "999", "--poll-ms", "50"]);
    let mut service = Service::start(&mut command);
    service.until("it says so", |service| service.log().contains("`--from latest` begins at the head"));
    assert_eq!(service.ready().1["state"], "no_block_yet");
    let error = service.call("eth_blockNumber", json!([])).expect_err("there is none");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("no block is stored yet")), "{error}");
    let text = end_of(cairn(dir.path()).args(["status", "--data", "above"])).well();
    assert!(text.contains("no block is stored yet"), "{text}");
    assert!(service.stop().0.success());
}

#[test]
fn a_demo_goes_on_at_its_tip_with_times_of_now() {
    let dir = tempfile::tempdir().expect("dir");
    let demo = || {
        let mut command = cairn(dir.path());
        command.args(["demo", "--data", "archive", "--blocks", "40", "--block-time-ms", "1000"]);
        command
    };
    let mut service = Service::start(&mut demo());
    service.until("height 44", |service| service.height() >= Some(44));
    assert!(service.stop().0.success());
    let before = status(dir.path(), "archive")["checkpoint"]["height"].as_u64().expect("a height");
    std::thread::sleep(Duration::from_secs(4));
    let begun = std::time::Instant::now();
    let mut service = Service::start(&mut demo());
    service.until("it goes on", |service| service.height() > Some(before + 1));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let block = service.call("eth_getBlockByNumber", json!(["latest", false])).expect("answers");
    let made = quantity(&block["timestamp"]).expect("a time");
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(made.abs_diff(now) <= 10, "made at {made}, and it is {now}");
    assert!(service.stop().0.success());
    verify_clean(dir.path(), "archive");
}

#[test]
fn a_backup_of_a_running_archive_is_a_pair_that_fits() {
    let dir = tempfile::tempdir().expect("dir");
    let mut service = Service::start(&mut demo(dir.path(), 60, 40));
    service.until("height 60", |service| service.height() >= Some(60));
    service.until("tables", |service| {
        let status: Value = serde_json::from_str(&service.get("/v1/status").1).expect("JSON");
        status["data"]["app_watermark_height"].as_str().is_some_and(|height| height.len() >= 2)
    });
    let backup = |name: &str| end_of(cairn(dir.path()).args(["backup", name, "--data", "archive"])).well();
    for name in ["first", "second"] {
        let said = backup(name);
        assert!(said.contains("raw.sqlite") && said.contains("the two fit each other"), "{said}");
    }
    let words = end_of(cairn(dir.path()).args(["backup", "first", "--data", "archive"])).badly();
    assert!(words.contains("holds app.sqlite already"), "{words}");
    assert!(service.stop().0.success());
    // The copy is an archive like any other.
    assert!(verify_clean(dir.path(), "second").contains("block"));
    let shown = status(dir.path(), "second");
    assert_eq!(shown["unfit"], Value::Null, "{shown}");
    assert!(shown["checkpoint"]["height"].as_u64() >= Some(60), "{shown}");
    assert!(shown["tip_age_ms"].is_u64() && shown["app_bytes"].as_u64() > Some(0), "{shown}");
    let tables = shown["tables"].as_array().expect("workers");
    assert!(
        tables.iter().any(|own| own["worker"] == "token_worker" && own["lag_blocks"].is_u64()),
        "{shown}"
    );
    let text = end_of(cairn(dir.path()).args(["status", "--data", "second"])).well();
    for line in ["errors      0 open", "token_worker", "app size", "raw size", " ago"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let words = end_of(cairn(dir.path()).args(["backup", "third", "--data", "nowhere"])).badly();
    assert!(words.contains("there is no archive in nowhere"), "{words}");
}

#[test]
fn x01_a_frozen_source_shows_and_reads_go_on() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 30);
    let mut service = Service::start(run(dir.path(), &node).env("CAIRN_HEALTH__MAX_AGE_S", "1"));
    service.until("height 30", |service| service.height() == Some(30));
    // While the chain grows it is ready.
    let mut head = 30;
    service.until("it is ready", |service| {
        head += 1;
        node.state().head = head;
        std::thread::sleep(Duration::from_millis(60));
        let (status, report) = service.ready();
        assert_eq!(status == 200, report["state"] == "ready", "{report}");
        status == 200
    });

    // The node answers, and its head stands still.
    service.until("a stalled chain", |service| service.ready().1["state"] == "chain_stalled");
    let (status, report) = service.ready();
    assert_eq!(status, 503);
    assert!(report["reason"].as_str().expect("text").contains("has not moved"), "{report}");
    assert_eq!(service.get("/livez").0, 200);

    // The node is silent.
    node.state().hangs = true;
    service.until("stale", |service| service.ready().1["state"] == "stale");
    let (status, report) = service.ready();
    assert_eq!(status, 503);
    assert!(report["reason"].as_str().expect("text").contains("silent"), "{report}");
    assert_eq!(service.get("/livez").0, 200);
    assert_eq!(service.height(), Some(head), "reads still work");
    let block = service.call("eth_getBlockByNumber", json!(["latest", false])).expect("answers");
    assert_eq!(quantity(&block["number"]), Some(head));
    let metrics = service.get("/metrics").1;
    assert!(metrics.contains(&format!("cairn_ingest_tip_height {head}")), "{metrics}");

    // It comes back by itself.
    node.state().hangs = false;
    service.until("it is ready again", |service| {
        head += 1;
        node.state().head = head;
        std::thread::sleep(Duration::from_millis(60));
        service.ready().0 == 200
    });

    // And stops in seconds while the node hangs.
    node.state().hangs = true;
    std::thread::sleep(Duration::from_millis(300));
    let (ended, took) = service.stop();
    assert!(ended.success(), "{ended}");
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    verify_clean(dir.path(), "archive");
}

fn obstacle(service: &Service) -> Value {
    let status: Value = serde_json::from_str(&service.get("/v1/status").1).expect("JSON");
    status["data"]["obstacle"].clone()
}

#[test]
fn k1_a_node_that_refuses_for_a_while_shows_at_once_and_is_asked_again() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 20);
    let mut service = Service::start(&mut run(dir.path(), &node));
    service.until("it is ready", |service| service.ready().0 == 200);
    for (height, refusal) in [(21, 401), (22, 403), (23, 404), (24, 302)] {
        node.state().refuses = Some(StatusCode::from_u16(refusal).expect("a status"));
        service.until("it is refused", |service| service.ready().1["state"] == "source_refused");
        let (status, report) = service.ready();
        let reason = report["reason"].as_str().unwrap_or_default();
        let host = node.url.trim_start_matches("http://");
        assert!(reason.contains(host) && reason.contains(&refusal.to_string()), "{report}");
        assert_eq!(status, 503);
        assert_eq!(obstacle(&service)["code"], "source-refused");
        node.state().refuses = None;
        node.state().head = height;
        service.until("it goes on", |service| service.height() == Some(height));
        service.until("it is ready", |service| service.ready().0 == 200);
        assert_eq!(obstacle(&service), Value::Null);
    }
    assert!(service.stop().0.success());
}

#[test]
fn a_refused_block_says_height_check_and_remedy_and_is_closed_when_it_is_stored() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 20);
    let mut service = Service::start(&mut run(dir.path(), &node));
    service.until("it is ready", |service| service.ready().0 == 200);
    node.state().spoilt = Some(21);
    node.state().head = 22;
    service.until("it is refused", |service| service.ready().1["state"] == "block_refused");
    let (status, report) = service.ready();
    let reason = report["reason"].as_str().unwrap_or_default();
    for part in ["block 21", "`receipts-root`", "--relax receipts-root"] {
        assert!(reason.contains(part), "{report}");
    }
    assert_eq!((status, &report["tip"]), (503, &json!(20)));
    let shown = obstacle(&service);
    assert_eq!(
        (&shown["code"], &shown["height"], &shown["check"]),
        (&json!("block-refused"), &json!("21"), &json!("receipts-root"))
    );
    let lines = service.log().matches("nothing is stored; trying again").count() as u64;
    assert!((1..shown["tries"].as_u64().unwrap_or_default()).contains(&lines), "{shown}: {}", service.log());
    let errors =
        || end_of(cairn(dir.path()).args(["errors", "list", "--data", "archive", "--worker", "raw"])).well();
    service.until("it is in the error log", |_| errors().contains("receipts-root"));

    node.state().spoilt = None;
    service.until("it goes on", |service| service.height() == Some(22));
    service.until("it is ready", |service| service.ready().0 == 200);
    service.until("it is closed", |_| !errors().contains("receipts-root"));
    assert!(service.log().contains("ingestion goes on"), "{}", service.log());
    assert!(service.stop().0.success());
}

#[test]
fn x01_a_node_that_is_far_ahead_shows_as_lag() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 20);
    let mut service = Service::start(run(dir.path(), &node).env("CAIRN_HEALTH__MAX_LAG_HEIGHTS", "5"));
    service.until("height 20", |service| service.height() == Some(20));
    service.until("it is ready", |service| service.ready().0 == 200);
    // Announced and not given.
    node.state().nulls = (21..=40).map(|height| (height, usize::MAX)).collect();
    node.state().head = 40;
    service.until("503", |service| service.ready().0 == 503);
    let (_, report) = service.ready();
    assert_eq!(report["state"], "lagging_blocks", "{report}");
    assert!(report["reason"].as_str().expect("text").contains("20 blocks behind"), "{report}");
    assert_eq!(service.height(), Some(20));
    node.state().nulls.clear();
    service.until("height 40", |service| service.height() == Some(40));
    service.until("it is ready", |service| service.ready().0 == 200);
}

#[test]
fn e01_an_announced_block_that_is_null_at_first_is_one_stored_block() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 99);
    let mut service = Service::start(&mut run(dir.path(), &node));
    service.until("height 99", |service| service.height() == Some(99));
    node.state().nulls.insert(100, 5);
    node.state().head = 100;
    service.until("height 100", |service| service.height() == Some(100));
    assert!(node.state().asked[&100] >= 6, "it asked again");
    assert!(service.child_is_alive(), "no restart");
    // What is served is what the node has.
    let (block, receipts) = node.state().json(100);
    assert_eq!(service.call("eth_getBlockByNumber", json!(["0x64", true])).expect("answers"), block);
    assert_eq!(service.call("eth_getBlockReceipts", json!(["0x64"])).expect("answers"), receipts);
    assert!(service.stop().0.success());
    let shown = status(dir.path(), "archive");
    assert_eq!(shown["checkpoint"]["height"], json!(100));
    assert_eq!(shown["reorgs"]["count"], json!(0));
    assert!(verify_clean(dir.path(), "archive").contains("101 blocks"));
}

#[test]
fn a_reorg_of_the_node_is_followed() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 30);
    let mut service = Service::start(&mut run(dir.path(), &node));
    service.until("height 30", |service| service.height() == Some(30));
    {
        let mut state = node.state();
        let options = cairn_source::evm::synthetic::ForkOptions::new(1);
        state.fork = state.chain.fork_at((ForkId::MAIN, Height(25)), options);
        state.head = 31;
    }
    service.until("height 31", |service| service.height() == Some(31));
    let (block, _) = node.state().json(28);
    assert_eq!(service.call("eth_getBlockByNumber", json!(["0x1c", true])).expect("answers"), block);
    assert!(service.stop().0.success());
    let shown = status(dir.path(), "archive");
    assert_eq!(shown["reorgs"]["newest"][0]["depth"], json!(5), "{shown}");
    verify_clean(dir.path(), "archive");
}

#[test]
fn another_chain_is_refused_and_nothing_changes() {
    let dir = tempfile::tempdir().expect("dir");
    let (ours, other) = (MockNode::start(1337, 20), MockNode::start(4242, 60));
    end_of(run(dir.path(), &ours).args(FREE_PORTS).arg("--exit-after-head")).well();
    let before = status(dir.path(), "archive");
    assert_eq!(before["checkpoint"]["height"], json!(20));
    let words = end_of(run(dir.path(), &other).args(FREE_PORTS)).badly();
    assert!(words.contains("holds chain 1337") && words.contains("serves chain 4242"), "{words}");
    assert!(words.contains("another data directory"), "it says what to do: {words}");
    // Its age and the size of its files may change.
    let after = status(dir.path(), "archive");
    for kept in ["chain_id", "first", "checkpoint", "reorgs", "gaps", "tables", "errors_open"] {
        assert_eq!(after[kept], before[kept], "{kept}");
    }
    assert!(other.state().asked.is_empty(), "it was not even asked for blocks");
    // Nor is an archive begun where the chain isn't the one that was asked for.
    let mut wrong = cairn(dir.path());
    wrong.args(["run", "--data", "new", "--rpc", &other.url, "--chain-id", "1"]).args(FREE_PORTS);
    let words = end_of(&mut wrong).badly();
    assert!(words.contains("4242") && words.contains("chain 1"), "{words}");
    assert!(!dir.path().join("new").exists());
    // The right one goes on.
    ours.state().head = 25;
    end_of(run(dir.path(), &ours).args(FREE_PORTS).arg("--exit-after-head")).well();
    assert!(verify_clean(dir.path(), "archive").contains("26 blocks"));
}

#[test]
fn one_process_writes_and_others_may_read() {
    let dir = tempfile::tempdir().expect("dir");
    let mut writer = Service::start(&mut demo(dir.path(), 40, 100));
    writer.until("height 40", |service| service.height() >= Some(40));
    let words = end_of(demo(dir.path(), 40, 100).args(FREE_PORTS)).badly();
    assert!(words.contains("held by another process") && words.contains("cairn.lock"), "{words}");
    assert!(words.contains("cairn serve"), "it says what to do: {words}");

    let mut reader = Service::start(cairn(dir.path()).args(["serve", "--data", "archive"]));
    let first = reader.height().expect("a height");
    reader.until("it sees new blocks", |reader| reader.height() > Some(first + 3));
    let at = json!([format!("{first:#x}"), true]);
    let (ours, theirs) =
        (reader.call("eth_getBlockByNumber", at.clone()), writer.call("eth_getBlockByNumber", at));
    assert!(ours.expect("answers")["number"] == theirs.expect("answers")["number"]);
    assert_eq!(status(dir.path(), "archive")["gaps"], json!([]));
    verify_clean(dir.path(), "archive");
    let logs = json!([{"fromBlock": "0x1", "toBlock": "0x20"}]);
    let (ours, theirs) = (reader.call("eth_getLogs", logs.clone()), writer.call("eth_getLogs", logs));
    assert!(ours.as_ref().is_ok_and(|logs| logs.as_array().is_some_and(|logs| !logs.is_empty())));
    assert_eq!(ours, theirs);
    let (ended, took) = writer.stop();
    assert!(ended.success() && took < Duration::from_secs(5), "{ended} in {took:?}");
    assert!(reader.height().is_some(), "the reader stays");
    let (ended, took) = reader.stop();
    assert!(ended.success() && took < Duration::from_secs(5), "{ended} in {took:?}");
    // The lock went with its process.
    end_of(demo(dir.path(), 40, 100).args(FREE_PORTS).arg("--exit-after-head")).well();
}

#[test]
fn a_demo_knows_its_contracts_by_name_and_has_their_code_and_uris() {
    let dir = tempfile::tempdir().expect("dir");
    let mut service = Service::start(&mut demo(dir.path(), 120, 86_400_000));
    let answer = |service: &Service, path: &str| -> Value {
        let (status, text) = service.get(path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).expect("JSON")
    };
    service.until("everything is derived", |service| {
        let (status, text) = service.get("/v1/status");
        let shown: Value = serde_json::from_str(&text).expect("JSON");
        let data = &shown["data"];
        let workers = data["derived"]["workers"].as_array();
        status == 200
            && data["raw_tip_height"] == "120"
            && workers.is_some_and(|workers| {
                !workers.is_empty() && workers.iter().all(|worker| worker["lag_blocks"] == "0")
            })
    });

    let tokens = answer(&service, "/v1/tokens?limit=100");
    let named = |list: &Value, of: &str| -> Vec<(String, String)> {
        let named = list["data"].as_array().expect("a list").iter().filter_map(|one| {
            let (address, name) = (one["address"].as_str()?, one[of]["name"].as_str()?);
            Some((address.to_owned(), name.to_owned()))
        });
        named.collect()
    };
    let names = named(&tokens, "token");
    // All but the one that has none.
    assert!(names.len() >= 5, "{tokens}");
    // What a token says of itself is what its holders have, and nobody has less than nothing.
    for token in tokens["data"].as_array().expect("a list") {
        assert_eq!(token["below_zero"], Value::Null, "{token}");
        let supply = &token["token"]["total_supply"];
        assert!(supply.is_null() || *supply == token["net_minted"], "{token}");
        let address = token["address"].as_str().expect("an address");
        assert_eq!(answer(&service, &format!("/v1/contracts/{address}"))["data"]["address"], address);
    }
    for (address, name) in &names {
        let found = answer(&service, &format!("/v1/search?q={}", name.to_lowercase().replace(' ', "%20")));
        let mut addresses = found["data"].as_array().expect("a list").iter().map(|one| &one["address"]);
        assert!(addresses.any(|found| found == address.as_str()), "{name}: {found}");
        let code = answer(&service, &format!("/v1/contracts/{address}/code"));
        assert!(code["data"]["code"].as_str().is_some_and(|code| code.starts_with("0x6080604052")), "{code}");
    }
    let collections = answer(&service, "/v1/nft-collections?limit=100");
    let (collection, name) = &named(&collections, "collection")[0];
    assert!(name.ends_with(" Club"), "{name}");
    let items = answer(&service, &format!("/v1/nft-collections/{collection}/items"));
    let id = items["data"][0]["id"].as_str().expect("an item");
    let item = answer(&service, &format!("/v1/nft-collections/{collection}/items/{id}"));
    assert!(item.to_string().contains(&format!("/{id}.json")), "{item}");
    let created = answer(&service, "/v1/contracts?limit=1");
    let created = created["data"][0]["address"].as_str().expect("a contract");
    assert_eq!(answer(&service, &format!("/v1/contracts/{created}/code"))["data"]["status"], "ok");
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_the_flag() {
    let dir = tempfile::tempdir().expect("dir");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = taken.local_addr().expect("is bound").to_string();
    for (flag, other) in [("--rpc-listen", "--listen"), ("--listen", "--rpc-listen")] {
        let words = end_of(demo(dir.path(), 5, 100).args([flag, &address, other, "127.0.0.1:0"])).badly();
        assert!(words.contains(&address) && words.contains(flag), "{words}");
    }
}

#[test]
fn a_stop_height_is_reached_and_kept() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 50);
    let stop =
        ["--from", "10", "--to", "40", "--exit-after-head", "--finality", "depth:5", "--fill-workers", "2"];
    end_of(run(dir.path(), &node).args(FREE_PORTS).args(stop)).well();
    let shown = status(dir.path(), "archive");
    assert_eq!((&shown["first"], &shown["checkpoint"]["height"]), (&json!(10), &json!(40)));
    assert!(node.state().asked.keys().all(|height| (10..=40).contains(height)), "{:?}", node.state().asked);
    assert!(verify_clean(dir.path(), "archive").contains("31 blocks"));
    // An archive isn't extended downwards.
    let lower = ["--from", "5", "--exit-after-head"];
    let words = end_of(run(dir.path(), &node).args(FREE_PORTS).args(lower)).badly();
    assert!(words.contains("begins at height 10"), "{words}");
}
