//! The synthetic chain as a live source.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{ChainId, Height, HeightRange, LinkedRef, RawBlock};
use tokio::time::Instant;

use super::chain::{ForkId, ForkOptions, SyntheticChain};
use super::draw::hash_words;
use super::view::View;
use crate::verify::Offload;
use crate::{ChainSource, Heads, Result, SourceError};

/// How a live synthetic chain grows.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// The head at the start: everything below is history already.
    pub start_height: u64,
    /// How often a block comes.
    pub block_time_ms: u64,
    /// A fork comes about every so many heights above the start; 0 for none.
    pub fork_every_heights: u64,
    /// How many blocks a fork replaces at most: the depths 1 to this come alike. Never more than `finality_depth_heights` or half of
    /// `fork_every_heights`.
    pub fork_depth_max_heights: u64,
    /// How far behind the head the safe block is.
    pub safe_depth_heights: u64,
    /// How far behind the head the finalised block is.
    pub finality_depth_heights: u64,
    /// Where it stops to grow.
    pub until_height: Option<u64>,
    /// Each block comes once the newest one was given out and somebody waits for the next: then whoever follows sees every fork, whatever the clock says.
    pub in_steps: bool,
    /// How many blocks it gives at once at most.
    pub heights_per_call: u64,
    /// Where blocks are made.
    pub offload: Offload,
}

impl Default for LiveOptions {
    fn default() -> Self {
        LiveOptions {
            start_height: 2_000,
            block_time_ms: 1_000,
            fork_every_heights: 37,
            fork_depth_max_heights: 6,
            safe_depth_heights: 8,
            finality_depth_heights: 16,
            until_height: None,
            in_steps: false,
            heights_per_call: 64,
            offload: Offload::Blocking,
        }
    }
}

/// A chain with a history that grows with the runtime's clock from the moment of its making, and forks now and then.
///
/// The canonical chain is [`ForkId::MAIN`] in the end. A fork is a side branch that is shown for its length and then replaced by the
/// main chain's blocks, every other one at the same height and the rest with the next block. Which heights fork, and how deep, follows from the chain's
/// seed; history below the start never does.
#[derive(Debug)]
pub struct SyntheticSource {
    chain: Arc<SyntheticChain>,
    options: LiveOptions,
    started: Instant,
    steps: Mutex<Steps>,
}

/// How far a chain that grows in steps has come.
#[derive(Debug, Default)]
struct Steps {
    /// Half a block's time each.
    taken: u64,
    /// The newest block that was given out.
    given: Option<(ForkId, Height)>,
}

impl SyntheticSource {
    /// Starts now.
    pub fn new(chain: Arc<SyntheticChain>, options: LiveOptions) -> SyntheticSource {
        let options = LiveOptions { block_time_ms: options.block_time_ms.max(1), ..options };
        SyntheticSource { chain, options, started: Instant::now(), steps: Mutex::default() }
    }

    /// The chain.
    pub fn chain(&self) -> &Arc<SyntheticChain> {
        &self.chain
    }

    /// What it sees now.
    pub fn view(&self) -> View {
        if self.options.in_steps {
            return self.view_after(self.steps().taken);
        }
        let elapsed_ms = self.elapsed_ms();
        let grown = elapsed_ms / self.options.block_time_ms;
        let late = elapsed_ms % self.options.block_time_ms >= self.options.block_time_ms / 2;
        self.view_at(self.options.start_height.saturating_add(grown), late)
    }

    fn view_after(&self, steps: u64) -> View {
        self.view_at(self.options.start_height.saturating_add(steps / 2), steps % 2 == 1)
    }

    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next step, where the newest block was given out.
    fn step(&self) {
        let mut steps = self.steps();
        let view = self.view_after(steps.taken);
        let has_ended = self.options.until_height.is_some_and(|until| view.head.get() >= until);
        if steps.given == Some((view.fork, view.head)) && !has_ended {
            steps.taken += 1;
        }
    }

    /// Makes the history, which otherwise happens at the first question: about 50 µs a transaction.
    pub async fn prepare(&self) -> Result<()> {
        let (chain, head) = (Arc::clone(&self.chain), self.view().head);
        self.options.offload.run("synthetic chain", move || drop(chain.block(ForkId::MAIN, head))).await
    }

    /// What it sees when the head's height is `head`, in the first or second half of the block's time.
    fn view_at(&self, head: u64, late: bool) -> View {
        let options = &self.options;
        let ended = options.until_height.filter(|until| *until <= head);
        let head = ended.unwrap_or(head);
        let behind = |heights: u64| Some(Height(head.saturating_sub(heights)));
        let fork = match ended {
            // What scripts find in the end is the main chain.
            Some(_) => ForkId::MAIN,
            None => self.fork_shown_at(head, late),
        };
        View {
            fork,
            head: Height(head),
            safe: behind(options.safe_depth_heights),
            finalized: behind(options.finality_depth_heights),
            served_to: None,
        }
    }

    fn fork_shown_at(&self, head: u64, late: bool) -> ForkId {
        let every = self.options.fork_every_heights;
        let deepest =
            self.options.fork_depth_max_heights.min(self.options.finality_depth_heights).min(every / 2);
        if deepest == 0 {
            return ForkId::MAIN;
        }
        // Episode n ends in [n × every, n × every + every / 2) and is at most every / 2 long.
        let episode = head.saturating_add(every / 2) / every;
        let drawn = hash_words(&[self.chain.options().seed, episode, 0xf0e4]);
        let last = episode.saturating_mul(every).saturating_add((drawn >> 32) % (every / 2));
        let depth = 1 + drawn % deepest;
        let base = last.saturating_sub(depth);
        let replaced_at_its_height = episode.is_multiple_of(2) && head == last && late;
        if base < self.options.start_height || head <= base || head > last || replaced_at_its_height {
            return ForkId::MAIN;
        }
        self.chain.fork_at((ForkId::MAIN, Height(base)), ForkOptions::new(episode | 1 << 63))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Asks the chain about one view, off the runtime's threads where blocks are made there.
    async fn ask<T, F>(&self, question: F) -> Result<T, SourceError>
    where
        T: Send + 'static,
        F: FnOnce(&SyntheticChain, View) -> T + Send + 'static,
    {
        let (chain, view) = (Arc::clone(&self.chain), self.view());
        self.options.offload.run("synthetic chain", move || question(&chain, view)).await
    }
}

#[async_trait]
impl ChainSource for SyntheticSource {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(self.chain.chain_id())
    }

    async fn heads(&self) -> Result<Heads> {
        self.ask(|chain, view| view.heads(chain)).await
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.ask(move |chain, view| view.linked_ref(chain, height)).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let limit = self.options.heights_per_call;
        let (blocks, given) =
            self.ask(move |chain, view| (view.blocks(chain, range, limit), (view.fork, view.head))).await?;
        if blocks.last().is_some_and(|last| last.facts.height == given.1) {
            self.steps().given = Some(given);
        }
        Ok(blocks)
    }

    fn preferred_heights(&self) -> u64 {
        self.options.heights_per_call.max(1)
    }

    /// Until the next block, or the moment at which a fork may be replaced at its height.
    async fn wait_for_head(&self, at_most_ms: u64) {
        let half_ms = (self.options.block_time_ms / 2).max(1);
        let next_ms = half_ms - self.elapsed_ms() % half_ms;
        tokio::time::sleep(Duration::from_millis(at_most_ms.min(next_ms))).await;
        if self.options.in_steps {
            self.step();
        }
    }

    fn bound_by(&self) -> String {
        "the synthetic chain: signing its transactions".into()
    }
}
