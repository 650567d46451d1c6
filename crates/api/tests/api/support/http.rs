//! A raw HTTP client and a WebSocket client.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_api::{EthApi, RpcServerConfig, ServerHandle, serve_rpc};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Longer than anything here should take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a free port, and what wakes its subscriptions.
pub async fn serve(api: EthApi, config: RpcServerConfig) -> (ServerHandle, watch::Sender<u64>) {
    let (wake, woken) = watch::channel(0);
    let config = RpcServerConfig { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..config };
    (serve_rpc(config, api, Some(woken)).await.expect("a free port"), wake)
}

/// An HTTP response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Reads one response from a connection.
pub async fn read_reply(stream: &mut TcpStream) -> Option<Reply> {
    let mut got = Vec::new();
    let head_end = loop {
        if let Some(at) = got.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if tokio::time::timeout(PATIENCE, stream.read_buf(&mut got)).await.expect("in time").unwrap_or(0) == 0
        {
            return None;
        }
    };
    let head = String::from_utf8(got[..head_end].to_vec()).expect("a head is text");
    let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
    let mut reply = Reply { status, head, body: got[head_end..].to_vec() };
    let length = reply.header("content-length").map_or(0, |length| length.parse().expect("a number"));
    while reply.body.len() < length {
        if tokio::time::timeout(PATIENCE, stream.read_buf(&mut reply.body))
            .await
            .expect("in time")
            .expect("read")
            == 0
        {
            panic!("the body broke off at {} of {length}", reply.body.len());
        }
    }
    Some(reply)
}

/// Sends raw bytes on a new connection and reads one response.
pub async fn raw(address: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.expect("connect");
    stream.write_all(bytes).await.expect("write");
    read_reply(&mut stream).await.expect("a response")
}

/// A POST's bytes.
pub fn post_bytes(body: &str, more_headers: &str) -> Vec<u8> {
    format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{more_headers}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// POSTs a body.
pub async fn post(address: SocketAddr, body: &str) -> Reply {
    raw(address, &post_bytes(body, "")).await
}

/// A request's text.
pub fn request(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// A WebSocket client.
pub struct Ws(pub WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Ws {
    pub async fn connect(address: SocketAddr) -> Ws {
        let (stream, _) =
            tokio_tungstenite::connect_async(format!("ws://{address}/")).await.expect("a WebSocket");
        Ws(stream)
    }

    pub async fn send(&mut self, text: String) {
        self.0.send(Message::text(text)).await.expect("send");
    }

    /// The next message: text as JSON, or the close frame.
    pub async fn next(&mut self) -> Result<Value, Option<CloseFrame>> {
        loop {
            match tokio::time::timeout(PATIENCE, self.0.next()).await.expect("in time") {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).expect("json")),
                Some(Ok(Message::Close(frame))) => return Err(frame),
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Asks and takes the response, which has to be the next message.
    pub async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(request(1, method, params)).await;
        self.next().await.expect("a response")
    }

    /// Subscribes and returns the id.
    pub async fn subscribe(&mut self, params: Value) -> String {
        let response = self.ask("eth_subscribe", params).await;
        response["result"].as_str().unwrap_or_else(|| panic!("{response}")).to_owned()
    }

    /// The next notification's `(subscription, result)`.
    pub async fn notification(&mut self) -> (String, Value) {
        let message = self.next().await.expect("a notification");
        assert_eq!(
            (&message["jsonrpc"], &message["method"]),
            (&json!("2.0"), &json!("eth_subscription")),
            "{message}"
        );
        let params = &message["params"];
        (params["subscription"].as_str().expect("an id").to_owned(), params["result"].clone())
    }

    /// Nothing but pings comes for a while.
    pub async fn quiet(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(150), self.next()).await;
        assert!(next.is_err(), "{next:?}");
    }
}
