//! A scripted node, a store in memory, and an ingester between them, on paused time.

pub mod derive;
pub mod gauges;
pub mod node;
pub mod reading;

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use cairn_core::{BlockRef, Clock, Height, HeightRange};
use cairn_pipeline::IngestError;
use cairn_pipeline::ingest::{Finished, IngestOptions, Ingester, Reports};
use cairn_pipeline::status::{IngestState, StatusBoard};
use cairn_source::ChainSource;
use cairn_source::evm::synthetic::{
    ForkId, ForkOptions, SyntheticChain, SyntheticOptions, Traffic, View, ViewOfChain,
};
use cairn_source::verify::{Offload, Verified, VerifyOptions};
use cairn_store::memory::{CommitHook, MemoryStore};
use cairn_store::{
    AppendBatch, Dump, HeadRow, RawDump, RawReader, RawSnapshot, RawWriter, StoreError, StoreInfo,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::node::Node;

pub const MAIN: ForkId = ForkId::MAIN;

/// How long a test waits for what must happen, in simulated time.
const PATIENCE: Duration = Duration::from_secs(1_800);

static TRAFFIC: LazyLock<Arc<Traffic>> = LazyLock::new(SyntheticChain::tiny_traffic);

/// A small chain; all of them share the transactions that they carry.
pub fn tiny(seed: u64) -> Arc<SyntheticChain> {
    tiny_with(SyntheticOptions::tiny(seed))
}

pub fn tiny_with(options: SyntheticOptions) -> Arc<SyntheticChain> {
    Arc::new(SyntheticChain::with_traffic(options, TRAFFIC.clone()))
}

/// A fork of the main chain that shares everything up to `common`.
pub fn fork(chain: &SyntheticChain, common: u64, salt: u64) -> ForkId {
    chain.fork_at((MAIN, Height(common)), ForkOptions::new(salt))
}

/// What a node shows of a fork.
pub fn view(fork: ForkId, head: u64, finalized: Option<u64>) -> View {
    View { finalized: finalized.map(Height), ..View::new(fork, Height(head)) }
}

/// Lets simulated time pass.
pub async fn pass_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Simulated time since a fixed moment.
#[derive(Debug, Clone, Copy)]
pub struct TestClock(Instant);

impl TestClock {
    /// One that begins now.
    pub fn now() -> TestClock {
        TestClock(Instant::now())
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.elapsed().as_millis() as u64
    }
}

type Fault = Box<dyn FnMut(When, &'static str, usize) -> Option<StoreError> + Send>;

/// The side of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// Remembers the store's commits by name, and breaks some where it is told to.
#[derive(Default)]
pub struct Commits {
    seen: Mutex<Vec<&'static str>>,
    fault: Mutex<Option<Fault>>,
}

impl Commits {
    /// `fault` gets the side, the verb, and how often that verb was tried before.
    pub fn fail(&self, fault: impl FnMut(When, &'static str, usize) -> Option<StoreError> + Send + 'static) {
        *self.fault.lock().unwrap() = Some(Box::new(fault));
    }

    pub fn heal(&self) {
        *self.fault.lock().unwrap() = None;
    }

    pub fn count(&self, verb: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| **seen == verb).count()
    }

    pub fn total(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn ask(&self, when: When, verb: &'static str, before: usize) -> cairn_store::Result<()> {
        match &mut *self.fault.lock().unwrap() {
            Some(fault) => fault(when, verb, before).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }
}

impl CommitHook for Commits {
    fn before(&self, verb: &'static str) -> cairn_store::Result<()> {
        let before = self.count(verb);
        self.seen.lock().unwrap().push(verb);
        self.ask(When::Before, verb, before)
    }

    fn after(&self, verb: &'static str) -> cairn_store::Result<()> {
        self.ask(When::After, verb, self.count(verb) - 1)
    }
}

pub fn busy() -> StoreError {
    StoreError::Busy("a test says so".into())
}

/// A node, a store and the settings of an ingester between them.
pub struct World {
    pub chain: Arc<SyntheticChain>,
    pub node: Node,
    pub store: MemoryStore,
    pub commits: Arc<Commits>,
    pub clock: Arc<TestClock>,
    pub options: IngestOptions,
    pub reports: Reports,
}

impl World {
    /// An empty store beside a node that shows `view`.
    pub fn new(chain: Arc<SyntheticChain>, view: View) -> World {
        let clock = Arc::new(TestClock(Instant::now()));
        let store = MemoryStore::new(clock.clone());
        let commits = Arc::new(Commits::default());
        store.set_hook(Some(commits.clone()));
        let options = IngestOptions {
            batch_blocks: 16,
            fetches_in_flight: 4,
            poll_ms: 500,
            ..IngestOptions::new(info(&chain))
        };
        World {
            node: Node::new(ViewOfChain::new(chain.clone(), view)),
            chain,
            store,
            commits,
            clock,
            options,
            reports: Reports::default(),
        }
    }

    /// The same with other settings.
    pub fn with(mut self, change: impl FnOnce(&mut IngestOptions)) -> World {
        change(&mut self.options);
        self
    }

    /// Lets the node show something else.
    pub fn see(&self, view: View) {
        self.node.see(view);
    }

    /// An ingester from the node, every block checked.
    pub fn start(&self) -> Running {
        self.start_from(Arc::new(verified(self.node.clone())), self.options.clone())
    }

    /// An ingester from any source.
    pub fn start_from(&self, source: Arc<dyn ChainSource>, options: IngestOptions) -> Running {
        let board = StatusBoard::new(self.clock.clone());
        let store = Arc::new(self.store.clone());
        let ingester = Ingester::new(source, store, self.clock.clone(), board.clone(), options)
            .with_reports(self.reports.clone());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { ingester.run(shutdown).await }
        });
        Running { board, shutdown, task }
    }

    pub async fn snapshot(&self) -> Arc<dyn RawSnapshot> {
        self.store.snapshot().await.expect("the store was made")
    }

    pub async fn head(&self) -> HeadRow {
        self.snapshot().await.head().clone()
    }

    pub async fn tip(&self) -> Option<BlockRef> {
        self.head().await.tip
    }

    /// Waits until the tip is the block of `fork` at `height`, and no purge is pending.
    pub async fn until_tip(&self, fork: ForkId, height: u64) {
        let want = self.chain.block_ref(fork, Height(height));
        self.until(&format!("tip {want}"), |head| head.tip == Some(want) && head.pending_purge.is_none())
            .await;
    }

    /// Waits until the head row is as asked.
    pub async fn until(&self, what: &str, arrived: impl Fn(&HeadRow) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(snapshot) = self.store.snapshot().await {
                if arrived(snapshot.head()) {
                    return;
                }
                assert!(Instant::now() < deadline, "waited for {what}: {:?}", snapshot.head());
            }
            assert!(Instant::now() < deadline, "waited for {what}: the store was never made");
            pass_ms(20).await;
        }
    }

    /// The store holds exactly the blocks `first..=last` of `fork` and everything that belongs to them.
    pub async fn assert_holds(&self, fork: ForkId, first: u64, last: u64) {
        let finalized = self.head().await.finalized;
        let want =
            clean(&self.chain, fork, HeightRange::inclusive(Height(first), Height(last)), finalized).await;
        let dump = self.store.dump().await.expect("dumps");
        assert_eq!(dump.first_difference(&want), None, "left: the store, right: a clean one");
    }
}

pub fn info(chain: &SyntheticChain) -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: chain.chain_id(), chain_config: Default::default() }
}

