//! Blocks whose bulk calls fail, find nothing, or don't agree: what is asked for piece by piece.

use tonic::Code;

use super::*;

/// Blocks, and as what they are taken.
fn drafts() -> (BTreeMap<u64, Draft>, Vec<cairn_core::RawBlock>) {
    let blocks = linked_blocks(20..=60, &[2, 1], 1);
    let whole = blocks.values().map(|draft| cairn_flow::assemble(&draft.parts()).expect("is whole"));
    let whole = whole.collect();
    (blocks, whole)
}

fn failing(call: &'static str, code: Code) -> Behaviour {
    Behaviour { failing: Some((call, code)), ..Behaviour::default() }
}

const BULK: [&str; 2] = ["GetTransactionsByBlockID", "GetTransactionResultsByBlockID"];

#[tokio::test]
async fn f03_a_block_sealed_long_ago_of_which_a_bulk_call_finds_nothing_is_asked_for_piece_by_piece() {
    let (blocks, whole) = drafts();
    for bulk in BULK {
        let counters = Counters::default();
        let _counting = metrics::set_default_local_recorder(&counters);
        let node = behaving(blocks.clone(), failing(bulk, Code::NotFound)).await;
        let source = one(&node).await;
        assert_eq!(source.blocks(range(20, 22)).await.expect("answers"), whole[..3], "{bulk}");
        let endpoint = node.url.trim_start_matches("http://");
        let fallbacks = format!("cairn_source_bulk_fallbacks_total{{endpoint={endpoint}}}");
        assert_eq!(counters.counted(&fallbacks), 3);
        // Near the sealed head a node may only be behind its own index.
        node.take_counts();
        let error = source.blocks(range(41, 41)).await.expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Retry);
        let asked = node.take_counts().asked;
        assert!(!asked.contains_key("GetCollectionByID"), "{asked:?}");
        assert_eq!(source.blocks(range(40, 40)).await.expect("answers"), whole[20..=20]);
    }
}

#[tokio::test]
async fn f03_the_last_blocks_of_a_spork_that_is_over_are_asked_for_piece_by_piece_too() {
    let (blocks, whole) = drafts();
    let over = behaving(blocks, failing(BULK[1], Code::NotFound)).await;
    let live = serving(linked_blocks(61..=70, &[1], 1)).await;
    let nodes = [(&over, None, Some(61)), (&live, None, None)];
    let source = FlowSource::connect(config(&nodes)).await.expect("connects");
    assert_eq!(source.blocks(range(60, 60)).await.expect("answers"), whole[40..]);
}

#[tokio::test]
async fn f03_a_bulk_call_that_fails_inside_is_asked_for_piece_by_piece() {
    let (blocks, whole) = drafts();
    for bulk in BULK {
        let node = behaving(blocks.clone(), failing(bulk, Code::Internal)).await;
        // Wherever in the chain: that it fails is no sign of being behind.
        let blocks = one(&node).await.blocks(range(58, 60)).await.expect("answers");
        assert_eq!(blocks, whole[38..], "{bulk}");
    }
    // So is one that takes longer than anybody waits: the node says so, or says nothing.
    for bulk in BULK {
        let node = behaving(blocks.clone(), failing(bulk, Code::DeadlineExceeded)).await;
        assert_eq!(one(&node).await.blocks(range(20, 20)).await.expect("answers"), whole[..1], "{bulk}");
        let hanging = Behaviour { hanging: Some(bulk), ..Behaviour::default() };
        let node = behaving(blocks.clone(), hanging).await;
        let config = FlowConfig { request_timeout_ms: 1_000, ..config(&[(&node, None, None)]) };
        let source = FlowSource::connect(config).await.expect("connects");
        assert_eq!(source.blocks(range(20, 20)).await.expect("answers"), whole[..1], "{bulk}");
    }
    // Other failures are tried again as they are.
    let node = behaving(blocks, failing(BULK[1], Code::Unavailable)).await;
    let error = one(&node).await.blocks(range(20, 20)).await.expect_err("is refused");
    assert_eq!((error.kind(), node.asked("GetCollectionByID")), (ErrorKind::Retry, 0));
}

