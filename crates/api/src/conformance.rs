//! The public Ethereum RPC test suite: its request/response files, and their strict comparison.
//!
//! A file has lines `// comment`, `>> request`, `<< response`. What counts as passed:
//!
//! * the whole JSON is equal; an extra field, or one that is missing, fails;
//! * of an error only the message may differ;
//! * in a `// speconly:` case only the shape counts: the same keys with the same JSON types, where every item of a list is shaped
//!   like one of the expected ones. Keys that the specification leaves out for some servers may be missing ([`OPTIONAL_KEYS`]).
//!
//! Transport is the caller's: tests ask [`crate::EthApi`] directly, the binary asks a server over HTTP.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;

use serde_json::Value;

/// Keys that a `speconly` answer may leave out: `(method, key)`. `eth_capabilities`: a resource that is not kept has no oldest
/// block, one that is never deleted has no `deleteStrategy` (execution-apis, `src/schemas/capabilities.yaml`).
pub const OPTIONAL_KEYS: [(&str, &str); 2] =
    [("eth_capabilities", "oldestBlock"), ("eth_capabilities", "deleteStrategy")];

/// How many characters of a value are shown in a difference.
const SHOWN_CHARS: usize = 120;

/// A request and what it has to be answered.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The request's text.
    pub request: String,
    /// The expected response.
    pub response: Value,
}

/// One file of the suite.
#[derive(Debug, Clone)]
pub struct Case {
    /// The folder: the method.
    pub method: String,
    /// The file without its ending.
    pub name: String,
    /// Whether only the shape counts.
    pub spec_only: bool,
    /// Its requests, in order.
    pub exchanges: Vec<Exchange>,
}

impl Case {
    /// `method/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.method, self.name)
    }

    /// Whether every expected response is an error.
    pub fn wants_errors(&self) -> bool {
        self.exchanges.iter().all(|exchange| exchange.response.get("error").is_some())
    }

    /// Parses a file's text.
    pub fn parse(method: &str, name: &str, text: &str) -> Result<Case, String> {
        let (mut spec_only, mut exchanges, mut request) = (false, Vec::new(), None);
        for (number, line) in (1..).zip(text.lines()) {
            let bad = |why: &str| format!("{method}/{name}, line {number}: {why}");
            if let Some(comment) = line.strip_prefix("//") {
                spec_only |= comment.trim_start().starts_with("speconly");
            } else if let Some(text) = line.strip_prefix(">>") {
                if request.replace(text.trim().to_owned()).is_some() {
                    return Err(bad("a request without a response before it"));
                }
            } else if let Some(text) = line.strip_prefix("<<") {
                let request = request.take().ok_or_else(|| bad("a response without a request"))?;
                let response = serde_json::from_str(text).map_err(|error| bad(&error.to_string()))?;
                exchanges.push(Exchange { request, response });
            } else if !line.trim().is_empty() {
                return Err(bad("neither a comment, a request nor a response"));
            }
        }
        if request.is_some() || exchanges.is_empty() {
            return Err(format!("{method}/{name}: it ends without a response"));
        }
        Ok(Case { method: method.to_owned(), name: name.to_owned(), spec_only, exchanges })
    }
}

/// Reads every `METHOD/NAME.io` below `folder`, in the order of their names.
pub fn load(folder: &Path) -> io::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for method in sorted(folder)? {
        if !method.is_dir() {
            continue;
        }
        for file in sorted(&method)? {
            if file.extension().is_none_or(|ending| ending != "io") {
                continue;
            }
            let text = std::fs::read_to_string(&file)?;
            let part =
                |path: Option<&std::ffi::OsStr>| path.unwrap_or_default().to_string_lossy().into_owned();
            let case = Case::parse(&part(method.file_name()), &part(file.file_stem()), &text);
            cases.push(case.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?);
        }
    }
    Ok(cases)
}

