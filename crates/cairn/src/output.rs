//! Standard output and standard error, whose readers may have gone away or stopped reading.
//!
//! Answers of commands go to standard output ([`print`]). Logs and notes for people go to standard error, through one queue
//! that a thread of its own writes out: a reader that is gone or slow costs lines, never time. Nothing else may print;
//! clippy's `print_stderr` and `print_stdout` hold that.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// How many lines wait for the reader of standard error; later ones are dropped and counted.
const MAX_WAITING_LINES: usize = 10_000;

/// The queue of standard error: there is one standard error, so there is one queue.
static STDERR: OnceLock<Stderr> = OnceLock::new();

struct Stderr {
    queue: NonBlocking,
    /// Notes are log lines too, so that every line is JSON.
    json: bool,
}

/// Sends logs to standard error. Lines that wait are written out when the guard is dropped.
///
/// On a terminal the progress bar says what goes well, so that only warnings are logged there.
pub fn start_logging(filter: Option<String>, json: bool) -> Result<WorkerGuard, String> {
    let terminal = std::io::stderr().is_terminal();
    let filter = match filter.or_else(|| std::env::var("CAIRN_LOG").ok()) {
        Some(filter) => filter,
        None if terminal => "warn".into(),
        None => "info".into(),
    };
    let filter = EnvFilter::try_new(&filter).map_err(|error| format!("--log {filter}: {error}"))?;
    let (queue, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(MAX_WAITING_LINES).finish(std::io::stderr());
    // Logging starts once.
    let stderr = STDERR.get_or_init(|| Stderr { queue, json });
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(terminal)
        .with_writer(stderr.queue.clone())
        .log_internal_errors(false);
    if json {
        log.json().init();
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    } else {
        log.init();
    }
    Ok(guard)
}

/// A note for people on standard error; with `--log-json` a log line.
pub fn say(text: impl Display) {
    match STDERR.get() {
        Some(stderr) if stderr.json => tracing::info!("{text}"),
        _ => write_line(text),
    }
}

/// Why the process ends.
pub fn say_error(error: impl Display) {
    match STDERR.get() {
        Some(stderr) if stderr.json => tracing::error!("{error}"),
        _ => write_line(format_args!("error: {error}")),
    }
}

/// Whoever doesn't read it misses it; there is nobody to tell.
fn write_line(text: impl Display) {
    let line = format!("{text}\n");
    let _ = match STDERR.get() {
        Some(stderr) => stderr.queue.clone().write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
}

/// How many lines of the log were dropped because nobody read them in time.
pub fn dropped_lines() -> u64 {
    STDERR.get().map_or(0, |stderr| stderr.queue.error_counter().dropped_lines() as u64)
}

/// Writes `text` to standard output and flushes. A reader that went away is no failure (`cairn status | head`).
pub fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// How a list that may have been cut goes on after `last`.
pub fn more(last: Option<u64>, listed: usize, limit: usize) -> String {
    match last.filter(|_| listed >= limit) {
        Some(last) => format!("there may be more: --after {last}\n"),
        None => String::new(),
    }
}
