//! The suite of payload registries on PostgreSQL, with the raw store's own schema and a table of the test's that refers to payloads.

use crate::support::pg;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_backends::postgres::payloads::{PgPayloadRegistry, make_live};
use cairn_backends::postgres::{Isolation, PgConn, PgPool, PgRawOptions, PgRawStore};
use cairn_store::suite_payload::{RegistryFactory, TestRegistry, TestTransaction, run_registry};
use cairn_store::{
    LivePage, MarkedDead, PayloadContent, PayloadCursor, PayloadRef, PayloadRegistry, PayloadRow,
    PayloadState, Reservation, Result,
};

/// One database for all cases, which run one after the other; each begins with empty tables.
struct Registries {
    pool: PgPool,
}

struct Registry {
    registry: PgPayloadRegistry,
    pool: PgPool,
}

struct Transaction(PgConn);

#[async_trait]
impl RegistryFactory for Registries {
    async fn registry(&self) -> Result<Arc<dyn TestRegistry>> {
        let conn = self.pool.get().await?;
        conn.batch(
            "TRUNCATE raw.payloads, raw.\"Test references\"; ALTER SEQUENCE raw.payload_generation RESTART",
        )
        .await?;
        drop(conn);
        let pool = self.pool.clone();
        Ok(Arc::new(Registry { registry: PgPayloadRegistry::new(pool.clone()), pool }))
    }
}

#[async_trait]
impl PayloadRegistry for Registry {
    async fn reserve(&self, contents: &[PayloadContent]) -> Result<Vec<Reservation>> {
        self.registry.reserve(contents).await
    }
    async fn mark_dead(&self, grace_ms: u64, after: PayloadCursor, limit: usize) -> Result<MarkedDead> {
        self.registry.mark_dead(grace_ms, after, limit).await
    }
    async fn begin_delete(&self, grace_ms: u64, limit: usize) -> Result<Vec<PayloadRow>> {
        self.registry.begin_delete(grace_ms, limit).await
    }
    async fn deleting(&self, after: PayloadCursor, limit: usize) -> Result<Vec<PayloadRow>> {
        self.registry.deleting(after, limit).await
    }
    async fn finish_delete(&self, objects: &[PayloadRef]) -> Result<()> {
        self.registry.finish_delete(objects).await
    }
    async fn adopt(&self, objects: &[(PayloadRef, u64)]) -> Result<Vec<PayloadRef>> {
        self.registry.adopt(objects).await
    }
    async fn live(&self, after: PayloadCursor, limit: usize) -> Result<LivePage> {
        self.registry.live(after, limit).await
    }
}

#[async_trait]
impl TestRegistry for Registry {
    async fn begin(&self) -> Result<Box<dyn TestTransaction>> {
        Ok(Box::new(Transaction(self.pool.begin(Isolation::ReadCommitted).await?)))
    }

    async fn references(&self) -> Result<BTreeMap<u64, PayloadRef>> {
        let conn = self.pool.get().await?;
        let rows = conn.query("SELECT place, payload_ref FROM raw.\"Test references\"", &[]).await?;
        let entry = |row: &tokio_postgres::Row| {
            (row.get::<_, i64>(0) as u64, row.get::<_, &str>(1).parse().expect("a key"))
        };
        Ok(rows.iter().map(entry).collect())
    }

    async fn rows(&self) -> Result<Vec<PayloadRow>> {
        let conn = self.pool.get().await?;
        let rows = conn
            .query(
                "SELECT hash, generation, state, size_bytes FROM raw.payloads ORDER BY hash, generation",
                &[],
            )
            .await?;
        let row = |row: &tokio_postgres::Row| {
            let hash = cairn_store::PayloadHash(row.get::<_, &[u8]>(0).try_into().expect("32 bytes"));
            let state = match row.get::<_, &str>(2) {
                "live" => PayloadState::Live,
                "dead" => PayloadState::Dead,
                _ => PayloadState::Deleting,
            };
            PayloadRow {
                object: PayloadRef { hash, generation: row.get::<_, i64>(1) as u64 },
                state,
                size_bytes: row.get::<_, i64>(3) as u64,
            }
        };
        Ok(rows.iter().map(row).collect())
    }
}

#[async_trait]
impl TestTransaction for Transaction {
    async fn make_live(&mut self, objects: &[PayloadRef]) -> Result<Vec<PayloadRef>> {
        make_live(&self.0, objects).await
    }

    async fn refer(&mut self, place: u64, object: PayloadRef) -> Result<()> {
        let sql = "INSERT INTO raw.\"Test references\" VALUES ($1, $2) \
                   ON CONFLICT (place) DO UPDATE SET payload_ref = EXCLUDED.payload_ref";
        self.0.execute(sql, &[&(place as i64), &object.key()]).await?;
        Ok(())
    }

    async fn forget(&mut self, place: u64) -> Result<()> {
        self.0.execute("DELETE FROM raw.\"Test references\" WHERE place = $1", &[&(place as i64)]).await?;
        Ok(())
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        self.0.commit().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_registry_conforms() {
    let Some(db) = pg::database().await else { return };
    PgRawStore::open(PgRawOptions::with(db.options()), None).await.unwrap();
    // A name that has to be quoted.
    db.sql(
        "CREATE TABLE raw.\"Test references\" (place bigint PRIMARY KEY, payload_ref text NOT NULL); \
         CREATE INDEX ON raw.\"Test references\" (payload_ref)",
    )
    .await;
    let options = cairn_backends::postgres::PgOptions { max_open_conns: 12, ..db.options() };
    let factory = Registries { pool: PgPool::new(options).unwrap() };
    let report = run_registry(Arc::new(factory), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}
