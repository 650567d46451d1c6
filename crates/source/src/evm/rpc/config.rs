//! What an RPC source is told: endpoints, policies and limits.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use cairn_core::{ChainId, Clock, SystemClock};
use cairn_evm::ChainProfile;
use serde::{Deserialize, Serialize};
use url::Url;

use super::classify::ErrorRule;
use super::redact::EndpointName;

/// How the finalised height is found (field case E21).
///
/// A tag counts only where it is not above `latest`, and never goes back. It is replaced by a depth only as long as the chain has never
/// answered it: once a tag has been seen, a failing tag means "not known now", since a depth could run ahead of a
/// chain that has stopped finalising.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalityPolicy {
    /// The node's `finalized` tag alone. Where the chain has none, nothing is final.
    Tag,
    /// That many heights below `latest`; the tag isn't asked for.
    Depth(u64),
    /// The lower of both; the depth alone where the chain has no tag.
    Both(u64),
}

impl FinalityPolicy {
    /// The depth of the policy, in heights.
    pub fn depth_heights(self) -> Option<u64> {
        match self {
            FinalityPolicy::Tag => None,
            FinalityPolicy::Depth(heights) | FinalityPolicy::Both(heights) => Some(heights),
        }
    }

    /// Whether the `finalized` tag is asked for.
    pub fn uses_tag(self) -> bool {
        !matches!(self, FinalityPolicy::Depth(_))
    }
}

impl Default for FinalityPolicy {
    fn default() -> Self {
        FinalityPolicy::Both(64)
    }
}

/// Sizes, counts and times that bound what a source costs.
///
/// Memory: one call of `blocks` holds at most `free_response_bytes` of answers, and one call at a time may hold more, up to twice `max_response_bytes`
/// (a block's JSON and its receipts' JSON). At most the sum of `max_in_flight` calls run at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RpcLimits {
    /// Calls in one JSON-RPC batch, at most. 1 turns batches off. Configured by `chain.batch_max`.
    #[serde(skip, default = "max_batch_items")]
    pub max_batch_items: usize,
    /// Calls in the first batches, before anything is known of the endpoint.
    pub initial_batch_items: usize,
    /// The size that batches are steered to, in bytes of one answer.
    pub target_response_bytes: u64,
    /// Answers that one call may hold in memory without waiting for the one slot for large ones.
    pub free_response_bytes: u64,
    /// One answer, decompressed, at most. A 60 MiB block is about 125 MiB of JSON.
    pub max_response_bytes: u64,
    /// The blocks that one call of `blocks` returns: it stops asking for more once their size passes this.
    pub max_answer_bytes: u64,
    /// Calls that one endpoint is sent a second, evenly; a batch counts as its calls. 0: as many as it takes.
    pub requests_per_s: u32,
    /// Requests in flight at one endpoint, at most.
    pub max_in_flight: usize,
    /// Requests in flight at one endpoint, before anything is known of it.
    pub initial_in_flight: usize,
    /// Requests of one call in flight at once.
    pub parallel_batches: usize,
    /// To establish a connection.
    pub connect_timeout_ms: u64,
    /// Between two pieces of an answer's body.
    ///
    /// While an answer doesn't begin, the node is asked for `eth_chainId` after a quarter of it.
    pub idle_timeout_ms: u64,
    /// From sending a request to the last byte of its answer.
    pub request_timeout_ms: u64,
    /// How often one item is asked of one endpoint before it is given up there.
    pub attempts_per_endpoint: u32,
    /// The first pause after a failure; it doubles from there, with jitter.
    pub backoff_initial_ms: u64,
    /// The longest pause that isn't the server's own wish.
    pub backoff_max_ms: u64,
    /// The longest `Retry-After` that is honoured; longer ones are cut to this.
    pub retry_after_max_ms: u64,
    /// The longest that a call waits for a paused endpoint when no other one is ready.
    pub max_wait_ms: u64,
    /// Failures in a row that open an endpoint's circuit breaker.
    pub breaker_failures: u32,
    /// How often a block or its receipts are asked for again at one endpoint when it says null for an announced height or gives receipts that don't cover the
    /// block (E01, E03).
    pub not_yet_attempts: u32,
    /// The first pause between those; it doubles.
    pub not_yet_pause_ms: u64,
    /// How long a learned lack ("this node has no `eth_getBlockReceipts`") is believed.
    pub capability_memory_ms: u64,
    /// After this much silence of a WebSocket, the head is asked for over HTTP (E18).
    pub ws_silence_ms: u64,
    /// The longest WebSocket message; a head is below 2 KiB.
    pub ws_max_message_bytes: usize,
}

fn max_batch_items() -> usize {
    64
}

impl RpcLimits {
    /// Refuses limits with which nothing could be asked; says which, and what it must be.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("initial_batch_items", self.initial_batch_items as u64),
            ("target_response_bytes", self.target_response_bytes),
            ("free_response_bytes", self.free_response_bytes),
            ("max_response_bytes", self.max_response_bytes),
            ("max_answer_bytes", self.max_answer_bytes),
            ("max_in_flight", self.max_in_flight as u64),
            ("initial_in_flight", self.initial_in_flight as u64),
            ("parallel_batches", self.parallel_batches as u64),
            ("connect_timeout_ms", self.connect_timeout_ms),
            ("idle_timeout_ms", self.idle_timeout_ms),
            ("request_timeout_ms", self.request_timeout_ms),
            ("attempts_per_endpoint", u64::from(self.attempts_per_endpoint)),
            ("backoff_initial_ms", self.backoff_initial_ms),
            ("breaker_failures", u64::from(self.breaker_failures)),
            ("ws_silence_ms", self.ws_silence_ms),
            ("ws_max_message_bytes", self.ws_max_message_bytes as u64),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        if self.backoff_max_ms < self.backoff_initial_ms {
            return Err(format!(
                "backoff_max_ms {} is below backoff_initial_ms {}",
                self.backoff_max_ms, self.backoff_initial_ms
            ));
        }
        Ok(())
    }
}

