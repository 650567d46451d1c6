//! Accepts connections and serves a router on them, with the limits that a stranger meets first.
//!
//! * At most `max_connections`; further ones wait in the listen queue.
//! * Headers have to come within a time limit, which also ends idle connections; a peer that takes no byte of an answer is cut off.
//! * Shutdown: accepting stops, requests under way may finish within the grace time, the rest is cut off.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metered::CONNECTIONS;

/// The most that is buffered of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The pause after an accept that failed (no file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a listener is bounded by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenerLimits {
    /// The listener's name in metrics.
    pub name: &'static str,
    pub max_connections: usize,
    pub header_timeout_ms: u64,
    pub write_stall_timeout_ms: u64,
    pub shutdown_grace_ms: u64,
}

/// What every request of a connection carries: its place among the connections, for those that outlive HTTP.
#[derive(Clone)]
pub(crate) struct ConnectionPermit(
    #[allow(dead_code, reason = "held for its drop")] Arc<OwnedSemaphorePermit>,
);

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
    let places = Arc::new(Semaphore::new(limits.max_connections.max(1)));
    let service = TowerToHyperService::new(router);
    loop {
        // A place first, so that who comes too many waits in the kernel's queue.
        let accepted = tokio::select! {
            () = lifetime.stop.cancelled() => break,
            accepted = next(&listener, &places) => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        let permit = ConnectionPermit(permit);
        let service = service.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(permit.clone());
            service.call(request.map(Body::new))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(limits.header_timeout_ms))
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(cut_off_when_stalled(stream, limits)), service)
            .with_upgrades();
        let Lifetime { stop, kill, .. } = lifetime.clone();
        lifetime.tasks.spawn(async move {
            gauge!(CONNECTIONS, "listener" => limits.name).increment(1.0);
            let mut connection = pin!(connection);
            let mut stopping = false;
            loop {
                tokio::select! {
                    () = kill.cancelled() => break,
                    () = stop.cancelled(), if !stopping => {
                        // Finishes the request under way, and closes an idle connection.
                        connection.as_mut().graceful_shutdown();
                        stopping = true;
                    }
                    ended = connection.as_mut() => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection ended badly");
                        }
                        break;
                    }
                }
            }
            gauge!(CONNECTIONS, "listener" => limits.name).decrement(1.0);
        });
    }
    drop(listener);
    lifetime.tasks.close();
    let grace = Duration::from_millis(limits.shutdown_grace_ms);
    if tokio::time::timeout(grace, lifetime.tasks.wait()).await.is_err() {
        tracing::info!("connections that did not end in time are cut off");
        lifetime.kill.cancel();
        lifetime.tasks.wait().await;
    }
}

async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, Arc<OwnedSemaphorePermit>)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers go out at once; where that can't be set they are merely slower.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY could not be set");
            }
            Some((stream, Arc::new(place)))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn cut_off_when_stalled(stream: TcpStream, limits: ListenerLimits) -> Pin<Box<TimeoutStream<TcpStream>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(Duration::from_millis(limits.write_stall_timeout_ms)));
    Box::pin(stream)
}
