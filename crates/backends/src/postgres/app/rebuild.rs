//! Tables of the app store made anew: in place with their rows, by the definition that this program has; or dropped, to be derived again.

use std::sync::{Arc, Mutex};

use cairn_core::{Height, HeightRange};
use cairn_store::derived::Catalog;
use cairn_store::{Result, StoreError};
use futures::FutureExt;

use super::schema::{self, MIGRATIONS};
use super::tables::PgTable;
use super::{PgDerived, PgDerivedOptions, Shared, partitions};
use crate::postgres::error::db;
use crate::postgres::migrate_table::{APPLICATION_NAME, Create, EnsurePartition, Moved, TableMove};
use crate::postgres::{Isolation, PgOptions, PgPool, migrate};

impl PgDerived {
    /// Makes a table anew in place, by the catalog's definition: see [`crate::postgres::migrate_table`]. No store may be open on the database.
    /// `told` hears of each step, and stops it there by answering `false`; the next call goes on.
    pub async fn rebuild(
        options: PgDerivedOptions,
        catalog: Catalog,
        table: &str,
        batch_rows: u64,
        mut told: impl FnMut(&Moved) -> bool,
    ) -> Result<()> {
        let table = catalog.table(table)?.name();
        let shared = alone(options, catalog).await?;
        let found = shared.table(table)?;
        let partitions: Option<(u64, EnsurePartition)> = found.partition_heights().map(|heights| {
            let shared = shared.clone();
            let ensure = move |height: Height| {
                let shared = shared.clone();
                async move {
                    let ahead = shared.options.lookahead_partitions;
                    partitions::ensure(&shared, shared.table(table)?, HeightRange::one(height), ahead).await
                }
                .boxed()
            };
            (heights, Box::new(ensure) as EnsurePartition)
        });
        let making = shared.clone();
        let create: Create = Box::new(move |conn| {
            let shared = making.clone();
            async move { schema::define_again(conn, &shared, shared.table(table)?).await }.boxed()
        });
        let key = found.table.def().key.iter().map(|name| (*name).to_owned()).collect();
        let moving =
            TableMove { schema: "app", table: table.to_owned(), key, create, partitions, batch_rows };
        loop {
            let moved = moving.step(&shared.write).await?;
            if !told(&moved) || moved == Moved::Dropped {
                return Ok(());
            }
        }
    }

    /// The tables that were made for the service that writes `table`, that one included; by what the store says, and where it doesn't know the service by the catalog.
    pub async fn tables_beside(
        options: &PgDerivedOptions,
        catalog: &Catalog,
        table: &str,
    ) -> Result<Vec<String>> {
        let pool = PgPool::new(options.read.clone())?;
        let conn = pool.get().await?;
        let rows =
            conn.query("SELECT table_name, definition FROM app.table_definitions ORDER BY 1", &[]).await?;
        let mut made: Vec<(String, Option<String>)> = Vec::with_capacity(rows.len());
        for row in &rows {
            let (name, definition): (String, String) =
                (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
            made.push((name, service_of(&definition)));
        }
        let Some((_, service)) = made.iter().find(|(name, _)| name == table).cloned() else {
            return Err(StoreError::Invalid(format!("the app store has no table {table}")));
        };
        let service =
            service.or_else(|| catalog.table(table).ok().map(|table| table.def().service.to_owned()));
        made.retain(|(name, of)| name == table || (of.is_some() && *of == service));
        Ok(made.into_iter().map(|(name, _)| name).collect())
    }

    /// Drops tables and all that is known of the services that wrote them, in one transaction: the next opening makes those that the catalog has, and workers
    /// derive them from the beginning.
    pub async fn drop_tables(options: PgDerivedOptions, tables: &[String]) -> Result<()> {
        let pool = PgPool::new(PgOptions { application_name: APPLICATION_NAME.into(), ..options.write })?;
        let mut conn = pool.begin(Isolation::ReadCommitted).await?;
        conn.lock_until_end(schema::DDL_LOCK).await?;
        conn.batch("SET LOCAL statement_timeout = 0").await?;
        for table in tables {
            let row = conn
                .query_opt("SELECT definition FROM app.table_definitions WHERE table_name = $1", &[table])
                .await?;
            let Some(row) = row else {
                return Err(StoreError::Invalid(format!("the app store has no table {table}")));
            };
            let service = service_of(row.try_get(0).map_err(db)?);
            conn.batch(&format!("DROP TABLE app.{}", super::tables::quoted(table))).await?;
            for sql in [
                "DELETE FROM app.table_definitions WHERE table_name = $1",
                "DELETE FROM app.index_definitions WHERE table_name = $1",
                "DELETE FROM app.state_undo WHERE table_name = $1",
            ] {
                conn.execute(sql, &[table]).await?;
            }
            if let Some(service) = service {
                for sql in [
                    "DELETE FROM app.indexing_checkpoints WHERE service_name = $1",
                    "DELETE FROM app.worker_leases WHERE worker_type = $1",
                ] {
                    conn.execute(sql, &[&service]).await?;
                }
                // The schema may be an older one yet.
                let there = "SELECT to_regclass('app.quarantined_blocks') IS NOT NULL";
                if conn.query_one(there, &[]).await?.try_get(0).map_err(db)? {
                    conn.execute("DELETE FROM app.quarantined_blocks WHERE service_name = $1", &[&service])
                        .await?;
                }
            }
        }
        conn.commit().await
    }
}

/// `… of SERVICE: columns; key …`, as [`schema`] describes a table.
fn service_of(definition: &str) -> Option<String> {
    let (_, rest) = definition.split_once(" of ")?;
    Some(rest.split_once(':')?.0.to_owned())
}

/// The store as it is used to change it, without opening it.
async fn alone(options: PgDerivedOptions, catalog: Catalog) -> Result<Arc<Shared>> {
    let named = |pg: &PgOptions| PgOptions {
        application_name: APPLICATION_NAME.into(),
        // A step and the partition that it needs.
        max_open_conns: pg.max_open_conns.max(2),
        ..pg.clone()
    };
    let write = PgPool::new(named(&options.write))?;
    let conn = write.get().await?;
    migrate::demand_version(&conn, "app", MIGRATIONS).await?;
    drop(conn);
    Ok(Arc::new(Shared {
        read: PgPool::new(named(&options.read))?,
        write,
        tables: Arc::new(PgTable::of_catalog(&catalog)),
        options,
        catalog,
        clock: None,
        hook: Mutex::default(),
        statement_hook: Mutex::default(),
        known: Mutex::default(),
    }))
}
