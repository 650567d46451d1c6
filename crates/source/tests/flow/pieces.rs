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
