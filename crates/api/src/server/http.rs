//! JSON-RPC over HTTP: `POST` with a JSON body; `GET` that upgrades goes to the WebSocket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::guard::RPC_CORS;
use super::listener::{Deadline, Peer};
use super::{Shared, ws};
use crate::error::RpcError;
use crate::rpc::{Account, Answer, Caller, Charge, SMALL_BYTES};

/// Bodies up to this size are not counted against the budget.
const FREE_BODY_BYTES: usize = 64 << 10;

/// Every request to the JSON-RPC address.
pub(super) async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let headers = request.headers();
    if !shared.guard.host_is_ours(headers, request.uri()) {
        let why = "this server doesn't answer to that Host; allow it with `serve.allowed_hosts`";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    let origin = shared.guard.origin(headers);
    if request.method() == Method::GET && ws::wants_upgrade(headers) {
        return match origin {
            Ok(_) => ws::upgrade(shared, request),
            Err(()) if shared.guard.is_own(headers) => ws::upgrade(shared, request),
            Err(()) => refuse(
                StatusCode::FORBIDDEN,
                "this origin is not allowed; allow it with `serve.allowed_origins`",
            ),
        };
    }
    let mut response = match *request.method() {
        Method::POST => post(&shared, request).await,
        Method::OPTIONS => status(StatusCode::NO_CONTENT),
        _ => {
            let why = "this is a JSON-RPC endpoint: POST a request to it, or open a WebSocket";
            let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, why);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, OPTIONS"));
            response
        }
    };
    shared.guard.allow(response.headers_mut(), origin, &RPC_CORS);
    response
}

async fn post(shared: &Shared, request: Request) -> Response {
    if !is_json(request.headers()) {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type has to be application/json");
    }
    if let Some(coding) = coding(request.headers()) {
        let why = format!(
            "the request body is compressed ({coding}), which this server doesn't take: send it without content-encoding"
        );
        let mut response = refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, &why);
        response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        return response;
    }
    let peer = request.extensions().get::<Peer>().cloned();
    let caller = caller(peer.as_ref());
    let limits = shared.service.limits();
    let read = tokio::time::timeout(
        Duration::from_millis(limits.body_timeout_ms),
        read_body(shared, request, caller),
    );
    let (body, charge) = match read.await {
        Ok(Ok(read)) => read,
        Ok(Err(BodyError::TooLarge)) => {
            let why = format!("the request body is larger than {} bytes", limits.max_body_bytes);
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &why);
        }
        Ok(Err(BodyError::Busy)) => {
            let why = "memory for request bodies is used up; send the request again, with content-length";
            let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, why);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return response;
        }
        Ok(Err(BodyError::Broken)) => return refuse(StatusCode::BAD_REQUEST, "the request body broke off"),
        Err(_) => {
            let why = format!("the request body did not come within {} ms", limits.body_timeout_ms);
            return refuse(StatusCode::REQUEST_TIMEOUT, &why);
        }
    };
    let answer = shared.service.answer(&body, caller).await;
    drop((body, charge));
    match answer {
        Some(answer) => match answer.retry_after_s {
            None => {
                let large = answer.message.len_bytes() > SMALL_BYTES;
                let limit = Duration::from_millis(limits.response_timeout_ms);
                let deadline = peer.filter(|_| large).map(|peer| Deadline::start(&peer, limit));
                send(StatusCode::OK, answer, deadline)
            }
            Some(seconds) => {
                let mut response = send(StatusCode::TOO_MANY_REQUESTS, answer, None);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                response
            }
        },
        None => status(StatusCode::NO_CONTENT),
    }
}

/// Who asks on a connection.
pub(super) fn caller(peer: Option<&Peer>) -> Caller<'static> {
    Caller {
        session: None,
        address: peer.map(|peer| peer.address),
        connection: peer.map_or(0, |peer| peer.connection),
    }
}

enum BodyError {
    Busy,
    TooLarge,
    Broken,
}

/// Reads the body, against the budget of bodies where it may be large.
async fn read_body(
    shared: &Shared,
    request: Request,
    caller: Caller<'_>,
) -> Result<(Bytes, Charge), BodyError> {
    let max_bytes = shared.service.limits().max_body_bytes;
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > max_bytes) {
        return Err(BodyError::TooLarge);
    }
    let may_be = announced.unwrap_or(max_bytes);
    let charge = if may_be > FREE_BODY_BYTES {
        let account = Account::of(caller.address, caller.connection);
        shared.service.gate.keep_body(account, may_be).await.ok_or(BodyError::Busy)?
    } else {
        Charge::none()
    };
    match Limited::new(request.into_body(), max_bytes).collect().await {
        Ok(body) => Ok((body.to_bytes(), charge)),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Err(_) => Err(BodyError::Broken),
    }
}

/// JSON content types, as go-ethereum takes them. A page of another origin can't send these without a preflight.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else { return false };
    let media = value.split(';').next().unwrap_or_default().trim();
    ["application/json", "application/json-rpc", "application/jsonrequest"]
        .iter()
        .any(|known| media.eq_ignore_ascii_case(known))
}

/// How a body is encoded, where it is: compressed, mostly. Shortened, for a message.
fn coding(headers: &HeaderMap) -> Option<String> {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    let mut named = codings
        .map(|value| String::from_utf8_lossy(value.as_bytes()).trim().chars().take(40).collect::<String>());
    named.find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity"))
}

/// Streams an answer piece by piece; its memory is given back when the last one is gone, which has to be in time.
fn send(code: StatusCode, answer: Answer, deadline: Option<Deadline>) -> Response {
    let length = answer.message.len_bytes();
    let held = (answer.charge, deadline);
    let pieces = stream::iter(answer.message.into_pieces().into_iter().map(move |piece| {
        let _held_until_the_stream_ends = &held;
        Ok::<_, Infallible>(piece)
    }));
    let mut response = Response::new(Body::from_stream(pieces));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

fn status(code: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}

/// Refuses with a JSON-RPC error, whatever the status.
pub(super) fn refuse(code: StatusCode, why: &str) -> Response {
    send(code, Answer::error(&RpcError::invalid_request(why)), None)
}
