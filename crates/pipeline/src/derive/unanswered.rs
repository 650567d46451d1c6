//! What a node doesn't answer for now, counted by thing; how long it wants to be left alone; and what it answered beside that.
//!
//! A node that is away answers nothing, and then everything waits for it. A contract that makes it fail each time it is asked about looks the same from the one
//! question alone, and would stop its worker for ever: so a failure counts against the thing only where the node answers about another one at the same block.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_core::{BlockRef, Height};
use cairn_store::derived::{Key, Scan};
use tokio::time::Instant;

use super::asking::{Answer, Question, ask};
use super::context::Context;
use super::error::DeriveError;
use super::processor::Enricher;

/// Failures that count against one thing before nobody asks about it again.
pub(super) const MAX_TRIES: u32 = 10;
/// Things that are counted at once; more are counted anew.
const MAX_KEPT: usize = 4_096;
/// Things of one range that are asked about again once only; more are asked about in each chunk that names them.
const MAX_ASKED_AGAIN: usize = 65_536;
/// Known things that are asked about to see whether a node answers.
const PROBES: usize = 3;
/// The first and the longest pause that is kept where a node limits the rate and doesn't say for how long, in milliseconds.
const BUSY_PAUSE_MS: (u64, u64) = (1_000, 60_000);
/// The longest pause that a node may ask for, in milliseconds.
const MAX_BUSY_PAUSE_MS: u64 = 120_000;
/// Bytes of answers that are kept until those beside them come; what is over it is asked again.
const MAX_ANSWER_BYTES: usize = 16 << 20;

