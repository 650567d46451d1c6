//! One endpoint: calls in batches, failed items asked for again, what was learned of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{ChainId, Height};
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::backoff::Backoff;
use super::batch::{Kind, Width};
use super::classify::{Classifier, ErrorClass, Hint, Symptom};
use super::config::RpcLimits;
use super::limiter::{Limiter, Readiness, Verdict};
use super::memory::CallMemory;
use super::meters::{LogGate, Meters};
use super::redact::EndpointName;
use super::transport::{Transport, TransportError};
use super::wire::{self, Call, Decoded, ErrorObject};
use crate::{Result, SourceError};

/// One warning about failures per endpoint in this time.
const LOG_EVERY_MS: u64 = 10_000;
/// What a node answers for what it doesn't have.
const NULL: &[u8] = b"null";

/// Whether a result is `null`.
pub fn is_null(result: &Bytes) -> bool {
    result.as_ref() == NULL
}

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

/// Things that some nodes lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `eth_getBlockReceipts` with a block hash.
    ReceiptsByHash,
    /// `eth_getBlockReceipts`.
    BlockReceipts,
    /// `debug_getRawTransaction`.
    DebugRawTransaction,
    /// `eth_getRawTransactionByHash`.
    EthRawTransaction,
    /// `debug_traceBlockByHash`.
    Traces,
    /// The `safe` tag.
    SafeTag,
    /// The `finalized` tag.
    FinalizedTag,
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
    classifier: Arc<Classifier>,
    widths: [Width; Kind::ALL.len()],
    limits: RpcLimits,
    backoff: Mutex<Backoff>,
    lacks: Mutex<HashMap<Feature, Instant>>,
    /// The newest height that it announced, plus one; 0: none yet.
    head: AtomicU64,
    chain_checked: AtomicBool,
    wrong_chain: Mutex<Option<ChainId>>,
    /// Until when the caller doesn't want its answers, where another endpoint has one.
    distrusted_until: Mutex<Option<Instant>>,
    log: LogGate,
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
            widths: std::array::from_fn(|_| Width::new(limits)),
            backoff: Mutex::new(Backoff::new(limits.backoff_initial_ms, limits.backoff_max_ms, !seed)),
            lacks: Mutex::new(HashMap::new()),
            head: AtomicU64::new(0),
            chain_checked: AtomicBool::new(false),
            wrong_chain: Mutex::new(None),
            distrusted_until: Mutex::new(None),
            log: LogGate::new(LOG_EVERY_MS),
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

    /// Whether it was found to lack a feature, not too long ago.
    pub fn lacks(&self, feature: Feature) -> bool {
        let lacks = self.lacks.lock().unwrap_or_else(PoisonError::into_inner);
        lacks
            .get(&feature)
            .is_some_and(|since| since.elapsed() < Duration::from_millis(self.limits.capability_memory_ms))
    }

    /// It lacks a feature.
    pub fn note_lack(&self, feature: Feature) {
        let mut lacks = self.lacks.lock().unwrap_or_else(PoisonError::into_inner);
        if lacks.insert(feature, Instant::now()).is_none() {
            tracing::info!(endpoint = %self.name, ?feature, "the node lacks this; using the next best way");
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
        if self.wrong_chain().is_none() && self.chain_checked.load(Ordering::Acquire) {
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

    /// One call.
    pub async fn call(
        &self,
        kind: Kind,
        call: Call,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Result<Bytes> {
        let mut results = self.call_many(kind, &[call], patience, memory).await;
        match results.pop() {
            Some(result) => result.map_err(|error| self.error(error)),
            None => Err(self.error(CallError::transient("no result"))),
        }
    }

    /// Many calls of one kind, in batches of the learned width, results in the order of the calls.
    ///
    /// Failed items alone are asked for again, in units that are never larger than the one in which they failed. What a node says it doesn't
    /// know ("block not found") is `null`.
    pub async fn call_many(
        &self,
        kind: Kind,
        calls: &[Call],
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Vec<Result<Bytes, CallError>> {
        let width = self.width(kind).items();
        let positions: Vec<usize> = (0..calls.len()).collect();
        let units: Vec<Vec<usize>> = positions.chunks(width).map(<[usize]>::to_vec).collect();
        let mut results: Vec<Option<Result<Bytes, CallError>>> = vec![None; calls.len()];
        let mut answers = stream::iter(units)
            .map(|unit| self.run_unit(kind, calls, unit, patience, memory))
            .buffer_unordered(self.limits.parallel_batches.max(1));
        while let Some(part) = answers.next().await {
            for (position, result) in part {
                results[position] = Some(result);
            }
        }
        let missing = || Err(CallError::transient("no result"));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// One batch, with everything that becomes of it.
    async fn run_unit(
        &self,
        kind: Kind,
        calls: &[Call],
        unit: Vec<usize>,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Vec<(usize, Result<Bytes, CallError>)> {
        let mut done = Vec::with_capacity(unit.len());
        let mut attempts: HashMap<usize, u32> = HashMap::new();
        // A stack of units that are still to be asked, each a part of the first.
        let mut work = vec![unit];
        while let Some(unit) = work.pop() {
            let mut again = Vec::new();
            let mut narrower = Vec::new();
            let mut pause = 0;
            let lone = unit.len() == 1;
            let (results, whole_failed) = match self.request(kind, calls, &unit, patience, memory).await {
                Ok(results) => (results, false),
                Err(error) => (vec![Err(error); unit.len()], true),
            };
            for (&position, result) in unit.iter().zip(results) {
                let error = match result {
                    Ok(result) => {
                        done.push((position, Ok(result)));
                        continue;
                    }
                    Err(error) => error,
                };
                let refused = error.hint == Hint::Refused;
                match error.class {
                    _ if error.hint == Hint::NotFound => done.push((position, Ok(Bytes::from_static(NULL)))),
                    ErrorClass::TooWide if !lone => narrower.push(position),
                    // A refusal of the whole may be a refusal of batches: one call alone tells.
                    ErrorClass::Permanent if whole_failed && !lone && !refused => narrower.push(position),
                    ErrorClass::TooWide | ErrorClass::Permanent => done.push((position, Err(error))),
                    ErrorClass::RateLimited | ErrorClass::Transient => {
                        let tried = attempts.entry(position).or_insert(0);
                        *tried += 1;
                        if *tried >= patience.attempts {
                            done.push((position, Err(error)));
                        } else {
                            pause = pause.max(if error.class == ErrorClass::Transient { *tried } else { 0 });
                            if error.hint == Hint::TimedOut && !lone { &mut narrower } else { &mut again }
                                .push(position);
                        }
                    }
                }
            }
            // One call alone that finds the method missing speaks for all that are left.
            if lone
                && let Some((_, Err(error))) = done.last()
                && error.hint == Hint::MethodMissing
            {
                let error = error.clone();
                done.extend(work.drain(..).flatten().map(|position| (position, Err(error.clone()))));
                continue;
            }
            if !narrower.is_empty() {
                // Strictly narrower than the unit that failed, and without overlap (E13).
                let at_most = (unit.len() / 2).max(1);
                work.extend(narrower.chunks(at_most).rev().map(<[usize]>::to_vec));
            }
            self.meters.retries((again.len() + narrower.len()) as u64);
            if !again.is_empty() {
                work.push(again);
            }
            if pause > 0 {
                let pause = self.backoff.lock().unwrap_or_else(PoisonError::into_inner).pause(pause);
                tokio::time::sleep(pause).await;
            }
        }
        done
    }

    /// One HTTP request. `Err`: nothing of it was answered.
    async fn request(
        &self,
        kind: Kind,
        calls: &[Call],
        unit: &[usize],
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Result<Vec<Result<Bytes, CallError>>, CallError> {
        let items = unit.len();
        loop {
            let permit = self.limiter.acquire(patience.max_wait).await.map_err(|left| CallError {
                class: ErrorClass::RateLimited,
                hint: Hint::None,
                message: format!("it is {}", self.limiter.bound_by()),
                retry_after_ms: Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                answered: false,
            })?;
            self.meters.in_flight(self.limiter.in_flight());
            let begun = Instant::now();
            let answer = self.transport.post(wire::encode(calls, unit), memory).await;
            let took = begun.elapsed();
            if answer.as_ref().err() == Some(&TransportError::NeedsSlot) {
                drop(permit);
                self.meters.request(kind.name(), "large", 0, took);
                memory.take_slot().await;
                continue;
            }
            let bytes = answer.as_ref().map_or(0, |answer| answer.body.len() as u64);
            let outcome = self.read(answer, unit);
            let verdict = self.learn(kind, items, bytes, &outcome);
            permit.end(verdict);
            self.meters.in_flight(self.limiter.in_flight());
            let worst = worst(&outcome);
            self.meters.request(kind.name(), worst.map_or("ok", ErrorClass::name), bytes, took);
            self.meters.batch_items(kind.name(), self.width(kind).items());
            if verdict != Verdict::Answered {
                self.log_trouble(&outcome);
                if self.limiter.readiness() != Readiness::Ready {
                    self.chain_checked.store(false, Ordering::Release);
                }
            }
            return outcome;
        }
    }

    /// Makes results of an answer.
    fn read(
        &self,
        answer: Result<super::transport::Answer, TransportError>,
        unit: &[usize],
    ) -> Result<Vec<Result<Bytes, CallError>>, CallError> {
        let answer = answer.map_err(|error| match error {
            TransportError::TooLarge { max_bytes } => CallError {
                class: ErrorClass::TooWide,
                hint: Hint::None,
                message: format!("its answer is larger than {max_bytes} bytes (max_response_bytes)"),
                retry_after_ms: None,
                answered: false,
            },
            TransportError::TimedOut(message) => {
                CallError { hint: Hint::TimedOut, ..CallError::transient(message) }
            }
            TransportError::Network(message) => CallError::transient(message),
            TransportError::NeedsSlot => CallError::transient("its answer needs the slot for large ones"),
        })?;
        let retry_after_ms = answer.retry_after_ms;
        let classify = |error: ErrorObject| {
            let symptom =
                Symptom { http_status: Some(answer.status), code: Some(error.code), text: &error.message };
            let (class, hint) = self.classifier.classify(symptom);
            let message = self.name.scrub(&format!("{} (code {})", error.message, error.code));
            CallError { class, hint, message, retry_after_ms, answered: true }
        };
        let good_status = (200..300).contains(&answer.status);
        match wire::decode(&answer.body, unit) {
            Ok(Decoded::Failed(error)) => Err(classify(error)),
            Ok(Decoded::Items(items)) if good_status || items.iter().flatten().any(Result::is_err) => {
                Ok(items
                    .into_iter()
                    .map(|item| match item {
                        Some(Ok(result)) => Ok(result),
                        Some(Err(error)) => Err(classify(error)),
                        None => Err(CallError::transient("the batch's answer leaves this item out")),
                    })
                    .collect())
            }
            decoded => {
                let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(2_000)]);
                let (class, hint) = if good_status {
                    (ErrorClass::Transient, Hint::None)
                } else {
                    self.classifier.classify(Symptom {
                        http_status: Some(answer.status),
                        code: None,
                        text: &body,
                    })
                };
                let why = match decoded {
                    Err(why) => format!("HTTP {}, {why}: {body}", answer.status),
                    Ok(_) => format!("HTTP {}: {body}", answer.status),
                };
                Err(CallError {
                    class,
                    hint,
                    message: self.name.scrub(&why),
                    retry_after_ms,
                    answered: false,
                })
            }
        }
    }

    /// What the limiter and the width learn of an answer.
    fn learn(
        &self,
        kind: Kind,
        items: usize,
        bytes: u64,
        outcome: &Result<Vec<Result<Bytes, CallError>>, CallError>,
    ) -> Verdict {
        let width = self.width(kind);
        let results = match outcome {
            Err(error) => {
                self.meters.errors(error.class.name(), items as u64);
                return match error.class {
                    _ if error.hint == Hint::NotFound => Verdict::Answered,
                    _ if error.hint == Hint::Refused => Verdict::Failed,
                    ErrorClass::RateLimited => Verdict::RateLimited { retry_after_ms: error.retry_after_ms },
                    ErrorClass::Transient => {
                        if error.hint == Hint::TimedOut {
                            width.too_slow(items);
                        }
                        Verdict::Failed
                    }
                    ErrorClass::TooWide => {
                        width.too_wide(items);
                        Verdict::Answered
                    }
                    ErrorClass::Permanent => {
                        if items > 1 {
                            width.too_wide(items);
                        }
                        Verdict::Answered
                    }
                };
            }
            Ok(results) => results,
        };
        let mut failed = 0;
        let mut limited = None;
        let mut too_wide = false;
        let mut too_slow = false;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.meters.errors(error.class.name(), 1);
            too_slow |= error.hint == Hint::TimedOut;
            match error.class {
                _ if error.hint == Hint::NotFound => {}
                _ if error.hint == Hint::Refused => failed += 1,
                ErrorClass::RateLimited => limited = Some(error.retry_after_ms),
                ErrorClass::Transient => failed += 1,
                ErrorClass::TooWide => too_wide = true,
                ErrorClass::Permanent => {}
            }
        }
        if too_wide {
            width.too_wide(items);
        } else if too_slow {
            width.too_slow(items);
        } else if failed == 0 && limited.is_none() {
            width.answered(items, bytes);
        }
        match limited {
            Some(retry_after_ms) => Verdict::RateLimited { retry_after_ms },
            None if failed == items => Verdict::Failed,
            None => Verdict::Answered,
        }
    }

    fn log_trouble(&self, outcome: &Result<Vec<Result<Bytes, CallError>>, CallError>) {
        let first = match outcome {
            Err(error) => Some(error),
            Ok(results) => results.iter().find_map(|result| result.as_ref().err()),
        };
        if let Some(error) = first
            && let Some(held_back) = self.log.open()
        {
            tracing::warn!(
                endpoint = %self.name, class = error.class.name(), error = error.message, held_back, bound_by = self.limiter.bound_by(),
                "requests fail"
            );
        }
    }

    /// A call's error as the source's, with the endpoint's name.
    pub fn error(&self, error: CallError) -> SourceError {
        let endpoint = self.name.to_string();
        let message = error.message;
        match error.class {
            ErrorClass::TooWide => SourceError::TooWide { endpoint, message },
            ErrorClass::RateLimited => {
                SourceError::RateLimited { endpoint, message, retry_after_ms: error.retry_after_ms }
            }
            ErrorClass::Transient => SourceError::Transient { endpoint, message },
            ErrorClass::Permanent => SourceError::Permanent { endpoint, message },
        }
    }
}

/// The worst class in an answer, for metrics.
fn worst(outcome: &Result<Vec<Result<Bytes, CallError>>, CallError>) -> Option<ErrorClass> {
    let rank = |class: &ErrorClass| match class {
        ErrorClass::RateLimited => 3,
        ErrorClass::Transient => 2,
        ErrorClass::TooWide => 1,
        ErrorClass::Permanent => 0,
    };
    match outcome {
        Err(error) => Some(error.class),
        Ok(results) => results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .map(|error| error.class)
            .max_by_key(rank),
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
