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
use super::looks::Looks;
use super::options::{Compute, DeriveOptions};
use super::processor::Folder;
use super::read::SharedTip;
use super::recent::RecentBlocks;
use super::refusals::Refusals;
use super::report::{Dropped, Report};
use super::status::DeriveBoard;
use super::troubles::Troubles;
use super::unanswered::Unanswered;
use super::wake::Wake;

pub(super) struct Context {
    pub raw: Arc<dyn RawReader>,
    pub app: Arc<dyn DerivedStore>,
    pub errors: Arc<dyn ErrorLog>,
    pub catalog: Catalog,
    /// Every folder whose state is corrected, whether its worker runs here or not.
    pub folders: Vec<Arc<dyn Folder>>,
    pub options: DeriveOptions,
    /// What mappers read last.
    pub recent: RecentBlocks,
    /// What workers read of the tip together.
    pub tip: SharedTip,
    /// What workers that wait go by.
    pub looks: Looks,
    /// What nodes call final.
    pub ahead: Ahead,
    /// What a node doesn't answer.
    pub unanswered: Unanswered,
    /// What may pass and hasn't yet.
    pub troubles: Troubles,
    /// Whose faults are counted each by itself.
    pub faults: Faults,
    /// What the error log has no room for.
    pub dropped: Dropped,
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
    /// What came of a job beside the workers. It ends nothing but itself: one that failed is counted, told of where that lasts, named on the board, and done again at its next time.
    pub fn beside<T>(&self, job: &'static str, done: Result<T, impl Into<DeriveError>>) -> Option<T> {
        match done {
            Ok(done) => {
                if let Some(lasted) = self.troubles.over(job) {
                    tracing::info!(job, lasted_s = lasted.as_secs(), "this job gets on again");
                }
                metrics::gauge!("cairn_derive_job_failing", "job" => job).set(0.0);
                self.board.job(job, None);
                Some(done)
            }
            Err(error) => {
                let error: DeriveError = error.into();
                metrics::counter!("cairn_derive_job_failures_total", "job" => job).increment(1);
                metrics::gauge!("cairn_derive_job_failing", "job" => job).set(1.0);
                tracing::debug!(job, %error, "a job beside the workers failed; it is done again");
                if let Some(lasts) = self.troubles.met(job) {
                    tracing::warn!(job, lasts_s = lasts.as_secs(), %error, "this job doesn't get on; it is tried again and again");
                }
                self.board.job(job, Some(error.to_string()));
                None
            }
        }
    }

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
