//! How operators' commands reach the process that holds SQLite's files, where one process writes: a Unix domain socket in the data directory.
//!
//! The process that runs (`server`) listens on it as long as it holds the lock, and does what it is asked with its own stores. A command that finds the lock held
//! (`client`) sends one request, an [`Operation`] and nothing else, and prints the answer: one frame each way, a length of four bytes and JSON. Only the user of the
//! process, and root, may ask; no setting, URL or key crosses. Whatever is asked is done to its end, whether or not somebody still listens.

pub mod client;
mod place;
pub mod server;

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::operators::Operation;

/// What both sides speak. Another number is refused by either, by name.
const PROTOCOL: u32 = 1;
/// The longest request: some ten thousand numbers of errors.
const MAX_REQUEST_BYTES: usize = 256 << 10;
/// The longest answer; a longer one is cut.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// What a command sends.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    protocol: u32,
    operation: Operation,
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    protocol: u32,
    outcome: Outcome,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// It is done: what there is to say.
    Done(String),
    /// It failed, or is refused: why.
    Failed(String),
    /// The process ends and has not begun it.
    Ending,
}

/// What every version has.
#[derive(Debug, Deserialize)]
struct Spoken {
    protocol: u32,
}

/// Reads one frame; `what` it is called in errors.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    max_bytes: usize,
    what: &str,
) -> io::Result<Vec<u8>> {
    let len = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
    if len > max_bytes {
        let message = format!("{what} of {len} bytes is longer than {max_bytes}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    // Memory for what comes, not for what is announced.
    let mut bytes = Vec::new();
    (&mut *stream).take(len as u64).read_to_end(&mut bytes).await?;
    match bytes.len() == len {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes one frame.
async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut frame = Vec::with_capacity(4 + bytes.len());
    frame.extend_from_slice(&len.to_be_bytes());
    frame.extend_from_slice(bytes);
    stream.write_all(&frame).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_bounded_and_whole() {
        let mut frame = Vec::new();
        write_frame(&mut frame, b"four").await.expect("writes");
        assert_eq!(frame, b"\0\0\0\x04four");
        assert_eq!(read_frame(&mut frame.as_slice(), 4, "a request").await.expect("reads"), b"four");
        let long = read_frame(&mut frame.as_slice(), 3, "a request").await.expect_err("is too long");
        assert_eq!(long.to_string(), "a request of 4 bytes is longer than 3");
        for cut in 0..frame.len() {
            let error = read_frame(&mut &frame[..cut], 4, "a request").await.expect_err("is cut");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
    }

    #[test]
    fn the_words_of_the_protocol_stay() {
        let request =
            |operation| serde_json::to_string(&Request { protocol: PROTOCOL, operation }).expect("is JSON");
        let worker = || "w".to_owned();
        for (operation, expected) in [
            (Operation::PauseWorker { worker: worker() }, r#"{"pause_worker":{"worker":"w"}}"#),
            (
                Operation::RetryLease { id: crate::cli::LeaseId::Raw(7) },
                r#"{"retry_lease":{"id":{"raw":7}}}"#,
            ),
            (Operation::RetryError { id: 3, yes: true }, r#"{"retry_error":{"id":3,"yes":true}}"#),
            (
                Operation::Reindex { worker: worker(), from: Some(1), to: None },
                r#"{"reindex":{"worker":"w","from":1,"to":null}}"#,
            ),
        ] {
            let expected = format!(r#"{{"protocol":1,"operation":{expected}}}"#);
            assert_eq!(request(operation.clone()), expected);
            let read: Request = serde_json::from_str(&expected).expect("is read");
            assert_eq!(read.operation, operation);
        }
    }
}
