//! What `run` and `demo` have in common: an ingester, derived work and two servers over one archive, until told to stop.
//!
//! The three share nothing but the stores: derived work that halts leaves ingestion and serving as they are, and so on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use cairn_api::eth::SyncState;
use cairn_api::health::{HealthState, Readiness, ReadinessLimits};
use cairn_api::rest::{self, RestState};
use cairn_api::{EthApi, MetricsText, OpsConfig, RpcServerConfig, ServerHandle, serve_ops, serve_rpc};
use cairn_core::{Clock, Height, SystemClock};
use cairn_pipeline::IngestError;
use cairn_pipeline::derive::status::DeriveStatus;
use cairn_pipeline::gaps::GapWatch;
use cairn_pipeline::ingest::{FillOptions, Finished, IngestOptions, Ingester, Reports};
use cairn_pipeline::status::{Halt, IngestState, IngestStatus, StatusBoard};
use cairn_source::ChainSource;
use cairn_store::derived::{Catalog, DerivedReader, ErrorLog};
use cairn_store::{RawReader, StoreInfo};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;
use crate::cli::Role;
use crate::config::{Config, hide_url};
use crate::derive::{Asked, Work};
use crate::progress;
use crate::repair::fetch::Fetch;
use crate::repair::nightly::{self, Nightly};
use crate::stores::{self, Access, LateApp, RawStore};
use crate::upstream::HttpUpstream;

/// How long the ingester has to finish its commit when asked to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// How long the last reports have to be written to the error log.
const REPORTS_PATIENCE: Duration = Duration::from_secs(2);
/// How often the store's head is looked at for health and subscriptions, in milliseconds.
const WATCH_STORE_MS: u64 = 250;

/// How often an app store is looked for that isn't there yet.
const APP_EVERY: Duration = Duration::from_secs(2);
/// How often the partition manager looks.
const PARTITIONS_EVERY: Duration = Duration::from_secs(30);
/// How often it is looked what the archive lacks of what the node has.
const GAPS_EVERY: Duration = Duration::from_secs(15);
/// Rounds of the partition manager in a row, at most.
const MAX_PARTITION_ROUNDS: u32 = 64;

/// Tells a person what is served where.
pub type Announce = Box<dyn FnOnce(&Served) + Send>;

/// What is served where, a line each.
#[derive(Debug, Clone)]
pub struct Served {
    /// Where JSON-RPC is; `None` where this process doesn't serve it.
    pub rpc_url: Option<String>,
    /// Where health, metrics and, where there are answers, REST are.
    pub ops_url: String,
    /// Whether this process answers at all.
    pub answers: bool,
    /// The chain.
    pub chain: Chain,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops = &self.ops_url;
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
            writeln!(f, "REST       {ops}/v1/status   {ops}/v1/docs")?;
        }
        write!(f, "health     {ops}/readyz   metrics {ops}/metrics")
    }
}

/// What to take and from where.
pub struct Job {
    /// The chain, checked.
    pub source: Arc<dyn ChainSource>,
    /// The first height that it has.
    pub first_height: Height,
    /// The nodes that enrichers ask.
    pub asked: Asked,
    /// What a new store is made with.
    pub info: StoreInfo,
    /// End when the head has been reached once, and derived.
    pub exit_after_head: bool,
    /// What this process does.
    pub role: Role,
    /// Whether operators' commands may ask it, where it holds files of SQLite.
    #[cfg_attr(not(unix), allow(dead_code))]
    pub takes_requests: bool,
    /// Called with the JSON-RPC URL and the ops URL once both servers listen.
    pub announce: Announce,
}

