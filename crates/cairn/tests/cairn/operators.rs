//! What operators do with the real binary: repair, payloads, partitions, on SQLite and, where a server is given, on PostgreSQL.

use crate::support;

use crate::support::repairs;
use crate::support::stores;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cairn_core::Height;
use repairs::{compared_states, metric};
use serde_json::{Value, json};
use stores::{Server, change, count, over, sqlite, sqlite_number};
use support::node::MockNode;
use support::*;

/// The binary over SQLite in `archive`, or over the server's database.
fn at(dir: &Path, server: Option<&Server>) -> Command {
    let mut command = cairn(dir);
    over(&mut command, server);
    // The small node answers no calls.
    command.env("CAIRN_DERIVE__ASK_NODE", "false").env("CAIRN_DERIVE__POLL_MS", "50");
    command
}

/// Archives and derives all that the node has.
fn fill(dir: &Path, server: Option<&Server>, node: &MockNode) {
    let mut command = at(dir, server);
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50", "--exit-after-head"]);
    end_of(command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"])).well();
}

/// Runs until the derived rows of the count are as many as `expected`.
fn work_until(dir: &Path, server: Option<&Server>, node: &MockNode, expected: i64, count: impl Fn() -> i64) {
    let mut command = at(dir, server);
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    let mut service = Service::start(&mut command);
    service.until("rows are made again", |_| count() == expected);
    assert!(service.stop().0.success());
}

const DERIVED_ROWS: &str = "SELECT count(*) FROM evm_transactions";
const DAMAGED_ROWS: &str = "SELECT count(*) FROM evm_transactions WHERE block_height = 13 AND gas_used = 1";

#[test]
fn repair_mends_what_was_damaged_on_sqlite() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    fill(dir.path(), None, &node);
    verify_clean(dir.path(), "archive");
    let clean = end_of(at(dir.path(), None).args(["repair", "--data", "archive"])).well();
    assert!(clean.contains("61 heights, 61 blocks in full") && clean.contains("0 rows differ"), "{clean}");
    let rows = sqlite_number(dir.path(), "app.sqlite", DERIVED_ROWS);
    assert!(rows > 0);

    // Rows of one block, a count of another, a third block whole; the index entries of a run; derived rows of two heights.
    sqlite(
        dir.path(),
        "raw.sqlite",
        "DELETE FROM transactions WHERE height = 7; UPDATE blocks SET tx_count = tx_count + 1 WHERE height = 9; \
         DELETE FROM blocks WHERE height = 11; DELETE FROM transactions WHERE height = 11; \
         DELETE FROM bodies WHERE height = 11; DELETE FROM receipts WHERE height = 11; \
         DELETE FROM run_pages WHERE run_id IN \
           (SELECT id FROM runs WHERE kind = 2 AND state = 0 AND from_height <= 20 AND to_height > 20)",
    );
    sqlite(
        dir.path(),
        "app.sqlite",
        "DELETE FROM evm_transactions WHERE block_height = 5; UPDATE evm_transactions SET gas_used = 1 WHERE block_height = 13",
    );
    // A block that can't be fetched can't be derived from either: what was found before is told all the same.
    let early = end_of(at(dir.path(), None).args(["repair", "--data", "archive"]));
    assert_eq!(early.status.code(), Some(1), "{early:?}");
    for told in
        ["not mended: height 11:", "3 damaged, 0 fetched again", "not compared: evm_worker: heights ["]
    {
        assert!(early.out.contains(told), "{told}\n{early:?}");
    }
    let bad = end_of(at(dir.path(), None).args(["repair", "--data", "archive", "--raw-only"]));
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    assert!(
        bad.out.contains("not mended: height 11: no node is given") && bad.out.contains("--rpc"),
        "{bad:?}"
    );

    let mended =
        end_of(at(dir.path(), None).args(["repair", "--data", "archive", "--rpc", &node.url])).well();
    assert!(mended.contains("3 damaged, 3 fetched again"), "{mended}");
    for named in [
        "height 7:",
        "height 9:",
        "height 11:",
        "evm_transactions, height 5:",
        "evm_transactions, height 13:",
    ] {
        assert!(mended.contains(named), "{named}\n{mended}");
    }
    verify_clean(dir.path(), "archive");

    work_until(dir.path(), None, &node, rows, || {
        sqlite_number(dir.path(), "app.sqlite", DERIVED_ROWS)
            - sqlite_number(dir.path(), "app.sqlite", DAMAGED_ROWS)
    });
    let again = end_of(at(dir.path(), None).args(["repair", "--data", "archive"])).well();
    assert!(again.contains("0 rows differ") && again.contains("0 damaged"), "{again}");
}

const MAPPED_ROWS: &str = "SELECT count(*) FROM address_transactions";
const STATE: &str = "SELECT coalesce(sum(transaction_count * 1000 + last_height), 0) FROM address_stats";

