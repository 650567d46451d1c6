//! Every limit of REST, with its unit in its name.

use serde::{Deserialize, Serialize};

/// The most that `max_page_rows` may be: as many as the OpenAPI document says for every list.
pub const MAX_PAGE_ROWS: u32 = 200;

/// The limits of `/v1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RestLimits {
    /// Requests answered at once; further ones wait.
    pub max_concurrent_requests: usize,
    /// How long a request waits for its turn before it is refused with 503.
    pub queue_timeout_ms: u64,
    /// From a request's turn to its answer.
    pub request_timeout_ms: u64,
    /// The path and query of a request.
    pub max_uri_bytes: usize,
    /// The body of a request, which nothing here reads.
    pub max_body_bytes: u64,
    /// Rows of a page where the request doesn't say.
    pub default_page_rows: u32,
    /// The most rows of a page; up to [`MAX_PAGE_ROWS`].
    pub max_page_rows: u32,
    /// Rows that are examined for one page. A page that stops here is short, and its `next` goes on.
    pub max_examined_rows: usize,
    /// Bytes of blocks that an event stream reads at once.
    pub max_stream_step_bytes: u64,
    /// How often an answer from both databases is tried while they stand on different forks.
    pub fork_tries: u32,
    /// The pause before the second try; it doubles each time.
    pub fork_pause_ms: u64,
    /// Characters of a search.
    pub max_search_chars: usize,
    /// Event streams at once.
    pub max_streams: usize,
    /// How often an event stream looks for a new block when nobody wakes it.
    pub stream_poll_ms: u64,
    /// How often a silent event stream says that it is there.
    pub stream_keep_alive_ms: u64,
    /// How many blocks behind the tip a stream may be resumed.
    pub max_stream_backlog_blocks: u64,
}

impl Default for RestLimits {
    fn default() -> Self {
        RestLimits {
            max_concurrent_requests: 64,
            queue_timeout_ms: 2_000,
            request_timeout_ms: 10_000,
            max_uri_bytes: 8_192,
            max_body_bytes: 65_536,
            default_page_rows: 50,
            max_page_rows: 200,
            max_examined_rows: 10_000,
            max_stream_step_bytes: 8 << 20,
            fork_tries: 5,
            fork_pause_ms: 25,
            max_search_chars: 200,
            max_streams: 64,
            stream_poll_ms: 500,
            stream_keep_alive_ms: 15_000,
            max_stream_backlog_blocks: 10_000,
        }
    }
}

impl RestLimits {
    /// Checks that REST can work within them; says which one doesn't fit.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("max_concurrent_requests", self.max_concurrent_requests as u64),
            ("request_timeout_ms", self.request_timeout_ms),
            ("max_uri_bytes", self.max_uri_bytes as u64),
            ("default_page_rows", u64::from(self.default_page_rows)),
            ("max_page_rows", u64::from(self.max_page_rows)),
            ("max_examined_rows", self.max_examined_rows as u64),
            ("max_stream_step_bytes", self.max_stream_step_bytes),
            ("fork_tries", u64::from(self.fork_tries)),
            ("max_search_chars", self.max_search_chars as u64),
            ("stream_poll_ms", self.stream_poll_ms),
            ("stream_keep_alive_ms", self.stream_keep_alive_ms),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        if self.max_page_rows > MAX_PAGE_ROWS {
            return Err(format!(
                "max_page_rows is {}; it may be {MAX_PAGE_ROWS} at most",
                self.max_page_rows
            ));
        }
        if self.default_page_rows > self.max_page_rows {
            return Err(format!(
                "default_page_rows is {}, which is more than max_page_rows, {}",
                self.default_page_rows, self.max_page_rows
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_within_which_nothing_works_are_refused_by_name() {
        let usual = RestLimits::default();
        assert_eq!(usual.check(), Ok(()));
        let wrong = [
            ("max_page_rows", RestLimits { max_page_rows: 201, ..usual.clone() }),
            ("max_page_rows", RestLimits { max_page_rows: 0, default_page_rows: 1, ..usual.clone() }),
            ("default_page_rows", RestLimits { default_page_rows: 0, ..usual.clone() }),
            ("default_page_rows", RestLimits { max_page_rows: 20, ..usual.clone() }),
            ("request_timeout_ms", RestLimits { request_timeout_ms: 0, ..usual.clone() }),
            ("stream_poll_ms", RestLimits { stream_poll_ms: 0, ..usual }),
        ];
        for (name, limits) in wrong {
            let error = limits.check().expect_err(name);
            assert!(error.starts_with(name), "{error}");
        }
    }
}