/// Ingests, derives and serves until the work is done or somebody asks it to stop.
pub async fn run(config: &Config, job: Job) -> anyhow::Result<()> {
    let store = stores::open_raw_patiently(config).await?;
    // Made before anybody reads it; also the moment where a store of another chain is refused.
    let head = store.init(job.info.clone()).await?;
    if head.tip.is_none() && Height(config.ingest.from) < job.first_height {
        bail!(
            "the nodes serve no height below {0}, and a new archive is to begin at {1}: use --from {0}, or add nodes of the sporks before",
            job.first_height,
            config.ingest.from
        );
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let board = StatusBoard::new(clock.clone());
    let options = ingest_options(config, job.info, job.exit_after_head);
    let (reports, report_writer) = Reports::new();
    let ingester = Ingester::new(job.source.clone(), store.clone(), clock, board.clone(), options)
        .with_reports(reports.clone());

    let stop = CancellationToken::new();
    let (wake, new_head) = watch::channel(0);
    // The store's own connections are the ingester's. Whatever goes on beside it has others: workers, the error log, repair and upkeep these, people who ask
    // again others (P08).
    let beside = store.clone().beside("cairn raw work")?;
    let working: Arc<dyn RawReader> = beside.clone();
    let serving: Arc<dyn RawReader> = match job.role {
        Role::Ingest => working.clone(),
        _ => store.clone().readers("cairn raw api")?,
    };
    let derives = config.derive.enabled && job.role == Role::All;
    let work = match derives {
        true => Some(Work::start(
            config,
            working.clone(),
            beside.clone() as Arc<dyn ErrorLog>,
            job.asked,
            new_head.clone(),
            stop.clone(),
        )?),
        false => None,
    };
    #[cfg(unix)]
    let requests = match job.takes_requests {
        true => {
            let late = work.as_ref().map(|work| work.late.clone());
            crate::control::server::start(config, beside.clone(), late, stop.clone())
        }
        false => None,
    };
    let parts = Parts {
        reader: serving,
        watched: working.clone(),
        app: work.as_ref().map(Work::reader),
        status: Some(board.subscribe()),
        derived: work.as_ref().map(Work::status),
        wake,
        new_head,
        answers: job.role != Role::Ingest,
    };
    let servers = match Servers::start(config, parts, stop.clone()).await {
        Ok(servers) => servers,
        Err(error) => {
            // What it has claimed is given back: a start that fails at an address again and again is no bad end of a range.
            stop.cancel();
            if let Some(work) = work {
                work.stopped().await;
            }
            #[cfg(unix)]
            if let Some(requests) = requests {
                requests.end().await;
            }
            return Err(error);
        }
    };
    (job.announce)(&servers.served);
    tokio::spawn(manage_partitions(beside.clone(), stop.clone()));
    let gaps = GapWatch {
        source: job.source.clone(),
        store: working.clone(),
        clock: Arc::new(SystemClock),
        stop_inclusive: config.ingest.to.map(Height),
        every: GAPS_EVERY,
        reports,
    };
    let reporting = tokio::spawn(report_writer.write(beside.clone() as Arc<dyn ErrorLog>));
    tokio::spawn(gaps.run(stop.clone()));
    if config.raw.denormalize_events {
        tokio::spawn(denormalize_events(beside.clone(), config.ingest.max_reorg_depth, stop.clone()));
    }
    let nightly = Nightly {
        raw: beside,
        fetch: Some(Fetch::From(job.source)),
        reader: working,
        app: work.as_ref().map(|work| work.late.clone()),
    };
    tokio::spawn(nightly::run(config.clone(), nightly, stop.clone()));
    let showing =
        tokio::spawn(progress::show(board.subscribe(), work.as_ref().map(Work::status), stop.clone()));
    let ingesting = tokio::spawn({
        let stop = stop.clone();
        async move { ingester.run(stop).await }
    });
    let all = async {
        ended_work(ingesting, job.exit_after_head).await?;
        if let (Some(work), Some(tip)) = (&work, board.subscribe().borrow().tip) {
            work.caught_up(tip.height).await?;
        }
        Ok(())
    };
    let ended = tokio::select! {
        ended = all => ended,
        signal = stop_signal() => {
            tracing::info!(signal, "stopping: the commit in progress is finished first");
            stop.cancel();
            Ok(())
        }
    };
    stop.cancel();
    wait_for_stop(&board).await;
    if let Some(work) = work {
        work.stopped().await;
    }
    servers.stop().await;
    #[cfg(unix)]
    if let Some(requests) = requests {
        requests.end().await;
    }
    showing.abort();
    // Whoever makes reports has ended by now, or does so soon.
    if tokio::time::timeout(REPORTS_PATIENCE, reporting).await.is_err() {
        tracing::debug!("the last reports may be missing in the error log");
    }
    ended
}

/// Derives only, from a raw store that another process fills, until told to stop.
pub async fn work(config: &Config) -> anyhow::Result<()> {
    let raw = stores::open_raw(config, Access::Write).await?;
    let stop = CancellationToken::new();
    let (wake, new_head) = watch::channel(0);
    let work = Work::start(
        config,
        raw.clone(),
        raw.clone() as Arc<dyn ErrorLog>,
        Asked::default(),
        new_head.clone(),
        stop.clone(),
    )?;
    let mut status = work.status();
    let nightly =
        Nightly { raw: raw.clone(), fetch: None, reader: raw.clone(), app: Some(work.late.clone()) };
    tokio::spawn(nightly::run(config.clone(), nightly, stop.clone()));
    let app = Some(work.reader());
    let parts = Parts {
        reader: raw.clone(),
        watched: raw,
        app,
        status: None,
        derived: Some(work.status()),
        wake,
        new_head,
        answers: false,
    };
    let servers = match Servers::start(config, parts, stop.clone()).await {
        Ok(servers) => servers,
        Err(error) => {
            // As above: what it has claimed is given back.
            stop.cancel();
            work.stopped().await;
            return Err(error);
        }
    };
    eprintln!(
        "deriving {}; health {ops}/readyz   metrics {ops}/metrics",
        config.chain().name(),
        ops = servers.served.ops_url
    );
    let halted = async {
        match status.wait_for(|status| status.halted.is_some()).await {
            Ok(status) => status.halted.as_ref().map(Halt::to_string).unwrap_or_default(),
            Err(_) => "it ended early".into(),
        }
    };
    let ended = tokio::select! {
        message = halted => Err(anyhow::anyhow!("derived work halted: {message}")),
        signal = stop_signal() => {
            tracing::info!(signal, "stopping: running chunks are finished or given back");
            Ok(())
        }
    };
    stop.cancel();
    work.stopped().await;
    servers.stop().await;
    ended
}

/// Answers only, from stores that other processes fill, until told to stop.
pub async fn serve(config: &Config) -> anyhow::Result<()> {
    let reader = stores::open_reader(config, Access::Read).await?;
    let stop = CancellationToken::new();
    let app = match config.derive.enabled {
        true => open_app_to_read(config, stop.clone()).await,
        false => None,
    };
    let (wake, new_head) = watch::channel(0);
    let parts = Parts {
        reader: reader.clone(),
        watched: reader,
        app,
        status: None,
        derived: None,
        wake,
        new_head,
        answers: true,
    };
    let servers = Servers::start(config, parts, stop).await?;
    match &config.raw.url {
        Some(url) => eprintln!("serving {} read only", hide_url(url)),
        None => eprintln!("serving {} read only", config.data_dir.display()),
    }
    eprintln!("{}", servers.served);
    stop_signal().await;
    servers.stop().await;
    Ok(())
}

/// The app store to read from. On PostgreSQL it is waited for beside everything else where it isn't there yet, or nobody has made its tables.
async fn open_app_to_read(config: &Config, stop: CancellationToken) -> Option<Arc<dyn DerivedReader>> {
    let catalog = match crate::derive::catalog(config) {
        Ok(catalog) => catalog,
        Err(error) => {
            tracing::error!(%error, "no derived tables");
            return None;
        }
    };
    match stores::open_app(config, catalog.clone(), Access::Read).await {
        Ok(store) => Some(store as Arc<dyn DerivedReader>),
        Err(error) if config.app.url.is_some() => {
            eprintln!("derived tables are not served yet: {error}");
            let late = Arc::new(LateApp::default());
            tokio::spawn({
                let (config, late) = (config.clone(), late.clone());
                async move {
                    loop {
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = tokio::time::sleep(APP_EVERY) => {}
                        }
                        match stores::open_app(&config, catalog.clone(), Access::Read).await {
                            Ok(store) => return late.set(store),
                            Err(error) => tracing::debug!(%error, "derived tables are not served yet"),
                        }
                    }
                }
            });
            Some(late)
        }
        Err(error) => {
            eprintln!("derived tables are not served: {error}");
            None
        }
    }
}

