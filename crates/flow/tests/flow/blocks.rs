//! Blocks put together from a node's answers: whole, or refused.

use bytes::Bytes;
use cairn_core::{BlockLayout, ErrorKind, StoredBlock, TxStatus};
use cairn_flow::block::check_network;
use cairn_flow::evm_blocks::{EvmBlocks, evm_blocks};
use cairn_flow::id::transaction_id;
use cairn_flow::pair::named;
use cairn_flow::proto::{
    BlockHeader, Chunk, Event, ServiceEvent, Transaction, TransactionResult, TransactionStatus,
};
use cairn_flow::terms::{evm_term, terms_of_receipts};
use cairn_flow::{BlockParts, Checks, DecodedBlock, FlowError, FlowLayout, Network, assemble, check_stored};
use cairn_flow_node::draft::system;
use cairn_flow_node::{Behaviour, Draft, Generator, GeneratorOptions};
use proptest::prelude::*;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

#[test]
fn a_block_is_put_together_and_read_back() {
    let mut draft = Draft::new(20, &[2, 1], 3);
    draft.transactions[1].1.status_code = 1;
    draft.transactions[1].1.error_message = "[Error Code: 1101] cadence runtime error".into();
    let raw = assemble(&draft.parts()).expect("is whole");
    assert_eq!((raw.facts.height.get(), raw.facts.tx_count, raw.facts.log_count), (20, 4, 12));
    assert_eq!(raw.facts.timestamp_ms, 1_770_000_000_123);
    assert_eq!(raw.transactions[1].status, TxStatus::Failed);
    assert_eq!(raw.transactions[0].sender.as_ref(), [0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(Checks::from_bits_truncate(raw.facts.unverified), Checks::BLOCK_ID | Checks::EVENTS);
    assert_eq!(raw.log_terms.len(), 3);

    let block = DecodedBlock::decode(&StoredBlock::from(&raw)).expect("is read");
    assert_eq!(block.transactions.len(), 4);
    for (index, tx) in block.transactions.iter().enumerate() {
        assert_eq!(tx.id, raw.transactions[index].id);
        assert_eq!(tx.is_system, index == 3);
        assert_eq!(tx.transaction, draft.transactions[index].0);
        assert_eq!(tx.events.iter().map(|event| event.index).collect::<Vec<_>>(), [0, 1, 2]);
    }
    assert!(block.execution_result.is_some());

    let slices = FlowLayout::new(Network::Emulator).slices(&raw).expect("can be cut");
    assert_eq!((slices.transactions.len(), slices.events.len()), (4, 12));
    for (index, slice) in slices.transactions.iter().enumerate() {
        assert_eq!(raw.body[slice.body.clone()], draft.transactions[index].0.encode_to_vec());
        let events = slices.events.iter().filter(|event| event.tx_index as usize == index);
        for (event, whole) in events.zip(&draft.transactions[index].1.events) {
            assert_eq!(raw.receipts[event.range.clone()], whole.encode_to_vec());
        }
    }
}

#[test]
fn what_says_something_of_the_node_is_left_out_and_unknown_fields_are_kept() {
    let parts = Draft::new(20, &[1], 1).parts();
    let plain = assemble(&parts).expect("is whole");
    let mut other = parts.clone();
    let mut result = parts.results[0].to_vec();
    encode_key(9, WireType::LengthDelimited, &mut result);
    result.extend([2, 0x10, 99]);
    other.results[0] = result.clone().into();
    assert_eq!(assemble(&other).expect("is whole"), plain, "two nodes give the same block");
    encode_key(77, WireType::Varint, &mut result);
    encode_varint(5, &mut result);
    other.results[0] = result.into();
    let kept = assemble(&other).expect("is whole");
    assert_eq!(kept.receipts.len(), plain.receipts.len() + 3);
}

#[test]
fn the_system_transaction_has_the_same_id_in_every_block() {
    let ids = [20, 21].map(|height| {
        let raw = assemble(&Draft::new(height, &[1], 0).parts()).expect("is whole");
        raw.transactions.last().expect("there is one").id
    });
    assert_eq!(ids[0], ids[1]);
    let mut draft = Draft::new(20, &[1], 0);
    let last = draft.transactions.last_mut().expect("there is one");
    last.1.transaction_id = Bytes::from(vec![5; 32]);
    let raw = assemble(&draft.parts()).expect("the node's word is taken, and marked");
    assert!(Checks::from_bits_truncate(raw.facts.unverified).contains(Checks::SYSTEM_ID));
    assert_eq!(raw.transactions.last().expect("there is one").id.as_bytes(), &[5; 32]);
}

fn refused(change: impl FnOnce(&mut Draft)) -> FlowError {
    let mut draft = Draft::new(20, &[2, 1], 2);
    change(&mut draft);
    assemble(&draft.parts()).expect_err("is refused")
}

#[test]
fn missing_results_are_an_error_and_never_empty_ones() {
    let whole = Draft::new(20, &[2, 1], 1).parts();
    for user in 0..3 {
        let mut parts = whole.clone();
        parts.results.remove(user);
        assemble(&parts).expect_err("is refused");
    }
    // Whether a block may be without its system transaction is for the source to say: it knows roots and old nodes.
    let mut parts = whole.clone();
    parts.results.pop();
    let raw = assemble(&parts).expect("is marked");
    assert!(Checks::from_bits_truncate(raw.facts.unverified).contains(Checks::SYSTEM_MISSING));
    assert_eq!(raw.facts.tx_count, 3);
    for status in [TransactionStatus::Unknown, TransactionStatus::Pending, TransactionStatus::Executed] {
        let error = refused(|draft| draft.transactions[1].1.status = status as i32);
        assert_eq!(error.kind(), ErrorKind::Wait, "{error}");
    }
}

/// Takes transaction `index` out of a block as a node does that never heard of it: what follows moves up.
fn cut(draft: &mut Draft, index: usize) {
    draft.transactions.remove(index);
    for (_, result) in &mut draft.transactions[index..] {
        result.events.iter_mut().for_each(|event| event.transaction_index -= 1);
    }
}

#[test]
fn a_block_cut_short_is_noticed_wherever_it_is_cut() {
    // A whole collection; one transaction of one, the first or the last.
    for index in [2, 0, 1] {
        let error = refused(|draft| cut(draft, index));
        assert_eq!(error.kind(), ErrorKind::Wait, "{error}");
        assert!(error.to_string().contains("collection"), "{error}");
    }
    // One of the system's own, of which the execution result counts two.
    let error = refused(|draft| {
        draft.execution_result.as_mut().expect("there is one").chunks[2].number_of_transactions = 2;
    });
    assert!(matches!(error, FlowError::Incomplete { .. }), "{error}");
    // Events: the first, one between, and all of a chunk that has some.
    for cut in [0, 1] {
        let error = refused(|draft| {
            let events = &mut draft.transactions[0].1.events;
            events.push(events[1].clone());
            events[2].event_index = 2;
            events.remove(cut);
        });
        assert!(matches!(error, FlowError::Incomplete { .. }), "{error}");
        assert!(error.to_string().contains(&format!("none {cut}")), "{error}");
    }
    let error = refused(|draft| {
        draft.execution_result.as_mut().expect("there is one").chunks[1].event_collection =
            vec![9; 32].into();
        draft.transactions[2].1.events.clear();
    });
    assert!(error.to_string().contains("chunk 1 has events"), "{error}");
}

/// The hash that a chunk without events has.
fn no_events() -> Bytes {
    hex::decode("0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8").expect("is hex").into()
}

#[test]
fn events_that_nothing_shows_to_be_all_are_marked() {
    let marked = |draft: &Draft| {
        let raw = assemble(&draft.parts()).expect("is whole");
        Checks::from_bits_truncate(raw.facts.unverified).contains(Checks::EVENTS)
    };
    // A transaction's last event, and all of one transaction where the chunk has others: nothing in the block says that they are missing.
    for cut in [0, 1] {
        let mut draft = Draft::new(20, &[2, 1], 2);
        draft.transactions[0].1.events.truncate(cut);
        assert!(marked(&draft), "{cut}");
    }
    // Where no chunk has events, that is shown.
    let mut draft = Draft::new(20, &[2, 1], 0);
    assert!(marked(&draft), "the chunks don't say");
    draft.execution_result.iter_mut().flat_map(|result| &mut result.chunks).for_each(|chunk| {
        chunk.event_collection = no_events();
    });
    assert!(!marked(&draft));
    draft.execution_result.as_mut().expect("there is one").chunks[0].event_collection = Bytes::new();
    assert!(marked(&draft), "one doesn't say");
    draft.execution_result = None;
    assert!(marked(&draft));
    // A spork's root executes nothing, so that there are none.
    assert!(!marked(&Draft::root(20)));
}

#[test]
fn an_execution_result_of_other_chunks_is_of_another_block() {
    let chunks = |change: fn(&mut Vec<Chunk>)| {
        let mut draft = Draft::new(20, &[2, 1], 2);
        change(&mut draft.execution_result.as_mut().expect("there is one").chunks);
        assemble(&draft.parts())
    };
    type Change = (&'static str, fn(&mut Vec<Chunk>));
    let changes: [Change; 4] = [
        ("2 chunks", |chunks| drop(chunks.pop())),
        ("4 chunks", |chunks| chunks.push(Chunk::default())),
        ("chunk 0 has 1 transactions, 2 came", |chunks| chunks[0].number_of_transactions = 1),
        ("0 chunks", Vec::clear),
    ];
    for (words, change) in changes {
        let error = chunks(change).expect_err(words);
        assert!(
            matches!(error, FlowError::Inconsistent { .. }) && error.to_string().contains(words),
            "{error}"
        );
    }
    // Old nodes don't count transactions.
    let uncounted = chunks(|chunks| chunks.iter_mut().for_each(|chunk| chunk.number_of_transactions = 0));
    assert!(uncounted.is_ok());
    // Of a root, and of a node that gives no system transaction, less can be said.
    let mut draft = Draft::new(20, &[2, 1], 2);
    draft.transactions.pop();
    draft.execution_result.as_mut().expect("there is one").chunks.pop();
    assert!(assemble(&draft.parts()).is_ok());
    for count in [0, 1, 2] {
        let mut root = Draft::root(20);
        root.execution_result.as_mut().expect("there is one").chunks = vec![Chunk::default(); count];
        assert!(assemble(&root.parts()).is_ok(), "{count}");
    }
}

#[test]
fn a_block_without_a_time_is_malformed_and_not_of_1970() {
    let error = refused(|draft| draft.block.timestamp = None);
    assert!(
        matches!(error, FlowError::Malformed { .. }) && error.to_string().contains("timestamp"),
        "{error}"
    );
}

#[test]
fn a_header_says_its_network_where_it_says_any() {
    let of = |chain_id: &str| {
        check_network(&BlockHeader { chain_id: chain_id.into(), ..BlockHeader::default() }, Network::Testnet)
    };
    assert!(of("").is_ok() && of("flow-testnet").is_ok());
    for other in ["flow-mainnet", "flow-elsewhere"] {
        let error = of(other).expect_err("is another's");
        assert!(
            matches!(error, FlowError::Inconsistent { .. }) && error.to_string().contains(other),
            "{error}"
        );
    }
}

#[test]
fn system_transactions_that_no_result_names_are_left_out() {
    // A spork's root executes nothing.
    let raw = assemble(&Draft::root(20).parts()).expect("is whole");
    assert_eq!((raw.facts.tx_count, raw.facts.log_count), (0, 0));
    assert!(Checks::from_bits_truncate(raw.facts.unverified).contains(Checks::SYSTEM_MISSING));
    // A block before the scheduler, from a node that knows one.
    let whole = Draft::new(20, &[2, 1], 2);
    let mut draft = whole.clone();
    draft.not_executed = vec![Transaction { script: "transaction { /* process */ }".into(), ..system() }];
    assert_eq!(draft.parts().transactions.len(), 5);
    let raw = assemble(&draft.parts()).expect("is whole");
    assert_eq!(raw, assemble(&whole.parts()).expect("is whole"));
    // The one that closes the block is not left out while another is there.
    let mut parts = draft.parts();
    let mut process = TransactionResult::decode(&*parts.results[3]).expect("is read");
    process.transaction_id = Bytes::copy_from_slice(transaction_id(&draft.not_executed[0]).as_bytes());
    process.events.clear();
    parts.results[3] = process.encode_to_vec().into();
    assert!(matches!(assemble(&parts), Err(FlowError::Incomplete { .. })));
}

#[test]
fn generated_blocks_are_whole() {
    let generator = Generator::new(GeneratorOptions::new(5), Behaviour::default());
    generator.grow(200);
    let state = generator.state();
    let state = state.lock().expect("not poisoned");
    let mut whole = 0;
    for block in state.chain.blocks() {
        let parts = BlockParts {
            block: block.block.clone(),
            transactions: block.transactions.iter().map(|tx| tx.transaction.clone()).collect(),
            results: block.transactions.iter().map(|tx| tx.result.clone()).collect(),
            execution_result: block.execution_result.clone(),
        };
        let raw = assemble(&parts).expect("is whole");
        assert_eq!(Checks::from_bits_truncate(raw.facts.unverified), Checks::BLOCK_ID | Checks::EVENTS);
        match evm_blocks(&raw.receipts, state.chain.network).expect("is read") {
            EvmBlocks::Contradicted(message) => panic!("{}: {message}", raw.facts.height),
            EvmBlocks::Whole => whole += 1,
            EvmBlocks::Unsaid => {}
        }
    }
    assert!(whole > 10, "{whole}");
}

/// What the EVM side of a block says: transactions from place `first` on came, and a block is closed of others.
fn evm_side(first: u16, came: &[u8], closed: &[u8], change: impl FnOnce(&mut Draft)) -> EvmBlocks {
    let mut draft = Draft::new(20, &[2, 1], 2);
    draft.evm_block(7, first, came, closed);
    change(&mut draft);
    let raw = assemble(&draft.parts()).expect("is whole");
    evm_blocks(&raw.receipts, Network::Emulator).expect("is read")
}

#[test]
fn f05_an_evm_block_of_other_transactions_than_came_contradicts_itself() {
    let as_is = |_: &mut Draft| {};
    assert_eq!(evm_side(0, &[1, 2, 3], &[1, 2, 3], as_is), EvmBlocks::Whole);
    for (came, words) in [
        (&[1, 2][..], "used 63006 gas, the 2 transactions that came 42003"),
        // The same gas, in another order.
        (&[2, 1, 3][..], "the 3 that came have another"),
    ] {
        match evm_side(0, came, &[1, 2, 3], as_is) {
            EvmBlocks::Contradicted(message) => assert!(message.contains(words), "{message}"),
            other => panic!("{came:?}: {other:?}"),
        }
    }
    // One that came twice counts once.
    assert_eq!(evm_side(0, &[1, 2, 2], &[1, 2], as_is), EvmBlocks::Whole);
}

#[test]
fn f04_an_evm_block_that_needs_no_transactions_here_contradicts_nothing() {
    let as_is = |_: &mut Draft| {};
    // Its first transactions, or all of them, are in an earlier Flow block.
    for (first, came) in [(1, &[2, 3][..]), (0, &[][..])] {
        assert_eq!(evm_side(first, came, &[1, 2, 3], as_is), EvmBlocks::Unsaid, "{came:?}");
    }
    assert_eq!(evm_side(0, &[], &[], as_is), EvmBlocks::Unsaid, "one without any");
    // It is closed in a later one.
    let open = |draft: &mut Draft| drop(draft.transactions[3].1.events.pop());
    assert_eq!(evm_side(0, &[1, 2], &[1, 2], open), EvmBlocks::Unsaid);
    // What can't be read says nothing, nor does a contract that anybody may deploy.
    let unreadable = |draft: &mut Draft| draft.transactions[0].1.events[2].payload = "{".into();
    assert_eq!(evm_side(0, &[1, 2], &[1], unreadable), EvmBlocks::Unsaid);
    let strangers = |draft: &mut Draft| {
        let closed = draft.transactions[3].1.events.last_mut().expect("is there");
        closed.r#type = "A.0000000000000009.EVM.BlockExecuted".into();
    };
    assert_eq!(evm_side(0, &[1, 2], &[1], strangers), EvmBlocks::Unsaid);
}

#[test]
fn f03_zeros_for_an_id_are_no_id() {
    let whole = assemble(&Draft::new(20, &[2], 1).parts()).expect("is whole");
    let mut draft = Draft::new(20, &[2], 1);
    for (_, result) in &mut draft.transactions {
        result.transaction_id = vec![0; 32].into();
    }
    let raw = assemble(&draft.parts()).expect("is taken at the order's word");
    assert_eq!(raw.transactions, whole.transactions);
    let block = DecodedBlock::decode(&StoredBlock::from(&raw)).expect("is read");
    assert_eq!(block.transactions[0].id, raw.transactions[0].id);
    // Named by the collections they are in, they are the very bytes of the bulk call.
    let mut parts = draft.parts();
    for (result, (tx, _)) in parts.results.iter_mut().zip(&draft.transactions).take(2) {
        let mut nameless = TransactionResult::decode(&**result).expect("is read");
        nameless.collection_id = vec![0; 32].into();
        let nameless = nameless.encode_to_vec().into();
        let collection = &draft.block.collection_guarantees[0].collection_id;
        *result = named(&nameless, transaction_id(tx), collection, None).expect("is read");
    }
    assert_eq!(parts.results[..2], Draft::new(20, &[2], 1).parts().results[..2]);
}

#[test]
fn answers_of_another_block_are_refused() {
    let errors = [
        refused(|draft| draft.transactions[0].1.block_id = Bytes::from(vec![1; 32])),
        refused(|draft| draft.transactions[0].1.block_height = 21),
        refused(|draft| draft.transactions[0].1.transaction_id = Bytes::from(vec![1; 32])),
        refused(|draft| draft.transactions[0].0.gas_limit += 1),
        refused(|draft| draft.transactions[0].1.events[0].transaction_id = Bytes::from(vec![1; 32])),
        refused(|draft| draft.transactions[0].1.events[0].transaction_index = 1),
        refused(|draft| draft.transactions.swap(0, 2)),
        refused(|draft| draft.transactions.rotate_right(1)),
        refused(|draft| draft.block.id = Bytes::from(vec![1; 31])),
        refused(|draft| {
            draft.execution_result.as_mut().expect("there is one").block_id = Bytes::from(vec![1; 32])
        }),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        assert!(error.to_string().contains("20"), "{error}");
    }
}

#[test]
fn f05_events_out_of_order_are_sorted_and_doubles_refused() {
    let whole = assemble(&Draft::new(20, &[2, 1], 3).parts()).expect("is whole");
    let mut draft = Draft::new(20, &[2, 1], 3);
    draft.transactions[0].1.events.rotate_left(1);
    draft.transactions[3].1.events.reverse();
    assert_eq!(assemble(&draft.parts()).expect("is whole"), whole, "the same bytes, whichever way they came");
    let error = refused(|draft| draft.transactions[0].1.events[1].event_index = 0);
    assert!(error.to_string().contains("events"), "{error}");
}

#[test]
fn an_old_node_that_names_less_is_taken_at_the_orders_word() {
    let mut draft = Draft::new(20, &[2], 1);
    draft.transactions.pop();
    draft.execution_result = None;
    for (_, result) in &mut draft.transactions {
        (result.transaction_id, result.block_id, result.block_height) = (Bytes::new(), Bytes::new(), 0);
    }
    let raw = assemble(&draft.parts()).expect("is taken");
    let unverified = Checks::from_bits_truncate(raw.facts.unverified);
    assert_eq!(
        unverified,
        Checks::BLOCK_ID | Checks::SYSTEM_MISSING | Checks::EXECUTION_RESULT | Checks::EVENTS
    );
    let block = DecodedBlock::decode(&StoredBlock::from(&raw)).expect("is read");
    assert_eq!(block.transactions[0].id, raw.transactions[0].id);
}

proptest! {
    #[test]
    fn damaged_answers_are_refused_or_whole(part in 0usize..7, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut parts = Draft::new(20, &[2], 2).parts();
        let damaged = match part {
            0 => &mut parts.block,
            1..4 => &mut parts.transactions[part - 1],
            _ => &mut parts.results[part - 4],
        };
        let mut bytes = damaged.to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        *damaged = bytes.into();
        if let Ok(raw) = assemble(&parts) {
            let _ = DecodedBlock::decode(&StoredBlock::from(&raw));
            let _ = FlowLayout::new(Network::Emulator).slices(&raw);
        }
    }
}

#[test]
fn a_stored_block_is_held_against_itself() {
    let raw = assemble(&Draft::new(20, &[2, 1], 3).parts()).expect("is whole");
    assert_eq!(check_stored(&StoredBlock::from(&raw)).expect("holds"), raw);
    // One of before the mark of events is as it was.
    let mut older = raw.clone();
    older.facts.unverified = Checks::BLOCK_ID.bits();
    assert_eq!(check_stored(&StoredBlock::from(&older)).expect("holds"), older);
    let mut contradicted = raw.clone();
    contradicted.facts.unverified |= Checks::EVM_BLOCK.bits();
    assert_eq!(check_stored(&StoredBlock::from(&contradicted)).expect("holds"), contradicted);
    older.facts.unverified = Checks::EVENTS.bits();
    assert!(check_stored(&StoredBlock::from(&older)).is_err(), "no other mark may be gone");
    assert_eq!(terms_of_receipts(&raw.receipts).expect("is read"), raw.log_terms);
    type Damage = (&'static str, fn(&mut StoredBlock));
    let damages: [Damage; 5] = [
        ("a transaction that is gone", |block| block.transactions.truncate(1)),
        ("another count", |block| block.facts.log_count += 1),
        ("another sender", |block| block.transactions[0].sender = Bytes::from_static(&[1; 8])),
        ("receipts that are gone", |block| block.receipts = Bytes::new()),
        ("no execution result", |block| block.extras = Bytes::new()),
    ];
    for (what, damage) in damages {
        let mut block = StoredBlock::from(&raw);
        damage(&mut block);
        assert!(check_stored(&block).is_err(), "{what}");
    }
}

#[test]
fn the_hash_of_an_evm_transaction_is_a_term() {
    let hash = [0xab; 32];
    let bytes = vec![r#"{"type":"UInt8","value":"171"}"#; 32].join(",");
    let mut draft = Draft::new(20, &[1], 2);
    let event = &mut draft.transactions[0].1.events[1];
    event.r#type = "A.f8d6e0586b0a20c7.EVM.TransactionExecuted".into();
    event.payload = format!(
        r#"{{"type":"Event","value":{{"id":"x","fields":[{{"value":{{"type":"Array","value":[{bytes}]}},"name":"hash"}}]}}}}"#
    )
    .into();
    let raw = assemble(&draft.parts()).expect("is whole");
    assert!(raw.log_terms.contains(&evm_term(&hash)));
    // And its lookup, though nothing else of the event can be read.
    let lookups = FlowLayout::new(Network::Emulator).slices(&raw).expect("can be cut").evm_lookups;
    assert_eq!(lookups.iter().map(|lookup| lookup.evm_hash).collect::<Vec<_>>(), [hash]);
    // One that can't be read has none, and is kept.
    draft.transactions[0].1.events[1].payload = "{".into();
    assert!(!assemble(&draft.parts()).expect("is whole").log_terms.contains(&evm_term(&hash)));
}

/// The first transaction has three events, of which the first is a service event, and an index is missing behind it; the execution result has `count` service events.
fn with_service_event(count: usize) -> Draft {
    let mut draft = Draft::new(20, &[1], 3);
    let events = &mut draft.transactions[0].1.events;
    events[0].r#type = "A.f8d6e0586b0a20c7.NodeVersionBeacon.ProtocolStateVersionUpgrade".into();
    events[1].event_index = 2;
    events[2].event_index = 3;
    draft.execution_result.as_mut().expect("there is one").service_events =
        vec![ServiceEvent::default(); count];
    draft
}

/// flow-go #3393: transaction 49069b2c87d4734e1510e120b2084a083cf24a0e54de595281d4e61e4c4d2719 on mainnet has events 0, 2 and so on.
#[test]
fn f05_an_index_that_is_missing_behind_a_service_event_is_no_gap() {
    let raw = assemble(&with_service_event(1).parts()).expect("is whole");
    let block = DecodedBlock::decode(&StoredBlock::from(&raw)).expect("is read");
    assert_eq!(block.transactions[0].events.iter().map(|event| event.index).collect::<Vec<_>>(), [0, 2, 3]);
    assert_eq!(check_stored(&StoredBlock::from(&raw)), Ok(raw.clone()));
    let slices = FlowLayout::new(Network::Emulator).slices(&raw).expect("can be cut");
    let indexes = slices.events.iter().map(|event| event.index).collect::<Vec<_>>();
    assert_eq!(indexes, [0, 2, 3, 0, 1, 2]);
    // One that ends its transaction shows no gap.
    let mut two = with_service_event(2);
    two.transactions[1].1.events[2].r#type = "A.f8d6e0586b0a20c7.FlowEpoch.EpochCommit".into();
    assemble(&two.parts()).expect("is whole");
}

#[test]
fn f05_any_other_gap_is_refused() {
    // The execution result has none, has more than came, or isn't there.
    for count in [0, 2] {
        let error = assemble(&with_service_event(count).parts()).expect_err("is refused");
        assert!(error.to_string().contains(&format!("has {count}")), "{error}");
    }
    let mut unknown = with_service_event(1);
    unknown.execution_result = None;
    let error = assemble(&unknown.parts()).expect_err("is refused");
    assert!(matches!(error, FlowError::Incomplete { .. }), "{error}");
    assert!(error.to_string().contains("no execution result"), "{error}");
    let spoil: [fn(&mut Vec<Event>); 4] = [
        |events| events[1].event_index = 3,
        |events| events[2].event_index = 4,
        |events| events[0].r#type = "A.f8d6e0586b0a20c7.FlowEpoch.EpochStart".into(),
        |events| events.iter_mut().for_each(|event| event.event_index += 1),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut draft = with_service_event(1);
        spoil(&mut draft.transactions[0].1.events);
        let error = assemble(&draft.parts()).expect_err("is refused");
        assert!(matches!(error, FlowError::Incomplete { .. }), "{number}: {error}");
    }
}
