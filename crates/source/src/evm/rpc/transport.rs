//! HTTP: one POST, its answer read piece by piece within limits of size and time.
//!
//! - TLS is rustls with the ring provider (a C compiler is enough to build it) and the system's root certificates, which are read only when an endpoint
//!   needs them.
//! - The size limit counts decompressed bytes, so a small gzip body can't grow without bound.
//! - Redirects are not followed: they would carry keys elsewhere.
//! - No error or log shows more of a URL than [`EndpointName`] does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cairn_core::Clock;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tokio::time::Instant;
use url::Url;

use super::config::RpcLimits;
use super::memory::{CallMemory, Refusal};
use super::redact::EndpointName;
use crate::{Result, SourceError};

/// For so long it is remembered that calls were given up.
const GIVEN_UP_MEMORY: Duration = Duration::from_secs(600);
/// How often the patience with a silent call is doubled at most.
const MAX_DOUBLINGS: u32 = 4;

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// How long the server asks us to stay away, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The body, decompressed; charged to the call.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// The answer is larger than the limit, in bytes.
    TooLarge {
        /// The limit.
        max_bytes: u64,
    },
    /// The call has to take the slot for large answers and ask again.
    NeedsSlot,
    /// It took too long.
    TimedOut(String),
    /// The network, or HTTP itself.
    Network(String),
}

/// The way to one endpoint.
///
/// A connection may die without a word, and a node may work on an answer for minutes: both are silent. So while an answer doesn't begin, the node is asked for
/// something small on a new connection, a quarter of `idle_timeout_ms` at a time. Once the node left that without an answer and then answers again, the calls from
/// before are given up. A node that is overloaded looks the same, so each time within ten minutes doubles the patience with the next calls.
#[derive(Debug)]
pub struct Transport {
    link: Mutex<Link>,
    parts: ClientParts,
    /// Keeps no connection.
    prober: reqwest::Client,
    /// Held by the one that asks whether the node is there.
    probing: tokio::sync::Mutex<()>,
    probe_after: Duration,
    url: Url,
    name: EndpointName,
    max_idle: usize,
    idle_timeout: Duration,
    request_timeout: Duration,
    max_response_bytes: u64,
    retry_after_max_ms: u64,
    clock: Arc<dyn Clock>,
}

/// The connections in use.
#[derive(Debug)]
struct Link {
    client: reqwest::Client,
    /// Since when the node answers nothing at all.
    silent_since: Option<Instant>,
    /// Calls that were sent before this are given up.
    dead_before: Option<Instant>,
    /// How often calls were given up lately, and when last.
    given_up: (u32, Option<Instant>),
}

impl Link {
    fn new(client: reqwest::Client) -> Link {
        Link { client, silent_since: None, dead_before: None, given_up: (0, None) }
    }

    /// How often calls were given up in the last minutes.
    fn given_up_lately(&self) -> u32 {
        let (times, last) = self.given_up;
        last.filter(|last| last.elapsed() < GIVEN_UP_MEMORY).map_or(0, |_| times)
    }
}

/// What clients of one endpoint are made of.
#[derive(Debug)]
struct ClientParts {
    tls: rustls::ClientConfig,
    headers: HeaderMap,
    connect_timeout: Duration,
}

impl ClientParts {
    fn client(&self, max_idle: usize) -> reqwest::Result<reqwest::Client> {
        reqwest::Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .default_headers(self.headers.clone())
            .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect_timeout)
            .pool_max_idle_per_host(max_idle)
            .tcp_nodelay(true)
            .http2_adaptive_window(true)
            .build()
    }
}

