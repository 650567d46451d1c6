//! The Flow source against an access node on loopback.

mod counters;
mod evm;
mod nodes;
mod pieces;
mod sporks;
mod state;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_core::{ErrorKind, Height, HeightRange};
use cairn_flow::id::transaction_id;
use cairn_flow::proto::{BlockHeader, Transaction};
use cairn_flow::{Checks, Network};
use cairn_flow_node::draft::system;
use cairn_flow_node::{Behaviour, Chain, Draft, FlowNode, LeftOut, RateLimit, linked_blocks};
use cairn_source::flow::{FlowConfig, FlowSource, NodeConfig};
use cairn_source::{ChainSource, SourceError};
use counters::Counters;

fn config(nodes: &[(&FlowNode, Option<u64>, Option<u64>)]) -> FlowConfig {
    let nodes = nodes.iter().map(|(node, first_height, end_height_exclusive)| NodeConfig {
        first_height: *first_height,
        end_height_exclusive: *end_height_exclusive,
        requests_per_s: 0,
        ..NodeConfig::new(node.url.parse().expect("a URL"))
    });
    FlowConfig { finality_heights: 5, ..FlowConfig::new(Network::Emulator, nodes.collect()) }
}

async fn serving(blocks: BTreeMap<u64, Draft>) -> FlowNode {
    behaving(blocks, Behaviour::default()).await
}

async fn behaving(blocks: BTreeMap<u64, Draft>, behaviour: Behaviour) -> FlowNode {
    FlowNode::start(Chain::new(blocks), behaviour).await.expect("listens")
}

async fn one(node: &FlowNode) -> FlowSource {
    FlowSource::connect(config(&[(node, None, None)])).await.expect("connects")
}

/// Which doesn't wait for execution results.
async fn without_results(node: &FlowNode) -> FlowSource {
    let config = FlowConfig { execution_results: false, ..config(&[(node, None, None)]) };
    FlowSource::connect(config).await.expect("connects")
}

fn range(from: u64, to_inclusive: u64) -> HeightRange {
    HeightRange::inclusive(Height(from), Height(to_inclusive))
}

#[tokio::test]
async fn blocks_come_whole_and_linked_with_heads_and_finality() {
    let node = serving(linked_blocks(10..=40, &[2, 1], 2)).await;
    let source = one(&node).await;
    assert_eq!(source.chain_id().await.expect("is known"), Network::Emulator.chain_number());
    assert_eq!(source.first_height(), Height(10));
    let heads = source.heads().await.expect("answers");
    assert_eq!(
        (heads.latest.block.height, heads.finalized.map(|block| block.height)),
        (Height(40), Some(Height(35)))
    );
    let blocks = source.blocks(range(10, 60)).await.expect("answers");
    assert_eq!(blocks.len(), 31, "what is there, and no more");
    for (block, height) in blocks.iter().zip(10..) {
        assert_eq!((block.facts.height, block.facts.tx_count, block.facts.log_count), (Height(height), 4, 8));
        let unverified = Checks::from_bits_truncate(block.facts.unverified);
        assert_eq!(unverified, Checks::BLOCK_ID | Checks::EVENTS);
    }
    let linked = source.linked_ref(Height(20)).await.expect("answers").expect("is there");
    assert_eq!(linked, blocks[10].facts.linked_ref());
    assert_eq!(source.linked_ref(Height(41)).await.expect("answers"), None, "not yet");
}

