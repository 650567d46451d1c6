//! A lease in hand: it is kept alive while work goes on, and let go before it could be another's ([`crate::term`]).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use cairn_store::derived::{DerivedStore, WorkerLease};
use tokio::time::Instant;

use crate::term::{self, LeaseTerm};

/// The lease is another's, or may be soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost;

pub(super) struct Held {
    pub lease: WorkerLease,
    /// When its claim was answered.
    pub claimed_at: Instant,
    app: Arc<dyn DerivedStore>,
    ttl_ms: u64,
    term: LeaseTerm,
}

impl Held {
    /// A lease whose claim was asked for at `asked_at`.
    pub fn new(
        lease: WorkerLease,
        app: Arc<dyn DerivedStore>,
        ttl_ms: u64,
        margin_ms: u64,
        asked_at: Instant,
    ) -> Self {
        Held {
            lease,
            claimed_at: Instant::now(),
            app,
            ttl_ms,
            term: LeaseTerm::new(ttl_ms, margin_ms, asked_at),
        }
    }

    /// The store renewed it by a call that began at `asked_at`.
    pub fn renewed(&self, asked_at: Instant) {
        self.term.renewed(asked_at);
    }

    /// Does `work` while the lease is kept alive beside it. Where it is lost the work is dropped: whatever it had sent is fenced.
    pub async fn keep<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => Ok(done),
            Lost = self.beat() => Err(Lost),
        }
    }

    /// Does `work` to its end while the lease is kept alive beside it, and says whether it still is.
    pub async fn keep_through<T>(&self, work: impl Future<Output = T>) -> (T, Result<(), Lost>) {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => (done, Ok(())),
            Lost = self.beat() => (work.await, Err(Lost)),
        }
    }

    async fn beat(&self) -> Lost {
        let renew = || async { self.app.renew(&self.lease, self.ttl_ms).await.map(drop) };
        if let term::Lost::Overdue = self.term.keep(self.lease.range, renew).await {
            tracing::warn!(
                service = self.lease.service,
                range = %self.lease.range,
                "the lease could not be renewed in time; its work is dropped"
            );
        }
        Lost
    }
}