#[test]
fn a_sample_is_repaired_and_state_is_folded_anew_from_rows_that_were_mended() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    fill(dir.path(), None, &node);
    let ended = |more: &[&str]| end_of(at(dir.path(), None).args(["repair", "--data", "archive"]).args(more));
    let repair = |more: &[&str]| ended(more).well();
    let app = |query: &str| sqlite_number(dir.path(), "app.sqlite", query);
    let (rows, state) = (app(MAPPED_ROWS), app(STATE));
    assert!(rows > 0 && state > 0);
    let sampled = repair(&["--sample", "5"]);
    assert!(
        sampled.contains("61 heights, 5 blocks in full") && sampled.contains("0 rows differ"),
        "{sampled}"
    );

    // Events are gone, and state is wrong that was folded from them.
    let damage = "DELETE FROM address_transactions WHERE block_height = 5; \
                  UPDATE address_stats SET transaction_count = transaction_count + 1";
    sqlite(dir.path(), "app.sqlite", damage);
    assert!(app(MAPPED_ROWS) < rows && app(STATE) != state);
    let damaged = app(STATE);
    // State that is folded from rows which are made again can't be held against them now.
    let told = ended(&[]).incomplete();
    assert!(told.contains("not compared: stats_worker: its state: rows of accounts_worker"), "{told}");
    assert!(told.contains("address_transactions, height 5:"), "{told}");
    assert!(told.contains("`cairn reindex --worker stats_worker`"), "{told}");
    work_until(dir.path(), None, &node, rows, || app(MAPPED_ROWS));
    assert_eq!(app(STATE), damaged, "state is left alone where nothing else is asked for");

    // The rows are whole again: now it may be folded from them.
    let anew = ["reindex", "--data", "archive", "--worker", "stats_worker"];
    let told = end_of(at(dir.path(), None).args(anew)).well();
    assert!(told.contains("stats_worker begins anew at height 0"), "{told}");
    work_until(dir.path(), None, &node, state, || app(STATE));

    // In one go: the folder waits for the rows that are made again.
    sqlite(dir.path(), "app.sqlite", damage);
    let told = repair(&["--refold"]);
    assert!(told.contains("stats_worker is folded from these rows and begins anew at height 0"), "{told}");
    let told = repair(&[]);
    assert!(told.contains("some are being made again already"), "{told}");
    work_until(dir.path(), None, &node, state, || app(STATE));
    assert_eq!(app(MAPPED_ROWS), rows);
    let again = repair(&[]);
    assert!(again.contains("0 rows differ"), "{again}");
}

#[test]
fn heights_that_are_not_derived_yet_are_no_failure_of_a_repair() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 40);
    fill(dir.path(), None, &node);
    // More is archived while nobody derives.
    node.state().head = 60;
    let mut command = at(dir.path(), None);
    command.env("CAIRN_DERIVE__ENABLED", "false");
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50", "--exit-after-head"]);
    end_of(command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"])).well();
    let told = end_of(at(dir.path(), None).args(["repair", "--data", "archive"])).well();
    assert!(told.contains("note: token_worker: heights [41, 61) are not derived yet"), "{told}");
    assert!(told.contains("0 rows differ") && !told.contains("not compared"), "{told}");
}

#[test]
fn repair_mends_what_was_damaged_on_postgres() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    fill(dir.path(), Some(&server), &node);
    let run = |args: &[&str]| end_of(at(dir.path(), Some(&server)).args(args).args(["--data", "archive"]));
    assert!(run(&["verify"]).well().contains("all good"));
    let clean = run(&["repair"]).well();
    assert!(clean.contains("61 heights, 61 blocks in full") && clean.contains("0 rows differ"), "{clean}");
    let rows = server.number("SELECT count(*) FROM app.evm_transactions");

    server.sql(
        "DELETE FROM raw.transactions WHERE block_height = 7; DELETE FROM raw.tx_lookup WHERE block_height = 8; \
         UPDATE raw.blocks SET tx_count = tx_count + 1 WHERE height = 9; \
         UPDATE raw.blocks SET event_count = event_count + 1 WHERE height = 10; \
         DELETE FROM raw.blocks WHERE height = 11; \
         INSERT INTO raw.block_lookup (height, timestamp_ms, id) VALUES (12, 1, '\\xdeadbeef'); \
         DELETE FROM app.evm_transactions WHERE block_height = 5; \
         UPDATE app.evm_transactions SET gas_used = 1 WHERE block_height = 13",
    );
    let bad = run(&["repair", "--raw-only"]);
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    assert!(bad.out.contains("not mended: height 11: no node is given"), "{bad:?}");
    assert_eq!(server.number("SELECT count(*) FROM raw.block_lookup WHERE id = '\\xdeadbeef'"), 0);

    let mended = run(&["repair", "--rpc", &node.url]).well();
    assert!(mended.contains("4 damaged, 4 fetched again"), "{mended}");
    for named in ["height 7:", "height 9:", "height 10:", "height 11:", "height 5:", "height 13:"] {
        assert!(mended.contains(named), "{named}\n{mended}");
    }
    assert!(run(&["verify"]).well().contains("all good"));
    work_until(dir.path(), Some(&server), &node, rows, || {
        server.number(
            "SELECT count(*) FROM app.evm_transactions WHERE NOT (block_height = 13 AND gas_used = 1)",
        )
    });
    let again = run(&["repair"]).well();
    assert!(
        again.contains("0 rows differ") && again.contains("0 damaged") && again.contains("0 written"),
        "{again}"
    );
}

/// Logs by an address, as whoever asks the archive gets them.
fn logs(dir: &Path, server: Option<&Server>, address: Option<&str>) -> Result<Value, Value> {
    let service = Service::start(at(dir, server).args(["serve", "--data", "archive"]));
    let mut filter = json!({"fromBlock": "0x0", "toBlock": "latest"});
    if let Some(address) = address {
        filter["address"] = json!(address);
    }
    let answer = service.call("eth_getLogs", json!([filter]));
    assert!(service.stop().0.success());
    answer
}

