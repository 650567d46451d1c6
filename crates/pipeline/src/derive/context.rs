//! What all tasks of a deriver share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cairn_core::Height;
use cairn_store::RawReader;
use cairn_store::derived::{Catalog, ChunkCommit, DerivedStore, ErrorLog};
use tokio_util::sync::CancellationToken;

use super::ahead::Ahead;
use super::error::DeriveError;
use super::faults::Faults;
use super::guard::text_of;
use super::options::{Compute, DeriveOptions};
use super::recent::RecentBlocks;
use super::refusals::Refusals;
use super::report::Report;
use super::status::DeriveBoard;
use super::troubles::Troubles;
use super::unanswered::Unanswered;
use super::wake::Wake;

pub(super) struct Context {
    pub raw: Arc<dyn RawReader>,
    pub app: Arc<dyn DerivedStore>,
    pub errors: Arc<dyn ErrorLog>,
    pub catalog: Catalog,
    pub options: DeriveOptions,
    /// What mappers read last.
    pub recent: RecentBlocks,
    /// What nodes call final.
    pub ahead: Ahead,
    /// What a node doesn't answer.
    pub unanswered: Unanswered,
    /// What may pass and hasn't yet.
    pub troubles: Troubles,
    /// Whose faults are counted each by itself.
    pub faults: Faults,
    /// What the database refused since the last commit.
    pub refusals: Refusals,
    pub board: DeriveBoard,
    pub wake: Wake,
    pub stop: CancellationToken,
}

/// A chunk that is ready to be committed.
pub(super) struct Prepared {
    pub commit: ChunkCommit,
    /// What could not be decoded in it.
    pub malformed: Vec<Report>,
    /// Where it has no rows because a block could not be processed.
    pub quarantined: Option<Height>,
}

impl Context {
    /// Runs `work` where the options say. A panic is an error of what was computed.
    pub async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, DeriveError> + Send + 'static,
    ) -> Result<T, DeriveError> {
        let work = move || {
            catch_unwind(AssertUnwindSafe(work))
                .unwrap_or_else(|panic| Err(DeriveError::Processor(text_of(&*panic).into())))
        };
        match self.options.compute {
            Compute::Inline => work(),
            Compute::Blocking => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => Err(DeriveError::Panicked(error.to_string())),
            },
        }
    }
}
