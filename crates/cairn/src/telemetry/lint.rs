//! The rules of `promtool check metrics`, held against the text of a recorder in which every family has a value.

use std::collections::{BTreeMap, BTreeSet};

use metrics::with_local_recorder;

use super::families::{FAMILIES, Kind};
use super::{builder, process};

/// Words that promtool takes for a unit which isn't the base unit, or is short for one.
const UNITS: [&str; 22] = [
    "s",
    "ms",
    "us",
    "ns",
    "sec",
    "b",
    "kb",
    "mb",
    "gb",
    "tb",
    "kib",
    "mib",
    "gib",
    "bits",
    "minutes",
    "hours",
    "days",
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "kilobytes",
    "percent",
];

/// What is wrong with a text, in promtool's words.
fn lint(text: &str) -> Vec<String> {
    let (mut helps, mut types) = (BTreeMap::new(), BTreeMap::new());
    let (mut sampled, mut found) = (BTreeSet::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            if help.is_empty() || helps.insert(name, help).is_some() || sampled.contains(name) {
                found.push(format!("{name}: one help with text, before the samples"));
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            if types.insert(name, kind).is_some() || sampled.contains(name) {
                found.push(format!("{name}: one type, before the samples"));
            }
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap_or((line, ""));
            if value.parse::<f64>().is_err() {
                found.push(format!("no value: {line}"));
            }
            let name = sample.split('{').next().unwrap_or_default();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let family =
                of_histogram.filter(|family| types.get(family) == Some(&"histogram")).unwrap_or(name);
            sampled.insert(family);
        }
    }
    for name in sampled {
        let kind = types.get(name).copied().unwrap_or_default();
        let mut wrong = |what: &str| found.push(format!("{name}: {what}"));
        if !helps.contains_key(name) {
            wrong("no help text");
        }
        if !matches!(kind, "counter" | "gauge" | "histogram") {
            wrong("no type, or a summary");
        }
        if name.ends_with("_total") != (kind == "counter") {
            wrong("counters end in _total, and nothing else does");
        }
        if ["_count", "_sum", "_bucket", "_info"].iter().any(|end| name.ends_with(end))
            && !name.ends_with("_build_info")
        {
            wrong("an end that is kept for parts of histograms");
        }
        if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            wrong("lower case and underscores only");
        }
        if name.split('_').any(|word| ["counter", "gauge", "histogram", "summary"].contains(&word)) {
            wrong("names don't say their type");
        }
        if name.split('_').any(|word| UNITS.contains(&word)) {
            wrong("base units, unabbreviated");
        }
        if kind == "histogram" && !text.contains(&format!("{name}_bucket{{")) {
            wrong("no buckets");
        }
    }
    found
}

#[test]
fn the_text_of_every_family_passes_the_rules_of_promtool() {
    let recorder = builder().expect("buckets").build_recorder();
    let handle = recorder.handle();
    with_local_recorder(&recorder, || {
        super::describe();
        for (kind, name, _) in FAMILIES.iter().copied() {
            match kind {
                Kind::Counter => metrics::counter!(name, "endpoint" => "a \"b\"\\c").increment(1),
                Kind::Gauge => metrics::gauge!(name).set(1.5),
                Kind::Histogram => metrics::histogram!(name, "kind" => "block").record(0.02),
            }
        }
    });
    handle.run_upkeep();
    let text = handle.render() + &process::text();
    assert_eq!(lint(&text), Vec::<String>::new(), "{text}");
    assert!(text.contains("cairn_build_info{version="), "{text}");
    assert!(text.contains("source_request_seconds_bucket{"), "{text}");
}

#[test]
fn the_rules_find_what_breaks_them() {
    for (text, wanted) in [
        ("# TYPE a gauge\na 1\n", "no help"),
        ("# HELP a b\na 1\n", "no type"),
        ("# HELP a b\n# TYPE a summary\na 1\n", "summary"),
        ("# HELP a b\n# TYPE a counter\na 1\n", "_total"),
        ("# HELP a_total b\n# TYPE a_total gauge\na_total 1\n", "_total"),
        ("# HELP a_ms b\n# TYPE a_ms gauge\na_ms 1\n", "base units"),
        ("# TYPE a gauge\na 1\n# HELP a b\n", "before the samples"),
        ("# HELP a_count b\n# TYPE a_count gauge\na_count 1\n", "kept for parts"),
        ("# HELP a b\n# TYPE a gauge\na x\n", "no value"),
    ] {
        assert!(lint(text).iter().any(|found| found.contains(wanted)), "{text}: {:?}", lint(text));
    }
}
