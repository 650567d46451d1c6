//! The names of this crate's metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Requests by method and outcome (`ok`, `error`, `refused`: too much was going on); unknown methods are one method.
pub(crate) const REQUESTS: &str = "cairn_rpc_requests_total";
/// Seconds from a request's turn in its body to its result, by method.
pub(crate) const SECONDS: &str = "cairn_rpc_request_seconds";
/// Open subscriptions.
pub(crate) const SUBSCRIPTIONS: &str = "cairn_rpc_subscriptions";
/// Subscriptions that the server ended.
pub(crate) const SUBSCRIPTIONS_ENDED: &str = "cairn_rpc_subscriptions_ended_total";
/// Open connections by listener (`rpc`, `ops`, `rest`).
pub(crate) const CONNECTIONS: &str = "cairn_api_connections";

/// REST requests by route and status.
pub(crate) const REST_REQUESTS: &str = "cairn_rest_requests_total";
/// Seconds to a REST answer, waiting for a turn included, by route.
pub(crate) const REST_SECONDS: &str = "cairn_rest_request_seconds";

/// Tells the recorder in force what each metric means.
pub fn describe_metrics() {
    describe_counter!(REQUESTS, Unit::Count, "JSON-RPC requests by method and outcome");
    describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "time to a JSON-RPC result, waiting for a turn included, by method"
    );
    describe_gauge!(SUBSCRIPTIONS, Unit::Count, "open subscriptions");
    describe_counter!(
        SUBSCRIPTIONS_ENDED,
        Unit::Count,
        "subscriptions that the server ended, mostly because they fell behind"
    );
    describe_counter!(REST_REQUESTS, Unit::Count, "REST requests by route and status");
    describe_histogram!(
        REST_SECONDS,
        Unit::Seconds,
        "time to a REST answer, waiting for a turn included, by route"
    );
    describe_gauge!(CONNECTIONS, Unit::Count, "open connections by listener");
}
