//! What an error of a node means (field case E12): every provider words its limits differently, and uses the same code for several things.
//!
//! A table of rules on (HTTP status, JSON-RPC code, text); the first that matches decides. Configured rules come first. What
//! no rule knows is transient: it is tried again a bounded number of times.

use serde::{Deserialize, Serialize};

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorClass {
    /// Too much was asked at once: ask for strictly less.
    TooWide,
    /// Asked too often, or the server is overloaded: slow down.
    RateLimited,
    /// Worth another try.
    Transient,
    /// This endpoint refuses: ask in another way, or another endpoint, or the same again much later.
    Refused,
}

impl ErrorClass {
    /// Its name in metrics and configuration.
    pub fn name(self) -> &'static str {
        match self {
            ErrorClass::TooWide => "too-wide",
            ErrorClass::RateLimited => "rate-limited",
            ErrorClass::Transient => "transient",
            ErrorClass::Refused => "refused",
        }
    }
}

/// What else an error tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// Nothing.
    None,
    /// It took too long: smaller batches may not.
    TimedOut,
    /// The node doesn't know the block or transaction (yet).
    NotFound,
    /// The node doesn't have the method.
    MethodMissing,
    /// The node doesn't keep the state, or the history, that the answer needs.
    StateMissing,
    /// The endpoint as a whole refuses us: wrong key, wrong path.
    Refused,
    /// Nothing was sent: the endpoint pauses for longer than the caller waits.
    Away,
}

/// What is known of an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Symptom<'a> {
    /// The HTTP status, where there was an answer.
    pub http_status: Option<u16>,
    /// The JSON-RPC error code, where there was one.
    pub code: Option<i64>,
    /// The message.
    pub text: &'a str,
}

/// A rule of one's own: all conditions that are set must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorRule {
    /// The HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// The JSON-RPC error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// A part of the message, in any letter case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// What it means.
    pub class: ErrorClass,
}

/// A built-in rule; `None` and an empty list of texts match everything.
struct Rule {
    http_status: Option<u16>,
    code: Option<i64>,
    any_of: &'static [&'static str],
    class: ErrorClass,
    hint: Hint,
}

const fn on_text(any_of: &'static [&'static str], class: ErrorClass, hint: Hint) -> Rule {
    Rule { http_status: None, code: None, any_of, class, hint }
}

const fn on_status(http_status: u16, class: ErrorClass, hint: Hint) -> Rule {
    Rule { http_status: Some(http_status), code: None, any_of: &[], class, hint }
}

const fn on_code(code: i64, class: ErrorClass, hint: Hint) -> Rule {
    Rule { http_status: None, code: Some(code), any_of: &[], class, hint }
}

use ErrorClass::{RateLimited, Refused, TooWide, Transient};

