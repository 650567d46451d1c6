//! The servers over one archive: JSON-RPC, REST, and health and metrics.
//!
//! They start before the process takes any block and end after it; requests under way get their answers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use cairn_api::eth::SyncState;
use cairn_api::health::{HealthState, Readiness, ReadinessLimits};
use cairn_api::rest::{self, RestState};
use cairn_api::{EthApi, OpsConfig, RpcServerConfig, ServerHandle, serve_ops, serve_rest, serve_rpc};
use cairn_core::{Height, SystemClock};
use cairn_pipeline::derive::status::DeriveStatus;
use cairn_pipeline::status::IngestStatus;
use cairn_store::RawReader;
use cairn_store::derived::{Catalog, DerivedReader};
use tokio::sync::watch::{Receiver, Sender};
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;
use crate::config::Config;
use crate::derive;
use crate::supervise::supervise;
use crate::telemetry;
use crate::upstream::HttpUpstream;
use crate::watch::{self, Tables};

/// What is served where, a line each.
#[derive(Debug, Clone)]
pub struct Served {
    /// Where JSON-RPC is; `None` where this process doesn't serve it.
    pub rpc_url: Option<String>,
    /// Where REST is, where there are answers.
    pub rest_url: String,
    /// Where health and metrics are.
    pub ops_url: String,
    /// Whether this process answers at all.
    pub answers: bool,
    /// The chain.
    pub chain: Chain,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rest, ops) = (&self.rest_url, &self.ops_url);
        match &self.rpc_url {
            Some(rpc) => writeln!(f, "JSON-RPC   {rpc} (HTTP and WebSocket)")?,
            None if self.answers => writeln!(
                f,
                "JSON-RPC   none: its methods are those of EVM chains, and this is {}",
                self.chain.name()
            )?,
            None => {}
        }
        if self.answers {
            writeln!(f, "REST       {rest}/v1/status   {rest}/v1/docs")?;
        }
        write!(f, "health     {ops}/readyz   metrics {ops}/metrics")
    }
}

/// The servers over one archive.
pub struct Servers {
    rpc: Option<ServerHandle>,
    /// REST, where health and metrics have an address of their own.
    rest: Option<ServerHandle>,
    ops: ServerHandle,
    watcher: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
    /// What is where.
    pub served: Served,
}

/// What the servers answer from.
pub struct Parts {
    /// The raw store, for answers.
    pub reader: Arc<dyn RawReader>,
    /// The raw store, for health and for who waits for new heads: answers may use up their own connections.
    pub watched: Arc<dyn RawReader>,
    /// The derived tables, where there are any here.
    pub app: Option<Arc<dyn DerivedReader>>,
    /// The ingester's status, where there is one in this process.
    pub status: Option<Receiver<IngestStatus>>,
    /// What derived work says of itself, where it is done in this process.
    pub derived: Option<Receiver<DeriveStatus>>,
    /// Is told of each new head.
    pub wake: Sender<u64>,
    /// Hears of it.
    pub new_head: Receiver<u64>,
    /// Whether to serve REST and, of an EVM chain, JSON-RPC, beside health and metrics.
    pub answers: bool,
}

