//! One endpoint: calls in batches ([`calls`]), what answers mean ([`answer`]), what was learned of it.

mod answer;
mod calls;
mod ways;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{ChainId, Height};
use tokio::time::Instant;

use super::backoff::Backoff;
use super::batch::{Kind, Width};
use super::classify::{Classifier, ErrorClass, Hint};
use super::config::RpcLimits;
use super::limiter::{Limiter, Readiness};
use super::memory::CallMemory;
use super::meters::{LogGate, Meters};
use super::redact::EndpointName;
use super::transport::Transport;
use super::wire::Call;
use crate::pace::Pace;
use crate::{Result, SourceError};
use ways::Avoided;
pub use ways::{Way, Ways};

/// One warning about failures per endpoint in this time.
const LOG_EVERY_MS: u64 = 10_000;
/// One about broken texts per endpoint in this time.
const BROKEN_LOG_EVERY_MS: u64 = 600_000;
/// What a node answers for what it doesn't have.
const NULL: &[u8] = b"null";

/// Whether a result is `null`.
pub fn is_null(result: &Bytes) -> bool {
    result.as_ref() == NULL
}

/// The result of one call: a slice of the body that it came in.
pub type CallResult = Result<Bytes, CallError>;

/// The results of one request in the order of its items; `Err`: nothing of it was answered.
type Outcome = Result<Vec<CallResult>, CallError>;

/// Why one call has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// What to do about it.
    pub class: ErrorClass,
    /// What else it tells.
    pub hint: Hint,
    /// The server's words, without secrets.
    pub message: String,
    /// How long the server wants us away.
    pub retry_after_ms: Option<u64>,
    /// Whether it is a JSON-RPC error, rather than one of the way there.
    pub answered: bool,
    /// The method that was called.
    pub method: &'static str,
    /// The height of the block that the call was about.
    pub height: Option<Height>,
}

impl CallError {
    /// Worth another try.
    pub fn transient(message: impl Into<String>) -> CallError {
        CallError {
            class: ErrorClass::Transient,
            hint: Hint::None,
            message: message.into(),
            retry_after_ms: None,
            answered: false,
            method: "",
            height: None,
        }
    }

    /// The same, of this call.
    pub fn of(self, call: &Call) -> CallError {
        CallError { method: call.method, height: call.height, ..self }
    }

    /// The method and the server's words.
    pub fn words(&self) -> String {
        match self.method {
            "" => self.message.clone(),
            method => format!("{method}: {}", self.message),
        }
    }
}

/// How long a call puts up with failures of one endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Tries of one item.
    pub attempts: u32,
    /// The longest pause of the endpoint that is waited for.
    pub max_wait: Duration,
}

/// An endpoint and what is known of it.
#[derive(Debug)]
pub struct Endpoint {
    /// Its name, without secrets.
    pub name: EndpointName,
    /// Its place in the order of preference.
    pub index: usize,
    /// Its metrics.
    pub meters: Meters,
    transport: Transport,
    limiter: Arc<Limiter>,
    pace: Pace,
    classifier: Arc<Classifier>,
    widths: [Width; Kind::COUNT],
    limits: RpcLimits,
    backoff: Mutex<Backoff>,
    ways: Ways,
    /// The newest height that it announced, plus one; 0: none yet.
    head: AtomicU64,
    chain_checked: AtomicBool,
    /// Held by the one that asks for the chain id, so that many callers don't ask at once after an outage.
    chain_asked: tokio::sync::Mutex<()>,
    wrong_chain: Mutex<Option<ChainId>>,
    /// Until when the caller doesn't want its answers, where another endpoint has one.
    distrusted_until: Mutex<Option<Instant>>,
    /// What it said when a request failed last.
    last_failure: Mutex<Option<String>>,
    log: LogGate,
    broken_log: LogGate,
}

impl Endpoint {
    /// An endpoint that nothing is known of.
    pub fn new(
        index: usize,
        name: EndpointName,
        transport: Transport,
        classifier: Arc<Classifier>,
        limits: &RpcLimits,
        seed: u64,
    ) -> Endpoint {
        // Endpoints of one process must not come back in one moment either.
        let seed = seed.wrapping_add(index as u64);
        Endpoint {
            meters: Meters::new(&name),
            limiter: Limiter::new(limits, seed),
            pace: Pace::new(limits.requests_per_s),
            widths: std::array::from_fn(|_| Width::new(limits)),
            backoff: Mutex::new(Backoff::new(limits.backoff_initial_ms, limits.backoff_max_ms, !seed)),
            ways: Ways::new(Duration::from_millis(limits.capability_memory_ms)),
            head: AtomicU64::new(0),
            chain_checked: AtomicBool::new(false),
            chain_asked: tokio::sync::Mutex::new(()),
            wrong_chain: Mutex::new(None),
            distrusted_until: Mutex::new(None),
            last_failure: Mutex::new(None),
            log: LogGate::new(LOG_EVERY_MS),
            broken_log: LogGate::new(BROKEN_LOG_EVERY_MS),
            limits: limits.clone(),
            index,
            name,
            transport,
            classifier,
        }
    }

