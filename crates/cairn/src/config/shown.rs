//! What is wrong with a configuration, in words that don't give its secrets away.

use std::path::Path;

use figment::error::{Actual, Kind};

use super::{Config, place};

/// Keys whose values hide keys and passwords, beside everything below them.
const SECRET: [&str; 8] = [
    "chain.rpc",
    "chain.headers",
    "chain.headers_of",
    "chain.access",
    "raw.url",
    "app.url",
    "payloads.url",
    "serve.upstream",
];

/// The configuration file that was read.
pub(super) struct File<'f> {
    /// Where it is.
    pub path: &'f Path,
    /// What it says.
    pub text: String,
}

impl File<'_> {
    /// `cairn.toml line 7`, of a key or of the section that it would stand in.
    fn place(&self, path: &[String]) -> String {
        let keys: Vec<&str> = path.iter().map(String::as_str).collect();
        match place::line(&self.text, &keys) {
            Some(line) => format!("{} line {line}", self.path.display()),
            None => self.path.display().to_string(),
        }
    }

    /// Where the first key that a message names stands in the file; `None` where it doesn't.
    pub(super) fn place_of(&self, message: &str) -> Option<String> {
        let is_key = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '.';
        let words = message.split(|char| !is_key(char)).map(|word| word.trim_matches('.'));
        let mut keys =
            words.filter(|word| word.contains('.')).map(|word| word.split('.').collect::<Vec<_>>());
        let key = keys.find(|key| place::has(&self.text, key))?;
        let line = place::line(&self.text, &key)?;
        Some(format!("{} line {line}", self.path.display()))
    }
}

/// The errors, one after the other: what, of which key, where it was read, and which key was probably meant.
pub(super) fn errors(all: figment::Error, file: Option<&File<'_>>) -> String {
    let each = all.into_iter().map(|error| {
        let path = error.path.join(".");
        let mut words = match &error.kind {
            Kind::UnknownField(name, known) => unknown(name, known),
            _ => without_secrets(error.kind.clone(), &path).to_string(),
        };
        if !path.is_empty() {
            words.push_str(&format!(" for {path}"));
        }
        let provider = error.metadata.as_ref().map(|metadata| metadata.name.as_ref()).unwrap_or_default();
        match file {
            Some(file) if provider.starts_with("TOML") => {
                let mut key = error.path.clone();
                if let Kind::UnknownField(name, _) = &error.kind
                    && key.last() != Some(name)
                {
                    key.push(name.clone());
                }
                words.push_str(&format!(" ({})", file.place(&key)));
            }
            _ if provider.contains("CAIRN_") => {
                words.push_str(&format!(" (environment: CAIRN_{})", error.path.join("__").to_uppercase()));
            }
            _ if provider.is_empty() => {}
            _ => words.push_str(&format!(" ({provider})")),
        }
        words
    });
    each.collect::<Vec<_>>().join("; ")
}

/// A key that there isn't, with the one that was probably meant: a neighbour that is spelt like it, or one of the same name elsewhere.
fn unknown(name: &str, known: &'static [&'static str]) -> String {
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let elsewhere = || {
        let sections = defaults.as_object()?;
        let section = sections.iter().find(|(_, keys)| keys.get(name).is_some())?.0;
        Some(format!("{section}.{name}"))
    };
    let meant = place::nearest(name, known.iter().copied()).map(str::to_owned).or_else(elsewhere);
    match meant {
        Some(meant) => format!("unknown key `{name}`, did you mean `{meant}`?"),
        None => format!("unknown key `{name}`, expected one of {}", known.join(", ")),
    }
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
