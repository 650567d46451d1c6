//! Several nodes: some away, some that begin elsewhere, some that lack a block.

use std::sync::{Arc, Mutex};

use cairn_flow_node::{Ledger, State};
use tonic::Code;

use super::*;

/// An address at which nobody listens.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("has one").to_string()
}

async fn serving_at(address: &str, blocks: BTreeMap<u64, Draft>, behaviour: Behaviour) -> FlowNode {
    let state = State::new(Chain::new(blocks), Ledger::new(Network::Emulator), behaviour);
    FlowNode::serve_at(address, Arc::new(Mutex::new(state))).await.expect("listens")
}

/// As [`config`], with one that is away: its address, and the heights that it is configured for.
fn with_away(
    nodes: &[(&FlowNode, Option<u64>, Option<u64>)],
    (address, first_height, end_height_exclusive): (&str, Option<u64>, Option<u64>),
) -> FlowConfig {
    let mut config = config(nodes);
    config.nodes.push(NodeConfig {
        first_height,
        end_height_exclusive,
        requests_per_s: 0,
        ..NodeConfig::new(format!("http://{address}").parse().expect("a URL"))
    });
    config
}

/// Asks until a node has been asked for blocks, for a few seconds.
async fn until_asked(source: &FlowSource, node: &FlowNode, heights: HeightRange) {
    let until = Instant::now() + Duration::from_secs(30);
    while node.asked("GetBlockByHeight") == 0 && Instant::now() < until {
        assert_eq!(source.blocks(heights).await.expect("answers").len() as u64, heights.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(node.asked("GetBlockByHeight") > 0);
}

#[tokio::test]
async fn one_of_two_nodes_that_is_away_stops_nothing_and_is_used_when_it_is_back() {
    let blocks = linked_blocks(1..=40, &[1], 1);
    let here = serving(blocks.clone()).await;
    let away = free_address();
    let source =
        FlowSource::connect(with_away(&[(&here, None, None)], (&away, None, None))).await.expect("connects");
    assert_eq!(source.heads().await.expect("answers").latest.block.height, Height(40));
    assert_eq!(source.blocks(range(1, 40)).await.expect("answers").len(), 40);
    let back = serving_at(&away, blocks, Behaviour::default()).await;
    until_asked(&source, &back, range(1, 10)).await;
}

#[tokio::test]
async fn an_old_sporks_node_that_is_away_is_missed_by_name_and_only_where_it_is_needed() {
    let live = serving(linked_blocks(101..=120, &[1], 1)).await;
    let away = free_address();
    let mut config = with_away(&[(&live, None, None)], (&away, Some(1), Some(101)));
    // What is final is of the spork whose node is away.
    config.finality_heights = 30;
    let source = FlowSource::connect(config).await.expect("connects");
    assert_eq!(source.first_height(), Height(1));
    let heads = source.heads().await.expect("answers");
    assert_eq!((heads.latest.block.height, heads.finalized), (Height(120), None));
    assert_eq!(source.blocks(range(101, 120)).await.expect("answers").len(), 20);
    let error = source.blocks(range(90, 110)).await.expect_err("is away");
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains(&away) && error.to_string().contains("height 90"), "{error}");
    let _back = serving_at(&away, linked_blocks(1..=100, &[1], 1), Behaviour::default()).await;
    let until = Instant::now() + Duration::from_secs(30);
    while source.blocks(range(90, 110)).await.is_err() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(source.blocks(range(90, 110)).await.expect("answers").len(), 21);
    assert_eq!(source.heads().await.expect("answers").finalized.map(|block| block.height), Some(Height(90)));
}

#[tokio::test]
async fn without_any_node_that_answers_there_is_no_source() {
    let error =
        FlowSource::connect(with_away(&[], (&free_address(), None, None))).await.expect_err("is away");
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
}

#[tokio::test]
async fn a_node_that_comes_back_as_another_networks_is_not_used() {
    let blocks = linked_blocks(1..=20, &[1], 1);
    let here = serving(blocks.clone()).await;
    let away = free_address();
    let source =
        FlowSource::connect(with_away(&[(&here, None, None)], (&away, None, None))).await.expect("connects");
    let other = Behaviour { network: Some("flow-mainnet"), ..Behaviour::default() };
    let other = serving_at(&away, blocks, other).await;
    let until = Instant::now() + Duration::from_secs(30);
    while other.asked("GetNetworkParameters") == 0 && Instant::now() < until {
        assert_eq!(source.blocks(range(1, 20)).await.expect("answers").len(), 20);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(source.blocks(range(1, 20)).await.expect("answers").len(), 20);
    let asked = other.take_counts();
    assert_eq!((asked.asked.get("GetNetworkParameters"), asked.total()), (Some(&1), 1));
}

#[tokio::test]
async fn what_one_node_fails_at_another_is_asked_for_at_once() {
    let blocks = linked_blocks(1..=20, &[1], 1);
    let failing = Some(("GetBlockByHeight", Code::Unavailable));
    let one = behaving(blocks.clone(), Behaviour { failing, ..Behaviour::default() }).await;
    let two = serving(blocks).await;
    let source =
        FlowSource::connect(config(&[(&one, None, None), (&two, None, None)])).await.expect("connects");
    let begun = Instant::now();
    assert_eq!(source.blocks(range(1, 20)).await.expect("answers").len(), 20);
    assert!(one.asked("GetBlockByHeight") > 0);
    // It comes last for a while.
    one.take_counts();
    assert_eq!(source.blocks(range(1, 4)).await.expect("answers").len(), 4);
    assert!(one.asked("GetBlockByHeight") == 0 || begun.elapsed() > Duration::from_millis(900));
    // Where both fail, that is said.
    two.state().behaviour.failing = failing;
    assert_eq!(source.blocks(range(1, 4)).await.expect_err("both fail").kind(), ErrorKind::Retry);
}

#[tokio::test]
async fn a_height_that_is_missing_far_below_the_sealed_head_is_a_fault() {
    let mut blocks = linked_blocks(1..=60, &[1], 1);
    let whole = serving(blocks.clone()).await;
    for missing in [15, 59] {
        blocks.remove(&missing);
    }
    let lacks = serving(blocks).await;
    let source = one(&lacks).await;
    source.heads().await.expect("answers");
    assert_eq!(source.blocks(range(10, 20)).await.expect("answers").len(), 5, "what comes before it");
    for error in [
        source.blocks(range(15, 20)).await.expect_err("is missing"),
        source.linked_ref(Height(15)).await.expect_err("is missing"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Retry);
        let words = error.to_string();
        assert!(words.contains("height 15") && words.contains("60 is sealed"), "{error}");
    }
    // Near the head a node may only be behind.
    assert_eq!(source.blocks(range(59, 60)).await.expect("answers"), []);
    assert_eq!(source.linked_ref(Height(59)).await.expect("answers"), None);
    // Another node has it.
    let both = FlowSource::connect(config(&[(&lacks, None, None), (&whole, None, None)])).await;
    let source = both.expect("connects");
    source.heads().await.expect("answers");
    for _ in 0..2 {
        assert_eq!(source.blocks(range(10, 20)).await.expect("answers").len(), 11);
        assert!(source.linked_ref(Height(15)).await.expect("answers").is_some());
    }
}

#[tokio::test]
async fn f02_an_old_node_that_does_not_say_its_root_tells_it_by_a_refusal() {
    let failing = Some(("GetNodeVersionInfo", Code::Unimplemented));
    let silent = Behaviour { failing, ..Behaviour::default() };
    let live = behaving(linked_blocks(101..=120, &[1], 1), silent).await;
    let old = serving(linked_blocks(1..=100, &[1], 1)).await;
    let source = FlowSource::connect(config(&[(&live, None, None), (&old, Some(1), Some(101))]))
        .await
        .expect("connects");
    assert_eq!(source.heads().await.expect("answers").latest.block.height, Height(120));
    assert_eq!(source.blocks(range(90, 110)).await.expect("answers").len(), 21);
    assert_eq!(
        (live.asked("GetBlockByHeight"), old.asked("GetBlockByHeight")),
        (10, 11),
        "none of the wrong one"
    );
}

#[tokio::test]
async fn f02_a_node_that_refuses_what_it_said_it_has_is_not_asked_for_it_again() {
    let live = serving(linked_blocks(1..=120, &[1], 1)).await;
    let old = serving(linked_blocks(1..=100, &[1], 1)).await;
    let source = FlowSource::connect(config(&[(&live, None, None), (&old, Some(1), Some(101))]))
        .await
        .expect("connects");
    // It forgets what lies below.
    live.state().chain.root_height = 101;
    assert_eq!(source.blocks(range(90, 110)).await.expect("answers").len(), 21);
    live.take_counts();
    assert_eq!(source.blocks(range(90, 110)).await.expect("answers").len(), 21);
    assert_eq!(live.asked("GetBlockByHeight"), 10);
    // Without another node the height has nobody, which is said.
    let source = one(&live).await;
    live.state().chain.root_height = 111;
    let error = source.blocks(range(105, 110)).await.expect_err("is refused");
    assert!(
        matches!(error, SourceError::Invalid(_)) && error.to_string().contains("serve from 111"),
        "{error}"
    );
}

#[tokio::test]
async fn a_sealed_head_or_a_root_that_no_chain_has_is_refused_and_other_nodes_go_on() {
    for height in [u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64] {
        let mut absurd = Draft::new(20, &[1], 1);
        absurd.block.height = height;
        if let Some(header) = &mut absurd.block.block_header {
            header.height = height;
        }
        let mut blocks = linked_blocks(1..=20, &[1], 1);
        blocks.insert(height, absurd);
        let (liar, honest) = (serving(blocks).await, serving(linked_blocks(1..=20, &[1], 1)).await);
        let error = one(&liar).await.heads().await.expect_err("no chain has it");
        let said = error.to_string();
        assert!(said.contains(&format!("the node says height {height}, which no chain has")), "{said}");
        assert_eq!((error.kind(), error.height()), (ErrorKind::Retry, None));
        let both = FlowSource::connect(config(&[(&liar, None, None), (&honest, None, None)])).await;
        let both = both.expect("connects");
        for _ in 0..3 {
            assert_eq!(both.heads().await.expect("answers").latest.block.height, Height(20));
        }
        // A root that no chain has: the node doesn't count, the other one does.
        liar.state().chain.root_height = height;
        let error = FlowSource::connect(config(&[(&liar, None, None)])).await.expect_err("no chain has it");
        assert!(error.to_string().contains("which no chain has"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Retry);
        let both = FlowSource::connect(config(&[(&liar, None, None), (&honest, None, None)])).await;
        assert_eq!(both.expect("connects").blocks(range(1, 20)).await.expect("answers").len(), 20);
    }
}
