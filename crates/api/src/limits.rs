//! Every limit of the API, with its unit in its name and a default that suits one machine.
//!
//! Memory, worst case, is the sum of these:
//!
//! * Answers that are computed: `max_heavy_requests` × (`max_response_bytes` + one decoded block and two chunks of 4 MiB).
//! * Answers that wait for their readers: `responses_in_flight_bytes` and `small_responses_in_flight_bytes`.
//! * Requests that are read: `bodies_in_flight_bytes`, and 64 KiB or a WebSocket message for each connection.
//! * Subscriptions: `feed_payload_bytes`, and 32 messages for each connection.
//! * Filters: `filters_bytes`.
//! * HTTP/2: 3 MiB for each connection.
//!
//! Nothing clamps silently: an error names the limit.

use serde::{Deserialize, Serialize};

/// The limits of a JSON-RPC server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RpcLimits {
    /// Connections at once, HTTP and WebSocket together; further ones wait a second for a place, then they are turned away.
    pub max_connections: usize,
    /// Of them, those of one client address; further ones are turned away. Behind a proxy all callers have its address.
    pub max_connections_per_address: usize,
    /// The body of an HTTP request.
    pub max_body_bytes: usize,
    /// A WebSocket message.
    pub max_ws_message_bytes: usize,
    /// Memory for the HTTP bodies above 64 KiB that are being read, all together.
    pub bodies_in_flight_bytes: usize,
    /// Items of a batch.
    pub max_batch_items: usize,
    /// The result of one request, and all results of one batch together.
    pub max_response_bytes: usize,
    /// Memory for responses that are made but not yet sent, all together. Who finds none within `queue_timeout_ms` is refused.
    pub responses_in_flight_bytes: usize,
    /// Of it, the share of one client address. Behind a proxy all callers have its address.
    pub responses_in_flight_bytes_per_address: usize,
    /// Of it, the share of one connection.
    pub responses_in_flight_bytes_per_connection: usize,
    /// Memory beside it for responses up to 64 KiB, so that these never wait behind large ones.
    pub small_responses_in_flight_bytes: usize,
    /// The longest wait of a request for its turn, and for memory. Who is expected to wait longer is refused at once.
    pub queue_timeout_ms: u64,
    /// From the start of a request to its result.
    pub request_timeout_ms: u64,
    /// From the start of a batch to its last result.
    pub batch_timeout_ms: u64,
    /// To receive the first byte of a new connection.
    pub first_byte_timeout_ms: u64,
    /// To receive the headers of an HTTP request; also how long an idle connection is kept.
    pub header_timeout_ms: u64,
    /// To receive the body of an HTTP request.
    pub body_timeout_ms: u64,
    /// How long a peer may refuse to take a byte before its connection is cut.
    pub write_stall_timeout_ms: u64,
    /// What a peer has to take of its answers while they wait for it, over ten seconds; else its connection is cut.
    pub min_drain_bytes_per_s: u64,
    /// To take one answer as a whole.
    pub response_timeout_ms: u64,
    /// How long a stopping server waits for what is under way.
    pub shutdown_grace_ms: u64,
    /// Requests answered at once; each item of a batch counts.
    pub max_concurrent_requests: usize,
    /// Of them, those that may read or write megabytes (logs, receipts of a block, whole blocks, traces).
    pub max_heavy_requests: usize,
    /// Requests answered at once for one WebSocket connection.
    pub max_requests_in_flight_per_connection: usize,
    /// Subscriptions of one WebSocket connection.
    pub max_subscriptions_per_connection: usize,
    /// Blocks that a subscriber may be behind the newest before its connection is closed.
    pub feed_queue_blocks: usize,
    /// Memory for decoded blocks that subscribers have not taken yet; a subscriber that needs one that was dropped is closed.
    pub feed_payload_bytes: usize,
    /// How often subscriptions look for a new head when nobody wakes them.
    pub head_poll_ms: u64,
    /// How often an idle WebSocket peer is asked whether it is there; silence for two intervals closes it.
    pub ws_ping_interval_ms: u64,
    /// Logs of one `eth_getLogs` over more than one block. A single block is never capped.
    pub max_log_results: usize,
    /// Blocks of one `eth_getLogs`; `None`: no limit.
    pub max_log_range_blocks: Option<u64>,
    /// Addresses, and alternatives per topic position, of one filter.
    pub max_filter_values: usize,
    /// Filters that are polled (`eth_newFilter`, `eth_newBlockFilter`), all together.
    pub max_filters: usize,
    /// Of them, those of one address. Behind a proxy all callers have its address.
    pub max_filters_per_address: usize,
    /// Memory for the addresses and topics of such filters, all together.
    pub filters_bytes: usize,
    /// A filter that nobody asks for is forgotten after so long.
    pub filter_idle_timeout_ms: u64,
    /// How long the upstream may take for an answer. It should be less than `request_timeout_ms`, so that the answer can say which node was slow.
    pub upstream_timeout_ms: u64,
    /// Blocks of one `eth_feeHistory`.
    pub max_fee_history_blocks: u64,
    /// A read snapshot is renewed when it is older (on the same fork only).
    pub max_snapshot_age_ms: u64,
}

