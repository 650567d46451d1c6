//! Who may ask: `Host` and `Origin`.

use std::net::IpAddr;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// What pages of other origins may send.
pub(crate) struct Cors {
    pub methods: &'static str,
    pub headers: &'static str,
}

/// To JSON-RPC.
pub(crate) const RPC_CORS: Cors = Cors { methods: "POST", headers: "content-type" };
/// To REST.
pub(crate) const REST_CORS: Cors = Cors { methods: "GET, HEAD", headers: "if-none-match, last-event-id" };

/// The rules of one server.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    check_host: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Guard {
    /// `hosts` are names beside IP addresses and `localhost`, `origins` those of pages that may ask; `*` for any.
    pub(crate) fn new(hosts: &[String], origins: &[String], loopback: bool) -> Self {
        let lower = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect();
        Guard { check_host: loopback || !hosts.is_empty(), hosts: lower(hosts), origins: lower(origins) }
    }

    /// Whether the request names a host that this server may be.
    pub(crate) fn host_is_ours(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        if !self.check_host || self.hosts.iter().any(|host| host == "*") {
            return true;
        }
        let host = match uri.authority() {
            Some(authority) => authority.as_str(),
            None => match headers.get(HOST).map(HeaderValue::to_str) {
                Some(Ok(host)) => host,
                Some(Err(_)) => return false,
                // HTTP/1.0 without a host: no browser.
                None => return true,
            },
        };
        self.names_us(host)
    }

    /// Whether a host is an address, `localhost`, or a configured name.
    fn names_us(&self, host: &str) -> bool {
        cannot_be_rebound(host) || self.hosts.contains(&without_port(host).to_ascii_lowercase())
    }

    /// The origin, where there is one and it is allowed. `Err`: there is one, and it is not.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, ()> {
        let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
        let name = origin.to_str().map_err(|_| ())?.to_ascii_lowercase();
        if self.origins.iter().any(|allowed| allowed == "*" || *allowed == name) {
            return Ok(Some(origin.clone()));
        }
        Err(())
    }

    /// Whether the origin is the server's own: the page came from the host that it asks. A name that nobody configured doesn't count, since whoever
    /// owns it may let it name this server.
    pub(crate) fn is_own(&self, headers: &HeaderMap) -> bool {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let (Some(origin), Some(host)) = (text(ORIGIN), text(HOST)) else { return false };
        self.names_us(host)
            && origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
    }

    /// Headers that let an allowed origin read the answer, and that keep caches from giving it another origin's.
    pub(crate) fn allow(
        &self,
        headers: &mut HeaderMap,
        origin: Result<Option<HeaderValue>, ()>,
        cors: &Cors,
    ) {
        if !self.origins.is_empty() {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        let Ok(Some(origin)) = origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(cors.methods));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(cors.headers));
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("etag, retry-after"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}

/// Whether a host is an address or `localhost`, which no foreign name server answers for.
fn cannot_be_rebound(host: &str) -> bool {
    let name = without_port(host);
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    literal.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An IPv6 literal without a port has colons inside its brackets only.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(guard: &Guard, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).expect("a header"));
        guard.host_is_ours(&headers, &Uri::from_static("/"))
    }

    #[test]
    fn a_rebound_name_is_refused_on_loopback() {
        let guard = Guard::new(&["Node.example".into()], &[], true);
        for host in [
            "127.0.0.1:8545",
            "127.0.0.1",
            "localhost:1",
            "LOCALHOST",
            "[::1]:8545",
            "[::1]",
            "10.0.0.7:1",
            "node.example:80",
        ] {
            assert!(ours(&guard, host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8545", "localhost.evil.example", "127.0.0.1.evil.example", ""]
        {
            assert!(!ours(&guard, host), "{host}");
        }
        assert!(ours(&Guard::new(&[], &[], false), "evil.example"));
        assert!(ours(&Guard::new(&["*".into()], &[], true), "evil.example"));
    }

    #[test]
    fn origins_are_refused_unless_named() {
        let (none, named) =
            (Guard::new(&[], &[], true), Guard::new(&[], &["https://app.example".into()], true));
        let mut headers = HeaderMap::new();
        assert_eq!(none.origin(&headers), Ok(None));
        headers.insert(ORIGIN, HeaderValue::from_static("https://app.example"));
        assert_eq!(none.origin(&headers), Err(()));
        assert!(matches!(named.origin(&headers), Ok(Some(_))));
    }

    #[test]
    fn a_page_of_this_server_is_no_stranger() {
        let guard = Guard::new(&["node.example".into()], &[], false);
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("node.example:8545"));
        assert!(!guard.is_own(&headers));
        for (origin, own) in [
            ("http://node.example:8545", true),
            ("https://Node.example:8545", true),
            ("http://node.example", false),
            ("http://evil.example", false),
            ("null", false),
        ] {
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            assert_eq!(guard.is_own(&headers), own, "{origin}");
        }
        // A name that points here today may be anybody's.
        headers.insert(ORIGIN, HeaderValue::from_static("http://node.example:8545"));
        assert!(!Guard::new(&[], &[], false).is_own(&headers));
        headers.insert(HOST, HeaderValue::from_static("10.0.0.7:8545"));
        headers.insert(ORIGIN, HeaderValue::from_static("http://10.0.0.7:8545"));
        assert!(Guard::new(&[], &[], false).is_own(&headers));
    }
}
