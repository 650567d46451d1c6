//! `cairn.example.toml`, which people copy, held against the configuration.

use std::path::PathBuf;

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use serde_json::Value;

use super::*;

fn text() -> String {
    // Where it is now: what was compiled may be used in a clone at another place.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let path = PathBuf::from(folder).join("../../cairn.example.toml");
    std::fs::read_to_string(path).expect("it is in the repository")
}

fn parsed(text: &str) -> Config {
    let figment = Figment::from(Serialized::defaults(Config::default())).merge(Toml::string(text));
    figment.extract().unwrap_or_else(|error| panic!("{error}"))
}

/// The same with the keys that stand in it as comments, so that each is there.
fn with_all_keys(text: &str) -> String {
    let mut is_open = false;
    let uncommented = text.lines().map(|line| {
        let Some(rest) = line.strip_prefix("# ") else {
            is_open = false;
            return line;
        };
        let is_key = rest.split_once(" = ").is_some_and(|(key, _)| {
            key.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
        });
        // A list of several lines goes on.
        is_open = (is_open && !rest.starts_with(']')) || (is_key && rest.ends_with('['));
        if is_key || is_open || rest == "]" { rest } else { line }
    });
    uncommented.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_can_be_used_and_says_the_defaults() {
    let example = parsed(&text());
    example.check().expect("it can be used as it is");
    let mut expected = Config::default();
    // Its comments say of these what the default is.
    expected.chain.rpc = vec!["http://127.0.0.1:8545".into()];
    expected.chain.finality = Some("both:64".into());
    expected.serve.rpc_listen = SocketAddr::from(([127, 0, 0, 1], 8745));
    assert_eq!(example, expected);
    assert_eq!(example.chain.finality().ok(), Config::default().chain.finality().ok());
}

/// The keys of a table and of those in it.
fn keys(prefix: &str, value: &Value, into: &mut Vec<String>) {
    if let Value::Object(fields) = value {
        for (name, value) in fields {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            keys(&key, value, into);
            into.push(key);
        }
    }
}

#[test]
fn the_example_has_every_key_and_no_other() {
    let all = with_all_keys(&text());
    // What isn't a key, or has another type, is refused here.
    parsed(&all);
    let file: Value = Figment::from(Toml::string(&all)).extract().expect("TOML");
    let known = serde_json::to_value(Config::default()).expect("serialises");
    let mut names = Vec::new();
    keys("", &known, &mut names);
    assert!(names.len() > 80, "{names:?}");
    // Keys without a default aren't among those.
    names.extend(
        [
            "raw.url",
            "app.partitions",
            "payloads.url",
            "chain.access",
            "chain.headers",
            "chain.headers_of",
            "chain.error_rules",
            "chain.head_quorum",
            "chain.flow.execution_results",
            "ingest.to",
        ]
        .map(str::to_owned),
    );
    for name in names {
        let pointer = format!("/{}", name.replace('.', "/"));
        assert!(file.pointer(&pointer).is_some(), "`{name}` is missing in cairn.example.toml");
    }
}
