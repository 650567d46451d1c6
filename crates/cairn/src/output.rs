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
