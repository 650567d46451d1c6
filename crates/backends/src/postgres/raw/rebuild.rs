//! Tables of the raw store made anew in place: into partitions of another size.

use cairn_core::{Height, HeightRange};
use cairn_store::{Result, StoreError};
use futures::FutureExt;

use super::schema::{MIGRATIONS, SCHEMA};
use super::{PgRawOptions, PgRawStore};
use crate::postgres::migrate_table::{APPLICATION_NAME, Moved, TableMove, create_like_old};
use crate::postgres::{Partitions, PgOptions, PgPool, migrate};

impl PgRawStore {
    /// The tables that [`PgRawStore::rebuild`] takes.
    pub fn partitioned_tables(options: &PgRawOptions) -> Vec<&'static str> {
        options.partitions.tables().iter().map(|table| table.table).collect()
    }

    /// Makes a partitioned table anew in place, by the partition sizes of `options`: see [`crate::postgres::migrate_table`]. No store may be open on the database.
    /// `told` hears of each step, and stops it there by answering `false`; the next call goes on.
    pub async fn rebuild(
        options: PgRawOptions,
        table: &str,
        batch_rows: u64,
        mut told: impl FnMut(&Moved) -> bool,
    ) -> Result<()> {
        let tables = options.partitions.tables();
        let Some(found) = tables.iter().find(|known| known.table == table).cloned() else {
            let known: Vec<&str> = tables.iter().map(|table| table.table).collect();
            return Err(StoreError::Invalid(format!(
                "raw.{table} is no partitioned table; there are {}",
                known.join(", ")
            )));
        };
        let pg = PgOptions {
            application_name: APPLICATION_NAME.into(),
            // A step and the partition that it needs.
            max_open_conns: options.pg.max_open_conns.max(2),
            ..options.pg.clone()
        };
        let pool = PgPool::new(pg)?;
        let conn = pool.get().await?;
        migrate::demand_version(&conn, SCHEMA, MIGRATIONS).await?;
        drop(conn);
        let partitions = Partitions::new(vec![found.clone()], options.lookahead_partitions, false);
        let height = if found.table == "blocks" { "height" } else { "block_height" };
        let key = primary_key(&pool, &format!("raw.{table}")).await?;
        let moving = TableMove {
            schema: SCHEMA,
            table: table.to_owned(),
            key,
            create: Box::new(move |conn| create_like_old(conn, SCHEMA, found.table, height).boxed()),
            partitions: Some((
                found.heights,
                Box::new({
                    let pool = pool.clone();
                    move |height: Height| {
                        let (partitions, pool) = (partitions.clone(), pool.clone());
                        async move { partitions.ensure(&pool, HeightRange::one(height)).await }.boxed()
                    }
                }),
            )),
            batch_rows,
        };
        loop {
            let moved = moving.step(&pool).await?;
            if !told(&moved) || moved == Moved::Dropped {
                return Ok(());
            }
        }
    }
}

/// The columns of a table's primary key in order.
async fn primary_key(pool: &PgPool, table: &str) -> Result<Vec<String>> {
    let conn = pool.get().await?;
    let rows = conn
        .query(
            "SELECT a.attname::text FROM pg_index x CROSS JOIN unnest(x.indkey) WITH ORDINALITY AS k (attnum, n) \
             JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum \
             WHERE x.indrelid = to_regclass($1) AND x.indisprimary ORDER BY k.n",
            &[&table],
        )
        .await?;
    rows.iter().map(|row| row.try_get(0).map_err(crate::postgres::error::db)).collect()
}