/// The partition manager of the raw store: partitions ahead of the tip, and in a backfill indexes of those that are full. The process that ingests
/// has it. It touches nothing else, whatever goes wrong; a partition that is missing after all is made by who needs it.
async fn manage_partitions(store: Arc<dyn RawStore>, stop: CancellationToken) {
    loop {
        let mut rounds = 0;
        let outcome = loop {
            match store.maintain_partitions().await {
                Ok(true) if rounds < MAX_PARTITION_ROUNDS && !stop.is_cancelled() => rounds += 1,
                Ok(_) if rounds > 0 => break "made",
                Ok(_) => break "nothing",
                Err(error) => {
                    tracing::warn!(%error, "the partition manager failed; it looks again");
                    break "failed";
                }
            }
        };
        metrics::counter!("cairn_partition_rounds_total", "outcome" => outcome).increment(1);
        match store.partitions_ahead().await {
            Ok(ahead) => {
                for (table, count) in ahead {
                    metrics::gauge!("cairn_partitions_ahead", "table" => table).set(count as f64);
                }
            }
            Err(error) => tracing::debug!(%error, "partitions could not be counted"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PARTITIONS_EVERY) => {}
        }
    }
}

/// Keeps event lists for debugging, behind the tip.
async fn denormalize_events(store: Arc<dyn RawStore>, max_reorg_depth: u64, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match store.denormalize_events(max_reorg_depth).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "event lists for debugging were not written; it is tried again")
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(APP_EVERY) => {}
        }
    }
}

