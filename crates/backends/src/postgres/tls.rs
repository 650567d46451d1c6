//! Whether a server is spoken to by TLS, by the URL, and whose certificates are taken.
//!
//! Where there is TLS, certificate and name are checked whatever `sslmode` says: libpq's `prefer` and `require` check nothing, and `verify-ca` no name.

use std::error::Error as _;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use cairn_store::{Result, StoreError};
use rustls::CertificateError;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The URL as the client takes it: it knows no `verify-ca` and `verify-full`, which here mean what `require` means. Of several hosts too, which make it no URL to
/// others; so nothing of it is decoded here.
pub(super) fn parse_url(text: &str) -> Result<Config> {
    // The parser's message may quote the text, password included.
    let invalid = || {
        StoreError::Invalid(
            "the database URL can't be read; expected postgres://user:password@host:port/database?sslmode=...".into(),
        )
    };
    let is_url = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
    if !is_url {
        return Config::from_str(text).map_err(|_| invalid());
    }
    // The client takes all up to the first @ for user and password: what others take for a path or a query there would be read in two ways, `sslmode` among it.
    let behind_scheme = text.split_once("://").map_or(text, |(_, rest)| rest);
    if behind_scheme.split_once('@').is_some_and(|(credentials, _)| credentials.contains(['?', '/', '#'])) {
        return Err(StoreError::Invalid(
            "the database URL has a ?, / or # before its first @; write them as %3F, %2F and %23 in a user name or password, and @ as %40 everywhere but before the host"
                .into(),
        ));
    }
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    // The last one of a name counts.
    let mut pairs = vec!["sslmode=disable"];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("sslmode", mode) => {
                pairs.push(match mode {
                    "disable" | "prefer" | "require" => pair,
                    "verify-ca" | "verify-full" => "sslmode=require",
                    _ => {
                        return Err(StoreError::Invalid(
                            "the database URL's sslmode is none of disable, prefer, require, verify-ca, verify-full"
                                .into(),
                        ));
                    }
                });
            }
            (name @ ("sslrootcert" | "sslcert" | "sslkey"), _) => {
                return Err(StoreError::Invalid(format!(
                    "the database URL has {name}, which isn't known here: authorities are those of the system, or of the file that SSL_CERT_FILE \
                     names, and clients have no certificates"
                )));
            }
            _ => pairs.push(pair),
        }
    }
    Config::from_str(&format!("{place}?{}", pairs.join("&"))).map_err(|_| invalid())
}