impl Transport {
    /// Prepares the way to `url`; connects only when it is used.
    pub fn new(
        url: &Url,
        name: EndpointName,
        headers: &[(String, String)],
        limits: &RpcLimits,
        tls: &rustls::ClientConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Transport> {
        let parts = ClientParts {
            tls: tls.clone(),
            headers: header_map(headers)?,
            connect_timeout: Duration::from_millis(limits.connect_timeout_ms),
        };
        let client = |max_idle| {
            parts.client(max_idle).map_err(|error| {
                let causes = causes(&error.without_url());
                SourceError::Invalid(format!("can't make an HTTP client for {name}: {causes}"))
            })
        };
        let link = Link::new(client(limits.max_in_flight)?);
        let prober = client(0)?;
        Ok(Transport {
            link: Mutex::new(link),
            parts,
            prober,
            probing: tokio::sync::Mutex::default(),
            probe_after: Duration::from_millis((limits.idle_timeout_ms / 4).max(1)),
            max_idle: limits.max_in_flight,
            url: url.clone(),
            name,
            idle_timeout: Duration::from_millis(limits.idle_timeout_ms),
            request_timeout: Duration::from_millis(limits.request_timeout_ms),
            max_response_bytes: limits.max_response_bytes,
            retry_after_max_ms: limits.retry_after_max_ms,
            clock,
        })
    }

    /// Posts a JSON body and reads the answer.
    pub async fn post(&self, body: Vec<u8>, memory: &Arc<CallMemory>) -> Result<Answer, TransportError> {
        let whole = async {
            let mut response = self.begun(body).await?;
            let status = response.status().as_u16();
            let retry_after_ms = self.retry_after_ms(response.headers());
            let mut body = memory.body();
            if let Some(bytes) = response
                .headers()
                .get(CONTENT_LENGTH)
                .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
            {
                if bytes > self.max_response_bytes {
                    return Err(TransportError::TooLarge { max_bytes: self.max_response_bytes });
                }
                body.expect(bytes);
            }
            loop {
                let piece = match tokio::time::timeout(self.idle_timeout, response.chunk()).await {
                    Err(_) => {
                        let ms = self.idle_timeout.as_millis();
                        return Err(TransportError::TimedOut(format!(
                            "the answer stopped for {ms} ms after {} bytes",
                            body.len_bytes()
                        )));
                    }
                    Ok(piece) => piece.map_err(|error| self.network(error))?,
                };
                let Some(piece) = piece else { break };
                if body.len_bytes() + piece.len() as u64 > self.max_response_bytes {
                    return Err(TransportError::TooLarge { max_bytes: self.max_response_bytes });
                }
                body.push(&piece).map_err(|refusal| match refusal {
                    Refusal::NeedsSlot => TransportError::NeedsSlot,
                    Refusal::OverLimit => TransportError::TooLarge { max_bytes: self.max_response_bytes },
                })?;
            }
            Ok(Answer { status, retry_after_ms, body: body.finish() })
        };
        match tokio::time::timeout(self.request_timeout, whole).await {
            Ok(result) => result,
            Err(_) => Err(TransportError::TimedOut(format!(
                "no whole answer within {} ms",
                self.request_timeout.as_millis()
            ))),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a body and waits until its answer begins.
    async fn begun(&self, body: Vec<u8>) -> Result<reqwest::Response, TransportError> {
        let sent_at = Instant::now();
        let (client, probe_after) = {
            let link = self.link();
            (link.client.clone(), self.probe_after * (1 << link.given_up_lately().min(MAX_DOUBLINGS)))
        };
        let sending =
            client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body).send();
        let watching = async {
            loop {
                tokio::time::sleep(probe_after).await;
                self.probe().await;
                if self.link().dead_before.is_some_and(|dead_before| sent_at < dead_before) {
                    return;
                }
            }
        };
        let response = tokio::select! {
            biased;
            response = sending => response.map_err(|error| self.network(error))?,
            () = watching => {
                return Err(TransportError::TimedOut(
                    "the node was silent, and answers again on new connections".into(),
                ));
            }
        };
        self.answered(sent_at);
        Ok(response)
    }

    /// Asks whether the node is there, unless another call does so now.
    async fn probe(&self) {
        const PROBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
        let Ok(_probing) = self.probing.try_lock() else { return };
        let asked_at = Instant::now();
        let asking =
            self.prober.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(PROBE).send();
        match tokio::time::timeout(self.probe_after, asking).await {
            Ok(Ok(_)) => self.answered(asked_at),
            _ => {
                let mut link = self.link();
                if link.silent_since.is_none() {
                    link.silent_since = Some(asked_at);
                    tracing::warn!(endpoint = %self.name, "the node answers nothing, not even eth_chainId; waiting for it");
                }
            }
        }
    }

    /// The node began to answer what was sent then. Where it was silent before, the connections of that time are given up.
    fn answered(&self, sent_at: Instant) {
        let mut link = self.link();
        if link.silent_since.is_none_or(|since| sent_at <= since) {
            return;
        }
        tracing::info!(endpoint = %self.name, "the node answers again");
        let given_up = (link.given_up_lately() + 1, Some(Instant::now()));
        match self.parts.client(self.max_idle) {
            Ok(client) => *link = Link { client, silent_since: None, dead_before: Some(sent_at), given_up },
            Err(error) => {
                tracing::warn!(endpoint = %self.name, error = %causes(&error), "can't make an HTTP client");
            }
        }
    }

    fn network(&self, error: reqwest::Error) -> TransportError {
        let error = error.without_url();
        let text = self.name.scrub(&causes(&error));
        if error.is_timeout() { TransportError::TimedOut(text) } else { TransportError::Network(text) }
    }

    fn retry_after_ms(&self, headers: &HeaderMap) -> Option<u64> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.clock.now_ms());
        retry_after_ms(headers, now).map(|wait_ms| wait_ms.min(self.retry_after_max_ms))
    }
}

/// `Retry-After` in either form (RFC 9110, 10.2.3), in milliseconds and without a cap. A date is compared with the server's own `Date` where it
/// sends one: clocks differ.
pub fn retry_after_ms(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse::<u64>() {
        Ok(seconds) => Some(seconds.saturating_mul(1_000)),
        Err(_) => {
            let until = httpdate::parse_http_date(text).ok()?;
            let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
            let wait = until.duration_since(date.unwrap_or(now)).unwrap_or_default();
            Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
        }
    }
}

/// An error with what is behind it: reqwest's own texts stop at "error sending request".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        at = cause.source();
    }
    text
}

/// Headers as HTTP wants them; errors name a header, never its value.
pub fn header_map(headers: &[(String, String)]) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| SourceError::Invalid(format!("`{name}` is not a name for an HTTP header")))?;
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            SourceError::Invalid(format!(
                "the value of the HTTP header `{name}` has characters that no header can hold"
            ))
        })?;
        value.set_sensitive(true);
        map.append(header, value);
    }
    Ok(map)
}

/// TLS for all endpoints. The system's root certificates are read only `with_roots`, so that plain endpoints work on a machine that has none.
pub fn tls_config(with_roots: bool) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    if with_roots {
        let found = rustls_native_certs::load_native_certs();
        let (added, ignored) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            return Err(SourceError::Invalid(format!(
                "an https or wss endpoint needs root certificates, and the system has none{why}; install them (Debian: ca-certificates) or set \
                 SSL_CERT_FILE"
            )));
        }
        if ignored > 0 {
            tracing::debug!(added, ignored, "root certificates");
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SourceError::Invalid(format!("can't set up TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
