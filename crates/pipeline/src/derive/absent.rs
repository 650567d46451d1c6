//! What a node says isn't there, though rows at or below that block name it.
//!
//! A contract that logged was there. Where a node finds none, it was destroyed since; or the node answers from a state that it doesn't have, or not yet, without saying so. An answer
//! is kept for good, so this one has to be proven: the node has to say it again, and has to have something else that is known at the same block before and after. Where it
//! has nothing else either, it is asked some times more with growing pauses, and what it says in the end counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{BlockId, BlockRef};
use futures::StreamExt;

use super::asking::{Answer, Question, Trouble, Worth, ask_now};
use super::context::Context;
use super::error::DeriveError;
use super::processor::Enricher;
use super::unanswered::node_answers_so;

/// How often a node is asked again. The first time there is no pause.
const LOOKS: u32 = 4;
/// The pause before the second time, in milliseconds; before each further one it is twice as long.
const FIRST_PAUSE_MS: u64 = 500;

/// A question, and what came of it: nothing where it wasn't asked.
pub(super) type AskedOf = (Question, Option<Result<Answer, Trouble>>);

fn is_absent(answer: &Option<Result<Answer, Trouble>>) -> bool {
    matches!(answer, Some(Ok(answer)) if answer.worth == Worth::Absent)
}

/// Asks again about what isn't there, all of it together, and puts the new answers in their places.
pub(super) async fn look_again(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    asked: &mut [AskedOf],
) -> Result<(), DeriveError> {
    for (question, answer) in &*asked {
        // So that something is known in the first part too.
        if matches!(answer, Some(Ok(answer)) if answer.is_said()) {
            context.unanswered.answered(enricher.service().name, &question.key, true);
        }
    }
    let mut open: Vec<usize> = (0..asked.len()).filter(|place| is_absent(&asked[*place].1)).collect();
    for look in 0..LOOKS {
        if open.is_empty() {
            break;
        }
        if look > 0 {
            tokio::time::sleep(Duration::from_millis(FIRST_PAUSE_MS << (look - 1))).await;
        }
        let before = stands_at(context, enricher, asked, &open).await?;
        look_once(context, enricher, asked, &open).await;
        open.retain(|place| is_absent(&asked[*place].1));
        let after = stands_at(context, enricher, asked, &open).await?;
        open.retain(|place| {
            let at = asked[*place].0.at.id;
            !(before.contains(&at) && after.contains(&at))
        });
    }
    Ok(())
}

async fn look_once(context: &Context, enricher: &Arc<dyn Enricher>, asked: &mut [AskedOf], open: &[usize]) {
    let again: Vec<(usize, Question)> = open.iter().map(|place| (*place, asked[*place].0.clone())).collect();
    let again = again
        .into_iter()
        .map(|(place, question)| async move { (place, ask_now(context, enricher, &question).await) });
    let again: Vec<_> =
        futures::stream::iter(again).buffered(context.options.asks_in_flight.max(1)).collect().await;
    for (place, answer) in again {
        let (question, before) = &mut asked[place];
        if matches!(&answer, Some(Ok(answer)) if answer.is_said()) {
            let (service, key, at) = (enricher.service().name, &question.key, question.at);
            tracing::warn!(service, ?key, %at, "the node said that this isn't there, and now says what it is");
        }
        *before = answer;
    }
}

/// The blocks of these questions at which the node has something else that is known.
async fn stands_at(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    asked: &[AskedOf],
    open: &[usize],
) -> Result<BTreeSet<BlockId>, DeriveError> {
    let blocks: BTreeMap<BlockId, BlockRef> =
        open.iter().map(|place| asked[*place].0.at).map(|at| (at.id, at)).collect();
    let mut stands = BTreeSet::new();
    for at in blocks.into_values() {
        // One that limits the rate isn't asked more than it likes only to see that.
        if !context.unanswered.is_paused(enricher.service().name)
            && node_answers_so(context, enricher, at, Answer::is_said).await?
        {
            stands.insert(at.id);
        }
    }
    Ok(stands)
}
