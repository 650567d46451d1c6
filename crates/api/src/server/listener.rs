//! Accepts connections and serves a router on them, with the limits that a stranger meets first.
//!
//! * HTTP/1.1, and HTTP/2 for a client that begins with it ([RFC 9113, 3.3](https://www.rfc-editor.org/rfc/rfc9113#section-3.3)).
//! * At most `max_connections`, of which a client address has a share. A connection beyond the share is turned away; one beyond the
//!   number waits for a place, a second at most. A trusted proxy has no share, and each of its requests is that of the caller that it names. Places may be reserved for what has to be reachable then ([`Peer::reserved`]).
//! * The first byte and the headers have to come within time limits. A connection without a request under way is closed after the same time.
//! * A peer has to take its answers at a pace ([`drain`]), and each within a time limit ([`Deadline`]).
//! * Shutdown: accepting stops, requests under way may finish within the grace time, the rest is cut off.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use metrics::gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::drain::{Drained, Pace};
use super::places::{Place, Places};
use super::proxies::TrustedProxies;
use super::refusal::{Refusal, Refusing};
use super::under_way::UnderWay;
use crate::limits::ConnectionLimits;
use crate::metered::CONNECTIONS;

/// The most that is buffered of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Requests at once on one HTTP/2 connection: clients send so many before they have read a smaller number (RFC 9113, 6.5.2).
const MAX_STREAMS: u32 = 128;
/// What is buffered of each answer.
const SEND_BUFFER_BYTES: usize = 16 << 10;
/// What may come of all bodies of a connection before they are read; of one, the protocol's 64 KiB.
const RECEIVE_BUFFER_BYTES: u32 = 1 << 20;
/// The pause after an accept that failed (no file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a connection with a reserved place may take to say what it wants.
const RESERVED_PATIENCE: Duration = Duration::from_secs(1);

/// What a listener is bounded by.
#[derive(Debug, Clone)]
pub(crate) struct ListenerLimits {
    /// The listener's name in metrics.
    pub name: &'static str,
    pub connections: ConnectionLimits,
    /// Their connections don't count to an address, and their requests are those of the callers that they name.
    pub proxies: TrustedProxies,
    /// What a connection is told that finds no place.
    pub refusal: Refusal,
}

/// What every request of a connection carries: its place among the connections, for those that outlive HTTP.
#[derive(Clone)]
pub(crate) struct ConnectionPermit(#[allow(dead_code, reason = "held for its drop")] Arc<Place>);

/// A request's connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Where it comes from.
    pub address: IpAddr,
    /// Its number on this listener.
    pub connection: u64,
    /// It has one of the reserved places.
    pub reserved: bool,
    /// Cancelling this cuts it off.
    pub cut: CancellationToken,
}

/// Cuts a connection off unless it is dropped in time: the answer was taken.
pub(crate) struct Deadline(#[allow(dead_code, reason = "held for its drop")] DropGuard);

impl Deadline {
    /// Begins now.
    pub(crate) fn start(peer: &Peer, limit: Duration) -> Self {
        let (cut, taken) = (peer.cut.clone(), CancellationToken::new());
        let guard = Deadline(taken.clone().drop_guard());
        tokio::spawn(async move {
            if tokio::time::timeout(limit, taken.cancelled()).await.is_err() {
                tracing::debug!(?limit, "a peer did not take its answer in time and is cut off");
                cut.cancel();
            }
        });
        guard
    }
}

/// Tokens and tasks of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lifetime {
    /// Stop accepting, finish what is under way.
    pub stop: CancellationToken,
    /// Cut off.
    pub kill: CancellationToken,
    /// Everything that has to end.
    pub tasks: TaskTracker,
}

/// A running server.
///
/// Dropping the handle leaves it running; [`ServerHandle::shutdown`] stops it.
#[derive(Debug)]
pub struct ServerHandle {
    local_addr: SocketAddr,
    lifetime: Lifetime,
    accepting: JoinHandle<()>,
}

impl ServerHandle {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops it: no new connection is accepted, what is under way may finish within the grace time, then it is cut off.
    pub async fn shutdown(self) {
        self.lifetime.stop.cancel();
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, address = %self.local_addr, "a server ended badly");
        }
    }

    /// Waits until it has ended, which it does only when it is stopped through [`ServerHandle::stopper`].
    pub async fn ended(self) {
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, address = %self.local_addr, "a server ended badly");
        }
    }

    /// Cancelling this begins the shutdown.
    pub fn stopper(&self) -> CancellationToken {
        self.lifetime.stop.clone()
    }
}

/// Serves `router` on `listener` in a task.
pub(crate) fn spawn(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    lifetime: Lifetime,
) -> std::io::Result<ServerHandle> {
    let local_addr = listener.local_addr()?;
    let accepting = tokio::spawn(accept(listener, router, limits, lifetime.clone()));
    Ok(ServerHandle { local_addr, lifetime, accepting })
}

