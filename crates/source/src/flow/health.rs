//! Whether a node could be reached lately.
//!
//! One that couldn't is asked last, for a while that grows; where there is no other it is asked all the same.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// One node's health.
#[derive(Debug, Default)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    resting_until: Option<Instant>,
    failed_in_a_row: u32,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether others are asked first.
    pub fn is_resting(&self) -> bool {
        self.state().resting_until.is_some_and(|until| until > Instant::now())
    }

    /// It answered, whatever that was.
    pub fn answered(&self) {
        *self.state() = State::default();
    }

    /// It could not be reached, or said nothing in time. Those that were in flight together count once.
    pub fn failed(&self) {
        let mut state = self.state();
        let now = Instant::now();
        if state.resting_until.is_none_or(|until| until <= now) {
            let rest = FIRST_REST * 2u32.saturating_pow(state.failed_in_a_row.min(10));
            state.resting_until = Some(now + rest.min(LONGEST_REST));
            state.failed_in_a_row = state.failed_in_a_row.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rests_grow_and_end_with_an_answer() {
        let health = Health::default();
        for rest_s in [1, 2, 4] {
            health.failed();
            health.failed();
            tokio::time::advance(Duration::from_secs(rest_s) - Duration::from_millis(1)).await;
            assert!(health.is_resting(), "{rest_s}");
            tokio::time::advance(Duration::from_millis(2)).await;
            assert!(!health.is_resting(), "{rest_s}");
        }
        health.failed();
        health.answered();
        assert!(!health.is_resting());
    }
}
