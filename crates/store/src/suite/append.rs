//! `append`: linking, lost answers, conflicts, fences, and blocks of odd shapes.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{Height, Parts, RawBlock, TxFacts, TxStatus};

use super::blocks::{anchor_parent, as_stored, block, chain, chain_after, fork, tx_id};
use super::check::{is_conflict, is_fenced, is_invalid, is_unlinked, refused, same};
use super::subject::{Subject, batch, rollback};
use super::{Case, CaseResult, StoreFactory};
use crate::{AppendBatch, PurgeProgress, StoreError, TxPlace};

pub(super) fn cases() -> Vec<Case> {
    case_list!("append":
        i10_genesis_has_height_and_timestamp_zero_and_no_parent,
        i10_an_archive_may_begin_in_the_middle,
        batches_of_any_size_make_the_same_store,
        a_first_block_that_does_not_follow_the_tip_is_refused,
        a_batch_that_does_not_link_in_itself_is_refused,
        a_batch_that_makes_no_sense_is_refused,
        another_block_at_a_stored_height_is_a_conflict,
        a_lost_answer_is_settled_by_appending_again,
        other_bytes_under_the_tips_id_are_a_conflict,
        l01_a_zombie_changes_nothing,
        empty_and_absent_parts_stay_what_they_were,
        a_transaction_id_may_stand_at_several_places,
        blocks_without_transactions_or_logs_are_found_by_id_only,
        i11_a_block_of_60_mib_is_stored_and_read_by_part,
    )
}

async fn i10_genesis_has_height_and_timestamp_zero_and_no_parent(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let mut blocks = chain(0, 4, 0);
    for (block, timestamp_ms) in blocks.iter_mut().zip([0, 0, 1_000, 1_000]) {
        block.facts.timestamp_ms = timestamp_ms;
    }
    let genesis = &mut blocks[0];
    (genesis.transactions, genesis.facts.tx_count) = (Vec::new(), 0);
    (genesis.log_terms, genesis.facts.log_count) = (Vec::new(), 0);
    (genesis.receipts, genesis.extras, genesis.traces) = (Bytes::new(), Bytes::new(), None);
    let from_zero = Subject::with(&factory, &blocks[..1]).await?;
    from_zero.shows(&blocks[..1]).await?;
    from_zero.append(&blocks[1..]).await?;
    from_zero.shows(&blocks).await?;
    let from_two = Subject::with(&factory, &blocks[2..]).await?;
    from_two.shows(&blocks[2..]).await?;
    from_two.dumps_as(&blocks[2..]).await
}

async fn i10_an_archive_may_begin_in_the_middle(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(1_000_003, 12, 0);
    let subject = Subject::new(&factory).await?;
    let head = subject.append(&blocks[..1]).await?;
    same("the first height", head.first, Some(Height(1_000_003)))?;
    same("the tip", head.tip, Some(blocks[0].block_ref()))?;
    subject.append(&blocks[1..]).await?;
    subject.shows(&blocks).await?;
    // What lies below the anchor doesn't follow the tip, whatever it is.
    let below = chain(1_000_000, 4, 0);
    refused("a batch below the anchor", subject.append(&below[..1]).await, is_unlinked)?;
    subject.dumps_as(&blocks).await
}

async fn batches_of_any_size_make_the_same_store(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 40, 3);
    for size in [1, 7, 40] {
        let subject = Subject::new(&factory).await?;
        for part in blocks.chunks(size) {
            let head = subject.append(part).await?;
            same("the tip", head.tip, part.last().map(RawBlock::block_ref))?;
            same("the head row that is read", subject.head().await?, head)?;
        }
        subject.shows(&blocks).await?;
        subject.settle().await?;
        subject.shows(&blocks).await?;
        subject.dumps_as(&blocks).await?;
    }
    Ok(())
}

async fn a_first_block_that_does_not_follow_the_tip_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 12, 0);
    let subject = Subject::with(&factory, &blocks[..6]).await?;
    let before = subject.freeze().await?;
    let tip = blocks[5].block_ref();
    let names_the_tip =
        |error: &StoreError| matches!(error, StoreError::DoesNotLink { expected, .. } if *expected == tip);
    // A gap above the tip.
    refused("a gap", subject.append(&blocks[7..9]).await, names_the_tip)?;
    // Right height, another parent.
    let other = chain_after(anchor_parent(Height(77)), Height(6), 2, 1);
    refused("another parent", subject.append(&other).await, names_the_tip)?;
    // Right parent, wrong height.
    let lifted = chain_after(tip.id, Height(7), 1, 0);
    refused("a height too high", subject.append(&lifted).await, names_the_tip)?;
    // A batch that begins below the tip and goes on above it.
    refused("an overlap", subject.append(&blocks[4..8]).await, names_the_tip)?;
    // A batch of stored blocks that doesn't end at the tip.
    refused("old blocks", subject.append(&blocks[2..4]).await, names_the_tip)?;
    subject.is_still(&before).await?;
    subject.append(&blocks[6..]).await?;
    subject.shows(&blocks).await
}

