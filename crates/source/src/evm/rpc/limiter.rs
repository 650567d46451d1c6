//! How many requests an endpoint gets, and when it gets none.
//!
//! - **Adaptive concurrency**: the limit grows by one after as many successes as it is wide, while it is the limit that holds callers back; it is halved by
//!   failures, once for all requests that were in flight together.
//! - **Pause**: "too often" (429, 503, −32001) stops everything at once, for as long as the server asks or an exponential pause. Several
//!   failures in a row do the same (circuit breaker).
//! - **Probe**: after a pause one request goes first. It opens the way (at the halved limit), or begins a longer pause.
//!
//! So an outage costs one request a pause, whatever the number of workers (field case E15). A permit that is dropped without a
//! verdict (a cancelled call) only gives its place back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::config::RpcLimits;

/// How a request ended, as far as the limiter cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was answered; an error that is about the request, not the server, is an answer too.
    Answered,
    /// Too often.
    RateLimited {
        /// What the server asked for.
        retry_after_ms: Option<u64>,
    },
    /// No answer, or one that says that the server is unwell.
    Failed,
}

/// Whether an endpoint takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// Its pause is over; one request finds out whether it does.
    Probing,
    /// Not before this much time has passed.
    Paused(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing before `until`; then one probe, if `probing` isn't one already.
    Shut {
        until: Instant,
        probing: bool,
        why: Why,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Rate,
    Breaker,
}

#[derive(Debug)]
struct State {
    limit: usize,
    in_flight: usize,
    waiting: usize,
    phase: Phase,
    /// Answers since the limit last changed while it was the limit that bound.
    answers: usize,
    /// Grows with every cut; failures of requests from before the last cut don't cut again.
    cuts: u64,
    failures_in_a_row: u32,
    pauses_in_a_row: u32,
    last_cut: Option<Why>,
    backoff: Backoff,
}

/// One endpoint's limiter.
#[derive(Debug)]
pub struct Limiter {
    state: Mutex<State>,
    changed: Notify,
    max_in_flight: usize,
    breaker_failures: u32,
}

impl Limiter {
    /// A limiter by these limits; `seed` decides its jitter.
    pub fn new(limits: &RpcLimits, seed: u64) -> Arc<Limiter> {
        let max_in_flight = limits.max_in_flight.max(1);
        Arc::new(Limiter {
            state: Mutex::new(State {
                limit: limits.initial_in_flight.clamp(1, max_in_flight),
                in_flight: 0,
                waiting: 0,
                phase: Phase::Open,
                answers: 0,
                cuts: 0,
                failures_in_a_row: 0,
                pauses_in_a_row: 0,
                last_cut: None,
                backoff: Backoff::new(limits.backoff_initial_ms, limits.backoff_max_ms, seed),
            }),
            changed: Notify::new(),
            max_in_flight,
            breaker_failures: limits.breaker_failures.max(1),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way through a change; a poisoned lock still holds a sound state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one request. `Err` with the time left where a pause lasts longer than `max_wait`.
    pub async fn acquire(self: &Arc<Self>, max_wait: Duration) -> Result<Permit, Duration> {
        let _waiting = Waiting::new(self);
        let deadline = Instant::now() + max_wait;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is looked at, so that no change is missed.
            changed.as_mut().enable();
            let until = match self.try_acquire() {
                Ok(permit) => return Ok(permit),
                Err(until) => until,
            };
            match until {
                Some(until) if until > deadline => {
                    return Err(until.saturating_duration_since(Instant::now()));
                }
                Some(until) => {
                    tokio::select! {
                        () = &mut changed => {}
                        () = tokio::time::sleep_until(until) => {}
                    }
                }
                None => changed.await,
            }
        }
    }

    /// `Err` with the end of the pause, if it is a pause that stands in the way.
    fn try_acquire(self: &Arc<Self>) -> Result<Permit, Option<Instant>> {
        let mut state = self.state();
        let probe = match &mut state.phase {
            Phase::Open => false,
            Phase::Shut { until, .. } if *until > Instant::now() => return Err(Some(*until)),
            Phase::Shut { probing: true, .. } => return Err(None),
            Phase::Shut { probing, .. } => {
                *probing = true;
                true
            }
        };
        if !probe && state.in_flight >= state.limit {
            return Err(None);
        }
        state.in_flight += 1;
        Ok(Permit { limiter: self.clone(), cuts: state.cuts, probe, ended: false })
    }

    /// Whether it takes requests now.
    pub fn readiness(&self) -> Readiness {
        match self.state().phase {
            Phase::Open => Readiness::Ready,
            Phase::Shut { until, .. } => match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Readiness::Probing,
                left => Readiness::Paused(left),
            },
        }
    }

    /// Requests in flight now.
    pub fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// What bounds it now, for people.
    pub fn bound_by(&self) -> String {
        let state = self.state();
        let (used, limit, max) = (state.in_flight, state.limit, self.max_in_flight);
        match state.phase {
            Phase::Shut { until, why, .. } => {
                let left_ms = until.saturating_duration_since(Instant::now()).as_millis();
                let why = match why {
                    Why::Rate => "its rate limit",
                    Why::Breaker => "failures in a row",
                };
                if left_ms == 0 {
                    format!("one probing request after {why}")
                } else {
                    format!("paused for {left_ms} ms by {why}")
                }
            }
            Phase::Open if used < limit && state.waiting == 0 => {
                format!(
                    "{used} of {limit} requests in flight: nothing here; the caller asks for less, or works on answers"
                )
            }
            Phase::Open if limit == max => {
                format!("{used} of {limit} requests in flight: the configured maximum")
            }
            Phase::Open => {
                let why = match state.last_cut {
                    None => "still growing",
                    Some(Why::Rate) => "cut by its rate limit, growing again",
                    Some(Why::Breaker) => "cut by failures, growing again",
                };
                format!("{used} of {limit} requests in flight, at most {max}: {why}")
            }
        }
    }

    fn end(&self, permit: &Permit, verdict: Option<Verdict>) {
        let mut state = self.state();
        let state = &mut *state;
        let was_full = state.in_flight >= state.limit;
        state.in_flight -= 1;
        if permit.probe
            && let Phase::Shut { probing, .. } = &mut state.phase
        {
            *probing = false;
        }
        match verdict {
            None => {}
            // An answer to a request from before a pause says nothing about now.
            Some(Verdict::Answered) if !permit.probe && state.phase != Phase::Open => {}
            Some(Verdict::Answered) => {
                state.phase = Phase::Open;
                state.failures_in_a_row = 0;
                state.pauses_in_a_row = 0;
                if was_full || state.waiting > 0 {
                    state.answers += 1;
                }
                if state.answers >= state.limit && state.limit < self.max_in_flight {
                    state.limit += 1;
                    state.answers = 0;
                }
            }
            Some(Verdict::RateLimited { retry_after_ms }) => {
                self.cut(state, permit, Why::Rate);
                match (&mut state.phase, retry_after_ms) {
                    // Requests of one burst may be told different times: the longest counts.
                    (Phase::Shut { until, .. }, Some(ms)) if !permit.probe => {
                        *until = (*until).max(Instant::now() + Duration::from_millis(ms));
                    }
                    (Phase::Shut { .. }, _) if !permit.probe => {}
                    _ => self.pause(state, retry_after_ms, Why::Rate),
                }
            }
            Some(Verdict::Failed) => {
                self.cut(state, permit, Why::Breaker);
                state.failures_in_a_row = state.failures_in_a_row.saturating_add(1);
                if permit.probe
                    || (state.phase == Phase::Open && state.failures_in_a_row >= self.breaker_failures)
                {
                    self.pause(state, None, Why::Breaker);
                }
            }
        }
        self.changed.notify_waiters();
    }

    /// Halves the limit, unless this request is from before the last cut.
    fn cut(&self, state: &mut State, permit: &Permit, why: Why) {
        if permit.cuts == state.cuts {
            state.cuts += 1;
            state.limit = (state.limit / 2).max(1);
            state.answers = 0;
            state.last_cut = Some(why);
        }
    }

    fn pause(&self, state: &mut State, retry_after_ms: Option<u64>, why: Why) {
        state.pauses_in_a_row = state.pauses_in_a_row.saturating_add(1);
        let pause = match retry_after_ms {
            Some(ms) => state.backoff.after(Duration::from_millis(ms)),
            None => state.backoff.pause(state.pauses_in_a_row),
        };
        state.phase = Phase::Shut { until: Instant::now() + pause, probing: false, why };
    }
}

/// A place for one request. Dropping it gives the place back without a verdict.
#[derive(Debug)]
pub struct Permit {
    limiter: Arc<Limiter>,
    cuts: u64,
    probe: bool,
    ended: bool,
}

impl Permit {
    /// Says how the request ended.
    pub fn end(mut self, verdict: Verdict) {
        self.ended = true;
        self.limiter.end(&self, Some(verdict));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.ended {
            self.limiter.end(self, None);
        }
    }
}

/// Counts a waiter as long as it waits.
struct Waiting<'a>(&'a Limiter);

impl<'a> Waiting<'a> {
    fn new(limiter: &'a Limiter) -> Self {
        limiter.state().waiting += 1;
        Waiting(limiter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(initial: usize, max: usize) -> Arc<Limiter> {
        let limits = RpcLimits {
            initial_in_flight: initial,
            max_in_flight: max,
            backoff_initial_ms: 100,
            backoff_max_ms: 10_000,
            breaker_failures: 3,
            ..RpcLimits::default()
        };
        Limiter::new(&limits, 42)
    }

    const LONG: Duration = Duration::from_secs(60);

    /// All places that are free now.
    fn take_all(limiter: &Arc<Limiter>) -> Vec<Permit> {
        std::iter::from_fn(|| limiter.try_acquire().ok()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_grows_slowly_and_is_halved_once_for_a_burst() {
        let limiter = limiter(2, 8);
        for _ in 0..40 {
            let (a, b) = (limiter.acquire(LONG).await.unwrap(), limiter.acquire(LONG).await.unwrap());
            let _more = take_all(&limiter);
            a.end(Verdict::Answered);
            b.end(Verdict::Answered);
        }
        let all = take_all(&limiter);
        assert_eq!(all.len(), 8, "{}", limiter.bound_by());
        assert!(limiter.bound_by().contains("8 of 8"), "{}", limiter.bound_by());
        for permit in all.into_iter().take(2) {
            permit.end(Verdict::Failed);
        }
        assert_eq!(take_all(&limiter).len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn e15_a_pause_lets_one_probe_through_and_then_few() {
        let limiter = limiter(8, 8);
        let burst: Vec<_> = (0..8).map(|_| limiter.try_acquire().unwrap()).collect();
        for permit in burst {
            permit.end(Verdict::RateLimited { retry_after_ms: Some(2_000) });
        }
        assert!(matches!(limiter.readiness(), Readiness::Paused(left) if left >= Duration::from_secs(2)));
        assert!(limiter.bound_by().contains("paused"), "{}", limiter.bound_by());
        assert!(limiter.acquire(Duration::from_secs(1)).await.is_err(), "longer than the caller waits");
        let begun = Instant::now();
        let probe = limiter.acquire(LONG).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(2) && begun.elapsed() <= Duration::from_millis(2_600));
        assert!(limiter.try_acquire().is_err(), "one probe only");
        probe.end(Verdict::Answered);
        assert_eq!(take_all(&limiter).len(), 4, "halved");
    }

    #[tokio::test(start_paused = true)]
    async fn the_breaker_opens_after_failures_in_a_row_and_pauses_grow() {
        let limiter = limiter(1, 8);
        for _ in 0..3 {
            limiter.acquire(LONG).await.unwrap().end(Verdict::Failed);
        }
        let mut last = Duration::ZERO;
        for _ in 0..5 {
            let Readiness::Paused(left) = limiter.readiness() else { panic!("{:?}", limiter.readiness()) };
            assert!(left * 4 >= last * 3, "{left:?} after {last:?}");
            last = left;
            limiter.acquire(LONG).await.unwrap().end(Verdict::Failed);
        }
        assert!(last > Duration::from_millis(400));
        limiter.acquire(LONG).await.unwrap().end(Verdict::Answered);
        assert_eq!(limiter.readiness(), Readiness::Ready);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_probe_gives_its_place_back() {
        let limiter = limiter(1, 8);
        limiter.acquire(LONG).await.unwrap().end(Verdict::RateLimited { retry_after_ms: None });
        drop(limiter.acquire(LONG).await.unwrap());
        limiter.acquire(LONG).await.unwrap().end(Verdict::Answered);
        assert_eq!(limiter.readiness(), Readiness::Ready);
        assert_eq!(limiter.in_flight(), 0);
    }
}
