//! What is wrong with a configuration, in words that don't give its secrets away.

use figment::error::{Actual, Kind};

/// Keys whose values hide keys and passwords, beside everything below them.
const SECRET: [&str; 6] =
    ["chain.rpc", "chain.access", "raw.url", "app.url", "payloads.url", "serve.upstream"];

/// The errors, one after the other: what, of which key, and where it was read.
pub(super) fn errors(all: figment::Error) -> String {
    let each = all.into_iter().map(|error| {
        let path = error.path.join(".");
        let mut words = without_secrets(error.kind, &path).to_string();
        if !path.is_empty() {
            words.push_str(&format!(" for {path}"));
        }
        if let Some(metadata) = error.metadata {
            let file = metadata.source.map(|source| format!("{source}, ")).unwrap_or_default();
            words.push_str(&format!(" ({file}{})", metadata.name));
        }
        words
    });
    each.collect::<Vec<_>>().join("; ")
}

fn without_secrets(kind: Kind, path: &str) -> Kind {
    match kind {
        Kind::InvalidType(found, expected) => Kind::InvalidType(hidden(found, path), expected),
        Kind::InvalidValue(found, expected) => Kind::InvalidValue(hidden(found, path), expected),
        Kind::Unsupported(found) => Kind::Unsupported(hidden(found, path)),
        Kind::UnsupportedKey(found, expected) => Kind::UnsupportedKey(hidden(found, path), expected),
        Kind::UnknownVariant(found, known) if is_secret(&found, path) => {
            Kind::UnknownVariant("(hidden)".into(), known)
        }
        Kind::Message(words) => Kind::Message(without_source(&words, path)),
        other => other,
    }
}

fn hidden(found: Actual, path: &str) -> Actual {
    match &found {
        Actual::Str(text) | Actual::Other(text) if is_secret(text, path) => {
            Actual::Other("a text (hidden)".into())
        }
        Actual::Bytes(_) => Actual::Other("bytes (hidden)".into()),
        _ => found,
    }
}

/// Whether a text may be a secret: by its place, which may be a whole section that was given as one text, or by its looks.
fn is_secret(text: &str, path: &str) -> bool {
    let is_below = |key: &&str| path == *key || path.starts_with(&format!("{key}."));
    !path.contains('.') || SECRET.iter().any(is_below) || text.contains("://") || text.contains('@')
}

/// A message without the lines of the file that it quotes (`2 | url = "…`).
fn without_source(words: &str, path: &str) -> String {
    let lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
    let kept: Vec<&str> = lines.filter(|line| !line.contains('|')).collect();
    let words = kept.join(": ");
    if words.contains("://") || (SECRET.contains(&path) && words.contains('`')) {
        return "this can't be used".into();
    }
    words
}
