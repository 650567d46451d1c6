//! JSON-RPC over HTTP: `POST` with a JSON body; `GET` that upgrades goes to the WebSocket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::guard::Guard;
use super::{Shared, ws};
use crate::error::RpcError;
use crate::rpc::{Answer, Charge};

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
    if let Ok(Some(origin)) = origin {
        Guard::allow(response.headers_mut(), origin);
    }
    response
}

async fn post(shared: &Shared, request: Request) -> Response {
    if !is_json(request.headers()) {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content type has to be application/json");
    }
    let limits = shared.service.limits();
    let read =
        tokio::time::timeout(Duration::from_millis(limits.body_timeout_ms), read_body(shared, request));
    let (body, charge) = match read.await {
        Ok(Ok(read)) => read,
        Ok(Err(BodyError::TooLarge)) => {
            let why = format!("the request body is larger than {} bytes", limits.max_body_bytes);
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &why);
        }
        Ok(Err(BodyError::Broken)) => return refuse(StatusCode::BAD_REQUEST, "the request body broke off"),
        Err(_) => {
            let why = format!("the request body did not come within {} ms", limits.body_timeout_ms);
            return refuse(StatusCode::REQUEST_TIMEOUT, &why);
        }
    };
    let answer = shared.service.answer(&body, None).await;
    drop((body, charge));
    match answer {
        Some(answer) => send(StatusCode::OK, answer),
        None => status(StatusCode::NO_CONTENT),
    }
}

enum BodyError {
    TooLarge,
    Broken,
}

/// Reads the body, against the budget of bodies where it may be large.
async fn read_body(shared: &Shared, request: Request) -> Result<(Bytes, Charge), BodyError> {
    let max_bytes = shared.service.limits().max_body_bytes;
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > max_bytes) {
        return Err(BodyError::TooLarge);
    }
    let may_be = announced.unwrap_or(max_bytes);
    let charge =
        if may_be > FREE_BODY_BYTES { shared.service.gate.bodies.take(may_be).await } else { Charge::none() };
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

/// Streams an answer piece by piece; its memory is given back when the last one is gone.
fn send(code: StatusCode, answer: Answer) -> Response {
    let length = answer.message.len_bytes();
    let charge = answer.charge;
    let pieces = stream::iter(answer.message.into_pieces().into_iter().map(move |piece| {
        let _held_until_the_stream_ends = &charge;
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
    send(code, Answer::error(&RpcError::invalid_request(why)))
}
