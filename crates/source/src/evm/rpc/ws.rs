//! `newHeads` over WebSocket: a hint to look, never a carrier of work (field cases E18, E19).
//!
//! A task of its own connects, subscribes, and wakes whoever waits for a head at each message, whatever it says. Heads that are
//! replayed after a reconnect, or missed, change nothing: what is fetched is decided by the heads over HTTP and by what is stored.
//!
//! **Watchdog.** A socket that says nothing for `ws_silence_ms` is compared with the head over HTTP. Where that is ahead the socket is
//! dropped, the waiter is woken and the task reconnects (with a growing pause, to the next WebSocket endpoint if there are several). A quiet chain keeps its socket.
//!
//! **Shutdown.** The task is aborted when its handle is dropped; it holds nothing that must be finished.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_core::Height;
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream};
use url::Url;

use super::backoff::Backoff;
use super::config::RpcLimits;
use super::endpoint::parse_quantity;
use super::meters::{LogGate, Meters};
use super::redact::EndpointName;
use super::transport::header_map;
use crate::{Result, SourceError};

const SUBSCRIBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}"#;

/// A WebSocket endpoint.
#[derive(Debug, Clone)]
pub struct SocketEndpoint {
    /// Its name, without secrets.
    pub name: EndpointName,
    /// Its URL: a secret.
    pub url: Url,
    /// Headers of the handshake: secrets.
    pub headers: Vec<(String, String)>,
}

/// What the task needs.
pub struct Subscription {
    /// At least one.
    pub endpoints: Vec<SocketEndpoint>,
    /// For `wss`.
    pub tls: Arc<rustls::ClientConfig>,
    /// Sizes and times.
    pub limits: RpcLimits,
    /// Woken at each hint.
    pub wake: Arc<Notify>,
    /// Set while a socket tells of heads.
    pub is_told: Arc<AtomicBool>,
    /// For jitter.
    pub seed: u64,
}

