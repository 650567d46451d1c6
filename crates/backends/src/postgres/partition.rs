//! Partitions by height: made on demand and ahead of it, by whoever needs them first.
//!
//! A partitioned table has no default partition: a row without a partition is an error, never a row that nobody finds. A new partition is made
//! as a table of its own and then attached, under an advisory lock by table, so that neither readers nor writers of the others wait for it.
//! Partitions that exist are never changed; another size counts from the next one on.
//!
//! Secondary indexes are those that no key needs: `partition_index.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cairn_core::{Height, HeightRange};
use cairn_store::{Result, StoreError};

use super::error::{corrupt, db};
use super::pool::{Isolation, PgConn, PgPool};

/// How many partitions one call makes for the heights that were asked for, at most: a height far away can't make thousands.
const MAX_NEW: usize = 16;

/// A table that is partitioned by RANGE on a BIGINT column of heights. Names are our own plain identifiers, never input.
#[derive(Debug, Clone)]
pub struct PartitionedTable {
    /// The schema.
    pub schema: &'static str,
    /// The table.
    pub table: &'static str,
    /// How many heights a new partition holds.
    pub heights: u64,
    /// Storage parameters of partitions, such as `fillfactor = 100`; empty for none.
    pub storage: &'static str,
    /// Indexes beside the keys, that the parent has: a name that ends the index's own, and what follows `ON table`, such as `(block_height, transaction_index)`.
    pub secondary: &'static [(&'static str, &'static str)],
    /// The same, of indexes that no parent has: each partition gets them when it is full.
    pub when_full: &'static [(&'static str, &'static str)],
}

impl PartitionedTable {
    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.schema, self.table)
    }
}

/// A partition as it stands in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its table's name, without the schema.
    pub name: String,
    /// The heights that it holds.
    pub heights: HeightRange,
}

/// The partitions of some tables. Clones share what they know.
#[derive(Debug, Clone)]
pub struct Partitions {
    tables: Arc<Vec<PartitionedTable>>,
    /// How many partitions there are at least above the one that is needed.
    lookahead: u64,
    /// Whether secondary indexes wait until a partition is full.
    deferred: bool,
    known: Arc<Mutex<HashMap<&'static str, Vec<Partition>>>>,
}

impl Partitions {
    /// Partitions of `tables`, with so many ahead.
    pub fn new(tables: Vec<PartitionedTable>, lookahead: u64, deferred: bool) -> Self {
        Partitions { tables: Arc::new(tables), lookahead, deferred, known: Arc::default() }
    }

    /// The tables.
    pub fn tables(&self) -> &[PartitionedTable] {
        &self.tables
    }

    /// Makes sure that every table has partitions for `heights`. Costs nothing where this process knows them already. To be called outside of any
    /// transaction that writes, since another process may be waiting for the same ones.
    pub async fn ensure(&self, pool: &PgPool, heights: HeightRange) -> Result<()> {
        if heights.is_empty() {
            return Ok(());
        }
        for table in self.tables.iter() {
            if self.is_known(table, heights) {
                continue;
            }
            self.create(pool, table, heights, self.lookahead).await?;
        }
        Ok(())
    }

    /// Makes partitions ahead of the next height; whether it made some.
    pub async fn maintain(&self, pool: &PgPool, next: Option<Height>) -> Result<bool> {
        let Some(next) = next else { return Ok(false) };
        let mut made = false;
        for table in self.tables.iter() {
            made |= self.create(pool, table, HeightRange::one(next), self.lookahead).await? > 0;
        }
        Ok(made)
    }

    /// Whether secondary indexes wait until a partition is full.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// How many partitions of each table lie wholly above the one that holds `next`.
    pub async fn ahead(&self, conn: &PgConn, next: Height) -> Result<Vec<(&'static str, u64)>> {
        let mut ahead = Vec::with_capacity(self.tables.len());
        for table in self.tables.iter() {
            let ranges = ranges_of(conn, table).await?;
            ahead.push((table.table, ranges.iter().filter(|range| range.start() > next).count() as u64));
        }
        Ok(ahead)
    }