/// Texts are in lower case. Order matters: quotas before widths (a quota mentions "exceeded" too), texts before codes and
/// statuses (a code means different things at different providers).
const RULES: &[Rule] = &[
    // Quotas and rates.
    on_text(
        &[
            "request count exceeded",
            "rate limit",
            "rate-limit",
            "ratelimit",
            "request rate",
            "too many requests",
            "too many concurrent",
            "requests per second",
            "request limit reached",
            "/second request limit",
            "compute units",
            "throughput",
            "throttl",
            "quota",
            "daily request",
            "monthly",
            "capacity exceeded",
            "capacity limit",
            "usage limit",
            "out of credits",
            "cu limit",
            "call rate",
            "server is busy",
            "server busy",
            "overloaded",
            "try again later",
        ],
        RateLimited,
        Hint::None,
    ),
    // A node behind a balancer that doesn't have the block yet, or a state that is gone.
    on_text(
        &[
            "method not found",
            "does not exist/is not available",
            "method is not supported",
            "method not supported",
            "unsupported method",
            "method is not available",
            "method not available",
            "method not allowed",
            "unknown method",
            "method is not whitelisted",
            "not whitelisted",
            "not implemented",
            "method is disabled",
            "method disabled",
        ],
        Refused,
        Hint::MethodMissing,
    ),
    on_text(
        &[
            "missing trie node",
            "pruned history",
            "state is not available",
            "historical state",
            "has been pruned",
            "history has been pruned",
            "data is pruned",
            "old data not available",
            "required historical",
        ],
        Refused,
        Hint::StateMissing,
    ),
    on_code(4444, Refused, Hint::StateMissing),
    on_text(
        &[
            "block not found",
            "unknown block",
            "header not found",
            "header for hash not found",
            "resource not found",
            "could not find block",
            "cannot find block",
            "block is not available",
            "unfinalized",
            "not yet available",
            "transaction not found",
            "no receipts",
            "receipts not found",
            "after last accepted block",
            "block does not exist",
        ],
        Transient,
        Hint::NotFound,
    ),
    // Parameters: a hash where a number is expected is "too large to fit", which is no width.
    on_text(
        &["to fit in", "too large to fit", "> 64 bits", "invalid argument", "invalid params"],
        Refused,
        Hint::None,
    ),
    // Widths.
    on_text(
        &[
            "more than 10000 results",
            "query returned more than",
            "returned more than",
            "results exceed",
            "max results",
            "maximum results",
            "too many results",
            "too many logs",
            "logs matched",
            "block range",
            "blocks range",
            "range is too",
            "range too",
            "ranges over",
            "exceed maximum block",
            "exceeds the range",
            "response size",
            "response is too big",
            "response too large",
            "response exceeded",
            "response too big",
            "too large",
            "too big",
            "is too wide",
            "batch limit",
            "batch size",
            "batch too",
            "batch of",
            "batch requests",
            "batch request",
            "batched requests",
            "batching",
            "max batch",
            "maximum batch",
            "too many batch",
            "calls in batch",
            "payload size",
            "message size",
            "body size",
            "max message",
            "content length",
            "entity too large",
        ],
        TooWide,
        Hint::None,
    ),
    on_text(
        &["timed out", "timeout", "deadline exceeded", "took too long", "execution aborted"],
        Transient,
        Hint::TimedOut,
    ),
    // Codes.
    on_code(-32601, Refused, Hint::MethodMissing),
    on_code(-32005, RateLimited, Hint::None),
    on_code(-32016, RateLimited, Hint::None),
    on_code(-32029, RateLimited, Hint::None),
    on_code(-32097, RateLimited, Hint::None),
    on_code(-32001, RateLimited, Hint::None),
    on_code(429, RateLimited, Hint::None),
    on_code(-32008, TooWide, Hint::None),
    on_code(-32011, TooWide, Hint::None),
    on_code(-32614, TooWide, Hint::None),
    on_code(-32003, TooWide, Hint::None),
    on_code(-32002, Transient, Hint::TimedOut),
    on_code(-32004, Refused, Hint::MethodMissing),
    // Statuses that say more than a general code does.
    on_status(429, RateLimited, Hint::None),
    on_status(503, RateLimited, Hint::None),
    on_status(413, TooWide, Hint::None),
    on_status(431, TooWide, Hint::None),
    on_status(401, Refused, Hint::Refused),
    on_status(402, Refused, Hint::Refused),
    on_status(403, Refused, Hint::Refused),
    on_status(404, Refused, Hint::Refused),
    on_status(405, Refused, Hint::Refused),
    on_status(410, Refused, Hint::Refused),
    on_status(408, Transient, Hint::TimedOut),
    on_status(504, Transient, Hint::TimedOut),
    on_status(522, Transient, Hint::TimedOut),
    on_status(524, Transient, Hint::TimedOut),
    // Codes that say little.
    on_code(-32600, Refused, Hint::None),
    on_code(-32602, Refused, Hint::None),
    on_code(-32603, Transient, Hint::None),
    on_code(-32700, Refused, Hint::None),
    // A redirect is never followed: it would take the key somewhere else.
    on_status(301, Refused, Hint::Refused),
    on_status(302, Refused, Hint::Refused),
    on_status(307, Refused, Hint::Refused),
    on_status(308, Refused, Hint::Refused),
];

/// Decides what errors mean.
#[derive(Debug, Clone, Default)]
pub struct Classifier {
    own: Vec<ErrorRule>,
}

impl Classifier {
    /// The built-in table behind these rules.
    pub fn new(own: &[ErrorRule]) -> Classifier {
        let own = own
            .iter()
            .map(|rule| ErrorRule {
                contains: rule.contains.as_ref().map(|text| text.to_lowercase()),
                ..rule.clone()
            })
            .collect();
        Classifier { own }
    }

