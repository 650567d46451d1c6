//! Tables of the app store made anew: in place with their rows, by the definition that this program has; or dropped, to be derived again.

use std::sync::{Arc, Mutex};

use cairn_core::{Height, HeightRange};
use cairn_store::derived::{Catalog, RangeAgain, Rebuild};
use cairn_store::{Result, StoreError};
use futures::FutureExt;

use super::coordinate::insert_reindex;
use super::fault::Fault;
use super::schema::{self, MIGRATIONS};
use super::tables::PgTable;
use super::tx::{Gate, Tx};
use super::{PgDerived, PgDerivedOptions, Shared, partitions, rebuilds};
use crate::postgres::error::db;
use crate::postgres::migrate_table::{self, APPLICATION_NAME, Create, EnsurePartition, Moved, TableMove};
use crate::postgres::{PgOptions, PgPool, migrate};

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
        let pool =
            PgPool::new(PgOptions { application_name: APPLICATION_NAME.into(), ..options.read.clone() })?;
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

    /// Refuses while anybody else is connected: what is written between an export and the drop would be lost.
    pub async fn demand_alone(options: &PgDerivedOptions) -> Result<()> {
        let pool =
            PgPool::new(PgOptions { application_name: APPLICATION_NAME.into(), ..options.read.clone() })?;
        let conn = pool.get().await?;
        migrate_table::demand_alone(&conn).await
    }

    /// Drops tables, and lets the services that wrote them, and those behind them, begin anew, in one transaction: the next opening makes those tables that the catalog has, and
    /// [`cairn_store::derived::DerivedMaintenance::reset_step`] goes on from there. Refuses while anybody else is connected. Says which services begin anew.
    pub async fn drop_tables(
        options: PgDerivedOptions,
        catalog: Catalog,
        tables: &[String],
        behind: &Behind,
    ) -> Result<Dropped> {
        let pool =
            PgPool::new(PgOptions { application_name: APPLICATION_NAME.into(), ..options.write.clone() })?;
        // The schema may be an older one yet.
        migrate::migrate(&mut pool.get().await?, "app", MIGRATIONS).await?;
        drop(pool);
        let shared = alone(options, catalog).await?;
        shared.rerun(|| drop_in(&shared, tables, behind).boxed()).await
    }
}

/// Services that read what others wrote whose tables are dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behind {
    /// They fold it, and begin anew.
    pub folders: Vec<String>,
    /// They ask nodes about what it names, and ask again: service, version, and by how many heights.
    pub askers: Vec<(String, u32, u64)>,
}

/// What became of services when tables were dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dropped {
    /// They begin anew.
    pub anew: Vec<Rebuild>,
    /// They ask again.
    pub asked: Vec<String>,
    /// They are at some of these heights already, and can't be asked for more now.
    pub busy: Vec<String>,
}

async fn drop_in(shared: &Shared, tables: &[String], behind: &Behind) -> std::result::Result<Dropped, Fault> {
    let tx = shared.begin(Gate::Exclusive).await?;
    let conn = &tx.conn;
    conn.lock_until_end(schema::DDL_LOCK).await?;
    migrate_table::demand_alone(conn).await?;
    conn.batch("SET LOCAL statement_timeout = 0").await?;
    let mut services: Vec<String> = Vec::new();
    for table in tables {
        let row = conn
            .query_opt("SELECT definition FROM app.table_definitions WHERE table_name = $1", &[table])
            .await?;
        let Some(row) = row else {
            return Err(StoreError::Invalid(format!("the app store has no table {table}")).into());
        };
        services.extend(service_of(row.try_get(0).map_err(db)?));
        conn.batch(&format!("DROP TABLE app.{}", super::tables::quoted(table))).await?;
        for sql in [
            "DELETE FROM app.table_definitions WHERE table_name = $1",
            "DELETE FROM app.index_definitions WHERE table_name = $1",
            "DELETE FROM app.state_undo WHERE table_name = $1",
        ] {
            conn.execute(sql, &[table]).await?;
        }
    }
    services.sort_unstable();
    services.dedup();
    let mut dropped = Dropped::default();
    for (service, version, range_heights) in &behind.askers {
        ask_again(&tx, service, *version, *range_heights, &mut dropped).await?;
    }
    for service in &services {
        let is_known = shared.tables.iter().any(|table| table.table.def().service == service);
        match begin_anew(&tx, service).await? {
            Some(rebuild) if is_known => dropped.anew.push(rebuild),
            // Nobody is there to derive it, or it never ran.
            _ => forget(&tx, service).await?,
        }
    }
    for service in behind.folders.iter().filter(|service| !services.contains(service)) {
        dropped.anew.extend(begin_anew(&tx, service).await?);
    }
    tx.commit("drop_tables").await?;
    Ok(dropped)
}

/// `None`: it never ran.
async fn begin_anew(tx: &Tx<'_>, service: &str) -> std::result::Result<Option<Rebuild>, Fault> {
    let is_clearing = rebuilds::find(tx, service).await?.is_some_and(|rebuild| rebuild.is_clearing);
    if !is_clearing && tx.checkpoint(service, false).await?.is_none() {
        return Ok(None);
    }
    rebuilds::anew(tx, service).await.map(Some)
}

async fn forget(tx: &Tx<'_>, service: &str) -> std::result::Result<(), Fault> {
    for sql in [
        "DELETE FROM app.indexing_checkpoints WHERE service_name = $1",
        "DELETE FROM app.worker_leases WHERE worker_type = $1",
        "DELETE FROM app.quarantined_blocks WHERE service_name = $1",
        "DELETE FROM app.rebuilds WHERE service_name = $1",
    ] {
        tx.execute(sql, &[&service]).await?;
    }
    Ok(())
}

/// Everything that it has asked about, once what names it is there again.
async fn ask_again(
    tx: &Tx<'_>,
    service: &str,
    version: u32,
    range_heights: u64,
    dropped: &mut Dropped,
) -> std::result::Result<(), Fault> {
    const IS_ASKING: &str = "SELECT 1 FROM app.worker_leases WHERE worker_type = $1 AND kind = 'reindex' AND status <> 'COMPLETED' LIMIT 1";
    let Some(checkpoint) = tx.checkpoint(service, true).await? else { return Ok(()) };
    let first = rebuilds::lowest(tx, service).await?.unwrap_or(checkpoint.next);
    let range = HeightRange::new(first, checkpoint.next.max(first));
    if range.is_empty() {
        return Ok(());
    }
    if tx.query_opt(IS_ASKING, &[&service]).await?.is_some() {
        dropped.busy.push(service.to_owned());
        return Ok(());
    }
    let again = RangeAgain {
        service: service.to_owned(),
        version,
        range,
        range_heights,
        is_behind: true,
        corrects_state: false,
    };
    insert_reindex(tx, &again, range).await?;
    dropped.asked.push(service.to_owned());
    Ok(())
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
