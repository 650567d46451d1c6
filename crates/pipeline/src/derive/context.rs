//! What all tasks of a deriver share.

use std::sync::Arc;

use cairn_store::RawReader;
use cairn_store::derived::{Catalog, ChunkCommit, DerivedStore, ErrorLog, NewError};
use tokio_util::sync::CancellationToken;

use super::error::DeriveError;
use super::options::{Compute, DeriveOptions};
use super::recent::RecentBlocks;
use super::status::DeriveBoard;
use super::wake::Wake;

pub(super) struct Context {
    pub raw: Arc<dyn RawReader>,
    pub app: Arc<dyn DerivedStore>,
    pub errors: Arc<dyn ErrorLog>,
    pub catalog: Catalog,
    pub options: DeriveOptions,
    /// What mappers read last.
    pub recent: RecentBlocks,
    pub board: DeriveBoard,
    pub wake: Wake,
    pub stop: CancellationToken,
}

/// A chunk that is ready to be committed.
pub(super) struct Prepared {
    pub commit: ChunkCommit,
    /// What could not be decoded in it.
    pub malformed: Vec<NewError>,
}

impl Context {
    /// Runs `work` where the options say.
    pub async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, DeriveError> + Send + 'static,
    ) -> Result<T, DeriveError> {
        match self.options.compute {
            Compute::Inline => work(),
            Compute::Blocking => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => Err(DeriveError::Panicked(error.to_string())),
            },
        }
    }
}
