//! What reads the log goes away, or stops reading: blocks and tables go on all the same.

use crate::support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::node::MockNode;
use support::*;

/// What becomes of the reader of standard error once the service listens.
#[derive(Clone, Copy, Debug)]
enum Reader {
    GoesAway,
    StopsReading,
}

/// A service whose log has an odd reader.
struct Logged {
    child: Child,
    ops: String,
    /// Kept where the reader stops reading: the pipe fills up.
    _unread: Option<BufReader<ChildStderr>>,
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Logged {
    fn start(command: &mut Command, reader: Reader) -> Logged {
        command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
        // Many lines, so that a pipe that nobody reads is full within moments.
        command.args(["--log", "trace"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("is piped"));
        let ops = loop {
            let mut line = String::new();
            assert_ne!(stderr.read_line(&mut line).expect("a line"), 0, "it ended");
            if let Some(url) = line.strip_prefix("health ").and_then(|rest| rest.split("http://").nth(1)) {
                break url.split(['/', ' ']).next().expect("an address").to_owned();
            }
        };
        let unread = match reader {
            Reader::GoesAway => None,
            Reader::StopsReading => Some(stderr),
        };
        Logged { child, ops, _unread: unread }
    }

    /// The raw and the derived height.
    fn heights(&self) -> (u64, u64) {
        let (status, text) = http(&self.ops, "GET", "/v1/status", None).expect("answers");
        assert_eq!(status, 200, "{text}");
        let status: Value = serde_json::from_str(&text).expect("JSON");
        let height =
            |name: &str| status["data"][name].as_str().map_or(0, |digits| digits.parse().expect("a height"));
        (height("raw_tip_height"), height("app_watermark_height"))
    }

    /// Waits until both heights have grown by so many blocks.
    fn grows(&self, blocks: u64) {
        let before = self.heights();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.heights();
            if now.0 >= before.0 + blocks && now.1 >= before.1 + blocks {
                return;
            }
            if Instant::now() >= deadline {
                let ready = http(&self.ops, "GET", "/readyz", None);
                panic!("it stands still: {before:?}, then {now:?}; {ready:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stops(mut self) {
        terminate(&self.child);
        let status = wait(&mut self.child, Duration::from_secs(20)).expect("it ends after SIGTERM");
        assert!(status.success(), "{status}");
    }
}

fn demo(dir: &Path) -> Command {
    let mut command = cairn(dir);
    command.args(["demo", "--data", "archive", "--blocks", "50", "--block-time-ms", "100"]);
    command
}

#[test]
fn a_demo_goes_on_whatever_becomes_of_the_reader_of_its_log() {
    for reader in [Reader::GoesAway, Reader::StopsReading] {
        let dir = tempfile::tempdir().expect("dir");
        let service = Logged::start(&mut demo(dir.path()), reader);
        service.grows(20);
        service.stops();
    }
}

#[test]
fn a_run_goes_on_and_a_serve_answers_whatever_becomes_of_the_reader_of_the_log() {
    for reader in [Reader::GoesAway, Reader::StopsReading] {
        let dir = tempfile::tempdir().expect("dir");
        let node = MockNode::start(1_337, 40);
        let mut run = cairn(dir.path());
        run.args(["run", "--data", "archive", "--rpc", &node.url, "--poll-ms", "50"]);
        let service = Logged::start(&mut run, reader);
        let mut serve = cairn(dir.path());
        let serving = Logged::start(serve.args(["serve", "--data", "archive"]), reader);
        std::thread::spawn({
            let node = node;
            move || {
                for _ in 0..600 {
                    node.state().head += 1;
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        });
        service.grows(20);
        serving.grows(5);
        serving.stops();
        service.stops();
    }
}

#[test]
fn each_line_of_a_json_log_is_json() {
    let dir = tempfile::tempdir().expect("dir");
    let mut command = demo(dir.path());
    command.args([
        "--log-json",
        "--exit-after-head",
        "--rpc-listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ]);
    let ended = end_of(&mut command);
    assert!(ended.status.success(), "{ended:?}");
    assert!(!ended.err.is_empty(), "{ended:?}");
    for line in ended.err.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "not JSON: {line}");
    }
}
