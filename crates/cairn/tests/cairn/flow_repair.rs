//! Repair of what was derived from Flow, on SQLite and, where a server is given, on PostgreSQL.

use crate::support;

use crate::support::repairs;
use crate::support::stores;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cairn_flow_node::{Behaviour, FlowNode, Generator, GeneratorOptions};
use repairs::{compared_states, metric};
use serde_json::{Value, json};
use stores::{Server, change, count, over};
use support::*;

/// A node over a chain, and what it serves from.
struct Node {
    generator: Generator,
    node: FlowNode,
    _runtime: tokio::runtime::Runtime,
}

fn node(options: GeneratorOptions, blocks: u64) -> Node {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let generator = Generator::new(options, Behaviour::default());
    generator.grow(blocks);
    let node = runtime.block_on(FlowNode::serve(generator.state())).expect("serves");
    Node { generator, node, _runtime: runtime }
}

/// `cairn run` from the node, without limits of its own.
fn run(dir: &Path, server: Option<&Server>, node: &Node) -> Command {
    let mut command = cairn(dir);
    over(&mut command, server).args(["run", "--data", "archive", "--poll-ms", "50"]);
    let access = format!("[{{url=\"{}\", requests_per_s=0, scripts_per_s=0}}]", node.node.url);
    command.env("CAIRN_CHAIN__NETWORK", "emulator").env("CAIRN_CHAIN__ACCESS", access);
    command.env("CAIRN_INGEST__FROM", "1000").env("CAIRN_SERVE__LISTEN", "127.0.0.1:0");
    command.env("CAIRN_DERIVE__POLL_MS", "50").env("CAIRN_DERIVE__ASK_NODE", "false");
    command
}

/// Archives and derives all that the node has.
fn fill(dir: &Path, server: Option<&Server>, node: &Node) {
    end_of(run(dir, server, node).arg("--exit-after-head")).well();
}

/// `cairn repair`, and how many MiB state that is made once more may take.
fn repair(dir: &Path, server: Option<&Server>, state_mib: u32, more: &[&str]) -> Ended {
    let mut command = cairn(dir);
    over(&mut command, server).env("CAIRN_REPAIR__STATE_MIB", state_mib.to_string());
    end_of(command.args(["repair", "--data", "archive"]).args(more))
}

