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
use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::sync::CancellationToken;

use super::listener::{ConnectionPermit, Peer};
use super::{Shared, http};
use crate::rpc::wire as rpc;
use crate::rpc::{Account, Caller, Ending, Outgoing, Session};

/// The longest reason that a close frame can carry.
const MAX_CLOSE_REASON_BYTES: usize = 123;

/// What a connection buffers in either direction besides the message at hand.
const BUFFER_BYTES: usize = 16 << 10;

/// The most of a message that goes into one frame.
const FRAGMENT_BYTES: usize = 64 << 10;

/// How long a peer has to take the close frame.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

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
    let caller = http::caller(request.extensions().get::<Peer>());
    let upgrade = hyper::upgrade::on(&mut request);
    shared.lifetime.tasks.clone().spawn(async move {
        // The permit keeps the connection counted as long as it lives.
        let _permit = permit;
        match upgrade.await {
            Ok(upgraded) => serve(shared, upgraded, caller).await,
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

async fn serve(shared: Arc<Shared>, upgraded: Upgraded, caller: Caller<'static>) {
    let max_bytes = shared.service.limits().max_ws_message_bytes;
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(max_bytes))
        .max_frame_size(Some(max_bytes));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (sink, stream) = socket.split();
    let closed = CancellationToken::new();
    let (feed, gate) = (Arc::clone(&shared.service.feed), Arc::clone(&shared.service.gate));
    let account = Account::of(caller.address, caller.connection);
    let (session, outgoing) = Session::new(feed, gate, account, &shared.api, closed.clone());
    let (heard, hearing) = mpsc::channel(1);
    let limits = shared.service.limits();
    let writer = Writer {
        sink,
        outgoing,
        hearing,
        patience: Duration::from_millis(limits.response_timeout_ms),
        ping: Duration::from_millis(limits.ws_ping_interval_ms.max(1)),
    };
    let reading = read(Arc::clone(&shared), stream, Arc::clone(&session), caller, heard);
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
    caller: Caller<'static>,
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
                () = answer(&shared, &session, caller, &body) => {}
            }
            drop(turn);
        });
    }
}

async fn answer(shared: &Shared, session: &Arc<Session>, caller: Caller<'static>, body: &[u8]) {
    let caller = Caller { session: Some(session), ..caller };
    let Some(answer) = shared.service.answer(body, caller).await else { return };
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
    /// How long a message may take to be sent as a whole.
    patience: Duration,
    ping: Duration,
}

impl Writer {
    async fn run(mut self, stop: CancellationToken, closed: CancellationToken) {
        let mut last_heard = Instant::now();
        let mut ticks = tokio::time::interval(self.ping);
        ticks.tick().await;
        loop {
            let sent = tokio::select! {
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
                    (self.write(Message::Ping(Bytes::new())).await, None)
                }
                outgoing = self.outgoing.recv() => match outgoing {
                    Some(Outgoing::Message(message, charge)) => {
                        let began = Instant::now();
                        let sent = self.send(message).await;
                        if began.elapsed() > self.ping {
                            // It was taken, piece by piece: somebody is there.
                            last_heard = Instant::now();
                        }
                        (sent, Some(charge))
                    }
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
            let (sent, charge) = sent;
            if let Err(why) = sent {
                tracing::debug!(why, "a WebSocket ended badly");
                return;
            }
            drop(charge);
        }
    }

    /// Sends a text in fragments, so that no second copy of a large one is made. The listener cuts off a peer that takes too little of it.
    async fn send(&mut self, message: rpc::Message) -> Result<(), String> {
        let until = Instant::now() + self.patience;
        let mut left_bytes = message.len_bytes();
        let mut fragment = BytesMut::with_capacity(left_bytes.min(FRAGMENT_BYTES));
        let mut kind = Data::Text;
        for mut piece in message.into_pieces() {
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(FRAGMENT_BYTES - fragment.len()));
                left_bytes -= part.len();
                fragment.extend_from_slice(&part);
                if fragment.len() < FRAGMENT_BYTES && left_bytes > 0 {
                    continue;
                }
                let frame = Frame::message(fragment.split().freeze(), OpCode::Data(kind), left_bytes == 0);
                kind = Data::Continue;
                match timeout_at(until, self.write(Message::Frame(frame))).await {
                    Ok(written) => written?,
                    Err(_) => {
                        return Err(format!("the peer did not take a message within {:?}", self.patience));
                    }
                }
            }
        }
        Ok(())
    }

    async fn write(&mut self, message: Message) -> Result<(), String> {
        self.sink.send(message).await.map_err(|error| error.to_string())
    }

    async fn close(&mut self, code: CloseCode, reason: &str) {
        let mut end = reason.len().min(MAX_CLOSE_REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let frame = CloseFrame { code, reason: reason[..end].into() };
        // A peer that doesn't take it is gone anyway.
        let _ = timeout(CLOSE_PATIENCE, self.sink.send(Message::Close(Some(frame)))).await;
    }
}
