//! Gaps of the EVM chain on Flow: a node leaves events of some blocks out in silence, and later gives them. On SQLite and, where a server is given, on PostgreSQL.

use crate::support;

use crate::support::repairs;
use crate::support::stores;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::objects::{Location, ObjectPayloads, ObjectsConfig};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgOptions, PgRawOptions, PgRawStore};
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
use cairn_core::SystemClock;
use cairn_explorer::processors::flow_catalog;
use cairn_flow::{FlowLayout, Network};
use cairn_flow_node::{Behaviour, FlowNode, Generator, GeneratorOptions, LeftOut};
use cairn_store::derived::DerivedDump;
use cairn_store::{Dump, RawDump};
use repairs::metric;
use serde_json::{Value, json};
use stores::{Server, change, count, over, sqlite_number};
use support::*;

/// A node over a small chain.
struct Node {
    node: FlowNode,
    tip: u64,
    /// Flow blocks that close an EVM block, with its height, by height.
    evm_blocks: Vec<(u64, u64)>,
    runtime: tokio::runtime::Runtime,
}

fn node() -> Node {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let options =
        GeneratorOptions { rlp_heights: 0, old_heights: 0, transactions: 1..=4, ..GeneratorOptions::new(11) };
    let generator = Generator::new(options, Behaviour::default());
    generator.grow(50);
    let node = runtime.block_on(FlowNode::serve(generator.state())).expect("serves");
    let evm_blocks =
        node.state().ledger.evm_blocks.iter().map(|(height, block)| (*height, block.height)).collect();
    Node { node, tip: generator.sealed_height(), evm_blocks, runtime }
}

impl Node {
    /// Leaves EVM blocks out, by their places: one of a Flow block of which only the events of EVM are, and two in succession of which all is that the
    /// chain's own transactions emitted.
    fn leave_out(&self) {
        let height = |place: usize| self.evm_blocks[place].0;
        let chain = &mut self.node.state().chain;
        chain.leave_out([height(ONE)], LeftOut::OfEvm).expect("its own messages");
        chain.leave_out([height(TWO), height(TWO + 1)], LeftOut::OfSystem).expect("its own messages");
    }

    fn leave_nothing_out(&self) {
        self.node.state().chain.leave_nothing_out();
    }

    /// The gap of the EVM blocks from one place to another, as REST has it.
    fn gap(&self, from: usize, to: usize) -> Value {
        json!({
            "kind": "gap",
            "from_evm_height": self.evm_blocks[from].1.to_string(),
            "to_evm_height": self.evm_blocks[to].1.to_string(),
            "after_height": self.evm_blocks[from - 1].0.to_string(),
            "seen_at_height": self.evm_blocks[to + 1].0.to_string(),
            "is_open": true,
        })
    }
}

/// The places of the EVM blocks that are left out.
const ONE: usize = 6;
const TWO: usize = 20;

fn of_node<'c>(command: &'c mut Command, node: &Node) -> &'c mut Command {
    of_node_at(command, node, 0)
}

fn of_node_at<'c>(command: &'c mut Command, node: &Node, requests_per_s: u32) -> &'c mut Command {
    let url = &node.node.url;
    let access = format!("[{{url=\"{url}\", requests_per_s={requests_per_s}, scripts_per_s=0}}]");
    command.env("CAIRN_CHAIN__NETWORK", "emulator").env("CAIRN_CHAIN__ACCESS", access)
}

/// `cairn run` from the node, without limits of its own.
fn run(dir: &Path, server: Option<&Server>, node: &Node) -> Command {
    let mut command = cairn(dir);
    of_node(over(&mut command, server), node).args(["run", "--data", "archive", "--poll-ms", "50"]);
    command.env("CAIRN_INGEST__FROM", "1000").env("CAIRN_SERVE__LISTEN", "127.0.0.1:0");
    command.env("CAIRN_DERIVE__POLL_MS", "50").env("CAIRN_DERIVE__ASK_NODE", "false");
    command
}

/// `cairn repair` from the node, without state.
fn repair(dir: &Path, server: Option<&Server>, node: &Node, more: &[&str]) -> Ended {
    let mut command = cairn(dir);
    of_node(over(&mut command, server), node).env("CAIRN_REPAIR__STATE_MIB", "0");
    end_of(command.args(["repair", "--data", "archive"]).args(more))
}

/// How many events of a block are stored.
fn stored_events(dir: &Path, server: Option<&Server>, height: u64) -> i64 {
    match server {
        Some(server) => {
            server.number(&format!("SELECT event_count::bigint FROM raw.blocks WHERE height = {height}"))
        }
        None => {
            let query = format!("SELECT log_count FROM blocks WHERE height = {height}");
            sqlite_number(dir, "raw.sqlite", &query)
        }
    }
}

