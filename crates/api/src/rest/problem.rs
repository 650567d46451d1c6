//! Errors as `application/problem+json` (RFC 9457).
//!
//! A handler's [`Problem`] travels as an extension of an empty response; the guard around all routes writes the body, since it
//! knows what was asked.

use std::fmt::Display;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cairn_core::Height;
use cairn_evm::EvmError;
use cairn_store::StoreError;
use serde::Serialize;
use utoipa::ToSchema;

use super::words::Num;

/// What went wrong, in a word that programs may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// A part of the path or the query is malformed, out of range, given twice, or not known.
    InvalidParameter,
    /// The cursor is not one of this list with these filters, of this store, or not one at all.
    InvalidCursor,
    /// There is no such path.
    UnknownRoute,
    /// What was named doesn't exist as far as this server's data goes.
    NotFound,
    /// The height lies above the newest stored block: it isn't there yet.
    AboveHead,
    /// The height lies below the first stored block: this archive doesn't go back that far.
    BelowArchive,
    /// The path exists, the method doesn't.
    MethodNotAllowed,
    /// Rows that earlier pages showed were taken away by a reorg. Drop those above `common_height`; `next`, where it is there, goes on
    /// from it, else begin again.
    Reorged,
    /// The two databases stand on different forks for now: try again.
    ForksDisagree,
    /// The body is too large; nothing here reads one.
    BodyTooLarge,
    /// Path and query are too long.
    UriTooLong,
    /// The server failed; its log says why.
    Internal,
    /// The worker that fills this table is not enabled here: see `worker`. Where it ran once, `watermark_height` is how far it came.
    WorkerNotEnabled,
    /// The data is expected to come: a worker has not got there yet, or a reorg is being applied. Try again.
    NotYet,
    /// A worker makes everything that it had made anew, and what is there so far is less than what was shown before: see `worker`, `watermark_height` and `until_height`. Try again.
    BeingRebuilt,
    /// Too many requests at once: try again.
    Overloaded,
    /// The database is busy: try again.
    Busy,
    /// The time limit passed.
    Timeout,
}

impl Code {
    /// Every code, for the documentation.
    pub(crate) const ALL: [Code; 18] = [
        Code::InvalidParameter,
        Code::InvalidCursor,
        Code::UnknownRoute,
        Code::NotFound,
        Code::AboveHead,
        Code::BelowArchive,
        Code::MethodNotAllowed,
        Code::Reorged,
        Code::ForksDisagree,
        Code::BodyTooLarge,
        Code::UriTooLong,
        Code::Internal,
        Code::WorkerNotEnabled,
        Code::NotYet,
        Code::BeingRebuilt,
        Code::Overloaded,
        Code::Busy,
        Code::Timeout,
    ];

