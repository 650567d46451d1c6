//! The whole conformance suite of the raw store on PostgreSQL. `CAIRN_CASE=part-of-a-name` runs some of it, and then fails for being incomplete.

use crate::support::pg;

use std::sync::Arc;

use async_trait::async_trait;
use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{PgRawOptions, PgRawStore};
use cairn_core::{Clock, Height};
use cairn_store::suite::{self, StoreFactory, StorePlace, TestStore};
use cairn_store::{Result, StoreError};

struct Places;

struct Place {
    db: pg::TestDb,
    clock: Arc<dyn Clock>,
}

#[async_trait]
impl StoreFactory for Places {
    async fn place(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn StorePlace>> {
        let db = pg::database().await.ok_or_else(|| StoreError::Database("no server".into()))?;
        Ok(Arc::new(Place { db, clock }))
    }

    fn at_once(&self) -> usize {
        4
    }
}

#[async_trait]
impl StorePlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestStore>> {
        let options = PgRawOptions {
            snapshot_max_ms: None,
            // Small ones, so that blocks lie on both sides of bounds.
            partitions: PartitionSizes { events_heights: 60, ..PartitionSizes::all(40) },
            lookahead_partitions: 1,
            // Cases hold several snapshots.
            pg: cairn_backends::postgres::PgOptions { max_open_conns: 20, ..self.db.options() },
            ..PgRawOptions::with(self.db.options())
        };
        Ok(Arc::new(PgRawStore::open(options, Some(self.clock.clone())).await?))
    }

    async fn lose_block(&self, height: Height) -> Result<()> {
        self.db.sql(&format!("DELETE FROM raw.blocks WHERE height = {height}")).await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_passes_the_whole_raw_suite() {
    if pg::server_url().is_none() {
        return;
    }
    let report = suite::run_all(Arc::new(Places), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}
