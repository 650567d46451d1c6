//! What operators type while `cairn run` is at work: on SQLite that process does it, on PostgreSQL the command by itself.

#![cfg(unix)]

use crate::support;

use crate::support::stores;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stores::{Server, change, count, over};
use support::node::MockNode;
use support::*;

/// The binary over SQLite in `archive`, or over the server's database; ranges are short.
fn at(dir: &Path, server: Option<&Server>) -> Command {
    let mut command = cairn(dir);
    over(&mut command, server);
    // The small node answers no calls.
    command.env("CAIRN_DERIVE__ASK_NODE", "false").env("CAIRN_DERIVE__POLL_MS", "50");
    command.env("CAIRN_DERIVE__RANGE_HEIGHTS", "20");
    command
}

fn run(dir: &Path, server: Option<&Server>, node: &MockNode, data: &str) -> Command {
    let mut command = at(dir, server);
    command.args(["run", "--data", data, "--rpc", &node.url, "--poll-ms", "50"]);
    command
}

/// Archives and derives all that the node has.
fn fill(dir: &Path, server: Option<&Server>, node: &MockNode) {
    let mut command = run(dir, server, node, "archive");
    command.args(["--exit-after-head", "--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    end_of(&mut command).well();
}

const STATE: &str =
    "SELECT CAST(coalesce(sum(transaction_count), 0) + count(*) AS bigint) FROM @address_stats";

fn commands_while_it_runs(server: Option<&Server>) {
    let dir = tempfile::tempdir().expect("dir");
    let dir = dir.path();
    let node = MockNode::start(1337, 60);
    fill(dir, server, &node);
    let typed = |args: &[&str]| end_of(at(dir, server).args(args).args(["--data", "archive"]));
    let number = |query: &str| count(dir, server, query);
    let height_of = |worker: &str| {
        number(&format!("SELECT max(last_height) FROM @indexing_checkpoints WHERE service_name = '{worker}'"))
    };
    let mut service = Service::start(&mut run(dir, server, &node, "archive"));
    // A block more at each look, until as many are derived.
    let grow = |service: &mut Service, to: u64| {
        service.until("the chain has grown", |_| {
            let mut state = node.state();
            state.head = to.min(state.head + 1);
            drop(state);
            height_of("evm_worker") == i64::try_from(to).expect("is small")
        });
    };
    grow(&mut service, 70);

    // A paused worker claims no further range; the others go on.
    assert_eq!(typed(&["workers", "pause", "stats_worker"]).well(), "stats_worker is paused\n");
    assert!(typed(&["workers", "list"]).well().contains("paused"));
    grow(&mut service, 130);
    assert!(height_of("stats_worker") < 100, "it goes on: {}", height_of("stats_worker"));
    assert_eq!(typed(&["workers", "resume", "stats_worker"]).well(), "stats_worker goes on\n");
    service.until("it has caught up", |_| height_of("stats_worker") == 130);

    // Rows of a range are made again, and of that range alone, while new blocks come.
    let altered = |heights: &str| {
        number(&format!(
            "SELECT count(*) FROM @evm_transactions WHERE gas_used = 1 AND block_height IN ({heights})"
        ))
    };
    change(dir, server, "app", "UPDATE @evm_transactions SET gas_used = 1 WHERE block_height IN (12, 25)");
    assert!(altered("12") > 0 && altered("25") > 0);
    let reindex = ["reindex", "--worker", "evm_worker", "--from", "10", "--to", "19"];
    let told = typed(&reindex).well();
    assert!(told.contains("evm_worker: heights [10, 20) are made again"), "{told}");
    grow(&mut service, 150);
    service.until("the rows are made again", |_| altered("12") == 0);
    assert!(altered("25") > 0, "another range was touched");
    let again = "FROM @worker_leases WHERE kind = 'reindex' AND worker_type = 'evm_worker'";
    assert_eq!(number(&format!("SELECT min(from_height) {again}")), 10);
    assert_eq!(number(&format!("SELECT max(to_height) {again}")), 20);
    let told = typed(&["reindex", "--worker", "evm_worker", "--from", "25", "--to", "25"]).well();
    assert!(told.contains("heights [25, 26)"), "{told}");
    service.until("these too", |_| altered("25") == 0);

    // Errors are closed, and one's height is made again.
    let (bytes, made) = match server {
        Some(_) => (format!("'\\x{}'", "01".repeat(32)), "now()"),
        None => (format!("x'{}'", "01".repeat(32)), "1"),
    };
    for height in [3, 4, 5] {
        let insert = format!(
            "INSERT INTO @indexing_errors (worker_name, block_height, block_id, error_hash, severity, error_message, raw_data, raw_ref, created_at) \
             VALUES ('evm_worker', {height}, {bytes}, 'h', 'WARN', 'not understood', {bytes}, NULL, {made})"
        );
        change(dir, server, "raw", &insert);
    }
    assert!(typed(&["errors", "resolve", "1", "2", "9"]).badly().contains("there is no error 9"));
    assert_eq!(typed(&["errors", "resolve", "1", "2"]).well(), "2 closed\n");
    let told = typed(&["errors", "retry", "3"]).well();
    assert!(told.contains("evm_worker: heights [5, 6)") && told.contains("error 3 is closed"), "{told}");
    assert!(typed(&["errors", "list"]).well().contains("0 open"));

    // What can't be done is an error of the command.
    assert!(typed(&["leases", "retry", "999999"]).badly().contains("lease 999999 is not FAILED"));
    assert!(typed(&["leases", "release", "raw:7"]).badly().contains("lease raw:7 is not ACTIVE"));
    assert!(typed(&["workers", "pause", "no_worker"]).badly().contains("there is no worker `no_worker`"));
    let folder = ["reindex", "--worker", "stats_worker", "--from", "1"];
    assert!(typed(&folder).badly().contains("folds from the beginning"));

    // State is folded anew beside everything else.
    service.until("state is at the head", |_| height_of("stats_worker") == 150);
    let whole = number(STATE);
    let told = typed(&["reindex", "--worker", "stats_worker"]).well();
    assert!(told.contains("stats_worker begins anew at height 0"), "{told}");
    service.until("it is what it was", |_| height_of("stats_worker") == 150 && number(STATE) == whole);

    let socket = dir.join("archive/cairn.sock");
    match server {
        // What it writes is read by another thread, which may be behind.
        None => service.until("it tells of each", |service| asked(service) >= 10),
        Some(_) => assert_eq!(asked(&service), 0, "the command does it by itself"),
    }
    assert_eq!(socket.exists(), server.is_none());
    assert!(service.child_is_alive());
    assert!(service.stop().0.success());
    assert!(!socket.exists());
    let clean = typed(&["repair"]).well();
    for part in ["0 rows differ", "0 damaged", "0 not what their events make"] {
        assert!(clean.contains(part), "{part}: {clean}");
    }
}

#[test]
fn operators_commands_work_while_it_runs_on_sqlite() {
    commands_while_it_runs(None);
}

#[test]
fn operators_commands_work_while_it_runs_on_postgres() {
    let Some(server) = Server::start() else { return };
    commands_while_it_runs(Some(&server));
}

fn frame(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).expect("is short");
    [&len.to_be_bytes()[..], text.as_bytes()].concat()
}

/// What is answered to these bytes, after which no more come.
fn answered(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("waits");
    stream.write_all(bytes).expect("is sent");
    stream.shutdown(Shutdown::Write).expect("is said");
    let mut answer = Vec::new();
    // It may hang up on what it didn't read.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(answer.get(4..).unwrap_or_default()).into_owned()
}

#[test]
fn nothing_but_operators_requests_is_taken_and_the_process_lives() {
    let dir = tempfile::tempdir().expect("dir");
    let node = MockNode::start(1337, 20);
    fill(dir.path(), None, &node);
    let mut service = Service::start(&mut run(dir.path(), None, &node, "archive"));
    let typed = |args: &[&str]| end_of(at(dir.path(), None).args(args).args(["--data", "archive"]));
    assert_eq!(typed(&["workers", "pause", "evm_worker"]).well(), "evm_worker is paused\n");
    assert_eq!(typed(&["workers", "resume", "evm_worker"]).well(), "evm_worker goes on\n");

    let socket = dir.path().join("archive/cairn.sock");
    let mode = fs::metadata(&socket).expect("is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others could ask");
    let garbage = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (bytes, words) in [
        (garbage.as_bytes().to_vec(), "longer than"),
        (vec![0xff; 4], "longer than"),
        (Vec::new(), "no request"),
        (vec![0, 0], "no request"),
        (frame("{}")[..5].to_vec(), "no request"),
        (frame(garbage), "no request"),
        (frame(r#"{"protocol":1,"operation":{"sql":"DELETE FROM blocks"}}"#), "no request"),
        (frame(r#"{"protocol":99,"operation":{"pause_worker":{"worker":"w"}}}"#), "another version"),
    ] {
        let answer = answered(&socket, &bytes);
        assert!(answer.contains("failed") && answer.contains(words), "{bytes:?}: {answer}");
    }

    // Whoever says nothing is in nobody's way, and what was asked is done though nobody waits for it.
    let silent: Vec<_> = (0..3).map(|_| UnixStream::connect(&socket).expect("connects")).collect();
    let mut cut = UnixStream::connect(&socket).expect("connects");
    let pause = frame(r#"{"protocol":1,"operation":{"pause_worker":{"worker":"stats_worker"}}}"#);
    cut.write_all(&pause).expect("is sent");
    drop(cut);
    service.until("it is paused", |_| typed(&["workers", "list"]).well().contains("paused"));
    assert_eq!(typed(&["workers", "resume", "stats_worker"]).well(), "stats_worker goes on\n");
    drop(silent);

    // What isn't an operator's request still needs the files for itself.
    for refused in [&["repair"][..], &["migrate"]] {
        let words = typed(refused).badly();
        assert!(words.contains("held by"), "{refused:?}: {words}");
    }
    let second = ["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let words = end_of(run(dir.path(), None, &node, "archive").args(second)).badly();
    assert!(words.contains("held by another process"), "{words}");
    assert!(socket.exists(), "it is the first one's");
    assert_eq!(typed(&["workers", "pause", "evm_worker"]).well(), "evm_worker is paused\n");

    assert!(service.child_is_alive());
    node.state().head = 25;
    service.until("it goes on", |service| service.height() == Some(25));
    let (ended, took) = service.stop();
    assert!(ended.success() && took < Duration::from_secs(8), "{ended} in {took:?}");
    assert!(!socket.exists());
    // Nobody runs: the command does it by itself.
    assert_eq!(typed(&["workers", "resume", "evm_worker"]).well(), "evm_worker goes on\n");
}

/// How many requests of operators its log tells of.
fn asked(service: &Service) -> usize {
    service.log().matches("an operator asks").count()
}

#[test]
fn a_socket_that_was_left_is_made_anew_however_long_its_path() {
    let root = tempfile::tempdir().expect("dir");
    let dir: PathBuf = root.path().join("d".repeat(150));
    let archive = dir.join("archive");
    fs::create_dir_all(&dir).expect("is made");
    let node = MockNode::start(1337, 10);
    fill(&dir, None, &node);
    // By a path that no socket may have, and by a short one.
    let long = archive.to_str().expect("is text");
    let typed = |data: &str, word: &str| {
        end_of(at(&dir, None).args(["workers", word, "evm_worker", "--data", data])).well()
    };
    let mut service = Service::start(&mut run(&dir, None, &node, long));
    assert_eq!(typed(long, "pause"), "evm_worker is paused\n");
    assert_eq!(typed("archive", "resume"), "evm_worker goes on\n");
    service.until("both are in its log", |service| asked(service) == 2);
    // Killed.
    drop(service);
    let socket = archive.join("cairn.sock");
    assert!(fs::symlink_metadata(&socket).expect("was left").file_type().is_socket());
    assert_eq!(typed(long, "pause"), "evm_worker is paused\n");

    let mut service = Service::start(&mut run(&dir, None, &node, "archive"));
    assert_eq!(typed(long, "resume"), "evm_worker goes on\n");
    service.until("it is in its log", |service| asked(service) == 1);
    assert!(service.stop().0.success());
    assert!(!socket.exists());
}
