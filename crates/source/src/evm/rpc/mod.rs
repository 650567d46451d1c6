//! EVM blocks from JSON-RPC nodes: one or several endpoints of any provider, over HTTP, with WebSocket heads as hints.
//!
//! | subject | module |
//! | --- | --- |
//! | what it is told | [`config`] |
//! | HTTP, TLS, limits of size and time | `transport`, `memory` |
//! | batches, ids, widths | [`wire`], `batch` |
//! | what errors mean | [`classify`] |
//! | concurrency, pauses, circuit breaker | `limiter`, `backoff` |
//! | one endpoint | `endpoint` |
//! | several endpoints | `pool` |
//! | blocks and receipts | `fetch`, [`outline`] |
//! | the tip and finality, when to look | `heads`, `ws`, `rhythm` |
//! | who has a block | `holders` |
//!
//! **Ordering.** Every call stands alone; answers come in height order and link by recomputed hashes. Law 6's other checks are the job of
//! [`crate::verify`]: wrap this source in it.
//!
//! **Back-pressure.** Requests wait for their endpoint's limiter, calls of [`ChainSource::blocks`] for a place, large answers for the one slot that there
//! is for them. So memory is bounded whatever the caller does: see [`RpcLimits`].
//!
//! **Shutdown.** Dropping a call's future drops its requests. Dropping the source stops its background tasks.

mod backoff;
mod batch;
pub mod classify;
pub mod config;
mod endpoint;
mod fetch;
mod heads;
mod holders;
mod limiter;
mod memory;
mod meters;
pub mod outline;
mod pool;
mod redact;
mod rhythm;
mod transport;
pub mod wire;
mod ws;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use tokio::sync::{Mutex, Notify, Semaphore};
use tokio::time::Instant;

pub use classify::{ErrorClass, ErrorRule};
pub use config::{FinalityPolicy, RpcConfig, RpcLimits};

use crate::{ChainSource, Heads, Result, SourceError};
use classify::Classifier;
use endpoint::Endpoint;
use heads::HeadMemory;
use memory::MemoryLimits;
use meters::LogGate;
use pool::{Pool, worst_last};
use redact::EndpointName;
use rhythm::Rhythm;
use transport::Transport;
pub use transport::{header_map, retry_after_ms, tls_config};
use ws::{SocketEndpoint, Subscription, Task};

/// An EVM chain behind JSON-RPC endpoints.
pub struct RpcSource {
    pool: Arc<Pool>,
    finality: FinalityPolicy,
    heads: Mutex<HeadMemory>,
    rhythm: std::sync::Mutex<Rhythm>,
    wake: Arc<Notify>,
    /// Whether a WebSocket tells of heads now.
    is_told: Arc<AtomicBool>,
    ws_silence: Duration,
    /// Ends with the source.
    _socket: Option<Task>,
}

impl fmt::Debug for RpcSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcSource")
            .field(
                "endpoints",
                &self.pool.endpoints.iter().map(|endpoint| &endpoint.name).collect::<Vec<_>>(),
            )
            .field("chain", &self.pool.chain)
            .field("finality", &self.finality)
            .finish_non_exhaustive()
    }
}

impl RpcSource {
    /// Asks all endpoints for their chain id, which has to be the same, and begins to listen for heads where a WebSocket is configured.
    ///
    /// One endpoint has to answer. One that doesn't now is asked before it is first used, and not used if it serves another chain.
    pub async fn connect(mut config: RpcConfig) -> Result<RpcSource> {
        let (sockets, endpoints) =
            config.endpoints.drain(..).partition(|url| matches!(url.scheme(), "ws" | "wss"));
        config.endpoints = endpoints;
        config.websockets.extend::<Vec<_>>(sockets);
        let pool = Arc::new(pool(&config).await?);
        let (wake, is_told) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let socket = socket(&config, &pool, &wake, &is_told)?;
        Ok(RpcSource {
            pool,
            finality: config.finality,
            heads: Mutex::new(HeadMemory::default()),
            rhythm: Default::default(),
            wake,
            is_told,
            ws_silence: Duration::from_millis(config.limits.ws_silence_ms),
            _socket: socket,
        })
    }

    fn rhythm(&self) -> std::sync::MutexGuard<'_, Rhythm> {
        // A few numbers, sound after any panic.
        self.rhythm.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The names of its endpoints, without secrets, the preferred one first.
    pub fn endpoint_names(&self) -> Vec<String> {
        self.pool.endpoints.iter().map(|endpoint| endpoint.name.to_string()).collect()
    }
}

