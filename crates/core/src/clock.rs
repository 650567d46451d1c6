//! Wall-clock time as a capability, so that the simulation can drive it.

use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where code that the simulation runs gets its wall-clock time. Pauses and deadlines use the async runtime's own
/// clock, which the simulation pauses.
pub trait Clock: Send + Sync + Debug {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    fn now_ms(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        // A clock before 1970 is broken; 0 is the honest answer there.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}