/// Waits for the ingester. One that has halted leaves the archive readable until somebody stops the process, except in scripts.
async fn ended_work(
    ingesting: tokio::task::JoinHandle<Result<Finished, IngestError>>,
    script: bool,
) -> anyhow::Result<()> {
    match ingesting.await.context("the ingester panicked")? {
        Ok(Finished::ReachedStop) if !script => {
            tracing::info!("the last height is stored; serving it until stopped");
            std::future::pending().await
        }
        Ok(_) => Ok(()),
        Err(error) if script => Err(error.into()),
        Err(error) => {
            eprintln!(
                "ingestion halted: {error}\nWhat is stored is left as it is, and still served (stop with Ctrl-C)."
            );
            std::future::pending().await
        }
    }
}

async fn wait_for_stop(board: &StatusBoard) {
    let mut status = board.subscribe();
    let stopped =
        status.wait_for(|status| matches!(status.state, IngestState::Stopped | IngestState::Halted(_)));
    if tokio::time::timeout(STOP_PATIENCE, stopped).await.is_err() {
        tracing::warn!("the ingester did not stop in {} s; nothing is lost", STOP_PATIENCE.as_secs());
    }
}

fn ingest_options(config: &Config, info: StoreInfo, exit_after_head: bool) -> IngestOptions {
    let ingest = &config.ingest;
    IngestOptions {
        start: Height(ingest.from),
        stop_inclusive: ingest.to.map(Height),
        exit_after_head,
        max_reorg_depth_blocks: ingest.max_reorg_depth,
        budget_bytes: ingest.budget_mib.saturating_mul(1 << 20),
        poll_ms: ingest.poll_ms,
        confirmations: ingest.confirmations,
        fill: (ingest.fill_workers > 0).then(|| FillOptions {
            workers: ingest.fill_workers,
            range_heights: ingest.fill_range_heights,
            ..FillOptions::default()
        }),
        seed: rand::random(),
        ..IngestOptions::new(info)
    }
}