async fn pool(config: &RpcConfig) -> Result<Pool> {
    let mut limits = config.limits.clone();
    if limits.requests_per_s > 0 {
        // A batch takes a second at most, so that a look at the head doesn't wait longer behind one.
        limits.max_batch_items = limits.max_batch_items.min(limits.requests_per_s as usize);
        limits.initial_batch_items = limits.initial_batch_items.min(limits.max_batch_items);
    }
    let limits = &limits;
    if config.endpoints.is_empty() {
        return Err(SourceError::Invalid(
            "at least one http or https endpoint is needed (a WebSocket only tells of new heads)".into(),
        ));
    }
    let with_tls = config.endpoints.iter().any(|url| url.scheme() == "https");
    let tls = transport::tls_config(with_tls)?;
    let classifier = Arc::new(Classifier::new(&config.error_rules));
    let mut endpoints: Vec<Arc<Endpoint>> = Vec::with_capacity(config.endpoints.len());
    for (index, url) in config.endpoints.iter().enumerate() {
        let headers = config.headers_for(url);
        let mut name = EndpointName::new(url, &headers);
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(SourceError::Invalid(format!("{name} is not an http or https URL with a host")));
        }
        if endpoints.iter().any(|other| other.name.as_str() == name.as_str()) {
            name = name.numbered(index + 1);
        }
        let transport = Transport::new(url, name.clone(), &headers, limits, &tls, config.clock.clone())?;
        endpoints.push(Arc::new(Endpoint::new(
            index,
            name,
            transport,
            classifier.clone(),
            limits,
            config.seed,
        )));
    }
    let calls = limits.max_in_flight.max(1).saturating_mul(endpoints.len()).min(Semaphore::MAX_PERMITS);
    let mut pool = Pool {
        endpoints,
        chain: config.expected_chain.unwrap_or(ChainId(0)),
        profile: config.profile,
        limits: limits.clone(),
        memory: MemoryLimits::new(limits.free_response_bytes, limits.max_response_bytes.saturating_mul(2)),
        traces: config.traces,
        leader: AtomicUsize::new(0),
        calls: Semaphore::new(calls),
        served: Default::default(),
        log: LogGate::new(10_000),
    };
    pool.chain = agreed_chain(&pool, config.expected_chain).await?;
    Ok(pool)
}

/// The chain that all endpoints which answer serve.
async fn agreed_chain(pool: &Pool, expected: Option<ChainId>) -> Result<ChainId> {
    let memory = pool.memory.call();
    let patience = pool.patience(&[]);
    let asking = pool.endpoints.iter().map(|endpoint| endpoint.ask_chain_id(patience, &memory));
    let answers = futures::future::join_all(asking).await;
    let mut chain = expected;
    let mut failed = Vec::new();
    let mut answered = 0;
    for (endpoint, answer) in pool.endpoints.iter().zip(answers) {
        match answer {
            Ok(found) => {
                endpoint.judge_chain(found, *chain.get_or_insert(found))?;
                answered += 1;
            }
            Err(error) => failed.push((endpoint, error)),
        }
    }
    let mut failure = None;
    for (endpoint, error) in failed {
        // Where nobody answers, the caller has the error, and says it once.
        if answered > 0 {
            tracing::warn!(endpoint = %endpoint.name, %error, "the endpoint doesn't say which chain it serves; it is asked again before it is used");
        }
        worst_last(&mut failure, error);
    }
    match (chain, failure) {
        (Some(chain), _) if answered > 0 => Ok(chain),
        (_, Some(error)) => Err(error),
        (_, None) => Err(SourceError::Invalid("no endpoint is configured".into())),
    }
}

fn socket(
    config: &RpcConfig,
    pool: &Arc<Pool>,
    wake: &Arc<Notify>,
    is_told: &Arc<AtomicBool>,
) -> Result<Option<Task>> {
    if config.websockets.is_empty() {
        return Ok(None);
    }
    let mut endpoints = Vec::with_capacity(config.websockets.len());
    for url in &config.websockets {
        ws::check_url(url)?;
        let headers = config.headers_for(url);
        let name = EndpointName::new(url, &headers);
        endpoints.push(SocketEndpoint { name, url: url.clone(), headers });
    }
    let mut tls = transport::tls_config(config.websockets.iter().any(|url| url.scheme() == "wss"))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let subscription = Subscription {
        endpoints,
        tls: Arc::new(tls),
        limits: config.limits.clone(),
        wake: wake.clone(),
        is_told: is_told.clone(),
        seed: config.seed ^ 0x5eed,
    };
    // The task must not keep the pool alive by itself, but it ends with the source, so it may hold it.
    let pool = pool.clone();
    Ok(Some(subscription.start(move || {
        let pool = pool.clone();
        async move { pool.newest_height().await }
    })))
}

#[async_trait]
impl ChainSource for RpcSource {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(self.pool.chain)
    }

    async fn heads(&self) -> Result<Heads> {
        let heads = self.pool.heads(self.finality, &mut *self.heads.lock().await).await?;
        self.rhythm().seen(heads.latest.block.height);
        Ok(heads)
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.pool.linked_ref(height, &self.pool.memory.call()).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        self.pool.blocks(range).await
    }

    async fn holders(&self, block: BlockRef, enough: usize) -> Result<Vec<String>> {
        Ok(self.pool.holders(block, enough, &self.pool.memory.call()).await)
    }

    fn preferred_heights(&self) -> u64 {
        self.pool.piece_heights()
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        let poll = Duration::from_millis(at_most_ms.max(1));
        let begun = Instant::now();
        let until = begun + self.rhythm().wait(poll);
        loop {
            // A hint that came while nobody waited is kept: the next wait ends at once.
            if tokio::time::timeout(poll, self.wake.notified()).await.is_ok() {
                return;
            }
            // A socket that tells of heads makes looking needless; one that has gone silent is looked after where it is read.
            let is_told = self.is_told.load(Ordering::Acquire) && begun.elapsed() < self.ws_silence;
            if !is_told && Instant::now() >= until {
                return;
            }
        }
    }

    fn distrust(&self, height: Height) {
        self.pool.distrust(height);
    }

    fn served_by(&self, height: Height) -> Option<String> {
        self.pool.served_by(height).map(|endpoint| endpoint.name.to_string())
    }

    fn bound_by(&self) -> String {
        let bounds: Vec<String> = self.pool.order(None).iter().map(|endpoint| endpoint.bound_by()).collect();
        let calls = self.pool.calls.available_permits();
        let waiting = if calls == 0 { "; all places for calls are taken (max_in_flight)" } else { "" };
        format!("{}{waiting}", bounds.join("; "))
    }
}