fn sorted(folder: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let mut paths =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// What a server without state has to pass: every case of the methods that it answers from blocks and receipts, and those cases of the
/// tracing methods that expect an error (the others want struct logs, which need re-execution).
pub fn must_pass(case: &Case) -> bool {
    if case.method.starts_with("debug_trace") {
        return case.wants_errors();
    }
    crate::eth::methods::find(&case.method).is_some_and(|(_, kind)| kind != crate::eth::methods::Kind::State)
}

/// Compares a response with the expected one.
pub fn compare(case: &Case, expected: &Value, got: &Value) -> Result<(), String> {
    if case.spec_only {
        return same_shape(&case.method, "$", expected, got);
    }
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) if expected.contains_key("error") => {
            let (mut expected, mut got) = (expected.clone(), got.clone());
            for response in [&mut expected, &mut got] {
                if let Some(Value::Object(error)) = response.get_mut("error")
                    && let Some(message @ Value::String(_)) = error.get_mut("message")
                {
                    *message = Value::String(String::new());
                }
            }
            same("$", &Value::Object(expected), &Value::Object(got))
        }
        _ => same("$", expected, got),
    }
}

fn same(path: &str, expected: &Value, got: &Value) -> Result<(), String> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for (key, value) in expected {
                let got = got.get(key).ok_or_else(|| format!("{path}.{key} is missing"))?;
                same(&format!("{path}.{key}"), value, got)?;
            }
            match got.keys().find(|key| !expected.contains_key(*key)) {
                Some(extra) => Err(format!("{path}.{extra} should not be there")),
                None => Ok(()),
            }
        }
        (Value::Array(expected), Value::Array(got)) => {
            if expected.len() != got.len() {
                return Err(format!("{path} has {} items, expected {}", got.len(), expected.len()));
            }
            for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
                same(&format!("{path}[{i}]"), expected, got)?;
            }
            Ok(())
        }
        _ if expected == got => Ok(()),
        _ => Err(format!("{path} is {}, expected {}", shown(got), shown(expected))),
    }
}

fn same_shape(method: &str, path: &str, expected: &Value, got: &Value) -> Result<(), String> {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for (key, value) in expected {
                match got.get(key) {
                    Some(got) => same_shape(method, &format!("{path}.{key}"), value, got)?,
                    None if OPTIONAL_KEYS.contains(&(method, key)) => {}
                    None => return Err(format!("{path}.{key} is missing")),
                }
            }
            match got.keys().find(|key| !expected.contains_key(*key)) {
                Some(extra) => Err(format!("{path}.{extra} should not be there")),
                None => Ok(()),
            }
        }
        (Value::Array(expected), Value::Array(got)) => {
            if expected.is_empty() != got.is_empty() {
                return Err(format!("{path} has {} items, expected {}", got.len(), expected.len()));
            }
            for (i, got) in got.iter().enumerate() {
                let path = format!("{path}[{i}]");
                let errors = expected.iter().map(|expected| same_shape(method, &path, expected, got));
                errors.reduce(|one, other| one.or(other)).unwrap_or(Ok(()))?;
            }
            Ok(())
        }
        (Value::String(expected), Value::String(got))
            if expected.starts_with("0x") && !got.starts_with("0x") =>
        {
            Err(format!("{path} is {}, expected hex", shown(&Value::from(got.as_str()))))
        }
        (Value::String(_), Value::String(_))
        | (Value::Number(_), Value::Number(_))
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Null, Value::Null) => Ok(()),
        _ => Err(format!("{path} is {}, expected something like {}", shown(got), shown(expected))),
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.len()),
        None => text,
    }
}

/// What a run found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The cases that passed.
    pub passed: Vec<String>,
    /// The cases that failed, with the first difference.
    pub failed: Vec<(String, String)>,
    /// The cases that are not for this server, counted by method.
    pub not_served: BTreeMap<String, usize>,
}

impl fmt::Display for Report {
    /// The failures, the methods that are not served, and a last line `N passed, M failed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, why) in &self.failed {
            writeln!(f, "FAILED {case}: {why}")?;
        }
        for (method, count) in &self.not_served {
            writeln!(f, "not served: {method} ({count} cases)")?;
        }
        write!(f, "{} passed, {} failed", self.passed.len(), self.failed.len())
    }
}

