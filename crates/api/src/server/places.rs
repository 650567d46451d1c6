//! Places for connections: so many in all, a share for each client address, and a few that are reserved.
//!
//! An eighth of the places is spare: for addresses that have few connections, so that a few clients with many leave no newcomer outside.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::ConnectionLimits;
use crate::rpc::client;

/// How long a connection may wait for a place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Which part of the places is spare.
const SPARE_PART: usize = 8;
/// With so many connections an address still has few.
const FEW: usize = 4;

/// The places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    ordinary: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    waiting: Semaphore,
    per_address: usize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// One of them; dropping gives it back.
#[derive(Debug)]
pub(super) struct Place {
    /// It is one of the reserved.
    pub reserved: bool,
    _counted: Option<Counted>,
    _permit: OwnedSemaphorePermit,
}

/// One connection of an address.
#[derive(Debug)]
struct Counted {
    places: Arc<Places>,
    address: IpAddr,
    /// So many it had with this one.
    number: usize,
}

impl Places {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        let all = limits.max_connections.max(1);
        let spare = all / SPARE_PART;
        Places {
            ordinary: Arc::new(Semaphore::new(all - spare)),
            spare: Arc::new(Semaphore::new(spare)),
            reserved: Arc::new(Semaphore::new(limits.reserved_connections)),
            waiting: Semaphore::new(all),
            per_address: limits.max_connections_per_address.max(1),
            by_address: Mutex::default(),
        }
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from `address`. It waits for one, but not longer than a second, and as many may wait as there are places.
    /// `None`: there is none in time, or the address has its share and no reserved one is free. A proxy has no share.
    pub(super) async fn find(self: &Arc<Self>, address: IpAddr, is_proxy: bool) -> Option<Place> {
        let reserved = Arc::clone(&self.reserved);
        let counted = self.count(client(address));
        if counted.is_none() && !is_proxy {
            return reserved.try_acquire_owned().ok().map(Place::reserved);
        }
        let has_few = counted.as_ref().is_some_and(|counted| counted.number <= FEW);
        let free = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        let spare = || if has_few { free(&self.spare) } else { None };
        if let Some(permit) = free(&self.ordinary).or_else(spare) {
            return Some(Place::ordinary(counted, permit));
        }
        let waiting = self.waiting.try_acquire();
        let (ordinary, spare) = (Arc::clone(&self.ordinary), Arc::clone(&self.spare));
        let found = async {
            tokio::select! {
                biased;
                Ok(permit) = reserved.acquire_owned() => Place::reserved(permit),
                Ok(permit) = spare.acquire_owned(), if has_few => Place::ordinary(counted, permit),
                Ok(permit) = ordinary.acquire_owned() => Place::ordinary(counted, permit),
            }
        };
        let patience = if waiting.is_ok() { PATIENCE } else { Duration::ZERO };
        tokio::time::timeout(patience, found).await.ok()
    }

    /// One more of `address`, where it doesn't have its share.
    fn count(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let mut by_address = self.by_address();
        let count = by_address.entry(address).or_default();
        if *count >= self.per_address {
            return None;
        }
        *count += 1;
        let number = *count;
        Some(Counted { places: Arc::clone(self), address, number })
    }
}

impl Place {
    fn ordinary(counted: Option<Counted>, permit: OwnedSemaphorePermit) -> Place {
        Place { reserved: false, _counted: counted, _permit: permit }
    }

    fn reserved(permit: OwnedSemaphorePermit) -> Place {
        Place { reserved: true, _counted: None, _permit: permit }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut by_address = self.places.by_address();
        if let Some(count) = by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_with_many_connections_leave_no_newcomer_outside() {
        let limits = ConnectionLimits {
            max_connections: 64,
            max_connections_per_address: 64,
            reserved_connections: 0,
            ..ConnectionLimits::default()
        };
        let places = Arc::new(Places::new(limits));
        let of = |last: u8| IpAddr::from([203, 0, 113, last]);
        let mut taken = Vec::new();
        for _ in 0..64 {
            taken.extend(places.find(of(1), false).await);
        }
        assert_eq!(taken.len(), 56);
        assert!(places.find(of(1), false).await.is_none());
        let newcomers = [places.find(of(2), false).await, places.find(of(3), false).await];
        assert!(newcomers.iter().all(Option::is_some));
        // Who gives places back may have them again, and the spare ones are free again too.
        drop((taken, newcomers));
        let mut again = Vec::new();
        for _ in 0..64 {
            again.extend(places.find(of(2), false).await);
        }
        assert_eq!(again.len(), 56);
    }
}
