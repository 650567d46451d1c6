//! Health and metrics for those who run it, on an address of their own.
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
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;

use crate::health::Readiness;
use crate::server::guard::Guard;
use crate::server::listener::{self, Lifetime, ListenerLimits, ServerHandle};

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
}

impl Default for OpsConfig {
    fn default() -> Self {
        OpsConfig { listen: SocketAddr::from(([127, 0, 0, 1], 8080)), rpc_url: None, more: Router::new() }
    }
}

struct Ops {
    readiness: Arc<dyn Readiness>,
    metrics: MetricsText,
    rpc_url: Option<String>,
    guard: Guard,
}

/// Starts the operators' server.
pub async fn serve_ops(
    config: OpsConfig,
    readiness: Arc<dyn Readiness>,
    metrics: MetricsText,
) -> std::io::Result<ServerHandle> {
    let listener = TcpListener::bind(config.listen).await?;
    let guard = Guard::local(listener.local_addr()?.ip().is_loopback());
    let ops = Arc::new(Ops { readiness, metrics, rpc_url: config.rpc_url, guard });
    let router = Router::new()
        .route("/", get(page))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Arc::clone(&ops))
        .merge(config.more)
        .layer(middleware::from_fn_with_state(ops, only_our_host));
    let limits = ListenerLimits {
        name: "ops",
        max_connections: 128,
        header_timeout_ms: 30_000,
        write_stall_timeout_ms: 20_000,
        shutdown_grace_ms: 2_000,
    };
    listener::spawn(listener, router, limits, Lifetime::default())
}

async fn only_our_host(State(ops): State<Arc<Ops>>, request: Request, next: Next) -> Response {
    if ops.guard.host_is_ours(request.headers(), request.uri()) {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "this server doesn't answer to that Host\n").into_response()
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
