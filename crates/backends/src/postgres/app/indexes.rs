//! Indexes of event tables that were put off: built one partition at a time, beside whoever writes.
//!
//! In a backfill (`defer_indexes`) the table has none of them, and each partition gets its own once it is full: the service's checkpoint and finality have passed its end. Else the table has
//! the index at once, not valid yet, so that each new partition is made with it; the others get theirs one after the other, those that are written to like the rest, and when all
//! have it the server calls the table's valid. So does an index that came with a newer program.
//!
//! **One builds.** All of it is done on a connection of its own, whose session holds an advisory lock that is tried and never waited for: of any number of processes one builds, and the others do
//! nothing. It goes with the session, thus not before a statement has ended at the server whose process went away. What is to be done is looked up under it once more.
//!
//! **Nobody waits for long.** Indexes are built `CONCURRENTLY`, full partitions' too, since a reindex may write to those: the build waits for writers and readers, none of them for it. It leaves an
//! index that isn't valid where it is broken off; such a one is dropped and built anew. What locks a table or an index (giving the table its index, attaching a partition's) gives up soon
//! where somebody is in its way, because others would queue behind it, and is tried again at the next call.

use std::collections::{BTreeMap, HashMap, HashSet};

use cairn_core::Height;
use cairn_store::Result;
use cairn_store::derived::IndexDef;

use super::Shared;
use super::lease::{CHECKPOINT_COLUMNS, checkpoint_of};
use super::partitions::partition_name;
use super::schema::{DDL_LOCK, index_name};
use super::tables::{PgTable, quoted};
use crate::postgres::error::db;
use crate::postgres::{Isolation, PgConn};

/// Held by the session that builds.
const LOCK: &str = "cairn.app.indexes";

/// Settings of that session: a build takes as long as it takes.
const SETTINGS: &str = "SET statement_timeout = 0; SET lock_timeout = 0; SET maintenance_work_mem = '256MB'";

/// How long a lock is waited for behind which others queue.
const SHORT_LOCK: &str = "SET LOCAL lock_timeout = '500ms'";

/// Builds what lacks, where heights below `final_to` are final. Whether there was something. An index that fails is left, and the others are gone on with; then the first error.
pub(super) async fn build(shared: &Shared, final_to: Height) -> Result<bool> {
    let mut conn = shared.write.get().await?;
    if steps(shared, &conn, final_to).await?.is_empty() {
        return Ok(false);
    }
    conn.keep_apart();
    if !conn.try_lock_of_session(LOCK).await? {
        return Ok(false);
    }
    conn.batch(SETTINGS).await?;
    let (mut has_built, mut failed, mut first_error) = (false, HashSet::new(), None);
    loop {
        // Whoever had the lock before may have done it.
        let mut todo = match steps(shared, &conn, final_to).await {
            Ok(todo) => todo,
            Err(error) => return Err(first_error.unwrap_or(error)),
        };
        todo.retain(|(table, index, _)| !failed.contains(&(table.table.name(), index.name)));
        if todo.is_empty() {
            return first_error.map_or(Ok(has_built), Err);
        }
        for (table, index, step) in todo {
            match take(&mut conn, table, index, &step).await {
                Ok(()) => has_built = true,
                Err(error) => {
                    tracing::debug!(table = table.table.name(), index = index.name, ?step, %error, "an index has to wait");
                    failed.insert((table.table.name(), index.name));
                    first_error.get_or_insert(error);
                }
            }
        }
    }
}

/// What is to be done next with an index.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// The table is given it, for new partitions to have it from the start.
    OfTable,
    /// A partition gets it. What was left of an attempt that was broken off is in the way.
    Build { partition: String, is_broken: bool },
    /// That of a partition becomes part of the table's.
    Attach { partition: String },
}

