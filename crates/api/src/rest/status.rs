//! How far everything has come.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_core::{BlockRef, Height, HeightRange, Parts};
use cairn_store::StoreError;
use cairn_store::derived::{DerivedCheckpoint, DerivedSnapshot, LeaseFilter};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Answer, BlockStamp};
use super::params::{NoParams, Params};
use super::problem::Problem;
use super::view::View;
use super::words::{Hash, Num};
use super::{Api, Halt, HaltedPart};

/// The most halts that are named.
const MAX_HALTS: usize = 100;
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
    /// The finalised block as the source named it; it may lie above the tip while blocks are being caught up.
    pub finalized: Option<BlockName>,
    /// Reorgs so far.
    pub newest_reorg: Num,
    /// The lowest of the workers' heights; null where there is no worker, or one has not finished a block.
    pub app_watermark_height: Option<Num>,
    /// The derived tables; null where there are none here.
    pub derived: Option<Derived>,
    /// What has stopped and wants a person: of the process that answers, and ranges of workers that the app database knows to have failed too often. The
    /// first 100. `/readyz`, `cairn leases list --dead` and the log say more.
    pub halts: Vec<StatusHalt>,
}

/// Something that has stopped and wants a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusHalt {
    pub part: HaltedPart,
    /// The worker; null where it is about none, or about all.
    pub worker: Option<String>,
    /// The height that it stands at; null where that isn't known.
    pub height: Option<Num>,
    /// Why, in a word; `range-failed` for ranges.
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
    /// Whether an operator paused it.
    pub is_paused: bool,
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

/// Every worker that has a checkpoint, and those that have none since they are being reset; by name.
fn workers(
    app: &dyn DerivedSnapshot,
    tip: Option<BlockRef>,
    quarantined: &BTreeMap<String, u64>,
) -> Vec<Worker> {
    let checkpoints = app.checkpoints().iter().map(|checkpoint| (&checkpoint.service, Some(checkpoint)));
    let cleared = app.rebuilds().iter().map(|rebuild| (&rebuild.service, None));
    // Of two with one name the later one stays.
    let all: BTreeMap<_, _> = cleared.chain(checkpoints).collect();
    let worker = |(name, checkpoint): (&String, Option<&DerivedCheckpoint>)| {
        let rebuild = app.being_rebuilt(name);
        let last = checkpoint.and_then(DerivedCheckpoint::last);
        Worker {
            name: name.clone(),
            tip: last.map(BlockName::of),
            lag_blocks: last.zip(tip).map(|(last, tip)| Num(tip.height.since(last.height))),
            is_paused: checkpoint
                .map_or_else(|| rebuild.is_some_and(|rebuild| rebuild.paused), |at| at.paused),
            quarantined_blocks: Num(quarantined.get(name).copied().unwrap_or(0)),
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
    let app = match api.app() {
        Some(app) => match app.snapshot().await {
            Ok(app) => Some(app),
            // Not begun yet.
            Err(StoreError::Invalid(_)) => None,
            Err(error) => return Err(error.into()),
        },
        None => None,
    };
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
    let mut quarantined = BTreeMap::new();
    if let Some(app) = &app {
        let dead = LeaseFilter { dead: true, limit: MAX_HALTS, ..LeaseFilter::default() };
        halts.extend(app.leases(&dead).await?.into_iter().map(|lease| Halt {
            part: HaltedPart::Range,
            service: Some(lease.service),
            height: Some(lease.done_to),
            code: "range-failed".to_owned(),
        }));
        quarantined = quarantined_counts(&**app).await?;
    }
    halts.truncate(MAX_HALTS);
    let mut app_watermark_height = None;
    let derived = app.map(|app| {
        let workers = workers(&*app, head.tip, &quarantined);
        let lowest = workers.iter().map(|worker| worker.tip.as_ref().map(|tip| tip.height.0)).min();
        app_watermark_height = lowest.flatten().map(Num);
        let forks = app.forks();
        Derived { applied_reorg: Num(forks.applied.id), is_reorg_under_way: !forks.is_settled(), workers }
    });
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
    };
    Ok(Json(Answer { data, meta: view.meta() }))
}
