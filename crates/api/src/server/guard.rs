//! Who may ask: `Host` and `Origin`.

use std::net::IpAddr;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Uri};

use super::RpcServerConfig;

/// The rules of one server.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    check_host: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Guard {
    pub(crate) fn new(config: &RpcServerConfig, loopback: bool) -> Self {
        Guard {
            check_host: loopback || !config.allowed_hosts.is_empty(),
            hosts: config.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            origins: config.allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect(),
        }
    }

    /// A guard for a server without cross-origin access.
    pub(crate) fn local(loopback: bool) -> Self {
        Guard { check_host: loopback, hosts: Vec::new(), origins: Vec::new() }
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
        let name = without_port(host).to_ascii_lowercase();
        let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        literal.parse::<IpAddr>().is_ok() || name == "localhost" || self.hosts.contains(&name)
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

    /// Headers that let an allowed origin read the answer.
    pub(crate) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST"));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("content-type"));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        headers.insert(VARY, HeaderValue::from_static("origin"));
    }
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
        let mut config =
            RpcServerConfig { allowed_hosts: vec!["Node.example".into()], ..RpcServerConfig::default() };
        let guard = Guard::new(&config, true);
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
        config.allowed_hosts.clear();
        assert!(ours(&Guard::new(&config, false), "evil.example"));
        config.allowed_hosts.push("*".into());
        assert!(ours(&Guard::new(&config, true), "evil.example"));
    }

    #[test]
    fn origins_are_refused_unless_named() {
        let mut config = RpcServerConfig::default();
        let mut headers = HeaderMap::new();
        assert_eq!(Guard::new(&config, true).origin(&headers), Ok(None));
        headers.insert(ORIGIN, HeaderValue::from_static("https://app.example"));
        assert_eq!(Guard::new(&config, true).origin(&headers), Err(()));
        config.allowed_origins.push("https://app.example".into());
        assert!(matches!(Guard::new(&config, true).origin(&headers), Ok(Some(_))));
    }
}
