//! Writing answers to standard output, whose reader may have seen enough (`cairn status | head`).

use std::io::{ErrorKind, Write};

/// Writes `text` and flushes. A reader that went away is no failure.
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
