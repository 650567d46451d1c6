//! Leases that a worker may hold without working on them.
//!
//! A claim whose answer was lost, or a lease that could not be given back while the database was away: nobody works on it, and nobody else may claim it before it
//! expires. Its owner gives it back as soon as the database answers. The fence says whether it is still the owner's, so whatever was sent under it before is refused.

use std::sync::atomic::{AtomicBool, Ordering};

use cairn_core::ErrorKind;
use cairn_store::StoreError;
use cairn_store::derived::{LeaseEnd, LeaseFilter, LeaseStatus};

use super::context::Context;

/// At most so many ACTIVE leases of one service are looked through; what lies behind them expires.
const MAX_LOOKED: usize = 1_000;

/// What one worker may have left ACTIVE.
#[derive(Debug, Default)]
pub(super) struct Strays {
    may_be: AtomicBool,
}

impl Strays {
    /// There may be one.
    pub fn suspect(&self) {
        self.may_be.store(true, Ordering::SeqCst);
    }

    /// Whether there may be one.
    pub fn are_suspected(&self) -> bool {
        self.may_be.load(Ordering::SeqCst)
    }

    /// Gives back what `owner` holds of `service`, but for the lease that it works on. It asks nothing where none is suspected.
    pub async fn give_back(
        &self,
        context: &Context,
        service: &str,
        owner: &str,
        in_hand: Option<u64>,
    ) -> Result<(), StoreError> {
        if !self.are_suspected() {
            return Ok(());
        }
        let filter = LeaseFilter {
            service: Some(service.to_owned()),
            status: Some(LeaseStatus::Active),
            limit: MAX_LOOKED,
            ..LeaseFilter::default()
        };
        let leases = context.app.snapshot().await?.leases(&filter).await?;
        for lease in leases.into_iter().filter(|lease| lease.owner == owner && Some(lease.id) != in_hand) {
            match context.app.end(&lease, LeaseEnd::Released).await {
                Ok(()) => {
                    tracing::info!(service, range = %lease.range, "a lease that nobody worked on is given back");
                    context.wake.tick();
                }
                Err(error) if error.kind() == ErrorKind::Fenced => {}
                Err(error) => return Err(error),
            }
        }
        self.may_be.store(false, Ordering::SeqCst);
        Ok(())
    }
}
