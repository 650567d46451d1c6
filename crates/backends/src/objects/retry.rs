//! When to try again, and for how long.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::error::{Class, ObjectError};
use super::http;

/// One warning about failed tries in this time.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The bounds of tries. A call ends with the last try's error when the tries or the time are used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all, at least 1.
    pub max_tries: u32,
    /// Tries for a key that should exist and isn't found (field case O03).
    pub missing_tries: u32,
    /// The first pause; each one doubles, and is drawn between its half and its whole.
    pub first_pause_ms: u64,
    /// The longest pause, also where the server asks for a longer one.
    pub max_pause_ms: u64,
    /// The longest that one try may take.
    pub try_timeout_ms: u64,
    /// How long an answer may take to begin. A connection that died without a word is noticed by this: S3 and its kin begin within a second.
    pub answer_timeout_ms: u64,
    /// The longest that one call may take, with all its tries and pauses.
    pub total_ms: u64,
    /// Spreads processes that failed together.
    pub seed: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            max_tries: 10,
            missing_tries: 5,
            first_pause_ms: 100,
            max_pause_ms: 10_000,
            try_timeout_ms: 60_000,
            answer_timeout_ms: 10_000,
            total_ms: 180_000,
            seed: 0,
        }
    }
}

/// A policy in force: it counts the pauses it has drawn.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) policy: RetryPolicy,
    drawn: AtomicU64,
    /// When a warning was written last.
    told: Mutex<Option<Instant>>,
}

impl Retry {
    pub(super) fn new(policy: RetryPolicy) -> Self {
        Retry { policy, drawn: AtomicU64::new(0), told: Mutex::default() }
    }

    /// Whether a failed try is worth a warning: the first one in a while is.
    fn tells(&self) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }

    /// The pause after `tries` tries, or what the server asked for, whichever is longer.
    fn pause_ms(&self, tries: u32, asked_ms: Option<u64>) -> u64 {
        let policy = &self.policy;
        let step = policy.first_pause_ms.saturating_mul(1 << (tries.max(1) - 1).min(20));
        let step = step.max(asked_ms.unwrap_or(0)).clamp(1, policy.max_pause_ms.max(1));
        let random = splitmix64(policy.seed ^ self.drawn.fetch_add(1, Ordering::Relaxed));
        // What the server asks for is waited out in full.
        let least = asked_ms.map_or(step / 2, |asked| asked.min(step).max(step / 2));
        least + random % (step - least + 1)
    }

    /// Runs `attempt` until it succeeds, fails for good, or the bounds are reached. `should_exist`: "not found" is tried again too.
    pub(super) async fn run<T, F, Fut>(
        &self,
        op: &'static str,
        key: &str,
        should_exist: bool,
        mut attempt: F,
    ) -> Result<T, ObjectError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = object_store::Result<T>>,
    {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let left_ms = self.policy.total_ms.saturating_sub(elapsed_ms(begun)).max(1);
            let timeout_ms = self.policy.try_timeout_ms.clamp(1, left_ms);
            let one = tokio::time::timeout(Duration::from_millis(timeout_ms), attempt());
            let (answer, seen) = http::watched(one).await;
            let mut error = match answer {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) => ObjectError::from_store(op, key, error, seen),
                Err(_) => ObjectError::timed_out(op, key, timeout_ms, seen),
            };
            error.tries = tries;
            error.elapsed_ms = elapsed_ms(begun);
            let max_tries = match error.class {
                Class::Transient => self.policy.max_tries,
                Class::NotFound if should_exist => self.policy.missing_tries,
                Class::NotFound | Class::Exists | Class::Refused => return Err(error),
            };
            let pause_ms = self.pause_ms(tries, error.retry_after_ms);
            if tries >= max_tries || error.elapsed_ms.saturating_add(pause_ms) >= self.policy.total_ms {
                return Err(error);
            }
            if self.tells() {
                tracing::warn!(%error, tries, pause_ms, "object storage fails; it is asked again");
            } else {
                tracing::debug!(%error, tries, pause_ms, "object storage fails; it is asked again");
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }
}

fn elapsed_ms(begun: Instant) -> u64 {
    begun.elapsed().as_millis() as u64
}

/// Spread is all that is asked of it.
fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic() -> object_store::Error {
        let source = Box::new(std::io::Error::from(std::io::ErrorKind::Interrupted));
        object_store::Error::Generic { store: "test", source }
    }

    #[test]
    fn pauses_double_to_the_cap_and_heed_the_server() {
        let retry = Retry::new(RetryPolicy { max_pause_ms: 1_000, ..RetryPolicy::default() });
        for (tries, step) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (60, 1_000)] {
            let pause_ms = retry.pause_ms(tries, None);
            assert!((step / 2..=step).contains(&pause_ms), "{pause_ms} for step {step}");
        }
        assert!((600..=1_000).contains(&retry.pause_ms(1, Some(600))));
        assert_eq!(retry.pause_ms(1, Some(3_600_000)), 1_000, "a pause has a bound");
        let again = Retry::new(RetryPolicy { max_pause_ms: 1_000, ..RetryPolicy::default() });
        let other = Retry::new(RetryPolicy { seed: 1, max_pause_ms: 1_000, ..RetryPolicy::default() });
        let draw = |retry: &Retry| (1..20).map(|tries| retry.pause_ms(tries, None)).collect::<Vec<_>>();
        assert_eq!(draw(&again), draw(&Retry::new(again.policy.clone())), "a seed gives the same pauses");
        assert_ne!(draw(&again), draw(&other), "another seed gives others");
    }

    #[tokio::test(start_paused = true)]
    async fn tries_and_time_are_bounded() {
        let retry = Retry::new(RetryPolicy { max_tries: 4, ..RetryPolicy::default() });
        let error = retry.run("GET", "k", false, async || Err::<(), _>(generic())).await.unwrap_err();
        assert_eq!(error.tries, 4);

        let policy = RetryPolicy { max_tries: u32::MAX, total_ms: 5_000, ..RetryPolicy::default() };
        let begun = Instant::now();
        let error =
            Retry::new(policy).run("GET", "k", false, async || Err::<(), _>(generic())).await.unwrap_err();
        assert!(error.tries > 3, "{}", error.tries);
        assert!(begun.elapsed().as_millis() < 5_100);
    }

    #[tokio::test(start_paused = true)]
    async fn o02_a_try_that_hangs_is_cut_off_and_tried_again() {
        let retry = Retry::new(RetryPolicy::default());
        let calls = AtomicU64::new(0);
        let done = retry
            .run("GET", "k", false, async || {
                if calls.fetch_add(1, Ordering::Relaxed) < 2 {
                    std::future::pending::<()>().await;
                }
                Ok(7)
            })
            .await;
        assert_eq!(done.unwrap(), 7);
        assert_eq!(calls.load(Ordering::Relaxed), 3);

        let begun = Instant::now();
        let error =
            retry.run("GET", "k", false, std::future::pending::<object_store::Result<()>>).await.unwrap_err();
        assert!(begun.elapsed().as_millis() < 181_000, "the whole call has a bound");
        assert!(error.to_string().contains("no answer within"), "{error}");
    }
}
