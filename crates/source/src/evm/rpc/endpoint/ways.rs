//! Which ways of asking an endpoint has, learned from what failed.
//!
//! A way that failed is doubted: the next time one try is enough before the next narrower way. One that failed several times in a row, or whose method
//! is missing, is avoided for a while. Each failure after that doubles the while. One success ends the doubt.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_core::Height;
use tokio::time::Instant;

/// Failures in a row before a way is avoided.
const FAILURES_BEFORE_AVOIDED: u32 = 3;
/// How long it is avoided then; it doubles with each further failure.
const FIRST_AVOIDANCE: Duration = Duration::from_secs(10);
/// Of how many blocks it is known that their receipts were refused.
const MAX_REFUSED_BLOCKS: usize = 64;

/// A way of asking that some nodes lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// A block with its whole transactions.
    WholeBlock,
    /// `eth_getBlockReceipts` with a block hash.
    ReceiptsByHash,
    /// `eth_getBlockReceipts`.
    BlockReceipts,
    /// Headers whose bloom is that of the logs.
    Bloom,
    /// `debug_getRawTransaction`.
    DebugRawTransaction,
    /// `eth_getRawTransactionByHash`.
    EthRawTransaction,
    /// `debug_traceBlockByHash`.
    BlockTraces,
    /// Call traces at all.
    Traces,
    /// The `safe` tag.
    SafeTag,
    /// The `finalized` tag.
    FinalizedTag,
}

impl Way {
    /// What happens while it is avoided.
    pub fn consequence(self) -> &'static str {
        match self {
            Way::WholeBlock => "blocks are asked for transaction by transaction",
            Way::ReceiptsByHash => "receipts are asked for by height",
            Way::BlockReceipts => "receipts are asked for one by one",
            Way::Bloom => {
                "blocks whose bloom says that there are logs are taken without any; `--relax bloom` says so for good"
            }
            Way::DebugRawTransaction | Way::EthRawTransaction => {
                "bytes of transactions of unknown type are not asked for in this way; blocks without them are marked, and `cairn repair` asks again"
            }
            Way::BlockTraces => "call traces are asked for transaction by transaction",
            Way::Traces => {
                "blocks are stored without call traces and marked; `cairn repair` asks again. Traces need a node with the debug methods that keeps the \
                 blocks' state: use one, or turn traces off"
            }
            Way::SafeTag => "the safe block is not known",
            Way::FinalizedTag => "the finalised block is not known by its tag",
        }
    }
}

/// A way is avoided from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avoided {
    /// For how long.
    pub time: Duration,
    /// It was avoided before, and has not worked since.
    pub again: bool,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    avoided_until: Option<Instant>,
}

impl State {
    fn is_avoided(&self) -> bool {
        self.avoided_until.is_some_and(|until| until > Instant::now())
    }
}

/// What is known of an endpoint's ways.
#[derive(Debug)]
pub struct Ways {
    states: Mutex<HashMap<Way, State>>,
    /// How often the receipts of a block were refused by those who check them.
    refused: Mutex<BTreeMap<Height, u32>>,
    longest_avoidance: Duration,
}

impl Ways {
    /// Nothing is known yet. No way is avoided for longer than this.
    pub fn new(longest_avoidance: Duration) -> Ways {
        Ways { states: Mutex::default(), refused: Mutex::default(), longest_avoidance }
    }

    fn states(&self) -> MutexGuard<'_, HashMap<Way, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the way isn't asked now.
    pub fn avoids(&self, way: Way) -> bool {
        self.states().get(&way).is_some_and(State::is_avoided)
    }

    /// Whether it failed the last time.
    pub fn doubts(&self, way: Way) -> bool {
        self.states().get(&way).is_some_and(|state| state.failures > 0)
    }

    /// It worked.
    pub fn worked(&self, way: Way) {
        self.states().remove(&way);
    }

    /// It failed. Says whether it is avoided from now on.
    pub fn failed(&self, way: Way) -> Option<Avoided> {
        let mut states = self.states();
        let state = states.entry(way).or_default();
        if state.is_avoided() {
            // Calls that were on their way already.
            return None;
        }
        state.failures = state.failures.saturating_add(1);
        let doublings = state.failures.checked_sub(FAILURES_BEFORE_AVOIDED)?;
        let time = FIRST_AVOIDANCE.saturating_mul(1 << doublings.min(16)).min(self.longest_avoidance);
        let again = state.avoided_until.replace(Instant::now() + time).is_some();
        Some(Avoided { time, again })
    }

    /// The node says that it doesn't have it. Says whether it is avoided from now on.
    pub fn missing(&self, way: Way) -> Option<Avoided> {
        let mut states = self.states();
        let state = states.entry(way).or_default();
        if state.is_avoided() {
            return None;
        }
        state.failures = state.failures.max(1);
        let time = self.longest_avoidance;
        let again = state.avoided_until.replace(Instant::now() + time).is_some();
        Some(Avoided { time, again })
    }

    /// The receipts that came for the block at `height` were refused.
    pub fn refuse_receipts(&self, height: Height) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(height).or_default() += 1;
        if refused.len() > MAX_REFUSED_BLOCKS {
            // What was stored since is below what is refused now.
            refused.pop_first();
        }
    }

    /// Whether the receipts of the block at `height` are to be asked for one by one: every second time after a refusal.
    pub fn narrows_receipts(&self, height: Height) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(&height).is_some_and(|times| times % 2 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_way_that_fails_is_doubted_then_avoided_and_tried_again() {
        let ways = Ways::new(Duration::from_secs(60));
        let way = Way::BlockReceipts;
        assert_eq!((ways.failed(way), ways.doubts(way), ways.avoids(way)), (None, true, false));
        ways.worked(way);
        assert!(!ways.doubts(way));
        let begun: Vec<_> = (0..4).map(|_| ways.failed(way)).collect();
        assert_eq!(begun, [None, None, Some(Avoided { time: FIRST_AVOIDANCE, again: false }), None]);
        for seconds in [10, 20, 40, 60, 60] {
            assert!(ways.avoids(way));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert!(!ways.avoids(way), "{seconds}");
            assert!(ways.failed(way).is_some_and(|avoided| avoided.again));
        }
        assert!(!ways.avoids(Way::Traces));
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_method_is_tried_again_too() {
        let ways = Ways::new(Duration::from_secs(60));
        assert!(ways.missing(Way::Traces).is_some() && ways.missing(Way::Traces).is_none());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!ways.avoids(Way::Traces) && ways.doubts(Way::Traces));
    }

    #[test]
    fn refused_receipts_are_asked_for_one_by_one_every_second_time() {
        let ways = Ways::new(Duration::ZERO);
        let narrow: Vec<bool> = (0..4)
            .map(|_| {
                ways.refuse_receipts(Height(7));
                ways.narrows_receipts(Height(7))
            })
            .collect();
        assert_eq!(narrow, [false, true, false, true]);
        assert!(!ways.narrows_receipts(Height(8)));
    }
}
