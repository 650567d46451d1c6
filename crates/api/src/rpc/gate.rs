//! What is let in at once: requests by number, bodies and responses by bytes.
//!
//! Nobody waits for memory while holding a part of it: a single response may wait for room, a batch that already holds some may not.
//! Nobody waits longer than `queue_timeout_ms`, and who would have to is refused at once. Each client has a share. Small responses have
//! memory of their own, so that they never wait behind large ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::budget::{Account, Budget, Charge};
use crate::error::RpcError;
use crate::eth::methods::Kind;
use crate::limits::RpcLimits;

/// Responses up to this size are small.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// The first bytes of each body's responses are free: `eth_blockNumber` finds room also where small responses have none left.
const FREE_BYTES: usize = 1 << 10;
/// Which part of the responses' memory notifications have of their own.
const NOTIFICATIONS_PART: usize = 4;
/// Which part of the small responses' memory one connection may have.
const SMALL_CONNECTION_PART: usize = 16;

/// The server's gate.
#[derive(Debug)]
pub(crate) struct Gate {
    all: Arc<Queue>,
    heavy: Arc<Queue>,
    /// The longest wait for a turn, and for memory.
    patience: Duration,
    /// Small responses that are made but not yet sent.
    small: Arc<Budget>,
    /// Large ones.
    large: Arc<Budget>,
    /// Notifications, so that they never wait behind large responses of the same client.
    notifications: Arc<Budget>,
    /// Large bodies that are being read.
    bodies: Arc<Budget>,
}

/// The right to answer one request.
pub(crate) struct Turn([Option<Place>; 2]);

impl Turn {
    /// Whether it is one of the few for heavy requests, of which each may hold a large response.
    fn may_wait_for_memory(&self) -> bool {
        self.0.iter().flatten().any(|place| place.heavy)
    }
}

/// What one body's responses may hold, and hold already.
pub(crate) struct Room {
    account: Account,
    /// What all its results may have together.
    bytes_left: usize,
    small_left_bytes: usize,
    free_left_bytes: usize,
    holds: bool,
    /// There was no memory: further heavy items aren't begun.
    refused: Option<RpcError>,
}

impl Gate {
    /// A gate by `limits`.
    pub(crate) fn new(limits: &RpcLimits) -> Self {
        let half = |bytes: usize| bytes.div_ceil(2);
        let small_bytes = limits.small_responses_in_flight_bytes;
        let notification_bytes = limits.responses_in_flight_bytes.div_ceil(NOTIFICATIONS_PART);
        Gate {
            all: Arc::new(Queue::new(limits.max_concurrent_requests, false)),
            heavy: Arc::new(Queue::new(limits.max_heavy_requests, true)),
            patience: Duration::from_millis(limits.queue_timeout_ms),
            small: Budget::new(small_bytes, half(small_bytes), small_bytes.div_ceil(SMALL_CONNECTION_PART)),
            large: Budget::new(
                limits.responses_in_flight_bytes,
                limits.responses_in_flight_bytes_per_address,
                limits.responses_in_flight_bytes_per_connection,
            ),
            notifications: Budget::new(
                notification_bytes,
                half(notification_bytes),
                notification_bytes.div_ceil(SMALL_CONNECTION_PART),
            ),
            bodies: Budget::new(
                limits.bodies_in_flight_bytes,
                half(limits.bodies_in_flight_bytes),
                limits.max_body_bytes,
            ),
        }
    }

    /// Waits for a turn. Heavy requests wait among themselves first, so that they can't use up the places of light ones. Those that the archive
    /// has no work with need none.
    pub(crate) async fn turn(&self, kind: Kind) -> Result<Turn, RpcError> {
        if kind == Kind::State {
            return Ok(Turn([None, None]));
        }
        let heavy = match kind {
            Kind::Heavy => Some(self.heavy.enter(self.patience).await?),
            _ => None,
        };
        Ok(Turn([heavy, Some(self.all.enter(self.patience).await?)]))
    }

    /// Waits for the memory of a notification, which never takes that of responses.
    pub(crate) async fn keep_notification(&self, account: Account, bytes: usize) -> Charge {
        self.notifications.take(account, bytes).await
    }

    /// Waits for the memory of a large body. `None`: there was none in time.
    pub(crate) async fn keep_body(&self, account: Account, bytes: usize) -> Option<Charge> {
        timeout(self.patience, self.bodies.take(account, bytes)).await.ok()
    }

    /// The room of a body whose results may have `bytes` together.
    pub(crate) fn room(&self, account: Account, bytes: usize) -> Room {
        Room {
            account,
            bytes_left: bytes,
            small_left_bytes: SMALL_BYTES,
            free_left_bytes: FREE_BYTES,
            holds: false,
            refused: None,
        }
    }

