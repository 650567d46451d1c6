//! Metrics of an endpoint, and logs that don't flood.
//!
//! | metric | kind | labels |
//! | --- | --- | --- |
//! | `cairn_source_requests_total` | counter | `endpoint`, `outcome` (`ok` or an error class) |
//! | `cairn_source_errors_total` | counter, one a failed item or request | `endpoint`, `class` |
//! | `cairn_source_retries_total` | counter, one an item | `endpoint` |
//! | `cairn_source_response_bytes_total` | counter, decompressed | `endpoint` |
//! | `cairn_source_in_flight` | gauge | `endpoint` |
//! | `cairn_source_batch_items` | gauge: the width that was learned | `endpoint`, `kind` |
//! | `cairn_source_request_seconds` | histogram | `endpoint`, `kind` |
//! | `cairn_source_endpoint_head_height`, `cairn_source_endpoint_lag_heights` | gauge | `endpoint` |
//! | `cairn_source_failovers_total` | counter: an answer that the preferred endpoint didn't give | `endpoint` |
//! | `cairn_source_unknown_tx_types_total` | counter | `endpoint` |
//! | `cairn_source_broken_texts_total` | counter: answers with bytes that are no UTF-8 | `endpoint` |
//! | `cairn_source_websocket_reconnects_total` | counter | `endpoint`, `reason` |

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::redact::EndpointName;

/// The metrics of one endpoint.
#[derive(Debug, Clone)]
pub struct Meters {
    endpoint: String,
}

impl Meters {
    /// Under the endpoint's name.
    pub fn new(name: &EndpointName) -> Meters {
        Meters { endpoint: name.to_string() }
    }

    fn label(&self) -> String {
        self.endpoint.clone()
    }

    /// A request ended.
    pub fn request(&self, kind: &'static str, outcome: &'static str, bytes: u64, took: Duration) {
        metrics::counter!("cairn_source_requests_total", "endpoint" => self.label(), "outcome" => outcome)
            .increment(1);
        metrics::counter!("cairn_source_response_bytes_total", "endpoint" => self.label()).increment(bytes);
        metrics::histogram!("cairn_source_request_seconds", "endpoint" => self.label(), "kind" => kind)
            .record(took.as_secs_f64());
    }

    /// Items failed with this class.
    pub fn errors(&self, class: &'static str, items: u64) {
        metrics::counter!("cairn_source_errors_total", "endpoint" => self.label(), "class" => class)
            .increment(items);
    }

    /// Items are asked for again.
    pub fn retries(&self, items: u64) {
        metrics::counter!("cairn_source_retries_total", "endpoint" => self.label()).increment(items);
    }

    /// Requests in flight now.
    pub fn in_flight(&self, requests: usize) {
        metrics::gauge!("cairn_source_in_flight", "endpoint" => self.label()).set(requests as f64);
    }

    /// The learned width.
    pub fn batch_items(&self, kind: &'static str, items: usize) {
        metrics::gauge!("cairn_source_batch_items", "endpoint" => self.label(), "kind" => kind)
            .set(items as f64);
    }

    /// Its head, and how far it is behind the highest one.
    pub fn head(&self, height: u64, lag_heights: u64) {
        metrics::gauge!("cairn_source_endpoint_head_height", "endpoint" => self.label()).set(height as f64);
        metrics::gauge!("cairn_source_endpoint_lag_heights", "endpoint" => self.label())
            .set(lag_heights as f64);
    }

    /// It answered in place of the preferred one.
    pub fn failover(&self) {
        metrics::counter!("cairn_source_failovers_total", "endpoint" => self.label()).increment(1);
    }

    /// Transactions of a type that we don't know.
    pub fn unknown_types(&self, transactions: u64) {
        metrics::counter!("cairn_source_unknown_tx_types_total", "endpoint" => self.label())
            .increment(transactions);
    }

    /// An answer had broken UTF-8.
    pub fn broken_text(&self) {
        metrics::counter!("cairn_source_broken_texts_total", "endpoint" => self.label()).increment(1);
    }

    /// A WebSocket was given up.
    pub fn reconnect(&self, reason: &'static str) {
        metrics::counter!("cairn_source_websocket_reconnects_total", "endpoint" => self.label(), "reason" => reason).increment(1);
    }
}

/// Lets one log line through per interval and counts the others.
#[derive(Debug)]
pub struct LogGate {
    every: Duration,
    state: Mutex<(Option<Instant>, u64)>,
}

impl LogGate {
    /// One line in `every_ms`.
    pub fn new(every_ms: u64) -> LogGate {
        LogGate { every: Duration::from_millis(every_ms), state: Mutex::new((None, 0)) }
    }

    /// `Some` with how many lines were held back since the last one, when a line may be written.
    pub fn open(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match state.0 {
            Some(last) if now.duration_since(last) < self.every => {
                state.1 += 1;
                None
            }
            _ => {
                let held_back = state.1;
                *state = (Some(now), 0);
                Some(held_back)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn e15_log_lines_are_counted_rather_than_written() {
        let gate = LogGate::new(1_000);
        assert_eq!((gate.open(), gate.open(), gate.open()), (Some(0), None, None));
        tokio::time::advance(Duration::from_millis(1_001)).await;
        assert_eq!(gate.open(), Some(2));
    }
}
