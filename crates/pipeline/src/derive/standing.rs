//! Whether what was derived stands on the blocks that the raw store holds.
//!
//! While each fork has its entry in the reorg log it does. But a raw database that was put back to an older state, or whose server lost its last blocks when another took its place, goes on with other blocks at
//! heights that were derived, and no entry says so. Then a worker at the tip could wait for ever, and an entry that comes later would take checkpoints over to the other fork. Which rows are of lost blocks can't be
//! told any more, so derived work stops, and nothing is deleted (law 8).
//!
//! No false alarm: the app store is looked at first, in one snapshot and with no reorg under way, and the raw store after it, where its newest entry is the one that was applied. In between the raw store only grew,
//! so it has whatever was derived by then. One that doesn't reach so high is not judged: a server that follows another one is late.

use std::collections::BTreeMap;

use cairn_core::{BlockId, Height};
use cairn_store::derived::rules::demand_raw;
use cairn_store::derived::{DerivedSnapshot, LeaseFilter, LeaseStatus};
use cairn_store::{RawSnapshot, ReorgEntry, StoreError};

use super::context::Context;
use super::error::DeriveError;
use super::status::Halt;

/// At most so many leases of each status are looked at.
const MAX_LEASES: usize = 256;
/// At most so many heights without a block are passed over for one answer: what lies below a longer run of them is not judged.
const MAX_SKIPPED_HEIGHTS: u64 = 1_000;

/// Where a checkpoint or a lease stands.
struct Place {
    service: String,
    /// The height after the last one that was done.
    next: Height,
    /// The last block below it.
    last_id: BlockId,
}

/// Demands that every checkpoint, and every lease that isn't completed, stands on a block of the raw store; of one service, or of all. What can't be judged now is passed over.
pub(super) async fn demand(context: &Context, service: Option<&str>) -> Result<(), DeriveError> {
    let app = context.app.snapshot().await?;
    let forks = *app.forks();
    if !forks.is_settled() {
        return Ok(());
    }
    let places = places(&*app, service).await?;
    drop(app);
    let raw = context.raw.snapshot().await?;
    let head = raw.head();
    if head.info.uuid != forks.raw_uuid || head.newest_reorg.id != forks.applied.id {
        return Ok(());
    }
    if head.newest_reorg.digest != forks.applied.digest {
        let what = format!("reorg {} has another digest", forks.applied.id);
        return Err(StoreError::OtherRaw { what }.into());
    }
    let mut found: BTreeMap<Height, Option<BlockId>> = BTreeMap::new();
    for place in places {
        let id = match found.get(&place.next) {
            Some(id) => *id,
            None => {
                let id = below(&*raw, place.next).await?;
                *found.entry(place.next).or_insert(id)
            }
        };
        if let Some(id) = id.filter(|id| *id != place.last_id) {
            let has = format!("the last block of the raw store up to there is {id}");
            return Err(stands_elsewhere(context, &place, &has));
        }
    }
    Ok(())
}

/// Says so where the raw store's reorg log is shorter than what was taken from it: it lost entries, and makes none for what it gets in their place. A server that follows another one may be late.
pub(super) async fn lost_reorg(context: &Context) -> Result<Option<DeriveError>, DeriveError> {
    let Some(forks) = context.app.forks().await? else { return Ok(None) };
    let raw = context.raw.snapshot().await?;
    let head = raw.head();
    match demand_raw(&forks, head.info.uuid, head.newest_reorg) {
        Err(error @ StoreError::OtherRaw { .. }) => Ok(Some(error.into())),
        demanded => Ok(demanded.map(|()| None)?),
    }
}

/// Demands of the entry that is to be applied next that it takes away what was derived above its common block: else something was lost before it, of which no entry says anything.
pub(super) async fn demand_taken(context: &Context, entry: &ReorgEntry) -> Result<(), DeriveError> {
    let app = context.app.snapshot().await?;
    let forks = app.forks();
    if !forks.is_settled() || forks.applied.id.checked_add(1) != Some(entry.id) {
        return Ok(());
    }
    let above = entry.first_orphan();
    for place in places(&*app, None).await?.into_iter().filter(|place| place.next > above) {
        if place.last_id != entry.common.id && entry.orphan(place.last_id).is_none() {
            let has = format!("reorg {} doesn't have that among what it takes away", entry.id);
            return Err(stands_elsewhere(context, &place, &has));
        }
    }
    Ok(())
}

/// Where everything stands that is on a block.
async fn places(app: &dyn DerivedSnapshot, service: Option<&str>) -> Result<Vec<Place>, StoreError> {
    let checkpoints = app.checkpoints().iter().filter(|own| service.is_none_or(|name| own.service == name));
    let mut places: Vec<Place> = checkpoints
        .filter_map(|own| Some(Place { service: own.service.clone(), next: own.next, last_id: own.last_id? }))
        .collect();
    for status in [LeaseStatus::Active, LeaseStatus::Failed] {
        let filter = LeaseFilter {
            service: service.map(str::to_owned),
            status: Some(status),
            limit: MAX_LEASES,
            ..LeaseFilter::default()
        };
        let leases = app.leases(&filter).await?.into_iter();
        places.extend(leases.filter_map(|lease| {
            Some(Place { service: lease.service, next: lease.done_to, last_id: lease.last_id? })
        }));
    }
    Ok(places)
}

/// The nearest block below a height; `None` where that can't be said.
async fn below(raw: &dyn RawSnapshot, next: Height) -> Result<Option<BlockId>, StoreError> {
    let stored = raw.head().range();
    if next > stored.end() {
        return Ok(None);
    }
    let lowest = stored.start().max(next.saturating_sub(MAX_SKIPPED_HEIGHTS));
    let mut height = next;
    while height > lowest {
        height = height.saturating_sub(1);
        if let Some(linked) = raw.linked_ref(height).await? {
            return Ok(Some(linked.block.id));
        }
    }
    Ok(None)
}

/// Says on the board which worker stands where, and makes the error of it.
fn stands_elsewhere(context: &Context, place: &Place, has: &str) -> DeriveError {
    let Place { service, next, last_id } = place;
    let height = next.saturating_sub(1);
    let what = format!(
        "{service} has derived up to height {height}, the last block of it {last_id}; {has}. No reorg says so: the raw database was put back to an older state, or its server lost blocks"
    );
    let error = DeriveError::Store(StoreError::OtherRaw { what });
    context.board.halted(Halt {
        service: context.board.known(service),
        height: Some(height),
        code: error.code(),
        message: error.to_string(),
    });
    error
}
