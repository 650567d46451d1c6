//! Runs of a case that share nothing, some at a time: on a backend that is mostly waited for, that is most of a suite's time.

use std::future::Future;
use std::ops::Range;

use super::check::{CaseResult, Failure};

/// Runs `run` of each of `numbers`, `at_once` at a time and each as a task of its own; what they answer, in order. After the first
/// failure none is begun; those that were begun are waited for, so that nothing of a case outlives it.
pub(crate) async fn beside<T, F>(
    at_once: usize,
    numbers: Range<u64>,
    run: impl Fn(u64) -> F,
) -> CaseResult<Vec<T>>
where
    F: Future<Output = CaseResult<T>> + Send + 'static,
    T: Send + 'static,
{
    let mut answers = Vec::new();
    let mut next = numbers.start;
    while next < numbers.end {
        let end = numbers.end.min(next.saturating_add(at_once.max(1) as u64));
        let running: Vec<_> = (next..end).map(|number| tokio::spawn(run(number))).collect();
        let mut failure = None;
        for one in running {
            match one.await {
                Ok(Ok(answer)) => answers.push(answer),
                Ok(Err(failed)) => failure = failure.or(Some(failed)),
                Err(panic) => {
                    failure = failure.or_else(|| Some(Failure::new(format!("it panicked: {panic}"))))
                }
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        next = end;
    }
    Ok(answers)
}
