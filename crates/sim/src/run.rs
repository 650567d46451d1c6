//! Playing one plan.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{BlockRef, Clock, ErrorKind, HeightRange};
use cairn_pipeline::IngestError;
use cairn_pipeline::ingest::{FillOptions, Finished, IngestOptions, Ingester};
use cairn_pipeline::status::StatusBoard;
use cairn_source::evm::synthetic::{ForkId, SyntheticChain, SyntheticOptions, Traffic};
use cairn_source::verify::{Offload, Verified, VerifyOptions};
use cairn_store::memory::MemoryStore;
use cairn_store::{AppendBatch, Dump, RawDump, RawReader, RawWriter, StoreInfo};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::crash::{Blow, Crashes};
use crate::derived::{self, DerivedSide, Ended, WorkerProcess};
use crate::node::FaultyNodes;
use crate::observer::Observer;
use crate::plan::{self, Expected, Plan};

/// How long the nodes may be quiet before a run that has not converged has failed, in simulated time.
const PATIENCE: Duration = Duration::from_secs(2 * 3_600);

/// What all seeds share: accounts whose transactions are signed once.
#[derive(Debug, Clone)]
pub struct World {
    traffic: Arc<Traffic>,
}

impl Default for World {
    fn default() -> Self {
        World { traffic: SyntheticChain::tiny_traffic() }
    }
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Commits that were tried.
    pub commits: u64,
    /// Reorgs in the log at the end.
    pub reorgs: u64,
    /// Processes that were started.
    pub processes: u64,
    /// Verbs of the derived side that were tried.
    pub derived_verbs: u64,
    /// Worker processes that were started.
    pub workers: u64,
    /// Looks that the reader took.
    pub looks: u64,
    /// Simulated milliseconds.
    pub took_ms: u64,
}

/// A run that broke a law, with its seed.
#[derive(Debug, Clone)]
pub struct SimError {
    /// The seed.
    pub seed: u64,
    /// What was wrong.
    pub problem: String,
}

impl std::fmt::Display for SimError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.problem)
    }
}

impl std::error::Error for SimError {}

/// The clock of a run: simulated time since its start.
#[derive(Debug, Clone, Copy)]
struct SimClock {
    began: Instant,
}

impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        1_700_000_000_000 + self.began.elapsed().as_millis() as u64
    }
}

/// Draws the plan of `seed` and plays it on a runtime of its own.
pub fn run_seed(world: &World, seed: u64) -> Result<Outcome, SimError> {
    let chain = chain(world, seed);
    let plan = plan::draw(seed, &chain);
    run_plan(&chain, plan)
}

/// The chain of a seed.
pub fn chain(world: &World, seed: u64) -> Arc<SyntheticChain> {
    Arc::new(SyntheticChain::with_traffic(SyntheticOptions::tiny(seed), world.traffic.clone()))
}

/// Plays a plan on a runtime of its own.
pub fn run_plan(chain: &Arc<SyntheticChain>, plan: Plan) -> Result<Outcome, SimError> {
    let seed = plan.seed;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| SimError { seed, problem: format!("no runtime: {error}") })?;
    runtime.block_on(play(chain.clone(), Arc::new(plan))).map_err(|problem| SimError { seed, problem })
}

type Process = Pin<Box<dyn Future<Output = Result<Finished, IngestError>>>>;

