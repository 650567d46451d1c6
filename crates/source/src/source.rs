//! The trait that the ingester sees.

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};

use crate::Result;

/// What a source says of its tip, all from about one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// The newest block.
    pub latest: LinkedRef,
    /// The `safe` block, where the chain has one.
    pub safe: Option<BlockRef>,
    /// The finalised block by the source's finality policy (tag, depth, or the more careful of both); `None`: not known now.
    pub finalized: Option<BlockRef>,
}

/// A chain that can be asked for blocks.
///
/// Absence is `None` or a shorter answer and means "not yet here", never "empty": a node behind a load balancer may
/// not know a block that another one announced. Answers may come from different forks at different moments; the
/// ingester judges linkage.
#[async_trait]
pub trait ChainSource: Send + Sync {
    /// The chain that it serves.
    async fn chain_id(&self) -> Result<ChainId>;

    /// Its tip as it sees it now.
    async fn heads(&self) -> Result<Heads>;

    /// The header of the block that it holds canonical at `height`, checked against its own hash where the chain allows it.
    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>>;

    /// Whole blocks of `range` from its start, in order, each linked to the one before; as many as are there. Shorter than asked, or empty:
    /// the rest is not here yet (or the answers did not link). May return fewer to stay within its own limits, but at least one
    /// where the first one is there.
    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>>;

    /// The whole block at `height` as each place to ask gives it now, different answers each once: for whoever doubts what he was given before. Where a place
    /// doesn't answer, the others' count; an error where none does. Empty: it is not here yet.
    async fn answers(&self, height: Height) -> Result<Vec<RawBlock>> {
        self.blocks(HeightRange::one(height)).await
    }

    /// The names of the places to ask whose block at this height is `block` now; it stops asking once there are `enough`.
    async fn holders(&self, block: BlockRef, enough: usize) -> Result<Vec<String>> {
        let theirs = self.linked_ref(block.height).await?;
        let is_theirs = enough > 0 && theirs.is_some_and(|theirs| theirs.block == block);
        Ok(is_theirs.then(|| "the source".to_owned()).into_iter().collect())
    }

    /// How many heights it likes to be asked for in one call of [`ChainSource::blocks`]; may change as it learns.
    fn preferred_heights(&self) -> u64 {
        1
    }

    /// Waits until the source thinks that there may be a new head, at most for `at_most_ms`. A hint only: returning early or late is
    /// never wrong.
    async fn wait_for_head(&self, at_most_ms: u64) {
        tokio::time::sleep(std::time::Duration::from_millis(at_most_ms)).await;
    }

    /// Tells the source that the block which it gave for `height` was refused (law 6): one that has several places to ask should prefer another
    /// one for a while. A hint: ignoring it is never wrong.
    fn distrust(&self, _height: Height) {}

    /// Which of its places to ask gave the block at `height` last, by name; none where there is only one.
    fn served_by(&self, _height: Height) -> Option<String> {
        None
    }

    /// Where another stretch of nodes begins at `height`: what an operator sets, for people, so that its first block, which names another parent, follows
    /// `below`. Where it is `None`, blocks that don't link are a fork, or answers of two nodes.
    fn boundary_setting(&self, _height: Height, _below: BlockRef) -> Option<String> {
        None
    }

    /// What bounds it now, for people: "endpoint http://…: 8 of 8 requests in flight".
    fn bound_by(&self) -> String {
        String::new()
    }
}
