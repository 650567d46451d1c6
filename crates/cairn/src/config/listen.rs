//! An address to listen on, as people write one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Reads `8545` and `localhost:8545`, which are of this machine alone, and `ADDRESS:PORT`.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let here = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let port = text.strip_prefix("localhost:").unwrap_or(text);
    if let Ok(port) = port.parse() {
        return Ok(here(port));
    }
    text.parse().map_err(|_| {
        "expected PORT, localhost:PORT or ADDRESS:PORT, such as 8545 or 0.0.0.0:8545 (0.0.0.0 is every address of this machine)".to_owned()
    })
}

/// The same out of a file or the environment, where a port alone is a number.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    struct Listen;
    impl Visitor<'_> for Listen {
        type Value = SocketAddr;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("PORT, localhost:PORT or ADDRESS:PORT")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<SocketAddr, E> {
            address(text).map_err(E::custom)
        }
        fn visit_u64<E: Error>(self, port: u64) -> Result<SocketAddr, E> {
            self.visit_str(&port.to_string())
        }
        fn visit_i64<E: Error>(self, port: i64) -> Result<SocketAddr, E> {
            self.visit_str(&port.to_string())
        }
    }
    from.deserialize_any(Listen)
}

/// The same where there may be none.
pub fn read_some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    read(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_and_localhost_are_this_machine() {
        for (text, expected) in [
            ("8545", "127.0.0.1:8545"),
            ("localhost:8545", "127.0.0.1:8545"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:8545", "[::1]:8545"),
        ] {
            assert_eq!(address(text).map(|address| address.to_string()), Ok(expected.to_owned()));
        }
        for text in ["", "x", ":8545", "99999", "localhost", "127.0.0.1", "node.example:8545"] {
            assert!(address(text).expect_err(text).contains("localhost:PORT"), "{text}");
        }
    }
}
