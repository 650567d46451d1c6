//! What the database refuses for good, by service: whether one range may be to blame.
//!
//! A database refuses one range over what stands in it, such as a number that a column doesn't take. Or it refuses all that a service asks of it: a right was taken away, a column
//! was changed, a disk can't be written. One refusal looks like the other. So the first range is charged with it, and no other one is before something of that service was committed:
//! an outage, however long, leaves an operator one range to free, and the others go on by themselves when it is over.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Refusals since the last commit, by service, of all workers of this process.
#[derive(Default)]
pub(super) struct Refusals {
    by_service: Mutex<BTreeMap<&'static str, Refused>>,
}

struct Refused {
    /// The lease that is charged.
    charged: u64,
    /// How often others were refused.
    others: u32,
}

impl Refusals {
    /// A range of a service was refused. `None`: it is charged with it. Otherwise how many refusals of ranges that weren't charged came before this one.
    pub fn refused(&self, service: &'static str, lease_id: u64) -> Option<u32> {
        let mut by_service = self.by_service.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = by_service.entry(service).or_insert(Refused { charged: lease_id, others: 0 });
        if refused.charged == lease_id {
            return None;
        }
        refused.others = refused.others.saturating_add(1);
        Some(refused.others - 1)
    }

    /// Something of a service was committed.
    pub fn committed(&self, service: &'static str) {
        self.by_service.lock().unwrap_or_else(PoisonError::into_inner).remove(service);
    }
}
