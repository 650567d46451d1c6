//! JSON-RPC over HTTP and WebSocket on one address.
//!
//! Why not a ready-made JSON-RPC server: `docs/adr/0003-own-json-rpc-dispatcher.md`.
//!
//! A browser's page can reach a loopback address: a `Host` that is neither an IP address nor `localhost` is refused on loopback binds (a page whose
//! name was rebound to 127.0.0.1 sends its own), cross-origin reads are refused unless the origin is allowed, and so are WebSockets of
//! another origin than the server's own.

pub(crate) mod compress;
mod drain;
pub(crate) mod guard;
mod http;
pub(crate) mod listener;
mod places;
mod proxies;
pub(crate) mod refusal;
mod under_way;
mod ws;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::guard::Guard;
pub use self::listener::ServerHandle;
use self::listener::{Lifetime, ListenerLimits};
pub use self::proxies::TrustedProxies;
use self::refusal::RPC_REFUSAL;
use crate::eth::EthApi;
use crate::rpc::RpcService;

/// Where and for whom JSON-RPC is served.
#[derive(Debug, Clone)]
pub struct RpcServerConfig {
    /// The address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names that a `Host` header may have besides IP addresses and `localhost`; `*` for any. Only looked at on loopback binds, or where it
    /// is not empty.
    pub allowed_hosts: Vec<String>,
    /// Origins that a browser's page may have; `*` for any. Empty: no cross-origin access.
    pub allowed_origins: Vec<String>,
    /// Proxies that name their callers.
    pub proxies: TrustedProxies,
}

impl Default for RpcServerConfig {
    fn default() -> Self {
        RpcServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 8545)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            proxies: TrustedProxies::default(),
        }
    }
}

/// What the transports share.
pub(crate) struct Shared {
    service: Arc<RpcService>,
    api: Arc<EthApi>,
    guard: Guard,
    lifetime: Lifetime,
}

/// Starts the JSON-RPC server. `new_head` wakes subscriptions when the value changes; without it they poll.
pub async fn serve_rpc(
    config: RpcServerConfig,
    api: EthApi,
    new_head: Option<watch::Receiver<u64>>,
) -> std::io::Result<ServerHandle> {
    let listener = TcpListener::bind(config.listen).await?;
    let api = Arc::new(api);
    let service = Arc::new(RpcService::new(Arc::clone(&api)));
    let lifetime = Lifetime::default();
    lifetime.tasks.spawn(Arc::clone(&service.feed).run(new_head, lifetime.stop.clone()));
    let loopback = listener.local_addr()?.ip().is_loopback();
    let guard = Guard::new(&config.allowed_hosts, &config.allowed_origins, loopback);
    let connections = api.limits().connections();
    let limits = ListenerLimits { name: "rpc", connections, proxies: config.proxies, refusal: RPC_REFUSAL };
    let shared = Arc::new(Shared { service, api, guard, lifetime: lifetime.clone() });
    let router = Router::new().fallback(http::handle).with_state(shared).layer(compress::layer());
    listener::spawn(listener, router, limits, lifetime)
}
