//! What a worker does while there is nothing to do: it waits for the head, for its upstreams, and for what others leave. All workers
//! of a process share one look at the app store ([`super::looks`]).

use std::sync::Arc;
use std::time::Duration;

use cairn_core::Height;
use cairn_store::derived::{LeaseKind, WorkerLease};
use tokio::time::Instant;

use super::error::DeriveError;
use super::held::{Held, Lost};
use super::looks::Look;
use super::wake::Listener;
use super::worker::Worker;

/// After this a worker without a lease tries a claim whatever it knows.
const CLAIM_AFTER: Duration = Duration::from_secs(30);

/// What a wait with a lease in hand came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// There may be something to do in it, or the process stops.
    Work,
    /// Somebody may have left another range.
    Help,
    /// An operator paused the service.
    Paused,
    /// It is another's.
    Lost,
}

impl Worker {
    pub(super) fn poll(&self) -> Duration {
        Duration::from_millis(self.context.options.poll_ms)
    }

    /// The last look, at most a poll old. `None`: the store can't be read now.
    async fn look(&self) -> Option<Arc<Look>> {
        match self.context.looks.younger_than(&self.context, self.poll(), None).await {
            Ok(look) => Some(look),
            Err(error) => {
                self.note(&DeriveError::from(error));
                None
            }
        }
    }

    /// The look that the next chunk goes by. At the tip all workers share one; one that is far behind stops at once where it is paused.
    ///
    /// It began after the lease was claimed: a reorg that lowers an upstream gives every lease above it a new fence, so an older look would only pass for a
    /// lease of before it.
    pub(super) async fn look_for_chunk(&self, held: &Held) -> Result<Arc<Look>, DeriveError> {
        let context = &self.context;
        let is_at_tip = self.raw_limit().is_some_and(|limit| held.lease.done_to.next() >= limit);
        Ok(match is_at_tip {
            true => context.looks.younger_than(context, self.poll(), Some(held.claimed_at)).await?,
            false => Arc::new(Look::of(context).await?),
        })
    }

    /// Waits with a lease in hand.
    pub(super) async fn wait_in_hand(&self, held: &Held, listener: &mut Listener) -> Waited {
        let (name, since) = (self.service().name, Instant::now());
        loop {
            if held.keep(self.pause(listener.wait(self.poll()))).await == Err(Lost) {
                return Waited::Lost;
            }
            if self.context.stop.is_cancelled() || self.may_have_work(&held.lease, None) {
                return Waited::Work;
            }
            let look = match held.keep(self.look()).await {
                Err(Lost) => return Waited::Lost,
                // The renewal tells whose it is.
                Ok(None) => continue,
                Ok(Some(look)) => look,
            };
            if look.is_anothers(&held.lease, since) {
                return Waited::Lost;
            }
            if look.is_paused(name) {
                return Waited::Paused;
            }
            if self.may_have_work(&held.lease, Some(&look)) {
                return Waited::Work;
            }
            if look.may_be_due(name) || self.strays.are_suspected() {
                return Waited::Help;
            }
        }
    }

    /// Whether there may be something to do in a range: by what this process knows, and by a look.
    fn may_have_work(&self, lease: &WorkerLease, look: Option<&Look>) -> bool {
        lease.done_to < self.known_limit(look)
    }

    /// How far this service may go: up to the raw tip, and the lowest of its upstreams, by what this process knows and by a look.
    /// Whoever reads an upstream's rows compares that upstream's checkpoint again.
    pub(super) fn known_limit(&self, look: Option<&Look>) -> Height {
        let Some(limit) = self.raw_limit() else { return Height::ZERO };
        let upstreams = self.service().upstreams.iter();
        let next = upstreams.map(|name| {
            let seen = look.and_then(|look| look.next(name));
            self.context.board.next_of(name).max(seen).unwrap_or(Height::ZERO)
        });
        next.fold(limit, Height::min)
    }

    /// Whether a range has come as far as this process knows that it can. Upstreams that it knows nothing of may be further.
    pub(super) fn is_at_end(&self, lease: &WorkerLease) -> bool {
        let upstreams = self.service().upstreams;
        lease.kind == LeaseKind::Index
            && upstreams.iter().all(|name| self.context.board.next_of(name).is_some())
            && !self.may_have_work(lease, None)
    }

    /// Waits without a lease, until a claim may get something.
    pub(super) async fn wait_for_claim(&self, listener: &mut Listener) {
        let (name, since) = (self.service().name, Instant::now());
        loop {
            self.pause(listener.wait(self.poll())).await;
            if self.context.stop.is_cancelled() || self.strays.are_suspected() {
                return;
            }
            // Before there is a head nothing is claimed.
            let Some(limit) = self.raw_limit() else { continue };
            // A lease that expired is seen once it is reaped, and nobody may be there to reap it. A store that refuses each look tells a claim why.
            let is_time = since.elapsed() >= CLAIM_AFTER;
            let look = match self.look().await {
                Some(look) => look,
                None if is_time => return,
                None => continue,
            };
            if look.is_paused(name) {
                continue;
            }
            if is_time || look.may_be_due(name) || !look.is_covered(name, limit, self.in_order()) {
                return;
            }
        }
    }

    /// Up to where the raw store, and what is to be derived of it, reaches.
    pub(super) fn raw_limit(&self) -> Option<Height> {
        let end = self.context.wake.head()?.tip?.height.next();
        Some(self.context.options.stop_exclusive.map_or(end, |stop| stop.min(end)))
    }
}
