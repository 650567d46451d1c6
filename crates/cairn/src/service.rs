//! What `run` and `demo` have in common: an ingester, derived work and two servers over one archive, until told to stop.
//!
//! The three share nothing but the stores: derived work that halts leaves ingestion and serving as they are, and so on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use cairn_core::{Clock, Height, SystemClock};
use cairn_pipeline::IngestError;
use cairn_pipeline::gaps::GapWatch;
use cairn_pipeline::ingest::{FillOptions, Finished, IngestOptions, Ingester, Reports};
use cairn_pipeline::status::{Halt, IngestState, StatusBoard};
use cairn_source::ChainSource;
use cairn_store::derived::{DerivedReader, ErrorLog};
use cairn_store::{HeadRow, RawReader, StoreInfo};
use tokio::sync::watch::channel;
use tokio_util::sync::CancellationToken;

use crate::cli::Role;
use crate::config::first::First;
use crate::config::{Config, hide_url};
use crate::derive::{Asked, Work};
use crate::output::say;
use crate::progress;
use crate::repair::fetch::Fetch;
use crate::repair::nightly::{self, Nightly};
use crate::servers::{Parts, Served, Servers};
use crate::start::Patience;
use crate::stores::{self, Access, LateApp, RawStore};
use crate::supervise::supervise;

/// How long the ingester has to finish its commit when asked to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// How long the last reports have to be written to the error log.
const REPORTS_PATIENCE: Duration = Duration::from_secs(2);
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
    let store = stores::open_raw_patiently(config, Access::Write).await?;
    // Made before anybody reads it; also the moment where a store of another chain is refused.
    let head = store.init(job.info.clone()).await?;
    let first = first_height(config, &job, &head).await?;
    if head.tip.is_none() && first < job.first_height {
        bail!(
            "the nodes serve no height below {0}, and a new archive is to begin at {first}: use --from {0}, or add nodes of the sporks before",
            job.first_height,
        );
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let board = StatusBoard::new(clock.clone());
    let options = ingest_options(config, first, job.info, job.exit_after_head);
    let (reports, report_writer) = Reports::new();
    let ingester = Ingester::new(job.source.clone(), store.clone(), clock, board.clone(), options)
        .with_reports(reports.clone());

    let stop = CancellationToken::new();
    let (wake, new_head) = channel(0);
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
    supervise("partitions", stop.clone(), {
        let (store, stop) = (beside.clone(), stop.clone());
        move || manage_partitions(store.clone(), stop.clone())
    });
    let gaps = GapWatch {
        source: job.source.clone(),
        store: working.clone(),
        clock: Arc::new(SystemClock),
        stop_inclusive: config.ingest.to.map(Height),
        every: GAPS_EVERY,
        reports,
    };
    let reporting = tokio::spawn(report_writer.write(beside.clone() as Arc<dyn ErrorLog>));
    supervise("gaps", stop.clone(), {
        let stop = stop.clone();
        move || gaps.clone().run(stop.clone())
    });
    if config.raw.denormalize_events {
        supervise("event-lists", stop.clone(), {
            let (store, depth, stop) = (beside.clone(), config.ingest.max_reorg_depth, stop.clone());
            move || denormalize_events(store.clone(), depth, stop.clone())
        });
    }
    let nightly = Nightly {
        raw: beside,
        fetch: Some(Fetch::From(job.source)),
        reader: working,
        app: work.as_ref().map(|work| work.late.clone()),
    };
    nightly::start(config, nightly, &stop);
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
    let raw = stores::open_raw_patiently(config, Access::Write).await?;
    let stop = CancellationToken::new();
    let (wake, new_head) = channel(0);
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
    nightly::start(config, nightly, &stop);
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
    say(format_args!(
        "deriving {}; health {ops}/readyz   metrics {ops}/metrics",
        config.chain().name(),
        ops = servers.served.ops_url
    ));
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
    let reader: Arc<dyn RawReader> = stores::open_raw_patiently(config, Access::Read).await?;
    let stop = CancellationToken::new();
    let app = match config.derive.enabled {
        true => open_app_to_read(config, stop.clone()).await,
        false => None,
    };
    let (wake, new_head) = channel(0);
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
        Some(url) => say(format_args!("serving {} read only", hide_url(url))),
        None => say(format_args!("serving {} read only", config.data_dir.display())),
    }
    say(&servers.served);
    stop_signal().await;
    servers.stop().await;
    Ok(())
}

