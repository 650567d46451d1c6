//! `replace_block`: another answer for a block, in the place of the one that was read, and of no other.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{Height, RawBlock, StoredBlock};

use super::blocks::{chain, fork};
use super::check::{holds, is_conflict, is_invalid, refused, same};
use super::subject::Subject;
use super::{Case, CaseResult, StoreFactory};
use crate::{Replacement, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("replacing":
        f04_a_block_takes_the_place_of_the_one_that_was_read,
        f04_of_two_that_replace_what_both_have_read_one_is_refused,
        a_block_that_is_not_the_one_that_was_read_replaces_nothing,
    )
}

/// The block with something more in its receipts and beside, under the same id.
fn more(block: &RawBlock, what: &'static [u8]) -> RawBlock {
    let receipts = [&block.receipts[..], what].concat().into();
    let mut facts = block.facts;
    facts.unverified ^= 2;
    RawBlock { facts, receipts, extras: Bytes::from_static(what), ..block.clone() }
}

fn replacement(block: &RawBlock, read: &RawBlock) -> Replacement {
    Replacement { block: block.clone(), read: StoredBlock::from(read) }
}

fn is_replaced(error: &StoreError) -> bool {
    matches!(error, StoreError::Replaced { .. })
}

async fn f04_a_block_takes_the_place_of_the_one_that_was_read(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut blocks = chain(3, 12, 0);
    let mut subject = Subject::with(&factory, &blocks).await?;
    // The first, the last, and one in between.
    for place in [0, 5, 11] {
        let before = blocks[place].clone();
        blocks[place] = more(&before, b"more");
        let asked = replacement(&blocks[place], &before);
        subject.store.replace_block(asked.clone()).await?;
        subject.shows(&blocks).await?;
        // An answer that was lost: it stands there already.
        let frozen = subject.freeze().await?;
        subject.store.replace_block(asked).await?;
        subject.is_still(&frozen).await?;
    }
    subject = subject.restart().await?;
    subject.shows(&blocks).await?;
    subject.dumps_as(&blocks).await?;
    // It is the chain's block as any other.
    let next = fork(&blocks, 14, 3, 0);
    subject.append(&next[12..]).await?;
    subject.shows(&next).await
}

async fn f04_of_two_that_replace_what_both_have_read_one_is_refused(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let mut blocks = chain(0, 8, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    for place in [2, 6] {
        let read = blocks[place].clone();
        let (one, other) = (more(&read, b"one"), more(&read, b"another"));
        let (first, second) = futures::join!(
            subject.store.replace_block(replacement(&one, &read)),
            subject.store.replace_block(replacement(&other, &read))
        );
        blocks[place] = match (&first, &second) {
            (Ok(()), _) => one.clone(),
            _ => other.clone(),
        };
        same("how many were written", u8::from(first.is_ok()) + u8::from(second.is_ok()), 1)?;
        refused("the later one", first.and(second), is_replaced)?;
        subject.shows(&blocks).await?;
        // Whoever was refused reads again, and adds to what is there.
        let both = more(&blocks[place], b"both");
        subject.store.replace_block(replacement(&both, &blocks[place])).await?;
        blocks[place] = both;
        subject.shows(&blocks).await?;
    }
    subject.dumps_as(&blocks).await
}

async fn a_block_that_is_not_the_one_that_was_read_replaces_nothing(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let blocks = chain(0, 8, 0);
    let subject = Subject::with(&factory, &blocks[..7]).await?;
    let frozen = subject.freeze().await?;
    let replace = |block: &RawBlock, read: &RawBlock| subject.store.replace_block(replacement(block, read));
    let stored = &blocks[4];
    let offered = more(stored, b"more");
    // Whichever part of what was read isn't there.
    let mut others = vec![more(stored, b"other"); 3];
    others[1] = RawBlock { header: Bytes::from_static(b"another header"), ..stored.clone() };
    others[2] = RawBlock { extras: Bytes::from_static(b"other extras"), ..stored.clone() };
    for other in &others {
        refused("another was read", replace(&offered, other).await, is_replaced)?;
    }
    let other = fork(&blocks, 3, 1, 9).swap_remove(4);
    holds(other.facts.height == stored.facts.height && other.facts.id != stored.facts.id, "the fork's own")?;
    refused("another block", replace(&other, stored).await, is_conflict)?;
    refused("a block that was never here", replace(&more(&other, b"more"), &other).await, is_replaced)?;
    let mut unlinked = offered.clone();
    unlinked.facts.parent_id = other.facts.id;
    refused("another parent", replace(&unlinked, stored).await, is_conflict)?;
    let mut miscounted = offered.clone();
    miscounted.facts.tx_count += 1;
    refused("a wrong count", replace(&miscounted, stored).await, is_invalid)?;
    refused("above the tip", replace(&more(&blocks[7], b"more"), &blocks[7]).await, is_invalid)?;
    subject.is_still(&frozen).await?;
    // A reorg took it away.
    let to = fork(&blocks[..7], 3, 3, 9);
    subject.switch(&blocks[..7], &to).await?;
    let frozen = subject.freeze().await?;
    refused("it is gone", replace(&offered, stored).await, is_replaced)?;
    subject.is_still(&frozen).await?;
    subject.roll_back(&to[3]).await?;
    let above = &to[5];
    same("a height that waits for its purge", above.facts.height, Height(5))?;
    refused("it is being taken away", replace(&more(above, b"more"), above).await, is_invalid)?;
    Ok(())
}
