//! One Flow block asked for again: what the nodes give now, held against what is stored; what has more takes its place.

use std::sync::Arc;

use anyhow::{Context, bail};
use cairn_core::{Height, Parts, RawBlock, StoredBlock};
use cairn_flow::Network;
use cairn_flow::again::{Again, again};
use cairn_flow::evm_blocks::closed_heights;
use cairn_store::{RawReader, Replacement, StoreError};

use super::super::fetch::Fetch;
use super::left::{self, Written};
use crate::stores::RawStore;

/// How often a block is read again that somebody else replaces meanwhile.
const MAX_TRIES: u32 = 5;

/// What came of it.
#[derive(Debug)]
pub(super) struct Asked {
    /// Events that the block has now and didn't have before, where it was replaced.
    pub new_events: Option<u32>,
    /// The EVM blocks that it closes, as it is stored now.
    pub closes: Vec<u64>,
}

/// Asks all nodes that have the block. An error where none answers, where it is not stored, and where each answer contradicts what is stored.
pub(super) async fn ask(
    store: &Arc<dyn RawStore>,
    fetch: &Fetch,
    network: Network,
    height: Height,
) -> anyhow::Result<Asked> {
    let source = fetch.source()?;
    let mut stored = read(store, height).await?;
    let answers = source.answers(height).await.context("it can't be fetched")?;
    if answers.is_empty() {
        bail!("the node doesn't have it");
    }
    for _ in 0..MAX_TRIES {
        let answers = answers.clone();
        let judging = tokio::task::spawn_blocking(move || (judge(&stored, answers, network), stored));
        let (judged, read_before) = judging.await.context("the look at answers panicked")?;
        let (more, closes) = judged?;
        let Some((block, events)) = more else { return Ok(Asked { new_events: None, closes }) };
        let (at, written) = (block.block_ref(), Written { events, bytes: block.receipts.len() });
        // Before: whoever is killed behind it leaves nothing that the next one doesn't come to.
        left::note(&**store, at, None).await?;
        match store.replace_block(Replacement { block, read: read_before }).await {
            Ok(()) => {
                // A repair beside this one that found nothing replaced yet may have closed the other one, or be about to.
                left::note(&**store, at, Some(written)).await?;
                return Ok(Asked { new_events: Some(events), closes });
            }
            // Another repair put there what it was given: only what has more than that may follow.
            Err(StoreError::Replaced { .. }) => stored = read(store, height).await?,
            Err(error) => return Err(error).context("the node's block can't take its place"),
        }
    }
    bail!("others replace it again and again")
}

async fn read(store: &Arc<dyn RawStore>, height: Height) -> anyhow::Result<StoredBlock> {
    let reader: Arc<dyn RawReader> = store.clone();
    let stored = reader.snapshot().await?.block(height, Parts::all()).await?;
    stored.context("it is not stored")
}

/// A block with how many events it has more than what is stored; and heights of EVM blocks.
type Judged = (Option<(RawBlock, u32)>, Vec<u64>);

/// The answer with most events more than what is stored, if there is one; and the EVM blocks that it, or what is stored, closes.
fn judge(stored: &StoredBlock, answers: Vec<RawBlock>, network: Network) -> anyhow::Result<Judged> {
    let (mut best, mut is_same, mut others) = (None::<(RawBlock, u32)>, false, Vec::new());
    for answer in answers {
        match again(stored, answer)? {
            Again::Same => is_same = true,
            Again::More { block, events } => {
                if best.as_ref().is_none_or(|(_, most)| events > *most) {
                    best = Some((*block, events));
                }
            }
            Again::Other(why) => others.push(why),
        }
    }
    for why in &others {
        tracing::warn!(height = %stored.facts.height, why, "an answer is not what is stored, and doesn't take its place");
    }
    if best.is_none() && !is_same {
        bail!("what the nodes give now is not what is stored: {}", others.join("; "));
    }
    let receipts = best.as_ref().map_or(&stored.receipts, |(block, _)| &block.receipts);
    let closes = closed_heights(receipts, network)?;
    Ok((best, closes))
}

#[cfg(test)]
mod tests {
    use cairn_flow::assemble;
    use cairn_flow_node::Draft;

    use super::*;

    /// A block that closes EVM block 7, with so many events of its transaction.
    fn block(events: usize, is_closed: bool) -> RawBlock {
        let mut draft = Draft::new(20, &[1], 5);
        draft.transactions[0].1.events.truncate(events);
        if is_closed {
            draft.evm_block(7, 0, &[], &[]);
        }
        assemble(&draft.parts()).expect("is whole")
    }

    #[test]
    fn f04_the_answer_that_has_most_takes_the_place_and_those_that_contradict_don_t() {
        let stored = StoredBlock::from(block(3, false));
        let judge = |answers| judge(&stored, answers, Network::Emulator);
        assert!(
            matches!(judge(vec![block(3, false)]).expect("is judged"), (None, closes) if closes.is_empty())
        );
        let mut other = block(3, true);
        other.facts.parent_id = cairn_core::BlockId([9; 32]);
        let answers = vec![block(2, true), block(3, true), other.clone(), block(5, true), block(3, false)];
        let (best, closes) = judge(answers).expect("is judged");
        assert_eq!((best.expect("has more"), closes), ((block(5, true), 3), vec![7]));
        // One of them as before is enough for "the same"; none is not.
        assert!(judge(vec![other.clone(), block(3, false)]).expect("is judged").0.is_none());
        let error = judge(vec![other, block(2, true)]).expect_err("nothing fits").to_string();
        assert!(
            error.contains("the answer is another block") && error.contains("the answer lacks event 2"),
            "{error}"
        );
    }
}