#[tokio::test]
async fn f03_a_result_that_is_not_found_by_its_index_is_asked_for_by_its_id() {
    let (blocks, whole) = drafts();
    let by_index = "GetTransactionResultByIndex";
    let behaviour = Behaviour { is_bulk_broken: true, ..failing(by_index, Code::NotFound) };
    let node = behaving(blocks.clone(), behaviour).await;
    assert_eq!(one(&node).await.blocks(range(20, 21)).await.expect("answers"), whole[..2]);
    assert_eq!(node.asked("GetTransactionResult"), 6, "users' alone");
    let behaviour = Behaviour {
        is_bulk_broken: true,
        is_system_refused_by_index: true,
        ..failing("GetSystemTransactionResult", Code::NotFound)
    };
    let node = behaving(blocks.clone(), behaviour).await;
    // In the spork's root, 20, it needn't have been executed.
    let error = one(&node).await.blocks(range(21, 21)).await.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("the result of the system transaction of block 21"), "{error}");
    // A block that a node has in no way is an error that is tried again, not a shorter block.
    let behaviour = Behaviour { is_bulk_broken: true, ..failing("GetCollectionByID", Code::NotFound) };
    let node = behaving(blocks, behaviour).await;
    let error = one(&node).await.blocks(range(20, 20)).await.expect_err("is refused");
    assert!(matches!(error, SourceError::Inconsistent { height: Height(20), .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
}

#[tokio::test]
async fn transactions_of_which_only_results_came_are_asked_for_by_their_ids() {
    let (mut blocks, mut whole) = drafts();
    // In block 21 two of the system's are executed.
    let draft = blocks.get_mut(&21).expect("is there");
    let (_, closing) = draft.transactions.last().expect("is there").clone();
    let id = Bytes::copy_from_slice(transaction_id(&process()).as_bytes());
    let mut executed = cairn_flow::proto::TransactionResult { transaction_id: id, ..closing };
    executed.events.clear();
    draft.transactions.insert(3, (process(), executed));
    draft.transactions[4].1.events[0].transaction_index = 4;
    draft.execution_result.as_mut().expect("is there").chunks[2].number_of_transactions = 2;
    whole[1] = cairn_flow::assemble(&draft.parts()).expect("is whole");
    for lacking in 0..4 {
        let behaviour = Behaviour { bulk_lacks: Some(lacking), ..Behaviour::default() };
        let node = behaving(blocks.clone(), behaviour).await;
        let taken = one(&node).await.blocks(range(20, 25)).await.expect("answers");
        assert_eq!(taken, whole[..6], "the last but {lacking} is not there");
        assert_eq!(node.asked("GetTransaction"), 6, "one of each block");
    }
    // Where nobody has it, the block is not taken without.
    let behaviour = Behaviour { bulk_lacks: Some(0), is_system_unstored: true, ..Behaviour::default() };
    let node = behaving(blocks, behaviour).await;
    let error = one(&node).await.blocks(range(20, 22)).await.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Retry);
    let id = transaction_id(&system()).to_string();
    assert!(error.to_string().contains(&id) && error.to_string().contains("block 20"), "{error}");
}

#[tokio::test]
async fn f03_a_node_without_a_call_for_the_system_transaction_has_it_by_its_id_or_in_the_block_before() {
    let mut blocks = linked_blocks(19..=20, &[1, 1], 1);
    let large = blocks.get_mut(&20).expect("is there");
    for tx in 0..2 {
        let (transaction, result) = &mut large.transactions[tx];
        transaction.arguments = vec![Bytes::from(vec![b' '; 1 << 20])];
        let id = transaction_id(transaction);
        result.transaction_id = Bytes::copy_from_slice(id.as_bytes());
        result.events[0].transaction_id = result.transaction_id.clone();
    }
    large.name_collections();
    let whole = cairn_flow::assemble(&large.parts()).expect("is whole");
    for is_bulk_broken in [false, true] {
        for is_system_unstored in [false, true] {
            let behaviour = Behaviour {
                is_bulk_broken,
                is_system_unstored,
                max_answer_bytes: (1 << 20) + 4_096,
                ..failing("GetSystemTransaction", Code::Unimplemented)
            };
            let node = behaving(blocks.clone(), behaviour).await;
            let taken = one(&node).await.blocks(range(20, 20)).await.expect("answers");
            assert_eq!(taken, std::slice::from_ref(&whole), "{is_bulk_broken} {is_system_unstored}");
            let asked = node.take_counts().asked;
            assert_eq!(asked["GetSystemTransaction"], 1);
            assert_eq!(asked["GetTransactionsByBlockID"], if is_system_unstored { 2 } else { 1 });
        }
    }
}

/// The blocks with two of the system's transactions in block 21, and as what they are taken. The closing one has no events, nothing says how many ran.
fn with_two_of_the_systems() -> (BTreeMap<u64, Draft>, Vec<cairn_core::RawBlock>) {
    let (mut blocks, _) = drafts();
    let draft = blocks.get_mut(&21).expect("is there");
    let (_, closing) = draft.transactions.last_mut().expect("is there");
    closing.events.clear();
    let id = Bytes::copy_from_slice(transaction_id(&process()).as_bytes());
    let executed = cairn_flow::proto::TransactionResult { transaction_id: id, ..closing.clone() };
    draft.transactions.insert(3, (process(), executed));
    draft.execution_result = None;
    let whole = blocks.values().map(|draft| cairn_flow::assemble(&draft.parts()).expect("is whole"));
    let whole = whole.collect();
    (blocks, whole)
}

/// The node's block 21 is refused by name, those beside it are taken, and another node is asked.
async fn is_refused_and_asked_of_another(
    behaviour: Behaviour,
    blocks: BTreeMap<u64, Draft>,
    whole: &[cairn_core::RawBlock],
    words: &str,
) {
    let node = behaving(blocks.clone(), behaviour).await;
    let source = one(&node).await;
    let error = source.blocks(range(21, 21)).await.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Retry);
    let told = error.to_string();
    let endpoint = node.url.trim_start_matches("http://");
    assert!(told.contains(words) && told.contains(endpoint), "{told}");
    let other = serving(blocks).await;
    let nodes = [(&node, None, None), (&other, None, None)];
    let source = FlowSource::connect(config(&nodes)).await.expect("connects");
    for _ in 0..4 {
        assert_eq!(source.blocks(range(20, 22)).await.expect("answers"), whole[..3]);
    }
}

