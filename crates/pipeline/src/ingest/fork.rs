//! Deciding about a fork: what is a reorg, what is a node that lags or lies, and what must halt.
//!
//! A lower head is lag, never a reorg. A reorg is a chain of headers, each linked to the next, that the node holds canonical
//! and that leaves the stored chain at a block both share; its first block must be there, whole and verified, before anything is
//! rolled back. A chain that isn't longer than the stored one, and any verdict that would halt, has to be told
//! the same way several times in a row, since a load balancer in front of nodes on two forks says each once. Where a quorum is configured, so many
//! nodes have to have the fork's first block.

use cairn_core::{BlockId, BlockRef, Height, HeightRange, LinkedRef, Parts};
use cairn_source::Heads;
use cairn_store::{HeadRow, PurgeProgress, Rollback};

use super::{Ingester, PURGE_STEP_BLOCKS, Session, Turn};
use crate::IngestError;
use crate::backoff::Backoff;

/// How many stored references are read at a time on the way down.
const WALK_CHUNK_HEIGHTS: u64 = 64;

/// A verdict that halts is never urgent: it needs this many times the confirmations of a reorg.
const HALT_CONFIRMATIONS: u32 = 5;
/// How often a header is asked for before a walk is given up.
const HEADER_ATTEMPTS: u32 = 6;
/// The first pause between two of these, in milliseconds.
const HEADER_PAUSE_MS: u64 = 50;

/// A story that a node has told, and how often in a row.
#[derive(Debug, Clone)]
pub(super) struct Suspicion {
    story: Story,
    told: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Story {
    /// The chains part after `common`; the node's next block is `first`.
    Fork { common: BlockRef, first: BlockId },
    /// They part below what may be undone.
    TooFar { at: Height, theirs: BlockId },
}

/// Where the walk down ended.
enum Walk {
    /// The last common block, and the node's block after it (`None`: the node agrees with the tip).
    Common { common: BlockRef, next: Option<LinkedRef> },
    /// A difference that may not be undone.
    TooFar { theirs: LinkedRef, error: IngestError },
    /// The node's answers don't fit each other.
    Unsettled(String),
}

impl Ingester {
    /// Finds out what a difference between the node's chain and the stored one means, and rolls back if it is a reorg.
    /// `above` is the node's block right above our tip, where one was seen.
    pub(super) async fn resolve_fork(
        &self,
        session: &mut Session,
        head: &HeadRow,
        heads: &Heads,
        above: Option<LinkedRef>,
    ) -> Result<Turn, IngestError> {
        let (Some(tip), Some(first)) = (head.tip, head.first) else {
            return Ok(Turn::Unsettled("the first blocks don't link to each other".into()));
        };
        let latest = heads.latest.block;
        match self.walk_down(head, tip, first, heads, above).await? {
            Walk::Unsettled(reason) => {
                session.suspicion = None;
                Ok(Turn::Unsettled(reason))
            }
            Walk::TooFar { theirs, error } if latest.height <= tip.height => {
                // A node that is not ahead, on a fork that died: lag, not a reorg (field case E20).
                session.suspicion = None;
                Ok(Turn::Unsettled(format!(
                    "the node is not ahead, at {latest}, and on a fork that was left; its block {} is not the stored one ({error})",
                    theirs.block
                )))
            }
            Walk::TooFar { theirs, error } => {
                let story = Story::TooFar { at: theirs.block.height, theirs: theirs.block.id };
                if self.told(session, story) < self.options.confirmations.max(1) * HALT_CONFIRMATIONS {
                    return Ok(Turn::Unsettled(format!("to be confirmed: {error}")));
                }
                self.confirm(theirs.block).await?;
                Err(error)
            }
            Walk::Common { next: None, .. } => {
                session.suspicion = None;
                Ok(Turn::Unsettled("the node's answers came from two forks".into()))
            }
            Walk::Common { common, next: Some(next) } => {
                // One telling is enough where all of it hangs together, from the announced head down.
                let whole_story = (1..=WALK_CHUNK_HEIGHTS).contains(&latest.height.since(tip.height));
                let needed = if whole_story { 1 } else { self.options.confirmations.max(1) };
                let told = self.told(session, Story::Fork { common, first: next.block.id });
                if told < needed {
                    return Ok(Turn::Unsettled(format!(
                        "the node replaced block {} by {}; told {told} of {needed} times",
                        common.height.next(),
                        next.block
                    )));
                }
                self.confirm(next.block).await?;
                self.roll_back(session, tip, common, next).await
            }
        }
    }

    /// Demands that enough nodes say that `block`, the first that differs from a stored one, is theirs.
    async fn confirm(&self, block: BlockRef) -> Result<(), IngestError> {
        let quorum = self.options.head_quorum;
        if quorum <= 1 {
            return Ok(());
        }
        let holders = self.source.holders(block, quorum).await?;
        match holders.len() < quorum {
            true => Err(IngestError::HeadQuorum { block, holders, quorum }),
            false => Ok(()),
        }
    }

    fn told(&self, session: &mut Session, story: Story) -> u32 {
        let told = match &session.suspicion {
            Some(before) if before.story == story => before.told + 1,
            _ => 1,
        };
        session.suspicion = Some(Suspicion { story, told });
        told
    }

