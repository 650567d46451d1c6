//! A small S3 in memory that can be told to misbehave. Speaks what `object_store` needs of S3 and of Google's XML interface; checks no signatures.
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;

/// What becomes of one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// An error with a status and an S3 code; nothing is done.
    Status(u16, &'static str),
    /// 429 with `Retry-After: 0`.
    TooMany,
    /// Status 200 with an error in the body; nothing is done.
    OkWithError(&'static str),
    /// No answer, and nothing is done.
    Hang,
    /// It is done, and the answer never comes.
    DoneThenHang,
    /// It is done, and the answer says 500.
    DoneThenError,
    /// Status 200, and nothing is done.
    Lie,
    /// Only half of the body is stored.
    StoreHalf,
    /// The answer's body stops in the middle, and the connection is closed.
    CutBody,
    /// The answer's body has one byte changed.
    FlipByte,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<String, Bytes>,
    uploads: BTreeMap<String, BTreeMap<u32, Bytes>>,
    faults: Vec<(&'static str, &'static str, VecDeque<Fault>)>,
    requests: Vec<String>,
}

/// A running server, for one bucket named `bucket`.
#[derive(Debug)]
pub struct S3Mock {
    inner: Arc<Mutex<Inner>>,
    pub endpoint: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for S3Mock {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl S3Mock {
    pub async fn start() -> S3Mock {
        let inner = Arc::<Mutex<Inner>>::default();
        let app = Router::new().fallback(answer).with_state(inner.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            axum::serve(listener, app.layer(axum::extract::DefaultBodyLimit::disable())).await.unwrap();
        });
        S3Mock { inner, endpoint, task }
    }

    /// The next requests of `method` whose path and query contain `part` meet these faults, one each.
    pub fn fail(&self, method: &'static str, part: &'static str, faults: impl IntoIterator<Item = Fault>) {
        self.inner.lock().unwrap().faults.push((method, part, faults.into_iter().collect()));
    }

    /// How many requests of `method` there were whose path and query contain `part`.
    pub fn count(&self, method: &str, part: &str) -> usize {
        let inner = self.inner.lock().unwrap();
        inner.requests.iter().filter(|line| line.starts_with(method) && line.contains(part)).count()
    }

    pub fn keys(&self) -> Vec<String> {
        self.inner.lock().unwrap().objects.keys().cloned().collect()
    }

    pub fn insert(&self, key: &str, body: Bytes) {
        self.inner.lock().unwrap().objects.insert(key.to_owned(), body);
    }

    pub fn uploads_left(&self) -> usize {
        self.inner.lock().unwrap().uploads.len()
    }
}

fn error(status: StatusCode, code: &str) -> Response {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>mock says {code}</Message><RequestId>REQ-BODY-7</RequestId></Error>"
    );
    (status, [(header::CONTENT_TYPE, "application/xml"), (REQUEST_ID, "REQ-HEADER-7")], body).into_response()
}

const REQUEST_ID: header::HeaderName = header::HeaderName::from_static("x-amz-request-id");

fn xml(body: String) -> Response {
    ([(header::CONTENT_TYPE, "application/xml")], body).into_response()
}

async fn answer(
    State(inner): State<Arc<Mutex<Inner>>>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let fault = {
        let mut inner = inner.lock().unwrap();
        let line = format!("{method} {uri}");
        inner.requests.push(line.clone());
        inner
            .faults
            .iter_mut()
            .find(|(of, part, left)| *of == method.as_str() && line.contains(part) && !left.is_empty())
            .and_then(|(_, _, left)| left.pop_front())
    };
    let forever = || tokio::time::sleep(Duration::from_secs(3_600));
    let done = |body: Bytes| {
        let mut inner = inner.lock().unwrap();
        perform(&mut inner, &method, &uri, &query, &headers, body)
    };
    match fault {
        None => done(body),
        Some(Fault::Status(status, code)) => error(StatusCode::from_u16(status).unwrap(), code),
        Some(Fault::TooMany) => {
            let mut response = error(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests");
            response.headers_mut().insert(header::RETRY_AFTER, "0".parse().unwrap());
            response
        }
        Some(Fault::OkWithError(code)) => error(StatusCode::OK, code),
        Some(Fault::Hang) => {
            forever().await;
            StatusCode::OK.into_response()
        }
        Some(Fault::DoneThenHang) => {
            let answer = done(body);
            forever().await;
            answer
        }
        Some(Fault::DoneThenError) => {
            done(body);
            error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError")
        }
        Some(Fault::Lie) => ([(header::ETAG, "\"lie\"")], "").into_response(),
        Some(Fault::StoreHalf) => done(body.slice(..body.len() / 2)),
        Some(Fault::CutBody) => {
            let (parts, whole) = done(body).into_parts();
            let whole = axum::body::to_bytes(whole, usize::MAX).await.unwrap();
            let len = whole.len();
            let half = futures::stream::once(async move { Ok(whole.slice(..len / 2)) });
            let end = futures::stream::once(async { Err(std::io::Error::other("cut")) });
            let mut response = Response::from_parts(parts, Body::from_stream(half.chain(end)));
            response.headers_mut().insert(header::CONTENT_LENGTH, len.into());
            response
        }
        Some(Fault::FlipByte) => {
            let (parts, whole) = done(body).into_parts();
            let mut whole = axum::body::to_bytes(whole, usize::MAX).await.unwrap().to_vec();
            whole[0] ^= 1;
            Response::from_parts(parts, Body::from(whole))
        }
    }
}

fn perform(
    inner: &mut Inner,
    method: &Method,
    uri: &Uri,
    query: &HashMap<String, String>,
    headers: &HeaderMap,
    body: Bytes,
) -> Response {
    let Some(path) = uri.path().strip_prefix("/bucket") else {
        return error(StatusCode::NOT_FOUND, "NoSuchBucket");
    };
    // Google's clients escape all but letters and digits, slashes too.
    let key = object_store::path::Path::from_url_path(path).map(String::from).unwrap_or_default();
    if key.is_empty() {
        return list(inner, query);
    }
    let upload = query.get("uploadId").cloned();
    let etag = |body: &Bytes| format!("\"{}-{}\"", body.len(), body.first().copied().unwrap_or(0));
    match (method.as_str(), upload) {
        ("POST", None) if query.contains_key("uploads") => {
            let id = format!("upload-{}", inner.requests.len());
            inner.uploads.insert(id.clone(), BTreeMap::new());
            xml(format!(
                "<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        ("PUT", Some(id)) => {
            let number = query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
            let Some(parts) = inner.uploads.get_mut(&id) else {
                return error(StatusCode::NOT_FOUND, "NoSuchUpload");
            };
            let tag = etag(&body);
            parts.insert(number, body);
            ([(header::ETAG, tag)], "").into_response()
        }
        ("POST", Some(id)) => {
            let Some(parts) = inner.uploads.remove(&id) else {
                return error(StatusCode::NOT_FOUND, "NoSuchUpload");
            };
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            inner.objects.insert(key, whole.into());
            xml("<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>"
                .into())
        }
        ("DELETE", Some(id)) => {
            inner.uploads.remove(&id);
            StatusCode::NO_CONTENT.into_response()
        }
        ("PUT", None) => {
            let create = headers.contains_key(header::IF_NONE_MATCH)
                || headers.get("x-goog-if-generation-match").is_some_and(|value| value == "0");
            if create && inner.objects.contains_key(&key) {
                return error(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
            }
            let tag = etag(&body);
            inner.objects.insert(key, body);
            ([(header::ETAG, tag)], "").into_response()
        }
        ("GET" | "HEAD", None) => match inner.objects.get(&key) {
            Some(found) => (
                [
                    (header::ETAG, etag(found)),
                    (header::LAST_MODIFIED, "Sat, 28 Nov 2026 02:00:00 GMT".to_owned()),
                    (header::CONTENT_LENGTH, found.len().to_string()),
                ],
                found.clone(),
            )
                .into_response(),
            None => error(StatusCode::NOT_FOUND, "NoSuchKey"),
        },
        ("DELETE", None) => {
            inner.objects.remove(&key);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => error(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    }
}

/// Pages of three, so that continuation is used.
fn list(inner: &Inner, query: &HashMap<String, String>) -> Response {
    let prefix = query.get("prefix").cloned().unwrap_or_default();
    let after = query.get("continuation-token").or(query.get("start-after")).cloned().unwrap_or_default();
    let found: Vec<(&String, &Bytes)> =
        inner.objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after).take(4).collect();
    let mut body = String::from("<ListBucketResult>");
    for (key, object) in found.iter().take(3) {
        body += &format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-28T02:00:00.000Z</LastModified><ETag>\"x\"</ETag><Size>{}</Size></Contents>",
            object.len()
        );
    }
    if found.len() > 3 {
        body += &format!("<NextContinuationToken>{}</NextContinuationToken>", found[2].0);
    }
    xml(body + "</ListBucketResult>")
}
