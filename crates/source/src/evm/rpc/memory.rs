//! The memory that answers take, bounded per call and over all calls.
//!
//! Every call of the source owns a [`CallMemory`]. All bodies that it reads are charged to it until the last slice of them is dropped. Up to
//! `free_bytes` cost nothing. Beyond that the call must hold the one slot for large answers, which all calls of a source share; beyond `max_bytes`
//! the answer is refused. So everything together stays below `calls × free_bytes + max_bytes`.
//!
//! Nobody waits for the slot with a request in flight (the holder may need that place): a request that turns out to need
//! it is given up, the slot is waited for, and the request is made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

/// Why a body can't grow further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The slot for large answers has to be taken first.
    NeedsSlot,
    /// More than the call may ever hold.
    OverLimit,
}

/// The limits, shared by all calls of a source.
#[derive(Debug, Clone)]
pub struct MemoryLimits {
    slot: Arc<Semaphore>,
    free_bytes: u64,
    max_bytes: u64,
}

impl MemoryLimits {
    /// `free_bytes` for every call, `max_bytes` for one at a time.
    pub fn new(free_bytes: u64, max_bytes: u64) -> MemoryLimits {
        MemoryLimits { slot: Arc::new(Semaphore::new(1)), free_bytes, max_bytes: max_bytes.max(free_bytes) }
    }

    /// The memory of a new call.
    pub fn call(&self) -> Arc<CallMemory> {
        Arc::new(CallMemory {
            limits: self.clone(),
            used_bytes: AtomicU64::new(0),
            slot: Mutex::new(None),
            has_slot: AtomicBool::new(false),
        })
    }
}

/// What one call holds.
#[derive(Debug)]
pub struct CallMemory {
    limits: MemoryLimits,
    used_bytes: AtomicU64,
    slot: Mutex<Option<OwnedSemaphorePermit>>,
    has_slot: AtomicBool,
}

impl CallMemory {
    /// Waits for the slot for large answers. The call keeps it until it ends.
    pub async fn take_slot(&self) {
        let mut slot = self.slot.lock().await;
        if slot.is_none() {
            // The semaphore is never closed; if it were, going on without the slot only costs memory.
            *slot = self.limits.slot.clone().acquire_owned().await.ok();
            self.has_slot.store(true, Ordering::Release);
        }
    }

    /// Whether it has the slot for large answers.
    pub fn has_slot(&self) -> bool {
        self.has_slot.load(Ordering::Acquire)
    }

    /// A body to be read within this call.
    pub fn body(self: &Arc<Self>) -> Body {
        Body { bytes: Vec::new(), charged_bytes: 0, call: self.clone() }
    }

    /// What its bodies take now, in bytes.
    #[cfg(test)]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }
}

/// A body that grows, charged to its call.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    charged_bytes: u64,
    call: Arc<CallMemory>,
}

impl Body {
    /// Makes place for `bytes`, but no more than the call may hold anyway: a server's word is no reason to allocate.
    pub fn expect(&mut self, bytes: u64) {
        let has_slot = self.call.has_slot.load(Ordering::Acquire);
        let bytes =
            bytes.min(if has_slot { self.call.limits.max_bytes } else { self.call.limits.free_bytes });
        self.bytes.reserve_exact(usize::try_from(bytes).unwrap_or(0));
    }

    /// Appends a piece, if the call may hold it.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Refusal> {
        let more = piece.len() as u64;
        let used = self.call.used_bytes.fetch_add(more, Ordering::AcqRel) + more;
        self.charged_bytes += more;
        if used > self.call.limits.max_bytes {
            return Err(Refusal::OverLimit);
        }
        if used > self.call.limits.free_bytes && !self.call.has_slot.load(Ordering::Acquire) {
            return Err(Refusal::NeedsSlot);
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Its length, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The whole, charged until its last slice is dropped.
    pub fn finish(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.call.used_bytes.fetch_sub(self.charged_bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_call_at_a_time_may_be_large() {
        let limits = MemoryLimits::new(10, 100);
        let (first, second) = (limits.call(), limits.call());
        let mut body = first.body();
        assert_eq!(body.push(&[0; 10]), Ok(()));
        assert_eq!(body.push(&[0; 1]), Err(Refusal::NeedsSlot));
        drop(body);
        first.take_slot().await;
        let mut body = first.body();
        assert_eq!(body.push(&[0; 60]), Ok(()));
        assert_eq!(body.push(&[0; 60]), Err(Refusal::OverLimit));
        assert!(
            tokio::time::timeout(std::time::Duration::from_millis(20), second.take_slot()).await.is_err()
        );
        drop(body);
        drop(first);
        second.take_slot().await;
    }

    #[test]
    fn a_body_is_charged_until_its_last_slice_is_gone() {
        let call = MemoryLimits::new(10, 10).call();
        let mut body = call.body();
        body.push(b"0123456789").unwrap();
        let whole = body.finish();
        let slice = whole.slice(3..4);
        drop(whole);
        assert_eq!(call.used_bytes(), 10);
        drop(slice);
        assert_eq!(call.used_bytes(), 0);
    }
}
