//! Moving the finalised mark.
//!
//! The source's finalised block is taken only at or below the tip, and only where it is the stored block: above the tip it proves nothing of the blocks below,
//! since behind a load balancer they may have come from a node that is stuck on a dead fork. An archive that catches up has the source's block above its tip
//! for as long as that takes, or for ever where it ends below. There its own block `max_reorg_depth_blocks` below the tip is the mark: what lies at or
//! below it is never undone in any case, since a fork that deep halts.

use cairn_core::{BlockRef, Fence, Height, RawBlock};
use cairn_source::Heads;
use cairn_store::HeadRow;

use super::Ingester;
use crate::IngestError;

/// While ranges are filled ahead the mark is a commit of its own: it is moved when it has so far to go.
const STEP_HEIGHTS: u64 = 64;

impl Ingester {
    /// Moves the finalised and safe marks as far as they agree with what is stored. A mark that contradicts the stored chain is not taken: if
    /// the chains really differ, the fork itself will show it.
    pub(super) async fn move_finality(
        &self,
        fence: Fence,
        head: HeadRow,
        tip: BlockRef,
        heads: &Heads,
    ) -> Result<HeadRow, IngestError> {
        let finalized = match heads.finalized {
            Some(mark) if mark.height > tip.height => self.behind(&head, tip.height, 1).await?,
            Some(mark) if head.finalized.is_none_or(|stored| mark.height > stored.height) => {
                let stored = self.store.snapshot().await?.linked_ref(mark.height).await?;
                match stored {
                    Some(ours) if ours.block.id == mark.id => Some(mark),
                    Some(ours) => {
                        tracing::warn!(node = %mark, stored = %ours.block, "the node's finalised block is not the stored one; not taken");
                        metrics::counter!("cairn_ingest_finality_conflicts_total").increment(1);
                        None
                    }
                    None => None,
                }
            }
            _ => None,
        };
        let safe = heads.safe.filter(|safe| head.safe != Some(*safe) && safe.height <= tip.height);
        if finalized.is_none() && safe.is_none() {
            return Ok(head);
        }
        let head = self.store.finalize(fence, finalized, safe).await?;
        self.status.head(&head);
        Ok(head)
    }

    /// The same while ranges are filled ahead, and the head advances over them; in steps.
    pub(super) async fn follow_advance(
        &self,
        fence: Fence,
        head: HeadRow,
        finalized: Option<BlockRef>,
    ) -> Result<(), IngestError> {
        let (Some(tip), Some(mark)) = (head.tip, finalized) else { return Ok(()) };
        if mark.height <= tip.height {
            return Ok(());
        }
        if let Some(ours) = self.behind(&head, tip.height, STEP_HEIGHTS).await? {
            let head = self.store.finalize(fence, Some(ours), None).await?;
            self.status.head(&head);
        }
        Ok(())
    }

    /// The finalised mark that goes with these blocks, which follow the tip: the source's where it is one of them; where it lies above them all, the archive's own
    /// block. One below them is left to [`Ingester::move_finality`].
    pub(super) async fn finalized_with(
        &self,
        heads: &Heads,
        blocks: &[RawBlock],
    ) -> Result<Option<BlockRef>, IngestError> {
        let (Some(mark), Some(last)) = (heads.finalized, blocks.last()) else { return Ok(None) };
        if mark.height <= last.facts.height {
            return Ok(blocks.iter().map(RawBlock::block_ref).find(|block| *block == mark));
        }
        let Some(at) = self.never_undone(last.facts.height) else { return Ok(None) };
        match blocks.iter().find(|block| block.facts.height == at) {
            Some(block) => Ok(Some(block.block_ref())),
            None => self.stored(at).await,
        }
    }

    /// The archive's own block where nothing is undone any more below a tip, if that is at least so far above the stored mark.
    async fn behind(
        &self,
        head: &HeadRow,
        tip: Height,
        step_heights: u64,
    ) -> Result<Option<BlockRef>, IngestError> {
        match (self.never_undone(tip), head.finalized) {
            (Some(at), Some(stored)) if at < stored.height + step_heights => Ok(None),
            (Some(at), _) => self.stored(at).await,
            (None, _) => Ok(None),
        }
    }

    /// The highest height that no reorg takes away while the tip is there.
    fn never_undone(&self, tip: Height) -> Option<Height> {
        tip.get().checked_sub(self.options.max_reorg_depth_blocks).map(Height)
    }

    /// `None` below the archive's first block, and where the chain skipped the height.
    async fn stored(&self, at: Height) -> Result<Option<BlockRef>, IngestError> {
        let linked = self.store.snapshot().await?.linked_ref(at).await?;
        Ok(linked.map(|linked| linked.block))
    }
}