/// The limits of connections to one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionLimits {
    /// Connections at once.
    pub max_connections: usize,
    /// Of them, those of one client address. Behind a proxy all callers have its address.
    pub max_connections_per_address: usize,
    /// Places beside them for health and metrics alone, when the others are taken.
    pub reserved_connections: usize,
    /// To receive the first byte of a new connection.
    pub first_byte_timeout_ms: u64,
    /// To receive the headers of a request; also how long an idle connection is kept.
    pub header_timeout_ms: u64,
    /// How long a peer may refuse to take a byte before its connection is cut.
    pub write_stall_timeout_ms: u64,
    /// What a peer has to take of its answers while they wait for it, over ten seconds.
    pub min_drain_bytes_per_s: u64,
    /// How long a stopping server waits for what is under way.
    pub shutdown_grace_ms: u64,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            max_connections: 256,
            max_connections_per_address: 128,
            reserved_connections: 16,
            first_byte_timeout_ms: 5_000,
            header_timeout_ms: 30_000,
            write_stall_timeout_ms: 20_000,
            min_drain_bytes_per_s: 256 << 10,
            shutdown_grace_ms: 2_000,
        }
    }
}

impl ConnectionLimits {
    /// Checks that a server can work within them; says which one doesn't fit.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("max_connections", self.max_connections as u64),
            ("max_connections_per_address", self.max_connections_per_address as u64),
            ("first_byte_timeout_ms", self.first_byte_timeout_ms),
            ("header_timeout_ms", self.header_timeout_ms),
            ("write_stall_timeout_ms", self.write_stall_timeout_ms),
        ];
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(format!("{name} must be at least 1")),
            None => Ok(()),
        }
    }
}

impl Default for RpcLimits {
    fn default() -> Self {
        RpcLimits {
            max_connections: 512,
            max_connections_per_address: 256,
            max_body_bytes: 5 << 20,
            max_ws_message_bytes: 1 << 20,
            bodies_in_flight_bytes: 64 << 20,
            max_batch_items: 1000,
            max_response_bytes: 64 << 20,
            responses_in_flight_bytes: 256 << 20,
            responses_in_flight_bytes_per_address: 128 << 20,
            responses_in_flight_bytes_per_connection: 64 << 20,
            small_responses_in_flight_bytes: 16 << 20,
            queue_timeout_ms: 1_000,
            request_timeout_ms: 30_000,
            batch_timeout_ms: 60_000,
            first_byte_timeout_ms: 5_000,
            header_timeout_ms: 30_000,
            body_timeout_ms: 15_000,
            write_stall_timeout_ms: 20_000,
            min_drain_bytes_per_s: 256 << 10,
            response_timeout_ms: 120_000,
            shutdown_grace_ms: 5_000,
            max_concurrent_requests: 64,
            max_heavy_requests: 8,
            max_requests_in_flight_per_connection: 16,
            max_subscriptions_per_connection: 64,
            feed_queue_blocks: 256,
            feed_payload_bytes: 64 << 20,
            head_poll_ms: 500,
            ws_ping_interval_ms: 30_000,
            max_log_results: 10_000,
            max_log_range_blocks: None,
            max_filter_values: 1000,
            max_filters: 10_000,
            max_filters_per_address: 1_000,
            filters_bytes: 64 << 20,
            filter_idle_timeout_ms: 300_000,
            upstream_timeout_ms: 10_000,
            max_fee_history_blocks: 1024,
            max_snapshot_age_ms: 1_000,
        }
    }
}

