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
    /// When the worker has to stop by itself.
    deadline: Mutex<Instant>,
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
        let held = Held { lease, app, ttl_ms, margin_ms, deadline: Mutex::new(asked_at) };
        held.renewed(asked_at);
        held
    }

    /// The store renewed it by a call that began at `asked_at`.
    pub fn renewed(&self, asked_at: Instant) {
        let lasts = Duration::from_millis(self.ttl_ms.saturating_sub(self.margin_ms).max(1));
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = asked_at + lasts;
    }

    fn deadline(&self) -> Instant {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
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
        let pause = Duration::from_millis((self.ttl_ms / 3).max(1));
        let soon = Duration::from_millis((self.ttl_ms / 24).max(1));
        let mut next = Instant::now() + pause;
        loop {
            let deadline = self.deadline();
            sleep_until(next.min(deadline)).await;
            let deadline = self.deadline();
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
                Ok(Ok(_)) => {
                    self.renewed(now);
                    next = now + pause;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Fenced => return Lost,
                Ok(Err(error)) => {
                    tracing::debug!(%error, range = %self.lease.range, "the lease could not be renewed now");
                    next = Instant::now() + soon;
                }
                Err(_) => return Lost,
            }
        }
    }
}
