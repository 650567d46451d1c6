//! A node that sees exactly what it is told to.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{ChainId, Height, HeightRange, LinkedRef, RawBlock};
use tokio::sync::Notify;

use super::chain::{ForkId, SyntheticChain};
use crate::{ChainSource, Heads, Result};

/// What a node sees of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The fork that it holds canonical.
    pub fork: ForkId,
    /// The newest block that it announces.
    pub head: Height,
    /// The block that it calls safe.
    pub safe: Option<Height>,
    /// The block that it calls finalised.
    pub finalized: Option<Height>,
    /// The newest block that it can give, where that is not the announced one: heights above are "not yet" (`None`).
    pub served_to: Option<Height>,
}

impl View {
    /// A node whose head is `head`, which serves all of it and calls nothing safe or finalised.
    pub fn new(fork: ForkId, head: Height) -> View {
        View { fork, head, safe: None, finalized: None, served_to: None }
    }

    /// The heads of this view.
    pub fn heads(&self, chain: &SyntheticChain) -> Heads {
        let at = |height: Option<Height>| height.map(|height| chain.block_ref(self.fork, height));
        Heads {
            latest: chain.linked_ref(self.fork, self.head),
            safe: at(self.safe),
            finalized: at(self.finalized),
        }
    }

    /// The header at `height`, where the node has it.
    pub fn linked_ref(&self, chain: &SyntheticChain, height: Height) -> Option<LinkedRef> {
        (height <= self.last_served()).then(|| chain.linked_ref(self.fork, height))
    }

    /// What the node has of the range from its start on, at most `limit_heights` blocks.
    pub fn blocks(&self, chain: &SyntheticChain, range: HeightRange, limit_heights: u64) -> Vec<RawBlock> {
        let end = self.last_served().next().min(range.end()).min(range.start() + limit_heights.max(1));
        HeightRange::new(range.start(), end)
            .iter()
            .map(|height| RawBlock::clone(&chain.block(self.fork, height)))
            .collect()
    }

    fn last_served(&self) -> Height {
        self.served_to.map_or(self.head, |to| to.min(self.head))
    }
}

/// A [`ChainSource`] that gives one [`View`] of a chain until it is told another one. Answers are complete, true and immediate;
/// whoever wants faults puts them around it.
#[derive(Debug)]
pub struct ViewOfChain {
    chain: Arc<SyntheticChain>,
    view: Mutex<View>,
    moved: Notify,
    preferred_heights: u64,
}

impl ViewOfChain {
    /// A node of this chain that sees `view`, and likes to be asked for 16 heights at once.
    pub fn new(chain: Arc<SyntheticChain>, view: View) -> ViewOfChain {
        ViewOfChain { chain, view: Mutex::new(view), moved: Notify::new(), preferred_heights: 16 }
    }

    /// The same, with as many heights as it likes to be asked for (and gives) at once.
    pub fn preferring(self, heights: u64) -> ViewOfChain {
        ViewOfChain { preferred_heights: heights.max(1), ..self }
    }

    /// The chain.
    pub fn chain(&self) -> &Arc<SyntheticChain> {
        &self.chain
    }

    /// What it sees now.
    pub fn view(&self) -> View {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets it see something else, and wakes whoever waits for a head.
    pub fn set(&self, view: View) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
        self.moved.notify_waiters();
    }
}

#[async_trait]
impl ChainSource for ViewOfChain {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(self.chain.chain_id())
    }

    async fn heads(&self) -> Result<Heads> {
        Ok(self.view().heads(&self.chain))
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        Ok(self.view().linked_ref(&self.chain, height))
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        Ok(self.view().blocks(&self.chain, range, self.preferred_heights))
    }

    fn preferred_heights(&self) -> u64 {
        self.preferred_heights
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        // Early or late is never wrong, so it doesn't matter which of the two ends the pause.
        let _ = tokio::time::timeout(Duration::from_millis(at_most_ms), self.moved.notified()).await;
    }

    fn bound_by(&self) -> String {
        "a synthetic node".into()
    }
}