/// A background task that ends with its handle.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a socket was given up.
enum Lost {
    /// It said nothing while the chain went on.
    Silent {
        socket: Option<Height>,
        http: Height,
    },
    Failed(String),
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Subscription {
    /// Begins; `http_head` asks for the head over HTTP.
    pub fn start<F, Fut>(self, http_head: F) -> Task
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Height>> + Send,
    {
        Task(tokio::spawn(async move { self.run(http_head).await }))
    }

    async fn run<F, Fut>(self, http_head: F)
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Height>> + Send,
    {
        let mut backoff = Backoff::new(self.limits.backoff_initial_ms, self.limits.backoff_max_ms, self.seed);
        let log = LogGate::new(10_000);
        let mut failures = 0;
        for endpoint in self.endpoints.iter().cycle() {
            let mut last = None;
            let lost = self.follow(endpoint, &mut last, &http_head).await;
            self.is_told.store(false, Ordering::Release);
            // Whatever was missed is looked for now.
            self.wake.notify_one();
            let meters = Meters::new(&endpoint.name);
            match &lost {
                Lost::Silent { socket, http } => {
                    meters.reconnect("silent");
                    if let Some(held_back) = log.open() {
                        let socket = socket.map(Height::get);
                        tracing::warn!(endpoint = %endpoint.name, socket_head = socket, http_head = http.get(), held_back, "the WebSocket is silent while the chain goes on: reconnecting");
                    }
                }
                Lost::Failed(error) => {
                    meters.reconnect("failed");
                    if let Some(held_back) = log.open() {
                        tracing::warn!(endpoint = %endpoint.name, error, held_back, "the WebSocket failed: polling until it is back");
                    }
                }
            }
            // A socket that brought heads was a good one.
            failures = if last.is_some() { 1 } else { failures + 1 };
            tokio::time::sleep(backoff.pause(failures)).await;
        }
    }

    /// Follows one socket until it is lost.
    async fn follow<F, Fut>(
        &self,
        endpoint: &SocketEndpoint,
        last: &mut Option<Height>,
        http_head: &F,
    ) -> Lost
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Height>> + Send,
    {
        let mut socket = match self.connect(endpoint).await {
            Ok(socket) => socket,
            Err(error) => return Lost::Failed(endpoint.name.scrub(&error)),
        };
        tracing::debug!(endpoint = %endpoint.name, "WebSocket connected");
        let silence = Duration::from_millis(self.limits.ws_silence_ms.max(1));
        // The first hint: heads may have come before the subscription.
        self.wake.notify_one();
        let mut deadline = tokio::time::Instant::now() + silence;
        // What HTTP said at the last look: a chain that has moved since, without a word here, has left this socket behind.
        let mut http_before: Option<Height> = None;
        loop {
            match tokio::time::timeout_at(deadline, socket.next()).await {
                Ok(None) => return Lost::Failed("closed".into()),
                Ok(Some(Err(error))) => return Lost::Failed(endpoint.name.scrub(&error.to_string())),
                Ok(Some(Ok(Message::Text(text)))) => match read(text.as_str()) {
                    Said::Head(height) => {
                        *last = height.or(*last);
                        self.is_told.store(true, Ordering::Release);
                        http_before = None;
                        deadline = tokio::time::Instant::now() + silence;
                        self.wake.notify_one();
                    }
                    Said::Refused(error) | Said::Nonsense(error) => {
                        return Lost::Failed(endpoint.name.scrub(&error));
                    }
                    Said::Nothing => {}
                },
                Ok(Some(Ok(Message::Close(_)))) => return Lost::Failed("closed by the server".into()),
                // Pings are answered by the library; they say nothing of heads, and don't count as life.
                Ok(Some(Ok(_))) => {}
                Err(_) => {
                    deadline = tokio::time::Instant::now() + silence;
                    if let Ok(http) = http_head().await {
                        if (*last).or(http_before).is_some_and(|before| http > before) {
                            return Lost::Silent { socket: *last, http };
                        }
                        http_before = Some(http);
                    }
                    // Finds out about a connection that is gone without a word.
                    if let Err(error) = socket.send(Message::Ping(Vec::new().into())).await {
                        return Lost::Failed(endpoint.name.scrub(&error.to_string()));
                    }
                }
            }
        }
    }

    async fn connect(&self, endpoint: &SocketEndpoint) -> Result<Socket, String> {
        let mut request = endpoint.url.as_str().into_client_request().map_err(|error| error.to_string())?;
        let headers = header_map(&endpoint.headers).map_err(|error| error.to_string())?;
        request.headers_mut().extend(headers);
        let max = self.limits.ws_max_message_bytes;
        let config = WebSocketConfig::default()
            .max_message_size(Some(max))
            .max_frame_size(Some(max))
            .read_buffer_size(16 << 10);
        let connector = Connector::Rustls(self.tls.clone());
        let connecting = async {
            let connected = tokio_tungstenite::connect_async_tls_with_config(
                request,
                Some(config),
                true,
                Some(connector),
            )
            .await;
            let (mut socket, _) = connected.map_err(|error| error.to_string())?;
            socket.send(Message::text(SUBSCRIBE)).await.map_err(|error| error.to_string())?;
            Ok(socket)
        };
        match tokio::time::timeout(Duration::from_millis(self.limits.connect_timeout_ms), connecting).await {
            Ok(socket) => socket,
            Err(_) => Err(format!("no connection within {} ms", self.limits.connect_timeout_ms)),
        }
    }
}

/// What a message says.
enum Said {
    /// A head, of this height where it can be read.
    Head(Option<Height>),
    /// The subscription was refused.
    Refused(String),
    /// A head that no chain has: nothing that the socket says is believed.
    Nonsense(String),
    /// Nothing that matters.
    Nothing,
}

fn read(text: &str) -> Said {
    use serde_json::Value;
    // Bounded by the size of a message and the limit of nesting.
    let Ok(message) = serde_json::from_str::<Value>(text) else { return Said::Nothing };
    if message.get("method").and_then(Value::as_str) == Some("eth_subscription") {
        let number = message.pointer("/params/result/number").and_then(Value::as_str);
        return match number.and_then(parse_quantity).map(Height::believable).transpose() {
            Ok(height) => Said::Head(height),
            Err(error) => Said::Nonsense(format!("the node says {error}")),
        };
    }
    match message.get("error") {
        Some(error) if !error.is_null() => Said::Refused(format!("the subscription was refused: {error}")),
        _ => Said::Nothing,
    }
}

/// Checks that a URL can be one of a WebSocket.
pub fn check_url(url: &Url) -> Result<()> {
    match url.scheme() {
        "ws" | "wss" if url.host().is_some() => Ok(()),
        _ => Err(SourceError::Invalid(format!(
            "{} is not a ws or wss URL with a host",
            EndpointName::new(url, &[])
        ))),
    }
}