async fn a_batch_that_does_not_link_in_itself_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 9, 0);
    let subject = Subject::with(&factory, &blocks[..3]).await?;
    let before = subject.freeze().await?;
    // E17: the answer to one request spans two forks.
    let mut mixed = blocks[3..6].to_vec();
    mixed[2] = block(Height(5), fork(&blocks, 2, 3, 1)[4].facts.id, 1);
    let error = refused("a batch of two forks", subject.append(&mixed).await, is_unlinked)?;
    if let StoreError::DoesNotLink { first, expected, .. } = error {
        same("the place of the break", (first, expected), (mixed[2].block_ref(), mixed[1].block_ref()))?;
    }
    let gap = [blocks[3].clone(), blocks[5].clone()];
    refused("a gap in the batch", subject.append(&gap).await, is_invalid)?;
    let twice = [blocks[3].clone(), blocks[3].clone()];
    refused("a block twice in the batch", subject.append(&twice).await, is_invalid)?;
    let backwards = [blocks[4].clone(), blocks[3].clone()];
    refused("a batch that goes down", subject.append(&backwards).await, is_invalid)?;
    subject.is_still(&before).await
}

async fn a_batch_that_makes_no_sense_is_refused(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 6, 0);
    let subject = Subject::with(&factory, &blocks[..3]).await?;
    let before = subject.freeze().await?;
    refused("an empty batch", subject.append(&[]).await, is_invalid)?;
    let broken = |change: &dyn Fn(&mut RawBlock)| {
        let mut batch = blocks[3..].to_vec();
        change(&mut batch[1]);
        batch
    };
    let miscounted = broken(&|block| block.facts.tx_count += 1);
    // I06: a block whose transactions are missing never gets in.
    refused("a wrong tx_count", subject.append(&miscounted).await, is_invalid)?;
    let unsorted = broken(&|block| block.log_terms = vec![5, 4]);
    refused("unsorted terms", subject.append(&unsorted).await, is_invalid)?;
    let repeated = broken(&|block| block.log_terms = vec![4, 4]);
    refused("repeated terms", subject.append(&repeated).await, is_invalid)?;
    let long_sender = broken(&|block| {
        let sender = Bytes::from(vec![1; 256]);
        block.transactions = vec![TxFacts { id: tx_id(&[1]), sender, status: TxStatus::Ok }];
        block.facts.tx_count = 1;
    });
    refused("a sender of 256 bytes", subject.append(&long_sender).await, is_invalid)?;
    subject.is_still(&before).await?;
    subject.append(&blocks[3..]).await?;
    subject.shows(&blocks).await
}

async fn another_block_at_a_stored_height_is_a_conflict(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 10, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let before = subject.freeze().await?;
    for common in [0, 5, 8] {
        let other = fork(&blocks, common, 4, 1);
        let first = &other[common as usize + 1];
        let answer = subject.append(&other[common as usize + 1..]).await;
        let error = refused("a fork's block at a stored height", answer, is_conflict)?;
        let StoreError::Conflict { height, stored, offered } = error else { continue };
        let stored_id = blocks[common as usize + 1].facts.id;
        same("what it names", (height, stored, offered), (first.facts.height, stored_id, first.facts.id))?;
    }
    subject.is_still(&before).await
}

async fn a_lost_answer_is_settled_by_appending_again(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 12, 0);
    let subject = Subject::with(&factory, &blocks[..4]).await?;
    let marked = |upto: usize| AppendBatch {
        blocks: blocks[4..upto].to_vec(),
        finalized: Some(blocks[2].block_ref()),
        safe: Some(blocks[3].block_ref()),
    };
    let head = subject.store.append(subject.fence, marked(9)).await?;
    let before = subject.freeze().await?;
    same(
        "the answer to the same batch",
        subject.store.append(subject.fence, marked(9)).await?,
        head.clone(),
    )?;
    subject.is_still(&before).await?;
    // A shorter batch with the same end, down to its last block; and the whole chain.
    for from in [0, 5, 8] {
        same("the answer to a part of it", subject.append(&blocks[from..9]).await?, head.clone())?;
    }
    // "Unchanged" holds for the marks too.
    let later = AppendBatch { finalized: Some(blocks[7].block_ref()), ..marked(9) };
    same("the answer with a newer mark", subject.store.append(subject.fence, later).await?, head)?;
    subject.is_still(&before).await?;
    let subject = subject.restart().await?;
    subject.append(&blocks[4..9]).await?;
    subject.append(&blocks[9..]).await?;
    subject.shows(&blocks).await
}

