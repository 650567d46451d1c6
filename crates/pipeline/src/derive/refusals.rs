//! What the database refuses for good, by service: whether one range may be to blame.
//!
//! A database refuses one range over what stands in it, such as a number that a column doesn't take. Or it refuses all that a service asks of it: a right was taken away, a column
//! was changed, a disk can't be written. One refusal looks like the other. So the first range is charged with it, and no other one is before something of that service was committed:
//! an outage, however long, leaves an operator one range to free, and the others go on by themselves when it is over. The range is the one that is charged for as long as it stands where it
//! was refused: one that is gone, or got on in another process, is forgotten, and the next refusal is the first again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_core::Height;
use cairn_store::derived::{LeaseStatus, WorkerLease};

/// Refusals since the last commit, by service, of all workers of this process.
#[derive(Default)]
pub(super) struct Refusals {
    by_service: Mutex<BTreeMap<&'static str, Refused>>,
}

struct Refused {
    charged: Charged,
    /// How often others were refused.
    others: u32,
}

/// The lease that is charged, as it stood when it was refused first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Charged {
    pub lease_id: u64,
    done_to: Height,
}

impl Charged {
    /// Whether the lease, as it is now, still stands where it was refused.
    pub fn stands(&self, now: Option<&WorkerLease>) -> bool {
        now.is_some_and(|now| now.status != LeaseStatus::Completed && now.done_to == self.done_to)
    }
}

impl Refusals {
    /// A range of a service was refused. `None`: it is charged with it. Otherwise how many refusals of ranges that weren't charged came before this one.
    pub fn refused(&self, service: &'static str, lease: &WorkerLease) -> Option<u32> {
        let mut by_service = self.by_service();
        let charged = Charged { lease_id: lease.id, done_to: lease.done_to };
        let refused = by_service.entry(service).or_insert(Refused { charged, others: 0 });
        if refused.charged.lease_id == lease.id {
            return None;
        }
        refused.others = refused.others.saturating_add(1);
        Some(refused.others - 1)
    }

    /// Something of a service was committed.
    pub fn committed(&self, service: &'static str) {
        self.by_service().remove(service);
    }

    /// The lease of a service that is charged.
    pub fn charged(&self, service: &'static str) -> Option<Charged> {
        self.by_service().get(service).map(|refused| refused.charged)
    }

    /// It stands no longer where it was refused.
    pub fn forget(&self, service: &'static str, charged: Charged) {
        let mut by_service = self.by_service();
        if by_service.get(service).is_some_and(|refused| refused.charged == charged) {
            by_service.remove(service);
        }
    }

    fn by_service(&self) -> MutexGuard<'_, BTreeMap<&'static str, Refused>> {
        self.by_service.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