impl Default for RpcLimits {
    fn default() -> Self {
        RpcLimits {
            max_batch_items: max_batch_items(),
            initial_batch_items: 8,
            target_response_bytes: 4 << 20,
            free_response_bytes: 12 << 20,
            max_response_bytes: 256 << 20,
            max_answer_bytes: 32 << 20,
            requests_per_s: 0,
            max_in_flight: 16,
            initial_in_flight: 4,
            parallel_batches: 4,
            connect_timeout_ms: 10_000,
            idle_timeout_ms: 20_000,
            request_timeout_ms: 120_000,
            attempts_per_endpoint: 4,
            backoff_initial_ms: 250,
            backoff_max_ms: 10_000,
            retry_after_max_ms: 60_000,
            max_wait_ms: 30_000,
            breaker_failures: 5,
            not_yet_attempts: 3,
            not_yet_pause_ms: 200,
            capability_memory_ms: 600_000,
            ws_silence_ms: 30_000,
            ws_max_message_bytes: 1 << 20,
        }
    }
}

/// What [`super::RpcSource::connect`] needs. Its `Debug` form hides secrets.
#[derive(Clone)]
pub struct RpcConfig {
    /// `http`/`https` endpoints, the preferred one first. `ws`/`wss` URLs among them are used as [`RpcConfig::websockets`].
    pub endpoints: Vec<Url>,
    /// `ws`/`wss` endpoints for `newHeads`, the preferred one first; the others take over when it fails. User info in them is not
    /// sent: use a header.
    pub websockets: Vec<Url>,
    /// The chain that all endpoints must serve; without it, the first one's.
    pub expected_chain: Option<ChainId>,
    /// How the finalised height is found.
    pub finality: FinalityPolicy,
    /// What is known of the chain: the checks it can't pass, and so on.
    pub profile: ChainProfile,
    /// Whether call traces are asked for. A node that can't give them is then an error.
    pub traces: bool,
    /// Headers for every request (an `Authorization`, say). Values are secrets.
    pub headers: Vec<(String, String)>,
    /// The same for single endpoints, by `HOST:PORT` or `HOST`; they win over those of all.
    pub headers_of: Vec<(String, Vec<(String, String)>)>,
    /// Sizes, counts and times.
    pub limits: RpcLimits,
    /// Rules for errors that come before the built-in ones.
    pub error_rules: Vec<ErrorRule>,
    /// Seeds jitter; different in every process unless it is set.
    pub seed: u64,
    /// The wall clock, for `Retry-After` dates.
    pub clock: Arc<dyn Clock>,
}

impl RpcConfig {
    /// The defaults for these endpoints, the preferred one first.
    pub fn new(endpoints: Vec<Url>) -> RpcConfig {
        RpcConfig {
            endpoints,
            websockets: Vec::new(),
            expected_chain: None,
            finality: FinalityPolicy::default(),
            profile: ChainProfile::default(),
            traces: false,
            headers: Vec::new(),
            headers_of: Vec::new(),
            limits: RpcLimits::default(),
            error_rules: Vec::new(),
            seed: std::hash::RandomState::new().build_hasher().finish(),
            clock: Arc::new(SystemClock),
        }
    }
}

impl RpcConfig {
    /// The headers of requests to `url`.
    pub fn headers_for(&self, url: &Url) -> Vec<(String, String)> {
        let own =
            self.headers_of.iter().filter(|(place, _)| is_at(place, url)).flat_map(|(_, headers)| headers);
        let own: Vec<(String, String)> = own.cloned().collect();
        let is_own = |name: &str| own.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        let shared: Vec<_> = self.headers.iter().filter(|(name, _)| !is_own(name)).cloned().collect();
        shared.into_iter().chain(own).collect()
    }
}

/// Whether `place`, `HOST:PORT` or `HOST`, is where `url` leads.
pub fn is_at(place: &str, url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let with_port = url.port_or_known_default().map(|port| format!("{host}:{port}"));
    place.eq_ignore_ascii_case(host)
        || with_port.is_some_and(|with_port| place.eq_ignore_ascii_case(&with_port))
}

impl fmt::Debug for RpcConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |urls: &[Url]| urls.iter().map(|url| EndpointName::new(url, &[]).to_string()).collect::<Vec<_>>();
        f.debug_struct("RpcConfig")
            .field("endpoints", &shown(&self.endpoints))
            .field("websockets", &shown(&self.websockets))
            .field("expected_chain", &self.expected_chain)
            .field("finality", &self.finality)
            .field("profile", &self.profile)
            .field("traces", &self.traces)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("limits", &self.limits)
            .field("error_rules", &self.error_rules)
            .finish_non_exhaustive()
    }
}
