//! JSON-RPC over WebSocket.
//!
//! A connection has one reader, one writer, a bounded number of requests under way, and its subscriptions. Responses come in the order
//! in which they are ready. The reader stops reading while too much is under way; the writer gives up on a peer that takes nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use super::listener::ConnectionPermit;
use super::{Shared, http};
use crate::rpc::{Ending, Outgoing, Session};

/// The longest reason that a close frame can carry.
const MAX_CLOSE_REASON_BYTES: usize = 123;

/// What a connection buffers in either direction besides the message at hand.
const BUFFER_BYTES: usize = 16 << 10;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Whether a request asks for a WebSocket.
pub(super) fn wants_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &CONNECTION, "upgrade") && has_token(headers, &UPGRADE, "websocket")
}

fn has_token(headers: &HeaderMap, name: &axum::http::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
}

/// Answers the handshake; the connection goes on in a task.
pub(super) fn upgrade(shared: Arc<Shared>, mut request: Request) -> Response {
    let headers = request.headers();
    if headers.get(SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes) != Some(b"13") {
        return http::refuse(StatusCode::BAD_REQUEST, "Sec-WebSocket-Version has to be 13");
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return http::refuse(StatusCode::BAD_REQUEST, "Sec-WebSocket-Key is missing");
    };
    let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) else {
        return http::refuse(StatusCode::BAD_REQUEST, "Sec-WebSocket-Key can't be used");
    };
    let permit = request.extensions_mut().remove::<ConnectionPermit>();
    let upgrade = hyper::upgrade::on(&mut request);
    shared.lifetime.tasks.clone().spawn(async move {
        // The permit keeps the connection counted as long as it lives.
        let _permit = permit;
        match upgrade.await {
            Ok(upgraded) => serve(shared, upgraded).await,
            Err(error) => tracing::debug!(%error, "a WebSocket handshake broke off"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    response
}

async fn serve(shared: Arc<Shared>, upgraded: Upgraded) {
    let max_bytes = shared.service.limits().max_ws_message_bytes;
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(max_bytes))
        .max_frame_size(Some(max_bytes));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (sink, stream) = socket.split();
    let closed = CancellationToken::new();
    let (session, outgoing) = Session::new(Arc::clone(&shared.service.feed), &shared.api, closed.clone());
    let (heard, hearing) = mpsc::channel(1);
    let limits = shared.service.limits();
    let writer = Writer {
        sink,
        outgoing,
        hearing,
        stall: Duration::from_millis(limits.write_stall_timeout_ms),
        ping: Duration::from_millis(limits.ws_ping_interval_ms.max(1)),
    };
    let reading = read(Arc::clone(&shared), stream, Arc::clone(&session), heard);
    tokio::select! {
        () = shared.lifetime.kill.cancelled() => {}
        () = writer.run(shared.lifetime.stop.clone(), closed.clone()) => {}
        // The reader ends with the connection; what it began is cancelled with it.
        () = reading => {}
    }
    closed.cancel();
}

/// Takes requests until the peer leaves.
async fn read(
    shared: Arc<Shared>,
    mut stream: SplitStream<Socket>,
    session: Arc<Session>,
    heard: mpsc::Sender<()>,
) {
    let under_way =
        Arc::new(Semaphore::new(shared.service.limits().max_requests_in_flight_per_connection.max(1)));
    while let Some(message) = stream.next().await {
        // A full channel already says it.
        let _ = heard.try_send(());
        let body: Bytes = match message {
            Ok(Message::Text(text)) => text.into(),
            Ok(Message::Binary(body)) => body,
            Ok(Message::Close(_)) => return,
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Err(Error::Capacity(error)) => {
                session.send(Outgoing::Close(Ending::TooLarge, error.to_string())).await;
                // The writer ends the connection.
                return std::future::pending().await;
            }
            Err(error) => {
                tracing::debug!(%error, "a WebSocket ended badly");
                return;
            }
        };
        let Ok(turn) = Arc::clone(&under_way).acquire_owned().await else { return };
        let (shared, session) = (Arc::clone(&shared), Arc::clone(&session));
        tokio::spawn(async move {
            tokio::select! {
                () = session.closed() => {}
                () = answer(&shared, &session, &body) => {}
            }
            drop(turn);
        });
    }
}

async fn answer(shared: &Shared, session: &Arc<Session>, body: &[u8]) {
    let Some(answer) = shared.service.answer(body, Some(session)).await else { return };
    if session.send(Outgoing::Message(answer.message, answer.charge)).await {
        for pending in answer.pending {
            session.start(pending);
        }
    }
}

struct Writer {
    sink: SplitSink<Socket, Message>,
    outgoing: mpsc::Receiver<Outgoing>,
    /// Something came from the peer.
    hearing: mpsc::Receiver<()>,
    stall: Duration,
    ping: Duration,
}

impl Writer {
    async fn run(mut self, stop: CancellationToken, closed: CancellationToken) {
        let mut last_heard = Instant::now();
        let mut ticks = tokio::time::interval(self.ping);
        ticks.tick().await;
        loop {
            let message = tokio::select! {
                () = closed.cancelled() => return,
                () = stop.cancelled() => {
                    return self.close(CloseCode::Away, "the server stops").await;
                }
                Some(()) = self.hearing.recv() => {
                    last_heard = Instant::now();
                    continue;
                }
                _ = ticks.tick() => {
                    if last_heard.elapsed() > self.ping * 2 {
                        return self.close(CloseCode::Policy, "nothing was heard from the peer").await;
                    }
                    (Message::Ping(Bytes::new()), None)
                }
                outgoing = self.outgoing.recv() => match outgoing {
                    Some(Outgoing::Message(message, charge)) => match Utf8Bytes::try_from(message.into_bytes()) {
                        Ok(text) => (Message::Text(text), Some(charge)),
                        Err(error) => {
                            tracing::error!(%error, "a message was not text");
                            return self.close(CloseCode::Error, "the server failed").await;
                        }
                    },
                    Some(Outgoing::Close(ending, reason)) => {
                        let code = match ending {
                            Ending::Behind => CloseCode::Again,
                            Ending::TooLarge => CloseCode::Size,
                        };
                        return self.close(code, &reason).await;
                    }
                    None => return,
                },
            };
            let (message, charge) = message;
            match tokio::time::timeout(self.stall, self.sink.send(message)).await {
                Ok(Ok(())) => drop(charge),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a WebSocket ended badly");
                    return;
                }
                Err(_) => {
                    tracing::debug!("a WebSocket peer takes nothing and is cut off");
                    return;
                }
            }
        }
    }

    async fn close(&mut self, code: CloseCode, reason: &str) {
        let mut end = reason.len().min(MAX_CLOSE_REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let frame = CloseFrame { code, reason: reason[..end].into() };
        // A peer that doesn't take it is gone anyway.
        let _ = tokio::time::timeout(
            self.stall.min(Duration::from_secs(2)),
            self.sink.send(Message::Close(Some(frame))),
        )
        .await;
    }
}
