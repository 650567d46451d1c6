//! What each index costs while rows are copied in: parts of `./dev bench postgres`.
//!
//! The indexes are those that the server says a store's table has, so that none is left out and none is told that isn't there. The rows are copied into an empty table of the same columns with
//! one of them at a time; figures are times the copy without any, medians.

use anyhow::{Context, Result};
use bytes::Bytes;
use cairn_backends::postgres::PgConn;

use crate::bench::median;
use crate::bench_pg::copy_into;
use crate::report::figure;

const REPEATS: usize = 5;

/// Rows of a table of a store, and their plain copy `bare.TABLE`, which has its columns and no index.
pub struct Copied<'a> {
    /// The store's schema.
    pub schema: &'a str,
    /// The table.
    pub table: &'a str,
    /// The table with those of its columns that rows have, where those are not all.
    pub target: String,
    /// The rows, in the binary COPY format.
    pub rows: &'a Bytes,
    /// What their copy takes without an index, in seconds.
    pub plain_s: f64,
}

/// An index of a table, apart from its name.
#[derive(Debug, PartialEq, Eq)]
struct Definition {
    is_unique: bool,
    /// What follows the table's name.
    how: String,
}

impl Definition {
    /// Of what the server writes: `CREATE UNIQUE INDEX name ON ONLY schema.table USING btree (…) WHERE …`.
    fn read(sql: &str) -> Option<Definition> {
        let (head, how) = sql.split_once(" USING ")?;
        Some(Definition { is_unique: head.starts_with("CREATE UNIQUE INDEX "), how: format!("USING {how}") })
    }
}

/// Prints what each index of the table costs, under names that begin with `prefix`. `more`: indexes that partitions get when they are full, thus not while rows are written.
pub async fn each_index(conn: &PgConn, prefix: &str, of: &Copied<'_>, more: &[(&str, &str)]) -> Result<()> {
    const OF_TABLE: &str = "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = $1 AND tablename = $2 ORDER BY indexname";
    let mut indexes = Vec::new();
    for row in conn.query(OF_TABLE, &[&of.schema, &of.table]).await? {
        let (name, sql): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let definition =
            Definition::read(&sql).with_context(|| format!("an index that can't be read: {sql}"))?;
        indexes.push((name, definition));
    }
    for (name, how) in more {
        indexes.push(((*name).to_owned(), Definition { is_unique: false, how: (*how).to_owned() }));
    }
    for (name, Definition { is_unique, how }) in indexes {
        let unique = if is_unique { "UNIQUE " } else { "" };
        conn.batch(&format!("TRUNCATE bare.{0}; CREATE {unique}INDEX one_index ON bare.{0} {how}", of.table))
            .await?;
        let took = copies(conn, of).await?;
        let name = name.strip_suffix("_pkey").map_or(name.clone(), |table| format!("{table}_key"));
        figure(&format!("{prefix}{name}"), format!("{:.2}", took / of.plain_s), "times_bare_copy");
        conn.batch("DROP INDEX bare.one_index").await?;
    }
    Ok(())
}

/// How long the copy of the rows into the table takes as it is, in seconds: the median of a few.
pub async fn copies(conn: &PgConn, of: &Copied<'_>) -> Result<f64> {
    let mut took = Vec::new();
    for _ in 0..REPEATS {
        conn.batch(&format!("TRUNCATE bare.{}", of.table)).await?;
        took.push(copy_into(conn, &format!("bare.{}", of.target), of.rows).await?.as_secs_f64());
    }
    Ok(median(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_the_server_writes_it() {
        let read = |sql: &str| Definition::read(sql).map(|read| (read.is_unique, read.how));
        assert_eq!(
            read("CREATE UNIQUE INDEX blocks_pkey ON ONLY raw.blocks USING btree (height)"),
            Some((true, "USING btree (height)".into()))
        );
        let partial = "USING btree (height) WHERE (event_count > 0)";
        assert_eq!(
            read(&format!("CREATE INDEX blocks_with_events ON ONLY raw.blocks {partial}")),
            Some((false, partial.into()))
        );
        let brin = "USING brin (height) WITH (pages_per_range='32', autosummarize='on')";
        assert_eq!(
            read(&format!("CREATE INDEX evm_lookup_by_height ON raw.evm_lookup {brin}")),
            Some((false, brin.into()))
        );
        assert_eq!(read("DROP INDEX x"), None);
    }
}
