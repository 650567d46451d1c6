//! Secondary indexes of partitioned tables: those that wait until a partition is full, and those that are made up for. Also those that a migration began on the parent
//! alone, so that a large table is read beside its readers and writers, and no lock is held meanwhile.
//!
//! Usually the parent has them, and so has each new partition. In a backfill they are deferred: no parent has them, and they are built on each partition
//! that is full. Once that is over, what is missing is built and attached to the parent. Some always wait until a partition is full: those that cost more
//! with every row than they save before.
//!
//! A partition is full when all of it is final. Until then a reorg may have to take rows of it away, which would wait for the index; the one that is
//! written to gets its index beside the writers (`CONCURRENTLY`).
//!
//! All this is for one process, the one that writes blocks: another one, opened with other options, has no say in it.

use cairn_core::Height;
use cairn_store::Result;

use super::error::{corrupt, db};
use super::partition::{Partition, PartitionedTable, Partitions, list};
use super::pool::{Isolation, PgConn, PgPool};

impl Partitions {
    /// Gives parents without any partition their secondary indexes: each partition then has them from the start. Nothing where they are deferred.
    pub async fn begin_indexes(&self, pool: &PgPool) -> Result<()> {
        if self.is_deferred() {
            return Ok(());
        }
        for table in self.tables().iter().filter(|table| !table.secondary.is_empty()) {
            let mut conn = locked(pool, table).await?;
            if list(&conn, table).await?.is_empty() {
                for (suffix, definition) in table.secondary {
                    make_parent_index(&conn, table, suffix, definition).await?;
                }
            }
            conn.commit().await?;
        }
        Ok(())
    }