/// Whatever of the index is lost: an error, named by `verify`, made anew by `repair`, and the right answer again.
fn the_index_of_logs_is_made_anew(server: Option<&Server>, damages: &[&str]) {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    fill(dir.path(), server, &node);
    let run = |args: &[&str]| end_of(at(dir.path(), server).args(args).args(["--data", "archive"]));
    let all = logs(dir.path(), server, None).expect("answers");
    let address = all[0]["address"].as_str().expect("there are logs").to_owned();
    let right = logs(dir.path(), server, Some(&address)).expect("answers");
    assert!(!right.as_array().expect("a list").is_empty());
    for damage in damages {
        match server {
            Some(server) => server.sql(damage),
            None => sqlite(dir.path(), "raw.sqlite", damage),
        }
        let wrong = logs(dir.path(), server, Some(&address));
        assert!(wrong.is_err(), "{damage}: {wrong:?}");
        let named = run(&["verify"]);
        assert!(!named.status.success() && named.out.contains("index"), "{damage}: {named:?}");
        let mended = run(&["repair", "--raw-only"]).well();
        assert!(!mended.contains("index       0 heights damaged"), "{damage}: {mended}");
        assert!(run(&["verify"]).well().contains("all good"), "{damage}");
        assert_eq!(logs(dir.path(), server, Some(&address)).expect("answers"), right, "{damage}");
    }
}

#[test]
fn the_index_of_logs_is_made_anew_on_sqlite() {
    the_index_of_logs_is_made_anew(
        None,
        &[
            "DELETE FROM run_pages WHERE run_id IN (SELECT max(id) FROM runs WHERE kind = 3 AND state = 0 AND entries > 0)",
            "DELETE FROM run_pages WHERE run_id IN (SELECT max(id) FROM runs WHERE kind = 3 AND state = 0 AND entries > 0); \
         DELETE FROM runs WHERE id IN (SELECT max(id) FROM runs WHERE kind = 3 AND state = 0 AND entries > 0)",
            "UPDATE run_pages SET data = CAST(substr(data, 1, length(data) - 1) || x'77' AS BLOB) \
         WHERE run_id IN (SELECT id FROM runs WHERE kind = 3)",
        ],
    );
}

#[test]
fn the_index_of_logs_is_made_anew_on_postgres() {
    let Some(server) = Server::start() else { return };
    the_index_of_logs_is_made_anew(
        Some(&server),
        &[
            "DELETE FROM raw.run_pages WHERE run_id IN (SELECT max(id) FROM raw.runs WHERE state = 0 AND entries > 0)",
            "DELETE FROM raw.run_pages WHERE run_id IN (SELECT max(id) FROM raw.runs WHERE state = 0 AND entries > 0); \
         DELETE FROM raw.runs WHERE id IN (SELECT max(id) FROM raw.runs WHERE state = 0 AND entries > 0)",
            "UPDATE raw.run_pages SET data = set_byte(data, 60, (get_byte(data, 60) + 1) % 256)",
        ],
    );
}

/// A block that says that it has no logs is passed over by who asks for all logs: the look at all heights finds it, wherever the part that is looked at in full is.
fn a_wrong_count_of_logs_is_found(server: Option<&Server>, column: &str) {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    fill(dir.path(), server, &node);
    let right = logs(dir.path(), server, None).expect("answers");
    let mut heights: Vec<u64> =
        right.as_array().expect("a list").iter().filter_map(|log| quantity(&log["blockNumber"])).collect();
    heights.dedup();
    assert!(heights.len() > 3);
    let (a, b) = (heights[1], heights[2]);
    let repair = |args: &[&str]| {
        let mut command = at(dir.path(), server);
        end_of(command.args(["repair", "--raw-only", "--data", "archive", "--sample", "1"]).args(args))
    };
    let clean = repair(&[]).well();
    assert!(clean.contains("0 damaged"), "{clean}");
    change(dir.path(), server, "raw", &format!("UPDATE @blocks SET {column} = 0 WHERE height IN ({a}, {b})"));
    assert_ne!(logs(dir.path(), server, None).expect("answers"), right, "the damage is one that shows");
    let mended = repair(&["--rpc", &node.url]).well();
    assert!(mended.contains("2 damaged, 2 fetched again"), "{mended}");
    assert_eq!(logs(dir.path(), server, None).expect("answers"), right);
}

#[test]
fn a_wrong_count_of_logs_is_found_on_sqlite() {
    a_wrong_count_of_logs_is_found(None, "log_count");
}

#[test]
fn a_wrong_count_of_logs_is_found_on_postgres() {
    let Some(server) = Server::start() else { return };
    a_wrong_count_of_logs_is_found(Some(&server), "event_count");
}

/// Alters state, makes rows that no event makes, and deletes one; and what a repair says of it.
const STATE_DAMAGE: &str = "UPDATE {app}address_stats SET transaction_count = transaction_count + 7 \
      WHERE address = (SELECT address FROM {app}address_stats ORDER BY address LIMIT 1); \
    DELETE FROM {app}address_stats WHERE address = (SELECT address FROM {app}address_stats ORDER BY address DESC LIMIT 1); \
    INSERT INTO {app}token_stats VALUES ({bytes}'{x}c0ffee', '', 1, 1, {one}, 3, 3)";

