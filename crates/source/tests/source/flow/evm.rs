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

/// Whoever doubts a block asks each node once, and hears each different answer once.
#[tokio::test]
async fn f04_each_node_gives_its_answer_to_who_doubts_a_block() {
    let whole = closing(20..=29, &[1, 2]);
    let (one, two, lacks) =
        (serving(whole.clone()).await, serving(whole.clone()).await, serving(whole).await);
    lacks.state().chain.leave_out([24], LeftOut::OfEvm).expect("its own messages");
    let contradicts = serving(closing(20..=29, &[1])).await;
    let nodes = [&lacks, &one, &two, &contradicts].map(|node| (node, None, None));
    let source = FlowSource::connect(config(&nodes)).await.expect("connects");
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let answers = async |source: &FlowSource, height: u64| {
        let answers = source.answers(Height(height)).await.expect("answers");
        let mut counts: Vec<u32> = answers.iter().map(|block| block.facts.log_count).collect();
        counts.sort_unstable();
        counts
    };
    assert_eq!(answers(&source, 24).await, [2, 5], "without the three of the EVM, and with them");
    for node in [&lacks, &one, &two, &contradicts] {
        assert_eq!(node.take_counts().asked["GetBlockByHeight"], 1);
    }
    assert_eq!(answers(&source, 25).await, [5], "all the same, but for one that is left out");
    let failovers = |node: &FlowNode| {
        let name = node.url.trim_start_matches("http://");
        counters.counted(&format!("cairn_source_failovers_total{{endpoint={name}}}"))
    };
    assert_eq!([&lacks, &one, &two].map(failovers), [0; 3], "nothing failed");
    assert!(source.answers(Height(40)).await.expect("answers").is_empty(), "not yet");

    // One that is away is not waited for; without any there is an error.
    let failing = Some(("GetBlockByHeight", tonic::Code::Unavailable));
    one.state().behaviour.failing = failing;
    assert_eq!(answers(&source, 24).await, [2, 5]);
    for node in [&two, &lacks, &contradicts] {
        node.state().behaviour.failing = failing;
    }
    assert_eq!(source.answers(Height(24)).await.expect_err("all are away").kind(), ErrorKind::Retry);

    // Where no other answer is to be had, one that contradicts itself is taken as any such block is.
    contradicts.state().behaviour.failing = None;
    let alone = super::one(&contradicts).await;
    let taken = alone.answers(Height(24)).await.expect("answers");
    assert!(taken.len() == 1 && is_marked(&taken[0]));
}