async fn play(chain: Arc<SyntheticChain>, plan: Arc<Plan>) -> Result<Outcome, String> {
    let began = Instant::now();
    let clock = Arc::new(SimClock { began });
    let store = MemoryStore::new(clock.clone());
    let crashes = Crashes::new(plan.commit_faults.clone());
    store.set_hook(Some(crashes.clone()));
    let forks = forks(&plan);
    let shutdown = CancellationToken::new();
    let start = |nth: u64| -> Process {
        let nodes = FaultyNodes::new(chain.clone(), plan.clone(), began);
        let verify = VerifyOptions { offload: Offload::Inline, parallelism: 1, ..VerifyOptions::default() };
        let source = Arc::new(Verified::new(nodes, verify));
        let status = StatusBoard::new(clock.clone());
        let ingester = Ingester::new(
            source,
            Arc::new(store.clone()),
            clock.clone(),
            status,
            options(&plan, &chain, nth),
        );
        let shutdown = shutdown.clone();
        Box::pin(async move { ingester.run(shutdown).await })
    };

    let mut processes = FuturesUnordered::new();
    let mut started = 1;
    processes.push(start(started));
    let mut observer = Observer::default();
    let mut rng = SmallRng::seed_from_u64(plan.seed ^ 0x0b5e);
    let reader: Arc<dyn RawReader> = Arc::new(store.clone());
    let mut derived =
        plan.derived.clone().map(|half| DerivedSide::new(half, reader.clone(), clock.clone(), plan.seed));
    let mut workers: FuturesUnordered<WorkerProcess> = FuturesUnordered::new();
    let mut workers_started = 0;
    let stop_workers = CancellationToken::new();
    let mut looks = 0;
    let away_ms = plan.derived.as_ref().and_then(|half| half.away_ms);
    let patience = PATIENCE + Duration::from_millis(away_ms.map_or(0, |(_, to)| to));
    let deadline = began + Duration::from_millis(plan.quiet_from_ms) + patience;
    let mut halted = None;
    let mut ingested = false;
    loop {
        let pause_ms = rng.random_range(5..2_500);
        let now_ms = began.elapsed().as_millis() as u64;
        if let Some(derived) = &derived
            && workers_started == 0
            && now_ms >= derived.plan.starts_at_ms
        {
            for _ in 0..derived.plan.processes {
                workers_started += 1;
                workers.push(derived.start(workers_started, &stop_workers));
            }
        }
        tokio::select! {
            biased;
            blow = crashes.next_blow() => {
                if blow == Blow::Crash {
                    processes.clear();
                    crashes.revive();
                }
                if !ingested {
                    started += 1;
                    processes.push(start(started));
                }
            }
            Some(ended) = processes.next(), if !ingested => match ended {
                Err(error) if error.kind() == ErrorKind::Fenced && !processes.is_empty() => {}
                Err(error) if error.kind() == ErrorKind::Halt && plan.expected == Expected::Halt => {
                    halted = Some(error);
                    ingested = true;
                }
                Err(error) => return Err(format!("an ingester ended: {error}")),
                Ok(Finished::ReachedStop) if plan.stop_inclusive.is_some() => ingested = true,
                Ok(finished) => return Err(format!("an ingester ended by itself: {finished:?}")),
            },
            Some(ended) = workers.next() => match ended {
                Ended::Died => {
                    workers_started += 1;
                    if let Some(derived) = &derived {
                        workers.push(derived.start(workers_started, &stop_workers));
                    }
                }
                Ended::Returned(Err(error)) => return Err(format!("a worker process ended: {error}")),
                Ended::Returned(Ok(())) => return Err("a worker process ended by itself".into()),
            },
            () = tokio::time::sleep(Duration::from_millis(pause_ms)) => {
                looks += 1;
                observer.look(&reader, &chain, &forks, &mut rng).await?;
                if let Some(derived) = &mut derived {
                    derived::observer::look(&derived.app, &chain, &forks, plan.start, &derived.plan.incurable).await?;
                    derived.operate(now_ms).await?;
                }
                if plan.expected == Expected::FinalChain && arrived(&store, &chain, &plan).await? {
                    ingested = true;
                }
                if ingested && derived_arrived(&store, derived.as_ref(), workers_started).await {
                    break;
                }
                if Instant::now() > deadline {
                    let half = match &derived {
                        Some(derived) => derived.state().await,
                        None => String::new(),
                    };
                    return Err(format!("did not arrive: {}\n{half}", state(&store).await));
                }
            }
        }
    }
    shutdown.cancel();
    stop_workers.cancel();
    while processes.next().await.is_some() {}
    while workers.next().await.is_some() {}
    observer.look(&reader, &chain, &forks, &mut rng).await?;
    let head = store.snapshot().await.map_err(|error| error.to_string())?.head().clone();
    compare(&store, &chain, &plan, halted.is_some(), &clock).await?;
    if let Some(derived) = &derived {
        derived::observer::look(&derived.app, &chain, &forks, plan.start, &derived.plan.incurable).await?;
        let tip = head.tip.ok_or("the archive is empty")?;
        let fork = forks.iter().find(|fork| chain.block_ref(**fork, tip.height) == tip);
        let fork = *fork.ok_or_else(|| format!("ended at {tip}, a block of no fork"))?;
        let heights = HeightRange::inclusive(plan.start, tip.height);
        derived::observer::look_at_the_end(derived, &chain, fork, heights).await?;
    }
    Ok(Outcome {
        commits: crashes.commits(),
        reorgs: head.newest_reorg.id,
        processes: started,
        derived_verbs: derived.map_or(0, |derived| derived.faults.verbs()),
        workers: workers_started,
        looks,
        took_ms: began.elapsed().as_millis() as u64,
    })
}

async fn derived_arrived(store: &MemoryStore, derived: Option<&DerivedSide>, workers_started: u64) -> bool {
    let Some(derived) = derived else { return true };
    match store.snapshot().await {
        Ok(snapshot) => workers_started > 0 && derived.arrived(snapshot.head()).await,
        Err(_) => false,
    }
}