#[derive(Default)]
pub(super) struct Unanswered {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    tries: BTreeMap<(&'static str, Key), u32>,
    /// How often it limited the rate over a thing since it answered about that.
    refusals: BTreeMap<(&'static str, Key), u32>,
    /// What each service was told something of last.
    answered: BTreeMap<&'static str, Key>,
    /// Since when a service's node limits the rate.
    busy: BTreeMap<&'static str, Busy>,
    /// Answers whose chunk has to wait for others.
    answers: BTreeMap<(&'static str, Key), KeptAnswer>,
    answer_bytes: usize,
    /// The lease of each service that made a range again last, and what it got answers about, with the start of the chunk.
    asked_again: BTreeMap<&'static str, (u64, BTreeMap<Key, Height>)>,
}

struct KeptAnswer {
    /// The lease that it was asked under: a range that is made again, now or later, asks anew.
    lease_id: u64,
    question: Question,
    answer: Answer,
}

struct Busy {
    times: u32,
    until: Instant,
}

impl Unanswered {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node answered about it, and maybe said something of it.
    pub fn answered(&self, service: &'static str, key: &Key, is_said: bool) {
        let mut kept = self.kept();
        let of_key = (service, key.clone());
        kept.tries.remove(&of_key);
        kept.refusals.remove(&of_key);
        if is_said {
            kept.answered.insert(service, key.clone());
        }
    }

    /// The node failed over it while it answered others; says how often that happened.
    pub fn failed(&self, service: &'static str, key: &Key) -> u32 {
        let mut kept = self.kept();
        if kept.tries.len() >= MAX_KEPT {
            kept.tries.clear();
        }
        let tries = kept.tries.entry((service, key.clone())).or_default();
        *tries += 1;
        *tries
    }

    /// The node limited the rate when it was asked about it; says how often that happened. It counts for what is told only.
    pub fn refused(&self, service: &'static str, key: &Key) -> u32 {
        let mut kept = self.kept();
        if kept.refusals.len() >= MAX_KEPT {
            kept.refusals.clear();
        }
        let times = kept.refusals.entry((service, key.clone())).or_default();
        *times = times.saturating_add(1);
        *times
    }

    /// The node limits the rate, and maybe says for how long. Those that were on their way together are one time.
    pub fn busy(&self, service: &'static str, retry_after_ms: Option<u64>) {
        let now = Instant::now();
        let mut kept = self.kept();
        let busy = kept.busy.entry(service).or_insert(Busy { times: 0, until: now });
        if busy.until <= now {
            busy.times = busy.times.saturating_add(1);
        }
        let (first_ms, longest_ms) = BUSY_PAUSE_MS;
        let growing_ms = first_ms.saturating_mul(1 << (busy.times - 1).min(20)).min(longest_ms);
        let pause_ms = retry_after_ms.map_or(growing_ms, |asked_ms| asked_ms.clamp(1, MAX_BUSY_PAUSE_MS));
        busy.until = busy.until.max(now + Duration::from_millis(pause_ms));
        tracing::debug!(service, pause_ms, "the node limits the rate");
    }

    /// It answered as often as it was asked.
    pub fn not_busy(&self, service: &'static str) {
        self.kept().busy.remove(service);
    }

    /// Whether the node is left alone for now.
    pub fn is_paused(&self, service: &'static str) -> bool {
        self.kept().busy.get(service).is_some_and(|busy| busy.until > Instant::now())
    }

    /// Waits until it may be asked.
    pub async fn pause(&self, service: &'static str) {
        let until = self.kept().busy.get(service).map(|busy| busy.until);
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Keeps an answer until those beside it come.
    pub fn keep(&self, service: &'static str, lease_id: u64, question: Question, answer: Answer) {
        let mut kept = self.kept();
        kept.answer_bytes += answer.size_bytes();
        let key = (service, question.key.clone());
        let before = kept.answers.insert(key, KeptAnswer { lease_id, question, answer });
        kept.answer_bytes -= before.map_or(0, |before| before.answer.size_bytes());
        while kept.answer_bytes > MAX_ANSWER_BYTES
            && let Some((_, first)) = kept.answers.pop_first()
        {
            kept.answer_bytes -= first.answer.size_bytes();
        }
    }

    /// Takes the answer to a question of this lease that was kept: to the very same, or, of a thing that is asked at the finalised block, to one at an earlier
    /// such block that isn't below the one that names it.
    pub fn take(&self, service: &'static str, lease_id: u64, question: &Question) -> Option<Answer> {
        let mut kept = self.kept();
        let key = (service, question.key.clone());
        if kept.answers.get(&key)?.lease_id != lease_id {
            return None;
        }
        let KeptAnswer { question: asked, answer, .. } = kept.answers.remove(&key)?;
        kept.answer_bytes -= answer.size_bytes();
        let is_of_it = asked.at == question.at
            || (asked.is_settled
                && question.is_settled
                && (question.named..=question.at.height).contains(&asked.at.height));
        is_of_it.then_some(answer)
    }

    /// A lease that makes a range again got answers about these things in the chunk that begins at `start`.
    pub fn asked_again(
        &self,
        service: &'static str,
        lease_id: u64,
        keys: impl Iterator<Item = Key>,
        start: Height,
    ) {
        let mut kept = self.kept();
        let (of_lease, asked) = kept.asked_again.entry(service).or_default();
        if *of_lease != lease_id {
            *of_lease = lease_id;
            asked.clear();
        }
        let room = MAX_ASKED_AGAIN.saturating_sub(asked.len());
        asked.extend(keys.take(room).map(|key| (key, start)));
    }

    /// Whether it did so in a chunk before the one that begins at `start`, which was committed then.
    pub fn was_asked_again(&self, service: &'static str, lease_id: u64, key: &Key, start: Height) -> bool {
        let kept = self.kept();
        let asked = kept.asked_again.get(service).filter(|(of_lease, _)| *of_lease == lease_id);
        asked.and_then(|(_, asked)| asked.get(key)).is_some_and(|from| *from < start)
    }
}

/// Whether the node answers about something at this block: of what it said something last, or what is known from before.
pub(super) async fn node_answers(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    at: BlockRef,
) -> Result<bool, DeriveError> {
    node_answers_so(context, enricher, at, |_| true).await
}

/// Whether it answers so about one of those things.
pub(super) async fn node_answers_so(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    at: BlockRef,
    is_so: fn(&Answer) -> bool,
) -> Result<bool, DeriveError> {
    let last = context.unanswered.kept().answered.get(enricher.service().name).cloned();
    let mut known: Vec<Key> = last.into_iter().collect();
    if known.is_empty() {
        let table = context.catalog.table(enricher.known_in().name)?;
        let snapshot = context.app.snapshot().await?;
        let page = snapshot.scan(&Scan::new(table.name(), PROBES)).await?;
        known.extend(page.rows.iter().map(|row| table.key_of(row)));
    }
    for key in known {
        if ask(enricher, &key, at).await.is_ok_and(|answer| is_so(&answer)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use cairn_core::BlockId;
    use cairn_store::derived::Value;

    use super::super::asking::Worth;
    use super::*;

    #[test]
    fn an_answer_is_kept_for_the_lease_that_asked() {
        let question = Question {
            key: Key(vec![Value::Int(1)]),
            named: Height(5),
            at: BlockRef { height: Height(9), id: BlockId([0; 32]) },
            is_settled: true,
        };
        let answer = Answer { rows: Vec::new(), worth: Worth::Said };
        let unanswered = Unanswered::default();
        unanswered.keep("asker", 1, question.clone(), answer);
        assert!(unanswered.take("asker", 2, &question).is_none());
        assert!(unanswered.take("asker", 1, &question).is_some());
        assert!(unanswered.take("asker", 1, &question).is_none());
    }

    #[test]
    fn what_a_committed_chunk_asked_again_is_not_asked_once_more_by_its_lease() {
        let unanswered = Unanswered::default();
        let key = Key(vec![Value::Int(1)]);
        let was = |lease_id, start| unanswered.was_asked_again("asker", lease_id, &key, Height(start));
        unanswered.asked_again("asker", 1, std::iter::once(key.clone()), Height(5));
        assert!(!was(1, 5), "the same chunk once more: it was not committed");
        assert!(was(1, 6));
        assert!(!was(2, 6), "another lease");
        unanswered.asked_again("asker", 2, std::iter::once(key.clone()), Height(7));
        assert!(!was(1, 8) && was(2, 8));
    }
}
