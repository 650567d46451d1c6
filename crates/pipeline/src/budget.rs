//! A byte budget for blocks in flight (law 9: budgets count bytes, not items).
//!
//! Whoever starts a fetch reserves what it expects; when the blocks are there the reservation is set to their real size; it is
//! released when they are committed. A new fetch waits while the budget is used up, except where nothing is in flight:
//! one block larger than the whole budget still passes, alone.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The budget; clones share it.
#[derive(Debug, Clone)]
pub struct ByteBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit_bytes: u64,
    used_bytes: Mutex<u64>,
    released: Notify,
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    inner: Arc<Inner>,
    bytes: u64,
}

impl ByteBudget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let inner = Inner { limit_bytes, used_bytes: Mutex::new(0), released: Notify::new() };
        ByteBudget { inner: Arc::new(inner) }
    }

    /// Waits until `expected_bytes` fit, or nothing else is reserved.
    pub async fn reserve(&self, expected_bytes: u64) -> Reservation {
        loop {
            let released = self.inner.released.notified();
            tokio::pin!(released);
            // Registered before the look, so that a release between look and wait is not missed.
            released.as_mut().enable();
            if let Some(reservation) = self.try_reserve(expected_bytes) {
                return reservation;
            }
            released.await;
        }
    }

    fn try_reserve(&self, expected_bytes: u64) -> Option<Reservation> {
        let mut used = self.inner.used_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = *used == 0 || used.saturating_add(expected_bytes) <= self.inner.limit_bytes;
        fits.then(|| {
            *used += expected_bytes;
            Reservation { inner: self.inner.clone(), bytes: expected_bytes }
        })
    }

    #[cfg(test)]
    fn used_bytes(&self) -> u64 {
        *self.inner.used_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Sets it to what really came.
    pub fn resize(&mut self, real_bytes: u64) {
        let mut used = self.inner.used_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *used = *used - self.bytes + real_bytes;
        let shrank = real_bytes < self.bytes;
        self.bytes = real_bytes;
        drop(used);
        if shrank {
            self.inner.released.notify_waiters();
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut used = self.inner.used_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *used -= self.bytes;
        drop(used);
        self.inner.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn i11_one_giant_passes_alone_and_others_wait() {
        let budget = ByteBudget::new(100);
        let giant = budget.reserve(1_000).await;
        assert_eq!(budget.used_bytes(), 1_000);
        let waiting = tokio::time::timeout(std::time::Duration::from_secs(1), budget.reserve(10)).await;
        assert!(waiting.is_err(), "nothing fits beside the giant");
        drop(giant);
        let mut small = budget.reserve(60).await;
        small.resize(30);
        let _other = budget.reserve(70).await;
        assert_eq!(budget.used_bytes(), 100);
    }
}