    /// Forgets what is known: a partition that should be there was missing.
    pub fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn is_known(&self, table: &PartitionedTable, heights: HeightRange) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(table.table).is_some_and(|partitions| missing(&ranges(partitions), heights).is_none())
    }

    /// The partition of `table` that holds all of `heights`, as far as this process knows: its name, without the schema. Somebody may have dropped it.
    pub(super) fn holding(&self, table: &str, heights: HeightRange) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = |partition: &&Partition| {
            partition.heights.start() <= heights.start() && heights.end() <= partition.heights.end()
        };
        Some(known.get(table)?.iter().find(holds)?.name.clone())
    }

    /// Makes the partitions for `heights` and `ahead` more above; how many were made.
    async fn create(
        &self,
        pool: &PgPool,
        table: &PartitionedTable,
        heights: HeightRange,
        ahead: u64,
    ) -> Result<usize> {
        let mut conn = pool.begin(Isolation::ReadCommitted).await?;
        let mut existing = list(&conn, table).await?;
        let mut wanted = wanted(&ranges(&existing), table.heights, heights, ahead)?;
        if !wanted.is_empty() {
            conn.lock_until_end(&format!("cairn.partitions.{}", table.name())).await?;
            // Somebody else may have made them while we waited.
            existing = list(&conn, table).await?;
            wanted = self::wanted(&ranges(&existing), table.heights, heights, ahead)?;
            for range in &wanted {
                conn.batch(&statements(table, *range)).await?;
                tracing::info!(table = table.name(), heights = %range, "made a partition");
            }
        }
        conn.commit().await?;
        existing.extend(
            wanted.iter().map(|range| Partition { name: partition_name(table, *range), heights: *range }),
        );
        existing.sort_by_key(|partition| partition.heights.start());
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(table.table, existing);
        Ok(wanted.len())
    }
}

/// The lowest height of `heights` that no range holds.
fn missing(ranges: &[HeightRange], heights: HeightRange) -> Option<Height> {
    let mut at = heights.start();
    for range in ranges {
        if at >= heights.end() {
            return None;
        }
        if range.contains(at) {
            at = range.end();
        }
    }
    (at < heights.end()).then_some(at)
}

/// The range around `height` that fits between those that exist (ascending): from multiple to multiple of `size`, cut where others begin and end.
fn around(existing: &[HeightRange], size: u64, height: Height) -> HeightRange {
    let size = size.max(1);
    let start = height.get() / size * size;
    let end = start.saturating_add(size).min(i64::MAX as u64);
    let mut range = HeightRange::new(Height(start), Height(end));
    for other in existing {
        if other.end() <= height {
            range = HeightRange::new(range.start().max(other.end()), range.end());
        } else if other.start() > height {
            range = HeightRange::new(range.start(), range.end().min(other.start()));
        }
    }
    range
}

/// The partitions that are to be made for `heights` and `ahead` more.
fn wanted(existing: &[HeightRange], size: u64, heights: HeightRange, ahead: u64) -> Result<Vec<HeightRange>> {
    let (mut all, mut made) = (existing.to_vec(), Vec::new());
    while let Some(height) = missing(&all, heights) {
        if made.len() == MAX_NEW {
            return Err(StoreError::Invalid(format!(
                "heights {heights} need more than {MAX_NEW} new partitions of {size} heights; write fewer heights at once, or make partitions larger"
            )));
        }
        let range = around(&all, size, height);
        if !range.contains(height) {
            return Err(StoreError::Invalid(format!(
                "height {height} can't be stored: it is above {}",
                i64::MAX
            )));
        }
        made.push(range);
        all.push(range);
        all.sort_by_key(|range| range.start());
    }
    let mut above = heights.end().saturating_sub(1);
    for _ in 0..ahead {
        let Some(holds) = all.iter().find(|range| range.contains(above)) else { break };
        above = holds.end();
        if above.get() >= i64::MAX as u64 {
            break;
        }
        if missing(&all, HeightRange::one(above)).is_some() {
            let range = around(&all, size, above);
            made.push(range);
            all.push(range);
            all.sort_by_key(|range| range.start());
        }
    }
    Ok(made)
}

fn partition_name(table: &PartitionedTable, range: HeightRange) -> String {
    format!("{}_h{}", table.table, range.start())
}

