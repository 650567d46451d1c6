//! Pauses between tries: doubling, capped, with jitter from a seed.

use std::time::Duration;

/// A growing pause.
#[derive(Debug, Clone)]
pub struct Backoff {
    first_ms: u64,
    cap_ms: u64,
    tries: u32,
    state: u64,
}

impl Backoff {
    /// Begins at `first_ms`, doubles, and never exceeds `cap_ms`; `seed` spreads processes that failed together.
    pub fn new(first_ms: u64, cap_ms: u64, seed: u64) -> Self {
        Backoff { first_ms, cap_ms, tries: 0, state: seed | 1 }
    }

    /// The next pause: between half of the current step and the whole of it.
    pub fn next_pause(&mut self) -> Duration {
        let step = self.first_ms.saturating_mul(1 << self.tries.min(20)).clamp(1, self.cap_ms.max(1));
        self.tries = self.tries.saturating_add(1);
        // xorshift64: spread is all that is asked of it.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        Duration::from_millis(step / 2 + self.state % (step / 2 + 1))
    }

    /// How many pauses were handed out since the last reset.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Something worked: begin small again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_begin_again() {
        let mut backoff = Backoff::new(100, 1_000, 7);
        let pauses: Vec<u64> = (0..6).map(|_| backoff.next_pause().as_millis() as u64).collect();
        for (pause, step) in pauses.iter().zip([100, 200, 400, 800, 1_000, 1_000]) {
            assert!((step / 2..=step).contains(pause), "{pause} for step {step}");
        }
        backoff.reset();
        assert!(backoff.next_pause().as_millis() <= 100);
    }
}