async fn accept(listener: TcpListener, router: Router, limits: ListenerLimits, lifetime: Lifetime) {
    let places = Arc::new(Places::new(limits.connections));
    let service = TowerToHyperService::new(router);
    let refusing = Arc::new(Refusing::new(limits.refusal));
    let mut connections: u64 = 0;
    loop {
        let accepted = tokio::select! {
            () = lifetime.stop.cancelled() => break,
            accepted = next(&listener) => accepted,
        };
        let Some((stream, address)) = accepted else { continue };
        connections += 1;
        let number = connections;
        let (places, service, own) = (places.clone(), service.clone(), lifetime.clone());
        let refusing = refusing.clone();
        let proxies = limits.proxies.trusts(address).then(|| limits.proxies.clone());
        lifetime.tasks.spawn(async move {
            let place = tokio::select! {
                () = own.stop.cancelled() => return,
                place = places.find(address, proxies.is_some()) => place,
            };
            let Some(place) = place else { return refusing.turn_away(stream).await };
            let cut = CancellationToken::new();
            let peer = Peer { address, connection: number, reserved: place.reserved, cut };
            gauge!(CONNECTIONS, "listener" => limits.name).increment(1.0);
            connection(stream, service, peer, proxies, place, limits.connections, own).await;
            gauge!(CONNECTIONS, "listener" => limits.name).decrement(1.0);
        });
    }
    drop(listener);
    lifetime.tasks.close();
    let grace = Duration::from_millis(limits.connections.shutdown_grace_ms);
    if tokio::time::timeout(grace, lifetime.tasks.wait()).await.is_err() {
        tracing::info!("connections that did not end in time are cut off");
        lifetime.kill.cancel();
        lifetime.tasks.wait().await;
    }
}

/// Serves one connection to its end. `proxies` where it is one of theirs.
async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    peer: Peer,
    proxies: Option<TrustedProxies>,
    place: Place,
    limits: ConnectionLimits,
    lifetime: Lifetime,
) {
    let Lifetime { stop, kill, .. } = lifetime;
    let mut head = Duration::from_millis(limits.header_timeout_ms);
    if peer.reserved {
        head = head.min(RESERVED_PATIENCE);
    }
    let first_byte = Duration::from_millis(limits.first_byte_timeout_ms).min(head);
    let mut byte = [0];
    let spoken = tokio::select! {
        () = stop.cancelled() => return,
        spoken = tokio::time::timeout(first_byte, stream.peek(&mut byte)) => spoken,
    };
    match spoken {
        Ok(Ok(bytes)) if bytes > 0 => {}
        Ok(Ok(_)) => return,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection ended badly"),
        Err(_) => return tracing::debug!("a connection on which nothing came is closed"),
    }
    let pace = Pace {
        stall: Duration::from_millis(limits.write_stall_timeout_ms),
        min_bytes_per_s: limits.min_drain_bytes_per_s,
    };
    let (own, cut) = (peer.clone(), peer.cut.clone());
    let keep_alive = !peer.reserved;
    let permit = ConnectionPermit(Arc::new(place));
    let under_way = UnderWay::default();
    let idle = under_way.idle_for(head);
    let service = service_fn(move |mut request: Request<Incoming>| {
        name_host(&mut request);
        request.extensions_mut().insert(permit.clone());
        let caller = match &proxies {
            Some(proxies) => proxies.caller(&peer, request.headers()),
            None => peer.clone(),
        };
        request.extensions_mut().insert(caller);
        under_way.until_sent(service.call(request.map(Body::new)))
    });
    let builder = builder(head, keep_alive);
    let connection =
        builder.serve_connection_with_upgrades(TokioIo::new(Drained::new(stream, pace)), service);
    let (mut connection, mut idle) = (pin!(connection), pin!(idle));
    let (mut stopping, mut goodbye) = (false, None);
    loop {
        tokio::select! {
            () = kill.cancelled() => return,
            () = cut.cancelled() => return,
            () = stop.cancelled(), if !stopping => {
                // Finishes the request under way, and closes an idle connection.
                connection.as_mut().graceful_shutdown();
                stopping = true;
            }
            () = idle.as_mut(), if !stopping => {
                connection.as_mut().graceful_shutdown();
                stopping = true;
                // HTTP/2 waits for the peer to confirm it.
                goodbye = Some(Deadline::start(&own, head));
            }
            ended = connection.as_mut() => {
                drop(goodbye);
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended badly");
                }
                return;
            }
        }
    }
}

/// How a connection is served: a reserved place is for one request, so it has HTTP/1.1 alone.
fn builder(head: Duration, keep_alive: bool) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .keep_alive(keep_alive)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(u32::from(u16::MAX))
        .initial_connection_window_size(RECEIVE_BUFFER_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES as u32);
    if keep_alive { builder } else { builder.http1_only() }
}

/// HTTP/2 names the host in `:authority` ([RFC 9113, 8.3.1](https://www.rfc-editor.org/rfc/rfc9113#section-8.3.1)); what follows reads `Host`.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().and_then(|name| HeaderValue::from_str(name.as_str()).ok());
    if let Some(authority) = authority.filter(|_| !request.headers().contains_key(HOST)) {
        request.headers_mut().insert(HOST, authority);
    }
}

async fn next(listener: &TcpListener) -> Option<(TcpStream, IpAddr)> {
    match listener.accept().await {
        Ok((stream, peer)) => {
            // Answers go out at once; where that can't be set they are merely slower.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY could not be set");
            }
            Some((stream, peer.ip()))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}