impl RpcLimits {
    /// The part that its listener keeps. No place is reserved there: health and metrics are elsewhere.
    pub(crate) fn connections(&self) -> ConnectionLimits {
        ConnectionLimits {
            max_connections: self.max_connections,
            max_connections_per_address: self.max_connections_per_address,
            reserved_connections: 0,
            first_byte_timeout_ms: self.first_byte_timeout_ms,
            header_timeout_ms: self.header_timeout_ms,
            write_stall_timeout_ms: self.write_stall_timeout_ms,
            min_drain_bytes_per_s: self.min_drain_bytes_per_s,
            shutdown_grace_ms: self.shutdown_grace_ms,
        }
    }

    /// Checks that a server can work within them; says which one doesn't fit. Subscriptions, a pace, a grace at the end and the age of a snapshot may be 0, and then there are none.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("max_connections", self.max_connections as u64),
            ("max_connections_per_address", self.max_connections_per_address as u64),
            ("max_body_bytes", self.max_body_bytes as u64),
            ("max_ws_message_bytes", self.max_ws_message_bytes as u64),
            ("bodies_in_flight_bytes", self.bodies_in_flight_bytes as u64),
            ("max_batch_items", self.max_batch_items as u64),
            ("max_response_bytes", self.max_response_bytes as u64),
            ("responses_in_flight_bytes", self.responses_in_flight_bytes as u64),
            ("responses_in_flight_bytes_per_address", self.responses_in_flight_bytes_per_address as u64),
            (
                "responses_in_flight_bytes_per_connection",
                self.responses_in_flight_bytes_per_connection as u64,
            ),
            ("small_responses_in_flight_bytes", self.small_responses_in_flight_bytes as u64),
            ("queue_timeout_ms", self.queue_timeout_ms),
            ("request_timeout_ms", self.request_timeout_ms),
            ("batch_timeout_ms", self.batch_timeout_ms),
            ("first_byte_timeout_ms", self.first_byte_timeout_ms),
            ("header_timeout_ms", self.header_timeout_ms),
            ("body_timeout_ms", self.body_timeout_ms),
            ("write_stall_timeout_ms", self.write_stall_timeout_ms),
            ("response_timeout_ms", self.response_timeout_ms),
            ("max_concurrent_requests", self.max_concurrent_requests as u64),
            ("max_heavy_requests", self.max_heavy_requests as u64),
            ("max_requests_in_flight_per_connection", self.max_requests_in_flight_per_connection as u64),
            ("feed_queue_blocks", self.feed_queue_blocks as u64),
            ("feed_payload_bytes", self.feed_payload_bytes as u64),
            ("head_poll_ms", self.head_poll_ms),
            ("ws_ping_interval_ms", self.ws_ping_interval_ms),
            ("max_log_results", self.max_log_results as u64),
            ("max_log_range_blocks", self.max_log_range_blocks.unwrap_or(1)),
            ("max_filter_values", self.max_filter_values as u64),
            ("max_filters", self.max_filters as u64),
            ("max_filters_per_address", self.max_filters_per_address as u64),
            ("filters_bytes", self.filters_bytes as u64),
            ("filter_idle_timeout_ms", self.filter_idle_timeout_ms),
            ("upstream_timeout_ms", self.upstream_timeout_ms),
            ("max_fee_history_blocks", self.max_fee_history_blocks),
        ];
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(format!("{name} must be at least 1")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_within_which_nothing_works_are_refused_by_name() {
        assert_eq!(RpcLimits::default().check(), Ok(()));
        let limits = serde_json::to_value(RpcLimits::default()).expect("serialises");
        let may_be_zero = [
            "max_subscriptions_per_connection",
            "min_drain_bytes_per_s",
            "shutdown_grace_ms",
            "max_snapshot_age_ms",
        ];
        for name in limits.as_object().expect("fields").keys() {
            let mut limits = limits.clone();
            limits[name] = 0.into();
            let limits: RpcLimits = serde_json::from_value(limits).expect("reads");
            match may_be_zero.contains(&name.as_str()) {
                true => assert_eq!(limits.check(), Ok(()), "{name}"),
                false => assert_eq!(limits.check(), Err(format!("{name} must be at least 1"))),
            }
        }
    }
}