#[tokio::test]
async fn f03_a_system_transaction_whose_result_is_not_to_be_had_makes_no_shorter_block() {
    let (blocks, whole) = with_two_of_the_systems();
    let words = format!("it names system transaction {} in block 21", transaction_id(&process()));
    // By its id alone there would be a way to the result of the scheduler's transaction.
    let hidden = Behaviour { is_bulk_broken: true, ..failing("GetTransactionResult", Code::NotFound) };
    is_refused_and_asked_of_another(hidden.clone(), blocks.clone(), &whole, &words).await;
    // A node that has nothing of the system's by index shows nothing either.
    let silent = Behaviour { is_system_refused_by_index: true, ..hidden.clone() };
    is_refused_and_asked_of_another(silent, blocks.clone(), &whole, &words).await;
    // A failure at that is one.
    let node = behaving(blocks.clone(), hidden.clone()).await;
    node.state().behaviour.failing = Some(("GetTransactionResult", Code::Unavailable));
    one(&node).await.blocks(range(21, 21)).await.expect_err("is refused");

    // What counts them says it, and so does the place of the closing one's events.
    let mut counted = blocks.clone();
    counted.get_mut(&21).expect("is there").execution_result = drafts().0[&21].execution_result.clone();
    let result = counted.get_mut(&21).expect("is there").execution_result.as_mut().expect("is there");
    result.chunks[2].number_of_transactions = 2;
    let whole_counted = cairn_flow::assemble(&counted[&21].parts()).expect("is whole");
    let whole = [whole[0].clone(), whole_counted, whole[2].clone()];
    is_refused_and_asked_of_another(hidden.clone(), counted, &whole, "has 2 transactions, 1 came").await;
    let mut placed = blocks;
    let (_, closing) = placed.get_mut(&21).expect("is there").transactions.last_mut().expect("is there");
    closing.events = drafts().0[&21].transactions[3].1.events.clone();
    closing.events[0].transaction_index = 4;
    let whole_placed = cairn_flow::assemble(&placed[&21].parts()).expect("is whole");
    let whole = [whole[0].clone(), whole_placed, whole[2].clone()];
    is_refused_and_asked_of_another(hidden, placed, &whole, "of transaction 4").await;
}

