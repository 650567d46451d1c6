//! Asking a node about many things, a bounded number at a time.
//!
//! Questions come in the order in which blocks name their things, and are put in groups: whole heights, some questions at once. After each group a commit may
//! end; so what is held in memory is a commit's answers, and a chunk that names much is cut, down to one block.
//!
//! **A node that limits the rate** (HTTP 429 and its like) says nothing about the thing: it counts against nobody. The rest of the group isn't asked, and nothing is
//! before the pause is over that the node asks for, or a growing one.
//!
//! **What was answered is kept** where another question of the group has to wait, and taken when the same lease tries the chunk again.
//!
//! **That a thing isn't there** is believed only when the node keeps to it ([`super::absent`]).

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use cairn_core::{BlockId, BlockRef, Height};
use cairn_store::derived::{Key, Row};
use futures::{FutureExt, StreamExt};

use super::absent;
use super::context::Context;
use super::error::DeriveError;
use super::guard::text_of;
use super::processor::{AskError, AskFailure, Asked, Enricher};
use super::unanswered::{MAX_TRIES, node_answers};

/// Questions of one group for each that is asked at once: so that few wait for the slowest one.
const GROUP_FACTOR: usize = 4;

/// How often a node limits the rate over one thing before that is told; then at each power of two.
const WARN_REFUSALS: u32 = 16;

/// A thing to ask about.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub key: Key,
    /// The first block of the chunk that names it.
    pub named: Height,
    /// The block at which it is asked.
    pub at: BlockRef,
    /// Whether no reorg can take that block away.
    pub is_settled: bool,
}

/// What an answer is worth beside one that is known from before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worth {
    /// The node said it: it takes the other's place.
    Said,
    /// The node said that there is no such thing, which doesn't make untrue what was known of it before.
    Absent,
    /// Nothing could be learnt.
    GivenUp,
}

/// What is to be stored.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub rows: Vec<(&'static str, Row)>,
    pub worth: Worth,
}

impl Answer {
    fn given_up(enricher: &Arc<dyn Enricher>, key: &Key, at: BlockRef, message: &str) -> Answer {
        Answer { rows: enricher.given_up(key, at, message), worth: Worth::GivenUp }
    }

    /// Whether the node said something of the thing itself.
    pub fn is_said(&self) -> bool {
        self.worth == Worth::Said
    }

    /// The memory that it takes, in bytes, about.
    pub fn size_bytes(&self) -> usize {
        self.rows.iter().map(|(_, row)| row.size_bytes()).sum()
    }
}

/// Trouble that may pass.
pub(super) struct Trouble {
    message: String,
    /// The node limits the rate, and maybe for how long.
    busy: Option<Option<u64>>,
}

/// What came of a chunk's questions.
pub(super) struct Answers {
    pub answers: Vec<(Key, Answer)>,
    /// The first height whose questions are not all answered.
    pub open_from: Option<Height>,
}

/// Asks all of `questions`, which are in the order of their heights, or those of the first heights: as many as one commit takes, and those below the first one that has
/// to wait. An error where that is at `start`, where the chunk begins.
pub(super) async fn ask_all(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    lease_id: u64,
    start: Height,
    questions: &[Question],
) -> Result<Answers, DeriveError> {
    let options = &context.options;
    let group = options.asks_in_flight.max(1) * GROUP_FACTOR;
    let mut answers: Vec<(Key, Answer)> = Vec::new();
    let (mut bytes, mut at) = (0, 0);
    while let Some(first) = questions.get(at) {
        if at > 0 && (at >= options.chunk_asks || bytes >= options.chunk_answer_bytes) {
            return Ok(Answers { answers, open_from: Some(first.named) });
        }
        let end = end_of_group(questions, at, group);
        let (answered, waits) = ask_group(context, enricher, lease_id, &questions[at..end], group).await?;
        bytes += answered.iter().map(|(_, answer)| answer.size_bytes()).sum::<usize>();
        answers.extend(answered);
        if let Some(Waits { named, message }) = waits {
            if named <= start {
                return Err(DeriveError::Node(message));
            }
            // What is whole is committed; the next chunk begins with what has to wait.
            tracing::debug!(service = enricher.service().name, height = %named, %message, "a chunk ends before its time");
            return Ok(Answers { answers, open_from: Some(named) });
        }
        at = end;
    }
    Ok(Answers { answers, open_from: None })
}

/// A question that has to wait: the first height that has one, and why.
struct Waits {
    named: Height,
    message: String,
}

/// The end of the whole heights from `at` on that have at most `group` questions together, and of one height at least.
fn end_of_group(questions: &[Question], at: usize, group: usize) -> usize {
    let mut end = at;
    while let Some(next) = questions.get(end) {
        let of_height = questions[end..].iter().take_while(|other| other.named == next.named).count();
        if end > at && end + of_height - at > group {
            break;
        }
        end += of_height;
    }
    end
}

/// Asks about the things of some heights; those of one height may be many, and are asked in parts. Where one has to wait, the answers of the heights below it are
/// returned, and those from there on kept.
async fn ask_group(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    lease_id: u64,
    questions: &[Question],
    part: usize,
) -> Result<(Vec<(Key, Answer)>, Option<Waits>), DeriveError> {
    let service = enricher.service().name;
    let mut answered: Vec<(Question, Answer)> = Vec::new();
    let mut open: Vec<Question> = Vec::new();
    for question in questions {
        match context.unanswered.take(service, lease_id, question) {
            Some(answer) => answered.push((question.clone(), answer)),
            None => open.push(question.clone()),
        }
    }
    let mut waits: Option<Waits> = None;
    for part in open.chunks(part.max(1)) {
        context.unanswered.pause(service).await;
        let (more, waiting) = ask_part(context, enricher, part).await?;
        answered.extend(more);
        if waiting.is_some() {
            waits = waiting;
            break;
        }
    }
    // Of rows that several answers make at one block the last counts: the order is that of the questions, whatever was kept.
    answered.sort_by(|(a, _), (b, _)| (a.named, &a.key).cmp(&(b.named, &b.key)));
    let open_from = waits.as_ref().map(|waits| waits.named);
    let mut answers = Vec::with_capacity(answered.len());
    for (question, answer) in answered {
        match open_from {
            Some(open_from) if question.named >= open_from => {
                context.unanswered.keep(service, lease_id, question, answer);
            }
            _ => answers.push((question.key, answer)),
        }
    }
    Ok((answers, waits))
}