#[tokio::test]
async fn f03_results_that_are_too_large_together_are_asked_for_one_by_one() {
    let mut blocks = linked_blocks(20..=21, &[3], 2);
    let large = blocks.get_mut(&20).expect("is there");
    large.transactions[1].1.events[0].payload = Bytes::from(vec![b' '; 18 << 20]);
    let whole = cairn_flow::assemble(&large.parts()).expect("is whole");
    let node =
        behaving(blocks.clone(), Behaviour { max_answer_bytes: 19 << 20, ..Behaviour::default() }).await;
    let source = one(&node).await;
    assert_eq!(source.blocks(range(20, 21)).await.expect("answers").len(), 2);
    assert_eq!(node.asked("GetTransactionResultByIndex"), 0, "it fits into one answer");
    let small =
        behaving(blocks.clone(), Behaviour { max_answer_bytes: (18 << 20) + 600, ..Behaviour::default() })
            .await;
    let answer = one(&small).await.blocks(range(20, 21)).await.expect("answers");
    assert_eq!(small.asked("GetTransactionResultByIndex"), 4, "of the one block, the large one twice");
    assert_eq!(answer[0], whole);
    // The limit on our side is told the same way.
    let mut config = config(&[(&node, None, None)]);
    config.max_response_bytes = (18 << 20) + 600;
    let source = FlowSource::connect(config).await.expect("connects");
    assert_eq!(source.blocks(range(20, 21)).await.expect("answers")[0], whole);
    assert_eq!(node.asked("GetTransactionResultByIndex"), 4);
}

#[tokio::test]
async fn an_answer_that_is_larger_than_was_expected_is_asked_for_again_and_the_next_at_once() {
    let mut blocks = linked_blocks(20..=22, &[1], 1);
    for block in blocks.values_mut() {
        block.transactions[0].1.events[0].payload = Bytes::from(vec![b' '; 9 << 20]);
    }
    let node = serving(blocks).await;
    let source = one(&node).await;
    assert_eq!(source.preferred_heights(), 16);
    for height in 20..=22 {
        assert_eq!(source.blocks(range(height, height)).await.expect("answers").len(), 1);
    }
    assert_eq!(node.asked("GetTransactionResultsByBlockID"), 4, "the first one twice");
    assert_eq!(node.asked("GetTransactionResultByIndex"), 0);
    // Fewer of them are fetched side by side.
    assert_eq!(source.preferred_heights(), 7);
}

#[tokio::test]
async fn a_call_gives_no_more_than_it_may_take_and_at_least_one_block() {
    let mut blocks = linked_blocks(20..=22, &[1], 1);
    for block in blocks.values_mut() {
        block.transactions[0].1.events[0].payload = Bytes::from(vec![b' '; 33 << 20]);
    }
    let node = serving(blocks).await;
    let source = one(&node).await;
    let mut given = Vec::new();
    let mut next = 20;
    while next <= 22 {
        let count = source.blocks(range(next, 22)).await.expect("answers").len() as u64;
        given.push(count);
        next += count;
    }
    assert_eq!(given, [2, 1], "64 MiB are reached by two");
}

/// An execution result that isn't there yet.
const NO_RESULT_YET: Option<(&str, tonic::Code)> =
    Some(("GetExecutionResultForBlockID", tonic::Code::NotFound));

fn lacks_result(block: &cairn_core::RawBlock) -> bool {
    Checks::from_bits_truncate(block.facts.unverified).contains(Checks::EXECUTION_RESULT)
}

#[tokio::test]
async fn an_execution_result_that_comes_later_than_its_block_is_waited_for() {
    let behaviour = Behaviour { failing: NO_RESULT_YET, ..Behaviour::default() };
    let node = behaving(linked_blocks(20..=22, &[1], 1), behaviour).await;
    let source = one(&node).await;
    source.heads().await.expect("answers");
    let indexing = node.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        indexing.state().behaviour.failing = None;
    });
    let blocks = source.blocks(range(20, 22)).await.expect("answers");
    assert_eq!((blocks.len(), blocks.iter().filter(|block| lacks_result(block)).count()), (3, 0));
}

