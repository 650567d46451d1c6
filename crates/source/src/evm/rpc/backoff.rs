//! Pauses that grow and are never the same twice, so that many workers and many processes don't come back in one moment (field case E15).

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Exponential pauses with jitter from a seed.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    random: SmallRng,
}

impl Backoff {
    /// Pauses from `initial_ms`, doubling up to `max_ms`.
    pub fn new(initial_ms: u64, max_ms: u64, seed: u64) -> Backoff {
        Backoff {
            initial: Duration::from_millis(initial_ms.max(1)),
            max: Duration::from_millis(max_ms.max(1)),
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// The pause after the `failures`-th failure in a row: between a half and the whole of `initial × 2^(failures − 1)`.
    pub fn pause(&mut self, failures: u32) -> Duration {
        let whole = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.max);
        self.spread(whole / 2, whole)
    }

    /// At least what a server asked for, and up to a quarter (at least 100 ms) more.
    pub fn after(&mut self, asked: Duration) -> Duration {
        self.spread(asked, asked + (asked / 4).max(Duration::from_millis(100)))
    }

    /// Something between the two.
    pub fn spread(&mut self, least: Duration, most: Duration) -> Duration {
        least + most.saturating_sub(least).mul_f64(self.random.random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e15_pauses_grow_to_the_limit_and_differ_by_seed() {
        let mut backoff = Backoff::new(100, 1_000, 7);
        for (failures, whole_ms) in [(1, 100), (2, 200), (4, 800), (5, 1_000), (400, 1_000)] {
            let pause = backoff.pause(failures);
            assert!(
                pause >= Duration::from_millis(whole_ms / 2) && pause <= Duration::from_millis(whole_ms),
                "{pause:?}"
            );
        }
        let after = backoff.after(Duration::from_secs(2));
        assert!(after >= Duration::from_secs(2) && after <= Duration::from_millis(2_500));
        let run = |seed| (1..6).map(move |n| Backoff::new(100, 1_000, seed).pause(n)).collect::<Vec<_>>();
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let after = |seed| Backoff::new(100, 1_000, seed).after(Duration::from_secs(60));
        let mut times: Vec<_> = (0..8).map(after).collect();
        times.sort();
        assert!(
            times[7] - times[0] > Duration::from_secs(5),
            "processes that were told the same time come back spread"
        );
    }
}
