//! Migrations with versions: each is one transaction, and whoever comes second waits for the first.

use cairn_store::{Result, StoreError};

use super::error::db;
use super::migrate_table;
use super::pool::{Isolation, PgConn};

/// One step of a schema. Versions begin with 1 and have no gaps.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The version that the schema has after it.
    pub version: u32,
    /// What it does, in a few words.
    pub name: &'static str,
    /// Its statements, separated by semicolons; no `BEGIN` and no `COMMIT`.
    pub sql: &'static str,
}

/// The newest version among `migrations`; 0 where there is none.
pub fn newest(migrations: &[Migration]) -> u32 {
    migrations.last().map_or(0, |migration| migration.version)
}

/// Makes `schema` where it is missing and runs the migrations that it hasn't had, in order, each in one transaction under an
/// advisory lock. Returns the versions that were run. A schema that is newer than this program is [`StoreError::UnknownSchema`], and is left as it is.
///
/// `schema` is a plain lower-case identifier of our own, never an input.
pub async fn migrate(conn: &mut PgConn, schema: &'static str, migrations: &[Migration]) -> Result<Vec<u32>> {
    let mut ran = Vec::new();
    loop {
        conn.begin(Isolation::ReadCommitted).await?;
        // Another process may be at it, and a migration of a large table takes as long as it takes. What it waits for inside is bounded as ever: readers wait behind it.
        let lock_timeout: String =
            conn.query_one("SELECT current_setting('lock_timeout')", &[]).await?.try_get(0).map_err(db)?;
        conn.batch("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0").await?;
        conn.lock_until_end(&format!("cairn.migrate.{schema}")).await?;
        conn.execute("SELECT set_config('lock_timeout', $1, true)", &[&lock_timeout]).await?;
        let found = version(conn, schema).await?;
        demand_known(found, newest(migrations))?;
        demand_no_move(conn, schema).await?;
        let Some(next) = migrations.iter().find(|migration| migration.version == found + 1) else {
            conn.rollback().await?;
            return Ok(ran);
        };
        if found == 0 {
            conn.batch(&format!(
                "CREATE SCHEMA IF NOT EXISTS {schema};
                 CREATE TABLE {schema}.schema_migrations (
                   version BIGINT PRIMARY KEY,
                   name TEXT NOT NULL,
                   applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
                 );"
            ))
            .await?;
        }
        let partitioned = with_partitions(conn, schema).await?;
        conn.batch(&online(next.sql, schema, &partitioned)).await?;
        conn.execute(
            &format!("INSERT INTO {schema}.schema_migrations (version, name) VALUES ($1, $2)"),
            &[&i64::from(next.version), &next.name],
        )
        .await?;
        conn.commit().await?;
        tracing::info!(schema, version = next.version, name = next.name, "migrated");
        ran.push(next.version);
    }
}

/// The tables of `schema` that have partitions, which may be as large as a chain.
async fn with_partitions(conn: &PgConn, schema: &str) -> Result<Vec<String>> {
    let rows = conn
        .query(
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relkind = 'p' AND EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)",
            &[&schema],
        )
        .await?;
    rows.iter().map(|row| row.try_get(0).map_err(db)).collect()
}

/// A migration's statements, with the indexes of tables that have partitions on the parent alone: that reads no row, under a lock that nobody else gets beside. Whoever writes
/// blocks builds the partitions' one after the other, beside readers and writers, and attaches them ([`super::partition`]). Such a statement stands on one line.
fn online(sql: &str, schema: &str, partitioned: &[String]) -> String {
    let is_of = |line: &str, table: &String| line.contains(&format!(" ON {schema}.{table} "));
    let mut statements = String::with_capacity(sql.len() + 64);
    for line in sql.lines() {
        if line.starts_with("CREATE INDEX ") && partitioned.iter().any(|table| is_of(line, table)) {
            statements += &line.replacen(" ON ", " ON ONLY ", 1);
        } else {
            statements += line;
        }
        statements.push('\n');
    }
    statements
}

/// The version of `schema` as it stands; 0 where it is missing.
pub async fn version(conn: &PgConn, schema: &'static str) -> Result<u32> {
    let table = format!("{schema}.schema_migrations");
    let exists = conn.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await?;
    if !exists.try_get::<_, bool>(0).map_err(db)? {
        return Ok(0);
    }
    let row = conn.query_one(&format!("SELECT coalesce(max(version), 0) FROM {table}"), &[]).await?;
    let found: i64 = row.try_get(0).map_err(db)?;
    u32::try_from(found)
        .map_err(|_| StoreError::Corrupt { place: table, what: format!("{found} is no schema version") })
}

/// Demands that `schema` is exactly as this program knows it, without changing it: for those who only read.
pub async fn demand_current(conn: &PgConn, schema: &'static str, migrations: &[Migration]) -> Result<()> {
    demand_version(conn, schema, migrations).await?;
    demand_no_move(conn, schema).await
}

/// The same, whether a table is being moved or not: for who moves it.
pub async fn demand_version(conn: &PgConn, schema: &'static str, migrations: &[Migration]) -> Result<()> {
    let (found, known) = (version(conn, schema).await?, newest(migrations));
    demand_known(found, known)?;
    if found < known {
        return Err(StoreError::OldSchema { schema, found, known });
    }
    Ok(())
}

/// A table that is made anew and not all there is not to be read or written.
async fn demand_no_move(conn: &PgConn, schema: &'static str) -> Result<()> {
    match migrate_table::unfinished(conn, schema).await?.first() {
        None => Ok(()),
        Some(table) => Err(StoreError::Invalid(format!(
            "table {schema}.{table} is being made anew and that isn't finished: `cairn migrate --in-place {schema}.{table}` goes on with it"
        ))),
    }
}

fn demand_known(found: u32, known: u32) -> Result<()> {
    if found > known { Err(StoreError::UnknownSchema { found, known }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::online;

    #[test]
    fn an_index_of_a_table_with_partitions_is_begun_on_the_parent_alone() {
        let sql = "CREATE INDEX a_b ON raw.a (b);\nCREATE INDEX ab_c ON raw.ab (c) WHERE x;\nALTER TABLE raw.a ADD COLUMN b TEXT;";
        let online = online(sql, "raw", &["a".into()]);
        assert_eq!(online.trim_end(), sql.replace("ON raw.a (", "ON ONLY raw.a ("));
    }
}
