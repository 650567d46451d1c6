//! A node over a synthetic chain that is slow, silent or wrong where a test says so.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_source::evm::synthetic::{View, ViewOfChain};
use cairn_source::{ChainSource, Heads, Result, SourceError};
use tokio::time::Instant;

/// What a node was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    ChainId,
    Heads,
    Header(Height),
    Blocks(HeightRange),
}

type OnHeads = Box<dyn FnMut(Heads) -> Result<Heads> + Send>;
type OnHeader = Box<dyn FnMut(Height, Option<LinkedRef>) -> Result<Option<LinkedRef>> + Send>;
type OnBlocks = Box<dyn FnMut(HeightRange, Vec<RawBlock>) -> Result<Vec<RawBlock>> + Send>;
type Refuses = Box<dyn Fn(Asked) -> Result<()> + Send>;
type Hangs = Box<dyn Fn(Asked) -> bool + Send>;

/// The node; clones are the same one.
#[derive(Clone)]
pub struct Node(Arc<State>);

struct State {
    sight: ViewOfChain,
    began: Instant,
    latency_ms: AtomicU64,
    asked: Mutex<Vec<(u64, Asked)>>,
    given: Mutex<Vec<Height>>,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    hangs: Mutex<Option<Hangs>>,
    refuses: Mutex<Option<Refuses>>,
    on_heads: Mutex<Option<OnHeads>>,
    on_header: Mutex<Option<OnHeader>>,
    on_blocks: Mutex<Option<OnBlocks>>,
    boundary: Mutex<Option<Height>>,
}

/// Counts a call while it lasts, also where it is dropped.
struct InFlight<'a>(&'a State);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Node {
    pub fn new(sight: ViewOfChain) -> Node {
        Node(Arc::new(State {
            sight,
            began: Instant::now(),
            latency_ms: AtomicU64::new(1),
            asked: Mutex::default(),
            given: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            hangs: Mutex::default(),
            refuses: Mutex::default(),
            on_heads: Mutex::default(),
            on_header: Mutex::default(),
            on_blocks: Mutex::default(),
            boundary: Mutex::default(),
        }))
    }

    pub fn see(&self, view: View) {
        self.0.sight.set(view);
    }

    pub fn latency_ms(&self, ms: u64) {
        self.0.latency_ms.store(ms, Ordering::SeqCst);
    }

    /// Calls for which this is true are never answered.
    pub fn hang(&self, hangs: impl Fn(Asked) -> bool + Send + 'static) {
        *self.0.hangs.lock().unwrap() = Some(Box::new(hangs));
    }

    /// Calls fail with what this says.
    pub fn refuse(&self, refuses: impl Fn(Asked) -> Result<()> + Send + 'static) {
        *self.0.refuses.lock().unwrap() = Some(Box::new(refuses));
    }

    pub fn on_heads(&self, hook: impl FnMut(Heads) -> Result<Heads> + Send + 'static) {
        *self.0.on_heads.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn on_header(
        &self,
        hook: impl FnMut(Height, Option<LinkedRef>) -> Result<Option<LinkedRef>> + Send + 'static,
    ) {
        *self.0.on_header.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn on_blocks(
        &self,
        hook: impl FnMut(HeightRange, Vec<RawBlock>) -> Result<Vec<RawBlock>> + Send + 'static,
    ) {
        *self.0.on_blocks.lock().unwrap() = Some(Box::new(hook));
    }

    /// Another stretch of nodes begins here.
    pub fn boundary(&self, height: Height) {
        *self.0.boundary.lock().unwrap() = Some(height);
    }

    /// From now on everything is answered at once, and truly.
    pub fn well(&self) {
        *self.0.hangs.lock().unwrap() = None;
        *self.0.refuses.lock().unwrap() = None;
        *self.0.on_heads.lock().unwrap() = None;
        *self.0.on_header.lock().unwrap() = None;
        *self.0.on_blocks.lock().unwrap() = None;
    }

    /// What it was asked since the last look, with the simulated milliseconds since its making.
    pub fn take_asked(&self) -> Vec<(u64, Asked)> {
        std::mem::take(&mut self.0.asked.lock().unwrap())
    }

    /// How often it was asked for its heads since the last look.
    pub fn take_heads(&self) -> usize {
        self.take_asked().iter().filter(|(_, asked)| *asked == Asked::Heads).count()
    }

    /// The heights of the blocks that it gave, in the order of the answers.
    pub fn given(&self) -> Vec<Height> {
        self.0.given.lock().unwrap().clone()
    }

    /// The most calls for blocks that were under way at a time.
    pub fn most_in_flight(&self) -> usize {
        self.0.most_in_flight.load(Ordering::SeqCst)
    }

    async fn travel(&self, asked: Asked) -> Result<()> {
        let at_ms = self.0.began.elapsed().as_millis() as u64;
        self.0.asked.lock().unwrap().push((at_ms, asked));
        let hangs = self.0.hangs.lock().unwrap().as_ref().is_some_and(|hangs| hangs(asked));
        if hangs {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(self.0.latency_ms.load(Ordering::SeqCst))).await;
        self.0.refuses.lock().unwrap().as_ref().map_or(Ok(()), |refuses| refuses(asked))
    }
}

#[async_trait]
impl ChainSource for Node {
    async fn chain_id(&self) -> Result<ChainId> {
        self.travel(Asked::ChainId).await?;
        self.0.sight.chain_id().await
    }

    async fn heads(&self) -> Result<Heads> {
        self.travel(Asked::Heads).await?;
        let heads = self.0.sight.heads().await?;
        match &mut *self.0.on_heads.lock().unwrap() {
            Some(hook) => hook(heads),
            None => Ok(heads),
        }
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.travel(Asked::Header(height)).await?;
        let found = self.0.sight.linked_ref(height).await?;
        match &mut *self.0.on_header.lock().unwrap() {
            Some(hook) => hook(height, found),
            None => Ok(found),
        }
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let now = self.0.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most_in_flight.fetch_max(now, Ordering::SeqCst);
        let _in_flight = InFlight(&self.0);
        self.travel(Asked::Blocks(range)).await?;
        let honest = self.0.sight.blocks(range).await?;
        let answer = match &mut *self.0.on_blocks.lock().unwrap() {
            Some(hook) => hook(range, honest)?,
            None => honest,
        };
        self.0.given.lock().unwrap().extend(answer.iter().map(|block| block.facts.height));
        Ok(answer)
    }

    fn boundary_setting(&self, height: Height, below: BlockRef) -> Option<String> {
        let is_boundary = *self.0.boundary.lock().unwrap() == Some(height);
        is_boundary.then(|| format!("accepted_roots {height}:{}", below.id))
    }

    fn preferred_heights(&self) -> u64 {
        self.0.sight.preferred_heights()
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        self.0.sight.wait_for_head(at_most_ms).await;
    }
}

/// The network failed.
pub fn transient() -> SourceError {
    SourceError::Transient { endpoint: "the node".into(), message: "timed out".into() }
}

/// Asked too often.
pub fn rate_limited() -> SourceError {
    SourceError::RateLimited {
        endpoint: "the node".into(),
        message: "too many requests".into(),
        retry_after_ms: None,
    }
}