async fn other_bytes_under_the_tips_id_are_a_conflict(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 8, 0);
    let subject = Subject::with(&factory, &blocks).await?;
    let before = subject.freeze().await?;
    type Change = fn(&mut RawBlock);
    let changes: [(&str, Change); 6] = [
        ("the receipts", |block| block.receipts = Bytes::from_static(b"other")),
        ("the traces", |block| block.traces = Some(Bytes::from_static(b"other"))),
        ("a fact", |block| block.facts.unverified ^= 1),
        ("the body of an earlier block", |block| block.body = Bytes::from_static(b"other")),
        ("another transaction", |block| {
            block.transactions.push(TxFacts {
                id: tx_id(&[8]),
                sender: Bytes::new(),
                status: TxStatus::Failed,
            });
            block.facts.tx_count += 1;
        }),
        ("one more transaction with a sender", |block| {
            let sender = Bytes::from_static(b"other");
            block.transactions.push(TxFacts { id: tx_id(&[9]), sender, status: TxStatus::Ok });
            block.facts.tx_count += 1;
        }),
    ];
    for (at, (what, change)) in changes.into_iter().enumerate() {
        let mut again = blocks[5..].to_vec();
        change(&mut again[at % 3]);
        refused(what, subject.append(&again).await, is_conflict)?;
    }
    subject.is_still(&before).await
}

async fn l01_a_zombie_changes_nothing(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let blocks = chain(0, 12, 0);
    let mut subject = Subject::with(&factory, &blocks[..10]).await?;
    subject.finalize(&blocks[2]).await?;
    let zombie = subject.fence;
    subject.acquire().await?;
    let before = subject.freeze().await?;
    let store = &subject.store;
    let mark = Some(blocks[8].block_ref());
    let back = rollback(blocks[7].block_ref());
    refused("append", store.append(zombie, batch(&blocks[10..])).await, is_fenced)?;
    refused("append again", store.append(zombie, batch(&blocks[5..10])).await, is_fenced)?;
    refused("finalize", store.finalize(zombie, mark, mark).await, is_fenced)?;
    refused("rollback", store.rollback(zombie, back).await, is_fenced)?;
    refused("purge_step", store.purge_step(zombie, 1).await, is_fenced)?;
    refused("prune_orphans", store.prune_orphans(zombie, 0, 10).await, is_fenced)?;
    refused("advance", store.advance(zombie).await, is_fenced)?;
    subject.is_still(&before).await?;

    // In the middle of a purge, and with orphans that could be pruned.
    subject.roll_back(&blocks[6]).await?;
    let zombie = subject.fence;
    same("a step", subject.store.purge_step(zombie, 1).await?, PurgeProgress::Left(2))?;
    subject.acquire().await?;
    let before = subject.freeze().await?;
    refused("purge_step", subject.store.purge_step(zombie, 1).await, is_fenced)?;
    refused(
        "the rollback's repetition",
        subject.store.rollback(zombie, rollback(blocks[6].block_ref())).await,
        is_fenced,
    )?;
    subject.is_still(&before).await?;
    subject.purge(10).await?;
    subject.append(&blocks[7..]).await?;
    refused("prune_orphans", subject.store.prune_orphans(zombie, 0, 10).await, is_fenced)?;
    for orphan in &blocks[7..10] {
        let found = subject.snapshot().await?.orphan(1, orphan.facts.id, Parts::all()).await?;
        same("an orphan", found, Some(as_stored(orphan, Parts::all())))?;
    }
    subject.shows(&blocks).await
}

async fn empty_and_absent_parts_stay_what_they_were(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let mut blocks = chain(0, 64, 0);
    let [empty, some] = [Bytes::new(), Bytes::from_static(b"\0\xff\0")];
    // All combinations of an empty and a filled part, with traces absent, empty or filled.
    for (n, block) in blocks.iter_mut().enumerate() {
        let part = |bit: usize| if n >> bit & 1 == 0 { empty.clone() } else { some.clone() };
        (block.header, block.body, block.receipts, block.extras) = (part(0), part(1), part(2), part(3));
        block.traces = match n >> 4 {
            0 => None,
            1 => Some(Bytes::new()),
            _ => Some(part(0)),
        };
    }
    let subject = Subject::with(&factory, &blocks).await?;
    subject.shows(&blocks).await?;
    subject.settle().await?;
    let subject = subject.restart().await?;
    subject.shows(&blocks).await?;
    subject.dumps_as(&blocks).await
}

