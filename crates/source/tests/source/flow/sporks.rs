//! Sporks: which node serves which heights, their roots, and nodes of old ones.

use super::*;

#[tokio::test]
async fn f02_a_range_over_two_sporks_is_asked_of_both() {
    let old = serving(linked_blocks(1..=100, &[1], 1)).await;
    let live = serving(linked_blocks(101..=120, &[1], 1)).await;
    let source = FlowSource::connect(config(&[(&old, Some(1), Some(101)), (&live, None, None)]))
        .await
        .expect("connects");
    let blocks = source.blocks(range(90, 110)).await.expect("answers");
    assert_eq!(blocks.len(), 21);
    assert!(blocks.windows(2).all(|two| two[1].facts.parent_id == two[0].facts.id));
    assert_eq!(
        (old.asked("GetBlockByHeight"), live.asked("GetBlockByHeight")),
        (11, 10),
        "none of the wrong one"
    );
    // Above the tip is "not yet"; below every root is a mistake in the configuration.
    assert_eq!(source.blocks(range(121, 125)).await.expect("answers"), []);
    let error = source.blocks(range(0, 5)).await.expect_err("is refused");
    assert!(matches!(error, SourceError::Invalid(_)) && error.to_string().contains("height 0"), "{error}");
}

#[tokio::test]
async fn f02_a_node_that_begins_above_what_it_is_configured_for_is_refused_at_start() {
    let live = serving(linked_blocks(101..=120, &[1], 1)).await;
    let error = FlowSource::connect(config(&[(&live, Some(90), None)])).await.expect_err("is refused");
    assert!(error.to_string().contains("none below 101"), "{error}");
}

#[tokio::test]
async fn f02_a_node_of_a_spork_that_is_over_is_not_a_live_one() {
    let root = 130_290_659;
    let mut chain = Chain::new([(root, Draft::new(root, &[1], 1))].into());
    chain.network = Network::Mainnet;
    let node = FlowNode::start(chain, Behaviour::default()).await.expect("listens");
    let config = FlowConfig { network: Network::Mainnet, ..config(&[(&node, None, None)]) };
    let source = FlowSource::connect(config).await.expect("connects");
    assert_eq!(source.blocks(range(root, root)).await.expect("answers").len(), 1);
    let error = source.heads().await.expect_err("is refused");
    assert!(
        error.to_string().contains("below 137390146") && error.to_string().contains("mainnet28"),
        "{error}"
    );
    let error = source.blocks(range(137_390_146, 137_390_146)).await.expect_err("is refused");
    assert!(matches!(error, SourceError::Invalid(_)) && error.to_string().contains("mainnet28"), "{error}");
}

#[tokio::test]
async fn f02_a_node_that_is_configured_beyond_its_own_spork_is_refused_at_start() {
    let (root, end) = (130_290_659, 137_390_146);
    let mut chain = Chain::new([(root, Draft::new(root, &[1], 1))].into());
    chain.network = Network::Mainnet;
    let over = FlowNode::start(chain, Behaviour::default()).await.expect("listens");
    let mut chain = Chain::new([(end, Draft::new(end, &[1], 1))].into());
    chain.network = Network::Mainnet;
    let live = FlowNode::start(chain, Behaviour::default()).await.expect("listens");
    let connect = async |nodes: &[(&FlowNode, Option<u64>, Option<u64>)]| {
        FlowSource::connect(FlowConfig { network: Network::Mainnet, ..config(nodes) }).await
    };
    // Not even where one of the next spork is there.
    for (first, until, words) in [
        (Some(end), None, "from height 137390146"),
        (Some(end + 5), None, "from height 137390151"),
        (None, Some(end + 1), "until height 137390147"),
        (Some(root + 1), Some(end + 1), "until height 137390147"),
    ] {
        let error = connect(&[(&over, first, until), (&live, None, None)]).await.expect_err("is refused");
        assert!(matches!(error, SourceError::Invalid(_)), "{error}");
        let told = error.to_string();
        assert!(told.contains(words) && told.contains("a node of mainnet28"), "{error}");
    }
    for (first, until) in [(None, Some(end)), (Some(end - 1), None), (Some(root + 1), Some(end - 1))] {
        let source = connect(&[(&over, first, until), (&live, None, None)]).await.expect("connects");
        assert_eq!(source.heads().await.expect("answers").latest.block.height, Height(end));
    }
    assert_eq!(over.asked("GetLatestBlockHeader"), 0, "it is not a live one");
}