/// The two servers over one archive.
pub struct Servers {
    rpc: Option<ServerHandle>,
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
    pub status: Option<watch::Receiver<IngestStatus>>,
    /// What derived work says of itself, where it is done in this process.
    pub derived: Option<watch::Receiver<DeriveStatus>>,
    /// Is told of each new head.
    pub wake: watch::Sender<u64>,
    /// Hears of it.
    pub new_head: watch::Receiver<u64>,
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
        let mut ops_config =
            OpsConfig { listen: serve.listen, rpc_url: rpc_url.clone(), ..OpsConfig::default() };
        if answers {
            let catalog: Catalog = crate::derive::catalog(config)?;
            let rest = RestState {
                chain: chain.rest(),
                raw: reader,
                app,
                catalog,
                upstreams: chain.upstreams(),
                workers: crate::derive::uses(config),
                halts: halts_of(status.clone(), derived.clone()),
                search_term: cairn_explorer::processors::evm::token_metadata::search_term,
                limits: serve.rest.clone(),
                new_head: Some(new_head),
                stop: stop.clone(),
            };
            ops_config.more = rest::router(rest).context("the REST document can't be made; this is a bug")?;
        }
        let ops = serve_ops(ops_config, readiness, metrics_text()?).await.with_context(|| {
            format!("can't listen on {}; choose another address with --listen", serve.listen)
        })?;
        let served = Served { rpc_url, ops_url: format!("http://{}", ops.local_addr()), answers, chain };
        let watcher = tokio::spawn(watch_all(watched, health, wake, status, derived, stop.clone()));
        Ok(Servers { rpc, ops, watcher, stop, served })
    }

    /// Stops both; requests under way get their answers.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Some(rpc) = self.rpc {
            rpc.shutdown().await;
        }
        self.ops.shutdown().await;
        self.watcher.abort();
    }
}

async fn start_rpc(config: &Config, parts: &Parts) -> anyhow::Result<ServerHandle> {
    let serve = &config.serve;
    let mut api = EthApi::new(parts.reader.clone(), serve.limits.clone());
    if let Some(url) = &serve.upstream {
        api = api.with_upstream(Arc::new(HttpUpstream::new(url)?));
    }
    if let Some(status) = parts.status.clone() {
        api = api.with_syncing(Arc::new(move || sync_state(&status.borrow())));
    }
    let rpc_config = RpcServerConfig {
        listen: serve.rpc_listen,
        allowed_hosts: serve.allowed_hosts.clone(),
        allowed_origins: serve.allowed_origins.clone(),
    };
    serve_rpc(rpc_config, api, Some(parts.new_head.clone())).await.with_context(|| {
        format!("can't listen on {}; choose another address with --rpc-listen", serve.rpc_listen)
    })
}

