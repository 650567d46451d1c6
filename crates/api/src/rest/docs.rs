//! The OpenAPI document, made from the code, and a page made from it that needs nothing else.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::Api;
use super::problem::Code;

/// The errors that any path may answer, by status.
const ERRORS: [(&str, &str); 7] = [
    ("400", "A parameter or the cursor is wrong"),
    ("404", "What was named is not here"),
    ("409", "A reorg took away what was shown before, or the databases stand on different forks for now"),
    ("413", "The request's body is too large"),
    ("414", "Path and query are too long"),
    ("500", "The server failed"),
    ("503", "Not yet, being made anew, too busy, or too slow: try again after `Retry-After`"),
];

/// The document and the page as they are sent.
pub(crate) struct Documents {
    json: String,
    html: String,
}

impl Documents {
    /// Completes the document: every path may answer every error.
    pub(crate) fn new(api: &OpenApi) -> Result<Documents, serde_json::Error> {
        let mut value = serde_json::to_value(api)?;
        let problem = json!({
            "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } }
        });
        if let Some(paths) = value.get_mut("paths").and_then(Value::as_object_mut) {
            for operation in paths.values_mut().filter_map(|path| path.get_mut("get")) {
                let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else {
                    continue;
                };
                for (status, description) in ERRORS {
                    let error = json!({ "description": description, "content": problem });
                    responses.entry(status).or_insert(error);
                }
                let not_enabled =
                    json!({ "description": "The worker behind this is not enabled", "content": problem });
                responses.entry("501").or_insert(not_enabled);
            }
        }
        let html = page(&value);
        Ok(Documents { json: serde_json::to_string(&value)?, html })
    }
}

/// `/v1/openapi.json`.
pub(crate) async fn openapi(State(api): State<Arc<Api>>) -> Response {
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-cache")];
    (headers, api.documents().json.clone()).into_response()
}

/// `/v1/docs`.
pub(crate) async fn docs(State(api): State<Arc<Api>>) -> Response {
    let mut response = api.documents().html.clone().into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    response
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color:#1c2430;background:#fff}code{font-family:ui-monospace,monospace;background:#f0f2f5;padding:.1em .3em;\
border-radius:3px}h2{margin-top:2.5rem;border-bottom:1px solid #d5dae1}h3{margin-bottom:.2rem}\
table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}\
@media(prefers-color-scheme:dark){body{color:#dfe4ea;background:#14181d}code{background:#262d35}\
h2{border-color:#333c46}a{color:#8ab4f8}}";

fn page(api: &Value) -> String {
    let mut html = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>cairn REST v1</title>",
    );
    let mut put = |text: std::fmt::Arguments<'_>| html.push_str(&text.to_string());
    put(format_args!("<style>{STYLE}</style><h1>cairn REST v1</h1>"));
    put(format_args!("<p>{}</p>", escape(api["info"]["description"].as_str().unwrap_or_default())));
    put(format_args!("<p>For programs: <a href=\"/v1/openapi.json\">openapi.json</a>.</p>"));
    let mut tag = "";
    let empty = serde_json::Map::new();
    let paths = api["paths"].as_object().unwrap_or(&empty);
    let mut operations: Vec<_> = paths.iter().map(|(path, item)| (path, &item["get"])).collect();
    operations.sort_by_key(|(path, operation)| (operation["tags"][0].as_str(), *path));
    for (path, operation) in operations {
        let of = operation["tags"][0].as_str().unwrap_or_default();
        if of != tag {
            put(format_args!("<h2>{}</h2>", escape(of)));
            tag = of;
        }
        put(format_args!("<h3><code>GET {}</code></h3>", escape(path)));
        let texts = [&operation["summary"], &operation["description"]];
        for text in texts.into_iter().filter_map(Value::as_str) {
            put(format_args!("<p>{}</p>", escape(text)));
        }
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !parameters.is_empty() {
            put(format_args!("<table>"));
            for parameter in parameters {
                put(format_args!(
                    "<tr><td><code>{}</code><td>{}",
                    escape(parameter["name"].as_str().unwrap_or_default()),
                    escape(parameter["description"].as_str().unwrap_or_default()),
                ));
            }
            put(format_args!("</table>"));
        }
    }
    put(format_args!(
        "<h2>Problems</h2><p>Errors are <code>application/problem+json</code> (RFC 9457).</p><table>"
    ));
    for code in Code::ALL {
        let (word, title, status) = code.parts();
        put(format_args!("<tr id=\"{word}\"><td>{}<td><code>{word}</code><td>{title}", status.as_u16()));
    }
    put(format_args!("</table></html>"));
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