    /// Builds one index that a partition lacks, where heights below `full_to` are final. Returns whether it did: there may be more.
    pub async fn build_one_index(&self, pool: &PgPool, full_to: Height) -> Result<bool> {
        for table in self.tables() {
            if build_when_full(pool, table, full_to, self.is_deferred()).await? {
                return Ok(true);
            }
            for (suffix, definition) in table.secondary.iter().filter(|_| !self.is_deferred()) {
                if complete_one(pool, table, suffix, definition, full_to).await? {
                    return Ok(true);
                }
            }
            // Building takes a connection too, and there may be one only.
            let conn = pool.get().await?;
            let begun = begun(&conn, table).await?;
            drop(conn);
            for (suffix, definition) in begun {
                if complete_one(pool, table, &suffix, &definition, full_to).await? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What becomes of the secondary indexes, a sentence for each that is not on every partition from the start, or would not be but for what was there before.
    pub async fn describe_indexes(&self, pool: &PgPool) -> Result<Vec<String>> {
        let mut said = Vec::new();
        let conn = pool.get().await?;
        for table in self.tables() {
            for (suffix, _) in table.secondary {
                let (name, index) = (table.name(), parent_index(table, suffix));
                let on_parent = exists(&conn, &index).await?;
                let lacking = lacking(&conn, table, &index).await?.len();
                match (self.is_deferred(), on_parent) {
                    (true, true) => said.push(format!(
                        "backfill changes nothing for {index}: {name} was made without it, so that every partition has the index from the start"
                    )),
                    (true, false) => said.push(format!(
                        "backfill: {index} is built on each partition that is full and final; started once without it, cairn builds what is missing and attaches it"
                    )),
                    (false, _) if lacking > 0 => said.push(format!(
                        "{lacking} partitions of {name} lack {index}: it is built and attached one after the other, while blocks go on"
                    )),
                    (false, _) => {}
                }
            }
            for (suffix, _) in begun(&conn, table).await? {
                let (name, index) = (table.name(), parent_index(table, &suffix));
                let lacking = lacking(&conn, table, &index).await?.len();
                said.push(format!(
                    "a migration began {index}, and {lacking} partitions of {name} lack it: it is built and attached one after the other, while blocks go on"
                ));
            }
        }
        Ok(said)
    }
}

fn parent_index(table: &PartitionedTable, suffix: &str) -> String {
    format!("{}.{}_{suffix}", table.schema, table.table)
}

/// A transaction that nobody else makes partitions or indexes of this table beside.
async fn locked(pool: &PgPool, table: &PartitionedTable) -> Result<PgConn> {
    let conn = pool.begin(Isolation::ReadCommitted).await?;
    conn.lock_until_end(&format!("cairn.partitions.{}", table.name())).await?;
    Ok(conn)
}

async fn exists(conn: &PgConn, relation: &str) -> Result<bool> {
    let row = conn.query_one("SELECT to_regclass($1) IS NOT NULL", &[&relation]).await?;
    row.try_get(0).map_err(db)
}

async fn make_parent_index(
    conn: &PgConn,
    table: &PartitionedTable,
    suffix: &str,
    definition: &str,
) -> Result<()> {
    if exists(conn, &parent_index(table, suffix)).await? {
        return Ok(());
    }
    conn.batch(&format!("CREATE INDEX {}_{suffix} ON ONLY {} {definition}", table.table, table.name())).await
}

/// Indexes that a migration made on the parent alone, and that not all partitions have yet: what ends the index's name, and what follows `ON table`.
async fn begun(conn: &PgConn, table: &PartitionedTable) -> Result<Vec<(String, String)>> {
    let rows = conn
        .query(
            "SELECT c.relname::text, pg_get_indexdef(c.oid) FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid \
             WHERE x.indrelid = to_regclass($1) AND c.relkind = 'I' AND NOT x.indisvalid ORDER BY 1",
            &[&table.name()],
        )
        .await?;
    let mut begun = Vec::with_capacity(rows.len());
    for row in rows {
        let (name, definition): (String, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
        let suffix = name.strip_prefix(&format!("{}_", table.table));
        let after = definition.split_once(&format!(" ON ONLY {} ", table.name()));
        let (Some(suffix), Some((_, after))) = (suffix, after) else {
            let what = format!("it isn't valid, and is none that cairn makes: {definition}; drop it");
            return Err(corrupt(format!("index {}.{name}", table.schema), what));
        };
        if !table.secondary.iter().any(|(secondary, _)| *secondary == suffix) {
            begun.push((suffix.to_owned(), after.to_owned()));
        }
    }
    Ok(begun)
}

/// The partitions without an index that belongs to this one of the parent, by height.
async fn lacking(conn: &PgConn, table: &PartitionedTable, parent_index: &str) -> Result<Vec<Partition>> {
    let rows = conn
        .query(
            "SELECT c.relname::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
             WHERE i.inhparent = to_regclass($1) AND NOT EXISTS ( \
               SELECT FROM pg_index x JOIN pg_inherits xi ON xi.inhrelid = x.indexrelid \
               WHERE x.indrelid = c.oid AND xi.inhparent = to_regclass($2))",
            &[&table.name(), &parent_index],
        )
        .await?;
    let names = rows.iter().map(|row| row.try_get(0).map_err(db)).collect::<Result<Vec<String>>>()?;
    let mut partitions = list(conn, table).await?;
    partitions.retain(|partition| names.contains(&partition.name));
    Ok(partitions)
}

/// Builds one index on one partition that lies wholly below `full_to` and lacks it.
async fn build_when_full(
    pool: &PgPool,
    table: &PartitionedTable,
    full_to: Height,
    deferred: bool,
) -> Result<bool> {
    let mut conn = pool.get().await?;
    let mut wanted: Vec<_> = table.when_full.iter().collect();
    for index in table.secondary.iter().filter(|_| deferred) {
        // What the parent has, each partition has, by whatever name.
        if !exists(&conn, &parent_index(table, index.0)).await? {
            wanted.push(index);
        }
    }
    if wanted.is_empty() {
        return Ok(false);
    }
    for partition in
        list(&conn, table).await?.iter().take_while(|partition| partition.heights.end() <= full_to)
    {
        for (suffix, definition) in &wanted {
            let index = format!("{}_{suffix}", partition.name);
            if exists(&conn, &format!("{}.{index}", table.schema)).await? {
                continue;
            }
            drop(conn);
            conn = locked(pool, table).await?;
            build(&conn, table, &partition.name, &index, definition).await?;
            conn.commit().await?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Of a partition that nobody writes to.
async fn build(
    conn: &PgConn,
    table: &PartitionedTable,
    partition: &str,
    index: &str,
    definition: &str,
) -> Result<()> {
    tracing::info!(partition, index, "building an index");
    let name = format!("{}.{index}", table.schema);
    // One that was begun beside writers and not finished would pass for one that is there.
    if is_valid(conn, &name).await? == Some(false) {
        conn.batch(&format!("DROP INDEX {name}")).await?;
    }
    // It takes as long as it takes.
    conn.batch(&format!(
        "SET LOCAL statement_timeout = 0; CREATE INDEX IF NOT EXISTS {index} ON {}.{partition} {definition}",
        table.schema
    ))
    .await
}

/// Whether an index is whole; `None`: there is none.
async fn is_valid(conn: &PgConn, index: &str) -> Result<Option<bool>> {
    let found = conn
        .query_opt("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", &[&index])
        .await?;
    found.map(|row| row.try_get(0).map_err(db)).transpose()
}

/// Of one that is written to: beside the writers, in no transaction. What was left of an attempt that failed is made again.
async fn build_beside_writers(
    pool: &PgPool,
    table: &PartitionedTable,
    partition: &str,
    index: &str,
    definition: &str,
) -> Result<()> {
    let (schema, mut conn) = (table.schema, pool.get().await?);
    match is_valid(&conn, &format!("{schema}.{index}")).await? {
        Some(true) => return Ok(()),
        Some(false) => {
            conn.run_last(&format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}")).await?;
            conn = pool.get().await?;
        }
        None => {}
    }
    tracing::info!(partition, index, "building an index beside the writers");
    let create = format!("CREATE INDEX CONCURRENTLY {index} ON {schema}.{partition} {definition}");
    conn.run_last(&create).await
}

/// Makes sure that the parent has an index, and builds and attaches it on one partition that lacks it.
async fn complete_one(
    pool: &PgPool,
    table: &PartitionedTable,
    suffix: &str,
    definition: &str,
    full_to: Height,
) -> Result<bool> {
    let parent_index = parent_index(table, suffix);
    let mut conn = pool.get().await?;
    if !exists(&conn, &parent_index).await? {
        drop(conn);
        conn = locked(pool, table).await?;
        make_parent_index(&conn, table, suffix, definition).await?;
        conn.commit().await?;
    }
    let Some(partition) = lacking(&conn, table, &parent_index).await?.into_iter().next() else {
        return Ok(false);
    };
    drop(conn);
    let index = format!("{}_{suffix}", partition.name);
    let is_full = partition.heights.end() <= full_to;
    if !is_full {
        build_beside_writers(pool, table, &partition.name, &index, definition).await?;
    }
    let mut conn = locked(pool, table).await?;
    if is_full {
        build(&conn, table, &partition.name, &index, definition).await?;
    } else {
        // Whoever writes to the partition waits behind this, which waits for readers: rather again later.
        conn.batch("SET LOCAL lock_timeout = '200ms'").await?;
    }
    conn.batch(&format!("ALTER INDEX {parent_index} ATTACH PARTITION {}.{index}", table.schema)).await?;
    conn.commit().await?;
    Ok(true)
}