/// `cairn repair` from a node that is asked slowly, killed once it has replaced the block at this height, before anything is asked for that is made of it.
fn repair_and_kill(dir: &Path, server: Option<&Server>, node: &Node, height: u64) {
    let before = stored_events(dir, server, height);
    let mut command = cairn(dir);
    of_node_at(over(&mut command, server), node, 4).env("CAIRN_REPAIR__STATE_MIB", "0");
    command.args(["repair", "--data", "archive"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("starts");
    while stored_events(dir, server, height) == before {
        assert_eq!(child.try_wait().expect("can be asked"), None, "it ended without");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("is killed");
    assert!(!child.wait().expect("ends").success());
    assert_eq!(count(dir, server, "SELECT count(*) FROM @worker_leases WHERE kind = 'reindex'"), 0);
}

/// The gaps, once all that the node has is derived and nothing is made again; `None` before.
fn gaps(service: &Service, node: &Node, dir: &Path, server: Option<&Server>) -> Option<Value> {
    let data = |path: &str| -> Option<Value> {
        let (status, text) = service.get(path);
        let answer: Value = serde_json::from_str(&text).ok()?;
        (status == 200).then(|| answer["data"].clone())
    };
    if data("/v1/status")?["app_watermark_height"] != json!(node.tip.to_string()) {
        return None;
    }
    let again = "SELECT count(*) FROM @worker_leases WHERE kind = 'reindex' AND status <> 'COMPLETED'";
    (count(dir, server, again) == 0).then(|| data("/v1/flow/evm/gaps?order=asc"))?
}

/// Lets a process take and derive all that the node has; the gaps.
fn derive(dir: &Path, server: Option<&Server>, node: &Node) -> Value {
    let mut service = Service::start(&mut run(dir, server, node));
    let mut found = None;
    service.until("all is derived", |service| {
        found = gaps(service, node, dir, server);
        found.is_some()
    });
    assert!(service.stop().0.success());
    found.expect("was there")
}

fn errors(dir: &Path, server: Option<&Server>) -> String {
    let mut command = cairn(dir);
    end_of(over(&mut command, server).args(["errors", "list", "--data", "archive"])).well()
}

/// All of both databases: blocks with their index entries, and rows.
fn dumps(dir: &Path, server: Option<&Server>, node: &Node) -> [Dump; 2] {
    let archive = dir.join("archive");
    node.runtime.block_on(async {
        let clock = Arc::new(SystemClock);
        let catalog = flow_catalog().expect("tables");
        let Some(server) = server else {
            let raw = SqliteStore::open(SqliteOptions::read_only(&archive), clock.clone()).await;
            let app = SqliteDerived::open(SqliteDerivedOptions::read_only(&archive), catalog, clock).await;
            let raw = raw.expect("opens").dump().await.expect("dumps");
            return [unmarked(raw), app.expect("opens").dump().await.expect("dumps")];
        };
        let mut options = PgRawOptions::with(PgOptions::new(server.url()));
        (options.read_only, options.layout) = (true, Arc::new(FlowLayout::new(Network::Emulator)));
        let payloads =
            ObjectPayloads::open(ObjectsConfig::new(Location::Directory(archive.join("payloads"))));
        let payloads = Arc::new(payloads.expect("a directory"));
        let raw = PgRawStore::open_with_payloads(options, None, payloads).await.expect("opens");
        let options = PgDerivedOptions { read_only: true, ..PgDerivedOptions::new(server.url()) };
        let app = PgDerived::open(options, catalog, None).await.expect("opens");
        [unmarked(raw.dump().await.expect("dumps")), app.dump().await.expect("dumps")]
    })
}

/// Without the finalised mark, which comes after the last block, or after the process was stopped.
fn unmarked(mut dump: Dump) -> Dump {
    dump.lines.retain(|line| !line.starts_with("head/finalized"));
    dump
}

fn demand_same(one: &[Dump; 2], other: &[Dump; 2]) {
    for (one, other) in one.iter().zip(other) {
        assert_eq!(one.first_difference(other), None);
        assert!(one.lines.len() > 100);
    }
}

/// With the same answer again nothing changes; with the whole answer the archive becomes what it were if the node had given it at once. Of the blocks one was fetched again by a repair
/// that didn't come to its rows, and one replaced by a repair that was killed behind it.
fn a_gap_closes_once_the_node_gives_what_is_missing(server: Option<&Server>, other: Option<&Server>) {
    let (dir, clean_dir) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
    let (dir, clean_dir) = (dir.path(), clean_dir.path());
    let node = node();
    assert_eq!(derive(clean_dir, other, &node), json!([]));
    let clean = dumps(clean_dir, other, &node);

    node.leave_out();
    let open = json!([node.gap(ONE, ONE), node.gap(TWO, TWO + 1)]);
    assert_eq!(derive(dir, server, &node), open);
    assert_eq!(errors(dir, server).matches(" are missing: block").count(), 2);
    let before = dumps(dir, server, &node);
    assert!(before[0].first_difference(&clean[0]).is_some());

    let told = repair(dir, server, &node, &[]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    let [one, two, next] = [ONE, TWO, TWO + 1].map(|place| node.evm_blocks[place]);
    for part in [
        format!("not mended: EVM blocks {} to {}, between Flow blocks ", one.1, one.1),
        format!("not mended: EVM blocks {} to {}, between Flow blocks ", two.1, next.1),
        "are missing: asked again at 20".into(),
        "EVM gaps    2 asked about, 0 closed, 2 with the same answer as before".into(),
    ] {
        assert!(told.out.contains(&part), "{part}\n{told:?}");
    }
    assert_eq!(told.out.matches("Z, same answer").count(), 2, "{told:?}");
    assert!(!told.out.contains("replaced"), "{told:?}");
    demand_same(&before, &dumps(dir, server, &node));

    node.leave_nothing_out();
    let lost = one.0;
    change(dir, server, "raw", &format!("DELETE FROM @blocks WHERE height = {lost}"));
    repair(dir, server, &node, &["--raw-only", &lost.to_string()]).well();
    repair_and_kill(dir, server, &node, two.0);
    assert!(errors(dir, server).contains("a node gives more of this block"));
    let told = repair(dir, server, &node, &[]).well();
    for part in [
        "EVM gaps    2 asked about, 2 closed, 0 with the same answer as before".into(),
        format!("height {}: replaced by a repair that was cut off", two.0),
        format!("height {}: the node gives ", next.0),
        "evm_chain_worker is folded from these rows and begins anew at height 1000".into(),
    ] {
        assert!(told.contains(&part), "{part}\n{told}");
    }
    assert_eq!(told.matches("events more now: replaced").count(), 1, "{told}");
    assert!(!errors(dir, server).contains("a node gives more of this block"));
    // Before anybody has made the rows, they are asked for already.
    let waiting = repair(dir, server, &node, &[]).well();
    assert!(!waiting.contains("asked about"), "{waiting}");

    assert_eq!(derive(dir, server, &node), json!([]));
    demand_same(&dumps(dir, server, &node), &clean);
    assert!(!errors(dir, server).contains(" are missing: block"));
    let again = repair(dir, server, &node, &[]).well();
    for part in ["lookups     0 written, 0 removed", "blocks      0 damaged", "derived     0 rows differ"] {
        assert!(again.contains(part), "{part}\n{again}");
    }
    assert!(!again.contains("EVM gaps"), "{again}");
}

#[test]
fn f04_a_gap_closes_once_the_node_gives_what_is_missing_on_sqlite() {
    a_gap_closes_once_the_node_gives_what_is_missing(None, None);
}

#[test]
fn f04_a_gap_closes_once_the_node_gives_what_is_missing_on_postgres() {
    let (Some(server), Some(other)) = (Server::start(), Server::start()) else { return };
    a_gap_closes_once_the_node_gives_what_is_missing(Some(&server), Some(&other));
}

/// A running cairn asks by itself, says that a gap is open, and closes it.
#[test]
fn f04_a_running_cairn_asks_about_its_gaps_and_closes_them() {
    let dir = tempfile::tempdir().expect("dir");
    let node = node();
    node.leave_out();
    let mut service = Service::start(run(dir.path(), None, &node).env("CAIRN_REPAIR__EVERY_S", "1"));
    service.until("it asked again", |service| {
        metric(service, "cairn_evm_gaps") == Some(2) && service.log().contains("Z, same answer")
    });
    let open = json!([node.gap(ONE, ONE), node.gap(TWO, TWO + 1)]);
    service
        .until("the gaps are listed", |service| gaps(service, &node, dir.path(), None) == Some(open.clone()));
    node.leave_nothing_out();
    service.until("the gaps are closed", |service| {
        metric(service, "cairn_evm_gaps") == Some(0)
            && gaps(service, &node, dir.path(), None) == Some(json!([]))
    });
    assert!(metric(&service, r#"cairn_repair_found_total{what="evm-gap"}"#) >= Some(4));
    assert!(service.stop().0.success());
}
