//! The whole conformance suite of the derived store on PostgreSQL. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being
//! incomplete.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_backends::postgres::{
    PgDerived, PgDerivedOptions, PgOptions, PgPool, PgRawOptions, PgRawStore, StatementHook,
};
use cairn_core::{Clock, Height};
use cairn_store::derived::suite::{
    self, Breaker, Breaking, Countdown, DerivedFactory, DerivedPlace, TestDerived,
};
use cairn_store::derived::{Catalog, ErrorLog};
use cairn_store::{Result, StoreError};

use crate::support::pg;

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

    fn at_once(&self) -> usize {
        4
    }
}

impl Place {
    async fn open_store(&self) -> Result<PgDerived> {
        let pool = PgOptions { max_open_conns: 8, ..self.db.options() };
        let options = PgDerivedOptions {
            write: pool.clone(),
            read: pool,
            snapshot_max_ms: None,
            ..PgDerivedOptions::new(&self.db.url)
        };
        PgDerived::open(options, self.catalog.clone(), Some(self.clock.clone())).await
    }

    async fn open_raw(&self) -> Result<PgRawStore> {
        PgRawStore::open(PgRawOptions::with(self.db.options()), Some(self.clock.clone())).await
    }
}

#[async_trait]
impl DerivedPlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestDerived>> {
        Ok(Arc::new(self.open_store().await?))
    }

    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>> {
        Ok(Arc::new(self.open_raw().await?))
    }

    async fn lose_lease(&self, id: u64) -> Result<()> {
        self.db.sql(&format!("DELETE FROM app.worker_leases WHERE id = {id}")).await;
        Ok(())
    }

    async fn set_last_height(&self, table: &'static str, height: Height) -> Result<()> {
        self.db.sql(&format!("UPDATE app.{table} SET last_height = {height}")).await;
        Ok(())
    }

    async fn open_breaking(&self) -> Result<Breaking> {
        let (store, raw) = (self.open_store().await?, self.open_raw().await?);
        let breaks = Arc::new(Breaks { countdown: Countdown::default(), pool: self.db.pool() });
        store.set_statement_hook(Some(breaks.clone()));
        raw.set_statement_hook(Some(breaks.clone()));
        Ok(Breaking { store: Arc::new(store), log: Arc::new(raw), breaker: breaks })
    }
}

/// Breaks off transactions between any two of their statements.
struct Breaks {
    countdown: Countdown,
    pool: PgPool,
}

impl StatementHook for Breaks {
    fn before_statement(&self) -> Result<()> {
        self.countdown.pass()
    }
}

#[async_trait]
impl Breaker for Breaks {
    async fn break_at(&self, point: Option<u64>) -> Result<()> {
        // The server rolls back what was broken off a moment later.
        let until_none_is_open = "DO $$ BEGIN FOR look IN 1..10000 LOOP \
             PERFORM pg_stat_clear_snapshot(); \
             IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL \
               AND backend_type = 'client backend' AND pid <> pg_backend_pid()) THEN RETURN; END IF; \
             PERFORM pg_sleep(0.001); END LOOP; RAISE 'a transaction is still open'; END $$";
        self.pool.get().await?.batch(until_none_is_open).await?;
        self.countdown.set(point);
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