#[tokio::test]
async fn f03_a_system_transaction_that_was_not_executed_is_left_out_where_something_shows_it() {
    // The node names the scheduler's transaction in block 21, and nothing counts what ran.
    let (mut blocks, _) = drafts();
    let draft = blocks.get_mut(&21).expect("is there");
    draft.not_executed = vec![process()];
    draft.execution_result = None;
    let broken = Behaviour { is_bulk_broken: true, ..Behaviour::default() };
    for has_events in [true, false] {
        if !has_events {
            let (_, closing) =
                blocks.get_mut(&21).expect("is there").transactions.last_mut().expect("is there");
            closing.events.clear();
        }
        let whole = cairn_flow::assemble(&blocks[&21].parts()).expect("is whole");
        assert_eq!(whole.facts.tx_count, 4);
        let node = behaving(blocks.clone(), broken.clone()).await;
        assert_eq!(
            one(&node).await.blocks(range(21, 21)).await.expect("answers"),
            std::slice::from_ref(&whole)
        );
        let by_index = node.asked("GetTransactionResultByIndex");
        assert_eq!(by_index, if has_events { 3 } else { 5 }, "users', and what shows it");
        let silent = Behaviour { is_system_refused_by_index: true, ..broken.clone() };
        let node = behaving(blocks.clone(), silent).await;
        let taken = one(&node).await.blocks(range(21, 21)).await;
        match has_events {
            true => assert_eq!(taken.expect("its place shows it"), [whole]),
            false => drop(taken.expect_err("nothing shows it")),
        }
    }
}

#[tokio::test]
async fn f03_a_block_in_which_more_system_transactions_ran_than_can_be_named_is_asked_of_another_node() {
    let (blocks, whole) = with_two_of_the_systems();
    let behaviour = Behaviour { is_bulk_broken: true, ..failing(BULK[0], Code::Internal) };
    let words = "more system transactions ran in block 21 than it can name";
    is_refused_and_asked_of_another(behaviour.clone(), blocks.clone(), &whole, words).await;
    // Where one ran, and no other, the block is taken.
    let node = behaving(blocks, behaviour).await;
    assert_eq!(one(&node).await.blocks(range(22, 22)).await.expect("answers"), whole[2..3]);
}

/// Block 22 has the first transaction of block 21 once more, where it fails and leaves no events.
fn with_one_in_two_blocks() -> (BTreeMap<u64, Draft>, Vec<cairn_core::RawBlock>) {
    let (mut blocks, _) = drafts();
    let (transaction, first) = blocks[&21].transactions[0].clone();
    let draft = blocks.get_mut(&22).expect("is there");
    draft.transactions[0].0 = transaction;
    let second = &mut draft.transactions[0].1;
    second.transaction_id = first.transaction_id;
    second.events.clear();
    (second.status_code, second.error_message) = (1, "[Error Code: 1007] invalid proposal key".into());
    draft.name_collections();
    let whole = blocks.values().map(|draft| cairn_flow::assemble(&draft.parts()).expect("is whole"));
    let whole = whole.collect();
    (blocks, whole)
}