/// State that is wrong is found and named by key and column, left alone, and folded anew where that is asked for.
fn state_is_held_against_its_events(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    fill(dir.path(), server, &node);
    let app = if server.is_some() { "app." } else { "" };
    let damage = |sql: &str| match server {
        Some(server) => server.sql(sql),
        None => sqlite(dir.path(), "app.sqlite", sql),
    };
    let number = |sql: &str| match server {
        Some(server) => server.number(sql),
        None => sqlite_number(dir.path(), "app.sqlite", sql),
    };
    let repair = |more: &[&str]| {
        let mut command = at(dir.path(), server);
        end_of(command.args(["repair", "--data", "archive"]).args(more))
    };
    let clean = repair(&[]).well();
    let rows = number(&format!(
        "SELECT (SELECT count(*) FROM {app}address_stats) + (SELECT count(*) FROM {app}daily_stats) + (SELECT count(*) FROM {app}ft_holdings) \
         + (SELECT count(*) FROM {app}token_stats) + (SELECT count(*) FROM {app}nft_ownership) + (SELECT count(*) FROM {app}nft_holdings) \
         + (SELECT count(*) FROM {app}nft_owners) + (SELECT count(*) FROM {app}nft_collection_stats)"
    ));
    assert!(rows > 0);
    let all_good = format!("state       {rows} rows compared, 0 not what their events make, 0 folded anew");
    assert!(clean.contains(&all_good), "{all_good}\n{clean}");

    let sums = format!("SELECT CAST(sum(transaction_count) AS bigint) FROM {app}address_stats");
    let (count, sum) = (number(&format!("SELECT count(*) FROM {app}address_stats")), number(&sums));
    let sql = STATE_DAMAGE.replace("{app}", app);
    let (bytes, x, one) = match server {
        Some(_) => ("", "\\x", "1".to_owned()),
        // One, as the bytes of a sum.
        None => ("X", "", format!("X'01{:080x}'", 1)),
    };
    damage(&sql.replace("{bytes}", bytes).replace("{x}", x).replace("{one}", &one));
    let told = repair(&[]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    for part in [
        "stats_worker: address_stats, (0x",
        "transaction_count is ",
        "the row is missing",
        "ft_holdings_worker: token_stats, (0xc0ffee, \"\"): no event makes this row",
        "not mended: stats_worker: 2 rows of its state",
        "not mended: ft_holdings_worker: 1 rows of its state",
        "3 not what their events make, 0 folded anew",
    ] {
        assert!(told.out.contains(part), "{part}\n{told:?}");
    }
    // Heights say nothing about state, and a part is all where it fits.
    assert!(repair(&["10..20"]).well().contains("state       0 rows compared"));
    assert_eq!(repair(&["--sample", "5"]).status.code(), Some(1));

    let mended = repair(&["--refold"]).well();
    assert!(mended.contains("3 not what their events make, 3 folded anew"), "{mended}");
    work_until(dir.path(), server, &node, count, || {
        let whole = number(&format!("SELECT count(*) FROM {app}token_stats")) > 0;
        let rows = number(&format!("SELECT count(*) FROM {app}address_stats"));
        if whole && rows == count && number(&sums) == sum { rows } else { -1 }
    });
    end_of(at(dir.path(), server).args(["run", "--data", "archive", "--rpc", &node.url]).args(ONE_PASS))
        .well();
    let again = repair(&[]).well();
    assert!(again.contains(&all_good), "{again}");
}

/// Runs until all is derived.
const ONE_PASS: [&str; 5] = ["--exit-after-head", "--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];

#[test]
fn state_is_held_against_its_events_on_sqlite() {
    state_is_held_against_its_events(None);
}

#[test]
fn state_is_held_against_its_events_on_postgres() {
    let Some(server) = Server::start() else { return };
    state_is_held_against_its_events(Some(&server));
}

/// A chain that forks all the while, and a repair each second: no state is found wrong.
fn reorgs_give_no_false_alarm_about_state(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 60);
    let mut command = at(dir.path(), server);
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "20"]);
    command.env("CAIRN_REPAIR__EVERY_S", "1").env("CAIRN_REPAIR__STATE_AT_INTERVALS", "true");
    let mut service = Service::start(&mut command);
    service.until("all is stored", |service| service.height() == Some(60));
    for round in 1..=12 {
        {
            let mut state = node.state();
            let options = cairn_source::evm::synthetic::ForkOptions::new(round);
            let common = Height(state.head - 3);
            state.fork = state.chain.fork_at((state.fork, common), options);
            state.head += 2;
        }
        let head = node.state().head;
        service.until("the fork is followed", |service| service.height() == Some(head));
        std::thread::sleep(Duration::from_millis(400));
    }
    service.until("it was looked at while the chain forked", |service| {
        let runs = metric(service, r#"cairn_repair_runs_total{outcome="clean"}"#);
        runs.is_some_and(|runs| runs >= 3) && compared_states(service) > 0
    });
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

#[test]
fn a_running_cairn_repairs_by_itself() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 40);
    let mut command = at(dir.path(), None);
    // The first comes after a 24th of that.
    command.env("CAIRN_REPAIR__EVERY_S", "48").args(["run", "--data", "archive", "--rpc", &node.url]);
    let mut service = Service::start(&mut command);
    service.until("all is stored", |service| service.height() == Some(40));
    sqlite(dir.path(), "raw.sqlite", "DELETE FROM transactions WHERE height = 7");
    service.until("it was mended", |service| {
        service.get("/metrics").1.contains(r#"cairn_repair_runs_total{outcome="mended"} 1"#)
    });
    assert!(service.get("/metrics").1.contains(r#"cairn_repair_found_total{what="block"} 1"#));
    assert!(service.stop().0.success());
    verify_clean(dir.path(), "archive");
}

/// Which connections write what: the server's own word on it, by a trigger.
#[test]
fn p08_errors_and_mends_go_over_other_connections_than_blocks() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 40);
    let mut command = at(dir.path(), Some(&server));
    command.env("CAIRN_DERIVE__ENABLED", "false").args(["run", "--data", "archive", "--rpc", &node.url]);
    command.args(["--exit-after-head", "--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    end_of(&mut command).well();
    let watch = |table: &str| {
        format!(
            "CREATE TRIGGER witness AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION public.witness();"
        )
    };
    server.sql(&format!(
        "CREATE TABLE public.witnessed (what TEXT, who TEXT); \
         CREATE FUNCTION public.witness() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           INSERT INTO public.witnessed VALUES (TG_TABLE_NAME, current_setting('application_name')); RETURN NULL; END $$; \
         {} {} {} \
         UPDATE raw.blocks SET traces = '\\x003f', traces_bytes = 1 WHERE height = 5; \
         DELETE FROM raw.block_lookup WHERE height = 7",
        watch("raw.indexing_errors"),
        watch("raw.block_lookup"),
        watch("raw.blocks"),
    ));
    let witnessed = |what: &str, who: &str| {
        server.number(&format!(
            "SELECT count(*) FROM public.witnessed WHERE what LIKE '{what}' AND who = '{who}'"
        ))
    };
    node.state().head = 60;
    let mut command = at(dir.path(), Some(&server));
    // The first repair comes after a 24th of that.
    command.env("CAIRN_REPAIR__EVERY_S", "48");
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    let mut service = Service::start(&mut command);
    service.until("an error is recorded, a lookup mended and a block appended", |service| {
        witnessed("indexing_errors", "cairn raw work") > 0
            && witnessed("block_lookup", "cairn raw work") > 0
            && service.height() == Some(60)
    });
    assert_eq!(witnessed("blocks%", "cairn raw"), 20);
    assert_eq!(witnessed("indexing_errors", "cairn raw"), 0);
    assert_eq!(witnessed("block_lookup", "cairn raw"), 20, "those of the blocks that were appended");
    assert!(service.stop().0.success());
}

/// A range that failed too often is taken by nobody, told of, and filled once an operator has freed it.
#[test]
fn a_dead_range_of_blocks_waits_for_an_operator() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 40);
    fill(dir.path(), None, &node);
    node.state().head = 60;
    sqlite(
        dir.path(),
        "raw.sqlite",
        "INSERT INTO raw_leases VALUES (41, 51, 2, 'somebody', 3, 0, 20, 41, 41, NULL, NULL, 'it is odd')",
    );
    let start = || {
        let mut command = at(dir.path(), None);
        command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
        Service::start(&mut command)
    };
    let mut service = start();
    service.until("it is told of", |service| {
        service.get("/metrics").1.contains("cairn_raw_dead_leases 1")
            && service.log().contains("CRITICAL")
            && service.log().contains("cairn leases retry raw:41")
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(service.height(), Some(40));
    assert!(service.stop().0.success());
    let told = end_of(at(dir.path(), None).args(["leases", "retry", "raw:41", "--data", "archive"])).well();
    assert!(told.contains("FAILED"), "{told}");
    let mut service = start();
    service.until("all is stored", |service| service.height() == Some(60));
    assert!(service.get("/metrics").1.contains("cairn_raw_dead_leases 0"));
    assert!(service.stop().0.success());
}

/// The only file in the folders of payloads whose name contains `part`.
fn object_file(root: &Path, part: &str) -> Option<PathBuf> {
    let mut folders = vec![root.join("payloads")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("reads") {
            let path = entry.expect("reads").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().contains(part) {
                return Some(path);
            }
        }
    }
    None
}

#[test]
fn large_payloads_go_to_a_directory_and_what_nothing_needs_is_collected() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 30);
    let run = |args: &[&str]| {
        let mut command = at(dir.path(), Some(&server));
        command.env("PAYLOAD_INLINE_MAX_BYTES", "200").env("CAIRN_DERIVE__LEASE_TTL_S", "1");
        end_of(command.args(args).args(["--data", "archive"]))
    };
    let words = run(&["payloads", "list"]).badly();
    assert!(words.contains("cairn migrate") || words.contains("no payloads"), "{words}");
    run(&[
        "run",
        "--rpc",
        &node.url,
        "--exit-after-head",
        "--rpc-listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ])
    .well();
    let root = dir.path().join("archive/payloads");
    assert!(root.join("payloads-owner").is_file(), "the place is claimed");
    let live = server.number("SELECT count(*) FROM raw.payloads WHERE state = 'live'");
    assert!(live > 0, "some are long enough");
    assert!(run(&["verify"]).well().contains("all good"), "and they are read back");
    let listed = run(&["payloads", "list", "--check"]).well();
    assert!(
        listed.contains(&format!("{live} live,")) && listed.contains("0 not as they ought to be"),
        "{listed}"
    );

    // A row has lost its object; an object is there that the database doesn't know; both long enough.
    let gone = server.number(
        "WITH gone AS (UPDATE raw.transactions SET payload_ref = NULL, payload_hash = NULL WHERE payload_ref = \
           (SELECT min(payload_ref) FROM raw.transactions) RETURNING block_height) SELECT count(*) FROM gone",
    );
    assert_eq!(gone, 1);
    server.sql("UPDATE raw.payloads SET changed_at = now() - interval '3 days'");
    let known = object_file(&root, ".").expect("an object");
    let orphan = PathBuf::from(format!("{}9999", known.display()));
    std::fs::copy(&known, &orphan).expect("copies");
    let old = std::fs::File::options().write(true).open(&orphan).expect("opens");
    old.set_modified(std::time::SystemTime::now() - Duration::from_secs(200_000)).expect("is set");
    let before = run(&["payloads", "gc", "--dry-run", "--grace-s", "100000"]).well();
    let name = orphan.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(
        before.contains(&name) && before.contains("to be dead") && before.contains("1 orphans"),
        "{before}"
    );
    assert!(before.contains("1 would be marked dead") && orphan.is_file(), "{before}");
    assert_eq!(
        server.number("SELECT count(*) FROM raw.payloads WHERE state = 'live'"),
        live,
        "nothing changed"
    );

    let words = run(&["payloads", "gc", "--grace-s", "10"]).badly();
    assert!(words.contains("longer than the longest lease"), "{words}");
    let after = run(&["payloads", "gc", "--grace-s", "100000"]).well();
    assert!(after.contains("1 orphans deleted") && after.contains("1 marked dead"), "{after}");
    assert!(!orphan.is_file() && known.is_file());
    server.sql("UPDATE raw.payloads SET changed_at = now() - interval '3 days' WHERE state = 'dead'");
    let last = run(&["payloads", "gc", "--grace-s", "100000"]).well();
    assert!(last.starts_with("1 deleted"), "{last}");
    let listed = run(&["payloads", "list"]).well();
    assert!(listed.contains(&format!("{} live,", live - 1)) && listed.contains("0 dead,"), "{listed}");
    // A lost object is named.
    std::fs::remove_file(object_file(&root, ".").expect("an object")).expect("is removed");
    let words = run(&["payloads", "list", "--check"]).badly();
    assert!(words.contains("1 payloads are missing"), "{words}");
    let words = run(&["repair", "--rpc", &node.url]).out;
    let listed = run(&["payloads", "list", "--check"]).well();
    assert!(!listed.contains("missing"), "{words}\n{listed}");
}

#[test]
fn payloads_are_for_postgres_and_none_keeps_them_in_the_database() {
    let dir = tempfile::tempdir().expect("dir");
    let words = end_of(at(dir.path(), None).args(["payloads", "gc", "--data", "archive"])).badly();
    assert!(words.contains("SQLite"), "{words}");
    let Some(server) = Server::start() else { return };
    let node = MockNode::start(1337, 20);
    let mut command = at(dir.path(), Some(&server));
    command.env("PAYLOAD_INLINE_MAX_BYTES", "200").env("CAIRN_PAYLOADS__URL", "none");
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--exit-after-head"]);
    end_of(command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"])).well();
    assert_eq!(server.number("SELECT count(*) FROM raw.payloads"), 0);
    assert!(!dir.path().join("archive/payloads").exists());
}

#[test]
fn partitions_are_kept_ahead_and_readers_make_none() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().expect("dir");
    // Whoever only reads makes no schema.
    let words = end_of(at(dir.path(), Some(&server)).args(["leases", "list", "--data", "archive"])).badly();
    assert!(words.contains("cairn migrate"), "{words}");
    assert_eq!(server.number("SELECT count(*) FROM pg_namespace WHERE nspname IN ('raw', 'app')"), 0);

    let node = MockNode::start(1337, 20);
    let mut command = at(dir.path(), Some(&server));
    command.env("DENORMALIZE_EVENTS", "true");
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    let mut service = Service::start(&mut command);
    service.until("event lists are kept for debugging", |_| {
        if server.number("SELECT count(*) FROM pg_class WHERE relname = 'transaction_events_debug'") == 0 {
            return false;
        }
        let lists = server.number("SELECT count(*) FROM raw.transaction_events_debug");
        lists > 0 && lists == server.number("SELECT count(*) FROM raw.transactions WHERE event_count > 0")
    });
    let longest =
        server.number("SELECT coalesce(max(length(events)), 0)::bigint FROM raw.transaction_events_debug");
    assert!((1..=4_096).contains(&longest), "the longest list has {longest} characters");
    service.until("partitions are counted", |service| {
        let metrics = service.get("/metrics").1;
        metrics.contains(r#"cairn_partitions_ahead{table="blocks"} 2"#)
            && metrics.contains("cairn_partition_rounds_total")
    });
    assert!(service.stop().0.success());

    // An ingester alone answers nobody.
    let mut command = at(dir.path(), Some(&server));
    command.args(["run", "--role", "ingest", "--data", "archive", "--rpc", &node.url, "--exit-after-head"]);
    let ended = end_of(command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]));
    assert!(
        ended.status.success() && ended.err.contains("health ") && !ended.err.contains("JSON-RPC"),
        "{ended:?}"
    );
}

#[test]
fn tables_are_made_anew_in_place_and_exported_before_they_are_dropped() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 230);
    fill(dir.path(), Some(&server), &node);
    let run = |args: &[&str]| {
        let mut command = at(dir.path(), Some(&server));
        command
            .env("CAIRN_RAW__PARTITION_HEIGHTS", "1000")
            .env("CAIRN_RAW__PARTITIONS", "{transactions=100}");
        end_of(command.args(args).args(["--data", "archive"]))
    };
    let said = run(&["migrate", "--in-place", "raw.transactions", "--batch-rows", "20"]).well();
    assert!(said.contains("the same checksums") && said.contains("dropped the old table"), "{said}");
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'raw.transactions'::regclass";
    assert!(server.number(partitions) >= 3);
    assert!(run(&["verify"]).well().contains("all good"));
    assert!(run(&["migrate", "--in-place", "nothing"]).badly().contains("raw.TABLE"));

    let rows = server.number("SELECT count(*) FROM app.evm_transactions");
    // Its partitions' indexes have the longest names of all.
    let said = run(&["migrate", "--in-place", "app.evm_transactions"]).well();
    assert!(said.contains(&format!("compared: {rows} rows, the same checksums")), "{said}");
    assert!(run(&["repair"]).well().contains("0 rows differ"));
    let said = run(&["migrate", "--recreate", "app.evm_transactions", "--export-dir", "exported"]).well();
    assert!(said.contains(&format!("exported {rows} rows of app.evm_transactions")), "{said}");
    assert_eq!(server.number("SELECT count(*) FROM app.evm_transactions"), 0);
    let file =
        std::fs::File::open(dir.path().join("exported/app.evm_transactions.csv.gz")).expect("is there");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).expect("is whole");
    assert!(text.starts_with("block_height,transaction_id,"), "{}", &text[..60]);
    assert_eq!(text.lines().count() as i64, rows + 1);
    let words = run(&["migrate", "--recreate", "app.evm_transactions", "--export-dir", "exported"]).badly();
    assert!(words.contains("is there already") && words.contains("nothing was dropped"), "{words}");
    work_until(dir.path(), Some(&server), &node, rows, || {
        server.number("SELECT count(*) FROM app.evm_transactions")
    });
    assert!(run(&["repair"]).well().contains("0 rows differ"));
}

