//! What a connection is told that finds no place.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// How long a peer may take to ask and to read why it is turned away, and how many may at once.
const LINGER: Duration = Duration::from_secs(1);
const MAX_LINGERING: usize = 512;

/// A body that the clients of a listener understand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    content_type: &'static str,
    body: &'static str,
}

/// For JSON-RPC.
pub(crate) const RPC_REFUSAL: Refusal = Refusal {
    content_type: "application/json",
    body: r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"too many connections: from this address, or in all"}}"#,
};

/// For REST, health and metrics.
pub(crate) const REST_REFUSAL: Refusal = Refusal {
    content_type: "application/problem+json",
    body: r#"{"type":"about:blank","title":"Too Many Requests","status":429,"code":"overloaded","detail":"too many connections: from this address, or in all"}"#,
};

/// Turns connections of one listener away.
pub(super) struct Refusing {
    answer: String,
    lingering: Semaphore,
}

impl Refusing {
    pub(super) fn new(Refusal { content_type, body }: Refusal) -> Refusing {
        let answer = format!(
            "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: {content_type}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        Refusing { answer, lingering: Semaphore::new(MAX_LINGERING) }
    }

    /// Says why, and lets the peer read it. A client takes no answer before it has asked. A socket that is closed over unread bytes takes back what was
    /// sent.
    pub(super) async fn turn_away(&self, mut stream: TcpStream) {
        let Ok(_lingers) = self.lingering.try_acquire() else {
            return tracing::debug!(
                "too many connections are turned away at once: one is closed without a word"
            );
        };
        let telling = async {
            let mut bytes = [0; 4_096];
            if stream.read(&mut bytes).await? == 0 {
                return Ok(());
            }
            stream.write_all(self.answer.as_bytes()).await?;
            stream.shutdown().await?;
            while stream.read(&mut bytes).await? > 0 {}
            std::io::Result::Ok(())
        };
        match tokio::time::timeout(LINGER, telling).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection that was turned away ended badly"),
            Err(_) => tracing::debug!("a connection that was turned away asked nothing, or did not read why"),
        }
    }
}
