//! A real S3 server for tests, named by `CAIRN_TEST_S3_URL`.
use std::collections::BTreeMap;

use cairn_backends::objects::ObjectsConfig;

/// Options of a server that is addressed by path.
pub fn options(endpoint: &str, access_key: &str, secret_key: &str) -> BTreeMap<String, String> {
    [
        ("endpoint", endpoint),
        ("region", "us-east-1"),
        ("access_key_id", access_key),
        ("secret_access_key", secret_key),
        ("virtual_hosted_style_request", "false"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// The server's configuration, from `http://ACCESS_KEY:SECRET_KEY@HOST:PORT/BUCKET`. `None` where none is named: then it says how to get one. The stage `objects` of
/// `./dev test` starts one.
pub fn config() -> Option<ObjectsConfig> {
    let Ok(text) = std::env::var("CAIRN_TEST_S3_URL") else {
        println!("no S3 server: start one with `./dev up s3s`, and set CAIRN_TEST_S3_URL to what it prints");
        return None;
    };
    let url = url::Url::parse(&text).expect("CAIRN_TEST_S3_URL is no URL");
    let endpoint =
        format!("{}://{}:{}", url.scheme(), url.host_str().expect("a host"), url.port().expect("a port"));
    let bucket = url.path().trim_matches('/');
    let mut config = ObjectsConfig::new(format!("s3://{bucket}").parse().expect("parses"));
    config.options = options(&endpoint, url.username(), url.password().unwrap_or_default());
    Some(config)
}
