//! Partitions of event tables by height: made on demand, some ahead; and indexes that were put off.
//!
//! A partition is made as a table of its own and then attached, which neither waits for readers and writers of its siblings nor stops
//! them. There is no default partition: a row without one is refused by the server, and the partition made (P07).

use std::collections::HashSet;

use cairn_core::{Height, HeightRange};
use cairn_store::derived::IndexDef;
use cairn_store::{Result, StoreError};

use super::Shared;
use super::schema::{DDL_LOCK, index_name};
use super::tables::{PgTable, quoted};
use crate::postgres::error::db;
use crate::postgres::{Isolation, PgConn};

/// The most partitions of one table that one call makes: a height out of all proportion must not make thousands.
const MAX_MADE: u64 = 64;

/// The most indexes that one call of `maintain` builds.
const MAX_BUILT: usize = 16;

/// Partitions that are known to be there: table and number.
pub(super) type Known = HashSet<(&'static str, u64)>;

/// The name of a partition without its schema.
fn partition_name(table: &PgTable, number: u64) -> String {
    format!("{}_p{number}", table.table.name())
}

/// Makes the partitions of a table for these heights that are missing, and `ahead` more. Where those for the heights are known, nothing is looked
/// at: a commit doesn't wait for what lies ahead.
pub(super) async fn ensure(shared: &Shared, table: &PgTable, heights: HeightRange, ahead: u64) -> Result<()> {
    let (Some(each), Some(last)) = (table.partition_heights(), heights.last()) else { return Ok(()) };
    let (from, needed) = (heights.start().get() / each, last.get() / each);
    let name = table.table.name();
    if (from..=needed).all(|number| shared.known().contains(&(name, number))) {
        return Ok(());
    }
    make(shared, table, from, needed, ahead).await
}

/// The same, and those ahead are made although the others are known: the lookahead moves with the tip.
pub(super) async fn ensure_ahead(
    shared: &Shared,
    table: &PgTable,
    heights: HeightRange,
    ahead: u64,
) -> Result<()> {
    let (Some(each), Some(last)) = (table.partition_heights(), heights.last()) else { return Ok(()) };
    let (from, needed) = (heights.start().get() / each, last.get() / each);
    let to = needed.saturating_add(ahead).min(i64::MAX as u64 / each);
    if (from..=to).all(|number| shared.known().contains(&(table.table.name(), number))) {
        return Ok(());
    }
    make(shared, table, from, needed, ahead).await
}

/// Makes the partitions with the numbers `from` to `needed` that are missing, and `ahead` more.
async fn make(shared: &Shared, table: &PgTable, from: u64, needed: u64, ahead: u64) -> Result<()> {
    let Some(each) = table.partition_heights() else { return Ok(()) };
    let name = table.table.name();
    let heights =
        HeightRange::new(Height(from * each), Height(needed.saturating_add(1).saturating_mul(each)));
    let to = needed.saturating_add(ahead).min(i64::MAX as u64 / each);
    if to.saturating_sub(from) >= MAX_MADE {
        return Err(StoreError::Invalid(format!(
            "table {name}: heights {heights} would need {} partitions at once, which is more than {MAX_MADE}",
            to - from + 1
        )));
    }
    let mut conn = shared.write.begin(Isolation::ReadCommitted).await?;
    conn.lock_until_end(DDL_LOCK).await?;
    for number in from..=to {
        let partition = format!("app.{}", quoted(&partition_name(table, number)));
        if conn
            .query_one("SELECT to_regclass($1) IS NOT NULL", &[&partition])
            .await?
            .try_get(0)
            .map_err(db)?
        {
            continue;
        }
        let low = number * each;
        let high = (number + 1).checked_mul(each).filter(|high| *high <= i64::MAX as u64);
        let high = high.map_or_else(|| "MAXVALUE".to_owned(), |high| high.to_string());
        conn.batch(&format!(
            "CREATE TABLE {partition} (LIKE {0} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE);
             ALTER TABLE {0} ATTACH PARTITION {partition} FOR VALUES FROM ({low}) TO ({high})",
            table.name
        ))
        .await?;
        tracing::info!(table = name, number, from_height = low, "made a partition");
    }
    conn.commit().await?;
    shared.known().extend((from..=to).map(|number| (name, number)));
    Ok(())
}

/// The partitions that a table has, by number.
async fn numbers(conn: &PgConn, table: &PgTable) -> Result<Vec<u64>> {
    let rows = conn
        .query(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = to_regclass($1)",
            &[&table.name],
        )
        .await?;
    let prefix = format!("{}_p", table.table.name());
    let mut numbers = Vec::with_capacity(rows.len());
    for row in &rows {
        let name: &str = row.try_get(0).map_err(db)?;
        numbers.extend(name.strip_prefix(&prefix).and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Builds indexes that were put off, on partitions that end at or below `full_to`, and on all of them where none is put off any more; attaches
/// an index to the table when every partition has it. At most [`MAX_BUILT`] at a call.
pub(super) async fn build_indexes(shared: &Shared, table: &PgTable, full_to: Height) -> Result<()> {
    let Some(each) = table.partition_heights() else { return Ok(()) };
    let name = table.table.name();
    let mut conn = shared.write.get().await?;
    let mut built = 0;
    for index in table.table.def().indexes {
        let parent = format!("app.{}", quoted(&index_name(name, index.name)));
        if is_there(&conn, &parent).await? {
            continue;
        }
        let numbers = numbers(&conn, table).await?;
        let mut complete = true;
        for number in numbers {
            let partition = partition_name(table, number);
            if is_there(&conn, &format!("app.{}", quoted(&index_name(&partition, index.name)))).await? {
                continue;
            }
            let is_full = (number + 1).saturating_mul(each) <= full_to.get();
            if built == MAX_BUILT || (shared.options.defer_indexes && !is_full) {
                complete = false;
                continue;
            }
            build_one(&mut conn, table, &partition, index).await?;
            built += 1;
        }
        if complete && !shared.options.defer_indexes {
            attach(&mut conn, table, index).await?;
        }
    }
    Ok(())
}

async fn is_there(conn: &PgConn, name: &str) -> Result<bool> {
    conn.query_one("SELECT to_regclass($1) IS NOT NULL", &[&name]).await?.try_get(0).map_err(db)
}

/// Builds one index on one partition. Writers of that partition wait meanwhile, those of others don't.
async fn build_one(conn: &mut PgConn, table: &PgTable, partition: &str, index: &IndexDef) -> Result<()> {
    conn.begin(Isolation::ReadCommitted).await?;
    conn.batch("SET LOCAL statement_timeout = 0; SET LOCAL maintenance_work_mem = '256MB'").await?;
    conn.batch(&format!(
        "CREATE INDEX IF NOT EXISTS {} ON app.{} ({})",
        quoted(&index_name(partition, index.name)),
        quoted(partition),
        table.index_columns(index)?
    ))
    .await?;
    conn.commit().await?;
    tracing::info!(partition, index = index.name, "built an index that was put off");
    Ok(())
}

/// Makes the table's index out of those of its partitions. A partition that is attached later gets its own by itself.
async fn attach(conn: &mut PgConn, table: &PgTable, index: &IndexDef) -> Result<()> {
    let name = table.table.name();
    let parent = quoted(&index_name(name, index.name));
    conn.begin(Isolation::ReadCommitted).await?;
    conn.lock_until_end(DDL_LOCK).await?;
    conn.batch(&format!("CREATE INDEX {parent} ON ONLY {} ({})", table.name, table.index_columns(index)?))
        .await?;
    for number in numbers(conn, table).await? {
        let partition = partition_name(table, number);
        let part = format!("app.{}", quoted(&index_name(&partition, index.name)));
        if !is_there(conn, &part).await? {
            // It was made since the others were counted: the next call finds it.
            return conn.rollback().await;
        }
        conn.batch(&format!("ALTER INDEX app.{parent} ATTACH PARTITION {part}")).await?;
    }
    conn.commit().await
}