/// Attaching takes a lock on the parent that neither readers nor writers wait for; `CREATE TABLE ... PARTITION OF` would take one that they do.
fn statements(table: &PartitionedTable, range: HeightRange) -> String {
    let (schema, parent, name) = (table.schema, table.name(), partition_name(table, range));
    let with = if table.storage.is_empty() { String::new() } else { format!(" WITH ({})", table.storage) };
    format!(
        "CREATE TABLE {schema}.{name} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE){with};
         ALTER TABLE {parent} ATTACH PARTITION {schema}.{name} FOR VALUES FROM ({}) TO ({});",
        range.start(),
        range.end()
    )
}

async fn ranges_of(conn: &PgConn, table: &PartitionedTable) -> Result<Vec<HeightRange>> {
    Ok(ranges(&list(conn, table).await?))
}

fn ranges(partitions: &[Partition]) -> Vec<HeightRange> {
    partitions.iter().map(|partition| partition.heights).collect()
}

/// The partitions of a table, by height.
pub async fn list(conn: &PgConn, table: &PartitionedTable) -> Result<Vec<Partition>> {
    let rows = conn
        .query(
            "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i \
             JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass($1)",
            &[&table.name()],
        )
        .await?;
    let mut partitions = Vec::with_capacity(rows.len());
    for row in rows {
        let (name, bound): (String, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
        let heights = parse_bound(&bound).ok_or_else(|| {
            corrupt(format!("partition {name}"), format!("its bound is not a range of heights: {bound}"))
        })?;
        partitions.push(Partition { name, heights });
    }
    partitions.sort_by_key(|partition| partition.heights.start());
    Ok(partitions)
}

/// `FOR VALUES FROM ('0') TO ('5000000')`.
fn parse_bound(bound: &str) -> Option<HeightRange> {
    let (from, to) = bound.strip_prefix("FOR VALUES FROM (")?.strip_suffix(")")?.split_once(") TO (")?;
    let number = |text: &str| text.trim_matches('\'').parse().ok().map(Height);
    Some(HeightRange::new(number(from)?, number(to)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> HeightRange {
        HeightRange::new(Height(start), Height(end))
    }

    #[test]
    fn bounds_are_read_from_the_catalogue() {
        assert_eq!(parse_bound("FOR VALUES FROM ('0') TO ('5000000')"), Some(range(0, 5_000_000)));
        assert_eq!(parse_bound("FOR VALUES FROM (10) TO (20)"), Some(range(10, 20)));
        assert_eq!(parse_bound("DEFAULT"), None);
        assert_eq!(parse_bound("FOR VALUES FROM (MINVALUE) TO ('5')"), None);
    }

    #[test]
    fn p07_partitions_are_made_where_heights_are_and_a_bounded_number_ahead() {
        assert_eq!(wanted(&[], 10, range(3, 5), 2).unwrap(), [range(0, 10), range(10, 20), range(20, 30)]);
        assert_eq!(wanted(&[range(0, 10)], 10, range(3, 5), 0).unwrap(), []);
        assert_eq!(wanted(&[range(0, 10)], 10, range(8, 12), 1).unwrap(), [range(10, 20), range(20, 30)]);
        // A height far away makes its own partition, and none in between.
        let far = 4_102_444_800_000;
        assert_eq!(wanted(&[range(0, 10)], 10, range(far, far + 1), 2).unwrap().len(), 3);
        // Many at once are refused.
        assert!(wanted(&[], 10, range(0, 1_000), 0).is_err());
        assert!(wanted(&[], 10, range(u64::MAX - 5, u64::MAX), 0).is_err());
        // The largest commit fits into the smallest partitions that a configuration may ask for, wherever it begins.
        for first in [0, 1, 99] {
            assert!(wanted(&[], 100, range(first, first + 1_024), 2).is_ok(), "{first}");
        }
    }

    #[test]
    fn another_size_counts_from_the_next_partition_on() {
        let existing = [range(0, 10), range(10, 20)];
        assert_eq!(wanted(&existing, 15, range(19, 21), 1).unwrap(), [range(20, 30), range(30, 45)]);
        // Between two that exist.
        assert_eq!(wanted(&[range(0, 10), range(30, 40)], 25, range(12, 13), 0).unwrap(), [range(10, 25)]);
        assert_eq!(wanted(&[range(0, 10), range(14, 40)], 25, range(12, 13), 0).unwrap(), [range(10, 14)]);
    }
}
