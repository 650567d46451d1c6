//! A lease in hand: it is kept alive while work goes on, and let go before it could be another's.
//!
//! A worker stops by itself a margin before the last renewal runs out, by its own monotonic clock: who can't reach the store
//! must not go on for longer than the store lets the lease stand.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cairn_core::ErrorKind;
use cairn_store::derived::{DerivedStore, WorkerLease};
use tokio::time::{Instant, sleep_until, timeout_at};

/// The lease is another's, or may be soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost;

pub(super) struct Held {
    pub lease: WorkerLease,
    app: Arc<dyn DerivedStore>,
    ttl_ms: u64,
    margin_ms: u64,
    times: Mutex<Times>,
}

#[derive(Clone, Copy)]
struct Times {
    /// When it is to be renewed. Kept between pieces of work: many short ones must not put it off for ever.
    next_beat: Instant,
    /// When the worker has to stop by itself.
    deadline: Instant,
}

impl Held {
    /// A lease whose claim was asked for at `asked_at`.
    pub fn new(
        lease: WorkerLease,
        app: Arc<dyn DerivedStore>,
        ttl_ms: u64,
        margin_ms: u64,
        asked_at: Instant,
    ) -> Self {
        let times = Mutex::new(Times { next_beat: asked_at, deadline: asked_at });
        let held = Held { lease, app, ttl_ms, margin_ms, times };
        held.renewed(asked_at);
        held
    }

    /// The store renewed it by a call that began at `asked_at`.
    pub fn renewed(&self, asked_at: Instant) {
        let lasts = Duration::from_millis(self.ttl_ms.saturating_sub(self.margin_ms).max(1));
        let pause = Duration::from_millis((self.ttl_ms / 3).max(1));
        self.set(Times { next_beat: asked_at + pause, deadline: asked_at + lasts });
    }

    fn set(&self, times: Times) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }

    fn times(&self) -> Times {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` while the lease is kept alive beside it. Where it is lost the work is dropped: whatever it had sent is fenced.
    pub async fn keep<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => Ok(done),
            Lost = self.beat() => Err(Lost),
        }
    }

    async fn beat(&self) -> Lost {
        let soon = Duration::from_millis((self.ttl_ms / 24).max(1));
        loop {
            let Times { next_beat, deadline } = self.times();
            sleep_until(next_beat.min(deadline)).await;
            let now = Instant::now();
            if now >= deadline {
                tracing::warn!(
                    service = self.lease.service,
                    range = %self.lease.range,
                    "the lease could not be renewed in time; its work is dropped"
                );
                return Lost;
            }
            match timeout_at(deadline, self.app.renew(&self.lease, self.ttl_ms)).await {
                Ok(Ok(_)) => self.renewed(now),
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return Lost,
                Ok(Err(error)) => {
                    tracing::debug!(%error, range = %self.lease.range, "the lease could not be renewed now");
                    self.set(Times { next_beat: Instant::now() + soon, deadline });
                }
                Err(_) => return Lost,
            }
        }
    }
}
