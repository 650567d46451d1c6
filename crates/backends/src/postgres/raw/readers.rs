//! Doors for readers beside the ingester, each with a budget of connections of its own.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_store::{RawReader, RawSnapshot, Result};

use super::{PgRawStore, Shared};
use crate::postgres::{PgOptions, PgPool};

/// Snapshots of an open store on connections of a pool of their own: readers who hold all of them hold none of the ingester's, or of other
/// readers' (law 1, P08). Clones share the pool.
#[derive(Clone)]
pub struct PgRawReaders {
    shared: Arc<Shared>,
    pool: PgPool,
}

impl std::fmt::Debug for PgRawReaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgRawReaders").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl PgRawStore {
    /// A door for one kind of readers. Its pool is as large as the store's, connects at the first snapshot, and shows itself to the server as
    /// `application_name`.
    pub fn readers(&self, application_name: &str) -> Result<PgRawReaders> {
        let pg = PgOptions { application_name: application_name.into(), ..self.shared.options.pg.clone() };
        Ok(PgRawReaders { shared: self.shared.clone(), pool: PgPool::new(pg)? })
    }
}

#[async_trait]
impl RawReader for PgRawReaders {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        self.shared.clone().snapshot(&self.pool).await
    }
}