fn options(plan: &Plan, chain: &SyntheticChain, nth: u64) -> IngestOptions {
    let info = StoreInfo { uuid: [7; 16], chain_id: chain.chain_id(), chain_config: Default::default() };
    IngestOptions {
        start: plan.start,
        stop_inclusive: plan.stop_inclusive,
        max_reorg_depth_blocks: plan.max_reorg_depth_blocks,
        budget_bytes: plan.budget_bytes,
        batch_blocks: 16,
        fetches_in_flight: 4,
        poll_ms: 500,
        fill: plan.fill.map(|(workers, range_heights)| FillOptions {
            workers,
            range_heights,
            lease_ttl_ms: 20_000,
            // Processes that overlap must not free each other's leases.
            owner: format!("process-{nth}"),
        }),
        seed: plan.seed,
        ..IngestOptions::new(info)
    }
}

fn forks(plan: &Plan) -> Vec<ForkId> {
    let mut forks: Vec<ForkId> = plan.moments.iter().map(|moment| moment.view.fork).collect();
    forks.sort_unstable();
    forks.dedup();
    forks
}

/// The block that the store has to end at.
fn final_tip(chain: &SyntheticChain, plan: &Plan) -> (ForkId, BlockRef) {
    let last = plan.moments.last().expect("a plan has a first moment");
    let height = plan.stop_inclusive.map_or(last.view.head, |stop| stop.min(last.view.head));
    (last.view.fork, chain.block_ref(last.view.fork, height))
}

async fn arrived(store: &MemoryStore, chain: &SyntheticChain, plan: &Plan) -> Result<bool, String> {
    if plan.stop_inclusive.is_some() {
        return Ok(false);
    }
    let Ok(snapshot) = store.snapshot().await else { return Ok(false) };
    let head = snapshot.head();
    let (_, tip) = final_tip(chain, plan);
    let finalized = plan.moments.last().and_then(|moment| moment.view.finalized);
    Ok(head.tip == Some(tip)
        && head.pending_purge.is_none()
        && finalized.is_none_or(|finalized| {
            finalized < plan.start || head.finalized.is_some_and(|mark| mark.height >= finalized)
        }))
}

async fn state(store: &MemoryStore) -> String {
    match store.snapshot().await {
        Ok(snapshot) => format!("{:?}", snapshot.head()),
        Err(error) => error.to_string(),
    }
}

/// The store must hold what a store holds that was given the final chain and nothing else.
async fn compare(
    store: &MemoryStore,
    chain: &SyntheticChain,
    plan: &Plan,
    halted: bool,
    clock: &Arc<SimClock>,
) -> Result<(), String> {
    let text = |error: cairn_store::StoreError| error.to_string();
    let head = store.snapshot().await.map_err(text)?.head().clone();
    let (fork, tip) = if halted {
        // The fork that was stored before the one that is too deep.
        let before = &plan.moments[plan.moments.len() - 2].view;
        (before.fork, chain.block_ref(before.fork, before.head))
    } else if let Some(stop) = plan.stop_inclusive {
        // It ends when the last height is stored, on whatever fork the nodes show then.
        let at = |fork: &ForkId| chain.block_ref(*fork, stop);
        let fork = forks(plan).into_iter().find(|fork| Some(at(fork)) == head.tip);
        let fork = fork.ok_or_else(|| format!("ended at {:?}, a block of no fork", head.tip))?;
        (fork, at(&fork))
    } else {
        final_tip(chain, plan)
    };
    if head.tip != Some(tip) {
        return Err(format!("ended at {:?}, expected {tip}", head.tip));
    }
    let oracle =
        oracle(chain, fork, HeightRange::inclusive(plan.start, tip.height), head.finalized, clock).await?;
    let dump = store.dump().await.map_err(text)?;
    match dump.first_difference(&oracle) {
        None => Ok(()),
        Some((ours, theirs)) => {
            Err(format!("the store differs from the oracle:\n  store:  {ours}\n  oracle: {theirs}"))
        }
    }
}

async fn oracle(
    chain: &SyntheticChain,
    fork: ForkId,
    range: HeightRange,
    finalized: Option<BlockRef>,
    clock: &Arc<SimClock>,
) -> Result<Dump, String> {
    let text = |error: cairn_store::StoreError| error.to_string();
    let store = MemoryStore::new(clock.clone());
    let info = StoreInfo { uuid: [9; 16], chain_id: chain.chain_id(), chain_config: Default::default() };
    store.init(info).await.map_err(text)?;
    let fence = store.acquire().await.map_err(text)?.fence;
    let blocks = range.iter().map(|height| (*chain.block(fork, height)).clone()).collect();
    store.append(fence, AppendBatch { blocks, finalized, safe: None }).await.map_err(text)?;
    store.dump().await.map_err(text)
}
