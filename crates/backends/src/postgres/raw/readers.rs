//! Doors beside the ingester, each with a budget of connections of its own: for readers, and for work that writes too but that nothing waits for.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_store::{HeadRow, RawReader, RawSnapshot, Result};

use super::head;
use super::{PgRawOptions, PgRawStore, Shared};
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
        Ok(PgRawReaders {
            shared: self.shared.clone(),
            pool: self.shared.pool.beside(self.options_of(application_name))?,
        })
    }

    /// The whole store once more, for what goes on beside the ingester: the error log, repair, upkeep. Its pool is one of its own, as with
    /// [`PgRawStore::readers`], so that whoever holds all of it holds nothing that an append needs. Hooks of tests are not carried over.
    pub fn beside(&self, application_name: &str) -> Result<PgRawStore> {
        let pg = self.options_of(application_name);
        let pool = self.shared.pool.beside(pg.clone())?;
        Ok(PgRawStore {
            shared: Arc::new(self.shared.beside(PgRawOptions { pg, ..self.shared.options.clone() }, pool)),
        })
    }

    fn options_of(&self, application_name: &str) -> PgOptions {
        PgOptions { application_name: application_name.into(), ..self.shared.options.pg.clone() }
    }
}

#[async_trait]
impl RawReader for PgRawReaders {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        self.shared.clone().snapshot(&self.pool).await
    }

    async fn head(&self) -> Result<HeadRow> {
        head::ask(&self.pool).await
    }
}
