//! How far everything has come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use cairn_core::{BlockRef, ErrorKind, Height, HeightRange, Parts};
use cairn_store::StoreError;
use cairn_store::derived::{DerivedCheckpoint, DerivedSnapshot, LeaseFilter, LeaseStatus, WorkerLease};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Answer, BlockStamp};
use super::params::{NoParams, Params};
use super::problem::Problem;
use super::view::View;
use super::words::{Hash, Num};
use super::{Api, Halt, HaltedPart, Obstacle, WorkerUse};

/// The most halts that are named.
const MAX_HALTS: usize = 100;
/// The most leases that are looked at for what went wrong last.
const MAX_FAILING: usize = 1_000;
/// The most characters of that which are shown.
const MAX_ERROR_CHARS: usize = 300;
/// How long the status waits for the app store.
const APP_MS: u64 = 3_000;
/// What is said where it does not answer.
const APP_AWAY: &str = "app-database-away";
/// So many quarantined blocks are counted by looking at each.
const FEW_QUARANTINED: usize = 1_000;

/// How far everything has come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Status {
    /// The version of this server.
    pub version: &'static str,
    pub chain_id: Num,
    /// `evm`, or the network of Flow such as `flow-mainnet`.
    pub chain: &'static str,
    /// The first stored height; null while nothing is stored.
    pub first_height: Option<Num>,
    /// The newest stored height; null while nothing is stored.
    pub raw_tip_height: Option<Num>,
    /// The newest stored block.
    pub raw_tip: Option<BlockStamp>,
    /// The finalised block, as far as it is stored: what the source named, or, while that lies above the tip, the block so far below the tip that no reorg may take it.
    pub finalized: Option<BlockName>,
    /// Reorgs so far.
    pub newest_reorg: Num,
    /// The lowest height of the workers that everything derived rests on: of those that are enabled and don't ask a node. Null where there is none, where one has not finished a
    /// block, and where the app database does not answer.
    pub app_watermark_height: Option<Num>,
    /// The derived tables; null where there are none here, and where the app database does not answer: `halts` then has `app-database-away`.
    pub derived: Option<Derived>,
    /// What has stopped and wants a person: of the process that answers, and ranges of workers that the app database knows to have failed too often. The
    /// first 100. `/readyz`, `cairn leases list --dead` and the log say more.
    pub halts: Vec<StatusHalt>,
    /// What ingestion of the process that answers can't get past. It tries again by itself, with growing pauses. Null while it gets on, and where the process takes no blocks.
    pub obstacle: Option<StatusObstacle>,
}

/// What ingestion can't get past.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusObstacle {
    /// Why, in a word: `block-refused` (a check fails), `source-refused` (the node refuses what it is asked), `source` (it fails or can't be reached), `head-quorum` (too few nodes confirm a
    /// fork), `store` (the database is away, busy or full), `store-refused` (the database refuses).
    pub code: String,
    /// The height of the block that can't be stored; null where that isn't known.
    pub height: Option<Num>,
    /// The check that refused the block; null where it was none.
    pub check: Option<String>,
    /// Who said what. The beginning of it.
    pub message: String,
    /// What an operator can do beside waiting; null where there is nothing.
    pub remedy: Option<String>,
    /// When the first try failed, in milliseconds since 1970.
    pub since_ms: Num,
    /// How many tries in a row have failed.
    pub tries: u32,
}

impl StatusObstacle {
    fn of(obstacle: Obstacle) -> StatusObstacle {
        StatusObstacle {
            code: obstacle.code,
            height: obstacle.height.map(|height| Num(height.get())),
            check: obstacle.check,
            message: obstacle.message.chars().take(MAX_ERROR_CHARS).collect(),
            remedy: obstacle.remedy,
            since_ms: Num(obstacle.since_ms),
            tries: obstacle.tries,
        }
    }
}

/// Something that has stopped and wants a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusHalt {
    pub part: HaltedPart,
    /// The worker; null where it is about none, or about all.
    pub worker: Option<String>,
    /// The height that it stands at; null where that isn't known.
    pub height: Option<Num>,
    /// Why, in a word; `app-database-away` where the app database does not answer now (everything of the raw store is served meanwhile); for ranges `range-failed`, `range-seam` (it stands on another fork than the one below it) or `range-lost`.
    pub code: String,
}

/// A block.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BlockName {
    pub height: Num,
    pub id: Hash,
}

impl BlockName {
    pub(crate) fn of(block: BlockRef) -> BlockName {
        BlockName { height: Num(block.height.get()), id: Hash::of(block.id.as_bytes()) }
    }
}

/// How far the derived tables have come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Derived {
    /// The newest reorg that was followed.
    pub applied_reorg: Num,
    /// Whether one is being followed now.
    pub is_reorg_under_way: bool,
    /// By name.
    pub workers: Vec<Worker>,
}

