//! Another answer for a stored block: the same, more, or something else.

use cairn_core::{RawBlock, StoredBlock};
use cairn_flow::again::{Again, again};
use cairn_flow::evm_blocks::closed_heights;
use cairn_flow::{Checks, Network, assemble};
use cairn_flow_node::{Behaviour, Draft, Generator, GeneratorOptions, LeftOut};

/// Two user transactions and the system's, of two events each, and an EVM block that is closed in the last one.
fn block(change: impl FnOnce(&mut Draft)) -> RawBlock {
    let mut draft = Draft::new(20, &[2], 2);
    draft.evm_block(7, 0, &[1, 2], &[1, 2]);
    change(&mut draft);
    assemble(&draft.parts()).expect("is whole")
}

/// Takes an event of a transaction out, as a node does that never had it: those behind it are counted without it.
fn without(draft: &mut Draft, transaction: usize, event: usize) {
    let events = &mut draft.transactions[transaction].1.events;
    events.remove(event);
    (0..).zip(events).for_each(|(index, event)| event.event_index = index);
}

fn held(stored: &RawBlock, answer: RawBlock) -> Again {
    again(&StoredBlock::from(stored), answer).expect("is read")
}

fn other(stored: &RawBlock, answer: RawBlock) -> String {
    match held(stored, answer) {
        Again::Other(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn f04_an_answer_with_all_that_is_stored_and_more_may_take_its_place() {
    let whole = block(|_| {});
    assert_eq!(held(&whole, whole.clone()), Again::Same);
    // The last event, one in the middle, all of a transaction.
    let stored = block(|draft| {
        without(draft, 2, 2);
        without(draft, 0, 1);
        draft.transactions[1].1.events.clear();
    });
    assert_eq!(held(&stored, whole.clone()), Again::More { block: Box::new(whole.clone()), events: 4 });
}

#[test]
fn f04_an_answer_that_lacks_or_contradicts_what_is_stored_takes_no_place() {
    let whole = block(|_| {});
    let lacks = other(&whole, block(|draft| without(draft, 0, 1)));
    assert!(lacks.contains("the answer lacks event 1 ("), "{lacks}");
    // As many events and more, but one of them is another.
    let stored = block(|draft| without(draft, 2, 2));
    let changed = block(|draft| draft.transactions[1].1.events[0].payload = "{\"other\":1}".into());
    assert!(other(&stored, changed).contains("the answer lacks event 0 ("));
    // In another order.
    let swapped = block(|draft| {
        let events = &mut draft.transactions[0].1.events;
        events.swap(0, 1);
        (0..).zip(events).for_each(|(index, event)| event.event_index = index);
    });
    assert!(other(&whole, swapped).contains("the answer lacks event"));
    let failed = block(|draft| draft.transactions[1].1.status_code = 1);
    assert!(other(&whole, failed.clone()).contains("ended otherwise"));
    // What a node says of a failure is its own.
    let said = block(|draft| {
        draft.transactions[1].1.status_code = 1;
        draft.transactions[1].1.error_message = "[Error Code: 1101] in other words".into();
    });
    assert_eq!(held(&failed, said), Again::Same);
    for change in [
        |answer: &mut RawBlock| answer.facts.parent_id = cairn_core::BlockId([9; 32]),
        |answer: &mut RawBlock| answer.facts.timestamp_ms += 1,
    ] {
        let mut answer = whole.clone();
        change(&mut answer);
        assert!(other(&whole, answer).contains("another block"));
    }
}

#[test]
fn an_execution_result_that_the_answer_lacks_is_kept() {
    let stored = block(|draft| without(draft, 0, 1));
    let mut answer = block(|draft| draft.execution_result = None);
    answer.facts.unverified |= Checks::EVM_BLOCK.bits();
    let Again::More { block: taken, events: 1 } = held(&stored, answer.clone()) else { panic!("has more") };
    assert_eq!(taken.extras, stored.extras);
    let marks = Checks::from_bits_truncate(taken.facts.unverified);
    assert_eq!(marks, Checks::BLOCK_ID | Checks::EVENTS | Checks::EVM_BLOCK);
    let same = block(|draft| {
        without(draft, 0, 1);
        draft.execution_result = None;
    });
    assert_eq!(held(&stored, same), Again::Same);
}

#[test]
fn what_a_node_leaves_out_in_silence_holds_and_is_found_once_it_is_given() {
    let options = GeneratorOptions { rlp_heights: 0, old_heights: 0, ..GeneratorOptions::new(5) };
    let generator = Generator::new(options, Behaviour::default());
    generator.grow(40);
    let state = generator.state();
    let mut state = state.lock().expect("not poisoned");
    let blocks = |state: &cairn_flow_node::State| -> Vec<RawBlock> {
        let of = |block: &std::sync::Arc<cairn_flow_node::chain::ServedBlock>| {
            assemble(&cairn_flow::BlockParts {
                block: block.block.clone(),
                transactions: block.transactions.iter().map(|tx| tx.transaction.clone()).collect(),
                results: block.transactions.iter().map(|tx| tx.result.clone()).collect(),
                execution_result: block.execution_result.clone(),
            })
        };
        state.chain.blocks().map(|block| of(block).expect("holds")).collect()
    };
    let whole = blocks(&state);
    let heights: Vec<u64> = whole.iter().map(|block| block.facts.height.get()).collect();
    for what in [LeftOut::OfEvm, LeftOut::OfSystem] {
        state.chain.leave_out(heights.iter().copied(), what).expect("its own messages");
        let mut more = 0;
        for (less, whole) in blocks(&state).iter().zip(&whole) {
            let closed =
                |block: &RawBlock| closed_heights(&block.receipts, Network::Emulator).expect("is read");
            let evm_height = state.ledger.evm_blocks.get(&whole.facts.height.get()).map(|block| block.height);
            assert_eq!((closed(less), closed(whole)), (Vec::new(), Vec::from_iter(evm_height)));
            match held(less, whole.clone()) {
                Again::Same => assert_eq!(less, whole),
                Again::More { block, events } => {
                    assert_eq!((&*block, events), (whole, whole.facts.log_count - less.facts.log_count));
                    more += 1;
                }
                Again::Other(why) => panic!("{why}"),
            }
        }
        assert!(more > 20, "{more}");
        state.chain.leave_nothing_out();
        assert_eq!(blocks(&state), whole);
    }
}