/// The app store to read from. Where it isn't there yet, or nobody has made its tables, it is waited for beside everything else.
async fn open_app_to_read(config: &Config, stop: CancellationToken) -> Option<Arc<dyn DerivedReader>> {
    let catalog = match crate::derive::catalog(config) {
        Ok(catalog) => catalog,
        Err(error) => {
            tracing::error!(%error, "no derived tables");
            return None;
        }
    };
    let error = match stores::open_app(config, catalog.clone(), Access::Read).await {
        Ok(store) => return Some(store),
        Err(error) => error,
    };
    say(format_args!(
        "derived tables are not served yet: {error}; a process that derives creates them. For an archive without them, set derive.enabled = false"
    ));
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
            say(format_args!(
                "ingestion halted: {error}\nWhat is stored is left as it is, and still served (stop with Ctrl-C)."
            ));
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

/// Where the archive begins. What is counted from the head is only counted for an archive without a block; it begins at a final block, where the chain
/// knows which are: the first block of an archive can't be undone.
async fn first_height(config: &Config, job: &Job, head: &HeadRow) -> anyhow::Result<Height> {
    let (below, stored) = match (config.ingest.from, head.first) {
        (First::Height(first), Some(_)) => return Ok(Height(first)),
        (First::BelowHead(_), Some(first)) => return Ok(first),
        (First::Height(first), None) if job.exit_after_head => return Ok(Height(first)),
        (First::Height(first), None) => (0, Some(Height(first))),
        (First::BelowHead(below), None) => (below, None),
    };
    let mut start = Patience::of(config);
    let heads = loop {
        match job.source.heads().await {
            Ok(heads) => break heads,
            // The ingester waits for it and says so.
            Err(_) if let Some(first) = stored => return Ok(first),
            Err(error) => start.wait_for("the node's head", error.into()).await?,
        }
    };
    let latest = heads.latest.block.height;
    if let Some(first) = stored {
        if first > latest {
            say(format_args!(
                "the node's newest block is {latest}, and the archive is to begin at {first}: nothing is stored before the node has it. `--from latest` begins at the head"
            ));
        }
        return Ok(first);
    }
    let last = heads.finalized.map_or(latest, |finalized| finalized.height);
    let first = latest.saturating_sub(below).min(last);
    say(format_args!("the archive begins at block {first}; the node's newest block is {latest}"));
    Ok(first)
}

fn ingest_options(config: &Config, first: Height, info: StoreInfo, exit_after_head: bool) -> IngestOptions {
    let ingest = &config.ingest;
    IngestOptions {
        start: first,
        stop_inclusive: ingest.to.map(Height),
        exit_after_head,
        max_reorg_depth_blocks: ingest.max_reorg_depth,
        budget_bytes: ingest.budget_mib.saturating_mul(1 << 20),
        poll_ms: ingest.poll_ms,
        confirmations: ingest.confirmations,
        head_quorum: config.chain.head_quorum(),
        fill: (ingest.fill_workers > 0).then(|| FillOptions {
            workers: ingest.fill_workers,
            range_heights: ingest.fill_range_heights,
            ..FillOptions::default()
        }),
        seed: rand::random(),
        ..IngestOptions::new(info)
    }
}

/// Waits for Ctrl-C or SIGTERM and says which came. A second one ends the process at once.
pub async fn stop_signal() -> &'static str {
    let name = one_signal().await;
    tokio::spawn(async {
        one_signal().await;
        say("stopping at once; nothing that was committed is lost");
        // The line is written by another thread.
        tokio::time::sleep(Duration::from_millis(50)).await;
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