/// How far a worker has come.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Worker {
    pub name: String,
    /// The last block that it has done, with all before it; null before the first.
    pub tip: Option<BlockName>,
    /// How many blocks it is behind the newest stored one.
    pub lag_blocks: Option<Num>,
    /// Whether it runs by the configuration of the process that answers. One that doesn't stays where it is, and its tables as they are.
    pub is_enabled: bool,
    /// Whether it asks a node. It then has no part in `app_watermark_height`: nothing waits for it.
    pub asks_node: bool,
    /// Whether an operator paused it.
    pub is_paused: bool,
    /// Why it doesn't get on, where a range of it has failed and is tried again; null else. The beginning of it.
    pub last_error: Option<String>,
    /// How many blocks up to its tip it could not process and passed over.
    pub quarantined_blocks: Num,
    /// It makes everything anew and is not yet where it was: what rests on it is `being-rebuilt`. Null else.
    pub rebuild: Option<Rebuild>,
}

/// A worker that makes everything anew.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rebuild {
    /// The height at which it begins.
    pub first_height: Num,
    /// The last height that it had done before: when its tip is there again, it is over.
    pub until_height: Num,
    /// What it made before is still being deleted.
    pub is_clearing: bool,
    /// When it began, in milliseconds since 1970.
    pub begun_at_ms: Num,
}

impl Rebuild {
    fn of(rebuild: &cairn_store::derived::Rebuild) -> Rebuild {
        Rebuild {
            first_height: Num(rebuild.first.get()),
            until_height: Num(rebuild.until.prev().unwrap_or(Height::ZERO).get()),
            is_clearing: rebuild.is_clearing,
            begun_at_ms: Num(rebuild.begun_at_ms),
        }
    }
}

/// What is counted and said by worker.
#[derive(Default)]
struct OfWorkers {
    quarantined: BTreeMap<String, u64>,
    last_errors: BTreeMap<String, String>,
}

impl OfWorkers {
    async fn read(app: &dyn DerivedSnapshot) -> Result<OfWorkers, StoreError> {
        Ok(OfWorkers { quarantined: quarantined_counts(app).await?, last_errors: last_errors(app).await? })
    }
}

/// Every worker that is required or has a checkpoint, and those that have none since they are being reset; by name.
fn workers(api: &Api, app: &dyn DerivedSnapshot, tip: Option<BlockRef>, of: &OfWorkers) -> Vec<Worker> {
    let required = api.required_workers().map(|name| (name, None));
    let cleared = app.rebuilds().iter().map(|rebuild| (rebuild.service.as_str(), None));
    let checkpoints =
        app.checkpoints().iter().map(|checkpoint| (checkpoint.service.as_str(), Some(checkpoint)));
    // Of two with one name the later one stays.
    let all: BTreeMap<_, _> = required.chain(cleared).chain(checkpoints).collect();
    let worker = |(name, checkpoint): (&str, Option<&DerivedCheckpoint>)| {
        let rebuild = app.being_rebuilt(name);
        let last = checkpoint.and_then(DerivedCheckpoint::last);
        Worker {
            name: name.to_owned(),
            tip: last.map(BlockName::of),
            lag_blocks: last.zip(tip).map(|(last, tip)| Num(tip.height.since(last.height))),
            is_enabled: api.use_of(name) != WorkerUse::Disabled,
            asks_node: api.use_of(name) == WorkerUse::AsksNode,
            is_paused: checkpoint
                .map_or_else(|| rebuild.is_some_and(|rebuild| rebuild.paused), |at| at.paused),
            last_error: of.last_errors.get(name).cloned(),
            quarantined_blocks: Num(of.quarantined.get(name).copied().unwrap_or(0)),
            rebuild: rebuild.map(Rebuild::of),
        }
    };
    all.into_iter().map(worker).collect()
}

impl StatusHalt {
    fn of(halt: Halt) -> StatusHalt {
        StatusHalt {
            part: halt.part,
            worker: halt.service,
            height: halt.height.map(|height| Num(height.get())),
            code: halt.code,
        }
    }
}

/// How many blocks each service could not process: at one go where they are few.
async fn quarantined_counts(app: &dyn DerivedSnapshot) -> Result<BTreeMap<String, u64>, StoreError> {
    let services: Vec<&str> =
        app.checkpoints().iter().map(|checkpoint| checkpoint.service.as_str()).collect();
    let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
    let found = app.quarantined(&services, all, FEW_QUARANTINED).await?;
    let mut counts = BTreeMap::new();
    if found.total == found.lowest.len() as u64 {
        for block in found.lowest {
            *counts.entry(block.service).or_default() += 1;
        }
        return Ok(counts);
    }
    for service in services {
        counts.insert(service.to_owned(), app.quarantined(&[service], all, 0).await?.total);
    }
    Ok(counts)
}