#[tokio::test]
async fn f02_nodes_of_one_spork_are_all_live_where_one_does_not_say_which_it_is() {
    let blocks = linked_blocks(1..=120, &[1], 1);
    let failing = Some(("GetNodeVersionInfo", tonic::Code::Unimplemented));
    let silent = behaving(blocks.clone(), Behaviour { failing, ..Behaviour::default() }).await;
    let said = serving(blocks).await;
    let nodes = [(&said, Some(60), None), (&silent, Some(50), None)];
    let source = FlowSource::connect(config(&nodes)).await.expect("connects");
    for _ in 0..4 {
        assert_eq!(source.heads().await.expect("answers").latest.block.height, Height(120));
        assert_eq!(source.blocks(range(55, 65)).await.expect("answers").len(), 11);
    }
    assert!(said.asked("GetLatestBlockHeader") > 0 && silent.asked("GetLatestBlockHeader") > 0);
}

#[tokio::test]
async fn f02_a_node_ends_with_its_spork_wherever_in_it_it_is_asked_first() {
    // No list has these sporks: where the first one ends only the other node says.
    let over = serving(linked_blocks(1..=100, &[1], 1)).await;
    let live = serving(linked_blocks(101..=120, &[1], 1)).await;
    for first in [50, 101, 110] {
        let nodes = [(&over, Some(first), None), (&live, None, None)];
        let source = FlowSource::connect(config(&nodes)).await.expect("connects");
        for _ in 0..2 {
            assert_eq!(source.heads().await.expect("answers").latest.block.height, Height(120));
            assert_eq!(source.blocks(range(105, 120)).await.expect("answers").len(), 16);
        }
    }
    assert_eq!((over.asked("GetLatestBlockHeader"), over.asked("GetBlockByHeight")), (0, 0));
}

#[tokio::test]
async fn a_sporks_root_is_taken_and_no_other_block_without_its_system_transaction() {
    let mut blocks = linked_blocks(20..=23, &[1], 1);
    let root = blocks.get_mut(&20).expect("is there");
    *root = Draft { block: root.block.clone(), ..Draft::root(20) };
    root.block.collection_guarantees.clear();
    let short = blocks.get_mut(&22).expect("is there");
    short.not_executed = short.transactions.pop().into_iter().map(|(transaction, _)| transaction).collect();
    let node = serving(blocks).await;
    let source = one(&node).await;
    let taken = source.blocks(range(20, 23)).await.expect("answers");
    assert_eq!(taken.iter().map(|block| block.facts.tx_count).collect::<Vec<_>>(), [0, 2]);
    let error = source.blocks(range(22, 23)).await.expect_err("is refused");
    assert!(error.to_string().contains("system transaction isn't there"), "{error}");
}

#[tokio::test]
async fn a_node_of_an_old_spork_is_asked_by_collection() {
    let mut blocks = linked_blocks(20..=20, &[2, 3], 1);
    let draft = blocks.get_mut(&20).expect("is there");
    draft.transactions.pop();
    draft.execution_result = None;
    let whole = cairn_flow::assemble(&draft.parts()).expect("is whole");
    let node = behaving(blocks, Behaviour { is_old: true, ..Behaviour::default() }).await;
    let answer = one(&node).await.blocks(range(20, 20)).await.expect("answers");
    assert_eq!(answer.len(), 1);
    assert_eq!((answer[0].facts, &answer[0].transactions), (whole.facts, &whole.transactions));
    assert!(Checks::from_bits_truncate(answer[0].facts.unverified).contains(Checks::SYSTEM_MISSING));
}

/// Blocks as old nodes have them, in which nothing of the system's is: each third one is empty.
fn of_an_old_spork(heights: std::ops::RangeInclusive<u64>) -> BTreeMap<u64, Draft> {
    let of = |height: u64| (height, Draft::new(height, if height.is_multiple_of(3) { &[] } else { &[1] }, 1));
    let mut blocks: BTreeMap<u64, Draft> = heights.map(of).collect();
    for draft in blocks.values_mut() {
        draft.transactions.pop();
        draft.execution_result = None;
    }
    blocks
}

