//! What stands around every route: limits of size, number and time; problems written as bodies; metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, IF_NONE_MATCH};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics::{counter, histogram};
use tokio::time::{Instant, timeout};

use super::problem::{Code, Problem};
use super::{Api, cache};
use crate::metered::{REST_REQUESTS, REST_SECONDS};

/// The most of a path that a problem repeats, in bytes.
const MAX_INSTANCE_BYTES: usize = 256;

/// Lets a request in, in its turn and for a bounded time, and writes what became of it.
pub(crate) async fn guard(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let instance = shortened(request.uri().path());
    let route = match request.extensions().get::<MatchedPath>() {
        Some(path) if !path.as_str().contains('*') => path.as_str().to_owned(),
        _ => "unknown".to_owned(),
    };
    let began = Instant::now();
    let known = request.headers().get(IF_NONE_MATCH).cloned();
    let reads = request.method() == Method::GET;
    let answered = match answer(&api, request, next).await {
        Ok(response) if reads => cache::tag(response, known.as_ref()).await,
        answered => answered,
    };
    let mut response = match answered {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        problem.write(&mut response, &instance);
    }
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let status = response.status().as_u16().to_string();
    counter!(REST_REQUESTS, "route" => route.clone(), "status" => status).increment(1);
    histogram!(REST_SECONDS, "route" => route).record(began.elapsed().as_secs_f64());
    response
}

/// A path, cut where it is too long; never within a percent-encoded byte.
fn shortened(path: &str) -> String {
    // A path is ASCII: anything else came percent-encoded.
    let Some(cut) = path.get(..MAX_INSTANCE_BYTES) else { return path.to_owned() };
    let within = cut.len().saturating_sub(2);
    let end = cut.get(within..).and_then(|end| end.find('%')).map_or(cut.len(), |at| within + at);
    cut.get(..end).unwrap_or_default().to_owned()
}

async fn answer(api: &Api, request: Request, next: Next) -> Result<Response, Problem> {
    let limits = api.limits();
    let uri_bytes = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
    if uri_bytes > limits.max_uri_bytes {
        let what = format!("path and query have {uri_bytes} bytes, the limit is {}", limits.max_uri_bytes);
        return Err(Problem::new(Code::UriTooLong, what));
    }
    let body_bytes =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if body_bytes.is_some_and(|bytes: u64| bytes > limits.max_body_bytes) {
        let what = format!("the limit is {} bytes, and no request here needs a body", limits.max_body_bytes);
        return Err(Problem::new(Code::BodyTooLarge, what));
    }
    let turn = timeout(Duration::from_millis(limits.queue_timeout_ms), api.turns().acquire()).await;
    let _turn = match turn {
        Ok(Ok(turn)) => turn,
        _ => {
            let what = format!("{} requests are being answered already", limits.max_concurrent_requests);
            return Err(Problem::new(Code::Overloaded, what));
        }
    };
    let limit = Duration::from_millis(limits.request_timeout_ms);
    timeout(limit, next.run(request)).await.map_err(|_| {
        Problem::new(Code::Timeout, format!("no answer within {} ms", limits.request_timeout_ms))
    })
}

/// For paths that don't exist.
pub(crate) async fn no_route() -> Problem {
    Problem::new(Code::UnknownRoute, "there is no such path; /v1/docs lists them")
}

/// For methods that a path doesn't have.
pub(crate) async fn no_method(method: Method) -> Problem {
    Problem::new(Code::MethodNotAllowed, format!("{method} is not allowed here; everything is read with GET"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_not_cut_within_an_encoded_byte() {
        for len in 0..6 {
            let path = format!("/{}{}", "a".repeat(MAX_INSTANCE_BYTES - 4 + len), "%C3%A4".repeat(3));
            let short = shortened(&path);
            assert!(short.len() <= MAX_INSTANCE_BYTES && path.starts_with(&short));
            let last = short.rfind('%').map_or(3, |at| short.len() - at);
            assert!(last >= 3, "{short}");
        }
        assert_eq!(shortened("/v1/blocks"), "/v1/blocks");
    }
}