    /// The class of an error, and what else it tells.
    pub fn classify(&self, symptom: Symptom<'_>) -> (ErrorClass, Hint) {
        // No rule looks further than this; a page of HTML is not searched whole.
        let text: String = symptom.text.chars().take(2_000).collect::<String>().to_lowercase();
        let status_fits = |wanted: Option<u16>| wanted.is_none() || wanted == symptom.http_status;
        let code_fits = |wanted: Option<i64>| wanted.is_none() || wanted == symptom.code;
        for rule in &self.own {
            let text_fits = rule.contains.as_ref().is_none_or(|part| text.contains(part.as_str()));
            if status_fits(rule.http_status) && code_fits(rule.code) && text_fits {
                return (rule.class, Hint::None);
            }
        }
        for rule in RULES {
            let text_fits = rule.any_of.is_empty() || rule.any_of.iter().any(|part| text.contains(part));
            if status_fits(rule.http_status) && code_fits(rule.code) && text_fits {
                return (rule.class, rule.hint);
            }
        }
        (Transient, Hint::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(http_status: u16, code: Option<i64>, text: &str) -> ErrorClass {
        Classifier::default().classify(Symptom { http_status: Some(http_status), code, text }).0
    }

    /// Error shapes of providers and nodes as their users reported them.
    #[test]
    fn e12_every_providers_wording_is_understood() {
        let table: &[(u16, Option<i64>, &str, ErrorClass)] = &[
            (
                200,
                Some(-32005),
                "query returned more than 10000 results. Try with this block range [0x1, 0x2].",
                TooWide,
            ),
            (200, Some(-32602), "query exceeds max block range 100000", TooWide),
            (200, Some(-32602), "query exceeds max results 20000, retry with the range 1-5", TooWide),
            (
                200,
                Some(-32602),
                "Log response size exceeded. this block range should work: [0x1, 0x2]",
                TooWide,
            ),
            (200, Some(-32600), "batch too large", TooWide),
            (200, Some(-32003), "response too large", TooWide),
            (200, Some(-32008), "Response is too big", TooWide),
            (200, Some(-32614), "eth_getLogs is limited to a 10,000 range", TooWide),
            (200, Some(-32000), "exceed maximum block range: 5000", TooWide),
            (200, Some(35), "ranges over 10000 blocks are not supported on freetier", TooWide),
            (
                400,
                Some(-32600),
                "You can't send more than 10 requests in a batch: batch size exceeded",
                TooWide,
            ),
            (400, None, "Batch size too large", TooWide),
            (413, None, "Request Entity Too Large", TooWide),
            (413, None, "", TooWide),
            (200, Some(-32005), "daily request count exceeded, request rate limited", RateLimited),
            (200, Some(-32005), "limit exceeded", RateLimited),
            (429, Some(429), "Your app has exceeded its compute units per second capacity.", RateLimited),
            (429, Some(-32007), "50/second request limit reached - reduce calls per second", RateLimited),
            (
                200,
                Some(-32090),
                "Too many requests, reason: call rate limit exhausted, retry in 10s",
                RateLimited,
            ),
            (429, None, "", RateLimited),
            (503, None, "<html>Service Unavailable</html>", RateLimited),
            (200, Some(-32001), "", RateLimited),
            (403, None, "Monthly quota reached", RateLimited),
            (200, Some(-32603), "Internal error", Transient),
            (200, Some(-32000), "something nobody has seen before", Transient),
            (200, Some(-32000), "header not found", Transient),
            (200, Some(-32001), "Resource not found", Transient),
            (200, Some(-32002), "request timed out", Transient),
            (500, None, "oops", Transient),
            (502, None, "Bad Gateway", Transient),
            (504, None, "Gateway Timeout", Transient),
            (200, Some(-32601), "the method eth_getBlockReceipts does not exist/is not available", Refused),
            (200, Some(-32600), "Unsupported method: eth_getBlockReceipts", Refused),
            (200, Some(-32602), "invalid argument 0: hex string without 0x prefix", Refused),
            (200, Some(-32602), "number too large to fit in target type", Refused),
            (200, Some(4444), "pruned history unavailable", Refused),
            (200, Some(-32000), "missing trie node 1234", Refused),
            (401, None, "Must be authenticated!", Refused),
            (404, None, "not here", Refused),
            (307, None, "", Refused),
        ];
        for (status, code, text, expected) in table {
            assert_eq!(class(*status, *code, text), *expected, "{status} {code:?} {text}");
        }
    }

    #[test]
    fn configured_rules_come_first() {
        let own = ErrorRule {
            http_status: None,
            code: Some(-32603),
            contains: Some("Cows".into()),
            class: Refused,
        };
        let classifier = Classifier::new(&[own]);
        let classify =
            |text| classifier.classify(Symptom { http_status: Some(200), code: Some(-32603), text }).0;
        assert_eq!(classify("too many cows"), Refused);
        assert_eq!(classify("Internal error"), Transient);
    }

    #[test]
    fn a_timeout_says_so() {
        let symptom =
            Symptom { http_status: Some(200), code: Some(-32000), text: "context deadline exceeded" };
        assert_eq!(Classifier::default().classify(symptom), (Transient, Hint::TimedOut));
    }
}
