//! What an answer means: results and classed errors, and what limiter and batch width learn of it.

use super::super::batch::Kind;
use super::super::classify::{ErrorClass, Hint, Symptom};
use super::super::limiter::Verdict;
use super::super::transport::{Answer, TransportError};
use super::super::wire::{self, Call, Decoded, ErrorObject};
use super::{CallError, Endpoint, Outcome};
use crate::verify::Offload;
use bytes::Bytes;
use cairn_core::Height;

/// Larger answers are taken apart on a blocking thread.
const INLINE_DECODE_BYTES: usize = 256 << 10;

impl Endpoint {
    /// Makes results of an answer.
    pub(super) async fn read(&self, answer: Result<Answer, TransportError>, unit: &[usize]) -> Outcome {
        let answer = answer.map_err(|error| match error {
            TransportError::TooLarge { max_bytes } => CallError {
                class: ErrorClass::TooWide,
                ..CallError::transient(format!(
                    "its answer is larger than {max_bytes} bytes (max_response_bytes)"
                ))
            },
            TransportError::TimedOut(message) => {
                CallError { hint: Hint::TimedOut, ..CallError::transient(message) }
            }
            TransportError::Network(message) => CallError::transient(message),
            TransportError::NeedsSlot => CallError::transient("its answer needs the slot for large ones"),
        })?;
        let retry_after_ms = answer.retry_after_ms;
        let classify = |error: ErrorObject| {
            let symptom =
                Symptom { http_status: Some(answer.status), code: Some(error.code), text: &error.message };
            let (class, hint) = self.classifier.classify(symptom);
            let status =
                if answer.status == 200 { String::new() } else { format!("HTTP {}, ", answer.status) };
            let message = self.name.scrub(&format!("{status}{} (code {})", error.message, error.code));
            CallError { class, hint, retry_after_ms, answered: true, ..CallError::transient(message) }
        };
        let good_status = (200..300).contains(&answer.status);
        let decoded = if answer.body.len() <= INLINE_DECODE_BYTES {
            decode(&answer.body, unit)
        } else {
            let (body, unit) = (answer.body.clone(), unit.to_vec());
            let decode = move || decode(&body, &unit);
            let decoded = Offload::Blocking.run(self.name.as_str(), decode).await;
            decoded.unwrap_or_else(|error| Err(error.to_string()))
        };
        let decoded = decoded.map(|(decoded, was_broken)| {
            if was_broken {
                self.meters.broken_text();
                if let Some(held_back) = self.broken_log.open() {
                    tracing::warn!(endpoint = %self.name, held_back, "an answer has bytes that are no UTF-8; escapes take their place");
                }
            }
            decoded
        });
        match decoded {
            Ok(Decoded::Failed(error)) => Err(classify(error)),
            Ok(Decoded::Items(items)) if good_status || items.iter().flatten().any(Result::is_err) => {
                Ok(items
                    .into_iter()
                    .map(|item| match item {
                        Some(Ok(result)) => Ok(result),
                        Some(Err(error)) => Err(classify(error)),
                        None => Err(CallError::transient("the batch's answer leaves this item out")),
                    })
                    .collect())
            }
            decoded => {
                let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(2_000)]);
                let (class, hint) = if good_status {
                    (ErrorClass::Transient, Hint::None)
                } else {
                    self.classifier.classify(Symptom {
                        http_status: Some(answer.status),
                        code: None,
                        text: &body,
                    })
                };
                let why = match decoded {
                    Err(why) => format!("HTTP {}, {why}: {body}", answer.status),
                    Ok(_) => format!("HTTP {}: {body}", answer.status),
                };
                Err(CallError { class, hint, retry_after_ms, ..CallError::transient(self.name.scrub(&why)) })
            }
        }
    }

    /// What the limiter and the width learn of an answer.
    pub(super) fn learn(&self, kind: Kind, items: usize, bytes: u64, outcome: &Outcome) -> Verdict {
        let width = self.width(kind);
        let results = match outcome {
            Err(error) => {
                self.meters.errors(error.class.name(), items as u64);
                return match error.class {
                    _ if error.hint == Hint::NotFound => Verdict::Answered,
                    _ if error.hint == Hint::Refused => Verdict::Failed,
                    ErrorClass::RateLimited => Verdict::RateLimited { retry_after_ms: error.retry_after_ms },
                    ErrorClass::Transient => {
                        if error.hint == Hint::TimedOut {
                            width.too_slow(items);
                        }
                        Verdict::Failed
                    }
                    ErrorClass::TooWide => {
                        width.too_wide(items);
                        Verdict::Answered
                    }
                    ErrorClass::Refused => Verdict::Answered,
                };
            }
            Ok(results) => results,
        };
        let mut failed = 0;
        let mut limited = None;
        let mut too_wide = false;
        let mut too_slow = false;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.meters.errors(error.class.name(), 1);
            too_slow |= error.hint == Hint::TimedOut;
            match error.class {
                _ if error.hint == Hint::NotFound => {}
                _ if error.hint == Hint::Refused => failed += 1,
                ErrorClass::RateLimited => limited = Some(error.retry_after_ms),
                ErrorClass::Transient => failed += 1,
                ErrorClass::TooWide => too_wide = true,
                ErrorClass::Refused => {}
            }
        }
        if too_wide {
            width.too_wide(items);
        } else if too_slow {
            width.too_slow(items);
        } else if failed == 0 && limited.is_none() {
            width.answered(items, bytes);
        }
        match limited {
            Some(retry_after_ms) => Verdict::RateLimited { retry_after_ms },
            None if failed == items => Verdict::Failed,
            None => Verdict::Answered,
        }
    }

    pub(super) fn log_trouble(&self, outcome: &Outcome, calls: &[Call], unit: &[usize]) {
        let first = match outcome {
            Err(error) => unit.first().map(|position| (error, *position)),
            Ok(results) => {
                let mut failed =
                    unit.iter().zip(results).filter_map(|(at, result)| Some((result.as_ref().err()?, *at)));
                failed.next()
            }
        };
        if let Some((error, position)) = first
            && let Some(held_back) = self.log.open()
        {
            let error = error.clone().of(&calls[position]);
            tracing::warn!(
                endpoint = %self.name, class = error.class.name(), height = error.height.map(Height::get), error = error.words(),
                held_back, bound_by = self.limiter.bound_by(), "requests fail"
            );
        }
    }
}

/// Takes an answer apart, with escapes for bytes that are no UTF-8; says whether there was any.
fn decode(body: &Bytes, unit: &[usize]) -> Result<(Decoded, bool), String> {
    match wire::escape_broken_utf8(body)? {
        Some(escaped) => Ok((wire::decode(&escaped, unit)?, true)),
        None => Ok((wire::decode(body, unit)?, false)),
    }
}

/// The worst class in an answer, for metrics.
pub(super) fn worst(outcome: &Outcome) -> Option<ErrorClass> {
    let rank = |class: &ErrorClass| match class {
        ErrorClass::RateLimited => 3,
        ErrorClass::Transient => 2,
        ErrorClass::TooWide => 1,
        ErrorClass::Refused => 0,
    };
    match outcome {
        Err(error) => Some(error.class),
        Ok(results) => results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .map(|error| error.class)
            .max_by_key(rank),
    }
}