/// Asks some questions, in the order of their heights.
async fn ask_part(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    questions: &[Question],
) -> Result<(Vec<(Question, Answer)>, Option<Waits>), DeriveError> {
    let service = enricher.service().name;
    let asks = questions.iter().cloned().map(|question| async move {
        let answer = ask_now(context, enricher, &question).await;
        (question, answer)
    });
    let mut asked: Vec<_> =
        futures::stream::iter(asks).buffered(context.options.asks_in_flight.max(1)).collect().await;
    absent::look_again(context, enricher, &mut asked).await?;
    let mut answers_at: BTreeMap<BlockId, bool> = BTreeMap::new();
    for (question, answer) in &asked {
        if let Some(Ok(answer)) = answer {
            answers_at.insert(question.at.id, true);
            context.unanswered.answered(service, &question.key, answer.is_said());
        }
    }
    if !asked.iter().any(|(_, answer)| matches!(answer, None | Some(Err(Trouble { busy: Some(_), .. })))) {
        context.unanswered.not_busy(service);
    }
    let mut answers = Vec::with_capacity(asked.len());
    let mut waits = None;
    for (question, answer) in asked {
        let mut has_to_wait = |message| {
            waits.get_or_insert(Waits { named: question.named, message });
        };
        let message = match answer {
            Some(Ok(answer)) => {
                answers.push((question, answer));
                continue;
            }
            Some(Err(Trouble { message, busy: None })) => message,
            Some(Err(Trouble { message, busy: Some(_) })) => {
                let times = context.unanswered.refused(service, &question.key);
                if times >= WARN_REFUSALS && times.is_power_of_two() {
                    tracing::warn!(service, key = ?question.key, times, %message, "the node limits the rate each time it is asked about this");
                }
                has_to_wait(message);
                continue;
            }
            None => {
                has_to_wait("the node limits the rate".into());
                continue;
            }
        };
        let at = question.at;
        let node_is_there = match answers_at.get(&at.id) {
            Some(answers) => *answers,
            // It isn't asked more than it likes only to see that.
            None if context.unanswered.is_paused(service) => false,
            None => {
                let there = node_answers(context, enricher, at).await?;
                answers_at.insert(at.id, there);
                there
            }
        };
        if node_is_there && context.unanswered.failed(service, &question.key) >= MAX_TRIES {
            tracing::warn!(service, key = ?question.key, %message, "a node fails over this alone; it is not asked again");
            let answer = Answer::given_up(enricher, &question.key, at, &message);
            answers.push((question, answer));
        } else {
            has_to_wait(message);
        }
    }
    Ok((answers, waits))
}

/// Asks about one thing, unless the node wants to be left alone.
pub(super) async fn ask_now(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    question: &Question,
) -> Option<Result<Answer, Trouble>> {
    let service = enricher.service().name;
    // Another one was told to wait.
    if context.unanswered.is_paused(service) {
        return None;
    }
    let answer = ask(enricher, &question.key, question.at).await;
    if let Err(Trouble { busy: Some(retry_after_ms), .. }) = &answer {
        context.unanswered.busy(service, *retry_after_ms);
    }
    Some(answer)
}

/// Asks about one thing.
pub(super) async fn ask(enricher: &Arc<dyn Enricher>, key: &Key, at: BlockRef) -> Result<Answer, Trouble> {
    match AssertUnwindSafe(enricher.ask(key, at)).catch_unwind().await {
        Ok(Ok(Asked::Rows(rows))) => Ok(Answer { rows, worth: Worth::Said }),
        Ok(Ok(Asked::Nothing)) => Ok(Answer { rows: enricher.given_up(key, at, ""), worth: Worth::Said }),
        Ok(Ok(Asked::Absent(rows))) => Ok(Answer { rows, worth: Worth::Absent }),
        Ok(Err(AskError { failure, message })) => match failure {
            AskFailure::Transient => Err(Trouble { message, busy: None }),
            AskFailure::Busy { retry_after_ms } => Err(Trouble { message, busy: Some(retry_after_ms) }),
            AskFailure::Final => Ok(Answer::given_up(enricher, key, at, &message)),
        },
        Err(panic) => {
            let message = format!("the answer could not be understood: {}", text_of(&*panic));
            Ok(Answer::given_up(enricher, key, at, &message))
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_store::derived::Value;

    use super::*;

    #[test]
    fn groups_are_whole_heights() {
        let question = |height: u64, key: i64| Question {
            key: Key(vec![Value::Int(key)]),
            named: Height(height),
            at: BlockRef { height: Height(height), id: BlockId([0; 32]) },
            is_settled: false,
        };
        let heights = [1, 1, 2, 3, 3, 3, 3, 3, 4];
        let questions: Vec<_> = heights.iter().zip(0..).map(|(height, key)| question(*height, key)).collect();
        let mut ends = Vec::new();
        let mut at = 0;
        while at < questions.len() {
            at = end_of_group(&questions, at, 3);
            ends.push(at);
        }
        assert_eq!(ends, [3, 8, 9]);
    }
}
