//! Calls in batches: sent, matched, and where they fail asked again.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::super::batch::Kind;
use super::super::classify::{ErrorClass, Hint};
use super::super::limiter::{Readiness, Verdict};
use super::super::memory::CallMemory;
use super::super::transport::TransportError;
use super::super::wire::{self, Call};
use super::answer::worst;
use super::{CallError, CallResult, Endpoint, NULL, Outcome, Patience};
use crate::Result;

impl Endpoint {
    /// One call.
    pub async fn call(
        &self,
        kind: Kind,
        call: Call,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Result<Bytes> {
        let mut results = self.call_many(kind, &[call], patience, memory).await;
        match results.pop() {
            Some(result) => result.map_err(|error| self.error(error)),
            None => Err(self.error(CallError::transient("no result"))),
        }
    }

    /// Many calls of one kind, in batches of the learned width, results in the order of the calls.
    ///
    /// Failed items alone are asked for again, in units that are never larger than the one in which they failed. What a node says it doesn't
    /// know ("block not found") is `null`.
    pub async fn call_many(
        &self,
        kind: Kind,
        calls: &[Call],
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Vec<CallResult> {
        let width = self.width(kind).items();
        let positions: Vec<usize> = (0..calls.len()).collect();
        let units: Vec<Vec<usize>> = positions.chunks(width).map(<[usize]>::to_vec).collect();
        let mut results: Vec<Option<CallResult>> = vec![None; calls.len()];
        let mut answers = stream::iter(units)
            .map(|unit| self.run_unit(kind, calls, unit, patience, memory))
            .buffer_unordered(self.limits.parallel_batches.max(1));
        while let Some(part) = answers.next().await {
            for (position, result) in part {
                results[position] = Some(result);
            }
        }
        let missing = || Err(CallError::transient("no result"));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// One batch, with everything that becomes of it.
    async fn run_unit(
        &self,
        kind: Kind,
        calls: &[Call],
        unit: Vec<usize>,
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Vec<(usize, CallResult)> {
        let mut done = Vec::with_capacity(unit.len());
        let mut attempts: HashMap<usize, u32> = HashMap::new();
        // A stack of units that are still to be asked, each a part of the first.
        let mut work = vec![unit];
        while let Some(unit) = work.pop() {
            let mut again = Vec::new();
            let mut narrower = Vec::new();
            let mut pause = 0;
            let lone = unit.len() == 1;
            let (results, whole_failed) = match self.request(kind, calls, &unit, patience, memory).await {
                Ok(results) => (results, false),
                Err(error) => (vec![Err(error); unit.len()], true),
            };
            for (&position, result) in unit.iter().zip(results) {
                let error = match result {
                    Ok(result) => {
                        done.push((position, Ok(result)));
                        continue;
                    }
                    Err(error) => error,
                };
                let refused = error.hint == Hint::Refused;
                match error.class {
                    _ if error.hint == Hint::NotFound => done.push((position, Ok(Bytes::from_static(NULL)))),
                    ErrorClass::TooWide if !lone => narrower.push(position),
                    // A refusal of the whole may be a refusal of batches: one call alone tells.
                    ErrorClass::Permanent if whole_failed && !lone && !refused => narrower.push(position),
                    ErrorClass::TooWide | ErrorClass::Permanent => done.push((position, Err(error))),
                    ErrorClass::RateLimited | ErrorClass::Transient => {
                        let tried = attempts.entry(position).or_insert(0);
                        *tried += 1;
                        if *tried >= patience.attempts {
                            done.push((position, Err(error)));
                        } else {
                            pause = pause.max(if error.class == ErrorClass::Transient { *tried } else { 0 });
                            if error.hint == Hint::TimedOut && !lone { &mut narrower } else { &mut again }
                                .push(position);
                        }
                    }
                }
            }
            // One call alone that finds the method missing speaks for all that are left.
            if lone
                && let Some((_, Err(error))) = done.last()
                && error.hint == Hint::MethodMissing
            {
                let error = error.clone();
                done.extend(work.drain(..).flatten().map(|position| (position, Err(error.clone()))));
                continue;
            }
            if !narrower.is_empty() {
                // Strictly narrower than the unit that failed, and without overlap (E13).
                let at_most = (unit.len() / 2).max(1);
                work.extend(narrower.chunks(at_most).rev().map(<[usize]>::to_vec));
            }
            self.meters.retries((again.len() + narrower.len()) as u64);
            if !again.is_empty() {
                work.push(again);
            }
            if pause > 0 {
                let pause = self.backoff.lock().unwrap_or_else(PoisonError::into_inner).pause(pause);
                tokio::time::sleep(pause).await;
            }
        }
        done
    }

    /// One HTTP request. `Err`: nothing of it was answered.
    async fn request(
        &self,
        kind: Kind,
        calls: &[Call],
        unit: &[usize],
        patience: Patience,
        memory: &Arc<CallMemory>,
    ) -> Outcome {
        let items = unit.len();
        loop {
            let permit = self.limiter.acquire(patience.max_wait).await.map_err(|left| CallError {
                class: ErrorClass::RateLimited,
                hint: Hint::None,
                message: format!("it is {}", self.limiter.bound_by()),
                retry_after_ms: Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                answered: false,
            })?;
            self.meters.in_flight(self.limiter.in_flight());
            let begun = Instant::now();
            let answer = self.transport.post(wire::encode(calls, unit), memory).await;
            let took = begun.elapsed();
            if answer.as_ref().err() == Some(&TransportError::NeedsSlot) {
                drop(permit);
                self.meters.request(kind.name(), "large", 0, took);
                memory.take_slot().await;
                continue;
            }
            let bytes = answer.as_ref().map_or(0, |answer| answer.body.len() as u64);
            let outcome = self.read(answer, unit).await;
            let verdict = self.learn(kind, items, bytes, &outcome);
            permit.end(verdict);
            self.meters.in_flight(self.limiter.in_flight());
            let worst = worst(&outcome);
            self.meters.request(kind.name(), worst.map_or("ok", ErrorClass::name), bytes, took);
            self.meters.batch_items(kind.name(), self.width(kind).items());
            if verdict != Verdict::Answered {
                self.log_trouble(&outcome);
                if self.limiter.readiness() != Readiness::Ready {
                    self.chain_checked.store(false, Ordering::Release);
                }
            }
            return outcome;
        }
    }
}
