//! Endpoints as people may see them: providers put keys into user info, paths and queries of their URLs, and echo them in errors.

use std::fmt;
use std::sync::Arc;

use url::Url;

/// The longest text of a node that goes into an error or a log, in characters.
const MAX_MESSAGE_CHARS: usize = 300;
/// Shorter parts of a path ("rpc", "v3", "eth") hide nothing, and hiding them would garble messages.
const MIN_SECRET_CHARS: usize = 6;

/// An endpoint's name: scheme, host and port, never more of its URL. Knows what to take out of texts that go to people.
#[derive(Clone)]
pub struct EndpointName {
    shown: Arc<str>,
    /// Longest first, so that a secret inside another one doesn't leave a rest.
    secrets: Arc<[String]>,
}

impl EndpointName {
    /// The name of `url`; `headers` hold secrets too.
    pub fn new(url: &Url, headers: &[(String, String)]) -> EndpointName {
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let hidden = !matches!(url.path(), "" | "/") || url.query().is_some();
        let rest = if hidden { "/…" } else { "" };
        let shown = format!("{}://{}{port}{rest}", url.scheme(), url.host_str().unwrap_or("?"));
        EndpointName { shown: shown.into(), secrets: secrets(url, headers).into() }
    }

    /// The same, told apart from another endpoint whose name looks alike.
    pub fn numbered(&self, number: usize) -> EndpointName {
        EndpointName { shown: format!("{} #{number}", self.shown).into(), secrets: self.secrets.clone() }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// A stranger's text made fit for people: without our secrets, on one line, not too long.
    pub fn scrub(&self, text: &str) -> String {
        // Cut roughly first: a node may send megabytes. Secrets across the cut are gone with the second cut.
        let longest_secret = self.secrets.first().map_or(0, |secret| secret.chars().count());
        let mut clean: String = text.chars().take(MAX_MESSAGE_CHARS + longest_secret).collect();
        for secret in self.secrets.iter() {
            if clean.contains(secret.as_str()) {
                clean = clean.replace(secret.as_str(), "[hidden]");
            }
        }
        let mut line: String =
            clean.chars().take(MAX_MESSAGE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().nth(MAX_MESSAGE_CHARS).is_some() {
            line.push('…');
        }
        line
    }
}

fn secrets(url: &Url, headers: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |text: &str, min_chars: usize| {
        if text.chars().count() >= min_chars {
            found.push(text.to_owned());
        }
    };
    add(url.username(), 1);
    add(url.password().unwrap_or_default(), 1);
    for segment in url.path_segments().into_iter().flatten() {
        add(segment, MIN_SECRET_CHARS);
    }
    if let Some(query) = url.query() {
        add(query, 1);
    }
    for (_, value) in url.query_pairs() {
        add(&value, 3);
    }
    for (_, value) in headers {
        add(value, 3);
        for word in value.split_whitespace() {
            add(word, MIN_SECRET_CHARS + 1);
        }
    }
    found.sort_by_key(|secret| std::cmp::Reverse(secret.chars().count()));
    found.dedup();
    found
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_show_scheme_host_and_port_only() {
        let shown = |url: &str| EndpointName::new(&url.parse().unwrap(), &[]).to_string();
        assert_eq!(shown("http://127.0.0.1:8545"), "http://127.0.0.1:8545");
        assert_eq!(shown("https://eth.example.org/v2/abcdef0123456789"), "https://eth.example.org/…");
        assert_eq!(shown("https://user:pass@node:8545/?key=s3cr3t"), "https://node:8545/…");
        assert_eq!(shown("http://[::1]:8545/"), "http://[::1]:8545");
    }

    #[test]
    fn scrubbed_texts_have_no_secrets_no_lines_and_an_end() {
        let headers = [("authorization".to_owned(), "Bearer tok-123456".to_owned())];
        let url = "https://us3r:pa55@node/v2/abcdef0123456789?apikey=zzz999".parse().unwrap();
        let name = EndpointName::new(&url, &headers);
        let text = "key abcdef0123456789 of us3r/pa55\n(zzz999, tok-123456) is bad";
        assert_eq!(name.scrub(text), "key [hidden] of [hidden]/[hidden] ([hidden], [hidden]) is bad");
        let long = format!("{}abcdef0123456789", "x".repeat(MAX_MESSAGE_CHARS - 4));
        assert!(!name.scrub(&long).contains("abcd"), "a cut secret doesn't show its beginning");
        assert!(name.scrub(&"y".repeat(10_000)).chars().count() <= MAX_MESSAGE_CHARS + 1);
    }
}