#[tokio::test]
async fn an_execution_result_that_does_not_come_is_waited_for_a_few_times_and_the_block_marked() {
    let behaviour = Behaviour { failing: NO_RESULT_YET, ..Behaviour::default() };
    let node = behaving(linked_blocks(20..=30, &[1], 1), behaviour).await;
    let source = one(&node).await;
    source.heads().await.expect("answers");
    let blocks = source.blocks(range(20, 22)).await.expect("answers");
    assert_eq!((blocks.len(), blocks.iter().filter(|block| lacks_result(block)).count()), (3, 3));
    let asked = node.take_counts().asked["GetExecutionResultForBlockID"];
    assert_eq!(asked, 15, "five times each");
    // A node that has none is not waited for.
    let blocks = source.blocks(range(23, 26)).await.expect("answers");
    assert!(blocks.len() == 4 && blocks.iter().all(lacks_result));
    assert_eq!(node.take_counts().asked["GetExecutionResultForBlockID"], 4);
    // Until it gives one.
    node.state().behaviour.failing = None;
    assert!(!lacks_result(&source.blocks(range(27, 27)).await.expect("answers")[0]));
    node.state().behaviour.failing = NO_RESULT_YET;
    node.take_counts();
    assert!(lacks_result(&source.blocks(range(28, 28)).await.expect("answers")[0]));
    assert_eq!(node.take_counts().asked["GetExecutionResultForBlockID"], 5);
}

#[tokio::test]
async fn an_old_execution_result_that_is_not_there_is_not_waited_for() {
    let behaviour = Behaviour { failing: NO_RESULT_YET, ..Behaviour::default() };
    let node = behaving(linked_blocks(1..=140, &[1], 1), behaviour).await;
    let source = one(&node).await;
    source.heads().await.expect("answers");
    assert!(lacks_result(&source.blocks(range(1, 1)).await.expect("answers")[0]));
    assert_eq!(node.asked("GetExecutionResultForBlockID"), 1);
}

/// The scheduler's transaction, which a node names that knows it.
fn process() -> Transaction {
    Transaction { script: "transaction { /* process */ }".into(), ..system() }
}

#[tokio::test]
async fn f03_results_one_by_one_are_those_of_the_bulk_call() {
    // Real nodes name neither transaction nor collection of a result by index, and some refuse the system transaction's.
    let mut blocks = linked_blocks(20..=22, &[2, 1], 1);
    blocks.get_mut(&21).expect("is there").not_executed = vec![process()];
    let node = serving(blocks.clone()).await;
    let whole = one(&node).await.blocks(range(20, 22)).await.expect("answers");
    assert_eq!(whole.len(), 3);
    for is_system_refused_by_index in [false, true] {
        let behaviour =
            Behaviour { is_bulk_broken: true, is_system_refused_by_index, ..Behaviour::default() };
        let node = behaving(blocks.clone(), behaviour).await;
        assert_eq!(one(&node).await.blocks(range(20, 22)).await.expect("answers"), whole);
        assert_eq!(node.asked("GetTransactionResultByIndex"), 9, "users' alone");
    }
    // A node without the system transaction's own call has it by index.
    let failing = Some(("GetSystemTransactionResult", tonic::Code::Unimplemented));
    let node = behaving(blocks, Behaviour { is_bulk_broken: true, failing, ..Behaviour::default() }).await;
    assert_eq!(one(&node).await.blocks(range(20, 22)).await.expect("answers"), whole);
}

#[tokio::test]
async fn f03_transactions_that_are_too_large_together_keep_the_system_transaction() {
    let mut blocks = linked_blocks(20..=20, &[2, 1], 1);
    for tx in 0..2 {
        let (transaction, result) = &mut blocks.get_mut(&20).expect("is there").transactions[tx];
        transaction.arguments = vec![Bytes::from(vec![b' '; 1 << 20])];
        let id = transaction_id(transaction);
        result.transaction_id = Bytes::copy_from_slice(id.as_bytes());
        result.events[0].transaction_id = result.transaction_id.clone();
    }
    blocks.get_mut(&20).expect("is there").name_collections();
    let whole = cairn_flow::assemble(&blocks[&20].parts()).expect("is whole");
    let limited = Behaviour { max_answer_bytes: (1 << 20) + 4_096, ..Behaviour::default() };
    for is_bulk_broken in [false, true] {
        let node = behaving(blocks.clone(), Behaviour { is_bulk_broken, ..limited.clone() }).await;
        assert_eq!(
            one(&node).await.blocks(range(20, 20)).await.expect("answers"),
            std::slice::from_ref(&whole)
        );
    }
}

