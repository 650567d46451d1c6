//! A command that asks the process that holds the stores.

use std::io;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::place::{self, Short};
use super::{Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Outcome, PROTOCOL, Request, Spoken};
use super::{read_frame, write_frame};
use crate::config::Config;
use crate::operators::Operation;

/// How long an answer may take. The process is done earlier, or says that it isn't.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// What came of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// It is done: what there is to say.
    Told(String),
    /// Who listens ends, and has done nothing.
    Ending,
    /// Nobody listens.
    Nobody,
}

/// Lets the process do it that holds the stores.
pub async fn ask(config: &Config, operation: &Operation) -> anyhow::Result<Asked> {
    let Some(socket) = place::socket(config) else { return Ok(Asked::Nobody) };
    let request = Request { protocol: PROTOCOL, operation: operation.clone() };
    let request = serde_json::to_vec(&request)?;
    if request.len() > MAX_REQUEST_BYTES {
        bail!(
            "that is too much for one request ({} bytes of {MAX_REQUEST_BYTES}); give fewer",
            request.len()
        );
    }
    let short = Short::to(&socket)?;
    let stream = match UnixStream::connect(short.path()).await {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(Asked::Nobody),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
            "a running cairn holds the archive, and takes requests from its own user alone ({})",
            socket.display()
        ),
        Err(error) => return Err(error).with_context(|| format!("can't ask at {}", socket.display())),
    };
    let Ok(answer) = timeout(ANSWER_WITHIN, exchange(stream, &request)).await else {
        bail!(
            "the running cairn has not answered within {} s: it has others to answer before, or stands still, and may do it yet; {UNKNOWN}",
            ANSWER_WITHIN.as_secs()
        );
    };
    let answer = answer.with_context(|| {
        format!(
            "the running cairn ended, or cut the line, before it answered; {UNKNOWN} ({})",
            socket.display()
        )
    })?;
    let Some(answer) = answer else { return Ok(Asked::Ending) };
    match read(&answer)? {
        Outcome::Done(text) => Ok(Asked::Told(text)),
        Outcome::Failed(text) => bail!(text),
        Outcome::Ending => Ok(Asked::Ending),
    }
}

/// What to do where nobody said what became of it.
const UNKNOWN: &str = "whether it was done is shown by `cairn workers list`, `leases list` or `errors list`, and asking again does no harm";

/// `None`: the line was cut before the request was there whole, so that nothing of it was done.
async fn exchange(mut stream: UnixStream, request: &[u8]) -> io::Result<Option<Vec<u8>>> {
    // Who ends answers without reading, and hangs up.
    let is_sent = write_frame(&mut stream, request).await.is_ok();
    match read_frame(&mut stream, MAX_ANSWER_BYTES, "an answer").await {
        Ok(answer) => Ok(Some(answer)),
        Err(_) if !is_sent => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(answer: &[u8]) -> anyhow::Result<Outcome> {
    let spoken: Spoken = serde_json::from_slice(answer).context("the running cairn answers nonsense")?;
    if spoken.protocol != PROTOCOL {
        bail!(
            "the running cairn is of another version (it speaks {}, this command {PROTOCOL}): use its own command, or stop it first",
            spoken.protocol
        );
    }
    let answer: Answer = serde_json::from_slice(answer).context("the running cairn answers nonsense")?;
    Ok(answer.outcome)
}

/// Nobody listens (any more), or too many ask at once; it is tried again in a moment.
fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named() {
        let error = read(br#"{"protocol":2,"result":[]}"#).expect_err("is another");
        assert!(error.to_string().contains("another version (it speaks 2, this command 1)"), "{error}");
        assert!(read(b"{}").expect_err("is nothing").to_string().contains("nonsense"));
        let done = read(br#"{"protocol":1,"outcome":{"done":"x\n"}}"#).expect("is read");
        assert_eq!(done, Outcome::Done("x\n".into()));
        assert_eq!(read(br#"{"protocol":1,"outcome":"ending"}"#).expect("is read"), Outcome::Ending);
    }
    #[tokio::test]
    async fn a_line_that_is_cut_before_the_request_was_there_has_done_nothing() {
        // More than a socket holds, so that it can't be sent to who doesn't read.
        let request = vec![b' '; 4 << 20];
        let pair = || UnixStream::pair().expect("a pair");
        let (ours, theirs) = pair();
        drop(theirs);
        assert_eq!(exchange(ours, &request).await.expect("is told"), None);
        // An answer that was given before is read all the same.
        let (ours, mut theirs) = pair();
        write_frame(&mut theirs, b"ending").await.expect("answers");
        drop(theirs);
        assert_eq!(exchange(ours, &request).await.expect("is told"), Some(b"ending".to_vec()));
        // One that was there whole may have been done.
        let (ours, mut theirs) = pair();
        let asking = tokio::spawn(async move { exchange(ours, b"request").await });
        read_frame(&mut theirs, 100, "a request").await.expect("is read");
        drop(theirs);
        asking.await.expect("no panic").expect_err("it isn't known");
    }
}
