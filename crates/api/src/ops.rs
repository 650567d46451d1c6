//! Health and metrics for those who run it; REST beside them, or on an address of its own.
//!
//! | path | answer |
//! | --- | --- |
//! | `/` | a short page that says what is here |
//! | `/livez` | 200 while the process answers |
//! | `/readyz` | 200 or 503 with a [`ReadinessReport`](crate::health::ReadinessReport) as JSON |
//! | `/metrics` | Prometheus text |

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::health::Readiness;
use crate::limits::ConnectionLimits;
use crate::server::guard::{Guard, REST_CORS};
use crate::server::listener::{self, Lifetime, ListenerLimits, Peer, ServerHandle};
use crate::server::refusal::REST_REFUSAL;
use crate::server::{TrustedProxies, compress};

/// The paths for which connections are reserved.
const HEALTH: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Renders the metrics in Prometheus' text format.
pub type MetricsText = Arc<dyn Fn() -> String + Send + Sync>;

/// Where and what.
#[derive(Clone)]
pub struct OpsConfig {
    /// The address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where JSON-RPC is, for the page.
    pub rpc_url: Option<String>,
    /// More routes on this address (REST, pages). Their paths must not be those above.
    pub more: Router,
    /// The limits of its connections.
    pub connections: ConnectionLimits,
    /// Names that a `Host` header may have besides IP addresses and `localhost`; `*` for any. Only looked at on loopback binds, or where it
    /// is not empty.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages that may read what is in `more`; `*` for any. Health and metrics are for none.
    pub allowed_origins: Vec<String>,
    /// Proxies that name their callers.
    pub proxies: TrustedProxies,
}

impl Default for OpsConfig {
    fn default() -> Self {
        OpsConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            rpc_url: None,
            more: Router::new(),
            connections: ConnectionLimits::default(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            proxies: TrustedProxies::default(),
        }
    }
}

struct Ops {
    readiness: Arc<dyn Readiness>,
    metrics: MetricsText,
    rpc_url: Option<String>,
}

/// Starts the operators' server: health, metrics, and `more` beside them.
pub async fn serve_ops(
    config: OpsConfig,
    readiness: Arc<dyn Readiness>,
    metrics: MetricsText,
) -> std::io::Result<ServerHandle> {
    let ops = Ops { readiness, metrics, rpc_url: config.rpc_url.clone() };
    let health = Router::new()
        .route("/", get(page))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Arc::new(ops));
    spawn("ops", config, health).await
}

/// Starts a server of `more` alone, where health and metrics are on another address.
pub async fn serve_rest(config: OpsConfig) -> std::io::Result<ServerHandle> {
    let connections = ConnectionLimits { reserved_connections: 0, ..config.connections };
    spawn("rest", OpsConfig { connections, ..config }, Router::new()).await
}

async fn spawn(name: &'static str, config: OpsConfig, health: Router) -> std::io::Result<ServerHandle> {
    let listener = TcpListener::bind(config.listen).await?;
    let loopback = listener.local_addr()?.ip().is_loopback();
    let guard = Arc::new(Guard::new(&config.allowed_hosts, &config.allowed_origins, loopback));
    let rest = config.more.layer(middleware::from_fn_with_state(Arc::clone(&guard), for_origins));
    let router = health.merge(rest).layer(middleware::from_fn_with_state(guard, only_our_host));
    let router = router.layer(compress::layer());
    let limits = ListenerLimits {
        name,
        connections: config.connections,
        proxies: config.proxies,
        refusal: REST_REFUSAL,
    };
    listener::spawn(listener, router, limits, Lifetime::default())
}

async fn only_our_host(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let reserved = request.extensions().get::<Peer>().is_some_and(|peer| peer.reserved);
    if reserved && !HEALTH.contains(&request.uri().path()) {
        let why = "all connections are taken; those that are left are for health and metrics\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], why).into_response();
    }
    if guard.host_is_ours(request.headers(), request.uri()) {
        return next.run(request).await;
    }
    let why = "this server doesn't answer to that Host; allow it with `serve.allowed_hosts`\n";
    (StatusCode::FORBIDDEN, why).into_response()
}

/// Answers preflights, and lets allowed origins read.
async fn for_origins(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let origin = guard.origin(request.headers());
    let mut response = match *request.method() {
        Method::OPTIONS => (StatusCode::NO_CONTENT, [(ALLOW, "GET, HEAD, OPTIONS")]).into_response(),
        _ => next.run(request).await,
    };
    guard.allow(response.headers_mut(), origin, &REST_CORS);
    response
}

async fn livez() -> &'static str {
    "alive\n"
}

async fn readyz(State(ops): State<Arc<Ops>>) -> Response {
    let report = ops.readiness.report();
    let code = if report.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(report)).into_response()
}

async fn metrics_text(State(ops): State<Arc<Ops>>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (ops.metrics)()).into_response()
}

async fn page(State(ops): State<Arc<Ops>>) -> Html<String> {
    let report = ops.readiness.report();
    let tip = report.tip.map_or("none yet".to_owned(), |tip| tip.to_string());
    let rpc = ops.rpc_url.as_deref().map_or(String::new(), |url| {
        format!("<li>JSON-RPC over HTTP and WebSocket: <code>{}</code></li>", escape(url))
    });
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>cairn</title>\
         <h1>cairn {version}</h1><p>Newest block: {tip}. {reason}.</p><ul>{rpc}\
         <li><a href=\"/livez\">/livez</a>: the process answers</li>\
         <li><a href=\"/readyz\">/readyz</a>: whether the data is fresh, and why not</li>\
         <li><a href=\"/metrics\">/metrics</a>: for Prometheus</li></ul>",
        version = env!("CARGO_PKG_VERSION"),
        reason = escape(&report.reason),
    ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