/// What a repair says of state: how many rows it compared, and how many were not what their events make.
fn states(told: &Ended) -> (i64, i64) {
    let line = told.out.lines().find(|line| line.starts_with("state ")).expect("is told");
    let numbers: Vec<i64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

/// Tables of the folders that look at state while they fold.
const ACCOUNTS: [&str; 4] =
    ["flow_accounts", "account_keys", "unplaced_key_revocations", "account_contracts"];
const ITEMS: [&str; 4] = ["nft_ownership", "nft_holdings", "nft_owners", "nft_collection_stats"];

/// What the smallest rows of accounts take while they are held against their events, in bytes: seven values, the key's one among them, and some more.
const LEAST_ROW_BYTES: i64 = 7 * 40 + 96;

/// An owner who isn't, a revoked key that isn't, a row too few and one too many are found; accounts also where there is memory for a part of them at a time,
/// and a collection that doesn't fit is named.
fn owners_and_keys_are_held_against_their_events(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let node = node(GeneratorOptions { crowd: 5, ..GeneratorOptions::new(11) }, 60);
    fill(dir, server, &node);
    for _ in 0..3 {
        node.generator.grow(60);
        fill(dir, server, &node);
    }
    let rows_of = |table: &str| count(dir, server, &format!("SELECT count(*) FROM @{table}"));
    let rows_of_all = |tables: &[&str]| tables.iter().map(|table| rows_of(table)).sum::<i64>();
    let (of_accounts, of_items) = (rows_of_all(&ACCOUNTS), rows_of_all(&ITEMS));
    assert!(ACCOUNTS.iter().chain(&ITEMS).all(|table| rows_of(table) > 0));
    let clean = repair(dir, server, 256, &[]);
    let (compared, wrong) = states(&clean);
    assert!(compared > of_accounts + of_items && wrong == 0 && !clean.out.contains("note:"), "{clean:?}");
    clean.well();
    assert!(of_accounts * LEAST_ROW_BYTES > 1 << 20, "{of_accounts} rows fit into 1 MiB");
    let collections = rows_of("nft_collection_stats");
    let too_large = "since they take more memory than half of repair.state_mib";
    let in_rounds = repair(dir, server, 1, &[]);
    assert_eq!(states(&in_rounds), (compared - of_items, 0), "{in_rounds:?}");
    assert_eq!(in_rounds.out.matches(too_large).count() as i64, collections, "{in_rounds:?}");
    in_rounds.incomplete();
    // At intervals it is not all good either.
    let mut command = run(dir, server, &node);
    command.env("CAIRN_REPAIR__EVERY_S", "1").env("CAIRN_REPAIR__STATE_AT_INTERVALS", "true");
    let mut service = Service::start(command.env("CAIRN_REPAIR__STATE_MIB", "1"));
    service.until("a repair was not complete", |service| {
        metric(service, r#"cairn_repair_runs_total{outcome="incomplete"}"#).is_some_and(|runs| runs > 0)
            && metric(service, "cairn_repair_not_compared").is_some_and(|parts| parts > 0)
            && service.log().contains("not everything was")
    });
    assert!(service.stop().0.success());

    let hex = |digits: &str| match server {
        Some(_) => format!("'\\x{digits}'"),
        None => format!("x'{digits}'"),
    };
    let owned = "SELECT min(contract_name) FROM @nft_ownership WHERE owner IS NOT NULL";
    let revoked = "SELECT address FROM @account_keys WHERE is_revoked ORDER BY address LIMIT 1";
    let revoked_keys = count(
        dir,
        server,
        &format!("SELECT count(*) FROM @account_keys WHERE is_revoked AND address = ({revoked})"),
    );
    assert!(revoked_keys > 0);
    let owners = count(
        dir,
        server,
        &format!(
            "SELECT count(*) FROM @nft_ownership WHERE owner IS NOT NULL AND contract_name = ({owned}) AND nft_id = \
         (SELECT min(nft_id) FROM @nft_ownership WHERE owner IS NOT NULL AND contract_name = ({owned}))"
        ),
    );
    assert_eq!(owners, 1);
    for damage in [
        format!(
            "UPDATE @nft_ownership SET owner = {} WHERE owner IS NOT NULL AND contract_name = ({owned}) AND nft_id = \
             (SELECT min(nft_id) FROM @nft_ownership WHERE owner IS NOT NULL AND contract_name = ({owned}))",
            hex("0000000000c0ffee")
        ),
        format!(
            "UPDATE @account_keys SET is_revoked = NOT is_revoked WHERE is_revoked AND address = ({revoked})"
        ),
        "DELETE FROM @nft_owners WHERE address = (SELECT address FROM @nft_owners ORDER BY address LIMIT 1)"
            .to_owned(),
        format!("INSERT INTO @flow_accounts VALUES ({}, NULL, 1, 0, NULL, 1001)", hex("00000000deadbeef")),
    ] {
        change(dir, server, "app", &damage);
    }
    let lost = of_items - rows_of_all(&ITEMS);
    let damaged = revoked_keys + 1 + owners + lost;
    let of_both = [
        "account_state_worker: account_keys, (0x",
        "is_revoked is false, its events make true",
        "account_state_worker: flow_accounts, (0x00000000deadbeef): no event makes this row",
    ];
    let told = repair(dir, server, 256, &[]);
    assert_eq!((states(&told), told.status.code()), ((compared + 1, damaged), Some(1)), "{told:?}");
    for part in of_both.into_iter().chain([
        "nft_ownership_worker: nft_ownership, (0x",
        "owner is 0x0000000000c0ffee, its events make 0x",
        "nft_ownership_worker: nft_owners, (0x",
        "the row is missing",
    ]) {
        assert!(told.out.contains(part), "{part}\n{told:?}");
    }
    let told = repair(dir, server, 1, &[]);
    assert_eq!(states(&told), (compared - of_items + 1, revoked_keys + 1), "{told:?}");
    for part in of_both {
        assert!(told.out.contains(part), "{part}\n{told:?}");
    }
    let mended = repair(dir, server, 256, &["--refold"]).well();
    assert!(mended.contains(&format!("{damaged} folded anew")), "{mended}");
    fill(dir, server, &node);
    let again = repair(dir, server, 256, &[]);
    assert_eq!(states(&again), (compared, 0), "{again:?}");
}

#[test]
fn owners_and_keys_are_held_against_their_events_on_sqlite() {
    owners_and_keys_are_held_against_their_events(None);
}

#[test]
fn owners_and_keys_are_held_against_their_events_on_postgres() {
    let Some(server) = Server::start() else { return };
    owners_and_keys_are_held_against_their_events(Some(&server));
}

/// A chain that forks all the while, and a repair each second: no state is found wrong.
fn reorgs_give_no_false_alarm_about_state(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let mut node = node(GeneratorOptions::new(11), 150);
    let mut command = run(dir.path(), server, &node);
    command.env("CAIRN_REPAIR__EVERY_S", "1").env("CAIRN_REPAIR__STATE_AT_INTERVALS", "true");
    let mut service = Service::start(&mut command);
    let derived = |service: &Service| -> Option<u64> {
        let status: Value = serde_json::from_str(&service.get("/v1/status").1).ok()?;
        status["data"]["app_watermark_height"].as_str()?.parse().ok()
    };
    for _ in 0..10 {
        let head = node.generator.sealed_height();
        service.until("the fork is derived", |service| derived(service) == Some(head));
        std::thread::sleep(Duration::from_millis(400));
        node.generator.rollback(3);
        node.generator.grow(5);
    }
    service.until("it was looked at while the chain forked", |service| {
        metric(service, r#"cairn_repair_runs_total{outcome="clean"}"#).is_some_and(|runs| runs >= 3)
    });
    assert!(compared_states(&service) > 0, "{}", service.log());
    for counter in [
        r#"cairn_repair_found_total{what="state"}"#,
        r#"cairn_repair_found_total{what="derived"}"#,
        "cairn_repair_unmended",
    ] {
        assert_eq!(metric(&service, counter), Some(0), "{counter}\n{}", service.log());
    }
    assert!(service.stop().0.success());
}

#[test]
fn reorgs_give_no_false_alarm_about_state_on_sqlite() {
    reorgs_give_no_false_alarm_about_state(None);
}

#[test]
fn reorgs_give_no_false_alarm_about_state_on_postgres() {
    let Some(server) = Server::start() else { return };
    reorgs_give_no_false_alarm_about_state(Some(&server));
}

/// Derives all that the node has, and asks it about everything.
fn ask_about_all(dir: &Path, server: Option<&Server>, node: &Node) {
    // All blocks are there first: a worker is at the head of what is stored.
    fill(dir, server, node);
    let mut command = run(dir, server, node);
    let mut service = Service::start(command.env("CAIRN_DERIVE__ASK_NODE", "true"));
    service.until("everybody is at the head", |service| {
        let status: Value = serde_json::from_str(&service.get("/v1/status").1).expect("JSON");
        let workers = status["data"]["derived"]["workers"].as_array().cloned().unwrap_or_default();
        let names = workers.iter().filter_map(|worker| worker["name"].as_str());
        let asks = names.filter(|name| name.ends_with("_metadata_worker")).count();
        asks == 3 && workers.iter().all(|worker| worker["lag_blocks"] == json!("0"))
    });
    assert!(service.stop().0.success());
}

/// Rows that a mapper makes again name things whose answers may be as wrong as the rows were: the node is asked about them again, and about no others.
fn what_repaired_rows_name_is_asked_again(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let node = node(GeneratorOptions::new(11), 150);
    ask_about_all(dir, server, &node);
    let number = |query: &str| count(dir, server, query);
    let asks = number("SELECT count(*) FROM @nft_asks");
    let wrong = || number("SELECT count(*) FROM @nft_asks WHERE message = 'wrong'");
    let rows = number("SELECT count(*) FROM @nft_transfers");
    change(
        dir,
        server,
        "app",
        "DELETE FROM @nft_transfers WHERE block_height BETWEEN 1060 AND 1090; UPDATE @nft_asks SET message = 'wrong'",
    );
    assert!(asks > 0 && wrong() == asks && number("SELECT count(*) FROM @nft_transfers") < rows);
    let told = repair(dir, server, 256, &[]).incomplete();
    for name in ["nft_metadata_worker", "token_metadata_worker"] {
        assert!(told.contains(&format!("note: {name} asks again about what heights [10")), "{told}");
    }
    assert!(!told.contains("contract_code_worker"), "{told}");
    // Once more before anybody did it: nothing is asked for twice.
    let again = repair(dir, server, 256, &[]).incomplete();
    assert!(again.contains("nft_metadata_worker asks about some of these heights again already"), "{again}");

    let mut command = run(dir, server, &node);
    let mut service = Service::start(command.env("CAIRN_DERIVE__ASK_NODE", "true"));
    service.until("it is asked again", |_| {
        number("SELECT count(*) FROM @nft_transfers") == rows
            && number("SELECT count(*) FROM @worker_leases WHERE kind = 'reindex' AND status <> 'COMPLETED'")
                == 0
    });
    assert!(service.stop().0.success());
    assert!((1..asks).contains(&wrong()), "{} of {asks}", wrong());
    let whole = repair(dir, server, 256, &[]).well();
    assert!(whole.contains("0 rows differ") && !whole.contains("asks again"), "{whole}");
}

#[test]
fn what_repaired_rows_name_is_asked_again_on_sqlite() {
    what_repaired_rows_name_is_asked_again(None);
}

#[test]
fn what_repaired_rows_name_is_asked_again_on_postgres() {
    let Some(server) = Server::start() else { return };
    what_repaired_rows_name_is_asked_again(Some(&server));
}
