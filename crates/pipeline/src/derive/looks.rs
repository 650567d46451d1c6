//! One look at the app store a poll, for all workers of the process that wait.
//!
//! A worker at the tip has nothing to do most of the time. What it waits for stands in two small tables: a pause, an upstream of another
//! process, a lease that somebody left, its own lease that was taken. A look only says that there may be something to do: a worker that
//! goes by it asks the store itself before it does anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_core::Height;
use cairn_store::StoreError;
use cairn_store::derived::{DerivedCheckpoint, LeaseKind, LeaseStatus, WorkerLease};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::context::Context;

/// At most so many leases are looked at; where there are more, each worker asks for itself.
const MAX_LEASES: usize = 1_000;

/// The last look.
#[derive(Default)]
pub(super) struct Looks {
    last: Mutex<Option<Arc<Look>>>,
}

/// What stood in the app store.
pub(super) struct Look {
    began: Instant,
    checkpoints: BTreeMap<String, DerivedCheckpoint>,
    /// Those that aren't completed.
    leases: BTreeMap<u64, WorkerLease>,
    /// Whether these are all.
    is_whole: bool,
}

impl Looks {
    /// The last look where it is younger than this and began after `since`, or a new one. Of many that ask at once one looks.
    pub async fn younger_than(
        &self,
        context: &Context,
        age: Duration,
        since: Option<Instant>,
    ) -> Result<Arc<Look>, StoreError> {
        let mut last = self.last.lock().await;
        let is_usable =
            |look: &&Arc<Look>| look.began.elapsed() < age && since.is_none_or(|since| look.began > since);
        if let Some(look) = last.as_ref().filter(is_usable) {
            return Ok(look.clone());
        }
        let look = Arc::new(Look::of(context).await?);
        *last = Some(look.clone());
        Ok(look)
    }
}

impl Look {
    /// A new one, of nobody else.
    pub async fn of(context: &Context) -> Result<Look, StoreError> {
        let began = Instant::now();
        let stands = context.app.standing(MAX_LEASES).await?;
        // Another process may have moved them.
        stands.checkpoints.iter().for_each(|own| context.board.moved(own));
        context
            .board
            .without_checkpoint(|service| stands.checkpoints.iter().any(|own| own.service == service));
        Ok(Look {
            began,
            checkpoints: stands.checkpoints.into_iter().map(|own| (own.service.clone(), own)).collect(),
            leases: stands.open.into_iter().map(|lease| (lease.id, lease)).collect(),
            is_whole: stands.is_whole,
        })
    }

    fn of_service<'l>(&'l self, service: &'l str) -> impl Iterator<Item = &'l WorkerLease> {
        self.leases.values().filter(move |lease| lease.service == service)
    }

    /// Whether a lease that its worker holds since `since` was taken from it.
    pub fn is_anothers(&self, lease: &WorkerLease, since: Instant) -> bool {
        // One that began in the same moment may not have seen it yet.
        self.began > since
            && self.is_whole
            && self.leases.get(&lease.id).is_none_or(|now| now.fence != lease.fence)
    }

    /// Whether somebody left a lease that may be claimed. One that expired is seen once it is reaped.
    pub fn may_be_due(&self, service: &str) -> bool {
        !self.is_whole
            || self.of_service(service).any(|lease| lease.status == LeaseStatus::Failed && !lease.is_dead())
    }

    /// Whether nothing of a service is claimed.
    pub fn is_paused(&self, service: &str) -> bool {
        self.checkpoints.get(service).is_some_and(|own| own.paused)
    }

    /// How far a service has come.
    pub fn next(&self, service: &str) -> Option<Height> {
        self.checkpoints.get(service).map(|own| own.next)
    }

    /// Whether no new range can begin below `limit`: one that isn't completed reaches there, or has to be completed first.
    pub fn is_covered(&self, service: &str, limit: Height, in_order: bool) -> bool {
        let mut open = self.of_service(service).filter(|lease| lease.kind == LeaseKind::Index);
        self.is_whole && open.any(|lease| in_order || lease.range.end() >= limit)
    }
}
