//! A byte budget for blocks in flight (law 9: budgets count bytes, not items).
//!
//! Whoever starts a fetch reserves what it expects; when the blocks are there the reservation is set to their real size; it is
//! released when they are committed. A new fetch waits while the budget is used up, except where nothing is in flight:
//! one block larger than the whole budget still passes, alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// No block is expected to take less.
const MIN_BLOCK_BYTES: u64 = 1 << 10;

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
    /// What the next block is expected to take; 0 before any was seen.
    expected_block_bytes: AtomicU64,
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
        let inner = Inner {
            limit_bytes,
            used_bytes: Mutex::new(0),
            released: Notify::new(),
            expected_block_bytes: AtomicU64::new(0),
        };
        ByteBudget { inner: Arc::new(inner) }
    }

    /// A careful guess of what the next block takes: follows growth at once, forgets slowly. `None` before any was seen.
    pub fn expected_block_bytes(&self) -> Option<u64> {
        Some(self.inner.expected_block_bytes.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Blocks of these sizes came.
    pub fn learn(&self, sizes_bytes: impl Iterator<Item = u64>) {
        let before = self.inner.expected_block_bytes.load(Ordering::Relaxed);
        let expected = sizes_bytes
            .fold(before, |expected, size| size.max(expected - expected / 16).max(MIN_BLOCK_BYTES));
        self.inner.expected_block_bytes.store(expected, Ordering::Relaxed);
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

    #[test]
    fn expectations_follow_growth_at_once_and_forget_slowly() {
        let budget = ByteBudget::new(100);
        assert_eq!(budget.expected_block_bytes(), None);
        budget.learn([10].into_iter());
        assert_eq!(budget.expected_block_bytes(), Some(MIN_BLOCK_BYTES));
        budget.learn([5_000, 1 << 20].into_iter());
        assert_eq!(budget.expected_block_bytes(), Some(1 << 20));
        budget.learn(std::iter::repeat_n(5_000, 10));
        let after_ten = budget.expected_block_bytes().expect("known");
        assert!((500 << 10..600 << 10).contains(&after_ten), "{after_ten}");
        budget.learn(std::iter::empty());
        assert_eq!(budget.expected_block_bytes(), Some(after_ten));
    }

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