/// The next step of every index that lacks something.
async fn steps<'a>(
    shared: &'a Shared,
    conn: &PgConn,
    final_to: Height,
) -> Result<Vec<(&'a PgTable, &'static IndexDef, Step)>> {
    let sql = format!("SELECT {CHECKPOINT_COLUMNS} FROM app.indexing_checkpoints");
    let checkpoints = conn.query(&sql, &[]).await?.iter().map(checkpoint_of).collect::<Result<Vec<_>>>()?;
    let found = Found::read(conn).await?;
    let mut steps = Vec::new();
    for table in shared.tables.iter() {
        let (def, Some(each)) = (table.table.def(), table.partition_heights()) else { continue };
        let checkpoint = checkpoints.iter().find(|checkpoint| checkpoint.service == def.service);
        let full_to = checkpoint.map_or(Height::ZERO, |checkpoint| checkpoint.next.min(final_to));
        for index in def.indexes {
            let partitions = Partitions { table: def.name, each, full_to };
            if let Some(step) = found.next_step(&partitions, index.name, shared.options.defer_indexes) {
                steps.push((table, index, step));
            }
        }
    }
    Ok(steps)
}

/// The partitions of a table: how many heights each has, and up to where they are full.
struct Partitions {
    table: &'static str,
    each: u64,
    full_to: Height,
}

/// What the server's catalogue says of schema `app`. Names are without the schema.
#[derive(Default)]
struct Found {
    /// Numbers of partitions, ascending, by table.
    partitions: BTreeMap<String, Vec<u64>>,
    /// Whether it is valid, of each index.
    indexes: HashMap<String, bool>,
    /// A partition and the table's index of which one of its own is part.
    attached: HashSet<(String, String)>,
}

