//! The real binary as a child process, and the little HTTP that tests need.

pub mod node;
#[path = "../../../../backends/tests/backends/support/pg.rs"]
pub mod pg;
pub mod repairs;
pub mod stores;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a child may take for what it must do.
const PATIENCE: Duration = Duration::from_secs(300);

/// The binary, with nothing of this process's settings, working in `dir`.
pub fn cairn(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CAIRN_") || name_text == "MAX_REORG_DEPTH" {
            command.env_remove(&name);
        }
    }
    command.current_dir(dir).stdin(Stdio::null());
    command
}

/// A command that came to its end.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Its standard output, where it ended well.
    pub fn well(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.out
    }

    /// Its standard output, where a repair could not look at everything, and said so.
    pub fn incomplete(self) -> String {
        assert_eq!(self.status.code(), Some(3), "{self:?}");
        assert!(
            self.err.contains("the repair is incomplete") && self.out.contains("not compared: "),
            "{self:?}"
        );
        self.out
    }

    /// Its words, where it failed by itself.
    pub fn badly(self) -> String {
        assert!(matches!(self.status.code(), Some(1 | 2)), "{self:?}");
        self.err
    }
}

/// Runs a command to its end.
pub fn end_of(command: &mut Command) -> Ended {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let (out, err) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, PATIENCE);
    let text = |thread: std::thread::JoinHandle<String>| thread.join().expect("no panic");
    let status = status.unwrap_or_else(|| panic!("it did not end: {command:?}"));
    Ended { status, out: text(out), err: text(err) }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    let mut pipe = pipe.expect("is piped");
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Waits for the end of a child; kills it where that doesn't come.
pub fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().expect("can be asked") {
            return Some(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends SIGTERM.
pub fn terminate(child: &Child) {
    let kill = format!("kill -TERM {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
}

/// A service at work; killed when it is dropped.
pub struct Service {
    child: Child,
    log: Arc<Mutex<String>>,
    /// `host:port` of JSON-RPC.
    pub rpc: String,
    /// `host:port` of health and metrics.
    pub ops: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Service {
    /// Starts a command that serves, on free ports, and waits until it says where.
    pub fn start(command: &mut Command) -> Service {
        command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("is piped"));
        std::thread::spawn({
            let log = log.clone();
            move || {
                for line in stderr.lines().map_while(Result::ok) {
                    let mut log = log.lock().unwrap();
                    log.push_str(&line);
                    log.push('\n');
                }
            }
        });
        let mut service = Service { child, log, rpc: String::new(), ops: String::new() };
        service.until("it listens", |service| {
            assert!(
                service.child.try_wait().expect("can be asked").is_none(),
                "it ended:\n{}",
                service.log()
            );
            let log = service.log();
            let address = |word: &str| {
                let line = log.lines().find(|line| line.starts_with(word))?;
                let url = line.split("http://").nth(1)?;
                Some(url.split(['/', ' ']).next()?.to_owned())
            };
            let Some(ops) = address("health ") else { return false };
            // It comes before; on Flow there is none.
            (service.rpc, service.ops) = (address("JSON-RPC ").unwrap_or_default(), ops);
            true
        });
        service
    }

    pub fn child_is_alive(&mut self) -> bool {
        self.child.try_wait().expect("can be asked").is_none()
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until something holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Service) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "waited for this: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(25));
        }
    }

    /// Asks it to stop, and says how it ended and how long that took.
    pub fn stop(mut self) -> (ExitStatus, Duration) {
        let began = Instant::now();
        terminate(&self.child);
        let status = wait(&mut self.child, PATIENCE).expect("it ends after SIGTERM");
        (status, began.elapsed())
    }

    /// The answer to a call: the result, or the error's object.
    pub fn call(&self, method: &str, params: Value) -> Result<Value, Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let (status, text) = http(&self.rpc, "POST", "/", Some(&body)).expect("answers");
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].clone()),
        }
    }

    /// The newest height that it serves.
    pub fn height(&self) -> Option<u64> {
        quantity(&self.call("eth_blockNumber", json!([])).ok()?)
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        http(&self.ops, "GET", path, None).expect("answers")
    }

    /// Status and report of `/readyz`.
    pub fn ready(&self) -> (u16, Value) {
        let (status, text) = self.get("/readyz");
        (status, serde_json::from_str(&text).expect("JSON"))
    }
}

pub fn quantity(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

/// One request on a connection of its own.
pub fn http(address: &str, method: &str, path: &str, body: Option<&str>) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.unwrap_or("");
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Ok((status, body.to_owned()))
}

/// `cairn status --json` of a directory.
pub fn status(dir: &Path, data: &str) -> Value {
    let text = end_of(cairn(dir).args(["status", "--json", "--data", data])).well();
    serde_json::from_str(&text).expect("JSON")
}

/// What `cairn verify` says of an archive that is whole.
pub fn verify_clean(dir: &Path, data: &str) -> String {
    let text = end_of(cairn(dir).args(["verify", "--data", data])).well();
    assert!(text.contains("all good"), "{text}");
    text
}

/// The public suite's folder; `None`, with a word on where to get it, where it is not there.
pub fn suite() -> Option<PathBuf> {
    let shared =
        std::env::var_os("CAIRN_SHARED").map_or_else(|| PathBuf::from("../../../shared"), PathBuf::from);
    let folder = shared.join("conformance/execution-apis");
    if folder.join("chain.rlp").is_file() {
        // The binary runs in a folder of its own.
        return Some(folder.canonicalize().expect("it is there"));
    }
    let message = format!(
        "the public RPC test suite is not at {}: it is the `tests` folder of github.com/ethereum/execution-apis; set CAIRN_SHARED",
        folder.display()
    );
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{message}");
    println!("{message}");
    None
}
