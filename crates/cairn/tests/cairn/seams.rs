//! Ranges of derived work that don't fit together: the alarm names what to type, and typing it while `cairn run` is at work mends them.

#![cfg(unix)]

use crate::support;

use crate::support::stores;

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use stores::{Server, change, count, over};
use support::node::MockNode;
use support::*;

/// The binary over SQLite in `archive`, or over the server's database; ranges are short.
fn at(dir: &Path, server: Option<&Server>) -> Command {
    let mut command = cairn(dir);
    over(&mut command, server);
    command.env("CAIRN_DERIVE__ASK_NODE", "false").env("CAIRN_DERIVE__POLL_MS", "50");
    command.env("CAIRN_DERIVE__RANGE_HEIGHTS", "20");
    command
}

const WORKER: &str = "evm_worker";

fn halts(service: &Service) -> Vec<Value> {
    let (_, status) = service.get("/v1/status");
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    status["data"]["halts"].as_array().cloned().unwrap_or_default()
}

/// The checkpoint of the worker stands at a height, on the block that the range below it ended with.
fn set_back(dir: &Path, server: Option<&Server>, last: u64, range_from: u64) {
    let id = format!(
        "SELECT last_id FROM @worker_leases WHERE worker_type = '{WORKER}' AND kind = 'index' AND from_height = {range_from}"
    );
    let statement = format!(
        "UPDATE @indexing_checkpoints SET last_height = {last}, last_id = ({id}) WHERE service_name = '{WORKER}'"
    );
    change(dir, server, "app", &statement);
}

fn a_reset_mends(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let node = MockNode::start(1337, 110);
    let run = || {
        let mut command = at(dir, server);
        command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
        command
    };
    let mut fill = run();
    fill.args(["--exit-after-head", "--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    end_of(&mut fill).well();
    let number = |query: &str| count(dir, server, query);
    let rows = "SELECT count(*) FROM @evm_transactions";
    let altered = "SELECT count(*) FROM @evm_transactions WHERE gas_used = 1";
    let whole = number(rows);
    let alter = |height: u64| {
        let statement = format!("UPDATE @evm_transactions SET gas_used = 1 WHERE block_height = {height}");
        change(dir, server, "app", &statement);
        assert!(number(altered) > 0, "block {height} has a transaction");
    };
    let tip = format!("SELECT max(last_height) FROM @indexing_checkpoints WHERE service_name = '{WORKER}'");
    let typed = |args: &[&str]| end_of(at(dir, server).args(args).args(["--data", "archive"]));
    let reset = |worker: &str, from: &str| typed(&["leases", "reset", "--worker", worker, "--from", from]);
    let is_mended = |_: &mut Service| number(&tip) == 110 && number(altered) == 0 && number(rows) == whole;

    // A range stands on another fork than the one below it.
    set_back(dir, server, 39, 20);
    let other = if server.is_some() {
        format!("'\\x{}'", "aa".repeat(32))
    } else {
        format!("x'{}'", "aa".repeat(32))
    };
    let statement = format!(
        "UPDATE @worker_leases SET first_parent = {other} WHERE worker_type = '{WORKER}' AND from_height = 40"
    );
    change(dir, server, "app", &statement);
    alter(55);
    let mut service = Service::start(&mut run());
    let seam = json!({ "part": "range", "worker": WORKER, "height": "40", "code": "range-seam" });
    service.until("the status names it", |service| halts(service).contains(&seam));
    service.until("the log says what to type", |service| {
        service.log().contains("`cairn leases reset --worker evm_worker --from 40`")
    });
    let refused = reset(WORKER, "39").badly();
    assert!(refused.contains("has derived everything below height 40"), "{refused}");
    let refused = reset("stats_worker", "40").badly();
    assert!(refused.contains("`cairn reindex --worker stats_worker`"), "{refused}");
    assert!(reset("no_worker", "40").badly().contains("no_worker"));
    let told = reset(WORKER, "40").well();
    assert!(told.contains("evm_worker: heights [40, ") && told.contains("to be derived anew"), "{told}");
    service.until("it is derived anew", is_mended);
    service.until("nothing has stopped", |service| halts(service).is_empty());
    assert!(service.stop().0.success());

    // A lease is lost.
    set_back(dir, server, 59, 40);
    let statement = format!(
        "DELETE FROM @worker_leases WHERE worker_type = '{WORKER}' AND kind = 'index' AND from_height = 60"
    );
    change(dir, server, "app", &statement);
    alter(75);
    let mut service = Service::start(&mut run());
    let told = reset(WORKER, "80").well();
    assert!(told.contains("evm_worker: heights [60, "), "{told}");
    service.until("it is derived anew", is_mended);
    assert!(service.stop().0.success());
    let clean = typed(&["repair"]).well();
    assert!(clean.contains("0 rows differ"), "{clean}");
}

#[test]
fn what_lies_above_a_seam_or_a_lost_lease_is_derived_anew_on_sqlite() {
    a_reset_mends(None);
}

#[test]
fn what_lies_above_a_seam_or_a_lost_lease_is_derived_anew_on_postgres() {
    let Some(server) = Server::start() else { return };
    a_reset_mends(Some(&server));
}