    /// Takes the memory of a result that was made in `turn`. A body that holds some already never waits, and nobody waits for a share of its own:
    /// meanwhile it would keep the turn from others.
    pub(crate) async fn keep(
        &self,
        room: &mut Room,
        bytes: usize,
        turn: Option<&Turn>,
    ) -> Result<Charge, RpcError> {
        if bytes <= room.free_left_bytes {
            room.free_left_bytes -= bytes;
            room.bytes_left = room.bytes_left.saturating_sub(bytes);
            return Ok(Charge::none());
        }
        let small = bytes <= room.small_left_bytes;
        let budget = if small { &self.small } else { &self.large };
        let may_wait = !room.holds && (small || turn.is_some_and(Turn::may_wait_for_memory));
        let taken = match budget.try_take(room.account, bytes) {
            None if may_wait && !budget.share_is_full(room.account, bytes) => {
                timeout(self.patience, budget.take(room.account, bytes)).await.ok()
            }
            taken => taken,
        };
        let Some(charge) = taken else {
            let error = RpcError::overloaded("memory for answers is used up", Duration::from_secs(1));
            room.refused = Some(error.clone());
            return Err(error);
        };
        room.holds = true;
        room.bytes_left = room.bytes_left.saturating_sub(bytes);
        if small {
            room.small_left_bytes -= bytes;
        }
        Ok(charge)
    }
}

impl Room {
    /// What the next result may have.
    pub(crate) fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// Refuses a heavy item of a batch that found no memory before: it would be made for nothing.
    pub(crate) fn demand(&self, kind: Kind) -> Result<(), RpcError> {
        match &self.refused {
            Some(error) if kind == Kind::Heavy => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// Places that are waited for in order, by those who may expect one in time.
#[derive(Debug)]
struct Queue {
    places: Arc<Semaphore>,
    width: usize,
    heavy: bool,
    waiting: AtomicUsize,
    /// How long a place is held, smoothed.
    held_us: AtomicU64,
}

/// A place; dropping gives it back.
struct Place {
    queue: Arc<Queue>,
    heavy: bool,
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

/// Counts one that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Queue {
    fn new(width: usize, heavy: bool) -> Self {
        let width = width.max(1);
        Queue {
            places: Arc::new(Semaphore::new(width)),
            width,
            heavy,
            waiting: AtomicUsize::new(0),
            held_us: AtomicU64::new(0),
        }
    }

    /// How long one who comes now waits, by how long places were held lately.
    fn expected_wait(&self) -> Duration {
        let ahead = self.waiting.load(Ordering::Relaxed) as u64 + 1;
        let held_us = self.held_us.load(Ordering::Relaxed);
        Duration::from_micros(held_us.saturating_mul(ahead) / self.width as u64)
    }

    /// Waits for a place; refuses at once where the wait would be longer than `patience`.
    async fn enter(self: &Arc<Self>, patience: Duration) -> Result<Place, RpcError> {
        let permit = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let expected = self.expected_wait();
                if expected > patience {
                    return Err(RpcError::overloaded("too many requests are waiting", expected));
                }
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let waiting = Waiting(&self.waiting);
                let permit = timeout(patience, Arc::clone(&self.places).acquire_owned()).await;
                drop(waiting);
                match permit {
                    Ok(Ok(permit)) => permit,
                    _ => return Err(RpcError::overloaded("too many requests are waiting", patience)),
                }
            }
        };
        Ok(Place { queue: Arc::clone(self), heavy: self.heavy, since: Instant::now(), _permit: permit })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let took_us = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        // Two that end at once may lose one of the two: it is an average.
        let before_us = self.queue.held_us.load(Ordering::Relaxed);
        let now_us = if before_us == 0 { took_us } else { before_us - before_us / 8 + took_us / 8 };
        self.queue.held_us.store(now_us, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(limits: RpcLimits) -> Gate {
        Gate::new(&limits)
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_would_be_too_long_is_refused_at_once() {
        let gate = gate(RpcLimits { max_heavy_requests: 2, ..RpcLimits::default() });
        let hold = async || {
            let turn = gate.turn(Kind::Heavy).await.expect("a turn");
            tokio::time::sleep(Duration::from_millis(800)).await;
            drop(turn);
        };
        tokio::join!(hold(), hold());
        let (_one, _two) = (gate.turn(Kind::Heavy).await.ok(), gate.turn(Kind::Heavy).await.ok());
        // 400 ms, 800 ms, and one too many.
        let began = Instant::now();
        let waits = async || gate.turn(Kind::Heavy).await.err().map(|error| (error.code, began.elapsed()));
        let (first, second, third) = tokio::join!(waits(), waits(), waits());
        let late = Some((-32005, Duration::from_secs(1)));
        assert_eq!((first, second, third), (late, late, Some((-32005, Duration::ZERO))));
        assert!(gate.turn(Kind::Light).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_holds_memory_never_waits_for_more() {
        let gate = gate(RpcLimits { responses_in_flight_bytes: 1 << 20, ..RpcLimits::default() });
        let turn = gate.turn(Kind::Heavy).await.expect("a turn");
        let mut one = gate.room(Account::of(None, 1), 1 << 30);
        let held = gate.keep(&mut one, 600 << 10, Some(&turn)).await.expect("room");
        let began = Instant::now();
        let refused = gate.keep(&mut one, 600 << 10, Some(&turn)).await.expect_err("no room");
        assert_eq!((refused.code, began.elapsed()), (-32005, Duration::ZERO));
        assert!(one.demand(Kind::Heavy).is_err() && one.demand(Kind::Light).is_ok());
        // One that holds nothing waits, and gets it.
        let mut other = gate.room(Account::of(None, 2), 1 << 30);
        let free = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(held);
        };
        let (kept, ()) = tokio::join!(gate.keep(&mut other, 600 << 10, Some(&turn)), free);
        assert!(kept.is_ok());
        // Small ones have their own.
        let mut small = gate.room(Account::of(None, 3), 1 << 30);
        assert!(gate.keep(&mut small, 1_000, None).await.is_ok());
    }
}
