//! What is let in at once: requests by number, bodies and responses by bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::eth::methods::Kind;
use crate::limits::RpcLimits;

/// The unit in which bytes are counted, so that any budget fits a semaphore.
const UNIT_BYTES: usize = 1024;

/// Bytes that are held; dropping gives them back.
#[derive(Debug)]
pub(crate) struct Charge(#[allow(dead_code, reason = "held for its drop")] Vec<OwnedSemaphorePermit>);

impl Charge {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Charge(Vec::new())
    }

    /// Both.
    pub(crate) fn add(&mut self, other: Charge) {
        self.0.extend(other.0);
    }
}

/// A budget of bytes.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    units: Arc<Semaphore>,
    total_units: usize,
}

impl ByteBudget {
    fn new(bytes: usize) -> Self {
        let total_units = (bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        ByteBudget { units: Arc::new(Semaphore::new(total_units)), total_units }
    }

    /// Waits until `bytes` are free and takes them. More than the whole budget takes the whole budget.
    pub(crate) async fn take(&self, bytes: usize) -> Charge {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, self.total_units);
        match Arc::clone(&self.units).acquire_many_owned(units as u32).await {
            Ok(permit) => Charge(vec![permit]),
            // Never closed.
            Err(_) => Charge::none(),
        }
    }
}

/// The server's gate.
#[derive(Debug)]
pub(crate) struct Gate {
    all: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
    /// Responses that are made but not yet sent.
    pub(crate) responses: ByteBudget,
    /// Large bodies that are being read.
    pub(crate) bodies: ByteBudget,
}

/// The right to answer one request.
pub(crate) struct Turn(#[allow(dead_code, reason = "held for its drop")] [Option<OwnedSemaphorePermit>; 2]);

impl Gate {
    /// A gate by `limits`.
    pub(crate) fn new(limits: &RpcLimits) -> Self {
        Gate {
            all: Arc::new(Semaphore::new(limits.max_concurrent_requests.max(1))),
            heavy: Arc::new(Semaphore::new(limits.max_heavy_requests.max(1))),
            responses: ByteBudget::new(limits.responses_in_flight_bytes),
            bodies: ByteBudget::new(limits.bodies_in_flight_bytes),
        }
    }

    /// Waits for a turn. Heavy requests wait among themselves first, so that they can't use up the places of light ones.
    pub(crate) async fn turn(&self, kind: Kind) -> Turn {
        let heavy = match kind {
            Kind::Heavy => Arc::clone(&self.heavy).acquire_owned().await.ok(),
            _ => None,
        };
        Turn([heavy, Arc::clone(&self.all).acquire_owned().await.ok()])
    }
}