/// Why ranges of each service don't get on: the oldest one's error since its last commit.
async fn last_errors(app: &dyn DerivedSnapshot) -> Result<BTreeMap<String, String>, StoreError> {
    let mut errors = BTreeMap::new();
    for status in [LeaseStatus::Failed, LeaseStatus::Active] {
        let filter = LeaseFilter { status: Some(status), limit: MAX_FAILING, ..LeaseFilter::default() };
        for lease in app.leases(&filter).await? {
            if !lease.last_error.is_empty() {
                let shown = lease.last_error.chars().take(MAX_ERROR_CHARS).collect();
                errors.entry(lease.service).or_insert(shown);
            }
        }
    }
    Ok(errors)
}

/// What the app store says of itself.
enum OfApp {
    /// There is none here, or it has not been begun.
    None,
    /// It does not answer now.
    Away,
    Here {
        app: Arc<dyn DerivedSnapshot>,
        dead: Vec<WorkerLease>,
        of: OfWorkers,
    },
}

impl OfApp {
    async fn read(api: &Api) -> Result<OfApp, StoreError> {
        let Some(app) = api.app() else { return Ok(OfApp::None) };
        let read = async {
            let app = app.snapshot().await?;
            let filter = LeaseFilter { dead: true, limit: MAX_HALTS, ..LeaseFilter::default() };
            let dead = app.leases(&filter).await?;
            let of = OfWorkers::read(&*app).await?;
            Ok::<_, StoreError>(OfApp::Here { app, dead, of })
        };
        // What the raw store says is wanted most where the app store is in trouble.
        match tokio::time::timeout(Duration::from_millis(APP_MS), read).await {
            Ok(Err(StoreError::Invalid(_))) => Ok(OfApp::None),
            Ok(Err(error)) if error.kind() == ErrorKind::Retry => {
                tracing::debug!(%error, "the status is without derived tables");
                Ok(OfApp::Away)
            }
            Ok(read) => read,
            Err(_) => {
                tracing::debug!("the status is without derived tables: they took longer than {APP_MS} ms");
                Ok(OfApp::Away)
            }
        }
    }
}

/// The lowest height of those that everything rests on.
fn watermark(api: &Api, workers: &[Worker]) -> Option<Num> {
    let required = api.required_workers().map(|name| {
        let worker = workers.iter().find(|worker| worker.name == name);
        worker.and_then(|worker| Some(worker.tip.as_ref()?.height.0))
    });
    // One that has none yet is the lowest.
    required.min().flatten().map(Num)
}

/// How far everything has come. The heights of workers are of one moment, and may be a moment older than the tip.
#[utoipa::path(
    get,
    path = "/v1/status",
    tag = "status",
    responses((status = 200, description = "The status", body = Answer<Status>))
)]
pub(crate) async fn get_status(
    State(api): State<Arc<Api>>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<Status>>, Problem> {
    let of_app = OfApp::read(&api).await?;
    let view = View::raw(&api).await?;
    let head = view.head();
    let raw_tip = match head.tip {
        Some(tip) => {
            let stored = view.chain().block(tip.height, Parts::empty()).await?;
            stored.map(|stored| BlockStamp::of(&stored.facts))
        }
        None => None,
    };
    let mut halts: Vec<Halt> = api.halts();
    let (mut derived, mut app_watermark_height) = (None, None);
    match of_app {
        OfApp::None => {}
        OfApp::Away => {
            let away =
                Halt { part: HaltedPart::Derived, service: None, height: None, code: APP_AWAY.to_owned() };
            halts.insert(0, away);
        }
        OfApp::Here { app, dead, of } => {
            halts.extend(dead.into_iter().map(|lease| Halt {
                part: HaltedPart::Range,
                service: Some(lease.service),
                height: Some(lease.done_to),
                code: "range-failed".to_owned(),
            }));
            let workers = workers(&api, &*app, head.tip, &of);
            app_watermark_height = watermark(&api, &workers);
            let forks = app.forks();
            derived = Some(Derived {
                applied_reorg: Num(forks.applied.id),
                is_reorg_under_way: !forks.is_settled(),
                workers,
            });
        }
    }
    halts.truncate(MAX_HALTS);
    let data = Status {
        version: env!("CARGO_PKG_VERSION"),
        chain_id: Num(head.info.chain_id.0),
        chain: view.kind().name(),
        first_height: head.first.map(|first| Num(first.get())),
        raw_tip_height: head.tip.map(|tip| Num(tip.height.get())),
        raw_tip,
        finalized: head.finalized.map(BlockName::of),
        newest_reorg: Num(head.newest_reorg.id),
        app_watermark_height,
        derived,
        halts: halts.into_iter().map(StatusHalt::of).collect(),
        obstacle: api.obstacle().map(StatusObstacle::of),
    };
    Ok(Json(Answer { data, meta: view.meta() }))
}
