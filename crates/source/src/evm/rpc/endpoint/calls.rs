//! Calls in batches: sent, matched, and where they fail asked again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::super::batch::{Cut, Kind};
use super::super::classify::{ErrorClass, Hint};
use super::super::limiter::{Readiness, Verdict};
use super::super::memory::CallMemory;
use super::super::transport::TransportError;
use super::super::wire::{self, Call};
use super::answer::worst;
use super::{CallError, CallResult, Endpoint, NULL, Outcome, Patience};
use crate::Result;

/// Tries of a batch before it is halved; its parts have one each.
const TRIES_OF_A_BATCH: u32 = 2;

/// Calls that are still to be asked together.
struct Work {
    unit: Vec<usize>,
    /// How often it was tried at this width.
    tries: u32,
    /// What it was cut from.
    cut: Option<Cut>,
}

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
    /// Failed items alone are asked for again, in units that are never larger than the one in which they failed. A batch that fails twice, however it
    /// fails, is halved, in the end to single calls. What a node says it doesn't know ("block not found") is `null`.
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
        let results = results.into_iter().map(|result| result.unwrap_or_else(missing));
        results.zip(calls).map(|(result, call)| result.map_err(|error| error.of(call))).collect()
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
        let mut is_answered = false;
        // A stack of units that are still to be asked, each a part of the first.
        let mut work = vec![Work { unit, tries: 0, cut: None }];
        while let Some(Work { unit, tries, cut }) = work.pop() {
            let mut again = Vec::new();
            let mut narrower = Vec::new();
            let mut narrower_because = None;
            let mut pause = 0;
            let tries = tries + 1;
            let lone = unit.len() == 1;
            let tries_left =
                tries < if lone { patience.attempts } else { patience.attempts.min(TRIES_OF_A_BATCH) };
            let (results, is_unanswered) = match self.request(kind, calls, &unit, patience, memory).await {
                Ok(results) => (results, false),
                Err(error) => (vec![Err(error); unit.len()], true),
            };
            let whole_failed = results.iter().all(Result::is_err);
            if let Some(cut) = cut
                && !whole_failed
            {
                self.width(kind).was_cut(cut);
            }
            for (&position, result) in unit.iter().zip(results) {
                let error = match result {
                    Ok(result) => {
                        is_answered = true;
                        done.push((position, Ok(result)));
                        continue;
                    }
                    Err(error) => error,
                };
                let narrows = match error.hint {
                    Hint::NotFound => {
                        is_answered = true;
                        done.push((position, Ok(Bytes::from_static(NULL))));
                        continue;
                    }
                    Hint::Away => false,
                    // Said of the batch, it may be the batch that is missing.
                    Hint::MethodMissing | Hint::StateMissing => is_unanswered,
                    Hint::TimedOut => true,
                    Hint::None | Hint::Refused => match error.class {
                        ErrorClass::TooWide => true,
                        // A refusal of the whole may be a refusal of batches: one call alone tells.
                        ErrorClass::Refused => whole_failed,
                        ErrorClass::RateLimited | ErrorClass::Transient => !tries_left,
                    },
                };
                let may_pass = matches!(error.class, ErrorClass::RateLimited | ErrorClass::Transient);
                if error.class == ErrorClass::Transient {
                    pause = pause.max(tries);
                }
                if narrows && !lone {
                    narrower_because.get_or_insert(error.class);
                    narrower.push(position);
                } else if may_pass && tries_left && error.hint != Hint::Away {
                    again.push(position);
                } else {
                    done.push((position, Err(error)));
                }
            }
            // One call alone that fails speaks for all that are left, where its method is missing, or nothing was answered at all: an outage is not asked
            // about call by call. One that is too large speaks for itself.
            if lone
                && again.is_empty()
                && let Some((_, Err(error))) = done.last()
                && (error.hint == Hint::MethodMissing || (!is_answered && error.class != ErrorClass::TooWide))
            {
                let error = error.clone();
                let left = work.drain(..).flat_map(|work| work.unit);
                done.extend(left.map(|position| (position, Err(error.clone()))));
                continue;
            }
            self.meters.retries((again.len() + narrower.len()) as u64);
            if let Some(class) = narrower_because {
                // Strictly narrower than the unit that failed, and without overlap (E13).
                let at_most = (unit.len() / 2).max(1);
                let cut = Some(Cut { items: unit.len(), class });
                work.extend(narrower.chunks(at_most).rev().map(|part| Work {
                    unit: part.to_vec(),
                    tries: 1,
                    cut,
                }));
            }
            if !again.is_empty() {
                work.push(Work { unit: again, tries, cut });
            }
            if pause > 0 && !work.is_empty() {
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
                hint: Hint::Away,
                message: self.away(),
                retry_after_ms: Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                ..CallError::transient("")
            })?;
            self.meters.in_flight(self.limiter.in_flight());
            self.pace.slots(items).await;
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
            if let Err(error) = &outcome {
                *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(error.message.clone());
            }
            let verdict = self.learn(kind, items, bytes, &outcome);
            permit.end(verdict);
            self.meters.in_flight(self.limiter.in_flight());
            let worst = worst(&outcome);
            self.meters.request(kind.name(), worst.map_or("ok", ErrorClass::name), bytes, took);
            self.meters.batch_items(kind.name(), self.width(kind).items());
            if verdict != Verdict::Answered {
                self.log_trouble(&outcome, calls, unit);
                if self.limiter.readiness() != Readiness::Ready {
                    self.chain_checked.store(false, Ordering::Release);
                }
            }
            return outcome;
        }
    }
}
