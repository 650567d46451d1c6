//! Who asks, where proxies stand between the caller and this server.
//!
//! A proxy names the caller in `X-Forwarded-For`, to which each proxy on the way appends the address that it was asked from. Anybody can send that header, so it
//! counts only on connections of proxies that were configured.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use ipnet::IpNet;

use super::listener::Peer;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// Addresses of proxies whose `X-Forwarded-For` is believed.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    /// From addresses (`10.0.0.7`) and networks (`10.0.0.0/8`). `Err`: the text that is neither.
    pub fn parse(texts: &[String]) -> Result<TrustedProxies, String> {
        let net = |text: &String| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            address.or_else(|_| text.parse()).map_err(|_| text.clone())
        };
        texts.iter().map(net).collect::<Result<_, _>>().map(TrustedProxies)
    }

    /// Whether this is the address of one of them.
    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(&address))
    }

    /// The caller of a request that came from a proxy: the last address that is no proxy of ours. Where the header says nothing of use, the proxy itself.
    pub(super) fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Peer {
        let hops: Vec<&str> = headers
            .get_all(FORWARDED_FOR)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .collect();
        let mut address = peer.address;
        for hop in hops.iter().rev().map_while(|hop| address_of(hop.trim())) {
            address = hop;
            if !self.trusts(hop) {
                break;
            }
        }
        if address == peer.address {
            return peer.clone();
        }
        // What a caller may have on one connection, it may have through one connection of the proxy.
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        Peer { address, connection: hasher.hash_one((peer.connection, address)), ..peer.clone() }
    }
}

/// An address, perhaps with a port.
fn address_of(hop: &str) -> Option<IpAddr> {
    let bracketed = || hop.strip_prefix('[')?.split_once(']')?.0.parse().ok();
    let with_port = || hop.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip());
    hop.parse().ok().or_else(with_port).or_else(bracketed)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn caller(peer: &str, headers: &[&'static str]) -> String {
        let proxies = TrustedProxies::parse(&["10.0.0.0/8".into(), "::1".into()]).expect("networks");
        let peer = Peer {
            address: peer.parse().expect("an address"),
            connection: 1,
            reserved: false,
            cut: CancellationToken::new(),
        };
        let mut map = HeaderMap::new();
        for value in headers {
            map.append(FORWARDED_FOR, HeaderValue::from_static(value));
        }
        assert!(proxies.trusts(peer.address), "{peer:?}");
        proxies.caller(&peer, &map).address.to_string()
    }

    #[test]
    fn the_caller_is_the_last_address_that_is_no_proxy() {
        assert_eq!(caller("10.1.2.3", &["203.0.113.7"]), "203.0.113.7");
        assert_eq!(caller("::ffff:10.1.2.3", &["203.0.113.7, 10.9.9.9"]), "203.0.113.7");
        // What the caller itself claimed stands further left.
        assert_eq!(caller("10.1.2.3", &["198.51.100.1, 203.0.113.7"]), "203.0.113.7");
        assert_eq!(caller("10.1.2.3", &["198.51.100.1", "203.0.113.7:4711", "10.0.0.1"]), "203.0.113.7");
        assert_eq!(caller("::1", &["[2001:db8::1]:4711"]), "2001:db8::1");
        assert_eq!(caller("::1", &["[2001:db8::2]"]), "2001:db8::2");
        assert_eq!(caller("10.1.2.3", &["10.4.5.6"]), "10.4.5.6");
        assert_eq!(caller("10.1.2.3", &["unknown"]), "10.1.2.3");
        assert_eq!(caller("10.1.2.3", &["203.0.113.7, _hidden"]), "10.1.2.3");
        assert_eq!(caller("10.1.2.3", &[]), "10.1.2.3");
    }

    #[test]
    fn what_is_neither_address_nor_network_is_named() {
        let error = TrustedProxies::parse(&["10.0.0.1".into(), "proxy.internal".into()]).unwrap_err();
        assert_eq!(error, "proxy.internal");
    }
}