#[tokio::test]
async fn f17_a_result_by_id_that_does_not_say_its_block_is_asked_for_in_another_way() {
    let (blocks, whole) = with_one_in_two_blocks();
    assert_eq!(whole[1].transactions[0].id, whole[2].transactions[0].id);
    // Bulk transactions are not to be had, so all goes by id; results are by index, or all at once.
    for lacks in [&BULK[..1], &["GetTransactionsByBlockID", "GetTransactionResultByIndex"][..]] {
        let behaviour = Behaviour { is_silent_on_blocks: true, lacks, ..Behaviour::default() };
        let node = behaving(blocks.clone(), behaviour).await;
        let taken = one(&node).await.blocks(range(21, 22)).await.expect("answers");
        for (taken, whole) in taken.iter().zip(&whole[1..]) {
            assert_eq!(taken.transactions[0], whole.transactions[0], "{lacks:?}");
            let unverified = Checks::from_bits_truncate(taken.facts.unverified);
            assert!(!unverified.contains(Checks::RESULT_BLOCK), "{lacks:?}");
        }
    }
    // An old node has neither: the blocks are taken and marked.
    let behaviour = Behaviour { is_silent_on_blocks: true, is_old: true, ..Behaviour::default() };
    let node = behaving(blocks.clone(), behaviour).await;
    let taken = one(&node).await.blocks(range(21, 22)).await.expect("answers");
    assert_eq!(taken.len(), 2);
    for block in taken {
        let unverified = Checks::from_bits_truncate(block.facts.unverified);
        assert!(unverified.contains(Checks::RESULT_BLOCK), "{unverified:?}");
    }
    // One that names blocks gives each block's own, and no mark.
    let node = behaving(blocks, Behaviour { is_old: true, ..Behaviour::default() }).await;
    let taken = one(&node).await.blocks(range(21, 22)).await.expect("answers");
    assert_eq!(taken[1].transactions[0], whole[2].transactions[0]);
    assert!(!Checks::from_bits_truncate(taken[1].facts.unverified).contains(Checks::RESULT_BLOCK));
}

#[tokio::test]
async fn a_call_that_a_node_does_not_have_is_not_asked_for_with_each_block() {
    let (blocks, _) = drafts();
    let node = behaving(blocks, Behaviour { is_old: true, ..Behaviour::default() }).await;
    assert_eq!(one(&node).await.blocks(range(20, 60)).await.expect("answers").len(), 41);
    let asked = node.asked("GetTransactionsByBlockID");
    // As many as were on their way before the first answer.
    assert!(asked <= 16, "{asked}");
}

#[tokio::test]
async fn f05_an_index_missing_behind_a_service_event_makes_the_execution_result_be_asked_for() {
    let (mut blocks, _) = drafts();
    let draft = blocks.get_mut(&21).expect("is there");
    let events = &mut draft.transactions[0].1.events;
    events.push(events[0].clone());
    events[0].r#type = "A.f8d6e0586b0a20c7.FlowEpoch.EpochSetup".into();
    events[1].event_index = 2;
    let result = draft.execution_result.as_mut().expect("is there");
    result.service_events = vec![cairn_flow::proto::ServiceEvent::default()];
    let node = serving(blocks.clone()).await;
    for source in [one(&node).await, without_results(&node).await] {
        let taken = source.blocks(range(20, 22)).await.expect("answers");
        assert_eq!(taken[1], cairn_flow::assemble(&blocks[&21].parts()).expect("is whole"));
    }
}
