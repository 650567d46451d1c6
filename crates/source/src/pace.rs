//! How often one node is asked.
//!
//! Requests get slots that lie evenly, so that a node which counts them by the second is used up to its limit and never beyond: a request
//! that it refuses is one wasted. Where it refuses one all the same, everything waits, each time longer, until one goes through.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// One node's pace.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The first slot that nobody has.
    next: Instant,
    /// No request goes before this.
    shut_until: Option<Instant>,
    refused_in_a_row: u32,
}

impl Pace {
    /// So many requests a second; 0: as many as come.
    pub fn new(requests_per_s: u32) -> Pace {
        let interval = (requests_per_s > 0).then(|| Duration::from_secs(1) / requests_per_s);
        Pace {
            interval,
            state: Mutex::new(State { next: Instant::now(), shut_until: None, refused_in_a_row: 0 }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot.
    pub async fn slot(&self) {
        self.slots(1).await;
    }

    /// Waits for the first of `count` slots and takes them all, as a batch does that a node counts call by call.
    pub async fn slots(&self, count: usize) {
        let slot = {
            let mut state = self.state();
            let now = Instant::now();
            match self.interval {
                None => now,
                Some(interval) => {
                    // A sleeper wakes a little late; the schedule is kept all the same, or the limit would not be used up.
                    let slot = state.next.max(now.checked_sub(interval).unwrap_or(now));
                    state.next = slot + interval * u32::try_from(count).unwrap_or(u32::MAX);
                    slot
                }
            }
        };
        sleep_until(slot).await;
        loop {
            let shut_until = self.state().shut_until.filter(|until| *until > Instant::now());
            match shut_until {
                None => return,
                Some(until) => sleep_until(until).await,
            }
        }
    }

    /// The node said: too often.
    pub fn refused(&self) {
        let mut state = self.state();
        let now = Instant::now();
        // Those that were in flight together count once.
        if state.shut_until.is_none_or(|until| until <= now) {
            let pause = FIRST_PAUSE * 2u32.saturating_pow(state.refused_in_a_row.min(10));
            state.shut_until = Some(now + pause.min(LONGEST_PAUSE));
            state.refused_in_a_row = state.refused_in_a_row.saturating_add(1);
        }
    }

    /// The node answered.
    pub fn answered(&self) {
        let mut state = self.state();
        if state.shut_until.is_some_and(|until| until <= Instant::now()) {
            (state.shut_until, state.refused_in_a_row) = (None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_batch_takes_a_slot_for_each_call() {
        let pace = Pace::new(100);
        let begun = Instant::now();
        for _ in 0..11 {
            pace.slots(50).await;
        }
        assert_eq!(begun.elapsed().as_secs(), 5, "500 calls went before");
    }

    #[tokio::test(start_paused = true)]
    async fn slots_lie_evenly() {
        let pace = Pace::new(100);
        let begun = Instant::now();
        for _ in 0..501 {
            pace.slot().await;
        }
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(4_980) && took <= Duration::from_millis(5_030), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_time_is_not_made_up_for_by_a_burst() {
        let pace = Pace::new(10);
        pace.slot().await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begun = Instant::now();
        for _ in 0..11 {
            pace.slot().await;
        }
        assert!(begun.elapsed() >= Duration::from_millis(890), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_make_all_wait_and_each_time_longer() {
        let pace = Pace::new(0);
        let mut last = Duration::ZERO;
        for _ in 0..4 {
            pace.refused();
            pace.refused();
            let begun = Instant::now();
            pace.slot().await;
            assert!(
                begun.elapsed() >= last + Duration::from_millis(499),
                "{:?} after {last:?}",
                begun.elapsed()
            );
            last = begun.elapsed();
        }
        pace.answered();
        pace.refused();
        let begun = Instant::now();
        pace.slot().await;
        assert!(begun.elapsed() <= Duration::from_millis(510));
    }
}
