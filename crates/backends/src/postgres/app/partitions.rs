//! Partitions of event tables by height: made on demand, some ahead. Their indexes that were put off: `indexes.rs`.
//!
//! A partition is made as a table of its own and then attached, which neither waits for readers and writers of its siblings nor stops
//! them. There is no default partition: a row without one is refused by the server, and the partition made (P07).

use std::collections::HashSet;

use cairn_core::{Height, HeightRange};
use cairn_store::{Result, StoreError};

use super::Shared;
use super::schema::DDL_LOCK;
use super::tables::{PgTable, quoted};
use crate::postgres::Isolation;
use crate::postgres::error::db;

/// The most partitions of one table that one call makes: a height out of all proportion must not make thousands.
const MAX_MADE: u64 = 64;

/// Partitions that are known to be there: table and number.
pub(super) type Known = HashSet<(&'static str, u64)>;

/// The name of a partition without its schema.
pub(super) fn partition_name(table: &str, number: u64) -> String {
    format!("{table}_p{number}")
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
        let partition = format!("app.{}", quoted(&partition_name(name, number)));
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