#[tokio::test]
async fn an_empty_block_of_an_old_spork_is_sealed_where_the_nodes_newest_sealed_one_is_above() {
    let silent = Behaviour { is_old: true, is_silent_on_seals: true, ..Behaviour::default() };
    let old = behaving(of_an_old_spork(1..=60), silent.clone()).await;
    let live = serving(linked_blocks(61..=120, &[1], 1)).await;
    let source = FlowSource::connect(config(&[(&old, Some(1), Some(61)), (&live, None, None)]))
        .await
        .expect("connects");
    source.heads().await.expect("answers");
    let blocks = source.blocks(range(1, 16)).await.expect("answers");
    assert_eq!((blocks.len(), blocks[2].facts.tx_count, blocks[3].facts.tx_count), (16, 0, 1));
    assert!(Checks::from_bits_truncate(blocks[2].facts.unverified).contains(Checks::SYSTEM_MISSING));
    // What it said is remembered.
    let asked = old.asked("GetLatestBlockHeader");
    assert!((1..=5).contains(&asked), "once, or once for each that was asked for beside it: {asked}");
    assert_eq!(source.blocks(range(55, 60)).await.expect("answers").len(), 6);
    assert_eq!(old.asked("GetLatestBlockHeader"), asked);
    // Of one that grows it is asked where a height is above, and not for blocks whose results say it.
    let mut chain = Chain::new(of_an_old_spork(1..=6));
    chain.unsealed_heights = 1;
    let growing = FlowNode::start(chain, silent).await.expect("listens");
    let source = without_results(&growing).await;
    assert_eq!(source.blocks(range(1, 6)).await.expect("answers").len(), 5);
    growing.take_counts();
    assert_eq!(source.blocks(range(6, 6)).await.expect("answers"), [], "not yet");
    growing.state().chain.unsealed_heights = 0;
    assert_eq!(source.blocks(range(6, 6)).await.expect("answers").len(), 1);
    assert_eq!(source.blocks(range(4, 6)).await.expect("answers").len(), 3);
    assert_eq!(growing.take_counts().asked["GetLatestBlockHeader"], 2);
}

#[tokio::test]
async fn a_root_that_does_not_link_follows_where_that_is_accepted() {
    let old = serving(linked_blocks(1..=100, &[1], 1)).await;
    let mut blocks = linked_blocks(101..=120, &[1], 1);
    let root = blocks.get_mut(&101).expect("is there");
    root.block.parent_id = Bytes::from(vec![77; 32]);
    let live = serving(blocks).await;
    let nodes = [(&old, Some(1), Some(101)), (&live, None, None)];
    let source = FlowSource::connect(config(&nodes)).await.expect("connects");
    let below = source.blocks(range(90, 110)).await.expect("answers");
    assert_eq!(below.len(), 11, "cut where it stops linking");
    let tip = below[10].block_ref();
    let setting = source.boundary_setting(Height(101), tip).expect("is a boundary");
    assert_eq!(setting, format!("chain.flow.accepted_roots = [\"101:{}\"]", tip.id));
    assert_eq!(source.boundary_setting(Height(100), tip), None);

    let accepted = FlowConfig { accepted_roots: vec![(101, tip.id)], ..config(&nodes) };
    let source = FlowSource::connect(accepted).await.expect("connects");
    let blocks = source.blocks(range(90, 110)).await.expect("answers");
    assert_eq!(blocks.len(), 21);
    assert_eq!(blocks[11].facts.parent_id, tip.id);
    let unverified = |at: usize| Checks::from_bits_truncate(blocks[at].facts.unverified);
    assert!(unverified(11).contains(Checks::PARENT) && !unverified(12).contains(Checks::PARENT));
    let linked = source.linked_ref(Height(101)).await.expect("answers").expect("is there");
    assert_eq!(linked, blocks[11].facts.linked_ref());
    let stored = cairn_core::StoredBlock::from(&blocks[11]);
    assert_eq!(cairn_flow::check_stored(&stored).expect("holds"), blocks[11]);
}