#[tokio::test]
async fn a_block_that_a_node_cuts_short_in_silence_is_not_taken() {
    let mut blocks = linked_blocks(20..=22, &[2, 1], 1);
    let short = blocks.get_mut(&21).expect("is there");
    short.transactions.remove(2);
    short.transactions[2].1.events[0].transaction_index = 2;
    let node = serving(blocks).await;
    let source = one(&node).await;
    assert_eq!(source.blocks(range(20, 22)).await.expect("answers").len(), 1, "what comes before it");
    // The node calls it sealed: an error that is seen, and asked for again.
    let error = source.blocks(range(21, 22)).await.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("no transactions of collection"), "{error}");
}

#[tokio::test]
async fn a_block_that_contradicts_itself_names_the_node() {
    let mut blocks = linked_blocks(20..=20, &[2], 1);
    blocks.get_mut(&20).expect("is there").transactions[0].0.gas_limit += 1;
    let node = serving(blocks).await;
    let error = one(&node).await.blocks(range(20, 20)).await.expect_err("is refused");
    assert!(matches!(error, SourceError::Inconsistent { height: Height(20), .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn f06_a_block_that_nothing_calls_sealed_is_not_taken() {
    let mut blocks = linked_blocks(20..=21, &[1], 1);
    blocks.extend(linked_blocks(22..=22, &[], 0));
    blocks.get_mut(&22).expect("is there").transactions.clear();
    for is_old in [false, true] {
        let behaviour = Behaviour { is_silent_on_seals: true, is_old, ..Behaviour::default() };
        let mut chain = Chain::new(blocks.clone());
        chain.unsealed_heights = 1;
        let silent = FlowNode::start(chain, behaviour).await.expect("listens");
        let source = without_results(&silent).await;
        let answer = source.blocks(range(20, 22)).await.expect("answers");
        assert_eq!(answer.len(), 2, "the results of these say it; the last has none");
        assert_eq!(source.blocks(range(22, 22)).await.expect("answers"), [], "not yet");
    }
    // Where the node says so, of the block or by its newest sealed one, it has to have them.
    for is_silent_on_seals in [false, true] {
        let said = behaving(blocks.clone(), Behaviour { is_silent_on_seals, ..Behaviour::default() }).await;
        one(&said).await.blocks(range(22, 22)).await.expect_err("is refused");
    }
}

#[tokio::test]
async fn a_node_of_another_network_is_refused() {
    let node = behaving(
        linked_blocks(1..=2, &[1], 0),
        Behaviour { network: Some("flow-mainnet"), ..Behaviour::default() },
    )
    .await;
    let error = FlowSource::connect(config(&[(&node, None, None)])).await.expect_err("is refused");
    assert_eq!(error.kind(), ErrorKind::Halt, "{error}");
    let told = "serves chain flow-mainnet, expected chain flow-emulator";
    assert!(error.to_string().contains(told), "{error}");
    let node = behaving(
        linked_blocks(1..=2, &[1], 0),
        Behaviour { network: Some("flow-elsewhere"), ..Behaviour::default() },
    )
    .await;
    let error = FlowSource::connect(config(&[(&node, None, None)])).await.expect_err("is refused");
    assert!(error.to_string().contains("flow-elsewhere"), "{error}");
}

#[tokio::test]
async fn a_block_whose_header_is_of_another_network_is_refused() {
    let mut blocks = linked_blocks(20..=20, &[1], 1);
    let block = &mut blocks.get_mut(&20).expect("is there").block;
    block.block_header = Some(BlockHeader {
        id: block.id.clone(),
        parent_id: block.parent_id.clone(),
        height: 20,
        timestamp: block.timestamp,
        chain_id: "flow-mainnet".into(),
        ..BlockHeader::default()
    });
    let node = serving(blocks).await;
    let source = one(&node).await;
    for error in [
        source.blocks(range(20, 20)).await.expect_err("is refused"),
        source.linked_ref(Height(20)).await.expect_err("is refused"),
        source.heads().await.expect_err("is refused"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Retry);
        assert!(error.to_string().contains("flow-mainnet"), "{error}");
    }
}

#[tokio::test]
async fn what_could_not_be_checked_of_a_block_is_counted() {
    let counters = Counters::default();
    let _counting = metrics::set_default_local_recorder(&counters);
    let mut blocks = linked_blocks(20..=24, &[1], 1);
    blocks.get_mut(&22).expect("is there").execution_result = None;
    let node = serving(blocks).await;
    assert_eq!(one(&node).await.blocks(range(20, 24)).await.expect("answers").len(), 5);
    let counted = |check| counters.counted(&format!("cairn_source_unverified_total{{check={check}}}"));
    assert_eq!(["block-id", "events", "execution-result", "system-missing"].map(counted), [5, 5, 1, 0]);
}

#[tokio::test]
async fn a_rate_limit_is_kept_and_no_request_wasted() {
    let blocks = linked_blocks(1..=60, &[1], 1);
    // As many at once as half a second brings that this process was kept from the processor; far fewer than there are requests.
    let node = behaving(
        blocks,
        Behaviour { rate_limit: Some(RateLimit { per_s: 100, burst: 50 }), ..Behaviour::default() },
    )
    .await;
    let mut config = config(&[(&node, None, None)]);
    config.nodes[0].requests_per_s = 100;
    let source = FlowSource::connect(config).await.expect("connects");
    let mut next = 1;
    while next <= 60 {
        next += source.blocks(range(next, 60)).await.expect("answers").len() as u64;
    }
    assert_eq!(node.state().counts.refused, 0);
}

#[tokio::test]
async fn a_refused_pace_is_waited_for_and_nothing_is_lost() {
    let node = behaving(
        linked_blocks(1..=20, &[1], 1),
        Behaviour { rate_limit: Some(RateLimit { per_s: 40, burst: 40 }), ..Behaviour::default() },
    )
    .await;
    let source = one(&node).await;
    let mut next = 1;
    let until = Instant::now() + Duration::from_secs(60);
    while next <= 20 && Instant::now() < until {
        match source.blocks(range(next, 20)).await {
            Ok(blocks) => next += blocks.len() as u64,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
        }
    }
    assert_eq!(next, 21);
    assert!(node.state().counts.refused > 0);
}

#[tokio::test]
async fn a_new_block_wakes_and_a_node_without_streams_only_polls() {
    let node = serving(linked_blocks(1..=20, &[1], 1)).await;
    let source = one(&node).await;
    source.heads().await.expect("answers");
    let growing = node.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        growing.state().chain.push(&Draft::new(21, &[1], 1));
    });
    let begun = Instant::now();
    source.wait_for_head(30_000).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    source.heads().await.expect("answers");
    let begun = Instant::now();
    source.wait_for_head(200).await;
    assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
    // Without streams a block that is there already wakes nobody, and nobody asks again and again.
    let failing = Some(("SubscribeBlockDigestsFromStartHeight", tonic::Code::Unimplemented));
    node.state().behaviour.failing = failing;
    node.state().chain.push(&Draft::new(22, &[1], 1));
    node.take_counts();
    let begun = Instant::now();
    source.wait_for_head(300).await;
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    assert_eq!(node.take_counts().total(), 1);
}