/// A dead lease, events that could not be decoded, a pause: what an operator types, and what comes of it.
fn operators_commands(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let node = MockNode::start(1337, 60);
    let mut command = at(dir, server);
    // No multiple of a range's size, and sizes of a worker's own.
    command.env("CAIRN_DERIVE__RANGE_HEIGHTS", "20").env("CAIRN_DERIVE__RANGE_HEIGHTS_OF", "{evm_worker=15}");
    command.args([
        "run",
        "--data",
        "archive",
        "--rpc",
        &node.url,
        "--poll-ms",
        "50",
        "--exit-after-head",
        "--to",
        "50",
    ]);
    end_of(command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"])).well();
    let run = |args: &[&str]| end_of(at(dir, server).args(args).args(["--data", "archive"]));

    // With a stop, all leases are completed (reliability document, section 8).
    assert_eq!(count(dir, server, "SELECT count(*) FROM @worker_leases WHERE status <> 'COMPLETED'"), 0);
    assert_eq!(count(dir, server, "SELECT max(to_height) FROM @worker_leases"), 51);
    assert_eq!(count(dir, server, "SELECT count(*) FROM @worker_leases WHERE worker_type = 'evm_worker'"), 4);
    let of_stats = "SELECT count(*) FROM @worker_leases WHERE worker_type = 'stats_worker'";
    assert_eq!(count(dir, server, of_stats), 3);

    // Lists go on where they were cut.
    let first = run(&["leases", "list", "--worker", "evm_worker", "--limit", "3"]).well();
    let after = first.split("--after ").nth(1).unwrap_or_else(|| panic!("how to go on: {first}")).trim();
    let rest = run(&["leases", "list", "--worker", "evm_worker", "--limit", "3", "--after", after]).well();
    assert_eq!(rest.lines().filter(|line| line.contains("evm_worker")).count(), 1, "{rest}");
    assert!(!rest.contains("--after"), "{rest}");

    // A dead lease.
    let id = count(dir, server, "SELECT min(id) FROM @worker_leases WHERE worker_type = 'evm_worker'");
    let id = id.to_string();
    assert!(run(&["leases", "retry", &id]).badly().contains("is not FAILED"));
    assert!(run(&["leases", "release", &id]).badly().contains("is not ACTIVE"));
    let dead = format!(
        "UPDATE @worker_leases SET status = 'FAILED', attempt = 20, last_error = 'it died', done_to = from_height, \
         claimed_done_to = from_height, last_id = NULL, first_parent = NULL WHERE id = {id}"
    );
    change(dir, server, "app", &dead);
    let told = run(&["leases", "list", "--dead"]).well();
    assert!(told.contains("DEAD") && told.contains("it died"), "{told}");
    let told = run(&["leases", "retry", &id]).well();
    assert!(told.contains("FAILED") && !told.contains("DEAD"), "{told}");
    assert_eq!(run(&["leases", "list", "--dead"]).well(), "no leases\n");
    let active =
        format!("UPDATE @worker_leases SET status = 'ACTIVE', leased_by = 'somebody' WHERE id = {id}");
    change(dir, server, "app", &active);
    let told = run(&["leases", "release", &id]).well();
    assert!(told.contains("FAILED"), "{told}");

    // A dead range of blocks.
    let (leases, failed, active) = match server {
        Some(_) => ("@leases", "'FAILED'", "'ACTIVE'"),
        None => ("@raw_leases", "2", "0"),
    };
    let insert = format!(
        "INSERT INTO {leases} VALUES (60, 70, {failed}, 'somebody', 3, 0, 20, 60, 60, NULL, NULL, 'it is odd')"
    );
    change(dir, server, "raw", &insert);
    let told = run(&["leases", "list", "--dead"]).well();
    assert!(told.contains("raw:60") && told.contains("DEAD") && told.contains("somebody"), "{told}");
    assert!(told.contains("it is odd"), "it says why: {told}");
    assert!(run(&["leases", "list", "--worker", "raw", "--status", "FAILED"]).well().contains("raw:60"));
    assert_eq!(run(&["leases", "list", "--worker", "raw", "--status", "ACTIVE"]).well(), "no leases\n");
    assert!(run(&["leases", "release", "raw:60"]).badly().contains("is not ACTIVE"));
    assert!(run(&["leases", "retry", "raw:61"]).badly().contains("not there"));
    assert!(run(&["leases", "retry", "blocks:60"]).badly().contains("not a lease's number"));
    let told = run(&["leases", "retry", "raw:60"]).well();
    assert!(told.contains("FAILED") && !told.contains("DEAD"), "{told}");
    assert_eq!(run(&["leases", "list", "--dead"]).well(), "no leases\n");
    let status = if server.is_some() { "status" } else { "state" };
    change(dir, server, "raw", &format!("UPDATE {leases} SET {status} = {active}"));
    let told = run(&["leases", "release", "raw:60"]).well();
    assert!(told.contains("FAILED"), "{told}");
    change(dir, server, "raw", &format!("DELETE FROM {leases}"));

    // Errors of a worker whose heights stand by themselves, and of one that folds.
    let (odd, id_of_block) = match server {
        Some(_) => ("'\\x00ff'", "'\\x01'"),
        None => ("x'00ff'", "x'01'"),
    };
    let made = if server.is_some() { "now()" } else { "1" };
    for (n, worker) in ["evm_worker", "evm_worker", "stats_worker"].iter().enumerate() {
        let id_of_block = id_of_block.replace("01", &"01".repeat(32));
        change(
            dir,
            server,
            "raw",
            &format!(
                "INSERT INTO @indexing_errors (worker_name, block_height, block_id, error_hash, severity, error_message, raw_data, raw_ref, created_at) \
             VALUES ('{worker}', {n}, {id_of_block}, 'h', 'WARN', 'not understood', {odd}, 'payloads/x', {made})"
            ),
        );
    }
    let told = run(&["errors", "list", "--limit", "2"]).well();
    assert!(told.contains("3 open") && told.contains("--after 2"), "{told}");
    let told = run(&["errors", "list", "--after", "2"]).well();
    assert!(told.contains("stats_worker") && !told.contains("evm_worker"), "{told}");
    let told = run(&["errors", "show", "1"]).well();
    for part in ["not understood", "payloads/x", "00ff", "\\x00\\xff", "2 bytes"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(run(&["errors", "show", "9"]).badly().contains("there is no error 9"));
    // A number or a name that is none is no success, and changes nothing.
    assert!(run(&["errors", "resolve", "2", "9"]).badly().contains("there is no error 9"));
    assert!(run(&["errors", "list", "--worker", "evm_worker"]).well().contains("3 open"));
    assert_eq!(run(&["errors", "resolve", "2", "2"]).well(), "1 closed\n");
    assert_eq!(run(&["errors", "resolve", "2"]).well(), "0 closed; closed before: 1\n");
    assert!(run(&["errors", "list", "--worker", "token_worker"]).well().contains("2 open"));
    for list in [["errors", "list"], ["leases", "list"]] {
        let words = run(&[&list[..], &["--worker", "nope"]].concat()).badly();
        assert!(words.contains("there is no worker `nope`") && words.contains("token_worker"), "{words}");
    }
    let words = run(&["reindex", "--worker", "evm_worker", "--from", "10", "--to", "5"]).badly();
    assert!(words.contains("--to 5 lies below --from 10"), "{words}");
    let told = run(&["errors", "retry", "1"]).well();
    assert!(told.contains("evm_worker: heights") && told.contains("error 1 is closed"), "{told}");
    assert!(told.contains("opens again"), "{told}");
    let words = run(&["errors", "retry", "3"]).badly();
    assert!(words.contains("`cairn errors retry 3 --yes`"), "{words}");
    assert!(run(&["errors", "list"]).well().contains("1 open"), "nothing was closed");
    let told = run(&["errors", "retry", "3", "--yes"]).well();
    assert!(told.contains("stats_worker begins anew at height 0"), "{told}");
    assert!(run(&["errors", "list"]).well().contains("0 open"));
    // One that can't be asked for stays open.
    change(
        dir,
        server,
        "raw",
        "UPDATE @indexing_errors SET resolved = DEFAULTED, block_height = 900 WHERE id = 2"
            .replace("DEFAULTED", if server.is_some() { "FALSE" } else { "0" })
            .as_str(),
    );
    let words = run(&["errors", "retry", "2"]).badly();
    assert!(words.contains("outside of it") && words.contains("as it was"), "{words}");
    assert!(run(&["errors", "list"]).well().contains("1 open"));

    // A paused worker stays where it is.
    assert!(run(&["workers", "pause", "no_worker"]).badly().contains("there are"));
    assert_eq!(run(&["workers", "pause", "stats_worker"]).well(), "stats_worker is paused\n");
    assert!(run(&["workers", "list"]).well().contains("paused"));
    let mut command = at(dir, server);
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    let mut service = Service::start(&mut command);
    let next_of = |worker: &str| {
        count(
            dir,
            server,
            &format!("SELECT coalesce(max(done_to), 0) FROM @worker_leases WHERE worker_type = '{worker}'"),
        )
    };
    service.until("the others are at the head", |_| next_of("evm_worker") == 61);
    assert_eq!(next_of("stats_worker"), 0, "it is paused");
    assert!(service.stop().0.success());
    assert_eq!(run(&["workers", "resume", "stats_worker"]).well(), "stats_worker goes on\n");
    // It catches up, and what was freed is worked off.
    let freed = format!("SELECT count(*) FROM @worker_leases WHERE id = {id} AND status = 'COMPLETED'");
    work_until(dir, server, &node, 62, || next_of("stats_worker") + count(dir, server, &freed));
}

#[test]
fn what_operators_type_does_what_it_says_on_sqlite() {
    operators_commands(None);
}

#[test]
fn what_operators_type_does_what_it_says_on_postgres() {
    let Some(server) = Server::start() else { return };
    operators_commands(Some(&server));
}

#[test]
fn a_halt_of_derived_work_is_told_and_blocks_go_on() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 20);
    fill(dir.path(), None, &node);
    sqlite(dir.path(), "app.sqlite", "UPDATE fork_state SET raw_uuid = zeroblob(16)");
    let mut command = at(dir.path(), None);
    command.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
    let mut service = Service::start(&mut command);
    service.until("it is told", |service| service.ready().1["state"] == "derived_halted");
    let (status, report) = service.ready();
    assert_eq!(status, 503);
    assert!(report["reason"].as_str().is_some_and(|reason| reason.starts_with("derived work halted: ")));
    assert!(service.get("/metrics").1.contains("cairn_derived_halted 1"));
    let (status, text) = service.get("/v1/status");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let halt = serde_json::json!({ "part": "derived", "worker": null, "height": null, "code": "other-raw" });
    assert_eq!((status, &told["data"]["halts"]), (200, &serde_json::json!([halt])), "{text}");
    service.until("gaps are looked for", |service| service.get("/metrics").1.contains("cairn_raw_gaps 0"));
    assert_eq!(service.height(), Some(20), "blocks are served");
    assert!(service.stop().0.success());
}
