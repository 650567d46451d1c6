//! A node that leads with a fork of its own rolls nothing back where more nodes have to confirm it.

// Tests may.

use crate::support;

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_pipeline::status::HEAD_QUORUM;
use cairn_source::evm::synthetic::{View, ViewOfChain};
use cairn_source::{ChainSource, Heads, Result};
use support::node::Node;
use support::*;

/// Three nodes, of which the one with the highest head leads: it is asked for everything.
struct Three([Node; 3]);

impl Three {
    async fn leader(&self) -> &Node {
        let mut best: Option<(&Node, Height)> = None;
        for node in &self.0 {
            let head = node.heads().await.unwrap().latest.block.height;
            best = best.filter(|(_, height)| *height >= head).or(Some((node, head)));
        }
        best.unwrap().0
    }
}

#[async_trait]
impl ChainSource for Three {
    async fn chain_id(&self) -> Result<ChainId> {
        self.0[0].chain_id().await
    }

    async fn heads(&self) -> Result<Heads> {
        self.leader().await.heads().await
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.leader().await.linked_ref(height).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        self.leader().await.blocks(range).await
    }

    async fn holders(&self, block: BlockRef, enough: usize) -> Result<Vec<String>> {
        let mut holders = Vec::new();
        for (index, node) in self.0.iter().enumerate() {
            if holders.len() < enough && !node.holders(block, 1).await?.is_empty() {
                holders.push(format!("node {index}"));
            }
        }
        Ok(holders)
    }
}

/// A world of three honest nodes at height 40, all stored.
async fn three(seed: u64, quorum: usize) -> (World, [Node; 3], Running) {
    let at = view(MAIN, 40, Some(10));
    let world = World::new(tiny(seed), at).with(|options| options.head_quorum = quorum);
    let nodes = [(); 3].map(|()| Node::new(ViewOfChain::new(world.chain.clone(), at)));
    let running = world.start_from(Arc::new(Three(nodes.clone())), world.options.clone());
    world.until_tip(MAIN, 40).await;
    (world, nodes, running)
}

fn all(nodes: &[Node], view: View) {
    nodes.iter().for_each(|node| node.see(view));
}

#[tokio::test(start_paused = true)]
async fn a_liar_that_leads_rolls_nothing_back_until_others_have_its_fork() {
    let (world, nodes, running) = three(1, 2).await;
    let other = fork(&world.chain, 36, 1);
    nodes[0].see(view(other, 43, Some(10)));
    pass_ms(600_000).await;
    assert_eq!(world.tip().await, Some(world.chain.block_ref(MAIN, Height(40))));
    let obstacle = running.board.get().obstacle.expect("it waits");
    assert_eq!(
        (obstacle.code, obstacle.height, obstacle.is_lasting()),
        (HEAD_QUORUM, Some(Height(37)), true)
    );
    assert!(
        obstacle.message.contains("head_quorum = 2") && obstacle.message.contains("node 0"),
        "{obstacle:?}"
    );

    // The others leave it behind: blocks on the stored chain need nobody's word.
    all(&nodes[1..], view(MAIN, 50, Some(10)));
    world.until_tip(MAIN, 50).await;
    assert_eq!((world.head().await.newest_reorg.id, running.board.get().reorgs), (0, 0));
    pass_ms(1_000).await;
    assert_eq!(running.board.get().obstacle, None);

    // A fork that a second one has too is followed, also where the first one leads.
    let real = fork(&world.chain, 45, 2);
    nodes[0].see(view(real, 53, Some(10)));
    nodes[2].see(view(real, 51, Some(10)));
    world.until_tip(real, 53).await;
    assert_eq!(running.board.get().reorgs, 1);
    world.assert_holds(real, 0, 53).await;
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_liar_halts_nothing_by_a_fork_that_is_too_deep() {
    let (world, nodes, running) = three(2, 2).await;
    // Below finality.
    let other = fork(&world.chain, 5, 1);
    nodes[0].see(view(other, 60, Some(4)));
    pass_ms(600_000).await;
    assert!(running.is_running(), "one node's word is not enough");
    assert_eq!(running.board.get().obstacle.expect("it waits").code, HEAD_QUORUM);
    // Where others say it too, the data contradict what is final.
    nodes[1].see(view(other, 60, Some(4)));
    let error = running.end().await.expect_err("it halts");
    assert!(error.to_string().contains("below finality"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn without_a_quorum_the_leader_is_believed() {
    let (world, nodes, running) = three(3, 1).await;
    let other = fork(&world.chain, 36, 1);
    nodes[0].see(view(other, 43, Some(10)));
    world.until_tip(other, 43).await;
    running.stop_well().await;
}