async fn a_transaction_id_may_stand_at_several_places(factory: Arc<dyn StoreFactory>) -> CaseResult {
    // Flow's system transaction has the same id in every block; some have it twice here.
    let mut blocks = chain(0, 20, 0);
    let system = TxFacts { id: tx_id(&[4711]), sender: Bytes::new(), status: TxStatus::Ok };
    for block in &mut blocks[3..] {
        block.transactions.push(system.clone());
        if block.facts.height.get().is_multiple_of(2) {
            block.transactions.insert(0, system.clone());
        }
        block.facts.tx_count = block.transactions.len() as u32;
    }
    let subject = Subject::with(&factory, &blocks).await?;
    subject.shows(&blocks).await?;
    let first = TxPlace { height: Height(3), index: blocks[3].facts.tx_count - 1 };
    same("its first place", subject.snapshot().await?.find_tx(system.id).await?, Some(first))?;
    subject.settle().await?;
    same("its first place later", subject.snapshot().await?.find_tx(system.id).await?, Some(first))?;
    // The same id above and below a rollback: the lower one stays.
    subject.roll_back(&blocks[10]).await?;
    subject.shows(&blocks[..11]).await?;
    subject.purge(1).await?;
    subject.shows(&blocks[..11]).await?;
    subject.roll_back(&blocks[2]).await?;
    same("its place on a chain without it", subject.snapshot().await?.find_tx(system.id).await?, None)?;
    subject.purge(100).await?;
    subject.dumps_as(&blocks[..3]).await
}

async fn blocks_without_transactions_or_logs_are_found_by_id_only(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let mut blocks = chain(0, 30, 0);
    for block in &mut blocks[1..] {
        (block.transactions, block.facts.tx_count) = (Vec::new(), 0);
        (block.log_terms, block.facts.log_count) = (Vec::new(), 0);
    }
    let subject = Subject::with(&factory, &blocks).await?;
    subject.shows(&blocks).await?;
    // R03: the last block with anything in it lies deep below a reorg of one block.
    let other = fork(&blocks, 28, 3, 1);
    subject.switch(&blocks, &other).await?;
    subject.shows(&other).await?;
    subject.dumps_as(&other).await
}

async fn i11_a_block_of_60_mib_is_stored_and_read_by_part(factory: Arc<dyn StoreFactory>) -> CaseResult {
    const PART_BYTES: usize = 20 << 20;
    let mut blocks = chain(0, 9, 0);
    let mut numbers = super::blocks::Numbers::new(60);
    let large = &mut blocks[4];
    large.body = numbers.bytes(PART_BYTES);
    large.receipts = numbers.bytes(PART_BYTES);
    large.traces = Some(numbers.bytes(PART_BYTES));
    let subject = Subject::with(&factory, &blocks).await?;
    let snapshot = subject.snapshot().await?;
    let all: Vec<_> = blocks.iter().map(|block| as_stored(block, Parts::all())).collect();
    // The limit ends the answer with the block that reaches it; the caller goes on after it.
    let range = snapshot.head().range();
    let found = snapshot.blocks(range, Parts::all(), PART_BYTES as u64).await?.blocks;
    same("the blocks up to the large one", found.len(), 5)?;
    same("the large block", found.last() == Some(&all[4]), true)?;
    let found = snapshot.blocks_at(&[Height(4), Height(5)], Parts::BODY, 1).await?;
    same("the large block's body alone", found == [as_stored(&blocks[4], Parts::BODY)], true)?;
    let headers = snapshot.blocks(range, Parts::HEADER, 1 << 20).await?.blocks;
    same("the headers", headers, blocks.iter().map(|block| as_stored(block, Parts::HEADER)).collect())?;
    drop(snapshot);
    subject.roll_back(&blocks[3]).await?;
    subject.purge(1).await?;
    let orphan = subject.snapshot().await?.orphan(1, blocks[4].facts.id, Parts::all()).await?;
    same("the large orphan", orphan == Some(all[4].clone()), true)?;
    subject.append(&blocks[4..]).await?;
    let subject = subject.restart().await?;
    let found = subject.snapshot().await?.block(Height(4), Parts::all()).await?;
    same("the large block after a restart", found == Some(all[4].clone()), true)?;
    same("the tip", subject.head().await?.tip, blocks.last().map(RawBlock::block_ref))
}