    /// Its word, title and status.
    pub(crate) fn parts(self) -> (&'static str, &'static str, StatusCode) {
        match self {
            Code::InvalidParameter => {
                ("invalid-parameter", "A parameter can't be read", StatusCode::BAD_REQUEST)
            }
            Code::InvalidCursor => {
                ("invalid-cursor", "The cursor doesn't belong here", StatusCode::BAD_REQUEST)
            }
            Code::UnknownRoute => ("unknown-route", "There is no such path", StatusCode::NOT_FOUND),
            Code::NotFound => ("not-found", "There is no such thing", StatusCode::NOT_FOUND),
            Code::AboveHead => ("above-head", "The height is above the newest block", StatusCode::NOT_FOUND),
            Code::BelowArchive => (
                "below-archive",
                "The height is below the first block of this archive",
                StatusCode::NOT_FOUND,
            ),
            Code::MethodNotAllowed => {
                ("method-not-allowed", "The path has no such method", StatusCode::METHOD_NOT_ALLOWED)
            }
            Code::Reorged => ("reorged", "A reorg took away what was shown before", StatusCode::CONFLICT),
            Code::ForksDisagree => {
                ("forks-disagree", "The databases stand on different forks", StatusCode::CONFLICT)
            }
            Code::BodyTooLarge => {
                ("body-too-large", "The request's body is too large", StatusCode::PAYLOAD_TOO_LARGE)
            }
            Code::UriTooLong => ("uri-too-long", "Path and query are too long", StatusCode::URI_TOO_LONG),
            Code::Internal => ("internal", "The server failed", StatusCode::INTERNAL_SERVER_ERROR),
            Code::WorkerNotEnabled => {
                ("worker-not-enabled", "The worker behind this is not enabled", StatusCode::NOT_IMPLEMENTED)
            }
            Code::NotYet => ("not-yet", "The data is not there yet", StatusCode::SERVICE_UNAVAILABLE),
            Code::BeingRebuilt => {
                ("being-rebuilt", "The data behind this is being made anew", StatusCode::SERVICE_UNAVAILABLE)
            }
            Code::Overloaded => ("overloaded", "Too many requests at once", StatusCode::SERVICE_UNAVAILABLE),
            Code::Busy => ("busy", "The database is busy", StatusCode::SERVICE_UNAVAILABLE),
            Code::Timeout => ("timeout", "The time limit passed", StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// Whether the same request may be made again, and after how many seconds.
    fn retry_after_s(self) -> Option<u32> {
        match self {
            Code::ForksDisagree | Code::NotYet | Code::Overloaded | Code::Busy | Code::Timeout => Some(1),
            Code::BeingRebuilt => Some(REBUILD_RETRY_S),
            _ => None,
        }
    }
}

/// A rebuild folds the whole chain once more: nobody need ask each second whether it is done.
const REBUILD_RETRY_S: u32 = 30;

/// What some problems say beside the standard members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Extra {
    /// Which part of the request is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// The worker to enable or to wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The first height that is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_missing: Option<Num>,
    /// The first stored height.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_height: Option<Num>,
    /// The newest stored height.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tip_height: Option<Num>,
    /// How far the data behind this answer goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark_height: Option<Num>,
    /// Where the data behind this is whole again: the newest height that it had reached before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_height: Option<Num>,
    /// The last height at which what was shown before still holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_height: Option<Num>,
    /// A cursor that goes on from the common height.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// When to try again, in seconds; as the header Retry-After.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

/// An error on its way to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub code: Code,
    pub detail: String,
    pub extra: Box<Extra>,
}

/// The body of an error, `application/problem+json` (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody<'a> {
    /// Where this kind of error is described.
    #[serde(rename = "type")]
    #[schema(format = "uri-reference")]
    pub kind: String,
    /// The kind of error in a few words.
    pub title: &'a str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// What is wrong with this request, and what to do.
    pub detail: &'a str,
    /// The path that was asked for.
    #[schema(format = "uri-reference")]
    pub instance: &'a str,
    /// The kind of error for programs.
    pub code: Code,
    #[serde(flatten)]
    pub extra: &'a Extra,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Problem {
        let extra = Extra { retry_after_s: code.retry_after_s(), ..Extra::default() };
        Problem { code, detail: detail.into(), extra: Box::new(extra) }
    }

    /// With more members.
    pub(crate) fn with(mut self, set: impl FnOnce(&mut Extra)) -> Problem {
        set(&mut self.extra);
        self
    }

    /// A part of the path or the query is wrong.
    pub(crate) fn parameter(name: &str, what: impl Display) -> Problem {
        Problem::new(Code::InvalidParameter, format!("{name}: {what}"))
            .with(|extra| extra.parameter = Some(name.into()))
    }

    pub(crate) fn cursor(what: &str) -> Problem {
        Problem::new(Code::InvalidCursor, format!("{what}; begin without a cursor"))
            .with(|extra| extra.parameter = Some("cursor".into()))
    }

    pub(crate) fn not_found(what: impl Display) -> Problem {
        Problem::new(Code::NotFound, format!("{what} is not known here"))
    }

    pub(crate) fn above_head(height: Height, tip: Option<Height>) -> Problem {
        let newest = tip.map_or("no block is stored yet".into(), |tip| format!("the newest block is {tip}"));
        Problem::new(Code::AboveHead, format!("block {height} is not there yet: {newest}")).with(|extra| {
            extra.first_missing = Some(Num(height.get()));
            extra.tip_height = tip.map(|tip| Num(tip.get()));
        })
    }