/// Runs every case that must pass. `ask` takes a request's text and returns the response's.
pub async fn run<F, A>(cases: &[Case], mut ask: F) -> Report
where
    F: FnMut(String) -> A,
    A: Future<Output = Result<String, String>>,
{
    let mut report = Report::default();
    for case in cases {
        if !must_pass(case) {
            *report.not_served.entry(case.method.clone()).or_default() += 1;
            continue;
        }
        let mut verdict = Ok(());
        for exchange in &case.exchanges {
            verdict = match ask(exchange.request.clone()).await {
                Ok(text) => serde_json::from_str(&text)
                    .map_err(|error| format!("the response is not JSON: {error}"))
                    .and_then(|got| compare(case, &exchange.response, &got)),
                Err(error) => Err(error),
            };
            if verdict.is_err() {
                break;
            }
        }
        match verdict {
            Ok(()) => report.passed.push(case.id()),
            Err(why) => report.failed.push((case.id(), why)),
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn case(method: &str, text: &str) -> Case {
        Case::parse(method, "x", text).expect("a case")
    }

    #[test]
    fn files_are_read_strictly() {
        let text = "// a\n// speconly: b\n>> {\"id\":1}\n<< {\"result\":1}\n\n>> {}\n<< {\"error\":{}}\n";
        let parsed = case("m", text);
        assert!(parsed.spec_only && !parsed.wants_errors());
        assert_eq!((parsed.exchanges.len(), parsed.exchanges[0].request.as_str()), (2, "{\"id\":1}"));
        for bad in ["", "// x\n", ">> {}\n", "<< {}\n", ">> {}\n>> {}\n<< {}\n", "hello\n", ">> {}\n<< {\n"] {
            assert!(Case::parse("m", "x", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn comparison_is_strict() {
        let exact = case("m", ">> {}\n<< {\"result\":1}\n");
        let differs = |expected: Value, got: Value| compare(&exact, &expected, &got).is_err();
        assert!(!differs(json!({"a": [1, null]}), json!({"a": [1, null]})));
        assert!(differs(json!({"a": 1}), json!({"a": 1, "b": null})));
        assert!(differs(json!({"a": 1, "b": null}), json!({"a": 1})));
        assert!(differs(json!({"a": [1, 2]}), json!({"a": [2, 1]})));
        assert!(differs(json!({"a": "0x1"}), json!({"a": "0x01"})));
        let error = |code: i32, message: &str| json!({"id": 1, "error": {"code": code, "message": message}});
        assert!(!differs(error(-32602, "a"), error(-32602, "b")));
        assert!(differs(error(-32602, "a"), error(-32000, "a")));
        assert!(differs(
            error(-32602, "a"),
            json!({"id": 1, "error": {"code": -32602, "message": "a", "data": 1}})
        ));
        assert!(differs(error(-32602, "a"), json!({"id": 1, "result": null})));
        assert!(differs(error(-32602, "a"), json!({"id": 1, "error": {"code": -32602, "message": null}})));
    }

    #[test]
    fn spec_only_cases_look_at_the_shape() {
        let spec = case("eth_capabilities", "// speconly: x\n>> {}\n<< {}\n");
        let differs = |expected: Value, got: Value| compare(&spec, &expected, &got).is_err();
        assert!(!differs(json!({"a": "0x1", "oldestBlock": "0x0"}), json!({"a": "0xff"})));
        assert!(!differs(json!([{"a": 1}]), json!([{"a": 2}, {"a": 3}])));
        assert!(differs(json!({"a": "0x1"}), json!({"a": 1})));
        assert!(differs(json!({"a": "0x1"}), json!({"a": "1"})));
        assert!(differs(json!({"a": 1}), json!({})));
        assert!(differs(json!({"a": 1}), json!({"a": 1, "b": 1})));
        assert!(differs(json!([1]), json!([])));
        assert!(differs(json!([1]), json!([1, "x"])));
    }
}