    async fn walk_down(
        &self,
        head: &HeadRow,
        tip: BlockRef,
        first: Height,
        heads: &Heads,
        above: Option<LinkedRef>,
    ) -> Result<Walk, IngestError> {
        let latest = heads.latest;
        let mut above = above;
        let mut at = tip.height.min(latest.block.height);
        // From the announced head down, so that the whole story is one node's; from right above the tip where the head is far.
        let lead = latest.block.height.since(tip.height);
        if (1..=WALK_CHUNK_HEIGHTS).contains(&lead) {
            above = None;
            at = latest.block.height;
        }
        let mut ours = StoredRefs::default();
        loop {
            let theirs = if at == latest.block.height { Some(latest) } else { self.header_at(at).await? };
            let Some(theirs) = theirs else {
                return Ok(Walk::Unsettled(format!("the node does not give its header at height {at}")));
            };
            if let Some(above) = above
                && above.parent_id != theirs.block.id
            {
                if theirs.block == tip
                    && let Some(setting) = self.source.boundary_setting(above.block.height, tip)
                {
                    let LinkedRef { block: root, parent_id } = above;
                    let error = IngestError::Unlinked { root, parent_id, below: tip, setting };
                    tracing::warn!(%error, "two sporks don't link");
                    return Ok(Walk::TooFar { theirs: above, error });
                }
                return Ok(Walk::Unsettled(format!(
                    "the node's header {} does not follow its header {}",
                    above.block, theirs.block
                )));
            }
            if at > tip.height {
                above = Some(theirs);
                at = at - 1;
                continue;
            }
            let Some(stored) = self.stored_ref(&mut ours, first, at).await? else {
                return Ok(Walk::Unsettled(format!(
                    "height {at} is not stored any more: another process has the head"
                )));
            };
            if stored.id == theirs.block.id {
                let next = above.filter(|_| at < tip.height);
                return Ok(Walk::Common { common: stored, next });
            }
            let limit = self.options.max_reorg_depth_blocks;
            let is_too_deep = tip.height.since(at) + 1 > limit;
            // While the archive catches up the mark is where the limit is: what is deeper is called so.
            if let Some(finalized) = head.finalized.filter(|finalized| at <= finalized.height && !is_too_deep)
            {
                let error = IngestError::BelowFinality { at, theirs: theirs.block, ours: stored, finalized };
                return Ok(Walk::TooFar { theirs, error });
            }
            if at == first {
                return Ok(Walk::TooFar { theirs, error: IngestError::AnchorGone { anchor: stored } });
            }
            if is_too_deep {
                return Ok(Walk::TooFar {
                    theirs,
                    error: IngestError::TooDeep { at, theirs: theirs.block, tip, limit },
                });
            }
            above = Some(theirs);
            at = at - 1;
        }
    }

    /// The node's header at `at`. A walk asks for many, so one that goes astray is asked for again before the walk is given up.
    async fn header_at(&self, at: Height) -> Result<Option<LinkedRef>, IngestError> {
        let mut pauses = Backoff::new(HEADER_PAUSE_MS, HEADER_PAUSE_MS * 8, self.options.seed ^ at.get());
        loop {
            let answer = self.source.linked_ref(at).await;
            let again = match &answer {
                Ok(header) => header.is_none(),
                Err(error) => error.kind().is_retryable(),
            };
            if !again || pauses.tries() + 1 >= HEADER_ATTEMPTS {
                return answer.map_err(|error| error.at(at).into());
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    /// The stored block at `at`, read in chunks: no snapshot is held while the node is asked.
    async fn stored_ref(
        &self,
        refs: &mut StoredRefs,
        first: Height,
        at: Height,
    ) -> Result<Option<BlockRef>, IngestError> {
        if let Some(found) = refs.get(at) {
            return Ok(Some(found));
        }
        let range = HeightRange::inclusive(at.saturating_sub(WALK_CHUNK_HEIGHTS - 1).max(first), at);
        let read = self.store.snapshot().await?.blocks(range, Parts::empty(), u64::MAX).await?;
        refs.0 = read.blocks.iter().map(|block| block.facts.block_ref()).collect();
        if read.next <= at {
            // Time ended the read below it: it is asked for alone.
            let linked = self.store.snapshot().await?.linked_ref(at).await?;
            return Ok(linked.map(|linked| linked.block));
        }
        Ok(refs.get(at))
    }

    async fn roll_back(
        &self,
        session: &mut Session,
        tip: BlockRef,
        common: BlockRef,
        next: LinkedRef,
    ) -> Result<Turn, IngestError> {
        let first = common.height.next();
        let replacement = self.source.blocks(HeightRange::one(first)).await;
        let replacement = replacement.map_err(|error| error.at(first))?;
        let fits = replacement
            .first()
            .is_some_and(|block| block.block_ref() == next.block && block.facts.parent_id == common.id);
        if !fits {
            return Ok(Turn::Unsettled(format!(
                "the node announced block {}, but does not give it whole yet",
                next.block
            )));
        }
        let depth = tip.height.since(common.height);
        let rollback = Rollback {
            common,
            max_depth: self.options.max_reorg_depth_blocks,
            decided_at_ms: self.clock.now_ms(),
        };
        let entry = self.store.rollback(session.fence, rollback).await?;
        tracing::info!(reorg_id = entry.id, depth, %common, old_tip = %tip, new_block = %next.block, "reorg");
        self.status.reorged(depth);
        session.suspicion = None;
        while self.store.purge_step(session.fence, PURGE_STEP_BLOCKS).await? != PurgeProgress::Done {}
        Ok(Turn::Moved)
    }
}

/// A few stored references, ascending.
#[derive(Default)]
struct StoredRefs(Vec<BlockRef>);

impl StoredRefs {
    fn get(&self, at: Height) -> Option<BlockRef> {
        self.0.iter().find(|block| block.height == at).copied()
    }
}
