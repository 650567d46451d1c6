//! The HTTP client under `object_store`: notes what each answer said, and finds errors that come with status 200.
//!
//! S3 begins to answer some requests before it knows how they end, and then reports failure in a body with status 200 (field case O01). Such an
//! answer is turned into the error that it is, for every request that writes, not only those for which the library looks. What is
//! noted belongs to the task that runs a try ([`watched`]), since the library passes nothing of it on.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Method, StatusCode};

/// The longest answer to a request that writes, or error, that is taken in, in bytes. A bulk deletion's answer is the longest.
const MAX_ANSWER_BYTES: usize = 4 << 20;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection is kept while nobody uses it. It is less than an answer may take to begin: those that died silently are gone by then.
const IDLE: Duration = Duration::from_secs(5);

/// The slowest way on which a body is sent, in bytes a second.
const MIN_UPLOAD_BYTES_PER_S: u64 = 64 << 10;

/// What the last answer of a try said.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) status: Option<u16>,
    /// It was an error.
    pub(super) failed: bool,
    pub(super) code: Option<String>,
    pub(super) message: Option<String>,
    pub(super) request_id: Option<String>,
    pub(super) retry_after_ms: Option<u64>,
}

tokio::task_local! {
    static SEEN: RefCell<Seen>;
}

/// Runs one try, and answers what its last request was told.
pub(super) async fn watched<T>(attempt: impl Future<Output = T>) -> (T, Seen) {
    SEEN.scope(RefCell::default(), async {
        let answer = attempt.await;
        (answer, SEEN.with(RefCell::take))
    })
    .await
}

fn note(seen: Seen) {
    // Outside a try nobody asks.
    let _ = SEEN.try_with(|cell| cell.replace(seen));
}

/// Makes clients with rustls and the ring provider, and the system's root certificates where TLS is used.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) with_tls: bool,
    /// How long an answer may take to begin, beyond the time that the request's body may take.
    pub(super) answer_timeout: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let generic = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
            store: "HTTP client",
            source,
        };
        let mut roots = rustls::RootCertStore::empty();
        if self.with_tls {
            let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                let why = "the system has no root certificates; install them (Debian: ca-certificates) or set SSL_CERT_FILE";
                return Err(generic(why.into()));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| generic(error.into()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
            // A signed request can't follow a redirect; the error says where the mistake is.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE)
            // Bodies come as they are stored.
            .no_gzip()
            .build()
            .map_err(|error| generic(error.into()))?;
        Ok(HttpClient::new(Watched { client, answer_timeout: self.answer_timeout }))
    }
}

#[derive(Debug)]
struct Watched {
    client: reqwest::Client,
    answer_timeout: Duration,
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        note(Seen::default());
        let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
        let sending = Duration::from_secs(request.body().content_length() as u64 / MIN_UPLOAD_BYTES_PER_S);
        let answer = tokio::time::timeout(self.answer_timeout + sending, self.client.call(request)).await;
        let response = match answer {
            Ok(response) => response?,
            Err(elapsed) => return Err(HttpError::new(HttpErrorKind::Timeout, elapsed)),
        };
        let status = response.status();
        let mut seen = Seen {
            status: Some(status.as_u16()),
            failed: !status.is_success(),
            request_id: request_id(response.headers()),
            retry_after_ms: retry_after_ms(response.headers()),
            ..Seen::default()
        };
        if status.is_success() && !writes {
            note(seen);
            return Ok(response);
        }
        note(seen.clone());
        let (mut parts, body) = response.into_parts();
        let body = read(body.bytes_stream()).await?;
        let text = String::from_utf8_lossy(&body);
        if status.is_success() && is_error(&text) {
            seen.failed = true;
            parts.status = match element(&text, "Code") {
                Some("SlowDown" | "ServiceUnavailable") => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
        }
        if seen.failed {
            seen.code = element(&text, "Code").map(str::to_owned);
            seen.message = element(&text, "Message").map(str::to_owned);
            seen.request_id = seen.request_id.or_else(|| element(&text, "RequestId").map(str::to_owned));
            note(seen);
            // The library makes a text of it.
            let body = Bytes::from(text.into_owned());
            return Ok(HttpResponse::from_parts(parts, body.into()));
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

async fn read(
    mut chunks: futures::stream::BoxStream<'static, Result<Bytes, HttpError>>,
) -> Result<Bytes, HttpError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            let why = format!("an answer of more than {MAX_ANSWER_BYTES} bytes");
            return Err(HttpError::new(HttpErrorKind::Decode, std::io::Error::other(why)));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// By which header each provider names a request.
fn request_id(headers: &HeaderMap) -> Option<String> {
    ["x-amz-request-id", "x-guploader-uploadid", "x-goog-request-id", "x-request-id"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .map(|id| id.chars().take(120).collect())
}

/// Only seconds: a date would need the server's clock.
fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(seconds.saturating_mul(1_000))
}

/// Whether an XML document's root is `Error`. S3 may send blanks first, to keep the connection open.
fn is_error(text: &str) -> bool {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    while let Some(prolog) = rest.strip_prefix("<?").or_else(|| rest.strip_prefix("<!")) {
        match prolog.split_once('>') {
            Some((_, after)) => rest = after.trim_start(),
            None => return false,
        }
    }
    rest.strip_prefix("<Error").is_some_and(|rest| rest.starts_with(['>', ' ', '/', '\r', '\n', '\t']))
}

/// The text of the first element `name`. Enough for the flat errors of S3; what isn't found is left out of messages.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let begin = text.find(&format!("<{name}>"))? + name.len() + 2;
    let len = text[begin..].find(&format!("</{name}>"))?;
    Some(text[begin..begin + len].trim()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o01_an_error_is_known_by_its_root_alone() {
        for error in [
            "<Error><Code>SlowDown</Code></Error>",
            "  \n <?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>InternalError</Code></Error>",
            "\u{feff}<?xml version=\"1.0\"?><!-- x --><Error xmlns=\"x\"><Code>X</Code></Error>",
            "<Error/>",
        ] {
            assert!(is_error(error), "{error}");
        }
        for fine in [
            "",
            "<CompleteMultipartUploadResult><ETag>Error</ETag></CompleteMultipartUploadResult>",
            "<DeleteResult><Error><Code>AccessDenied</Code></Error></DeleteResult>",
            "<Errors></Errors>",
            "<?xml",
            "Error",
        ] {
            assert!(!is_error(fine), "{fine}");
        }
    }

    #[test]
    fn elements_are_found_or_left_out() {
        let text = "<Error><Code>SlowDown</Code><Message> Reduce your rate. </Message><RequestId></RequestId></Error>";
        assert_eq!(element(text, "Code"), Some("SlowDown"));
        assert_eq!(element(text, "Message"), Some("Reduce your rate."));
        assert_eq!(element(text, "RequestId"), None);
        assert_eq!(element("<Code>cut", "Code"), None);
    }
}