/// Feeds health from the store and, where it is in this process, from the ingester.
async fn watch_all(
    reader: Arc<dyn RawReader>,
    health: Arc<HealthState>,
    wake: watch::Sender<u64>,
    status: Option<watch::Receiver<IngestStatus>>,
    derived: Option<watch::Receiver<DeriveStatus>>,
    stop: CancellationToken,
) {
    let store = cairn_api::health::watch_store(reader, health.clone(), wake, WATCH_STORE_MS, stop);
    let ingester = async {
        match status {
            Some(status) => watch_ingester(&health, status).await,
            None => std::future::pending().await,
        }
    };
    let deriver = async {
        match derived {
            Some(derived) => watch_deriver(&health, derived).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = store => {}
        () = ingester => {}
        () = deriver => {}
    }
}

/// What of this process has stopped, for `/v1/status`.
fn halts_of(
    status: Option<watch::Receiver<IngestStatus>>,
    derived: Option<watch::Receiver<DeriveStatus>>,
) -> rest::Halts {
    Arc::new(move || {
        let ingestion = status.as_ref().and_then(|status| status.borrow().halt.clone());
        let (mut ranges, mut halted) = (Vec::new(), None);
        if let Some(derived) = &derived {
            let derived = derived.borrow();
            halted = derived.halted.clone();
            let range = |service: &str, height, code: &str| rest::Halt {
                part: rest::HaltedPart::Range,
                service: Some(service.to_owned()),
                height: Some(height),
                code: code.to_owned(),
            };
            ranges.extend(derived.seams.iter().map(|seam| range(&seam.service, seam.at, "range-seam")));
            let gaps = derived.open_gaps.iter();
            ranges.extend(gaps.map(|gap| range(&gap.service, gap.missing.start(), "range-lost")));
        }
        let of = |part, halt: Halt| rest::Halt {
            part,
            service: halt.service.map(str::to_owned),
            height: halt.height,
            code: halt.code.to_owned(),
        };
        let ingestion = ingestion.map(|halt| of(rest::HaltedPart::Ingestion, halt));
        let halted = halted.map(|halt| of(rest::HaltedPart::Derived, halt));
        ingestion.into_iter().chain(halted).chain(ranges).collect()
    })
}

/// Tells of a halt of derived work, which is for good.
async fn watch_deriver(health: &HealthState, mut status: watch::Receiver<DeriveStatus>) {
    metrics::gauge!("cairn_derived_halted").set(0.0);
    if let Ok(status) = status.wait_for(|status| status.halted.is_some()).await {
        metrics::gauge!("cairn_derived_halted").set(1.0);
        health.derived_halted(status.halted.as_ref().map(Halt::to_string).unwrap_or_default());
    }
    std::future::pending().await
}

async fn watch_ingester(health: &HealthState, mut status: watch::Receiver<IngestStatus>) {
    let mut answered_at_ms = 0;
    loop {
        let now = status.borrow_and_update().clone();
        if let Some(head) = now.source_head.filter(|_| now.source_answered_at_ms != answered_at_ms) {
            answered_at_ms = now.source_answered_at_ms;
            health.source_head(head);
        }
        if let IngestState::Halted(message) = &now.state {
            health.halted(message.clone());
        }
        if status.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn sync_state(status: &IngestStatus) -> Option<SyncState> {
    let (highest, current) = (status.target?, status.tip?.height);
    (highest > current).then(|| SyncState { starting: status.first.unwrap_or(current), current, highest })
}

/// Installs the metrics recorder and gives its text.
fn metrics_text() -> anyhow::Result<MetricsText> {
    let handle = metrics_exporter_prometheus::PrometheusBuilder::new()
        .install_recorder()
        .context("can't install the metrics recorder")?;
    cairn_api::describe_metrics();
    Ok(Arc::new(move || {
        handle.run_upkeep();
        handle.render()
    }))
}

/// Waits for Ctrl-C or SIGTERM and says which came. A second one ends the process at once.
pub async fn stop_signal() -> &'static str {
    let name = one_signal().await;
    tokio::spawn(async {
        one_signal().await;
        eprintln!("stopping at once; nothing that was committed is lost");
        std::process::exit(130);
    });
    name
}

async fn one_signal() -> &'static str {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => tokio::select! {
                _ = tokio::signal::ctrl_c() => "interrupt",
                _ = terminate.recv() => "terminate",
            },
            Err(error) => {
                tracing::warn!(%error, "SIGTERM can't be watched");
                let _ = tokio::signal::ctrl_c().await;
                "interrupt"
            }
        }
    }
    #[cfg(not(unix))]
    {
        let _ = tokio::signal::ctrl_c().await;
        "interrupt"
    }
}
