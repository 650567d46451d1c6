//! What may be kept by those who asked: tags of answers, and how long one holds.

use axum::body::{Body, HttpBody};
use axum::extract::Extension;
use axum::http::header::{CACHE_CONTROL, ETAG, VARY};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use sha2::{Digest, Sha256};

use super::problem::Problem;

/// Bytes of a tag. They tell answers apart, and guard nothing.
const TAG_BYTES: usize = 16;

/// What is asked again each time whether it has changed.
const ASK_AGAIN: &str = "no-cache";
/// What was said of a final block: it doesn't change, but `meta` and what workers add to it may, so that it isn't kept for long.
const FINAL: &str = "public, max-age=60";

/// Goes with an answer about a block that nothing takes away any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Final;

/// Goes with an answer, where it is final.
pub(crate) type IfFinal = Option<Extension<Final>>;

/// Tags an answer, and answers that nothing has changed where `known` names its tag.
pub(crate) async fn tag(response: Response, known: Option<&HeaderValue>) -> Result<Response, Problem> {
    let (mut parts, body) = response.into_parts();
    // Streams have no length, and no tag.
    if parts.status != StatusCode::OK || body.size_hint().exact().is_none() {
        return Ok(Response::from_parts(parts, body));
    }
    let body = body.collect().await.map_err(Problem::internal)?.to_bytes();
    let digest = Sha256::digest(&body);
    let tag = format!("W/\"{}\"", hex::encode(digest.get(..TAG_BYTES).unwrap_or(&digest)));
    let is_known = known.is_some_and(|known| names(known, &tag));
    let control = if parts.extensions.get::<Final>().is_some() { FINAL } else { ASK_AGAIN };
    parts.headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static(control));
    parts.headers.insert(ETAG, HeaderValue::from_str(&tag).map_err(Problem::internal)?);
    parts.headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    if is_known {
        parts.status = StatusCode::NOT_MODIFIED;
        parts.headers.remove(axum::http::header::CONTENT_TYPE);
        parts.headers.remove(axum::http::header::CONTENT_LENGTH);
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// Whether `If-None-Match` names a tag. Strong and weak ones count as the same there.
fn names(known: &HeaderValue, tag: &str) -> bool {
    let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let Ok(known) = known.to_str() else { return false };
    known.trim() == "*" || known.split(',').any(|known| bare(known) == bare(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_in_a_list() {
        for (known, found) in [
            ("W/\"ab\"", true),
            ("\"ab\"", true),
            ("*", true),
            ("\"x\", W/\"ab\"", true),
            ("W/\"abc\"", false),
            ("ab", false),
        ] {
            assert_eq!(names(&HeaderValue::from_static(known), "W/\"ab\""), found, "{known}");
        }
    }
}
