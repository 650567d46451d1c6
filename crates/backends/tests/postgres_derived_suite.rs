//! The whole conformance suite of the derived store on PostgreSQL. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being
//! incomplete.
#![cfg(feature = "postgres")]

use std::sync::Arc;

use async_trait::async_trait;
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgOptions, PgRawOptions, PgRawStore};
use cairn_core::Clock;
use cairn_store::derived::suite::{self, DerivedFactory, DerivedPlace, TestDerived};
use cairn_store::derived::{Catalog, ErrorLog};
use cairn_store::{Result, StoreError};

#[path = "support/pg.rs"]
mod pg;

struct Places;

struct Place {
    db: pg::TestDb,
    catalog: Catalog,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl DerivedFactory for Places {
    async fn place(&self, catalog: Catalog, clock: Arc<dyn Clock>) -> Result<Arc<dyn DerivedPlace>> {
        let db = pg::database().await.ok_or_else(|| StoreError::Busy("there is no server".into()))?;
        Ok(Arc::new(Place { db, catalog, clock }))
    }

    fn expired_leases(&self) -> u64 {
        20_000
    }

    fn at_once(&self) -> usize {
        4
    }
}

#[async_trait]
impl DerivedPlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestDerived>> {
        let pool = PgOptions { max_open_conns: 8, ..self.db.options() };
        let options = PgDerivedOptions {
            write: pool.clone(),
            read: pool,
            snapshot_max_ms: None,
            ..PgDerivedOptions::new(&self.db.url)
        };
        Ok(Arc::new(PgDerived::open(options, self.catalog.clone(), Some(self.clock.clone())).await?))
    }

    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>> {
        let options = PgRawOptions::with(self.db.options());
        Ok(Arc::new(PgRawStore::open(options, Some(self.clock.clone())).await?))
    }

    async fn lose_lease(&self, id: u64) -> Result<()> {
        self.db.sql(&format!("DELETE FROM app.worker_leases WHERE id = {id}")).await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_passes_the_whole_derived_suite() {
    if pg::server_url().is_none() {
        return;
    }
    let report = suite::run_all(Arc::new(Places), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}
