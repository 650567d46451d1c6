//! Blocks whose EVM side contradicts itself (F05).

use super::*;

/// Blocks of which each closes an EVM block of two EVM transactions, and so many of them came.
fn closing(heights: std::ops::RangeInclusive<u64>, came: &[u8]) -> BTreeMap<u64, Draft> {
    let mut blocks = linked_blocks(heights, &[1], 1);
    blocks.iter_mut().for_each(|(height, draft)| draft.evm_block(*height, 0, came, &[1, 2]));
    blocks
}

fn is_marked(block: &cairn_core::RawBlock) -> bool {
    Checks::from_bits_truncate(block.facts.unverified).contains(Checks::EVM_BLOCK)
}

#[tokio::test]
async fn f05_a_block_that_lacks_an_evm_transaction_is_asked_of_another_node() {
    let lacks = serving(closing(20..=29, &[1])).await;
    let whole = serving(closing(20..=29, &[1, 2])).await;
    let source =
        FlowSource::connect(config(&[(&lacks, None, None), (&whole, None, None)])).await.expect("connects");
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let blocks = source.blocks(range(20, 29)).await.expect("answers");
    assert_eq!((blocks.len(), blocks.iter().filter(|block| is_marked(block)).count()), (10, 0));
    assert!(
        blocks.iter().all(|block| block.facts.log_count == 5),
        "two of one event each, and three of the EVM"
    );
    let refused = lacks.asked("GetBlockByHeight");
    assert!(refused > 0);
    assert_eq!(counters.counted("cairn_source_check_failures_total{check=evm-block}"), refused);
    assert_eq!(whole.asked("GetBlockByHeight"), 10, "each once");
}

#[tokio::test]
async fn f05_a_block_that_lacks_an_evm_transaction_is_asked_for_again() {
    let node = serving(closing(20..=20, &[1])).await;
    let source = one(&node).await;
    let indexing = node.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        indexing.state().chain.push(&closing(20..=20, &[1, 2])[&20]);
    });
    let blocks = source.blocks(range(20, 20)).await.expect("answers");
    assert!(blocks.len() == 1 && !is_marked(&blocks[0]));
}

#[tokio::test]
async fn f05_a_contradiction_that_answers_agree_on_is_taken_and_marked() {
    // Of one node after three same answers; after some blocks in a row after one, until a block holds.
    let node = serving(closing(20..=29, &[1])).await;
    let source = one(&node).await;
    for (height, asked) in [(20, 3), (21, 3), (22, 3), (23, 1), (24, 1)] {
        let blocks = source.blocks(range(height, height)).await.expect("answers");
        assert!(blocks.len() == 1 && is_marked(&blocks[0]), "{height}");
        assert_eq!(node.take_counts().asked["GetBlockByHeight"], asked, "{height}");
    }
    node.state().chain.push(&closing(25..=25, &[1, 2])[&25]);
    assert!(!is_marked(&source.blocks(range(25, 25)).await.expect("answers")[0]));
    node.take_counts();
    assert!(is_marked(&source.blocks(range(26, 26)).await.expect("answers")[0]));
    assert_eq!(node.take_counts().asked["GetBlockByHeight"], 3);
    // Two nodes that give the same needn't be asked again.
    let other = serving(closing(20..=29, &[1])).await;
    let source =
        FlowSource::connect(config(&[(&node, None, None), (&other, None, None)])).await.expect("connects");
    assert!(is_marked(&source.blocks(range(20, 20)).await.expect("answers")[0]));
    assert_eq!((node.asked("GetBlockByHeight"), other.asked("GetBlockByHeight")), (1, 1));
    // Two that give different ones are not believed, and both are asked again.
    let differs = serving(closing(20..=29, &[2])).await;
    let source =
        FlowSource::connect(config(&[(&node, None, None), (&differs, None, None)])).await.expect("connects");
    let error = source.blocks(range(20, 20)).await.expect_err("is refused");
    assert!(matches!(&error, SourceError::Inconsistent { check, .. } if check == "evm-block"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(differs.asked("GetBlockByHeight"), 3);
}
