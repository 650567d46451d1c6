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

/// Lets the process do it that holds the stores; what it says. `None`: nobody listens there, or who does ends and has done nothing.
pub async fn ask(config: &Config, operation: &Operation) -> anyhow::Result<Option<String>> {
    let Some(socket) = place::socket(config) else { return Ok(None) };
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
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
            "a running cairn holds the archive, and takes requests from its own user alone ({})",
            socket.display()
        ),
        Err(error) => return Err(error).with_context(|| format!("can't ask at {}", socket.display())),
    };
    let answer = match timeout(ANSWER_WITHIN, exchange(stream, &request)).await {
        Ok(answer) => answer.with_context(|| {
            format!(
                "the running cairn ended, or cut the line, before it answered; {UNKNOWN} ({})",
                socket.display()
            )
        })?,
        Err(_) => bail!("the running cairn did not answer within {} s; {UNKNOWN}", ANSWER_WITHIN.as_secs()),
    };
    match read(&answer)? {
        Outcome::Done(text) => Ok(Some(text)),
        Outcome::Failed(text) => bail!(text),
        Outcome::Ending => Ok(None),
    }
}

/// What to do where nobody said what became of it.
const UNKNOWN: &str = "whether it was done is shown by `cairn workers list`, `leases list` or `errors list`, and asking again does no harm";

async fn exchange(mut stream: UnixStream, request: &[u8]) -> io::Result<Vec<u8>> {
    write_frame(&mut stream, request).await?;
    read_frame(&mut stream, MAX_ANSWER_BYTES, "an answer").await
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
}
