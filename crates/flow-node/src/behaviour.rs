//! How a node behaves, and what it was asked.

use std::collections::BTreeMap;
use std::time::Instant;

use cairn_flow::Network;

/// How often one may ask: a bucket of `burst` requests that fills at `per_s` (golang.org/x/time/rate, as access nodes have it).
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    /// Requests a second.
    pub per_s: u32,
    /// Requests at once after a quiet time.
    pub burst: u32,
}

/// How a node behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// The network that it says it serves, as the text of its parameters. `None`: the chain's.
    pub network: Option<&'static str>,
    /// The largest answer that it gives, in bytes.
    pub max_answer_bytes: usize,
    /// The most heights in one question for events. Real nodes allow 250, the emulator any.
    pub max_event_heights: u64,
    /// No bulk calls: a node of an old spork.
    pub is_old: bool,
    /// It does not say whether a block is sealed.
    pub is_silent_on_seals: bool,
    /// Bulk results fail over one transaction's message.
    pub is_bulk_broken: bool,
    /// Bulk transactions lack one: that which has so many behind it. 0: the one that closes the block.
    pub bulk_lacks: Option<usize>,
    /// By its id a transaction is to be had where it is a user's: the system's are in bulk answers alone.
    pub is_system_unstored: bool,
    /// Results by index are of users' transactions alone.
    pub is_system_refused_by_index: bool,
    /// Results by id name neither block nor height, and are those of the first block that has the transaction, whichever was asked for.
    pub is_silent_on_blocks: bool,
    /// Calls that it doesn't have.
    pub lacks: &'static [&'static str],
    /// It has the state of so many sealed heights, the newest; of older blocks it answers no script and no account. `None`: of all.
    pub keeps_state_heights: Option<u64>,
    /// A call or a stream that fails, and how.
    pub failing: Option<(&'static str, tonic::Code)>,
    /// A call that it never answers.
    pub hanging: Option<&'static str>,
    /// Asked more often, it refuses with RESOURCE_EXHAUSTED.
    pub rate_limit: Option<RateLimit>,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            network: None,
            max_answer_bytes: usize::MAX,
            max_event_heights: 250,
            is_old: false,
            is_silent_on_seals: false,
            is_bulk_broken: false,
            bulk_lacks: None,
            is_system_unstored: false,
            is_system_refused_by_index: false,
            is_silent_on_blocks: false,
            lacks: &[],
            keeps_state_heights: None,
            failing: None,
            hanging: None,
            rate_limit: None,
        }
    }
}

/// What a node was asked.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Requests that were let through, by call.
    pub asked: BTreeMap<String, u64>,
    /// Requests that were refused for coming too soon: wasted.
    pub refused: u64,
    /// When the first and the last request came.
    pub between: Option<(Instant, Instant)>,
}

impl Counts {
    /// All requests that were let through.
    pub fn total(&self) -> u64 {
        self.asked.values().sum()
    }

    /// Requests that were let through a second, from the first to the last.
    pub fn per_s(&self) -> f64 {
        let seconds = self.between.map_or(0.0, |(first, last)| last.duration_since(first).as_secs_f64());
        if seconds > 0.0 { self.total().saturating_sub(1) as f64 / seconds } else { 0.0 }
    }
}

/// The bucket of a [`RateLimit`].
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// What is left, and when that was so.
    left: Option<(f64, Instant)>,
}

impl Bucket {
    /// Takes one request, where there is one left.
    pub fn take(&mut self, limit: RateLimit, now: Instant) -> bool {
        let burst = f64::from(limit.burst.max(1));
        let (left, since) = self.left.unwrap_or((burst, now));
        let filled = left + now.duration_since(since).as_secs_f64() * f64::from(limit.per_s);
        let left = filled.min(burst);
        let is_taken = left >= 1.0;
        self.left = Some((if is_taken { left - 1.0 } else { left }, now));
        is_taken
    }
}

/// The text of a network's blocks and parameters.
pub(crate) fn network_name(behaviour: &Behaviour, network: Network) -> String {
    behaviour.network.unwrap_or(network.chain_id()).to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let limit = RateLimit { per_s: 10, burst: 3 };
        let mut bucket = Bucket::default();
        let begun = Instant::now();
        let taken =
            |bucket: &mut Bucket, at_ms: u64| bucket.take(limit, begun + Duration::from_millis(at_ms));
        assert_eq!([0, 0, 0, 0].map(|at| taken(&mut bucket, at)), [true, true, true, false]);
        assert_eq!([99, 101, 150, 210].map(|at| taken(&mut bucket, at)), [false, true, false, true]);
        assert_eq!([9_000; 4].map(|at| taken(&mut bucket, at)), [true, true, true, false]);
    }
}