/// What speaks TLS, with the system's authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR` in their place; none are read for a mode without TLS.
pub(super) fn connector(mode: SslMode) -> Result<MakeRustlsConnect> {
    let mut roots = rustls::RootCertStore::empty();
    if mode != SslMode::Disable {
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            return Err(StoreError::Invalid(format!(
                "sslmode asks for TLS, but there is no root certificate{why}; install the system's (Debian: ca-certificates), or name a file of some in \
                 SSL_CERT_FILE"
            )));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Invalid(format!("TLS can't be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// What to do about an error that TLS made; `None` for any other.
pub(super) fn advice(error: &tokio_postgres::Error) -> Option<&'static str> {
    let mut source = error.source();
    while let Some(cause) = source {
        // An I/O error shows not what it wraps, but the cause of that.
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(tls) = wrapped.and_then(|wrapped| wrapped.downcast_ref::<rustls::Error>()) {
            return advice_on(tls);
        }
        if cause.to_string() == "server does not support TLS" {
            return Some("turn it on there (ssl = on), or do without it by sslmode=disable");
        }
        source = cause.source();
    }
    None
}

fn advice_on(error: &rustls::Error) -> Option<&'static str> {
    use CertificateError as Refused;
    let rustls::Error::InvalidCertificate(refused) = error else { return None };
    Some(match refused {
        Refused::UnknownIssuer => {
            "its authority isn't known here: add that to the system's certificates, or name a file with it in SSL_CERT_FILE, which stands in their place"
        }
        Refused::NotValidForName | Refused::NotValidForNameContext { .. } => {
            "name the server in the URL as its certificate does"
        }
        Refused::Expired
        | Refused::ExpiredContext { .. }
        | Refused::NotValidYet
        | Refused::NotValidYetContext { .. } => {
            "the server needs a new certificate, unless this machine's clock is wrong"
        }
        // One that signed itself, as a rule.
        Refused::Other(_) => {
            "it has to be a server's certificate and not an authority's (CA:FALSE), of version 3"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    #[test]
    fn urls_say_whether_tls_is_used() {
        let mode = |text: &str| parse_url(text).unwrap().get_ssl_mode();
        assert_eq!(mode("postgres://u:p%2B+x@h:5/d"), SslMode::Disable);
        assert_eq!(mode("postgres://u@h/d?sslmode=prefer"), SslMode::Prefer);
        assert_eq!(mode("postgresql://u@h/d?sslmode=verify-full&application_name=a%20b"), SslMode::Require);
        assert_eq!(mode("postgres://u@h/d?connect_timeout=5&sslmode=verify-ca"), SslMode::Require);
        let config = parse_url("postgres://u:p%2B+x@h:5/d?application_name=a%20b%26c").unwrap();
        assert_eq!(config.get_password(), Some(&b"p++x"[..]), "in a URL a plus is one");
        assert_eq!((config.get_ports(), config.get_dbname()), (&[5][..], Some("d")));
        assert_eq!(config.get_application_name(), Some("a b&c"));
    }

    #[test]
    fn several_hosts_have_the_same_modes() {
        let hosts = "postgres://u:p@one:5432,two:5433/d";
        let config = parse_url(hosts).unwrap();
        let names = ["one", "two"].map(|name| Host::Tcp(name.into()));
        assert_eq!((config.get_hosts(), config.get_ports()), (&names[..], &[5_432, 5_433][..]));
        assert_eq!(config.get_ssl_mode(), SslMode::Disable);
        let config = parse_url(&format!("{hosts}?sslmode=verify-full")).unwrap();
        assert_eq!(config.get_ssl_mode(), SslMode::Require);
    }

    #[test]
    fn what_libpq_knows_of_tls_and_cairn_does_not_is_named() {
        let error = |text: &str| parse_url(text).unwrap_err().to_string();
        let mode = error("postgres://u:secret@h/d?sslmode=allow");
        assert!(mode.contains("verify-full") && !mode.contains("secret"), "{mode}");
        let file = error("postgres://u:secret@h/d?sslmode=require&sslrootcert=/ca.crt");
        assert!(file.contains("SSL_CERT_FILE") && !file.contains("secret"), "{file}");
    }

    #[test]
    fn what_is_read_in_two_ways_is_refused_and_never_goes_without_the_tls_that_was_asked_for() {
        for text in
            ["postgres://u:p?secret@h/d?sslmode=require", "postgres://h/d?sslmode=require&options=secret@b"]
        {
            let error = parse_url(text).unwrap_err().to_string();
            assert!(error.contains("%3F") && !error.contains("secret"), "{error}");
        }
        let config = parse_url("postgres://u:p%3Fx%40@h/d?sslmode=require").unwrap();
        assert_eq!((config.get_password(), config.get_ssl_mode()), (Some(&b"p?x@"[..]), SslMode::Require));
    }

    #[test]
    fn a_bad_url_is_not_quoted() {
        let error = parse_url("postgres://u:secret@h:port/d").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn certificates_that_are_refused_say_what_to_do() {
        let advice = |refused| advice_on(&rustls::Error::InvalidCertificate(refused)).unwrap_or_default();
        assert!(advice(CertificateError::UnknownIssuer).contains("SSL_CERT_FILE"));
        assert!(advice(CertificateError::NotValidForName).contains("URL"));
        assert!(advice(CertificateError::Expired).contains("clock"));
        assert_eq!(advice_on(&rustls::Error::HandshakeNotComplete), None);
    }
}