    /// Whether it takes requests now.
    pub fn readiness(&self) -> Readiness {
        self.limiter.readiness()
    }

    /// What bounds it now, for people.
    pub fn bound_by(&self) -> String {
        format!("{}: {}", self.name, self.limiter.bound_by())
    }

    /// Why it takes no requests now, for people.
    fn away(&self) -> String {
        let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref().map(|last| format!("; it failed last with: {last}")).unwrap_or_default();
        format!("it is {}{last}", self.limiter.bound_by())
    }

    /// The learned width of batches of a kind.
    pub fn width(&self, kind: Kind) -> &Width {
        &self.widths[kind as usize]
    }

    /// The newest height that it announced.
    pub fn head(&self) -> Option<Height> {
        self.head.load(Ordering::Acquire).checked_sub(1).map(Height)
    }

    /// It announced this height as its newest.
    pub fn set_head(&self, height: Height) {
        self.head.store(height.get().saturating_add(1), Ordering::Release);
    }

    /// Which ways of asking it has.
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// A way of asking failed where the next one worked, or where nothing else is left.
    pub fn note_failed(&self, way: Way, error: &str) {
        self.log_avoided(way, self.ways.failed(way), error);
    }

    /// A call failed for this reason: the way is missing, or fails for now.
    pub fn note(&self, way: Way, error: &CallError) {
        let avoided = match error.hint {
            // It was not asked.
            Hint::Away => return,
            Hint::MethodMissing => self.ways.missing(way),
            _ => self.ways.failed(way),
        };
        self.log_avoided(way, avoided, &error.words());
    }

    fn log_avoided(&self, way: Way, avoided: Option<Avoided>, error: &str) {
        let Some(Avoided { time, again }) = avoided else { return };
        let again_after_s = time.as_secs();
        if again {
            tracing::debug!(endpoint = %self.name, ?way, error, again_after_s, "a way of asking fails still");
        } else {
            tracing::warn!(endpoint = %self.name, ?way, error, again_after_s, "{}", way.consequence());
        }
    }

    /// The caller found an answer of it wrong: others go first for a while.
    pub fn distrust(&self, time: Duration) {
        *self.distrusted_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    /// Whether others go first.
    pub fn is_distrusted(&self) -> bool {
        self.distrusted_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some_and(|until| until > Instant::now())
    }

    /// The chain that it serves, if that was found to be the wrong one.
    pub fn wrong_chain(&self) -> Option<ChainId> {
        *self.wrong_chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the chain id.
    pub async fn ask_chain_id(&self, patience: Patience, memory: &Arc<CallMemory>) -> Result<ChainId> {
        let text = self.call(Kind::Header, Call::new("eth_chainId", &[]), patience, memory).await?;
        let id = serde_json::from_slice::<String>(&text).ok().as_deref().and_then(parse_quantity);
        id.map(ChainId).ok_or_else(|| SourceError::Transient {
            endpoint: self.name.to_string(),
            message: format!("eth_chainId answered {}", self.name.scrub(&String::from_utf8_lossy(&text))),
        })
    }

    /// Makes sure that it serves `expected`. Asked once, and again after its breaker was open: another node may be behind the address now.
    pub async fn ensure_chain(
        &self,
        expected: ChainId,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Result<()> {
        let known = || self.wrong_chain().is_none() && self.chain_checked.load(Ordering::Acquire);
        if known() {
            return Ok(());
        }
        let _asking = self.chain_asked.lock().await;
        if known() {
            return Ok(());
        }
        let found = self.ask_chain_id(patience, memory).await?;
        self.judge_chain(found, expected)
    }

    /// Takes note of the chain that it serves.
    pub fn judge_chain(&self, found: ChainId, expected: ChainId) -> Result<()> {
        let mut wrong = self.wrong_chain.lock().unwrap_or_else(PoisonError::into_inner);
        if found == expected {
            *wrong = None;
            self.chain_checked.store(true, Ordering::Release);
            return Ok(());
        }
        if wrong.replace(found) != Some(found) {
            tracing::error!(endpoint = %self.name, %found, %expected, "the endpoint serves another chain and is not used");
        }
        Err(SourceError::WrongChain { endpoint: self.name.to_string(), found, expected })
    }

    /// A call's error as the source's, with the endpoint's name.
    pub fn error(&self, error: CallError) -> SourceError {
        let endpoint = self.name.to_string();
        let message = error.words();
        let failure = match error.class {
            ErrorClass::TooWide => SourceError::TooWide { endpoint, message },
            ErrorClass::RateLimited => {
                SourceError::RateLimited { endpoint, message, retry_after_ms: error.retry_after_ms }
            }
            ErrorClass::Transient => SourceError::Transient { endpoint, message },
            ErrorClass::Refused => SourceError::Refused { endpoint, message },
        };
        match error.height {
            Some(height) => failure.at(height),
            None => failure,
        }
    }
}

/// A hexadecimal quantity; leading zeros are forgiven here.
pub fn parse_quantity(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    // `from_str_radix` takes a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}
