//! Which calls a node doesn't have.
//!
//! A node that says UNIMPLEMENTED is not asked again for a while that grows, so that an old one isn't asked for each block. A node that has answered a call
//! has it: there the word is that of a proxy, or of a restart, and the call is worth another try.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::classify::Refusal;
use super::node::Call;

const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// What is known of one node's calls.
#[derive(Debug, Default)]
pub(super) struct Lacks(Mutex<HashMap<Call, Known>>);

#[derive(Debug, Clone, Copy)]
enum Known {
    Has,
    Lacks { until: Instant, pause: Duration },
}

impl Lacks {
    /// Whether the node said lately that it doesn't have the call.
    pub fn has_not(&self, call: Call) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&call).copied();
        matches!(known, Some(Known::Lacks { until, .. }) if until > Instant::now())
    }

    /// Learns from an answer, and says what it means.
    pub fn learn<T>(&self, call: Call, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&answer, known.get(&call).copied()) {
            (Ok(_), _) => _ = known.insert(call, Known::Has),
            (Err(Refusal::Unimplemented), Some(Known::Has)) => {
                return Err(Refusal::Transient(format!(
                    "it has answered {call:?} before, and says now that it doesn't have that call"
                )));
            }
            (Err(Refusal::Unimplemented), before) => {
                let now = Instant::now();
                let pause = match before {
                    // Those that were in flight together count once.
                    Some(Known::Lacks { until, .. }) if until > now => return answer,
                    Some(Known::Lacks { pause, .. }) => (pause * 2).min(LONGEST_PAUSE),
                    _ => FIRST_PAUSE,
                };
                known.insert(call, Known::Lacks { until: now + pause, pause });
            }
            _ => {}
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call::TransactionResultByIndex;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_a_node_lacks_is_asked_for_again_ever_more_seldom() {
        let lacks = Lacks::default();
        for pause_s in [5, 10, 20] {
            assert!(!lacks.has_not(CALL));
            assert_eq!(lacks.learn::<()>(CALL, Err(Refusal::Unimplemented)), Err(Refusal::Unimplemented));
            assert_eq!(lacks.learn::<()>(CALL, Err(Refusal::Unimplemented)), Err(Refusal::Unimplemented));
            tokio::time::advance(Duration::from_secs(pause_s) - Duration::from_millis(1)).await;
            assert!(lacks.has_not(CALL), "{pause_s}");
            assert!(!lacks.has_not(Call::BlockByHeight), "each call by itself");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            _ = lacks.learn::<()>(CALL, Err(Refusal::Unimplemented));
            tokio::time::advance(LONGEST_PAUSE).await;
            assert!(!lacks.has_not(CALL));
        }
    }

    #[test]
    fn a_call_that_was_answered_is_not_lacking() {
        let lacks = Lacks::default();
        assert_eq!(lacks.learn(CALL, Ok(1)), Ok(1));
        let said = lacks.learn::<()>(CALL, Err(Refusal::Unimplemented));
        assert!(matches!(said, Err(Refusal::Transient(_))), "{said:?}");
        assert!(!lacks.has_not(CALL));
    }
}