    pub(crate) fn below_archive(height: Height, first: Height) -> Problem {
        Problem::new(
            Code::BelowArchive,
            format!("block {height} is not in this archive: it begins at block {first}"),
        )
        .with(|extra| {
            extra.first_missing = Some(Num(height.get()));
            extra.first_height = Some(Num(first.get()));
        })
    }

    pub(crate) fn not_enabled(worker: &str) -> Problem {
        Problem::new(
            Code::WorkerNotEnabled,
            format!(
                "the worker {worker} is not enabled here, so there is no answer; enable it and try again"
            ),
        )
        .with(|extra| extra.worker = Some(worker.into()))
    }

    /// A worker that doesn't run stands below what was asked for.
    pub(crate) fn stopped(worker: &str, watermark: Height) -> Problem {
        Problem::new(
            Code::WorkerNotEnabled,
            format!(
                "the worker {worker} is not enabled here and stands at block {watermark}, so there is no answer above it; enable it and try again"
            ),
        )
        .with(|extra| {
            extra.worker = Some(worker.into());
            extra.watermark_height = Some(Num(watermark.get()));
        })
    }

    /// This kind of chain has no such table.
    pub(crate) fn no_such_table(table: &str, chain: &str) -> Problem {
        Problem::new(
            Code::WorkerNotEnabled,
            format!("no worker fills {table} on {chain}, so there is no answer"),
        )
    }

    pub(crate) fn not_yet(worker: &str, watermark: Option<Height>) -> Problem {
        let stands = watermark
            .map_or("has not finished a block yet".into(), |at| format!("has come as far as block {at}"));
        Problem::new(Code::NotYet, format!("the worker {worker} {stands}")).with(|extra| {
            extra.worker = Some(worker.into());
            extra.watermark_height = watermark.map(|at| Num(at.get()));
        })
    }

    /// A worker begins anew. `watermark` is where it has come to, `until` where it was.
    pub(crate) fn being_rebuilt(worker: &str, watermark: Option<Height>, until: Option<Height>) -> Problem {
        let stands = watermark
            .map_or("has not finished a block yet".into(), |at| format!("has come as far as block {at}"));
        let was = until.map_or(String::new(), |until| format!(" of {until}"));
        Problem::new(
            Code::BeingRebuilt,
            format!(
                "the worker {worker} makes everything anew and {stands}{was}; there is no answer before it is where it was"
            ),
        )
        .with(|extra| {
            extra.worker = Some(worker.into());
            extra.watermark_height = watermark.map(|at| Num(at.get()));
            extra.until_height = until.map(|until| Num(until.get()));
        })
    }

    /// The server failed. What is logged is not shown.
    pub(crate) fn internal(logged: impl Display) -> Problem {
        tracing::error!(error = %logged, "a REST request failed");
        Problem::new(Code::Internal, "the server failed; its log says why")
    }

    /// As bytes of JSON.
    pub(crate) fn body(&self, instance: &str) -> Vec<u8> {
        let (word, title, status) = self.code.parts();
        let body = ProblemBody {
            kind: format!("/v1/docs#{word}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            instance,
            code: self.code,
            extra: &self.extra,
        };
        serde_json::to_vec(&body).unwrap_or_default()
    }

    /// Lays the problem over a response that carries one.
    pub(crate) fn write(self, response: &mut Response, instance: &str) {
        *response.status_mut() = self.code.parts().2;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.extra.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        *response.body_mut() = Body::from(self.body(instance));
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.code.parts().2.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            StoreError::Busy(_) => {
                Problem::new(Code::Busy, "the database could not answer in time; try again")
            }
            StoreError::NotYet { what } => {
                Problem::new(Code::NotYet, format!("{what} can't be read while a reorg is being applied"))
            }
            StoreError::Missing { missing } => {
                let first = missing.start();
                Problem::new(Code::NotFound, format!("block {first} is not stored"))
                    .with(|extra| extra.first_missing = Some(Num(first.get())))
            }
            // It names the height, as JSON-RPC does.
            StoreError::Corrupt { .. } => {
                tracing::error!(%error, "a REST request met damaged data");
                Problem::new(Code::Internal, error.to_string())
            }
            error => Problem::internal(error),
        }
    }
}

impl From<EvmError> for Problem {
    fn from(error: EvmError) -> Problem {
        Problem::internal(error)
    }
}