impl Found {
    async fn read(conn: &PgConn) -> Result<Found> {
        const PARTITIONS: &str = "SELECT p.relname::text, c.relname::text FROM pg_inherits h
             JOIN pg_class p ON p.oid = h.inhparent JOIN pg_class c ON c.oid = h.inhrelid
             WHERE p.relkind = 'p' AND p.relnamespace = to_regnamespace('app')";
        const INDEXES: &str =
            "SELECT t.relname::text, i.relname::text, x.indisvalid, p.relname::text FROM pg_index x
             JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
             LEFT JOIN pg_inherits h ON h.inhrelid = i.oid LEFT JOIN pg_class p ON p.oid = h.inhparent
             WHERE t.relnamespace = to_regnamespace('app')";
        let mut found = Found::default();
        for row in conn.query(PARTITIONS, &[]).await? {
            let (table, name): (String, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
            let number =
                name.strip_prefix(&format!("{table}_p")).and_then(|number| number.parse::<u64>().ok());
            found.partitions.entry(table).or_default().extend(number);
        }
        found.partitions.values_mut().for_each(|numbers| numbers.sort_unstable());
        for row in conn.query(INDEXES, &[]).await? {
            found.indexes.insert(row.try_get(1).map_err(db)?, row.try_get(2).map_err(db)?);
            if let Some(parent) = row.try_get::<_, Option<String>>(3).map_err(db)? {
                found.attached.insert((row.try_get(0).map_err(db)?, parent));
            }
        }
        Ok(found)
    }

    fn next_step(&self, of: &Partitions, index: &str, is_deferred: bool) -> Option<Step> {
        let of_table = index_name(of.table, index);
        if !is_deferred && !self.indexes.contains_key(&of_table) {
            return Some(Step::OfTable);
        }
        for number in self.partitions.get(of.table).into_iter().flatten() {
            let partition = partition_name(of.table, *number);
            // By whatever name: the server names those that come with the table's.
            if self.attached.contains(&(partition.clone(), of_table.clone())) {
                continue;
            }
            let is_full = number.saturating_add(1).saturating_mul(of.each) <= of.full_to.get();
            match self.indexes.get(&index_name(&partition, index)) {
                Some(true) if is_deferred => {}
                Some(true) => return Some(Step::Attach { partition }),
                _ if is_deferred && !is_full => {}
                broken => return Some(Step::Build { partition, is_broken: broken.is_some() }),
            }
        }
        None
    }
}

async fn take(conn: &mut PgConn, table: &PgTable, index: &IndexDef, step: &Step) -> Result<()> {
    let of_table = quoted(&index_name(table.table.name(), index.name));
    let columns = table.index_columns(index)?;
    match step {
        Step::OfTable => {
            let create = format!("CREATE INDEX {of_table} ON ONLY {} ({columns})", table.name);
            briefly(conn, &create).await
        }
        Step::Build { partition, is_broken } => {
            let name = quoted(&index_name(partition, index.name));
            if *is_broken {
                tracing::info!(partition, index = index.name, "dropping an index that was not finished");
                conn.batch(&format!("DROP INDEX CONCURRENTLY IF EXISTS app.{name}")).await?;
            }
            tracing::info!(partition, index = index.name, "building an index that was put off");
            let partition = quoted(partition);
            conn.batch(&format!("CREATE INDEX CONCURRENTLY {name} ON app.{partition} ({columns})")).await
        }
        Step::Attach { partition } => {
            let name = quoted(&index_name(partition, index.name));
            briefly(conn, &format!("ALTER INDEX app.{of_table} ATTACH PARTITION app.{name}")).await
        }
    }
}

/// Runs what locks a table or an index for a moment. No partition is made meanwhile, so that neither finds half of what the other does.
async fn briefly(conn: &mut PgConn, statement: &str) -> Result<()> {
    conn.begin(Isolation::ReadCommitted).await?;
    conn.lock_until_end(DDL_LOCK).await?;
    let done = conn.batch(&format!("{SHORT_LOCK}; {statement}")).await;
    match done {
        Ok(()) => conn.commit().await,
        Err(error) => {
            conn.rollback().await?;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions 0 to 3 of 10 heights each, full up to 25.
    const PARTITIONS: Partitions = Partitions { table: "t", each: 10, full_to: Height(25) };

    fn found(indexes: &[(&str, bool)], attached: &[&str]) -> Found {
        Found {
            partitions: BTreeMap::from([("t".to_owned(), vec![0, 1, 2, 3])]),
            indexes: indexes.iter().map(|(name, valid)| ((*name).to_owned(), *valid)).collect(),
            attached: attached.iter().map(|part| ((*part).to_owned(), "t_by_x".to_owned())).collect(),
        }
    }

    fn built(partition: &str, is_broken: bool) -> Option<Step> {
        Some(Step::Build { partition: partition.to_owned(), is_broken })
    }

    #[test]
    fn in_a_backfill_full_partitions_get_the_index_and_no_others() {
        let next =
            |indexes: &[_], attached: &[_]| found(indexes, attached).next_step(&PARTITIONS, "by_x", true);
        assert_eq!(next(&[], &[]), built("t_p0", false));
        assert_eq!(next(&[("t_p0_by_x", true)], &[]), built("t_p1", false));
        assert_eq!(next(&[("t_p0_by_x", true), ("t_p1_by_x", false)], &[]), built("t_p1", true));
        assert_eq!(next(&[("t_p0_by_x", true), ("t_p1_by_x", true)], &[]), None);
        // A partition that was made with the table's has it under another name.
        assert_eq!(next(&[("t_by_x", false), ("t_p0_by_x", true)], &["t_p1"]), None);
    }

    #[test]
    fn else_the_table_has_it_first_and_then_each_partition_is_built_and_attached() {
        let next =
            |indexes: &[_], attached: &[_]| found(indexes, attached).next_step(&PARTITIONS, "by_x", false);
        let attach = |partition: &str| Some(Step::Attach { partition: partition.to_owned() });
        assert_eq!(next(&[], &[]), Some(Step::OfTable));
        let (table, first) = (("t_by_x", false), ("t_p0_by_x", true));
        assert_eq!(next(&[table], &[]), built("t_p0", false));
        assert_eq!(next(&[table, ("t_p0_by_x", false)], &[]), built("t_p0", true));
        assert_eq!(next(&[table, first], &[]), attach("t_p0"));
        assert_eq!(next(&[table, first], &["t_p0", "t_p1"]), built("t_p2", false));
        assert_eq!(next(&[table, first], &["t_p0", "t_p1", "t_p2", "t_p3"]), None);
    }
}