impl Servers {
    /// Starts them.
    pub async fn start(config: &Config, parts: Parts, stop: CancellationToken) -> anyhow::Result<Servers> {
        let serve = &config.serve;
        let chain = config.chain();
        let rpc = match parts.answers && chain.has_json_rpc() {
            true => Some(start_rpc(config, &parts).await?),
            false => None,
        };
        let rpc_url = rpc.as_ref().map(|rpc| format!("http://{}", rpc.local_addr()));
        let limits = ReadinessLimits {
            max_lag_blocks: Some(config.health.max_lag_heights),
            max_idle_ms: Some(config.health.max_age_s.saturating_mul(1_000)),
            max_tip_age_ms: None,
        };
        let health =
            Arc::new(HealthState::new(limits, Arc::new(SystemClock)).up_to(config.ingest.to.map(Height)));
        let readiness: Arc<dyn Readiness> = health.clone();
        let Parts { reader, watched, app, status, derived, wake, new_head, answers } = parts;
        let tables = app.clone();
        let databases = telemetry::Databases::of(config, watched.clone(), app.clone());
        let mut ops_config = OpsConfig {
            listen: serve.listen,
            rpc_url: rpc_url.clone(),
            connections: serve.connections,
            allowed_hosts: serve.allowed_hosts.clone(),
            allowed_origins: serve.allowed_origins.clone(),
            proxies: serve.proxies()?,
            ..OpsConfig::default()
        };
        if answers {
            let catalog: Catalog = derive::catalog(config)?;
            let wrapped = derive::wrapped_tokens(config)?;
            let rest = RestState {
                chain: chain.rest(),
                raw: reader,
                app,
                catalog,
                upstreams: chain.upstreams(),
                workers: derive::uses(config),
                halts: watch::halts_of(status.clone(), derived.clone()),
                wrapped_tokens: Arc::new(move |chain_id| derive::wrapped_names(wrapped(chain_id))),
                obstacle: watch::obstacle_of(status.clone()),
                search_term: cairn_explorer::processors::evm::token_metadata::search_term,
                limits: serve.rest.clone(),
                new_head: Some(new_head),
                stop: stop.clone(),
            };
            ops_config.more = rest::router(rest).context("the REST document can't be made; this is a bug")?;
        }
        let busy = |listen: SocketAddr, flag: &str| {
            format!("can't listen on {listen}; choose another address with {flag}")
        };
        let (mut rest, mut flag) = (None, "--listen");
        if let Some(health) = serve.health_listen {
            if answers {
                let started = serve_rest(ops_config.clone()).await;
                rest = Some(started.with_context(|| busy(serve.listen, flag))?);
            }
            (ops_config.listen, ops_config.more, flag) = (health, Default::default(), "--health-listen");
        }
        let listen = ops_config.listen;
        let started = serve_ops(ops_config, readiness, telemetry::install()?).await;
        let ops = started.with_context(|| busy(listen, flag))?;
        supervise("sizes", stop.clone(), {
            let stop = stop.clone();
            move || telemetry::watch_sizes(databases.clone(), stop.clone())
        });
        let ops_url = format!("http://{}", ops.local_addr());
        let rest_url = rest.as_ref().map(|rest| format!("http://{}", rest.local_addr()));
        let rest_url = rest_url.unwrap_or_else(|| ops_url.clone());
        let served = Served { rpc_url, rest_url, ops_url, answers, chain };
        if let (None, Some(app)) = (&status, tables) {
            supervise("tables", stop.clone(), {
                let (config, raw) = (config.clone(), watched.clone());
                let (health, stop) = (health.clone(), stop.clone());
                move || Tables::of(&config, raw.clone(), app.clone()).watch(health.clone(), stop.clone())
            });
        }
        let watcher = tokio::spawn(watch::watch_all(watched, health, wake, status, derived, stop.clone()));
        Ok(Servers { rpc, rest, ops, watcher, stop, served })
    }

    /// Stops them; requests under way get their answers.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Some(rpc) = self.rpc {
            rpc.shutdown().await;
        }
        if let Some(rest) = self.rest {
            rest.shutdown().await;
        }
        self.ops.shutdown().await;
        self.watcher.abort();
    }
}

async fn start_rpc(config: &Config, parts: &Parts) -> anyhow::Result<ServerHandle> {
    let serve = &config.serve;
    let mut api = EthApi::new(parts.reader.clone(), serve.limits.clone());
    if let Some(url) = &serve.upstream {
        api = api.with_upstream(Arc::new(HttpUpstream::new(url, serve.limits.upstream_timeout_ms)?));
    }
    if let Some(status) = parts.status.clone() {
        api = api.with_syncing(Arc::new(move || sync_state(&status.borrow())));
    }
    let rpc_config = RpcServerConfig {
        listen: serve.rpc_listen,
        allowed_hosts: serve.allowed_hosts.clone(),
        allowed_origins: serve.allowed_origins.clone(),
        proxies: serve.proxies()?,
    };
    serve_rpc(rpc_config, api, Some(parts.new_head.clone())).await.with_context(|| {
        format!("can't listen on {}; choose another address with --rpc-listen", serve.rpc_listen)
    })
}

fn sync_state(status: &IngestStatus) -> Option<SyncState> {
    let (highest, current) = (status.target?, status.tip?.height);
    (highest > current).then(|| SyncState { starting: status.first.unwrap_or(current), current, highest })
}
