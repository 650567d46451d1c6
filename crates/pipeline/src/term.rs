//! How long its holder may count on a lease.
//!
//! A holder stops by itself a margin before the last renewal runs out, by its own monotonic clock: who can't reach the store must not go on for
//! longer than the store lets the lease stand. From then on nothing is written under it. It expires, unless its holder gives it back once the store answers again.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cairn_core::{ErrorKind, HeightRange};
use cairn_store::StoreError;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Why a lease is its holder's no more.
#[derive(Debug, Clone)]
pub(crate) enum Lost {
    /// The store says that it is another's.
    Taken(StoreError),
    /// It was not renewed in time, and may be another's soon.
    Overdue,
}

/// The times of one lease.
pub(crate) struct LeaseTerm {
    ttl_ms: u64,
    margin_ms: u64,
    times: Mutex<Times>,
}

#[derive(Clone, Copy)]
struct Times {
    /// When it is to be renewed. Kept between pieces of work: many short ones must not put it off for ever.
    next_beat: Instant,
    /// When the holder has to stop by itself.
    deadline: Instant,
}

impl LeaseTerm {
    /// Of a lease whose claim was asked for at `asked_at`.
    pub fn new(ttl_ms: u64, margin_ms: u64, asked_at: Instant) -> LeaseTerm {
        let times = Mutex::new(Times { next_beat: asked_at, deadline: asked_at });
        let term = LeaseTerm { ttl_ms, margin_ms, times };
        term.renewed(asked_at);
        term
    }

    /// The store renewed it by a call that began at `asked_at`. Of two at once the later counts.
    pub fn renewed(&self, asked_at: Instant) {
        let lasts = Duration::from_millis(self.ttl_ms.saturating_sub(self.margin_ms).max(1));
        let pause = Duration::from_millis((self.ttl_ms / 3).max(1));
        self.change(|times| {
            times.next_beat = times.next_beat.max(asked_at + pause);
            times.deadline = times.deadline.max(asked_at + lasts);
        });
    }

    /// Whether its holder has to have stopped.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.times().deadline
    }

    fn change(&self, change: impl FnOnce(&mut Times)) {
        change(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn times(&self) -> Times {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the lease of `range` at a third of its time, and where that fails soon again, until it is lost.
    pub async fn keep<F>(&self, range: HeightRange, renew: impl Fn() -> F) -> Lost
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let soon = Duration::from_millis((self.ttl_ms / 24).max(1));
        loop {
            let Times { next_beat, deadline } = self.times();
            sleep_until(next_beat.min(deadline)).await;
            let now = Instant::now();
            // What was committed meanwhile may have renewed it.
            let Times { next_beat, deadline } = self.times();
            if now >= deadline {
                return Lost::Overdue;
            }
            if now < next_beat {
                continue;
            }
            match timeout_at(deadline, renew()).await {
                Ok(Ok(())) => self.renewed(now),
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return Lost::Taken(error),
                Ok(Err(error)) => {
                    tracing::debug!(%error, %range, "the lease could not be renewed now");
                    let next = Instant::now() + soon;
                    self.change(|times| times.next_beat = next);
                }
                // The loop sees whether a commit renewed it while this one was waited for.
                Err(_) => {}
            }
        }
    }
}