/// Every block checked, in place.
pub fn verified(node: Node) -> Verified<Node> {
    Verified::new(
        node,
        VerifyOptions { offload: Offload::Inline, parallelism: 1, ..VerifyOptions::default() },
    )
}

/// The dump of a store that was given these blocks and nothing else.
pub async fn clean(
    chain: &SyntheticChain,
    fork: ForkId,
    range: HeightRange,
    finalized: Option<BlockRef>,
) -> Dump {
    let store = MemoryStore::new(Arc::new(TestClock(Instant::now())));
    store.init(info(chain)).await.expect("is made");
    let fence = store.acquire().await.expect("acquires").fence;
    let blocks = range.iter().map(|height| (*chain.block(fork, height)).clone()).collect();
    store.append(fence, AppendBatch { blocks, finalized, safe: None }).await.expect("appends");
    store.dump().await.expect("dumps")
}

/// An ingester at work.
pub struct Running {
    pub board: StatusBoard,
    pub shutdown: CancellationToken,
    task: JoinHandle<Result<Finished, IngestError>>,
}

impl Running {
    /// Waits for its end.
    pub async fn end(self) -> Result<Finished, IngestError> {
        let ended = tokio::time::timeout(PATIENCE, self.task).await;
        ended.expect("it ends by itself").expect("no panic")
    }

    /// Asks it to stop, and says how long that took.
    pub async fn stop(self) -> (Result<Finished, IngestError>, u64) {
        self.shutdown.cancel();
        let asked = Instant::now();
        let ended = self.end().await;
        (ended, asked.elapsed().as_millis() as u64)
    }

    /// Asks it to stop and wants a good end.
    pub async fn stop_well(self) {
        assert_eq!(self.stop().await.0.expect("no error"), Finished::Stopped);
    }

    /// Kills it where it stands.
    pub async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()), "it had ended by itself");
    }

    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// The text of `Waiting` or `Halted`; empty in other states.
    pub fn reason(&self) -> String {
        match self.board.get().state {
            IngestState::Waiting(reason) | IngestState::Halted(reason) => reason,
            _ => String::new(),
        }
    }
}
